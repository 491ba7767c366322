"""Every printed output, YAML snippet and Python example of the template document (seed 001)."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
from hypothesis import given, strategies as st

from pytest_promptfmt import (
    ClozeTemplateConfig,
    MCQTemplateConfig,
    TemplateConfig,
    TemplateFactory,
    cloze_template,
    mmlu_template,
)
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import CodeNotAllowedError, FormatError, RenderError
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.formats import laid_out
from pytest_promptfmt.formats.apply import TemplatedTask
from pytest_promptfmt.formats.template import (
    ClassificationTemplateConfig,
    GenerationTemplateConfig,
    RankingTemplateConfig,
)
from pytest_promptfmt.systems.task_files import load_tasks

CHOICES = ["choice1", "choice2", "choice3", "choice4"]
DOC = {"question": "Question text", "choices": CHOICES, "answer": 1}
MCQ = "Question text\nA. choice1\nB. choice2\nC. choice3\nD. choice4\nAnswer:"
CLOZE = "Question text ______\nOptions: A. choice1 B. choice2 C. choice3 D. choice4"
GPQA = "Question text\n(A) choice1 (B) choice2 (C) choice3 (D) choice4\nAnswer:"
NUMBERED = "Question text\n1. choice1\n2. choice2\n3. choice3\n4. choice4\nAnswer:"
CUSTOM = (
    "Answer this question:\n\n\nQuestion text\n\n(a) choice1\n(b) choice2\n(c) choice3\n(d) choice4\n\n\nYour answer:"
)
LETTERS = ["A", "B", "C", "D"]

Make = Callable[[str], Task]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def from_yaml(source: str) -> Task:
        path = tmp_path / "my_task.yaml"
        path.write_text(f"task: my_task\ntest_split: test\n{textwrap.dedent(source)}", "utf-8")
        (task,) = laid_out(load_tasks(path)[0])
        return task

    return from_yaml


def printed(task: Task, doc: dict[str, object] = DOC) -> str:
    return next(iter(task.render(TaskDocs.in_memory([doc]), num_fewshot=0))).prompts[0].text


def jinja(template: TemplateConfig, **doc: object) -> str:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(template.get_doc_to_text()).render(**doc)


SNIPPETS = {
    "mcq": ("template: mcq\ndoc_to_target: answer", MCQ, LETTERS),
    "cloze": ("template: cloze\ndoc_to_target: answer", CLOZE, LETTERS),
    "mmlu style": (
        """
        template:
          template_type: mcq
          choice_labels: ["A", "B", "C", "D"]
          choice_format: "{label}. {choice}"
          choice_delimiter: "\\n"
        """,
        MCQ,
        LETTERS,
    ),
    "gpqa style": (
        """
        template:
          template_type: mcq
          choice_labels: ["A", "B", "C", "D"]
          choice_format: "({label}) {choice}"
          choice_delimiter: " "
        """,
        GPQA,
        LETTERS,
    ),
    "numbered": (
        """
        template:
          template_type: mcq
          choice_labels: ["1", "2", "3", "4"]
          choice_format: "{label}. {choice}"
        """,
        NUMBERED,
        ["1", "2", "3", "4"],
    ),
    "cloze with options": (
        """
        template:
          template_type: cloze
          blank_marker: "______"
          show_choices: true
          choice_labels: ["A", "B", "C", "D"]
        """,
        CLOZE,
        LETTERS,
    ),
    "pure cloze": (
        """
        template:
          template_type: cloze
          blank_marker: "[MASK]"
          show_choices: false
        """,
        "Question text [MASK]",
        None,
    ),
    "fully customised": (
        """
        template:
          template_type: mcq
          prefix: "Answer this question:\\n"
          suffix: "\\nYour answer:"
          choice_labels: ["(a)", "(b)", "(c)", "(d)"]
          choice_format: "{label} {choice}"
          question_choice_delimiter: "\\n\\n"
          choice_delimiter: "\\n"
        """,
        CUSTOM,
        ["(a)", "(b)", "(c)", "(d)"],
    ),
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet_prints_the_documented_prompt(make: Make, name: Any) -> None:
    source, expected, choices = SNIPPETS[name]
    task = make(textwrap.dedent(source) + ("" if "doc_to_target" in source else "doc_to_target: answer\n"))
    assert printed(task) == expected
    assert task.doc_to_choice == choices


def test_old_style_and_new_style_are_equal(make: Make) -> None:
    old = make(
        'doc_to_text: "{{question.strip()}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nC. {{choices[2]}}\\n'
        'D. {{choices[3]}}\\nAnswer:"\ndoc_to_choice: ["A", "B", "C", "D"]\ndoc_to_target: answer\n'
        "output_type: multiple_choice\n"
    )
    new = make("template: mcq\ndoc_to_target: answer\n")
    assert printed(old) == printed(new) == MCQ
    assert old.doc_to_choice == new.doc_to_choice
    old_requests, new_requests = (
        [(request.arguments, request.gold) for request in next(iter(task.render([DOC]))).requests]
        for task in (old, new)
    )
    assert old_requests == new_requests


def test_output_type_that_is_not_written_becomes_multiple_choice_and_is_said(make: Make) -> None:
    task = make("template: mcq\ndoc_to_target: answer\n")
    assert isinstance(task, TemplatedTask)
    assert task.output_type == "multiple_choice"
    assert "output_type" in task.notes[0]
    written = make("template: mcq\ndoc_to_target: answer\noutput_type: generate_until\n")
    assert (written.output_type, written.notes) == ("generate_until", ())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("key", "value"), [("doc_to_text", "'{{question}}?'"), ("doc_to_choice", '["a", "b", "c", "d"]')]
)
def test_what_the_author_writes_wins_each_on_its_own(make: Make, key: Any, value: Any) -> None:
    task = make(f"template: mcq\ndoc_to_target: answer\n{key}: {value}\n")
    assert printed(task) == ("Question text?" if key == "doc_to_text" else MCQ)
    assert task.doc_to_choice == (LETTERS if key == "doc_to_text" else ["a", "b", "c", "d"])


def test_task_without_template_stays_the_same_object() -> None:
    task = Task(name="t", doc_to_text="question", doc_to_target="answer")
    assert laid_out(task) == (task,)
    assert laid_out(task)[0] is task


def test_templated_task_can_be_laid_out_by_a_format(make: Make) -> None:
    task = make("template: mcq\ndoc_to_target: answer\n")
    assert isinstance(task, TemplatedTask)
    assert printed(task.written.with_format("cloze")) == "Question: Question text\nAnswer:"
    assert printed(task.with_format("mcqa")) == f"Question: {MCQ}"


def test_factory_makes_the_documented_styles() -> None:
    assert TemplateFactory.create_mmlu_style().format_prompt("Question text", CHOICES) == MCQ
    assert TemplateFactory.create_gpqa_style().format_prompt("Question text", CHOICES) == GPQA
    assert TemplateFactory.create_cloze_with_options().format_prompt("Question text", CHOICES) == CLOZE
    assert TemplateFactory.create_pure_cloze().format_prompt("Question text", CHOICES) == "Question text ______"
    five = TemplateFactory.create_numbered_style(num_choices=5)
    assert five.format_prompt("Q", [*CHOICES, "choice5"]).splitlines()[-2] == "5. choice5"
    assert five.get_doc_to_choice() == ["1", "2", "3", "4", "5"]
    from_dict = TemplateFactory.from_dict(
        {"template_type": "mcq", "choice_labels": ["A", "B", "C", "D"], "choice_format": "{label}. {choice}"}
    )
    assert from_dict == mmlu_template()
    gpqa = TemplateFactory.create_gpqa_style()
    assert gpqa.format_prompt("Q", CHOICES).splitlines()[1] == "(A) choice1 (B) choice2 (C) choice3 (D) choice4"
    assert (cloze_template(), cloze_template(show_choices=False)) == (
        TemplateFactory.create_cloze_with_options(),
        TemplateFactory.create_pure_cloze(),
    )


def test_conversion_to_cloze_carries_the_delimiter_so_that_it_can_go_back() -> None:
    cloze = mmlu_template().to_cloze()
    assert isinstance(cloze, ClozeTemplateConfig)
    assert cloze.format_prompt("Question text", CHOICES) == (
        "Question text ______\nOptions: A. choice1\nB. choice2\nC. choice3\nD. choice4"
    )
    assert cloze.to_mcq() == mmlu_template()


def test_convert_template_returns_the_same_object_for_the_same_type() -> None:
    mcq, cloze = mmlu_template(), cloze_template()
    assert TemplateFactory.convert_template(mcq, "mcq") is mcq
    assert TemplateFactory.convert_template(cloze, "cloze") is cloze
    assert TemplateFactory.convert_template(mcq, "cloze", blank_marker="[MASK]").blank_marker == "[MASK]"  # type: ignore[attr-defined]
    assert TemplateFactory.convert_template(cloze, "mcq").suffix == "Answer:"


def test_templates_can_be_switched_at_run_time() -> None:
    config = SimpleNamespace(template_config=None, doc_to_text=None, doc_to_choice=None)
    config.template_config = mmlu_template()
    config.doc_to_text = config.template_config.get_doc_to_text()
    config.doc_to_choice = config.template_config.get_doc_to_choice()
    assert config.doc_to_text == (
        "{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:"
    )
    assert config.doc_to_choice == LETTERS
    cloze = config.template_config.to_cloze()
    assert jinja(cloze, **DOC).startswith("Question text ______\nOptions: A. choice1")


@dataclass
class MyCustomTemplate(TemplateConfig):
    """A template of a user's own, as the document shows it."""

    shout: bool = False

    def format_prompt(self, question: str, choices: Any = None, **kwargs: Any) -> str:
        return f"{question.upper() if self.shout else question}?"

    def get_doc_to_text(self) -> str:
        return "{{question|upper}}?" if self.shout else "{{question}}?"

    def get_doc_to_choice(self) -> list[str]:
        return ["yes", "no"]


def test_template_of_a_users_own_class_works_in_python_and_by_function_tag(tmp_path: Path) -> None:
    ref = FunctionRef("my_templates", "MyCustomTemplate", tmp_path, None)  # type: ignore[arg-type]
    config = {"template": {"template_type": ref, "shout": True}}
    task = Task(name="t", doc_to_target="answer", config=config)
    (made,) = laid_out(task, resolve=lambda _ref: MyCustomTemplate)
    assert printed(made) == "QUESTION TEXT?"
    assert made.doc_to_choice == ["yes", "no"]
    with pytest.raises(CodeNotAllowedError, match=r"my_templates\.MyCustomTemplate"):
        laid_out(task)
    bare = Task(name="t", doc_to_target="answer", config={"template": ref})
    assert printed(laid_out(bare, resolve=lambda _ref: MyCustomTemplate)[0]) == "Question text?"


def test_custom_template_says_what_it_is_as_a_mapping() -> None:
    assert MyCustomTemplate(shout=True).to_dict()["shout"] is True


# -- the extensions that the document names --------------------------------------------------------------------------


def test_generation_template(make: Make) -> None:
    task = make("template: generation\ndoc_to_target: answer\n")
    assert (printed(task), task.output_type, task.doc_to_choice) == (
        "Question text\nAnswer:",
        "generate_until",
        None,
    )
    assert task.metric_list is not None
    assert task.metric_list[0]["metric"] == "exact_match"


def test_ranking_template(make: Make) -> None:
    task = make("template: ranking\n")
    doc = {**DOC, "ranking": [2, 0, 3, 1]}
    assert printed(task, doc) == MCQ.replace("Answer:", "Ranking:")
    assert next(iter(task.render([doc]))).target == "C > A > D > B"


def test_classification_template(make: Make) -> None:
    task = make("template: {template_type: classification, labels: [positive, negative]}\ndoc_to_target: answer\n")
    assert printed(task) == "Question text\nLabels: positive, negative\nLabel:"
    instance = next(iter(task.render([DOC])))
    assert [request.continuation for request in instance.requests] == [" positive", " negative"]
    assert [entry["metric"] for entry in task.metric_list or ()] == ["acc", "f1"]


# -- what holds for every template -----------------------------------------------------------------------------------

names = st.text(alphabet="ABCDabcd123({<", min_size=1, max_size=3)
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="{}#%\r"), max_size=8)
formats = st.sampled_from(
    ["{label}. {choice}", "({label}) {choice}", "{choice} [{label}]", "{{{label}}} {choice}", "{choice}"]
)
labels = st.lists(names.filter(str.strip), min_size=1, max_size=5, unique=True)


@st.composite
def mcq_templates(draw: st.DrawFn) -> MCQTemplateConfig:
    return MCQTemplateConfig(
        prefix=draw(texts),
        suffix=draw(texts),
        question_choice_delimiter=draw(texts),
        choice_delimiter=draw(texts),
        choice_labels=draw(labels),
        choice_format=draw(formats),
        use_choice_labels=draw(st.booleans()),
        show_choices_in_prompt=draw(st.booleans()),
    )


@st.composite
def cloze_templates(draw: st.DrawFn) -> ClozeTemplateConfig:
    return ClozeTemplateConfig(
        prefix=draw(texts),
        suffix=draw(texts),
        question_choice_delimiter=draw(texts),
        choice_delimiter=draw(texts),
        choice_labels=draw(labels),
        choice_format=draw(formats),
        blank_marker=draw(names),
        show_choices=draw(st.booleans()),
        blank_position=draw(st.sampled_from(["end", "inline"])),
        choices_prefix=draw(texts),
    )


docs = st.tuples(st.text(max_size=20), st.lists(st.text(max_size=12), min_size=5, max_size=5))


@given(st.one_of(mcq_templates(), cloze_templates()), docs)
def test_python_and_jinja_print_the_same(template: Any, doc: Any) -> None:
    question, choices = doc[0], doc[1][: len(template.choice_labels)]
    expected = template.format_prompt(question, choices)
    assert jinja(template, question=question, choices=choices) == expected.replace("\r\n", "\n") or "\r" in (
        question + "".join(choices)
    )


@given(mcq_templates(), names)
def test_conversion_there_and_back_loses_nothing(template: Any, marker: Any) -> None:
    cloze = template.to_cloze(marker)
    assert cloze.to_mcq() == template
    assert cloze.to_mcq().to_cloze() == cloze


@given(cloze_templates())
def test_conversion_from_cloze_there_and_back_loses_nothing(template: Any) -> None:
    assert template.to_mcq().to_cloze() == template


@given(st.one_of(mcq_templates(), cloze_templates()))
def test_template_is_made_again_from_its_mapping(template: Any) -> None:
    assert TemplateFactory.from_dict(template.to_dict()) == template


def test_every_built_in_template_is_made_again_from_its_mapping() -> None:
    for template in (
        GenerationTemplateConfig(),
        RankingTemplateConfig(),
        ClassificationTemplateConfig(labels=["a", "b"]),
    ):
        assert TemplateFactory.from_dict(template.to_dict()) == template


def test_marker_in_the_question_is_not_repeated() -> None:
    template = cloze_template(show_choices=False)
    assert template.format_prompt("Paris is in ______.") == "Paris is in ______."
    assert jinja(template, question="Paris is in ______.") == "Paris is in ______."


def test_prefix_may_use_other_columns() -> None:
    template = dataclasses.replace(mmlu_template(), prefix="Subject: {{ subject }}")
    expected = template.format_prompt("Q", CHOICES, subject="{{ art }}")
    assert expected.startswith("Subject: {{ art }}\nQ\n")
    assert jinja(template, question="Q", choices=CHOICES, subject="{{ art }}") == expected


def test_doc_with_more_choices_than_labels_is_refused(make: Make) -> None:
    with pytest.raises(FormatError, match="5 choices, but only 4 labels"):
        mmlu_template().format_prompt("Q", [*CHOICES, "choice5"])
    with pytest.raises(RenderError, match="5 choices, but only 4 labels"):
        printed(make("template: mcq\ndoc_to_target: answer\n"), {**DOC, "choices": [*CHOICES, "choice5"]})


MISTAKES = {
    "template: mqc": (3, "unknown template 'mqc'", "did you mean 'mcq'?"),
    "template: {}": (3, "empty mapping", "template: mcq"),
    "template: 3": (3, "template is 3", "template: mcq"),
    "template:\n  template_type: mcq\n  sufix: x": (5, "no option 'sufix'", "suffix"),
    "template:\n  template_type: mcq\n  choice_format: '{lable}. {choice}'": (5, "{lable}", "label"),
    "template:\n  template_type: mcq\n  choice_format: '{label}.'": (5, "must contain {choice}", "choice_format"),
    "template:\n  template_type: mcq\n  choice_format: '{label'": (5, "cannot be read", "choice_format"),
    "template:\n  template_type: mcq\n  choice_labels: letters": (5, "'letters'", "choice_labels"),
    "template:\n  template_type: mcq\n  choice_labels: [A, A]": (5, "'A' twice", ""),
    "template:\n  template_type: mcq\n  suffix: null": (5, "suffix must be text, not null", 'write ""'),
    "template:\n  template_type: mcq\n  prefix: '{% if %}'": (5, "prefix is not a valid Jinja", ""),
    "template:\n  template_type: cloze\n  blank_position: ende": (5, "'ende'", "end"),
    "template: classification": (3, "needs its labels", "labels:"),
}


@pytest.mark.parametrize("source", MISTAKES)
def test_mistake_in_a_template_is_told_with_its_line(make: Make, source: Any) -> None:
    line, says, hint = MISTAKES[source]
    with pytest.raises(FormatError) as caught:
        make(source)
    assert says in caught.value.message
    assert caught.value.position is not None
    assert caught.value.position.line == line
    assert hint in (caught.value.hint or "")


def test_docs_of_a_task_have_the_fields_of_its_own_text_or_of_its_template_without_the_guard(make: Make) -> None:
    assert make("template: mcq\ndoc_to_text: 'W: {{query}}'\n").doc_source.doc_to_text == "W: {{query}}"
    made = make("template: mcq\n")
    guard, _, text = str(made.doc_to_text).partition("{% endif %}")
    assert "raise_exception" in guard
    assert made.doc_source.doc_to_text == text
