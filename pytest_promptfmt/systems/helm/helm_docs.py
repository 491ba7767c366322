"""The docs of a HELM task: the instances of its file, else what stands beside it or is made up."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from pytest_promptfmt.core.errors import DocsError, Position, SourceError
from pytest_promptfmt.core.task import Doc, Task, TaskDocs
from pytest_promptfmt.systems.helm.helm_file import Row, is_evaluated, is_train, labelled, row_of
from pytest_promptfmt.systems.helm.helm_source import HelmSource
from pytest_promptfmt.systems.helm.helm_spec import AdapterSpec
from pytest_promptfmt.systems.lm_eval.docs.data_files import MAX_DOCS

DEFAULT_COUNT: Final = 3


def helm_docs(source: HelmSource, plain: Task, count: int | None, shots: int) -> TaskDocs:
    """Return the instances of a file as docs, and those that demonstrations are drawn from.

    Without states they are looked for as those of `plain`, which has columns and nothing of HELM: beside the file,
    else made up. Raises DocsError where no state can be used.
    """
    if not source.has_states:
        return _from_elsewhere(source, plain, count, shots)
    wanted = count or DEFAULT_COUNT
    evaluated: list[Doc] = []
    train: list[Doc] = []
    needs_train = shots > 0 and source.has_train
    if source.draws_from_all:
        return _drawn(source, wanted, shots)
    for row in _rows(source):
        if is_train(row.split):
            if needs_train and len(train) < MAX_DOCS:
                train.append(row.doc)
        elif len(evaluated) < wanted and (is_evaluated(row.split, source.spec) or not source.has_evaluated):
            evaluated.append(row.doc)
        if len(evaluated) == wanted and not needs_train:
            break
    pool = "the recorded prompts" if source.has_prompts and not source.has_train else f"{len(train)} of the split train"
    return _docs(source, evaluated, train, pool)


def _from_elsewhere(source: HelmSource, plain: Task, count: int | None, shots: int) -> TaskDocs:
    from pytest_promptfmt.systems.lm_eval.docs.loading import load_docs  # asks the task for docs, and so calls us

    docs = load_docs(replace(plain, num_fewshot=shots), count=count)
    evaluated = tuple(completed(doc, source.spec) for doc in docs.evaluated)
    return replace(
        docs,
        evaluated=evaluated,
        fewshot=tuple(completed(doc, source.spec) for doc in docs.fewshot),
        columns=_columns(evaluated),
    )


def completed(doc: Doc, spec: AdapterSpec) -> Doc:
    """Return a doc with `input`, `references` and `answer_index` (or `answer`) with all the columns of an instance."""
    given = doc.get("references")
    references = [str(each) for each in given] if isinstance(given, list | tuple) else []
    index, answer = doc.get("answer_index"), doc.get("answer")
    if not isinstance(index, int) and isinstance(answer, str):
        references = references or [answer]
        index = references.index(answer) if answer in references else None
    correct = [index] if isinstance(index, int) and 0 <= index < len(references) else []
    made = {**doc, "references": references, "correct": correct}
    if correct:
        made |= {"answer": references[correct[0]], "answer_index": correct[0]}
    return labelled(made, spec)


def _drawn(source: HelmSource, wanted: int, shots: int) -> TaskDocs:
    """Return docs of a file whose instances are all alike: demonstrations drawn by a seed, the others evaluated."""
    rows = [row.doc for row in islice(_rows(source), MAX_DOCS)]
    number = min(shots, max(len(rows) - 1, 0))
    chosen = set(random.Random(0).sample(range(len(rows)), number))
    train = [rows[index] for index in sorted(chosen)]
    evaluated = [row for index, row in enumerate(rows) if index not in chosen][:wanted]
    return _docs(source, evaluated, train, f"{number} drawn from {len(rows)} instances")


def _docs(source: HelmSource, evaluated: Sequence[Doc], train: Sequence[Doc], pool: str) -> TaskDocs:
    name = source.file.path.name
    if not evaluated:
        raise (
            source.bad[0]
            if source.bad
            else DocsError(
                f"no docs: {name} has no instance of the split valid or test", position=Position(source.file.path)
            )
        )
    return TaskDocs(
        evaluated=tuple(evaluated),
        fewshot=tuple(train),
        columns=_columns(evaluated),
        origin=f"{len(evaluated)} from {name}",
        fewshot_origin=pool,
    )


def _columns(docs: Sequence[Doc]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(column for doc in docs for column in doc))


def _rows(source: HelmSource) -> Iterator[Row]:
    """Yield each instance of a file once, in order: states of other references and trials are of the same one."""
    seen: set[int] = set()
    last: Any = None
    for state in source.file.states():
        value = state.value
        instance = value.get("instance") if isinstance(value, dict) else None
        if last is not None and last == instance:
            continue
        last = instance
        digest = hash(json.dumps(instance, sort_keys=True))
        if digest in seen and source.has_prompts:
            continue
        seen.add(digest)
        try:
            yield row_of(source.file, state, source.spec)
        except SourceError:
            continue  # told as a failing item of its own
