"""The dialect of chat templates: the Jinja environment of transformers 5.23, without importing transformers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, cached_property, lru_cache
from types import CodeType
from typing import Any, Final, NoReturn

from jinja2 import Environment, Template as JinjaTemplate, Undefined, nodes, pass_eval_context
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.utils import Namespace, internal_code

from pytest_promptfmt.core.sandbox import LimitedSandbox

generation_marks: Final[ContextVar[tuple[str, str, str]]] = ContextVar("generation_marks", default=("", "", ""))
"""The texts that `{% generation %}` prints around its body, then that before a generation prompt; usually empty."""

ASKED: Final = "add_generation_prompt"

_CACHED_TEMPLATES: Final = 512


@lru_cache(maxsize=_CACHED_TEMPLATES)
def compiled_template(source: str) -> JinjaTemplate:
    """Return the template of this source, compiled once.

    Raises jinja2's TemplateSyntaxError, and RecursionError for a template that is nested too deeply.
    """
    return _loaded(_environment(), _code_of(source))


def template_with(source: str, undefined: type[Undefined]) -> JinjaTemplate:
    """Return the template of this source with missing names as `undefined`; raises as `compiled_template`."""
    return _loaded(_environment().overlay(undefined=undefined), _code_of(source))


def parsed_template(source: str) -> nodes.Template:
    """Return a syntax tree of a template; raises jinja2's TemplateSyntaxError."""
    return _environment().parse(source)


template_tree: Final = lru_cache(maxsize=8)(parsed_template)
"""Returns the one syntax tree of a template, which is not to be changed; raises as `parsed_template`."""


def changed_template(source: str, change: Callable[[Environment, nodes.Template], None]) -> JinjaTemplate:
    """Return the template of this source after a change of its environment or syntax tree; raises as above."""
    environment = _environment().overlay()
    environment.filters, environment.tests = dict(environment.filters), dict(environment.tests)
    tree = environment.parse(source)
    change(environment, tree)
    tree.set_environment(environment)
    return _loaded(environment, environment.compile(tree))


@lru_cache(maxsize=8)
def generation_prompt_of(source: str) -> nodes.If | None:
    """Return the condition at the end of a template that writes the generation prompt, if that is all it changes."""
    body = template_tree(source).body
    last = body[-1] if body else None  # of comments only
    if not isinstance(last, nodes.If) or last.elif_ or last.else_:
        return None
    conditions = [last.test]
    for each in conditions:
        conditions += [each.left, each.right] if isinstance(each, nodes.And) else []
    asks = [each for each in last.find_all(nodes.Name) if each.name == ASKED]
    has_default = body[0] == _default().body[0]
    is_all = source.count(ASKED) == len(asks) + (2 if has_default else 0)
    return last if is_all and any(each in conditions for each in asks) else None


@cache
def _default() -> nodes.Template:
    return parsed_template(f"{{% if not {ASKED} is defined %}}{{% set {ASKED} = false %}}{{% endif %}}")


class _Generation(Extension):
    """`{% generation %}`: marks the assistant's text; it prints its body, between the marks where those are set."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _body(self, _: nodes.EvalContext, caller: Macro) -> str:
        begin, end, _prompt = generation_marks.get()
        return f"{begin}{caller()}{end}" if begin else caller()

    def _mark(self) -> str:
        return generation_marks.get()[2]


class _TemplateDict:
    """`dict` as templates may use it; messages of Jinja name it like that."""

    __module__ = "builtins"
    __qualname__ = "dict"

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _TemplateNamespace(Namespace):
    """`namespace` without names that begin with an underscore."""

    __module__ = "builtins"

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *values = args
        attributes = dict(*values, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


_TemplateDict.__name__, _TemplateNamespace.__name__ = "dict", "namespace"


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a Jinja namespace cannot hold {name!r}: names must not begin with '_'")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _loaded(environment: Environment, code: CodeType) -> JinjaTemplate:
    return environment.template_class.from_code(environment, code, dict(environment.globals))


@lru_cache(maxsize=8)
def _code_of(source: str) -> CodeType:
    tree, prompt = template_tree(source), generation_prompt_of(source)
    if prompt is not None:
        mark = nodes.Call(nodes.ExtensionAttribute(_Generation.identifier, "_mark"), [], [], None, None)
        marked = nodes.If(prompt.test, [nodes.Output([mark]), *prompt.body], [], []).set_lineno(prompt.lineno)
        tree = nodes.Template([*tree.body[:-1], marked], lineno=1, environment=tree.environment)
    return _environment().compile(tree)


@cache
def _environment() -> LimitedSandbox:
    # Jinja's optimizer would change the tree that is looked at later, and folds little in a sandbox.
    extensions = [_Generation, loopcontrols]
    environment = _ChatSandbox(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=extensions)
    environment.template_class = _ChatTemplate
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _TemplateDict()
    environment.globals["namespace"] = _TemplateNamespace
    return environment


class _ChatSandbox(LimitedSandbox):
    """The sandbox of chat templates, which leaves the traceback of a failing template as Python made it.

    Jinja writes the lines of the template into it, which takes longer than most renderings: see `line_of`.
    """

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Raise the current exception."""
        error = sys.exc_info()[1]
        if error is None or isinstance(error, TemplateSyntaxError):
            super().handle_exception(source)
        try:
            raise error
        finally:
            del error  # else its traceback and this frame hold each other, and with them the whole trial


def line_of(error: BaseException) -> int | None:
    """Return the line of the chat template that raised, None where it is not known.

    Of a recursion, which may end anywhere, it is the line that calls most often.
    """
    template, lines, traceback = None, list[int](), error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if "__jinja_template__" in frame.f_globals and frame.f_code not in internal_code:
            template = frame.f_globals["__jinja_template__"]
            lines.append(traceback.tb_lineno or 0)
        traceback = traceback.tb_next
    if template is None:
        return None
    line = max(set(lines), key=lines.count) if isinstance(error, RecursionError) else lines[-1]
    return template.get_corresponding_lineno(line)  # type: ignore[no-any-return]


class _ChatTemplate(JinjaTemplate):
    """A template that reads its table of lines once: Jinja does for each frame of each error."""

    @cached_property
    def debug_info(self) -> list[tuple[int, int]]:
        return super().debug_info
