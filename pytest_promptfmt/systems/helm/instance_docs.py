"""The docs of a HELM task: the instances of its file, else what is beside it or synthetic."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import DocsError, Position, SourceError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.helm.adapter_files import AdapterFile
from pytest_promptfmt.systems.helm.instances import HelmInstance, completed
from pytest_promptfmt.tasks import MAX_DOCS

DEFAULT_COUNT: Final = 3


@dataclass(frozen=True, eq=False)
class InstanceDocs:
    """The docs of a file: its instances, and without states those of `plain`, which has columns and nothing of HELM."""

    file: AdapterFile
    plain: Task

    def __call__(self, count: int | None, shots: int) -> TaskDocs:
        """Return the docs, and those that shots are drawn from. Raises DocsError where no state can be used."""
        if self.file.has_states:
            return _of_states(self.file, count, shots)
        return _from_elsewhere(self.file, self.plain, count, shots)

    def placed(self, folder: Path) -> InstanceDocs:
        """Return the same docs, looked for in this folder as well."""
        return replace(self, plain=replace(self.plain, docs_folder=folder))


def _of_states(file: AdapterFile, count: int | None, shots: int) -> TaskDocs:
    wanted = count or DEFAULT_COUNT
    if file.draws_from_all:
        return _drawn(file, wanted, shots)
    evaluated: list[HelmInstance] = []
    train: list[HelmInstance] = []
    needs_train = shots > 0 and file.has_train
    for row in _instances(file):
        if row.is_train:
            if needs_train and len(train) < MAX_DOCS:
                train.append(row)
        elif len(evaluated) < wanted and (file.spec.evaluates(row.split) or not file.has_evaluated):
            evaluated.append(row)
        if len(evaluated) == wanted and not needs_train:
            break
    pool = (
        "the recorded prompts" if file.first.has_prompts and not file.has_train else f"{len(train)} of the split train"
    )
    return _docs(file, evaluated, train, pool)


def _from_elsewhere(file: AdapterFile, plain: Task, count: int | None, shots: int) -> TaskDocs:
    from pytest_promptfmt.tasks import load_docs  # asks the task for docs, and so calls us

    docs = load_docs(replace(plain, num_fewshot=shots), count=count)
    evaluated = tuple(completed(doc, file.spec) for doc in docs.evaluated)
    return replace(
        docs,
        evaluated=evaluated,
        fewshot=tuple(completed(doc, file.spec) for doc in docs.fewshot),
        columns=tuple(dict.fromkeys(column for doc in evaluated for column in doc)),
    )


def _drawn(file: AdapterFile, wanted: int, shots: int) -> TaskDocs:
    """Return docs of a file whose instances have one split: shots drawn by a seed, the others evaluated."""
    rows = list(islice(_instances(file), MAX_DOCS))
    number = min(shots, max(len(rows) - 1, 0))
    chosen = set(random.Random(0).sample(range(len(rows)), number))
    evaluated = [row for index, row in enumerate(rows) if index not in chosen][:wanted]
    train = [rows[index] for index in sorted(chosen)]
    return _docs(file, evaluated, train, f"{number} drawn from {len(rows)} instances")


def _docs(file: AdapterFile, evaluated: Sequence[HelmInstance], train: Sequence[HelmInstance], pool: str) -> TaskDocs:
    name = file.path.name
    if not evaluated and file.bad:
        raise file.bad[0]
    if not evaluated:
        raise DocsError(f"no docs: {name} has no instance of the split valid or test", position=Position(file.path))
    docs = tuple(row.doc(file.spec) for row in evaluated)
    return TaskDocs(
        evaluated=docs,
        fewshot=tuple(row.doc(file.spec) for row in train),
        columns=tuple(dict.fromkeys(column for doc in docs for column in doc)),
        origin=f"{len(docs)} from {name}",
        fewshot_origin=pool,
    )


def _instances(file: AdapterFile) -> Iterator[HelmInstance]:
    """Yield each instance of a file once, in order: states of other references and trials are of the same one."""
    seen: set[int] = set()
    last: Any = None
    for state in file.states():
        instance = state.get("instance")
        if last is not None and last == instance:
            continue
        last = instance
        digest = hash(json.dumps(instance, sort_keys=True))
        if digest in seen and file.first.has_prompts:
            continue
        seen.add(digest)
        try:
            yield state.row()
        except SourceError:
            continue  # a failing item reports it
