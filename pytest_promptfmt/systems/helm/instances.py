"""Instances of HELM: read from request states, as the adapters see them, and as docs of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import SourceError, did_you_mean
from pytest_promptfmt.systems.helm.adapter_spec import AdapterSpec

Refuse = Callable[..., SourceError]
"""From a message (and a `hint`) to the error that names the request state."""


@dataclass(frozen=True, slots=True)
class HelmInstance:
    """An instance. `correct` are the indices of the right references, `number` that of its request state from 0.

    `split` is None where none is written; `has_split_below` says that it is written under the references.
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
            return {}  # rendering says why
        shown = golds if spec.multi_label else golds[:1]
        return {"output_mapping": mapping, "label": ", ".join(shown) or "n/a"}


def completed(doc: Doc, spec: AdapterSpec) -> Doc:
    """Return a doc with `input`, `references` and `answer_index` (or `answer`) with all the columns of an instance."""
    row = HelmInstance.of(doc)
    made = {**doc, "references": list(row.references), "correct": list(row.correct)}
    if row.correct:
        made |= {"answer": row.golds[0], "answer_index": row.correct[0]}
    return made | row.labels(spec)


def row_of(state: Any, number: int, refuse: Refuse) -> HelmInstance:
    """Return the instance of a request state; raises what `refuse` makes of a message where it cannot be used."""
    if not isinstance(state, dict):
        raise refuse(f"a request state must be a mapping, not {type(state).__name__}")
    instance = state.get("instance")
    if not isinstance(instance, dict):
        hint = did_you_mean("instance", map(str, state)) if "instance" not in state else None
        raise refuse("`instance` is missing" if instance is None else "`instance` must be a mapping", hint=hint)
    written, references = instance.get("input"), instance.get("references")
    given = written if isinstance(written, dict) else {"text": written}
    text, messages = given.get("text", ""), given.get("messages")
    if written is None or not isinstance(text, str):
        message = "`instance.input` is missing" if written is None else "`instance.input.text` must be a text"
        raise refuse(message, hint='write "input": {"text": "…"}')
    if messages is not None and not _are_messages(messages):
        hint = 'write a list of {"role": "user", "content": "…"}'
        raise refuse("`instance.input.messages` are not messages", hint=hint)
    if references is None:
        raise refuse(
            "`instance.references` is missing: there is nothing to compare an answer with",
            hint='write "references": [{"output": {"text": "…"}, "tags": ["correct"]}]',
        )
    if not isinstance(references, list):
        raise refuse("`instance.references` must be a list")
    parts = [_reference(reference, place, refuse) for place, reference in enumerate(references, start=1)]
    splits = [split for *_, split in parts if split is not None]
    split, extra, name = instance.get("split"), instance.get("extra_data"), instance.get("id")
    if not isinstance(split, str | None):
        raise refuse("`instance.split` must be a text")
    thought = extra.get("chain_of_thought") if isinstance(extra, dict) else None
    return HelmInstance(
        text=text,
        references=tuple(answer for answer, *_ in parts),
        correct=tuple(index for index, (_, is_correct, _) in enumerate(parts) if is_correct),
        split=splits[0] if split is None and splits else split,
        chain_of_thought=thought if isinstance(thought, str) else "",
        messages=tuple(messages) if messages is not None else None,
        id=name if isinstance(name, str) else "",
        number=number,
        has_split_below=split is None and bool(splits),
    )


def _reference(reference: Any, place: int, refuse: Refuse) -> tuple[str, bool, str | None]:
    """Return the text of a reference, whether it is right, and the split that it names."""
    output = reference.get("output") if isinstance(reference, dict) else None
    text = output.get("text", "") if isinstance(output, dict) else output
    if not isinstance(text, str):
        raise refuse(f"reference {place} has no text `output.text`")
    tags, split = reference.get("tags") or [], reference.get("split")
    if not isinstance(tags, list):
        raise refuse(f"the tags of reference {place} must be a list")
    return text, "correct" in tags, split if isinstance(split, str) else None


def _are_messages(messages: Any) -> bool:
    return isinstance(messages, list) and all(
        isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
        for each in messages
    )
