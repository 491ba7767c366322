"""The import path `pytest_promptfmt`: every promised name, and what importing it costs."""

import json
import subprocess
import sys

import pytest

import pytest_promptfmt

HEAVY = ("yaml", "jinja2", "syrupy", "tokenizers", "transformers", "datasets", "pyarrow", "numpy")


def run_python(source: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=900
    ).stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = run_python("import json, sys, pytest_promptfmt; print(json.dumps(sorted(sys.modules)))")
    assert not set(HEAVY) & {name.partition(".")[0] for name in json.loads(loaded)}


@pytest.mark.parametrize("name", pytest_promptfmt.__all__)
def test_every_promised_name_resolves_to_the_object_of_that_name(name: str) -> None:
    value = getattr(pytest_promptfmt, name)
    assert value is getattr(pytest_promptfmt, name)
    assert getattr(value, "__name__", name) == name


def test_names_are_listed_for_completion() -> None:
    assert {"Task", "render_task"} <= set(pytest_promptfmt.__all__) <= set(dir(pytest_promptfmt))


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'load_task'"):
        pytest_promptfmt.load_task  # noqa: B018
