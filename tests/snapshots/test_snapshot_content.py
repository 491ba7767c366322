import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.answers.phrasing_verdicts import Matrix, PhrasingRow
from pytest_promptfmt.answers.replaying import Transcript
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.prompt import Instance, Origin, Prompt, Request, Span
from pytest_promptfmt.core.recorded import RecordedScores
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.snapshots.content import (
    extraction_document,
    header_facts,
    make_document,
    recorded_document,
    recording_document,
    to_json,
)
from pytest_promptfmt.snapshots.document import Section, read_document, write_document

FILE = Path("arc/plain.txt")
DOCS = TaskDocs(
    evaluated=(), fewshot=(), columns=(), origin="2 synthetic", fewshot_origin="9 synthetic", kind="synthetic"
)
FACTS = header_facts(Task(name="arc", format="mcqa", output_type="multiple_choice"), PLAIN, DOCS)


def prompt(text: str) -> Prompt:
    return Prompt((Span(text, Origin("question")),))


def choice(text: str, *, gold: bool = False, of: int | None = 0, context: str = "Question") -> Request:
    return Request(kind="loglikelihood", index=0, context=context, continuation=text, prompt=of, gold=gold)


def body(instance: Instance) -> str:
    document = make_document(FACTS, [instance])
    text = write_document(document)
    assert read_document(text, FILE) == document
    return text.partition("\n\n")[2].rpartition("\n\n")[0]


def instance(*requests: Request, prompts: tuple[str, ...] = ("Question",), target: Any = 1) -> Instance:
    return Instance(index=0, doc={}, prompts=tuple(map(prompt, prompts)), requests=requests, target=target)


def test_gold_continuation_is_marked() -> None:
    assert body(instance(choice(" A"), choice(" B\n", gold=True))) == (
        'doc 1\n  prompt\n  | Question⟨end⟩\n  continuations\n    " A"\n  * " B\\n"'
    )


def test_each_of_several_prompts_has_its_continuations() -> None:
    shown = body(
        instance(choice(" x", of=0), choice(" x", of=1, gold=True), prompts=("first", "second")),
    )
    assert shown == (
        'doc 1\n  prompt 1 of 2\n  | first⟨end⟩\n  continuations\n    " x"\n'
        '  prompt 2 of 2\n  | second⟨end⟩\n  continuations\n  * " x"'
    )


def test_unconditional_requests_stand_apart() -> None:
    shown = body(instance(choice(" A", gold=True), choice(" A", of=None, context="")))
    assert shown.endswith('  continuations without context\n    " A"')


def test_context_that_is_no_prompt_is_shown() -> None:
    assert "  context\n  | elsewhere⟨end⟩\n  continuations" in body(
        instance(choice(" A", of=None, context="elsewhere"), choice(" B", of=None, context="elsewhere"))
    )


def test_generation_shows_stop_sequences_first_then_settings_as_written_then_the_target() -> None:
    kwargs = {"temperature": 0.0, "until": ["\n\n", "Q:"], "do_sample": False, "max gen": 3}
    request = Request(kind="generate_until", index=0, context="Question", generation_kwargs=kwargs, prompt=0)
    assert body(instance(request, target=["four", "4"])).endswith(
        '  generate\n    until ["\\n\\n", "Q:"]\n    temperature 0.0\n    do_sample false\n    "max gen" 3\n'
        '  target\n    ["four", "4"]'
    )


def test_rolling_text_is_shown_as_a_text() -> None:
    request = Request(kind="loglikelihood_rolling", index=0, continuation="one\ntwo ")
    assert body(instance(request, prompts=())) == "doc 1\n  rolling text\n  | one\n  | two ⟨end⟩"


def test_docs_are_counted_from_one_in_their_order() -> None:
    first = instance(choice(" A", gold=True))
    document = make_document(FACTS, [replace(first, index=2), first])
    assert [doc.number for doc in document.docs] == [1, 3]


def test_more_sections_follow() -> None:
    document = make_document(FACTS, [instance(choice(" A", gold=True))], lambda _: [Section("tokens", "3 of them")])
    assert document.docs[0].sections[-1] == Section("tokens", "3 of them")


def test_shots_stand_in_the_header_when_there_are_any() -> None:
    facts = header_facts(Task(name="a"), PLAIN, DOCS, 5)
    assert facts["shots"] == "5, out of 9 synthetic"
    assert "shots" not in FACTS


def test_arguments_of_the_chat_template_stand_in_the_header_when_there_are_any() -> None:
    def facts(**arguments: Any) -> dict[str, str]:
        return header_facts(Task(name="a"), Profile(name="chat", chat_template="", template_args=arguments), DOCS)

    shown = facts(enable_thinking=False, date="26 Jul\u20282024", tools=[{"name": "look_up"}])
    assert shown["template arguments"] == (
        'date="26 Jul\u20282024", enable_thinking=false, tools=[{"name": "look_up"}]'
    )
    long = [facts(tools=[{"name": "x" * 1000}, last])["template arguments"] for last in (1, 2)]
    assert long[0] != long[1]
    assert max(map(len, long)) < 200
    assert "template arguments" not in FACTS


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)


VALUES = {
    "nan": math.nan,
    "infinity": math.inf,
    "set": {1, "a", None},
    "object": object(),
    "bytes": b"x",
    "huge int": 10**5000,
    "keys": {1: 2, None: 3, (1,): 4},
    "recursive": RECURSIVE,
    "hostile": Hostile(a=1),
    "surrogate": "\ud83d",
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_that_json_does_not_know_are_shown_and_stay_the_same(value: Any) -> None:
    shown = to_json(value)
    assert shown == to_json(value)
    assert " at 0x" not in shown
    json.loads(shown)


# -- scoring -----------------------------------------------------------------------------------------------------------


def test_verdicts_on_phrasings_are_shown_as_doc_1_with_failures_marked() -> None:
    rows = (
        PhrasingRow(id="bare", kind="tolerance", verdicts=("OK",), failed=False),
        PhrasingRow(id="two", kind="abstain", verdicts=("SPURIOUS(A)",), failed=True),
    )
    document = extraction_document(FACTS, Matrix(pipelines=("strict",), rows=rows, answers="options A, B"))
    text = write_document(document)
    assert read_document(text, FILE) == document
    assert text.partition("\n\n")[2].rpartition("\n\n")[0] == (
        "doc 1\n  answers\n    options A, B\n  filters\n    strict\n"
        "  tolerance\n    bare                      OK\n  abstain\n  * two                       SPURIOUS(A)"
    )


def test_recordings_and_recorded_scores_are_doc_1_as_well() -> None:
    recorded = recorded_document(FACTS, RecordedScores(count=2, totals={"exact_match": 1.0}))
    assert [(doc.number, [section.title for section in doc.sections]) for doc in recorded.docs] == [(1, ["scores"])]
    replayed = recording_document(FACTS, Transcript(["strict"]))
    assert [(doc.number, [section.title for section in doc.sections]) for doc in replayed.docs] == [
        (1, ["filters", "totals"])
    ]
