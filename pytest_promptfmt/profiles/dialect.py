"""The dialect of chat templates: the Jinja environment of transformers 5.23, without importing transformers.

Compiled templates are kept between runs: Jinja takes 1 to 50 ms for each, reading one back a tenth of one. A file is
used only when it is whole and was made by this Python, this Jinja and this compiler for this very source.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from types import CodeType
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import Template as JinjaTemplate, Undefined, nodes, pass_eval_context
from jinja2.bccache import Bucket, BytecodeCache, bc_magic
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.utils import Namespace, internal_code

from pytest_promptfmt.core import sandbox, writing
from pytest_promptfmt.core.files import private_directory
from pytest_promptfmt.core.sandbox import LimitedSandbox

generation_marks: Final[ContextVar[tuple[str, str]]] = ContextVar("generation_marks", default=("", ""))
"""The texts that `{% generation %}` prints around its body; empty where no mask is needed."""

_DIGEST_BYTES: Final = 32
_MOST_BYTES: Final = 16_000_000


class TemplateCache(BytecodeCache):
    """Jinja's cache of compiled templates in one folder, which must be private to the user (`private_directory`).

    Code objects are read with `marshal`, which trusts its input: that is why the folder must be private, and why each
    file begins with a digest of the rest. A truncated or changed file is written again; one that cannot be written is
    skipped.
    """

    def __init__(self, folder: Path, compiler: Iterable[Path]) -> None:
        """Keep compiled templates in `folder`; `compiler` are the modules that determine the compiled code.

        Raises OSError where they cannot be read.
        """
        self._folder = folder
        self._compiler = _digest_of(compiler)

    def code_of(self, environment: Environment, source: str) -> CodeType:
        """Return the code of a template; raises what compiling it raises."""
        # A template can contain surrogates, which UTF-8 refuses.
        key = sha256(self._compiler + source.encode("utf-8", "surrogatepass")).hexdigest()
        bucket = Bucket(environment, key, key)
        self.load_bytecode(bucket)
        if bucket.code is None:
            bucket.code = environment.compile(template_tree(source))
            self.dump_bytecode(bucket)
        return bucket.code

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill the bucket when there is a complete file for it."""
        try:
            with open(self._folder / f"{bucket.key}.jinja-code", "rb") as file:
                data = file.read(_MOST_BYTES)
        except OSError:
            return
        digest, code = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if sha256(code).digest() != digest:
            return
        try:
            bucket.load_bytecode(BytesIO(code))
        except Exception:  # written by another Python: Jinja checks for that, and marshal may still refuse
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the file of the bucket, atomically."""
        code = bucket.bytecode_to_string()
        if len(code) > _MOST_BYTES - _DIGEST_BYTES:
            return
        with suppress(OSError):
            writing.write(self._folder / f"{bucket.key}.jinja-code", sha256(code).digest() + code, also=[self._folder])


def _digest_of(compiler: Iterable[Path]) -> bytes:
    """Return what must change whenever the same source may be compiled to other code."""
    digest = sha256(f"{jinja2.__version__}\0".encode() + bc_magic)
    for module in compiler:
        digest.update(module.read_bytes())
    return digest.digest()


_CACHED_TEMPLATES: Final = 512


@lru_cache(maxsize=_CACHED_TEMPLATES)
def compiled_template(source: str) -> JinjaTemplate:
    """Return the template of this source.

    Compiled once for each machine: see `TemplateCache`. Raises jinja2's TemplateSyntaxError, and RecursionError for a
    template that is nested too deeply.
    """
    return _loaded(_environment(), source)


def template_with(source: str, undefined: type[Undefined]) -> JinjaTemplate:
    """Return the template of this source with missing names as `undefined`; raises as `compiled_template`."""
    return _loaded(_environment().overlay(undefined=undefined), source)


def parsed_template(source: str) -> nodes.Template:
    """Return a syntax tree of a template; raises jinja2's TemplateSyntaxError."""
    return _environment().parse(source)


template_tree: Final = lru_cache(maxsize=8)(parsed_template)
"""Returns the one syntax tree of a template, which is not to be changed; raises as `parsed_template`."""


def compiled_tree(tree: nodes.Template) -> JinjaTemplate:
    """Return the template of a syntax tree, such as a changed one; raises as `compiled_template`."""
    environment = _environment()
    code = environment.compile(tree)
    return environment.template_class.from_code(environment, code, dict(environment.globals))


@cache
def _kept_templates() -> TemplateCache | None:
    folder = private_directory("chat-templates")
    try:
        # Our sandbox compiles to other code than Jinja's, and the code names the extension below.
        return TemplateCache(folder, (Path(sandbox.__file__), Path(__file__))) if folder is not None else None
    except OSError:
        return None


class _Generation(Extension):
    """`{% generation %}`: marks the assistant's text; it prints its body, between the marks where those are set."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _body(self, _: nodes.EvalContext, caller: Macro) -> str:
        begin, end = generation_marks.get()
        return f"{begin}{caller()}{end}" if begin else caller()


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
        raise SecurityError(f"a namespace of a chat template cannot hold {name!r}: names must not begin with '_'")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_any_tojson: Final = sandbox.limited_filter("tojson", _tojson)
_encode: Final = json.JSONEncoder(ensure_ascii=False).encode


def _limited_tojson(value: Any, *args: Any, **named: Any) -> Any:
    """Return JSON; the usual form is about as long as the value, of which each container was checked when made."""
    return _any_tojson(value, *args, **named) if args or named else sandbox.checked(_encode(value))


def _loaded(environment: LimitedSandbox, source: str) -> JinjaTemplate:
    return environment.template_class.from_code(environment, _code_of(source), dict(environment.globals))


@lru_cache(maxsize=8)
def _code_of(source: str) -> CodeType:
    kept = _kept_templates()
    return kept.code_of(_environment(), source) if kept is not None else _environment().compile(template_tree(source))


@cache
def _environment() -> LimitedSandbox:
    # Jinja's optimizer would change the tree that is looked at later, and folds little in a sandbox.
    extensions = [_Generation, loopcontrols]
    environment = _ChatSandbox(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=extensions)
    environment.template_class = _ChatTemplate
    environment.filters["tojson"] = _limited_tojson
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
        raise error


def line_of(error: BaseException) -> int | None:
    """Return the line of the chat template that raised, None where it is not known."""
    line, traceback = None, error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        template = frame.f_globals.get("__jinja_template__")
        if template is not None and frame.f_code not in internal_code:
            line = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


class _ChatTemplate(JinjaTemplate):
    """A template that reads its table of lines once: Jinja does for each frame of each error."""

    @cached_property
    def debug_info(self) -> list[tuple[int, int]]:
        return super().debug_info
