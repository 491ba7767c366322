"""What other engines do differently from Jinja, imitated: a template rendered with a deviation shows its effect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from jinja2 import Environment, Template, nodes, pass_eval_context

from pytest_promptfmt.profiles.dialect import changed_template
from pytest_promptfmt.systems.templates.constructs import keep, loop_variables
from pytest_promptfmt.systems.templates.engines import LLAMA, MINIJINJA, PACKAGE

_PRINTED: Final = "promptfmt_printed"
_LOST: Final = "promptfmt_lost"
_TOJSON: Final = "use tojson to write values"
_DEFECT: Final = "the engine is wrong, not the template: report this, or avoid the construct"


Change = Callable[[Environment, nodes.Template], None]


class Deviation(NamedTuple):
    """A difference from Jinja: what to do about it, the engines that have it, and how Jinja is changed to have it.

    Only templates whose source has the word `needs` can show it.
    """

    do: str
    engines: tuple[str, ...]
    change: Change
    needs: str = ""


def _printing(convert: Callable[[Any], Any], joined: Callable[[Any], Any] | None = None) -> Change:
    """Return the change of everything that is printed, and of what `~` joins."""

    def change(environment: Environment, tree: nodes.Template) -> None:
        environment.finalize, environment.filters[_PRINTED] = convert, joined
        for node in tree.find_all(nodes.Concat) if joined is not None else ():
            node.nodes = [nodes.Filter(each, _PRINTED, [], [], None, None) for each in node.nodes]

    return change


def _filtering(name: str, convert: Callable[..., Any]) -> Change:
    """Return the change of a filter into another function."""

    def change(environment: Environment, _: nodes.Template) -> None:
        environment.filters[name] = convert

    return change


def _without_none(value: Any) -> Any:
    return "" if value is None else value


def _without_brackets(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return "".join(str(_without_brackets(each)) for each in value if each is not None)
    return "" if isinstance(value, Mapping) else value


def _as_json(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (bool, Mapping, list, tuple)) else value


def _joined(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return ",".join(str(_as_json(each)) for each in value)
    return "[object Map]" if isinstance(value, Mapping) else _as_json(value)


def _prints_json(environment: Environment, tree: nodes.Template) -> None:
    string, join = environment.filters["string"], environment.filters["join"]
    _printing(_as_json, _joined)(environment, tree)
    environment.filters["string"] = lambda value: string(_as_json(value))
    environment.filters["join"] = pass_eval_context(
        lambda context, items, between="": join(context, [_joined(each) for each in items], between)
    )


def _compares_as_javascript(environment: Environment, tree: nodes.Template) -> None:
    def compared(value: Any) -> Any:
        return object() if isinstance(value, (Mapping, list, tuple)) else False if value == "" else value

    environment.filters[_PRINTED] = compared
    for comparison in tree.find_all(nodes.Compare):
        sides: list[nodes.Compare | nodes.Operand] = [comparison]
        for each in sides + [side for side in comparison.ops if side.op in ("eq", "ne")]:
            each.expr = nodes.Filter(each.expr, _PRINTED, [], [], None, None)


def _strips_all_whitespace(_: Environment, tree: nodes.Template) -> None:
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in ("strip", "lstrip", "rstrip"):
            call.args = []


def _whole(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole_numbers(environment: Environment, tree: nodes.Template) -> None:
    _printing(_whole)(environment, tree)
    tojson, string = environment.filters["tojson"], environment.filters["string"]
    environment.filters["tojson"] = lambda value, *given, **named: tojson(_whole(value), *given, **named)
    environment.filters["string"] = lambda value: string(_whole(value))


def _escapes(environment: Environment, _: nodes.Template) -> None:
    usual, escapes = environment.filters["tojson"], {ord(each): f"\\u{ord(each):04x}" for each in "<>&'"}
    environment.filters["tojson"] = lambda *given, **named: usual(*given, **named).translate(escapes)


def _testing(name: str, kind: type) -> Change:
    """Return the change of a test that is false for values of a type."""

    def change(environment: Environment, _: nodes.Template) -> None:
        usual: Any = environment.tests[name]
        environment.tests[name] = lambda value: not isinstance(value, kind) and usual(value)

    return change


def _takes_none_for_a_list(environment: Environment, tree: nodes.Template) -> None:
    usual: Any = environment.tests["iterable"]
    environment.tests["iterable"] = lambda value: value is None or usual(value)
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Or(loop.iter, nodes.List([]))


def _keeps_variables(_: Environment, tree: nodes.Template) -> None:
    loops = [*tree.find_all(nodes.For)]
    assigned = {each.target for loop in loops for each in loop.find_all(nodes.Assign)}
    names = {each.name for each in assigned if isinstance(each, nodes.Name)}
    keep(tree, names - loop_variables(loops))


def _loses_before_jumps(_: Environment, tree: nodes.Template) -> None:
    for node in tree.find_all(nodes.If):
        for body in (node.body, node.else_):
            jumps = (at for at, each in enumerate(body) if isinstance(each, (nodes.Continue, nodes.Break)))
            before = body[: next(jumps, 0)]
            if before:
                body[: len(before)] = [nodes.AssignBlock(nodes.Name(_LOST, "store"), None, before)]


def _forgets_named_arguments(_: Environment, tree: nodes.Template) -> None:
    macros = {each.name: [argument.name for argument in each.args] for each in tree.find_all(nodes.Macro)}
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in macros:
            reached = macros[call.node.name][: len(call.args) + len(call.kwargs)]
            call.kwargs = [each for each in call.kwargs if each.key in reached]


DEVIATIONS: Final[Mapping[str, Deviation]] = {
    "`tojson` escapes characters of HTML": Deviation(
        "the engine is wrong, not the template: turn off the escaping of the engine, or report this",
        (MINIJINJA,),
        _escapes,
        needs="tojson",
    ),
    "Jinja escapes text that is joined to the result of `safe`, the engine does not": Deviation(
        "remove |safe from the template", (MINIJINJA, LLAMA, PACKAGE), _filtering("safe", str), needs="safe"
    ),
    "`none` is iterable": Deviation("test for none first", (MINIJINJA,), _takes_none_for_a_list, needs="iterable"),
    "a text is not a sequence": Deviation(
        "test for texts first: is string", (MINIJINJA,), _testing("sequence", str), needs="sequence"
    ),
    "`none` is printed as nothing": Deviation(
        "for a value that may be null, use tojson, or leave the value out",
        (LLAMA, PACKAGE),
        _printing(_without_none, _without_none),
    ),
    "mappings and lists are printed as nothing, or without brackets": Deviation(
        _TOJSON, (LLAMA,), _printing(_without_brackets)
    ),
    "mappings, lists, `true` and `false` are printed as JSON": Deviation(_TOJSON, (PACKAGE,), _prints_json),
    "an empty text equals `false`, and a list or mapping never equals a copy of it": Deviation(
        "write conditions without ==: if text, if not list", (PACKAGE,), _compares_as_javascript, needs="="
    ),
    "`strip` ignores its argument, and removes whitespace": Deviation(
        "split at the characters, or use replace", (PACKAGE,), _strips_all_whitespace, needs="strip("
    ),
    "a mapping is not iterable": Deviation(
        "test for mappings first: is mapping", (PACKAGE,), _testing("iterable", Mapping), needs="iterable"
    ),
    "the filter `first` returns empty text for an empty list": Deviation(
        _DEFECT, (PACKAGE,), _filtering("first", lambda items: next(iter(items), "")), needs="first"
    ),
    "numbers such as 1.0 are written as 1": Deviation(
        "the engine is wrong: write the number as text where its form matters", (LLAMA, PACKAGE), _whole_numbers
    ),
    "the filter `format` ignores its arguments": Deviation(
        _DEFECT, (LLAMA,), _filtering("format", lambda text, *_, **__: text), needs="format"
    ),
    "a variable that is set in a loop keeps its value in the next iteration": Deviation(
        "set the variable at the beginning of each iteration", (LLAMA, PACKAGE), _keeps_variables, needs="set"
    ),
    "if an argument of a macro is left out, later keyword arguments are ignored": Deviation(
        "give all arguments of the macro", (LLAMA,), _forgets_named_arguments, needs="macro"
    ),
    "text before `continue` or `break` in an `if` block is lost": Deviation(
        _DEFECT, (LLAMA, PACKAGE), _loses_before_jumps, needs="{%"
    ),
}
"""By the cause that is reported; those that no engine other than the tried one has are not tried for it."""


@lru_cache(maxsize=len(DEVIATIONS))
def deviating(source: str, name: str) -> Template:
    """Return a template as Jinja compiles it with a deviation; raises TemplateSyntaxError."""
    return changed_template(source, DEVIATIONS[name].change)
