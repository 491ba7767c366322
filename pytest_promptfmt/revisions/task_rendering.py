"""A task rendered on one side of a comparison: the docs of both sides, also with shots, and variants of these docs.

The variants have edge cases of data (spaces, letter case, empty values, None, long lists) and the words that changed
code names. A difference in a variant only need not show in a real doc, so it is unknown. The rendering is a mapping of
JSON values; the worker that renders writes it, and its content is untrusted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.inputs.places import digest_of
from pytest_promptfmt.study import Study
from pytest_promptfmt.tasks import columns_read, renderer_with_shots, with_pool

SHOTS: Final = 2
"""Few-shot examples that are tried where the task itself has none."""
AS_IT_IS: Final = "as it is"
WITH_SHOTS: Final = f"with {SHOTS} shots"

_MOST_COLUMNS: Final = 12
_MOST_WORDS: Final = 12
_ODD: Final = "1. (a) [b] {c} <d> 'e' \"f\" \\g/ $h$ *i* _j_ #k @l é — ... ? ! ; : , %s 3.50 \n\nB\t c  d"

TaskRendering = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderingPlan:
    """The part of a comparison that renders one task on one side; all values are of JSON's types.

    Code below the folder `top` is traced, `words` are put into docs, `parts` are texts of templates to search in
    prompts. Renderings are written to `folder`; `other` is the folder of the first side, "" for the first side itself.
    """

    top: str
    folder: str
    other: str = ""
    words: Sequence[str] = ()
    parts: Sequence[str] = ()


def path_of(folder: Path, task: str) -> Path:
    """Return the path of the rendering of a task@format in a folder of them."""
    return folder / f"{digest_of(task.encode('utf-8', 'backslashreplace'))}.json"


def read_rendering(folder: Path, task: str) -> TaskRendering | None:
    """Return the rendering of a task@format; None if its worker wrote none, or an invalid one."""
    try:
        rendering = json.loads(path_of(folder, task).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    known = {"error", "own", "same", "edges", "columns", "named", "kinds", "docs", "lines", "unseen"}
    return rendering if isinstance(rendering, dict) and known <= rendering.keys() else None


def rendering_of(study: Study, plan: RenderingPlan) -> TaskRendering:
    """Return the texts that a task renders, and the lines of code that ran for it.

    `own` are the texts of the task's own docs, `same` those of the docs that both sides render, `edges` digests of
    those of variants of these docs; a text that begins with `!` is an exception. `unseen` are the parts of templates
    that no text contains. `columns` are those that the prompts come from, `named` those that the task reads of
    synthetic docs.
    """
    rendering: TaskRendering = {"error": "", "own": {}, "same": {}, "edges": {}, "kinds": [], "docs": None}
    rendering |= {"columns": [], "named": []}
    rendering["unseen"] = [*plan.parts]
    lines: dict[str, set[int]] = {}
    with _traced(Path(plan.top), lines):
        try:
            _fill(rendering, study, plan)
        except PromptfmtError as error:
            rendering["error"] = error.message
    rendering["lines"] = {name: sorted(ran) for name, ran in lines.items()}
    return rendering


def lines_of(rendering: Mapping[str, Any]) -> dict[str, Set[int]]:
    """Return the lines that ran, by file below the tree."""
    return {str(name): frozenset(ran) for name, ran in rendering["lines"].items()}


def _fill(rendering: TaskRendering, study: Study, plan: RenderingPlan) -> None:
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
    if not plan.other:
        rendering["docs"] = _in_json(docs)
    else:
        first = read_rendering(Path(plan.other), study.given.id)
        given = first["docs"] if first is not None else None
        if given is None:
            return
        shown = replace(docs, evaluated=tuple(given["evaluated"]), fewshot=tuple(given["fewshot"]))
        shown = replace(shown, columns=tuple(dict.fromkeys(name for doc in shown.evaluated for name in doc)))
    rendering["same"] = {name: rendered(each, shown, count) for name, (each, count) in ways.items()}
    for label, change in edge_cases_of(shown.evaluated[0], plan.words):
        edge = replace(
            shown, evaluated=(change(shown.evaluated[0]),), fewshot=tuple(change(doc) for doc in shown.fewshot)
        )
        for each, count in ways.values():
            text = "\0".join(rendered(each, edge, count))
            made = text if text.startswith("!") else digest_of(text.encode("utf-8", "backslashreplace"))
            rendering["edges"].setdefault(label, []).append(made)


def _rendered(task: Task, docs: TaskDocs, shots: int | None) -> list[str]:
    """Return the requests and the target of each doc as text; instead of all the name of an exception."""
    try:
        renderer, _ = renderer_with_shots(task, docs, shots)
        return [_text(instance) for instance in renderer.instances()]
    except PromptfmtError as error:
        return [f"! {type(error.__cause__ or error).__name__}"]


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


def _in_json(docs: TaskDocs) -> dict[str, list[Doc]] | None:
    """Return the docs; None for values that JSON does not have, such as dates."""
    given = {"evaluated": [dict(doc) for doc in docs.evaluated], "fewshot": [dict(doc) for doc in docs.fewshot]}
    try:
        is_same = json.loads(json.dumps(given)) == given
    except (TypeError, ValueError, RecursionError):
        return None
    return given if is_same else None  # type: ignore[return-value]


@contextmanager
def _traced(top: Path, lines: dict[str, set[int]]) -> Iterator[None]:
    """Note the lines of functions in files below a folder that run in the block."""
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
        yield
    finally:
        sys.settrace(before)


# -- edge cases --------------------------------------------------------------------------------------------------------

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
    yield "other numbers", lambda doc: {name: _numbered(value) for name, value in doc.items()}
    names = [*doc][:_MOST_COLUMNS]
    for name in names:
        yield f"nothing in {name!r}", _with(name, _empty(doc[name]))
        yield f"None in {name!r}", _with(name, None)
    for word in list(dict.fromkeys(words))[:_MOST_WORDS]:
        yield f"the text {word[:40]!r}", _in_texts(lambda text, word=word: f"{text} {word} {text}")
        yield f"the text {word[:40]!r} at both ends", _in_texts(lambda text, word=word: f"{word}{text}{word}")
        for name in names:
            if isinstance(doc[name], str):
                yield f"{word[:40]!r} in {name!r}", _with(name, word)


def _in_texts(change: Callable[..., str]) -> Change:
    return lambda doc: {name: _mapped(value, change) for name, value in doc.items()}


def _with(name: str, value: Any) -> Change:
    return lambda doc: {**doc, name: value} if name in doc else doc


def _mapped(value: Any, change: Callable[..., str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _mapped(item, change) for name, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list) else value


def _longer(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        return value
    return [*value, *(_mapped(value, lambda text: f"{text} more")), *(_mapped(value, lambda text: f"{text} most"))]


def _numbered(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | Mapping | list):
        return not value if isinstance(value, bool) else value
    if isinstance(value, Mapping):
        return {name: _numbered(item) for name, item in value.items()}
    return [_numbered(item) for item in value] if isinstance(value, list) else 1 if not value else 0


def _empty(value: Any) -> Any:
    empties: dict[type, Any] = {str: "", list: [], dict: {}, int: 0, float: 0.0, bool: False}
    return empties.get(type(value))
