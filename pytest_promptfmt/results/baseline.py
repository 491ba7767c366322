"""The baseline: findings and errors that were there when the plugin came, so that only new ones fail.

Its file has one JSON object in a line for each, ordered by effect on the score, so that git merges it and a reviewer
reads it. It finds an entry by the stable key of its finding, which has no lines, no docs and no message; where the text
that was seen has changed as well, by rule, task and message. Here is the file, and what a run makes of it: what is
accepted, which entries are no longer needed, and the new entries.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final, Literal

from pytest_promptfmt.answers.phrasing_verdicts import PhrasingRow
from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import Position, PromptfmtError, SettingsError, display_path, raising
from pytest_promptfmt.core.finding import Effect, Reported, Severity, stable_key
from pytest_promptfmt.core.json_values import value_of
from pytest_promptfmt.core.outcome import Accepted, BaselineEntry, Outcome
from pytest_promptfmt.results.clusters import grouped
from pytest_promptfmt.results.wording import LINES, LISTED_BY_V, below, counted, first_of
from pytest_promptfmt.rules.rule_registry import Scope, effect_of, known_rules

BaselineUpdate = Literal["write", "prune"]

FIRST_LINE: Final = {"pytest-promptfmt baseline": 1}
ERROR: Final = "error"
"""In place of a code: a task or file that cannot be read or rendered."""
MISREAD: Final = "misread"
"""In place of a code: a phrasing of an answer that is not read as it should be."""
STYLE: Final = ("PF238", "PF240")
"""The rules about style: all they report are warnings about the text of prompts that change no score."""
_AFFECTS: Final = {effect: f"affect {effect}" for effect in Effect}
_ORDER: Final = (ERROR, MISREAD, *_AFFECTS.values(), "others")
"""What entries of a file are ordered by, and counted by: those first that matter most to the score."""
_LINES: Final = re.compile(r"(?<=\.\w{2}):\d+(?::\d+)?|(?<=\.\w{4}):\d+(?::\d+)?")
"""The lines of other files in a message: `utils.py:12`, `_base.yaml:3:1`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineResult:
    """The result of the baseline at `path`.

    `accepted` is the number of different findings, `removable` the entries that this run proves to be fixed, `written`
    those that its file gets (None: it is not written). `refused` is why it is not written although that was requested.
    """

    path: Path
    accepted: int
    removable: tuple[BaselineEntry, ...] = ()
    written: tuple[BaselineEntry, ...] | None = None
    refused: str = ""


class BaselineRun:
    """The baseline of one run: what it accepts, and what becomes of its file at the end."""

    def __init__(self, path: Path | None, update: BaselineUpdate | None, rootdir: Path) -> None:
        self._path = path
        self._update = update
        self._rootdir = rootdir
        entries = read_entries(path) if path is not None and path.exists() else ()
        self._baseline = Baseline(entries, rootdir=rootdir)

    def judge_findings(self, outcome: Outcome, findings: Sequence[Reported]) -> Outcome:
        """Return the outcome with the findings that are new, and apart from them those that the baseline accepts.

        While a baseline is written it accepts everything; infos, which are only found when selected, never enter it.
        Of a finding that is new in some profiles only, those are kept.
        """
        if self._path is None:
            return replace(outcome, findings=tuple(findings))
        kept = [finding for finding in findings if finding.severity is not Severity.INFO]
        entries_of = iter(self._baseline.met(kept))
        new: list[Reported] = []
        accepted: list[Accepted] = []
        for finding in findings:
            entries = next(entries_of) if finding.severity is not Severity.INFO else {}
            accepts_all = self._update == "write" and finding.severity is not Severity.INFO
            known = [each for each in finding.by_profile if accepts_all or each[0] in entries]
            for profile, key in known:
                entry = self._entry(finding, finding.code, finding.message, key, profile)
                accepted.append(Accepted(entry, entries.get(profile, "")))
            unknown = [profile for profile, key in finding.by_profile if (profile, key) not in known]
            if unknown:
                new.append(finding.limited_to(unknown) if known else finding)
        return replace(outcome, findings=tuple(new), accepted=tuple(accepted))

    def judge_error(self, outcome: Outcome, error: PromptfmtError) -> Outcome:
        """Return the outcome of an item that could not be read or rendered."""
        failed = outcome.failed(error)
        if self._path is None:
            return failed
        accepted = self._accepted(outcome, ERROR, error.message, error_key(outcome.file, outcome.task, error.message))
        if accepted is None:
            return failed
        return replace(outcome, category="accepted", title=failed.title, accepted=(*outcome.accepted, accepted))

    def judge_rows(self, outcome: Outcome, rows: Sequence[PhrasingRow]) -> tuple[Outcome, Sequence[PhrasingRow]]:
        """Return the outcome of a battery with the misread phrasings that the baseline accepts, and the others."""
        outcome = replace(outcome, linted=(outcome.profile,))
        if self._path is None:
            return outcome, rows
        new: list[PhrasingRow] = []
        accepted: list[Accepted] = []
        for row in rows:
            identity = [MISREAD, Path(outcome.file).name, outcome.task, outcome.profile, row.id, *row.verdicts]
            one = self._accepted(outcome, MISREAD, row.title, stable_key(json.dumps(identity)), outcome.profile)
            if one is None:
                new.append(row)
            else:
                accepted.append(one)
        return replace(outcome, accepted=(*outcome.accepted, *accepted)), new

    def _accepted(self, of: Outcome, code: str, message: str, key: str, profile: str = "") -> Accepted | None:
        """Return the entry that accepts something, None where there is none and none is written."""
        is_known = self._baseline.accepts(of.file, of.task, key)
        if not is_known and self._update != "write":
            return None
        return Accepted(self._entry(of, code, message, key, profile), key if is_known else "")

    def _entry(self, of: Outcome | Reported, code: str, message: str, key: str, profile: str = "") -> BaselineEntry:
        file = below(of.file, self._rootdir)
        return BaselineEntry(file=file, task=of.task, code=code, message=message, key=key, profile=profile)

    def result(
        self,
        outcomes: Iterable[Outcome],
        *,
        defined: Mapping[str, Collection[str]],
        codes_for: Callable[[Path], Mapping[str, Scope]],
        not_run: Collection[str] = (),
    ) -> BaselineResult | None:
        """Return what became of the baseline; None where the run has none.

        `defined` are the files that were read to their end, with the names they define; `codes_for` gives the codes of
        the rules that look at a file, and what they look at. The file is not written if there are tests that did
        not run, `not_run`: all their entries would be missing.
        """
        if self._path is None:
            return None
        if self._update is not None and not_run:
            refused = f"{counted(len(not_run), 'test')} did not run, such as {min(not_run)}"
            return BaselineResult(path=self._path, accepted=0, refused=refused)
        seen = list(outcomes)
        accepted = [each for outcome in seen for each in outcome.accepted]
        used = {each.met for each in accepted}
        looked_at = _LookedAt(seen, self._rootdir, defined, codes_for)
        removable = [entry for entry in self._baseline.entries if entry.key not in used and looked_at.covers(entry)]
        written = None
        if self._update is not None:
            gone = used | {entry.key for entry in removable}
            kept = [entry for entry in self._baseline.entries if entry.key not in gone]
            written = tuple({entry.key: entry for entry in (*kept, *(each.entry for each in accepted))}.values())
        return BaselineResult(
            path=self._path,
            accepted=_findings_in({each.entry for each in accepted}),
            removable=tuple(removable),
            written=written,
        )


class _LookedAt:
    """How far the items of a run came with each task: only then may an entry be called fixed."""

    def __init__(
        self,
        outcomes: Sequence[Outcome],
        rootdir: Path,
        defined: Mapping[str, Collection[str]],
        codes_for: Callable[[Path], Mapping[str, Scope]],
    ) -> None:
        self._rootdir = rootdir
        self._defined = defined
        self._codes_for = codes_for
        self._rendered = {(each.file, each.task) for each in outcomes if each.rendered}
        self._scored = {(each.file, each.task) for each in outcomes if each.scored}
        self._asked = {(each.file, each.task, profile) for each in outcomes for profile in each.asked}
        self._linted = {(each.file, each.task, profile) for each in outcomes for profile in each.linted}
        self._profiles = {profile for _, _, profile in self._linted}

    def covers(self, entry: BaselineEntry) -> bool:
        """Return whether the run would have found an entry that is still needed.

        Its file is gone, or was read to its end and no longer defines the task, or the rule checked the task; an
        entry about a profile, any task in that profile.
        """
        path = self._rootdir / entry.file
        file = str(path)
        if not gate.is_there(path) or (file in self._defined and entry.task not in self._defined[file]):
            return True
        if entry.code == ERROR:
            return (file, entry.task) in self._rendered
        if entry.code == MISREAD:
            return (file, entry.task, entry.profile) in self._linted
        if not entry.task:
            written_in = path if entry.file else self._rootdir / "-"
            return entry.profile in self._profiles and entry.code in self._codes_for(written_in)
        scope = self._codes_for(path).get(entry.code)
        if scope == "scoring":
            return (file, entry.task) in self._scored
        seen = self._asked if scope == "model" else self._linted
        return scope is not None and (file, entry.task, entry.profile) in seen


def _findings_in(entries: Iterable[BaselineEntry]) -> int:
    """Return how many findings the entries are: one that several profiles see has an entry for each."""
    counts = Counter((each.file, each.task, each.code, each.message, each.profile) for each in entries)
    findings: dict[tuple[str, ...], int] = {}
    for (*place, _), count in counts.items():
        findings[tuple(place)] = max(count, findings.get(tuple(place), 0))
    return sum(findings.values())


def baseline_lines(result: BaselineResult, *, verbosity: int = 0) -> Iterator[str]:
    """Yield the closing lines about the baseline."""
    name = display_path(result.path)
    if result.refused:
        yield f"{name} is not written: {result.refused}"
        return
    if result.written is not None:
        yield f"{name}: {counted(len(result.written), 'entry', 'entries')} written, {len(result.removable):,} removed"
        return
    if result.accepted:
        yield f"{counted(result.accepted, 'finding')} accepted by {name}"
    if result.removable:
        prune, count = "; --promptfmt-baseline-update prune removes", len(result.removable)
        gone = counted(count, f"entry no longer occurs{prune} it", f"entries no longer occur{prune} them")
        yield f"{name}: {gone}:"
        lines = [f"{entry.file}: {entry.code} {entry.message} ({entry.task})" for entry in result.removable]
        yield from first_of(lines, None if verbosity > 0 else LINES, "    ", LISTED_BY_V)


class Baseline:
    """The entries of a file, looked up by the file that they are about; paths are relative to `rootdir`."""

    def __init__(self, entries: Iterable[BaselineEntry] = (), *, rootdir: Path) -> None:
        self.entries = tuple(entries)
        self._rootdir = rootdir
        self._by_file = grouped(self.entries, lambda entry: entry.file)
        gone = (own for file, own in self._by_file.items() if not gate.is_there(rootdir / file))
        self._moved = grouped(chain(*gone), lambda entry: entry.task)
        """Entries by task whose file is gone: it may have another name or folder now."""

    def _entries_for(self, file: str, task: str) -> list[BaselineEntry]:
        return [*self._by_file.get(below(file, self._rootdir), ()), *self._moved.get(task, ())]

    def met(self, findings: Sequence[Reported]) -> list[Mapping[str, str]]:
        """Return for each finding of one item the keys of the entries that accept it, by profile.

        A profile without an entry sees the finding for the first time. Entries about the task itself are under "".
        """
        places = dict.fromkeys((finding.file, finding.task) for finding in findings)
        left = {entry.key: entry for place in places for entry in self._entries_for(*place)}
        met: list[dict[str, str]] = [{} for _ in findings]
        wanted = [(entries, one, *each) for entries, one in zip(met, findings, strict=True) for each in one.by_profile]
        for entries, finding, profile, key in wanted:  # as it was
            if key in left and left[key].message == finding.message:
                entries[profile] = left.pop(key).key
        others = grouped(left.values(), lambda entry: (entry.code, entry.task, entry.profile, entry.message))
        for entries, finding, profile, _ in wanted:  # in another place, or of a release that made other keys
            same = others.get((finding.code, finding.task, profile, finding.message))
            if profile not in entries and same:
                entries[profile] = left.pop(same.pop(0).key).key
        for entries, _, profile, key in wanted:  # in other words
            if profile not in entries and key in left:
                entries[profile] = left.pop(key).key
        return list(met)

    def accepts(self, file: str, task: str, key: str) -> bool:
        """Return whether there is an entry with this key for a file or task."""
        return any(entry.key == key for entry in self._entries_for(file, task))


def error_key(file: str, task: str, message: str) -> str:
    """Return the stable key of an error: the same if its line moved or its file lies in another folder."""
    return stable_key(json.dumps([ERROR, Path(file).name, task, _LINES.sub("", message)]))


def read_entries(path: Path) -> tuple[BaselineEntry, ...]:
    """Return the entries of a file. Raises SettingsError, naming the line, for a file that is not a baseline."""
    with raising(SettingsError, f"the baseline {display_path(path)} cannot be read"):
        lines = gate.read_text(path).removesuffix("\n").split("\n")
    entries = []
    for number, line in enumerate(lines, 1):
        reason = "this line is not JSON"
        try:
            row = json.loads(line)
            if number > 1:
                reason = "an entry must have the keys code, file, key, message, task, and only strings as values"
                entries.append(value_of(BaselineEntry, row))
            elif row != FIRST_LINE:
                reason = f"a baseline begins with the line {json.dumps(FIRST_LINE)}"
                raise ValueError(reason)
        except (KeyError, TypeError, ValueError) as error:
            hint = "--promptfmt-baseline-update write writes the file again"
            raise SettingsError(reason, position=Position(path, number), hint=hint) from error
    return tuple(entries)


def write_baseline(entries: Iterable[BaselineEntry], path: Path) -> None:
    """Write the entries, those first that matter most to the score, one in a line; the file is replaced in one step."""
    effects = _effects()
    ordered = sorted(entries, key=lambda entry: (_ORDER.index(effects.get(entry.code, "others")), entry.code, entry))
    # Entries about tasks have no profile.
    rows = [{name: value for name, value in asdict(entry).items() if name != "profile" or value} for entry in ordered]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [FIRST_LINE, *rows])
    writing.write(path, text.encode("utf-8", "backslashreplace"))


def counted_by_effect(entries: Iterable[BaselineEntry]) -> str:
    """Return how many entries of a baseline have which effect on the score, as in `3 error, 2 affect every doc`."""
    effects = _effects()
    counts = Counter(effects.get(entry.code, "others") for entry in entries)
    words = {name: name.replace("affect ", "affects ") if counts[name] == 1 else name for name in _ORDER}
    return ", ".join(f"{counts[name]:,} {words[name]}" for name in _ORDER if counts[name])


def _effects() -> Mapping[str, str]:
    """Return the effect of each code on the score."""
    return {ERROR: ERROR, MISREAD: MISREAD} | {
        code: _AFFECTS[effect_of(rule, rule.severity)] for code, rule in known_rules().items()
    }
