"""Other engines that render chat templates, and the constructs that they are known to lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from jinja2 import nodes
from jinja2.exceptions import TemplateError

from pytest_promptfmt.core.errors import SettingsError, did_you_mean
from pytest_promptfmt.core.profile import RECORDED
from pytest_promptfmt.systems.templates.node_engine import PACKAGE, NodeJinja
from pytest_promptfmt.systems.templates.recorded_engine import RecordedEngine
from pytest_promptfmt.systems.templates.server_engines import LlamaServer, ServerEngine, VllmServer

MEASURED: Final = "minijinja 3.0.5"
"""The engine and version in which the constructs below were tried."""

METHODS: Final = frozenset(
    (
        "rsplit",
        "partition",
        "rpartition",
        "index",
        "rindex",
        "removeprefix",
        "removesuffix",
        "ljust",
        "rjust",
        "center",
        "zfill",
        "casefold",
        "swapcase",
        "expandtabs",
        "translate",
    )
)
"""Methods of text and lists that it does not know."""

ARGUMENTS: Final[Mapping[str, frozenset[str]]] = {"tojson": frozenset({"ensure_ascii", "separators", "sort_keys"})}
"""Arguments of filters that it does not know."""

GENERATION: Final = "{% generation %}"
TESTS: Final = frozenset({"callable"})
FILTERS: Final = frozenset({"wordcount", "xmlattr", "urlize", "filesizeformat", "center", "random"})
FUNCTIONS: Final = frozenset({"cycler", "lipsum"})


def unknown_constructs(template: nodes.Template) -> Iterator[tuple[str, int]]:
    """Yield what the measured engine lacks, with its line."""
    for node in template.find_all((nodes.Call, nodes.Filter, nodes.Test, nodes.Mod, nodes.CallBlock)):
        if isinstance(node, nodes.Filter):
            if node.name in FILTERS:
                yield f"filter {node.name}", node.lineno
            for argument in node.kwargs:
                if argument.key in ARGUMENTS.get(node.name, ()):
                    yield f"{node.name}({argument.key}=…)", node.lineno
        elif isinstance(node, nodes.Test):
            if node.name in TESTS:
                yield f"test {node.name}", node.lineno
        elif isinstance(node, nodes.Mod):
            if isinstance(node.left, nodes.Const) and isinstance(node.left.value, str):
                yield "text % values", node.lineno
        elif isinstance(node, nodes.CallBlock):
            if isinstance(node.call.node, nodes.ExtensionAttribute):
                yield GENERATION, node.lineno
        elif isinstance(node, nodes.Call):
            if isinstance(node.node, nodes.Getattr) and node.node.attr in METHODS:
                yield f".{node.node.attr}()", node.lineno
            elif isinstance(node.node, nodes.Name) and node.node.name in FUNCTIONS:
                yield f"{node.node.name}()", node.lineno


class _MiniJinja:
    """A template compiled by minijinja, with the settings of Jinja that transformers uses."""

    name = "minijinja"
    is_server = False

    def __init__(self, source: str) -> None:
        import minijinja

        def raise_exception(message: str) -> NoReturn:
            raise TemplateError(message)

        self._error = minijinja.TemplateError
        self._environment = minijinja.Environment(
            globals={"raise_exception": raise_exception},
            trim_blocks=True,
            lstrip_blocks=True,
            auto_escape_callback=lambda _name: False,
        )
        try:
            self._environment.add_template("chat", source)
        except self._error as error:
            raise RuntimeError(str(error).splitlines()[0]) from error

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return the text; raises jinja2's TemplateError for a refusal, RuntimeError for everything else."""
        try:
            return str(self._environment.render_template("chat", **variables))
        except self._error as error:
            refusal = error.__cause__
            if isinstance(refusal, TemplateError):
                raise TemplateError(str(refusal)) from error
            raise RuntimeError(str(error).splitlines()[0]) from error


RUNS_CODE: Final = frozenset({PACKAGE})
"""Engines that are found from the working directory, so that the repository under test can put its own there."""


class Engine(Protocol):
    """A template as another engine renders it; a server renders the one that it serves."""

    @property
    def name(self) -> str:
        """Return what messages call the engine."""

    @property
    def is_server(self) -> bool:
        """Return whether a server renders, or did when it was recorded: with its own clock and special tokens."""

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return the text; raises TemplateError for a refusal, RuntimeError where it fails or the two look alike."""


_ENGINES: Final[Mapping[str, Callable[[str], Engine]]] = {"minijinja": _MiniJinja, PACKAGE: NodeJinja}
_SERVERS: Final[Mapping[str, type[ServerEngine]]] = {each.name: each for each in (LlamaServer, VllmServer)}


def server_at(written: str) -> ServerEngine | None:
    """Return the server of `llama.cpp:URL` or `vllm:URL`; None for what is not written like that."""
    name, _, url = written.partition(":")
    return _SERVERS[name](url) if name in _SERVERS and url.startswith(("http://", "https://")) else None


def compiled_by(engine: str, source: str) -> Engine:
    """Return a template compiled by an engine, a server (`llama.cpp:URL`, `vllm:URL`) or a recording (`FILE.jsonl`).

    Raises SettingsError for one that is unknown or not installed, RuntimeError for a template that it does not take.
    """
    if (server := server_at(engine)) is not None:
        return server
    if engine.endswith(RECORDED):
        return RecordedEngine(Path(engine))
    if engine not in _ENGINES:
        raise SettingsError(f"unknown template engine {engine!r}", hint=did_you_mean(engine, (*_ENGINES, *_SERVERS)))
    try:
        return _ENGINES[engine](source)
    except ImportError as error:
        raise SettingsError(f"the template engine {engine} is not installed", hint=f"pip install {engine}") from error
