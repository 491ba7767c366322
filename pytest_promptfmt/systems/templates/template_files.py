"""Where chat templates are written: Jinja and JSON files of transformers, metadata of GGUF files."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SourceError, TokenizerError, json_mistake
from pytest_promptfmt.profiles.probe_conversations import conversation_files
from pytest_promptfmt.profiles.template_trial import PLACEHOLDERS, TrialOptions
from pytest_promptfmt.profiles.tokenizer_sources import NAMED_TEMPLATES, find_source

_CONFIG: Final = "tokenizer_config.json"
_MODEL: Final = "config.json"
_GENERATION: Final = "generation_config.json"
_OWN: Final = "chat_template.jinja"
_SCORER: Final = re.compile(rb'"architectures":\s*\[\s*"\w+(?:Classification|RewardModel)"')
"""The architecture of a model that scores texts, in its configuration."""

ANSWERS: Final = ".answers.jsonl"
"""How the name of a recording of answers ends."""
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tekken.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenChatTemplate:
    """One chat template of a file: its name, the tokenizer next to it, and the special tokens it is given.

    `tokenizer` is what `load_tokenizer` takes, None where it is missing; `parser` reads answers back: a
    recording next to the template, else the `response_template` of the tokenizer. The model of a template that
    `is_for_scores` gives a number, as those of rewards do. `added_tokens` are the ids that the configuration of the
    tokenizer gives to tokens, `stop_ids` those at which `generation_config.json` ends an answer.
    """

    name: str
    source: str
    path: Path
    tokenizer: str | None
    special_tokens: Mapping[str, str]
    parser: Mapping[str, Any] | Path | None = None
    is_for_scores: bool = False
    added_tokens: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    stop_ids: frozenset[int] = frozenset()

    def options(self, **given: Any) -> TrialOptions:
        """Return what the template is tried for: what its folder holds, and what is given besides."""
        known = {"is_for_scores": self.is_for_scores, "added_tokens": self.added_tokens, "stop_ids": self.stop_ids}
        return TrialOptions(**{"parser": self.parser, **known, **given})


def templates_of(path: Path) -> tuple[WrittenChatTemplate, ...]:
    """Return the chat templates of a file, none where transformers would not read it; raises SourceError."""
    if path.suffix == ".gguf":
        return _of_gguf(path)
    if path.suffix == ".jinja":
        return (_made(path.stem, _text(path), path, _config_beside(path)),)
    data = _json(path)
    written = data.get("chat_template")
    if path.with_name(_OWN).exists():
        return ()
    config = data if path.name == _CONFIG else _config_beside(path)
    if isinstance(written, str):
        return (_made(path.stem, written, path, config),)
    if isinstance(written, list):
        return tuple(
            _made(str(each["name"]), str(each["template"]), path, config)
            for each in written
            if isinstance(each, dict) and {"name", "template"} <= set(each)
        )
    return ()


def _made(name: str, source: str, path: Path, config: Mapping[str, Any]) -> WrittenChatTemplate:
    tokens = {key: _token(value) for key, value in config.items() if key.endswith("_token") and _token(value)}
    recording, reading = answers_beside(path, name), config.get("response_template")
    return WrittenChatTemplate(
        name=name,
        source=source,
        path=path,
        tokenizer=tokenizer_beside(path),
        special_tokens=tokens if "eos_token" in tokens else {**PLACEHOLDERS, **tokens},
        parser=recording if gate.is_there(recording) else reading if isinstance(reading, dict) else None,
        is_for_scores=_is_for_scores(path.with_name(_MODEL)),
        added_tokens=_added_tokens(config.get("added_tokens_decoder")),
        stop_ids=_stop_ids(path.with_name(_GENERATION)),
    )


def _added_tokens(decoder: Any) -> Mapping[str, int]:
    given = decoder.items() if isinstance(decoder, dict) else ()
    return {_token(value): int(key) for key, value in given if key.isdecimal() and _token(value)}


def _stop_ids(generation: Path) -> frozenset[int]:
    """Return the ids at which a configuration ends an answer, none where it cannot be read."""
    try:
        written = _json(generation).get("eos_token_id") if generation.is_file() else None
    except SourceError:
        return frozenset()
    return frozenset(each for each in (written if isinstance(written, list) else [written]) if isinstance(each, int))


def _is_for_scores(model: Path) -> bool:
    """Return whether the configuration of a model names one that scores; not where it cannot be read."""
    try:
        return model.is_file() and _SCORER.search(gate.read_bytes(model)) is not None
    except OSError:
        return False


def answers_beside(path: Path, name: str) -> Path:
    """Return where the answers of a template of a file are recorded: next to it, under its name."""
    return path.with_name(f"{Path(name).name or path.stem}{ANSWERS}")


def tokenizer_beside(path: Path) -> str | None:
    """Return what `load_tokenizer` takes for the tokenizer in a folder, or in that of a file; None without one."""
    folder = path if path.is_dir() else path.parent
    return str(folder) if any((folder / each).exists() for each in _TOKENIZERS) else None


def files_beside(path: Path) -> list[str] | None:
    """Return the paths of what is read with a template of a folder; None where its tokenizer cannot be found.

    Files that appear in the folder later are not listed: the caller compares the names in it as well.
    """
    found = [
        *(str(path.with_name(each)) for each in (_CONFIG, _MODEL, _GENERATION)),
        *map(str, conversation_files(path.parent)),
    ]
    found += sorted(map(str, path.parent.glob(f"*{ANSWERS}")))
    tokenizer = tokenizer_beside(path)
    if tokenizer is None:
        return found
    try:
        source = find_source(path.parent)
    except TokenizerError:
        return None
    return [*found, f"{path.with_name(NAMED_TEMPLATES)}/", *map(str, source.files)]


def _token(value: Any) -> str:
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def _config_beside(path: Path) -> Mapping[str, Any]:
    config = path.with_name(_CONFIG)
    return _json(config) if config.is_file() else {}


def _text(path: Path) -> str:
    try:
        return gate.read_bytes(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SourceError(f"the chat template cannot be read: {reason}", position=Position(path)) from error


def _json(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise SourceError(
            f"not JSON: {json_mistake(error)}", position=Position(path, error.lineno, error.colno)
        ) from error
    return data if isinstance(data, dict) else {}


def _of_gguf(path: Path) -> tuple[WrittenChatTemplate, ...]:
    metadata = read_gguf(path)
    if metadata is None:
        return ()
    tokens = dict(metadata.special_tokens)
    return tuple(_made(name or path.stem, source, path, tokens) for name, source in metadata.templates.items())


# -- GGUF --------------------------------------------------------------------------------------------------------------

_MAGIC: Final = b"GGUF"
_FORMATS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
_TEXT, _LIST = 8, 9
_MOST_BYTES: Final = 2**26
_MOST_TEXTS: Final = 2**21
_TEMPLATE: Final = "tokenizer.chat_template"
_TOKENIZER: Final = "tokenizer.ggml."
_NAMES: Final[Mapping[str, str]] = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"
}  # fmt: skip
"""The names of transformers for the special tokens of a GGUF file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufMetadata:
    """The templates of a GGUF file by name (empty for the only one), its tokens by id, and its special tokens.

    `adds` maps bos_token and eos_token to whether the tokenizer adds them to a text, where the file states it.
    """

    templates: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    tokens: Sequence[str] = ()
    special_tokens: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    adds: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))


def read_gguf(path: Path) -> GgufMetadata | None:
    """Return the metadata of a GGUF file (version 2 or 3), None for another file; raises SourceError."""
    found: dict[str, Any] = {}
    try:
        with gate.open_file(path) as file:
            if file.read(4) != _MAGIC:
                return None
            found.update(_gguf_pairs(file))
    except (OSError, struct.error, KeyError, ValueError, OverflowError, RecursionError) as error:
        raise SourceError(f"the metadata of this GGUF file cannot be read: {error}", position=Position(path)) from error
    tokens = found.get(f"{_TOKENIZER}tokens")
    tokens = tokens if isinstance(tokens, list) else []
    ids = {name: found.get(f"{_TOKENIZER}{key}_token_id") for key, name in _NAMES.items()}
    adds = {name: found.get(f"{_TOKENIZER}add_{name}") for name in ("bos_token", "eos_token")}
    return GgufMetadata(
        templates={
            key.removeprefix(_TEMPLATE).removeprefix("."): value
            for key, value in found.items()
            if key.startswith(_TEMPLATE) and isinstance(value, str)
        },
        tokens=tokens,
        special_tokens={
            name: tokens[number]
            for name, number in ids.items()
            if isinstance(number, int) and 0 <= number < len(tokens) and tokens[number]
        },
        adds={name: value for name, value in adds.items() if isinstance(value, bool)},
    )


def _gguf_pairs(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yield the keys that are about the tokenizer, with their values."""
    _, _, count = struct.unpack("<IQQ", file.read(20))
    for _ in range(count):
        key = _gguf_text(file)
        kind = struct.unpack("<I", file.read(4))[0]
        value = _gguf_value(file, kind, is_kept=key == f"{_TOKENIZER}tokens")
        if key.startswith("tokenizer."):
            yield key, value


def _gguf_text(file: BinaryIO) -> str:
    length = struct.unpack("<Q", file.read(8))[0]
    if length > _MOST_BYTES:
        raise ValueError(f"a text of {length:,} bytes is too long")
    return file.read(length).decode("utf-8")


def _gguf_value(file: BinaryIO, kind: int, *, is_kept: bool) -> Any:
    """Return a text, a number or a kept list of texts; other lists are skipped."""
    if kind == _TEXT:
        return _gguf_text(file)
    if kind != _LIST:
        return struct.unpack(f"<{_FORMATS[kind]}", file.read(struct.calcsize(f"<{_FORMATS[kind]}")))[0]
    inner, count = struct.unpack("<IQ", file.read(12))
    if inner == _TEXT and is_kept:
        if count > _MOST_TEXTS:
            raise ValueError(f"a list of {count:,} texts is too long")
        return [_gguf_text(file) for _ in range(count)]
    if inner in (_TEXT, _LIST):
        for _ in range(count):
            if inner == _TEXT:
                file.seek(struct.unpack("<Q", file.read(8))[0], 1)
            else:
                _gguf_value(file, inner, is_kept=False)
    else:
        file.seek(count * struct.calcsize(f"<{_FORMATS[inner]}"), 1)
    return None
