"""Which backend a name stands for. Other packages add theirs under the entry point group `promptfmt.models`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from pytest_promptfmt.core.errors import ModelError, did_you_mean
from pytest_promptfmt.models.base import Model

ENTRY_POINTS: Final = "promptfmt.models"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """How a model is to run.

    `device` is a torch device or `auto`, `dtype` one of torch's names or `auto` (float32 on a CPU, bfloat16 on a GPU
    that has it). `batch_size` is the most rows at once; it is halved when memory runs out. `download` lets a backend
    fetch files. `timeout` is in seconds for one request to a server, `concurrency` the most requests at once.
    """

    device: str = "auto"
    dtype: str = "auto"
    batch_size: int = 16
    download: bool = False
    timeout: float = 60.0
    concurrency: int = 8


Opener = Callable[[str, ModelOptions], Model]


def _tiny(_rest: str, options: ModelOptions) -> Model:
    from pytest_promptfmt.models.tiny import open_tiny

    return open_tiny(options)


def _transformers(source: str, options: ModelOptions) -> Model:
    from pytest_promptfmt.models.transformers import TransformersModel

    return TransformersModel.load(source, options, name=f"hf:{source}")


def _server(url: str, options: ModelOptions) -> Model:
    from pytest_promptfmt.models.openai import ServerModel

    return ServerModel.connect(url, options)


def _replay(file: str, _options: ModelOptions) -> Model:
    from pytest_promptfmt.models.replay import ReplayModel

    return ReplayModel.read(Path(file))


BACKENDS: Final[Mapping[str, Opener]] = {
    "tiny": _tiny,
    "hf": _transformers,
    "openai": _server,
    "replay": _replay,
}
_WITHOUT_SOURCE: Final = frozenset({"tiny"})


def open_model(written: str, options: ModelOptions | None = None) -> Model:
    """Return the model of `tiny`, `hf:PATH_OR_ID`, `openai:URL`, `replay:FILE` or of a backend from an entry point.

    Raises ModelError for a name that is not known, a package that is missing, or a model that cannot be loaded.
    """
    scheme, separator, source = written.partition(":")
    opener = BACKENDS.get(scheme) or _added(scheme)
    if opener is None:
        known = [name if name in _WITHOUT_SOURCE else f"{name}:…" for name in BACKENDS]
        hint = did_you_mean(scheme, BACKENDS) or (f"write hf:{written} for a model folder" if written else None)
        raise ModelError(f"there is no model {written!r}; known are {', '.join(known)}", hint=hint)
    if scheme in _WITHOUT_SOURCE and separator:
        raise ModelError(f"the model {scheme!r} takes nothing after it, not {source!r}")
    if scheme in BACKENDS and scheme not in _WITHOUT_SOURCE and not source:
        raise ModelError(f"the model {written!r} says not which", hint=f"write {scheme}:{_EXAMPLES[scheme]}")
    return opener(source, options or ModelOptions())


_EXAMPLES: Final = {"hf": "PATH_OR_ID", "openai": "http://localhost:8000/v1", "replay": "recording.jsonl"}


def _added(scheme: str) -> Opener | None:
    for entry in entry_points(group=ENTRY_POINTS, name=scheme):
        opener: Opener = entry.load()
        return opener
    return None
