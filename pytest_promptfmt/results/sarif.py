"""The result of a run as SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pytest_promptfmt.core.finding import stable_key
from pytest_promptfmt.results.clusters import Cluster, FindingGroup, FindingPlace
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.wording import below, counted, printable
from pytest_promptfmt.rules.documentation import documentation_of
from pytest_promptfmt.rules.rule_registry import known_rules

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"

_LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}
OF_CATEGORY: Final[Mapping[str, str]] = {
    "error": "A task that cannot be read, rendered or scored.",
    "damaged": "A snapshot that cannot be trusted.",
    "misread": "An answer that is not read or scored as it should be.",
    "changed": "A prompt that is not the one in its snapshot.",
    "new": "A prompt without a snapshot.",
    "renamed": "A prompt whose snapshot is under another name.",
    "obsolete": "A snapshot that no task defines.",
    "header-only": "A snapshot whose header is out of date.",
    "version": "A prompt that changed while its version did not.",
}
"""Categories of problems, each with its meaning."""


def sarif_report(result: RunResult, more: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the result as one run of SARIF: findings by place, each distinct problem of snapshots and answers once.

    `more` are further results, each made by `sarif_result`. Paths are below the rootdir, with slashes; columns are
    characters from 1.
    """
    results = [_of_finding(group, place, result.rootdir) for group in result.findings for place in group.places]
    results += [_of_cluster(cluster, result.rootdir) for cluster in result.clusters]
    results += map(dict, more)
    rules = {group.code: _rule_of_finding(group) for group in result.findings}
    rules |= {name: _rule(name, name, OF_CATEGORY[name]) for each in results if (name := each["ruleId"]) not in rules}
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


def _of_finding(group: FindingGroup, place: FindingPlace, rootdir: Path) -> dict[str, Any]:
    file = below(place.file, rootdir)
    tasks = f" ({counted(len(place.tasks), 'task')})" if len(place.tasks) > 1 else ""
    saw = f"\nsaw: {place.saw}" if place.saw else ""
    message = f"{group.message}{tasks}: {group.do}{saw}"
    at = [(file, place.line, place.column)]
    return sarif_result(group.code, _LEVELS[group.severity], message, at, [file, place.keys, group.message])


def _of_cluster(cluster: Cluster, rootdir: Path) -> dict[str, Any]:
    files = dict.fromkeys(below(member.file, rootdir) for member in cluster.members)
    size = f"{counted(len(cluster.members), 'item')} of {counted(len(cluster.tasks), 'task')}"
    level = "note" if cluster.category == "header-only" else "error"
    message = f"{cluster.category}, {size}: {cluster.title or OF_CATEGORY[cluster.category]}"
    return sarif_result(
        cluster.category, level, message, [(file, None, None) for file in files], [cluster.key or cluster.title]
    )


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
