"""The outcomes of a run gathered into one value, made once at its end: all reports are functions of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final, Literal

from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import SettingsError, display_path
from pytest_promptfmt.core.finding import Family, Severity
from pytest_promptfmt.core.outcome import Outcome, UsedTokenizer
from pytest_promptfmt.results.baseline import BaselineResult
from pytest_promptfmt.results.clusters import MEANINGS, Cluster, FindingGroup, clusters_of, finding_groups, grouped
from pytest_promptfmt.results.pending import ACCEPTABLE, Edit
from pytest_promptfmt.results.wording import accept_all
from pytest_promptfmt.rules.rule_registry import known_rules

_EXPLAINS: Final = defaultdict[str, frozenset[Family]](
    frozenset,
    misread=frozenset((Family.EXTRACTION, Family.SCORING, Family.ANSWERS, Family.GENERATION)),
    template=frozenset((Family.CHAT, Family.FEWSHOT)),
)
"""The families of rules whose findings explain problems of a category, or errors of chat templates."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A change, a finding or a reason of skips, with its tasks; `category` is the code of a finding."""

    category: str
    title: str
    tasks: Sequence[str]

    @property
    def identity(self) -> tuple[str, str]:
        """Return what is the same in another run."""
        return self.category, self.title


def causes_of(clusters: Iterable[Cluster], findings: Iterable[FindingGroup]) -> dict[Hashable, Cause]:
    """Return the causes of changes and findings, by the key that their outcomes have."""
    found: dict[Hashable, Cause] = {
        (one.category, one.key): Cause(one.category, one.title, one.tasks) for one in clusters
    }
    return found | {group.cluster: Cause(group.code, group.message, group.tasks) for group in findings}


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run; all files and lines about it are functions of this value.

    `outcomes` are those of the items that have something to report, and of obsolete snapshots; `counts` are all items
    by category. `edits` is what --snapshot-update would do to the snapshots and `lock` to the lock file, known where a
    writer needs them. `arguments` are those of the command line, `patch` is the name of the patch that is written.
    `archetypes` are the profiles that are built-in approximations, `not_run` the tests that did not run,
    `unmatched` are messages about selections that match nothing, `notes` other messages. `defined` are the files that
    were read to their end with the names of their tasks, where that is wanted. `unmatched_globs` are per-file ignores
    that match no file. `earlier` are the identities of the causes of an earlier run, where one is named.
    """

    rootdir: Path
    arguments: tuple[str, ...] = ()
    patch: str = ""
    exit_status: int = 0
    outcomes: tuple[Outcome, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    lock: Edit | None = None
    baseline: BaselineResult | None = None
    archetypes: tuple[str, ...] = ()
    not_run: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    unmatched_globs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    defined: Mapping[str, Sequence[str]] | None = None
    earlier: frozenset[tuple[str, str]] | None = None

    @property
    def accept_command(self) -> str:
        """Return the command that accepts what was found, "" where there is nothing that it would settle."""
        return accept_all(self.arguments) if any(self.counts.get(category) for category in ACCEPTABLE) else ""

    @property
    def all_edits(self) -> tuple[Edit, ...]:
        """Return the edits with that of the lock file."""
        return self.edits if self.lock is None else (*self.edits, self.lock)

    @cached_property
    def clusters(self) -> tuple[Cluster, ...]:
        """Return equal problems of many snapshots, the most urgent first."""
        return clusters_of(self.outcomes)

    @cached_property
    def findings(self) -> tuple[FindingGroup, ...]:
        """Return the findings by cause, those first that matter most to the score."""
        return finding_groups(finding for outcome in self.outcomes for finding in outcome.findings)

    @cached_property
    def causes(self) -> Mapping[Hashable, Cause]:
        """Return the causes of all that is reported, by the key that outcomes have."""
        skipped: dict[Hashable, Cause] = {
            ("skipped", reason): Cause("skipped", reason, tuple(dict.fromkeys(tasks)))
            for reason, tasks in self.skipped.items()
        }
        return causes_of(self.clusters, self.findings) | skipped

    def is_new(self, identity: tuple[str, str]) -> bool:
        """Return whether the earlier run, where one is named, did not have a cause with this identity."""
        return self.earlier is not None and identity not in self.earlier

    @cached_property
    def explained(self) -> Mapping[int, FindingGroup]:
        """Return the clusters, by number, that an error about their subject in all their tasks explains."""
        found: dict[int, FindingGroup] = {}
        rules, unloaded = known_rules(), {outcome.key for outcome in self.outcomes if outcome.is_unloaded}
        for number, cluster in enumerate(self.clusters):
            is_failure = cluster.category == "error" and cluster.key not in unloaded
            is_of_template = is_failure and all(member.profile for member in cluster.members)
            families = _EXPLAINS["template" if is_of_template else cluster.category]
            for group in self.findings if families else ():
                rule = rules.get(group.code)
                is_about = rule is not None and rule.family in families and group.severity is Severity.ERROR
                if is_about and {*cluster.tasks} <= {*group.tasks}:
                    found[number] = group
                    break
        return found

    def explained_by(self, group: FindingGroup) -> list[Cluster]:
        """Return the clusters that this cause explains."""
        return [self.clusters[number] for number, cause in self.explained.items() if cause is group]

    @property
    def unexplained(self) -> list[Cluster]:
        """Return the clusters that no finding explains."""
        return [cluster for number, cluster in enumerate(self.clusters) if number not in self.explained]

    @cached_property
    def skipped(self) -> Mapping[str, tuple[str, ...]]:
        """Return the reasons why items were skipped, each with their tasks."""
        return {reason: _tasks(group) for reason, group in self._skipped.items()}

    @cached_property
    def skip_causes(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Return the causes of each reason, with the first place, each with its tasks, that of most tasks first."""
        causes: dict[str, dict[str, tuple[str, ...]]] = {}
        for reason, group in self._skipped.items():
            of_reason = grouped((one for one in group if one.detail), lambda outcome: outcome.key)
            tasks = {members[0].detail: tuple(dict.fromkeys(_tasks(members))) for members in of_reason.values()}
            causes[reason] = dict(sorted(tasks.items(), key=lambda entry: -len(entry[1])))
        return causes

    @cached_property
    def _skipped(self) -> Mapping[str, Sequence[Outcome]]:
        skipped = (outcome for outcome in self.outcomes if outcome.category == "skipped")
        return grouped(skipped, lambda outcome: outcome.title)

    @cached_property
    def remedies(self) -> Mapping[str, str]:
        """Return what makes skipped items run, by the reason why they were skipped, where it is known."""
        return {outcome.title: outcome.remedy for outcome in self.outcomes if outcome.remedy}

    @cached_property
    def unseen(self) -> Mapping[str, tuple[str, ...]]:
        """Return the keys that give pictures or sound, which are not rendered, each with the tasks that have it."""
        unseen = (outcome for outcome in self.outcomes if outcome.unseen)
        groups = grouped(unseen, lambda outcome: outcome.unseen).items()
        return {keys: tuple(dict.fromkeys(_tasks(group))) for keys, group in groups}

    @cached_property
    def unrendered(self) -> Mapping[str, frozenset[str]]:
        """Return the files with their tasks that were skipped."""
        groups = grouped(chain(*self._skipped.values()), lambda outcome: outcome.file)
        return {file: frozenset(_tasks(groups[file])) for file in sorted(groups)}

    @cached_property
    def top(self) -> Path:
        """Return the top folder of the git work tree."""
        return writing.top_of(self.rootdir)


def _tasks(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    return tuple(outcome.task for outcome in outcomes)


def used_globs(outcomes: Iterable[Outcome]) -> dict[str, bool]:
    """Return the per-file ignores that fit a file, with whether they took a finding away."""
    globs: dict[str, bool] = {}
    for outcome in outcomes:
        for glob in outcome.globs:
            globs[glob] = globs.get(glob, False) or glob in outcome.used_globs
    return globs


def _file_of(item: str) -> tuple[str, ...]:
    return tuple(item.partition("::")[0].split("/"))


class Tally:
    """Gathers outcomes while a run continues: what has something to report, and how many there are of each category.

    What is kept of the others is up to the run: the baseline and the HTML report need `all`, a worker needs `none`.
    """

    def __init__(self, keeps: Literal["none", "remarkable", "all"] = "remarkable") -> None:
        self.outcomes: list[Outcome] = []
        self.not_run: list[str] = []
        self.failures: set[tuple[str, str, str]] = set()
        """The clusters of findings that pytest shows in full among the failures."""
        self.tokenizers: dict[str, UsedTokenizer] = {}
        self.counts: Counter[str] = Counter()
        self._obsolete: list[Path] = []
        self.keeps = keeps
        self._first: dict[tuple[str, str], str] = {}

    def add(self, outcome: Outcome, item: str) -> bool:
        """Count the outcome of an item; return whether it repeats a problem that an earlier item had."""
        self.counts[outcome.category] += 1
        if outcome.tokenizer is not None:
            self.tokenizers[outcome.tokenizer.name] = outcome.tokenizer
        if self.keeps == "all" or (self.keeps == "remarkable" and outcome.is_remarkable):
            self.outcomes.append(outcome)
        if outcome.category in ("passed", "accepted", "skipped"):
            return False
        return self._first.setdefault((outcome.category, outcome.key), item) != item

    def first_item(self, outcome: Outcome, item: str) -> str | None:
        """Return the item that had the same problem first, None when there was none yet.

        Nor is there one for an item of a file that comes before that one's: its problem has to be shown in full, in
        whichever order processes run the files.
        """
        first = self._first.get((outcome.category, outcome.key))
        return None if first is None or _file_of(item) < _file_of(first) else first

    def forget_problems(self) -> None:
        """Let the next item with each problem count as the first."""
        self._first.clear()

    def in_order(self) -> tuple[Outcome, ...]:
        """Return what was kept by folder and file, as pytest collects them, independent of the order of the run.

        Items that are run again come after their neighbours that are only counted, and processes change places.
        """
        return tuple(sorted(self.outcomes, key=lambda outcome: Path(outcome.file).parts))

    def add_obsolete(self, paths: Iterable[Path]) -> None:
        """Count the snapshots that no task defines; one that was found again under another name counts as renamed."""
        renamed = {outcome.key for outcome in self.outcomes if outcome.category == "renamed"}
        for path in paths:
            self._obsolete.append(path)
            name = display_path(path)
            if name not in renamed:
                self.add(Outcome(task=name, file=str(path), category="obsolete", title=MEANINGS["obsolete"]), name)

    def edits(self) -> Iterator[Edit]:
        """Yield what --snapshot-update would do to the files as they are now."""
        yield from (_edit(outcome) for outcome in self.outcomes if outcome.new_text is not None)
        for path in self._obsolete:
            yield Edit(path=path, old=content_of(path), new=None, category="obsolete", title=MEANINGS["obsolete"])


def _edit(outcome: Outcome) -> Edit:
    return Edit(
        path=Path(outcome.snapshot),
        old=content_of(Path(outcome.snapshot)),
        new=(outcome.new_text or "").encode(),
        category=outcome.category if outcome.category != "passed" else "header-only",
        task=outcome.task,
        profile=outcome.profile,
        key=outcome.key,
        title=outcome.title,
    )


def causes_in(report: Path) -> frozenset[tuple[str, str]]:
    """Return the identities of the causes of an earlier run from its JSON. Raises SettingsError."""
    try:
        found = json.loads(gate.read_bytes(report, also=[report.parent]))
        rows = [(each["category"], each["title"]) for each in found["clusters"]]
        rows += [(each["code"], each["message"]) for each in found["findings"]]
        rows += [("skipped", each["reason"]) for each in found["skipped"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        hint = "`--promptfmt-json FILE` writes one"
        raise SettingsError(f"{display_path(report)} is not the result of a run", hint=hint) from error
    return frozenset((str(category), str(title)) for category, title in rows)


def content_of(path: Path) -> bytes | None:
    """Return what is in a file, None where it cannot be read."""
    try:
        return None if path.is_symlink() else gate.read_bytes(path)
    except OSError:
        return None
