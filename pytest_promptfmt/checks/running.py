"""Rules applied to one view: findings in a stable order, without those that the user ignores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_promptfmt.checks.findings import Family, Finding, Reported, Severity, shown, stable_key
from pytest_promptfmt.checks.registry import Check
from pytest_promptfmt.checks.selection import Selection, written_ignores
from pytest_promptfmt.checks.views import FileView, Ignores, TaskView
from pytest_promptfmt.errors import LimitExceededError, Position, PromptfmtError

_MOST_PER_RULE: Final = 25
"""How many findings of one rule are kept for one task."""

_MILDER: Final = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """The findings of one item, in order of their codes, and the per-file globs that took some away.

    `failure` is what stopped rendering, so that only rules about what is written could run.
    """

    findings: tuple[Reported, ...] = ()
    used_globs: tuple[str, ...] = ()
    failure: PromptfmtError | None = None

    @property
    def errors(self) -> tuple[Reported, ...]:
        """Return the findings that fail."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)


def check_view(
    selection: Selection, *, path: Path, name: str, task: TaskView | None = None, file: FileView | None = None
) -> Checked:
    """Return what the chosen rules say about a task, a file, or a file together with its first task.

    Infos are kept where a rule was selected by its code or prefix, and dropped by the report otherwise. Raises
    LimitExceededError where a time limit around it ends a rule; whatever else a rule raises becomes a finding.
    """
    found: list[tuple[Check, Finding]] = []
    crashes: list[tuple[str, str]] = []
    last: list[Check] = []
    for check in selection.chosen:
        view = task if check.scope == "task" else file
        if check.family is Family.CHECKS and check.is_builtin:
            last.append(check)
        elif view is not None:
            found += _run(check, view, crashes)
    return _Sieve(selection, path, name, task, file).checked(found, last, crashes)


def _run(check: Check, view: TaskView | FileView, crashes: list[tuple[str, str]]) -> list[tuple[Check, Finding]]:
    kept: dict[tuple[object, ...], tuple[Check, Finding]] = {}
    try:
        for finding in check.rule(view):
            # The same in another doc says nothing new.
            seen = finding.saw if finding.doc is None else ""
            kept.setdefault((finding.message, finding.keys, finding.field, finding.position, seen), (check, finding))
            if len(kept) >= _MOST_PER_RULE:
                break
    except LimitExceededError:
        raise
    except Exception as error:
        crashes.append((check.code, f"{type(error).__name__}: {error}"))
    return list(kept.values())


@dataclass(frozen=True, slots=True)
class _Sieve:
    """What of the findings remains, and who took the others away."""

    selection: Selection
    path: Path
    name: str
    task: TaskView | None
    file: FileView | None

    def checked(
        self, found: list[tuple[Check, Finding]], last: Iterable[Check], crashes: list[tuple[str, str]]
    ) -> Checked:
        written = written_ignores(self.task.task.own_metadata) if self.task is not None else {}
        globs = self.selection.per_file_ignores(self.path)
        used: set[str] = set()
        kept = self._kept(found, written, globs, used)
        view = self.task or self.file
        if view is not None:
            view.ignores = Ignores(
                unknown=tuple(code for code in written if not self.selection.knows(code)),
                unused=tuple(self._unused(written, used)),
                crashes=tuple(crashes),
            )
            again = [pair for check in last for pair in _run(check, view, [])]
            kept += self._kept(again, written, globs, used)
            kept.sort(key=lambda reported: reported.code)
        return Checked(
            findings=tuple(kept),
            used_globs=tuple(glob for glob in globs if f"glob {glob}" in used),
            failure=self.task.failure if self.task is not None else None,
        )

    def _kept(
        self,
        found: Iterable[tuple[Check, Finding]],
        written: Iterable[str],
        globs: dict[str, tuple[str, ...]],
        used: set[str],
    ) -> list[Reported]:
        kept = []
        for check, finding in found:
            by_task = [code for code in written if code and check.code.startswith(code)]
            by_file = [glob for glob, codes in globs.items() if check.code.startswith(codes)]
            used.update(by_task)
            used.update(f"glob {glob}" for glob in by_file)
            if not by_task and not by_file:
                kept.append(self._reported(check, finding))
        return kept

    def _unused(self, written: Iterable[str], used: set[str]) -> Iterator[str]:
        if self.task is None or self.task.failure is not None:
            return  # what was not rendered may well have needed it
        task = self.task.task
        chosen = {check.code for check in self.selection.chosen}
        for code in written:
            own = task.position("metadata", "promptfmt", "ignore", code)
            inherited = own is not None and task.path is not None and own.path.name != task.path.name
            members = {known for known in self.selection.checks if known.startswith(code)}
            if code not in used and members and members <= chosen and not inherited:
                yield code

    def _reported(self, check: Check, finding: Finding) -> Reported:
        severity = check.severity
        if finding.severity is not None and _MILDER[finding.severity] > _MILDER[severity]:
            severity = finding.severity
        name = self.file.file.names[0] if check.scope == "file" and self.file is not None else self.name
        return Reported(
            code=check.code,
            name=check.name,
            severity=severity,
            task=name,
            file=str(self.path),
            where=self._where(finding),
            message=finding.message,
            saw=shown(finding.saw),
            do=finding.do,
            key=stable_key(check.code, self.path.name, name, finding),
        )

    def _where(self, finding: Finding) -> str:
        position = finding.position
        if position is None and self.task is not None:
            position = self.task.task.position(*finding.keys)
        place = str(position or Position(self.path))
        details = [".".join(str(key) for key in finding.keys)] if finding.keys else []
        details += [f"doc {finding.doc + 1}"] if finding.doc is not None else []
        details += [f"column {finding.field!r}"] if finding.field is not None else []
        if finding.span is not None:
            first, end = finding.span
            details.append(f"characters {first}–{end}" if end > first else f"character {first}")
        return f"{place} ({', '.join(details)})" if details else place
