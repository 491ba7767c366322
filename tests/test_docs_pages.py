"""The generated pages and sections of the documentation are as `scripts/docs_pages.py` writes them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from slices import SLICES, needs

ROOT = Path(__file__).parents[1]
HINT = "run `python scripts/docs_pages.py`"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts/docs_pages.py"))


@needs(*SLICES)
def test_pages_of_the_rules_are_up_to_date(script: dict[str, Any]) -> None:
    stored = {path.name: path.read_text("utf-8") for path in (ROOT / "docs/rules").iterdir()}
    written = script["rule_pages"]()
    assert sorted(written) == sorted(stored), HINT
    assert [name for name in written if written[name] != stored[name]] == [], HINT


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("settings.md", ["settings"]),
        ("profiles.md", ["profile keys"]),
        ("formats.md", ["axes"]),
        ("formats-catalogue.md", ["built in", "from the literature", "task styles of eval-framework"]),
    ],
)
def test_sections_of_the_pages_are_up_to_date(script: dict[str, Any], page: str, names: list[str]) -> None:
    stored = (ROOT / "docs" / page).read_text("utf-8")
    assert script["with_sections"](stored) == stored, HINT
    assert re.findall(r"<!-- generated: (?!end)([\w -]+) -->", stored) == names


def test_an_edited_section_is_restored_and_the_rest_stays(script: dict[str, Any]) -> None:
    stored = (ROOT / "docs/formats-catalogue.md").read_text("utf-8")
    edited = "# Mine\n\n" + stored.replace("### `mmlu`\n", "### `mlmu`\n")
    assert script["with_sections"](edited) == "# Mine\n\n" + stored
