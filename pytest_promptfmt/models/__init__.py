"""Models that answer what a task asks: bundled, from transformers, behind a server, or recorded."""

from __future__ import annotations

from pytest_promptfmt.models.model import Answer, Ask, Generation, Likelihood, Model, ModelOptions
from pytest_promptfmt.models.model_registry import open_model

__all__ = ["Answer", "Ask", "Generation", "Likelihood", "Model", "ModelOptions", "open_model"]
