"""Small pieces of Jinja source, made so that putting them side by side never changes what each of them means."""

from __future__ import annotations

import re
from functools import cache

import jinja2
from jinja2 import nodes

_ESCAPES = {ord("\\"): "\\\\", ord("'"): "\\'", ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
_MARKERS = ("{{", "{%", "{#")


@cache
def grammar() -> jinja2.Environment:
    """Return the environment whose grammar templates are read in: lm-eval 0.4.13's plain Jinja."""
    return jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


def literal(text: str) -> str:
    """Return a Jinja string literal whose value is `text`, whatever it contains (line ends, quotes, braces)."""
    return f"'{text.translate(_ESCAPES)}'"


def has_markup(text: str) -> bool:
    """Return whether Jinja would do anything but print the text."""
    return any(marker in text for marker in _MARKERS)


def only_expression(source: str) -> str | None:
    """Return `x` of a template that is exactly `{{ x }}`, else None. Raises TemplateSyntaxError."""
    tokens = list(grammar().lex(source))
    kinds = [kind for _, kind, _ in tokens]
    if len(kinds) < 3 or kinds[0] != "variable_begin" or kinds[-1] != "variable_end":
        return None
    if kinds.count("variable_begin") != 1:
        return None
    return "".join(text for _, _, text in tokens[1:-1]).strip()


def is_name(text: str) -> bool:
    """Return whether `{{ text }}` reads the variable of that name and nothing else."""
    return is_path(text) and "." not in text


def is_path(text: str) -> bool:
    """Return whether the text is a variable or attributes of one (`choices.text`), so that it can be written bare."""
    if not all(part.isidentifier() for part in text.split(".")) or text.split(".")[0] in ("self", "loop"):
        return False
    try:
        body = grammar().parse(f"{{{{ {text} }}}}").body
    except jinja2.TemplateSyntaxError:
        return False
    output = body[0] if len(body) == 1 else None
    node = output.nodes[0] if isinstance(output, nodes.Output) and len(output.nodes) == 1 else None
    while isinstance(node, nodes.Getattr):
        node = node.node
    return isinstance(node, nodes.Name)


def operand(expression: str) -> str:
    """Return the expression so that filters and tests can follow it."""
    return expression if is_path(expression) or expression.isdigit() else f"({expression})"


def sealed(source: str) -> str:
    """Return the template so that text put before or after it stays as it is, and it stays as it is.

    A `{-` or `-}` at its edges would eat its neighbour's whitespace; a brace at its end would open a tag.
    """
    if re.match(r"\{[{%#]-", source):
        source = "{{ '' }}" + source
    if source.endswith(("-}}", "-%}", "-#}")):
        source += "{{ '' }}"
    bare = source.rstrip("{")
    if len(bare) < len(source):
        source = f"{bare}{{{{ {literal(source[len(bare) :])} }}}}"
    return source


def printed(text: str) -> str:
    """Return a template that prints exactly this text, whatever it contains."""
    plain = not has_markup(text) and "\r" not in text and not text.endswith("{")
    return text if plain else f"{{{{ {literal(text)} }}}}"
