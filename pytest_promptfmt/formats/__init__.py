"""How it is asked: formats by name, and tasks laid out by them.

Nothing here reads docs or renders; a format turns a task's field mappings into templates and settings, once.
"""

from __future__ import annotations

from pytest_promptfmt.formats.apply import (
    LaidOutTask,
    apply_format,
    declared_formats,
    lay_out,
)
from pytest_promptfmt.formats.attempts import (
    Attempt,
    attempts,
    base_format,
    is_variant,
    laid_out,
    layout_notes,
    split_name,
    split_suffix,
    variant_names,
    wanted_formats,
)
from pytest_promptfmt.formats.format import Format
from pytest_promptfmt.formats.format_registry import find_format, known_formats, register_format
from pytest_promptfmt.formats.variants import variants_of, vary

__all__ = [
    "Attempt",
    "Format",
    "LaidOutTask",
    "apply_format",
    "attempts",
    "base_format",
    "declared_formats",
    "find_format",
    "is_variant",
    "known_formats",
    "laid_out",
    "lay_out",
    "layout_notes",
    "register_format",
    "split_name",
    "split_suffix",
    "variant_names",
    "variants_of",
    "vary",
    "wanted_formats",
]
