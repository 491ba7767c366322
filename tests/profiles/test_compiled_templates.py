"""Compiled chat templates are kept between runs, and nothing that happens to the files can harm one."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pytest_promptfmt.core import sandbox
from pytest_promptfmt.core.errors import LimitExceededError
from pytest_promptfmt.core.files import VARIABLE, cache_directory, private_directory
from pytest_promptfmt.profiles.dialect import TemplateCache, compiled_template

SOURCE = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
MESSAGES = [{"role": "user", "content": " hi "}]
COMPILER = (Path(sandbox.__file__),)


def rendered(folder: Path, source: str = SOURCE) -> str:
    environment = ImmutableSandboxedEnvironment()
    code = TemplateCache(folder, COMPILER).code_of(environment, source)
    return environment.template_class.from_code(environment, code, {}).render(messages=MESSAGES)


def file_in(folder: Path) -> Path:
    (file,) = folder.glob("*.jinja-code")
    return file


def test_a_template_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rendered(tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(ImmutableSandboxedEnvironment, "compile", refuse)
    assert rendered(tmp_path) == first == "user: hi\n"
    with pytest.raises(AssertionError):
        rendered(tmp_path, SOURCE + "!")


def test_another_compiler_compiles_again(tmp_path: Path) -> None:
    module = tmp_path / "compiler.py"
    folder = tmp_path / "cache"
    folder.mkdir()
    for text in ("1", "2", "1"):
        module.write_text(text)
        TemplateCache(folder, (module,)).code_of(ImmutableSandboxedEnvironment(), SOURCE)
    assert len(list(folder.iterdir())) == 2


@given(data=st.data())
def test_a_damaged_file_is_made_again(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cache")
    expected = rendered(folder)
    file = file_in(folder)
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from(
            [whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole + b"\0", b"", b"\0" * len(whole)]
        )
    )
    file.write_bytes(damaged)
    assert rendered(folder) == expected
    assert file.read_bytes() == whole


@pytest.mark.parametrize("code", [b"", b"j2", b"another Jinja's file", b"j2\x05\0\0\0K\x05."])
def test_a_whole_file_of_another_make_is_made_again(code: bytes, tmp_path: Path) -> None:
    expected = rendered(tmp_path)
    file = file_in(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(sha256(code).digest() + code)
    assert rendered(tmp_path) == expected
    assert file.read_bytes() == whole


def test_where_nothing_can_be_written_templates_still_render(tmp_path: Path) -> None:
    assert rendered(tmp_path / "not there") == "user: hi\n"
    (tmp_path / "a folder in the way").mkdir()
    rendered(tmp_path)
    file = file_in(tmp_path)
    file.unlink()
    file.mkdir()
    assert rendered(tmp_path) == "user: hi\n"


def test_a_template_with_a_surrogate_has_a_place(tmp_path: Path) -> None:
    assert rendered(tmp_path, "\ud800") == rendered(tmp_path, "\ud800") == "\ud800"


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


@pytest.mark.parametrize(
    "source",
    [
        "{% set n = namespace(x=['a' * 10**6]) %}{% for i in range(9) %}{% set n.x = n.x + n.x %}{% endfor %}"
        "{{ n.x | tojson }}",
        "{% for each in [1] | batch(10**6, 'a' * 10**6) %}{{ each | tojson }}{% endfor %}",
        "{% for each in ['a' * 10**6] | slice(1, 'a' * 10**7) %}{{ [each, each] | tojson }}{% endfor %}",
        "{{ (['a' * 10**6] * 99) | tojson }}",
        "{% macro m() %}{{ varargs | tojson }}{% endmacro %}{% set a = 'a' * 10**7 %}{{ m(a, a) }}",
        "{% set a = 'a' * 10**7 %}{{ cycler(a, a).items | tojson }}",
        "{% set n = namespace(x='a' * 10**6) %}{% for i in range(9) %}{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}"
        "{{ n.x | tojson }}",
    ],
)
def test_json_of_values_that_a_template_makes_is_bounded(source: str) -> None:
    with pytest.raises(LimitExceededError, match="more than 10,000,000"):
        compiled_template(source).render()
