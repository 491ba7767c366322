"""Classes of lm-eval's Python interface: their prompts and requests are those that lm-eval 0.4.13 makes."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from plugin_project import Project

from pytest_promptfmt.core.errors import RenderError
from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.core.release import release_of
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.functions import bind_functions

pytest.importorskip("lm_eval", reason="compares with lm-evaluation-harness")

pytestmark = pytest.mark.parity

DOCS = [{"question": "Which metal rusts?", "answer": "iron"}, {"question": " Which shines? ", "answer": "gold "}]
QUIZ = """
import json
from pathlib import Path
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

DOCS = [json.loads(line) for line in Path(__file__).with_name("quiz.docs.jsonl").read_text().splitlines()]

class Base(ConfigurableTask):
    def __init__(self, **kwargs):
        super().__init__(config={"metadata": {"version": 1}})

    def download(self, *args, **kwargs):
        from datasets import Dataset

        self.dataset = {"validation": Dataset.from_list(DOCS)}

    def has_training_docs(self):
        return False

    def has_validation_docs(self):
        return True

    def has_test_docs(self):
        return False

    def validation_docs(self):
        return self.dataset["validation"]

    def doc_to_text(self, doc):
        return "Q: " + doc["question"] + "\\nA:"

    def doc_to_target(self, doc):
        return " " + doc["answer"]

    def aggregation(self):
        return {"contains": max}

    def higher_is_better(self):
        return {"contains": True}

    def process_results(self, doc, results):
        return {"contains": float(doc["answer"] in results[0])}

class Written(Base):
    def construct_requests(self, doc, ctx, chat_template=None, apply_chat_template=False, **kwargs):
        return [Instance("generate_until", doc, (ctx, {"until": ["\\n"], "max_gen_toks": 8}), 0, **kwargs)]

class Derived(Written):
    pass

class Judged(Base):
    def construct_requests(self, doc, ctx, chat_template=None, apply_chat_template=False, **kwargs):
        return [
            Instance("generate_until", doc, (ctx, {"until": ["\\n"]}), 0, **kwargs),
            Instance("loglikelihood", doc, (ctx, " iron"), 1, **kwargs),
        ]

class Chatting(Written):
    def build_all_requests(self, *, apply_chat_template=False, **kwargs):
        if not apply_chat_template:
            raise ValueError("needs a chat template")
        super().build_all_requests(apply_chat_template=apply_chat_template, **kwargs)

class Shown(Written):
    def doc_to_text(self, doc, doc_to_text=None):
        return super().doc_to_text(doc)

    def doc_to_target(self, doc, doc_to_target=None):
        return super().doc_to_target(doc)

class Fails(Base):
    def construct_requests(self, doc, ctx, **kwargs):
        return doc["choices"]
"""


def quiz(folder: Path, name: str) -> Task:
    """Return the task of a class."""
    folder.mkdir(exist_ok=True)
    (folder / "quiz.docs.jsonl").write_text("".join(f"{json.dumps(doc)}\n" for doc in DOCS), "utf-8")
    (folder / "quiz_task.py").write_text(QUIZ, "utf-8")
    (folder / "quiz.yaml").write_text(f"task: quiz\nclass: !function quiz_task.{name}\n", "utf-8")
    file = read_task_file(folder / "quiz.yaml")
    assert file is not None
    assert file.kind == "class"
    return bind_functions(file.tasks[0], trusted=lambda _path: True)


@pytest.mark.parametrize("name", ["Written", "Judged"])
def test_prompts_and_requests_are_those_of_lm_eval(tmp_path: Path, name: str) -> None:
    task = quiz(tmp_path, name)
    assert task.output_type == "generate_until"
    theirs = runpy.run_path(str(tmp_path / "quiz_task.py"))[name]()
    theirs.set_config(key="num_fewshot", value=0)
    theirs.build_all_requests(limit=None, rank=0, world_size=1)
    expected = [(one.request_type, one.args) for one in theirs.instances]
    shown = list(task.render(profile=PLAIN))
    ours = [(one.kind, one.arguments) for instance in shown for one in instance.requests]
    assert sorted(ours, key=str) == sorted(expected, key=str)
    assert [instance.target for instance in shown] == [theirs.doc_to_target(doc) for doc in DOCS]


def test_a_class_that_refuses_a_profile_fails_for_it_as_in_lm_eval(tmp_path: Path) -> None:
    task = quiz(tmp_path, "Chatting")
    with pytest.raises(RenderError, match="raises ValueError: needs a chat template"):
        list(task.render(profile=PLAIN))
    template = "{% for each in messages %}<{{ each.role }}>{{ each.content }}{% endfor %}"
    chat = replace(PLAIN, name="chat", chat_template=template)
    contexts = [instance.requests[0].context for instance in task.render(profile=chat)]
    assert contexts == [f"<user>Q: {doc['question']}\nA:" for doc in DOCS]


@pytest.mark.parametrize("name", ["Written", "Shown"])
def test_shots_are_made_or_fail_as_in_lm_eval(tmp_path: Path, name: str) -> None:
    task = quiz(tmp_path, name)
    theirs = runpy.run_path(str(tmp_path / "quiz_task.py"))[name]()
    theirs.set_config(key="num_fewshot", value=1)
    theirs.set_fewshot_seed(1234)
    if name == "Written":
        with pytest.raises(TypeError, match="2 positional arguments"):
            theirs.build_all_requests(limit=None, rank=0, world_size=1)
        with pytest.raises(RenderError, match=r"Written fails for few-shot examples \(TypeError\)"):
            list(task.render(profile=PLAIN, num_fewshot=1))
        return
    theirs.build_all_requests(limit=None, rank=0, world_size=1)
    ours = [instance.requests[0].arguments for instance in task.render(profile=PLAIN, num_fewshot=1)]
    assert ours == [one.args for one in theirs.instances]


def test_early_releases_make_shots_and_keep_the_delimiter(tmp_path: Path) -> None:
    task = quiz(tmp_path, "Written").following(release_of("0.4.9"))
    prompt = next(task.render(profile=PLAIN, num_fewshot=1)).requests[0].context
    assert "\nA:  gold" in str(prompt)


@pytest.mark.parametrize("name", ["Written", "Derived", "Judged"])
def test_what_a_class_asks_for_is_known_before_it_is_imported(tmp_path: Path, name: str) -> None:
    bound = quiz(tmp_path, name)
    text = QUIZ.replace('"generate_until"', '"loglikelihood"')
    (tmp_path / "quiz_task.py").write_text(f"raise SystemExit\n{text}", "utf-8")
    file = read_task_file(tmp_path / "quiz.yaml")
    assert file is not None
    assert (bound.output_type, file.tasks[0].output_type) == ("generate_until", "loglikelihood")


def test_a_class_is_imported_in_workers_alone(project: Project) -> None:
    project.write("conftest.py", "import os\nopen('tests.txt', 'w').write(str(os.getpid()))\n")
    quiz(project.root / "tasks", "Written")
    ended = f"import os\nif open('tests.txt').read() == str(os.getpid()):\n    os._exit(7)\n{QUIZ}"
    project.write("tasks/quiz_task.py", ended)
    result = project.start("--promptfmt", "tasks", "--snapshot-update")
    result.assert_outcomes(passed=2)


def test_its_results_are_processed_by_the_class(tmp_path: Path) -> None:
    task = quiz(tmp_path, "Written")
    assert task.process_results(DOCS[0], ["it is iron"]) == {"contains": 1.0}
    assert [entry["metric"] for entry in task.metric_list or ()] == ["contains"]


def test_a_hook_that_fails_is_named_with_its_doc(tmp_path: Path) -> None:
    task = quiz(tmp_path, "Fails")
    with pytest.raises(Exception, match="construct_requests of 'quiz', doc 1 raised KeyError: 'choices'"):
        list(task.render(profile=PLAIN))


def test_a_class_whose_packages_are_missing_is_skipped(tmp_path: Path) -> None:
    quiz(tmp_path, "Written")
    (tmp_path / "quiz_task.py").write_text(f"from a_package_of_nobody import LIMIT\nHALF = LIMIT // 2\n{QUIZ}", "utf-8")
    file = read_task_file(tmp_path / "quiz.yaml")
    assert file is not None
    with pytest.raises(Exception, match="a_package_of_nobody") as raised:
        bind_functions(file.tasks[0], trusted=lambda _path: True)
    assert type(raised.value).__name__ == "MissingResourceError"


@pytest.mark.parametrize(("release", "kind"), [("0.4.3", "UnavailableError"), ("", "RenderError")])
def test_a_class_of_a_checkout_that_fails_with_the_installed_lm_eval_is_skipped(
    tmp_path: Path, release: str, kind: str
) -> None:
    release = release or version("lm_eval")
    (tmp_path / "lm_eval" / "tasks").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "lm_eval"\nversion = "{release}"\n', "utf-8")
    folder = tmp_path / "own"
    folder.mkdir()
    quiz(folder, "Written")
    early = "Instance(request_type='generate_until', doc=doc, arguments=(ctx, {}), idx=0, **kwargs)"
    code = f"    def construct_requests(self, doc, ctx, **kwargs):\n        return {early}\n"
    (folder / "quiz_task.py").write_text(f"{QUIZ}\n\nclass Early(Written):\n{code}", "utf-8")
    (folder / "quiz.yaml").write_text((folder / "quiz.yaml").read_text("utf-8").replace("Written", "Early"), "utf-8")
    file = read_task_file(folder / "quiz.yaml")
    assert file is not None
    task = bind_functions(file.tasks[0], trusted=lambda _path: True)
    with pytest.raises(Exception, match="chat_template") as raised:
        list(task.render(profile=PLAIN))
    assert type(raised.value).__name__ == kind
