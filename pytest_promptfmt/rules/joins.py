"""Rules about the joins of a prompt: where description, question, columns, few-shot examples and answer meet.

`data/joins.yaml` has what may be wrong where two texts meet; here are the places where they do.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.prompt import Instance, Prompt, Span, join
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.columns import COMMON
from pytest_promptfmt.rules.elements import uneven_labels
from pytest_promptfmt.rules.fixes import rewritten, whitespace, without_trailing_space
from pytest_promptfmt.rules.page import asked_first, drawn, first, known, own
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    BRANCH,
    COLUMN,
    Where,
    around,
    finding,
    first_text,
    question_message,
    severity_of_shots,
    shots_of,
    skeleton,
    words,
    written_texts,
)
from pytest_promptfmt.rules.task_code import definitions, literal_end, tokens_of
from pytest_promptfmt.rules.templates import find_literal_break

_TABLE: Final[Mapping[str, Any]] = data_table("joins")
_WINDOW: Final = 80
"""Characters of a text next to a join that show how it ends or begins."""

_BLANK_LINES: Final = re.compile(r"\n[ \t]*\n[ \t]*\n")
_LITERAL: Final = re.compile(r"([A-Za-z]*)(\"\"\"|'''|\"|')(.*)\2", re.DOTALL)
_ESCAPED_END: Final = re.compile(r"\\[nrt]\Z")
_TWO_SPACES: Final = re.compile(rf"(?<=[^\s.!?])(?<!{COLUMN})  (?=\S)|(?<={COLUMN})  (?=[^\s{COLUMN}])")
_TWO_BETWEEN_WORDS: Final = re.compile(r"(?<=[a-z])  (?=[a-z])")
_MANY_SPACES: Final = re.compile(r" {3}|\t")
_MOST_DOUBLED: Final = 3
"""Double spaces of a template that does not align with them."""

_LONG_TEXTS: Final = words("columns_of_lines")
"""Columns of several lines, which may end with a newline."""

_WITH_BLANK_LINE: Final = partial(rewritten, change=lambda text: f"{text}\n\n", keeps=whitespace)


@dataclass(frozen=True, slots=True)
class Join:
    """Two texts that meet, where that is written, and the doc and the place in its prompt; `at` may be in the table."""

    before: str
    after: str
    at: Where = None
    doc: Instance | int | None = None
    field: str | None = None
    span: tuple[int, int] | None = None
    severity: Severity | None = None
    saw: str | None = None
    do: str = ""


@cache
def _pattern(written: str) -> re.Pattern[str]:
    named = written.replace("<wide>", _TABLE["wide"]).replace("<mark>", _TABLE["mark"])
    return re.compile(named, re.DOTALL)


def _joins(study: Study, kind: str) -> tuple[Join, ...]:
    """Return the joins of a kind, which several entries of the table read."""
    return study.once(("joins", kind), lambda: tuple(_JOINS[kind](study)))


def _wrong(study: Study, name: str) -> Iterator[Finding]:
    """Yield the first join that an entry of the table reports."""
    for row in _TABLE[name]["joins"]:
        before, after = row.get("shown", (0, _WINDOW))
        for one in _joins(study, row["join"]):
            place = f"{one.before[-_WINDOW:]}\0{one.after[:_WINDOW]}"
            if not _pattern(row["meets"]).search(place):
                continue
            milder = (level for level in ("info", "warning") if level in row and _pattern(row[level]).search(place))
            yield finding(
                row["message"],
                one.saw if one.saw is not None else f"{one.before[-before or len(one.before) :]}{one.after[:after]}",
                one.at or row["at"],
                one.doc,
                do=row.get("do", one.do),
                field=one.field,
                span=one.span,
                severity=Severity(level) if (level := next(milder, None)) else one.severity,
            )
            return


@rule("PF201", "doubled-whitespace", severity=Severity.ERROR, family=Family.PROMPT, fix=without_trailing_space)
def double_delimiter(study: Study) -> Iterator[Finding]:
    """Report too much whitespace between two texts, such as two spaces between question and answer.

    Why: lm-eval adds the target delimiter, a space by default, before every choice. If the prompt also
    ends with a space, there are two spaces before a choice such as `Paris`. Most tokenizers encode two spaces
    differently from one, and training text hardly ever has two spaces in such a place. If the prompt ends with a
    newline, the answer is on a new line, with a space before it.

    Fix: remove the trailing whitespace from `doc_to_text`, or set `target_delimiter: ""`.

    Real: lm-evaluation-harness #3526 (gsm8k_cot_llama), and 447 tasks of release 0.4.13.
    """
    yield from _wrong(study, "double_delimiter")


@rule("PF202", "space-at-edge", severity=Severity.WARNING, family=Family.PROMPT, fix=without_trailing_space)
def trailing_space(study: Study) -> Iterator[Finding]:
    """Report whitespace at the start or end of a prompt, such as a space at the end before the model generates.

    Why: in most tokenizers, the token of a word includes the space before the word. If the prompt already ends with a
    space, the model must begin with a token that it hardly ever saw after a space. Its completions get worse, or start
    with a second space. If Python code makes the prompt and the task has no docs, the rule checks the last text in the
    code.

    Fix: remove the space at the end of the template.

    Real: lm-evaluation-harness #3795 (fda, squad_completion), and about a thousand tasks of release 0.4.13.
    """
    yield from _wrong(study, "trailing_space")


@rule("PF203", "glued-text", severity=Severity.ERROR, family=Family.PROMPT, fix=_WITH_BLANK_LINE)
def glued_description(study: Study) -> Iterator[Finding]:
    r"""Report two texts that meet without a space or newline, such as a description and the first question.

    Why: lm-eval puts nothing between `description` and the text after it. If the description does not end with a
    newline, the prompt is `…the correct letter.Question: Which…`.

    Fix: end the description with `"\n\n"`, in double quotes; a YAML block scalar (`|`) keeps only one newline.

    Real: lm-evaluation-harness #2334 (mmlu_pro), and 689 tasks of release 0.4.13.
    """
    yield from _wrong(study, "glued_description")


def _register_parts() -> None:
    fixes = {"prefix_ends_with_space": without_trailing_space}
    for name, entry in _TABLE.items():
        if "report" in entry:

            def part(study: Study, name: str = name) -> Iterator[Finding]:
                return _wrong(study, name)

            part.__name__ = part.__qualname__ = name
            part.__doc__ = f"Report {entry['report']}."
            severity = Severity(entry.get("severity", "warning"))
            also(entry["code"], severity=severity, fix=fixes.get(name))(part)


_register_parts()


# -- at the ends of a prompt -------------------------------------------------------------------------------------------


def _end_of_prompt(study: Study) -> Iterator[Join]:
    if not study.generates:
        return
    if not study.has_real_docs:
        yield Join(literal_end(study), "")
    if study.has_guessed_text:
        return
    written = study.written.doc_to_text
    if not study.instances and isinstance(written, str) and written.strip():
        yield Join(written, "")  # not rendered, but nothing comes after the end of the template
    for instance in study.instances:
        text = first_text(instance)
        span = instance.prompts[0].span_at(len(text)) if text.strip() else None
        if text.strip():
            where = (len(text.rstrip()), len(text))
            yield Join(text, "", span, instance, span=where, do=_without_trailing(instance, span))


def _without_trailing(instance: Instance, span: Span | None) -> str:
    """Return the fix for a prompt that ends with whitespace, by what the last span prints."""
    if span is None or span.origin.field is None:
        return ""
    value = instance.doc.get(span.origin.field)
    if isinstance(value, str) and not (value[-1:].isspace() and span.text.endswith(value)):
        return "remove the space at the end of the text inside the braces"
    return "strip the column in the template"


def _first_prompt(study: Study) -> Iterator[tuple[Instance, Prompt]]:
    return ((instance, prompt) for instance in study.instances[:1] for prompt in instance.prompts[:1])


def _start_of_prompt(study: Study) -> Iterator[Join]:
    for instance, prompt in _first_prompt(study):
        text = prompt.text
        if text.strip() and prompt.spans[0].origin.field is None:
            yield Join("", text, prompt.spans[0], instance, span=(0, len(text) - len(text.lstrip())))


def _end_of_prefix(study: Study) -> Iterator[Join]:
    if isinstance(study.written.gen_prefix, str):
        yield Join(study.written.gen_prefix, "")


def _start_of_scored(study: Study) -> Iterator[Join]:
    at = "target_delimiter" if "target_delimiter" in study.task.config else "doc_to_text"
    for instance in study.instances[:1]:
        values = instance.doc.values()
        texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
        for request in instance.requests:
            text = request.continuation
            if request.prompt is not None and not request.context and isinstance(text, str):
                severity = Severity.INFO if text[1:] in texts else None
                yield Join("", text, at, instance, severity=severity)


# -- between the parts of a prompt -------------------------------------------------------------------------------------


def _description(study: Study) -> Iterator[Join]:
    for instance, prompt in _first_prompt(study):
        described = [span.text for span in prompt.spans if span.origin.part == "description"]
        text = "".join(described)
        after = "".join(span.text for span in prompt.spans[len(described) :])
        if not text or find_literal_break(text[-6:]) is not None:
            continue  # a newline was meant, and PF126 reports it
        if prompt.spans[len(described) - 1].origin.field is None or study.has_real_docs:
            yield Join(text, after, None, instance, span=(len(text), len(text)))  # a real text may end with a newline


def _parts_with_blank_lines(study: Study) -> Iterator[Join]:
    for instance, prompt in _first_prompt(study):
        text = prompt.text
        for found in _BLANK_LINES.finditer(text):
            first, last = prompt.span_at(found.start()), prompt.span_at(found.end() - 1)
            if first is None or last is None or first is last or first.origin.field or last.origin.field:
                continue  # within one text, the author wrote it
            yield Join("", "", last, instance, span=found.span(), saw=around(text, found, 16))
        answer = str(instance.requests[0].continuation or "") if study.has_choices and instance.requests else ""
        is_broken = answer[:1] == "\n" and _BLANK_LINES.search(f"{text[-3:]}{answer[:3]}") is not None
        if is_broken and not study.has_guessed_text:
            yield Join("", "", "target_delimiter", instance, saw=f"{text[-16:]}{answer[:16]}")


def _choices(study: Study, docs: int | None = 1) -> Iterator[Join]:
    for instance in study.instances[:docs]:
        for request in instance.requests:
            before, after = request.context or "", request.continuation
            if request.prompt is not None and before and isinstance(after, str):
                span = (len(before.rstrip(" \t\n")), len(before)) if docs is None else None
                yield Join(before, after, None, instance, span=span)


def _answers(study: Study) -> Iterator[Join]:
    task = study.task
    if not study.has_guessed_text:
        yield from _choices(study, None)
    elif not (study.generates or task.brings_delimiter or task.gen_prefix):
        yield Join(literal_end(study), task.target_delimiter, None, 0)


def _shot_delimiters(study: Study) -> Iterator[Join]:
    """Yield few-shot examples; without them PF202 reports the space of the question, and PF702 that of the answer."""
    for instance in study.instances[:1] if study.shots else ():
        for shot in shots_of(instance):
            first = shot.messages[0]
            between = join(first.delimiter)
            if shot.answer and between:
                yield Join(first.text, f"{between}{shot.answer}", None, instance)


def _shots(study: Study) -> Iterator[Join]:
    is_own = study.renders_fields and not study.has_guessed_text  # other systems join messages by their own rules
    for instance in study.with_shots[:1] if is_own else ():
        shots = shots_of(instance)
        asked = question_message(instance)
        followers = [shot.messages[0].text for shot in shots[1:]] + ([asked.text] if asked is not None else [])
        for shot, following in zip(shots, followers, strict=False):
            between = join(shot.messages[-1].delimiter)
            if shot.answer and not between.strip():
                before = f"{shot.messages[-1].text}{between}"
                yield Join(before, following, None, 0, severity=severity_of_shots(study))


def _shot_answers(study: Study) -> Iterator[Join]:
    for instance in study.with_shots[:1] if study.renders_fields and not study.has_guessed_text else ():
        for shot in shots_of(instance)[:1]:
            question, between = shot.messages[0].text, join(shot.messages[0].delimiter)
            answer = shot.messages[-1].text if len(shot.messages) > 1 else ""
            golds = [str(one.target) for one in study.real_instances[:1]] if answer[:1] == "«" else []
            answer = next(iter(golds), answer)  # of own docs, where only examples are synthetic
            if not between and (study.has_real_docs or question[-1:] != "»"):
                yield Join(question, answer, None, 0, severity=severity_of_shots(study))
    for page in drawn(study)[:1]:
        for label in page.layout.labels[:-1]:
            if page.cue is not None and page.cue.name == label.name:  # of an example in the text
                yield Join(page.text[: label.end], label.value, "doc_to_text", page.instance)


def _options(study: Study) -> Iterator[Join]:
    for page in known(study)[:2]:
        for option in page.listing.options if page.listing is not None else ():
            yield Join(page.text[: option.start], page.text[option.start :], None, page.instance)


# -- within a question -------------------------------------------------------------------------------------------------


def _texts_and_columns(study: Study) -> Iterator[Join]:
    ends_with_mark = _pattern(r"<mark>\Z").search
    for page in asked_first(study):
        spans = [span for span in page.message.content if span.text]
        pairs = [one for one in pairwise(spans) if one[0].origin.field is None and one[1].origin.field is not None]
        labels = [pair for pair in pairs if ends_with_mark(pair[0].text)]
        severity = Severity.INFO if len(labels) > 1 else None  # the options of a list are glued alike
        for before, after in sorted(pairs, key=labels.__contains__):
            at = severity if (before, after) in labels else None
            yield Join(before.text, after.text, after, page.instance, severity=at)


def _sentences(study: Study) -> Iterator[Join]:
    for page in asked_first(study):
        for text in (span.text for span in page.message.content if span.origin.field is None):
            for found in re.finditer(r"[.!?:][)”]?(?=[A-ZÀ-ÞΑ-ΩА-ЯЁ]|```)", text):
                yield Join(text[: found.end()], text[found.end() :], None, page.instance)


def _sentences_and_columns(study: Study) -> Iterator[Join]:
    texts = (doc.get(name) for doc in study.real_docs[:1] for name in study.used_names)
    if any(isinstance(text, str) and text[:1].isspace() for text in texts):
        return
    for template in (template for template in study.templates if template.keys[-1] == "doc_to_text"):
        for before in skeleton(template.source).split(COLUMN)[:-1]:
            if not before.endswith(":") or not any(uneven_labels(study)):  # the colon of a label, which PF240 reports
                yield Join(before, "{{…}}", template.keys)


def _columns_and_texts(study: Study) -> Iterator[Join]:
    for page in first(study):
        for before, after in pairwise([span for span in page.message.content if span.text]):
            name, mark = before.origin.field, after.text[:1]
            if name is None or after.origin.field is not None or (mark in "-*•" and f"\n{mark} " not in page.text):
                continue
            is_open = not study.has_real_docs and (name in _LONG_TEXTS or name not in COMMON)
            severity = Severity.INFO if is_open else None
            yield Join(before.text, after.text, after, page.instance, name, severity=severity)


def _elements(study: Study) -> Iterator[Join]:
    for instance in study.real_instances:
        message = question_message(instance)
        shown = (("doc_to_text", message.text if message is not None else ""), ("doc_to_target", instance.target))
        for name, values in instance.doc.items():
            if not isinstance(values, list) or len(values) < 2 or not all(_is_wordy(value) for value in values):
                continue
            text = "".join(values)
            for key in (key for key, printed in shown if isinstance(printed, str) and text in printed):
                yield Join(values[0], values[1], key, instance, name, saw=text[:80])


def _is_wordy(value: object) -> bool:
    """Return whether a value is text that begins and ends with a letter, three at least: not a token or a character."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z](?:.*[A-Za-z])[A-Za-z]", value, re.DOTALL) is not None


# -- as it is written --------------------------------------------------------------------------------------------------


def _words(study: Study) -> Iterator[Join]:
    written = [(template.keys, text.replace(BRANCH, "")) for template, text in written_texts(study)]
    pages = [page for page in own(study)[:1] if study.asks_by_code and "  " not in str(page.instance.doc)]
    made = [(("doc_to_text",), page.constant) for page in pages]
    for keys, text in written + made:
        found = list((_TWO_SPACES if (keys, text) not in made else _TWO_BETWEEN_WORDS).finditer(text))
        if 0 < len(found) <= _MOST_DOUBLED and not _MANY_SPACES.search(text) and "```" not in text:
            at = found[0].start()
            saw = around(text, at, 16).replace(COLUMN, "{{…}}")
            yield Join(text[:at], text[at:], keys, saw=saw)


def _literals(study: Study) -> Iterator[Join]:
    """Yield the literals that follow each other in code, of which prose continues in prose."""
    keys = ("doc_to_text", "doc_to_target", "doc_to_choice", "process_docs", "description")
    for named in [named for key in keys if isinstance(named := study.config.get(key), FunctionRef)]:
        for node in definitions(named):
            before = ""
            for token in tokens_of(named.file, node):
                found = _LITERAL.fullmatch(token.string) if token.type == tokenize.STRING else None
                after = found[3] if found is not None else ""
                if before and min(before.count(" "), after.count(" ")) > 1 and not _ESCAPED_END.search(before):
                    yield Join(before, after, Position(named.file, node.lineno + token.start[0] - 2, 1))
                before = after


_JOINS: Final[Mapping[str, Callable[[Study], Iterator[Join]]]] = {
    "end of the prompt": _end_of_prompt,
    "start of the prompt": _start_of_prompt,
    "end of gen_prefix": _end_of_prefix,
    "start of the scored text": _start_of_scored,
    "description and question": _description,
    "parts with blank lines": _parts_with_blank_lines,
    "question and choice": _choices,
    "question and answer": _answers,
    "shot and its delimiter": _shot_delimiters,
    "shots": _shots,
    "shot and its answer": _shot_answers,
    "options": _options,
    "texts and columns": _texts_and_columns,
    "sentences": _sentences,
    "sentences and columns": _sentences_and_columns,
    "columns and texts": _columns_and_texts,
    "elements of a list": _elements,
    "words of a template": _words,
    "literals": _literals,
}
