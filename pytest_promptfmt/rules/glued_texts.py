"""Rules about texts that meet without a space: two literals of Python, the texts of a list, a sentence and a column."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.core.yaml_parser import MAX_BYTES
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding, question_message, skeleton
from pytest_promptfmt.rules.task_code import definitions
from pytest_promptfmt.study import Study

_SENTENCE_END: Final = re.compile(r"(?:[^\W\d_]+,? ){3,}[^\W\d_]+[:.?!]\0")
_LITERAL: Final = re.compile(r"([A-Za-z]*)(\"\"\"|'''|\"|')(.*)\2", re.DOTALL)
_ESCAPED_END: Final = re.compile(r"\\[nrt]\Z")


@rule("PF281", "texts-without-space", severity=Severity.WARNING, family=Family.PROMPT)
def texts_without_space(study: Study) -> Iterator[Finding]:
    r"""Report two texts beside each other in Python that have no space between the words where they meet.

    Why: Python joins `"choose one of" "two options"` to `choose one oftwo options`. In a prompt over several lines the
    space at the end of a line is easily forgotten.

    Example:
        # file: example.yaml
        doc_to_text: !function helper.asked
        # file: helper.py
        def asked(doc):
            return (
                "Read the question and choose one of"
                "these answers. " + doc["question"]
            )

    Silent with:
        # file: helper.py
        def asked(doc):
            return (
                "Read the question and choose one of "
                "these answers. " + doc["question"]
            )

    Fix: end the first text with a space or newline.

    Real: evalcrafter/EvalCrafter #2 (`ofA`, `ofTwo`).
    """
    for key in ("doc_to_text", "doc_to_target", "doc_to_choice", "process_docs", "description"):
        named = study.config.get(key)
        if isinstance(named, FunctionRef):
            for node in definitions(named):
                for line, before, after in _glued_texts(named, node):
                    yield finding(
                        "two texts are joined without a space",
                        f"{before[-30:]}{after[:20]}",
                        Position(named.file, line, 1),
                    )
                    return


def _glued_texts(named: FunctionRef, node: ast.FunctionDef) -> Iterator[tuple[int, str, str]]:
    """Yield the line and both texts where two literals of a function meet letter to letter."""
    source = gate.read_bytes(named.file, limit=MAX_BYTES).decode("utf-8", "replace")
    lines = source.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
    before: str | None = None
    try:
        for token in tokenize.generate_tokens(StringIO("if True:\n" + "".join(lines)).readline):
            if token.type in (tokenize.NL, tokenize.COMMENT):
                continue
            found = _LITERAL.fullmatch(token.string) if token.type == tokenize.STRING else None
            after = found[3] if found is not None else None
            if before is not None and after is not None and _meet(before, after):
                yield node.lineno + token.start[0] - 2, before, after
            before = after
    except (tokenize.TokenError, IndentationError):
        return


def _meet(before: str, after: str) -> bool:
    """Return whether prose goes on in prose without anything between them."""
    is_prose = before.count(" ") > 1 and after.count(" ") > 1 and not _ESCAPED_END.search(before)
    return is_prose and before[-1].isalpha() and after[0].isalpha()


@rule("PF285", "list-joined-without-space", severity=Severity.ERROR, family=Family.PROMPT)
def list_joined(study: Study) -> Iterator[Finding]:
    r"""Report a list of the docs whose texts are printed without anything between them.

    Why: `{{aliases | join}}` and `join('')` make `Oprah WinfreyOprah` of two names. As gold answer nobody gives it, in
    a question nobody can read it.

    Example:
        output_type: generate_until
        doc_to_target: "{{aliases | join}}"
        metadata: {promptfmt: {docs: [{question: Who hosted the show?, aliases: [Oprah Winfrey, Oprah]}]}}

    Silent with:
        doc_to_target: "{{aliases}}"

    Fix: join with a separator, or give the list itself as target.

    Real: modelscope/evalscope #1727 (trivia_qa).
    """
    for instance in study.real_instances:
        message = question_message(instance)
        shown = (("doc_to_text", message.text if message is not None else ""), ("doc_to_target", instance.target))
        for name, values in instance.doc.items():
            if not isinstance(values, list) or len(values) < 2 or not all(_is_wordy(value) for value in values):
                continue
            key = next((key for key, text in shown if isinstance(text, str) and "".join(values) in text), None)
            if key is not None:
                yield finding(
                    "the texts of a list are printed without anything between them",
                    "".join(values)[:80],
                    key,
                    instance,
                    field=name,
                )
                return


def _is_wordy(value: object) -> bool:
    """Return whether a value is text that begins and ends with a letter, three at least: not a token or a character."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z](?:.*[A-Za-z])[A-Za-z]", value, re.DOTALL) is not None


@rule("PF287", "instruction-glued-to-column", severity=Severity.WARNING, family=Family.PROMPT)
def instruction_glued(study: Study) -> Iterator[Finding]:
    r"""Report a sentence that ends directly before a column, without a space or newline.

    Why: `Summarize this article in one sentence:{{article}}` reads as one word at the boundary, and most tokenizers
    encode `:The` unlike `: The`.

    Example:
        doc_to_text: "Say which of these is a metal:{{question}}\nAnswer:"

    Silent example:
        doc_to_text: "Say which of these is a metal:\n{{question}}\nAnswer:"

    Fix: add a newline or a space.

    Real: bigscience-workshop/promptsource #834 (wikilingua).
    """
    for template in study.templates:
        found = _SENTENCE_END.search(skeleton(template.source)) if template.keys[-1] == "doc_to_text" else None
        if found is not None and not any(_begins_with_space(study, doc) for doc in study.real_docs[:1]):
            yield finding(
                "a sentence ends directly before a column, without a space",
                found[0].replace("\0", "{{…}}"),
                template.keys,
            )


def _begins_with_space(study: Study, doc: Mapping[str, object]) -> bool:
    return any(isinstance(doc.get(name), str) and str(doc[name])[:1].isspace() for name in study.used_names)
