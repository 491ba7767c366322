"""From a user's source to a tokenizer that does what AutoTokenizer does, without transformers where possible.

1. The built-in archetypes are made to be read as they are.
2. A frozen copy for these files and versions is read with only `tokenizers`.
3. Otherwise, if AutoTokenizer would provably use the `tokenizer.json` as it is (tokenizer_json.py), that is read.
4. Otherwise transformers loads it once, in a separate process, and what it built is frozen.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, TokenizerError, json_mistake, kept, raising
from pytest_promptfmt.core.files import hub_cache
from pytest_promptfmt.profiles import frozen_tokenizers
from pytest_promptfmt.profiles.tokenizer import Facts, Tokenizer
from pytest_promptfmt.profiles.tokenizer_json import facts_if_verbatim, refuse_unbounded
from pytest_promptfmt.profiles.tokenizer_sources import MAX_FILE_BYTES, Source, archetype_chat_template, find_source

if TYPE_CHECKING:
    import tokenizers

_DIGEST_DIGITS: Final = 16
_JSON_FILES: Final = ("tokenizer_config.json", "config.json", "special_tokens_map.json", "vocab.json", "tekken.json")
_PATIENCE_SECONDS: Final = 200
"""How long to wait for another process that makes the same tokenizer: more than its own time limit."""

_loaded: dict[tuple[object, ...], Tokenizer | TokenizerError] = {}
"""Tokenizers of this process, or why they do not load, by location, sizes and times of their files, and the cache."""


def load_tokenizer(source: str | Path, *, download: bool = False, cache_dir: Path | None = None) -> Tokenizer:
    """Return a tokenizer with the ids of `AutoTokenizer.from_pretrained(source)`.

    `source` is `archetype:NAME`, a folder, a file (`tokenizer.json`, SentencePiece, tiktoken, tekken, GGUF), a Hugging
    Face id, or `mistral:PATH`. Ids are looked up in the local cache; `download` allows the network. Code of a model
    never runs. `cache_dir` is where converted tokenizers are kept, by default `cache_directory()`. Raises
    TokenizerError.
    """
    found = find_source(source, download=download)
    key = (found.written, found.signature(), cache_dir)
    # To try takes seconds, and each of a template's conversations needs it.
    return kept(_loaded, key, lambda: _load(found, cache_dir))


def is_first_use(source: str | Path, *, cache_dir: Path | None = None) -> bool:
    """Return whether loading the tokenizer converts, or downloads, it first, which may take minutes."""
    try:
        found = find_source(source)
    except TokenizerError:
        return True
    folder = None if found.is_archetype else frozen_tokenizers.frozen_folder(found, found.digest(), cache_dir)
    return not found.is_archetype and (folder is None or not frozen_tokenizers.is_usable(folder))


def _load(source: Source, cache_dir: Path | None) -> Tokenizer:
    digest = source.digest()
    if source.is_archetype:
        facts = _facts_if_verbatim(source)
        assert facts is not None, f"{source.name} cannot be read without conversion"
        template = archetype_chat_template(source.folder.name)
        facts = replace(facts, chat_templates={} if template is None else {"default": template})
        return _tokenizer(source, source.folder / "tokenizer.json", _as_they_are(facts, digest))
    folder = frozen_tokenizers.frozen_folder(source, digest, cache_dir)
    if folder is None:
        return _made(source, digest, None)
    known = _kept(source, folder)
    if known is not None:
        return known
    with frozen_tokenizers.turn(folder, _PATIENCE_SECONDS):
        return _kept(source, folder) or _made(source, digest, folder)


def _kept(source: Source, folder: Path) -> Tokenizer | None:
    known = frozen_tokenizers.read_facts(folder)
    if known is None:
        return None
    try:
        return _of_folder(source, folder, *known)
    except TokenizerError:  # a damaged copy is made again
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _made(source: Source, digest: str, folder: Path | None) -> Tokenizer:
    with tempfile.TemporaryDirectory(prefix="promptfmt-") as scratch:
        made = Path(scratch)
        _make(source, made, digest)
        known = frozen_tokenizers.read_facts(made)
        assert known is not None, f"the files of {source.written} gave no tokenizer"
        try:
            tokenizer = _of_folder(source, made, *known)
        except TokenizerError as error:  # the temporary folder is gone when the message is read
            raise TokenizerError(error.message, position=Position(source.place), hint=error.hint) from error
        if folder is not None:
            frozen_tokenizers.keep(made, folder)
        return tokenizer


def _make(source: Source, made: Path, digest: str) -> None:
    """Write the frozen form of a source: the file as it is where that is proven, else what transformers builds."""
    facts = _facts_if_verbatim(source)
    if facts is None:
        from pytest_promptfmt.profiles.tokenizer_freezing import freeze

        freeze(source, made, digest[:_DIGEST_DIGITS])
        file = made / "tokenizer.json"
        if file.is_file():
            refuse_unbounded(read_json(file), source.place)
        return
    file = source.files[0] if source.layout == "file" else source.folder / "tokenizer.json"
    backend = _read_backend(file)
    (made / "tokenizer.json").write_text(backend.to_str(), "utf-8")
    (made / "facts.json").write_text(
        frozen_tokenizers.facts_as_json(_as_they_are(facts, digest), in_python=False), "utf-8"
    )


def _of_folder(source: Source, folder: Path, facts: Facts, in_python: bool) -> Tokenizer:
    if not in_python:
        return _tokenizer(source, folder / "tokenizer.json", facts)
    from pytest_promptfmt.profiles.tokenizer_freezing import load_in_python

    backend = load_in_python(source)
    return Tokenizer(backend, facts, source=source.written, name=source.name, origin=source.origin)


def _tokenizer(source: Source, file: Path, facts: Facts) -> Tokenizer:
    return Tokenizer(
        _read_backend(file),
        facts,
        source=source.written,
        name=source.name,
        is_archetype=source.is_archetype,
        origin=source.origin,
    )


def _as_they_are(facts: Facts, digest: str) -> Facts:
    return replace(
        facts, loader=f"tokenizers {frozen_tokenizers.installed('tokenizers')}", digest=digest[:_DIGEST_DIGITS]
    )


def _facts_if_verbatim(source: Source) -> Facts | None:
    if source.layout == "folder":
        if "tokenizer.json" not in source.has:
            for name in filter(source.has.__contains__, _JSON_FILES):
                read_json(source.folder / name)  # raises for a broken one
            return None
        template = source.folder / "chat_template.jinja"
        return facts_if_verbatim(
            source.has | {file.name for file in source.files},
            _read_tokenizer_json(source.folder / "tokenizer.json"),
            read_json(source.folder / "tokenizer_config.json") if "tokenizer_config.json" in source.has else {},
            _read_template(template) if template.name in source.has else None,
        )
    if source.layout == "file" and source.files[0].suffix == ".json":
        if "tekken" in source.files[0].name:
            return None
        return facts_if_verbatim(frozenset({"tokenizer.json"}), _read_tokenizer_json(source.files[0]), {}, None)
    return None


def _read_template(file: Path) -> str:
    try:
        return _content(file).decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"not UTF-8 at byte {error.start}", position=Position(file)) from error


def _read_tokenizer_json(file: Path) -> dict[str, Any]:
    content = read_json(file)
    if not isinstance(content.get("model"), dict) or not isinstance(content.get("added_tokens"), list):
        raise TokenizerError(
            "not a tokenizer of the library tokenizers: 'model' or 'added_tokens' is missing",
            position=Position(file),
        )
    refuse_unbounded(content, file)
    return content


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raises TokenizerError with line and column for anything else."""
    try:
        with raising(TokenizerError, "cannot be read", Position(file)):
            content = json.loads(_content(file))
    except json.JSONDecodeError as error:
        ended = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated")
        raise TokenizerError(
            f"not JSON: {json_mistake(error)}",
            position=Position(file, error.lineno, error.colno),
            hint="the file ends too early: copy or download the file again" if ended else None,
        ) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, or a number of thousands of digits
        raise TokenizerError(f"not JSON: {error}", position=Position(file)) from error
    if not isinstance(content, dict):
        raise TokenizerError(f"holds a {type(content).__name__}, not an object", position=Position(file))
    return content


def _content(file: Path) -> bytes:
    """Return what is in a file of a source, which was found already, or of its frozen form."""
    return gate.read_bytes(file, limit=MAX_FILE_BYTES, also=(file.parent.resolve(), *hub_cache()))


def _read_backend(file: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_file(str(file))
    except BaseException as error:  # a panic in Rust is not an Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise TokenizerError(f"tokenizers cannot load this: {error}", position=Position(file)) from error
    backend.no_padding()
    backend.no_truncation()
    return backend
