"""What is left to do until a run passes, one step for each kind of problem that it met."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_promptfmt.core.finding import Severity
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.wording import counted, listed

SHOWN_CODES = 8


def next_steps(result: RunResult) -> Iterator[str]:
    """Yield each step as a sentence of Markdown; nothing for a run that passes."""
    counts = result.counts
    errors = counts.get("error", 0)
    if errors:
        yield f"{counted(errors, 'item')} cannot be read or rendered: fix the files, or accept them in a baseline."
    failing = [group for group in result.findings if group.severity is Severity.ERROR]
    if failing:
        codes = listed(sorted({group.code for group in failing}), SHOWN_CODES)
        number = sum(group.count for group in failing)
        yield (
            f"{counted(number, 'finding')} ({codes}): fix them, ignore them with a reason (`promptfmt explain CODE`), "
            "or accept them in a baseline. Updating snapshots does not settle findings."
        )
    if counts.get("misread"):
        number = counts["misread"]
        yield f"{counted(number, 'item')} with misread answers: fix filter or prompt, or accept them in a baseline."
    if errors or failing or counts.get("misread"):
        yield "A baseline is written with `--promptfmt-baseline FILE --promptfmt-baseline-update write`."
    if result.accept_command:
        patch = f"`git apply {result.patch}`, or " if result.patch else ""
        yield f"If the changed prompts are meant: {patch}`{result.accept_command}`; commit the snapshots."
