"""Rules about the literal text of templates. They need no docs, and see what cannot be rendered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import BRANCH, COLUMN, around, finding, question_message, skeleton, written_texts
from pytest_promptfmt.rules.unused_text import python_value
from pytest_promptfmt.study import Study

_MASK: Final = re.compile(r"\[MASK\]|<mask>|\[SEP\]|\[CLS\]")
_ODD: Final = re.compile(
    r"(?<![:.\d]):\.(?!\w)|(?<=[a-z]{2}) ,(?= )|,,|;;|(?<=[a-z])\?\?(?!\?)|(?<=[a-z]{3})\.,(?= )|,\.(?=\s|$)"
)
_GLUED_LABEL: Final = re.compile(
    r"(?<![\\\w])\w*[a-z](?:[.!?)](?:Q|A)|[.!?)]?(?:Question|Answer|Input|Output)): ?(?=[A-Z\0]|$)"
)
_LABEL_COLUMN: Final = re.compile(r"(?:^|(?<=[\n ]))(\w+)(: ?)\0", re.MULTILINE)
_OPTION_COLUMN: Final = re.compile(r"^\(?[A-Z][.):] \0", re.MULTILINE)
_OPTION: Final = re.compile(r"^([ \t]*)(\(?)([A-Z])([.):])([ \t]*)(?=[^\s])", re.MULTILINE)
_OPTION_VALUE: Final = re.compile(r"^[ \t]*\(?([A-Z])[.):][ \t]*\{\{-?(.*?)-?\}\}", re.MULTILINE)
_DOUBLE: Final = re.compile(rf"[^\s{COLUMN}] +{BRANCH} +[^\s{BRANCH}]")
_LEAD: Final = 20
"""Characters of a description that is not in a question by chance."""

_PYTHON_LIST: Final = re.compile(r"\['[^'\[\]\n]+'(?:, '[^'\[\]\n]+')+\]")
_CODE: Final = re.compile(r"\b(?:def|import|return|print)\b|```|\b[Pp]ython\b|\bJSON\b|\blist\b")
"""Where a list of Python may be meant."""


@rule("PF236", "mask-token", severity=Severity.WARNING, family=Family.PROMPT)
def mask_token(study: Study) -> Iterator[Finding]:
    """Report the mask or separator token of a masked language model in a prompt.

    Why: `[MASK]` was a place to fill in for BERT. A model that generates reads it as text.

    Example:
        doc_to_text: "{{question}} [MASK]"

    Silent example:
        doc_to_text: "{{question}} Answer:"

    Fix: replace the token with the text, or end the prompt before it.

    Real: lm-evaluation-harness #514 (paws-x, xnli in the layout of mGPT).
    """
    for template, text in written_texts(study):
        found = _MASK.search(text)
        if found is not None:
            yield finding("a token of a masked language model is in the prompt", found[0], template.keys)


@rule("PF237", "unbalanced-quotes", severity=Severity.WARNING, family=Family.PROMPT)
def unbalanced_quotes(study: Study) -> Iterator[Finding]:
    r"""Report a template that opens a quotation and does not close it.

    Why: in `Answer in the form: "The answer is (X)` the model cannot see where the form ends. Templates with branches
    are not reported, because each may close what another opens.

    Example:
        doc_to_text: "{{question}}\nAnswer in this form: \"The answer is (X)\n"

    Silent example:
        doc_to_text: "{{question}}\nAnswer in this form: \"The answer is (X)\".\n"

    Fix: close the quotation.

    Real: open-compass/opencompass #2129 (LongBench v2).
    """
    for template, text in written_texts(study):
        if BRANCH in text:
            continue
        quotes = re.sub(r"(?<=\d)\"", "", text)  # without inches
        for mark, is_open in (('"', quotes.count('"') % 2 == 1), ("“", text.count("“") > text.count("”") > 0)):
            if is_open:
                at = text.rfind(mark)
                if not text[at + 1 :].strip():
                    continue  # the answer goes on in the quotation
                yield finding(
                    "a quotation is opened but not closed",
                    around(text, at, 20, 40).replace(COLUMN, "…"),
                    template.keys,
                )


@rule("PF238", "odd-punctuation", severity=Severity.WARNING, family=Family.PROMPT)
def odd_punctuation(study: Study) -> Iterator[Finding]:
    r"""Report punctuation in a row that no sentence has, such as `:.`, `??` or a space before a comma.

    Why: it is left over from an edit, or from texts that were joined. Models repeat the style of their prompt.

    Example:
        doc_to_text: "Answer the question:.\n{{question}}\nAnswer:"

    Silent example:
        doc_to_text: "Answer the question:\n{{question}}\nAnswer:"

    Fix: remove one of the two characters.

    Real: prompts that were put together from two sentences.
    """
    for template, text in written_texts(study):
        found = _ODD.search(text)
        if found is not None:
            yield finding(
                "odd punctuation in the text of a template",
                around(text, found, 20, 12).replace(COLUMN, "…"),
                template.keys,
            )
    for instance in study.real_instances[:1]:
        message = question_message(instance)
        for before, after in pairwise(message.content if message is not None else ()):
            if before.origin.field is None or after.origin.field is not None:
                continue
            pair = before.text[-1:] + after.text[:1]
            if pair in ("??", "..", "?.", "!.", ".?"):
                yield finding(
                    "a text of the data ends with a mark that the template adds again",
                    f"{before.text[-20:]}{after.text[:8]}",
                    after.origin.keys or ("doc_to_text",),
                    instance,
                    field=before.origin.field,
                    do="remove the mark from the template",
                )
                return


@rule("PF239", "uneven-options", severity=Severity.WARNING, family=Family.PROMPT)
def uneven_options(study: Study) -> Iterator[Finding]:
    r"""Report options in a list of which one has another space, bracket or mark than the others.

    Why: ` D.` among `A.`, `B.` and `C.` looks different and has other tokens. A space before one option
    is often made by a line break inside a folded YAML text.

    Example:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\n C. {{choices[2]}}\nAnswer:"
        doc_to_choice: ["A", "B", "C"]

    Silent with:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nAnswer:"

    Fix: write all options alike.

    Real: 132 templates of include in lm-evaluation-harness 0.4.13.
    """
    for template, text in written_texts(study):
        listed = [found for found in _OPTION.finditer(text) if text[found.end()] == COLUMN]
        for before, after in pairwise(listed):
            if ord(after[3]) == ord(before[3]) + 1 and _style(before) != _style(after):
                yield finding("options are not written alike", f"{before[0]}… and {after[0]}…", template.keys)
                break


@rule("PF243", "option-listed-twice", severity=Severity.ERROR, family=Family.PROMPT)
def option_listed_twice(study: Study) -> Iterator[Finding]:
    r"""Report two options that print the same column.

    Why: an index was copied and not changed. One choice is listed twice and another one never, so that docs whose
    answer is the missing one cannot be solved.

    Example:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[1]}}\nAnswer:"
        doc_to_choice: ["A", "B", "C"]

    Silent with:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nAnswer:"

    Fix: print another choice for each option.

    Real: options written out one by one, as in most templates for multiple choice.
    """
    for template in study.templates:
        if template.keys[-1] != "doc_to_text":
            continue
        listed = [(found[1], " ".join(found[2].split())) for found in _OPTION_VALUE.finditer(template.source)]
        for number, (label, value) in enumerate(listed):
            twin = next((other for other, same in listed[:number] if same == value and other != label), None)
            if twin is not None:
                yield finding(
                    "two options print the same column", f"{twin} and {label}: {{{{{value}}}}}", template.keys
                )
                return


@rule("PF244", "list-printed-as-python", severity=Severity.WARNING, family=Family.PROMPT)
def list_printed(study: Study) -> Iterator[Finding]:
    r"""Report a list, mapping or tuple that is printed with Python's brackets and quotes.

    Why: `{{choices}}` in a text prints `['iron', 'gold']`, and a comma at the end of a line of Python makes a tuple,
    `('iron',)`. Brackets, quotes and escapes become part of the question.

    Example:
        doc_to_text: "{{question}}\nOptions: {{choices}}\nAnswer:"

    Silent example:
        doc_to_text: "{{question}}\nOptions: {{choices | join(', ')}}\nAnswer:"

    Fix: join the elements: `{{choices | join(', ')}}`.

    Real: prompts that list options by the name of their column.
    """
    for template, text in written_texts(study):
        listed = _PYTHON_LIST.search(text)
        if listed is not None and not _CODE.search(text):
            yield finding("a list, mapping or tuple is printed as Python writes it", listed[0][:60], template.keys)
            return
    for instance in study.instances[:1]:
        message = question_message(instance)
        if message is None or study.has_guessed_text:
            return
        for name, value in instance.doc.items():
            printed = python_value(value, message.text)
            if printed is not None:
                span = next((one for one in message.content if printed in one.text), message.content[0])
                yield finding(
                    "a list, mapping or tuple is printed as Python writes it",
                    printed[:60],
                    span.origin.keys or ("doc_to_text",),
                    instance,
                    field=name,
                )
                return


def _style(option: re.Match[str]) -> tuple[str, ...]:
    return option[1], option[2], option[4], option[5]


@rule("PF240", "uneven-labels", severity=Severity.WARNING, family=Family.PROMPT)
def uneven_labels(study: Study) -> Iterator[Finding]:
    r"""Report a label glued to the sentence before it, or to its column where other labels have a space.

    Why: `question:{{question}}` beside `passage: {{passage}}` is a typing error, and `True.Q:` a lost line break. Most
    tokenizers read both differently.

    Example:
        doc_to_text: "Passage: {{choices[0]}}\nQuestion:{{question}}\nAnswer:"
        doc_to_choice: ["yes", "no"]
        doc_to_target: "{{answer % 2}}"

    Silent with:
        doc_to_text: "Passage: {{choices[0]}}\nQuestion: {{question}}\nAnswer:"

    Fix: add the space or the line break.

    Real: gpqa of lm-evaluation-harness (`question:` without a space), solved examples in descriptions.
    """
    for template, text in written_texts(study):
        labels = [(found[1], found[2]) for found in _LABEL_COLUMN.finditer(text)]
        spaced = {f"{label}:" for label, colon in labels if colon == ": "}
        spaced |= {found[0][:-2] for found in _OPTION_COLUMN.finditer(text)}
        glued = [label for label, colon in labels if colon == ":" and len(label) > 1]
        if spaced and glued and len(glued) <= len(spaced):
            yield finding(
                "a label has no space after its colon, but other labels have one",
                f"{glued[0]}:… beside {sorted(spaced)[0]} …",
                template.keys,
            )
            continue
        found = _GLUED_LABEL.search(text)
        if found is not None:
            yield finding(
                "a label is glued to the text before it",
                around(text, found, 20, 8).replace(COLUMN, "…"),
                template.keys,
            )


@rule("PF241", "space-on-both-sides-of-branch", severity=Severity.WARNING, family=Family.PROMPT)
def doubled_space(study: Study) -> Iterator[Finding]:
    r"""Report a space before and after a Jinja tag: the prompt has two spaces in a row.

    Why: `likely {% if x %} cause` prints `likely  cause`. Tokenizers encode two spaces differently, and only the docs
    of this branch have them.

    Example:
        doc_to_text: "{{question}} What is the {% if answer %} cause{% else %} effect{% endif %}?\nAnswer:"

    Silent example:
        doc_to_text: "{{question}} What is the {% if answer %}cause{% else %}effect{% endif %}?\nAnswer:"

    Fix: keep the space on one side of the tag.

    Real: bigscience-workshop/promptsource #795 (xcopa).
    """
    for template, text in written_texts(study):
        found = _DOUBLE.search(text)
        if found is not None:
            yield finding(
                "two spaces in a row around a Jinja tag",
                around(text, found, 16, 12).replace(COLUMN, "…").replace(BRANCH, "{%…%}"),
                template.keys,
            )


@rule("PF242", "repeated-description", severity=Severity.WARNING, family=Family.PROMPT)
def repeated_description(study: Study) -> Iterator[Finding]:
    r"""Report a description whose text is in the question as well.

    Why: the prompt begins with the same sentence twice, and each few-shot example repeats it.

    Example:
        description: "Answer the following question about metals.\n\n"
        doc_to_text: "Answer the following question about metals. {{question}}\nAnswer:"

    Silent with:
        doc_to_text: "{{question}}\nAnswer:"

    Fix: keep it in one of the two places.

    Real: 45 kmmlu_cot_hard tasks of lm-evaluation-harness 0.4.13.
    """
    description, text = study.written.description, study.written.doc_to_text
    if not isinstance(description, str) or not isinstance(text, str):
        return
    lead = " ".join(description.split())
    if len(lead) >= _LEAD and COLUMN not in skeleton(lead) and lead in " ".join(text.split()):
        yield finding("the description is repeated in the question", lead, "doc_to_text")
