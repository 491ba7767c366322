"""The labels that a prompt lists for its answer, and the sentences that ask for an answer.

The words of many languages are in `data/contract.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Final, Literal

from pytest_promptfmt.core.data_tables import data_table

Form = Literal["sentence", "boxed", "tagged", "json", "letter", "number", "labels"]

_SENTENCE: Final = re.compile(r"[^\n.!?。！？]*\Z")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_QUOTE: Final = '"'
_CONDITION: Final = re.compile(r"\b(?:if|when|unless|otherwise|else|except)\b", re.IGNORECASE)
LISTED: Final = 2
_MOST_JOINED: Final = 20
_MOST_LISTS: Final = 100
_NEAR: Final = 120
"""Characters before labels in which a sentence asks for them."""

_CJK: Final = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
_CJK_OR: Final = "、?(?:或|または|또는|か)"
_COMMA: Final = "(?:, ?|، ?|、|; )"
_END: Final = re.compile(r"[.!?]|[ \t]*$", re.MULTILINE)
_SLASH: Final = " ?/ ?"
_PAIRS: Final = ("slashes", "conditions", "whether")
_OPENING, _CLOSING = "\"'“‘`*«„([", "\"'”’`*»“)]"
"""Quotes and brackets around labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedForm:
    """One form of the answer: the texts before and after it, or the labels that it may be.

    `said` is the text of the prompt that asks for it, `start` its place. `is_certain` is False where the answer's place
    is marked by something that is often only text, such as `X`, and for labels before which no words ask for them.
    `is_closed` is whether no label is missing: `or` or slashes join them, or words before them ask for one.
    """

    form: Form
    before: str = ""
    after: str = ""
    labels: tuple[str, ...] = ()
    said: str = ""
    start: int = 0
    is_certain: bool = True
    is_closed: bool = True

    def written(self, answer: str) -> str:
        """Return an answer in this form, once; a number without quotes in JSON of which the prompt shows none.

        A label with the brackets that the form has around it, such as `(B)` in `the answer is (X)`, keeps one pair.
        """
        around = self.before[-1:] + self.after[:1]
        if around in ("()", "[]") and answer[1:-1].isalnum() and answer == around[0] + answer[1:-1] + around[1]:
            answer = answer[1:-1]
        if self.before.strip() and answer.startswith(self.before) and answer.endswith(self.after):
            return answer
        if self.form == "json" and not self.is_certain and _NUMBER.fullmatch(answer):
            return f"{self.before.removesuffix(_QUOTE)}{answer}{self.after.removeprefix(_QUOTE)}"
        return f"{self.before}{answer}{self.after}"


def label_sets(text: str) -> Iterator[AskedForm]:
    """Yield the sets of labels that instructions name: `Y or N`, `one of: anger, joy, fear`, `Is it true or false?`."""
    listed = [*lists(text)]
    sure = [*(one for one in listed if one.is_certain), *(one for name in _PAIRS for one in _between(text, name))]
    yield from sure
    named = {label.casefold() for one in sure for label in one.labels}
    questions = (one for one in listed if _is_question(text, one))
    for form in (*_between(text, "quoted_pair"), *questions, *_known_pairs(listed)):
        folded = {label.casefold() for label in form.labels}
        if named.isdisjoint(folded):
            named |= folded
            yield replace(form, is_certain=True)


def _between(text: str, name: str) -> Iterator[AskedForm]:
    """Yield the labels that a pattern of the table finds; of the words between two quoted ones, some join no labels."""
    for found in pattern(name).finditer(text):
        labels = [label.strip() for part in (found["first"], found["last"]) for label in part.split("/")]
        joined = found.groupdict().get("join", "")
        if joined.casefold() not in data_table("contract")["and"]:
            yield AskedForm(form="labels", labels=tuple(labels), said=found[0].strip(), start=found.start())


def _is_question(text: str, form: AskedForm) -> bool:
    """Return whether three or more words, and nothing else, are a question: `True, Neither, or False?`."""
    begins = re.search(r"(?:^|[:.?!] | {2}|\n) ?\Z", text[: form.start]) is not None
    after = text[form.start :].partition(form.said)[2]
    return len(form.labels) > LISTED and form.is_closed and begins and after.lstrip(" ").startswith("?")


def _known_pairs(listed: Sequence[AskedForm]) -> Iterator[AskedForm]:
    """Yield known pairs that end lists; Chinese words follow each other without a space."""
    for form in (one for one in listed if one.is_closed):
        first, last = map(str.casefold, form.labels[-2:])
        for one, other in data_table("contract")["pairs"]:
            is_glued = _CJK.search(one) is not None and first.endswith(one) and last.startswith(other)
            if is_glued or (first, last) == (one.casefold(), other.casefold()):
                yield replace(form, labels=(one, other) if is_glued else form.labels[-2:])


def joined_by_or(text: str) -> Iterator[AskedForm]:
    """Yield two words joined by `or`, in a sentence about the answer: they may be its labels, or anything else."""
    for form in lists(text):
        is_pair = form.is_closed and len(form.labels) == LISTED and " o " not in form.said  # in Portuguese and Polish
        if is_pair and words_for("asking").search(sentence_around(text, form.start)) is not None:
            yield form


def lists(text: str, known: Collection[str] = ()) -> Iterator[AskedForm]:
    """Yield the words that commas, slashes or `or` join, in any language; `known` are labels of several words."""
    is_dutch = re.search(r"\b(?:het|een|niet)\b|[Aa]ntwoord", text) is not None
    for found in islice(_listed(frozenset(known), is_dutch).finditer(text), _MOST_LISTS):
        parts = re.split(rf"{_last(is_dutch)}|{_SLASH}|{_COMMA}", found[0], flags=re.IGNORECASE)
        labels = tuple(one.strip(_OPENING + _CLOSING) for one in parts)
        if len({label.casefold() for label in labels}) < len(labels):
            continue
        start, is_closed = found.start(), found["last"] is not None or "/" in found[0]
        near = text, max(0, start - _NEAR), start
        # after a colon, only `or` makes a list of labels, if the sentence ends there
        is_end = is_closed and _END.match(text, found.end()) is not None
        before = _before_labels().search(*near) or (_before_colon().search(*near) if is_end else None)
        yield AskedForm(
            form="labels",
            labels=labels,
            said=text[before.start() if before is not None else start : found.end()].strip(),
            start=start,
            is_certain=before is not None,
            is_closed=is_closed or before is not None,
        )


@lru_cache(maxsize=256)
def _listed(known: Collection[str], is_dutch: bool) -> re.Pattern[str]:
    several = "|".join(map(re.escape, sorted(filter(None, known), key=len, reverse=True)))
    # a word is neither `or` nor a known label, because what can be read in two ways takes exponential time
    label = rf"(?!(?:{_ors(is_dutch)}) )[^\W_][\w-]*"
    label = rf"(?:(?:{several})(?!\w)|(?!(?:{several})(?![\w-])){label})" if several else label
    item, last = rf"[{re.escape(_OPENING)}]*{label}[{re.escape(_CLOSING)}]*", _last(is_dutch)
    joined = rf"(?:{_COMMA}{item}){{1,{_MOST_JOINED}}}|(?:{_SLASH}{item}){{1,{_MOST_JOINED}}}|(?={last})"
    return re.compile(rf"(?<![\w-]){item}(?:{joined})(?P<last>(?:{last}{item})+)?", re.IGNORECASE)


def _last(is_dutch: bool) -> str:
    return rf"(?:,? (?:{_ors(is_dutch)}) |{_CJK_OR})"


@cache
def _before_labels() -> re.Pattern[str]:
    """Return what finds the words before labels that ask for one of them."""
    before = "|".join(map(written, ("asks", "chooses", "one_of", "headed")))
    return re.compile(rf"(?:{before})\Z", re.IGNORECASE)


@cache
def _before_colon() -> re.Pattern[str]:
    return re.compile(rf"{written('colon')}\Z", re.IGNORECASE)


@cache
def _ors(is_dutch: bool) -> str:
    words = {word.strip() for word in data_table("contract")["or"].split("|")} | ({"of"} if is_dutch else set())
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


def written(name: str) -> str:
    """Return a pattern of the table as it is written."""
    return str(data_table("contract")["patterns"][name])


@cache
def pattern(name: str) -> re.Pattern[str]:
    """Return a pattern of the table."""
    return re.compile(written(name))


@cache
def words_for(name: str) -> re.Pattern[str]:
    """Return what finds the words of a table, such as `asking`, in any language."""
    table: Any = data_table("contract")[name]
    return re.compile("|".join(table.values()), re.IGNORECASE)


def is_conditional(text: str) -> bool:
    """Return whether a text may request other answers to other questions."""
    return _CONDITION.search(text) is not None


def is_instruction(text: str) -> bool:
    """Return whether the last sentence of a text is about the form of the answer."""
    return words_for("asking").search(sentence_around(text, len(text.rstrip(" .!?)\n")))) is not None


def asks(text: str, start: int) -> bool:
    """Return whether the sentence before a place, or the line above that ends with a colon, is about the answer."""
    before = text[max(0, start - 200) : start]
    above = before.rstrip(" \t\n\"'“‘«`*>-")
    found = _SENTENCE.search(above if above.endswith((":", "：")) else before)
    return found is not None and words_for("asking").search(found[0]) is not None


def sentence_around(text: str, place: int) -> str:
    """Return the sentence of a text around a place."""
    before = _SENTENCE.search(text[max(0, place - 160) : place])
    after = re.match(r"[^\n.!?。！？]*", text[place : place + 300])
    return (before[0] if before is not None else "") + (after[0] if after is not None else "")
