"""Two revisions of a git repository, each checked out and rendered in a separate folder: what changed between them."""

from pytest_promptfmt.revisions.git import RevisionError
from pytest_promptfmt.revisions.judged import Unknown
from pytest_promptfmt.revisions.runs import Comparison, compare_revisions

__all__ = ["Comparison", "RevisionError", "Unknown", "compare_revisions"]
