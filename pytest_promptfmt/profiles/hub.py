"""Repositories of models on the Hugging Face hub: what of them is in the local cache, and what is fetched into it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import TokenizerError, did_you_mean
from pytest_promptfmt.core.network import online


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
        or "a gated or private model needs `hf auth login`; check the name and the network",
    )


def _home() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE  # reads HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME

    return Path(HF_HUB_CACHE)
