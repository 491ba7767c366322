"""Two revisions of a git repository, each checked out and rendered in a separate folder: what changed between them."""

from pytest_promptfmt.revisions.pytest_process import RevisionError
from pytest_promptfmt.revisions.runs import RevisionComparison, compare_revisions
from pytest_promptfmt.revisions.verdicts import Unknown

__all__ = ["RevisionComparison", "RevisionError", "Unknown", "compare_revisions"]
