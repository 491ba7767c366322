"""What a run met of its baseline: which entries are needed no more, and what a new baseline holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.checks.baseline import ERROR, Baseline, Entry, error_key, read_baseline, write_baseline
from pytest_promptfmt.core.errors import PromptfmtError, display_path
from pytest_promptfmt.results.wording import counted

if TYPE_CHECKING:
    from pytest_promptfmt.results.outcomes import Outcome
    from pytest_promptfmt.results.outputs import Outputs

SHOWN_ENTRIES: Final = 10


@dataclass(slots=True)
class BaselineTally:
    """What the items of a run report: accepted findings with the entry that accepts each, and who came how far.

    Files are those of the outcomes: absolute.
    """

    accepted: list[Mapping[str, Any]] = field(default_factory=list)
    rendered: set[tuple[str, str]] = field(default_factory=set)
    linted: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        """Count an item."""
        self.accepted += outcome.accepted
        if outcome.reached:
            self.rendered.add((outcome.file, outcome.task))
        if outcome.reached == "linted":
            self.linted.add((outcome.file, outcome.task, ""))
        if outcome.reached in ("linted", "profile linted"):
            self.linted.add((outcome.file, outcome.task, outcome.profile))

    def removable(
        self,
        baseline: Baseline,
        *,
        rootdir: Path,
        defined: Mapping[str, Collection[str]],
        codes_for: Callable[[Path], Collection[str]],
    ) -> list[Entry]:
        """Return the entries that this run proves to be needed no more.

        Their file is gone, or was read to its end and defines the task no more (`defined`: file to names), or the rule
        (`codes_for` gives those that look at a file) looked at the task and found nothing. What the run did not reach
        is kept.
        """
        used = {finding["entry"] for finding in self.accepted}
        return [
            entry
            for entry in baseline.entries
            if entry.key not in used and self._looked_at(entry, rootdir, defined, codes_for)
        ]

    def _looked_at(
        self,
        entry: Entry,
        rootdir: Path,
        defined: Mapping[str, Collection[str]],
        codes_for: Callable[[Path], Collection[str]],
    ) -> bool:
        path = rootdir / entry.file
        file = str(path)
        if not path.exists() or (file in defined and entry.task not in defined[file]):
            return True
        if entry.code == ERROR:
            return (file, entry.task) in self.rendered
        return (file, entry.task, entry.profile) in self.linted and entry.code in codes_for(path)

    def updated(self, baseline: Baseline, removable: Sequence[Entry], rootdir: Path) -> list[Entry]:
        """Return the entries of the new baseline: what was met, and what this run had nothing to say about."""
        gone = {entry.key for entry in removable}
        used = {finding["entry"] for finding in self.accepted}
        kept = [entry for entry in baseline.entries if entry.key not in gone and entry.key not in used]
        return list({entry.key: entry for entry in (*kept, *self._met(rootdir))}.values())

    def _met(self, rootdir: Path) -> Iterator[Entry]:
        """Yield the entries of everything accepted, under the keys that it has now."""
        for finding in self.accepted:
            words = {name: finding[name] for name in ("task", "code", "message", "key", "profile")}
            yield Entry(file=below(finding["file"], rootdir), **words)


class BaselineRun:
    """The baseline of one run: what it accepts, and what becomes of its file at the end.

    `defined` are the files that were read to their end, with the names they define.
    """

    def __init__(self, outputs: Outputs, rootdir: Path) -> None:
        self._path = outputs.baseline
        self._update = outputs.baseline_update
        self._rootdir = rootdir
        self._baseline = Baseline()
        if self._path is not None and self._path.exists():
            self._baseline = read_baseline(self._path, is_gone=lambda file: not (rootdir / file).exists())
        self.defined: dict[str, list[str]] = {}

    def define(self, file: Path, names: Iterable[str]) -> None:
        """Say that a file was read to its end and defines these names."""
        if self._path is not None:
            self.defined[str(file)] = list(names)

    def judge_findings(self, outcome: Outcome, findings: Sequence[Mapping[str, Any]]) -> Outcome:
        """Return the outcome with the findings that are new, and apart from them those that the baseline accepts.

        While a baseline is written it accepts everything; infos, which are only found when asked for, never enter it.
        """
        if self._path is None:
            return replace(outcome, findings=tuple(findings))
        kept = [finding for finding in findings if finding["severity"] != "info"]
        entries = self._baseline.met(below(outcome.file, self._rootdir), kept)
        accepted = [
            {**finding, "entry": entry or ""}
            for finding, entry in zip(kept, entries, strict=True)
            if entry is not None or self._update == "write"
        ]
        known = {id(finding) for finding, entry in zip(kept, entries, strict=True) if entry or self._update == "write"}
        new = tuple(finding for finding in findings if id(finding) not in known)
        return replace(outcome, findings=new, accepted=tuple(accepted))

    def judge_error(self, outcome: Outcome, error: PromptfmtError) -> Outcome:
        """Return the outcome of an item that could not be read or rendered."""
        failed = outcome.failed(error)
        if self._path is None:
            return failed
        file = below(outcome.file, self._rootdir)
        is_known = self._baseline.accepts_error(file, outcome.task, error.message)
        if not is_known and self._update != "write":
            return failed
        key = error_key(file, outcome.task, error.message)
        entry = {"file": outcome.file, "task": outcome.task, "code": ERROR, "message": error.message, "key": key}
        accepted = (*outcome.accepted, {**entry, "profile": "", "entry": key if is_known else ""})
        return replace(outcome, category="accepted", title=failed.title, accepted=accepted)

    def lines(
        self,
        tally: BaselineTally,
        *,
        codes_for: Callable[[Path], Collection[str]],
        verbosity: int = 0,
        not_run: Collection[str] = (),
    ) -> Iterator[str]:
        """Yield the closing lines about the baseline, and write its file where that was asked for.

        It is not written where there are items that could not be set up, `not_run`: they would all be missing.
        """
        if self._path is None:
            return
        if self._update is not None and not_run:
            told = f"{counted(len(not_run), 'test')} could not be set up, such as {min(not_run)}"
            yield f"{display_path(self._path)} is not written: {told}"
            return
        removable = tally.removable(self._baseline, rootdir=self._rootdir, defined=self.defined, codes_for=codes_for)
        name = display_path(self._path)
        if self._update is not None:
            entries = tally.updated(self._baseline, removable, self._rootdir)
            write_baseline(entries, self._path)
            yield f"{name}: {counted(len(entries), 'entry', 'entries')} written, {len(removable):,} taken out"
            return
        if tally.accepted:
            yield f"{counted(len({finding['key'] for finding in tally.accepted}), 'finding')} accepted by {name}"
        if removable:
            yield f"{counted(len(removable), 'entry', 'entries')} of {name} found no more; take out with"
            yield "--promptfmt-baseline-update prune:"
            shown = removable if verbosity > 0 else removable[:SHOWN_ENTRIES]
            yield from (f"    {entry.file}: {entry.code} {entry.message} ({entry.task})" for entry in shown)
            if len(removable) > len(shown):
                yield f"    … and {len(removable) - len(shown):,} more; -v lists them all"


def below(file: str, rootdir: Path) -> str:
    """Return the path of a file relative to the rootdir with slashes; the whole path where it lies elsewhere."""
    path = Path(file)
    return path.relative_to(rootdir).as_posix() if path.is_relative_to(rootdir) else path.as_posix()
