"""Who sends a conversation to a chat template: the severity of what the template does with it (`data/hosts.yaml`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, Final

from jinja2 import nodes

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.finding import Severity
from pytest_promptfmt.profiles.probe_conversations import Conversation

_MILDNESS: Final = list(Severity)


@cache
def known_hosts() -> tuple[str, ...]:
    """Return the names of the hosts."""
    return tuple(data_table("hosts")["hosts"])


def sent_severity(conversation: Conversation, kinds: Collection[str], hosts: Collection[str] = ()) -> Severity:
    """Return the worst severity of a finding about a conversation.

    `kinds` are those of the template, of `template_kinds`; `hosts` those in question, by default all.
    """
    chosen = frozenset(hosts or known_hosts())
    found = [_severity_of(data_table("hosts")["shapes"][shape], kinds, chosen) for shape in shapes_of(conversation)]
    return max([conversation.severity, *found], key=_MILDNESS.index)


def _severity_of(shape: Mapping[str, Any], kinds: Collection[str], hosts: frozenset[str]) -> Severity:
    if "only_for" in shape and shape["only_for"] not in kinds:
        return Severity.INFO
    return Severity.ERROR if hosts.intersection(shape["hosts"]) else Severity(shape["otherwise"])


def shapes_of(conversation: Conversation) -> frozenset[str]:
    """Return the names of the shapes of `data/hosts.yaml` that a conversation has."""
    return frozenset(_shapes(conversation))


def _shapes(conversation: Conversation) -> Iterator[str]:
    if conversation.has_tools or conversation.tools:
        yield "tools"
    if conversation.documents:
        yield "documents"
    for tool in conversation.tools or ():
        function = tool.get("function") or {}
        yield from ("null_description",) if function.get("description", "") is None else ()
        yield from ("no_parameters",) if "parameters" not in function else ()
    for message in conversation.messages:
        yield from _shapes_of_message(message, keeps_null=conversation.keep_null)


def _shapes_of_message(message: Mapping[str, Any], *, keeps_null: bool) -> Iterator[str]:
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role == "developer":
        yield "developer"
    if isinstance(content, list):
        types = {part.get("type") for part in content if isinstance(part, dict)}
        yield "result_parts" if role == "tool" else "parts"
        yield from ("image",) if "image" in types else ()
        yield from ("image_address",) if "image_url" in types else ()
    elif role == "tool" and not isinstance(content, str):
        yield "result_value"
    elif content is None:
        yield "null_content"
    elif isinstance(content, str) and "</think>" in content and "<think>" not in content:
        yield "lone_thought_end"
    if calls == []:
        yield "empty_calls"
    if keeps_null and "tool_calls" in message and calls is None:
        yield "null_calls"
    if keeps_null and message.get("reasoning_content", "") is None:
        yield "null_reasoning"
    for call in calls or ():
        yield from ("arguments_text",) if isinstance((call.get("function") or {}).get("arguments"), str) else ()
        yield from ("no_id",) if "id" not in call else ()
    if role == "tool" and "name" not in message:
        yield "no_result_name"


def template_kinds(tree: Collection[nodes.Node]) -> frozenset[str]:
    """Return what is known of a template from the nodes of its source.

    `parts`: it loops over the parts of a content, by which vLLM and SGLang decide whether to join them; `training`: it
    has `{% generation %}`; `functions`: it reads the older `functions`, and never `tools`; `image_url`: it names this
    type of part.
    """
    names = {node.name for node in tree if isinstance(node, nodes.Name)}
    kinds = {
        "parts": any(isinstance(loop, nodes.For) and _is_content(loop.iter) for loop in tree),
        "training": any(
            isinstance(each, nodes.CallBlock) and isinstance(each.call.node, nodes.ExtensionAttribute) for each in tree
        ),
        "functions": "functions" in names and "tools" not in names,
        "image_url": any(isinstance(each, nodes.Const) and each.value == "image_url" for each in tree),
    }
    return frozenset(kind for kind, is_so in kinds.items() if is_so)


def _is_content(node: nodes.Node) -> bool:
    """Return whether an expression is the content of a message, through filters and slices."""
    if isinstance(node, nodes.Filter | nodes.Or | nodes.CondExpr):
        inner = (node.node,) if isinstance(node, nodes.Filter) else node.iter_child_nodes()
        return any(each is not None and _is_content(each) for each in inner)
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Slice):
            return _is_content(node.node)
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    name = node.attr if isinstance(node, nodes.Getattr) else node.name if isinstance(node, nodes.Name) else ""
    return name == "content"
