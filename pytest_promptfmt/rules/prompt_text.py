"""Rules about text of prompts that is odd or not meant for the model: repeated, unlike others, objects, notes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.columns import COMMON
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    COLUMN,
    SHOWN,
    around,
    continuations,
    finding,
    first_prompts,
    own_spans,
    pattern,
    question_message,
    question_template,
    questions,
    skeleton,
    written_texts,
)
from pytest_promptfmt.study.layout import layout_of

_LABEL: Final = re.compile(r"^((?:[A-Z]{3,}|[A-Z]\w+)(?: [A-Za-z]\w*){1,2})(:?)(?= +[\"“A-Z\d])", re.MULTILINE)
_WORDS: Final = 5
_RAW_KEY: Final = re.compile(r"\b(?:about|in|of|on) ([a-z]{3,}(?:_[a-z]{2,})+)[.?!:]")
_KEY_VALUE: Final = re.compile(r"[a-z]{3,}(?:_[a-z]{2,})+")
_BARE_CUE: Final = re.compile(r"\n([^\W\d_]{2,20})\s*\Z")
_NAMED_COLUMN: Final = re.compile(r"(?:^|(?<=[\n ]))(\w+) \{\{-? *(\w+) *-?\}\}")
_GLUED_LABEL: Final = pattern("prompt_text", "glued_label")
_LABEL_COLUMN: Final = re.compile(r"(?:^|(?<=[\n ]))([^\s:\0\1]+)(: ?)\0", re.MULTILINE)
_OPTION_COLUMN: Final = re.compile(r"^\(?[A-Z][.):] \0", re.MULTILINE)
_CJK: Final = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_LEAD: Final = 20
"""Characters of a description that is not in a question by chance."""

_FOR_READERS: Final = pattern("prompt_text", "for_readers")
_MASK: Final = re.compile(r"\[MASK\]|<mask>|\[SEP\]|\[CLS\]")
_TURN: Final = pattern("prompt_text", "turn")
_PYTHON_LIST: Final = re.compile(r"\['[^'\[\]\n]+'(?:, '[^'\[\]\n]+')+\]")
_MEANS_PYTHON: Final = re.compile(r"\b(?:def|import|return|print)\b|```|\b[Pp]ython\b|\bJSON\b|\blist\b")
"""Where a list of Python may be meant."""

_OBJECT: Final = pattern("prompt_text", "object")
_NAMED: Final = pattern("prompt_text", "named")
_BRACKETED: Final = re.compile(r"^[^\W\d_][^:\n]{1,24}: ?[\[<{]([A-Z_]{3,}(?: [A-Z]+)?)[\]>}][ \t]*$", re.MULTILINE)
_OF_ANSWERS: Final = frozenset(
    {"answer", "label", "target", "output", "solution", "response", "gold", "choice", "option"}
)
_NOTE: Final = pattern("prompt_text", "note")
_MEDIA: Final = re.compile(r"<(?:image|img|audio|video)(?:[ _]?\d+)?>|\[(?:IMAGE|IMG|AUDIO|VIDEO)\]", re.IGNORECASE)
_SHIFTED_LINES: Final = 2
_INDENTED: Final = re.compile(r" {4,}\S|\t+\S")
_CODE: Final = re.compile(r"\b(?:def|class|return|import|int|void|function)\b|```|[;{}][ \t]*$", re.MULTILINE)


@also("PF242")
def repeated_block(study: Study) -> Iterator[Finding]:
    """Report two identical paragraphs in a row."""
    for instance, prompt in first_prompts(study.instances[:1]):
        blocks = [block.strip() for block in prompt.text.split("\n\n")]
        for before, after in pairwise(blocks):
            if before == after and len(before) >= 30:
                yield finding("the same paragraph appears twice in a row", before, "doc_to_text", instance)
                return


@also("PF240")
def mixed_colons(study: Study) -> Iterator[Finding]:
    """Report labels with an ASCII colon and with a full-width one in the same prompt."""
    for instance, prompt in first_prompts((study.demonstrated or study.instances)[:1]):
        kinds: dict[str, set[tuple[str, str]]] = {}
        for label in layout_of(prompt.text).labels if not study.has_guessed_text else ():
            script = "CJK" if _CJK.search(label.name) else label.name
            kinds.setdefault(script, set()).add((label.colon, label.name))
        for named in kinds.values():
            by_colon = dict(named)
            if len(by_colon) > 1:
                saw = " and ".join(f"{name}{colon}" for colon, name in sorted(by_colon.items()))
                yield finding("labels have two kinds of colon", saw, "doc_to_text", instance)


@rule("PF228", "raw-key", severity=Severity.WARNING, family=Family.PROMPT)
def raw_key(study: Study) -> Iterator[Finding]:
    """Report a key with underscores in running text.

    Why: `questions about abstract_algebra.` shows the name of a subset instead of words. Other harnesses that
    run the same benchmark write `abstract algebra`, and scores differ.

    Fix: replace the underscores with spaces: `{{subject | replace('_', ' ')}}`.

    Real: MMLU_IDK of eval-framework 0.15.4.
    """
    for instance in study.instances[:1]:
        text = study.own_text
        found = _RAW_KEY.search(text)
        if found is not None:
            yield _raw_key(found[1], instance.index, None)
            return
    for instance, prompt in first_prompts(study.real_instances[:1]):
        for before, span in pairwise(prompt.spans):
            if span.origin.field and _KEY_VALUE.fullmatch(span.text) and re.search(r"[a-z] \Z", before.text):
                yield _raw_key(span.text, instance.index, span.origin.field)
                return


def _raw_key(key: str, doc: int, field: str | None) -> Finding:
    return finding(
        "a key with underscores in running text",
        key,
        "description" if field is None else "doc_to_text",
        doc,
        field=field,
        do="write words instead of the key" if field is None else "",
    )


@rule("PF240", "uneven-labels", severity=Severity.WARNING, family=Family.PROMPT)
def uneven_labels(study: Study) -> Iterator[Finding]:
    """Report labels that are not written alike, such as one glued to its column where others have a space.

    Why: `question:{{question}}` next to `passage: {{passage}}` is a typing error, and `True.Q:` a lost line break. Most
    tokenizers read both differently.

    Fix: add the space or the line break.

    Real: gpqa of lm-evaluation-harness (`question:` without a space), solved examples in descriptions.
    """
    for template, text in written_texts(study):
        labels = [(found[1], found[2]) for found in _LABEL_COLUMN.finditer(text)]
        spaced = {f"{label}:" for label, colon in labels if colon == ": "}
        spaced |= {found[0][:-2] for found in _OPTION_COLUMN.finditer(text)}
        glued = [label for label, colon in labels if colon == ":" and len(label) > 1]
        if spaced and glued and len(glued) <= len(spaced):
            saw = f"{glued[0]}:… and {sorted(spaced)[0]} …"
            yield finding("a label has no space after its colon, but other labels have one", saw, template.keys)
            continue
        found = _GLUED_LABEL.search(text)
        if found is not None:
            saw = around(text, found, 20, 8).replace(COLUMN, "…")
            yield finding("a label is glued to the text before it", saw, template.keys)


@rule("PF242", "repeated-text", severity=Severity.WARNING, family=Family.PROMPT)
def repeated_description(study: Study) -> Iterator[Finding]:
    """Report a text that the prompt shows twice, such as a description that is in the question as well.

    Why: the prompt begins with the same sentence twice, and each few-shot example repeats it.

    Fix: keep it in one of the two places.

    Real: 45 kmmlu_cot_hard tasks of lm-evaluation-harness 0.4.13.
    """
    description, text = study.written.description, study.written.doc_to_text
    if not isinstance(description, str) or not isinstance(text, str):
        return
    lead = " ".join(description.split())
    if len(lead) >= _LEAD and COLUMN not in skeleton(lead) and lead in " ".join(text.split()):
        yield finding("the description is repeated in the question", lead, "doc_to_text")


@also("PF242")
def text_shown_twice(study: Study) -> Iterator[Finding]:
    """Report a sentence of the data that the question shows twice."""
    for instance, message in questions(study.real_instances[:1]):
        texts = {name: value.strip() for name, value in instance.doc.items() if isinstance(value, str)}
        for name, text in texts.items():
            held = sum(text in other for key, other in texts.items() if key != name)
            if len(text.split()) >= _WORDS and not held and message.text.count(text) > 1:
                yield finding(
                    "a text of the data is shown twice in the question", text[:60], "doc_to_text", instance, field=name
                )
                return


@also("PF240")
def label_without_colon(study: Study) -> Iterator[Finding]:
    """Report a label without a colon where others have one: the last line, or a label named like its column."""
    text = question_template(study)
    cue = _BARE_CUE.search(text)
    labels = layout_of(text[: cue.start()] if cue is not None else text).labels
    named = (found for found in _NAMED_COLUMN.finditer(text) if found[1].casefold() == found[2].casefold())
    found = cue or next(named, None)
    if found is not None and labels:
        yield finding("a label has no colon, but another label has one", found[0].strip()[:40], "doc_to_text")


@also("PF240")
def cue_of_another_language(study: Study) -> Iterator[Finding]:
    """Report labels in two languages: one before the question, another before the answer."""
    for _, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        layout = layout_of(message.text)
        asked = {lang for label in layout.labels for lang in _languages("question_labels", label.name)}
        cue = layout.cue.name if layout.cue is not None else ""
        answered = _languages("answer_labels", cue)
        if asked and answered and not asked & answered:
            names = [one.name for one in layout.labels if _languages("question_labels", one.name)]
            saw = f"{names[0]}: and {cue}:"
            yield finding("the labels of question and answer are in two languages", saw, "doc_to_text")


def _languages(table: str, label: str) -> set[str]:
    """Return the languages in which a label is the one of a question or of an answer."""
    words: dict[str, list[str]] = data_table("contract")[table]
    return {lang for lang, known in words.items() if label.casefold() in (word.casefold() for word in known)}


@also("PF240")
def label_lost_colon(study: Study) -> Iterator[Finding]:
    """Report a label of written examples that has a colon everywhere but once."""
    texts = [(template, skeleton(template.source)) for template in study.templates]
    labels = [(template, text, found) for template, text in texts for found in _LABEL.finditer(text)]
    with_colon = Counter(found[1] for _, _, found in labels if found[2])
    with_colon += Counter(line[:-1] for _, text in texts for line in text.splitlines() if line.endswith(":"))
    for template, text, found in labels:
        name = next((one for one in with_colon if f"{found[1]} ".startswith(f"{one} ")), None)
        if not found[2] and name is not None and " " in name and with_colon[name] > 1:
            yield finding("a label of the examples has no colon", text[found.start() : found.end() + 20], template.keys)
            return


@also("PF246")
def mask_token(study: Study) -> Iterator[Finding]:
    """Report the mask token of a masked language model, or the turn markers of a chat model, in a prompt."""
    for template, text in written_texts(study):
        found = _MASK.search(text)
        if found is not None:
            yield finding("a token of a masked language model is in the prompt", found[0], template.keys)
            continue
        turn = _TURN.search(text)
        if turn is not None:
            do = "remove the markers: --apply_chat_template adds those of the model"
            yield finding("the turn markers of one chat template are in the prompt", turn[0], template.keys, do=do)


@also("PF245")
def list_printed(study: Study) -> Iterator[Finding]:
    """Report a list, mapping or tuple that is printed with Python's brackets and quotes."""
    for template, text in written_texts(study):
        listed = _PYTHON_LIST.search(text)
        if listed is not None and not _MEANS_PYTHON.search(text):
            yield finding("a list, mapping or tuple is printed as Python writes it", listed[0][:60], template.keys)
            return
    for instance, message in questions(study.instances[:1]):
        if study.has_guessed_text:
            return
        for name, value in instance.doc.items():
            printed = python_value(value, message.text)
            if printed is not None:
                span = next((one for one in message.content if printed in one.text), message.content[0])
                what = "a list, mapping or tuple is printed as Python writes it"
                yield finding(what, printed[:60], span, instance, field=name)
                return


def python_value(value: Any, text: str) -> str | None:
    """Return how a text shows a list, mapping or one-element tuple of the data with Python's notation, None if not."""
    if isinstance(value, list | Mapping) and value and str(value) in text:
        return str(value)
    if isinstance(value, str) and value and f"({value!r},)" in text:
        return f"({value!r},)"
    return None


@rule("PF245", "python-printed", severity=Severity.ERROR, family=Family.PROMPT)
def object_printed(study: Study) -> Iterator[Finding]:
    """Report a Python value that is printed as Python shows it: a method, a generator, the view of a mapping.

    Why: `{{passage.items}}` is the method `items` of the mapping, not its key, and `map` in Jinja gives a generator.
    The prompt then shows `<generator object …>` instead of the text, often with another number in every run.

    Fix: write `passage['items']`, or end the expression with `| join(', ')` or `| list | join(' ')`.

    Real: keys of data that are named like methods of Python: `items`, `values`, `title`, `count`, `index`.
    """
    for instance in study.instances[:2]:
        shown = [(span.text, span.origin.keys or ("doc_to_text",)) for span in own_spans(study, instance)]
        shown += [(text, ("doc_to_choice",)) for text in continuations(instance)]
        shown += [(instance.target, ("doc_to_target",))] if isinstance(instance.target, str) else []
        for text, keys in shown:
            found = _OBJECT.search(text)
            if found is not None:
                saw = re.sub(r"0x[0-9a-f]+", "0x…", found[0])
                yield finding("a Python object is printed instead of text", saw, keys, instance)
                return


@rule("PF246", "not-filled-in", severity=Severity.ERROR, family=Family.PROMPT)
def name_not_filled_in(study: Study) -> Iterator[Finding]:
    """Report a placeholder that was not filled in, such as `%(question)s`, `${subject}` or `{doc["subject"]}`.

    Why: prompts are often ported from harnesses with other placeholders, and a string without its `f` keeps the braces.
    The model reads the name instead of the text. `{name}` counts if it is a column of your docs.

    Fix: use `{{name}}` in templates, and an f-string in Python.

    Real: templates taken over from harnesses that fill in `{question}`, `%s` or `${question}`.
    """
    for instance in study.instances[:1]:
        for span in own_spans(study, instance):
            if span.origin.field is not None or ("%" in span.text and _CODE.search(span.text)):
                continue
            found = _NAMED.search(span.text) or _bracketed_column(span.text)
            found = found or (_column_in_braces(span.text, instance.doc) if study.asks_by_code else None)
            if found is not None:
                saw = around(span.text, found, 16)[:SHOWN]
                yield finding("a placeholder was not filled in", saw, span.origin.keys or ("doc_to_text",), instance)
                return


def _bracketed_column(text: str) -> re.Match[str] | None:
    """Return the first `[[question]]`, or `[QUESTION]` after a label, with the name of a common column."""
    named = (found for found in re.finditer(r"\[\[(\w+)\]\]", text) if found[1] in COMMON)
    shown = (found for found in _BRACKETED.finditer(text) if found[1].casefold() in COMMON - _OF_ANSWERS)
    return next(named, None) or next(shown, None)


def _column_in_braces(text: str, doc: Doc) -> re.Match[str] | None:
    names = "|".join(re.escape(str(name)) for name in doc)
    return re.search(rf"(?<![{{\\\w])\{{(?:{names})\}}", text) if names else None


@also("PF246")
def note_left(study: Study) -> Iterator[Finding]:
    """Report a note to the author, or a placeholder of an image that the model does not get."""
    for template in study.templates:
        if template.keys[-1] not in ("description", "doc_to_text", "gen_prefix"):
            continue
        for text in template.text.constants:
            found = _NOTE.search(text) or (None if study.is_multimodal else _MEDIA.search(text))
            if found is not None:
                saw = around(text, found, 16)[:SHOWN]
                yield finding("a note or an image placeholder is left in the text of a template", saw, template.keys)
                return
    for instance in study.real_instances if not study.is_multimodal else ():
        message = question_message(instance)
        found = _MEDIA.search(message.text) if message is not None else None
        if message is not None and found is not None:
            saw = around(message.text, found, 16)[:SHOWN]
            yield finding(
                "the question has a placeholder of an image that the model does not get", saw, "doc_to_text", instance
            )
            return


@rule("PF266", "indentation-of-code", severity=Severity.WARNING, family=Family.PROMPT)
def indentation_of_code(study: Study) -> Iterator[Finding]:
    """Report a prompt whose lines are indented like the code or the YAML that they are written in.

    Why: a text over several lines in triple quotes keeps the spaces before each line of the file. All lines but the
    first begin with them, the cue too, and a model is not used to that.

    Fix: use `inspect.cleandoc`, or write the lines as adjacent texts.

    Real: afrimmlu and afrixnli of lm-evaluation-harness.
    """
    message = question_message(study.instances[0]) if study.instances else None
    first, *others = message.text.split("\n") if message is not None else [""]
    lines = [line for line in others if line.strip()]
    indented = [line for line in lines if _INDENTED.match(line)]
    is_shifted = len(indented) >= _SHIFTED_LINES and 3 * len(indented) >= 2 * len(lines) and lines[-1] == indented[-1]
    if is_shifted and message is not None and not _INDENTED.match(first) and not _CODE.search(message.text):
        yield finding("the lines of the prompt are indented like code", indented[-1], "doc_to_text", study.instances[0])


@rule("PF280", "description-for-readers", severity=Severity.WARNING, family=Family.PROMPT)
def description_for_readers(study: Study) -> Iterator[Finding]:
    """Report a `description` that describes the benchmark to people.

    Why: lm-eval prints the description before the first few-shot example of every prompt. The purpose of the task and
    its paper belong into `metadata` or a README.

    Fix: move the text into a comment, and describe to the model what it is to do.

    Real: lm-evaluation-harness #3442 (uncheatable_eval, in review).
    """
    text = study.written.description
    found = _FOR_READERS.search(text) if isinstance(text, str) else None
    if found is not None:
        yield finding("the description is about the benchmark, and part of every prompt", found[0][:80], "description")
