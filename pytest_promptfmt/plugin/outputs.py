"""What a run leaves behind, and which shard of the files it takes: the options about it, read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from pytest_promptfmt.core.errors import SettingsError, display_path
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.results.baseline import BaselineUpdate
from pytest_promptfmt.results.writers import find_writer
from pytest_promptfmt.settings.setting_lookup import Config, SettingLookup
from pytest_promptfmt.settings.table import BY_NAME, REPORTS
from pytest_promptfmt.snapshots.extension import Verdict


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
    """What this run is to leave behind, None where nothing is wanted.

    `baseline` is the file of accepted findings, `baseline_update` what to do to it, `left_out` are task files that are
    not read, known to `promptfmt diff` alone. `files` are the names of writers with the files that they write,
    `step_summary` is the file that GitHub shows with the job.
    """

    baseline: Path | None = None
    baseline_update: BaselineUpdate | None = None
    shard: Shard | None = None
    left_out: frozenset[str] | None = None
    files: tuple[tuple[str, Path], ...] = ()
    step_summary: Path | None = None

    @property
    def needs_edits(self) -> bool:
        """Return whether a file is written that shows what --snapshot-update would do."""
        return any(find_writer(name).needs_edits for name, _ in self.files)

    @property
    def needs_views(self) -> bool:
        """Return whether a file is written that shows the prompts of each item."""
        return any(find_writer(name).needs_views for name, _ in self.files)

    @property
    def patch(self) -> str:
        """Return the name of the patch that is written, "" where none is."""
        return next((display_path(path) for name, path in self.files if name == "patch"), "")

    def with_edit(self, outcome: Outcome, verdict: Verdict) -> Outcome:
        """Return the outcome with what --snapshot-update would write, where a file of this run shows it."""
        if verdict.would_write is None or not self.needs_edits:
            return outcome
        return replace(outcome, snapshot=str(verdict.path), new_text=verdict.would_write)


def read_outputs(config: Config) -> Outputs:
    """Return what a pytest config asks for.

    Raises SettingsError for an invalid shard, an unknown writer, --promptfmt-baseline-update without a baseline, and a
    baseline that does not exist and is not to be written.
    """
    written = SettingLookup(config)
    update, baseline = written.value("baseline_update"), written.value("baseline")
    if update is not None and baseline is None:
        raise SettingsError(
            "--promptfmt-baseline-update has no baseline to update",
            hint="name the file with --promptfmt-baseline or the ini value promptfmt_baseline",
        )
    if baseline is not None and update != "write" and not baseline.exists():
        raise SettingsError(
            f"there is no baseline {baseline}", hint="--promptfmt-baseline-update write makes one of what is found now"
        )
    left_out = written.value("left_out")
    summary = os.environ.get("GITHUB_STEP_SUMMARY") if written.value("step_summary") else None
    return Outputs(
        baseline=baseline,
        baseline_update=update,
        shard=_shard(written.value("shard")),
        left_out=frozenset(os.fsdecode(left_out.read_bytes()).split("\0")) if left_out else None,
        step_summary=Path(summary) if summary else None,
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
            raise SettingsError(f"{option} is {given!r}", hint="give a writer and a file, as in json=out.json")
        find_writer(name)
        yield name, Path(file).absolute()


def _shard(written: str | None) -> Shard | None:
    if written is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", written, re.ASCII)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise SettingsError(f"--promptfmt-shard is {written!r}", hint="give the part and how many there are, as in 1/4")
    return Shard(number, count)
