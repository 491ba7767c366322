"""The command `promptfmt`: what a rule means, and the pages of docs/checks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_promptfmt.checks.documentation import explanation, pages
from pytest_promptfmt.checks.registry import find_check, known_checks
from pytest_promptfmt.errors import PromptfmtError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 0, or 2 for a command that makes no sense."""
    parser = argparse.ArgumentParser(prog="promptfmt", description="prompt-format regression tests: the command line")
    commands = parser.add_subparsers(dest="command", required=True)
    explain = commands.add_parser("explain", help="say what a rule reports, why, and what to do")
    explain.add_argument("code", nargs="?", help="a code or name; without one all rules are listed")
    explain.add_argument("--checks", action="append", default=[], type=Path, help="a Python file that defines rules")
    docs = commands.add_parser("docs", help="write one page per rule, and an index")
    docs.add_argument("folder", type=Path)
    docs.add_argument("--checks", action="append", default=[], type=Path, help="a Python file that defines rules")
    given = parser.parse_args(arguments)
    try:
        if given.command == "docs":
            return _write_docs(given.folder, given.checks)
        return _explain(given.code, given.checks)
    except PromptfmtError as error:
        print(f"promptfmt: {error}", file=sys.stderr)
        return 2


def _explain(code: str | None, files: Sequence[Path]) -> int:
    if code is None:
        for check in known_checks(files).values():
            print(f"{check.code}  {check.severity:<7}  {check.name}")
        return 0
    print(explanation(find_check(code, files)))
    return 0


def _write_docs(folder: Path, files: Sequence[Path]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    own = [check for check in known_checks(files).values() if check.is_builtin or files]
    for name, text in pages(own).items():
        (folder / name).write_text(text, "utf-8")
    return 0
