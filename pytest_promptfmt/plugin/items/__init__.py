"""The kinds of test: one table, and the items and hooks of pytest that each gives a run.

The modules of this package are the pytest items: what each tests, when it skips, and how its failure reads. pytest
imports this module at every start of every project: it imports nothing heavy.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class KindEntry(NamedTuple):
    """One kind of test: its name, a description for its marker, and its class as `module:Class` of this package.

    `snapshot_names` are the names of its snapshots that are not those of profiles.
    """

    name: str
    help: str
    where: str
    snapshot_names: tuple[str, ...] = ()

    @property
    def marker(self) -> str:
        """Return the name of the marker of its items."""
        return f"promptfmt_{self.name}"


KINDS: Final = (
    KindEntry("snapshot", "the prompts of a task compared with their snapshot", "prompt_items:SnapshotKind"),
    KindEntry("variant", "a variant of a format, rendered without a snapshot", "prompt_items:VariantKind"),
    KindEntry("lint", "a task or group checked by the rules", "lint_items:LintKind"),
    KindEntry(
        "extraction",
        "whether a task's filters read answers as they should",
        "answer_items:ExtractionKind",
        ("extraction",),
    ),
    KindEntry("scoring", "whether a task's metrics separate right from wrong answers", "answer_items:ScoringKind"),
    KindEntry("recording", "recorded completions, replayed", "answer_items:RecordingKind"),
    KindEntry("model", "a task with the answers of a model", "prompt_items:ModelKind"),
    KindEntry(
        "recorded",
        "recorded prompts and scores, compared with those made here",
        "answer_items:RecordedKind",
        ("recorded",),
    ),
)
"""Every kind of test, in the order of a task's items."""
