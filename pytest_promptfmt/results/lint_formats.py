"""The result of a run for editors and CI servers: lines as of compilers, annotations of GitHub, SARIF 2.1.0."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pytest_promptfmt.core.finding import stable_key
from pytest_promptfmt.core.text import escape_controls, printable
from pytest_promptfmt.results.clusters import MEANINGS, FindingGroup
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.terminal import cause_lines
from pytest_promptfmt.results.wording import LINES, PLACES, below
from pytest_promptfmt.rules.documentation import documentation_of
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.settings.file import FILE_NAMES

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"

_LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}
_MEANINGS: Final[Mapping[str, str]] = {**MEANINGS, "version": "the prompt changed, but the task's version did not"}
_PLACED: Final = re.compile(r"(.+?:\d+)(?::(\d+))?: (.*)", re.DOTALL)
"""The line of an error with its place."""


def sarif_report(result: RunResult, more: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the result as one run of SARIF: each cause of findings and each distinct problem of snapshots once.

    `more` are further results, each made by `sarif_result`. Paths are below the rootdir, with slashes; columns are
    characters from 1.
    """
    results = [_of_finding(group, result.rootdir) for group in result.findings]
    for cluster in result.clusters:
        at = [(file, None, None) for file in cluster.files(result.rootdir)]
        level = "note" if cluster.category == "header-only" else "error"
        results.append(sarif_result(cluster.category, level, cluster.line, at, [cluster.key or cluster.title]))
    results += map(dict, more)
    rules = {group.code: _rule_of_finding(group) for group in result.findings}
    rules |= {name: _rule(name, name, _MEANINGS[name]) for each in results if (name := each["ruleId"]) not in rules}
    order = {code: number for number, code in enumerate(rules)}
    driver = {
        "name": "pytest-promptfmt",
        "version": version("pytest-promptfmt"),
        "rules": [*rules.values()],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [{**each, "ruleIndex": order[each["ruleId"]]} for each in results],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False) + "\n"


def sarif_result(
    rule: str, level: str, message: str, files: Iterable[tuple[str, int | None, int | None]], same: Sequence[str]
) -> dict[str, Any]:
    """Return one result: at the first of `files` (path, line, column), with the others as related ones.

    `level` is `error`, `warning` or `note`; `same` is what makes the result the same one in another run.
    """
    first, *others = [_location(*file) for file in files if file[0]] or [{}]
    data: dict[str, Any] = {
        "ruleId": rule,
        "level": level,
        "message": {"text": printable(message)},
        "locations": [first] if first else [],
        "partialFingerprints": {"promptfmt/v1": stable_key(json.dumps([rule, *same]))},
    }
    return {**data, "relatedLocations": others} if others else data


def _of_finding(group: FindingGroup, rootdir: Path) -> dict[str, Any]:
    message = "\n".join((group.message, *(line.strip() for line in cause_lines(group, rootdir, LINES))))
    at = [(below(place.file, rootdir), place.line, place.column) for place in group.places]
    # With its files and keys: a further place is a new result, which a pull request shows.
    places = sorted({f"{below(place.file, rootdir)} {place.keys}" for place in group.places})
    return sarif_result(group.code, _LEVELS[group.severity], message, at, [*places, group.message])


def _rule_of_finding(group: FindingGroup) -> dict[str, Any]:
    known = known_rules().get(group.code)  # a rule of the repository may be known only in another process
    summary = documentation_of(known).summary if known is not None else group.message
    return {**_rule(group.code, group.name, summary), "help": {"text": f"promptfmt explain {group.code}"}}


def _rule(code: str, name: str, summary: str) -> dict[str, Any]:
    return {"id": code, "name": name, "shortDescription": {"text": printable(summary)}}


def _location(file: str, line: int | None, column: int | None) -> dict[str, Any]:
    place = Path(file)
    uri = place.as_uri() if place.is_absolute() else quote(file, errors="surrogateescape")
    physical: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    if line:
        physical["region"] = {"startLine": line, **({"startColumn": column} if column else {})}
    return {"physicalLocation": physical}


# -- lines and annotations ---------------------------------------------------------------------------------------------


def concise_lines(result: RunResult) -> Iterator[str]:
    """Yield `file:line:column: error: CODE message` for each place of a finding, and the same for other problems.

    Editors read the form, which is gcc's and mypy's: a finding without a file is at the settings, where profiles are.
    `[*]` marks findings of rules with a fix.
    """
    for group in result.findings:
        for place in group.places:
            at = f"{below(place.file, result.rootdir) or FILE_NAMES[0]}:{place.line or 1}:{place.column or 1}"
            yield printable(f"{at}: {group.headline}" + ("" if place.file else f" ({group.where})"))
    for cluster in result.clusters:
        level = "warning" if cluster.category == "header-only" else "error"
        placed = _PLACED.fullmatch(cluster.headline) if cluster.category == "error" else None
        if placed is not None:
            yield printable(f"{placed[1]}:{placed[2] or 1}: error: {placed[3]}")
            continue
        code = "" if cluster.category == level else f"{cluster.category}: "
        for file in cluster.files(result.rootdir):
            yield printable(f"{file}:1:1: {level}: {code}{cluster.headline}")


def github_annotations(result: RunResult) -> Iterator[str]:
    """Yield a command of GitHub's runner for each cause of findings and each distinct change, at their first places."""
    for group in result.findings:
        file, line, column = (place := group.places[0]).file, place.line, place.column
        at = {"file": below(file, result.rootdir)} if file else {}
        at |= {"line": str(line)} if line else {}
        at |= {"col": str(column)} if line and column else {}
        text = "\n".join((group.message, *cause_lines(group, result.rootdir, PLACES)))
        level = _LEVELS[group.severity].replace("note", "notice")
        yield github_annotation(level, at, f"{group.code} {group.name}", text)
    for cluster in result.clusters:
        level = "notice" if cluster.category == "header-only" else "error"
        at = {"file": cluster.files(result.rootdir)[0]}
        yield github_annotation(level, at, f"{cluster.category}, {cluster.size()}", cluster.headline)


def github_annotation(level: str, place: dict[str, str], title: str, message: str) -> str:
    """Return one command of GitHub's runner; no name or message can end it or begin another."""
    given = {name: _data(value) for name, value in {**place, "title": title}.items()}
    named = ",".join(f"{name}={text.replace(':', '%3A').replace(',', '%2C')}" for name, text in given.items())
    return f"::{level} {named}::{_data(message)}"


def _data(text: str) -> str:
    return escape_controls(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
