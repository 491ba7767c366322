"""Where chat templates are written: Jinja and JSON files of transformers, metadata of GGUF files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SourceError, TokenizerError
from pytest_promptfmt.profiles.tokenizer_sources import NAMED_TEMPLATES, find_source
from pytest_promptfmt.systems.templates.conversations import conversation_files
from pytest_promptfmt.systems.templates.gguf import read_gguf
from pytest_promptfmt.systems.templates.trial import PLACEHOLDERS

_CONFIG: Final = "tokenizer_config.json"
_OWN: Final = "chat_template.jinja"
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tekken.json")


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


def files_beside(path: Path) -> list[str] | None:
    """Return the paths of what is read with a template of a folder; None where its tokenizer cannot be found.

    What appears in the folder is no path here: whoever asks looks at the names in it as well.
    """
    found = [str(path.with_name(_CONFIG)), *map(str, conversation_files(path.parent))]
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
        raise SourceError(f"the chat template cannot be read: {error}", position=Position(path)) from error


def _json(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise SourceError(f"not JSON: {error.msg}", position=Position(path, error.lineno, error.colno)) from error
    return data if isinstance(data, dict) else {}


def _of_gguf(path: Path) -> tuple[WrittenChatTemplate, ...]:
    metadata = read_gguf(path)
    if metadata is None:
        return ()
    tokens = dict(metadata.special_tokens)
    return tuple(_made(name or path.stem, source, path, tokens) for name, source in metadata.templates.items())
