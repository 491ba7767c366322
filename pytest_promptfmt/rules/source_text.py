"""Rules about what YAML and Jinja make of what an author wrote: comments, folded lines, filters of texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.yaml_parser import MAX_BYTES
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import FileView, finding
from pytest_promptfmt.rules.task_code import definitions
from pytest_promptfmt.study import Study

_CUT: Final = re.compile(
    r"[ \t]*(?:- +)?(description|doc_to_(?:text|target)|gen_prefix|regex_pattern|(?:fewshot|target)_delimiter):"
    r"[ \t]+(?:([^'\"|>\[{&*!#\s][^#]*?)[ \t]+)?(#{2,}.*|#[^#\s].*)"
)
_FOLD: Final = re.compile(r"([ \t]*)(description|doc_to_text|doc_to_target):[ \t]*>[-+0-9]*[ \t]*(?:#.*)?")
_LINE: Final = re.compile(r"[(\[]?([A-J]|\d)[)\].][ \t]+\S|[^\W\d_][\w ]{0,20}:[ \t]*(?:\{\{|$)")
_CASE: Final = re.compile(r"\{\{-?[^{}|]*\w[^{}|]*\|\s*(capitalize|title)\b[^{}]*\}\}")
_LABELS: Final = re.compile(r"label|answer|gold|target|categor|subject|topic|lang|type|\bname|^-?\d|:", re.I)
"""Columns that hold single words, and parts of a text."""

_SLICE: Final = re.compile(r"\{\{-?\s*(\w+)\s*\[\s*:\s*(\d+)\s*\]|\{\{-?\s*(\w+)\s*\|\s*truncate\b")


def _lines(view: FileView) -> list[str]:
    """Return the lines of the file itself, without its includes; none if it cannot be read any more."""
    try:
        return _lines_of(view.path, view.yaml.parts[-1].stamp)
    except OSError:
        return []


@lru_cache(maxsize=4)
def _lines_of(path: Path, _stamp: tuple[int, int]) -> list[str]:
    return gate.read_bytes(path, limit=MAX_BYTES).decode("utf-8", "replace").splitlines()


@rule("PF110", "comment-cuts-text", severity=Severity.ERROR, family=Family.CONFIG, scope="file")
def comment_cuts_text(view: FileView) -> Iterator[Finding]:
    r"""Report a text that YAML ends at ` #`, because what follows is a comment.

    Why: `description: Write the number after #### at the end.` is `Write the number after`, and
    `regex_pattern: #### (\d+)` is nothing at all. No parser reports it.

    Example:
        doc_to_text: "{{question}}"
        description: Write the number after #### at the end.

    Silent with:
        description: "Write the number after #### at the end. "

    Fix: put the text in quotes.

    Real: answers after `####`, as in GSM8K, headings of Markdown, and channels such as `#general`.
    """
    own = view.yaml.parts[-1].values
    for number, line in enumerate(_lines(view), start=1):
        found = _CUT.fullmatch(line)
        if found is None:
            continue
        key, kept, lost = found[1], (found[2] or "").strip(), found[3]
        if line.startswith(key) and (own.get(key) or "") != kept:
            continue  # a line of a longer text
        if not kept and not lost.startswith("##"):
            continue
        yield finding(
            "YAML takes the rest of a text for a comment",
            f"{kept} ← {lost}",
            Position(view.path, number, line.index(lost) + 1),
        )


@rule("PF111", "folded-lines", severity=Severity.WARNING, family=Family.CONFIG, scope="file")
def folded_lines(view: FileView) -> Iterator[Finding]:
    r"""Report lines of options or labels that a folded text (`>`) joins to one line.

    Why: `>` replaces single newlines by spaces. What looks like a list in the file is
    `Which one? A. iron B. gold Answer:` in the prompt. `|` keeps the lines.

    Example:
        doc_to_text: >-
          {{question}}
          A. {{choices[0]}}
          B. {{choices[1]}}
          Answer:
        doc_to_choice: ["A", "B"]

    Silent with:
        doc_to_text: |-
          {{question}}
          A. {{choices[0]}}
          B. {{choices[1]}}
          Answer:

    Fix: write `|-` instead of `>-`.

    Real: 132 templates of include in lm-evaluation-harness 0.4.13 have a space from folding before an option.
    """
    lines = _lines(view)
    for number, line in enumerate(lines):
        opened = _FOLD.fullmatch(line)
        if opened is None:
            continue
        block = []
        for text in lines[number + 1 :]:
            if text.strip() and len(text) - len(text.lstrip()) <= len(opened[1]):
                break
            block.append(text)
        depth = min((len(text) - len(text.lstrip()) for text in block if text.strip()), default=0)
        joined = [
            after.strip()
            for before, after in pairwise(block)
            if before.strip() and before[depth : depth + 1].strip() and after[depth : depth + 1].strip()
            if _LINE.match(after.strip())
        ]
        if len(joined) > 1:
            yield finding(
                "a folded text joins lines of options or labels",
                " ".join(joined)[:80],
                Position(view.path, number + 1, 1),
            )


@rule("PF254", "letters-made-small", severity=Severity.WARNING, family=Family.PROMPT)
def letters_made_small(study: Study) -> Iterator[Finding]:
    r"""Report `capitalize` or `title` on texts of the data, which change all other letters as well.

    Why: `{{ctx | capitalize}}` makes the first letter large and every other one small: `Mr. Smith of NASA` becomes
    `Mr. smith of nasa`. `title` makes `Don't` into `Don'T`. With docs of your own only real changes are reported.
    `doc["ctx"].capitalize()` in Python does the same, in `process_docs` or where the question or its choices are made.

    Example:
        doc_to_text: "{{question | capitalize}}\nAnswer:"
        metadata: {promptfmt: {docs: [{question: Is iron in NASA rockets?, choices: ["yes", "no"], answer: 0}]}}

    Silent with:
        doc_to_text: "{{question[:1] | upper}}{{question[1:]}}\nAnswer:"

    Fix: change the first letter alone: `{{text[:1] | upper}}{{text[1:]}}`.

    Real: lm-evaluation-harness #608 (hellaswag, in Python: `Mr. smith from nasa`).
    """
    for template in study.templates:
        found = _CASE.search(template.source)
        if found is None or template.keys[-1] not in ("doc_to_text", "doc_to_choice", "doc_to_target"):
            continue
        texts = [value for doc in study.real_docs for name, value in doc.items() if name in found[0]]
        change = str.title if found[1] == "title" else str.capitalize
        if texts and not any(isinstance(text, str) and change(text)[1:] != text[1:] for text in texts):
            continue
        yield finding(f"{found[1]} changes letters inside the text", found[0][:60], template.keys)
    for key in ("process_docs", "doc_to_text", "doc_to_choice"):
        for node in definitions(study.config.get(key)):
            lowered = next((call for call in ast.walk(node) if _changes_letters(call)), None)
            if lowered is not None:
                yield finding("code changes letters inside a text of the data", ast.unparse(lowered)[:60], key)


def _changes_letters(node: ast.AST) -> bool:
    """Return whether code makes a column small but for the first letters: `doc["ctx"].capitalize()`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    changed = node.func.value
    is_column = isinstance(changed, ast.Subscript) and not _LABELS.search(ast.unparse(changed.slice))
    return node.func.attr in ("capitalize", "title") and is_column


@rule("PF255", "text-cut-off", severity=Severity.WARNING, family=Family.PROMPT)
def text_cut_off(study: Study) -> Iterator[Finding]:
    r"""Report a text of the data that a template cuts inside a sentence.

    Why: `{{passage[:400]}}` and `truncate` keep prompts short and drop the rest, where the answer may be. The text
    ends in the middle of a sentence.

    Example:
        doc_to_text: "{{passage[:20]}}\n{{question}}\nAnswer:"
        metadata:
          promptfmt:
            docs: [{passage: Iron rusts in moist air., question: Does iron rust?, choices: ["yes", "no"], answer: 0}]

    Silent with:
        doc_to_text: "{{passage}}\n{{question}}\nAnswer:"

    Fix: give the whole text, or cut at the end of a sentence.

    Real: summaries of long documents, cut for models with short contexts.
    """
    for template in study.templates:
        for found in _SLICE.finditer(template.source) if template.keys[-1] == "doc_to_text" else ():
            name, limit = found[1] or found[3], int(found[2] or 255)
            for number, doc in enumerate(study.real_docs):
                text = doc.get(name)
                if isinstance(text, str) and len(text.rstrip()) > limit > 1 and text[limit - 1] not in ".!?\n":
                    yield finding(
                        "a text is cut inside a sentence",
                        f"{text[max(0, limit - 30) : limit]} ← {text[limit : limit + 20]}",
                        template.keys,
                        number,
                        field=name,
                    )
                    return
