"""Rules about odd or misleading text in prompts: repeated text, and labels unlike others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.prompt import join
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    COLUMN,
    around,
    finding,
    first_prompts,
    question_template,
    questions,
    skeleton,
    written_texts,
)
from pytest_promptfmt.study.layout import layout_of
from pytest_promptfmt.study.study import constant_spans

_LABEL: Final = re.compile(r"^((?:[A-Z]{3,}|[A-Z]\w+)(?: [A-Za-z]\w*){1,2})(:?)(?= +[\"“A-Z\d])", re.MULTILINE)
_WORDS: Final = 5
_RAW_KEY: Final = re.compile(r"\b(?:about|in|of|on) ([a-z]{3,}(?:_[a-z]{2,})+)[.?!:]")
_KEY_VALUE: Final = re.compile(r"[a-z]{3,}(?:_[a-z]{2,})+")
_BARE_CUE: Final = re.compile(r"\n([^\W\d_]{2,20})\s*\Z")
_NAMED_COLUMN: Final = re.compile(r"(?:^|(?<=[\n ]))(\w+) \{\{-? *(\w+) *-?\}\}")
_GLUED_LABEL: Final = re.compile(
    r"(?<![\\\w])\w*[a-z](?:[.!?)](?:Q|A)|[.!?)]?(?:Question|Answer|Input|Output)): ?(?=[A-Z\0]|$)"
)
_LABEL_COLUMN: Final = re.compile(r"(?:^|(?<=[\n ]))([^\s:\0\1]+)(: ?)\0", re.MULTILINE)
_OPTION_COLUMN: Final = re.compile(r"^\(?[A-Z][.):] \0", re.MULTILINE)
_CJK: Final = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_LEAD: Final = 20
"""Characters of a description that is not in a question by chance."""


@also("PF242")
def repeated_block(study: Study) -> Iterator[Finding]:
    """Report two identical paragraphs in a row.

    Fix: keep one of them.
    """
    for instance, prompt in first_prompts(study.instances[:1]):
        blocks = [block.strip() for block in prompt.text.split("\n\n")]
        for before, after in pairwise(blocks):
            if before == after and len(before) >= 30:
                yield finding("the same paragraph appears twice in a row", before, "doc_to_text", instance)
                return


@also("PF240")
def mixed_colons(study: Study) -> Iterator[Finding]:
    """Report labels with two kinds of colon in the same prompt: one label, or several in Chinese or Japanese.

    Fix: use the same colon everywhere.
    """
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
        text = join(constant_spans(instance))
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
            saw = f"{glued[0]}:… beside {sorted(spaced)[0]} …"
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
    """Report a sentence of the data that the question shows twice.

    Fix: print it once.
    """
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
    """Report a label without a colon where others have one: the last line, or a label named like its column.

    Fix: add the colon.
    """
    text = question_template(study)
    cue = _BARE_CUE.search(text)
    labels = layout_of(text[: cue.start()] if cue is not None else text).labels
    named = (found for found in _NAMED_COLUMN.finditer(text) if found[1].casefold() == found[2].casefold())
    found = cue or next(named, None)
    if found is not None and labels:
        yield finding("a label has no colon, but another label has one", found[0].strip()[:40], "doc_to_text")


@also("PF240")
def cue_of_another_language(study: Study) -> Iterator[Finding]:
    """Report a prompt whose label of the question is in one language, and the one before the answer in another.

    Fix: translate the label.
    """
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
    """Report a label of written examples that has a colon everywhere but once.

    Fix: add the colon.
    """
    texts = [(template, skeleton(template.source)) for template in study.templates]
    labels = [(template, text, found) for template, text in texts for found in _LABEL.finditer(text)]
    with_colon = Counter(found[1] for _, _, found in labels if found[2])
    with_colon += Counter(line[:-1] for _, text in texts for line in text.splitlines() if line.endswith(":"))
    for template, text, found in labels:
        name = next((one for one in with_colon if f"{found[1]} ".startswith(f"{one} ")), None)
        if not found[2] and name is not None and " " in name and with_colon[name] > 1:
            yield finding("a label of the examples has no colon", text[found.start() : found.end() + 20], template.keys)
            return
