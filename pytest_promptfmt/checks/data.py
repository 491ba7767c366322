"""Rules about what comes from the docs: values that are empty, columns that are left out, texts that are cut."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pytest_promptfmt.checks.findings import Family, Finding, Severity
from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.checks.views import TaskView, continuations
from pytest_promptfmt.rendering.prompt import Instance

_LONG: Final = 50
_NOT_ASKED: Final = re.compile(
    r"expla|ration|reason|solution|cot|chain|id$|^id|_id|url|link|source|hash|meta|comment|note|code|test|program|"
    r"proof|trace|thought|hint|support|evidence|answer|target|label|gold|reference|response|output|completion|"
    r"translation|summary|highlights|explan|category|domain|subject|title|author|license|split|language|instruct",
    re.I,
)
_BRACKETED: Final = re.compile(r"\[[^\[\]]{1,40}\]|<[^<>]{1,40}>")


@check("PF221", "nothing-from-data", severity=Severity.ERROR, family=Family.PROMPT)
def nothing_from_data(view: TaskView) -> Iterator[Finding]:
    r"""Report the words None or nan that come from an empty value of the data.

    Why: Jinja prints an empty value as `None`. The model is asked about a passage called None, and a missing choice
    becomes a candidate.

    Example:
        doc_to_text: "{{hint}}\nQuestion: {{question}}\nAnswer:"
        metadata: {promptfmt: {docs: [{hint: null, question: Which metal rusts?, choices: [iron, gold], answer: 0}]}}

    Silent example:
        doc_to_text: "{% if hint %}{{hint}}\n{% endif %}Question: {{question}}\nAnswer:"
        metadata: {promptfmt: {docs: [{hint: null, question: Which metal rusts?, choices: [iron, gold], answer: 0}]}}

    Fix: leave the line out where the value is empty.

    Real: seven bugs of lm-evaluation-harness showed a dropped text or the word None in the prompt.

    """
    for instance in view.real_instances:
        empty = {key for key, value in instance.doc.items() if value is None or value != value}
        for prompt in instance.prompts[:1] if empty else ():
            for span in prompt.spans:
                if span.origin.shot is None and span.origin.field in empty and span.text in ("None", "nan", "NaN"):
                    yield Finding(
                        message=f"an empty value of the data is printed as {span.text}",
                        saw=f"column {span.origin.field!r}",
                        do="leave the text out where the value is empty",
                        keys=tuple((span.origin.key or "doc_to_text").split(".")),
                        doc=instance.index,
                        field=span.origin.field,
                    )
        for continuation in continuations(instance) if empty else ():
            if continuation.strip() in ("None", "nan"):
                yield Finding(
                    message="an empty value of the data is offered as a choice",
                    saw=continuation,
                    do="leave the choice out where the value is empty",
                    keys=("doc_to_choice",),
                    doc=instance.index,
                )


@check("PF222", "unused-column", severity=Severity.WARNING, family=Family.PROMPT)
def unused_column(view: TaskView) -> Iterator[Finding]:
    r"""Report a column of long texts that appears nowhere in the prompt or the choices.

    Why: a question about a passage cannot be answered without the passage. Columns whose names say that they explain,
    test or identify are left out of this rule.

    Example:
        doc_to_text: "Question: {{question}}\nAnswer:"
        metadata:
          promptfmt:
            docs:
            - passage: The ferry to the island leaves every hour, in winter only in the morning.
              question: When does it leave in winter?
              choices: [never, in the morning]
              answer: 1

    Silent example:
        doc_to_text: "{{passage}}\nQuestion: {{question}}\nAnswer:"
        metadata:
          promptfmt:
            docs:
            - passage: The ferry to the island leaves every hour, in winter only in the morning.
              question: When does it leave in winter?
              choices: [never, in the morning]
              answer: 1

    Fix: print the column, or ignore this rule with the reason why it is not needed.

    Real: lm-evaluation-harness #885 (belebele without its passages).

    """
    if not view.real_instances or view.is_multimodal or view.task.output_type == "loglikelihood_rolling":
        return
    columns = [
        name
        for name, value in view.real_docs[0].items()
        if isinstance(value, str) and name not in view.used_names and not _NOT_ASKED.search(name)
    ]
    for name in columns:
        values = [str(instance.doc.get(name) or "") for instance in view.real_instances]
        if not all(len(value) >= _LONG and value.count(" ") >= 5 for value in values):
            continue
        if not any(_appears(value, instance) for value, instance in zip(values, view.real_instances, strict=True)):
            yield Finding(
                message="a column of long texts appears nowhere in the prompt",
                saw=f"{name}: {values[0]}",
                do="print the column, or ignore this rule with the reason why it is not needed",
                keys=("doc_to_text",),
                field=name,
                doc=0,
            )


@check("PF223", "text-dropped", severity=Severity.WARNING, family=Family.PROMPT)
def text_dropped(view: TaskView) -> Iterator[Finding]:
    r"""Report a text of the data that is in the prompt without its brackets and what stood in them.

    Why: cleaning that suits one data set mutilates another: `[x, p] = i` becomes ` = i`, and two choices become one.

    Example:
        doc_to_text: "Question: {{question | replace('[B]', '')}}\nAnswer:"
        metadata:
          promptfmt:
            docs: [{question: "What is benzo[B]imidazole, in one word?", choices: [salt, base], answer: 1}]

    Silent example:
        doc_to_text: "Question: {{question}}\nAnswer:"
        metadata:
          promptfmt:
            docs: [{question: "What is benzo[B]imidazole, in one word?", choices: [salt, base], answer: 1}]

    Fix: clean only what the data set needs.

    Real: lm-evaluation-harness #3691, #3735 (gpqa).

    """
    for instance in view.real_instances:
        whole = _shown_text(instance)
        for name, value in _texts(instance.doc):
            if len(value) > 20000 or not _BRACKETED.search(value):
                continue
            cut = _spaced(_BRACKETED.sub("", value))
            full = _spaced(value)
            if len(cut) >= 8 and cut != full and full not in whole and cut in whole:
                yield Finding(
                    message="a text of the data has lost its brackets and what stood in them",
                    saw=f"{full[:50]} became {cut[:40]}",
                    do="clean only what this data set needs",
                    keys=("doc_to_text",),
                    doc=instance.index,
                    field=name,
                )


def _appears(value: str, instance: Instance) -> bool:
    whole = _shown_text(instance)
    text = _spaced(value)
    middle = len(text) // 2
    return any(text[at : at + 20] in whole for at in (0, max(0, middle - 10), max(0, len(text) - 20)))


def _shown_text(instance: Instance) -> str:
    parts = [prompt.text for prompt in instance.prompts]
    parts += continuations(instance)
    return _spaced("\n".join(parts))


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _texts(doc: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in doc.items():
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from ((name, each) for each in value[:50] if isinstance(each, str))
