"""Findings as values: as a rule yields them (`Finding`), and with rule and task, as reports need them (`Reported`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from html import escape
from typing import Any, Final

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.json_values import data_of
from pytest_promptfmt.core.text import show

SAW_CHARACTERS: Final = 100
"""How much of the text that was seen is shown."""


class Severity(StrEnum):
    """How bad it is: errors fail, warnings are listed at the end of the run, infos only on demand."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Effect(StrEnum):
    """The expected effect of a mistake on the score: which answers it concerns, the most docs first."""

    EVERY_DOC = "every doc"
    SOME_DOCS = "some docs"
    SHOTS = "few-shot examples"
    APPEARANCE = "appearance"


class Family(StrEnum):
    """The subject of a rule; each is one part of the docs."""

    RULES = "rules themselves"
    CONFIG = "configuration"
    TEMPLATES = "templates"
    NAMES = "names and groups"
    PROMPT = "prompt text"
    EXTRACTION = "extraction"
    SCORING = "scoring"
    ANSWERS = "answers and choices"
    FEWSHOT = "few-shot"
    GENERATION = "generation"
    CHAT = "chat templates"
    TOKENS = "tokens"
    CLASSES = "task classes"
    HELM = "HELM adapters"
    MODELS = "models"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One mistake, or possible mistake, that a rule found.

    `message` is the same for the same mistake, and must not name docs or tasks: equal messages are one entry of a
    report. `saw` is the text that was seen, `do` what to do now: by default the `Fix` of the rule's docstring. The
    place is a key path of the configuration (`keys`) or a `position`; besides it the number of the doc (from 0), the
    doc's `field`, and the characters of the prompt (`span`, from 0); of a chat template under test the `conversation`
    that shows it. `severity` may be milder than the rule's own.
    """

    message: str
    do: str = ""
    saw: str = ""
    keys: tuple[str | int, ...] = ()
    position: Position | None = None
    doc: int | None = None
    field: str | None = None
    span: tuple[int, int] | None = None
    conversation: str = ""
    severity: Severity | None = None

    def _repr_html_(self) -> str:
        """Return the finding as a notebook shows it."""
        place = [".".join(str(key) for key in self.keys)] if self.keys else []
        place += [f"doc {self.doc + 1}"] if self.doc is not None else []
        return _html(self.message, where=", ".join(place), saw=shown(self.saw), do=self.do)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported(Finding):
    """A finding with its rule and task, ready to be shown and to travel as JSON.

    `position` is where the mistake is written, None for a built-in profile; `keys` are in the task's own words, `saw`
    is visible text. `file` is the task's; it and `task` are "" for findings about a profile only. `profiles` are those
    that see it, none where it concerns the task itself. `stable_keys` are the same in another run: one for each
    profile, or one where there are none. `effect` is what it is expected to do to the score. The rule has an edit for
    it if it `is_fixable`.
    """

    code: str
    name: str
    severity: Severity
    task: str
    file: str
    stable_keys: tuple[str, ...]
    profiles: tuple[str, ...] = ()
    effect: Effect = Effect.SOME_DOCS
    is_fixable: bool = False

    def __str__(self) -> str:
        """Return what, where and what now, in up to four lines; the short summary shows the first."""
        saw = f"\n  saw: {self.saw}" if self.saw else ""
        return f"{self.code} {self.message} [{self.name}]\n  at: {self.where}{saw}\n  do: {self.do}"

    def _repr_html_(self) -> str:
        """Return the finding as a notebook shows it."""
        return _html(f"{self.code} {self.message}", where=self.where, saw=self.saw, do=self.do, kind=self.severity)

    @property
    def where(self) -> str:
        """Return the place for people: `arc.yaml:7:1 (doc_to_text, doc 2, characters 80–81, profile plain)`."""
        details = [".".join(str(key) for key in self.keys)] if self.keys else []
        details += [f"doc {self.doc + 1}"] if self.doc is not None else []
        details += [f"column {self.field!r}"] if self.field is not None else []
        if self.span is not None:
            first, end = self.span
            details.append(f"characters {first}–{end}" if end > first else f"character {first}")
        if self.profiles:
            details.append(f"profile{'s' if len(self.profiles) > 1 else ''} {', '.join(self.profiles)}")
        shown_details = ", ".join(details)
        if self.position is None:
            return shown_details
        return f"{self.position} ({shown_details})" if shown_details else str(self.position)

    @property
    def by_profile(self) -> Iterable[tuple[str, str]]:
        """Return each profile with the stable key of the finding in it; "" for what concerns the task itself."""
        return zip(self.profiles or ("",), self.stable_keys, strict=True)

    def limited_to(self, profiles: Sequence[str]) -> Reported:
        """Return the finding as these of its profiles see it."""
        keys = dict(self.by_profile)
        return replace(self, profiles=tuple(profiles), stable_keys=tuple(keys[profile] for profile in profiles))

    @property
    def cluster(self) -> tuple[str, str, str]:
        """Return what findings share that are one entry of a report: code, severity and message."""
        return self.code, self.severity, self.message

    def to_json(self) -> dict[str, Any]:
        """Return a mapping for readers of JSON, with `where`, `profile` and `key`."""
        position = self.position
        place = None if position is None else [str(position.path), position.line, position.column]
        extra = {"where": self.where, "profile": ", ".join(self.profiles), "key": self.stable_keys[0]}
        return {**data_of(self), "position": place, **extra}


def merged(findings: Iterable[Reported]) -> list[Reported]:
    """Return findings of one task with those that several profiles see as one that names them, as the first sees it."""
    seen: Counter[object] = Counter()
    found: dict[object, Reported] = {}
    for finding in findings:
        same = (*finding.cluster, finding.task, finding.position, finding.keys, finding.field)
        seen[same, finding.profiles] += 1
        place = same, seen[same, finding.profiles], None if finding.profiles else len(found)
        first = found.get(place)
        if first is not None:
            profiles, keys = first.profiles + finding.profiles, first.stable_keys + finding.stable_keys
            finding = replace(first, profiles=profiles, stable_keys=keys)
        found[place] = finding
    return list(found.values())


def identity(code: str, file: str, task: str, profile: str, finding: Finding) -> str:
    """Return what makes a finding the same one in another run, after edits that have nothing to do with it.

    Lines, docs and places in a list may move, and another release may word the message differently. The text that
    was seen counts only where the author wrote it: the text of a doc changes with the docs.
    """
    place = [key for key in finding.keys if isinstance(key, str)]
    saw = shown(finding.saw) if finding.doc is None else ""
    return json.dumps([code, file, task, profile, place, finding.field, saw])


def stable_key(same: str, number: int = 0) -> str:
    """Return a short digest of an `identity`; `number` (from 0) distinguishes findings that share it."""
    return sha256(f"{same}{number or ''}".encode("utf-8", "backslashreplace")).hexdigest()[:16]


def shown(text: str) -> str:
    """Return a text short and on one line, with invisible white space made visible."""
    cut = text if len(text) <= SAW_CHARACTERS else f"{text[: SAW_CHARACTERS - 1]}…"
    return show(cut)


def _html(message: str, *, where: str, saw: str, do: str, kind: Severity | None = None) -> str:
    colour = {Severity.ERROR: "#c0262d", Severity.WARNING: "#8a5a00"}.get(kind or Severity.INFO, "#6e7781")
    parts = [f"<strong>{escape(message)}</strong>"]
    parts += [f"<small>{escape(where)}</small>"] if where else []
    parts += [f"saw: <code>{escape(saw)}</code>"] if saw else []
    parts += [f"do: {escape(do)}"] if do else []
    return f'<div style="border-left:4px solid {colour};padding-left:.6em">{"<br>".join(parts)}</div>'
