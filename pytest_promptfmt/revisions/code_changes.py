"""Which statements of two revisions of the same code differ, and whether they ran."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from difflib import SequenceMatcher

from pytest_promptfmt.revisions.statements import Closure, Definition, Statement

Lines = Mapping[str, Set[int]]
"""Lines that ran, from 1, by path below the tree."""


@dataclass(frozen=True)
class CodeChange:
    """A definition that differs, as each side has it; None where one side does not reach any of that name."""

    old: Definition | None
    new: Definition | None

    @property
    def shown(self) -> Definition:
        """Return the definition that a message names."""
        found = self.new or self.old
        assert found is not None
        return found

    def changed_pieces(self) -> tuple[list[Statement], list[Statement]]:
        """Return the statements that only one side has, for each side."""
        old, new = self.old.pieces if self.old else (), self.new.pieces if self.new else ()
        matcher = SequenceMatcher(None, [piece.form for piece in old], [piece.form for piece in new], autojunk=False)
        blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
        gone = [piece for _, start, end, _, _ in blocks for piece in old[start:end]]
        return gone, [piece for _, _, _, start, end in blocks for piece in new[start:end]]

    def constants(self) -> Iterator[str]:
        """Yield the texts written in the statements that differ."""
        for piece in (piece for side in self.changed_pieces() for piece in side):
            for node in ast.walk(piece.node) if piece.node is not None else ():
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def code_changes(old: Closure, new: Closure) -> list[CodeChange]:
    """Return the definitions that differ between two closures."""
    changes = [CodeChange(old.get(key), new.get(key)) for key in sorted({*old, *new})]
    return [change for change in changes if any(change.changed_pieces()) and not _is_import(change.shown)]


def _is_import(definition: Definition) -> bool:
    """Return whether it only imports: what it leads to in the tree is compared itself."""
    return bool(definition.nodes) and all(isinstance(node, ast.Import | ast.ImportFrom) for node in definition.nodes)


def not_reached(change: CodeChange, closures: tuple[Closure, Closure], lines: tuple[Lines, Lines]) -> str:
    """Return which statement that differs was not run on its side, "" where all were."""
    for side, pieces, closure, ran in zip(
        (change.old, change.new), change.changed_pieces(), closures, lines, strict=True
    ):
        if side is None:
            continue
        if not side.runs_when_called:
            if pieces and not _is_used(side, closure, ran, set()):
                return str(side)
            continue
        own = ran.get(side.file, frozenset())
        for piece in pieces:
            if piece.attribute and _is_read(piece.attribute, closure, ran):
                continue
            if own.isdisjoint(range(piece.start, piece.end + 1)):
                return f"{side.file}:{piece.start} in {side.name}"
    return ""


def _is_used(definition: Definition, closure: Closure, ran: Lines, seen: set[str]) -> bool:
    """Return whether a statement that uses this name was run, or one that uses a name made of it."""
    seen.add(definition.key)
    for other in closure.values():
        own = ran.get(other.file, frozenset())
        for top_level in other.nodes:
            uses = _uses(top_level, lambda node: isinstance(node, ast.Name) and node.id == definition.name)
            if other.runs_when_called:
                if any(not own.isdisjoint(range(node.lineno, (node.end_lineno or node.lineno) + 1)) for node in uses):
                    return True
            elif uses and other.key not in seen and _is_used(other, closure, ran, seen):
                return True
    return False


def _is_read(attribute: str, closure: Closure, ran: Lines) -> bool:
    """Return whether a statement that reads this attribute of some object was run."""
    return any(
        not ran.get(other.file, frozenset()).isdisjoint(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for other in closure.values()
        for top_level in other.nodes
        for node in _uses(top_level, lambda node: isinstance(node, ast.Attribute) and node.attr == attribute)
    )


def _uses(node: ast.AST, is_meant: Callable[[ast.AST], bool]) -> list[ast.expr]:
    return [part for part in ast.walk(node) if isinstance(part, ast.expr) and is_meant(part)]
