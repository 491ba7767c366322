"""The result of a run for other programs: SARIF 2.1.0, annotations of GitHub's runner, one line per finding."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pytest_promptfmt.core.finding import stable_key
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.results.clusters import Cluster, FindingGroup, FindingPlace
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.wording import below, counted, printable
from pytest_promptfmt.rules.documentation import documentation_of
from pytest_promptfmt.rules.rule_registry import known_rules

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"

_LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}
_ANNOTATION_LEVELS: Final = {"error": "error", "warning": "warning", "info": "notice"}
_OF_CATEGORY: Final[Mapping[str, str]] = {
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


def sarif_report(result: RunResult, more: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the result as one run of SARIF: findings by place, each distinct problem of snapshots and answers once.

    `more` are further results, each made by `sarif_result`. Paths are below the rootdir, with slashes; columns are
    characters from 1.
    """
    results = [_of_finding(group, place, result.rootdir) for group in result.findings for place in group.places]
    results += [_of_cluster(cluster, result.rootdir) for cluster in result.clusters]
    results += map(dict, more)
    rules = {group.code: _rule_of_finding(group) for group in result.findings}
    rules |= {name: _rule(name, name, _OF_CATEGORY[name]) for each in results if (name := each["ruleId"]) not in rules}
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


def github_annotations(result: RunResult) -> Iterator[str]:
    """Yield commands of GitHub's runner: each place of a finding, and the first snapshot of each distinct change."""
    for group in result.findings:
        for place in group.places:
            at = {"file": below(place.file, result.rootdir)} if place.file else {}
            at |= {"line": str(place.line)} if place.line else {}
            at |= {"col": str(place.column)} if place.line and place.column else {}
            level = _ANNOTATION_LEVELS[group.severity.value]
            yield github_annotation(level, at, f"{group.code} {group.name}", f"{group.message}: {group.do}")
    for cluster in result.clusters:
        level = "notice" if cluster.category == "header-only" else "error"
        at = {"file": below(cluster.members[0].file, result.rootdir)}
        size = f"{counted(len(cluster.members), 'item')} of {counted(len(cluster.tasks), 'task')}"
        yield github_annotation(level, at, f"{cluster.category}, {size}", cluster.title)


def concise_lines(result: RunResult) -> Iterator[str]:
    """Yield `file:line:column CODE message` for each place of a finding, and `file category title` for other problems.

    `[*]` marks findings of rules with a fix.
    """
    known = known_rules()
    for group in result.findings:
        rule = known.get(group.code)
        mark = " [*]" if rule is not None and any(part.fix is not None for part in rule.all_parts) else ""
        for place in group.places:
            at = ":".join(str(part) for part in (below(place.file, result.rootdir), place.line, place.column) if part)
            yield printable(f"{at or group.where} {group.code} {group.message}{mark}".lstrip())
    for cluster in result.clusters:
        for file in dict.fromkeys(below(member.file, result.rootdir) for member in cluster.members):
            yield printable(f"{file} {cluster.category} {cluster.title or _OF_CATEGORY[cluster.category]}")


def statistics_lines(result: RunResult) -> Iterator[str]:
    """Yield how often each rule reported something, the most frequent first: `12 PF201 doubled-whitespace`."""
    known, counts = known_rules(), Counter[tuple[str, str]]()
    for group in result.findings:
        counts[group.code, group.name] += group.count
    width = max((len(str(count)) for count in counts.values()), default=0)
    for (code, name), count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        rule = known.get(code)
        mark = " [*]" if rule is not None and any(part.fix is not None for part in rule.all_parts) else ""
        yield f"{count:>{width}} {code} {name}{mark}"


def github_annotation(level: str, place: dict[str, str], title: str, message: str) -> str:
    """Return one command of GitHub's runner; no name or message can end it or begin another."""
    named = ",".join(f"{name}={_property(value)}" for name, value in {**place, "title": title}.items())
    return f"::{level} {named}::{_data(message)}"


def _data(text: str) -> str:
    return escape_controls(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _of_finding(group: FindingGroup, place: FindingPlace, rootdir: Path) -> dict[str, Any]:
    file = below(place.file, rootdir)
    tasks = f" ({counted(len(place.tasks), 'task')})" if len(place.tasks) > 1 else ""
    message = f"{group.message}{tasks}: {group.do}"
    at = [(file, place.line, place.column)]
    return sarif_result(group.code, _LEVELS[group.severity], message, at, [file, place.keys, group.message])


def _of_cluster(cluster: Cluster, rootdir: Path) -> dict[str, Any]:
    files = dict.fromkeys(below(member.file, rootdir) for member in cluster.members)
    size = f"{counted(len(cluster.members), 'item')} of {counted(len(cluster.tasks), 'task')}"
    level = "note" if cluster.category == "header-only" else "error"
    message = f"{cluster.category}, {size}: {cluster.title or _OF_CATEGORY[cluster.category]}"
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
