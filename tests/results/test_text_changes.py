"""One edit is one change, in every profile and task; two edits are two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings, strategies as st

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.profile import PLAIN, Profile, builtin_profile
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.results.text_changes import TextChange, text_change
from pytest_promptfmt.snapshots.changes import SnapshotComparison, changes
from pytest_promptfmt.snapshots.content import header_facts, make_document
from pytest_promptfmt.snapshots.document import Document
from pytest_promptfmt.tasks.renderer import render_task

CHATS = [builtin_profile(f"chat-{name}") for name in ("chatml", "llama2", "llama3", "chatml-single")]

DOCS: list[Doc] = [
    {"question": "Which, of these, is the Answer?", "choices": ["a river", "the sea", "ice"], "answer": 1},
    {"question": "Question: how many", "choices": ["2", "3, or 4"], "answer": 0},
    {"question": "Read: why then", "choices": ["so", "how", "no", "yes"], "answer": 2},
    {"question": "who", "choices": ["I", "you"], "answer": 1},
]

BEFORE: dict[str, Any] = {
    "name": "arc",
    "path": Path("arc.yaml"),
    "output_type": "multiple_choice",
    "doc_to_text": "Question: {{question}}\nChoices: {{choices|join(', ')}}\nAnswer:",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "description": "Physics.\n\n",
    "target_delimiter": " ",
    "fewshot_delimiter": "\n\n",
    "num_fewshot": 1,
}

EDITS: dict[str, dict[str, Any]] = {
    "join": {"doc_to_text": "Question: {{question}}\nChoices: {{choices|join('; ')}}\nAnswer:"},
    "line break in a join": {"doc_to_text": "Question: {{question}}\nChoices: {{choices|join('\n')}}\nAnswer:"},
    "cue": {"doc_to_text": "Question: {{question}}\nChoices: {{choices|join(', ')}}\nThe answer is"},
    "empty line": {"doc_to_text": "Question: {{question}}\n\nChoices: {{choices|join(', ')}}\nAnswer:"},
    "two words": {"doc_to_text": "Read: {{question}}\nOptions: {{choices|join(', ')}}\nAnswer:"},
    "written anew": {"doc_to_text": "{{question}}\n\n{% for one in choices %}- {{one}}\n{% endfor %}\nIn short, it is"},
    "description": {"description": "Chemistry.\n\n"},
    "gen prefix": {"gen_prefix": "So:"},
}


def locate(path: tuple[str | int, ...]) -> Position | None:
    return Position(Path("shared.yaml"), 1 + sorted(BEFORE).index(str(path[0]))) if path[0] in BEFORE else None


def rendered(
    keys: dict[str, Any], profile: Profile = PLAIN, docs: Sequence[Doc] = DOCS
) -> tuple[Document, list[Instance]]:
    task = Task(locate=locate, **keys)
    given = replace(TaskDocs.in_memory(docs), origin=f"{len(docs)} inline", fewshot_origin="inline")
    found = list(render_task(task, given, profile))
    return make_document(header_facts(task, profile, given, task.shots(None)), found), found


def compared(
    before: dict[str, Any], after: dict[str, Any], profile: Profile = PLAIN, docs: Sequence[Doc] = DOCS
) -> tuple[SnapshotComparison, list[Instance]]:
    old, _ = rendered(before, profile, docs)
    new, instances = rendered(after, profile, docs)
    return SnapshotComparison(state="changed", text="", old=old, new=new), instances


def change(before: dict[str, Any], after: dict[str, Any], docs: Sequence[Doc] = DOCS) -> TextChange:
    found = text_change(*compared(before, after, PLAIN, docs), locate)
    assert found is not None
    return found


def keys(found: Iterable[TextChange]) -> set[str]:
    return {each.key for each in found}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("shots", [0, 1, 2])
def test_what_changed_in_plain_text_explains_every_chat_profile(edit: dict[str, Any], shots: int) -> None:
    before = BEFORE | {"num_fewshot": shots}
    told = change(before, before | edit)
    for profile in CHATS:
        comparison, _ = compared(before, before | edit, profile)
        assert comparison.changes, profile.name
        assert told.explains(comparison), profile.name


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_chat_template_that_changes_as_well_is_not_explained(edit: dict[str, Any]) -> None:
    told = change(BEFORE, BEFORE | edit)
    profile = CHATS[0]
    template = profile.chat_template
    assert template is not None
    marked = replace(profile, chat_template=template.replace("<|im_end|>", "<|done|>"))
    assert marked.chat_template != template
    old, _ = rendered(BEFORE, profile)
    new, _ = rendered(BEFORE | edit, marked)
    assert changes(old, new)
    assert not told.explains(SnapshotComparison(state="changed", text="", old=old, new=new))


SPOKEN = ["the", "Answer", "is:", "a,", "b;", "(Question)", "Why", "12", "3.5", "how", "then.", "Choices"]
WORDS = st.lists(st.sampled_from(SPOKEN), min_size=1, max_size=8).map(" ".join)
DOC = st.fixed_dictionaries(
    {"question": WORDS, "choices": st.lists(WORDS, min_size=2, max_size=5, unique=True), "answer": st.integers(0, 1)}
)


FOUR_DOCS = st.lists(DOC, min_size=4, max_size=4, unique_by=lambda doc: doc["question"])


@settings(max_examples=40)
@given(docs=FOUR_DOCS, shots=st.integers(0, 2), edit=st.sampled_from(sorted(EDITS)))
def test_an_edit_has_the_same_key_whatever_the_docs_say(docs: list[Doc], shots: int, edit: str) -> None:
    other = BEFORE | {"num_fewshot": shots, "name": "other", "path": Path("other.yaml")}
    assert change(other, other | EDITS[edit], docs).key == change(BEFORE, BEFORE | EDITS[edit]).key


def test_different_edits_have_different_keys() -> None:
    edits = [
        *EDITS.values(),
        {"doc_to_text": f"{BEFORE['doc_to_text']} "},
        {"description": "Physics. \n\n"},
        {"doc_to_text": BEFORE["doc_to_text"].replace("Question:", "Question :")},
        {"target_delimiter": "\n"},
        {"doc_to_choice": "{{choices|map('upper')|list}}"},
        {"fewshot_delimiter": "\n###\n"},
        {"num_fewshot": 0},
        {"num_fewshot": 2},
    ]
    assert len(keys(change(BEFORE, BEFORE | edit) for edit in edits)) == len(edits)


def test_a_delimiter_is_one_change_with_and_without_demonstrations() -> None:
    edit = {"target_delimiter": "\n"}
    found = [change(before, before | edit) for before in (BEFORE, BEFORE | {"num_fewshot": 0})]
    assert len(keys(found)) == 1


def test_another_number_of_demonstrations_is_told_by_that_number() -> None:
    docs: list[Sequence[Doc]] = [DOCS, DOCS[::-1], [{**doc, "question": "x"} for doc in DOCS]]
    found = [change(BEFORE | {"num_fewshot": 2}, BEFORE, each) for each in docs]
    assert len(keys(found)) == 1
    assert found[0].title.startswith("shots 2, out of inline → 1, out of inline: ")
    assert all(found[0].explains(compared(BEFORE | {"num_fewshot": 2}, BEFORE, chat)[0]) for chat in CHATS)


def test_a_gold_answer_that_moves_is_no_part_of_another_change() -> None:
    edit = EDITS["cue"]
    before = BEFORE | {"num_fewshot": 0}
    both = edit | {"doc_to_target": "{{1 - answer if answer < 2 else 0}}"}
    assert change(before, before | both).key != change(before, before | edit).key


@pytest.mark.parametrize(("kind", "count"), [("synthetic", 1), ("given", 2), (None, 2)])
def test_numbers_distinguish_changes_but_those_of_synthetic_docs(
    kind: Literal["synthetic", "given"] | None, count: int
) -> None:
    docs = None if kind is None else replace(TaskDocs.in_memory(DOCS), kind=kind)
    found = [
        text_change(
            *compared(BEFORE, {**BEFORE, "description": f"Physics {number}.\n\n"}, PLAIN, DOCS), locate, docs=docs
        )
        for number in (2, 3)
    ]
    assert len({each.key for each in found if each is not None}) == count
