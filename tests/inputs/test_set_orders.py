"""Code whose result may depend on the order of a set, by reading."""

from __future__ import annotations

import ast

import pytest

from pytest_promptfmt.inputs.set_orders import depends_on_order, shares_sets

ORDERED = [
    "WORDS = {'a', 'b'}\ndef f(x):\n    return x in WORDS",
    "WORDS = set('ab') | {'c'}\ndef f(x):\n    return [each for each in x if each not in WORDS]",
    "def f(x):\n    return sorted(set(x))",
    "def f(x):\n    return sorted(list(set(x)))",
    "def f(x):\n    return len({each for each in x})",
    "def f(x: set[str]) -> frozenset[str]:\n    return isinstance(x, (set, list))",
    "def f(x):\n    seen = set()\n    for each in x:\n        if each not in seen:\n            seen.add(each)",
    "def f(x):\n    return sorted(set(x).union({'a'}) - {'b'})",
    "def f(x):\n    if set(x) & {'a'}:\n        return 1",
    "def f(x):\n    return {'a': 1}",
]
UNORDERED = [
    "def f(x):\n    return ' '.join(set(x))",
    "def f(x):\n    return list({'a', 'b'})",
    "def f(x):\n    return [each for each in {1, 2}]",
    "WORDS = {'a', 'b'}\ndef f():\n    for word in WORDS:\n        print(word)",
    "def f(x):\n    return set(x)",
    "def f(x):\n    return max(set(x), key=len)",
    "def f(x):\n    return hash(x) % 2",
    "def f(x):\n    return id(x)",
    "def f(x):\n    words = set(x)\n    return words.pop()",
    "from collections import defaultdict\nD = defaultdict(set)",
    "def f(x):\n    return str(frozenset(x))",
    "def f(x):\n    return list(set(x).difference('a'))",
]


@pytest.mark.parametrize(
    ("text", "depends"), [*((each, False) for each in ORDERED), *((each, True) for each in UNORDERED)]
)
def test_an_order_that_may_be_seen_is_found(text: str, depends: bool) -> None:
    assert depends_on_order([*ast.walk(ast.parse(text))]) is depends


@pytest.mark.parametrize(
    ("text", "shares"),
    [("A = {1}", True), ("A = frozenset(B)", True), ("A = {1: 2}", False), ("def f():\n    A = {1}", False)],
)
def test_a_set_that_others_can_import_is_found(text: str, shares: bool) -> None:
    assert shares_sets(ast.parse(text)) is shares
