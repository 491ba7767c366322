"""Rules about regular expressions and string functions: in filters and in the Python code of a task."""

from __future__ import annotations

import ast
import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, cast

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.fixes import nothing, rewritten
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.rules.task_code import parsed
from pytest_promptfmt.tasks import functions_of

_BARS: Final = re.compile(r"(?<!\\)<\|[\w ]+\|>|(?<!\\)\[/?(?:INST|SEP|CLS|PAD|MASK|BOS|EOS|ANSWER)\](?![*+?{])")
_MODULES: Final = ("re", "regex")
_BEFORE_FLAGS: Final[Mapping[str, int]] = {"sub": 3, "subn": 3, "split": 2}
"""Functions of `re` whose arguments before `flags` end with a number, and the place of that."""

_TRIMS: Final = ("strip", "lstrip", "rstrip")
_FORMS: Final = {codes.AT_BEGINNING, codes.AT_BEGINNING_STRING}
_ENDS: Final = {codes.AT_END, codes.AT_END_STRING}
_LONGEST: Final = 2000
_DEAD: Final = "a part of a pattern can never match"
_LAST_DOT: Final = re.compile(r"(?<!\\)\)\.\)*\$?$|\(\?=\.\)")
_NUMBER_DOT: Final = re.compile(r"(?:\\d|[0-9,]\])[+*]?(?:\((?:\?:)?)?(?<!\\)\.(?:\\d|\[0-9)")
_DOUBLED: Final = re.compile(r"\\\\(?:[dwsDWS](?=[+*?{\]])|[.,](?=[)?*+\]\\]|\Z))")
_WITH_SINGLE_ESCAPES: Final = partial(
    rewritten, change=lambda text: _DOUBLED.sub(lambda match: match[0][1:], text), keeps=nothing
)


@rule("PF502", "pattern-mistake", severity=Severity.WARNING, family=Family.EXTRACTION)
def unescaped_dot(study: Study) -> Iterator[Finding]:
    r"""Report a pattern that does not mean what it looks like, such as a dot without a backslash for a full stop.

    Why: `.` matches any character. At the end of a pattern it takes away the last digit of `The answer is 18`, and
    between digits it joins `3 5` to one number.

    Fix: write `\.`, or remove the dot.

    Real: lm-evaluation-harness #2013 (bbh), gsm8k_cot; stanford-crfm/helm #4289.
    """
    for keys, text in study.strings:
        if "regex_pattern" not in keys:
            continue
        found = _LAST_DOT.search(text) or _NUMBER_DOT.search(text)
        if found is not None:
            saw = text[-60:] if found.end() >= len(text) - 2 else text[found.start() : found.start() + 60]
            yield finding("an unescaped dot in a pattern matches any character", saw, keys)


@also("PF502", severity=Severity.ERROR)
def special_token_as_pattern(study: Study) -> Iterator[Finding]:
    """Report a special token in a pattern whose bars or brackets are not escaped.

    Fix: put a backslash before each bar or bracket of the token.
    """
    for keys, text in study.strings:
        found = _BARS.search(text) if any("regex" in str(key) for key in keys[-3:]) else None
        if found is not None:
            yield finding("a special token is read as a pattern", found[0], keys)


@also("PF502")
def pattern_never_matches(study: Study) -> Iterator[Finding]:
    """Report a part of a pattern that can never match: text before the beginning, or after the end.

    Fix: put `^` before what it anchors and `$` after it, or remove them.
    """
    for keys, text in study.strings:
        if keys[-1:] == ("regex_pattern",) and _is_dead(text, 0):
            yield finding(_DEAD, text[:60], keys)
    for call, position in _calls_of(study):
        pattern = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
        if _of_re(call) and isinstance(pattern, str) and _is_dead(pattern, _flags(call)):
            yield finding(_DEAD, pattern[:60], position)


@lru_cache(maxsize=4096)
def _is_dead(pattern: str, flags: int) -> bool:
    if len(pattern) > _LONGEST or not ("^" in pattern or "$" in pattern or "\\A" in pattern or "\\Z" in pattern):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parser.parse(pattern, flags)
    except (re.error, OverflowError, RecursionError, MemoryError):
        return False  # which other rules report
    return not tree.state.flags & re.MULTILINE and _dies(tree, tree.state, before=0)


def _dies(items: Iterable[Any], state: Any, *, before: int) -> bool:
    """Return whether a part of a parsed sequence, before which are so many characters at least, cannot match."""
    ended = False
    for op, value in items:
        if ended and op is codes.LITERAL and value != ord("\n"):
            return True
        ended = op is codes.AT and value in _ENDS
        if op is codes.AT and value in _FORMS and before > 0:
            return True
        branches = value[1] if op is codes.BRANCH else [value[-1]] if op is codes.SUBPATTERN else []
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT) and value[0] > 0:
            branches = [value[2]]
        if any(_dies(branch, state, before=before) for branch in branches):
            return True
        if op not in (codes.ASSERT, codes.ASSERT_NOT):
            before += cast(int, parser.SubPattern(state, [(op, value)]).getwidth()[0])
    return False


def _flags(call: ast.Call) -> int:
    words = " ".join(ast.unparse(one) for one in [*call.args[1:], *(each.value for each in call.keywords)])
    flags = re.MULTILINE if re.search(r"\bre\.M(?:ULTILINE)?\b", words) else 0
    return int(flags | (re.VERBOSE if re.search(r"\bre\.(?:X|VERBOSE)\b", words) else 0))


def _of_re(call: ast.Call) -> str:
    """Return the name of the function of `re` that a call is of, "" for other calls."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_re = isinstance(owner, ast.Name) and owner.id in _MODULES
    return call.func.attr if is_re and isinstance(call.func, ast.Attribute) else ""


def _calls_of(study: Study) -> tuple[tuple[ast.Call, Position], ...]:
    """Return the calls in the code that the task's functions come to within their own files, and where they are."""
    return study.once("calls of code", lambda: tuple(calls_reached(functions_of(study.given))))


def calls_reached(functions: Iterable[FunctionRef]) -> Iterator[tuple[ast.Call, Position]]:
    """Yield the calls that functions come to within their own files, and where they are."""
    named: dict[Path, list[FunctionRef]] = {}
    for function in functions:
        named.setdefault(function.file, []).append(function)
    for file, found in named.items():
        tree = parsed(found[0])
        if tree is not None:
            for call in _calls_within(tree, tuple(function.name for function in found)):
                yield call, Position(file, call.lineno, call.col_offset + 1)


@lru_cache(maxsize=64)
def _calls_within(tree: ast.Module, names: tuple[str, ...]) -> tuple[ast.Call, ...]:
    """Return the calls that functions of a module come to within it."""
    parts: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for name in _defined(node):
            parts.setdefault(name, []).append(node)
    calls: dict[ast.Call, None] = {}
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for inner in (each for part in parts.get(name, ()) for each in ast.walk(part)):
            if isinstance(inner, ast.Name):
                waiting.append(inner.id)
            elif isinstance(inner, ast.Call):
                calls[inner] = None
    return tuple(calls)


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                yield target.id


@also("PF502")
def word_stripped(study: Study) -> Iterator[Finding]:
    """Report `strip` with a word in the Python code of a task: it removes each of its letters, not the word.

    Fix: use `removeprefix` or `removesuffix`.
    """
    for call, position in _calls_of(study):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _TRIMS and len(call.args) == 1:
            word = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
            if isinstance(word, str) and re.search(r"[^\W\d_]{3}", word) and len(set(word)) > 2:
                yield finding("strip removes characters, not a word", ast.unparse(call)[-60:], position)


@also("PF502", severity=Severity.ERROR)
def flag_as_count(study: Study) -> Iterator[Finding]:
    """Report a flag that is given to `re.sub` or `re.split` where the number of replacements belongs.

    Fix: write `flags=`.
    """
    for call, position in _calls_of(study):
        place = _BEFORE_FLAGS.get(_of_re(call), 99)
        if len(call.args) > place and re.match(r"(?:re|regex)\.[A-Z]+\b", ast.unparse(call.args[place])):
            yield finding("a flag is taken for the number of replacements", ast.unparse(call)[-60:], position)


@also("PF502", severity=Severity.ERROR, fix=_WITH_SINGLE_ESCAPES)
def escape_doubled(study: Study) -> Iterator[Finding]:
    r"""Report a pattern with `\\d+`, which looks for a backslash and the letter d.

    Fix: write one backslash, or use double quotes.
    """
    for keys, text in study.strings:
        found = _DOUBLED.search(text) if any("regex" in str(key) for key in keys[-3:]) else None
        if found is not None:
            yield finding("the pattern looks for a backslash", text, keys)
