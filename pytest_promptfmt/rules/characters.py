"""Rules about characters that are invisible or look like others, and change the tokens."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import around, continuations, finding
from pytest_promptfmt.study import Study

_INVISIBLE: Final = re.compile("[\u200b\u2060\ufeff\u00ad\u202a-\u202e\u2066-\u2069]")
_NARROW: Final = re.compile("[\u00a0\u202f\u2009]")
_SHORT: Final = 24
_LOOK_ALIKE: Final = frozenset("АВЕЅІЈКМНОРСТУХаеіјорсухΑΒΕΖΗΙΚΜΝΟΡΤΥΧο")  # Cyrillic, Greek
_LATIN: Final = re.compile(r"[A-Za-z]")


@rule("PF312", "carriage-return", severity=Severity.WARNING, family=Family.TOKENS)
def carriage_return(study: Study) -> Iterator[Finding]:
    r"""Report Windows line endings in a prompt, from the data or from few-shot examples that are written out.

    Why: a carriage return is a separate token, or changes the token of the newline. The lines of such a doc differ from
    the lines of the template around it, and stop sequences of line feeds do not match them.

    Example:
        metadata: {promptfmt: {docs: [{question: "Which metal\r\nrusts?", choices: [iron, gold], answer: 0}]}}

    Silent example:
        metadata: {promptfmt: {docs: [{question: "Which metal\nrusts?", choices: [iron, gold], answer: 0}]}}

    Fix: replace carriage returns in `process_docs`, or in the code of the examples.

    Real: betalgo/openai #145 (64 and 68 tokens); google/dotprompt PR #256.
    """
    for instance in (*study.instances, *study.with_shots[:1]):  # synthetic docs have none
        for prompt in instance.prompts:
            at = prompt.text.find("\r")
            if at >= 0:
                span = prompt.span_at(at)
                yield finding(
                    "the prompt contains a carriage return",
                    around(prompt.text, at, 20, 10),
                    span.origin.keys if span is not None else (),
                    instance,
                    field=span.origin.field if span is not None else None,
                    span=(at, at + 1),
                )
                return


@rule("PF313", "invisible-character", severity=Severity.WARNING, family=Family.TOKENS)
def invisible_character(study: Study) -> Iterator[Finding]:
    r"""Report an invisible character in a template or a choice: zero-width, byte order mark, change of direction.

    Why: it is a separate token in the middle of a word, and texts that look the same differ. No-break spaces
    and decomposed accents are reported as info, because some languages need them.

    Example:
        doc_to_text: "Question: {{question}}\u200b\nAnswer:"

    Silent example:
        doc_to_text: "Question: {{question}}\nAnswer:"

    Fix: delete the character; the finding shows its number.

    Real: several reports about answers that never match are about a zero-width space in a label.
    """
    for keys, text in study.strings:
        invisible = _INVISIBLE.search(text)
        narrow = _NARROW.search(text)
        found = invisible or narrow
        if found is not None:
            yield finding(
                f"invisible character U+{ord(found[0]):04X} {unicodedata.name(found[0], '')}".rstrip(),
                around(text, found),
                keys,
                severity=None if invisible else Severity.INFO,
                do="delete it" if invisible else "use an ordinary space, unless the language needs this one",
            )
        elif not unicodedata.is_normalized("NFC", text):
            yield finding(
                "decomposed accents, which look the same as composed ones",
                text[:_SHORT],
                keys,
                severity=Severity.INFO,
                do="normalize the text to NFC",
            )
    for instance in study.real_instances:
        for text in continuations(instance):
            found = _INVISIBLE.search(text)
            if found is not None and len(text) <= _SHORT:
                yield finding(
                    f"invisible character U+{ord(found[0]):04X} in a choice",
                    text,
                    "doc_to_choice",
                    instance,
                    do="delete it in process_docs",
                )
                return


@rule("PF314", "look-alike-letters", severity=Severity.WARNING, family=Family.TOKENS)
def look_alike_letters(study: Study) -> Iterator[Finding]:
    r"""Report Latin labels with a Cyrillic or Greek letter among them that looks Latin.

    Why: `А` and `A` look the same and share no token. The label is unlikely, and never equals the label that a model
    writes.

    Example:
        doc_to_choice: [A, "\u0412", C]

    Silent example:
        doc_to_choice: [A, B, C]

    Fix: type the labels again with one keyboard layout.

    Real: labels of translated multiple-choice tasks, typed in part by hand.
    """
    for instance in study.instances:
        texts = [text.strip() for text in continuations(instance)]
        labels = [text for text in texts if 0 < len(text) <= 3]
        if len(labels) < len(texts):
            continue
        strange = [text for text in labels if any(letter in _LOOK_ALIKE for letter in text)]
        if strange and any(_LATIN.search(text) for text in labels):
            letter = next(letter for letter in strange[0] if letter in _LOOK_ALIKE)
            yield finding(
                f"a label with {unicodedata.name(letter).title()} among Latin labels",
                ", ".join(labels),
                "doc_to_choice",
                instance,
            )
            return
