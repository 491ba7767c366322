"""Rules about unclosed pairs: brackets of a prompt, braces and rows of formulas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import COLUMN, around, finding, question_message, shots_of
from pytest_promptfmt.study import Study

_COMMAND: Final = re.compile(r"\\(?:begin|frac|dfrac|sqrt|text|boxed|left|cdot|times|sum|int|mathbf|mathrm|le|ge)\b")
_BRACE: Final = re.compile(r"(?<!\\)(?:\\\\)*([{}])")
_ROWS: Final = re.compile(
    r"\\begin\{(align|aligned|array|cases|gather|eqnarray|[pbvBV]?matrix)\*?\}((?:(?!\\(?:begin|end)\{).)*)\\end\{\1",
    re.DOTALL,
)
"""An environment with rows and no other one inside: no text is read twice, even with many unclosed ones."""

_HALF_BREAK: Final = re.compile(r"(?<!\\)(?:\\\\)*\\[ \t]*\n")
_SHOWN: Final = 24
_OPENING: Final = "([（【「『"
_CLOSING: Final = ")]）】」』"
_LABEL: Final = re.compile(r"(?:^|(?<=[\s(\[（]))\w{1,3}[)\]）]")
_CODE: Final = re.compile(r"```|\\[A-Za-z]|[:;]-?[(\[]")
"""Where unmatched brackets mean nothing: code, formulas, and emoticons."""


@rule("PF234", "broken-formula", severity=Severity.WARNING, family=Family.FEWSHOT)
def broken_formula(study: Study) -> Iterator[Finding]:
    r"""Report a few-shot example with broken LaTeX: unmatched braces, rows that end with a single backslash.

    Why: a string that is escaped once too often in YAML or Python loses one of two backslashes, and copied text
    often has an extra brace. Models imitate few-shot examples, and formulas that do not parse score 0.

    Example:
        num_fewshot: 1
        output_type: generate_until
        fewshot_config:
          samples:
          - {question: 'Solve $\frac{x}{2}=1$.}', choices: ["2"], answer: 0}

    Silent with:
        fewshot_config:
          samples:
          - {question: 'Solve $\frac{x}{2}=1$.', choices: ["2"], answer: 0}

    Fix: correct the formula; in YAML use single quotes, in Python a raw string.

    Real: lm-evaluation-harness #4045 (minerva_math, from 0.4.8 to 0.4.12).
    """
    if study.shots == 0:
        return
    for instance in study.instances[:1]:
        for shot in shots_of(instance):
            text = f"{shot.question}{shot.answer or ''}"
            problem = _problem(text) if _COMMAND.search(text) else None
            if problem is not None:
                yield finding(
                    problem[0],
                    around(text, problem[1], _SHOWN),
                    ("fewshot_config", "samples") if study.task.fewshot.samples is not None else ("doc_to_text",),
                    instance,
                )
                return


def _problem(text: str) -> tuple[str, int] | None:
    """Return what is wrong with the formulas of a text, and where; None when nothing is."""
    for rows in _ROWS.finditer(text):
        half = _HALF_BREAK.search(rows[2])
        if half is not None:
            return "a row of a formula ends with one backslash instead of two", rows.start(2) + half.end() - 1
    opened = []
    for brace in _BRACE.finditer(text):
        if brace[1] == "{":
            opened.append(brace.start(1))
        elif opened:
            opened.pop()
        else:
            return "unmatched closing brace in a formula", brace.start(1)
    return ("unclosed brace in a formula", opened[-1]) if opened else None


@rule("PF235", "open-bracket", severity=Severity.WARNING, family=Family.PROMPT)
def open_bracket(study: Study) -> Iterator[Finding]:
    r"""Report an unclosed bracket in the task's own text.

    Why: a typo such as `(A) {{a}} (B {{b}}` is in every prompt, and models close the bracket before
    they answer. A prompt that ends with the bracket expects the answer to close it and is not reported.

    Example:
        doc_to_text: "Answer with one word (of those below: {{question}}\nAnswer:"

    Silent example:
        doc_to_text: "Answer with one word (of those below): {{question}}\nAnswer:"

    Fix: close the bracket.

    Real: prompts of multilingual benchmarks whose translations lost a bracket.
    """
    for instance in study.instances[:1]:
        message = question_message(instance)
        if message is None or study.has_guessed_text:
            return
        constant = "".join(span.text if span.origin.field is None else COLUMN for span in message.content)
        place = None if _CODE.search(constant) else _open_place(constant)
        if place is not None:
            yield finding(
                "unclosed bracket", around(constant, place, _SHOWN).replace(COLUMN, "…"), "doc_to_text", instance
            )
            return


def _open_place(text: str) -> int | None:
    """Return where the first unclosed bracket is; None if all are closed, or if the text ends with it."""
    labels = {match.end() - 1 for match in _LABEL.finditer(text)}
    opened: list[int] = []
    for place, character in enumerate(text):
        if character in _OPENING:
            opened.append(place)
        elif character in _CLOSING:
            if opened:  # whichever kind: intervals are open at one end
                opened.pop()
            elif place not in labels:
                return None  # text that closes what it never opened has its own use of brackets
    return opened[0] if opened and text[opened[-1] + 1 :].strip() else None
