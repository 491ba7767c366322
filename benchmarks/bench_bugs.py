"""Recall and silence of the rules on real bugs: every case before and after its fix, through `pytest --promptfmt`.

    python benchmarks/bench_bugs.py [BUGBENCH_FOLDER] [--wheels FOLDER]

A case counts as found when something is reported (an error, a warning, or a task that does not load or render) before
the fix and no longer after it. Cases whose code is not at hand are tried on own files with the same bug, in
`fixtures/bugs`. With wheels of lm_eval (`pip download --no-deps lm_eval==X`) only the cases are tried whose tasks need
Python code, on what was released: the last release with the bug, and the next one there is.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BUGBENCH = ROOT.parent / "shared" / "bugbench"
OWN = ROOT / "fixtures" / "bugs"

RECORD_REPORTS = """
import json, pathlib, pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)  # round the plugin, which later takes away what it gives the report here
def pytest_runtest_makereport():
    report = yield
    if report.when == "call" or report.failed:
        outcome = getattr(report, "promptfmt", None)
        found = []
        for finding in outcome.findings if outcome else ():
            which = " " + finding.saw if finding.code == "PF131" else ""
            found.append(finding.code + " " + finding.message + which)
        if report.failed and not (outcome and outcome.category == "finding"):
            found.append("fails: " + ((outcome and outcome.title) or report.longreprtext.splitlines()[0]))
        with pathlib.Path("found.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, sorted(set(found))]) + "\\n")
    return report
"""


@dataclass(frozen=True)
class Result:
    """What was reported about one case, before and after its fix."""

    case: dict[str, Any]
    before: frozenset[str]
    after: frozenset[str]
    is_tried: bool

    @property
    def caught(self) -> frozenset[str]:
        """Return what went away with the fix."""
        return self.before - self.after


def lay_out(case: dict[str, Any], bugbench: Path, side: str, folder: Path) -> bool:
    """Put the files of one side of a case into the folder; return whether there are any."""
    own = OWN / case["id"] / side
    if own.is_dir():
        shutil.copytree(own, folder)
        return True
    source = bugbench / case["id"]
    if not case["runnable"] or not (source / side).is_dir():
        return False
    shutil.copytree(source / side, folder)
    for path in (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".py"):
        path.write_text(modern(path.read_text("utf-8")), "utf-8")
    for path in [*folder.rglob("*.yaml"), *folder.rglob("*.yml")]:
        if path.name.startswith("_") or "group:" in path.read_text("utf-8").splitlines()[0]:
            continue
        for docs in source.glob("*.jsonl"):
            kind = {"docs": ".docs", "fewshot": ".docs.fewshot"}.get(docs.stem, f".{docs.stem}")
            if docs.stem.startswith("docs") or docs.stem == "fewshot":
                shutil.copy(docs, path.with_name(f"{path.stem}{kind}.jsonl"))
    return True


def lay_out_released(case: dict[str, Any], bugbench: Path, side: str, folder: Path, wheels: Path) -> bool:
    """Put the folder of a case's task, as a release has it, into the folder; return whether there is any."""
    releases = {path.name.split("-")[1]: path for path in wheels.glob("lm_eval-*.whl")}
    order = sorted(releases, key=lambda name: [int(part) for part in name.split(".")])
    shipped = [release for release in order if f"v{release}" in (case["shipped_in"] or ())]
    later = order[order.index(shipped[-1]) + 1 :] if shipped else []
    if not case["python_code_needed"] or not later:
        return False
    top = f"lm_eval/tasks/{case['yaml'][0].partition('/')[0]}/"
    with zipfile.ZipFile(releases[shipped[-1] if side == "before" else later[0]]) as wheel:
        names = [name for name in wheel.namelist() if name.startswith(top)]
        wheel.extractall(folder, names)
    for path in (folder / name for name in names if Path(name).suffix in ("", ".yaml", ".yml")):
        if path.is_file():
            path.write_text(modern(path.read_text("utf-8")), "utf-8")
    for yaml in case["yaml"]:
        path = folder / "lm_eval" / "tasks" / yaml
        for docs in (bugbench / case["id"]).glob("*.jsonl") if path.is_file() else ():
            if docs.stem.startswith("docs") or docs.stem == "fewshot":
                kind = {"docs": ".docs", "fewshot": ".docs.fewshot"}.get(docs.stem, f".{docs.stem}")
                shutil.copy(docs, path.with_name(f"{path.stem}{kind}.jsonl"))
    return bool(names)


def modern(text: str) -> str:
    """Return a task file of an earlier lm-eval with the names that 0.4.13 has for the same keys."""
    if re.search(r"^\"?(doc_to_text|dataset_path|include)\"?:", text, re.M):
        text = re.sub(r"^group:", "tag:", text, flags=re.M)
    text = re.sub(r"^(dataset_name): (\d+)$", r'\1: "\2"', text, flags=re.M)
    return text.replace("output_type: greedy_until", "output_type: generate_until")


def found_on(
    side: str, cases: list[dict[str, Any]], bugbench: Path, wheels: Path | None = None
) -> dict[str, frozenset[str]]:
    """Return what `pytest --promptfmt` reports about one side of every case that can be tried."""
    with tempfile.TemporaryDirectory() as name:
        project = Path(name)
        (project / "pytest.ini").write_text("[pytest]\n", "utf-8")
        (project / "conftest.py").write_text(RECORD_REPORTS, "utf-8")
        if wheels is None:
            paths = {case["id"]: [""] for case in cases if lay_out(case, bugbench, side, project / case["id"])}
        else:
            paths = {
                case["id"]: [f"/lm_eval/tasks/{yaml}" for yaml in case["yaml"]]
                for case in cases
                if lay_out_released(case, bugbench, side, project / case["id"], wheels)
            }
        tried = [
            f"{case}{path}" for case, inside in paths.items() for path in inside if (project / (case + path)).exists()
        ]
        command = [sys.executable, "-m", "pytest", "-psyrupy", "-ppytest_promptfmt.plugin", "--promptfmt"]
        command += ["--promptfmt-profile=plain", "--snapshot-update"]
        done = subprocess.run(
            [*command, "-q", "-p", "no:cacheprovider", *tried],
            cwd=project,
            env={**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        reports = project / "found.jsonl"
        if not reports.exists():
            sys.exit(done.stdout + done.stderr)
        found: dict[str, set[str]] = {case: set() for case in paths}
        for line in reports.read_text("utf-8").splitlines():
            nodeid, remarks = json.loads(line)
            # The same failure is the same on both sides, wherever its line has moved to.
            found[nodeid.partition("/")[0]].update(re.sub(r":\d+(?::\d+)?(?=[:)])", "", remark) for remark in remarks)
    return {case: frozenset(remarks) for case, remarks in found.items()}


def results(bugbench: Path = BUGBENCH, wheels: Path | None = None) -> list[Result]:
    """Return the result of every case."""
    cases = [json.loads(line) for line in (bugbench / "cases.jsonl").read_text("utf-8").splitlines()]
    before, after = (found_on(side, cases, bugbench, wheels) for side in ("before", "after"))
    nothing: frozenset[str] = frozenset()
    return [
        Result(case, before.get(case["id"], nothing), after.get(case["id"], nothing), case["id"] in before)
        for case in cases
    ]


def main() -> None:
    """Print each case, then recall by class and by how certain a rule can be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bugbench", type=Path, nargs="?", default=BUGBENCH)
    parser.add_argument("--wheels", type=Path, help="a folder with wheels of lm_eval")
    arguments = parser.parse_args()
    found = [each for each in results(arguments.bugbench, arguments.wheels) if each.is_tried or not arguments.wheels]
    for result in found:
        case = result.case
        mark = "found" if result.caught else "missed" if result.is_tried else "not tried"
        print(f"{mark:9} {case['bug_class']:4} {case['detectable']:15} {case['id']}")
        for remark in sorted(result.caught):
            print(f"            {remark[:110]}")
        for remark in sorted(result.after):
            print(f"            after: {remark[:110]}")
    for title, key in (("class", "bug_class"), ("detectable", "detectable")):
        groups = defaultdict(list)
        for result in found:
            groups[result.case[key]].append(result)
        print(f"\n{title:16} cases  found  tried")
        for name, members in sorted(groups.items()):
            caught = sum(bool(result.caught) for result in members)
            print(f"{name:16} {len(members):5}  {caught:5}  {sum(result.is_tried for result in members):5}")
    silent = sum(not result.after for result in found if result.caught)
    print(f"\nsilent after the fix: {silent} of {sum(bool(result.caught) for result in found)} found")


if __name__ == "__main__":
    main()
