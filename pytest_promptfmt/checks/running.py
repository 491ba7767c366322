"""Rules applied to one view: findings in a stable order, without those that the user ignores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_promptfmt.checks.profile_views import ProfileView, TemplateView
from pytest_promptfmt.checks.registry import Check, Scope
from pytest_promptfmt.checks.selection import Selection, written_ignores
from pytest_promptfmt.checks.views import FileView, Ignores, TaskView
from pytest_promptfmt.core.errors import LimitExceededError, Position, PromptfmtError
from pytest_promptfmt.core.finding import Family, Finding, Reported, Severity, identity, shown, stable_key
from pytest_promptfmt.core.task import CodeAssembly

_MOST_PER_RULE: Final = 25
"""How many findings of one rule are kept for one task."""

View = TaskView | FileView | ProfileView | TemplateView

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
    selection: Selection,
    *,
    path: Path,
    name: str,
    task: TaskView | None = None,
    file: FileView | None = None,
    profile: ProfileView | None = None,
    template: TemplateView | None = None,
) -> Checked:
    """Return what the chosen rules say about those of a task, its file and one of its profiles that are given.

    `template` is given with the first task that is looked at through a profile: what is said about the profile itself
    belongs to no task, and no task can ignore it.

    Infos are kept where a rule was selected by its code or prefix, and dropped by the report otherwise. Raises
    LimitExceededError where a time limit around it ends a rule; whatever else a rule raises becomes a finding.
    """
    views: dict[Scope, View | None] = {"task": task, "file": file, "profile": profile, "template": template}
    found: list[tuple[Check, Finding]] = []
    crashes: list[tuple[str, str]] = []
    last: list[Check] = []
    for check in selection.chosen:
        view = views[check.scope]
        if check.family is Family.CHECKS and check.is_builtin:
            last.append(check)
        elif view is not None:
            found += _run(check, view, crashes)
    return _Sieve(selection, path, name, task, file, profile).checked(found, last, crashes)


def _run(check: Check, view: View, crashes: list[tuple[str, str]]) -> list[tuple[Check, Finding]]:
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
    profile: ProfileView | None

    @property
    def subject(self) -> TaskView | None:
        """Return the task that is looked at, as a whole or as one profile sees it."""
        return self.profile.task if self.task is None and self.profile is not None else self.task

    def checked(
        self, found: list[tuple[Check, Finding]], last: Iterable[Check], crashes: list[tuple[str, str]]
    ) -> Checked:
        subject = self.subject
        written = written_ignores(subject.task.own_metadata) if subject is not None else {}
        globs = self.selection.per_file_ignores(self.path)
        used: set[str] = set()
        kept = self._kept(found, written, globs, used)
        view = subject or self.file
        if view is not None:
            view.ignores = Ignores(
                unknown=tuple(self._unknown(written)), unused=tuple(self._unused(written, used)), crashes=tuple(crashes)
            )
            again = [pair for check in last for pair in _run(check, view, [])]
            kept += self._kept(again, written, globs, used)
            kept.sort(key=lambda pair: pair[0].code)
        return Checked(
            findings=tuple(self._reported(kept)),
            used_globs=tuple(glob for glob in globs if f"glob {glob}" in used),
            failure=subject.failure if subject is not None else None,
        )

    def _kept(
        self,
        found: Iterable[tuple[Check, Finding]],
        written: Iterable[str],
        globs: dict[str, tuple[str, ...]],
        used: set[str],
    ) -> list[tuple[Check, Finding]]:
        kept = []
        for check, finding in found:
            by_task = [code for code in written if code and check.code.startswith(code)]
            by_file = [glob for glob, codes in globs.items() if check.code.startswith(codes)]
            if check.scope == "template":
                by_task, by_file = [], []
            used.update(by_task)
            used.update(f"glob {glob}" for glob in by_file)
            if not by_task and not by_file:
                kept.append((check, finding))
        return kept

    def _unknown(self, written: Iterable[str]) -> Iterator[str]:
        if self.task is not None:
            yield from (code for code in written if not self.selection.knows(code))

    def _unused(self, written: Iterable[str], used: set[str]) -> Iterator[str]:
        if self.task is None or self.task.failure is not None:
            return  # what was not rendered may well have needed it
        task = self.task.task
        # A rule about profiles may have found it in another profile.
        chosen = {check.code for check in self.selection.chosen if check.scope not in ("profile", "template")}
        for code in written:
            own = task.position("metadata", "promptfmt", "ignore", code)
            inherited = own is not None and task.path is not None and own.path.name != task.path.name
            members = {known for known in self.selection.checks if known.startswith(code)}
            if code not in used and members and members <= chosen and not inherited:
                yield code

    def _reported(self, kept: Iterable[tuple[Check, Finding]]) -> Iterator[Reported]:
        seen: Counter[str] = Counter()
        for check, finding in kept:
            severity = check.severity
            if finding.severity is not None and _MILDER[finding.severity] > _MILDER[severity]:
                severity = finding.severity
            name = self.file.file.names[0] if check.scope == "file" and self.file is not None else self.name
            is_about_profile = check.scope in ("profile", "template")
            profile = self.profile.name if is_about_profile and self.profile is not None else ""
            file = self.path
            if check.scope == "template":
                name, file = "", finding.position.path if finding.position is not None else Path()
            same = identity(check.code, file.name, name, profile, finding)
            yield Reported(
                code=check.code,
                name=check.name,
                severity=severity,
                task=name,
                file="" if file == Path() else str(file),
                position=self._position(finding) if name else finding.position,
                keys=tuple(self._in_its_words(key) if isinstance(key, str) else key for key in finding.keys),
                field=finding.field,
                doc=finding.doc,
                span=finding.span,
                message=finding.message,
                saw=shown(finding.saw),
                do=self._in_its_words(finding.do),
                profiles=(profile,) if profile else (),
                stable_keys=(stable_key(same, seen[same]),),
            )
            seen[same] += 1

    def _position(self, finding: Finding) -> Position:
        """Return where the mistake is written, at least the file."""
        position = finding.position
        if position is None and self.subject is not None:
            position = self.subject.task.position(*finding.keys)
        return position or Position(self.path)

    def _in_its_words(self, text: str) -> str:
        """Return a text about keys of lm-eval in the names that the task has for them."""
        assembly = self.subject.task.assembly if self.subject is not None else None
        if isinstance(assembly, CodeAssembly):
            for key, name in assembly.key_names.items():
                text = text.replace(key, name)
        return text
