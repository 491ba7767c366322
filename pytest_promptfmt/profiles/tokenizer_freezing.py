"""Tokenizers that need transformers: built once, in a separate process, and kept; or wrapped where they are Python.

The process has no stdin, no network, runs no code of models, and is stopped when it takes too long; nothing of
transformers or torch is imported into the process that runs the tests. Only tokenizers that transformers runs in Python
(ByT5, Marian, mistral-common) cannot be frozen: for them it is imported in every run that uses one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from pytest_promptfmt.core.errors import Position, TokenizerBudgetError, TokenizerError
from pytest_promptfmt.core.limits import TOKENIZERS
from pytest_promptfmt.profiles import frozen_tokenizers
from pytest_promptfmt.profiles.tokenizer import Facts, PythonBackend, Tokenizer
from pytest_promptfmt.profiles.tokenizer_sources import Source

TIMEOUT_SECONDS: Final = 900

PROCESSOR_SECONDS: Final = 300
"""The processor time of one load, where the system limits it."""

_USUAL_SECONDS: Final = 60
_ERROR: Final = "error.json"
_EXTRAS: Final = {
    "sentencepiece": "sentencepiece",
    "protobuf": "sentencepiece",
    "mistral-common": "mistral",
    "tiktoken": "tiktoken",
    "torch": "gguf",
    "gguf": "gguf",
}
"""Packages that transformers may need, and the extra of ours that installs them."""

# What the frozen copy must encode as transformers does. Whitespace, text after special tokens, and forms of letters are
# where tokenizers of the same vocabulary differ.
_PROBES: Final = (
    "", "A", " A", "  A", "\nA", "\tA", "A ", "A\n", "(A", " (A)", "Answer: A", "Answer:", "Answer: ", "Answer:\n",
    "Question: Why?\nA. one\nB. two\n\nAnswer:", " True", "true", "12", " 1234", "3.14 x 10^5", "don't . x", "a  b",
    "a \n b", "a\r\nb", "caf\u00e9 cafe\u0301", "\ufb01ne \u00bd \uff21", "\u4f60\u597d", "\U0001f600",
    "\u200ba\u00a0b", "{x} ~ \\n", "def f(x):\n    return x\n", "\u00dcber stra\u00dfe", "\u0391\u0392",
    "A" * 40, "user@example.org",
)  # fmt: skip


def freeze(source: Source, made: Path, digest: str) -> None:
    """Write the frozen form of a source into the folder `made`; raises TokenizerError when transformers cannot.

    Raises TokenizerBudgetError if others took all the processor time that a run has for those that fail.
    """
    if TOKENIZERS.is_spent:
        raise TokenizerBudgetError(
            "the tokenizer was not loaded, because loading others already took "
            f"more than {TOKENIZERS.seconds:g} s in this run",
            position=Position(source.place),
            hint="fix or remove the tokenizers that fail. The others are cached for later runs",
        )
    before, has_failed = _seconds_of_children(), True
    try:
        _freeze_in_process(source, made, digest)
        has_failed = False
    finally:
        used = _seconds_of_children() - before
        TOKENIZERS.spend(used if has_failed else max(0.0, used - _USUAL_SECONDS))


def _seconds_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _freeze_in_process(source: Source, made: Path, digest: str) -> None:
    if frozen_tokenizers.installed("transformers") is None:
        raise _error(
            source,
            "loading this tokenizer needs the package transformers, which is not installed",
            hint="pip install 'pytest-promptfmt[hf]'. A folder with only a tokenizer.json does not need it",
        )
    with tempfile.TemporaryDirectory(prefix="promptfmt-") as scratch:
        raw = _raw_file(source)
        request = {**arguments(source, Path(scratch)), "made": str(made), "digest": digest, "raw": raw and str(raw)}
        package_root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        try:
            run = subprocess.run(
                [sys.executable, "-P", "-m", __name__, json.dumps(request)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **_quiet_and_offline(), "PYTHONPATH": path},
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _error(source, f"transformers did not load the tokenizer within {TIMEOUT_SECONDS} s") from error
    if (made / _ERROR).is_file():
        raise explained(source, **json.loads((made / _ERROR).read_text("utf-8")))
    if run.returncode or not frozen_tokenizers.is_usable(made):
        last = run.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise _error(source, f"transformers crashed on the tokenizer (status {run.returncode}): {' '.join(last)}")


def arguments(source: Source, scratch: Path) -> dict[str, Any]:
    """Return the keywords for `from_transformers`; a single file is put into the folder `scratch`."""
    file = source.files[0]
    # Offline, transformers insists on the config.json of an id; online it would learn that it is missing.
    if source.hub_id is not None and "config.json" in source.has:
        return {"location": source.hub_id, "revision": source.revision}
    if source.layout == "folder":
        return {"location": str(source.folder)}
    if source.layout == "gguf":  # gigabytes of weights, so no copy; the files next to it are another tokenizer's
        (scratch / file.name).symlink_to(file)
        return {"location": str(scratch), "gguf_file": file.name}
    shutil.copyfile(file, scratch / (file.name if source.layout == "mistral" else _expected_name(file)))
    return {"location": str(scratch), "mistral_format": source.layout == "mistral"}


def _raw_file(source: Source) -> Path | None:
    """Return the `tokenizer.json` of a source, the only file that other engines read; None for sources without."""
    if source.layout == "folder" and "tokenizer.json" in source.has:
        return source.folder / "tokenizer.json"
    file = source.files[0]
    return file if source.layout == "file" and _expected_name(file) == "tokenizer.json" else None


def _expected_name(file: Path) -> str:
    """Return the name under which transformers looks for a file of this kind."""
    if file.suffix == ".json":
        return "tekken.json" if "tekken" in file.name else "tokenizer.json"
    return "tiktoken.model" if file.suffix == ".tiktoken" else "tokenizer.model"


def _quiet_and_offline() -> dict[str, str]:
    from huggingface_hub.constants import HF_HUB_CACHE

    return {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": HF_HUB_CACHE,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONIOENCODING": "utf-8",
    }


def explained(source: Source, kind: str, message: str, lacks: str = "") -> TokenizerError:
    """Return the error for what transformers raised, with what to do about it where that is known.

    `lacks` names the missing files that the class of the tokenizer reads.
    """
    if "trust_remote_code" in message:
        return _error(
            source,
            "this tokenizer needs Python code of the model, but promptfmt never runs such code",
            hint="if you trust the code, save the tokenizer as tokenizer.json; otherwise use an archetype",
        )
    for package, extra in _EXTRAS.items():
        if frozen_tokenizers.installed(package) is None and _is_asked_for(package, source, message):
            return _error(
                source,
                f"loading this tokenizer needs the package {package}, which is not installed",
                hint=f"pip install 'pytest-promptfmt[{extra}]'",
            )
    hint = f"missing files: {lacks}" if lacks else None
    if message.startswith("Couldn't instantiate the backend tokenizer"):  # a list of three ways would follow
        return _error(source, "transformers finds no vocabulary in the tokenizer", hint)
    if {"tokenizer.json", "tokenizer_config.json"} <= source.has:
        separate = "copy only the tokenizer.json into a folder: promptfmt can read it without transformers"
        hint = f"{hint}; {separate}" if hint else separate
    return _error(source, f"transformers cannot load the tokenizer: {kind}: {message}", hint)


def _is_asked_for(package: str, source: Source, message: str) -> bool:
    if package in ("torch", "gguf"):  # the message depends on which of the two is missing, and on other packages
        return source.layout == "gguf"
    if package in message.lower().replace("_", "-"):
        return True
    if package == "mistral-common" and source.layout == "mistral":  # transformers fails on a name it did not import
        return True
    # Without SentencePiece, transformers takes its model for a tiktoken file, and its error is about that.
    return package in ("sentencepiece", "protobuf") and any(file.suffix == ".model" for file in source.files)


def _error(source: Source, message: str, hint: str | None = None) -> TokenizerError:
    return TokenizerError(message, position=Position(source.place), hint=hint)


def from_transformers(
    location: str,
    *,
    revision: str | None = None,
    gguf_file: str | None = None,
    mistral_format: bool = False,
) -> Any:
    """Return the tokenizer that AutoTokenizer makes, without network and without code of models."""
    with patch.dict(os.environ, TRANSFORMERS_NO_ADVISORY_WARNINGS="1"):  # that torch is missing
        from transformers import AutoTokenizer
    if mistral_format:  # AutoTokenizer itself would only take tekken.json
        from transformers.tokenization_mistral_common import MistralCommonBackend

        return MistralCommonBackend.from_pretrained(location, local_files_only=True)
    given = {"revision": revision, "gguf_file": gguf_file}
    return AutoTokenizer.from_pretrained(
        location,
        trust_remote_code=False,
        local_files_only=True,
        **{key: value for key, value in given.items() if value is not None},
    )


def facts_of(loaded: Any, digest: str, *, in_python: bool, raw_ids: Mapping[str, Sequence[int]]) -> Facts:
    """Return what a tokenizer of transformers knows beyond its backend."""
    cleans_up = not in_python and bool(loaded.clean_up_tokenization_spaces)
    if cleans_up and type(loaded.backend_tokenizer.model).__name__ == "BPE":
        cleans_up = bool(
            getattr(loaded, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False)
        )
    templates = getattr(loaded, "chat_template", None) or {}
    kind = type(loaded).__name__
    loader = f"transformers {frozen_tokenizers.installed('transformers')} ({kind}{', Python' if in_python else ''})"
    return Facts(
        class_name=kind,
        loader=loader if in_python else f"{loader}, tokenizers {frozen_tokenizers.installed('tokenizers')}",
        digest=digest,
        special_tokens={key: str(token) for key, token in loaded.special_tokens_map.items() if isinstance(token, str)},
        extra_special_tokens=tuple(str(token) for token in loaded.all_special_tokens),
        chat_templates=templates if isinstance(templates, dict) else {"default": templates},
        cleans_up=cleans_up,
        raw_ids=raw_ids,
    )


def _probes(loaded: Any) -> tuple[str, ...]:
    specials = [f"{first} x{second} {first}\n" for first, second in pairwise([*loaded.all_special_tokens, "y"])]
    return (*_PROBES, *specials[:50])


def _encodes_alike(loaded: Any, copy: Tokenizer) -> bool:
    added = [f"a{token.content} b {token.content}c" for token in copy.added_tokens.values()][:50]
    return all(
        tuple(loaded(text, add_special_tokens=flag)["input_ids"]) == copy.ids(text, add_special_tokens=flag)
        for text in (*_probes(loaded), *added)
        for flag in (True, False)
    )


def _raw_ids(loaded: Any, file: str | None) -> dict[str, list[int]]:
    """Return the texts that a `tokenizer.json` encodes differently when only it is read, with the ids it gives."""
    if file is None:
        return {}
    from tokenizers import Tokenizer as RawTokenizer

    try:
        raw = RawTokenizer.from_file(file)
    except BaseException:  # a panic in Rust is not an Exception; other engines cannot read the file either
        return {}
    raw.no_padding()
    raw.no_truncation()
    given = {text: raw.encode(text).ids for text in _probes(loaded)}
    return {text: ids for text, ids in given.items() if loaded(text)["input_ids"] != ids}


def _freeze_here(made: Path, digest: str, raw: str | None, **where: Any) -> None:
    """Write the frozen form into a folder; runs in the subprocess."""
    loaded = from_transformers(**where)
    if not loaded("Answer: A", add_special_tokens=False)["input_ids"]:
        raise ValueError("the vocabulary is empty")  # some classes load without their files
    backend = getattr(loaded, "backend_tokenizer", None)
    in_python = backend is None
    raw_ids = _raw_ids(loaded, raw)
    if backend is not None:
        backend.no_padding()
        backend.no_truncation()
        backend.save(str(made / "tokenizer.json"), pretty=False)
        copy = Tokenizer(
            type(backend).from_file(str(made / "tokenizer.json")),
            facts_of(loaded, digest, in_python=False, raw_ids=raw_ids),
            source=where["location"],
            name="copy",
        )
        in_python = not _encodes_alike(loaded, copy)  # a class that changes the text before or the ids after
    facts = facts_of(loaded, digest, in_python=in_python, raw_ids=raw_ids)
    (made / "facts.json").write_text(frozen_tokenizers.facts_as_json(facts, in_python=in_python), "utf-8")


def _files_lacking(location: str) -> str:
    """Return the vocabulary files that the class declared in a folder would read, and the folder does not have."""
    with suppress(Exception):
        from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

        declared = json.loads((Path(location) / "tokenizer_config.json").read_text("utf-8"))["tokenizer_class"]
        names = getattr(tokenizer_class_from_name(declared), "vocab_files_names", {})
        return ", ".join(name for name in names.values() if not (Path(location) / name).exists())
    return ""


def load_in_python(source: Source) -> PythonBackend:
    """Return the tokenizer that transformers makes of a source; raises TokenizerError."""
    with tempfile.TemporaryDirectory(prefix="promptfmt-") as scratch:
        where = arguments(source, Path(scratch))
        if source.hub_id is not None:  # the folder asks no network for anything
            where = {"location": str(source.folder)}
        try:
            return PythonBackend(from_transformers(**where))
        except Exception as error:
            raise explained(source, type(error).__name__, str(error)) from error


def main() -> None:
    """Freeze the tokenizer that the first argument describes; an error goes to a file, for the parent to report."""
    with suppress(ImportError, ValueError, OSError):  # a lower limit may be set, or none be possible
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    request = json.loads(sys.argv[1])
    made = Path(request.pop("made"))
    try:
        _freeze_here(made, **request)
    except BaseException as error:  # a panic in Rust is not an Exception
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = " ".join(lines) if "trust_remote_code" in str(error) else " ".join(lines[:3])
        problem = {"kind": type(error).__name__, "message": message, "lacks": _files_lacking(request["location"])}
        (made / _ERROR).write_text(json.dumps(problem), "utf-8")


if __name__ == "__main__":
    main()
