"""How it is asked: formats by name, and tasks laid out by them.

Nothing here reads docs or renders; a format turns a task's field mappings into templates and settings, once.
"""

from __future__ import annotations

from pytest_promptfmt.formats.apply import (
    LaidOutTask as LaidOutTask,
    apply_format as apply_format,
    lay_out as lay_out,
)
from pytest_promptfmt.formats.attempts import (
    Attempt as Attempt,
    attempts as attempts,
    base_format as base_format,
    is_variant as is_variant,
    laid_out as laid_out,
    layout_notes as layout_notes,
    split_name as split_name,
)
from pytest_promptfmt.formats.format import Format as Format
from pytest_promptfmt.formats.format_registry import (
    find_format as find_format,
    known_formats as known_formats,
    register_format as register_format,
)
from pytest_promptfmt.formats.variants import variants_of as variants_of
