"""Mutants of this package: which mistakes in its code the nearest tests notice.

    python benchmarks/bench_own_mutants.py [--count N] [--seed S] [--only GLOB …] [--seconds S]

A mutant is one changed expression of one module, drawn at random, kinds evenly, in a copy of the repository. The
nearest tests of a module are

1. of a module with rules the examples of its codes (tests/rules/test_rules_examples.py -k),
2. the test files called by its name or listed in ELSEWHERE, then those that name it or one of its codes, first those of
   its package, and those that do it most often,
3. the files of the folder that mirrors its package (tests/rules of rules/chat, tests/system_helm of systems/helm), up
   to eight files in all; the smallest first,
4. the trials of these files that are marked slow.

They run with -x. Each mutant is `killed` by the test that is printed and passes without the mutant, or has `survived`,
or is `undecided`: the time was over, or that test fails without the mutant as well.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = "pytest_promptfmt"
EXAMPLES: Final = "tests/rules/test_rules_examples.py"
MOST_FILES: Final = 8
ELSEWHERE: Final = {
    "answers/run_*.py": "tests/cli/test_cli_compare.py",
    "cli/[dov]*.py": "tests/cli/test_cli_show.py tests/cli/test_cli_check.py tests/cli/test_cli_versions.py",
    "cli/__init__.py": "tests/cli/test_cli_check.py",
    "cli/review.py": "tests/cli/test_cli_accept.py",
    "core/finding.py": "tests/results/test_findings_ranked.py tests/rules/test_rules_engine.py",
    "core/json_values.py": "tests/results/test_outcomes.py tests/results/test_findings_ranked.py",
    "core/prompt.py": "tests/tasks/test_rendering_tasks.py",
    "core/sandbox.py": "tests/tasks/test_rendering_jinja.py tests/hostile/test_hostile_cases.py",
    "core/source_imports.py": "tests/tasks/test_sources_functions.py tests/rules/test_code_mistakes.py",
    "core/yaml_parser.py": "tests/tasks/test_sources_yaml.py tests/hostile/test_hostile_cases.py",
    "formats/*.py": "tests/formats/test_formats_seed_examples.py tests/formats/test_formats_declared.py",
    "inputs/outcome_cache.py": "tests/cli/test_cli_cache.py",
    "inputs/*.py": "tests/plugin/test_plugin_cache.py",
    "plugin/items/answer_items.py": "tests/answers/test_scoring_items.py tests/answers/test_recording_items.py",
    "plugin/items/command_items.py": "tests/system_helm/test_plugin_helm.py",
    "plugin/items/item.py": "tests/plugin/test_plugin_failures.py",
    "plugin/items/lint_items.py": "tests/plugin/test_plugin_findings.py tests/plugin/test_plugin_baseline.py",
    "plugin/items/prompt_items.py": "tests/plugin/test_plugin_adoption.py tests/plugin/test_plugin_tokens.py",
    "plugin/outcome_reports.py": "tests/plugin/test_plugin_causes.py tests/plugin/test_plugin_code.py",
    "plugin/printed_output.py": "tests/hostile/test_limits_of_workers.py",
    "plugin/unchanged.py": "tests/plugin/test_plugin_cache.py",
    "plugin/worker_*.py": "tests/hostile/test_limits_of_workers.py tests/plugin/test_plugin_causes.py",
    "profiles/conversation.py": "tests/profiles/test_chat_prompt.py tests/system_templates/test_template_rules.py",
    "profiles/*trial*.py": "tests/system_templates/test_template_rules.py",
    "profiles/*tokenizer*.py": "tests/profiles/test_loading.py",
    "results/lint_formats.py": "tests/cli/test_cli_check.py",
    "results/terminal.py": "tests/plugin/test_plugin_clusters.py",
    "revisions/*.py": "tests/cli/test_cli_diff.py",
    "revisions/task_changes.py": "tests/revisions/test_comparison_clusters.py",
    "revisions/upstream.py": "tests/cli/test_cli_outdated.py",
    "settings/*.py": "tests/plugin/test_plugin_settings.py",
    "settings/table.py": "tests/hostile/test_commands.py",
    "settings/tree.py": "tests/answers/test_scoring_items.py tests/plugin/test_plugin_code.py",
    "snapshots/extension.py": "tests/snapshots/test_no_snapshot_lost.py",
    "study/gold.py": "tests/rules/test_rules_scoring.py",
    "study/request_comparison.py": "tests/cli/test_cli_verify.py tests/revisions/test_task_rendering.py",
    "tasks/docs/frozen_docs.py": "tests/cli/test_cli_freeze.py",
    "tasks/docs/*.py": "tests/tasks/test_docs_files.py tests/tasks/test_docs_loading.py",
    "tasks/harness*.py": "tests/tasks/test_forks.py",
    "tasks/harness_renderer.py": "tests/cli/test_cli_verify.py tests/parity/test_media_parity.py",
    "tasks/rendering/*.py": "tests/tasks/test_rendering_tasks.py tests/tasks/test_rendering_jinja.py",
    "tasks/scoring/*.py": "tests/answers/test_scoring_metrics.py tests/answers/test_scoring_battery.py",
    "tasks/synthetic/*.py": "tests/tasks/test_synthetic_docs.py tests/tasks/test_synthetic_code.py",
    "tasks/task_*.py": "tests/tasks/test_sources_lm_eval.py tests/tasks/test_sources_groups.py",
}
"""Modules whose tests have the name of neither module nor package."""
KINDS: Final = ("compare", "boolop", "not", "if", "return", "arithmetic", "int", "bool")
_OPPOSITE: Final[dict[type[ast.AST], ast.cmpop | ast.operator | ast.boolop]] = {
    ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(), ast.In: ast.NotIn(),
    ast.NotIn: ast.In(), ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(),
    ast.And: ast.Or(), ast.Or: ast.And(), ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.FloorDiv(),
    ast.FloorDiv: ast.Mult(), ast.Div: ast.Mult(), ast.Mod: ast.Add(),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One expression of a module, and the text that takes its place."""

    module: Path
    line: int
    kind: str
    start: int
    end: int
    new: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with the mistake in it."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def described(self, source: bytes) -> str:
        """Return what becomes what."""
        old = source[self.start : self.end].decode()
        return f"{self.module}:{self.line} {self.kind}: {' '.join(old.split())[:70]} -> {self.new[:70]}"


def mutants_of(module: Path) -> Iterator[Mutant]:
    """Yield all mutants of a module; text of f-strings, annotations and decorators stay."""
    source = (ROOT / module).read_bytes()
    starts = [0, *(match.end() for match in re.finditer(b"\n", source))]
    for node in _nodes(ast.parse(source)):
        for kind, target, new in _changes(node):
            assert target.end_lineno is not None
            assert target.end_col_offset is not None
            start = starts[target.lineno - 1] + target.col_offset
            end = starts[target.end_lineno - 1] + target.end_col_offset
            yield Mutant(module, target.lineno, kind, start, end, new)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list") or isinstance(value, ast.JoinedStr):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr):
                yield node
                yield from _nodes(node)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr, str]]:
    match node:
        case ast.Compare(left, [operator], [right]):
            other = _OPPOSITE[type(operator)]
            assert isinstance(other, ast.cmpop)
            yield "compare", node, f"({ast.unparse(ast.Compare(left, [other], [right]))})"
        case ast.BoolOp(operator, values):
            other = _OPPOSITE[type(operator)]
            assert isinstance(other, ast.boolop)
            yield "boolop", node, f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield "not", node, f"({ast.unparse(operand)})"
        case ast.BinOp(left, operator, right) if type(operator) in _OPPOSITE and not _is_text(left, right):
            other = _OPPOSITE[type(operator)]
            assert isinstance(other, ast.operator)
            yield "arithmetic", node, f"({ast.unparse(ast.BinOp(left, other, right))})"
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return", value, "None"
        case ast.If(test) | ast.IfExp(test) if ast.unparse(test) != "TYPE_CHECKING":
            yield "if", test, f"(not ({ast.unparse(test)}))"
        case ast.Constant(bool() as value):
            yield "bool", node, str(not value)
        case ast.Constant(int() as value):
            yield "int", node, str(value + 1)


def _is_text(*operands: ast.expr) -> bool:
    return any(isinstance(each, ast.JoinedStr) or isinstance(getattr(each, "value", None), str) for each in operands)


def nearest_tests(module: Path) -> list[list[str]]:
    """Return the arguments of the runs of pytest that test a module, the nearest first."""
    source = (ROOT / module).read_text("utf-8")
    dotted = ".".join(module.with_suffix("").parts).removesuffix(".__init__")
    parent, _, name = dotted.rpartition(".")
    codes = sorted(set(re.findall(r'@(?:(?:\w+_)?rule|also|query)\(\s*"(PF\d+)"', source)))
    is_named = re.compile(
        "|".join([rf"{re.escape(dotted)}\b", rf"from {re.escape(parent)} import [^\n]*\b{name}\b", *codes])
    )
    parts = module.parts[1:-1]
    mirror = (
        ROOT / "tests" / (f"system_{parts[1]}" if parts[:1] == ("systems",) and len(parts) > 1 else "/".join(parts[:1]))
    )
    files = {path: path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    naming = {path: len(is_named.findall(text)) for path, text in files.items() if path != ROOT / EXAMPLES}
    called = re.compile(rf"_{name}(_|\b)")
    order = sorted((path for path in files if called.search(path.stem)), key=lambda path: path.stat().st_size)
    order += [ROOT / test for pattern, tests in ELSEWHERE.items() if module.match(pattern) for test in tests.split()]
    named = [path for path, count in naming.items() if count and path not in order]
    order += sorted(named, key=lambda path: (not path.is_relative_to(mirror), -naming[path]))
    if parts:
        near = (path for path in files if path.is_relative_to(mirror) and path not in order and path != ROOT / EXAMPLES)
        order += sorted(near, key=lambda path: path.stat().st_size)
    chosen = [str(path.relative_to(ROOT)) for path in order[:MOST_FILES]]
    slow = [str(path.relative_to(ROOT)) for path in order[:MOST_FILES] if "mark.slow" in files[path]]
    runs = [[EXAMPLES, "-k", " or ".join(codes)] if codes else [], chosen, [*slow, "-m", "slow"] if slow else []]
    return [run for run in runs if run]


class Copy:
    """A copy of the repository in which one module at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "copy"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)
        self._environment = {
            **{key: value for key, value in os.environ.items() if key not in ("CI", "PYTHONDONTWRITEBYTECODE")},
            "PYTHONPATH": str(self.folder), "PROMPTFMT_CACHE_DIR": str(folder / "cache"),
        }  # fmt: skip
        self._time = 2_000_000_000
        where = [sys.executable, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)"]  # else no mutant would be tested
        found = subprocess.run(where, cwd=folder, env=self._environment, capture_output=True, text=True, check=True)
        assert Path(found.stdout.strip()).is_relative_to(self.folder), f"tests would import {found.stdout.strip()}"

    def write(self, module: Path, content: bytes) -> None:
        """Change a module; each version has a time of its own, for compiled files are found by it."""
        self._time += 10
        (self.folder / module).write_bytes(content)
        os.utime(self.folder / module, (self._time, self._time))

    def failed(self, arguments: list[str], seconds: float) -> str | None:
        """Return the test that failed, "" where none did; None where the time was over."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *arguments]
        with tempfile.TemporaryFile("w+") as output:
            run = subprocess.Popen(
                command, cwd=self.folder, env=self._environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                status = run.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
                return None
            output.seek(0)
            found = re.search(r"^(?:FAILED|ERROR) (\S+::.*?|\S+)(?: - .*)?$", output.read(), re.MULTILINE)
        if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return ""
        return found[1] if found else "collection"


def verdict(copy: Copy, mutant: Mutant, seconds: float) -> tuple[str, str]:
    """Return what became of a mutant, and the test that says so."""
    source = (ROOT / mutant.module).read_bytes()
    runs = nearest_tests(mutant.module)
    if not runs:
        return "undecided", "no tests"
    for arguments in runs:
        copy.write(mutant.module, mutant.applied(source))
        failed = copy.failed(arguments, seconds)
        copy.write(mutant.module, source)
        if failed is None:
            return "undecided", f"more than {seconds:.0f} s"
        if failed:
            again = [failed] if "::" in failed else arguments
            return ("killed", failed) if copy.failed(again, seconds) == "" else ("undecided", f"fails anyway: {failed}")
    return "survived", " ".join(name for run in runs for name in run)


def main() -> None:
    """Draw, run, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="how many mutants")
    parser.add_argument("--seed", default="1", help="what the draw begins with")
    parser.add_argument("--only", nargs="+", default=["**/*.py"], help="only modules of the package that match")
    parser.add_argument("--seconds", type=float, default=600, help="the limit of one run of tests")
    arguments = parser.parse_args()
    found = {path for glob in arguments.only for path in (ROOT / PACKAGE).glob(glob)}
    modules = sorted(path.relative_to(ROOT) for path in found)
    by_kind: dict[str, list[Mutant]] = {kind: [] for kind in KINDS}
    for mutant in (mutant for module in modules for mutant in mutants_of(module)):
        by_kind[mutant.kind].append(mutant)
    chance = random.Random(arguments.seed)
    drawn = [chance.choice(by_kind[KINDS[number % len(KINDS)]]) for number in range(arguments.count)]
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for mutant in drawn:
            became, why = verdict(copy, mutant, arguments.seconds)
            counts[became] += 1
            print(f"{became:9} {mutant.described((ROOT / mutant.module).read_bytes())}\n          {why}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))


if __name__ == "__main__":
    main()
