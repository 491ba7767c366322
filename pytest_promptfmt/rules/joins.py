"""Rules about the joins of a prompt: where description, question, few-shot examples and answer meet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.prompt import Instance, Prompt, Span, join
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.fixes import rewritten, whitespace, without_trailing_space
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    around,
    finding,
    first_prompts,
    first_text,
    questions,
    severity_of_shots,
    shots_of,
)
from pytest_promptfmt.rules.task_code import literal_end, literal_start
from pytest_promptfmt.rules.templates import find_literal_break

_BLANK_LINES: Final = re.compile(r"\n[ \t]*\n[ \t]*\n")
_SENTENCE_END: Final = re.compile(r"[a-z\u00df-\u024f\)\"'][a-z\u00df-\u024f\)\"'][.!?]\Z")
_LABEL_END: Final = re.compile(r"(?:^|\n)[ \t]*\(?[A-Z][.):]\Z")
"""The label of an option, without the space after it."""

_GLUED: Final = re.compile(r"(?<![\w./@])\w*[a-z]{2}[.!?:](?=(?:[A-Z][a-z]+ ?){1,2}:(?:\s|$))")
"""The end of a sentence, directly before a label."""

_WIDE: Final = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef\u3000-\u30ff]"
)
"""Scripts that are written without spaces between sentences."""

_WIDE_ENDS: Final = "。！？：、，；"
"""Punctuation that is as wide as a character, after which no space is due."""
_WITH_BLANK_LINE: Final = partial(rewritten, change=lambda text: f"{text}\n\n", keeps=whitespace)


@rule("PF201", "doubled-whitespace", severity=Severity.ERROR, family=Family.PROMPT, fix=without_trailing_space)
def double_delimiter(study: Study) -> Iterator[Finding]:
    """Report too much whitespace where two texts meet, such as a question that ends with a space before the answer.

    Why: the target delimiter, a space by default, is added to every choice. If the question ends with a space as well,
    the model is scored on `Answer:  Paris`. Most tokenizers encode two spaces differently from one, and training text
    hardly ever has two there. After a newline, the answer begins with a space in the first column.

    Fix: remove the trailing whitespace from `doc_to_text`, or set `target_delimiter: ""`.

    Real: lm-evaluation-harness #3526 (gsm8k_cot_llama), and 447 tasks of its 0.4.13.
    """
    if study.has_guessed_text:
        yield from _double_in_code(study)
    for instance in () if study.has_guessed_text else study.instances:
        for request in instance.requests:
            context, continuation = request.context, request.continuation
            if not context or not isinstance(continuation, str) or request.prompt is None:
                continue
            is_doubled = continuation[:2] == "  " and continuation.strip()  # PF704 reports a choice without text
            if is_doubled or (context[-1:] in " \t\n" and continuation[:1] in (" ", "\t")):
                yield _double(instance.index, context, continuation, instance.prompts[request.prompt])
                return
    # without few-shot examples PF202 reports the space of the question, and PF702 that of the answer
    for instance in study.instances[:1] if study.shots else ():
        for shot in shots_of(instance):
            first = shot.messages[0]
            between = join(first.delimiter)
            edge = f"{first.text[-1:]}{between}{(shot.answer or '')[:1]}"
            if shot.answer and between and re.search(r"[ \t\n][ \t]", edge):
                yield _double(instance.index, first.text, between + shot.answer, None)
                return


def _double_in_code(study: Study) -> Iterator[Finding]:
    """Report a space with which code ends the question, or begins the answer, besides the delimiter."""
    task = study.task
    end, start = literal_end(study, "doc_to_text"), literal_start(study, "doc_to_target")
    if task.brings_delimiter or task.gen_prefix:
        return
    if not study.generates and end[-1:] in (" ", "\n", "\t") and task.target_delimiter[:1] in (" ", "\t"):
        yield replace(
            _double(0, end, task.target_delimiter, None), message=_doubled(end, "the question and the answer")
        )
    elif study.generates and task.target_delimiter[-1:] == start[:1] == " ":  # PF202 reports the end of the question
        found = _double(0, end, task.target_delimiter + start, None)
        yield replace(found, keys=("doc_to_target",), doc=None, severity=severity_of_shots(study))


def _double(doc: int, before: str, after: str, prompt: Prompt | None) -> Finding:
    is_break = before.endswith("\n")
    where = "question and answer of a few-shot example" if prompt is None else "the question and the answer"
    return finding(
        _doubled(before, where),
        f"{before[-24:]}{after[:12]}",
        "doc_to_text",
        doc,
        span=(len(before.rstrip(" \t\n")), len(before)) if prompt is not None else None,
        severity=Severity.WARNING if is_break and prompt is not None else None,
    )


def _doubled(before: str, where: str) -> str:
    return f"{'newline and space' if before.endswith(chr(10)) else 'double space'} between {where}"


@rule("PF202", "space-at-edge", severity=Severity.WARNING, family=Family.PROMPT, fix=without_trailing_space)
def trailing_space(study: Study) -> Iterator[Finding]:
    """Report whitespace at an edge of a prompt, such as a space at the end of one for generation.

    Why: in most tokenizers a word includes the space before it. After a prompt that ends with a space, the model must
    begin with a token that it hardly ever saw there. Completions get worse or start with a second space. Without rows,
    the literal text at the end of Python code is checked.

    Fix: remove the space at the end of the template.

    Real: lm-evaluation-harness #3795 (fda, squad_completion), and about a thousand tasks of its 0.4.13.
    """
    if not study.generates:
        return
    if not study.has_real_docs and literal_end(study, "doc_to_text")[-1:] in (" ", "\t"):
        yield finding("the prompt ends with a space", literal_end(study, "doc_to_text")[-30:], "doc_to_text")
    if study.has_guessed_text:
        return
    written = study.written.doc_to_text
    if not study.instances and isinstance(written, str) and written.strip() and written[-1] in " \t":
        # not rendered, but nothing comes after the end of the template
        yield finding("the prompt ends with a space", written[-30:], "doc_to_text")
    for instance in study.instances:
        text = first_text(instance)
        if text[-1:] in (" ", "\t", "\u00a0") and text.strip():
            span = instance.prompts[0].span_at(len(text))
            yield finding(
                "the prompt ends with a space",
                text[-30:],
                span or "doc_to_text",
                instance,
                span=(len(text.rstrip()), len(text)),
                do=_without_trailing(instance, span),
            )
            return


def _without_trailing(instance: Instance, span: Span | None) -> str:
    """Return the fix for a prompt that ends with whitespace, by what the last span prints."""
    if span is None or span.origin.field is None:
        return ""
    value = instance.doc.get(span.origin.field)
    if isinstance(value, str) and not (value[-1:].isspace() and span.text.endswith(value)):
        return "remove the space at the end of the text inside the braces"
    return "strip the column in the template"


@rule("PF203", "glued-text", severity=Severity.ERROR, family=Family.PROMPT, fix=_WITH_BLANK_LINE)
def glued_description(study: Study) -> Iterator[Finding]:
    r"""Report two texts that meet without a space or newline, such as a description and the first question.

    Why: lm-eval puts nothing between `description` and what follows. If the description does not end with a newline,
    the prompt reads `…the correct letter.Question: Which…`.

    Fix: end the description with `"\n\n"`, in double quotes; a YAML block scalar (`|`) keeps only one newline.

    Real: lm-evaluation-harness #2334 (mmlu_pro), and 689 tasks of its 0.4.13.
    """
    for instance, prompt in first_prompts(study.instances[:1]):
        described = [span.text for span in prompt.spans if span.origin.part == "description"]
        description = "".join(described)
        after = "".join(span.text for span in prompt.spans[len(described) :])
        if not description or not after or description[-1].isspace() or after[0].isspace():
            return
        if find_literal_break(description[-6:]) is not None:
            return  # a newline was meant, and PF126 reports it
        if prompt.spans[len(described) - 1].origin.field and not study.has_real_docs:
            return  # a column ends it, whose real text may end with a newline
        wide = _WIDE.match(description[-1]) is not None or _WIDE.match(after[0]) is not None
        needs_none = description[-1] in _WIDE_ENDS
        yield finding(
            "no space or newline between the description and the question",
            f"{description[-30:]}{after[:20]}",
            "description",
            instance,
            span=(len(description), len(description)),
            severity=Severity.INFO if needs_none else Severity.WARNING if wide else None,
            do=r'end the description with "\n\n"',
        )


@also("PF203")
def glued_text(study: Study) -> Iterator[Finding]:
    """Report an instruction glued to a column, or the label of an option glued to its text."""
    for instance, message in questions(study.instances[:1]):
        spans = [span for span in message.content if span.text]
        within = next(filter(None, (_GLUED.search(span.text) for span in spans if span.origin.field is None)), None)
        if within is not None:
            saw = around(within.string, within, 20, 12)
            yield finding(
                "a sentence and the label after it have no space or newline between", saw, "doc_to_text", instance
            )
            return
        glued = [pair for pair in pairwise(spans) if _is_glued(*pair)]
        others = [pair for pair in glued if not _LABEL_END.search(pair[0].text)]
        for before, after in (others or glued)[:1]:  # the options of a list are glued alike
            yield finding(
                "no space or newline between a text and a column",
                f"{before.text[-24:]}{after.text[:24]}",
                after,
                instance,
                field=after.origin.field or before.origin.field,
                severity=Severity.INFO if not others and len(glued) > 1 else None,
            )


def _is_glued(before: Span, after: Span) -> bool:
    first = after.text[0]
    if before.origin.field is None and after.origin.field is not None:
        starts = first.isalnum() or first == "«"
        if starts and not _WIDE.match(first) and _LABEL_END.search(before.text):
            return True
        return starts and _SENTENCE_END.search(before.text[-3:]) is not None and not _WIDE.match(first)
    return False


@also("PF201")
def many_newlines(study: Study) -> Iterator[Finding]:
    """Report three or more newlines in a row where a template meets a delimiter or another template."""
    for instance, prompt in first_prompts(study.instances[:1]):
        for found in _BLANK_LINES.finditer(prompt.text):
            first, last = prompt.span_at(found.start()), prompt.span_at(found.end() - 1)
            if first is None or last is None or first is last or first.origin.field or last.origin.field:
                continue  # within one text, the author wrote it
            saw = around(prompt.text, found, 16)
            yield finding("two blank lines where two parts of the prompt meet", saw, last, instance, span=found.span())
            return
        answer = str(instance.requests[0].continuation or "") if study.has_choices and instance.requests else ""
        is_broken = answer[:1] == "\n" and _BLANK_LINES.search(f"{prompt.text[-3:]}{answer[:3]}") is not None
        if is_broken and not study.has_guessed_text:
            saw = f"{prompt.text[-16:]}{answer[:16]}"
            yield finding("two blank lines where two parts of the prompt meet", saw, "target_delimiter", instance)


@also("PF202")
def leading_whitespace(study: Study) -> Iterator[Finding]:
    """Report a prompt whose first character is whitespace."""
    for instance, prompt in first_prompts(study.instances[:1]):
        text = prompt.text
        if text[:1].isspace() and text.strip() and prompt.spans[0].origin.field is None:
            blank = (0, len(text) - len(text.lstrip()))
            yield finding("the prompt begins with whitespace", text[:24], prompt.spans[0], instance, span=blank)


@also("PF203")
def glued_choice(study: Study) -> Iterator[Finding]:
    """Report choices that follow the question without a delimiter."""
    for instance in study.instances[:1]:
        for request in instance.requests:
            context, continuation = request.context or "", request.continuation
            if request.prompt is None or not isinstance(continuation, str) or not continuation:
                continue
            last, first = context[-1:], continuation[0]
            # synthetic docs have » at the end of a column, whose real texts end with a letter or full stop
            ends = last == "»" or (last.isascii() and (last.isalnum() or last in ":?."))
            if last and ends and first.isascii() and first.isalnum():
                saw = f"{context[-24:]}{continuation[:16]}"
                yield finding("no delimiter between the question and the choices", saw, "target_delimiter", instance)
                return


@also("PF202")
def text_begins_with_space(study: Study) -> Iterator[Finding]:
    """Report a space at the start of the scored text if no prompt comes before it."""
    for instance in study.instances[:1]:
        for request in instance.requests:
            text = request.continuation
            if request.prompt is None or request.context or not isinstance(text, str) or text[:1] != " ":
                continue
            if text.strip():
                yield finding(
                    "the scored text begins with a space and has no prompt",
                    text[:24],
                    "target_delimiter" if "target_delimiter" in study.task.config else "doc_to_text",
                    instance,
                    severity=Severity.INFO if text[1:] in _texts(instance.doc) else None,
                )
                return


def _texts(doc: Doc) -> set[str]:
    """Return the texts of the columns of a doc, and those that lists in them hold."""
    columns = [value if isinstance(value, list) else [value] for value in doc.values()]
    return {text for values in columns for text in values if isinstance(text, str)}
