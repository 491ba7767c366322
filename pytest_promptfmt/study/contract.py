"""The answer that a prompt requests: its form, what wraps it and the labels it may be, each with where it is read.

Read from the text that the task itself shows: instructions, solved examples within them, and the beginning of the
answer. The words of many languages are in `data/contract.yaml`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, Literal

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.study.layout import layout_of
from pytest_promptfmt.study.requested_labels import (
    LISTED,
    AskedForm,
    Form,
    asks,
    is_instruction,
    label_sets,
    pattern,
    sentence_around,
    words_for,
)

_QUOTES: Final = ('""', "“”", "„“", "«»", "‘’", "「」", "『』", "``", "''")


_PARTICLES: Final = "\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af"
"""Scripts that write particles and other words directly after a quotation."""

_KEY: Final = re.compile(r"answer|label|result|choice|prediction", re.IGNORECASE)
_FENCE: Final = re.compile(r"```\w*\n\Z")
_HASHES: Final = re.compile(r"#{4} ?")
_WEAK: Final = r"(?<![A-Za-z0-9_$\\])[XN](?![A-Za-z0-9_])|_{3,}|\.\.\.|…"


_IN_ANGLES: Final = re.compile(r"<[^\W\d_][\w -]{2,40}>(?=[\"'”.。]?\s*$)")
"""Words in angle brackets at the end of a line, in any language: after a cue, they are the place of the answer."""

_AFTER: Final = 20
"""Characters after the beginning of an answer within which the answer is named."""

_EXAMPLE: Final = re.compile(r"\b(?:e\.g\.|for example|such as|like),? ", re.IGNORECASE)
_LABEL: Final = re.compile(r"(?:[A-J]|\d+)(?=[\s.,;]|\Z)")
_SENTENCE_REST: Final = re.compile(r"[^\n.!?。！？]{0,40}")


@dataclass(frozen=True, slots=True)
class Contract:
    """The forms in which a prompt requests its answer, those that wrap it first."""

    forms: tuple[AskedForm, ...]
    place: Literal["first", "last"] | None = None
    """Before or after all else that is written."""

    least_words: int | None = None
    length: str = ""
    """The text that asks for so many words."""

    @property
    def wrapped(self) -> tuple[AskedForm, ...]:
        """Return the forms that put something around the answer."""
        return tuple(one for one in self.forms if one.before or one.after)

    def of(self, form: Form) -> tuple[AskedForm, ...]:
        """Return the forms of one kind."""
        return tuple(one for one in self.forms if one.form == form)


@lru_cache(maxsize=256)
def contract_of(text: str) -> Contract:
    """Return the answer that a prompt requests; no forms where none can be read."""
    found = [*_quoted(text), *_tagged(text), *_objects(text)]
    taken = [(one.start, one.start + len(one.said)) for one in found]
    found += [
        one for one in (*_boxed(text), *_hashed(text)) if not any(start <= one.start < end for start, end in taken)
    ]
    found += _keyed(text) if not found else []
    found += _unquoted(text) if not found else []
    found += _exemplified(text) if not found else []
    found += _bracketed(text) if not found else []
    found += _solved(text)
    wrapped = list({(one.before, one.after): one for one in reversed(found)}.values())[::-1]
    forms = (*wrapped, *_bare(text), *label_sets(text))
    is_reasoned = any(pattern("reasoned").search(one.said) for one in _solved(text))
    least = pattern("least_words").search(text)
    return Contract(
        forms,
        _asked_place(text) or ("last" if is_reasoned else None),
        int(least[1]) if least is not None else None,
        least[0] if least is not None else "",
    )


def number_of_word(word: str) -> int:
    """Return the number that a word or some digits mean."""
    return int(data_table("contract")["numbers"].get(word.casefold()) or word)


def _asked_place(text: str) -> Literal["first", "last"] | None:
    """Return where a text asks for the answer; None where it names both places, or none."""
    is_first, is_last = words_for("first").search(text) is not None, words_for("last").search(text) is not None
    return None if is_first == is_last else "first" if is_first else "last"


# -- what the answer is wrapped in -----------------------------------------------------------------------------------


def _quoted(text: str) -> Iterator[AskedForm]:
    for opening, closing in _QUOTES:
        for match in _pairs_of(opening, closing).finditer(text):
            inside = match[1] if not pattern("tags").search(match[1]) else ""
            bracketed = pattern("bracketed").fullmatch(inside)
            if bracketed is not None and asks(text, match.start()):
                before, after = bracketed.group(1, 2)
                yield AskedForm(form="sentence", before=before, after=after, said=inside, start=match.start(1))
            after = _SENTENCE_REST.match(text, match.end())
            names_answer = _about_answer("boxed|####|<answer>").search(inside) is not None
            is_cue = text.rstrip().endswith(inside.rstrip())  # then the prompt has begun what is requested
            may_be_named = names_answer and not is_cue
            place = _place(inside) or (_named_place(inside, after[0] if after else "") if may_be_named else None)
            if place is None or not _rest(inside, place):
                continue
            is_certain = not re.fullmatch(_WEAK, place[0])
            is_asked = asks(text, match.start()) or (after is not None and words_for("asking").search(after[0]))
            if is_asked or names_answer:
                yield _of_place("sentence", inside, place, match.start(1), is_certain=is_certain)


def _named_place(inside: str, after: str) -> re.Match[str] | None:
    """Return the word for a number or letter that ends a quotation, or its end where such a word follows it."""
    last = re.search(r"(?<=[\s:：])[^\s:：.。]+(?=[.。]?$)", inside)
    if last is not None and any(words_for(form).fullmatch(last[0]) for form in ("letter", "number")):
        return last
    is_label = _about_answer(r"(?:final )?(?:<answer>)[:：] ?").fullmatch(inside) is not None
    is_begun = is_label or (
        re.search(r"[:：] ?$", inside) is not None and _placeholder_words().search(after[:_AFTER]) is not None
    )
    return re.search(r"$", inside) if is_begun else None


@cache
def _pairs_of(opening: str, closing: str) -> re.Pattern[str]:
    """Return the pattern of a quotation; an apostrophe inside a word is no quote, but a particle may follow one."""
    mark = re.escape(opening + closing)
    before, after = (r"(?<!\w)", rf"(?![^\W{_PARTICLES}])") if opening in "'\"`" else ("", "")
    return re.compile(rf"{before}{re.escape(opening)}([^{mark}\n]{{3,80}}){re.escape(closing)}{after}")


def _place(sentence: str) -> re.Match[str] | None:
    """Return the place of the answer in a sentence: what is surely one, else the last that may be one."""
    sure = list(_placeholder().finditer(sentence))
    weak = list(re.finditer(_WEAK, sentence))
    found = sure or weak
    return found[-1] if len(found) == 1 or (found and sure) else None


@cache
def _placeholder() -> re.Pattern[str]:
    names = "|".join(sorted(map(re.escape, data_table("contract")["placeholders"].split()), key=len, reverse=True))
    capitals = "|".join(name.upper() for name in names.split("|"))
    return re.compile(
        r"\\+boxed\{[^{}]*\}|\$[A-Z]{4,}|\([XN]\)|\[[XN]\]|<[XN]>"
        rf"|[\[<{{(](?i:[\w ]*(?:{names})[\w ]*)[\]>}})]|(?<=[^\W_] |[:=#] )(?:{capitals})(?!\w)|\bYOUR[_ ]ANSWER\b"
    )


@cache
def _placeholder_words() -> re.Pattern[str]:
    names = "|".join(map(re.escape, data_table("contract")["placeholders"].split()))
    return re.compile(rf"(?<!\w)(?:{names})(?!\w)", re.IGNORECASE)


def _rest(sentence: str, place: re.Match[str]) -> bool:
    """Return whether there is more in a sentence than the place for the answer."""
    return bool(re.search(r"\w|#", sentence[: place.start()] + sentence[place.end() :])) or place[0].startswith("\\")


def _of_place(form: Form, text: str, place: re.Match[str], start: int, *, is_certain: bool = True) -> AskedForm:
    before, after, held = text[: place.start()], text[place.end() :], place[0]
    if "boxed{" in held:
        before, after = f"{before}\\boxed{{", f"}}{after}"
    elif held in ("(X)", "(N)"):
        before, after = f"{before}(", f"){after}"
    return AskedForm(form=form, before=before, after=after, said=text, start=start, is_certain=is_certain)


def _bracketed(text: str) -> Iterator[AskedForm]:
    """Yield the brackets that are requested: shown around an example or each label, or named."""
    for match in (*pattern("example").finditer(text), *pattern("bracketed_list").finditer(text)):
        if asks(text, match.start()):
            yield AskedForm(form="sentence", before=match[1], after=match[2], said=match[0], start=match.start(1))
            return
    for wording, before, after in data_table("contract")["brackets"]:
        named = re.search(wording, text, re.IGNORECASE)
        if named is not None and words_for("asking").search(sentence_around(text, named.start())) is not None:
            yield AskedForm(form="sentence", before=before, after=after, said=named[0], start=named.start())
            return


def _tagged(text: str) -> Iterator[AskedForm]:
    for match in pattern("tags").finditer(text):
        own = match[0]
        if pattern("reasoning_tag").fullmatch(match[1]):
            continue
        if asks(text, match.start()) or _placeholder().search(own) is not None:
            tag = match[1]
            yield AskedForm(form="tagged", before=f"<{tag}>", after=f"</{tag}>", said=own, start=match.start())


def _objects(text: str) -> Iterator[AskedForm]:
    for match in pattern("json").finditer(text):
        keys = re.findall(r"[\"'](\w+)[\"']\s*:", match[0])
        key = next((one for one in keys if _KEY.search(one) or _placeholder_words().fullmatch(one)), None)
        fence = _FENCE.search(text[: match.start()])
        start = match.start() if fence is None else fence.start()
        key = key or (keys[0] if len(keys) == 1 and asks(text, start) else None)
        if key is not None and re.search(r"\bjson\b", text, re.IGNORECASE):
            made = {key: "\0"}
            before, _, after = json.dumps(made).partition('"\\u0000"')
            is_bare = re.search(rf"[\"']{key}[\"']\s*:\s*(?:true|false|-?\d)", match[0]) is not None
            before, after = (before, after) if is_bare else (f'{before}"', f'"{after}')
            if fence is not None and words_for("block").search(sentence_around(text, start)):
                before, after = f"{fence[0]}{before}", f"{after}\n```"
            yield AskedForm(form="json", before=before, after=after, said=match[0], start=match.start())


def _keyed(text: str) -> Iterator[AskedForm]:
    """Yield the object of a single key that a sentence requests: in YAML, or in JSON with the answer quoted or not."""
    for match in pattern("keyed").finditer(text):
        if not asks(text, match.start()) and not is_instruction(match[0]):
            continue
        key, said = match[2], match[0]
        before, after = (f"{key}: ", "") if match[1].upper() == "YAML" else (f'{{"{key}": "', '"}')
        yield AskedForm(form="json", before=before, after=after, said=said, start=match.start(), is_certain=False)


def _boxed(text: str) -> Iterator[AskedForm]:
    for match in pattern("boxed").finditer(text):
        held = re.sub(r"^\\+boxed\{?|\}$", "", match[0]).strip()
        if (not held or _place(held) is not None or _placeholder().search(f"[{held}]")) and asks(text, match.start()):
            mark = "$" if text[: match.start()].endswith("$") and text.startswith("$", match.end()) else ""
            yield AskedForm(
                form="boxed", before=f"{mark}\\boxed{{", after=f"}}{mark}", said=match[0], start=match.start()
            )
            return


def _hashed(text: str) -> Iterator[AskedForm]:
    for match in _HASHES.finditer(text):
        line = text[match.start() :].partition("\n")[0]
        place = re.match(
            rf"#{{4}} ?(?:{_WEAK}|[A-Za-z]+\b|[\[<({{][A-Za-z][\w ]*[\]>)}}])|#{{4}} ?(?=[\"'”’`.,]|\s*$)", line
        )
        if place is not None and asks(text, match.start()):
            yield AskedForm(form="sentence", before="#### ", said=place[0], start=match.start())
            return


def _unquoted(text: str) -> Iterator[AskedForm]:
    """Yield the last line such as `Answer: [letter]` that the prompt shows without quotes."""
    lines, angles = [], "</" not in text
    for match in re.finditer(r"^[^\n]*$", text, re.MULTILINE):
        for cue in _about_answer(_CUE).finditer(match[0]):
            place = _placeholder().match(match[0], cue.end()) or (angles and _IN_ANGLES.match(match[0], cue.end()))
            if place:
                lines.append((match.start() + cue.start(), match[0][cue.start() : place.end()], place))
    for start, said, place in lines[-1:]:
        held = re.compile(re.escape(place[0])).search(said)
        if held is not None:
            yield _of_place("sentence", said, held, start)


def _exemplified(text: str) -> Iterator[AskedForm]:
    """Yield the sentence that is shown with an example answer: `e.g. Final Answer: A`."""
    for match in _EXAMPLE.finditer(text):
        cue = _about_answer(_CUE).match(text, match.end())
        answer = _LABEL.match(text, cue.end()) if cue is not None else None
        if cue is not None and answer is not None and asks(text, match.start()):
            yield AskedForm(form="sentence", before=cue[0], said=f"{cue[0]}{answer[0]}", start=cue.start())
            return


@cache
def _about_answer(written: str) -> re.Pattern[str]:
    """Return a pattern with the words for an answer in all languages in the place of `<answer>`."""
    words = "|".join(map(re.escape, data_table("phrasings")["answer_words"].values()))
    return re.compile(written.replace("<answer>", f"answer|{words}"), re.IGNORECASE)


_CUE: Final = r"(?:\bthe (?:\w+ ){0,2}|\b(?:final|correct|best|short) )?(?:\b<answer>)(?: is)?[:：]? ?"


def _solved(text: str) -> Iterator[AskedForm]:
    """Yield how the solved examples end that the text itself shows; a single one may be anything."""
    shown = list(pattern("shown").finditer(text))
    if len(shown) >= LISTED:
        last = shown[-1]
        yield AskedForm(
            form="sentence", before=last[1] + last[2], after=last[4], said=last[0].strip(), start=last.start(1)
        )


# -- bare answers --------------------------------------------------------------------------------------------------


def _bare(text: str) -> Iterator[AskedForm]:
    """Yield the letter or number that is requested, where a sentence requests it, or the label before the answer."""
    forms: tuple[Form, ...] = ("letter", "number")
    cue = layout_of(text).cue
    for form in forms:
        if cue is not None and words_for(form).search(cue.name) is not None:
            yield AskedForm(form=form, said=cue.name, start=cue.start)
            continue
        for match in words_for(form).finditer(text):
            sentence = sentence_around(text, match.start())
            if words_for("asking").search(sentence) is not None:
                is_certain = words_for("only").search(sentence) is not None
                yield AskedForm(form=form, said=sentence.strip(), start=match.start(), is_certain=is_certain)
                break


def without_begun(sentences: Sequence[str], prefix: str) -> list[str]:
    """Return sentences that a prompt has begun by its gen prefix from where that ends; each once."""
    begun = prefix.strip()
    cut = [f" {one[len(begun) :].strip()}" if begun and one.startswith(begun) else one for one in sentences]
    return list(dict.fromkeys(cut))
