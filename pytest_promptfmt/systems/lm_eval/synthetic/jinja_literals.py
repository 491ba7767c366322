"""The literals in the syntax tree of a Jinja template: constants, lists of them, and what is split by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jinja2 import nodes


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
    """Yield what has to stand between the affixes to give each option."""
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
