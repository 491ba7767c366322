"""The source of a template: which line writes a text, variables lost after a loop, constructs that engines lack."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from typing import Any, Final

from jinja2 import nodes

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.profiles.dialect import changed_template
from pytest_promptfmt.profiles.probe_conversations import Conversation, State
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import first_difference, written_lines

GENERATION: Final = "{% generation %}"
_MOST_SHOWN: Final = 3
_FOLLOWING: Final = 8


def line_at(trial: TemplateTrial, conversation: Conversation, state: State, ours: str, theirs: str) -> int | None:
    """Return the line of the template that writes the first difference of two texts; None where that is not seen.

    Where another engine writes more before what follows, that is the end of the piece before.
    """
    place = first_difference(ours, theirs)
    lines = [each for each in written_lines(trial, conversation, state) if each[0] <= place]
    follows = lines[1:] and lines[-1][0] == place and theirs.find(ours[place : place + _FOLLOWING], place) > place
    return lines[-2 if follows else -1][1] if lines else None


def constructs_at(tree: nodes.Template, line: int | None) -> str:
    """Return the filters, methods and functions of a line as they are written: `| tojson`, `.strip()`."""
    return ", ".join(list(dict.fromkeys(_constructs(tree, line)))[:_MOST_SHOWN])


def _constructs(tree: nodes.Template, line: int | None) -> Iterator[str]:
    for node in tree.find_all((nodes.Filter, nodes.Call, nodes.Concat)):
        if node.lineno != line:
            continue
        if isinstance(node, nodes.Filter):
            yield f"| {node.name}"
        elif isinstance(node, nodes.Concat):
            yield "~"
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            yield f".{node.node.attr}()"
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
            yield f"{node.node.name}()"


_KEPT: Final = "promptfmt_kept"


def lost_assignments(trial: TemplateTrial) -> Iterator[tuple[str, int, Conversation]]:
    """Yield each variable that a loop sets in vain, the line where it does, and a prompt that keeping it changes.

    The variable exists before the loop and is read after it. That it matters is tried: the template is rendered once
    more with the variable in a namespace, which outlives the loop.
    """
    assigned = list(_assigned(trial.tree.body))
    if len(dict(assigned)) == len({*assigned}):
        return  # most templates set no variable both in a loop and outside of it
    bound = {name.name for name in trial.nodes if isinstance(name, nodes.Name) and name.ctx == "param"}
    bound |= loop_variables(trial.nodes)
    for name, line in dict(_set_in_vain(trial.tree)).items():
        shown = _shown_by(trial, name) if name not in bound else None
        if shown is not None:
            yield name, line, shown


def stripped_letters(tree: Iterable[nodes.Node]) -> Iterator[tuple[str, str, int]]:
    """Yield each `strip` whose characters are those of a word or tag, what it does, these characters, and the line."""
    for each in tree:
        given = each.args[0] if isinstance(each, nodes.Call) and each.args else None
        if isinstance(each, nodes.Call) and isinstance(each.node, nodes.Getattr) and isinstance(given, nodes.Const):
            characters = str(given.value)
            if each.node.attr in ("strip", "lstrip", "rstrip") and len(re.findall("[a-z]", characters)) > 1:
                what = f"{each.node.attr}({characters!r}) removes each of these characters, not the word"
                yield what, characters, each.lineno


def removed_words(tree: Iterable[nodes.Node]) -> Iterator[tuple[str, int]]:
    """Yield each word that `replace` removes from a text, and its line; markers of a template are no words."""
    for each in tree:
        is_method = (
            isinstance(each, nodes.Call) and isinstance(each.node, nodes.Getattr) and each.node.attr == "replace"
        )
        if isinstance(each, nodes.Call | nodes.Filter) and (is_method or getattr(each, "name", "") == "replace"):
            given = [argument.value for argument in each.args if isinstance(argument, nodes.Const)]
            if len(given) == 2 and given[1] == "" and re.fullmatch(r"\W?\w{3,}", str(given[0])):
                yield str(given[0]), each.lineno


def _assigned(body: Iterable[nodes.Node], loops: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the variables that statements set, each with the number of loops around it."""
    for each in body:
        if isinstance(each, nodes.Assign) and isinstance(each.target, nodes.Name):
            yield each.target.name, loops
        for part in ("body", "elif_", "else_"):
            yield from _assigned(getattr(each, part, None) or (), loops + isinstance(each, nodes.For))


def _set_in_vain(template: nodes.Template) -> Iterator[tuple[str, int]]:
    def walk(body: list[nodes.Node], known: set[str], later: set[str]) -> Iterator[tuple[str, int]]:
        read_after = [later]
        for node in reversed(body[1:]):
            read_after.append(read_after[-1] | {name.name for name in _loads(node)})
        for node, after in zip(body, reversed(read_after), strict=False):
            if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name):
                known.add(node.target.name)
            elif isinstance(node, nodes.For):
                for inner in node.find_all(nodes.Assign):
                    is_new = isinstance(inner.node, nodes.Call) and inner.node.node == nodes.Name("namespace", "load")
                    if isinstance(inner.target, nodes.Name) and inner.target.name in known & after and not is_new:
                        yield inner.target.name, inner.lineno
                yield from walk(node.body, set(known), set())
            elif isinstance(node, nodes.If):
                for part in (node.body, *(each.body for each in node.elif_), node.else_):
                    yield from walk(part, known, after)

    yield from walk(template.body, set(), set())


def _loads(node: nodes.Node) -> Iterator[nodes.Name]:
    if isinstance(node, nodes.Name):
        yield node
    yield from (each for each in node.find_all(nodes.Name) if each.ctx == "load")


def _shown_by(trial: TemplateTrial, name: str) -> Conversation | None:
    """Return a conversation that is rendered differently where the loop's value is kept."""
    kept = changed_template(trial.source, lambda _, tree: keep(tree, {name}))
    for conversation in trial.conversations.values():
        state = conversation.states[-1]
        usual, changed = trial.render(conversation, state), trial.rendered_by(kept, conversation, state)
        if (usual.text, usual.refusal) != (changed.text, changed.refusal):
            return conversation
    return None


def keep(template: nodes.Template, names: Set[str]) -> None:
    """Put variables into a namespace that is made at the beginning of the template, but for arguments of macros."""

    def moved(node: Any, kept: Set[str]) -> Any:
        if isinstance(node, nodes.Name) and node.name in kept:
            if node.ctx == "store":
                return nodes.NSRef(_KEPT, f"kept_{node.name}", lineno=node.lineno)
            if node.ctx == "load":
                return nodes.Getattr(nodes.Name(_KEPT, "load"), f"kept_{node.name}", "load", lineno=node.lineno)
        if isinstance(node, (nodes.Macro, nodes.CallBlock)):
            kept = kept - {each.name for each in node.args}
        if isinstance(node, nodes.Node):
            for field, value in node.iter_fields():
                if isinstance(value, list):
                    setattr(node, field, [moved(each, kept) for each in value])
                elif isinstance(value, nodes.Node):
                    setattr(node, field, moved(value, kept))
        return node

    moved(template, names)
    made = nodes.Call(nodes.Name("namespace", "load"), [], [], None, None)
    template.body.insert(0, nodes.Assign(nodes.Name(_KEPT, "store"), made, lineno=1))


def loop_variables(tree: Iterable[nodes.Node]) -> set[str]:
    """Return the names that loops run over."""
    return {
        each.name
        for loop in tree
        if isinstance(loop, nodes.For)
        for each in (loop.target, *loop.target.find_all(nodes.Name))
        if isinstance(each, nodes.Name)
    }


def unknown_constructs(template: Iterable[nodes.Node]) -> Iterator[tuple[str, int]]:
    """Yield what of a template the engine of `data/engines/minijinja.yaml` lacks, with its line."""
    lacks = data_table("engines/minijinja")
    for node in template:
        found: list[str] = []
        match node:
            case nodes.Filter(name=name, kwargs=given):
                found = [f"filter {name}"] if name in lacks["filters"] else []
                found += [f"{name}({each.key}=…)" for each in given if each.key in lacks["arguments"].get(name, ())]
            case nodes.Test(name=name) if name in lacks["tests"]:
                found = [f"test {name}"]
            case nodes.Mod(left=nodes.Const(value=str())):
                found = ["text % values"]
            case nodes.CallBlock(call=nodes.Call(node=nodes.ExtensionAttribute())):
                found = [GENERATION]
            case nodes.Call(node=nodes.Getattr(attr=name)) if name in lacks["methods"]:
                found = [f".{name}()"]
            case nodes.Call(node=nodes.Name(name=name)) if name in lacks["functions"]:
                found = [f"{name}()"]
        yield from ((each, node.lineno) for each in found)
