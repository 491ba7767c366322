"""Docs made from a task's own templates, for tasks whose data is not available.

They are readable (`«question 1»`), the same everywhere, differ from doc to doc, and have a valid gold answer that
changes from doc to doc. template_shapes.py finds what the templates use, doc_values.py makes the values; here guesses
are tried until every field accepts them.
`process_docs` is not applied: these docs imitate what it returns.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

from jinja2 import TemplateError, UndefinedError

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import (
    OUT_OF_MEMORY,
    LimitExceededError,
    PromptfmtError,
    RenderError,
    SyntheticDocsError,
)
from pytest_promptfmt.core.prompt import Place
from pytest_promptfmt.core.task import FunctionRef, Spec, Task, Unset
from pytest_promptfmt.tasks.docs.doc_functions import not_allowed
from pytest_promptfmt.tasks.rendering import field_mappings as rendering
from pytest_promptfmt.tasks.synthetic.code_shapes import ReadDoc, code_facts
from pytest_promptfmt.tasks.synthetic.doc_values import ChoiceShape, DocPlan, Guess, Guesses
from pytest_promptfmt.tasks.synthetic.shapes import Fact, Path
from pytest_promptfmt.tasks.synthetic.template_shapes import template_shapes

SHOT_SPLIT: Final = "shot"
"""The split name of docs that are made for shots."""

_MAX_PROBED_COLUMNS: Final = 64
_MAX_TRIALS: Final = 100
_DEFAULT_CHOICES: Final = 4
_SNAKE_CASE: Final = re.compile(r"[a-z]+(?:_[a-z0-9]+)+")
"""A text that is the name of a column: `system_prompt`."""

_INDEX_NAMES: Final = frozenset({"label", "answer", "gold", "target", "index", "idx"})
_READING: Final = ("doc_to_text", "doc_to_choice", "doc_to_target", "description", "gen_prefix")
_OVERRIDES: Final = ("doc_to_text", "doc_to_target", "doc_to_choice", "gen_prefix")


def synthetic_docs(task: Task, *, count: int, split: str | None = None) -> tuple[Doc, ...]:
    """Return `count` docs that fit the task's templates and functions, as they are after `process_docs`.

    Doc k is always the same for one split; the docs of any split but the evaluated one carry its name
    (`«train question 1»`). Raises SyntheticDocsError when no guess fits, CodeNotAllowedError when a field is a
    Python function that may not run. A template that fails for every doc (syntax, unknown filter) is left to rendering
    to report.
    """
    plan = _plan_for(task.doc_source)
    marked = split is not None and split != task.dataset.evaluation_split
    mark = "".join(letter for letter in split or "" if letter.isalnum() or letter in "_-")[:24] if marked else ""
    return tuple(plan.doc(number, mark) for number in range(1, count + 1))


# -- the fields a task uses ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Field:
    """One field mapping: its role, where it is written, and its value made hashable (a list becomes a tuple)."""

    role: str
    keys: tuple[str, ...]
    spec: Spec


def _fields_of(task: Task) -> tuple[_Field, ...]:
    fields = [_Field(role, (role,), _hashable(getattr(task, role))) for role in _READING]
    for role in _OVERRIDES:
        spec = getattr(task.fewshot, role)
        if not isinstance(spec, Unset | FunctionRef) and spec != getattr(task, role):
            fields.append(_Field(role, ("fewshot_config", role), _hashable(spec)))
    return tuple(fields)


def _hashable(spec: Spec) -> Any:
    if isinstance(spec, Mapping):
        spec = list(spec.values())  # lm-eval 0.4.13 takes the values of a mapping as the choices
    if isinstance(spec, list | tuple):
        return tuple(_hashable(item) for item in spec)
    return spec


def _plan_for(task: Task) -> DocPlan:
    fields = _fields_of(task)
    for found in fields:
        if isinstance(found.spec, FunctionRef):
            raise not_allowed(found.spec, task, found.keys)
    try:
        return _plan(fields)
    except _NoFitError as failed:
        spec, error = failed.field.spec, failed.error
        if isinstance(error, MemoryError):
            message = f"{failed.field.role} needs more memory than a worker may use (MemoryError)"
            error = LimitExceededError(message, hint=OUT_OF_MEMORY)
        if isinstance(error, LimitExceededError):
            position = task.position(*failed.field.keys)
            raise LimitExceededError(error.message, position=position, hint=error.hint) from error
        what = f"the Python function {_function_name(spec)}" if callable(spec) else failed.field.role
        sidecar = task.path.stem if task.path is not None else task.name
        message = f"{what} fails with synthetic docs ({_message_of(error)})"
        hint = f"add docs, in {sidecar}.docs.jsonl or in metadata.promptfmt.docs"
        raise task.error(SyntheticDocsError, message, *failed.field.keys, hint=hint) from error


def _function_name(function: Any) -> str:
    module = re.split(r"[./]", str(getattr(function, "__module__", "") or ""))[-1]
    name = getattr(function, "__name__", type(function).__name__)
    return f"{module}.{name}" if module else str(name)


def _message_of(error: BaseException) -> str:
    if isinstance(error, PromptfmtError):
        return error.message
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


# -- plans -----------------------------------------------------------------------------------------------------------


class _NoFitError(Exception):
    """There are no docs that this field accepts."""

    def __init__(self, found: _Field, error: BaseException) -> None:
        super().__init__(str(error))
        self.field = found
        self.error = error


@lru_cache(maxsize=8192)
def _plan(fields: tuple[_Field, ...]) -> DocPlan:
    """Return a plan whose docs every field accepts; cached by the field mappings, which decide everything."""
    facts = [(found.role, fact) for found in fields for fact in _facts_of(found)]
    choices = _known_choices(fields)
    target = next((_subject(f) for f in fields if f.keys == ("doc_to_target",)), None)
    has_choices = any(f.role == "doc_to_choice" and f.spec is not None for f in fields)
    best: DocPlan | None = None
    first_error: _NoFitError | None = None
    probed: set[str] = set()
    read: set[_Field] = set()
    recounted = False
    trial = _Trial(fields)
    inputs = next((_alone(f) for f in fields if f.keys == ("doc_to_text",)), None)
    guesses = _guess_ladder(DocPlan.build(facts, (), choices), inputs, target, has_choices)
    for guess in islice(guesses, _MAX_TRIALS):
        while True:
            plan = DocPlan.build(facts, guess, choices)
            try:
                fit = trial.fit(plan)
            except _MissingColumnError as missing:
                if missing.name in probed or len(probed) >= _MAX_PROBED_COLUMNS:
                    raise _NoFitError(missing.field, KeyError(missing.name)) from missing
                probed.add(missing.name)
                facts.append((missing.field.role, Fact((missing.name,), "sized")))
            except _NoFitError as failed:
                if callable(failed.field.spec):
                    known = {*facts}
                    role = failed.field.role
                    asked = [] if failed.field in read else [(role, fact) for fact in code_facts(failed.field.spec)]
                    read.add(failed.field)
                    if known.issuperset(asked):
                        first_error = first_error or failed
                        if target is None or isinstance(failed.error, LimitExceededError | MemoryError):
                            raise
                        break
                    facts += [fact for fact in asked if fact not in known]
                    continue
                hopeless = TemplateError | PromptfmtError | RecursionError | OverflowError  # with any other values
                if isinstance(failed.error, hopeless) and not isinstance(failed.error, UndefinedError):
                    return plan
                first_error = first_error or failed
                break
            else:
                if fit.choices and fit.choices != choices.count and not recounted:
                    recounted = True
                    choices = replace(choices, count=fit.choices)
                    continue
                plan = replace(plan, reads=fit.reads)
                if fit.gold_is_valid:
                    return plan
                best = best or plan
                unread = [each for each in fields if callable(each.spec) and each not in read]
                read.update(unread)
                asked = [(each.role, fact) for each in unread for fact in code_facts(each.spec)]
                if {*facts}.issuperset(asked):
                    break
                facts += [fact for fact in asked if fact not in facts]
    if best is None:
        assert first_error is not None
        raise first_error
    return best


def _facts_of(found: _Field) -> Iterator[Fact]:
    if not isinstance(found.spec, str):
        return
    shapes = template_shapes(found.spec)
    alone = _alone(found)
    if alone is not None and not shapes.facts:
        yield Fact(alone, "used")
    yield from shapes.facts
    if alone is not None and found.role == "doc_to_choice":
        yield Fact(alone, "list", 0)


def _alone(found: _Field) -> Path | None:
    """Return the path when the field is one bare column or expression, else None."""
    spec = found.spec
    if not isinstance(spec, str):
        return None
    if "{" in spec:
        return template_shapes(spec).alone
    if found.role in ("description", "gen_prefix") and not _SNAKE_CASE.fullmatch(spec):
        return None  # constant text in practice: all 3,600 descriptions of lm-eval 0.4.13 that are not templates
    words = spec.split(" ")
    most = 1 if found.role == "doc_to_text" else 3  # `doc_to_target: Answer Key` is a column, shipped 40 times
    return (spec,) if len(words) <= most and all(word.isidentifier() for word in words) else None


def _subject(found: _Field) -> Path | None:
    """Return the one path that decides the field: `{{ answer - 1 }}` is about `answer`."""
    alone = _alone(found)
    if alone is not None or not (isinstance(found.spec, str) or callable(found.spec)):
        return alone
    facts = template_shapes(found.spec).facts if isinstance(found.spec, str) else code_facts(found.spec)
    paths = {fact.path for fact in facts}
    return paths.pop() if len(paths) == 1 else None


def _known_choices(fields: Sequence[_Field]) -> ChoiceShape:
    for found in fields:
        if found.keys == ("doc_to_choice",) and isinstance(found.spec, tuple) and found.spec:
            return ChoiceShape(len(found.spec), constants=found.spec)
        if found.keys == ("doc_to_choice",) and isinstance(found.spec, str):
            return ChoiceShape(template_shapes(found.spec).literal_length or _DEFAULT_CHOICES, path=_alone(found))
    return ChoiceShape(_DEFAULT_CHOICES)


def _guess_ladder(plan: DocPlan, inputs: Path | None, target: Path | None, has_choices: bool) -> Iterator[Guesses]:
    """Yield guesses for the values whose type is open: the most likely first, one value at a time, then all."""
    open_paths = [path for path in plan.open_paths() if path != target]
    targets: list[Guesses] = [()]
    if target is not None and has_choices:
        node = plan.find(target)
        if node is not None and node.is_open:
            order: tuple[Guess, ...] = ("index", "choice", "letter", "ordinal", "digits", "text", "list")
            targets = [((target, guess),) for guess in order]
        else:
            texts: tuple[Guess, ...] = ("choice", "letter", "index", "ordinal", "digits", "list")
            targets = [(), *(((target, guess),) for guess in texts)]
    if inputs is not None and has_choices and str(inputs[-1]).lower() in _INDEX_NAMES:
        # The choices are the inputs, as in Winogrande: the question is an index, the target a text.
        yield ((inputs, "index"), *(((target, "text"),) if target is not None else ()))
    yield from targets
    kinds: tuple[Guess, ...] = ("number", "index", "list", "letter", "digits", "mapping", "float", "date", "choice")
    for kind in kinds:
        for path in open_paths:
            yield (*targets[0], (path, kind))
    for kind in kinds:
        for about_target in targets:
            yield (*about_target, *((path, kind) for path in open_paths))


# -- trials ----------------------------------------------------------------------------------------------------------


class _MissingColumnError(Exception):
    """A function read a column that the doc does not have."""

    def __init__(self, found: _Field, name: str) -> None:
        super().__init__(name)
        self.field = found
        self.name = name


@dataclass(frozen=True)
class _Fit:
    """A plan that every field accepted: the number of choices it gave, and whether the gold answer is one of them.

    `reads` are the columns that functions read, by their keys.
    """

    choices: int | None
    gold_is_valid: bool
    reads: Mapping[tuple[str, ...], tuple[str, ...]]


class _Trial:
    """The fields of a task as rendering applies them, tried on docs before they are used."""

    def __init__(self, fields: tuple[_Field, ...]) -> None:
        self._fields = fields
        own = {found.role: _unfrozen(found.spec) for found in fields if len(found.keys) == 1}
        self._task = Task(name="synthetic docs", doc_to_choice=own.get("doc_to_choice"))
        self._reads: dict[tuple[str, ...], dict[str, None]] = {}

    def fit(self, plan: DocPlan) -> _Fit:
        """Return what the fields give for two evaluated docs and a shot.

        Raises _NoFitError at the first field that fails, _MissingColumnError when a function needs another column.
        """
        choices: int | None = None
        valid = True
        self._reads.clear()
        for number, mark in ((1, ""), (2, ""), (1, SHOT_SPLIT)):
            doc = plan.doc(number, mark)
            values = {found.keys: self._value(found, doc) for found in self._fields}
            offered = values[("doc_to_choice",)]
            if isinstance(offered, list | tuple):
                choices = len(offered)
            valid = valid and _is_valid(values[("doc_to_text",)], offered, values[("doc_to_target",)])
        return _Fit(choices, valid, {keys: tuple(names) for keys, names in self._reads.items()})

    def _value(self, found: _Field, doc: Doc) -> Any:
        spec = _unfrozen(found.spec)
        if spec is None or spec == "":
            return spec
        own = doc
        if callable(spec):
            own = ReadDoc(copy.deepcopy(dict(doc)), self._reads.setdefault(found.keys, {}))
        make = rendering.FIELDS_BY_KEY.get(found.role, partial(rendering.FieldMapping, part="description"))
        applied = make(self._task, spec, key=found.role, columns=doc)
        try:
            value = applied(own, Place("synthetic docs", 0)).value
        except (LimitExceededError, RecursionError) as error:
            raise _NoFitError(found, error) from error
        except RenderError as failed:
            cause = failed.__cause__ or failed
            name = cause.args[0] if isinstance(cause, KeyError) and cause.args else None
            if callable(spec) and isinstance(name, str) and name not in doc and "«" not in name:
                raise _MissingColumnError(found, name) from cause
            raise _NoFitError(found, cause) from cause
        if value == "":  # perhaps what it gives without a column that it gets with a default
            absent = next((name for name in self._reads.get(found.keys, ()) if name not in doc), None)
            if absent is not None:
                raise _MissingColumnError(found, absent)
        return value


def _unfrozen(spec: Any) -> Any:
    return [_unfrozen(item) for item in spec] if isinstance(spec, tuple) else spec


def _is_valid(text: Any, choices: Any, target: Any) -> bool:
    """Return whether the prompt is text and the gold answer one of the choices, where there are any."""
    if choices is None:
        return isinstance(text, str)
    if not isinstance(choices, list | tuple) or not choices or not all(isinstance(c, str) and c for c in choices):
        return False
    if isinstance(text, int):  # the choices are the inputs: the target is what follows each
        return 0 <= text < len(choices) and isinstance(target, str)
    if isinstance(target, list):
        return bool(target) and all(_is_valid(text, choices, one) for one in target)
    if isinstance(target, int):
        return isinstance(text, str) and 0 <= target < len(choices)
    return isinstance(text, str) and target in choices


def columns_read(task: Task, columns: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the keys that read columns, such as `fewshot_config.doc_to_text`, each with these in the order of reading.

    `columns` are those of the docs, which are synthetic. Of a function they are those that it read. Nothing is
    known of a task that is put together in its own way.
    """
    if not task.assembly.renders_fields:
        return {}
    called = _plan_for(task.doc_source).reads  # when the docs were made
    named = {
        ".".join(keys): dict.fromkeys(called.get(keys, ()) if callable(spec) else _names(spec, columns))
        for keys, spec in rendering.fields_of(task, _READING)
    }
    return {key: tuple(names) for key, names in named.items() if names}


def _names(spec: Any, columns: Collection[str]) -> Iterator[str]:
    if isinstance(spec, Mapping | list | tuple):
        for part in spec.values() if isinstance(spec, Mapping) else spec:
            yield from _names(part, columns)
    elif isinstance(spec, str) and spec in columns:
        yield spec
    elif isinstance(spec, str):
        yield from (name for name, *_ in (fact.path for fact in template_shapes(spec).facts) if name is not None)
