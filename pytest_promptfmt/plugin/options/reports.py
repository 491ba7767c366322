"""Options about what a run leaves behind: baseline, patch, JSON, Markdown; and which shard of the files it takes.

pytest imports this module at every start of every project: it imports nothing heavy.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

BASELINE_UPDATES = ("write", "prune")

FILES: Mapping[str, str] = {
    "patch": "Write what --snapshot-update would do as a patch for `git apply`.",
    "pending": "Write what --snapshot-update would do as JSON lines, for `promptfmt review`.",
    "json": "Write the result of the run as one JSON object.",
    "markdown": "Write the result of the run as Markdown.",
    "html": "Write all prompts, changes and findings as one HTML page.",
}
"""The files that a run may write, with what each option says."""


def add_report_options(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    """Add the options and ini values of this module."""
    group.addoption(
        "--promptfmt-baseline",
        default=None,
        dest="promptfmt_baseline",
        metavar="FILE",
        help="Accept the findings and errors listed in this file; new ones fail.",
    )
    group.addoption(
        "--promptfmt-baseline-update",
        default=None,
        dest="promptfmt_baseline_update",
        choices=BASELINE_UPDATES,
        help="write: put everything found now into the baseline. prune: take out what is found no more.",
    )
    group.addoption(
        "--promptfmt-shard",
        default=None,
        dest="promptfmt_shard",
        metavar="I/N",
        help="Read only the I-th of N parts of the task files, such as 1/4.",
    )
    # Absolute paths with NUL between them: what `promptfmt diff` knows to be the same in both revisions.
    group.addoption("--promptfmt-leave-out", default=None, dest="promptfmt_leave_out", help=argparse.SUPPRESS)
    for name, text in FILES.items():
        group.addoption(f"--promptfmt-{name}", default=None, dest=f"promptfmt_{name}_file", metavar="FILE", help=text)
    group.addoption(
        "--promptfmt-step-summary",
        action="store_true",
        dest="promptfmt_step_summary",
        help="Append the Markdown to the file that GITHUB_STEP_SUMMARY names, where it is set.",
    )
    parser.addini("promptfmt_baseline", "File of accepted findings, below the rootdir.", default="")
    parser.addini("promptfmt_step_summary", "Always act as with --promptfmt-step-summary.", type="bool", default=False)
