"""Task classes: messages assembled from hooks, shots drawn, and what hooks may not break."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt import load_tasks
from pytest_promptfmt.core.errors import (
    CodeNotAllowedError,
    FormatError,
    FunctionError,
    PromptfmtError,
    RenderError,
    SourceError,
    SyntheticDocsError,
)
from pytest_promptfmt.core.profile import Profile, builtin_profile
from pytest_promptfmt.core.prompt import Instance

BASE = """
class Quiz:
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    RESPONSE_TYPE = "loglikelihoods"
    def _get_instruction_text(self, item): return f"Q: {item['q']}\\n"
    def _get_ground_truth(self, item): return f" {item['a']}"
    def _get_possible_completions(self, item): return [" x", " y"]
"""
DOCS = [{"q": f"q{number}", "a": "xy"[number % 2]} for number in range(6)]
POOL = [{"q": f"shot{number}", "a": "x"} for number in range(4)]


def write(folder: Path, body: str = "", *, shots: int = 0, docs: Any = None, name: str = "Quiz", **keys: Any) -> Path:
    """Write a class with further members and the YAML that names it."""
    (folder / "quiz.py").write_text(BASE + body, "utf-8")
    given = {"test": DOCS, "train": POOL} if docs is None else docs
    values = {"class": f"quiz:{name}", "num_fewshot": shots, "docs": given, **keys}
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items() if value is not None]
    path = folder / "quiz.yaml"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def rendered(folder: Path, body: str = "", *, profile: str = "plain", count: int | None = None, **more: Any) -> Any:
    return instances(write(folder, body, **more), builtin_profile(profile), count)


def instances(path: Path, profile: Profile, count: int | None = None) -> list[Instance]:
    from pytest_promptfmt.tasks.docs.doc_sources import load_docs

    (task,) = load_tasks(path, allow_code=True)
    return list(task.render(load_docs(task, count=count), profile))


def messages(instance: Instance) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in instance.prompts[0].messages]


def test_messages_are_in_the_order_of_eval_framework(tmp_path: Path) -> None:
    body = """
    def _get_cue_text(self, item): return "A:"
    def _get_fewshot_target_text(self, item): return f"A: {item['a']}"
    def _get_initial_prompt_text(self, item): return f"Start {item['q']}"
    def _get_system_prompt_text(self, item): return "System"
"""
    first = rendered(tmp_path, body, shots=1, docs={"test": DOCS[:1], "train": POOL[:1]})[0]
    assert messages(first) == [
        ("system", "System"),
        ("user", "Start q0\n\nQ: shot0\n"),
        ("assistant", "A: x"),
        ("user", "Q: q0\n"),
        ("assistant", "A:"),
    ]
    assert first.prompts[0].text == "System\n\nStart q0\n\nQ: shot0\nA: x\n\nQ: q0\nA:"
    assert [(request.continuation, request.gold) for request in first.requests] == [(" x", True), (" y", False)]


def test_hooks_that_are_left_out_have_the_defaults_of_eval_framework(tmp_path: Path) -> None:
    first = rendered(tmp_path, shots=1, docs={"test": DOCS[:1], "train": POOL[:1]})[0]
    assert messages(first) == [("user", "Q: shot0\n"), ("assistant", " x"), ("user", "Q: q0\n")]


def test_the_same_task_differs_under_two_formatters_as_upstream(tmp_path: Path) -> None:
    path = write(tmp_path, shots=1, docs={"test": DOCS[:1], "train": POOL[:1]})
    concat = instances(path, builtin_profile("formatter-concat"))[0].prompts[0].text
    llama = instances(path, builtin_profile("formatter-llama3"))[0].prompts[0].text
    header = "<|start_header_id|>{}<|end_header_id|>\n\n".format
    assert concat == "Q: shot0\n x\n\nQ: q0"
    assert llama == (
        f"<|begin_of_text|>{header('user')}Q: shot0<|eot_id|>{header('assistant')}x<|eot_id|>"
        f"{header('user')}Q: q0<|eot_id|>{header('assistant')}"
    )


def test_a_cue_becomes_the_beginning_of_the_assistants_turn(tmp_path: Path) -> None:
    first = rendered(tmp_path, '    def _get_cue_text(self, item): return "A:"\n', profile="chat-chatml")[0]
    assert first.prompts[0].text.endswith("<|im_start|>assistant\nA:")


def test_shots_are_those_of_a_run_with_seed_42_over_all_rows(tmp_path: Path) -> None:
    expected = {}
    own = random.Random(42)
    order = list(range(len(DOCS)))
    own.shuffle(order)
    for number in order:
        expected[number] = [doc["q"] for doc in own.sample(POOL, 2)]
    found = rendered(tmp_path, shots=2, count=6)
    assert {
        each.index: [text[3:-1] for role, text in messages(each)[:-1] if role == "user"] for each in found
    } == expected


def test_how_many_docs_are_shown_changes_no_shot(tmp_path: Path) -> None:
    path = write(tmp_path, shots=2)
    few = instances(path, builtin_profile("plain"), 2)
    many = instances(path, builtin_profile("plain"), 6)
    assert [each.prompts[0].text for each in few] == [each.prompts[0].text for each in many[:2]]


def test_a_doc_is_never_its_own_shot(tmp_path: Path) -> None:
    for each in rendered(tmp_path, '    FEWSHOT_SPLIT = "test"\n', shots=4, count=6, docs={"test": DOCS}):
        assert messages(each)[-1][1] not in [text for _, text in messages(each)[:-1]]


def test_hooks_may_change_their_copy_of_a_doc(tmp_path: Path) -> None:
    body = """
    def _get_instruction_text(self, item):
        item["q"] += "!"
        return f"Q: {item['q']}"
"""
    path = write(tmp_path, body, shots=2)
    for _ in range(2):
        for each in instances(path, builtin_profile("plain"), 6):
            assert all(text.count("!") == 1 for role, text in messages(each) if role == "user")


def test_subjects_are_set_as_the_class_writes_them(tmp_path: Path) -> None:
    body = """
    SUBJECTS = [("sea", 1), ("air", 2)]
    def _get_instruction_text(self, item): return f"{item['subject'][0]}: {item['q']}"
"""
    docs = [{"q": "one", "a": "x", "subject": "('air', 2)"}, {"q": "two", "a": "x", "subject": "('sea', 1)"}]
    assert [each.prompts[0].text for each in rendered(tmp_path, body, docs=docs)] == ["air: one", "sea: two"]


def test_samples_of_create_samples_are_prompts_of_one_doc(tmp_path: Path) -> None:
    body = """
    def _create_samples(self, item, index, subject):
        return [{"messages": [{"role": "user", "content": f"{item['q']} {part}"}], "ground_truth": part,
                 "possible_completions": [part]} for part in ("a", "b")]
"""
    first = rendered(tmp_path, body)[0]
    assert [prompt.text for prompt in first.prompts] == ["q0 a", "q0 b"]
    assert [(request.prompt, request.continuation) for request in first.requests] == [(0, "a"), (1, "b")]


def test_own_messages_and_own_drawing_are_used(tmp_path: Path) -> None:
    body = """
    def _sample_fewshot_examples(self, item): return self.dataset["train"][-1:]
    def _get_instruction_messages(self, item): return [{"role": "user", "content": "own " + item["q"]}]
"""
    first = rendered(tmp_path, body, shots=1)[0]
    assert messages(first) == [("user", "own shot3"), ("assistant", " x"), ("user", "own q0")]


def test_a_task_style_replaces_hooks(tmp_path: Path) -> None:
    style = """
class Style:
    response_type = "completion"
    metrics = []
    def get_instruction_text(self, question, choices): return f"{question}: {', '.join(choices)}"
    def get_ground_truth(self, choices, index): return choices[index]
    def get_possible_completions(self, choices, index=None): return None
    def get_cue_text(self): return "Say:"
    def get_fewshot_target_text(self, choices, index): return f"Say: {choices[index]}"

class Styled:
    TASK_STYLER = Style()
    def _get_raw_question(self, item): return item["q"]
    def _get_choices(self, item): return ["x", "y"]
    def _get_correct_index(self, item): return "xy".index(item["a"])
"""
    path = write(tmp_path, style, shots=1, name="Styled", docs=DOCS[:2])
    first = instances(path, builtin_profile("plain"))[0]
    assert messages(first) == [
        ("user", "q1: x, y"),
        ("assistant", "Say: y"),
        ("user", "q0: x, y"),
        ("assistant", "Say:"),
    ]
    assert (first.requests[0].kind, first.target) == ("generate_until", "x")


def test_own_loader_gets_the_given_rows(tmp_path: Path) -> None:
    body = """
    def _load_hf_dataset(self, **options): raise RuntimeError("no hub here")
    def _load_dataset(self, subject):
        rows = self._load_hf_dataset(path="somewhere", name=None)
        self.dataset = {name: [{**row, "q": row["q"].upper()} for row in split] for name, split in rows.items()}
"""
    assert messages(rendered(tmp_path, body, shots=1)[0])[-1] == ("user", "Q: Q0\n")


def test_without_docs_none_are_synthesized(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "quiz.yaml").write_text("class: quiz:Quiz\ntask: quiz\n", "utf-8")
    (task,) = load_tasks(tmp_path / "quiz.yaml", allow_code=True)
    with pytest.raises(SyntheticDocsError, match=r"quiz\.docs\.jsonl"):
        list(task.render())


def test_docs_may_be_given_in_memory(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path), allow_code=True)
    assert [each.prompts[0].text for each in task.render([{"q": "mine", "a": "x"}])] == ["Q: mine"]


def test_a_class_is_not_imported_unless_code_may_run(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path, "raise SystemExit\n"))
    with pytest.raises(CodeNotAllowedError):
        list(task.render([{"q": "1", "a": "x"}]))


# -- what hooks do wrong ---------------------------------------------------------------------------------------------

CUE = "    def _get_cue_text(self, item): {}\n".format


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (CUE('return item["qq"]'), r"quiz\.py:9: _get_cue_text of 'Quiz', doc 1 raised KeyError: 'qq'"),
        (CUE("raise SystemExit(4)"), r"quiz\.py:9: .* ended the program with SystemExit: 4"),
        (CUE("return 7"), r"quiz\.py:9: _get_cue_text of 'Quiz', doc 1 must return text, not 7"),
        (
            "    def _get_possible_completions(self, item): return 'xy'\n",
            "must return a list of texts or None, not 'xy'",
        ),
        ("    def _get_possible_completions(self, item): return None\n", "returns no candidates to score"),
        ("    def _get_ground_truth(self, item): return 3\n", "must return text, a list of texts or None, not 3"),
        ("    def __init__(self, num_fewshot): raise OSError('no')\n", r"__init__ of 'Quiz' raised OSError: no"),
        ("    SUBJECTS = 'knots'\n", "SUBJECTS of Quiz is 'knots'"),
        ("    RESPONSE_TYPE = 'words'\n", "RESPONSE_TYPE of Quiz is 'words'"),
        ("    METRICS = 'accuracy'\n", "METRICS of Quiz is 'accuracy'"),
        ("    SAMPLE_SPLIT = 5\n", "SAMPLE_SPLIT of Quiz is 5"),
        ("    def _get_instruction_messages(self, item): return [{'role': 'boss', 'content': ''}]\n", "'role': 'boss'"),
        ("    stop_sequences = 'END'\n    RESPONSE_TYPE = 'completion'\n", "stop_sequences of Quiz is 'END'"),
    ],
)
def test_a_hook_that_fails_is_reported_with_its_line(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(PromptfmtError, match=said):
        rendered(tmp_path, body)


def test_a_mistyped_column_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(RenderError) as caught:
        rendered(tmp_path, CUE('return item["subjekt"]'))
    assert caught.value.hint == "did you mean 'subject'?"


def test_shots_without_a_single_text_need_the_hook(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"_get_fewshot_target_text .* is missing"):
        rendered(tmp_path, "    def _get_ground_truth(self, item): return ['x', 'y']\n", shots=1)


def test_too_few_shots_are_counted(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"num_fewshot is 9, but the subject .* has only 4 docs"):
        rendered(tmp_path, shots=9)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"classs": 1}, r"unknown key 'classs'[^\n]*\n  hint: did you mean 'class'\?"),
        ({"doc_to_text": "q"}, r"unknown key 'doc_to_text'[^\n]*\n  hint: put other settings into the class"),
        ({"class": "quiz.Quiz"}, "class is 'quiz.Quiz'"),
        ({"class": "quiz:"}, "class is 'quiz:'"),
        ({"num_fewshot": "two"}, "num_fewshot is 'two'"),
        ({"docs": 7}, "docs is 7"),
        ({"metadata": [1]}, "metadata is"),
        ({"task": 5}, "task is 5"),
    ],
)
def test_a_yaml_that_names_a_class_wrongly_is_reported_with_its_line(tmp_path: Path, keys: Any, said: str) -> None:
    path = write(tmp_path, **{"docs": DOCS, **keys})
    with pytest.raises(SourceError, match=said) as caught:
        load_tasks(path)
    assert caught.value.position is not None
    assert caught.value.position.line is not None


def test_a_class_that_is_missing_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(FunctionError, match=r"has no 'Quizz'\n  hint: did you mean 'Quiz'"):
        load_tasks(write(tmp_path, name="Quizz"), allow_code=True)


def test_what_is_not_a_task_class_is_reported(tmp_path: Path) -> None:
    body = "\nclass Other:\n    def _get_instruction_txt(self, item): return ''\n"
    with pytest.raises(SourceError, match=r"Other is not a task class"):
        load_tasks(write(tmp_path, body, name="Other"), allow_code=True)


def test_a_python_file_gives_its_classes(tmp_path: Path) -> None:
    write(tmp_path, '    PROMPTFMT_DOCS = [{"q": "own", "a": "x"}]\n    PROMPTFMT_NUM_FEWSHOT = 0\n')
    (task,) = load_tasks(tmp_path / "quiz.py", allow_code=True)
    assert task.name == "Quiz"
    assert [each.prompts[0].text for each in task.render()] == ["Q: own"]


def test_a_class_takes_no_format(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path), allow_code=True)
    with pytest.raises(FormatError, match="because its code makes the prompts"):
        task.with_format("mcqa")


def test_shots_as_text_in_one_turn_are_separated(tmp_path: Path) -> None:
    found = rendered(tmp_path, shots=1, docs={"test": DOCS[:1], "train": POOL[:1]}, profile="chat-chatml-single")[0]
    assert "user\nQ: shot0\n x\n\nQ: q0\n<|im_end|>" in found.prompts[0].text


BENCHMARK = """
class Sampled:
    sample_split = "test"
    def __init__(self, shots, subjects): self.shots, self.subjects = shots, subjects
    def _load_hf_dataset(self, **options): raise RuntimeError("no hub here")
    def iterate_samples(self, num_samples=None):
        for subject in self.subjects:
            for number, row in enumerate(self._load_hf_dataset(path="somewhere", name=subject)["test"][:num_samples]):
                yield {"id": number, "subject": subject, "messages": [{"role": "user", "content": row["q"]}],
                       "ground_truth": " x", "possible_completions": [" x"]}

class Benchmark:
    def subjects(self): return ["knots", "tides"]
    def create(self, num_fewshot, custom_subjects, custom_hf_revision, seed):
        return Sampled(num_fewshot, custom_subjects or self.subjects())

benchmark = Benchmark()
"""


def test_a_benchmark_object_is_asked_for_the_subjects_that_rows_name(tmp_path: Path) -> None:
    rows = [{"q": "ebb", "subject": "tides"}, {"q": "flood", "subject": "tides"}]
    found = rendered(tmp_path, BENCHMARK, name="benchmark", docs=rows)
    assert [(each.prompts[0].text, each.doc["subject"]) for each in found] == [("ebb", "tides"), ("flood", "tides")]


def test_rows_without_subject_serve_every_subject_of_a_benchmark(tmp_path: Path) -> None:
    found = rendered(tmp_path, BENCHMARK, name="benchmark", docs=[{"q": "ebb"}])
    assert [(each.prompts[0].text, each.doc["subject"]) for each in found] == [("ebb", "knots"), ("ebb", "tides")]


def test_rows_of_other_splits_of_a_benchmark_are_in_files_next_to_it(tmp_path: Path) -> None:
    from pytest_promptfmt.tasks.docs.doc_sources import load_docs

    shot = BENCHMARK.replace('row["q"]', 'self._load_hf_dataset()["train"][0]["q"] + row["q"]')
    (tmp_path / "quiz.py").write_text(shot, "utf-8")
    (tmp_path / "quiz.yaml").write_text("task: knots\nclass: !function quiz.benchmark\n", "utf-8")
    (tmp_path / "knots.docs.jsonl").write_text('{"q": "ebb"}\n', "utf-8")
    (task,) = load_tasks(tmp_path / "quiz.yaml", allow_code=True)
    found = load_docs(task)
    assert found.origin.endswith("over 1 from knots.docs.jsonl, because there are no docs of 'train'")
    (tmp_path / "knots.docs.train.jsonl").write_text('{"q": "shot "}\n', "utf-8")
    assert next(task.render()).prompts[0].text == "shot ebb"
    assert load_docs(task).origin.endswith("over 1 from knots.docs.jsonl")


def test_the_header_says_where_docs_of_a_class_come_from(tmp_path: Path) -> None:
    from pytest_promptfmt.tasks.docs.doc_sources import load_docs

    write(tmp_path, '    PROMPTFMT_DOCS = [{"q": "own", "a": "x"}]\n')
    (task,) = load_tasks(tmp_path / "quiz.py", allow_code=True)
    assert load_docs(task).origin == "1 from PROMPTFMT_DOCS"
    (task,) = load_tasks(write(tmp_path), allow_code=True)
    assert load_docs(task).origin == "3 of 6 from docs.test"


DRAWS = """
    def _get_instruction_text(self, item):
        return f"Q: {item['q']} " + self.rnd.choice(["one?", "two?", "three?", "four?"])

    def _get_ground_truth(self, item):
        return self.rnd.choice([" x", " y"])
"""


@pytest.mark.parametrize("shots", [0, 2])
def test_what_hooks_draw_is_what_they_draw_in_a_run_over_all_rows(tmp_path: Path, shots: int) -> None:
    docs = [{"q": f"q{number}"} for number in range(20)]
    path = write(tmp_path, DRAWS, shots=shots, docs={"test": docs, "train": POOL})
    profile = builtin_profile("plain")
    few, all_of_them = instances(path, profile, 2), instances(path, profile, 20)
    assert [(messages(one), one.target) for one in few] == [(messages(one), one.target) for one in all_of_them[:2]]
    assert len({one.prompts[0].text.split()[-1] for one in all_of_them}) > 1


def test_scoring_looks_at_the_sample_that_was_rendered(tmp_path: Path) -> None:
    from pytest_promptfmt.tasks.functions import bind_scoring
    from pytest_promptfmt.tasks.scoring.results import questions_of

    (task,) = load_tasks(write(tmp_path, DRAWS, docs=[{"q": f"q{number}"} for number in range(8)]), allow_code=True)
    rendered = list(task.render())
    docs = [request.doc for one in rendered for request in one.requests[:1] if request.doc is not None]
    choices = [" x", " y"]
    assert [question.target for question in questions_of(bind_scoring(task, trusted=lambda _file: True), docs)] == [
        one.target for one in rendered
    ]
    assert all(one.target in choices for one in rendered)
