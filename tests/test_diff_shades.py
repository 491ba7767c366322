"""The script that shows what a change of this package changes: what it calls a difference, and one real run."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slices import MISSING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import diff_shades  # noqa: E402


def result(*findings: tuple[str, str], clusters: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    places = [
        {"code": code, "severity": "error", "message": "m", "places": [{"file": "a.yaml", "tasks": [task]}]}
        for code, task in findings
    ]
    return {"findings": places, "clusters": list(clusters)}


def test_findings_are_compared_one_by_one_and_errors_apart_from_prompts() -> None:
    changed = {"category": "changed", "title": "A → B", "members": [{"task": "arc"}]}
    broken = {"category": "error", "title": "no such key", "members": [{"task": "arc"}]}
    before = result(("PF1", "arc"), ("PF2", "arc"), clusters=(broken,))
    after = result(("PF2", "arc"), ("PF2", "wic"), clusters=(changed,))
    assert list(diff_shades.differences(before, after)) == [
        "findings that appear: 1",
        "  PF2 error: m  a.yaml wic",
        "findings that disappear: 1",
        "  PF1 error: m  a.yaml arc",
        "prompts and answers: 1",
        "  changed: A → B (arc)",
        "errors that disappear: 1",
        "  no such key  arc",
    ]
    assert list(diff_shades.differences(after, after | {"clusters": []})) == []


def test_a_sample_is_always_the_same_and_keeps_what_may_be_included(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(20):
        (tree / f"t{number:02}.yaml").write_text("task: t\n", "utf-8")
    (tree / "_base.yaml").write_text("a: 1\n", "utf-8")
    for name in ("one", "two"):
        diff_shades.copied(tree, tmp_path / name, 5)
    names = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("one", "two")]
    assert names[0] == names[1]
    assert "_base.yaml" in names[0]
    assert 5 <= len(names[0]) <= 7


def test_two_revisions_are_run_over_the_same_tree_and_one_against_itself_changes_nothing(tmp_path: Path) -> None:
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("not a checkout of git")
    (tmp_path / "planets.yaml").write_bytes((ROOT / "fixtures/tasks/planets.yaml").read_bytes())
    (tmp_path / "open.jinja").write_text("{% for message in messages %}", "utf-8")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/diff_shades.py", "HEAD", "HEAD", "--tree", tmp_path],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
    )
    assert (done.returncode, done.stdout) == (0, "no finding, prompt or verdict changes\n"), done.stderr
    assert (" failed" in done.stderr) is ("templates" not in MISSING), "chat templates are tested if they can be"
