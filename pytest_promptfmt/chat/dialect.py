"""The dialect of chat templates: the Jinja environment of transformers 5.23, without importing transformers."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Template as JinjaTemplate
from jinja2 import Undefined, nodes, pass_eval_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.utils import Namespace

from pytest_promptfmt.chat.bytecode import TemplateCache
from pytest_promptfmt.core import sandbox, sizes
from pytest_promptfmt.core.cache_directory import private_directory
from pytest_promptfmt.core.sandbox import LimitedSandbox

_CACHED_TEMPLATES: Final = 512


@lru_cache(maxsize=_CACHED_TEMPLATES)
def compiled_template(source: str) -> JinjaTemplate:
    """Return the template of this source.

    Compiled once for each machine: see `TemplateCache`. Raises jinja2's TemplateSyntaxError, and RecursionError for a
    template that is nested too deeply.
    """
    return _loaded(_environment(), source)


def template_with(source: str, undefined: type[Undefined]) -> JinjaTemplate:
    """Return the template of this source, whose missing names become `undefined`; raises as `compiled_template`."""
    return _loaded(_new_environment(undefined), source)


@cache
def _kept_templates() -> TemplateCache | None:
    folder = private_directory("chat-templates")
    try:
        # Our sandbox compiles to other code than Jinja's, and the code names the extension below.
        return TemplateCache(folder, (Path(sandbox.__file__), Path(__file__))) if folder is not None else None
    except OSError:
        return None


class _Generation(Extension):
    """`{% generation %}`: marks what the assistant says; it prints its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _body(self, _: nodes.EvalContext, caller: Macro) -> str:
        return caller()


class _TemplateDict:
    """`dict` as templates may use it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _TemplateNamespace(Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *values = args
        attributes = dict(*values, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace of a chat template may not hold {name!r}: names must not begin with '_'")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _loaded(environment: LimitedSandbox, source: str) -> JinjaTemplate:
    kept = _kept_templates()
    code = kept.code_of(environment, source) if kept is not None else environment.compile(source)
    return environment.template_class.from_code(environment, code, environment.make_globals(None))


@cache
def _environment() -> LimitedSandbox:
    return _new_environment(Undefined)


def _new_environment(undefined: type[Undefined]) -> LimitedSandbox:
    environment = LimitedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], undefined=undefined
    )
    environment.filters["tojson"] = environment.limited_filter(_tojson, sizes.check_json)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _TemplateDict()
    environment.globals["namespace"] = _TemplateNamespace
    return environment
