"""Which format a name means for a task, what the task becomes, and one clear message for each mistake."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import FormatError, RenderError
from pytest_promptfmt.core.task import FewShot, FunctionRef, Task
from pytest_promptfmt.formats import LaidOutTask, apply_format, attempts, laid_out
from pytest_promptfmt.formats.apply import declared_formats
from pytest_promptfmt.formats.attempts import split_name, split_suffix, wanted_formats
from pytest_promptfmt.systems.task_files import load_tasks

FIELDS = {"doc_to_text": "question", "doc_to_target": "answer", "doc_to_choice": "choices"}


def task_with(formats: object = None, **keys: object) -> Task:
    return Task(name="t", **FIELDS, config={**FIELDS, "formats": formats, **keys})  # type: ignore[arg-type]


def rendered_text(task: Task, **doc: object) -> str:
    return next(iter(task.render(TaskDocs.in_memory([doc]), num_fewshot=0))).prompts[0].text


# -- which format a name means ---------------------------------------------------------------------------------------


def test_task_without_formats_declares_none() -> None:
    assert declared_formats(task_with()) == ()
    assert wanted_formats(task_with(), ["mcqa", "cloze", "mcqa"]) == (None, "mcqa", "cloze")


def test_task_that_declares_formats_is_not_tried_in_others() -> None:
    assert wanted_formats(task_with("mcqa"), ["cloze"]) == ("mcqa",)


def test_suffix_of_the_same_name_keeps_the_overrides_of_the_task() -> None:
    task = apply_format(task_with({"type": "mcqa", "answer_prompt": "A:"}), "mcqa")
    assert task.layout.answer_prompt == "A:"


def test_suffix_of_another_name_wins_over_the_one_format_that_the_task_names() -> None:
    for formats in ("mcqa", {"type": "mcqa", "answer_prompt": "A:"}):
        task = apply_format(task_with(formats), "generate")
        assert task.output_type == "generate_until"
        assert task.layout.answer_prompt is not None
        assert task.layout.answer_prompt.startswith("Your response")


def test_suffix_that_a_mapping_of_formats_lacks_lists_those_it_has() -> None:
    with pytest.raises(FormatError, match="its formats are mcqa, cot") as caught:
        apply_format(task_with({"mcqa": None, "cot": None}), "cloze")
    assert caught.value.hint == "add `cloze: null` under formats"


def test_format_in_a_mapping_may_be_named_freely_and_be_of_another_type() -> None:
    task = task_with({"short": {"type": "mcqa", "answer_prompt": "A:"}, "mcqa": "cot"})
    assert declared_formats(task) == ("short", "mcqa")
    short, aliased = laid_out(task)
    assert isinstance(short, LaidOutTask)
    assert isinstance(aliased, LaidOutTask)
    assert (short.id, short.layout.answer_prompt) == ("t@short", "A:")
    assert (aliased.id, aliased.output_type) == ("t@mcqa", "generate_until")


def test_name_is_split_at_the_last_at_sign() -> None:
    assert split_name("a@b@mcqa") == ("a@b", "mcqa")
    assert split_name("mmlu_*@mcqa") == ("mmlu_*", "mcqa")
    assert split_name("mmlu") == ("mmlu", None)


def test_laying_out_anew_starts_from_what_the_author_wrote() -> None:
    task = task_with()
    assert apply_format(apply_format(task, "cot"), "mcqa") == apply_format(task, "mcqa")


def test_format_that_does_not_fit_hides_no_other() -> None:
    task = Task(name="t", doc_to_text="question", doc_to_target="answer")
    made = list(attempts(task, ["mcqa", "cot", "nonsense"], variants=["answer_gap"]))
    assert [(attempt.task.id, attempt.error is None) for attempt in made[:4]] == [
        ("t", True),
        ("t@mcqa", False),
        ("t@cot", True),
        ("t@nonsense", False),
    ]
    assert {attempt.task.format for attempt in made if attempt.error is None} == {
        None,
        "cot",
        "cot+answer_gap-none",
        "cot+answer_gap-space",
    }
    with pytest.raises(FormatError, match="needs doc_to_choice"):
        laid_out(task, ["mcqa"])
    named = attempts(dataclasses.replace(task, name="t@mcqa"), variants=["answer_gap"])
    assert [attempt.task.id for attempt in named] == ["t@mcqa", "t@mcqa+answer_gap-none", "t@mcqa+answer_gap-newline"]


def test_members_of_groups_choose_formats_by_suffix(tmp_path: Path) -> None:
    fields = "doc_to_text: question\ndoc_to_target: answer\ndoc_to_choice: choices\n"
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"task: {name}\ntag: pair\n{fields}", "utf-8")
    (tmp_path / "inner.yaml").write_text("group: inner\ntask: [one, two]\n", "utf-8")
    source = "group: outer\ntask:\n- one@mcqa\n- {task: two@cot, description: 'Hi. '}\n- one\n"
    for text, ids in (
        (source, ["outer.one@mcqa", "outer.two@cot"]),
        ("group: outer\ntask: [pair@cloze]\n", ["outer.one@cloze", "outer.two@cloze"]),
        ("group: outer\ntask: [inner@cloze]\n", ["outer.inner.one@cloze", "outer.inner.two@cloze"]),
        ("group: outer\ntask:\n- {group: inner@cot}\n", ["outer.inner.one@cot", "outer.inner.two@cot"]),
    ):
        (tmp_path / "outer.yaml").write_text(text, "utf-8")
        made = [task.id for member in load_tasks(tmp_path / "outer.yaml") for task in laid_out(member)]
        assert made == ids


# -- what the task becomes -------------------------------------------------------------------------------------------


def test_values_that_the_format_replaces_are_told_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(
        "task: t\ndoc_to_text: question\ndoc_to_target: answer\ndoc_to_choice: choices\n"
        "output_type: multiple_choice\ntarget_delimiter: ' '\nfewshot_delimiter: '###'\n"
        "metric_list:\n  - metric: acc\nformats: generate\n",
        "utf-8",
    )
    (task,) = load_tasks(path)
    found = {entry.key: entry for entry in apply_format(task, "generate").overwritten}
    assert set(found) == {"output_type", "target_delimiter", "fewshot_delimiter", "metric_list"}
    assert (found["fewshot_delimiter"].written, found["fewshot_delimiter"].becomes) == ("###", "\n\n")
    assert str(found["fewshot_delimiter"].position).endswith("t.yaml:7:1")


def test_value_equal_to_that_of_the_format_is_not_told() -> None:
    assert apply_format(task_with("mcqa", target_delimiter=" ", fewshot_delimiter="\n\n"), "mcqa").overwritten == ()


def test_description_filters_and_shots_of_the_author_stay() -> None:
    filters = [{"name": "mine", "filter": [{"function": "take_first"}]}]
    task = Task(
        name="t",
        **FIELDS,  # type: ignore[arg-type]
        description="Read.\n",
        filter_list=filters,
        num_fewshot=3,
        config={**FIELDS, "filter_list": filters},
    )
    made = apply_format(task, "generate")
    assert (made.description, made.filter_list, made.num_fewshot) == ("Read.\n", filters, 3)
    assert made.metric_list is not None


def test_demonstrations_with_mappings_of_their_own_are_laid_out_as_well() -> None:
    task = Task(name="t", **FIELDS, fewshot=FewShot(doc_to_text="{{ shot_question }}"), config=FIELDS)  # type: ignore[arg-type]
    made = apply_format(task, "mcqa")
    doc = {"question": "Q", "choices": ["x", "y"], "answer": 0}
    shot = {"shot_question": "S", "choices": ["v", "w"], "answer": 1}
    docs = TaskDocs.in_memory([doc], [shot, shot])
    text = next(iter(made.render(docs, num_fewshot=1))).prompts[0].text
    assert text == "Question: S\nA. v\nB. w\nAnswer: B\n\nQuestion: Q\nA. x\nB. y\nAnswer:"


@pytest.mark.parametrize("name", ["mcqa", "cloze", "generate", "cot"])
@pytest.mark.parametrize("answer", [1, "1", 1.0, True, "B", "Rome"])
def test_an_answer_means_the_same_choice_in_every_format(name: Any, answer: Any) -> None:
    made = apply_format(task_with(), name)
    doc = {"question": "Q", "choices": ["Oslo", "Rome", "Bonn"], "answer": answer}
    instance = next(iter(made.render(TaskDocs.in_memory([doc]), num_fewshot=0)))
    assert instance.target == {"mcqa": 1, "cloze": 1, "generate": "B", "cot": "Rome"}[name]


@pytest.mark.parametrize("name", ["mcqa", "cloze", "generate", "cot"])
@pytest.mark.parametrize("answer", [3, -1, "Paris", "Z", "", None, 1.5, float("nan"), "²", ["Rome"]])
def test_an_answer_that_is_none_of_the_choices_is_refused(name: Any, answer: Any) -> None:
    made = apply_format(task_with(), name)
    doc = {"question": "Q", "choices": ["Oslo", "Rome", "Bonn"], "answer": answer}
    with pytest.raises(RenderError, match="is not one of the 3 choices"):
        list(made.render(TaskDocs.in_memory([doc]), num_fewshot=0))


@pytest.mark.parametrize("target", ["[1, 2]", "['x']", "7", "007", "{{ answer }}", "True"])
def test_free_answer_stays_the_text_it_is(target: Any) -> None:
    task = Task(name="t", doc_to_text="question", doc_to_target="answer")
    made = apply_format(task, "cot")
    docs = TaskDocs.in_memory([{"question": "Q", "answer": target}])
    assert next(iter(made.render(docs, num_fewshot=0))).target == target


def test_choices_that_the_task_fixes_become_lists() -> None:
    task = Task(name="t", doc_to_text="question", doc_to_target="answer", doc_to_choice=["no", "yes"])
    assert apply_format(task, "mcqa").doc_to_choice == ["A", "B"]
    assert apply_format(task, "cloze").doc_to_choice == ["no", "yes"]
    assert rendered_text(apply_format(task, "mcqa"), question="Q", answer=0) == "Question: Q\nA. no\nB. yes\nAnswer:"


@pytest.mark.parametrize("count", range(1, 27))
def test_lists_of_labels_read_well_for_every_count_of_choices(count: Any) -> None:
    made = apply_format(
        task_with({"type": "generate", "instruction": "{{ _choice_list_and }}|{{ _choice_list_or }}\n"}), "generate"
    )
    labels = [chr(65 + index) for index in range(count)]
    line = rendered_text(made, question="Q", choices=["x"] * count, answer=count - 1).splitlines()[0]
    both = (labels[0], labels[0])
    if count > 1:
        head = ", ".join(labels[:-1])
        both = (f"{head} and {labels[-1]}", f"{head} or {labels[-1]}")
    assert line == "|".join(both)


@pytest.mark.parametrize("name", ["mcqa", "generate"])
def test_more_choices_than_letters_is_a_clear_error(name: Any) -> None:
    made = apply_format(task_with(), name)
    with pytest.raises(RenderError, match="27 choices, but only 26 labels"):
        rendered_text(made, question="Q", choices=["x"] * 27, answer=0)
    assert rendered_text(apply_format(task_with(), "cloze"), question="Q", choices=["x"] * 27, answer=0)


def test_numbers_label_any_number_of_choices() -> None:
    made = apply_format(task_with({"type": "mcqa", "choice_labels": "numbers"}), "mcqa")
    docs = TaskDocs.in_memory([{"question": "Q", "choices": ["x"] * 120, "answer": 119, "range": "a column"}])
    instance = next(iter(made.render(docs, num_fewshot=0)))
    assert "\n120. x\nAnswer:" in instance.prompts[0].text
    assert instance.requests[119].continuation == " 120"


def test_text_put_together_from_other_columns_is_taken_as_it_is() -> None:
    task = Task(
        name="t",
        doc_to_text="{{ passage }}\n{{- ' ' }}{{ question }}",
        doc_to_target="{{ letters.index(key) }}",
        doc_to_choice="{{ [first, second] }}",
        config={"formats": "mcqa"},
    )
    text = rendered_text(
        apply_format(task, "mcqa"), passage="P", question="Q", first="x", second="y", letters="AB", key="B"
    )
    assert text == "Question: P Q\nA. x\nB. y\nAnswer:"


def test_line_of_a_choice_may_have_its_label_anywhere() -> None:
    made = apply_format(task_with({"type": "mcqa", "choice_format": "{{{choice}}} ({label})"}), "mcqa")
    doc = {"question": "Q", "choices": ["{{ x }}", "y"], "answer": 1}
    instance = next(iter(made.render(TaskDocs.in_memory([doc]), num_fewshot=0)))
    assert instance.prompts[0].text == "Question: Q\n{{{ x }}} (A)\n{y} (B)\nAnswer:"
    assert [request.continuation for request in instance.requests] == [" A", " B"]


# -- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = {
    "unknown format": ("formats: mcqaa", 5, "unknown format 'mcqaa'", "did you mean 'mcqa'?"),
    "unknown type": ("formats:\n  type: clozee", 5, "unknown format 'clozee'", "did you mean 'cloze'?"),
    "unknown name in a mapping": ("formats:\n  mcqa: null\n  genrate: null", 7, "unknown format 'genrate'", "generate"),
    "unknown field": (
        "formats:\n  type: mcqa\n  question_prefx: 'Q: '",
        7,
        "no field 'question_prefx'",
        "question_prefix",
    ),
    "unknown field in a mapping": ("formats:\n  mcqa:\n    instrction: x", 7, "no field 'instrction'", "instruction"),
    "line of a choice": (
        "formats:\n  type: mcqa\n  choice_format: '{lable}: {choice}'",
        7,
        "has the unknown field {lable}",
        "did you mean 'label'?",
    ),
    "label set": ("formats:\n  type: mcqa\n  choice_labels: leters", 7, "'leters' is not a set of labels", "letters"),
    "label type": ("formats:\n  type: mcqa\n  choice_labels: [yes, no]", 7, "has the bool True", "quotes"),
    "labels as a number": ("formats:\n  type: mcqa\n  choice_labels: 4", 7, "choice_labels is a int", "I, II"),
    "labels as a mapping": ("formats:\n  type: mcqa\n  choice_labels: {a: 1}", 7, "choice_labels is a dict", "I, II"),
    "empty labels": ("formats:\n  type: mcqa\n  choice_labels: []", 7, "an empty list", "null"),
    "repeated label": ("formats:\n  type: mcqa\n  choice_labels: [A, A]", 7, "'A' twice", "a different label"),
    "empty mapping": ("formats: {}", 5, "formats is an empty mapping", "formats: mcqa"),
    "a list of formats": ("formats: [mcqa, cloze]", 5, "formats is a list", "mapping"),
    "a number": ("formats: 3", 5, "formats is a int", "formats: mcqa"),
    "overrides without type": ("formats:\n  instruction: 3", 6, "instruction must be null", "type: mcqa"),
    "text that is a number": (
        "formats:\n  type: mcqa\n  answer_prompt: 3",
        7,
        "answer_prompt must be text, not int 3",
        "quotes",
    ),
    "delimiter that is null": ("formats:\n  type: mcqa\n  choice_delimiter: null", 7, "must be text", 'write ""'),
    "broken Jinja": ("formats:\n  type: mcqa\n  instruction: '{{ x'", 7, "not a valid Jinja template", "{{"),
    "output type": (
        "formats:\n  type: mcqa\n  output_type: multiple_choic",
        7,
        "unknown output_type",
        "multiple_choice",
    ),
    "scorer": ("formats:\n  type: generate\n  scorer: first_tokn", 7, "unknown scorer 'first_tokn'", "first_token"),
    "scorer argument": (
        "formats:\n  type: generate\n  scorer: {type: regex, regex_patern: x}",
        7,
        "no argument 'regex_patern'",
        "regex_pattern",
    ),
    "scorer pattern": (
        "formats:\n  type: generate\n  scorer: {type: regex, regex_pattern: '('}",
        7,
        "not a regular",
        "",
    ),
    "variable without labels": (
        "formats:\n  type: cloze\n  instruction: '{{ _num_choices }} choices'",
        7,
        "uses _num_choices",
        "choice_labels",
    ),
    "topic that is not set": (
        "formats:\n  type: mcqa\n  instruction: '{{ _topic }}'",
        7,
        "the task sets no topic",
        "topic",
    ),
    "name with a slash": ("formats:\n  a/b: null", 6, "'a/b' is not the name of a format", "mcqa"),
    "both template and formats": ("formats: mcqa\ntemplate: mcq", 6, "both formats and template", "remove one"),
}


def read_one(tmp_path: Path, source: str) -> Task:
    path = tmp_path / "t.yaml"
    path.write_text(source, "utf-8")
    return load_tasks(path)[0]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_told_with_its_line_and_what_to_do(tmp_path: Path, mistake: Any) -> None:
    formats, line, says, hint = MISTAKES[mistake]
    task = read_one(
        tmp_path, f"task: t\ndoc_to_text: question\ndoc_to_target: answer\ndoc_to_choice: choices\n{formats}\n"
    )
    with pytest.raises(FormatError) as caught:
        laid_out(task)
    assert says in caught.value.message
    assert caught.value.position is not None
    assert (caught.value.position.path.name, caught.value.position.line) == ("t.yaml", line)
    assert hint in (caught.value.hint or "")


def test_fixed_choices_that_outnumber_the_labels_are_told_at_load(tmp_path: Path) -> None:
    task = read_one(
        tmp_path,
        "task: t\ndoc_to_text: question\ndoc_to_target: answer\ndoc_to_choice: [a, b, c]\n"
        "formats:\n  type: mcqa\n  choice_labels: [I, II]\n",
    )
    with pytest.raises(FormatError, match="3 choices, but only 2 labels") as caught:
        laid_out(task)
    assert caught.value.position is not None
    assert caught.value.position.line == 7


def test_doc_with_more_choices_than_custom_labels_is_a_clear_error() -> None:
    made = apply_format(task_with({"type": "mcqa", "choice_labels": ["I", "II"]}), "mcqa")
    with pytest.raises(RenderError, match="3 choices, but only 2 labels"):
        rendered_text(made, question="Q", choices=["x", "y", "z"], answer=0)


def test_missing_choices_are_told_at_load(tmp_path: Path) -> None:
    task = read_one(tmp_path, "task: t\ndoc_to_text: question\ndoc_to_target: answer\nformats: mcqa\n")
    with pytest.raises(FormatError, match="format 'mcqa' needs doc_to_choice") as caught:
        laid_out(task)
    assert caught.value.position is not None


@pytest.mark.parametrize("name", ["t@mcqaa", "'@mcqa'", "t@"])
def test_suffix_of_an_unknown_name_is_told(tmp_path: Path, name: Any) -> None:
    task = read_one(tmp_path, f"task: {name}\ndoc_to_text: question\ndoc_to_target: answer\ndoc_to_choice: choices\n")
    with pytest.raises(FormatError) as caught:
        laid_out(task)
    assert caught.value.position is not None
    assert caught.value.position.line == 1


def test_unknown_suffix_comes_with_the_closest_name() -> None:
    with pytest.raises(FormatError, match="unknown format 'mcq'") as caught:
        apply_format(task_with(), "mcq")
    assert caught.value.hint == "did you mean 'mcqa'?"


def test_suffix_in_the_name_of_a_task_is_taken_off_once() -> None:
    task, suffix = split_suffix(Task(name="subtask_a@mcqa"))
    assert (task.name, suffix) == ("subtask_a", "mcqa")


def test_function_as_a_field_mapping_is_refused(tmp_path: Path) -> None:
    ref = FunctionRef("wordings", "ask", tmp_path, None)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="doc_to_text is a function"):
        apply_format(Task(name="t", doc_to_text=ref, doc_to_target="answer", doc_to_choice="choices"), "mcqa")


@pytest.mark.parametrize("key", ["doc_to_text", "doc_to_target", "doc_to_choice"])
@pytest.mark.parametrize(
    "column", ["Answer Key", "in", "not", "2nd", "a-b", "it's", "{", "größe", "質問", "loop", "_x"]
)
def test_any_column_name_can_be_laid_out(key: Any, column: Any) -> None:
    task = Task(name="t", **{**FIELDS, key: column})
    doc = {"doc_to_text": "Q", "doc_to_target": 1, "doc_to_choice": ["x", "y"]}
    named = {column if name == key else FIELDS[name]: value for name, value in doc.items()}
    instance = next(iter(apply_format(task, "mcqa").render(TaskDocs.in_memory([named]), num_fewshot=0)))
    assert (instance.prompts[0].text, instance.target) == ("Question: Q\nA. x\nB. y\nAnswer:", 1)


def test_bare_name_that_no_doc_has_is_told_when_rendering() -> None:
    made = apply_format(Task(name="t", **{**FIELDS, "doc_to_text": "Answer Kye"}), "mcqa")  # type: ignore[arg-type]
    with pytest.raises(RenderError, match="the doc has no column 'Answer Kye'"):
        rendered_text(made, **{"Answer Key": "Q", "choices": ["x"], "answer": 0})


def test_task_scored_as_it_stands_cannot_be_laid_out() -> None:
    task = Task(
        name="t",
        doc_to_text="",
        doc_to_target="text",
        output_type="loglikelihood_rolling",
        config={"output_type": "loglikelihood_rolling"},
    )
    with pytest.raises(FormatError, match="output_type loglikelihood_rolling"):
        apply_format(task, "mcqa")


def test_use_prompt_cannot_be_laid_out() -> None:
    with pytest.raises(FormatError, match="use_prompt"):
        apply_format(task_with(use_prompt="qa-basic:q-newline-a"), "mcqa")


def test_message_is_where_what_and_what_now(tmp_path: Path) -> None:
    source = "task: t\ndoc_to_text: question\nformats:\n  type: mcqa\n  anwser_prompt: x\n"
    with pytest.raises(FormatError) as caught:
        laid_out(read_one(tmp_path, source))
    assert str(caught.value).splitlines() == [
        f"{tmp_path}/t.yaml:5:3: format 'mcqa' has no field 'anwser_prompt'",
        "  hint: did you mean 'answer_prompt'?",
    ]
