"""The names of docs that a Jinja template uses, and as what: facts about paths from a doc to its values.

Values only: `choices` has at least 4 elements, `label` is an index below 3. template_shapes.py reads them from a
template, synthetic_docs.py makes docs from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from jinja2 import nodes
from jinja2.defaults import DEFAULT_NAMESPACE

from pytest_promptfmt.core.data_tables import data_table

ELEMENT: Final = None
"""The step of a path from a list to each of its elements."""

Path = tuple[str | None, ...]
"""From a doc to a value: `("choices", "text", ELEMENT)`."""

Kind = Literal[
    "used",  # appears at all
    "literal",  # is a text that code reads as a list or mapping
    "text",  # has text done to it
    "number",  # has arithmetic done to it
    "list",  # argument: the smallest length seen, 0 when unknown
    "sized",  # its length is read: a list, or a text
    "mapping",
    "one of",  # argument: tuple of the only values that work
    "equals",  # argument: a constant it is compared with
    "range",  # argument: (first, last + 1) of the integers that work
    "member of",  # argument: path of the list that holds it
    "index of",  # argument: path of the list it is an index of
    "contains",  # argument: a constant that is in this list
    "parts",  # argument: (separator, number of parts)
    "start",  # argument: None; it is where a slice begins
    "end",  # argument: None; it is where a slice ends
    "cut",  # argument: number of leading characters that are sliced off
]


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing a template needs of the value at a path."""

    path: Path
    kind: Kind
    argument: Any = None


@dataclass(frozen=True, slots=True)
class Shapes:
    """Everything one template needs.

    `facts` are in the order of the template. `alone` is the path when the whole template is one bare expression
    (`{{ label }}`), else None. `literal_length` is the length of the list literal when the template is one.
    """

    facts: tuple[Fact, ...] = ()
    alone: Path | None = None
    literal_length: int | None = None


def constant_of(node: nodes.Node | None) -> Any:
    """Return the value of a literal (also `-1`), None for anything else."""
    if isinstance(node, nodes.Const):
        return node.value
    if isinstance(node, nodes.Neg) and isinstance(value := constant_of(node.node), int | float):
        return -value
    return None


def options_of(node: nodes.Node) -> Sequence[Any] | Mapping[Any, Any] | None:
    """Return the elements of a literal text, list or tuple, or the mapping of a literal dict; None for others."""
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        return node.value
    if isinstance(node, nodes.List | nodes.Tuple):
        values = [constant_of(item) for item in node.items]
        return values if None not in values else None
    if isinstance(node, nodes.Dict):
        return {key: None for pair in node.items if isinstance(key := constant_of(pair.key), str | int)}
    return None


def between(options: Iterable[Any], prefix: str, suffix: str) -> Iterator[Any]:
    """Yield what has to be between the affixes to give each option."""
    if not prefix and not suffix:
        yield from options
        return
    for option in options:
        if isinstance(option, str) and option.startswith(prefix) and option.endswith(suffix):
            yield option[len(prefix) : len(option) - len(suffix)]


def split_call(node: nodes.Call) -> tuple[nodes.Node, str] | None:
    """Return the text and separator of `text.split("x")`."""
    if isinstance(node.node, nodes.Getattr) and node.node.attr in ("split", "rsplit", "partition") and node.args:
        separator = constant_of(node.args[0])
        if isinstance(separator, str) and separator:
            return node.node.node, separator
    return None


def names_of(kind: str) -> frozenset[str]:
    """Return the names of a kind in `data/jinja_uses.yaml`."""
    return frozenset(data_table("jinja_uses")[kind].split())


CASTS: Final = names_of("casts")
SAME_TEXT_METHODS: Final = names_of("same text methods")
_SAME_TEXT_FILTERS: Final = names_of("same text filters")
_NOT_DOC: Final = frozenset(DEFAULT_NAMESPACE) | {"loop", "self", "super", "caller", "varargs", "kwargs"}


class Names:
    """The names of a template, at one place of it: those it sets itself (`bound`) hide those of the doc."""

    def __init__(self) -> None:
        self.bound: dict[str, Path | None] = {}

    def path_of(self, node: nodes.Node | None) -> Path | None:
        """Return the path of the doc's value that an expression names; None for anything computed."""
        if isinstance(node, nodes.Name):
            if node.name in self.bound:
                return self.bound[node.name]
            return None if node.name in _NOT_DOC else (node.name,)
        if isinstance(node, nodes.Getattr):
            parent = self.path_of(node.node)
            return None if parent is None else (*parent, node.attr)
        if isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Slice):
            parent = self.path_of(node.node)
            if parent is None:
                return None
            key = constant_of(node.arg)
            return (*parent, key) if isinstance(key, str) else (*parent, ELEMENT)
        return None

    def peeled(self, node: nodes.Node | None) -> tuple[Path | None, int]:
        """Return the path below casts, `.strip()` and `± n`, and what to add to undo the shift."""
        shift = 0
        while True:
            if isinstance(node, nodes.Filter) and node.name in _SAME_TEXT_FILTERS | CASTS and node.node is not None:
                node = node.node
            elif (
                isinstance(node, nodes.Call)
                and isinstance(node.node, nodes.Getattr)
                and node.node.attr in SAME_TEXT_METHODS
            ):
                node = node.node.node
            elif isinstance(node, nodes.Sub | nodes.Add) and isinstance(amount := constant_of(node.right), int):
                shift += amount if isinstance(node, nodes.Sub) else -amount
                node = node.left
            else:
                return self.path_of(node), shift

    def hide(self, target: nodes.Node) -> None:
        """Bind what a statement assigns to, of which nothing is known."""
        for name in [target] if isinstance(target, nodes.Name) else target.find_all(nodes.Name):
            self.bound[name.name] = None
