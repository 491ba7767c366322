"""Rules about characters: full-width, misplaced, damaged, invisible, or looking like others, and those of formulas."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.page import Page, Text, asked_first, known, part_of, query, task, texts
from pytest_promptfmt.rules.rule_registry import also, reads_names
from pytest_promptfmt.rules.rule_views import (
    COLUMN,
    SHOWN,
    around,
    continuations,
    finding,
    info,
    own_spans,
    pattern,
    question_message,
    skeleton,
    written_texts,
)
from pytest_promptfmt.rules.templates import find_literal_break

_LETTER: Final = re.compile(r"(?<![A-Za-z])[a-z](?![A-Za-z])")
_BACKSLASHED: Final = re.compile(r"[.?!:\0]\\(?![a-z])[^\W\d_]{2,20}:(?= ?\0|\s*\Z)")
_ALPHABETS: Final = pattern("characters", "alphabets")
_INVISIBLE: Final = re.compile("[\u200b\u2060\ufeff\u00ad\u202a-\u202e\u2066-\u2069]")
_NARROW: Final = re.compile("[\u00a0\u202f\u2009]")
_SHORT: Final = 24
_LOOK_ALIKE: Final = frozenset("АВЕЅІЈКМНОРСТУХаеіјорсухΑΒΕΖΗΙΚΜΝΟΡΤΥΧο")  # Cyrillic, Greek
_WIDE_PUNCTUATION: Final = re.compile(r"(?<=[A-Za-z]{2})([：；，？！（）])")
_CJK: Final = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\u3040-\u30ff]")
_ODD: Final = pattern("characters", "odd")
_END: Final = re.compile(r"\S[.?!]\Z")
"""The end of a sentence that is not split into tokens, which has odd punctuation anyway."""

_ENTITY: Final = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|deg|eacute|#0?39|#x27|#34|#8217);|<br ?/?>", re.IGNORECASE)
_MARKUP: Final = re.compile(r"(?i)</(?!br)[a-z]\w*>|html")
"""Other tags, or their name: there, an entity or a line break is written as it is meant."""

_CODE: Final = re.compile(
    r"^[^\S\n]*(?:def|class|import|from|return|#include|public|function|assert)\b|```", re.MULTILINE
)
"""Code, in which an entity is a literal."""

_COMMAND: Final = re.compile(r"\\(?:begin|frac|dfrac|sqrt|text|boxed|left|cdot|times|sum|int|mathbf|mathrm|le|ge)\b")
_BRACE: Final = re.compile(r"(?<!\\)(?:\\\\)*([{}])")
_ROWS: Final = re.compile(
    r"\\begin\{(align|aligned|array|cases|gather|eqnarray|[pbvBV]?matrix)\*?\}((?:(?!\\(?:begin|end)\{).)*)\\end\{\1",
    re.DOTALL,
)
"""An environment with rows and no other one inside: no text is read twice, even with many unclosed ones."""
_HALF_BREAK: Final = re.compile(r"(?<!\\)(?:\\\\)*\\[ \t]*\n")

_MOJIBAKE: Final = pattern("characters", "mojibake")


@query("PF240", "", task)
def _full_width_punctuation(study: Study) -> Iterator[Finding]:
    """Report full-width punctuation after a Latin word in a template without Chinese or Japanese text."""
    for template in study.templates:
        text = "".join(template.text.constants)
        found = _WIDE_PUNCTUATION.search(text)
        if found is not None and not _CJK.search(text):
            message = f"a {unicodedata.name(found[1]).lower()} after a Latin word"
            yield finding(message, around(text, found, 10), template.keys)


@rule("PF238", "odd-punctuation", severity=Severity.WARNING, family=Family.PROMPT)
def odd_punctuation(study: Study) -> Iterator[Finding]:
    """Report odd punctuation, such as `:.`, `??` or a space before a comma.

    Why: such punctuation remains when a sentence is edited, or when two texts are joined. Models copy the style of
    their prompt.

    Fix: if two punctuation marks are next to each other, remove one. If a space is before a punctuation mark, remove
    the space.

    Real: prompts that were made of two sentences.
    """
    for template, text in written_texts(study):
        found = _ODD.search(text)
        if found is not None:
            saw = around(text, found, 20, 12).replace(COLUMN, "…")
            yield finding("unusual punctuation in the text of a template", saw, template.keys)
    about = "the template prints a punctuation mark after a text that already ends with one"
    do = "remove the punctuation mark from the template"
    for instance in study.real_instances[:1]:
        values = [(name, value) for name, value in instance.doc.items() if isinstance(value, str)]
        sentences = [(name, value) for name, value in values if value.count(" ") > 2 and _END.search(value)]
        ends = [(name, f"{value},") for name, value in sentences]
        for name, end in [one for one in ends if any(one[1] in text for text in continuations(instance))][:1]:
            yield finding(about, end[-20:], "doc_to_choice", instance, field=name, do=do)
        message = question_message(instance)
        for before, after in pairwise(message.content if message is not None else ()):
            if before.origin.field is None or after.origin.field is not None:
                continue
            pair = before.text[-1:] + after.text[:1]
            is_sentence = before.text.count(" ") > 2  # else it may be an abbreviation
            if pair in ("??", "..", "?.", "!.", ".?") or (is_sentence and pair in (".,", "?,", "!,")):
                saw = f"{before.text[-20:]}{after.text[:8]}"
                yield finding(about, saw, after, instance, field=before.origin.field, do=do)
                return


@rule("PF247", "odd-characters", severity=Severity.WARNING, family=Family.PROMPT)
def damaged_text(study: Study) -> Iterator[Finding]:
    """Report accidental characters, such as HTML entities or text in the wrong encoding.

    Why: texts such as `&quot;`, `<br />`, or `Ã©` instead of `é`, come from a conversion that went wrong. If a gold
    answer contains such characters, no correct answer of a model can equal it.

    Fix: write the intended characters. For entities in data, call `html.unescape` in a function.

    Real: texts from web forums and old exports, such as WikiHow's stories and medical exam questions.
    """
    for template in study.templates:
        for text in template.text.constants:
            found = _MOJIBAKE.search(text) or _ENTITY.search(text)
            if found is not None and not (found[0].startswith("<") and _MARKUP.search(template.source)):
                saw = around(text, found, 16)[:SHOWN]
                yield finding("a template has HTML entities or text in the wrong encoding", saw, template.keys)
                return
    printed = [(each, span) for each in study.real_instances for span in own_spans(study, each) if span.origin.field]
    for instance, span in printed:
        damaged = _MOJIBAKE.search(span.text) or _ENTITY.search(span.text)
        is_meant = _CODE.search(span.text) or (damaged and damaged[0].startswith("<") and _MARKUP.search(span.text))
        if damaged is not None and not is_meant:
            message, do = "the data have HTML entities or text in the wrong encoding", "convert the column first"
            yield finding(message, around(span.text, damaged, 16)[:SHOWN], span, instance, do=do)
            return


@query("PF247", "a Latin letter touches a word in another script", task)
def _letter_of_another_script(study: Study) -> Iterator[Finding]:
    for template in study.templates:
        text = skeleton(template.source)
        for found in _LETTER.finditer(text):
            if any(_is_of_alphabet(char) for char in around(text, found, 1)):
                yield finding("", part_of(text, found, 15), template.keys)


def _is_of_alphabet(char: str) -> bool:
    return unicodedata.category(char)[0] in "LM" and _ALPHABETS.match(unicodedata.name(char, "")) is not None


@query("PF247", "the prompt contains a carriage return", task)
def _carriage_return(study: Study) -> Iterator[Finding]:
    """Report Windows line endings in a prompt; they come from the data or from few-shot examples."""
    for instance in (*study.instances, *study.with_shots[:1]):  # synthetic docs have none
        for prompt in instance.prompts:
            at = prompt.text.find("\r")
            if at >= 0:
                span = prompt.span_at(at)
                yield finding("", around(prompt.text, at, 20, 10), span, instance, span=(at, at + 1))


@reads_names
@also("PF247")
def invisible_character(study: Study) -> Iterator[Finding]:
    """Report an invisible character in a template or choice, such as a zero-width space or a byte order mark."""
    for keys, text in study.strings:
        invisible = _INVISIBLE.search(text)
        narrow = _NARROW.search(text)
        found = invisible or narrow
        if found is not None:
            message = f"invisible character U+{ord(found[0]):04X} {unicodedata.name(found[0], '')}".rstrip()
            do = "delete the character" if invisible else "use an ordinary space, unless the language needs this one"
            yield finding(message, around(text, found), keys, severity=None if invisible else Severity.INFO, do=do)
        elif not unicodedata.is_normalized("NFC", text):
            yield info(
                "decomposed accents, which look the same as composed ones",
                text[:_SHORT],
                keys,
                do="normalize the text to NFC",
            )
    for instance in study.real_instances:
        for text in continuations(instance):
            found = _INVISIBLE.search(text)
            if found is not None and len(text) <= _SHORT:
                message = f"invisible character U+{ord(found[0]):04X} in a choice"
                yield finding(message, text, "doc_to_choice", instance, do="delete the character in process_docs")
                return


@query(
    "PF247",
    "one of the Latin labels is a Cyrillic or Greek letter that looks the same",
    asked_first,
    at="doc_to_choice",
)
def _look_alike_letters(page: Page) -> Iterator[str]:
    labels = [text.strip(" ().:") for text in continuations(page.instance)]
    are_letters = all(len(label) == 1 for label in labels)  # no words, such as `да` next to `no`
    if are_letters and not _LOOK_ALIKE.isdisjoint(labels) and any(map(str.isascii, labels)):
        yield ", ".join(f"{label} ({unicodedata.name(label).title()})" for label in labels if label in _LOOK_ALIKE)


@query(
    "PF126",
    r"code writes a literal \n instead of a newline",
    lambda study: known(study)[:1] if study.asks_by_code else (),
)
def _newline_of_code(page: Page) -> Iterator[str]:
    found = find_literal_break(page.constant) if not _CODE.search(page.constant) else None
    if found is not None and "\\n" not in "".join(map(str, page.instance.doc.values())):
        yield part_of(page.constant, found)


@query("PF126", "a backslash is printed before a label", texts)
def _backslash_before_label(text: Text) -> Iterator[str]:
    found = _BACKSLASHED.search(text.text)
    if found is not None:
        yield part_of(text.text, found, 20)


@query("PF235", "", lambda study: asked_first(study) if study.shots else ())
def _broken_formula(page: Page) -> Iterator[Finding]:
    """Report a few-shot example with broken LaTeX: unmatched braces, or rows that end with a single backslash."""
    at = ("fewshot_config", "samples") if page.study.task.fewshot.samples is not None else ()
    for shot in page.shots:
        text = f"{shot.question}{shot.answer or ''}"
        problem = _problem(text) if _COMMAND.search(text) else None
        if problem is not None:
            yield finding(problem[0], part_of(text, problem[1]), at)


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
