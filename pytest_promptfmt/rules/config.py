"""Rules about the configuration: lost keys, values that YAML misreads, missing functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import did_you_mean, display_path
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.yaml_parser import MAX_BYTES, repeated_values
from pytest_promptfmt.rules.fixes import Fix, anything, respelt
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import FileView, finding
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems import known_systems
from pytest_promptfmt.tasks import functions_of

_OWN_KEYS: Final = (
    "docs",
    "fields",
    "ignore",
    "normalize",
    "profiles",
    "completions",
    "expected_failures",
    "recordings",
    "model",
    "think_end_token",
)


def _without_earlier(_view: FileView, finding: Finding) -> Fix | None:
    return Fix(position=finding.position, action="earlier") if finding.position is not None else None


@rule("PF101", "repeated-key", severity=Severity.ERROR, family=Family.CONFIG, scope="file", fix=_without_earlier)
def repeated_key(view: FileView) -> Iterator[Finding]:
    """Report a key that appears twice in one mapping of a file.

    Why: YAML silently keeps the last one; strict parsers refuse the file. Editing the first one changes
    nothing. Reported as a warning if both values are equal.

    Example:
        num_fewshot: 0
        repeats: 1
        num_fewshot: 2

    Silent example:
        num_fewshot: 0
        repeats: 1

    Fix: remove one of them.

    Real: lm-evaluation-harness #1769 (ifeval).
    """
    for part in view.yaml.parts:
        repeated = (*part.repeated, *part.repeated_inside)
        values = repeated_values(part.path) if repeated else {}
        for key, position in repeated:
            first, last = values.get((position.line or 0, position.column or 0), ("", "?"))
            is_equal = first == last
            yield finding(
                "the key is repeated with the same value"
                if is_equal
                else "the key is repeated, and only the last value counts",
                str(key),
                position,
                severity=Severity.WARNING if is_equal else None,
            )


def _in_quotes(study: Study, finding: Finding) -> Fix | None:
    position = study.task.position(*finding.keys)
    return None if position is None else Fix(position=position, action="quotes", keeps=anything)


@rule("PF102", "not-text", severity=Severity.ERROR, family=Family.CONFIG, fix=_in_quotes)
def not_text(study: Study) -> Iterator[Finding]:
    """Report choices that YAML does not read as text: `no`, `012`, `2024-01-01`.

    Why: in YAML 1.1 the words yes, no, on and off are booleans, `012` is ten, and dates are dates. lm-eval either
    fails on such a choice or scores the word True.

    Example:
        doc_to_choice: [no, yes]
        doc_to_target: "{{answer % 2}}"

    Silent with:
        doc_to_choice: ["no", "yes"]

    Fix: put the words in quotes.

    Real: the Norway problem of YAML, which affects every yes/no task without quotes.
    """
    choices = study.written.doc_to_choice
    values = choices.items() if isinstance(choices, dict) else enumerate(choices) if isinstance(choices, list) else ()
    for number, choice in values:
        if not isinstance(choice, str):
            yield finding(
                f"YAML reads this choice as {type(choice).__name__}, not as text",
                str(choice),
                ("doc_to_choice", number),
            )


@rule("PF103", "overwritten-by-format", severity=Severity.WARNING, family=Family.CONFIG)
def overwritten_by_format(study: Study) -> Iterator[Finding]:
    r"""Report a key of the task that its format replaces, and a `template:` that the task's own `doc_to_text` replaces.

    Why: the format sets the layout. A `target_delimiter` or `doc_to_text` beside it has no effect, but looks as if it
    had. With `template:` it is the other way round: a written `doc_to_text` wins.

    Example:
        formats: mcqa
        doc_to_text: "{{question}}"
        target_delimiter: ": "

    Silent example:
        formats: mcqa
        doc_to_text: "{{question}}"

    Fix: remove the key, or set it inside the format; beside `template:` keep one of the two.

    Real: the proposal for formats in lm-evaluation-harness does not say which of the two wins.
    """
    for overwritten in getattr(study.task, "overwritten", ()):
        yield Finding(
            message=f"the format replaces the task's {overwritten.key}",
            saw=str(overwritten.written),
            keys=(overwritten.key,),
            position=overwritten.position,
        )
    template = getattr(study.task, "template", None)
    written = study.given.config.get("doc_to_text")
    if template is not None and written is not None:
        yield finding(
            f"the task's doc_to_text replaces the prompt of template {template.template_type!r}",
            str(written),
            "template",
        )


@rule("PF104", "missing-function", severity=Severity.ERROR, family=Family.CONFIG)
def missing_function(study: Study) -> Iterator[Finding]:
    """Report a `!function` whose file beside the YAML does not define it.

    Why: metrics, filters and result functions are not needed to render
    prompts, so a removed name is only noticed when lm-eval builds the task. The file is parsed, not run.

    Example:
        # file: example.yaml
        process_results: !function helper.scored
        # file: helper.py
        def score(doc, results):
            return {"acc": 1.0}

    Silent with:
        # file: example.yaml
        process_results: !function helper.score

    Fix: define or import the function in that file.

    Real: lm-evaluation-harness 0.4.11 and 0.4.12: an import that looked unused was removed, and 175 AfriMMLU tasks no
    longer loaded.
    """
    for function in functions_of(study.written):
        file = function.directory / f"{function.module.replace('.', '/')}.py"
        names = _names_in(file)
        if names is not None and function.name not in names:
            yield finding(
                f"{file.name} does not define this function",
                str(function),
                function.position,
                do=did_you_mean(function.name, names) or f"define {function.name} in {display_path(file)}",
            )


@lru_cache(maxsize=4096)
def _names_in(file: Path) -> frozenset[str] | None:
    """Return the names that a Python file defines at its top level; None if that is unknown."""
    try:
        tree = ast.parse(gate.read_bytes(file, limit=MAX_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    return None
                names.add((alias.asname or alias.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("globals", "setattr"):
            return None
    return None if "__getattr__" in names else frozenset(names)


@rule("PF105", "unseen-suffix", severity=Severity.WARNING, family=Family.CONFIG, scope="file")
def unseen_suffix(view: FileView) -> Iterator[Finding]:
    """Report a task in a file that ends in `.yml`.

    Why: lm-eval 0.4.13 reads only `*.yaml`. The task is tested here but cannot be run there.

    Example:
        # file: example.yml
        task: example

    Silent example:
        # file: example.yaml
        task: example

    Fix: rename the file to `.yaml`.

    Real: lm-evaluation-harness before #1216 (siqa/default.yml).
    """
    if view.path.suffix == ".yml":
        yield finding("lm-eval ignores files that end in .yml", view.path.name)


@rule("PF106", "unused-generation-arguments", severity=Severity.INFO, family=Family.CONFIG)
def unused_generation_arguments(study: Study) -> Iterator[Finding]:
    """Report `generation_kwargs` of a task that does not generate.

    Why: they are only used with `output_type: generate_until`. Left over from another task, they mislead readers.

    Example:
        generation_kwargs: {max_gen_toks: 32}

    Silent with:
        output_type: generate_until

    Fix: remove them, or set `output_type: generate_until`.

    Real: several multiple-choice tasks of lm-evaluation-harness 0.4.13.
    """
    if not study.generates and study.task.generation_kwargs:
        yield finding(
            "generation_kwargs have no effect: the task does not generate",
            str(dict(study.task.generation_kwargs)),
            "generation_kwargs",
        )


@runtime_checkable
class HasMetadataKeys(Protocol):
    """A system whose tasks have further keys below `metadata.promptfmt`."""

    metadata_keys: tuple[str, ...]


def _own_keys(study: Study) -> tuple[str, ...]:
    system = known_systems().get(study.task.system)
    return (*_OWN_KEYS, *(system.metadata_keys if isinstance(system, HasMetadataKeys) else ()))


def _known_own_key(study: Study, finding: Finding) -> Fix | None:
    return respelt(study, finding, _own_keys(study), action="key")


@rule("PF107", "unknown-own-key", severity=Severity.ERROR, family=Family.CONFIG, fix=_known_own_key)
def unknown_own_key(study: Study) -> Iterator[Finding]:
    """Report an unknown key of `metadata.promptfmt`.

    Why: lm-eval accepts anything under `metadata`, so nothing else reports the mistake.

    Example:
        metadata:
          promptfmt:
            docs: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]
            ignores: {PF201: the space is in the paper}

    Silent example:
        doc_to_text: "{{question}} "
        metadata:
          promptfmt:
            docs: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]
            ignore: {PF201: the space is in the paper}

    Fix: use a known key, such as `docs`, `fields`, `ignore`, `normalize` or `profiles`.

    Real: with a misspelled `docs` a task is tested with synthetic docs.
    """
    known = _own_keys(study)
    for key in study.task.own_metadata:
        if key not in known:
            yield finding(
                "unknown key of metadata.promptfmt",
                str(key),
                ("metadata", "promptfmt", str(key)),
                do=did_you_mean(str(key), known) or f"use one of {', '.join(known)}",
            )


@rule("PF108", "overridden-by-library-prompt", severity=Severity.WARNING, family=Family.CONFIG)
def overridden_by_prompt(study: Study) -> Iterator[Finding]:
    """Report a field mapping beside `use_prompt`, which replaces it.

    Why: both are in the file, but only one has an effect.

    Example:
        output_type: generate_until
        use_prompt: "qa-basic:q-newline-a"
        doc_to_text: "{{question}}"

    Silent example:
        output_type: generate_until
        doc_to_text: "{{question}}"

    Fix: remove one of them.

    Real: `use_prompt` of lm-evaluation-harness, which no task of 0.4.13 uses.
    """
    if study.config.get("use_prompt") is None:
        return
    for key in ("doc_to_text", "doc_to_target", "doc_to_choice"):
        written = study.config.get(key)
        if written is not None and written != getattr(study.written, key):
            yield finding(f"use_prompt replaces the task's {key}", str(written), key)
