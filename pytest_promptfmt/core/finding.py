"""What a rule says (`Finding`), and what becomes of it in a report (`Reported`): values only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import sha256
from html import escape
from typing import Any, Final

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.text import show

SAW_CHARACTERS: Final = 100
"""How much of the text that was seen is shown."""


class Severity(StrEnum):
    """How bad it is: errors fail, warnings are listed at the end of the run, infos only on demand."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Family(StrEnum):
    """What a rule looks at; one file of rules and one part of the docs for each."""

    CHECKS = "checks themselves"
    CONFIG = "configuration"
    TEMPLATES = "templates"
    NAMES = "names and groups"
    PROMPT = "prompt text"
    EXTRACTION = "extraction"
    ANSWERS = "answers and choices"
    FEWSHOT = "few-shot"
    GENERATION = "generation"
    CHAT = "chat templates"
    TOKENS = "tokens"
    CLASSES = "task classes"
    HELM = "HELM adapters"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing a rule has to say.

    `message` is the same for all findings that are alike, and must not name docs or tasks: equal messages are one
    entry of a report. `saw` is the text that was seen, `do` what to do now. The place is a key path of the
    configuration (`keys`) or a `position` of its own; besides it the number of the doc (from 0), the doc's `field`, and
    the characters of the prompt (`span`, from 0). `severity` may be milder than the rule's own.
    """

    message: str
    do: str
    saw: str = ""
    keys: tuple[str | int, ...] = ()
    position: Position | None = None
    doc: int | None = None
    field: str | None = None
    span: tuple[int, int] | None = None
    severity: Severity | None = None

    def _repr_html_(self) -> str:
        """Return the finding as a notebook shows it."""
        place = [".".join(str(key) for key in self.keys)] if self.keys else []
        place += [f"doc {self.doc + 1}"] if self.doc is not None else []
        return _html(self.message, where=", ".join(place), saw=shown(self.saw), do=self.do)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """A finding with its rule, task and place, ready to travel in a report and to be shown.

    `doc` and `span` are those of the finding: what they say is in `where` as well.
    """

    code: str
    name: str
    severity: Severity
    task: str
    file: str
    where: str
    message: str
    saw: str
    do: str
    key: str
    profile: str = ""
    doc: int | None = None
    span: tuple[int, int] | None = None

    def __str__(self) -> str:
        """Return where, what and what now, in up to three lines."""
        saw = f"\n  saw: {self.saw}" if self.saw else ""
        return f"{self.where}: {self.code} {self.message} [{self.name}]{saw}\n  do: {self.do}"

    def _repr_html_(self) -> str:
        """Return the finding as a notebook shows it."""
        return _html(f"{self.code} {self.message}", where=self.where, saw=self.saw, do=self.do, kind=self.severity)

    @property
    def cluster(self) -> tuple[str, str, str]:
        """Return what findings share that are one entry of a report."""
        return self.code, self.severity, self.message

    def to_json(self) -> dict[str, Any]:
        """Return a mapping that JSON knows."""
        return {**asdict(self), "severity": self.severity.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reported:
        """Return the finding that `to_json` wrote."""
        return cls(**{**data, "severity": Severity(data["severity"])})


def identity(code: str, file: str, task: str, profile: str, finding: Finding) -> str:
    """Return what makes a finding the same one in another run, after edits that have nothing to do with it.

    Lines, docs and places in a list may move. What was seen counts only where the author wrote it: what a doc shows
    changes with the docs.
    """
    place = [key for key in finding.keys if isinstance(key, str)]
    saw = shown(finding.saw) if finding.doc is None else ""
    return json.dumps([code, file, task, profile, finding.message, place, finding.field, saw])


def stable_key(same: str, number: int = 0) -> str:
    """Return a short digest of an `identity`; `number` (from 0) tells findings apart that share it."""
    return sha256(f"{same}{number or ''}".encode("utf-8", "backslashreplace")).hexdigest()[:16]


def shown(text: str) -> str:
    """Return a text short and on one line, with every blank that would be invisible made visible."""
    cut = text if len(text) <= SAW_CHARACTERS else f"{text[: SAW_CHARACTERS - 1]}…"
    return show(cut)


def _html(message: str, *, where: str, saw: str, do: str, kind: Severity | None = None) -> str:
    colour = {Severity.ERROR: "#c0262d", Severity.WARNING: "#8a5a00"}.get(kind or Severity.INFO, "#6e7781")
    parts = [f"<strong>{escape(message)}</strong>"]
    parts += [f"<small>{escape(where)}</small>"] if where else []
    parts += [f"saw: <code>{escape(saw)}</code>"] if saw else []
    parts.append(f"do: {escape(do)}")
    return f'<div style="border-left:4px solid {colour};padding-left:.6em">{"<br>".join(parts)}</div>'
