"""Rules applied to a study or a file: findings in a stable order, without those that the user ignores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pytest_promptfmt.answers.trials import trials_of
from pytest_promptfmt.core.errors import LimitExceededError, Position, PromptfmtError, UnavailableError
from pytest_promptfmt.core.finding import Family, Finding, Reported, Severity, identity, merged, shown, stable_key
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.rules.documentation import remedy_of
from pytest_promptfmt.rules.rule_registry import Rule, RuleFunction, Scope, effect_of, is_about_content
from pytest_promptfmt.rules.rule_selection import Ignores, Selection, written_ignores
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.study import ProfileView, Study

_MOST_PER_MESSAGE: Final = 25
_MOST_PER_RULE: Final = 250
"""The numbers of findings of one rule that are kept for one task, or for one profile of it."""

_TRIED_APART: Final[frozenset[Scope]] = frozenset({"scoring", "model"})
"""Scopes of rules that are applied by other items than the lint."""

_MILDER: Final = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class LintResult:
    """The findings of one item by code, the per-file globs for its file, and those that took some away.

    `failure` is what stopped rendering, so that only rules about the written task could run; `profiles` are those whose
    prompts were linted.
    """

    findings: tuple[Reported, ...] = ()
    globs: tuple[str, ...] = ()
    used_globs: tuple[str, ...] = ()
    failure: PromptfmtError | None = None
    profiles: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[Reported, ...]:
        """Return the findings that fail."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)


class Linter:
    """Applies the rules to the tasks of a run, those about a profile by itself once in a run."""

    def __init__(self) -> None:
        self._known: list[Profile] = []

    def check(
        self,
        study: Study,
        selection: Selection,
        views: Sequence[ProfileView] = (),
        *,
        file: FileView | None = None,
        introduces: Collection[str] | None = None,
    ) -> LintResult:
        """Return the findings about a task, its file if that is given, and the profiles that see it.

        Of a task that cannot be rendered only the written part is linted; `LintResult.failure` is the reason. Infos are
        kept where a rule was selected by its code or prefix, and dropped by the report otherwise. Raises
        LimitExceededError for the time limit; any other exception of a rule becomes a finding.

        `introduces` are the names of the profiles that this task is the first of a run to have, where that is known. A
        task that brings its profiles, as a chat template does, always introduces them.
        """
        seen = views if selection.looks_at_profiles else ()
        has_own_profiles = study.given.assembly.brings_profiles
        if has_own_profiles:
            seen = seen[:1]  # all of them have one template, which rules about tasks try with every conversation
        run = _Run(selection, study.given.path or Path(), study.given.id, study, file, study.given.system)
        study.prepare()  # rendering has separate limits
        run.apply("task", study, lambda rule: rule.family is Family.SCORING)  # these set limits as well
        with _limit(study):
            run.apply("task", study, lambda rule: rule.family is not Family.SCORING)
            if file is not None:
                run.apply("file", file)
        for view in seen:
            view.prepare()
            with _limit(study):
                run.apply("profile", view, profile=view.name)
                if has_own_profiles or (view.name in introduces if introduces is not None else self._meets(view)):
                    run.apply("template", view.loaded, profile=view.name)
        looked_at = tuple(view.name for view in seen if view.failure is None)
        return replace(run.result("task", "file"), profiles=looked_at)

    def _meets(self, view: ProfileView) -> bool:
        """Return whether a profile is seen for the first time, and could be rendered."""
        if view.profile in self._known or isinstance(view.failure, LimitExceededError):
            return False
        self._known.append(view.profile)
        return True


def check_file(file: FileView, selection: Selection) -> LintResult:
    """Return the findings about a file without tasks."""
    run = _Run(selection, file.path, file.name, None, file)
    run.apply("file", file)
    return run.result("file")


def check_subjects(
    subjects: Mapping[Scope, object], selection: Selection, *, name: str, path: Path, system: str
) -> LintResult:
    """Return the findings of rules of some scopes, and of a system, about subjects that belong to no task."""
    run = _Run(selection, path, name, None, None, system)
    for scope, subject in subjects.items():
        run.apply(scope, subject)
    return run.result(*subjects)


def check_scoring(study: Study, selection: Selection, *, is_linted: bool) -> LintResult:
    """Return the findings about scoring; those that `Linter.check` makes as well only where it does not run.

    The rules set their own limits. Raises PromptfmtError for a task that cannot be scored at all.
    """
    trials_of(study)
    run = _Run(selection, study.given.path or Path(), study.given.id, study, None, study.given.system)
    # What the task ignores is tried for `unused-ignore`: some rules have parts in both.
    ignored = tuple(written_ignores(study.task.own_metadata))
    run.apply("task", study, lambda rule: rule.scores and (not is_linted or rule.code.startswith(ignored)))
    run.apply("scoring", study)
    return run.result("scoring")


def check_model(study: Study, selection: Selection, judged: object, *, profile: str) -> LintResult:
    """Return the findings about a model's answers to a task in one profile."""
    run = _Run(selection, study.given.path or Path(), study.given.id, study, None, study.given.system)
    run.apply("model", judged, profile=profile)
    return run.result("model")


def _is_tried_with_scoring(part: Rule) -> bool:
    return part.scope == "scoring" or (part.scope == "task" and part.scores)


def _limit(study: Study) -> AbstractContextManager[None]:
    task = study.given
    return time_limit(study.settings.time_limit, f"checking {task.id}", task.position("doc_to_text"))


@dataclass(frozen=True, slots=True)
class _Found:
    rule: Rule
    finding: Finding
    profile: str = ""
    is_fixable: bool = False


@dataclass(slots=True)
class _Run:
    """The rules applied to one subject so far: what they found, and which of them failed."""

    selection: Selection
    path: Path
    name: str
    study: Study | None
    file: FileView | None
    system: str | None = None
    found: list[_Found] = field(default_factory=list)
    crashes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_about_template(self) -> bool:
        """Return whether the task is a chat template, so that what is found in it belongs to the task."""
        return self.study is not None and self.study.given.assembly.brings_profiles

    def apply(
        self,
        scope: Scope,
        subject: object,
        chooses: Callable[[Rule], bool] = lambda _rule: True,
        *,
        profile: str = "",
    ) -> None:
        """Apply the rules of a scope; raises LimitExceededError where a time limit around it ends a rule."""
        known: dict[RuleFunction, tuple[Finding, ...]] = {}
        if isinstance(subject, Study | ProfileView) and self.study is not None and self.study.failure is None:
            known = self.study.shared.setdefault(("findings", profile), {}) if subject.failure is None else {}
        for rule in self.selection.about(scope, None if scope == "ignores" else self.system):
            if known.get(rule.function) != () and chooses(rule):
                self.found += self._findings(rule, subject, profile, known)

    def _findings(
        self, rule: Rule, subject: object, profile: str, known: dict[RuleFunction, tuple[Finding, ...]]
    ) -> Iterable[_Found]:
        kept: dict[tuple[object, ...], _Found] = {}
        count: dict[str, int] = {}  # made 300 times for each task, and rarely used: a Counter takes longer
        try:
            for finding in known.get(rule.function) or rule.function(subject):
                # The same finding in another doc is redundant.
                seen = finding.saw if finding.doc is None else ""
                same = (finding.message, finding.keys, finding.field, finding.position, seen)
                number = count.get(finding.message, 0)
                if same not in kept and number < _MOST_PER_MESSAGE:
                    is_fixable = rule.fix is not None and rule.fix(subject, finding) is not None
                    kept[same] = _Found(rule, finding, profile, is_fixable)
                    count[finding.message] = number + 1
                if len(kept) >= _MOST_PER_RULE:
                    break
        except LimitExceededError:
            raise
        except UnavailableError:
            kept.clear()  # the items that score are skipped with the reason
        except Exception as error:
            self.crashes.append((rule.code, f"{type(error).__name__}: {error}"))
        else:
            if is_about_content(rule.function) and all(one.finding.position is None for one in kept.values()):
                known[rule.function] = tuple(one.finding for one in kept.values())
        return kept.values()

    def result(self, *scopes: Scope) -> LintResult:
        """Return the findings that are not ignored, with those about ignores; `scopes` are those that were applied."""
        ignores = _Suppression(self)
        kept = [found for found in self.found if not ignores.suppress(found)]
        self.found.clear()
        self.apply("ignores", ignores.of_no_use(scopes))
        kept += [found for found in self.found if not ignores.suppress(found)]
        kept.sort(key=lambda found: found.rule.code)
        return LintResult(
            findings=tuple(merged(_reported(self, kept))),
            globs=tuple(ignores.globs_about(scopes)),
            used_globs=tuple(sorted(ignores.used_globs)),
            failure=self.study.failure if self.study is not None else None,
        )


class _Suppression:
    """Which findings the user does not want: by the task itself, or by the path of its file."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._globs = run.selection.per_file_ignores(run.path)
        self._written = written_ignores(run.study.task.own_metadata) if run.study is not None else {}
        self._used: set[str] = set()
        self.used_globs: set[str] = set()

    def suppress(self, found: _Found) -> bool:
        """Return whether a finding is ignored, and record by what."""
        code = found.rule.code
        if found.rule.scope == "template" and not self._run.is_about_template:
            return False  # it belongs to no task, and no task can ignore it
        by_task = [prefix for prefix in self._written if prefix and code.startswith(prefix)]
        by_file = [glob for glob, codes in self._globs.items() if code.startswith(codes)]
        self._used.update(by_task)
        self.used_globs.update(by_file)
        return bool(by_task or by_file)

    def of_no_use(self, scopes: Collection[Scope]) -> Ignores:
        """Return the ignores that suppressed nothing, and those that no rule can have."""
        crashes = tuple(self._run.crashes)
        if "task" not in scopes and "scoring" not in scopes:
            return Ignores(crashes=crashes)
        unknown = [code for code in self._written if not self._run.selection.knows(code)] if "task" in scopes else ()
        return Ignores(unknown=tuple(unknown), unused=tuple(self._unused(scopes)), crashes=crashes)

    def globs_about(self, scopes: Collection[Scope]) -> Iterator[str]:
        """Yield the globs for the file without those that only concern other scopes, whose use is not known."""
        is_apart = _TRIED_APART.issuperset(scopes)
        for glob, codes in self._globs.items():
            found = {rule.scope for rule in self._run.selection.chosen if rule.code.startswith(codes)}
            if found.intersection(scopes) if is_apart else found - _TRIED_APART or not found:
                yield glob

    def _unused(self, scopes: Collection[Scope]) -> Iterator[str]:
        study, selection = self._run.study, self._run.selection
        if study is None or not self._written or study.failure is not None:
            return  # what was not rendered may well have needed it
        # What the other scopes found, this run may not see: another profile, or scoring that is not tried.
        chosen = {
            rule.code
            for rule in selection.chosen
            if rule.scopes <= {*scopes, "ignores"}
            or ("scoring" in scopes and "scoring" in rule.scopes and all(map(_is_tried_with_scoring, rule.all_parts)))
        }
        for code in self._written:
            own = study.task.position("metadata", "promptfmt", "ignore", code)
            inherited = own is not None and study.task.path is not None and own.path.name != study.task.path.name
            members = {known for known in selection.rules if known.startswith(code)}
            if code not in self._used and members and members <= chosen and not inherited:
                yield code


def _reported(run: _Run, kept: Iterable[_Found]) -> Iterator[Reported]:
    count: Counter[str] = Counter()
    for found in kept:
        rule, finding, profile = found.rule, found.finding, found.profile
        if rule.scope == "template" and run.is_about_template:
            profile = ""  # its only one
        severity = rule.severity
        if finding.severity is not None and _MILDER[finding.severity] > _MILDER[severity]:
            severity = finding.severity
        name, file = run.name, run.path
        if rule.scope == "file" and run.file is not None:
            name = run.file.name
        if rule.scope == "template" and run.study is not None and not run.is_about_template:
            name, file = "", finding.position.path if finding.position is not None else Path()
        same = identity(rule.code, file.name, name, profile, finding)
        yield Reported(
            code=rule.code,
            name=rule.name,
            severity=severity,
            effect=effect_of(rule, severity),
            is_fixable=found.is_fixable,
            task=name,
            file="" if file == Path() else str(file),
            position=_position(run, finding) if name else finding.position,
            keys=tuple(_in_own_keys(run, key) if isinstance(key, str) else key for key in finding.keys),
            field=finding.field,
            doc=finding.doc,
            span=finding.span,
            conversation=finding.conversation,
            message=finding.message,
            saw=shown(finding.saw),
            do=_in_own_keys(run, finding.do or remedy_of(rule)),
            profiles=(profile,) if profile else (),
            stable_keys=(stable_key(same, count[same]),),
        )
        count[same] += 1


def _position(run: _Run, finding: Finding) -> Position | None:
    """Return where the mistake is written, at least the file; None for a template without a file."""
    position = finding.position
    if position is None and run.study is not None:
        position = run.study.task.position(*finding.keys)
    return position or (Position(run.path) if run.path.name else None)


def _in_own_keys(run: _Run, text: str) -> str:
    """Return a text about keys of lm-eval in the names that the task has for them."""
    for key, name in run.study.task.assembly.key_names.items() if run.study is not None else ():
        text = text.replace(key, name)
    return text
