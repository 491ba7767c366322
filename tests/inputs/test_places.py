"""Texts without the places of a checkout, and repositories that are the same wherever they were cloned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_promptfmt.inputs.places import Places, distributions, identity_of


@pytest.mark.parametrize(
    "text",
    [
        "{root}/tasks/t.yaml:3",
        "in {root}/t.yaml and {root}/u.yaml",
        "a\n{root}/t.yaml",
        "'{root}'",
        "é {root}/ü",
        "{root}",
    ],
)
def test_a_text_is_the_same_in_another_checkout(tmp_path: Path, text: str) -> None:
    first, second = (Places(tmp_path / name) for name in ("a", "other/b"))
    texts = [text.format(root=places.rootdir) for places in (first, second)]
    assert first.neutral(texts[0]) == second.neutral(texts[1])
    assert second.here(first.neutral(texts[0])) == texts[1]
    assert json.loads(second.read(first.written(json.dumps(texts[0])))) == texts[1]


@pytest.mark.parametrize("text", ["{root}2/t.yaml", "/other{root}/t.yaml", "{root}.bak", "{root}-2"])
def test_a_path_that_only_begins_alike_is_another_one(tmp_path: Path, text: str) -> None:
    places = Places(tmp_path / "a")
    written = text.format(root=places.rootdir)
    assert places.neutral(written) == written


def test_a_checkout_behind_a_link_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    places = Places(tmp_path / "link")
    assert places.neutral(f"{tmp_path}/real/t") == places.neutral(f"{tmp_path}/link/t")


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/org/evals.git",
        "https://token@GitHub.com/org/evals",
        "git@github.com:org/evals.git",
        "ssh://git@github.com/org/evals/",
    ],
)
def test_an_origin_is_the_same_by_each_protocol(tmp_path: Path, url: str) -> None:
    assert identity_of(_with_origin(tmp_path, url)) == "github.com/org/evals ."
    assert identity_of(tmp_path / "sub") == "github.com/org/evals sub"


@pytest.mark.parametrize("url", ["", "../gone", "/gone/evals.git", "evals"])
def test_a_repository_without_a_known_origin_is_its_folder(tmp_path: Path, url: str) -> None:
    assert identity_of(_with_origin(tmp_path, url)) == f"{tmp_path} ."


@pytest.mark.parametrize("origin", ["a", "a/.git"])
def test_a_clone_of_a_clone_on_this_machine_has_the_origin_of_that_one(tmp_path: Path, origin: str) -> None:
    _with_origin(tmp_path / "a", "https://github.com/org/evals.git")
    assert identity_of(_with_origin(tmp_path / "b", f"{tmp_path}/{origin}")) == "github.com/org/evals ."


def test_clones_of_two_bare_repositories_in_one_folder_differ(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.git").mkdir()
        clone = _with_origin(tmp_path / name, f"{tmp_path}/{name}.git")
        assert identity_of(clone) == f"{tmp_path}/{name}.git ."


def _with_origin(folder: Path, url: str) -> Path:
    (folder / ".git").mkdir(parents=True)
    (folder / ".git/config").write_text(f'[core]\n\tbare = false\n[remote "origin"]\n\turl = {url}\n', "utf-8")
    return folder


def test_what_is_installed_is_read_off_the_folders_that_python_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("metals-1.0.dist-info", "woods.egg-link", "stones.py", "__pycache__"):
        (tmp_path / name).mkdir()
    before = distributions()
    monkeypatch.syspath_prepend(tmp_path)
    assert distributions() == sorted([*before, "metals-1.0.dist-info", "woods.egg-link"])
