"""Who sends a conversation to a chat template: the severity of what the template does with it (`data/hosts.yaml`)."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, lru_cache
from typing import Final

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
    return _severity_of_all(
        conversation.shapes, conversation.severity, frozenset(kinds), frozenset(hosts or known_hosts())
    )


@lru_cache(maxsize=1024)
def _severity_of_all(shapes: frozenset[str], least: Severity, kinds: frozenset[str], hosts: frozenset[str]) -> Severity:
    found = [least]
    for shape in (data_table("hosts")["shapes"][each] for each in shapes):
        reaches = shape.get("only_for") in (None, *kinds)
        is_sent = shape.get("hosts_for") in (None, *kinds) and hosts.intersection(shape["hosts"])
        sent = Severity.ERROR if is_sent else Severity(shape["otherwise"])
        found.append(sent if reaches else Severity.INFO)
    worst = max(found, key=_MILDNESS.index)
    # A template that is never given tools has calls of the simplest shape only.
    is_rare = worst is Severity.WARNING and "tools" in shapes and "tools" not in kinds
    return Severity.INFO if is_rare else worst


def template_kinds(tree: Collection[nodes.Node]) -> frozenset[str]:
    """Return what is known of a template from the nodes of its source.

    `parts`: it loops over the parts of a content, by which vLLM and SGLang decide whether to join them; `calls`: it
    loops over the calls of a message; `training`: it has `{% generation %}`; `tools`: it reads the tools of a request;
    `functions`: it reads only the older name of them; `images`, `sound`: it names or prints them (a video is sound);
    `image_url`: it names this type of part; `tool_calls`: it names the calls of a message.
    """
    names = {node.name for node in tree if isinstance(node, nodes.Name)}
    texts = {str(getattr(node, "value", getattr(node, "data", ""))) for node in tree}
    kinds = {
        "parts": any(isinstance(loop, nodes.For) and _is_read(loop.iter, "content") for loop in tree),
        "calls": any(isinstance(loop, nodes.For) and _is_read(loop.iter, "tool_calls") for loop in tree),
        "training": any(
            isinstance(each, nodes.CallBlock) and isinstance(each.call.node, nodes.ExtensionAttribute) for each in tree
        ),
        "tools": not names.isdisjoint(("tools", "functions")),
        "functions": "functions" in names and "tools" not in names,
        "images": any("image" in text for text in texts),
        "sound": any(each in text for text in texts for each in ("audio", "video", "speech")),
        "image_url": any(isinstance(each, nodes.Const) and each.value == "image_url" for each in tree),
        "tool_calls": any("tool_calls" in (getattr(each, "attr", ""), getattr(each, "value", "")) for each in tree),
    }
    return frozenset(kind for kind, is_so in kinds.items() if is_so)


def _is_read(node: nodes.Node, name: str) -> bool:
    """Return whether an expression is a field of a message, through filters and slices."""
    if isinstance(node, nodes.Filter | nodes.Or | nodes.CondExpr):
        inner = (node.node,) if isinstance(node, nodes.Filter) else node.iter_child_nodes()
        return any(each is not None and _is_read(each, name) for each in inner)
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Slice):
            return _is_read(node.node, name)
        return isinstance(node.arg, nodes.Const) and node.arg.value == name
    return name == (node.attr if isinstance(node, nodes.Getattr) else node.name if isinstance(node, nodes.Name) else "")
