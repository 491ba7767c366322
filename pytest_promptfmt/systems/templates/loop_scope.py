"""Variables that a loop of a template sets for nobody: Jinja gives them back their old value after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from jinja2 import nodes

from pytest_promptfmt.profiles.dialect import compiled_tree, parsed_template
from pytest_promptfmt.systems.templates.trial import TemplateTrial

_KEPT: Final = "promptfmt_kept"


def lost_assignments(trial: TemplateTrial) -> Iterator[tuple[str, int]]:
    """Yield each variable that a loop sets in vain, and the line where it does, if keeping it changes a prompt.

    The variable exists before the loop and is read after it. That it matters is tried: the template is rendered once
    more with the variable in a namespace, which outlives the loop.
    """
    tree = trial.tree
    bound = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "param"}
    bound |= {
        each.name
        for loop in tree.find_all(nodes.For)
        for each in (loop.target, *loop.target.find_all(nodes.Name))
        if isinstance(each, nodes.Name)
    }
    for name, line in dict(_set_in_vain(tree)).items():
        if name not in bound and _matters(trial, name):
            yield name, line


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
                    if isinstance(inner.target, nodes.Name) and inner.target.name in known & after:
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


def _matters(trial: TemplateTrial, name: str) -> bool:
    """Return whether some conversation is rendered differently where the loop's value is kept."""
    kept = compiled_tree(_keeping(parsed_template(trial.source), name))
    for conversation in trial.conversations.values():
        state = conversation.states[-1]
        usual, changed = trial.render(conversation, state), trial.rendered_by(kept, conversation, state)
        if (usual.text, usual.refusal) != (changed.text, changed.refusal):
            return True
    return False


def _keeping(template: nodes.Template, name: str) -> nodes.Template:
    """Return the template with a variable in a namespace that is made at its beginning."""

    def moved(node: Any) -> Any:
        if isinstance(node, nodes.Name) and node.name == name:
            if node.ctx == "store":
                return nodes.NSRef(_KEPT, name, lineno=node.lineno)
            if node.ctx == "load":
                return nodes.Getattr(nodes.Name(_KEPT, "load"), name, "load", lineno=node.lineno)
        if isinstance(node, nodes.Node):
            for field, value in node.iter_fields():
                if isinstance(value, list):
                    setattr(node, field, [moved(each) for each in value])
                elif isinstance(value, nodes.Node):
                    setattr(node, field, moved(value))
        return node

    made = nodes.Call(nodes.Name("namespace", "load"), [], [], None, None)
    start = nodes.Assign(nodes.Name(_KEPT, "store"), made, lineno=1)
    changed: nodes.Template = moved(template)
    changed.body.insert(0, start)
    if template.environment is not None:
        changed.set_environment(template.environment)
    return changed
