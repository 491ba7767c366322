"""Rules on mistakes described in public threads: each pair of `bug_pairs.yaml` through `pytest --promptfmt`.

    python benchmarks/bench_bug_pairs.py [--set 3] [--json found.json]

A pair counts as found when something is reported (an error, a warning, or a failing item) with the mistake and not
without it. What is reported without the mistake is listed: it is either about something else or a false alarm.
`files` of a pair are files beside the task; `yaml` is text at the end of its file, which a mapping could not say. An
entry without `before` is a correct task of an unusual kind, about which nothing should be reported.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from bench_bugs import RECORD_REPORTS

PAIRS = Path(__file__).with_name("bug_pairs.yaml")


class Function(str):
    """The name of a Python function, written with its tag."""


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads `!function` as a name."""


class Dumper(yaml.SafeDumper):
    """Writes such a name with its tag."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Write every value where it stands."""
        return True


Loader.add_constructor("!function", lambda _loader, node: Function(node.value))
Dumper.add_representer(Function, lambda dumper, name: dumper.represent_scalar("!function", str(name)))


def reported(pairs: list[dict[str, Any]], side: str) -> dict[str, set[str]]:
    """Return what is reported about one side of each pair, by its id."""
    with tempfile.TemporaryDirectory() as name:
        project = Path(name)
        (project / "pytest.ini").write_text("[pytest]\n", "utf-8")
        (project / "conftest.py").write_text(RECORD_REPORTS, "utf-8")
        for pair in pairs:
            task = {"task": pair["id"].replace("-", "_"), "dataset_path": "demo", "test_split": "test"}
            task |= {"fewshot_split": "train", "metadata": {"version": 1.0}} | pair["both"] | pair.get(side, {})
            files, text = task.pop("files", {}), task.pop("yaml", "")
            folder = project / pair["id"]
            folder.mkdir()
            files["task.yaml"] = yaml.dump(task, Dumper=Dumper, sort_keys=False, allow_unicode=True) + text
            for file, content in files.items():
                (folder / file).write_text(content, "utf-8")
        command = [sys.executable, "-m", "pytest", "-psyrupy", "-ppytest_promptfmt.plugin", "--promptfmt"]
        command += ["--promptfmt-profile=plain", "--snapshot-update", "-q", "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        if not (project / "found.jsonl").exists():
            sys.exit(done.stdout + done.stderr)
        found: dict[str, set[str]] = {pair["id"]: set() for pair in pairs}
        for line in (project / "found.jsonl").read_text("utf-8").splitlines():
            nodeid, remarks = json.loads(line)
            found[nodeid.partition("/")[0]].update(remarks)
    return found


def main() -> None:
    """Print each pair, then how many were found, and how many are silent without the mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", type=int, help="only this set of pairs")
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="another file of pairs")
    parser.add_argument("--json", type=Path, help="write what was reported to this file")
    arguments = parser.parse_args()
    pairs = yaml.load(arguments.pairs.read_text("utf-8"), Loader)  # a SafeLoader with one more tag
    pairs = [pair for pair in pairs if arguments.set in (None, pair.get("set"))]
    before, after = reported([pair for pair in pairs if "before" in pair], "before"), reported(pairs, "after")
    correct = [pair["id"] for pair in pairs if "before" not in pair]
    for name in correct:
        print(f"{'reported' if after[name] else 'silent':16} {name}")
        for remark in sorted(after.pop(name)):
            print(f"            {remark[:120]}")
    pairs = [pair for pair in pairs if "before" in pair]
    caught = {pair["id"] for pair in pairs if before[pair["id"]] - after[pair["id"]]}
    for pair in pairs:
        name = pair["id"]
        print(f"{'found' if name in caught else 'missed':7} {'certain' if pair['certain'] else 'likely':8} {name}")
        for remark in sorted(before[name] - after[name]):
            print(f"            {remark[:120]}")
        for remark in sorted(after[name]):
            print(f"            after: {remark[:120]}")
    for kind in (True, False):
        members = [pair["id"] for pair in pairs if pair["certain"] is kind]
        print(f"{'certain' if kind else 'likely':8} {len(caught.intersection(members))} of {len(members)} found")
    print(f"silent without the mistake: {sum(not after[pair['id']] for pair in pairs)} of {len(pairs)}")
    if arguments.json is not None:
        sides = {name: [sorted(before[name]), sorted(after[name])] for name in before}
        arguments.json.write_text(json.dumps(sides, indent=1), "utf-8")


if __name__ == "__main__":
    main()
