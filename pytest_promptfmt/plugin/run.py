"""One run: the state that its hooks, nodes and items share, the files that it writes, and its shard."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from pytest_promptfmt.core.errors import SettingsError, display_path
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.profile import BUILTIN_PROFILES
from pytest_promptfmt.inputs.folders import Folders
from pytest_promptfmt.inputs.outcome_cache import OutcomeCache
from pytest_promptfmt.results.baseline import BaselineRun, BaselineUpdate
from pytest_promptfmt.results.run_result import Tally, causes_in
from pytest_promptfmt.results.writers import find_writer
from pytest_promptfmt.rules.linter import Linter
from pytest_promptfmt.settings import Settings, SettingsTree
from pytest_promptfmt.settings.setting_lookup import SettingLookup
from pytest_promptfmt.settings.table import BY_NAME, REPORTS
from pytest_promptfmt.snapshots.expected import ExpectedSnapshots
from pytest_promptfmt.snapshots.extension import Verdict
from pytest_promptfmt.snapshots.lock import FILE_NAME as LOCK_NAME, Lock
from pytest_promptfmt.snapshots.paths import BESIDE, Tree
from pytest_promptfmt.study import Studies
from pytest_promptfmt.tasks import TaskIndex

RUN: Final[pytest.StashKey[Run]] = pytest.StashKey()
"""The key of the run in the config."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The `number`th (from 1) of `count` parts of the task files."""

    number: int
    count: int

    def holds(self, file: Path, rootdir: Path) -> bool:
        """Return whether a task file is in this shard: by its path below the rootdir, without its ending.

        `arc.yaml` and `arc.yml` share a snapshot folder, so they share a shard.
        """
        stem = os.path.relpath(file.with_suffix(""), rootdir).replace(os.sep, "/")
        digest = sha256(stem.encode("utf-8", "surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """The files that this run writes, None for none.

    `baseline` is the file of accepted findings, `baseline_update` its update, `left_out` are task files and folders
    that are not read, an option of `promptfmt diff`, and groups, with `MEMBERS`, whose members in these are not tested.
    `files` are the names of writers with the files that they write, `step_summary` is the file that GitHub shows with
    the job. `earlier` are the causes of the run that is compared with this one.
    """

    baseline: Path | None = None
    baseline_update: BaselineUpdate | None = None
    shard: Shard | None = None
    left_out: frozenset[str] | None = None
    files: tuple[tuple[str, Path], ...] = ()
    step_summary: Path | None = None
    earlier: frozenset[tuple[str, str]] | None = None

    @property
    def needs_edits(self) -> bool:
        """Return whether a file is written that shows the edits of --snapshot-update."""
        return any(find_writer(name).needs_edits for name, _ in self.files)

    @property
    def needs_views(self) -> bool:
        """Return whether a file is written that shows the prompts of each item."""
        return any(find_writer(name).needs_views for name, _ in self.files)

    @property
    def patch(self) -> str:
        """Return the name of the patch that is written, "" for none."""
        return next((display_path(path) for name, path in self.files if name == "patch"), "")

    def with_edit(self, outcome: Outcome, verdict: Verdict) -> Outcome:
        """Return the outcome with the new snapshot, if a file of this run shows it."""
        if verdict.would_write is None or not self.needs_edits:
            return outcome
        return replace(outcome, snapshot=str(verdict.path), new_text=verdict.would_write)


@dataclass
class CollectionResult:
    """The result of collecting.

    `unmatched` has a line for each option that matches no task, `defined` are the files that were read completely with
    the names of their tasks, `other_shards` counts the files of other shards, `has_items` states whether there was any
    item, `template_folders` have chat templates that are not tested, `notes` are lines for the end of the run.
    """

    unmatched: list[str] = field(default_factory=list)
    defined: dict[str, list[str]] = field(default_factory=dict)
    other_shards: int = 0
    has_items: bool = True
    template_folders: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _tree(settings: Settings) -> Tree:
    settings.mirror("docs_dir")  # a mistake is reported once, before any task is read
    mirror = None if settings.beside else settings.mirror("snapshot_dir")
    return BESIDE if mirror is None else Tree(settings.rootdir, mirror)


class Run:
    """One run: its settings by folder, the studies of its tasks, and the outcomes of its items."""

    def __init__(self, config: pytest.Config, tree: SettingsTree, snapshot_names: Iterable[str]) -> None:
        """Raise SettingsError for invalid options; `snapshot_names` are those of snapshots without a profile."""
        self.config = config
        self.outputs = outputs = read_outputs(tree.written)
        self.expected = ExpectedSnapshots(_tree(tree.root))
        names = (*BUILTIN_PROFILES, *snapshot_names)
        self.folders = Folders(tree, lambda defined: self.expected.set_profiles(defined, everywhere=names))
        self.studies = Studies(self.folders.settings_of)
        self.linter = Linter()
        needs_all = outputs.baseline is not None or outputs.needs_views
        self.tally = Tally("all" if needs_all else "remarkable")
        self.baseline = BaselineRun(outputs.baseline, outputs.baseline_update, tree.root.rootdir)
        self.lock = Lock(tree.root.rootdir / LOCK_NAME, tree.root.release)
        self.cache: OutcomeCache
        self.found = CollectionResult()
        self.needs_snapshots = True
        """False for `promptfmt check`, which shows no missing snapshot of a file that has none."""
        if outputs.shard is not None:
            self.expected.limit_to(partial(outputs.shard.holds, rootdir=tree.root.rootdir))

    def use_cache(self, cache: OutcomeCache) -> None:
        """Use the outcomes of earlier runs."""
        self.cache = cache
        self.folders.index = TaskIndex(known=cache)

    @property
    def settings(self) -> Settings:
        """Return the settings of the rootdir."""
        return self.folders.settings


# -- options -----------------------------------------------------------------------------------------------------------


def read_outputs(written: SettingLookup) -> Outputs:
    """Return the outputs that the settings of the rootdir request.

    Raises SettingsError for an invalid shard, an unknown writer, --promptfmt-baseline-update without a baseline, and a
    missing baseline that is not to be written.
    """
    update, baseline = written.value("baseline_update"), written.value("baseline")
    if update is not None and baseline is None:
        raise SettingsError(
            "--promptfmt-baseline-update needs a baseline file",
            hint="name the file with --promptfmt-baseline, or as `baseline` in promptfmt.yaml",
        )
    if baseline is not None and update != "write" and not baseline.exists():
        raise SettingsError(
            f"no such baseline: {baseline}",
            position=written.position("baseline"),
            hint="`--promptfmt-baseline-update write` writes one with the current findings",
        )
    left_out = written.value("left_out")
    summary = os.environ.get("GITHUB_STEP_SUMMARY") if written.value("step_summary") else None
    return Outputs(
        baseline=baseline,
        baseline_update=update,
        shard=_shard(written.value("shard")),
        left_out=frozenset(os.fsdecode(left_out.read_bytes()).split("\0")) if left_out else None,
        step_summary=Path(summary) if summary else None,
        earlier=None if (since := written.value("since")) is None else causes_in(since),
        files=tuple(_files(written)),
    )


def _files(written: SettingLookup) -> Iterator[tuple[str, Path]]:
    for name in REPORTS:
        path = written.value(name)
        if path is not None:
            yield name, path
    for given in written.value("write") or ():
        name, _, file = given.partition("=")
        if not file:
            option = BY_NAME["write"].option
            raise SettingsError(f"{option} {given!r} names no file", hint="write WRITER=FILE, such as json=out.json")
        find_writer(name)
        yield name, Path(file).absolute()


def _shard(written: str | None) -> Shard | None:
    if written is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", written, re.ASCII)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise SettingsError(f"invalid --promptfmt-shard {written!r}", hint="write PART/PARTS, as in 1/4")
    return Shard(number, count)
