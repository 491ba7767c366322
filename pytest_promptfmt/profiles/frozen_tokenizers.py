"""Tokenizers as transformers built them, kept on disk: one folder per content and versions.

A folder holds a `tokenizer.json` that needs no further knowledge, and the facts that AutoTokenizer knows in addition.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.files import cache_directory, private_directory
from pytest_promptfmt.profiles.tokenizer import Facts
from pytest_promptfmt.profiles.tokenizer_sources import Source

FORMAT: Final = 2
"""Incremented when frozen folders of an earlier version of this package must not be read any more."""

# What AutoTokenizer builds depends on whether they are installed, and in which version.
_PACKAGES: Final = ("transformers", "tokenizers", "sentencepiece", "protobuf", "tiktoken", "mistral-common", "gguf")


def installed(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def frozen_folder(source: Source, digest: str, cache: Path | None) -> Path | None:
    """Return where the frozen form of a source is, or would be, for the installed versions.

    None where nothing can be kept (see `cache_directory`).
    """
    folder = private_directory("tokenizers", cache or cache_directory())
    if folder is None:
        return None
    parts = [f"format {FORMAT}", source.layout, source.hub_id or "", source.files[0].name, digest]
    parts += [f"{package} {installed(package)}" for package in _PACKAGES]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return folder / key


def read_facts(folder: Path) -> tuple[Facts, bool] | None:
    """Return the facts of a frozen tokenizer and whether it is written in Python; None when there is no usable one."""
    try:
        stored = json.loads((folder / "facts.json").read_text("utf-8"))
        in_python = stored.pop("in_python")
        facts = Facts(**{**stored, "extra_special_tokens": tuple(stored["extra_special_tokens"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return (facts, in_python) if in_python or (folder / "tokenizer.json").is_file() else None


def facts_as_json(facts: Facts, *, in_python: bool) -> str:
    """Return what `read_facts` reads."""
    plain: dict[str, Any] = {field.name: getattr(facts, field.name) for field in fields(facts)}
    plain |= {key: dict(value) for key, value in plain.items() if hasattr(value, "keys")}
    return json.dumps({**plain, "in_python": in_python}, indent=1)


@contextmanager
def turn(folder: Path, patience: float) -> Iterator[None]:
    """Wait while another process makes the same frozen tokenizer, so that the workers of one run make it once.

    Waiting ends when the tokenizer exists, the other process is done, or its marker is older than `patience` seconds.
    """
    mark = folder.with_suffix(".making")
    has_marked = False
    while not has_marked and not is_usable(folder):
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            has_marked = True
        except FileExistsError:
            with suppress(FileNotFoundError):
                if time.time() - mark.stat().st_mtime > patience:
                    mark.unlink()
            time.sleep(0.05)
        except OSError:
            break
    try:
        yield
    finally:
        if has_marked:
            mark.unlink(missing_ok=True)


def keep(made: Path, folder: Path) -> None:
    """Copy a complete folder to its place atomically, if it can be written and no other process was faster."""
    with suppress(OSError):
        staged = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
        try:
            for file in made.iterdir():
                shutil.copyfile(file, staged / file.name)
            staged.rename(folder)
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def is_usable(folder: Path) -> bool:
    """Return whether a folder holds a frozen tokenizer."""
    return read_facts(folder) is not None
