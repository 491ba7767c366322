"""Rules about unbalanced pairs: brackets, braces of formulas, quotes and code fences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    BRANCH,
    COLUMN,
    around,
    continuations,
    finding,
    questions,
    shots_of,
    written_texts,
)

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

_STRAY: Final = re.compile(r"\A[\"']|[\"']\Z")


@also("PF235")
def open_fence(study: Study) -> Iterator[Finding]:
    """Report a code fence that is opened before a column and never closed.

    Fix: close the fence after the column.
    """
    for instance, message in questions(study.instances[:1]):
        if "```" not in message.text:
            return
        constant = "".join(span.text if span.origin.field is None else "\0" for span in message.content)
        last = constant.rfind("```")
        if constant.count("```") % 2 and "\0" in constant[last:] and constant[: constant.find("```")].strip():
            saw = message.text[message.text.rfind("```") :][:60]
            yield finding("a code fence is opened but never closed", saw, "doc_to_text", instance)


@also("PF235")
def broken_formula(study: Study) -> Iterator[Finding]:
    """Report a few-shot example with broken LaTeX: unmatched braces, rows that end with a single backslash.

    Fix: correct the formula; in YAML use single quotes, in Python a raw string.
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


@rule("PF235", "unbalanced-pairs", severity=Severity.WARNING, family=Family.PROMPT)
def open_bracket(study: Study) -> Iterator[Finding]:
    """Report an unbalanced pair, such as an unclosed bracket, in the task's own text.

    Why: a typo such as `(A) {{a}} (B {{b}}` is in every prompt, and models close the bracket before
    they answer. A prompt that ends with the bracket expects the answer to close it and is not reported.

    Fix: close the bracket.

    Real: prompts of multilingual benchmarks whose translations lost a bracket.
    """
    for instance, message in questions(study.instances[:1]):
        if study.has_guessed_text:
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
            if opened:  # of any kind: intervals are open at one end
                opened.pop()
            elif place not in labels:
                return None  # text that closes what it never opened has its own use of brackets
    return opened[0] if opened and text[opened[-1] + 1 :].strip() else None


@also("PF235")
def unbalanced_quotes(study: Study) -> Iterator[Finding]:
    """Report a template that opens a quotation or bold text and does not close it.

    Fix: close the quotation or the bold text.
    """
    for template, text in written_texts(study):
        if BRANCH in text:
            continue
        quotes = re.sub(r"(?<=\d)\"", "", text)  # without inches
        marks = [("“", text.rfind("“"), text.count("“") > text.count("”") > 0)]
        marks += [('"', text.rfind('"'), quotes.count('"') % 2 == 1), ("**", *_open_bold(text))]
        for mark, at, is_open in marks:
            if is_open:
                if not text[at + len(mark) :].strip():
                    continue  # the answer continues the quotation
                saw = around(text, at, 20, 40).replace(COLUMN, "…")
                what = "bold text" if mark == "**" else "a quotation"
                yield finding(f"{what} is opened but not closed", saw, template.keys)


def _open_bold(text: str) -> tuple[int, bool]:
    """Return where bold text is opened on a line that does not close it, and whether another line does."""
    lines = list(re.finditer(r"[^\n]+", text)) if not re.search(r"\*{3}|\w\*\*\w|```", text) else []
    odd = [line for line in lines if line[0].count("**") % 2]
    is_open = len(odd) == 1 and any("**" in line[0] for line in lines if line is not odd[0])
    return (odd[0].start() + odd[0][0].rfind("**"), is_open) if odd else (0, False)


@also("PF235")
def stray_quote(study: Study) -> Iterator[Finding]:
    """Report a quote at one end of a choice that has no partner, where other choices have none.

    Fix: write all choices alike.
    """
    if not study.has_choices or study.has_real_docs or not study.renders_fields:
        return
    for instance in study.instances[:1]:
        choices = [text.strip() for text in continuations(instance)]
        stray = [text for text in choices if _STRAY.search(text) and any(text.count(mark) % 2 for mark in "\"'")]
        if 0 < len(stray) < len(choices):
            yield finding("a choice has a quote without a partner", stray[0][-40:], "doc_to_choice", 0)


@also("PF235")
def open_tag(study: Study) -> Iterator[Finding]:
    r"""Report a tag that is opened and not closed, where others of the prompt are closed.

    Fix: close the tag after its column.
    """
    for instance, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        constant = "".join(span.text if span.origin.field is None else COLUMN for span in message.content)
        closed = set(re.findall(r"</(\w+)>", constant))
        for tag in re.finditer(r"<([a-z_]{3,})>(?=[^<]*\0)", constant) if closed else ():
            if tag[1] not in closed and COLUMN in constant[tag.end() :]:
                saw = around(constant, tag, 8, 24).replace(COLUMN, "…")
                yield finding("a tag is opened but not closed", saw, "doc_to_text", instance)
                return
