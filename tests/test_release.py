"""What a release is made of: one address of the repository, one version, actions pinned by commit."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a checkout of git")
    return [ROOT / name for name in done.stdout.split("\0") if name]


def test_every_file_names_the_address_that_pyproject_names() -> None:
    owner = PROJECT["urls"]["Source"].split("/")[3]
    named = re.compile(r"(?:github\.com/|uses: )([\w-]+)/pytest-promptfmt\b|([\w-]+)\.github\.io/pytest-promptfmt")
    found: dict[str, set[str]] = {}
    for path in tracked():
        is_text = path.suffix in (".md", ".toml", ".yaml", ".yml", ".cff", ".py")
        if is_text and path.is_file() and not path.is_relative_to(ROOT / "tests"):
            for match in named.finditer(path.read_text("utf-8", "replace")):
                found.setdefault(match[1] or match[2], set()).add(str(path.relative_to(ROOT)))
    assert list(found) == [owner], found


def test_citation_and_package_name_the_same_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Source"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_pin_their_actions_and_jobs_get_no_more_than_they_need(path: Path) -> None:
    text = path.read_text("utf-8")
    for used in re.findall(r"uses: (.+)", text):
        assert re.fullmatch(r"[\w/.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", used), used
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job
        granted = job.get("permissions", {})
        runs_code = any("run" in step for step in job["steps"])
        assert not runs_code or set(granted.values()) <= {"read"}, "a job that runs code has no token that can write"


def test_the_pythons_of_classifiers_and_workflow_are_the_same() -> None:
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)}
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text("utf-8"))
    assert set(workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]) == named


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yaml")), ids=lambda path: path.stem)
def test_issue_forms_have_what_github_asks_for(path: Path) -> None:
    form = yaml.safe_load(path.read_text("utf-8"))
    assert {"name", "description", "body"} <= set(form)
    identifiers = [field["id"] for field in form["body"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(field["attributes"]["label"] for field in form["body"])
