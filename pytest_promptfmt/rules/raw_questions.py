"""Rules about slips of the keyboard in a question that synthetic docs hide: labels, names and spaces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.column_names import COMMON, meant
from pytest_promptfmt.rules.options import labels_out_of_order as labels_of_a_list
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import around, finding, question_template
from pytest_promptfmt.study import Study

_OPTION: Final = re.compile(r"(?:^|(?<=\s))\(?([A-J])[.):] ?(?=\{\{|\{%(?!-?\s*(?:end|el)))", re.M)
"""The label of an option, directly before what prints it."""

_MARKUP: Final = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.S)
_TWO_SPACES: Final = re.compile(r"(?<=[^\s.!?])(?<!\uFFFD)  (?=\S)|(?<=\uFFFD)  (?=[^\s\uFFFD])")
_MANY_SPACES: Final = re.compile(r" {3}|\t")
_GLUED_LABEL: Final = re.compile(
    r"\{\{-?\s*(\w+)\s*\}\}((?:Answer|Question|Options?|Choices|Response|Context|Passage)\s?:|\(?[A-E][.)] ?\{\{)"
)
_LABELLED: Final = re.compile(r"^[^\W\d_]{2,20}[:\uff1a]", re.M)
_BARE_CUE: Final = re.compile(r"\n([^\W\d_]{2,20})\s*\Z")
_FEWEST_OPTIONS: Final = 3
_MOST_DOUBLED: Final = 3
"""Double spaces of a template that does not align with them."""


@rule("PF260", "labels-out-of-order", severity=Severity.ERROR, family=Family.PROMPT)
def labels_out_of_order(study: Study) -> Iterator[Finding]:
    r"""Report options whose labels are not A, B, C, … in order.

    Why: a line was copied and its label not changed. Two options have one label or one label is missing, and the model
    cannot name the option that is scored.

    Example:
        doc_to_text: "{{question}}\nA. {{first}}\nB. {{second}}\nB. {{third}}\nAnswer:"
        doc_to_choice: ["A", "B", "C"]
        metadata: {note: no docs}

    Silent with:
        doc_to_text: "{{question}}\nA. {{first}}\nB. {{second}}\nC. {{third}}\nAnswer:"

    Fix: give the options the labels A, B, C, … in order.

    Real: a mutation of this kind stays unseen in four of five tasks of lm-evaluation-harness 0.4.13 without it.
    """
    labels = [match[1] for match in _OPTION.finditer(question_template(study))]
    if len(labels) < _FEWEST_OPTIONS or labels[0] != "A" or any(labels_of_a_list(study)):
        return  # PF249 reports what a loop prints
    runs = (
        "".join(labels).split("A")[1:] if labels.count("A") == 1 or _is_listed_again(labels) else ["".join(labels)[1:]]
    )
    for run in runs:
        if f"A{run}" != "ABCDEFGHIJ"[: len(run) + 1]:
            yield finding("the labels of the options are not in order", ", ".join(labels), "doc_to_text")
            return


def _is_listed_again(labels: list[str]) -> bool:
    """Return whether several lists of the same length follow each other."""
    count = labels.count("A")
    return len(labels) % count == 0 and labels[:: len(labels) // count] == ["A"] * count


@rule("PF261", "misspelt-column", severity=Severity.WARNING, family=Family.NAMES)
def misspelt_column(study: Study) -> Iterator[Finding]:
    r"""Report a column whose name is a slip away from one that the task or most datasets have.

    Why: without the dataset nothing says which columns there are, and synthetic docs have every column that a template
    names. `{{qusetion}}` then renders like `{{question}}`, and fails in the evaluation. With real docs it is an error.

    Example:
        doc_to_text: "Question: {{qusetion}}\nAnswer:"
        doc_to_choice: ["yes", "no"]
        doc_to_target: gold
        metadata: {note: no docs}

    Silent with:
        doc_to_text: "Question: {{question}}\nAnswer:"

    Fix: correct the name.

    Real: lm-evaluation-harness #3824 (a misspelt variable of a template).
    """
    if study.has_real_docs:
        return
    columns = set(study.docs.columns) if study.docs is not None else set()
    for keys, spec in study.field_specs():
        for template in study.templates:
            if template.keys != keys:
                continue
            for name in sorted(template.text.names):
                intended = meant(name, COMMON)
                if intended is not None:
                    yield _misspelt(name, intended, keys)
        if isinstance(spec, str) and spec in columns and (intended := meant(spec, COMMON)) is not None:
            yield _misspelt(spec, intended, keys)


def _misspelt(name: str, intended: str, keys: tuple[str | int, ...]) -> Finding:
    return finding("the name of a column looks misspelt", name, keys, do=f"use {intended!r}, if that is the column")


@rule("PF262", "space-doubled", severity=Severity.WARNING, family=Family.PROMPT)
def space_doubled(study: Study) -> Iterator[Finding]:
    r"""Report two spaces inside a line of a template.

    Why: most tokenizers encode two spaces differently from one, and training text hardly ever has two. Two spaces after
    the end of a sentence or between two columns, and templates that align with several spaces, are not reported.

    Example:
        doc_to_text: "Question:  {{question}}\nAnswer:"

    Silent example:
        doc_to_text: "Question: {{question}}\nAnswer:"

    Fix: remove one of the spaces.

    Real: lm-evaluation-harness 0.4.13 (leaderboard_gpqa).
    """
    for template in study.templates:
        if template.keys[-1] not in ("doc_to_text", "description", "gen_prefix") or not isinstance(
            template.source, str
        ):
            continue
        text = _MARKUP.sub(
            lambda match: "\N{REPLACEMENT CHARACTER}" if match[0].startswith("{{") else "", template.source
        )
        found = list(_TWO_SPACES.finditer(text))
        if not 0 < len(found) <= _MOST_DOUBLED or _MANY_SPACES.search(text) or "```" in text:
            continue
        at = found[0].start()
        yield finding(
            "two spaces inside a line of the template",
            around(text, at, 16).replace("\N{REPLACEMENT CHARACTER}", "{{…}}"),
            template.keys,
        )


@rule("PF263", "label-glued-to-column", severity=Severity.WARNING, family=Family.PROMPT)
def label_glued_to_column(study: Study) -> Iterator[Finding]:
    r"""Report a label directly after a column, without a space or newline.

    Why: `{{question}}Answer:` reads `…was it builtAnswer:`, unless every text of the column ends with a newline. It is
    an info after a passage or another column of long texts, which may end so.

    Example:
        doc_to_text: "Question: {{question}}Answer:"
        doc_to_choice: ["yes", "no"]
        doc_to_target: gold
        metadata: {note: no docs}

    Silent with:
        doc_to_text: "Question: {{question}}\nAnswer:"

    Fix: add a newline before the label.

    Real: eval-framework #195 (naturalqs).
    """
    match = None if study.has_real_docs else _GLUED_LABEL.search(question_template(study))
    if match is not None and match[1] in COMMON:  # others may hold whole examples, which end with a newline
        yield finding(
            "a label follows a column without a space or newline",
            question_template(study)[max(0, match.start() - 16) : match.end()],
            "doc_to_text",
            severity=Severity.INFO if match[1] in _LONG_TEXTS else None,
        )


_LONG_TEXTS: Final = frozenset("article context content document paragraph passage story text".split())  # noqa: SIM905
"""Columns of several lines, which may end with a newline."""


@rule("PF264", "odd-target-delimiter", severity=Severity.WARNING, family=Family.PROMPT)
def odd_target_delimiter(study: Study) -> Iterator[Finding]:
    r"""Report a `target_delimiter` of several spaces, or of a space beside a newline.

    Why: the answer is then scored after two spaces, or after a space at the beginning of a line, which most tokenizers
    encode differently.

    Example:
        target_delimiter: "  "

    Silent example:
        target_delimiter: " "

    Fix: use one space.

    Real: a space that was added in the template and in the delimiter: lm-evaluation-harness #3526.
    """
    delimiter = study.written.target_delimiter
    if isinstance(delimiter, str) and len(delimiter) > 1 and delimiter.isspace() and " " in delimiter:
        yield finding("target_delimiter is more than one space", delimiter, "target_delimiter")


@rule("PF265", "cue-without-colon", severity=Severity.WARNING, family=Family.PROMPT)
def cue_without_colon(study: Study) -> Iterator[Finding]:
    r"""Report a last line that is one word without a colon, where other labels have one.

    Why: after `Question: …` the model expects `Answer:`. A bare `Answer` reads like the first word of a sentence, and
    models continue it with a colon.

    Example:
        doc_to_text: "Question: {{question}}\nAnswer"

    Silent example:
        doc_to_text: "Question: {{question}}\nAnswer:"

    Fix: add the colon.

    Real: lm-evaluation-harness #769 (boolq for T5), where an inner label had lost it.
    """
    text = question_template(study)
    cue = _BARE_CUE.search(text)
    if cue is not None and _LABELLED.search(text[: cue.start()]):
        yield finding("the last line is a label without a colon", cue[1], "doc_to_text")
