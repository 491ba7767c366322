"""Extractors of the field, written anew by their patterns, get the verdicts that were measured of them (spec, 5.2).

The spec tells PromptSuite's extractor in words (3.2), and some phrasings by their verdicts alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from pytest_promptfmt.answers.phrasings import Answers, choice_phrasings, number_phrasings

MATRIX = Path(__file__).parents[3] / "shared" / "spec" / "peers-extraction-matrix.txt"
WORDED_OTHERWISE = {"truncated"}
"""Phrasings that break off after other numbers than the published ones."""
CAPITALS = Answers(
    kind="choice", labels=tuple("ABCD"), texts=("Berlin", "Madrid", "Paris", "London"), targets=tuple("ABCD"), gold=2
)


def found(pattern: str, which: int = 0) -> Callable[[str], str | None]:
    def extract(text: str) -> str | None:
        matches = re.findall(pattern, text)
        if not matches:
            return None
        match = matches[which]
        return match if isinstance(match, str) else next(group for group in match if group)

    return extract


def three_levels(text: str) -> str | None:
    for pattern in (r"answer is \(?([A-J])\)?", r".*[aA]nswer:\s*([A-J])", r"(?s)\b[A-J]\b(?!.*\b[A-J]\b)"):
        match = re.search(pattern, text)
        if match:
            return match[match.re.groups]
    return None


def first_of(*patterns: str, which: int = 0) -> Callable[[str], str | None]:
    """Return the match of the first pattern that has one, in big letters, None when it is blank."""

    def extract(text: str) -> str | None:
        for pattern in patterns:
            matches = re.findall(pattern, text)
            if matches:
                match = matches[which]
                found = match if isinstance(match, str) else next(group for group in match if group)
                return found.strip().upper() or None
        return None

    return extract


def labelled_line(text: str) -> str | None:
    """Return the first label with a dot in the last line that has one."""
    found = (re.search(r"\b([A-Z])\.", line) for line in reversed(text.splitlines()))
    return next((match[1] for match in found if match), None)


def without_markup(text: str) -> str | None:
    plain = re.sub(r"\*\*|\$\\boxed\{|\}\$|\\text|\$|\{|\\boxed", "", text)
    letter = first_of(r"(?i)Answer[ \t]*:[ \t]*([A-D]|[Ａ-Ｄ])")(plain)
    return letter.translate({0xFF21 + number: 0x41 + number for number in range(4)}) if letter else None


def after_answer(text: str) -> str | None:
    numbers = re.findall(r"\d+\.?\d*", text.rpartition("Answer")[2].replace(",", ""))
    return numbers[-1] if "Answer" in text and numbers else None


def expression(text: str) -> str | None:
    """Return what lighteval's English expression extractor takes: an expression or a number, best after "answer"."""
    signs = r"+\-*×/^()÷"
    anything = rf"[\d.\s{signs}]"
    begin = r"(?:^|\s|=)(?:\*\*)?"
    term = rf"{begin}(?P<term>-?\(?-?\d{anything}*[{signs}]{anything}+\)?)(?:\*\*)?(?:[.,:\s)$]|$)"
    whole = r"(?P<grouped>-?\d{1,3}(?:[ ,]\d{3})+)(?P<rest>\.\d+)?|(?P<whole>-?\d+)(?P<part>[.,]\d+)|(?P<only>-?\d+)"
    number = rf"{begin}[$€£]?(?:{whole})(?P<percent>\s*(?:%|[Pp]ercent|[Pp]ct))?"
    after = rf"(?:.{{0,100}}=\s*|.{{0,50}}?)(?:{term}|{number})(?!\s*=)"
    for patterns in ([rf"(?i:answer):{after}"], [rf"(?i:answer){after}"], [term, number]):
        matches = [match for pattern in patterns for match in re.finditer(pattern, text)]
        if matches:
            last = max(matches, key=lambda match: (match.end(), -match.start())).groupdict("")
            if last.get("term"):
                return re.sub(r"(\d)\.(?!\d)", r"\1.0", last["term"]) if value_of(last["term"]) is not None else None
            integer = (last["grouped"] or last["whole"] or last["only"]).replace(",", "").replace(" ", "")
            decimals = (last["rest"] or last["part"]).replace(",", ".")
            found = format(float(integer + decimals), "#.15g") if decimals else integer
            return (f"{found}*(1/100)" if last["percent"] else found) if found.isascii() else None
    return None


def value_of(text: str) -> Fraction | None:
    """Return what an expression comes to, None for what is none."""
    if not re.fullmatch(r"[\d.+*/() -]+", text) or not re.search(r"\d", text):
        return None
    exact = re.sub(r"\d+\.?\d*|\.\d+", lambda match: f"Fraction('{match[0].removesuffix('.')}')", text)
    try:
        return Fraction(eval(exact, {"Fraction": Fraction}))
    except (SyntaxError, TypeError, ZeroDivisionError):
        return None


CHOICE_EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "helm-exact": lambda text: text.strip() if text.strip() in ("A", "B", "C", "D") else None,
    "ef-mmlu_cot": found(r"Therefore, the answer is: ([ABCD])"),
    "lm-mmlu_pro": found(r"answer is \(?([ABCDEFGHIJ])\)?"),
    "lm-paren": found(r"\(([A-Z])\)"),
    "MMLU-Pro-3lvl": three_levels,
    "ef-tulu": found(r"Therefore, the answer is \(([A-D])\)"),
    "ef-tulu-v2": first_of(r"(?i)answer is:? *\(?([A-D])\b", which=-1),
    "simple-evals": without_markup,
    "promptsuite": labelled_line,
    "inspect-mc": first_of(
        r"(?im)^ANSWER\s*:\s*([A-Za-z\d ,]+)\s*(?:$|\n|\.)", r"(?i)ANSWER\s*:\s*([A-Za-z\d ,]+)(?:[^\w]|\n|$|\.)"
    ),
    "inspect-letter": first_of(r"(?i)ANSWER\s*:\s*([A-Za-z])(?:[^\w]|\n|$)"),
    "olmo-eval": first_of(r"\\boxed\{(?:\\text\{)?([A-D])\}", r"(?i:answer)\s*:\s*([A-D])\b", r"\(([A-D])\)", which=-1),
    "lighteval-idx": first_of(
        r"(?is:answer\b.{0,50}?[ (*:\n])([A-D])(?=[.?\n *):,]|$)",
        r"^(?:\*\*)?(?:\(([A-D])\)|([A-D])(?![\w)]))",
        which=-1,
    ),
}
NUMBER_EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "gsm8k_strict": found(r"#### (\-?[0-9\.\,]+)"),
    "gsm8k_flex": found(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", -1),
    "helm_final": found(r"-?[\d,]+(?:.\d+)?", -1),
    "bbh_lookbehind": found(r"(?<=the answer is )(.*)(?=.)"),
    "ef_olmes": lambda text: found(r"\d*\.\d+|\d+", -1)(text.replace(",", "")),
    "simple_evals_mgsm": after_answer,
    "lighteval_expr": expression,
}


def published(first: str, *, skip: int) -> dict[str, dict[str, str]]:
    if not MATRIX.is_file():
        pytest.skip("the matrix of the spec is not beside the project")
    lines = MATRIX.read_text("utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.split()[:1] == [first])
    head = lines[start + skip].split()
    columns = head if skip else head[1:]
    table: dict[str, dict[str, str]] = {}
    for line in lines[start + skip + 1 :]:
        name, *cells = re.split(r"\s+(?=ok|MISS|WRONG|SPUR)", line.strip())
        if len(cells) == len(columns):
            table[name] = dict(zip(columns, cells, strict=True))
    return table


@pytest.mark.parametrize("extractor", sorted(CHOICE_EXTRACTORS))
def test_known_choice_extractors_get_their_published_verdicts(extractor: str) -> None:
    table = published("phrasing", skip=0)
    phrasings = {one.id: one for one in choice_phrasings(CAPITALS)}
    assert len(table.keys() - phrasings.keys()) == 0
    for name, cells in table.items():
        read = CHOICE_EXTRACTORS[extractor](phrasings[name].text)
        if phrasings[name].answer:
            verdict = "ok" if read == "C" else "MISS" if read is None else f"WRONG:{read}"
        else:
            verdict = "ok" if read is None else f"SPURIOUS:{read}"
        assert (name, verdict) == (name, cells[extractor])


@pytest.mark.parametrize("extractor", sorted(NUMBER_EXTRACTORS))
def test_known_number_extractors_get_their_published_verdicts(extractor: str) -> None:
    table = published("NUMERIC", skip=1)
    compared = 0
    for phrasing in number_phrasings():
        if phrasing.id not in table:
            continue
        read = NUMBER_EXTRACTORS[extractor](phrasing.text) or ""
        number = read.replace(",", "").replace("$", "").removesuffix(".")
        kind, _, value = table[phrasing.id][extractor].partition(":")
        if phrasing.answer:
            verdict = "ok" if number == phrasing.number else "WRONG" if number else "MISS"
        else:
            verdict = "SPUR" if number else "ok"
        assert (phrasing.id, verdict) == (phrasing.id, kind)
        if value and phrasing.id not in WORDED_OTHERWISE:
            assert value in (number, read) or value_of(number) == value_of(value) is not None, phrasing.id
        compared += 1
    assert compared >= 40
