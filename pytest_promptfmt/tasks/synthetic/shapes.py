"""What a Jinja template needs of the docs it is rendered with: which names it uses, and as what.

Values only: `choices` has at least 4 elements, `label` is an index below 3. template_shapes.py reads them from a
template, synthetic_docs.py makes docs from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

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
    "sized",  # its length is asked for: a list, or a text
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
