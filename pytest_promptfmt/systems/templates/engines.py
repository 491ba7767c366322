"""Other engines that render chat templates: minijinja here, others in processes, servers and their recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from jinja2.exceptions import TemplateError

from pytest_promptfmt.core.errors import SettingsError, did_you_mean
from pytest_promptfmt.core.profile import RECORDED
from pytest_promptfmt.systems.templates.engine_processes import LLAMA, PACKAGE, LlamaJinja, NodeJinja
from pytest_promptfmt.systems.templates.server_engines import SERVERS, RecordedEngine, server_at


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


_ENGINES: Final[Mapping[str, Callable[[str], Engine]]] = {
    "minijinja": _MiniJinja,
    PACKAGE: NodeJinja,
    LLAMA: LlamaJinja,
}


def compiled_by(engine: str, source: str) -> Engine:
    """Return a template compiled by an engine, a server (`llama.cpp:URL`, `vllm:URL`) or a recording (`FILE.jsonl`).

    Raises SettingsError for one that is unknown or not installed, RuntimeError for a template that it does not take.
    """
    if (server := server_at(engine)) is not None:
        return server
    if engine.endswith(RECORDED):
        return RecordedEngine(Path(engine))
    if engine not in _ENGINES:
        raise SettingsError(f"unknown template engine {engine!r}", hint=did_you_mean(engine, (*_ENGINES, *SERVERS)))
    try:
        return _ENGINES[engine](source)
    except ImportError as error:
        raise SettingsError(f"the template engine {engine} is not installed", hint=f"pip install {engine}") from error
