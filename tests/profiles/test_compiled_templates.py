"""The folder of caches belongs to the user alone; JSON that templates write is bounded."""

import os
from pathlib import Path

import pytest

from pytest_promptfmt.core.files import VARIABLE, cache_directory, private_directory


def test_the_cache_is_made_for_the_user_alone(tmp_path: Path) -> None:
    folder = private_directory("templates", tmp_path / "cache")
    assert folder == tmp_path / "cache" / "templates"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="the owners of POSIX")
def test_a_cache_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "templates").mkdir(parents=True)
    shared.chmod(0o777)
    assert private_directory("templates", shared) is None
    shared.chmod(0o755)
    (shared / "templates").chmod(0o775)
    assert private_directory("more", shared) is not None
    assert private_directory("templates", tmp_path / "shared" / ".." / "shared") is None


def test_a_cache_that_is_a_link_or_a_file_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    assert private_directory("templates", tmp_path / "link") is None
    assert private_directory("templates", tmp_path / "file") is None


def test_the_environment_names_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.setenv(VARIABLE, "")
    assert cache_directory() is None
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = cache_directory()
    assert found is not None
    assert found.is_relative_to(tmp_path)
