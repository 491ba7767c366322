"""Bugs that shipped: found before their fix, and no longer after it. `benchmarks/bench_bugs.py` prints the details."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
BUGBENCH = ROOT.parent / "shared" / "bugbench"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_bugs", ROOT / "benchmarks" / "bench_bugs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_bugs"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_rebuilt_bug_is_found_before_its_fix_and_nothing_is_said_after_it(bench: ModuleType) -> None:
    cases = [{"id": folder.name, "runnable": False} for folder in sorted(bench.OWN.iterdir()) if folder.is_dir()]
    before, after = (bench.found_on(side, cases, BUGBENCH) for side in ("before", "after"))
    missed = {name for name, found in before.items() if not found - after[name]}
    assert missed == set()
    assert {name: found for name, found in after.items() if found} == {}


@pytest.mark.slow
@pytest.mark.skipif(not BUGBENCH.is_dir(), reason="the collection of bugs is not beside the project")
def test_of_the_collected_bugs_most_that_a_rule_can_see_are_found(bench: ModuleType) -> None:
    found = bench.results(BUGBENCH)
    for kind, least in (("static-certain", 0.9), ("static-likely", 0.6)):
        members = [result for result in found if result.case["detectable"] == kind]
        assert sum(bool(result.caught) for result in members) / len(members) >= least
