"""Which files belong to Python or to an installed distribution."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pytest_promptfmt.core.files import is_installed


@pytest.mark.parametrize("file", [json.__file__, os.__file__, yaml.__file__, sys.executable])
def test_python_and_distributions_are_installed(file: str) -> None:
    assert is_installed(file)


@pytest.mark.parametrize("place", ["{}/src/app/utils.py", "{}-tools/lib/utils.py", "{}/local/app/tasks/a.py"])
def test_a_repository_next_to_or_below_the_prefix_of_python_is_not(place: str) -> None:
    assert not is_installed(place.format(sys.base_prefix))


def test_nor_is_a_checkout_that_is_installed_as_editable_into_an_environment(tmp_path: Path) -> None:
    path = tmp_path / "environment" / "src" / "lm_eval" / "utils.py"
    code = "import sys; from pytest_promptfmt.core import files; print(files.is_installed(sys.argv[1]))"
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.prefix = {str(tmp_path / 'environment')!r}; {code}", str(path)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert shown.stdout == "False\n"
