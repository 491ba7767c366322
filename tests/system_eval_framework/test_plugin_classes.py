"""Task classes as pytest items: from YAML, from modules, as the guide of eval-framework writes them, and broken."""

import random
import re
import shutil
from pathlib import Path
from typing import Final

import pytest
from plugin_project import Project

ROOT = Path(__file__).parents[2]
GUIDE = ROOT.parent / "shared" / "seeds" / "004_bf14e405095dad9d.txt"

CLASS = """
class {name}:
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = "loglikelihoods"
    def _get_instruction_text(self, item): return f"{{item['q']}}\\nAnswer:"
    def _get_ground_truth(self, item): return " yes"
    def _get_possible_completions(self, item): return [" yes", " no"]
"""
QUIZ: Final = CLASS.format(name="Quiz")


def yaml_of(name: str, module: str = "quiz") -> str:
    return f"class: !function {module}.{name}\ndocs: [{{q: Is it?}}, {{q: Was it?}}]\n"


def test_the_example_classes_pass_with_the_snapshots_beside_them(project: Project) -> None:
    shutil.copytree(ROOT / "fixtures" / "classes", project.root / "classes")
    result = project.run("-q", "-o", "promptfmt_lint=true")
    assert result.ret == 0, result.stdout.str()
    assert "updated" not in result.stdout.str()
    assert {path.split("/")[2] for path in project.snapshots()} == {
        path.stem for path in (ROOT / "fixtures" / "classes").glob("*.yaml") if path.stem != "promptfmt"
    }


def test_completions_are_read_by_the_class_in_battery_and_recordings(project: Project) -> None:
    for name in ("harbour_classes.py", "knot_counts.yaml"):
        shutil.copy(ROOT / "fixtures" / "classes" / name, project.root)
    records = ('{"doc": 0, "completion": "So the answer is (5)."}', '{"doc": 1, "completion": "the answer is (9)"}')
    project.write("knot_counts.recording.jsonl", "\n".join(records))
    project.accept("--promptfmt-profile", "plain")
    snapshots = {Path(path).stem: text.decode() for path, text in project.snapshots().items()}
    assert "post_process_generated_completion" in snapshots["extraction"]
    assert re.search(r"asked-for +OK\n", snapshots["extraction"])
    assert "1  right '5'" in snapshots["recording"]
    assert "2  wrong '9'" in snapshots["recording"]


@pytest.mark.parametrize("name", ["quiz.docs.jsonl", "quiz.docs.test.jsonl", "own.docs.test.jsonl", None])
def test_docs_are_found_beside_the_class_or_in_it(project: Project, name: str | None) -> None:
    project.write("quiz.yaml", "task: own\nclass: !function quiz.Quiz\n")
    project.write("quiz.py", QUIZ + ("" if name else "    PROMPTFMT_DOCS = [{'q': 'Is it?'}]\n"))
    if name:
        project.write(name, '{"q": "Is it?"}\n')
    project.accept("--promptfmt-profile", "plain")
    (snapshot,) = project.snapshots().values()
    assert "Is it?" in snapshot.decode()


def test_what_is_wrong_with_one_class_stops_no_other(project: Project) -> None:
    project.write("quiz.py", QUIZ + WRONG)
    project.write("broken.py", "import json.nothing_of_that_name\n")
    project.write("ends.py", "import os\nos._exit(3)\n")
    project.write("odd.py", "class Odd(BaseException): ...\nraise Odd('x')\n")
    project.write("good.yaml", yaml_of("Quiz"))
    for name in ("Raises", "Exits", "Leaves", "Closes", "NoWords", "NoAttributes", "Hangs", "Changes", "Quizz"):
        project.write(f"{name.lower()}.yaml", yaml_of(name))
    project.write("import_fails.yaml", yaml_of("Any", "broken") + "task: import_fails\n")
    project.write("import_ends.yaml", yaml_of("Any", "ends") + "task: import_ends\n")
    project.write("import_odd.yaml", yaml_of("Any", "odd") + "task: import_odd\n")
    project.write("no_module.yaml", yaml_of("Any", "nowhere") + "task: no_module\n")
    project.write("no_docs.yaml", "class: quiz:Quiz\ntask: without_docs\n")
    project.write("no_file.yaml", "class: quiz:Quiz\ntask: without_file\ndocs: missing.jsonl\n")
    project.write("key.yaml", f"{yaml_of('Quiz')}task: mistyped\nnum_fewshots: 1\n")
    arguments = ("-o", "promptfmt_time_limit=2", "--promptfmt-profile", "plain", "--snapshot-update")
    result = project.run(*arguments, "-rs")
    failures = "\n".join(project.failures(*arguments))
    for said in (
        r"quiz\.py:\d+: _get_cue_text of 'Raises', doc 1 raised KeyError: 'cue'",
        r"quiz\.py:\d+: _get_cue_text of 'Exits', doc 1 ended the program with SystemExit: 5",
        r"quiz\.py:\d+: _get_cue_text of 'Leaves', doc 1 ended the program with SystemExit: 7",
        r"quiz\.py:\d+: _get_cue_text of 'Closes', doc 1 raised GeneratorExit",
        r"quiz\.py:\d+: _get_cue_text of 'NoWords', doc 1 must return text, not a NoWords",
        r"quiz\.py:\d+: reading the attributes of quiz\.NoAttributes raised RuntimeError: not now",
        r"import_odd\.yaml:1:\d+: .*cannot be imported \(odd\.py:2\): Odd: x",
        r"Hangs did not finish within 2 s",
        r"quizz\.yaml:1:\d+: class: quiz\.py has no 'Quizz'\n  hint: did you mean 'Quiz'",
        r"import_fails\.yaml:1:\d+: .*cannot be imported \(broken\.py:1\): no module named 'json.nothing_of_that_name'",
        r"import_ends\.yaml:1:\d+: .*importing the module ends the program",
        r"no_module\.yaml:1:\d+: .*there is no file nowhere\.py, and no installed module 'nowhere'",
        r"no_file\.yaml:3:\d+: .*missing\.jsonl",
        r"key\.yaml:4:\d+: .*unknown key 'num_fewshots'.*\n  hint: did you mean 'num_fewshot'",
    ):
        assert re.search(said, failures), f"{said}\n---\n{failures}"
    result.assert_outcomes(passed=2, skipped=1, failed=14)
    result.stdout.fnmatch_lines(["SKIPPED * no_docs.yaml:2: there are no docs for the task class"])
    assert set(project.snapshots()) == {
        "__prompts__/good/Quiz/plain.txt",
        "__prompts__/changes/Changes/plain.txt",
    }


WRONG = """
class Raises(Quiz):
    def _get_cue_text(self, item): return item["cue"]

class Exits(Quiz):
    def _get_cue_text(self, item): raise SystemExit(5)

class Leaves(Quiz):
    def _get_cue_text(self, item):
        import os
        os._exit(7)

class Closes(Quiz):
    def _get_cue_text(self, item): raise GeneratorExit

class NoWords(Quiz):
    def __repr__(self): raise ValueError
    def _get_cue_text(self, item): return self

class NoAttributes(Quiz):
    def __getattribute__(self, name): raise RuntimeError("not now")

class Hangs(Quiz):
    def _get_cue_text(self, item):
        while True: pass

class Changes(Quiz):
    def _get_cue_text(self, item): item["q"] = "changed"; return ""
"""


def test_classes_are_found_in_the_modules_of_the_setting(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_task_modules = tasks/tasks_*.py\n")
    docs = '    PROMPTFMT_DOCS = [{"q": "Is it?"}]\n'
    hidden = CLASS.format(name="_Hidden")
    project.write("tasks/tasks_a.py", f"from pathlib import Path\n{QUIZ}{docs}{hidden}\nclass Plain: pass\n")
    project.write("tasks/tasks_b.py", "import json.nothing_of_that_name\n")
    project.write("tasks/tasks_c.py", "x = 1\n")
    project.write("tasks/other.py", CLASS.format(name="Other"))
    assert project.collected("--promptfmt", "--promptfmt-profile", "plain", "tasks") == [
        "tasks/tasks_a.py::Quiz::snapshot[plain]",
        "tasks/tasks_b.py::load",
        "tasks/tasks_c.py::load",
    ]
    result = project.run("tasks", "--promptfmt-profile", "plain", "--snapshot-update")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*tasks_b.py: *no module named 'json.nothing_of_that_name'"])
    result.stdout.fnmatch_lines(["*tasks_c.py: this module defines no task class"])


def test_no_module_is_imported_where_code_may_not_run(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_task_modules = tasks.py\n")
    project.write("tasks.py", f"open('ran', 'w').close()\n{QUIZ}")
    project.write("quiz.yaml", yaml_of("Quiz", "tasks"))
    result = project.run("--promptfmt-no-code", "--promptfmt-profile", "plain")
    result.assert_outcomes(skipped=2)
    assert not (project.root / "ran").exists()


# -- the guide, as written -------------------------------------------------------------------------------------------

PRELUDE = """
from enum import Enum
from typing import Any, Generic, TypeVar

Subject = TypeVar("Subject")
class BaseTask(Generic[Subject]): pass
class ResponseType(Enum):
    COMPLETION = "completion"
    LOGLIKELIHOODS = "loglikelihoods"
class AccuracyLoglikelihood: pass
class ProbabilityMass: pass
class TernaryScore: pass
class DistributionalCorrectnessScore: pass
"""
"""What the classes of the guide import from eval-framework, without its defaults."""

GUIDE_DOCS = {
    "StandardMCQTask": "{question: Which falls?, choices: [stone, smoke], answer_idx: 0}",
    "MMLUStyleTask": "{question: Which falls?, choices: [stone, smoke, dust, air], answer: A, subject: astronomy}",
    "TrueFalseTask": "{statement: Stones fall., is_true: true}",
    "ExistingTask_IDK": "{question: Which falls?, choices: [stone, smoke], answer_idx: 0}",
    "ScienceQuizTask": "{question: Which falls?, choices: [stone, smoke, dust, air], answer_key: A, subject: physics}",
}


def guide_classes() -> dict[str, str]:
    """Return the source of each class of the guide by name, the first of each."""
    found: dict[str, str] = {}
    for block in re.findall(r"(?m)^class \w+\([^\n]*\):\n(?:(?: {4,}[^\n]*|)\n)+", GUIDE.read_text("utf-8")):
        found.setdefault(block[len("class ") : block.index("(")], block)
    return found


@pytest.mark.skipif(not GUIDE.is_file(), reason="the guide is not here")
def test_the_classes_of_the_guide_run_as_written_and_its_mistakes_are_reported(project: Project) -> None:
    found = guide_classes()
    idk = "class ExistingTask(StandardMCQTask): pass\n\n" + found["ExistingTask_IDK"]
    names = ("StandardMCQTask", "MMLUStyleTask", "TrueFalseTask", "ScienceSubject", "ScienceQuizTask")
    advanced = """
class Advanced(MMLUStyleTask):
    METRICS = [AccuracyLoglikelihood, ProbabilityMass]
    def _get_fewshot_target_text(self, item): return item['answer']
"""
    project.write("guide.py", "\n".join([PRELUDE, *(found[name] for name in names), idk, advanced]))
    for name, doc in (*GUIDE_DOCS.items(), ("Advanced", GUIDE_DOCS["MMLUStyleTask"])):
        again = doc.replace("falls", "sinks").replace("Stones fall", "Feathers sink")
        project.write(f"{name}.yaml", f"class: !function guide.{name}\nnum_fewshot: 1\ndocs: [{doc}, {again}]\n")
    result = project.run("-o", "promptfmt_lint=true", "--promptfmt-profile", "plain", "--snapshot-update", "-v")
    shown = result.stdout.str()
    for said in (
        "the gold answer is not among the choices",
        "saw: the target is 'stone', and the choices are [' stone', ' smoke', \" I don't know.\"]",
        "saw: the shot shows 'A', but ' A' is scored",
        "ProbabilityMass needs a list as ground truth",
        'saw: "I don\'t know" is quoted, but " I don\'t know." is scored',
    ):
        assert said in shown
    for task, outcome in (("StandardMCQTask", "FAILED"), ("Advanced", "FAILED"), ("TrueFalseTask", "PASSED")):
        assert re.search(rf"::{task}::lint {outcome}", shown)
    assert "Write item['subject'].value" in shown  # the complete example calls replace on a member of an Enum
    assert set(project.snapshots()) == {
        f"__prompts__/{name}/{name}/plain.txt" for name in (*GUIDE_DOCS, "Advanced") if name != "ScienceQuizTask"
    }
    mmlu = project.snapshots()["__prompts__/MMLUStyleTask/MMLUStyleTask/plain.txt"].decode()
    assert "| Question: Which falls?\n  | A. stone\n  | B. smoke\n  | C. dust\n  | D. air\n  | Answer:⟨end⟩" in mmlu
    assert '  * " A"\n    " B"\n' in mmlu


@pytest.mark.skipif(not GUIDE.is_file(), reason="the guide is not here")
def test_the_complete_example_of_the_guide_runs_once_its_subject_is_read_as_a_value(project: Project) -> None:
    found = guide_classes()
    quiz = found["ScienceQuizTask"].replace("item['subject'].replace", "item['subject'].value.replace")
    assert quiz != found["ScienceQuizTask"]
    project.write("guide.py", "\n".join([PRELUDE, found["ScienceSubject"], quiz]))
    doc = GUIDE_DOCS["ScienceQuizTask"]
    project.write("quiz.yaml", f"class: !function guide.ScienceQuizTask\ndocs: [{doc}]\n")
    project.accept("--promptfmt-profile", "plain")
    (snapshot,) = project.snapshots().values()
    assert (
        "  | You are a science expert. Choose the correct answer for each question.\n  |\n"
        "  | Science (Physics) Question:\n  | Which falls?\n  |\n  | A. stone\n  | B. smoke\n  | C. dust\n  | D. air\n"
        "  |\n  | Answer:⟨end⟩\n" in snapshot.decode()
    )


MANY: Final = """
import random

class Named:
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = "completion"
    PROMPTFMT_DOCS = [{"q": f"Is it {n}?"} for n in range(6)]
    PROMPTFMT_NUM_FEWSHOT = 2
    def _get_instruction_text(self, item): return item["q"]
    def _get_ground_truth(self, item): return "yes"

class Shuffles(Named):
    def __init__(self, num_fewshot):
        self.num_fewshot, self.rnd = num_fewshot, random.Random(42)
    def _load_hf_dataset(self, **options): ...
    def _load_dataset(self, subject):
        rows = list(self._load_hf_dataset(path="x")["test"])
        self.rnd.shuffle(rows)
        self.dataset = {"test": rows}

class Fixes(Named):
    def __init__(self, num_fewshot):
        self.num_fewshot = 1

class _Benchmark:
    def __init__(self, name): self._name = name
    def id(self): return self._name
    def subjects(self): return ["no_subject"]
    def create(self, num_fewshot, subjects, revision, seed): return self
    def iterate_samples(self, count):
        yield {"id": 0, "subject": "a", "messages": [{"role": "user", "content": "Q"}], "ground_truth": "yes",
               "possible_completions": None}
    def response_type(self): return "completion"

"""


def test_tasks_in_lists_and_from_factories_are_found_and_a_bad_one_hides_none(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\npromptfmt_task_modules = *_tasks.py\n")
    bad = "class Bad(Named):\n    SUBJECTS = 7\n"
    project.write("listed_tasks.py", f"{MANY}{bad}ALL = [_Benchmark('A'), _Benchmark('B'), 7]\n")
    factories = "def make(dataset=None) -> _Benchmark: return _Benchmark('C')\ndef other(x) -> _Benchmark: 1 / 0\n"
    project.write("made_tasks.py", MANY.partition("class Named")[0] + MANY[MANY.index("class _Bench") :] + factories)
    found = {each.split("::")[1] for each in project.collected("--promptfmt")}
    assert found == {"Named", "Shuffles", "Fixes", "Bad", "A", "B", "C"}
    result = project.run("--snapshot-update")
    assert "SUBJECTS of Bad is 7" in result.stdout.str()
    assert {Path(path).parent.name for path in project.snapshots()} == found - {"Bad"}


def test_a_loader_that_shuffles_draws_before_the_shots_and_a_constructor_may_fix_their_number(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\npromptfmt_task_modules = *_tasks.py\n")
    project.write("listed_tasks.py", MANY)
    project.accept("--promptfmt-docs", "1")
    shown = {Path(path).parent.name: text.decode() for path, text in project.snapshots().items()}
    rnd = random.Random(42)
    rows = [f"Is it {number}?" for number in range(6)]
    rnd.shuffle(rows)
    shots = [row for row in rnd.sample(rows, 3) if row != rows[0]][:2]
    prompt = re.findall(r"Is it \d\?", shown["Shuffles"])
    assert prompt == [*shots, rows[0]]
    assert len(re.findall(r"Is it \d\?", shown["Fixes"])) == 2


def test_rows_in_the_tree_of_docs_are_those_of_a_class_without_others(project: Project) -> None:
    project.write("pkg/quiz.py", QUIZ)
    project.write("pkg/quiz.yaml", "class: quiz:Quiz\ntask: named\n")
    project.write("tests/docs/pkg/quiz.docs.jsonl", '{"q": "Is ice cold?"}\n')
    options = ("-o", "promptfmt_docs_dir=tests/docs", "-o", "promptfmt_task_modules=pkg/quiz.py")
    project.write("tests/docs/pkg/Quiz.docs.jsonl", '{"q": "Is fire cold?"}\n')
    project.accept("--promptfmt-profile", "plain", "-m", "promptfmt_snapshot", *options)
    shown = {Path(path).parent.name: text.decode() for path, text in project.snapshots().items()}
    assert shown.keys() == {"Quiz", "named"}
    assert "Is fire cold?" in shown["Quiz"]
    assert "Is ice cold?" in shown["named"]


def test_a_module_whose_classes_need_a_package_that_is_not_installed_is_skipped(project: Project) -> None:
    base = "from a_package_of_nobody.tasks import Base\n\nclass Derived(Base):\n    pass\n"
    project.write("derived.py", base)
    project.write("derived_too.yaml", yaml_of("Derived", "derived") + "task: derived_too\n")
    project.write("pytest.ini", "[pytest]\npromptfmt_task_modules = *.py\npromptfmt_profiles = plain\n")
    result = project.run("-m", "not promptfmt_lint")
    assert result.parseoutcomes().get("failed", 0) == 0
    result.stdout.fnmatch_lines(["*package 'a_package_of_nobody' is not installed*pip install a-package-of-nobody*"])
