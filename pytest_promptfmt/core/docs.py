"""Docs as values: one row of data, and the docs of a task with their kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

Doc = Mapping[str, Any]
"""One row of data: column name to value."""

DocsKind = Literal["given", "mixed", "synthetic"]
"""Where docs come from: the user or a data set, the templates of the task (synthetic), or some from each."""


class GivenDocs(Protocol):
    """Docs that come with the task itself: those of the file or object that holds both."""

    def __call__(self, count: int | None, shots: int, /) -> TaskDocs | None:
        """Return the first `count` docs to evaluate (None: the default few), and the pool for so many shots.

        None where there are none: then docs are found as for other tasks. Raises DocsError.
        """
        ...


@runtime_checkable
class PlacedDocs(GivenDocs, Protocol):
    """Given docs that may also be in the folder that a project has for the docs of a task's file."""

    def placed(self, folder: Path) -> GivenDocs:
        """Return the same docs, looked for in this folder as well."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDocs:
    """The docs of one task after `process_docs`: those evaluated, and the pool that shots are drawn from.

    `columns` are the names that count as columns: those of the evaluated docs (lm-eval 0.4.13 uses the same list for
    shots). `origin` and `fewshot_origin` describe where the docs came from (`2 synthetic`, `3 from arc.docs.jsonl`),
    only for the snapshot header: their kinds are `kind` and `fewshot_kind`. Where `process_docs` draws at random,
    `random_states` are those of generators in which the first doc is laid out.
    """

    evaluated: tuple[Doc, ...]
    fewshot: tuple[Doc, ...]
    columns: tuple[str, ...]
    origin: str
    fewshot_origin: str
    kind: DocsKind = "given"
    fewshot_kind: DocsKind = "given"
    random_states: Mapping[str, Any] | None = None

    @classmethod
    def in_memory(cls, docs: Iterable[Doc], fewshot: Iterable[Doc] | None = None) -> TaskDocs:
        """Return docs given by the caller; shots come from `fewshot`, otherwise from the same docs."""
        evaluated = tuple(docs)
        pool = evaluated if fewshot is None else tuple(fewshot)
        columns = tuple(evaluated[0]) if evaluated else ()
        return cls(
            evaluated=evaluated,
            fewshot=pool,
            columns=columns,
            origin=f"{len(evaluated)} in memory",
            fewshot_origin=f"{len(pool)} in memory",
        )
