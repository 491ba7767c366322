"""Ways to write an answer, made without a model: what a prompt asks for, what models also write, and what misleads.

A phrasing is one completion with what should be read from it. Which class it is in decides what counts as a failure:
`contract` must be read, `hazard` may be missed and never misread, from `abstain` nothing may be read, `tolerance` and
`numeric` are reported, `degenerate` only has to end in time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final, Literal

from pytest_promptfmt.answers.answer_space import Answers

ANSWER_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ar": "الإجابة",
        "bn": "উত্তর",
        "ca": "Resposta",
        "cs": "Odpověď",
        "da": "Svar",
        "de": "Antwort",
        "el": "Απάντηση",
        "es": "Respuesta",
        "eu": "Erantzuna",
        "fa": "پاسخ",
        "fi": "Vastaus",
        "fr": "Réponse",
        "he": "תשובה",
        "hi": "उत्तर",
        "hu": "Válasz",
        "id": "Jawaban",
        "it": "Risposta",
        "ja": "答え",
        "ko": "정답",
        "nl": "Antwoord",
        "no": "Svaret",
        "pl": "Odpowiedź",
        "pt": "Resposta correta",
        "ro": "Răspuns",
        "ru": "Ответ",
        "sv": "Svaret är",
        "sw": "Jibu",
        "ta": "விடை",
        "te": "సమాధానం",
        "th": "คำตอบ",
        "tr": "Cevap",
        "uk": "Відповідь",
        "vi": "Đáp án",
        "zh": "答案",
    }
)
"""Language code to the word for "answer" before a colon, as answer sheets and benchmarks in it write it."""


PhrasingClass = Literal["contract", "own", "hazard", "abstain", "tolerance", "numeric", "degenerate"]
CLASSES: Final[tuple[PhrasingClass, ...]] = (
    "contract",
    "own",
    "hazard",
    "abstain",
    "tolerance",
    "numeric",
    "degenerate",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Phrasing:
    """One completion. `answer` is False where nothing should be read; `number` is the number it gives, if another."""

    id: str
    kind: PhrasingClass
    text: str
    answer: bool = True
    number: str | None = None


_CERTAIN: Final = (
    r"\\boxed\{[^{}]*\}|\$[A-Z]{4,}|\([XN]\)|\[X\]|\bYOUR[_ ]ANSWER\b"
    r"|[\[<{(][\w ]*(?:answer|letter|number|option|choice)[\w ]*[\]>})]"
)
"""Placeholders that nothing else looks like."""

_PLACEHOLDER: Final = re.compile(rf"{_CERTAIN}|(?<![\w$])[XN](?!\w)|_{{3,}}|\.\.\.|…", re.IGNORECASE)
_CERTAIN_PLACEHOLDER: Final = re.compile(_CERTAIN, re.IGNORECASE)
_TAGGED: Final = re.compile(r"(<(\w+)>)[^<>]*(</\2>)")
_QUOTED: Final = re.compile(r"[\"“«'`]([^\"“”«»'`\n]{3,80})[\"”»'`]")
_ASKED: Final = re.compile(rf"(?i)answer|boxed|####|{'|'.join(map(re.escape, ANSWER_WORDS.values()))}")
_END: Final = re.compile(r"(?i)(?:\b(?:end|finish|conclude)\b|\blast line\b)[^.\n]*\Z")
"""Words before a quoted sentence that is the end of an answer, whatever is in it."""

_UNQUOTED: Final = re.compile(
    rf"(?im)(?:#{{4}} ?|(?:\bthe (?:\w+ ){{0,2}})?\banswer(?: is)?:? ?)(?:{_CERTAIN})"
    r"|#{4} ?(?:[XN](?!\w)|_{3,}|\.\.\.|…)"
)
"""A sentence to end with that the prompt shows without quotes."""

_BARE_LABEL: Final = re.compile(
    r"(?i)\b(?:only|just|single)\b[^.\n]{0,30}\bletter\b(?! of)|\bletter\b[^.\n]{0,40}\bonly\b"
    r"|\bsingle letter\b|\b(?:answer|respond|reply) with (?:only )?(?:the|a) (?:correct )?letter\b"
)
_BARE_NUMBER: Final = re.compile(
    r"(?i)\b(?:answer|respond|reply|output|write)[^.\n]{0,20}\b(?:only|just)\b[^.\n]{0,12}\bnumber\b|\bnumber only\b"
)
_OTHER_FORM: Final = re.compile(
    r"(?i)\bjson\b|\bxml\b|\byaml\b|</\w+>|\\boxed|\bformat|\bformato\b|\bin (?:the|this) (?:form|manner)\b"
    r"|格式|形式|형식|формат|\blast line\b|\b(?:end|finish|conclude) (?:your|the|with|by)\b"
    r"|\bcode block\b|\blist of\b|```"
)
_SHOWN: Final = re.compile(r"(?:[Tt]he (?:final )?answer is|####):? (\(?)([^\s().?]+)(\)?\.?)[ \t]*$", re.MULTILINE)
_LEAST_SHOWN: Final = 2
"""Solved examples that show how an answer ends; one alone may be anything."""


def contract_sentences(prompt: str, answers: Answers, prefix: str = "") -> list[str]:
    """Return the sentences of a prompt that ask for the answer, filled with it; each once.

    Those are quoted ones with a placeholder, how the solved examples end that the text itself shows, and the label or
    number alone where the prompt asks for nothing else. A sentence that the prompt itself has begun, by a gen prefix,
    goes on where the prefix ends.
    """
    bare = answers.labels[answers.gold]
    found = []
    for match in _QUOTED.finditer(prompt):
        sentence = match[1]
        tagged = _TAGGED.search(sentence)
        if tagged is not None:
            found.append(f"{sentence[: tagged.end(1)]}{bare}{sentence[tagged.start(3) :]}")
            continue
        places = list(_PLACEHOLDER.finditer(sentence))
        is_the_end = _END.search(prompt[max(0, match.start() - 40) : match.start()])
        certain = places and (is_the_end or _CERTAIN_PLACEHOLDER.fullmatch(places[0][0]))
        if len(places) == 1 and (_ASKED.search(sentence) or (certain and places[0][0] != sentence)):
            found.append(_filled(sentence, places[0], bare))
    if not found:
        unquoted = [match[0] for match in _UNQUOTED.finditer(prompt)]
        found += [_filled(one, list(_PLACEHOLDER.finditer(one))[-1], bare) for one in unquoted[-1:]]
    if not found and (_BARE_LABEL if answers.kind == "choice" else _BARE_NUMBER).search(prompt):
        found += [bare] if answers.kind != "text" and not _OTHER_FORM.search(prompt) else []
    shown = list(_SHOWN.finditer(prompt))
    if len(shown) >= _LEAST_SHOWN:
        last = shown[-1]
        found.append(f"{prompt[last.start() : last.start(2)]}{bare}{last[3]}")
    begun = prefix.strip()
    if begun:
        found = [f" {one[len(begun) :].strip()}" if one.startswith(begun) else one for one in found]
    return list(dict.fromkeys(found))


def asks_another_form(prompt: str) -> bool:
    """Return whether a prompt asks for more than an answer alone: JSON, tags, a box, a last line, code."""
    return bool(_OTHER_FORM.search(prompt))


def _filled(sentence: str, place: re.Match[str], bare: str) -> str:
    held = place[0]
    if held.lower().startswith("\\boxed"):
        made = f"\\boxed{{{bare}}}"
    elif held in ("(X)", "(x)", "(N)", "(n)"):
        made = f"({bare})"
    else:
        made = bare
    return sentence[: place.start()] + made + sentence[place.end() :]


def choice_phrasings(
    answers: Answers, question_words: tuple[str, str] = ("Question:", "Answer:"), prompt: str = ""
) -> Iterator[Phrasing]:
    """Yield the phrasings of a labelled option, by the classes of the module's first lines.

    With a `prompt`, one of them says nothing but that.
    """
    count = len(answers.labels)
    right, text = answers.labels[answers.gold], answers.texts[answers.gold]
    wrong = answers.labels[(answers.gold - 2) % count if count > 2 else 1 - answers.gold]
    other = answers.labels[(answers.gold - 1) % count]
    yield from _forms(right, text)
    yield from _hazards(answers, right, wrong, other, question_words)
    for language, word in ANSWER_WORDS.items():
        colon = "：" if language in ("zh", "ja") else ":"
        holds_label = any(label in word for label in answers.labels)
        kind: PhrasingClass = "hazard" if holds_label else "tolerance"
        yield Phrasing(id=f"word-{language}", kind=kind, text=f"{word}{colon} {right}")
    yield from _abstentions(answers, right, wrong)
    if prompt.strip():
        yield Phrasing(id="prompt-again", kind="abstain", text=prompt, answer=False)


def _forms(right: str, text: str) -> Iterator[Phrasing]:
    forms = {
        "bare": right,
        "bare-space": f" {right}",
        "bare-newline": f"{right}\n",
        "dot": f"{right}.",
        "paren": f"({right})",
        "rparen": f"{right})",
        "bracket": f"[{right}]",
        "bold": f"**{right}**",
        "bold-paren": f"**({right})**",
        "lower": right.lower(),
        "answer-colon": f"Answer: {right}",
        "ANSWER": f"ANSWER: {right}",
        "answer-bold-key": f"**Answer:** {right}",
        "answer-bold-val": f"Answer: **{right}**",
        "answer-bold-all": f"**Answer: {right}**",
        "answer-paren": f"Answer: ({right})",
        "answer-boxed": f"Answer: $\\boxed{{{right}}}$",
        "boxed": f"$\\boxed{{{right}}}$",
        "boxed-text": f"$\\boxed{{\\text{{{right}}}}}$",
        "the-answer-is": f"The answer is {right}.",
        "the-answer-is-paren": f"The answer is ({right}).",
        "therefore": f"Therefore, the answer is: {right}",
        "therefore-paren": f"Therefore, the answer is ({right}).",
        "correct-answer-is": f"The correct answer is {right}.",
        "best-answer-is": f"The best answer is {right}",
        "option": f"The correct option is {right}.",
        "answer-is-bold": f"The answer is **{right}**.",
        "markdown-h": f"## Answer\n\n{right}",
        "json": f'{{"answer": "{right}"}}',
        "xml": f"<answer>{right}</answer>",
        "crlf": f"Answer: {right}\r\n",
        "nbsp": f"Answer:\u00a0{right}",
        "trailing-explain": f"{right}\n\nExplanation: it fits the question best.",
        "mid-sentence": f"So {right} is correct.",
        "fullwidth": f"Answer: {_fullwidth(right)}",
        "zh": f"答案是{right}。",
        "de": f"Die Antwort ist {right}.",
    }
    if text:
        forms |= {
            "letter+text": f"{right}. {text}",
            "letter:text": f"{right}: {text}",
            "text-only": text,
            "answer-is-text": f"The answer is {text}.",
            "answer-is-letter-text": f"The answer is {right}. {text}",
        }
    for name, form in forms.items():
        yield Phrasing(id=name, kind="tolerance", text=form)


def _fullwidth(text: str) -> str:
    return "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in text)


def _hazards(
    answers: Answers, right: str, wrong: str, other: str, question_words: tuple[str, str]
) -> Iterator[Phrasing]:
    question, answer = question_words
    options = _options(answers)
    hazards = {
        "negated": f"The answer is not {wrong}. The answer is {right}.",
        "self-correct": f"The answer is {wrong}. Wait, no. The answer is {right}.",
        "echo-options": f"{options}\n\nAnswer: {right}",
        "echo-instruction": f'I end with "the answer is (X)" as asked: the answer is ({right}).',
        "cont-next-q": f"{right}\n\n{question} What is next?\n{answer} {other}.",
        "think": f"<think>\nThe answer is {wrong}? No.\n</think>\nThe answer is {right}.",
        "boxed-before": f"First $\\boxed{{{wrong}}}$ is ruled out. So the answer is $\\boxed{{{right}}}$.",
    }
    if len(answers.labels) > 2:
        hazards["elimination"] = f"{wrong} and {other} are wrong, so {right}."
    if right.isascii() and right.isalpha() and len(right) == 1:
        hazards["article-A"] = f"The answer is a city in the south, namely {right}."
        hazards["pronoun-I"] = f"I think the right choice is {right}."
        hazards["definitely"] = f"The answer is Definitely the last one to expect: {right}."
    for name, form in hazards.items():
        yield Phrasing(id=name, kind="hazard", text=form)


def _options(answers: Answers) -> str:
    return "\n".join(f"{label}. {text}".rstrip() for label, text in zip(answers.labels, answers.texts, strict=True))


def _abstentions(answers: Answers, right: str, wrong: str) -> Iterator[Phrasing]:
    texts = {
        "refusal": "I cannot answer this question.",
        "idk": "I don't know.",
        "none": "None of the above.",
        "truncated": f"Let us look at the options one by one. Option {wrong} says that",
        "think-unclosed": f"<think>\nThe answer is {wrong}. Let me check",
        "two": f"The answer is {wrong} or {right}.",
        "options-alone": _options(answers),
    }
    following = chr(ord(answers.labels[-1][0]) + 1)
    if len(answers.labels[-1]) == 1 and following.isalnum():
        texts["out-of-range"] = f"The answer is {following}."
        texts["out-of-range-paren"] = f"The answer is ({following})."
    yield from _nothing()
    for name, text in texts.items():
        yield Phrasing(id=name, kind="abstain", text=text, answer=False)


def _nothing() -> Iterator[Phrasing]:
    yield Phrasing(id="empty", kind="abstain", text="", answer=False)
    yield Phrasing(id="blank", kind="abstain", text=" \n ", answer=False)


def number_phrasings() -> Iterator[Phrasing]:
    """Yield ways to write numbers; each brings the number that should be read."""
    forms = {
        "sentence": ("The answer is 42.", "42"),
        "sentence-lower": ("the answer is 42", "42"),
        "hash": ("#### 42", "42"),
        "hash-comma": ("#### 1,234", "1234"),
        "hash-dollar": ("#### $42", "42"),
        "hash-nospace": ("####42", "42"),
        "hash-dot": ("#### 42.", "42"),
        "hash-bold": ("#### **42**", "42"),
        "hash-unit": ("#### 42 apples", "42"),
        "hash-twice": ("#### 1\nNo, that is wrong.\n#### 42", "42"),
        "hash-neg": ("#### -7", "-7"),
        "hash-decimal": ("#### 3.50", "3.50"),
        "bold": ("The answer is **42**.", "42"),
        "boxed": ("$\\boxed{42}$", "42"),
        "boxed-comma": ("$\\boxed{1{,}234}$", "1234"),
        "currency": ("The answer is $42.", "42"),
        "percent": ("The answer is 25%.", "25"),
        "negative": ("The answer is -7.", "-7"),
        "minus-unicode": ("The answer is \u22127.", "-7"),
        "comma": ("The answer is 1,234.", "1234"),
        "space-thousands": ("The answer is 1 234.", "1234"),
        "decimal": ("The answer is 3.5.", "3.5"),
        "eu-decimal": ("The answer is 3,5.", "3.5"),
        "fraction": ("The answer is 3/4.", "3/4"),
        "scientific": ("The answer is 1e6.", "1000000"),
        "ellipsis": ("The answer is 42...", "42"),
        "units-num": ("The answer is 42 m2.", "42"),
        "time": ("The answer is 2:30.", "2:30"),
        "range": ("The answer is 3-5.", "5"),
        "trailing-check": ("#### 42\n\nCheck: 42 / 14 = 3", "42"),
        "trailing-explain": ("The answer is 42, since 6*7=42 and 6>5", "42"),
        "trailing-dots": ("The answer is 42. ..", "42"),
        "equation": ("6 * 7 = 42", "42"),
        "single-digit-dot": ("The answer is 7.", "7"),
        "comma-only": ("The answer is 42 apples, of course.", "42"),
        "currency-end": ("The answer is 1,234.50$.", "1234.50"),
        "arabic-digits": ("The answer is ٤٢.", "42"),
        "devanagari": ("The answer is ४२.", "42"),
        "fullwidth": ("The answer is ４２.", "42"),
    }
    for name, (text, number) in forms.items():
        yield Phrasing(id=name, kind="numeric", text=text, number=number)
    for language, word in ANSWER_WORDS.items():
        yield Phrasing(id=f"word-{language}", kind="numeric", text=f"{word}: 42", number="42")
    yield from _nothing()
    for name, text in {
        "refusal": "I cannot answer this question.",
        "idk": "I don't know.",
        "word": "The answer is forty-two.",
        "truncated": "First I add 3 and 4, which gives 7, then",
    }.items():
        kind: PhrasingClass = "tolerance" if name == "truncated" else "abstain"
        yield Phrasing(id=name, kind=kind, text=text, answer=False)


DEGENERATE_LENGTH: Final = 20_000
"""Characters of a degenerate completion."""


@cache
def degenerate_phrasings() -> tuple[Phrasing, ...]:
    """Return completions of one thing over and over, each with an end that fits nothing."""
    return tuple(_degenerate())


def _degenerate() -> Iterator[Phrasing]:
    units = {
        "spaces": " ",
        "newlines": "\n",
        "labels": "A ",
        "digits": "7",
        "commas": ",",
        "stars": "*",
        "answer-colons": "answer:",
        "answer-is": "the answer is ",
        "hashes": "#### ",
        "open-boxed": "\\boxed{",
        "words": "so it goes ",
    }
    for name, unit in units.items():
        text = (unit * (DEGENERATE_LENGTH // len(unit) + 1))[:DEGENERATE_LENGTH] + "!"
        yield Phrasing(id=name, kind="degenerate", text=text, answer=False)
    half = DEGENERATE_LENGTH // 2
    yield Phrasing(id="labels-then-words", kind="degenerate", text="A " * half + "words " * half, answer=False)
    # Quadratic patterns need many of these before they are slow.
    yield Phrasing(id="open-think", kind="degenerate", text=f"{'<think>' * DEGENERATE_LENGTH}!", answer=False)
    yield Phrasing(id="ANSWER-spaces", kind="degenerate", text=f"ANSWER:{' ' * DEGENERATE_LENGTH}!", answer=False)
    yield Phrasing(id="boxed-letters", kind="degenerate", text=f"\\boxed{{{'a' * DEGENERATE_LENGTH}", answer=False)
