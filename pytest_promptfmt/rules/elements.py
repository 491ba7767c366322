"""Rules about the elements of a question: labels, cues, sentences and marks, each whole, in place, once and alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.prompt import join
from pytest_promptfmt.rules import Finding, Study
from pytest_promptfmt.rules.columns import COMMON
from pytest_promptfmt.rules.options import template_names
from pytest_promptfmt.rules.page import (
    Page,
    Text,
    asked_first,
    demonstrated,
    error_query,
    first,
    known,
    own,
    part_of,
    query,
    shown,
    task,
    texts,
)
from pytest_promptfmt.rules.rule_views import (
    BRANCH,
    COLUMN,
    continuations,
    finding,
    pattern,
    question_template,
    severity_of_shots,
    skeleton,
)
from pytest_promptfmt.study.layout import layout_of
from pytest_promptfmt.study.requested_labels import is_instruction
from pytest_promptfmt.study.study import constant_spans

_PAIRS: Final = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text1", "text2"),
)
"""Columns that a prompt shows next to each other, and alike."""

_SAYS_HOW: Final = re.compile(r"answer|respond|reply|choose|select|option|letter|choice|[^\x00-\x7f]", re.I)
_CUT_OFF: Final = pattern("elements", "cut_off")
_INTO: Final = re.compile(r"\b(?:in)?to ([A-Z]\w+)")

_LABEL: Final = re.compile(r"^((?:[A-Z]{3,}|[A-Z]\w+)(?: [A-Za-z]\w*){1,2})(:?)(?= +[\"“A-Z\d])", re.MULTILINE)
_BARE_CUE: Final = re.compile(r"\n([^\W\d_]{1,20})\s*\Z")
_GLUED_LABEL: Final = pattern("elements", "glued_label")
_LABEL_COLUMN: Final = re.compile(r"(?:^|(?<=[\n ]))([^\s:\0\1]+)(: ?)\0", re.MULTILINE)
_OPTION_COLUMN: Final = re.compile(r"^\(?[A-Z][.):] \0", re.MULTILINE)
_CJK: Final = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")

_TWICE: Final = re.compile(r"(?:^|(?<=[\s(]))([A-Z][.)]|\([A-Z]\)|[^\W\d_]{4,}:)\s+\1(?=\s|$)")
_LETTER_TWICE: Final = re.compile(r"^([A-Z]:) +\1(?=\s)", re.MULTILINE)
_LINE_TWICE: Final = re.compile(r"^(#{1,6} [^\n]{2,60}|[^\s:：][^\n:：]{1,40}[:：])\n+\1$", re.MULTILINE)
_WORDS: Final = 5
_LEAD: Final = 20
"""Characters of a description that is not in a question by chance."""


_OPENING: Final = "([（【「『"
_CLOSING: Final = ")]）】」』"
_OPTION: Final = re.compile(r"(?:^|(?<=[\s(\[（]))\w{1,3}[)\]）]")
_CODE: Final = re.compile(r"```|\\[A-Za-z]|[:;]-?[(\[]")
"""Where unmatched brackets mean nothing: code, formulas, and emoticons."""

_STRAY: Final = re.compile(r"\A[\"']|[\"']\Z")
_QUOTED: Final = re.compile(r"([\"'`]).+\1|“.+”", re.DOTALL)


def answer_labels() -> set[str]:
    """Return the labels before an answer, in all languages."""
    table: dict[str, list[str]] = data_table("contract")["answer_labels"]
    return {label for labels in table.values() for label in labels}


# -- the cue -----------------------------------------------------------------------------------------------------------


@query(
    "PF232",
    "the prompt ends with the last option, not with a cue such as Answer:",
    asked_first,
    name="no-cue-after-options",
)
def _no_cue(page: Page) -> Iterator[str | Finding]:
    """Report a prompt that ends with the last option, without a cue for the answer.

    Why: after such a prompt, a base model continues with the next option, not with an answer. If the prompt has an
    instruction about how to answer, nothing is reported.

    Fix: end the prompt with a cue such as `Answer:`.

    Real: HELM #3790 (InfiniteBench).
    """
    written, text = page.study.task, page.text.rstrip()
    layout = layout_of(text)
    last = [option for option in layout.listed[-2:] if option.label.isupper()]
    is_end = len(last) == 2 and text[last[0].start :].count("\n") == 1 and text.count("\n") > 1
    if not is_end or written.gen_prefix is not None or not written.has_question or len(page.instance.prompts) != 1:
        return
    start = layout.listed[0].start
    cues = (label for label in layout.labels if label.name in answer_labels() and label.end < start)
    before = next((cue for cue in cues if not text[cue.end : start].strip(" \n([")), None)
    if before is not None:
        yield finding("the answer cue is before the options", text[before.start : before.start + 40])
    elif not _SAYS_HOW.search(page.study.own_text):
        yield page.text[-40:]


@query("PF232", "an instruction comes after the cue for the answer")
def _instruction_after_cue(page: Page) -> Iterator[str]:
    cues = [label for label in layout_of(page.tail).labels if label.name in answer_labels() and not label.value]
    after = page.tail[cues[-1].end :].strip() if cues else ""
    if after and is_instruction(after) and not page.study.task.gen_prefix:
        yield f"{cues[-1].name}{cues[-1].colon} {after[:60]}"


@error_query("PF242", "the label at the end of the prompt is repeated in the answer")
def _cue_in_answer(page: Page) -> Iterator[Finding]:
    study, cue = page.study, page.cue
    answers = [page.instance.target] if study.generates else continuations(page.instance)
    parts = [answer.strip() for answer in answers if isinstance(answer, str)]
    if cue is not None and parts and all(text.startswith(f"{cue.name}{cue.colon}") for text in parts):
        at = "doc_to_target" if study.generates else "doc_to_choice"
        yield finding("", f"the prompt ends with {cue.name + cue.colon!r}, and the answer is {parts[0][:40]!r}", at)


@query("PF242", "the answer of a few-shot example repeats the label before the answer", shown, at="fewshot_config")
def _cue_in_shot(page: Page) -> Iterator[Finding]:
    begin = f"{page.cue.name}{page.cue.colon}" if page.cue is not None else COLUMN
    answers = [shot.answer.strip() for shot in page.shots if shot.answer and begin in shot.question]
    twice = next((answer for answer in answers if answer.startswith(begin)), None)
    if twice is not None and not any(_cue_in_answer(page.study)):
        yield finding(
            "", f"after the label {begin!r}, the answer is {twice[:40]!r}", severity=severity_of_shots(page.study)
        )


# -- labels unlike their siblings --------------------------------------------------------------------------------------


@query("PF240", "only some labels have a space after the colon", texts, name="uneven-labels")
def uneven_labels(text: Text) -> Iterator[str | Finding]:
    """Report labels that are written in different ways, for example some with and some without a space.

    Why: labels such as `question:{{question}}` and `passage: {{passage}}` in one prompt are a typing error. Most
    tokenizers encode the two forms differently. The rule also reports a lost line break, as in `True.Q:`.

    Fix: write all labels in the same form.

    Real: lm-evaluation-harness's gpqa (`question:` without a space), and examples in descriptions.
    """
    labels = [(found[1], found[2]) for found in _LABEL_COLUMN.finditer(text.text)]
    spaced = {f"{label}:" for label, colon in labels if colon == ": "}
    spaced |= {found[0][:-2] for found in _OPTION_COLUMN.finditer(text.text)}
    glued = [label for label, colon in labels if colon == ":" and len(label) > 1]
    found = _GLUED_LABEL.search(text.text)
    if spaced and glued and len(glued) <= len(spaced):
        yield f"{glued[0]}:… and {sorted(spaced)[0]} …"
    elif found is not None:
        yield finding("a label is glued to the text before it", part_of(text.text, found, 20, 8))


@query("PF240", "the labels of options are written in different forms", texts)
def _uneven_options(text: Text) -> Iterator[str]:
    listed = [one for one in layout_of(text.text).options if one.text.startswith(COLUMN) and one.label.isascii()]
    for before, after in pairwise(listed):
        follow = ord(after.label.upper()) == ord(before.label.upper()) + 1
        if follow and (before.style != after.style or before.label.isupper() != after.label.isupper()):
            yield f"{before.lead!r} and {after.lead!r}"


@query("PF240", "a blank line follows some options, because their column ends with a newline", own)
def _options_apart(page: Page) -> Iterator[Finding]:
    options = {option.text.strip() for option in page.layout.listed}
    printed = [span for span in page.message.content if span.origin.field and span.text.strip() in options]
    apart = [span for span in printed if span.text.endswith("\n")]
    if 0 < len(apart) < len(options) == len(printed):
        yield finding("", apart[0].text, apart[0], page.instance)


@query(
    "PF240",
    "the labels have different kinds of colons",
    lambda study: () if study.has_guessed_text else demonstrated(study) or first(study),
)
def _mixed_colons(page: Page) -> Iterator[str]:
    kinds: dict[str, dict[str, str]] = {}
    for label in layout_of(page.instance.prompts[0].text).labels:
        script = "CJK" if _CJK.search(label.name) else label.name
        kinds.setdefault(script, {})[label.colon] = label.name
    for by_colon in kinds.values():
        if len(by_colon) > 1:
            yield " and ".join(f"{name}{colon}" for colon, name in sorted(by_colon.items()))


@query("PF240", "the cue for the answer has no colon, but other labels have one", task)
def _cue_without_colon(study: Study) -> Iterator[str]:
    text = question_template(study)
    cue = _BARE_CUE.search(text)
    if cue is not None and layout_of(text[: cue.start()]).labels:
        yield cue[1]


@query("PF240", "a label has no colon in one example, but has one in other examples", task)
def _label_lost_colon(study: Study) -> Iterator[Finding]:
    written = [(template.keys, skeleton(template.source)) for template in study.templates]
    labels = [(keys, text, found) for keys, text in written for found in _LABEL.finditer(text)]
    with_colon = Counter(found[1] for _, _, found in labels if found[2])
    with_colon += Counter(line[:-1] for _, text in written for line in text.splitlines() if line.endswith(":"))
    for keys, text, found in labels:
        name = next((one for one in with_colon if f"{found[1]} ".startswith(f"{one} ")), None)
        if not found[2] and name is not None and " " in name and with_colon[name] > 1:
            yield finding("", text[found.start() : found.end() + 20], keys, do=f"write a colon after {name!r}")


@query("PF240", "only one column of a pair has a label")
def _label_of_pair_missing(page: Page) -> Iterator[Finding]:
    labels = {field.casefold(): label for label, field in page.labelled}
    for one, other in (*_PAIRS, *(pair[::-1] for pair in _PAIRS)):
        if labels.get(one, "").casefold().replace(" ", "") == one and labels.get(other) == "":
            saw = f"{labels[one]}: {{{{{one}}}}}, but {{{{{other}}}}} has no label"
            yield finding("", saw, field=other)


@query("PF240", "the labels of the question and the answer are in different languages")
def _cue_of_another_language(page: Page) -> Iterator[str | Finding]:
    cue = page.cue.name if page.cue is not None else ""
    asked = {one.name: _languages("question_labels", one.name) for one in page.layout.labels}
    asked = {name: languages for name, languages in asked.items() if languages}
    answered = _languages("answer_labels", cue)
    if asked and answered and not set().union(*asked.values()) & answered:
        yield f"{next(iter(asked))}: and {cue}:"
    languages = data_table("contract")["languages"]
    into = {found.casefold() for found in _INTO.findall(page.study.own_text)} & set(languages)
    source = next((one for one in page.layout.labels[:-1] if one.name == cue and one.value), None)
    if cue.casefold() in languages and source is not None and len(page.layout.labels) == len((source, page.cue)):
        message, do = (
            "the labels of the question and the answer name the same language",
            "in the label of the answer, name the language of the answer",
        )
        yield finding(message, f"{cue}: … {cue}:", do=do)
    if cue.casefold() in languages and into and cue.casefold() not in into:
        saw = f"'into {', '.join(sorted(into)).title()}', but the label is '{cue.title()}:'"
        message, do = (
            "the prompt requests one language, but the answer label names another",
            "correct the requested language, or the label of the answer",
        )
        yield finding(message, saw, do=do)


def _languages(table: str, label: str) -> set[str]:
    """Return the languages in which a label is the one of a question or of an answer."""
    words: dict[str, list[str]] = data_table("contract")[table]
    return {lang for lang, names in words.items() if label.casefold() in map(str.casefold, names)}


@query("PF242", "a label names one column, but another column is printed after it")
def _label_before_other_column(page: Page) -> Iterator[Finding]:
    docs = page.study.docs
    columns = {str(name).casefold() for name in docs.columns} if docs is not None else set()
    printed = {str(span.origin.field).casefold() for one in asked_first(page.study) for span in one.message.content}
    languages: dict[str, list[str]] = data_table("contract")["languages"]
    target = template_names(page.study.written.doc_to_target) if page.study.generates else ()
    answered = [(page.cue.name, *target)] if page.cue is not None and len(target) == 1 else []
    for label, field in (*page.labelled, *(one for one in answered if one[0].casefold() in languages)):
        is_question = bool(_languages("question_labels", label))
        name, folded = "question" if is_question else label.casefold().replace(" ", "_"), field.casefold()
        parts = {one: set(one.split("_")) for one in columns}
        codes = {one for one in columns if not parts[one].isdisjoint(languages.get(name, ()))}
        is_other = name in columns and folded in COMMON and name not in folded
        is_other_language = codes and any(not parts.get(folded, {folded}).isdisjoint(one) for one in languages.values())
        named = {one.casefold(): other.casefold() for other, one in page.labelled}
        is_other |= name in columns and named.get(name) == folded  # two columns after the labels of each other
        is_misplaced = not printed & {name, *codes} or any(
            other and other != label and one.casefold() in (name, *codes) for other, one in page.labelled
        )
        if folded not in (name, *codes) and (is_other or is_other_language) and is_misplaced:
            yield finding("", f"{label}: {{{{{field}}}}}", field=field)


# -- once --------------------------------------------------------------------------------------------------------------


@query("PF242", "the description is repeated in the question", asked_first, name="repeated-text")
def _repeated_description(page: Page) -> Iterator[str]:
    """Report a text that is in the prompt twice, for example in the description and in the question.

    Why: if a sentence is both in the description and in `doc_to_text`, the prompt begins with this sentence twice. Each
    few-shot example repeats it once more.

    Fix: remove the text from one of the two places.

    Real: lm-evaluation-harness 0.4.13, in 45 kmmlu_cot_hard tasks.
    """
    described = [span for span in page.instance.prompts[0].spans if span.origin.part == "description"]
    lead = " ".join("".join(span.text for span in described).split())
    own = sum(len(span.text) for span in described if span.origin.field is None)
    if own >= _LEAD and lead in " ".join(page.text.split()):
        yield lead


@query("PF242", "a text of the data is printed twice in the question", lambda study: own(study)[:1])
def _text_shown_twice(page: Page) -> Iterator[Finding]:
    values = {name: value.strip() for name, value in page.instance.doc.items() if isinstance(value, str)}
    fields = [span.origin.field for span in page.message.content]
    pairs = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
    for name, text in values.items():
        held = sum(text in other for key, other in values.items() if key != name)
        is_other_lost = pairs.get(name) in values and pairs[name] not in fields and fields.count(name) > 1
        is_long = len(text.split()) >= (_WORDS if not is_other_lost else 1)
        if is_long and not held and page.text.count(text) > 1:
            yield finding("", text[:60], field=name)


@query("PF242", "a label is printed twice in a row", lambda study: known(study)[:3])
def _label_twice(page: Page) -> Iterator[str | Finding]:
    again = _LINE_TWICE.search(join(constant_spans(page.instance)))
    if again is not None:
        yield again[0]
    text = "".join(span.text for span in page.instance.prompts[0].spans if span.origin.shot is None)
    twice = [each for each in _TWICE.finditer(text) if not _ends_a_sentence(text, each)]
    twice += _LETTER_TWICE.finditer(text)
    of_words = [one for one in twice if one[1].endswith(":")]
    # One doubled letter may be the initials of a name.
    for found in of_words or (twice if len({one[1] for one in twice}) > 1 else ()):
        yield finding("", part_of(text, found, 10), "gen_prefix" if page.study.task.gen_prefix else "doc_to_text")


@query("PF242", "two consecutive columns have the same label")
def _label_of_two_columns(page: Page) -> Iterator[Finding]:
    for (label, field), (again, other) in pairwise(page.labelled):
        if label == again and field != other and re.search(r" [A-Z\d]\Z", label):
            yield finding("", f"{label}: {{{{{field}}}}} and {label}: {{{{{other}}}}}", field=other)


def _ends_a_sentence(text: str, twice: re.Match[str]) -> bool:
    """Return whether the first of two equal labels is the last word of a line: `Choose the right option:`."""
    line = text[text.rfind("\n", 0, twice.start()) + 1 : twice.start()]
    return "\n" in twice[0] and bool(line.strip())


# -- whole -------------------------------------------------------------------------------------------------------------


@query("PF246", "the last word of a sentence is missing", texts)
def _sentence_cut_off(text: Text) -> Iterator[str]:
    found = _CUT_OFF.search(text.text)
    if found is not None and (text.keys[-1] == "description" or found.end() < len(text.text.rstrip())):
        yield found[0].strip()[-60:]


@query("PF235", "", texts, every=True, name="unbalanced-pairs")
def _unbalanced_quotes(text: Text) -> Iterator[Finding]:
    """Report a bracket, quotation mark or tag in the task's own text that is opened but not closed.

    Why: a typo such as `Answer with "yes or no.` is in every prompt. If the prompt ends with an opening quotation mark,
    nothing is reported: the answer may close the quotation.

    Fix: close the quotation, bracket or tag.

    Real: open-compass/opencompass #2129 (an instruction with an unclosed quotation).
    """
    written = text.text if BRANCH not in text.text else ""
    quotes = re.sub(r"(?<=\d)\"", "", written)  # without inches
    marks = [("“", written.rfind("“"), written.count("“") > written.count("”") > 0)]
    marks += [
        ('"', written.rfind('"'), quotes.count('"') % 2 == written.count('"') % 2 == 1),
        ("**", *_open_bold(written)),
    ]
    for mark, at, is_open in marks:
        if is_open and written[at + len(mark) :].strip():  # else the answer continues the quotation
            what = "bold text" if mark == "**" else "a quotation"
            yield finding(f"{what} is opened but not closed", part_of(written, at, 20, 40))


def _open_bold(text: str) -> tuple[int, bool]:
    """Return where bold text is opened on a line that does not close it, and whether another line does."""
    lines = list(re.finditer(r"[^\n]+", text)) if not re.search(r"\*{3}|\w\*\*\w|```", text) else []
    odd = [line for line in lines if line[0].count("**") % 2]
    is_open = len(odd) == 1 and any("**" in line[0] for line in lines if line is not odd[0])
    return (odd[0].start() + odd[0][0].rfind("**"), is_open) if odd else (0, False)


@query("PF235", "a bracket is opened but not closed")
def _open_bracket(page: Page) -> Iterator[str]:
    is_data = page.study.asks_by_code  # which may cut the texts of the data
    place = None if is_data or _CODE.search(page.constant) else _open_place(page.constant)
    if place is not None:
        yield part_of(page.constant, place)


def _open_place(text: str) -> int | None:
    """Return where the first unclosed bracket is; None if all are closed, or if the text ends with it."""
    labels = {match.end() - 1 for match in _OPTION.finditer(text)}
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


@query("PF235", "a choice has an unpaired quotation mark", asked_first, at="doc_to_choice")
def _stray_quote(page: Page) -> Iterator[str | Finding]:
    study, choices = page.study, [text.strip() for text in continuations(page.instance)]
    stray = [text for text in choices if _STRAY.search(text) and any(text.count(mark) % 2 for mark in "\"'")]
    if study.has_choices and study.renders_fields and not study.has_real_docs and 0 < len(stray) < len(choices):
        yield stray[0][-40:]
    quoted = [text for text in choices if _QUOTED.fullmatch(text)]
    written = study.written.doc_to_choice
    if isinstance(written, list) and "{{" not in str(written) and 0 < len(quoted) < len(choices):
        yield finding("only some choices are in quotes", quoted[0][:40])


@query("PF235", "a tag is opened but not closed")
def _open_tag(page: Page) -> Iterator[str | Finding]:
    if "[INST]" in page.constant and "[/INST]" not in page.constant:
        yield part_of(page.constant, page.constant.index("[INST]"), 8, 24)
    closed = set(re.findall(r"</(\w+)>", page.constant))
    for tag in re.finditer(r"<([a-z_]{3,})>(?=[^<]*\0)", page.constant) if closed else ():
        if tag[1] not in closed:
            yield finding("", part_of(page.constant, tag, 8, 24), do=f"write </{tag[1]}> after the column")
    pieces = page.constant.split("```")
    if len(pieces) % 2 == 0 and COLUMN in pieces[-1] and pieces[0].strip():
        saw = page.text[page.text.rfind("```") :][:60]
        yield finding("a code fence is opened but never closed", saw)
