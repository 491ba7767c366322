"""The labels that a prompt lists for its answer, and the sentences that ask for an answer.

The words of many languages are in `data/contract.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
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


_CJK: Final = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
_PAIR: Final = r"({})[\"'”’*]*(?: ?/ ?|,? (?:{}) |(?:或|か|または|또는))[\"'“‘*]*({})"


_LABEL: Final = r"[\"'“‘`*(]*([^\s\"'”’`*(),.:;/。，、]+)[\"'”’`*)]*"


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedForm:
    """One form of the answer: the texts before and after it, or the labels that it may be.

    `said` is the text of the prompt that asks for it, `start` its place. `is_certain` is False where the answer's place
    is marked by something that is often only text, such as `X`.
    """

    form: Form
    before: str = ""
    after: str = ""
    labels: tuple[str, ...] = ()
    said: str = ""
    start: int = 0
    is_certain: bool = True

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
    named: set[str] = set()
    for match in _enumeration().finditer(text):
        labels = [label for part in match.group("list", "last") for label in re.findall(_LABEL, part)]
        named.update(label.casefold() for label in labels)
        if len(set(labels)) >= LISTED:
            yield AskedForm(form="labels", labels=tuple(labels), said=match[0].strip(), start=match.start())
    for match in re.finditer(written("slashes"), text, re.IGNORECASE):
        named.update(labels := [label.strip() for label in match[1].split("/")])
        yield AskedForm(form="labels", labels=tuple(labels), said=match[0].strip(), start=match.start())
    for match in pattern("conditions").finditer(text):
        named.update(label.casefold() for label in match.group(1, 2))
        yield AskedForm(form="labels", labels=match.group(1, 2), said=match[0], start=match.start())
    for quoted in pattern("quoted_pair").finditer(text):
        pair = {quoted[1].casefold(), quoted[3].casefold()}
        if quoted[2].casefold() not in data_table("contract")["and"] and not pair & named:
            named |= pair
            yield AskedForm(form="labels", labels=(quoted[1], quoted[3]), said=quoted[0], start=quoted.start())
    for match in _alternatives().finditer(text):
        shown = (*re.findall(_LABEL, match["list"]), match["last"])
        if not {label.casefold() for label in shown} & named:
            named.update(label.casefold() for label in shown)
            yield AskedForm(form="labels", labels=shown, said=match[0].strip(), start=match.start())
    for either in _pairs():
        found = either.search(text)
        if found is not None and found[1].casefold() not in named:
            yield AskedForm(form="labels", labels=(found[1], found[2]), said=found[0], start=found.start())


def joined_by_or(text: str) -> Iterator[AskedForm]:
    """Yield two words joined by `or`, in a sentence about the answer: they may be its labels, or anything else."""
    for form in alternatives(text):
        is_pair = len(form.labels) == LISTED and " o " not in form.said  # which is no `or` in Portuguese and Polish
        if is_pair and words_for("asking").search(sentence_around(text, form.start)) is not None:
            yield form


def enumerations(text: str, known: Collection[str]) -> Iterator[tuple[str, list[str], bool]]:
    """Yield what a text joins by commas, slashes and `or`, if one is a known label: the text, all in small letters.

    The last is whether nothing is missing: `or` or slashes join them, or they follow `one of`.
    """
    ors = f"{_ors()}|of" if re.search(r"\b(?:het|een|niet)\b|[Aa]ntwoord", text) else _ors()  # of Dutch
    folded = {one.casefold() for one in known if one}
    if not any(one in text.casefold() for one in folded):
        return
    label = "|".join(map(re.escape, sorted(filter(None, known), key=len, reverse=True)))
    # a word is no label, because what can be read in two ways takes exponential time
    word = rf"(?!(?:{label})(?![\w-]))[^\W_][\w-]*"
    item = rf"[\"'“‘`*«„(\[]*(?<!\w)(?:{label}|{word})(?!\w)[\"'”’`*»“)\]]*"
    joined = rf"{item}(?:(?:, ?|、|، ?|; ){item}){{0,{_MOST_JOINED}}}(?:,? (?:{ors}) |、?(?:或|または|또는)){item}"
    listed = rf"{item}(?:(?:, ?|、|، ?|; ){item}){{2,{_MOST_JOINED}}}|{item}(?: ?/ ?{item}){{1,{_MOST_JOINED}}}"
    for found in re.finditer(f"(?P<joined>{joined})|{listed}", text, re.IGNORECASE):
        parts = re.split(rf",? (?:{ors}) |、?(?:或|または|또는)| ?[,/、،;] ?", found[0], flags=re.IGNORECASE)
        named = [part.strip("\"'“‘`*«„([”’»)] ").casefold() for part in parts]
        if folded.intersection(named) and len(set(named)) == len(named):
            is_closed = found["joined"] is not None or "/" in found[0]
            yield found[0], named, is_closed or re.search(rf"{written('one_of')}\Z", text[: found.start()]) is not None


def alternatives(text: str) -> Iterator[AskedForm]:
    """Yield the words that commas and `or` join, in any language."""
    for found in islice(_joined().finditer(text), _MOST_JOINED):
        labels = (*re.findall(_LABEL, found["list"]), found["last"])
        if len({label.casefold() for label in labels}) == len(labels):
            yield AskedForm(form="labels", labels=labels, said=found[0].strip(), start=found.start(), is_certain=False)


@cache
def _joined() -> re.Pattern[str]:
    word, quote = r"[^\W_][\w-]*", r"[\"'“‘`*(«”’)»]?"
    label = rf"{quote}{word}{quote}"
    listed = rf"(?P<list>{label}(?:(?:, ?|، ?|、){label}){{0,{_MOST_JOINED}}})"
    return re.compile(rf"(?<![\w-]){listed},? (?:{_ors()}) {quote}(?P<last>{word})", re.IGNORECASE)


@cache
def _pairs() -> list[re.Pattern[str]]:
    """Return what finds each pair of labels; Chinese words follow each other without a space."""
    found = []
    for one, other in data_table("contract")["pairs"]:
        before, after = ("", "") if _CJK.search(one) else (r"(?<!\w)", r"(?!\w)")
        found.append(re.compile(f"{before}{_PAIR.format(one, _ors(), other)}{after}", re.IGNORECASE))
    return found


@cache
def _enumeration() -> re.Pattern[str]:
    label = r"[\"'“‘`*(]*[^\W_][\w-]*[\"'”’`*)]*"
    before = "|".join(map(written, ("asks", "chooses", "one_of", "headed")))
    either = rf"(?<=\s)(?:{_ors()})\s"
    last = rf"(?(colon){either}|(?:{either}|,\s))(?P<last>{label})(?(colon)(?=[.!?]|\s*$)|(?=[\s.,;:)\]!?]|$))"
    listed = rf"(?P<list>{label}(?:, ?{label})*),? ?{last}"
    return re.compile(rf"(?:{before}|(?P<colon>{written('colon')})){listed}", re.IGNORECASE | re.MULTILINE)


@cache
def _alternatives() -> re.Pattern[str]:
    """Return what finds three or more labels, and nothing else, as a question: `True, Neither, or False?`."""
    label = r"[^\W\d_][\w-]*"
    listed = rf"(?P<list>{label}(?:, ?{label})+),? (?:{_ors()}) (?P<last>{label})"
    return re.compile(rf"(?:^|(?<=[:.?!] )|(?<=\n)|(?<=  )) ?{listed} ?[?]", re.MULTILINE)


@cache
def _ors() -> str:
    words = {word.strip() for word in data_table("contract")["or"].split("|")}
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
