"""Docs at the edges of what data hold: spaces, case, nothing, None, long lists, and the words that changed code names.

Both sides render the same ones. What differs on them alone may not differ on any real doc, so it is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc

_MOST_COLUMNS: Final = 12
_MOST_WORDS: Final = 12
_MOST_LETTERS: Final = 120
_ODD: Final = "1. (a) [b] {c} <d> 'e' \"f\" \\g/ $h$ *i* _j_ #k @l é — ... ? ! ; : , %s 3.50 \n\nB\t c  d"
_CLASSES: Final = {
    "d": "7",
    "w": "k",
    "s": " ",
    "S": "k",
    "W": "-",
    "D": "k",
    "b": "",
    "n": "\n",
    "t": "\t",
    "A": "",
    "Z": "",
}


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
    """Yield what makes variants of docs with the columns of this one, each with a few words about it.

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


def words_of(constants: Iterable[str]) -> list[str]:
    """Return what to put into docs for the texts that code compares, replaces or matches: each, and a match of it."""
    found: dict[str, None] = {}
    for text in constants:
        if 0 < len(text) <= _MOST_LETTERS:
            found[text] = None
            found[_matched(text)] = None
    found.pop("", None)
    return [*found]


def _matched(pattern: str) -> str:
    """Return a text that a simple regular expression may match: its characters, one for each class, once each."""
    text = re.sub(r"\(\?[:=!<P][^)>]*>?", "(", pattern)
    text = re.sub(r"\\([dwsSWDbntAZ])", lambda found: _CLASSES[found[1]], text)
    text = re.sub(r"(?<!\\)\[\^.[^\]]*\]", "k", text)
    text = re.sub(r"(?<!\\)\[(?:\\)?(.)[^\]]*\]", r"\1", text)
    text = re.sub(
        r"(?<!\\)\{\d+(?:,\d*)?\}|(?<![\\*+?])[*+?]\??|(?<!\\)[()^$]", "", text.replace(".*", "k").replace(".+", "k")
    )
    return re.sub(r"\\(.)", r"\1", text.partition("|")[0])


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
