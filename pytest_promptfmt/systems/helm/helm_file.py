"""Files with HELM's `adapter_spec`: whether a JSON file is one, its parts, and its instances as docs.

A `scenario_state.json` may be large: what does not fit into memory with ease is read state by state, each time anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, SourceError, did_you_mean
from pytest_promptfmt.systems.helm.helm_spec import AdapterSpec
from pytest_promptfmt.systems.helm.json_stream import json_items
from pytest_promptfmt.systems.helm.json_text import JsonText, Keys, item_offsets, position_at, read_json
from pytest_promptfmt.systems.lm_eval.yaml import resolved

STATES: Final = "request_states"
MAX_WHOLE: Final = 16 << 20
"""Up to how many bytes a file is read at once, as JSON or JSON5; larger ones are JSON and read state by state."""

_HEAD: Final = 65_536
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
_SAVE: Final = "save it as UTF-8"
_TRAIN: Final = "train"
_EVALUATED: Final = ("valid", "test")


@dataclass(frozen=True, slots=True)
class State:
    """One request state as written: its number from 0, and where it stands."""

    number: int
    value: Any
    position: Position | None


@dataclass(frozen=True, eq=False)
class HelmFile:
    """The parts of a file. `top` is everything but the request states; `broken` is where the text breaks off, if so."""

    path: Path
    top: Mapping[str, Any]
    is_strict: bool
    whole: JsonText | None
    broken: SourceError | None = None

    def locate(self, keys: Keys) -> Position | None:
        """Return where a key path stands; of a large file only what its first bytes hold."""
        if not _holds(self.top if self.whole is None else self.whole.value, keys):
            return None  # without walking through all of the text
        if keys not in self._known:
            text = self.whole or JsonText(self.path, _beginning(self.path), None)
            self._known[keys] = text.locate(keys)
        return self._known[keys]

    @cached_property
    def _known(self) -> dict[Keys, Position | None]:
        return {}

    @cached_property
    def _offsets(self) -> list[int]:
        """Return where each state of a plain JSON file begins; of others they are walked to."""
        return item_offsets(self.whole.text, (STATES,)) if self.whole is not None and self.is_strict else []

    def states(self, *, to_the_end: bool = False) -> Iterator[State]:
        """Yield the request states in order, up to where the file breaks off: with `to_the_end` raising there."""
        if self.whole is not None:
            written = self.whole.value.get(STATES)
            for number, value in enumerate(written if isinstance(written, list) else ()):
                yield State(number, value, None)
            return
        try:
            for item in json_items(self.path, STATES):
                if item.index is not None:
                    yield State(item.index, item.value, item.position)
        except SourceError:
            if to_the_end:
                raise

    def position(self, state: State, *keys: str | int) -> Position:
        """Return the place of a key of a state, or of the state."""
        if state.position is not None or self.whole is None:
            return state.position or Position(self.path)
        start = self._offsets[state.number] if state.number < len(self._offsets) else None
        for length in range(len(keys), -1, -1):
            if not _holds(state.value, keys[:length]):
                continue
            if start is None:
                found = self.whole.locate((STATES, state.number, *keys[:length]))
            elif length:
                found = self.whole.locate(keys[:length], start)
            else:
                found = position_at(self.path, self.whole.text, start)
            if found is not None:
                return found
        return Position(self.path)


def _holds(value: Any, keys: Keys) -> bool:
    for key in keys:
        try:
            value = value[key]
        except (LookupError, TypeError):
            return False
    return True


def read_helm_file(path: Path) -> HelmFile | None:
    """Return the parts of a file that is an object with `adapter_spec`, None for any other JSON.

    A file that breaks off is read as far as it goes where it has a spec. Raises SourceError for one that cannot be
    read at all.
    """
    real = resolved(path)
    try:
        status = real.stat()
        return _read(real, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror}", position=Position(path)) from error


@lru_cache(maxsize=2)
def _read(path: Path, _modified: int, size: int) -> HelmFile | None:
    if size > MAX_WHOLE:
        return _streamed(path)
    text = _decoded(path, path.read_bytes())
    try:
        whole = read_json(path, text)
    except SourceError as error:
        try:
            salvaged = _streamed(path)
        except SourceError:
            salvaged = None
        if salvaged is None or next(salvaged.states(), None) is None:
            raise error from None
        return salvaged
    if not isinstance(whole.value, dict) or "adapter_spec" not in whole.value:
        return None
    states = whole.value.get(STATES, [])
    if not isinstance(states, list):
        raise SourceError(f"{STATES} must be a list", position=whole.locate((STATES,)))
    top = {key: value for key, value in whole.value.items() if key != STATES}
    return HelmFile(path, MappingProxyType(top), whole.is_strict, whole)


def _decoded(path: Path, data: bytes) -> str:
    if data.startswith(_UTF16):
        raise SourceError("the file is UTF-16, and JSON is read as UTF-8", position=Position(path), hint=_SAVE)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line_start = before.rfind(b"\n") + 1
        column = len(before[line_start:].decode("utf-8-sig", "replace")) + 1
        raise SourceError(
            f"the byte 0x{data[error.start]:02x} is no UTF-8",
            position=Position(path, before.count(b"\n") + 1, column),
            hint=_SAVE,
        ) from None


def _streamed(path: Path) -> HelmFile | None:
    """Return a file of which only the keys before the end of the states' beginning are needed now."""
    top: dict[str, Any] = {}
    broken: SourceError | None = None
    size = path.stat().st_size
    try:
        for item in json_items(path, STATES):
            if item.index is None:
                top[item.key] = item.value
            elif "adapter_spec" in top and size > MAX_WHOLE:
                break
    except SourceError as error:
        broken = error
    if "adapter_spec" not in top:
        if broken is not None:
            raise broken
        return None
    return HelmFile(path, MappingProxyType(top), True, None, broken)


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_HEAD).decode("utf-8-sig", "replace")


# -- instances ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """The instance of a state as a doc, with the state's number from 0.

    `split` is the split it is of (None: none written), `split_under_references` whether that stood there.
    """

    number: int
    doc: dict[str, Any]
    split: str | None
    split_under_references: bool = False


def row_of(file: HelmFile, state: State, spec: AdapterSpec) -> Row:
    """Return the instance of a state as a doc; raises SourceError, with its place, for one that cannot be used."""

    def refuse(message: str, *keys: str | int, hint: str | None = None) -> SourceError:
        where = f"{STATES}[{state.number}]"
        return SourceError(f"{where}: {message}", position=file.position(state, *keys), hint=hint)

    value = state.value
    if not isinstance(value, dict):
        raise refuse(f"a request state must be a mapping, not {type(value).__name__}")
    instance = value.get("instance")
    if not isinstance(instance, dict):
        hint = did_you_mean("instance", map(str, value)) if "instance" not in value else None
        raise refuse("`instance` is missing" if instance is None else "`instance` must be a mapping", hint=hint)
    written = instance.get("input")
    given = written if isinstance(written, dict) else {"text": written}
    text, messages = given.get("text", ""), given.get("messages")
    if written is None or not isinstance(text, str):
        message = "`instance.input` is missing" if written is None else "`instance.input.text` must be a text"
        raise refuse(message, "instance", "input", hint='write "input": {"text": "…"}')
    if messages is not None and not _are_messages(messages):
        hint = 'write a list of {"role": "user", "content": "…"}'
        raise refuse("`instance.input.messages` are no messages", "instance", "input", "messages", hint=hint)
    references = instance.get("references")
    if references is None:
        raise refuse(
            "`instance.references` is missing: there is nothing to compare an answer with",
            "instance",
            hint='write "references": [{"output": {"text": "…"}, "tags": ["correct"]}]',
        )
    if not isinstance(references, list):
        raise refuse("`instance.references` must be a list", "instance", "references")
    texts: list[str] = []
    correct: list[int] = []
    split = instance.get("split")
    is_under = False
    for number, reference in enumerate(references):
        keys = ("instance", "references", number)
        output = reference.get("output") if isinstance(reference, dict) else None
        answer = output.get("text", "") if isinstance(output, dict) else output
        if not isinstance(answer, str):
            raise refuse(f"reference {number + 1} has no text `output.text`", *keys)
        tags = reference.get("tags") or []
        if not isinstance(tags, list):
            raise refuse(f"the tags of reference {number + 1} must be a list", *keys, "tags")
        texts.append(answer)
        if "correct" in tags:
            correct.append(number)
        if split is None and isinstance(reference.get("split"), str):
            split, is_under = reference["split"], True
    if split is not None and not isinstance(split, str):
        raise refuse("`instance.split` must be a text", "instance", "split")
    doc: dict[str, Any] = {"input": text, "references": texts, "correct": correct}
    doc["answer"] = texts[correct[0]] if correct else ""
    doc["answer_index"] = correct[0] if correct else -1
    extra = instance.get("extra_data")
    if isinstance(extra, dict) and isinstance(extra.get("chain_of_thought"), str):
        doc["chain_of_thought"] = extra["chain_of_thought"]
    if messages is not None:
        doc["messages"] = messages
    if isinstance(instance.get("id"), str):
        doc["id"] = instance["id"]
    return Row(state.number, labelled(doc, spec), split, is_under)


def labelled(doc: dict[str, Any], spec: AdapterSpec) -> dict[str, Any]:
    """Return a doc of a joint method with what its labels mean, and the label of its answer; others as they are."""
    if not spec.is_joint:
        return doc
    try:
        mapping = {spec.label(index): text for index, text in enumerate(doc["references"])}
        golds = [spec.label(index) for index in doc["correct"]]
    except ValueError:
        return doc  # rendering says why
    shown = golds if spec.multi_label else golds[:1]
    return {**doc, "output_mapping": mapping, "label": ", ".join(shown) or "n/a"}


def _are_messages(messages: Any) -> bool:
    return isinstance(messages, list) and all(
        isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
        for each in messages
    )


def is_train(split: str | None) -> bool:
    """Return whether instances of this split are demonstrations."""
    return split == _TRAIN


def is_evaluated(split: str | None, spec: AdapterSpec) -> bool:
    """Return whether instances of this split are evaluated: valid and test, of those what the spec names."""
    return split in _EVALUATED and (spec.eval_splits is None or split in spec.eval_splits)
