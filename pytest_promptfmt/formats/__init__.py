"""How it is asked: formats by name, and tasks laid out by them.

Nothing here reads docs or renders; a format turns a task's field mappings into templates and settings, once.
"""

from __future__ import annotations

from pytest_promptfmt.formats.apply import LaidOutTask, apply_format, lay_out
from pytest_promptfmt.formats.attempts import (
    Attempt,
    attempts,
    base_format,
    is_variant,
    laid_out,
    layout_notes,
    split_name,
)
from pytest_promptfmt.formats.format import Format
from pytest_promptfmt.formats.format_registry import find_format, known_formats, register_format
from pytest_promptfmt.formats.variants import variants_of
