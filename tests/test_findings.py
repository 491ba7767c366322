"""The page of findings in published benchmarks says what its list says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_page_of_findings_is_made_of_their_list() -> None:
    spec = importlib.util.spec_from_file_location("benchmarks_findings", ROOT / "benchmarks/findings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs/findings.md").read_text("utf-8") == module.page()
