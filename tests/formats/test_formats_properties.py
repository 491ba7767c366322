"""What holds for every format and variant, whatever the docs contain."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from format_pieces import Asked, answer_pieces, prompt_pieces, shown_order, target_text
from hypothesis import given, settings, strategies as st

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats import Format, LaidOutTask, known_formats, lay_out, variants_of
from pytest_promptfmt.formats.fields import grammar, literal, printed, sealed
from pytest_promptfmt.formats.labels import label_count

EVERY = tuple(made for layout in known_formats().values() for made in (layout, *variants_of(layout)))
TASK = Task(name="t", doc_to_text="question", doc_to_target="answer", doc_to_choice="choices")
LAYOUTS = {layout.name: layout for layout in EVERY}
SHOT = {"question": "shot?", "choices": ["s1", "s2"], "answer": 0, "topic": "S"}

NASTY = {
    "question": "{{ choices }} {% if %} 'q' \"\u202e {",
    "choices": ["{{ 7 * 7 }}", "B. {#", "A", "  padded ", "[1]"],
    "answer": 3,
    "topic": "{% raw %}",
}

layouts = st.sampled_from(sorted(LAYOUTS))
hostile = st.sampled_from(
    [
        "{{ question }}",
        "{% if x %}",
        "{# no #}",
        "}}",
        "{",
        "%}",
        "\\n",
        "'",
        '"',
        "\r\n",
        "[1, 2]",
        "7",
        "007",
        "²",
        "raise_exception('x')",
        "{{ 7 * 7 }}",
        "\u202eabc",
        "A. B. C.",
        "",
    ]
)
texts = st.one_of(st.text(max_size=15), st.lists(hostile, max_size=3).map("".join))


@cache
def laid_out(name: str) -> LaidOutTask:
    return lay_out(TASK, LAYOUTS[name])


@st.composite
def docs(draw: st.DrawFn) -> dict[str, Any]:
    choices = draw(st.lists(texts.filter(bool), min_size=1, max_size=6, unique=True))  # lm-eval refuses empty ones
    return {
        "question": draw(texts),
        "choices": choices,
        "answer": draw(st.integers(0, len(choices) - 1)),
        "topic": draw(texts),
    }


def asked(doc: dict[str, Any]) -> Asked:
    return Asked(question=doc["question"], choices=doc["choices"], gold=doc["answer"], topic=doc["topic"])


def rendered(task: Task, doc: dict[str, Any], shots: int = 0) -> Instance:
    return next(iter(task.render(TaskDocs.in_memory([doc], [SHOT] * 3), num_fewshot=shots)))


def own_prompt(task: LaidOutTask, instance: Instance) -> str:
    text = instance.prompts[0].text
    if task.gen_prefix:
        assert text.endswith(task.gen_prefix)
        text = text.removesuffix(task.gen_prefix)
        if not (task.layout.answer_prompt or "")[-1:].isspace():  # else nothing was put between
            text = text.removesuffix(task.target_delimiter)
    return text


@settings(max_examples=100)
@given(name=layouts, doc=docs())
def test_templates_print_what_the_pieces_say(name: str, doc: dict[str, Any]) -> None:
    task = laid_out(name)
    instance = rendered(task, doc)
    assert own_prompt(task, instance) == "".join(piece.text for piece in prompt_pieces(task.layout, asked(doc)))


@pytest.mark.slow
@settings(max_examples=100)
@given(name=layouts, doc=docs())
def test_every_value_of_the_doc_stands_in_the_prompt_verbatim_and_in_order(name: str, doc: dict[str, Any]) -> None:
    task = laid_out(name)
    layout = task.layout
    text = own_prompt(task, rendered(task, doc))
    expected = [doc["topic"]] if layout.topic is not None else []
    expected.append(doc["question"])
    if layout.choice_labels is not None:
        expected += [doc["choices"][position] for position in shown_order(layout, asked(doc))]
    position = 0
    for value in expected:
        found = text.find(value, position)
        assert found >= 0, value
        position = found + len(value)


@pytest.mark.slow
@settings(max_examples=100)
@given(name=layouts, doc=docs())
def test_gold_label_gold_index_and_target_text_are_the_same_choice(name: str, doc: dict[str, Any]) -> None:
    task = laid_out(name)
    instance = rendered(task, doc)
    gold = doc["choices"][doc["answer"]]
    assert task.gold is not None
    shown = [doc["choices"][position] for position in shown_order(task.layout, asked(doc))]
    index = int(_printed(task.gold, doc))
    assert shown[index] == gold
    assert _literal(task.choices, doc) == shown
    expected = target_text(task.layout, asked(doc))
    if task.output_type == "generate_until":
        assert instance.target == expected
    else:
        only_gold = task.layout.scored == "gold"
        assert instance.target == (0 if only_gold else index)
        request = next(request for request in instance.requests if request.gold)
        assert request.continuation == task.target_delimiter + expected
        count = 1 if only_gold else len(doc["choices"])
        assert len(instance.requests) == count + (task.layout.abstention is not None)


@settings(max_examples=100)
@given(name=layouts, doc=docs())
def test_demonstration_is_the_prompt_and_its_answer(name: str, doc: dict[str, Any]) -> None:
    task = laid_out(name)
    if target_text(task.layout, asked(doc)) == "":
        return  # lm-eval 0.4.13 writes no answer and no delimiter for an empty one
    docs_ = TaskDocs.in_memory([SHOT], [doc] * 3)
    text = next(iter(task.render(docs_, num_fewshot=1))).prompts[0].text
    pieces = [piece for piece in prompt_pieces(task.layout, asked(doc)) if piece.kind != "description"]
    shown = "".join(piece.text for piece in (*pieces, *answer_pieces(task.layout, asked(doc))))
    assert shown in text


@pytest.mark.parametrize("name", ["mcqa", "generate", "mmlu"])
@given(doc=docs(), count=st.integers(1, 26))
@settings(max_examples=15)
def test_any_count_of_choices_up_to_the_labels_renders(name: str, doc: dict[str, Any], count: int) -> None:
    many = {**doc, "choices": [f"choice {number}" for number in range(count)], "answer": count - 1}
    task = laid_out(name)
    assert label_count(task.layout.choice_labels) == 26
    assert f"{chr(64 + count)}. choice {count - 1}" in rendered(task, many).prompts[0].text


@given(st.text())
def test_literal_and_printed_text_give_the_text_back(text: str) -> None:
    assert _printed(f"{{{{ {literal(text)} }}}}", {}) == text
    assert _printed(printed(text), {}) == text or "\r" in text


@given(
    st.sampled_from(
        ["{{ x }}", "{{- x -}}", "{% if x %}a{% endif -%}", "a{", "{{ x }}{", "{#- c -#}", " b ", "{{ '{' }}"]
    ),
    st.sampled_from(["{{ x }}", " y", "{", "{{- x }}", "\n", "%}", "{% set z = 1 -%}"]),
)
def test_sealed_texts_mean_beside_each_other_what_they_mean_alone(first: str, second: str) -> None:
    doc = {"x": " v "}
    alone = _printed(sealed(first), doc) + _printed(sealed(second), doc)
    assert _printed(sealed(first) + sealed(second), doc) == alone
    assert alone == _printed(first, doc) + _printed(second, doc)


def _printed(source: str, doc: dict[str, Any]) -> str:
    return grammar().from_string(source).render(doc)


def _literal(spec: Any, doc: dict[str, Any]) -> Any:
    import ast

    return ast.literal_eval(_printed(spec, doc)) if isinstance(spec, str) else spec


@pytest.mark.parametrize("name", known_formats())
def test_every_variant_of_a_format_prints_a_nasty_doc_as_it_is(name: str) -> None:
    layout = known_formats()[name]
    for made in (layout, *variants_of(layout)):
        task = laid_out(made.name)
        text = own_prompt(task, rendered(task, NASTY))
        assert text == "".join(piece.text for piece in prompt_pieces(made, asked(NASTY))), made.name


def test_all_formats_and_variants_are_tested() -> None:
    assert len(LAYOUTS) == len(EVERY)
    assert isinstance(EVERY[0], Format)
