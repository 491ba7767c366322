"""What a run leaves behind, and which shard of the files it takes: the options about it, read."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.settings.table import REPORTS
from pytest_promptfmt.settings.written import Config, Written

if TYPE_CHECKING:
    from pytest_promptfmt.results.outcomes import Outcome
    from pytest_promptfmt.snapshots.extension import Verdict

BaselineUpdate = Literal["write", "prune"]


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
    not read, known to `promptfmt diff` alone. `step_summary` is the file that
    GitHub shows with the job.
    """

    baseline: Path | None = None
    baseline_update: BaselineUpdate | None = None
    shard: Shard | None = None
    left_out: frozenset[str] | None = None
    patch: Path | None = None
    pending: Path | None = None
    json: Path | None = None
    markdown: Path | None = None
    html: Path | None = None
    step_summary: Path | None = None

    def with_edit(self, outcome: Outcome, verdict: Verdict) -> Outcome:
        """Return the outcome with what --snapshot-update would write, where a report of this run tells it."""
        if verdict.would_write is None or (self.patch is None and self.pending is None):
            return outcome
        return replace(outcome, snapshot=str(verdict.path), new_text=verdict.would_write)


def read_outputs(config: Config) -> Outputs:
    """Return what a pytest config asks for.

    Raises SettingsError for a shard that is none, for --promptfmt-baseline-update without a baseline, and for a
    baseline that does not exist and is not to be written.
    """
    written = Written(config)
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
        **{name: written.value(name) for name in REPORTS},
    )


def _shard(written: str | None) -> Shard | None:
    if written is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", written, re.ASCII)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise SettingsError(f"--promptfmt-shard is {written!r}", hint="give the part and how many there are, as in 1/4")
    return Shard(number, count)
