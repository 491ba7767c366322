"""The fixes of a run: every edit of the YAML proved by rendering before it is offered, and nothing else changed.

An edit is made in the file that holds the key. All tasks that include this file are checked and rendered before and
after it: the finding has to be gone, no other error or warning may be new, and no text of any prompt or request may
change beyond what the fix declares.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, Protocol

from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import Position, PromptfmtError, SourceError
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.yaml_parser import MAX_BYTES
from pytest_promptfmt.core.yaml_rewriting import with_key, with_quotes, with_value, without_earlier
from pytest_promptfmt.formats.attempts import attempts
from pytest_promptfmt.rules.fixes import Fix, anything, nothing
from pytest_promptfmt.rules.linter import Linter
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks import CodeImporter, TaskIndex

_MOST_ROUNDS: Final = 8
"""How often a file is linted again after a fix, which may uncover another finding."""

_OF_ANSWERS: Final = ("doc_to_choice", "doc_to_target", "target_delimiter")
_ANSWER: Final = "the answer of a request"
_GENERATION: Final = "generation_kwargs"
_versions = itertools.count(1)
"""Numbers for the times of edited files: a file that is read again must not look like the one before."""


class FolderSettings(Protocol):
    """The settings and rules of the task files of each folder."""

    index: TaskIndex

    def settings_for(self, file: Path) -> Settings:
        """Return the settings for a task file."""

    def rules_for(self, file: Path) -> Selection:
        """Return the rules that look at a task file, and what is ignored there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedFile:
    """A file before and after its fixes, the findings that are gone, and how many prompts of which tasks change."""

    path: Path
    before: bytes
    after: bytes
    findings: tuple[Reported, ...]
    changed: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """The files that fixes change, and the findings that have a fix which is not made, each with the reason."""

    files: tuple[FixedFile, ...] = ()
    refused: tuple[tuple[Reported, str], ...] = ()


def find_fixes(files: Iterable[Path], folders: FolderSettings, *, below: Sequence[Path]) -> Fixed:
    """Return what fixing the findings of these task files changes; nothing is written.

    `folders` has their settings and rules. Only files that are in or below one of `below` are changed: those that no
    task of `files` may include from elsewhere. Raises SettingsError for invalid settings.
    """
    with tempfile.TemporaryDirectory(prefix="promptfmt-") as folder:
        return _Fixing(tuple(dict.fromkeys(files)), folders, below, Path(folder)).run()


def write_fixes(fixed: Fixed) -> None:
    """Write the files, each in one step and with its permissions. Raises SourceError for one that cannot be written."""
    for file in fixed.files:
        try:
            if gate.read_bytes(file.path, limit=MAX_BYTES) != file.before or file.path.is_symlink():
                raise SourceError("the file has changed in the meantime", position=Position(file.path))
            writing.write(file.path, file.after)
        except OSError as error:
            reason = f"the file cannot be written: {error.strerror}"
            raise SourceError(reason, position=Position(file.path)) from error


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of what the model sees, and the key that it is from."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class _Look:
    """The findings of one task, those that can be fixed, and the pieces of its prompts."""

    findings: tuple[Reported, ...]
    fixes: tuple[tuple[Reported, Fix], ...]
    prompts: tuple[tuple[_Piece, ...], ...] = ()
    is_rendered: bool = False


@dataclass(slots=True)
class _Open:
    """A file that is being fixed."""

    path: Path
    before: bytes
    text: str
    findings: list[Reported] = field(default_factory=list)
    changed: Counter[str] = field(default_factory=Counter)


class _Fixing:
    """The state of one run: the edited files, and what was refused."""

    def __init__(self, files: Sequence[Path], folders: FolderSettings, below: Sequence[Path], folder: Path) -> None:
        self._files = files
        self._folders = folders
        self._below = [Path(gate.resolved(each)) for each in below]
        self._folder = folder
        self._open: dict[Path, _Open] = {}
        self._parts: dict[Path, frozenset[Path]] = {}
        self._refused: dict[tuple[str, ...], tuple[Reported, str]] = {}

    def run(self) -> Fixed:
        waiting: dict[Path, list[tuple[Reported, Fix]]] = {}
        for file in self._files:
            for look in self._look(file).values():
                for found in look.fixes:
                    waiting.setdefault(found[1].position.path, []).append(found)
        for path, ready in waiting.items():
            self._fix(path, ready)
        made = [each for each in self._open.values() if each.findings]
        return Fixed(
            files=tuple(
                FixedFile(
                    path=each.path,
                    before=each.before,
                    after=each.text.encode(),
                    findings=tuple(each.findings),
                    changed=dict(each.changed),
                )
                for each in made
            ),
            refused=tuple(self._refused.values()),
        )

    def _fix(self, path: Path, found: Sequence[tuple[Reported, Fix]]) -> None:
        """Fix what was found in one file, then what these fixes uncover."""
        try:
            opened = self._opened(path)
        except SourceError as error:
            self._refuse(found, error.message)
            return
        members = [file for file in self._files if path in self._parts.get(file, ())]
        for _ in range(_MOST_ROUNDS):
            before = {file: self._look(file, renders=True) for file in members}
            proposed = (each for tasks in before.values() for look in tasks.values() for each in look.fixes)
            of_file = (each for each in proposed if each[1].position.path == path)
            found = [each for each in of_file if _known(each[0]) not in self._refused]
            if not found:
                return
            if self._accept(opened, found, before):
                continue
            for each in _by_edit(found):
                if self._accept(opened, each, before):
                    break  # positions have moved: look again

    def _opened(self, path: Path) -> _Open:
        if path not in self._open:
            if not any(path == each or path.is_relative_to(each) for each in self._below):
                raise SourceError(
                    "the key is in an included file outside the given paths: name a folder with both files"
                )
            if any(gate.resolved(file) != os.path.abspath(file) for file in self._files if path in self._parts[file]):
                raise SourceError("the given path is a link: give the path of the real file")
            try:
                content = gate.read_bytes(path, limit=MAX_BYTES)
                self._open[path] = _Open(path, content, content.decode())
            except (OSError, UnicodeDecodeError) as error:
                reason = "only UTF-8 files are fixed" if isinstance(error, ValueError) else f"{error.strerror}"
                raise SourceError(reason) from error
        return self._open[path]

    def _accept(
        self,
        opened: _Open,
        found: Sequence[tuple[Reported, Fix]],
        before: Mapping[Path, Mapping[str, _Look]],
    ) -> bool:
        """Make edits if they are proved right; a single edit that is not is refused for good."""
        edits = _by_edit(found)
        found = [each for group in edits for each in group]
        earlier = opened.text
        try:
            for group in sorted(edits, key=lambda group: _place(group[0][1]), reverse=True):
                opened.text = _edited(opened.text, group[0][1])
            after = {file: self._look(file, renders=True) for file in before}
            problem = _problem(found, before, after)
        except PromptfmtError as error:
            problem = error.message
        if problem is None:
            opened.findings += [finding for finding, _ in found]
            for file, tasks in before.items():
                for name, look in tasks.items():
                    number = _number_changed(look.prompts, after[file][name].prompts)
                    opened.changed[name] = max(opened.changed[name], number)
            opened.changed += Counter()  # without those that stay as they are
            return True
        opened.text = earlier
        if len(edits) == 1:
            self._refuse(found, problem)
        return False

    def _refuse(self, found: Iterable[tuple[Reported, Fix]], reason: str) -> None:
        for finding, _ in found:
            self._refused.setdefault(_known(finding), (finding, reason))

    def _look(self, file: Path, *, renders: bool = False) -> dict[str, _Look]:
        """Return what is known of the tasks of a file, as the edited files are now."""
        instead = {}
        for number, opened in enumerate(self._open.values()):
            other = self._folder / str(number)
            if not other.exists() or other.read_bytes() != opened.text.encode():
                other.write_bytes(opened.text.encode())
                version = next(_versions)
                os.utime(other, ns=(version, version))
            instead[str(opened.path)] = str(other)
        with gate.replaced(instead):
            return dict(self._looks(file, renders=renders))

    def _looks(self, path: Path, *, renders: bool) -> Iterator[tuple[str, _Look]]:
        settings, selection = self._folders.settings_for(path), self._folders.rules_for(path)
        try:
            file = read_task_file(
                path, self._folders.index, trusted=settings.trusts, import_limit=settings.import_limit
            )
        except PromptfmtError:
            return
        if file is None or file.yaml is None:
            return
        self._parts[path] = frozenset(part.path for part in file.yaml.parts)
        view: FileView | None = FileView(path=path, yaml=file.yaml, file=file, index=self._folders.index)
        resolve = CodeImporter(settings.trusts).function
        for base in file.tasks:
            if base.assembly.brings_profiles:
                continue
            for attempt in attempts(base, settings.formats, resolve=resolve):
                if attempt.error is not None:
                    continue
                study = Study(attempt.task, settings)
                try:
                    findings = Linter().check(study, selection, file=view).findings
                except PromptfmtError:
                    continue
                fixes = tuple(_fixes_of(findings, selection, study, view))
                prompts = tuple(_pieces(study)) if renders else ()
                yield attempt.task.id, _Look(findings, fixes, prompts, study.failure is None)
                view = None  # findings about the file are reported with its first task


def _fixes_of(
    findings: Iterable[Reported], selection: Selection, study: Study, view: FileView | None
) -> Iterator[tuple[Reported, Fix]]:
    for finding in findings:
        rule = selection.rules.get(finding.code)
        for part in rule.all_parts if rule is not None and finding.severity is not Severity.INFO else ():
            subject = view if part.scope == "file" else study
            same = (finding.message, finding.keys, finding.doc)
            if part.fix is None or same not in ((one.message, one.keys, one.doc) for one in part.function(subject)):
                continue
            fix = part.fix(subject, finding)
            if fix is not None and fix.position.line is not None:
                yield finding, fix
                break


def _place(fix: Fix) -> tuple[int, int]:
    return fix.position.line or 0, fix.position.column or 0


def _by_edit(found: Iterable[tuple[Reported, Fix]]) -> list[list[tuple[Reported, Fix]]]:
    """Return findings that one edit fixes together; of different edits in one place the first."""
    ordered = sorted(found, key=lambda each: _place(each[1]))
    groups = [list(group) for _, group in groupby(ordered, key=lambda each: _place(each[1]))]
    edit = attrgetter("action", "text")
    return [[each for each in group if edit(each[1]) == edit(group[0][1])] for group in groups]


def _edited(text: str, fix: Fix) -> str:
    if fix.action in ("value", "key"):
        return (with_value if fix.action == "value" else with_key)(text, *_place(fix), fix.text)
    return (with_quotes if fix.action == "quotes" else without_earlier)(text, *_place(fix))


def _known(finding: Reported) -> tuple[str, ...]:
    return finding.code, finding.task, finding.message, ".".join(map(str, finding.keys)), finding.saw


def _problem(
    found: Sequence[tuple[Reported, Fix]],
    before: Mapping[Path, Mapping[str, _Look]],
    after: Mapping[Path, Mapping[str, _Look]],
) -> str | None:
    """Return what speaks against edits, None where they are right."""
    keeps = {_key(finding.keys): fix.keeps for finding, fix in found}
    keeps |= {f"fewshot_config.{key}": kept for key, kept in keeps.items()}  # which inherits
    if any(key in _OF_ANSWERS for key in keeps):
        keeps[_ANSWER] = next(iter(keeps.values()))
    if any(key.startswith(_GENERATION) for key in keeps):
        keeps[_GENERATION] = anything
    changes_prompts = any(fix.keeps is not nothing for _, fix in found)  # else what is new was hidden before
    fixed = {_known(finding) for finding, _ in found}
    for file, tasks in before.items():
        if tasks.keys() != after[file].keys():
            return "after the fix, a task file could not be read"
        meant = fixed & {_known(finding) for look in tasks.values() for finding in look.findings}
        if meant & {_known(finding) for look in after[file].values() for finding in look.findings}:
            return "the fix would not remove the finding"
        for name, old in tasks.items():
            new = after[file][name]
            if old.is_rendered and not new.is_rendered:
                return f"after the fix, {name} could not be rendered"
            more = Counter(map(_kind, new.findings)) - Counter(map(_kind, old.findings))
            fixable = {_kind(finding) for finding, _ in new.fixes}  # they were hidden, and are fixed next
            worse = [kind for kind in more if kind[0] is not Severity.INFO and kind not in fixable]
            if worse and changes_prompts:
                return f"the fix would cause a new finding in {name}: {worse[0][1]} {worse[0][2]}"
            if old.is_rendered and not _is_kept(old.prompts, new.prompts, keeps):
                return f"the fix would also change other text in the prompts of {name}"
    return None


def _kind(finding: Reported) -> tuple[Severity, str, str]:
    return finding.severity, finding.code, finding.message


def _key(keys: Iterable[str | int]) -> str:
    return ".".join(key for key in keys if isinstance(key, str))


def _is_kept(
    old: Sequence[Sequence[_Piece]], new: Sequence[Sequence[_Piece]], keeps: Mapping[str, Callable[[str], str]]
) -> bool:
    """Return whether prompts and requests differ only in what the edited keys print, and there only as they may."""
    if len(old) != len(new):
        return False
    for first, second in zip(old, new, strict=True):
        if first == second:
            continue
        if _joined(first, lambda key: key not in keeps) != _joined(second, lambda key: key not in keeps):
            return False
        for key, kept in keeps.items():
            texts = ["".join(piece.text for piece in pieces if piece.key == key) for pieces in (first, second)]
            if kept(texts[0]) != kept(texts[1]):
                return False
    return True


def _number_changed(old: Sequence[Sequence[_Piece]], new: Sequence[Sequence[_Piece]]) -> int:
    """Return how many prompts differ; what a request holds besides its prompt is not counted."""
    pairs = zip(old, new, strict=False)
    return sum(first != second for first, second in pairs if first and first[0].key != _ANSWER)


def _joined(pieces: Sequence[_Piece], chooses: Callable[[str], bool]) -> list[tuple[str, str]]:
    chosen = [piece for piece in pieces if piece.text and chooses(piece.key)]
    return [(key, "".join(piece.text for piece in group)) for key, group in groupby(chosen, key=lambda each: each.key)]


def _pieces(study: Study) -> Iterator[tuple[_Piece, ...]]:
    """Yield what each prompt and each request of a task is made of, with few-shot examples and without."""
    shown: Sequence[Instance] = study.instances
    for instance in (*shown, *(study.with_shots if study.shots == 0 else ())):
        for prompt in instance.prompts:
            yield tuple(_Piece(span.origin.key or span.origin.part, span.text) for span in prompt.spans)
        for request in instance.requests:
            yield _Piece(_ANSWER, str(request.continuation)), _Piece(_GENERATION, repr(request.generation_kwargs))
