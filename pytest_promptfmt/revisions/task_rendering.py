"""A task rendered on one side of a comparison: the docs of both sides, also with shots, and variants of these docs.

Where `process_docs` changed and docs are synthetic, both sides process the same rows; where code of scoring changed,
both score the same answers.
The variants have edge cases of data (spaces, letter case, empty values, None, long lists) and the words that changed
code names. A difference in a variant only need not show in a real doc, so it is unknown. The rendering is a mapping of
JSON values; the worker that renders writes it, and its content is untrusted.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.metric_scores import SECONDS_FOR_CODE
from pytest_promptfmt.answers.tried_answers import likelihoods_for, texts_for
from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import PromptfmtError, ScoringError
from pytest_promptfmt.core.limits import must_propagate, time_limit
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.inputs.places import digest_of
from pytest_promptfmt.revisions.raw_docs import Lines, processed, raw_docs
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.scoring import Scoring
from pytest_promptfmt.tasks import Question, columns_read, renderer_with_shots, score_doc, score_texts, with_pool

SHOTS: Final = 2
"""Few-shot examples that are tried where the task itself has none."""
AS_IT_IS: Final = "as it is"
WITH_SHOTS: Final = f"with {SHOTS} shots"

_ROWS: Final = 2
_MOST_KEPT: Final = 2_000
"""Characters of a variant's text that are kept to be shown."""

_MOST_COLUMNS: Final = 12
_MOST_WORDS: Final = 12
_EMPTY: Final[Mapping[type, Any]] = {str: "", list: [], dict: {}, int: 0, float: 0.0, bool: False}
_ODD: Final = "1. (a) [b] {c} <d> 'e' \"f\" \\g/ $h$ *i* _j_ #k @l é — ... ? ! ; : , %s 3.50 \n\nB\t c  d"

TaskRendering = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderingPlan:
    """The part of a comparison that renders one task on one side; all values are of JSON's types.

    Code below the folder `top` is traced, `words` are put into docs, `parts` are texts of templates to search in
    prompts. Renderings are written to `folder`; `other` is the folder of the first side, "" for the first side itself.
    With `rows`, docs are made of rows by `process_docs`; with `scores`, answers are scored.
    """

    top: str
    folder: str
    other: str = ""
    words: Sequence[str] = ()
    parts: Sequence[str] = ()
    rows: bool = False
    scores: bool = False


def path_of(folder: Path, task: str) -> Path:
    """Return the path of the rendering of a task@format in a folder of them."""
    return folder / f"{digest_of(task.encode('utf-8', 'backslashreplace'))}.json"


def read_rendering(folder: Path, task: str) -> TaskRendering | None:
    """Return the rendering of a task@format; None if its worker wrote none, or an invalid one."""
    try:
        rendering = json.loads(path_of(folder, task).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    known = {"error", "own", "same", "edges", "columns", "named", "kinds", "docs", "lines", "unseen", "rows", "scores"}
    return rendering if isinstance(rendering, dict) and known <= rendering.keys() else None


def rendering_of(study: Study, plan: RenderingPlan) -> TaskRendering:
    """Return the texts that a task renders, and the lines of code that ran for it.

    `own` are the texts of the task's own docs, `same` those of the docs that both sides render, `edges` those of
    variants of these docs, or digests of long ones; a text that begins with `!` is an exception. `unseen` are the parts
    of templates that no text contains. `columns` are those that the prompts come from, `named` those that the task
    reads of synthetic docs. `rows` are those that the docs were made of, None without. `scores` are those of some
    answers, `scoring_error` why there are none, `scored_lines` the lines of code that ran for them.
    """
    rendering: TaskRendering = {"error": "", "own": {}, "same": {}, "edges": {}, "kinds": [], "docs": None}
    rendering |= {"columns": [], "named": [], "rows": None, "scores": {}, "scoring_error": ""}
    rendering["unseen"] = [*plan.parts]
    unsure: Lines = {}
    with _traced(Path(plan.top)) as lines:
        try:
            _fill(rendering, study, plan, unsure)
        except PromptfmtError as error:
            rendering["error"] = error.message
    with _traced(Path(plan.top)) as scored_lines:
        try:
            rendering["scores"] = _tried_scores(study, plan.words) if plan.scores else {}
        except PromptfmtError as error:
            rendering["scoring_error"] = error.message
    for file, unseen in unsure.items():
        lines.get(file.removeprefix(f"{plan.top}{os.sep}").replace(os.sep, "/"), set()).difference_update(unseen)
    for key, found in (("lines", lines), ("scored_lines", scored_lines)):
        rendering[key] = {name: sorted(ran) for name, ran in found.items()}
    return rendering


def lines_of(rendering: Mapping[str, Any], key: str = "lines") -> dict[str, Set[int]]:
    """Return the lines that ran, by file below the tree."""
    return {str(name): frozenset(ran) for name, ran in rendering[key].items()}


def _fill(rendering: TaskRendering, study: Study, plan: RenderingPlan, unsure: Lines) -> None:
    material = study.material
    task, docs, shots = material.task, material.docs, study.settings.num_fewshot
    instances = study.render()
    rendering["columns"] = _columns(instances)
    if docs.kind == "synthetic":
        rendering["named"] = [[key, *names] for key, names in columns_read(task, docs.columns).items()]
    if not task.assembly.renders_fields:
        # Another system builds these prompts; those of other docs are unknown here.
        rendering["kinds"] = [docs.kind, docs.fewshot_kind if docs.fewshot else docs.kind]
        rendering["own"] = {AS_IT_IS: [*map(_text, instances)]}
        if not material.shots:
            with suppress(PromptfmtError):
                more = Study(study.given, replace(study.settings, num_fewshot=SHOTS))
                rendering["own"][WITH_SHOTS] = [*map(_text, more.render())]
        rendering["same"] = rendering["own"]
        return
    tried = task
    if not material.shots and task.has_question:
        tried = task if task.shots(SHOTS) else replace(task, num_fewshot=SHOTS)
        with suppress(PromptfmtError):
            docs = with_pool(tried, docs, SHOTS)
    ways = {AS_IT_IS: (task, shots)} | ({WITH_SHOTS: (tried, SHOTS)} if not material.shots and docs.fewshot else {})
    rendering["kinds"] = [docs.kind, docs.fewshot_kind if docs.fewshot else docs.kind]

    def rendered(each: Task, some: TaskDocs, count: int | None) -> list[str]:
        texts = _rendered(each, some, count)
        rendering["unseen"] = [part for part in rendering["unseen"] if not any(_quoted(part) in text for text in texts)]
        return texts

    rendering["own"] = {name: _rendered(each, docs, count) for name, (each, count) in ways.items()}
    shown = docs
    if plan.other:
        first = read_rendering(Path(plan.other), study.given.id)
        given = first["docs"] if first is not None else None
        if first is None or given is None:
            return
        rendering["rows"] = first["rows"]
        shown = replace(docs, evaluated=tuple(given["evaluated"]), fewshot=tuple(given["fewshot"]))
    elif plan.rows and docs.kind == "synthetic":
        with suppress(PromptfmtError):
            rendering["rows"] = _plain([dict(row) for row in raw_docs(task, _ROWS)])
    if not plan.other:
        rendering["docs"] = _plain({"evaluated": [*map(dict, docs.evaluated)], "fewshot": [*map(dict, docs.fewshot)]})
    rows = rendering["rows"]

    def texts(change: Change | None, count: int | None, each: Task) -> list[str]:
        """Return the texts of the docs of both sides; of a variant of the first one, if it is to be changed."""
        sources = shown.evaluated if rows is None else rows
        try:
            made = sources if change is None else (change(sources[0]),)
            made = made if rows is None else processed(task, made, unsure)
        except PromptfmtError as error:
            return [_failure(error)]
        pool = shown.fewshot if change is None or rows is not None else tuple(change(doc) for doc in shown.fewshot)
        columns = tuple(dict.fromkeys(name for doc in made for name in doc))
        return rendered(each, replace(shown, evaluated=tuple(made), fewshot=pool, columns=columns), count)

    rendering["same"] = {name: texts(None, count, each) for name, (each, count) in ways.items()}
    for label, change in edge_cases_of((shown.evaluated if rows is None else rows)[0], plan.words):
        for each, count in ways.values():
            text = "\0".join(texts(change, count, each))
            kept = text if len(text) <= _MOST_KEPT else digest_of(text.encode("utf-8", "backslashreplace"))
            rendering["edges"].setdefault(label, []).append(kept)


def _rendered(task: Task, docs: TaskDocs, shots: int | None) -> list[str]:
    """Return the requests and the target of each doc as text; instead of all the name of an exception."""
    try:
        renderer, _ = renderer_with_shots(task, docs, shots)
        return [_text(instance) for instance in renderer.instances()]
    except PromptfmtError as error:
        return [_failure(error)]


def _failure(error: PromptfmtError) -> str:
    return f"! {type(error.__cause__ or error).__name__}"


def _text(instance: Instance) -> str:
    # A target that only names the right continuation may be a number, a letter or a text.
    has_gold = any(each.gold for each in instance.requests)
    asked = [
        [[each.kind, *each.arguments, each.gold] for each in instance.requests],
        None if has_gold else instance.target,
    ]
    try:
        return json.dumps(asked, default=repr)
    except (TypeError, ValueError):
        return repr(asked)


def _quoted(part: str) -> str:
    return json.dumps(part)[1:-1]


def _columns(instances: Sequence[Instance]) -> list[str]:
    """Return the columns that the prompts come from, each with the key that names it."""
    spans = (span.origin for instance in instances for prompt in instance.prompts for span in prompt.spans)
    return sorted({f"{origin.key or origin.part}: {origin.field}" for origin in spans if origin.field})


def _plain(value: Any) -> Any:
    """Return docs; None for values that JSON does not have, such as dates."""
    try:
        is_same = json.loads(json.dumps(value)) == value
    except (TypeError, ValueError, RecursionError):
        return None
    return value if is_same else None


@contextmanager
def _traced(top: Path) -> Iterator[dict[str, set[int]]]:
    """Note the lines of functions in files below a folder that run in the block, by the path below it."""
    lines: dict[str, set[int]] = {}
    start = f"{top}{os.sep}"

    def each_line(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            known[frame.f_code.co_filename].add(frame.f_lineno)
        return each_line

    def each_call(frame: FrameType, _event: str, _argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(start) or frame.f_code.co_name == "<module>":
            return None
        if name not in known:
            known[name] = lines.setdefault(name.removeprefix(start).replace(os.sep, "/"), set())
        return each_line

    known: dict[str, set[int]] = {}
    before = sys.gettrace()
    sys.settrace(each_call)
    try:
        yield lines
    finally:
        sys.settrace(before)


# -- scores of fixed answers, without a model --------------------------------------------------------------------------


def _tried_scores(study: Study, words: Iterable[str]) -> dict[str, str]:
    """Return the scores of answers to each doc as texts, after a description; `words` are answers, too.

    A text that begins with `!` is an exception. Raises the PromptfmtError that stops all scoring.
    """
    scoring = study.scoring_of_prompts
    found: dict[str, str] = {}
    for number, (instance, question) in enumerate(zip(scoring.instances, scoring.questions, strict=True)):
        for label, results in _results(scoring, instance, question, words):
            found[f"{label}, doc {number}"] = _score(scoring, instance, question, results)
    return found


def _results(
    scoring: Scoring, instance: Instance, question: Question, words: Iterable[str]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield results of a model for one doc: a description, and what process_results gets."""
    task = scoring.task
    if not task.generates:
        yield from likelihoods_for(task, len(instance.requests))
        return
    chain = Chain(task, scoring.stops, is_synthetic=scoring.is_synthetic)
    if chain.scores_nothing:
        raise ScoringError("a metric runs generated code")
    for text in texts_for(question, words):
        for pipeline in chain.pipelines:
            read = chain.read_uncounted(pipeline, text, instance.doc, "an answer")
            yield f"{text[:40]!r} by {pipeline.name!r}", [read.problem or read.extracted]


def _score(scoring: Scoring, instance: Instance, question: Question, results: list[Any]) -> str:
    try:
        with time_limit(SECONDS_FOR_CODE, "scoring one doc"):
            values = score_doc(scoring.task, scoring.metrics, copy.deepcopy(instance.doc), question, results)
    except BaseException as error:
        if must_propagate(error):
            raise
        return f"! {type(error).__name__}"
    return ", ".join(f"{name} {text}" for name, text in score_texts(values).items())


# -- edge cases --------------------------------------------------------------------------------------------------------

NOTHING_THERE: Final = "None in"
"""The start of the descriptions of variants that a data set need not have: without a value in a column."""

Change = Callable[[Doc], Doc]

_OF_TEXTS: Final[Mapping[str, Callable[..., str]]] = {
    "spaces at the ends": lambda text: f"  {text} \n",
    "other letter case": lambda text: text.strip("«»").swapcase(),
    "punctuation and odd characters": lambda text: f"{text} {_ODD} {text}",
    "a full stop at the end": lambda text: f"{text}.",
    "long texts": lambda text: f"{text} {'word and word. ' * 200}",
    "several lines": lambda text: f"{text}\n\n{text}\n- {text}",
}


def edge_cases_of(doc: Doc, words: Iterable[str]) -> Iterator[tuple[str, Change]]:
    """Yield functions that make variants of docs with the columns of this one, each after a short description.

    `words` are put into the texts of the docs.
    """
    for shown, of_text in _OF_TEXTS.items():
        yield shown, _in_texts(of_text)
    yield "longer lists", lambda doc: {name: _longer(value) for name, value in doc.items()}
    yield "lists of one", lambda doc: {k: value[:1] if isinstance(value, list) else value for k, value in doc.items()}
    # Of a bool another bool, of a number a number.
    yield "other numbers", lambda doc: _mapped(doc, lambda value: type(value)(not value), (int, float))
    names = [*doc][:_MOST_COLUMNS]
    for name in names:
        yield f"nothing in {name!r}", _with(name, _EMPTY.get(type(doc[name])))
        yield f"{NOTHING_THERE} {name!r}", _with(name, None)
    for word in list(dict.fromkeys(words))[:_MOST_WORDS]:
        yield f"the text {word[:40]!r}", _in_texts(lambda text, word=word: f"{text} {word} {text}")
        yield f"the text {word[:40]!r} at both ends", _in_texts(lambda text, word=word: f"{word}{text}{word}")
        for name in names:
            if isinstance(doc[name], str):
                yield f"{word[:40]!r} in {name!r}", _with(name, word)


def _in_texts(change: Callable[..., str]) -> Change:
    return lambda doc: _mapped(doc, change)


def _with(name: str, value: Any) -> Change:
    return lambda doc: {**doc, name: value} if name in doc else doc


def _mapped(value: Any, change: Callable[..., Any], kinds: type | tuple[type, ...] = str) -> Any:
    """Return a value with `change` applied to each value of some kinds in it."""
    if isinstance(value, kinds):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _mapped(item, change, kinds) for name, item in value.items()}
    return [_mapped(item, change, kinds) for item in value] if isinstance(value, list) else value


def _longer(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        return value
    return [*value, *(_mapped(value, lambda text: f"{text} more")), *(_mapped(value, lambda text: f"{text} most"))]
