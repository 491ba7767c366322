"""What `promptfmt diff` says of real and synthetic changes, against what lm-eval itself renders of both sides.

    python benchmarks/bench_diff_truth.py WHEELS --changes 40 --edits 20
    python benchmarks/bench_diff_truth.py --repository CLONE --commits 20

CLONE is a clone of lm-eval or of a fork of it, of whose commits that touch tasks some are drawn at random; each is
compared with its parent.

WHEELS is a folder with the unpacked wheels of lm-eval, each in a folder that its version names. Every consecutive
pair of them gives revisions of single folders of tasks; `--edits` more are written into folders of the last version.
Each becomes a git repository of two commits. Truth are the requests of the installed lm-eval for both sides: with the
task's own shots and with two, for docs that were made for either side, for docs of odd texts that this script writes,
and, where `process_docs` accepts them, with it. A task is changed where any request differs that both sides give.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.systems.task_files import load_tasks, read_task_file
from pytest_promptfmt.tasks.docs.doc_sources import load_docs

SIDE = Path(__file__).with_name("lm_eval_side.py")
SHOTS = 2
MOST_FILES = 60
MOST_TASKS = 4
MOST_TASKS_OF_COMMIT = 12
SINCE = "2024-06-01"
READING = re.compile(r"(?:filter|metric) |repeats:|process_results:")
ODD_TEXTS = (
    "  What is 7 x 8? ",
    "THE CAT SAT.",
    "a man walks [title] into a [step] room. He sits",
    "Paris\n\nis in France",
    "naïve café — “quoted”",
    "1,234.50 %",
    "A) yes (B) no",
    "no",
    "",
    "x" * 40 + "  two  spaces",
    "iPhone's user_name = {'a': 1}",
    "Is it?\tYes! \\boxed{3} $x^2$ #### 42",
)


def odd(value: Any, draw: random.Random) -> Any:
    """Return the value with other texts in it, of the same shape."""
    if isinstance(value, str):
        return draw.choice(ODD_TEXTS) if draw.random() < 0.7 else value
    if isinstance(value, list):
        return [odd(item, draw) for item in value]
    return {name: odd(item, draw) for name, item in value.items()} if isinstance(value, dict) else value


def docs_for(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield lists of docs that fit a task: synthetic ones, and the same with odd texts."""
    try:
        [task] = load_tasks(path, allow_code=True)
        docs = load_docs(task, count=4, num_fewshot=2)
    except (PromptfmtError, ValueError):
        return
    rows = [dict(doc) for doc in (*docs.evaluated, *docs.fewshot) if doc.keys() == docs.evaluated[0].keys()]
    yield rows
    draw = random.Random(7)
    for _ in range(2):
        yield [odd(rows[0], draw), *rows[1:]]
        yield [rows[0], *(odd(row, draw) for row in rows[1:])]


class LmEval:
    """The installed lm-eval in a process, which answers line by line."""

    def __init__(self) -> None:
        self._side = subprocess.Popen(
            [sys.executable, str(SIDE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, path: Path, docs: list[dict[str, Any]], shots: int | None, process: bool) -> list[Any] | None:
        """Return the requests, None where it fails."""
        wanted = {"id": 0, "path": str(path), "docs": docs, "shots": shots, "process": process}
        assert self._side.stdin is not None
        assert self._side.stdout is not None
        self._side.stdin.write(json.dumps(wanted, default=str) + "\n")
        self._side.stdin.flush()
        found: list[Any] | None = json.loads(self._side.stdout.readline()).get("requests")
        return found

    def close(self) -> None:
        """End the process."""
        assert self._side.stdin is not None
        self._side.stdin.close()
        self._side.wait()


_known: dict[str, str] = {}


def cached_truth(ask: LmEval, commit: str, task: str, old: Path, new: Path) -> str:
    """Return `truth`, from the file that PROMPTFMT_TRUTH names where it is known."""
    file = os.environ.get("PROMPTFMT_TRUTH")
    key = f"{commit} {task}"
    if file and not _known and Path(file).exists():
        _known.update(json.loads(Path(file).read_text("utf-8")))
    if key not in _known:
        _known[key] = truth(ask, old, new)
        if file:
            Path(file).write_text(json.dumps(_known), "utf-8")
    return _known[key]


def truth(ask: LmEval, old: Path, new: Path) -> str:
    """Return whether any request differs between two files of one task: `changed`, `same`, `nobody knows`."""
    works = False
    for path in (old, new):
        for docs in docs_for(path):
            for shots, process in ((None, False), (SHOTS, False), *([(None, True)] if has_hook(new) else [])):
                sides = [ask(each, docs, shots, process) for each in (old, new)]
                if None not in sides:
                    works = True
                    if sides[0] != sides[1]:
                        return "changed"
    return "same" if works else "nobody knows"


def tasks_of(tree: Path) -> dict[str, Path]:
    """Return the tasks that one file of a tree defines alone, with that file."""
    found: dict[str, list[Path]] = {}
    for path in sorted(tree.rglob("*.yaml")):
        try:
            file = read_task_file(path)
        except PromptfmtError:
            continue
        if file is not None and file.kind == "task" and len(file.tasks) == 1:
            found.setdefault(file.tasks[0].name, []).append(path)
    return {name: paths[0] for name, paths in found.items() if len(paths) == 1}


def is_touched(old: Path, new: Path) -> bool:
    """Return whether a task's file, one that it includes or a Python file beside it differs."""
    return texts_of(old) != texts_of(new)


def touched_tasks(old: Mapping[str, Path], new: Mapping[str, Path]) -> list[str]:
    """Return the tasks that both sides have, and that may differ."""
    return sorted(name for name in old.keys() & new.keys() if is_touched(old[name], new[name]))


def texts_of(path: Path) -> list[bytes]:
    """Return what a task's file, its includes and the Python files beside it hold."""
    file = read_task_file(path)
    parts = [part.path for part in file.yaml.parts] if file is not None and file.yaml is not None else [path]
    return [part.read_bytes() for part in (*parts, *sorted(path.parent.glob("*.py")))]


def has_hook(path: Path) -> bool:
    """Return whether a task has a `process_docs`."""
    return any(task.dataset.process_docs is not None for task in load_tasks(path))


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that may have a say in prompts."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".md", ".pyc", ".png"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def real_changes(wheels: Path, draw: random.Random) -> list[tuple[str, Path, Path]]:
    """Return the folders that differ between consecutive releases, in random order: a name, the old and new folder."""
    versions = sorted(wheels.iterdir(), key=lambda path: [int(part) for part in path.name.split(".")])
    found = []
    for old, new in pairwise(versions):
        tasks = [side / "lm_eval" / "tasks" for side in (old, new)]
        for folder in sorted(path.name for path in tasks[0].iterdir() if path.is_dir()):
            sides = [each / folder for each in tasks]
            is_small = sum(1 for _ in sides[1].rglob("*.yaml")) <= MOST_FILES
            if sides[1].is_dir() and is_small and contents(sides[0]) != contents(sides[1]):
                found.append((f"{old.name} → {new.name} {folder}", sides[0], sides[1]))
    draw.shuffle(found)
    return found


EDITS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "a comment": (".yaml", lambda text: f"# a remark\n{text}"),
    "spaces in templates": (".yaml", lambda text: text.replace("{{", "{{ ").replace("}}", " }}")),
    "a fewshot delimiter": (".yaml", lambda text: f"{text}\nfewshot_delimiter: '\\n'\n"),
    "a target delimiter": (".yaml", lambda text: f"{text}\ntarget_delimiter: ''\n"),
    "no cue": (".yaml", lambda text: text.replace("Answer:", "Answer")),
    "stripped": (".yaml", lambda text: text.replace("question}}", "question.strip()}}")),
    "no strip in code": (".py", lambda text: text.replace(".strip()", "")),
    "other words in code": (".py", lambda text: text.replace("Question", "Frage").replace("Answer", "Antwort")),
    "docstrings": (".py", lambda text: re.sub(r"(?m)^(def \w+\([^)]*\)[^:\n]*:)\n", '\\1\n    """Say."""\n', text)),
    "an f-string": (".py", lambda text: text.replace('+ "\\n"', '+ f"\\n"')),
}


def edited(wheels: Path, count: int, draw: random.Random, scratch: Path) -> Iterator[tuple[str, Path, Path]]:
    """Yield folders of the last release with one kind of edit in all of their files."""
    last = max(wheels.iterdir(), key=lambda path: [int(part) for part in path.name.split(".")])
    folders = sorted(path for path in (last / "lm_eval" / "tasks").iterdir() if path.is_dir())
    draw.shuffle(folders)
    for number, folder in enumerate(folders):
        name = [*EDITS][count % len(EDITS)]
        suffix, edit = EDITS[name]
        if count == 0 or sum(1 for _ in folder.rglob("*.yaml")) > MOST_FILES:
            continue
        copy = scratch / f"edited{number}"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
        changed = 0
        for path in copy.rglob(f"*{suffix}"):
            text = path.read_text("utf-8")
            changed += edit(text) != text
            path.write_text(edit(text), "utf-8")
        if changed:
            count -= 1
            yield f"{name} in {folder.name}", folder, copy


def repository_of(old: Path, new: Path, name: str, scratch: Path) -> Path:
    """Return a git repository whose first commit has the old folder, and whose work tree the new one."""
    top = Path(tempfile.mkdtemp(dir=scratch))
    place = top / name
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
    shutil.copytree(old, place, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], cwd=top, check=True, capture_output=True)
    for path in place.iterdir():
        if path.name != ".git":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(new, place, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return top


def commits_of(clone: Path, count: int, draw: random.Random) -> Iterator[tuple[str, Path, Path]]:
    """Yield commits of pull requests that touch tasks: a name, and both sides of the folders that they touch."""
    tasks = ["lm_eval/tasks/*.yaml", "lm_eval/tasks/*.py"]
    log = _git(clone, "log", "--no-merges", f"--since={SINCE}", "--format=%H %s", "--", *tasks)
    known = [line for line in log.splitlines() if re.search(r"\(#\d{4}\)$", line)]
    draw.shuffle(known)
    for line in known:
        commit, _, subject = line.partition(" ")
        files = _git(clone, "diff", "--name-only", "--no-renames", f"{commit}^", commit, "--", *tasks).splitlines()
        old, new = (_archived(clone, revision, files) for revision in (f"{commit}^", commit))
        if touched_tasks(tasks_of(old), tasks_of(new)):
            count -= 1
            yield f"{commit[:9]} {subject}", old, new
        shutil.rmtree(old)
        shutil.rmtree(new)
        if not count:
            return


def _archived(clone: Path, revision: str, files: Iterable[str]) -> Path:
    """Return a folder with the folders of tasks of a revision in which some files are."""
    side = Path(tempfile.mkdtemp()).resolve()
    there = {*_git(clone, "ls-tree", "-d", "--name-only", revision, "lm_eval/tasks/").splitlines()}
    folders = sorted(there & {"/".join(file.split("/")[:3]) for file in files})
    if folders:
        packed = subprocess.run(
            ["git", "archive", revision, *folders], cwd=clone, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "x", "-C", side], input=packed, check=True)
    return side


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def said(result: Mapping[str, Any]) -> dict[str, str]:
    """Return what `promptfmt diff` says of each task, the strongest first."""
    told: dict[str, str] = {}
    for cluster in result["clusters"]:
        if cluster["category"] != "header-only" and not READING.match(cluster["title"]):
            for member in cluster["members"]:
                told.setdefault(member["task"].partition("@")[0], "changed")
    for each in result["unknown"]:
        if not each["reason"].startswith("answers: "):
            told.setdefault(each["task"].partition("@")[0], "unknown")
    for name in result["same"]:
        told.setdefault(name.partition("@")[0], "the same text")
    return told


def compared(top: Path, *revisions: str) -> dict[str, Any] | None:
    """Return what `promptfmt diff` says in a repository; None where it fails, which is printed."""
    command = [sys.executable, "-m", "pytest_promptfmt", "diff", *revisions, "--profile", "plain", "--json"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=top, capture_output=True, text=True, env=environment, check=False)
    if done.returncode == 2:
        print(f"{' '.join(revisions)}: {done.stderr[-300:]}")
        return None
    result: dict[str, Any] = json.loads(done.stdout)
    return {**result, "returned": done.returncode}


def judged(
    ask: LmEval,
    result: Mapping[str, Any],
    sides: Sequence[Mapping[str, Path]],
    name: str,
    most: int,
    causes: Counter[str],
) -> Counter[tuple[str, str]]:
    """Return how often our answer and the truth fall together, for some of the tasks that are touched."""
    told = said(result)
    reasons = {each["task"].partition("@")[0]: each["reason"] for each in result["unknown"]}
    row: Counter[tuple[str, str]] = Counter()
    common = touched_tasks(*sides)
    for task in random.Random(1).sample(common, min(most, len(common))):
        really = cached_truth(ask, name, task, sides[0][task], sides[1][task])
        ours = told.get(task, "unchanged")
        row[ours, really] += 1
        if ours == "unknown":
            causes[f"{really}: {reasons[task]}"] += 1
        is_silent = really == "changed" and ours in ("unchanged", "the same text")
        if is_silent or (really == "same" and ours == "changed"):
            print(f"  {task}: said {ours}, lm-eval: {really}")
    return row


def main() -> None:
    """Print each disagreement, how often the answers fall together, and why tasks are unknown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="?")
    parser.add_argument("--changes", type=int, default=40)
    parser.add_argument("--edits", type=int, default=20)
    parser.add_argument("--repository", type=Path)
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--seed", type=int, default=20)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    table: Counter[tuple[str, str]] = Counter()
    causes: Counter[str] = Counter()
    ask = LmEval()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder).resolve()
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        changes: Iterator[tuple[str, Path, Path]]
        if options.repository:
            changes = commits_of(options.repository, options.commits, draw)
        else:
            real = (
                each
                for each in real_changes(options.wheels, draw)
                if tasks_of(each[1]).keys() & tasks_of(each[2]).keys()
            )
            changes = chain(islice(real, options.changes), edited(options.wheels, options.edits, draw, scratch))
        for number, (name, old, new) in enumerate(changes, start=1):
            top = repository_of(old, new, "" if options.repository else f"lm_eval/tasks/{old.name}", scratch)
            result = compared(top, "HEAD")
            if result is not None:
                most = MOST_TASKS_OF_COMMIT if options.repository else MOST_TASKS
                row = judged(ask, result, (tasks_of(old), tasks_of(new)), name, most, causes)
                table += row
                print(f"{number}. {name}: {dict(row)}, exit {result['returned']}, {result['counts']}", flush=True)
            shutil.rmtree(top)
    ask.close()
    for (ours, really), count in sorted(table.items()):
        print(f"{ours:>14} | {really:<14} {count:6,}")
    for cause, count in causes.most_common():
        print(f"{count:6,} {cause}")


if __name__ == "__main__":
    main()
