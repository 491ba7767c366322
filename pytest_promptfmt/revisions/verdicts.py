"""Verdicts on the tasks that are written differently.

A verdict is changed, the same on all docs, or unknown. A task is unknown if this run could not see its change: code
that did not run, parts of templates that were not printed, docs that come from elsewhere, and tasks that neither side
renders. A task whose docs come from elsewhere is judged by the same docs for both sides.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from difflib import unified_diff
from itertools import filterfalse
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.text import END, shared_end, shared_start, show_inner
from pytest_promptfmt.results.wording import counted
from pytest_promptfmt.revisions.code_changes import CodeChange, not_reached
from pytest_promptfmt.revisions.source_changes import KeyChange, SourceDifference, meaning_of
from pytest_promptfmt.revisions.task_rendering import (
    AS_IT_IS,
    NOTHING_THERE,
    TaskRendering,
    lines_of,
    read_rendering,
)
from pytest_promptfmt.snapshots.changes import SCORING
from pytest_promptfmt.snapshots.content import COLUMNS
from pytest_promptfmt.tasks import reading_of

SOME_DOCS: Final = "some docs"
"""The section of a change that only variants of docs show; the real docs need not have one like that."""

_CONTEXT: Final = 24
_WORDS: Final = re.compile(r"(?:«|\\u00ab).*?(?:»|\\u00bb)")
_REPORT: Final = re.compile(r"(?:print|warnings\.warn|(?:\w*logger|logging|log)\.\w+|\w+ = (?:logging\.)?getLogger)\(")
_RAISES: Final = "! "
_PROCESSING: Final = ("process_docs", "fewshot_config.process_docs")
_NO_ROWS: Final = "there are no docs for the task class"


Place = tuple[str, str]
"""A file and the name of a task@format in it: two files may define one name."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A task that may have changed: the reason why this is unknown, and the smallest step that would show it."""

    task: str
    file: str
    reason: str
    step: str

    def to_json(self) -> dict[str, str]:
        """Return the fields in JSON's types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class UnseenChange:
    """A change that no snapshot shows: a line about it, the lines that differ, and what part of a task they are."""

    task: str
    file: str
    title: str
    detail: str = ""
    section: str = "prompt"


@dataclass(slots=True)
class Judgement:
    """The verdicts on tasks@format: changes in addition to those of snapshots, unknown tasks, and unchanged ones.

    `same` states on how many docs. `other_docs` are the keys by which the docs of a task come from elsewhere.
    `only_names` are those whose snapshots differ only in the names of synthetic columns.
    """

    changed: list[UnseenChange] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    same: dict[Place, str] = field(default_factory=dict)
    other_docs: dict[Place, str] = field(default_factory=dict)
    only_names: set[Place] = field(default_factory=set)


def judge(
    found: Judgement,
    difference: SourceDifference,
    task: str,
    renderings: tuple[Path, Path],
    *,
    shown: bool,
    reason: str,
) -> None:
    """Add the verdict on a task@format.

    `shown` states whether a snapshot or an error shows a change of it already, `reason` why it was not rendered, "" if
    unknown.
    """
    old, new = (read_rendering(folder, task) for folder in renderings)
    file = difference.file
    moved = [change for change in difference.of("docs") if change.is_rewritten and change.key not in _PROCESSING]
    if moved:
        found.other_docs[file, task] = ", ".join(_rewriting(difference, change.key) for change in moved)
    _judge_reading(found, difference, task, (old, new))
    if old is None or new is None or old["error"] or new["error"]:
        if not shown:
            why = reason or next((side["error"] for side in (new, old) if side and side["error"]), "")
            changes = [each for each in difference.changes if each.use != "reading" or each.key == "generation_kwargs"]
            if changes:
                keys = ", ".join(map(str, changes))
                said = f"{keys} changed, but the task could not be rendered" + (f": {why}" if why else "")
                found.unknown.append(Unknown(task, file, said, _step_to_render(difference, why)))
        return
    differing = [way for way, texts in old["same"].items() if new["same"].get(way, texts) != texts]
    own = [way for way, texts in old["own"].items() if new["own"].get(way, texts) != texts]
    is_given = {"given", "mixed"} & {*old["kinds"], *new["kinds"]}
    is_lacking = not is_given and _lacks_columns(old, new)
    if differing and (
        is_lacking or any(_fails(new["same"][way]) and not _fails(old["same"][way]) for way in differing)
    ):
        columns = _other_columns(old, new)
        if not shown or _without_words(old) == _without_words(new):
            found.changed.append(UnseenChange(task, file, f"the task now uses other columns{columns}", section=COLUMNS))
            found.only_names.add((file, task))
    elif differing or (own and (is_given or not old["same"])):
        if not shown:
            way, texts = (differing[0], "same") if differing else (own[0], "own")
            found.changed.append(_seen(task, file, way, old[texts][way], new[texts][way]))
    else:
        if not is_given and old["same"]:
            found.only_names.add((file, task))
        _judge_unseen(found, difference, task, (old, new), is_given=bool(is_given))
        if shown:
            found.same.pop((file, task), None)


def judge_other(found: Judgement, task: str, file: str, sides: tuple[Path, Path], why: str) -> None:
    """Add a task of a file that is not YAML, where the file differs and no prompt of it does.

    `why` states why it was not rendered, "" if it was: then nothing is added for a file whose two sides mean the same,
    nor for a Python file, whose classes are compared themselves.
    """
    if why:
        said, step = f"the file changed, but could not be rendered: {why}", f"run pytest --promptfmt {file}"
        found.unknown.append(Unknown(task, file, said, step))
    elif not file.endswith(".py") and meaning_of(sides[0]) != meaning_of(sides[1]):
        step = "add docs or conversations in which the change is visible"
        found.unknown.append(Unknown(task, file, "the file changed, but the rendered prompts did not", step))


def _rewriting(difference: SourceDifference, key: str) -> str:
    """Return a key with its values on both sides."""
    sides = (json.dumps(side.values.get(key), default=str) for side in (difference.old, difference.new))
    return f"{key}: {' → '.join(map(_cut, sides))}"


def _judge_reading(
    found: Judgement,
    difference: SourceDifference,
    task: str,
    renderings: tuple[TaskRendering | None, TaskRendering | None],
) -> None:
    changes = difference.of("reading")
    if not changes:
        return
    sides = reading_of(difference.old.values), reading_of(difference.new.values)
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        old, new = (side.get(name, "") for side in sides)
        if old != new:
            title = f"{name}: {_excerpt(old, new)}"
            found.changed.append(UnseenChange(task, difference.file, title, f"- {old}\n+ {new}", SCORING))
    for change in changes:
        if not all(map(_only_reports, change.code)):
            _judge_code_of_scoring(found, difference, task, change, renderings)


def _judge_code_of_scoring(
    found: Judgement,
    difference: SourceDifference,
    task: str,
    change: KeyChange,
    renderings: tuple[TaskRendering | None, TaskRendering | None],
) -> None:
    scores = [side["scores"] if side is not None else {} for side in renderings]
    for label, old in scores[0].items():
        new = scores[1].get(label, old)
        if old != new:
            title = f"{change.key}: {label}: {_excerpt(old, new)}"
            found.changed.append(UnseenChange(task, difference.file, title, f"- {old}\n+ {new}", SCORING))
            return
    errors = [side["scoring_error"] or side["error"] for side in renderings if side is not None]
    why = next(filter(None, errors), "")
    if all(scores) and not why:
        lines = [lines_of(side, "scored_lines") for side in renderings if side is not None]
        code = filterfalse(_only_reports, change.code)
        missed = [not_reached(each, change.closures, (lines[0], lines[1])) for each in code]
        if not any(missed):
            return
        why = f"{next(filter(None, missed))} did not run"
    said = f"answers: the code of {change.key} changed ({change.code[0].shown}), but {why or 'no answer was scored'}"
    step = "replay recorded completions with both revisions, or compare the code"
    found.unknown.append(Unknown(task, difference.file, said, step))


def _judge_unseen(
    found: Judgement,
    difference: SourceDifference,
    task: str,
    renderings: tuple[TaskRendering, TaskRendering],
    *,
    is_given: bool,
) -> None:
    """Add why the same texts do not prove that nothing changed, or on how many docs they are the same."""
    for label, before, after in _differing_edges(renderings):
        if not label.startswith(NOTHING_THERE):
            sides = [text.split("\0") for text in (before, after)]
            is_shown = all(text.startswith("[") for text in (before, after))
            change = UnseenChange(task, difference.file, f"the text differs for docs with {label}")
            change = _seen(task, difference.file, f"docs with {label}", *sides) if is_shown else change
            found.changed.append(replace(change, section=SOME_DOCS))
            return
    reasons = [*_reasons(difference, renderings, is_given=is_given)]
    failed = [texts[0] for texts in renderings[0]["same"].values() if _fails(texts)]
    if difference.changes and failed and len(failed) == len(renderings[0]["same"]):
        reasons.append(f"the task could not be rendered: {failed[0].removeprefix(_RAISES).strip()}")
    if reasons:
        found.unknown.append(Unknown(task, difference.file, reasons[0], _step(difference)))
        return
    changed = difference.of("prompt") + difference.of("docs")
    if changed:
        old = renderings[0]
        # The variants of docs are made of what `process_docs` returns.
        edges = sum(map(len, old["edges"].values())) if difference.of("prompt") else 0
        count = sum(len(texts) for texts in old["same"].values()) + edges
        found.same[difference.file, task] = f"{', '.join(map(str, changed))}: the same text for {counted(count, 'doc')}"


def _reasons(
    difference: SourceDifference, renderings: tuple[TaskRendering, TaskRendering], *, is_given: bool
) -> Iterator[str]:
    old, new = renderings
    lines = lines_of(old), lines_of(new)
    for change in difference.changes:
        if change.key in _PROCESSING and change.is_rewritten and not change.code:
            yield f"{change.key} is now another function, and it is unknown which docs this function keeps"
        if change.use != "reading":
            for each in filterfalse(_only_reports, change.code):
                missed = not_reached(each, change.closures, lines)
                if missed:
                    why = "" if is_given or change.use == "prompt" else ", because it gets no synthetic docs"
                    yield f"the code of {change.key} changed, but {missed} did not run{why}"
    for label, *_ in _differing_edges(renderings):
        yield f"the revisions have different texts for docs with {label}"
    for part in (*old["unseen"], *new["unseen"]):
        yield f"{_excerpted(part)} changed, but appears in no prompt"
    if old["columns"] != new["columns"]:
        yield f"the task now uses other columns, but in the docs their values are the same{_other_columns(old, new)}"
    if not old["same"] and not is_given:
        yield "the docs cannot be compared"


def _only_reports(change: CodeChange) -> bool:
    """Return whether only statements that print or log, or name a logger, differ."""
    nodes = [piece.node for pieces in change.changed_pieces() for piece in pieces]
    return all(isinstance(node, ast.Expr | ast.Assign) and _REPORT.match(ast.unparse(node)) for node in nodes)


def _differing_edges(renderings: tuple[TaskRendering, TaskRendering]) -> Iterator[tuple[str, str, str]]:
    """Yield the variants whose texts differ, each with both texts."""
    for label, made in renderings[0]["edges"].items():
        for old, new in zip(made, renderings[1]["edges"].get(label, made), strict=False):
            if old != new and not _fails([old]):
                yield label, old, new


def _step_to_render(difference: SourceDifference, why: str) -> str:
    if _is_class(difference) and why != _NO_ROWS:
        return "render both revisions with lm-eval"
    can_be_had = "synthetic docs" in why or why == _NO_ROWS
    return _step(difference) if can_be_had else f"run pytest --promptfmt {difference.file} to see the error"


def _step(difference: SourceDifference) -> str:
    if _is_class(difference):
        return f"put rows that show the change into {difference.new.name}.docs.jsonl, then compare again"
    return f"run promptfmt freeze {difference.file}, then compare again"


def _is_class(difference: SourceDifference) -> bool:
    return any(change.key == "class" for change in difference.changes)


def _fails(texts: list[str]) -> bool:
    return bool(texts) and texts[0].startswith(_RAISES)


def _without_words(rendering: TaskRendering) -> dict[str, list[str]]:
    """Return the texts of the task's own synthetic docs, without the names of their columns."""
    return {way: [_WORDS.sub("«»", text) for text in texts] for way, texts in rendering["own"].items()}


def _lacks_columns(old: TaskRendering, new: TaskRendering) -> bool:
    """Return whether the new side reads columns that the docs of the old side do not have, so their content is unknown.

    These docs have all columns that the old side reads, except those that a function can do without.
    """
    named = [{name for _, *names in side["named"] for name in names} for side in (old, new)]
    return old["docs"] is not None and not named[1] <= named[0].union(*old["docs"]["evaluated"])


def _other_columns(old: TaskRendering, new: TaskRendering) -> str:
    before, after = (
        {*side["columns"], *(f"{key}: {name}" for key, *names in side["named"] for name in names)}
        for side in (old, new)
    )
    gone, come = sorted(before - after), sorted(after - before)
    return f" ({', '.join(gone) or 'none'} → {', '.join(come) or 'none'})" if gone or come else ""


def _seen(task: str, file: str, way: str, old: list[str], new: list[str]) -> UnseenChange:
    """Return the first texts that differ, as a change."""
    pairs = [pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]]
    asked = tuple(map(_read, pairs[0])) if pairs else ("", "")
    one, other = next(iter(_differing_texts(*asked)), pairs[0] if pairs else ("", ""))
    lines = [[f"| {show_inner(line)}" for line in text.split("\n")] for text in (one, other)]
    before, after = ([*side[:-1], side[-1] + END] for side in lines)
    detail = [*unified_diff(before, after, lineterm="", n=1)]
    where = "" if way == AS_IT_IS else f"{way}: "
    return UnseenChange(task, file, where + _excerpt(one, other), "\n".join(detail[2:]), _section(*asked))


def _section(old: Any, new: Any) -> str:
    """Return the section of a snapshot that would show the difference of two docs, each its requests and its target."""
    if not (isinstance(old, list) and isinstance(new, list)):
        return "prompt"  # an exception, or what JSON does not know
    (asked, _), (asks, _) = old, new
    if asked == asks:
        return "target"
    if [each[:2] for each in asked] != [each[:2] for each in asks]:
        return "prompt"
    return "generate" if asked[0][0] == "generate_until" else "continuations"


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _differing_texts(old: Any, new: Any) -> Iterator[tuple[str, str]]:
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for one, other in zip(old, new, strict=True):
            yield from _differing_texts(one, other)
    elif old != new:
        yield tuple(each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in (old, new))  # type: ignore[misc]


def _excerpt(old: str, new: str) -> str:
    """Return the difference of two texts with a few characters around it: `A became B`."""
    start = max(shared_start(old, new) - _CONTEXT, 0)
    start = start if start > 4 else 0
    end = shared_end(old[start:], new[start:])
    cut = max(end - _CONTEXT, 0)
    return " → ".join(_excerpted(text[start : len(text) - cut]) for text in (old, new))


def _excerpted(text: str) -> str:
    return json.dumps(_cut(text), ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:100]}…{text[-50:]}"
