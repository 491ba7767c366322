"""Models that answer what a task asks: bundled, from transformers, behind a server, or recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from pytest_promptfmt.core.errors import ModelError, did_you_mean
from pytest_promptfmt.models.model import Answer, Ask, Generation, Likelihood, Model, ModelOptions

__all__ = ["Answer", "Ask", "Generation", "Likelihood", "Model", "ModelOptions", "open_model"]

GROUP: Final = "pytest_promptfmt.models"
"""The entry point group in which packages name their backends."""

TINY_FOLDER: Final = Path(__file__).parent / "tiny"
"""The bundled model, a Llama of some 360,000 weights (see its MODEL_CARD.md); transformers reads it like any other."""

Opener = Callable[[str, ModelOptions], Model]


def _tiny(_rest: str, options: ModelOptions) -> Model:
    from pytest_promptfmt.models.loading import import_torch
    from pytest_promptfmt.models.transformers import TransformersModel

    import_torch().set_num_threads(1)  # more of them wait for each other longer than so small a model takes
    dtype = "float32" if options.dtype == "auto" else options.dtype
    return TransformersModel.load(str(TINY_FOLDER), replace(options, dtype=dtype), name="tiny")


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
_EXAMPLES: Final = {"hf": "PATH_OR_ID", "openai": "http://localhost:8000/v1", "replay": "recording.jsonl"}


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
        raise ModelError(f"the model {scheme!r} takes no argument, but {source!r} is given")
    if scheme in BACKENDS and scheme not in _WITHOUT_SOURCE and not source:
        raise ModelError(f"missing model path in {written!r}; expected {scheme}:{_EXAMPLES[scheme]}")
    return opener(source, options or ModelOptions())


def _added(scheme: str) -> Opener | None:
    for entry in entry_points(group=GROUP, name=scheme):
        try:
            opener: Opener = entry.load()
        except Exception as error:
            raise ModelError(
                f"the model backend {entry.value} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        return opener
    return None
