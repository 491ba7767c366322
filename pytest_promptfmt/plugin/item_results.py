"""Results of items in JSON's types, as workers send them: untrusted, so checked before use."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, get_args

import pytest

from pytest_promptfmt.core.json_values import if_any, listed, number
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.snapshots.extension import Counted

_PHASES: Final = ("setup", "call", "teardown")
_COUNTED: Final = frozenset(get_args(Counted))


def own_copy(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a report for pytest, which writes into it when it reads it; plugins may, too."""
    copied: dict[str, Any] = json.loads(json.dumps(report))  # faster than a deep copy
    return copied


def is_sent(result: object, nodeid: str) -> bool:
    """Return whether a value is a result of this item with the trace of its worker, which pytest can show."""
    try:
        if not isinstance(result, dict):
            return False
        for report in result["reports"]:
            _check_report(report, nodeid)
        for warning in result["warnings"]:
            listed([warning[name] for name in ("text", "module", "category", "filename", "when", "nodeid")])
            number(warning["lineno"])
            if_any(tuple)(warning["location"])
        _require(_COUNTED.issuperset(listed(result["counted"])))
        for file, paths, refused in result["seen"]["files"]:
            listed([file, *paths, refused])
        for pair in (*result["seen"]["asked"], *result["seen"]["wrote"]):
            _, _ = listed(pair)
    except Exception:  # invalid data of any kind
        return False
    return True


def _check_report(data: Mapping[str, Any], nodeid: str) -> None:
    _require(data["when"] in _PHASES)
    if "promptfmt" in data:
        Outcome.from_json(data["promptfmt"])
    if "passed" in data:
        _require(math.isfinite(data["passed"]) and (data["when"] != "call" or "promptfmt" in data))
        return
    report = pytest.TestReport._from_json(own_copy(data))
    _require(report.nodeid == nodeid and report.outcome in ("passed", "failed", "skipped"))
    _require(not any(hasattr(pytest.TestReport, name) for name in data if name not in _OWN))
    path, line, name = report.location
    listed([path, name, *report.keywords])
    if_any(number)(line)
    for heading, content in report.sections:
        listed([heading, content])
    listed([name for name, _ in report.user_properties])
    _require(all(map(math.isfinite, (report.duration, report.start, report.stop))))
    listed([report.longreprtext, getattr(report, "wasxfail", "")])  # the first renders all of it
    if report.skipped and not hasattr(report, "wasxfail"):
        path, line, reason = data["longrepr"]
        listed([path, reason])
        number(line)
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        listed([crash.path, crash.message])
        number(crash.lineno)


def _require(is_valid: bool) -> None:
    if not is_valid:
        raise ValueError("a worker sent something else than the result of a test")


_OWN: Final = frozenset(pytest.TestReport("", ("", 0, ""), {}, "passed", None, "call")._to_json())
"""The fields of each report; plugins add others, which must not replace its methods."""
