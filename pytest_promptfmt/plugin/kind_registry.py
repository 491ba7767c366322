"""The kinds of test in one table.

pytest imports this module at every start of every project: it imports nothing heavy.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class KindEntry(NamedTuple):
    """One kind of test: its name, of which its marker is made, what it is about, and its class as `module:Class`.

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
    KindEntry("snapshot", "the prompts of a task compared with their snapshot", "items.prompt_items:SnapshotKind"),
    KindEntry("variant", "a variant of a format, rendered without a snapshot", "items.prompt_items:VariantKind"),
    KindEntry("lint", "a task or group looked at by the rules", "items.lint_items:LintKind"),
    KindEntry(
        "extraction",
        "whether a task's filters read answers as they should",
        "items.answer_items:ExtractionKind",
        ("extraction",),
    ),
    KindEntry("scoring", "whether a task's metrics tell right from wrong answers", "items.answer_items:ScoringKind"),
    KindEntry("recording", "recorded completions, replayed", "items.answer_items:RecordingKind"),
    KindEntry("model", "a task put to a model", "items.model_items:ModelKind"),
    KindEntry(
        "recorded",
        "prompts and completions of a recorded run, made again",
        "items.recording_items:RecordedKind",
        ("recorded",),
    ),
)
"""Every kind of test, in the order of a task's items."""
