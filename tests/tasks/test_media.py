"""Images and sound of docs are in snapshots by name and digest, next to the text around them."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from plugin_project import Project

KEYS: dict[str, Any] = {
    "doc_to_text": "<image>{{question}}",
    "doc_to_target": "{{answer}}",
    "doc_to_image": ["chart", "gone"],
    "metric_list": [{"metric": "exact_match"}],
}
DOC = {"question": "How high?", "answer": "3", "chart": "images/chart.png", "gone": "images/gone.png"}


def with_docs(project: Project, **columns: object) -> None:
    project.task("seen.yaml", **KEYS, metadata={"promptfmt": {"docs": [{**DOC, **columns}]}})


def shown(project: Project) -> str:
    project.run("--snapshot-update", "-k", "snapshot")
    (text,) = [content.decode() for path, content in project.snapshots().items() if "plain" in path]
    return text


@pytest.fixture
def seen(project: Project) -> Project:
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\n")
    (project.root / "images").mkdir()
    (project.root / "images/chart.png").write_bytes(b"first")
    return project


def test_a_file_is_named_with_its_digest_and_another_content_changes_the_snapshot(seen: Project) -> None:
    with_docs(seen)
    text = shown(seen)
    assert '"chart: images/chart.png, sha256 a7937b64b8ca"' in text
    assert '"gone: images/gone.png, no file here"' in text
    seen.run("-k", "snapshot").assert_outcomes(passed=1)
    (seen.root / "images/chart.png").write_bytes(b"second")
    changed = seen.run("-k", "snapshot")
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(["*chart: images/chart.png, sha256*"])


def test_other_values_are_shown_by_their_digest(seen: Project) -> None:
    coded = base64.b64encode(b"x" * 300).decode()
    with_docs(seen, chart=[{"path": "a.png", "bytes": coded}, "https://example.org/a.png"], gone=[[1, 2]])
    text = shown(seen)
    assert '"chart: a.png, str, sha256 ' in text
    assert '"chart: https://example.org/a.png"' in text
    assert '"gone: list, sha256 ' in text


PICTURES = """
import pathlib
FOLDER = pathlib.Path(__file__).parent

class Picture:
    size = (3, 2)
    def tobytes(self):
        return b"pixels"

def files(doc):
    return [FOLDER / doc["chart"], Picture()]

def fails(doc):
    return doc["chart"].convert("RGB")
"""


def test_functions_that_give_images_are_called_for_given_docs(seen: Project) -> None:
    seen.write("pictures.py", PICTURES)
    with_docs(seen)
    task = (seen.root / "seen.yaml").read_text("utf-8").replace("doc_to_image:", "columns:")
    functions = "doc_to_image: !function pictures.files\ndoc_to_visual: !function pictures.fails\n"
    seen.write("seen.yaml", f"{task}\n{functions}")
    text = shown(seen)
    assert '"!function pictures.files: chart.png, sha256 a7937b64b8ca"' in text
    assert '"!function pictures.files: Picture (3, 2), sha256 ' in text
    assert '"!function pictures.fails"' in text


def test_synthetic_docs_have_no_media(seen: Project) -> None:
    seen.task("seen.yaml", **KEYS)
    assert "sha256" not in shown(seen)


def test_a_file_is_an_input_of_cached_outcomes(cached_project: Project) -> None:
    project = cached_project
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\n")
    project.write("images/chart.png", "first")
    with_docs(project)
    project.accept()
    project.settle()
    project.run()
    assert project.run().parseoutcomes()["unchanged"] == 2
    project.write("images/chart.png", "other")
    assert project.run().parseoutcomes()["failed"] == 1
