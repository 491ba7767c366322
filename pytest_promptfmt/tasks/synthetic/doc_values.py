"""The values of synthetic docs: how the fields of a task use each column, and the value that fits.

Which fields there are and whether they accept the values is decided in synthetic_docs.py. The word for a column
follows from `data/column_words.yaml`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.tasks.synthetic.shapes import ELEMENT, Fact, Path

Guess = Literal["text", "index", "ordinal", "choice", "letter", "number", "digits", "list", "float", "date", "mapping"]
Guesses = tuple[tuple[Path, Guess], ...]
"""Guesses for values whose type the templates leave open."""

_MAX_VALUES: Final = 2_000
_MAX_NESTED: Final = 40
_DEFAULT_LENGTH: Final = 3
CHOICE: Final = "choice"
LABEL: Final = "label"
_COMPLETION: Final = ("completion",)
_PROMPTS: Final = frozenset({"context", "prompt"})
"""Next to one of these columns a completion begins with a space: prompt and completion are parts of one text."""

_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass
class ShapeNode:
    """All uses of the value at one path; `readers` are the roles of the fields that name it."""

    path: Path
    readers: set[str] = field(default_factory=set)
    fields: dict[str, ShapeNode] = field(default_factory=dict)
    element: ShapeNode | None = None
    facts: dict[str, list[Any]] = field(default_factory=dict)

    def child(self, step: str | None) -> ShapeNode:
        """Return the node one step further down, new if it was not used yet."""
        if step is ELEMENT:
            if self.element is None:
                self.element = ShapeNode((*self.path, ELEMENT))
            return self.element
        return self.fields.setdefault(step, ShapeNode((*self.path, step)))

    @property
    def is_open(self) -> bool:
        """Return whether the templates show only that it exists, not what it is."""
        return not self.fields and self.element is None and not set(self.facts) - {"used", "sized"}

    def walk(self) -> Iterator[ShapeNode]:
        """Yield this node and all below it."""
        yield self
        for child in (*self.fields.values(), *((self.element,) if self.element is not None else ())):
            yield from child.walk()


@dataclass(frozen=True)
class ChoiceShape:
    """The known facts about the choices: how many, and the constants or the path of the list they come from."""

    count: int
    constants: tuple[Any, ...] = ()
    path: Path | None = None


@dataclass(frozen=True)
class DocPlan:
    """How to make doc k: the shape of every column, and the guesses that turned out to work.

    `reads` are the columns that each Python function read, in that order, by the key that names the function.
    """

    root: ShapeNode
    guesses: Mapping[Path, Guess]
    choices: ChoiceShape
    words: Mapping[tuple[str, ...], Word]
    reads: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def build(cls, facts: Sequence[tuple[str, Fact]], guesses: Guesses, choices: ChoiceShape) -> DocPlan:
        """Return the plan that the facts of all fields together make, each with the role of its field."""
        root = ShapeNode(())
        for role, fact in facts:
            node = root
            for step in fact.path:
                node = node.child(step)
            node.facts.setdefault(fact.kind, []).append(fact.argument)
            node.readers.add(role)
        return cls(root=root, guesses=dict(guesses), choices=choices, words=words_of([*_uses_of(root)]))

    def open_paths(self) -> list[Path]:
        """Return the paths of the values whose type is open, but for elements of lists."""
        return [node.path for node in self.root.walk() if node.path and node.is_open and node.path[-1] is not ELEMENT]

    def find(self, path: Path) -> ShapeNode | None:
        """Return the node at a path, None if nothing uses it."""
        node: ShapeNode | None = self.root
        for step in path:
            if node is None:
                return None
            node = node.element if step is ELEMENT else node.fields.get(step)
        return node

    def doc(self, number: int, mark: str) -> Doc:
        """Return doc `number` (from 1); the gold answer moves on by one from doc to doc."""
        return _Maker(self, number, mark).mapping(self.root, ())


class _Maker:
    def __init__(self, plan: DocPlan, number: int, mark: str) -> None:
        self.plan = plan
        self.number = number
        self.mark = mark
        # Shots begin with the first choice, evaluated docs with the second: a fixed answer would hide
        # a prompt that always shows the same one.
        self.turn = number - 1 if mark else number
        self._made = 0
        self._depth = 0

    def mapping(self, node: ShapeNode, indices: tuple[int, ...]) -> dict[str, Any]:
        return {name: self.value(child, indices) for name, child in node.fields.items()}

    def value(self, node: ShapeNode, indices: tuple[int, ...]) -> Any:
        """Return the value at one place; text where a hostile template needs too much or is circular."""
        self._made += 1
        if self._made > _MAX_VALUES or self._depth > _MAX_NESTED:
            return self.text(node, indices)
        self._depth += 1
        try:
            return self._value(node, indices)
        finally:
            self._depth -= 1

    def _value(self, node: ShapeNode, indices: tuple[int, ...]) -> Any:
        if "literal" in node.facts:
            read = replace(node, facts={kind: each for kind, each in node.facts.items() if kind != "literal"})
            made = self._value(read, indices)
            return json.dumps(
                made if isinstance(made, list | dict) else self.whole_list(read, indices), ensure_ascii=False
            )
        guess = self.plan.guesses.get(node.path)
        if guess is not None:
            return self.guessed(node, guess, indices)
        for kind, maker in _MAKERS:
            if kind in node.facts or (kind == "fields" and node.fields) or (kind == "element" and node.element):
                made = maker(self, node, indices)
                if made is not _NOTHING:
                    return made
        return self.text(node, indices)

    # -- one maker for each kind of fact, strongest first ------------------------------------------------------

    def one_of(self, node: ShapeNode, _: tuple[int, ...]) -> Any:
        first, *others = node.facts["one of"]
        options = [option for option in first if all(option in other for other in others)] or first
        return options[self.turn % len(options)] if options else _NOTHING

    def in_range(self, node: ShapeNode, _: tuple[int, ...]) -> Any:
        first, last = node.facts["range"][0]
        return first + self.turn % (last - first)

    def index_of(self, node: ShapeNode, _: tuple[int, ...]) -> Any:
        other = self.plan.find(node.facts["index of"][0])
        return self.turn % self.length(other) if other is not None else _NOTHING

    def member_of(self, node: ShapeNode, indices: tuple[int, ...]) -> Any:
        other = self.plan.find(node.facts["member of"][0])
        if other is None or other is node:
            return _NOTHING
        member = self.turn % self.length(other)
        return self.element(other, (*indices[: other.path.count(ELEMENT)], member))

    def whole_list(self, node: ShapeNode, indices: tuple[int, ...]) -> Any:
        return [self.element(node, (*indices, index)) for index in range(self.length(node))]

    def element(self, node: ShapeNode, indices: tuple[int, ...]) -> Any:
        """Return one element of a list; the last of `indices` is its place."""
        for wanted in node.facts.get("contains", ()):
            gold = indices[-1] == self.turn % self.length(node)
            if gold or isinstance(wanted, int | float):
                return wanted if gold else type(wanted)(0)
        return self.value(node.element or ShapeNode((*node.path, ELEMENT)), indices)

    def parts(self, node: ShapeNode, indices: tuple[int, ...]) -> Any:
        separator, least = max(node.facts["parts"], key=lambda part: (bool(part[0].strip()), part[1]))
        word = self.word(node)
        parts = range(1, max(least, 2) + 1)
        return separator.join(self.readable(word, indices, f", part {part}") for part in parts)

    def equal(self, node: ShapeNode, indices: tuple[int, ...]) -> Any:
        options = list(dict.fromkeys(node.facts["equals"]))
        if len(options) == 1:
            only = options[0]
            options += [not only] if isinstance(only, bool) else []
            options += [only + 1] if isinstance(only, int | float) and not isinstance(only, bool) else []
            options += [self.text(node, indices)] if isinstance(only, str) else []
        return options[self.turn % len(options)]

    def amount(self, *_: Any) -> Any:
        return self.number + (10 if self.mark else 0)

    def sized(self, node: ShapeNode, indices: tuple[int, ...]) -> Any:
        plural = isinstance(node.path[-1], str) and node.path[-1].lower().endswith("s")
        return self.whole_list(node, indices) if plural and names_choices(_names_of(node.path)) else _NOTHING

    def text(self, node: ShapeNode, indices: tuple[int, ...]) -> str:
        if node.path[-1] is ELEMENT and node.path[-2] is not ELEMENT and read_name(node.path[-2]).role == LABEL:
            return _letter(indices[-1])
        word = self.word(node)
        cut = max(node.facts.get("cut", (0,)))
        if node.path == _COMPLETION and not cut and not _PROMPTS.isdisjoint(self.plan.root.fields):
            return f" {self.readable(word, indices)}"
        return (f"{self.readable(f'start of {word}', indices)} ".ljust(cut, "."))[:cut] + self.readable(word, indices)

    def guessed(self, node: ShapeNode, guess: Guess, indices: tuple[int, ...]) -> Any:
        choices = self.plan.choices
        turn = self.turn % choices.count
        match guess:
            case "index":
                return turn
            case "ordinal":
                return turn + 1
            case "digits":
                return str(turn)
            case "letter":
                return _letter(turn)
            case "choice" if choices.constants:
                return choices.constants[turn]
            case "choice" if choices.path and (offered := self.plan.find(choices.path)) is not None:
                return self.element(offered, (turn,))
            case "number":
                return self.amount()
            case "float":
                return self.amount() + 0.5
            case "date":
                return f"2001-01-{1 + self.amount() % 28:02d}"
            case "list":
                return self.whole_list(node, indices)
            case "mapping":
                return {"text": self.text(node, indices)}
            case _:
                return self.text(node, indices)

    # -- words and lengths -------------------------------------------------------------------------------------

    def word(self, node: ShapeNode) -> str:
        known = self.plan.words.get(_names_of(node.path))
        return known.text if known is not None else "text"

    def readable(self, word: str, indices: tuple[int, ...], more: str = "") -> str:
        mark = f"{self.mark} " if self.mark else ""
        return f"«{mark}{word} {'.'.join([str(self.number), *(str(index + 1) for index in indices)])}{more}»"

    def length(self, node: ShapeNode) -> int:
        """Return how many elements a list has; lists side by side in one mapping have the same number."""
        parent = self.plan.find(node.path[:-1]) if node.path and node.path[-1] is not ELEMENT else None
        siblings = list(parent.fields.values()) if parent is not None and parent.path else []
        known = max((length for near in (node, *siblings) for length in near.facts.get("list", (0,))), default=0)
        if known:
            return known
        word = self.plan.words.get(_names_of(node.path))
        is_of_choices = names_choices(_names_of(node.path)) or (word is not None and word.role == CHOICE)
        return self.plan.choices.count if is_of_choices or node.facts.get("contains") else _DEFAULT_LENGTH


_NOTHING: Final = object()
_MAKERS: Final[Sequence[tuple[str, Callable[[_Maker, ShapeNode, tuple[int, ...]], Any]]]] = (
    ("fields", _Maker.mapping),
    ("mapping", _Maker.mapping),
    ("one of", _Maker.one_of),
    ("range", _Maker.in_range),
    ("index of", _Maker.index_of),
    ("member of", _Maker.member_of),
    ("element", _Maker.whole_list),
    ("list", _Maker.whole_list),
    ("contains", _Maker.whole_list),
    ("parts", _Maker.parts),
    ("equals", _Maker.equal),
    ("text", _Maker.text),
    ("end", lambda *_: 12),
    ("start", lambda *_: 1),
    ("number", _Maker.amount),
    ("sized", _Maker.sized),
)


def _uses_of(root: ShapeNode) -> Iterator[Use]:
    """Yield what texts are put into: all but the mappings that hold them."""
    found: dict[tuple[str, ...], list[ShapeNode]] = {}
    for node in root.walk():
        if node.path:
            found.setdefault(_names_of(node.path), []).append(node)
    for names, nodes in found.items():
        if not any(node.fields for node in nodes):
            is_list = any(ELEMENT in node.path or "list" in node.facts or "contains" in node.facts for node in nodes)
            yield Use(names, frozenset(reader for node in nodes for reader in node.readers), is_list)


def _names_of(path: Path) -> tuple[str, ...]:
    return tuple(step for step in path if step is not ELEMENT)


def _letter(index: int) -> str:
    return _LETTERS[index % len(_LETTERS)]


# -- words: a renamed column keeps its text ----------------------------------------------------------------------------
#
# A text that no renaming changes cannot show that two columns were swapped: a swap is two renamings. So some names of
# the field differ by their role (`query` is a `question`, `context` a `passage`), and numbers and letters at their end
# by their order (`sentence1` and `sentence2`, `option_a` and `option_b`): swapping such columns changes the prompt. The
# text of another column depends on the field that uses it, and among several on the order of their first use: renaming
# it changes nothing, nor does swapping two of them in one field. The columns that a snapshot lists, in the order in
# which they are read, show both.

_WORDS: Final = data_table("column_words")
_ROLES: Final = {name: word for word, names in _WORDS["roles"].items() for name in names.split()}
_RIGHTNESS: Final = frozenset({"right answer", "wrong answer"})
_GENERIC: Final = frozenset(_WORDS["generic"].split())
_ORDINALS: Final = ("", *(f"{word} " for word in _WORDS["ordinals"].split()))
_TOKEN: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_SUFFIXES: Final = "abcdefghij"


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a column: its role, None where it is not a name of the field, the rest of it, and its number."""

    role: str | None
    stem: str
    number: int


@lru_cache(maxsize=4096)
def read_name(name: str) -> Name:
    """Return the parts of a name: `option_b` is the second choice, `Question text` a question, `foo2` a second foo."""
    if len(name) == 1 and name in _SUFFIXES.upper():
        return Name(CHOICE, "", _SUFFIXES.index(name.lower()))
    tokens = [_singular(token.lower()) for token in _TOKEN.findall(name)]
    number = 0
    if len(tokens) > 1 and tokens[-1].isdecimal():
        number = int(tokens.pop()[:9])
    elif len(tokens) > 1 and len(tokens[-1]) == 1 and tokens[-1] in _SUFFIXES:
        number = _SUFFIXES.index(tokens.pop())
    elif len(tokens) == 1 and tokens[0] not in _ROLES and tokens[0][:-1] in _ROLES and tokens[0][-1] in _SUFFIXES:
        number = _SUFFIXES.index(tokens[0][-1])
        tokens = [tokens[0][:-1]]
    stem = " ".join(tokens)
    while len(tokens) > 1 and tokens[-1] in _GENERIC:
        tokens.pop()
    role = _ROLES.get(tokens[-1]) if tokens else None
    if role in ("answer", CHOICE):
        role = next((each for token in tokens if (each := _ROLES.get(token)) in _RIGHTNESS), role)
    return Name(role, stem, number)


@lru_cache(maxsize=4096)
def names_choices(names: tuple[str, ...]) -> bool:
    """Return whether one of the names speaks of choices or their labels: `multiple_choice_targets` does."""
    tokens = (token.lower() for name in names for token in _TOKEN.findall(name))
    return any(_ROLES.get(_singular(token)) in (CHOICE, LABEL) for token in tokens)


@dataclass(frozen=True, slots=True)
class Use:
    """Something that a synthetic text is put into: the names that lead to it, and the roles of the fields that read it.

    `is_list`: it is a list, or in one.
    """

    names: tuple[str, ...]
    fields: Collection[str]
    is_list: bool


@dataclass(frozen=True, slots=True)
class Word:
    """The word of a synthetic text: its role, and the text with its number among those of the same role."""

    role: str
    text: str


def words_of(uses: Sequence[Use]) -> dict[tuple[str, ...], Word]:
    """Return what each text is called, by the names that lead to it; `uses` are in the order of their first use."""
    by_role: dict[str, list[tuple[str, ...]]] = {}
    unknown: list[tuple[Use, Name]] = []
    known: list[tuple[int, str, tuple[str, ...]]] = []
    for use in uses:
        read = [read_name(name) for name in use.names]
        last = next((name for name in reversed(read) if name.role is not None), None)
        if last is None or last.role is None:
            unknown.append((use, read[0]))
        else:
            known.append((last.number, last.role, use.names))
    for _, role, names in sorted(known, key=lambda each: each[0]):
        by_role.setdefault(role, []).append(names)
    has_choices = any("doc_to_choice" in use.fields for use in uses)
    first = {stem: at for at, stem in enumerate(dict.fromkeys(name.stem for _, name in unknown))}
    for use, _ in sorted(unknown, key=lambda each: (first[each[1].stem], each[1].number)):
        by_role.setdefault(_role_of_use(use, by_role, has_choices=has_choices), []).append(use.names)
    return {
        names: Word(role, f"{_ORDINALS[at] if at < len(_ORDINALS) else f'number {at + 1} '}{role}")
        for role, found in by_role.items()
        for at, names in enumerate(found)
    }


def _role_of_use(use: Use, taken: Collection[str], *, has_choices: bool) -> str:
    if "doc_to_choice" in use.fields:
        return CHOICE
    if use.is_list:
        return CHOICE if has_choices and CHOICE not in taken else "item"
    if "doc_to_text" in use.fields:
        return "text" if "question" in taken else "question"
    return "answer" if "doc_to_target" in use.fields else "text"


def _singular(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "is")) else word
