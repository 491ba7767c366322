"""Instances of HELM: read from the request states of a run, as the adapters see them, and as docs of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import Position, ScoringError, SourceError, did_you_mean
from pytest_promptfmt.core.recorded import BadRecord, Recorded
from pytest_promptfmt.systems.helm.adapter_spec import AdapterSpec
from pytest_promptfmt.systems.helm.json_text import json_items

STATES: Final = "request_states"

Completion = tuple[str, float]
"""A text with its log-probability."""


@dataclass(frozen=True, slots=True)
class HelmInstance:
    """An instance. `correct` are the indices of the right references, `number` that of its request state from 0.

    `split` is None where none is written; `has_split_below`: it is written under the references.
    """

    text: str
    references: tuple[str, ...]
    correct: tuple[int, ...]
    split: str | None = None
    chain_of_thought: str = ""
    messages: tuple[Mapping[str, Any], ...] | None = None
    id: str = ""
    number: int = 0
    has_split_below: bool = False

    @classmethod
    def of(cls, doc: Doc, *, split: str | None = None) -> HelmInstance:
        """Return the row of a doc with the columns `input`, `references`, `correct` (or the answer) and more."""
        given, answer, correct = doc.get("references"), doc.get("answer"), doc.get("correct")
        references = tuple(str(each) for each in given) if isinstance(given, list | tuple) else ()
        if not isinstance(correct, list | tuple):
            index = doc.get("answer_index", answer)
            correct = [references.index(answer) if not isinstance(index, int) and answer in references else index]
        golds = tuple(each for each in correct if type(each) is int and 0 <= each < len(references))
        if not references and isinstance(answer, str) and answer:
            references, golds = (answer,), (0,)
        thought, messages = doc.get("chain_of_thought"), doc.get("messages")
        return cls(
            text=str(doc.get("input", "")),
            references=references,
            correct=golds,
            split=split,
            chain_of_thought=thought if isinstance(thought, str) else "",
            messages=tuple(messages) if isinstance(messages, list | tuple) else None,
        )

    @property
    def is_train(self) -> bool:
        """Return whether the instance is a shot."""
        return self.split == "train"

    @property
    def golds(self) -> tuple[str, ...]:
        """Return the texts of the right references."""
        return tuple(self.references[index] for index in self.correct)

    def doc(self, spec: AdapterSpec) -> dict[str, Any]:
        """Return the instance as a doc."""
        doc: dict[str, Any] = {
            "input": self.text,
            "references": list(self.references),
            "correct": list(self.correct),
            "answer": self.golds[0] if self.correct else "",
            "answer_index": self.correct[0] if self.correct else -1,
        }
        if self.chain_of_thought:
            doc["chain_of_thought"] = self.chain_of_thought
        if self.messages is not None:
            doc["messages"] = list(self.messages)
        if self.id:
            doc["id"] = self.id
        return doc | self.labels(spec)

    def labels(self, spec: AdapterSpec) -> dict[str, Any]:
        """Return the columns of a joint method: what its labels mean, and the label of the answer."""
        if not spec.is_joint:
            return {}
        try:
            mapping = {spec.label(index): text for index, text in enumerate(self.references)}
            golds = [spec.label(index) for index in self.correct]
        except ValueError:
            return {}  # rendering reports why
        shown = golds if spec.multi_label else golds[:1]
        return {"output_mapping": mapping, "label": ", ".join(shown) or "n/a"}


def completed(doc: Doc, spec: AdapterSpec) -> Doc:
    """Return a doc with `input`, `references` and `answer_index` (or `answer`) with all the columns of an instance."""
    row = HelmInstance.of(doc)
    made = {**doc, "references": list(row.references), "correct": list(row.correct)}
    if row.correct:
        made |= {"answer": row.golds[0], "answer_index": row.correct[0]}
    return made | row.labels(spec)


# -- request states ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestState:
    """One request state as written: its number from 0, its value, and where it begins."""

    number: int
    value: Any
    position: Position

    def error(self, message: str, *, hint: str | None = None) -> SourceError:
        """Return an error that names the state."""
        return SourceError(f"{STATES}[{self.number}]: {message}", position=self.position, hint=hint)

    def get(self, key: str) -> Any:
        """Return the value of a key, None where the state has none or is not a mapping."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def row(self) -> HelmInstance:
        """Return the instance; raises SourceError where it cannot be used."""
        refuse = self.error
        if not isinstance(self.value, dict):
            raise refuse(f"a request state must be a mapping, not {type(self.value).__name__}")
        instance = self.get("instance")
        if not isinstance(instance, dict):
            hint = did_you_mean("instance", map(str, self.value)) if "instance" not in self.value else None
            raise refuse("`instance` is missing" if instance is None else "`instance` must be a mapping", hint=hint)
        written, references = instance.get("input"), instance.get("references")
        given = written if isinstance(written, dict) else {"text": written}
        text, messages = given.get("text", ""), given.get("messages")
        if written is None or not isinstance(text, str):
            message = "`instance.input` is missing" if written is None else "`instance.input.text` must be text"
            raise refuse(message, hint='write "input": {"text": "…"}')
        if messages is not None and not _are_messages(messages):
            hint = 'write a list of {"role": "user", "content": "…"}'
            raise refuse("`instance.input.messages` must be a list of messages", hint=hint)
        if references is None:
            raise refuse(
                "`instance.references` is missing, but answers are compared with the references",
                hint='write "references": [{"output": {"text": "…"}, "tags": ["correct"]}]',
            )
        if not isinstance(references, list):
            raise refuse("`instance.references` must be a list")
        parts = [_reference(reference, place, self) for place, reference in enumerate(references, start=1)]
        splits = [split for *_, split in parts if split is not None]
        split, extra, name = instance.get("split"), instance.get("extra_data"), instance.get("id")
        if not isinstance(split, str | None):
            raise refuse("`instance.split` must be text")
        thought = extra.get("chain_of_thought") if isinstance(extra, dict) else None
        return HelmInstance(
            text=text,
            references=tuple(answer for answer, *_ in parts),
            correct=tuple(index for index, (_, is_correct, _) in enumerate(parts) if is_correct),
            split=splits[0] if split is None and splits else split,
            chain_of_thought=thought if isinstance(thought, str) else "",
            messages=tuple(messages) if messages is not None else None,
            id=name if isinstance(name, str) else "",
            number=self.number,
            has_split_below=split is None and bool(splits),
        )

    @property
    def prompt(self) -> str | None:
        """Return the prompt that was sent, None where none is recorded."""
        request = self.get("request")
        prompt = request.get("prompt") if isinstance(request, dict) else None
        return prompt if isinstance(prompt, str) and prompt else None

    @property
    def has_nested_result(self) -> bool:
        """Return whether the result is inside `request`, where HELM does not look for it."""
        request = self.get("request")
        return self.get("result") is None and isinstance(request, dict) and isinstance(request.get("result"), dict)

    @property
    def result(self) -> Mapping[str, Any] | None:
        """Return the result, None where none is recorded."""
        result = self.value["request"]["result"] if self.has_nested_result else self.get("result")
        return result if isinstance(result, dict) else None

    @property
    def output_mapping(self) -> Mapping[str, str] | None:
        """Return what labels mean, where that is written."""
        return mapping_in(self.get)

    def answers(self) -> Sequence[Mapping[str, Any]]:
        """Return the completions as they are written; raises SourceError where they are not a list of mappings."""
        result = self.result
        given = result.get("completions") if result is not None else None
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise self.error("`result.completions` must be a list of mappings")
        return given

    def completions(self, output_format: str = "list") -> list[Completion]:
        """Return the completions, the most likely first; with the format "string" the one that is written first.

        Nothing without a result. Raises SourceError for completions without text.
        """
        given = self.answers() if self.result is not None else ()
        if not all(isinstance(each.get("text"), str) for each in given):
            raise self.error("a completion has no text")
        made = [(each["text"], float(each["logprob"]) if is_number(each.get("logprob")) else 0.0) for each in given]
        return made[:1] if output_format == "string" else most_likely_first(made)


def _reference(reference: Any, place: int, state: RequestState) -> tuple[str, bool, str | None]:
    """Return the text of a reference, whether it is right, and the split that it names."""
    output = reference.get("output") if isinstance(reference, dict) else None
    text = output.get("text", "") if isinstance(output, dict) else output
    if not isinstance(text, str):
        raise state.error(f"reference {place} has no `output.text`, or it is not text")
    tags, split = reference.get("tags") or [], reference.get("split")
    if not isinstance(tags, list):
        raise state.error(f"the tags of reference {place} must be a list")
    return text, "correct" in tags, split if isinstance(split, str) else None


def _are_messages(messages: Any) -> bool:
    return isinstance(messages, list) and all(
        isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
        for each in messages
    )


def most_likely_first(completions: Sequence[Completion]) -> list[Completion]:
    """Return completions by their log-probability; of equal ones the first counts, as in HELM."""
    return sorted(completions, key=lambda each: -each[1])


def mapping_in(get: Callable[[str], Any]) -> Mapping[str, str] | None:
    """Return the output mapping of a request state or file, given how its keys are read; None where it has none."""
    for name in ("output_mapping", "answer_mapping"):
        given = get(name)
        if isinstance(given, dict) and all(isinstance(each, str) for each in given.values()):
            return given
    return None


def is_number(value: Any) -> bool:
    """Return whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def stream_states(path: Path) -> Iterator[RequestState]:
    """Yield the request states of a plain JSON file, one in memory at a time; raises SourceError as `json_items`."""
    for item in json_items(path, STATES):
        if item.index is not None:
            yield RequestState(item.index, item.value, item.position)


def read_recorded(path: Path) -> Iterator[Recorded | BadRecord]:
    """Yield the most likely completion of each request state and the label of its gold, for a task that is not HELM's.

    Raises ScoringError for a file without request states.
    """
    number = 0
    plain = AdapterSpec()
    try:
        for state in stream_states(path):
            number = state.number + 1
            try:
                row, completions = state.row(), state.completions()
            except SourceError as error:
                yield BadRecord(number, error.message)
                continue
            if not completions:
                yield BadRecord(number, "no completion in this request state")
                continue
            labels = [label for label, text in (state.output_mapping or {}).items() if text in row.golds]
            target = next(iter((*labels, *row.golds)), "")
            yield Recorded(
                number=number,
                doc_index=state.number,
                completion=completions[0][0],
                doc=row.doc(plain),
                target=target,
            )
    except SourceError as error:
        line = f", line {error.position.line}" if error.position is not None and error.position.line else ""
        yield BadRecord(number + 1, f"the rest of the file cannot be read: {error.message}{line}")
        return
    if not number:
        raise ScoringError(f"the file has no {STATES}", position=Position(path))
