"""Every mistake in `fixtures/broken` ends in one message of its own, and the rest of the run goes on.

The files say themselves what is expected: `# says:` a piece of the message, `# <-- here` the line it names.
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import forked_runs
import pytest

BROKEN = Path(__file__).parents[1] / "fixtures" / "broken"
FILES = sorted(path.name for path in BROKEN.glob("*.yaml"))
WORKING = [name for name in FILES if "# works" in (BROKEN / name).read_text("utf-8").splitlines()]

RECORD_REPORTS = """
import json, os, pathlib, re

def pytest_runtest_logreport(report):
    is_worker = "PYTEST_XDIST_WORKER" in os.environ  # the controller gets these reports, too
    if not is_worker and (report.when == "call" or report.failed or report.skipped):
        message = re.sub(r"^\\[gw\\d\\] .*\\n", "", report.longreprtext)
        line = json.dumps([report.nodeid, report.outcome, message])
        with pathlib.Path("reports.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\\n")
"""


@dataclass(frozen=True)
class Run:
    exit_code: int
    output: str
    reports: list[tuple[str, str, str]]

    def of(self, name: str) -> list[tuple[str, str, str]]:
        return [report for report in self.reports if report[0].partition("::")[0] == f"broken/{name}"]


@pytest.fixture(scope="module", params=["serial", pytest.param("two workers", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(BROKEN, root / "broken")
    (root / "pytest.ini").write_text("[pytest]\npromptfmt_time_limit = 2\n", "utf-8")
    (root / "conftest.py").write_text(RECORD_REPORTS, "utf-8")
    workers = ["-n", "2"] if request.param == "two workers" else []
    options = ("--promptfmt", "--promptfmt-profile=plain", "--snapshot-update", "broken", *workers)
    done = forked_runs.run("pytest", *options, folder=root)
    reports = [tuple(json.loads(line)) for line in (root / "reports.jsonl").read_text("utf-8").splitlines()]
    return Run(done.returncode, done.stdout + done.stderr, sorted(reports))


def test_the_run_ends_as_a_run_with_failures_and_without_an_internal_error(run: Run) -> None:
    assert run.exit_code == pytest.ExitCode.TESTS_FAILED, run.output
    assert "INTERNALERROR" not in run.output
    assert "Traceback" not in run.output


def test_every_broken_file_is_an_item_and_nothing_else_is(run: Run) -> None:
    assert {nodeid.partition("::")[0] for nodeid, _, _ in run.reports} == {f"broken/{name}" for name in FILES}


@pytest.mark.parametrize("name", [name for name in FILES if name not in WORKING])
def test_a_mistake_is_one_message_that_says_where_and_what(run: Run, name: str) -> None:
    source = (BROKEN / name).read_text("utf-8")
    reports = run.of(name)
    assert [outcome for _, outcome, _ in reports] == ["failed"], reports
    message = reports[0][2]
    for piece in re.findall(r"^# says: (.*)$", source, re.MULTILINE):
        assert piece in message
    marked = [number for number, line in enumerate(source.splitlines(), start=1) if line.endswith("# <-- here")]
    for number in marked:
        assert f"broken/{name}:{number}" in message
    assert f"{name.removesuffix('.yaml')}." in message
    assert "pytest_promptfmt/" not in message
    assert " at 0x" not in message, "an address makes the same message a different one in each run"


@pytest.mark.parametrize("name", WORKING)
def test_a_working_file_beside_the_broken_ones_passes(run: Run, name: str) -> None:
    assert [outcome for _, outcome, _ in run.of(name)] == ["passed"]
