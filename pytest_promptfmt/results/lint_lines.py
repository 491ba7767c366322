"""The result of a run as linters print it: lines that editors and CI servers read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.terminal import SHOWN_PLACES, cause_lines
from pytest_promptfmt.results.wording import below, printable

_ANNOTATION_LEVELS: Final = {"error": "error", "warning": "warning", "info": "notice"}


def concise_lines(result: RunResult) -> Iterator[str]:
    """Yield `file:line:column: error: CODE message` for each place of a finding, and the same for other problems.

    Editors read the form, which is gcc's and mypy's. `[*]` marks findings of rules with a fix.
    """
    for group in result.findings:
        for place in group.places:
            yield printable(f"{place.at(result.rootdir) or group.where}: {group.headline}")
    for cluster in result.clusters:
        level = "warning" if cluster.category == "header-only" else "error"
        for file in cluster.files(result.rootdir):
            yield printable(f"{file}:1:1: {level}: {cluster.category} {cluster.headline}")


def github_annotations(result: RunResult) -> Iterator[str]:
    """Yield a command of GitHub's runner for each cause of findings and each distinct change, at their first places."""
    for group in result.findings:
        file, line, column = (place := group.places[0]).file, place.line, place.column
        at = {"file": below(file, result.rootdir)} if file else {}
        at |= {"line": str(line)} if line else {}
        at |= {"col": str(column)} if line and column else {}
        text = "\n".join((group.message, *cause_lines(group, result.rootdir, SHOWN_PLACES)))
        yield github_annotation(_ANNOTATION_LEVELS[group.severity.value], at, f"{group.code} {group.name}", text)
    for cluster in result.clusters:
        level = "notice" if cluster.category == "header-only" else "error"
        at = {"file": cluster.files(result.rootdir)[0]}
        yield github_annotation(level, at, f"{cluster.category}, {cluster.size()}", cluster.headline)


def github_annotation(level: str, place: dict[str, str], title: str, message: str) -> str:
    """Return one command of GitHub's runner; no name or message can end it or begin another."""
    named = ",".join(f"{name}={_property(value)}" for name, value in {**place, "title": title}.items())
    return f"::{level} {named}::{_data(message)}"


def _data(text: str) -> str:
    return escape_controls(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
