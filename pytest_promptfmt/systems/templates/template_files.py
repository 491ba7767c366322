"""Where chat templates are written: Jinja and JSON files of transformers, metadata of GGUF files."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SourceError
from pytest_promptfmt.systems.templates.trial import PLACEHOLDERS

_CONFIG: Final = "tokenizer_config.json"
_OWN: Final = "chat_template.jinja"
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tekken.json")
_MAGIC: Final = b"GGUF"
_SIZES: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
_TEXT, _LIST = 8, 9
_MOST: Final = 2**26


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenChatTemplate:
    """One chat template of a file: its name, the tokenizer beside it, and the special tokens it is given.

    `tokenizer` is what `load_tokenizer` takes, None where there is none.
    """

    name: str
    source: str
    path: Path
    tokenizer: str | None
    special_tokens: Mapping[str, str]


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
    return WrittenChatTemplate(
        name=name,
        source=source,
        path=path,
        tokenizer=tokenizer_beside(path),
        special_tokens=tokens if "eos_token" in tokens else {**PLACEHOLDERS, **tokens},
    )


def tokenizer_beside(path: Path) -> str | None:
    """Return what `load_tokenizer` takes for the tokenizer in a folder, or in that of a file; None without one."""
    folder = path if path.is_dir() else path.parent
    return str(folder) if any((folder / each).exists() for each in _TOKENIZERS) else None


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
        raise SourceError(f"the chat template cannot be read: {error}", position=Position(path)) from error


def _json(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise SourceError(f"not JSON: {error.msg}", position=Position(path, error.lineno, error.colno)) from error
    return data if isinstance(data, dict) else {}


def _of_gguf(path: Path) -> tuple[WrittenChatTemplate, ...]:
    """Return the templates in the metadata of a GGUF file (version 2 or 3); weights and vocabulary are not read."""
    found: dict[str, str] = {}
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                return ()
            _, _, count = struct.unpack("<IQQ", file.read(20))
            for _ in range(count):
                key = _gguf_text(file)
                kind = struct.unpack("<I", file.read(4))[0]
                value = _gguf_value(file, kind)
                if key.startswith("tokenizer.chat_template") and isinstance(value, str):
                    found[key.removeprefix("tokenizer.chat_template").removeprefix(".") or path.stem] = value
    except (OSError, struct.error, KeyError, UnicodeDecodeError, ValueError) as error:
        raise SourceError(f"the metadata of this GGUF file cannot be read: {error}", position=Position(path)) from error
    return tuple(_made(name, source, path, {}) for name, source in found.items())


def _gguf_text(file: BinaryIO) -> str:
    length = struct.unpack("<Q", file.read(8))[0]
    if length > _MOST:
        raise ValueError(f"a text of {length:,} bytes")
    return file.read(length).decode("utf-8")


def _gguf_value(file: BinaryIO, kind: int) -> str | None:
    """Return a text; skip everything else."""
    if kind == _TEXT:
        return _gguf_text(file)
    if kind != _LIST:
        file.seek(struct.calcsize(f"<{_SIZES[kind]}"), 1)
        return None
    inner, count = struct.unpack("<IQ", file.read(12))
    if inner in (_TEXT, _LIST):
        for _ in range(count):
            if inner == _TEXT:
                file.seek(struct.unpack("<Q", file.read(8))[0], 1)
            else:
                _gguf_value(file, inner)
    else:
        file.seek(count * struct.calcsize(f"<{_SIZES[inner]}"), 1)
    return None
