"""Some of the faults that `benchmarks/faults.py` causes: nothing is lost, and no verdict is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_promptfmt.engine.processes import CAN_FORK

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import faults

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")

QUICK = ("a snapshot is cut",)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    faults.make_pristine(folder)
    return folder


@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_lost_and_no_verdict_is_wrong(pristine: Path, name: str) -> None:
    assert faults.problems_of(name, pristine, seed=1) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in faults.FAULTS if name not in QUICK])
def test_this_holds_for_all_faults(pristine: Path, name: str) -> None:
    if name in faults.IN_NAMESPACE and not faults.has_namespaces():
        pytest.skip("the kernel allows no mounts in a user namespace")
    assert faults.problems_of(name, pristine, seed=2) == []
