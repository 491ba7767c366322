"""Rules about templates: variables that are not filled in, and mistakes of quoting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.columns import COMMON
from pytest_promptfmt.rules.fixes import Fix, anything, escapes, outside_markup, rewritten
from pytest_promptfmt.rules.rule_registry import also, reads_names
from pytest_promptfmt.rules.rule_views import around, finding
from pytest_promptfmt.study.configuration import Keys, WrittenTemplate, read_template

_MARKUP: Final = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.S)
_BRACES: Final = re.compile(r"(?<![\\{$A-Za-z0-9_^\]}])\{([A-Za-z_][A-Za-z0-9_.]*)\}(?!\})")
_AS_ESCAPES: Final = str.maketrans({"\a": r"\a", "\b": r"\b", "\f": r"\f", "\v": r"\v"})
_QUOTED_NAME: Final = re.compile(r"""(\{\{-?\s*)(["'])([A-Za-z_]\w*)\2(\s*-?\}\})""")
_FILTER_OUTSIDE: Final = re.compile(
    r"(?<=\}\}) ?\| ?(?:(?:trim|upper|lower|capitalize|tojson)(?![\w(])(?! *\|)|(?:join|replace|default|round)\()"
    r"|(?<=\}\})\.(?:strip|lower|upper|title|replace|split|format|join)\("
)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
_COLUMN_LIKE: Final = re.compile(r"[a-z]+(?:_[a-z0-9]+)*")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LATEX: Final = "nabla|natural|ncong|ne|near|neg|neq|new|nexists|ng|ni|nl|nmid|no|np|nr|ns|nt|nu|nv|nV|nw|nonumber|norm"
_LITERAL: Final = re.compile(rf"(?<!\\)\\n(?!(?:{_LATEX})[a-zA-Z]*\b)")
_QUOTED_BREAK: Final = re.compile(r"""(['"`])(?:\\n)+\1""")
"""A text about the two characters, as in: separate them with '\\n'."""

_NUMBER_OF_DOC: Final = re.compile(r"(?:^|_)(?:id|idx|index|uid|guid|hash|key)$", re.I)
"""Columns by which rows differ that are otherwise the same."""

_PLAIN_KEYS: Final = ("target_delimiter", "fewshot_delimiter")
_NOT_RENDERED: Final = re.compile(
    rf"(?:fewshot_config\.)?doc_to_(?:choice|target)\..+|generation_kwargs\.until(?:\.\d+)?|{'|'.join(_PLAIN_KEYS)}"
)
_WITH_DOUBLE_BRACES: Final = partial(
    rewritten,
    change=partial(outside_markup, change=lambda text: _BRACES.sub(r"{{\1}}", text)),
    keeps=anything,
)
_WITHOUT_QUOTES: Final = partial(rewritten, change=lambda text: _QUOTED_NAME.sub(r"\1\3\4", text), keeps=anything)
_WITH_BACKSLASHES: Final = partial(rewritten, change=lambda text: text.translate(_AS_ESCAPES), keeps=anything)


@reads_names
@also("PF246", severity=Severity.ERROR)
def markup_not_rendered(study: Study) -> Iterator[Finding]:
    """Report Jinja in a key that lm-eval does not render."""
    for keys, text in study.strings:
        if _NOT_RENDERED.fullmatch(".".join(map(str, keys))) and _MARKUP.search(text):
            words = [str(each) for each in keys if isinstance(each, str)]
            key = "until" if "until" in words else ".".join(words)
            do = 'write one template for the whole list: "{{[a, b]}}"' if key != "until" else "write the text itself"
            place = f"the list {key}" if isinstance(keys[-1], int) else key
            yield finding(f"lm-eval does not render templates in {place}", text, keys, do=do)
            return


@also("PF246", severity=Severity.ERROR)
def filter_after_braces(study: Study) -> Iterator[Finding]:
    """Report a Jinja filter or a method that is written after the braces, where it is text of the prompt."""
    for template in study.templates:
        found = _FILTER_OUTSIDE.search(template.source)
        if found is not None:
            message = "a filter after the closing braces is printed, and not applied"
            yield finding(message, f"}}}}{found[0]}", template.keys, do="move the filter into the braces")


@also("PF246", severity=Severity.ERROR, fix=_WITH_DOUBLE_BRACES)
def python_braces(study: Study) -> Iterator[Finding]:
    """Report `{name}` in a template without Jinja."""
    columns = set(study.docs.columns) if study.docs is not None and study.has_real_docs else set()
    for template in study.templates:
        if template.keys[-1] not in ("doc_to_text", "doc_to_target", "gen_prefix", "description"):
            continue
        names = [name for text in template.text.constants for name in _BRACES.findall(text) if not name.startswith("_")]
        known = columns | (COMMON if not study.has_real_docs else frozenset())
        missing = [name for name in names if {name, name.casefold()} & known and name not in template.text.names]
        bare = names if not template.text.has_markup and template.keys[-1] == "doc_to_text" else []
        for name in (bare or missing)[:1]:
            yield finding(
                "a name in single braces is not a Jinja variable",
                f"{{{name}}}",
                template.keys,
                severity=None if bare else Severity.WARNING,
                do="use double braces: {{" + name + "}}",
            )


@also("PF246", severity=Severity.ERROR, fix=_WITHOUT_QUOTES)
def quoted_name(study: Study) -> Iterator[Finding]:
    """Report `{{'name'}}`, which prints the word `name`, not the column."""
    columns = set(study.docs.columns) if study.docs is not None else set()
    for template in study.templates:
        for text in template.text.quoted:
            is_column = text in columns
            is_common = text.casefold() in COMMON and not study.has_real_docs and text not in template.text.names
            if is_column or is_common or (_COLUMN_LIKE.fullmatch(text) and not template.text.names):
                saw = "{{'" + text + "'}}"
                do = "remove the quotes: {{" + text + "}}"
                yield finding("a quoted name in braces prints the name, not the column", saw, template.keys, do=do)
                break


@also("PF125", severity=Severity.ERROR)
def constant_field(study: Study) -> Iterator[Finding]:
    """Report a field such as `doc_to_text` that names a column which the docs do not have."""
    if not study.has_real_docs or study.docs is None:
        return
    for template in study.templates:
        source = template.source
        if template.keys[-1] not in ("doc_to_text", "doc_to_target", "doc_to_choice") or template.text.has_markup:
            continue
        choices = study.written.doc_to_choice
        if isinstance(choices, list) and source in choices:
            continue  # the same answer for every doc, on purpose
        if _COLUMN_LIKE.fullmatch(source) and not (template.keys[-1] == "doc_to_text" and study.is_multimodal):
            message = f"{template.keys[-1]} does not name a column, so every doc gets this text"
            yield finding(message, source, template.keys, do=f"use a column: {', '.join(study.docs.columns[:8])}")


@rule("PF125", "constant-prompt", severity=Severity.ERROR, family=Family.TEMPLATES)
def constant_prompt(study: Study) -> Iterator[Finding]:
    """Report a task with the same prompt for every doc.

    Why: the model gets the same question many times. Either the template names no column, or it does not write the
    column as `{{ column }}`. Nothing is reported if PF246 already names the cause, or if all docs have the same texts
    in the columns that the template uses.

    Fix: add the columns of the question with `{{name}}`.

    Real: lm-evaluation-harness #3944, and its task xlsum in 0.4.13.
    """
    if study.is_multimodal or not (study.generates or study.has_choices):
        return
    if any(quoted_name(study)) or any(found.severity is None for found in python_braces(study)):
        return  # the cause is reported
    written, message = study.written, "the prompt is the same for every doc"
    if study.has_real_docs:
        asked = {_asked(instance) for instance in study.instances}
        used = study.used_names if not study.runs_functions else frozenset[str]()
        shown = [{name: doc[name] for name in doc if name in used or not used & set(doc)} for doc in study.real_docs]
        docs = [{name: doc[name] for name in doc if not _NUMBER_OF_DOC.search(name)} for doc in shown]
        if len(study.instances) > 1 and len(asked) == 1 and len({repr(doc) for doc in docs}) > 1:
            yield finding(message, next(iter(asked))[0][-60:], "doc_to_text")
        return
    spec = written.doc_to_text
    if not isinstance(spec, str) or not spec.strip() or spec in (study.docs.columns if study.docs else ()):
        return
    text = read_template(spec)
    fixed_choices = isinstance(written.doc_to_choice, list)
    is_constant = bool(text.constants) if text.has_markup else " " in spec.strip()
    if is_constant and not text.names and (study.generates or fixed_choices) and "import" not in spec:
        yield finding(message, spec[-60:], "doc_to_text")


def _asked(instance: Any) -> tuple[str, tuple[str | None, ...]]:
    prompts = "\0".join(prompt.text for prompt in instance.prompts)
    return prompts, tuple(request.continuation for request in instance.requests)


def _with_newlines(study: Study, finding: Finding) -> Fix | None:
    is_template = finding.keys[0] not in _PLAIN_KEYS
    change = partial(outside_markup, change=_with_real_newlines) if is_template else _with_real_newlines
    ends_question = finding.keys[-1] == "doc_to_text" and study.task.target_delimiter.isspace()

    def made(source: str) -> str | None:
        text = change(source)
        # the delimiter comes next, and a newline before it would be another finding
        return text.rstrip() if text is not None and ends_question and source.endswith("\\n") else text

    return rewritten(study, finding, made, keeps=escapes)


@rule("PF126", "literal-newline", severity=Severity.ERROR, family=Family.TEMPLATES, fix=_with_newlines)
def literal_newline(study: Study) -> Iterator[Finding]:
    r"""Report the two characters `\n` (a backslash and an n) in the place of a newline.

    Why: in YAML only double quotes turn `\n` into a newline. In single quotes, in block scalars and without quotes, it
    stays a backslash and an n. The model then sees these two characters in its prompt.

    Fix: use double quotes, or a block scalar with real newlines.

    Real: lm-evaluation-harness #3273 (34 LongBench tasks), #3102; in all, 189 tasks of release 0.4.13.
    """
    places = [
        (template.keys, constant)
        for template in study.templates
        if not _is_python_list(template)
        for constant in template.text.constants
    ]
    places += [((key,), getattr(study.written, key)) for key in _PLAIN_KEYS]
    reported: set[Keys] = set()
    for keys, text in places:
        found = find_literal_break(text) if isinstance(text, str) else None
        if found is not None and keys not in reported:
            reported.add(keys)
            yield finding(r"a literal \n instead of a newline", around(text, found), keys)


def find_literal_break(text: str) -> re.Match[str] | None:
    r"""Return where a text has a literal backslash and n; None without one, or if it is only quoted."""
    return next(_literal_breaks(text), None) if "\\n" in text else None


def _literal_breaks(text: str) -> Iterator[re.Match[str]]:
    quoted = [found.span() for found in _QUOTED_BREAK.finditer(text)]
    for found in _LITERAL.finditer(text):
        if not any(first < found.start() < end for first, end in quoted):
            yield found


def _with_real_newlines(text: str) -> str:
    broken = {found.start() for found in _literal_breaks(text)}
    return _LITERAL.sub(lambda found: "\n" if found.start() in broken else found[0], text)


def _is_python_list(template: WrittenTemplate) -> bool:
    r"""Return whether lm-eval 0.4.13 reads the template's text as a Python list, in which `\n` is a newline."""
    return template.keys[-1] in ("doc_to_choice", "doc_to_target") and template.source.lstrip().startswith("[")


@reads_names
@also("PF126", severity=Severity.ERROR, fix=_WITH_BACKSLASHES)
def control_character(study: Study) -> Iterator[Finding]:
    r"""Report a control character, such as the backspace that YAML reads in `"\b"`."""
    for keys, text in study.strings:
        found = _CONTROL.search(text)
        if found is not None:
            yield finding(f"the text contains the control character U+{ord(found[0]):04X}", around(text, found), keys)
    made = _CONTROL.search(study.own_text) if study.asks_by_code and not study.has_guessed_text else None
    if made is not None and made[0] not in "".join(map(str, study.instances[0].doc.values())):
        message = f"Python code prints the control character U+{ord(made[0]):04X}"
        do = 'double the backslash, or write r"…", in the code'
        yield finding(message, around(study.own_text, made), ("doc_to_text",), do=do)


@rule("PF129", "unknown-decontamination-column", severity=Severity.WARNING, family=Family.TEMPLATES)
def unknown_decontamination_column(study: Study) -> Iterator[Finding]:
    """Report a `doc_to_decontamination_query` that is not a column of the docs.

    Why: only decontamination uses this key, so the mistake is noticed late. If the task has no docs of your own, the
    rule reports a column that no prompt, choice or answer uses. If code makes the docs, the rule reports nothing.

    Fix: use a column, or write a template.

    Real: lm-evaluation-harness #3718 (headqa).
    """
    query, dataset = study.config.get("doc_to_decontamination_query"), study.given.dataset
    if not isinstance(query, str) or not query or study.docs is None:
        return
    if not study.has_real_docs and (dataset.process_docs is not None or not study.renders_fields):
        return  # code may make the column
    # synthetic docs have the columns that prompts, choices and answers are made of
    message = (
        "is not the name of a column" if study.has_real_docs else "names a column that nothing else of the task uses"
    )
    for name in sorted(read_template(query).names if "{" in query else {query}):
        if name not in study.docs.columns and _IDENTIFIER.fullmatch(name):
            do = f"use one of the columns {', '.join(study.docs.columns[:8])}"
            yield finding(f"doc_to_decontamination_query {message}", name, "doc_to_decontamination_query", do=do)
