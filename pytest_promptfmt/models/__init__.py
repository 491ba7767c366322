"""Models that answer what a task asks: bundled, from transformers, behind a server, or recorded."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Final

from pytest_promptfmt.core.errors import ModelError, did_you_mean, load_entry
from pytest_promptfmt.models.model import Answer, Ask, Generation, Likelihood, Model, ModelOptions

__all__ = ["Answer", "Ask", "Generation", "Likelihood", "Model", "ModelOptions", "open_model"]

GROUP: Final = "pytest_promptfmt.models"
"""The entry point group in which packages name their backends."""

Opener = Callable[[str, ModelOptions], Model]

_BACKENDS: Final = {
    "tiny": ("transformers", "TransformersModel.load_tiny"),
    "hf": ("transformers", "TransformersModel.load"),
    "openai": ("openai", "ServerModel.connect"),
    "replay": ("recording", "ReplayModel"),
}
"""The built-in backends: the module here, which is imported when it is needed, and what opens one."""

_WITHOUT_SOURCE: Final = frozenset({"tiny"})
_EXAMPLES: Final = {"hf": "PATH_OR_ID", "openai": "http://localhost:8000/v1", "replay": "recording.jsonl"}


def open_model(written: str, options: ModelOptions | None = None) -> Model:
    """Return the model of `tiny`, `hf:PATH_OR_ID`, `openai:URL`, `replay:FILE` or of a backend from an entry point.

    Raises ModelError for an unknown name, a missing package, or a model that cannot be loaded.
    """
    scheme, separator, source = written.partition(":")
    module, opens = _BACKENDS.get(scheme, ("", ""))
    opener: Opener | None = attrgetter(opens)(import_module(f"{__name__}.{module}")) if module else _added(scheme)
    if opener is None:
        known = [name if name in _WITHOUT_SOURCE else f"{name}:…" for name in _BACKENDS]
        hint = did_you_mean(scheme, _BACKENDS) or (f"write hf:{written} for a model folder" if written else None)
        raise ModelError(f"unknown model {written!r}; expected one of {', '.join(known)}", hint=hint)
    if scheme in _WITHOUT_SOURCE and separator:
        raise ModelError(f"the model {scheme!r} takes no path or name; remove {source!r}")
    if scheme in _EXAMPLES and not source:
        raise ModelError(f"missing model path in {written!r}; expected {scheme}:{_EXAMPLES[scheme]}")
    return opener(source, options or ModelOptions())


def _added(scheme: str) -> Opener | None:
    found = entry_points(group=GROUP, name=scheme)
    return next((load_entry(entry, "the model backend", ModelError) for entry in found), None)
