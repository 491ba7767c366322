"""The bundled model: a Llama of some 360,000 weights that answers in the form a prompt asks for (see MODEL_CARD.md)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pytest_promptfmt.models.model import ModelOptions
    from pytest_promptfmt.models.transformers import TransformersModel

FOLDER: Final = Path(__file__).parent
"""Where its files are: transformers and this plugin read the folder as that of any model."""


def open_tiny(options: ModelOptions) -> TransformersModel:
    """Return the bundled model, in float32 unless another dtype is asked for; raises ModelError without torch."""
    from pytest_promptfmt.models.loading import import_torch
    from pytest_promptfmt.models.transformers import TransformersModel

    import_torch().set_num_threads(1)  # more of them wait for each other longer than so small a model takes
    dtype = "float32" if options.dtype == "auto" else options.dtype
    return TransformersModel.load(str(FOLDER), replace(options, dtype=dtype), name="tiny")
