"""The backends of models by name: the built-in ones, and those of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from pytest_promptfmt.core.errors import ModelError, did_you_mean
from pytest_promptfmt.models.model import Model, ModelOptions

GROUP: Final = "pytest_promptfmt.models"
"""The entry point group in which packages name their backends."""


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
    from pytest_promptfmt.models.recording import ReplayModel

    return ReplayModel(Path(file))


BACKENDS: Final[Mapping[str, Opener]] = {
    "tiny": _tiny,
    "hf": _transformers,
    "openai": _server,
    "replay": _replay,
}
_WITHOUT_SOURCE: Final = frozenset({"tiny"})


def open_model(written: str, options: ModelOptions | None = None) -> Model:
    """Return the model of `tiny`, `hf:PATH_OR_ID`, `openai:URL`, `replay:FILE` or of a backend from an entry point.

    Raises ModelError for an unknown name, a missing package, or a model that cannot be loaded.
    """
    scheme, separator, source = written.partition(":")
    opener = BACKENDS.get(scheme) or _added(scheme)
    if opener is None:
        known = [name if name in _WITHOUT_SOURCE else f"{name}:…" for name in BACKENDS]
        hint = did_you_mean(scheme, BACKENDS) or (f"write hf:{written} for a model folder" if written else None)
        raise ModelError(f"unknown model {written!r}; expected one of {', '.join(known)}", hint=hint)
    if scheme in _WITHOUT_SOURCE and separator:
        raise ModelError(f"the model {scheme!r} takes no argument, not {source!r}")
    if scheme in BACKENDS and scheme not in _WITHOUT_SOURCE and not source:
        raise ModelError(f"missing model path in {written!r}; expected {scheme}:{_EXAMPLES[scheme]}")
    return opener(source, options or ModelOptions())


_EXAMPLES: Final = {"hf": "PATH_OR_ID", "openai": "http://localhost:8000/v1", "replay": "recording.jsonl"}


def _added(scheme: str) -> Opener | None:
    for entry in entry_points(group=GROUP, name=scheme):
        try:
            opener: Opener = entry.load()
        except Exception as error:
            raise ModelError(
                f"the model backend {entry.value} does not import: {type(error).__name__}: {error}"
            ) from error
        return opener
    return None
