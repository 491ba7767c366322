"""What synthetic docs call their columns: the same after a renaming, and what was swapped is seen."""

from __future__ import annotations

import copy
import json
import re
from itertools import permutations
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from pytest_promptfmt.core.task import Dataset, Task
from pytest_promptfmt.tasks.docs.doc_sources import load_docs
from pytest_promptfmt.tasks.synthetic.doc_values import read_name
from pytest_promptfmt.tasks.synthetic.synthetic_docs import columns_read, synthetic_docs

UNKNOWN = ["foo", "bar", "frage", "x", "Ünbekannt"]
ROLES = [
    ["question", "query", "problem", "q", "Question", "input_text"],
    ["passage", "context", "article", "documents"],
    ["premise", "Premise", "premise_text"],
    ["hypothesis", "HYPOTHESIS"],
    ["option_a", "optionA", "opa", "option0", "A"],
    ["option_b", "optionB", "opb", "option1", "B"],
]


def make_task(**fields: Any) -> Any:
    return Task(**{"name": "t", "dataset": Dataset(test_split="test"), "num_fewshot": 1, **fields})


def shown(task: Any) -> list[Any]:
    """Return all that lm-eval would send for the task's docs, with a shot."""
    return [
        ([prompt.text for prompt in instance.prompts], [request.arguments for request in instance.requests])
        for instance in task.render(load_docs(task))
    ]


def columns(task: Any) -> dict[str, tuple[str, ...]]:
    return columns_read(task, load_docs(task).columns)


def words(**fields: Any) -> dict[str, Any]:
    """Return what the columns of the first doc are called."""
    (doc,) = synthetic_docs(make_task(**fields), count=1, split="test")
    return {name: value.removeprefix("«").removesuffix(" 1»") for name, value in doc.items()}


# -- what decides the word --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("synonyms", ROLES, ids=lambda synonyms: synonyms[0])
def test_names_of_one_role_are_called_the_same(synonyms: list[str]) -> None:
    first = read_name(synonyms[0])
    assert first.role is not None
    assert {(read_name(name).role, read_name(name).number) for name in synonyms} == {(first.role, first.number)}


def test_other_columns_are_called_by_the_field_that_reads_them() -> None:
    found = words(doc_to_text="{{foo}} {{bar}}", doc_to_target="{{baz}}")
    assert found == {"foo": "question", "bar": "text", "baz": "answer"}
    found = words(doc_to_text="{{foo}}", doc_to_target=0, doc_to_choice="{{[one, two]}}")
    assert found == {"foo": "question", "one": "choice", "two": "second choice"}


@pytest.mark.parametrize("names", [("q", "target"), ("frage", "antwort"), ("text", "x")])
def test_the_column_of_a_question_and_that_of_its_answer_may_have_any_name(names: tuple[str, str]) -> None:
    question, answer = names
    usual = make_task(doc_to_text="Q: {{question}}\nA:", doc_to_target="answer")
    other = make_task(doc_to_text=f"Q: {{{{{question}}}}}\nA:", doc_to_target=answer)
    assert shown(other) == shown(usual)
    assert columns(other) == {"doc_to_text": (question,), "doc_to_target": (answer,)}


def test_numbers_and_letters_at_the_end_count() -> None:
    assert words(doc_to_text="{{sentence2}} {{sentence1}}") == {"sentence2": "second sentence", "sentence1": "sentence"}
    assert words(doc_to_text="{{foo_b}} {{foo_a}}") == {"foo_b": "text", "foo_a": "question"}


def test_every_text_is_called_otherwise() -> None:
    names = [f"column{letter}" for letter in "abcdefghijklm"]
    assert len(set(words(doc_to_text="".join(f"{{{{{name}}}}}" for name in names)).values())) == len(names)


# -- renaming and swapping --------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        "{{N}}",
        "Q: {{N}}\n",
        "{{N.strip()}} ",
        "{{N|upper}}\n",
        "{% if N %}{{N}}{% endif %}",
        "{{N[:20]}}|",
        "{{N.inner}} ",
        "{% for each in N_list %}- {{each}}\n{% endfor %}",
        "words ",
    ]
)


@st.composite
def fields(draw: Any) -> dict[str, Any]:
    """Return fields of a task whose columns are called c0, c1 and so on."""
    template = st.lists(st.tuples(PIECES, st.integers(0, 3)), min_size=1, max_size=4).map(
        lambda pieces: "".join(piece.replace("N", f"c{number}") for piece, number in pieces)
    )
    made = {"doc_to_text": draw(template), "doc_to_target": draw(st.sampled_from(["c0", "{{c1}}", "{{c2}}!"]))}
    if draw(st.booleans()):
        made["doc_to_choice"] = draw(st.sampled_from(["{{[c0, c1]}}", "{{[c2, c1]}}"]))
        made |= {"output_type": "multiple_choice", "doc_to_target": draw(st.sampled_from(["c9", "{{c9}}", 1]))}
    if draw(st.booleans()):
        made["description"] = draw(template)
    return made


def renamed(made: dict[str, Any], names: dict[str, str]) -> Any:
    pattern = re.compile(r"\bc\d+(?=_list\b|\b)")
    text = {
        key: pattern.sub(lambda found: names.get(found[0], found[0]), value) if isinstance(value, str) else value
        for key, value in made.items()
    }
    return make_task(**text)


def each_as(names: list[str]) -> dict[str, str]:
    return {f"c{number}": name for number, name in zip((0, 1, 2, 3, 9), names, strict=True)}


def accepted(task: Any) -> list[Any]:
    try:
        return shown(task)
    except Exception:
        assume(False)
        raise


@pytest.mark.slow
@given(made=fields(), chosen=st.permutations(UNKNOWN))
def test_a_renaming_of_columns_nobody_knows_changes_no_text(made: Any, chosen: list[str]) -> None:
    before = accepted(renamed(made, each_as(UNKNOWN)))
    assert shown(renamed(made, each_as(chosen))) == before


@pytest.mark.slow
@given(made=fields(), chosen=st.tuples(*(st.sampled_from(role) for role in ROLES[:4])))
def test_another_name_of_the_same_role_changes_no_text(made: Any, chosen: tuple[str, ...]) -> None:
    before = accepted(renamed(made, each_as([*(role[0] for role in ROLES[:4]), "label"])))
    assert shown(renamed(made, each_as([*chosen, "label"]))) == before


@pytest.mark.slow
@given(made=fields(), pair=st.sampled_from([*permutations(["c0", "c1", "c2", "c3"], 2)]))
def test_two_columns_that_are_swapped_in_one_field_change_the_text_or_the_columns(
    made: Any, pair: tuple[str, str]
) -> None:
    names = each_as(UNKNOWN)
    one, other = pair
    swapped = renamed({"doc_to_text": made["doc_to_text"]}, {**names, one: names[other], other: names[one]})
    before = renamed(made, names)
    after = renamed({**made, "doc_to_text": swapped.doc_to_text}, names)
    assume(after.doc_to_text != before.doc_to_text)
    assert (accepted(before), columns(before)) != (accepted(after), columns(after))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("premise", "hypothesis"),
        ("question", "context"),
        ("sentence1", "sentence2"),
        ("option_a", "option_b"),
        ("A", "B"),
        ("sol1", "sol2"),
        ("foo1", "foo2"),
        ("question", "frage"),
        ("correct_answer", "incorrect_answer"),
    ],
)
def test_columns_that_are_told_apart_show_in_the_prompt_when_they_are_swapped(one: str, other: str) -> None:
    before = make_task(doc_to_text=f"1: {{{{{one}}}}}\n2: {{{{{other}}}}}", doc_to_target="x")
    after = make_task(doc_to_text=f"1: {{{{{other}}}}}\n2: {{{{{one}}}}}", doc_to_target="x")
    assert shown(before) != shown(after)


def test_a_column_in_the_place_of_another_shows_in_the_prompt() -> None:
    before = make_task(doc_to_text="{{foo}} and {{bar}}", doc_to_target="x")
    assert shown(before) != shown(make_task(doc_to_text="{{foo}} and {{foo}}", doc_to_target="x"))


# -- the columns that are read ----------------------------------------------------------------------------------------


def test_columns_are_listed_in_the_order_in_which_they_are_read_wherever_they_are_used() -> None:
    task = make_task(
        doc_to_text="{{foo}} {{bar.inner}} {{foo}}",
        doc_to_target="baz",
        description="About {{topic}}.",
        gen_prefix="{{start}}",
    )
    assert columns(task) == {
        "doc_to_text": ("foo", "bar"),
        "doc_to_target": ("baz",),
        "description": ("topic",),
        "gen_prefix": ("start",),
    }


def test_functions_list_what_they_asked_for() -> None:
    def doc_to_text(doc: Any) -> str:
        return f"{doc['foo']} {doc.get('hint')} {'extra' in doc} {doc['bar']}"

    def doc_to_target(doc: Any) -> str:
        return str({**doc}["foo"])

    task = make_task(doc_to_text=doc_to_text, doc_to_target=doc_to_target)
    assert columns(task) == {"doc_to_text": ("foo", "hint", "extra", "bar"), "doc_to_target": ("foo", "bar")}


def test_a_function_gets_a_doc_that_it_may_copy_change_and_write() -> None:
    def doc_to_text(doc: Any) -> str:
        own = copy.deepcopy(doc)
        own["question"] = own["question"].upper()
        doc.pop("gone", None)
        assert type(own) is type(copy.copy(doc)) is type(doc.copy()) is dict
        return (
            json.dumps(doc) + str(own["question"]) + "".join(doc.values()) + "".join(f"{k}{v}" for k, v in doc.items())
        )

    task = make_task(doc_to_text=doc_to_text, doc_to_target="{{question}}")
    assert columns(task)["doc_to_text"] == ("question", "gone")
