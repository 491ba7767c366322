"""A table of the answers of a template: which come back through a parser, and stay as they are in later prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from pytest_promptfmt.core.errors import TokenizerError
from pytest_promptfmt.profiles.probe_conversations import State
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.systems.templates.answers_read_back import (
    ResponseReader,
    Step,
    WrittenAnswer,
    lost_parts,
    reader_of,
    written_answers,
)

_OK: Final = "ok"
_MISS: Final = "miss"
_KEPT: Final = "kept in later prompts"


def loop_table(trial: TemplateTrial) -> Mapping[str, Any]:
    """Return the table as the report shows it: a column for each step, and a row for each answer.

    Without a `response_template`, which may need transformers, only whether later prompts keep an answer is known.
    """
    nothing, reader = "", None
    try:
        reader = reader_of(trial)
        nothing = "" if reader is not None else "no response_template reads the answers of this template"
    except TokenizerError as error:
        nothing = error.message
    steps: Sequence[Step] = get_args(Step) if reader is not None else ()
    rows, read = [], dict[tuple[str, str, str], Sequence[str]]()
    for answer in written_answers(trial):
        if answer.key not in read:
            read[answer.key] = _read(trial, reader, answer, steps)
        cells = [*read[answer.key], _kept(trial, answer)]
        failed = any(cell.startswith(_MISS) for cell in cells)
        rows.append([answer.conversation.name, f"message {answer.number + 1}", cells, failed])
    return {
        "title": "which answers come back",
        "things": ["answer", "answers", "do not come back"],
        "pipelines": [*steps, _KEPT],
        "rows": rows,
        "nothing": nothing,
    }


def _read(
    trial: TemplateTrial, reader: ResponseReader | None, answer: WrittenAnswer, steps: Sequence[Step]
) -> Sequence[str]:
    losses = list(lost_parts(trial, reader, answer)) if reader is not None else []
    lost = {step: [each.what for each in losses if each.step == step] for step in steps}
    return [f"{_MISS}: {', '.join(lost[step])}" if lost[step] else _OK for step in steps]


def _kept(trial: TemplateTrial, answer: WrittenAnswer) -> str:
    """Return whether the whole conversation begins with what was generated, so that its cache holds."""
    count = len(answer.conversation.messages)
    later = trial.without_generation_prompt(answer.conversation, State(count=count))
    if answer.number + 1 == count or later is None:
        return "-"
    generated = (answer.prompt + answer.text).rstrip()
    return _OK if later.startswith(generated) else f"{_MISS}: a later prompt has another text"
