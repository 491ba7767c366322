"""Rules about elements of a question's layout: labels before their columns, whole sentences, and pairs of marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.columns import COMMON
from pytest_promptfmt.rules.options import answer_labels
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    BRANCH,
    COLUMN,
    around,
    continuations,
    finding,
    pattern,
    questions,
    scores_exact_match,
    severity_of_shots,
    shots_of,
    written_texts,
)
from pytest_promptfmt.study.contract import is_instruction
from pytest_promptfmt.study.layout import layout_of

_PAIRS: Final = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text1", "text2"),
)
"""Columns that a prompt shows next to each other, and alike."""

_CUT_OFF: Final = pattern("elements", "cut_off")
_INTO: Final = re.compile(r"\b(?:in)?to ([A-Z]\w+)")
_ABOUT: Final = re.compile(r"\babout ([a-z][\w &-]{3,50}?)[.:]")
_IDENTIFIER: Final = re.compile(r"(?:\w+_)?(?:id|ids|uuid|guid|hash)|qid|uid", re.IGNORECASE)

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


def _labelled(study: Study) -> list[tuple[str, str]]:
    """Return the columns that the first question prints, each with the label directly before it ("" for none)."""
    found = []
    for _, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        constant = ""
        for span in message.content:
            if span.origin.field is None:
                constant += span.text
                continue
            label = layout_of(constant).cue
            is_alone = label is None and constant[-1:] in ("", "\n")
            if label is not None or is_alone:
                found.append((label.name if label is not None else "", span.origin.field))
            constant = span.text.rpartition("\n")[2]
    return found


@also("PF242")
def label_before_other_column(study: Study) -> Iterator[Finding]:
    """Report a label that is named like one column, or like its language, and is before another column."""
    labelled = _labelled(study)
    docs = study.docs
    columns = {str(name).casefold(): name for name in docs.columns} if docs is not None else {}
    messages = [message for _, message in questions(study.instances[:1])]
    printed = {str(span.origin.field).casefold() for message in messages for span in message.content}
    languages: dict[str, list[str]] = data_table("contract")["languages"]
    for label, field in labelled:
        name = label.casefold().replace(" ", "_")
        codes = {one for one in languages.get(name, ()) if one in columns}
        is_other = name in columns and field.casefold() in COMMON and name not in field.casefold()
        is_other_language = codes and any(field.casefold() in known for known in languages.values())
        is_misplaced = not printed & {name, *codes} or any(
            other and other != label and own.casefold() in (name, *codes) for other, own in labelled
        )
        if field.casefold() not in (name, *codes) and (is_other or is_other_language) and is_misplaced:
            saw = f"{label}: {{{{{field}}}}}"
            yield finding(
                "a label names one column, but another one is printed after it", saw, "doc_to_text", field=field
            )
            return


@also("PF240")
def cue_of_other_target_language(study: Study) -> Iterator[Finding]:
    """Report a prompt that asks for a translation into another language than the label before the answer names."""
    languages: dict[str, list[str]] = data_table("contract")["languages"]
    for instance, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        cue = layout_of(message.text).cue
        name = cue.name.casefold() if cue is not None else ""
        asked = {found.casefold() for found in _INTO.findall(study.own_text)} & set(languages)
        if name in languages and asked and name not in asked:
            saw = f"into {', '.join(sorted(asked)).title()}, and {name.title()}:"
            yield finding("the prompt requests another language than its label names", saw, "doc_to_text", instance)


@also("PF242", severity=Severity.ERROR)
def cue_in_answer(study: Study) -> Iterator[Finding]:
    """Report an answer that repeats the label at the end of the prompt."""
    for instance, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        cue = layout_of(message.text).cue
        answers = [instance.target] if study.generates else continuations(instance)
        texts = [answer.strip() for answer in answers if isinstance(answer, str)]
        if cue is not None and texts and all(text.startswith(f"{cue.name}{cue.colon}") for text in texts):
            saw = f"{cue.name}{cue.colon} and {texts[0][:40]}"
            at = "doc_to_target" if study.generates else "doc_to_choice"
            yield finding("the answer begins with the label that the prompt ends with", saw, at, instance)
            return


@also("PF242")
def cue_in_shot(study: Study) -> Iterator[Finding]:
    """Report an answer of a few-shot example that begins with the label before it, which is then there twice."""
    for instance, asked in questions(study.with_shots[:1]) if not study.has_guessed_text else ():
        cue = layout_of(asked.text).cue
        begin = f"{cue.name}{cue.colon}" if cue is not None else "\0"
        answers = [shot.answer.strip() for shot in shots_of(instance) if shot.answer and begin in shot.question]
        twice = next((answer for answer in answers if answer.startswith(begin)), None)
        if twice is not None and not any(cue_in_answer(study)):
            message = "the answer of a few-shot example begins with the label before it"
            saw = f"{begin} and {twice[:40]}"
            yield finding(message, saw, "fewshot_config", instance, severity=severity_of_shots(study))


@also("PF232")
def instruction_after_cue(study: Study) -> Iterator[Finding]:
    """Report an instruction after the label at which the answer begins."""
    for instance, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        constant = ""
        for span in message.content:
            constant = constant + span.text if span.origin.field is None else "\0"
        cues = [label for label in layout_of(constant).labels if label.name in answer_labels() and not label.value]
        after = constant[cues[-1].end :].strip() if cues else ""
        if after and is_instruction(after) and not study.task.gen_prefix:
            saw = f"{cues[-1].name}{cues[-1].colon} {after[:60]}"
            yield finding("an instruction comes after the cue for the answer", saw, "doc_to_text", instance)


@also("PF280")
def description_of_other_subject(study: Study) -> Iterator[Finding]:
    """Report a description that names another subject than the subset of the data and the task have."""
    name, description = study.config.get("dataset_name"), study.written.description
    subject = _ABOUT.search(description) if isinstance(description, str) else None
    if subject is None or not isinstance(name, str) or name.casefold() not in study.task.name.casefold():
        return
    known = set(data_table("contract")["subjects"].split())
    own, named = (set(re.findall("[a-z]+", text.casefold())) for text in (name, subject[1]))
    if own & known and named & known and not own & named:
        saw = f"{subject[1]}; the data is {name}"
        yield finding("the description names another subject than the data", saw, "description")


@also("PF280")
def subset_of_other_language(study: Study) -> Iterator[Finding]:
    """Report a subset of the data, or a description, that names another language than the task's name."""
    name, description = study.config.get("dataset_name"), study.written.description
    known = {code: language for language, codes in data_table("contract")["languages"].items() for code in codes}
    named = {known[part] for part in re.split(r"[_\W]", study.task.name.casefold()) if part in known}
    language = known.get(name.casefold()) if isinstance(name, str) else None
    if language is not None and len(named) == 1 and language not in named and isinstance(name, str):
        saw = f"{name}; the task is {study.task.name}"
        yield finding("the subset of the data is of another language than the task", saw, "dataset_name")
    words = re.findall(r"[A-Z][a-z]+", description) if isinstance(description, str) else []
    described = {word.casefold() for word in words} & {*known.values()} - {"english"}
    if len(named) == 1 and described and not described & named:
        saw = f"{', '.join(sorted(described)).title()}; the task is {study.task.name}"
        yield finding("the description names another language than the task", saw, "description")


@also("PF240")
def label_of_pair_missing(study: Study) -> Iterator[Finding]:
    """Report a column without a label whose counterpart has one, such as premise and hypothesis."""
    labels = {field.casefold(): label for label, field in _labelled(study)}
    for one, other in (*_PAIRS, *(pair[::-1] for pair in _PAIRS)):
        if labels.get(one, "").casefold().replace(" ", "") == one and labels.get(other) == "":
            saw = f"{labels[one]}: {{{{{one}}}}}, and {{{{{other}}}}} without a label"
            yield finding("one column of a pair has a label, and the other has none", saw, "doc_to_text", field=other)
            return


@also("PF246")
def sentence_cut_off(study: Study) -> Iterator[Finding]:
    """Report a sentence that ends with a word such as `about` or `the`, directly before a blank line."""
    for template, text in written_texts(study):
        found = _CUT_OFF.search(text)
        if found is not None and (template.keys[-1] == "description" or found.end() < len(text.rstrip())):
            yield finding("a sentence ends before its last word", found[0].strip()[-60:], template.keys)


@also("PF701")
def identifier_as_gold(study: Study) -> Iterator[Finding]:
    """Report the identifier of a doc as the answer that a model has to write."""
    target = study.written.doc_to_target
    if not study.generates or study.has_own_scorer or not isinstance(target, str) or not scores_exact_match(study):
        return
    name = target.strip().removeprefix("{{").removesuffix("}}").strip()
    golds = [str(doc[name]) for doc in study.real_docs if name in doc]
    are_distinct = len(golds) > 1 and len(set(golds)) == len(golds)
    if are_distinct and _IDENTIFIER.fullmatch(name) and all(any(map(str.isdigit, gold)) for gold in golds):
        yield finding("the gold answer is the identifier of the doc", f"{name}: {golds[0]}", "doc_to_target")


@also("PF235")
def open_fence(study: Study) -> Iterator[Finding]:
    """Report a code fence that is opened before a column and never closed."""
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
    """Report a few-shot example with broken LaTeX: unmatched braces, rows that end with a single backslash."""
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
    """Report a template that opens a quotation or bold text and does not close it."""
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
    """Report a quote at one end of a choice that has no partner, where other choices have none."""
    if not study.has_choices or study.has_real_docs or not study.renders_fields:
        return
    for instance in study.instances[:1]:
        choices = [text.strip() for text in continuations(instance)]
        stray = [text for text in choices if _STRAY.search(text) and any(text.count(mark) % 2 for mark in "\"'")]
        if 0 < len(stray) < len(choices):
            yield finding("a choice has a quote without a partner", stray[0][-40:], "doc_to_choice", 0)


@also("PF235")
def open_tag(study: Study) -> Iterator[Finding]:
    """Report a tag that is opened and not closed, where others of the prompt are closed."""
    for instance, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        constant = "".join(span.text if span.origin.field is None else COLUMN for span in message.content)
        closed = set(re.findall(r"</(\w+)>", constant))
        for tag in re.finditer(r"<([a-z_]{3,})>(?=[^<]*\0)", constant) if closed else ():
            if tag[1] not in closed and COLUMN in constant[tag.end() :]:
                saw = around(constant, tag, 8, 24).replace(COLUMN, "…")
                yield finding("a tag is opened but not closed", saw, "doc_to_text", instance)
                return
