"""Mistakes made on purpose in real tasks: which of them a rule reports, which only a snapshot shows, which survive.

    python benchmarks/bench_mutations.py [--tasks 500] [--per-task 4] [--seed 1] [--json mutants.json]

Tasks of the installed lm_eval are drawn by seed, at most a few of each folder, from a copy. Each is changed by several
operators (`mutation_operators.py`), those first that were used least. A mutant is a file that includes the task and
writes other values. It is checked and rendered with synthetic docs in the profile plain, and the answers of tasks
that generate are tried, as a default run does. It is killed by a rule (an error or warning that the task itself does
not have, or a file that no longer loads), by the phrasings of answers that fail without a snapshot, by a snapshot, or
it survives. What is reported about a harmless edit is a false alarm. Seconds are processor time.
"""

import argparse
import importlib.util
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from mutation_operators import OPERATORS, Named

from pytest_promptfmt.answers.battery import try_answers
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.limits import go_offline
from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.formats import laid_out
from pytest_promptfmt.rules.linter import Linter, check_file, check_scoring
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.snapshots.content import extraction_document, snapshot_document
from pytest_promptfmt.snapshots.document import body_lines
from pytest_promptfmt.study import Study, seen_by
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks import TaskFile
from pytest_promptfmt.tasks.scoring.filters import looks_for_answers
from pytest_promptfmt.tasks.task_index import TaskIndex, yaml_files

BY = ("rule", "load", "answers", "snapshot", "survived")
WITHOUT_SNAPSHOT = ("rule", "load", "answers")


class _Dumper(yaml.SafeDumper):
    """Writes references to functions as they were."""


_Dumper.add_representer(FunctionRef, lambda dumper, ref: dumper.represent_scalar("!function", str(ref)))


@dataclass(frozen=True)
class Seen:
    """What a default run says about a task: findings, phrasings that fail, and the text of its snapshots."""

    findings: frozenset[tuple[str, str]] = frozenset()
    places: Mapping[tuple[str, str], str] = field(default_factory=dict)
    misread: frozenset[str] = frozenset()
    snapshot: str = ""
    failure: str = ""


class Bench:
    """The rules and settings of all tasks of one tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.index = TaskIndex([root])
        self.settings = Settings(rootdir=root, profiles=(PLAIN,))
        self.selection = Selection(rules=known_rules(), rootdir=root)

    def seen(self, path: Path) -> Seen:
        """Return what a default run says about a file with one task, or with none."""
        try:
            file = read_task_file(path, self.index)
            if file is None or file.yaml is None:
                return Seen(failure="no task")
            view = FileView(path=path, yaml=file.yaml, file=file, index=self.index)
            if file.kind == "group":
                return self._result(check_file(view, self.selection).findings, frozenset(), "")
            return self._of_task(file, view) if file.tasks else Seen(failure="no task")
        except PromptfmtError as error:
            return Seen(failure=f"{error.position or ''} {error.message}")

    def _of_task(self, file: TaskFile, view: FileView) -> Seen:
        [task] = laid_out(file.tasks[0])[:1]
        study = Study(task, self.settings)
        linted = Linter().check(study, self.selection, file=view)
        if linted.failure is not None:
            return Seen(failure=f"{linted.failure.position or ''} {linted.failure.message}")
        findings, misread = list(linted.findings), frozenset[str]()
        lines = body_lines(snapshot_document(seen_by(study, PLAIN), with_task=True).records)
        if task.output_type == "generate_until" and looks_for_answers(task):
            try:
                findings += check_scoring(study, self.selection, is_linted=True).findings
                tried = try_answers(study)
                lines += body_lines(extraction_document({}, tried.matrix).docs)
                misread = frozenset(row.id for row in tried.failing if row.kind in ("contract", "own"))
            except PromptfmtError as error:
                lines.append(f"answers: {error.message}")
        return self._result(findings, misread, "\n".join(lines))

    def _result(self, findings: list[Reported] | tuple[Reported, ...], misread: frozenset[str], text: str) -> Seen:
        bad = [each for each in findings if each.severity is not Severity.INFO]
        places = {(each.code, each.message): str(each.position or "") for each in bad}
        return Seen(findings=frozenset(places), places=places, misread=misread, snapshot=text)


def killed_by(base: Seen, mutant: Seen) -> tuple[str, str]:
    """Return by what a mutant is killed, the sooner the better, and what it says."""
    new = sorted(mutant.findings - base.findings)
    if new:
        return "rule", f"{new[0][0]} {new[0][1]}"
    if mutant.failure:
        return "load", mutant.failure
    if mutant.misread - base.misread:
        return "answers", min(mutant.misread - base.misread)
    return ("snapshot", "") if mutant.snapshot != base.snapshot else ("survived", "")


def mutants_of(
    config: Mapping[str, Any], path: Path, used: Counter[str], count: int, chance: random.Random
) -> Iterator[tuple[Named, Path]]:
    """Write mutants of a task beside it, and yield each with its operator: those that were used least, one harmless."""
    order = sorted(OPERATORS, key=lambda each: (used[each.name], chance.random()))
    left = Counter({False: count, True: 1})
    for each in order:
        if not left[each.harmless]:
            continue
        changed = each.run(config, chance)
        if not changed:
            continue
        mutant = path.with_name(f"zz_mutant_of_{path.stem}.yaml")
        if isinstance(changed, str):
            mutant.write_text(changed, "utf-8")
        else:
            own = {"task": config["task"], **changed}
            text = yaml.dump(own, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
            mutant.write_text(
                f"include: {json.dumps(path.name)}\n{text}" if "include" not in changed else text, "utf-8"
            )
        left[each.harmless] -= 1
        used[each.name] += 1
        try:
            yield each, mutant
        finally:
            mutant.unlink()


def drawn(root: Path, per_folder: int, chance: random.Random) -> Iterator[Path]:
    """Yield files in a random order, at most some of each folder."""
    files = list(yaml_files(root))
    chance.shuffle(files)
    taken: Counter[str] = Counter()
    for path in files:
        folder = path.relative_to(root).parts[0]
        if taken[folder] < per_folder:
            taken[folder] += 1
            yield path


def main() -> None:
    """Draw, change, look, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--per-folder", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write every mutant to this file")
    arguments = parser.parse_args()
    go_offline()
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or spec.origin is None:
        sys.exit("lm_eval is not installed: pip install --group parity")
    chance = random.Random(arguments.seed)
    rows: list[dict[str, str]] = []
    used: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "tasks"
        shutil.copytree(Path(spec.origin).parent / "tasks", root, ignore=shutil.ignore_patterns("__pycache__"))
        bench = Bench(root)
        tasks = 0
        for path in drawn(root, arguments.per_folder, chance):
            if tasks >= arguments.tasks:
                break
            base = bench.seen(path)
            if base.failure or not base.snapshot:
                continue
            file = read_task_file(path, bench.index)
            if file is None or file.yaml is None:
                continue
            tasks += 1
            for each, mutant in mutants_of(file.yaml.config, path, used, arguments.per_task, chance):
                of_group = each.group == "groups"
                seen = bench.seen(mutant)
                by, what = killed_by(Seen() if of_group else base, seen)
                shown = "yes" if seen.snapshot != base.snapshot else ""
                row = {"operator": each.name, "class": each.group, "by": by, "what": what, "snapshot": shown}
                rows.append({**row, "task": path.relative_to(root).as_posix()})
        print(f"{tasks} tasks, {len(rows)} mutants by {len(OPERATORS)} operators, {time.process_time():.0f} s")
    report(rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=0), "utf-8")


def report(rows: list[dict[str, str]]) -> None:
    """Print the figures by operator and class, then in total."""
    harmless = [row for row in rows if row["class"] == "harmless"]
    mutants = [row for row in rows if row["class"] != "harmless"]
    for title, key in (("operator", "operator"), ("class", "class")):
        print(f"\n{title:40} {'mutants':>8} " + " ".join(f"{by:>8}" for by in BY) + "  without a snapshot")
        for name in dict.fromkeys(row[key] for row in sorted(mutants, key=lambda row: (row["class"], row["operator"]))):
            print(_line(name, [row for row in mutants if row[key] == name]))
    print("\n" + _line("all", mutants))
    shown = sum(bool(row["snapshot"]) for row in mutants if row["by"] != "load")
    killed = sum(row["by"] != "survived" for row in mutants)
    print(f"killed {killed / max(1, len(mutants)):.1%}, a snapshot changes for {shown / max(1, len(mutants)):.1%}")
    wrong = [row for row in harmless if row["by"] in WITHOUT_SNAPSHOT]
    print(f"harmless edits: {len(harmless)}, reported {len(wrong)} ({len(wrong) / max(1, len(harmless)):.1%})")
    for row in wrong:
        print(f"  {row['task']} {row['operator']}: {row['what']}")


def _line(name: str, rows: list[dict[str, str]]) -> str:
    counts = Counter(row["by"] for row in rows)
    alone = sum(counts[by] for by in WITHOUT_SNAPSHOT)
    figures = " ".join(f"{counts[by]:8}" for by in BY)
    return f"{name:40} {len(rows):8} {figures}  {alone / max(1, len(rows)):.0%}"


if __name__ == "__main__":
    main()
