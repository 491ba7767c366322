"""The rules on lm-eval's whole task tree: findings per code, and what they cost next to rendering.

    python benchmarks/bench_rules.py [--only GLOB] [--every N | --sample N --seed S] [--scoring] [--json findings.json]

Every task of the installed lm_eval is rendered for the default profiles, with their tokens, and then linted, in one
process, with synthetic docs; the functions of the tasks run. Seconds are processor time.
"""

import argparse
import importlib.util
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Reported
from pytest_promptfmt.core.limits import go_offline
from pytest_promptfmt.core.profile import DEFAULT_PROFILES, resolve_profiles
from pytest_promptfmt.rules.linter import Linter, check_file, check_scoring
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.snapshots.content import snapshot_document
from pytest_promptfmt.study import Studies, seen_by
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex, yaml_files


def main() -> None:
    """Render, lint, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="only the folders of lm_eval/tasks that match")
    parser.add_argument("--every", type=int, default=1, help="only every Nth file")
    parser.add_argument("--sample", type=int, help="only so many files, drawn at random: half of them evenly by folder")
    parser.add_argument("--seed", default="1", help="what the draw begins with")
    parser.add_argument("--scoring", action="store_true", help="apply the rules about scoring as well")
    parser.add_argument("--json", type=Path, help="write every finding to this file")
    arguments = parser.parse_args()
    go_offline()
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or spec.origin is None:
        sys.exit("lm_eval is not installed: pip install --group parity")
    root = Path(spec.origin).parent / "tasks"
    profiles = resolve_profiles(DEFAULT_PROFILES)
    settings = Settings(rootdir=root, profiles=profiles)
    studies, linter = Studies(lambda _task: settings), Linter()
    selection = Selection(rules=known_rules(), rootdir=root)
    index = TaskIndex([root])
    began = time.process_time()
    names = len(index.names)
    print(f"{names} names read in {time.process_time() - began:.1f} s")
    rendering = linting = 0.0
    tasks = failed = 0
    findings: list[Reported] = []
    folders = [folder for folder in sorted(root.glob(arguments.only)) if folder.is_dir()]
    files = [path for folder in folders for path in yaml_files(folder)]
    files = files[:: arguments.every] if arguments.sample is None else drawn(folders, files, arguments)
    for path in files:
        try:
            file = read_task_file(path, index)
        except PromptfmtError:
            continue
        if file is None or file.yaml is None:
            continue
        view = FileView(path=path, yaml=file.yaml, file=file, index=index)
        began = time.process_time()
        if not file.tasks:
            findings += check_file(view, selection).findings
        linting += time.process_time() - began
        for number, task in enumerate(file.tasks):
            tasks += 1
            began = time.process_time()
            study = studies.of(task)
            views = [seen_by(study, profile) for profile in profiles]
            try:
                for seen in views:
                    snapshot_document(seen)
            except PromptfmtError:
                failed += 1
            between = time.process_time()
            try:
                findings += linter.check(study, selection, views, file=None if number else view).findings
                if arguments.scoring and task.output_type in ("generate_until", "multiple_choice"):
                    findings += check_scoring(study, selection, is_linted=True).findings
            except PromptfmtError as error:
                print(f"{task.id}: {error}")
            rendering += between - began
            linting += time.process_time() - between
    print(f"{tasks} tasks, {failed} not rendered; rendering {rendering:.1f} s, rules {linting:.1f} s")
    by_code = Counter((finding.code, finding.name, str(finding.severity)) for finding in findings)
    tasks_of = {code: len({one.task for one in findings if one.code == code}) for code, _, _ in by_code}
    for (code, name, severity), count in sorted(by_code.items()):
        print(f"{code} {name:32} {severity:8} {count:6} findings {tasks_of[code]:6} tasks")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([finding.to_json() for finding in findings]), "utf-8")


def drawn(folders: list[Path], files: list[Path], arguments: argparse.Namespace) -> list[Path]:
    """Return files drawn by seed: half of all, half by folder, so that large folders do not hide small ones."""
    choice = random.Random(arguments.seed)
    chosen = set(choice.sample(files, arguments.sample // 2))
    while len(chosen) < min(arguments.sample, len(files)):
        chosen.add(choice.choice(list(yaml_files(choice.choice(folders))) or files))
    return sorted(chosen)


if __name__ == "__main__":
    main()
