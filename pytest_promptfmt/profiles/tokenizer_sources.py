"""Where a tokenizer is: from what the user wrote to the files that decide what it does.

A built-in archetype, a folder, a single file, or a Hugging Face id whose files are in the local cache. Nothing is
loaded here.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, TokenizerError, did_you_mean, display_path, raising
from pytest_promptfmt.core.files import hub_cache
from pytest_promptfmt.core.limits import online
from pytest_promptfmt.core.profile import ARCHETYPE_PREFIX, MISTRAL_PREFIX, TEMPLATE_ARCHETYPES, builtin_template

MAX_FILE_BYTES: Final = 100 * 1024 * 1024
"""The largest tokenizer file that is read. The largest real ones have about 40 MB."""

Layout = Literal["folder", "file", "gguf", "mistral"]

# AutoTokenizer looks for these names in a folder, transformers 5.23.
_FILE_NAMES: Final = frozenset(
    {
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json",
        "chat_template.jinja", "tekken.json", "tokenizer.model", "tiktoken.model", "spiece.model", "spm.model",
        "sentencepiece.bpe.model", "sentencepiece.model", "vocab.json", "vocab.txt", "merges.txt", "source.spm",
        "target.spm", "bpe.codes", "emoji.json", "vocab-src.json", "vocab-tgt.json",
    }
)  # fmt: skip
_SUFFIXES: Final = frozenset({".json", ".model", ".txt", ".jinja", ".spm", ".tiktoken", ".codes", ".v1", ".v2", ".v3"})
_OF_FILES: Final = _SUFFIXES | {".gguf"}
NAMED_TEMPLATES: Final = "additional_chat_templates"
"""The folder of a tokenizer's further chat templates, next to its files."""

_OTHER_FILE_BYTES: Final = 32 * 1024 * 1024
"""Files that AutoTokenizer rarely uses count only below this size: such folders contain data sets too."""

_OF_MISTRAL: Final = re.compile(r"tekken.*\.json\Z|\.model\.v")
_HUB_ID: Final = re.compile(r"(?P<id>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A tokenizer that has been found, not yet loaded.

    `location` is what transformers is given: a folder, or a Hugging Face id with `revision`. `folder` holds the
    `files`, those whose content decides what the tokenizer does. With the layout `file`, `files` is only that one.
    """

    written: str
    name: str
    layout: Layout
    folder: Path
    files: tuple[Path, ...]
    hub_id: str | None = None
    revision: str | None = None
    is_archetype: bool = False

    @property
    def has(self) -> frozenset[str]:
        """The names of the files, without those of the named templates."""
        return frozenset(file.name for file in self.files if file.parent == self.folder)

    @property
    def origin(self) -> str:
        """The repository with the commit, for one of the hub; else empty."""
        return f"{self.hub_id}@{self.revision}" if self.hub_id is not None else ""

    @property
    def place(self) -> Path:
        """The path for messages about it: its file, or its folder where several files decide.

        Of the working directory it is a file, as a message that begins with `.` names nothing.
        """
        if self.layout == "folder" and self.folder.resolve() != Path.cwd():
            return self.folder
        return next((file for file in self.files if file.name.startswith("tokenizer")), self.files[0])

    def digest(self) -> str:
        """Return the SHA-256 of names and contents of the files, in hexadecimal digits."""
        total = hashlib.sha256()
        for file in self.files:
            total.update(f"{file.relative_to(self.folder).as_posix()}\0".encode())
            total.update(_file_digest(file, whole=self.layout != "gguf"))
        return total.hexdigest()

    def signature(self) -> tuple[object, ...]:
        """Return sizes and times of the files: a cheap way to see whether they changed."""
        stats = ((file, file.stat()) for file in self.files)
        return (self.layout, self.folder, *((file, at.st_size, at.st_mtime_ns) for file, at in stats))


def find_source(written: str | Path, *, download: bool = False) -> Source:
    """Return the source of a tokenizer: `archetype:NAME`, a path, or a Hugging Face id.

    `mistral:PATH` means a folder or file of mistral-common. Ids are looked up in the local cache; the network is used
    with `download` only. Raises TokenizerError with a did-you-mean.
    """
    text = os.fspath(written)
    if not text.strip():
        raise TokenizerError("empty tokenizer name", hint="give a folder, a file, archetype:NAME or a Hugging Face id")
    try:
        return _find(text, isinstance(written, Path), download)
    except (OSError, RuntimeError, ValueError) as error:  # no permission, a name too long, an unknown ~user
        reason = getattr(error, "strerror", None) or str(error)
        raise TokenizerError(f"cannot look up the tokenizer {text[:200]!r}: {reason}") from error


def _find(text: str, is_path: bool, download: bool) -> Source:
    if text.startswith(ARCHETYPE_PREFIX):
        return _of_folder(text, text, archetype_folder(text.removeprefix(ARCHETYPE_PREFIX)), is_archetype=True)
    if text.startswith(MISTRAL_PREFIX):
        return _of_mistral(text)
    reason = gate.refusal_of_name(text) if not is_path else None
    if reason is not None:
        raise TokenizerError(f"the tokenizer {text[:200]!r} cannot be read: {reason}")
    path = Path(text).expanduser()
    if path.is_dir():
        return _of_folder(text, path.resolve().name, path.resolve())
    if gate.is_there(path):
        return _of_file(text, path.resolve())
    hub_id = _HUB_ID.fullmatch(text)
    if is_path or hub_id is None or text.startswith((".", "~")) or path.suffix in _OF_FILES or path.is_absolute():
        raise TokenizerError(f"there is no tokenizer at {display_path(path)}", hint=_did_you_mean_path(path))
    return _of_hub(text, hub_id["id"], hub_id["revision"], download)


def _of_folder(written: str, name: str, folder: Path, **more: object) -> Source:
    files = tuple(sorted(_deciding_files(folder)))
    source = Source(written=written, name=name, layout="folder", folder=folder, files=files, **more)  # type: ignore[arg-type]
    if not (source.has & _FILE_NAMES) and not any(".model" in file or ".tiktoken" in file for file in source.has):
        raise TokenizerError(
            f"there are no tokenizer files in {display_path(folder)}",
            hint="a tokenizer's folder has a tokenizer.json, tokenizer_config.json, tokenizer.model or tekken.json",
        )
    return source


def _of_file(written: str, file: Path) -> Source:
    _check_file(file)
    if file.suffix == ".gguf":
        return Source(written=written, name=file.stem, layout="gguf", folder=file.parent, files=(file,))
    if file.name in _FILE_NAMES and (file.parent / "tokenizer_config.json").is_file():
        # The files next to it decide what AutoTokenizer makes of this one, so the folder is meant.
        return _of_folder(written, file.parent.name, file.parent)
    name = file.parent.name if file.name in _FILE_NAMES else file.name
    return Source(written=written, name=name, layout="file", folder=file.parent, files=(file,))


def _of_mistral(written: str) -> Source:
    path = Path(written.removeprefix(MISTRAL_PREFIX)).expanduser()
    if not path.exists():
        raise TokenizerError(f"there is no tokenizer at {display_path(path)}", hint=_did_you_mean_path(path))
    path = path.resolve()
    folder = path if path.is_dir() else path.parent
    names = [path] if path.is_file() else [file for file in sorted(path.iterdir()) if _OF_MISTRAL.search(file.name)]
    if not names:
        raise TokenizerError(
            f"there is no tokenizer of mistral-common in {display_path(folder)}",
            hint="mistral-common needs a tekken.json, or a tokenizer.model.v1 to .v7",
        )
    _check_file(names[0])
    return Source(written=written, name=folder.name, layout="mistral", folder=folder, files=(names[0],))


def _of_hub(written: str, hub_id: str, revision: str | None, download: bool) -> Source:
    if download:
        download_tokenizer(hub_id, revision)
    repository = cached_repository(hub_id)
    commit = cached_commit(repository, revision or "main")
    folder = repository / "snapshots" / commit if commit else None
    if folder is None or not folder.is_dir():
        home = repository.parent
        raise TokenizerError(
            f"{written!r} is neither a path nor a tokenizer in the Hugging Face cache ({display_path(home)})",
            hint=did_you_mean(written, cached_hub_ids())
            or _did_you_mean_archetype(written)
            or "to download it, use --promptfmt-download. Without a network, name a local folder with its files",
        )
    return _of_folder(written, hub_id, folder, hub_id=hub_id, revision=commit)


def download_tokenizer(hub_id: str, revision: str | None) -> Path:
    """Return the folder in the cache with a repository's files that decide about tokens and templates, downloaded now.

    Raises TokenizerError.
    """
    patterns = [*sorted(_FILE_NAMES), "*.model", "*.model.v*", "*.tiktoken", f"{NAMED_TEMPLATES}/*.jinja"]
    return download_files(hub_id, revision, patterns)


def _deciding_files(folder: Path) -> Iterator[Path]:
    templates = folder / NAMED_TEMPLATES
    _require_allowed(folder / "-")
    entries = [*folder.iterdir(), *(templates.iterdir() if templates.is_dir() else ())]
    for entry in entries:
        if not entry.is_file():
            if entry.name in _FILE_NAMES and gate.is_there(entry) and not entry.is_dir():
                _check_file(entry)
        elif entry.name in _FILE_NAMES or ".model.v" in entry.name:
            _check_file(entry)
            yield entry
        elif entry.suffix in _SUFFIXES and entry.stat().st_size <= _OTHER_FILE_BYTES:
            _require_allowed(entry)
            yield entry


def _require_allowed(file: Path) -> None:
    with raising(TokenizerError, "cannot be read", Position(file)):
        gate.allowed(file, also=hub_cache())


def _check_file(file: Path) -> None:
    try:
        at = gate.status_of(file, also=hub_cache())
    except OSError as error:
        raise TokenizerError(f"{error.strerror or error}", position=Position(file)) from error
    if at.st_size > MAX_FILE_BYTES and file.suffix != ".gguf":
        raise TokenizerError(
            f"a file of {at.st_size / 1e6:,.0f} MB is too large for a tokenizer; the limit is "
            f"{MAX_FILE_BYTES / 1e6:,.0f} MB",
            position=Position(file),
        )
    if at.st_size == 0:
        raise TokenizerError("the file is empty", position=Position(file), hint="copy or download the file again")


def _file_digest(file: Path, *, whole: bool) -> bytes:
    """Return the SHA-256 of a file; of a GGUF file, whose tail are weights, of the first 64 MB, size and time."""
    with raising(TokenizerError, "cannot be read", Position(file)), gate.open_file(file, also=hub_cache()) as opened:
        if whole:
            return hashlib.file_digest(opened, "sha256").digest()
        at = os.fstat(opened.fileno())
        head = hashlib.sha256(opened.read(64 * 1024 * 1024))
        head.update(f"{at.st_size} {at.st_mtime_ns}".encode())
        return head.digest()


def _did_you_mean_path(path: Path) -> str | None:
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        path, parent = parent, parent.parent
    close = did_you_mean(path.name, gate.names_in(parent))
    return close or _did_you_mean_archetype(path.name)


def _did_you_mean_archetype(name: str) -> str | None:
    bare = name.rpartition(":")[2]
    named = [ARCHETYPE_PREFIX + archetype for archetype in ARCHETYPES]
    return did_you_mean(ARCHETYPE_PREFIX + bare, named) if did_you_mean(bare, ARCHETYPES) is not None else None


# -- archetypes ------------------------------------------------------------------------------------------------------

ARCHETYPES: Final[tuple[str, ...]] = (
    *("bytelevel-gpt2", "bytelevel-llama3", "bytelevel-qwen", "sentencepiece-gemma", "sentencepiece-llama2"),
    *("sentencepiece-llama2-legacy", "unigram-t5", "wordpiece-bert"),
)


def archetype_folder(name: str) -> Path:
    """Return the folder of the archetype of that name; raises TokenizerError with a did-you-mean for another name."""
    if name not in ARCHETYPES:
        raise TokenizerError(
            f"unknown tokenizer archetype {name!r}; known: {', '.join(ARCHETYPES)}",
            hint=did_you_mean(name, ARCHETYPES),
        )
    return Path(__file__).parent.parent / "data" / "tokenizers" / name


def archetype_chat_template(name: str) -> str | None:
    """Return the chat template of an archetype's family, written for this project; None for families without."""
    templates = (template for template, (archetype, *_) in TEMPLATE_ARCHETYPES.items() if archetype == name)
    return next(map(builtin_template, templates), None)


# -- the Hugging Face hub and its local cache ------------------------------------------------------------------------


def cached_hub_ids() -> list[str]:
    """Return the Hugging Face ids of the models in the local cache."""
    home = _home()
    if not home.is_dir():
        return []
    names = (entry.name for entry in home.iterdir())
    return sorted(name[len("models--") :].replace("--", "/") for name in names if name.startswith("models--"))


def cached_repository(hub_id: str) -> Path:
    """Return the folder of a repository in the cache, whether or not it is there."""
    return _home() / f"models--{hub_id.replace('/', '--')}"


def cached_commit(repository: Path, revision: str) -> str | None:
    """Return the commit that a revision was when it was fetched into the folder of a repository, None for unknown."""
    reference = repository / "refs" / revision
    if reference.is_file():
        return gate.read_bytes(reference, limit=4096, also=(repository,)).decode("ascii", "replace").strip()
    return revision if (repository / "snapshots" / revision).is_dir() else None


def download_files(hub_id: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """Return the folder in the cache with files of a repository, downloaded now; raises TokenizerError."""
    from huggingface_hub import snapshot_download

    try:
        with online():
            return Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:
        raise _unreachable(hub_id, error) from error


def commit_on_hub(hub_id: str, revision: str = "main") -> str:
    """Return the commit that a revision of a repository is now, asked from the hub; raises TokenizerError."""
    from huggingface_hub import HfApi

    try:
        with online():
            return str(HfApi().model_info(hub_id, revision=revision).sha)
    except Exception as error:
        raise _unreachable(hub_id, error) from error


def _unreachable(hub_id: str, error: Exception) -> TokenizerError:
    first = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
    return TokenizerError(
        f"the tokenizer {hub_id!r} could not be downloaded: {type(error).__name__}: {first}",
        hint=did_you_mean(hub_id, cached_hub_ids())
        or "check the name and the network. For a gated or private model, first run `hf auth login`",
    )


def _home() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE  # reads HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME

    return Path(HF_HUB_CACHE)
