"""Options, and the test whether they ask for anything; the plugin that does the work is registered only then.

pytest imports this module at every start of every project it is installed in: it imports nothing heavy.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.plugin.kind_registry import KINDS
from pytest_promptfmt.settings.setting_values import FLAG
from pytest_promptfmt.settings.table import SETTINGS, Setting


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options and ini values; all of them begin with promptfmt."""
    group = parser.getgroup("promptfmt", "prompt-format regression tests")
    for setting in SETTINGS:
        if setting.option:
            group.addoption(setting.option, **_option(setting))
        if setting.ini is not None:
            written = setting.ini_help or (f"As {setting.option}." if setting.option else setting.help)
            default = {} if setting.default is None else {"default": setting.default}
            parser.addini(setting.ini, _plain(written), type=setting.kind.ini_type, **default)


def _option(setting: Setting) -> dict[str, Any]:
    """Return what argparse is to know of a setting."""
    help_text = _plain(setting.help)
    if setting.is_hidden:
        help_text = argparse.SUPPRESS
    elif setting.is_repeatable:
        help_text += " Repeatable."
    if setting.kind is FLAG:
        return {"action": "store_true", "help": help_text}
    if setting.const is not None:
        return {"action": "store_const", "const": setting.const, "help": help_text}
    return {
        "action": "append" if setting.is_repeatable else "store",
        "default": [] if setting.is_repeatable else None,
        "metavar": setting.metavar,
        "help": help_text,
    }


def _plain(text: str) -> str:
    """Return Markdown as `pytest --help` shows it."""
    return text.replace("`", "")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers always, and the working plugin when this run asks for it."""
    for kind in KINDS:
        config.addinivalue_line("markers", f"{kind.marker}: {kind.help}")
    if not (config.getoption("promptfmt") or config.getini("promptfmt")):
        config.pluginmanager.register(_Pointer(), "promptfmt-pointer")
        return
    _load_as_compiled(config)
    from pytest_promptfmt.plugin.large_runs import look_for_garbage_less

    look_for_garbage_less(config)
    from pytest_promptfmt.core.errors import SettingsError
    from pytest_promptfmt.core.text import escape_controls
    from pytest_promptfmt.plugin.session import activate

    try:
        activate(config)
    except SettingsError as error:
        raise pytest.UsageError(escape_controls(f"promptfmt: {error}")) from None


class _Pointer:
    """Says how prompts are tested where a run without --promptfmt was given task files and found no test."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        """Look at the paths of the command line, only where nothing was collected or a path was not found."""
        if exitstatus not in (pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.USAGE_ERROR):
            return
        arguments = terminalreporter.config.invocation_params.args
        if any(_holds_tasks(Path(argument.partition("::")[0])) for argument in arguments if argument[:1] != "-"):
            command = shlex.join(["pytest", "--promptfmt", *arguments])
            terminalreporter.write_line(
                f"promptfmt: {command} tests prompts; promptfmt = true in the ini does so always"
            )


def _holds_tasks(path: Path) -> bool:
    """Return whether a path is a task file, or a folder with one among the first YAML files in it."""
    from itertools import chain, islice

    from pytest_promptfmt.core import gate
    from pytest_promptfmt.tasks import looks_like_task

    files = chain(path.glob("*.yaml"), path.glob("*/*.yaml")) if path.is_dir() else [path]
    known = (file for file in islice(files, 50) if file.suffix in (".yaml", ".yml") and file.is_file())
    return any(looks_like_task(gate.read_bytes(file)) for file in known)


def _load_as_compiled(config: pytest.Config) -> None:
    """Let our modules be loaded as they were compiled when they were installed.

    pytest 9.2 rewrites the asserts of all plugins for the sake of their messages, which costs more than the rest of a
    first start: ours has a hundred modules, and none of them asserts anything about the code of others.
    """
    names = getattr(getattr(config.pluginmanager, "rewrite_hook", None), "_must_rewrite", None)
    if isinstance(names, set):
        names -= {name for name in names if name.partition(".")[0] == "pytest_promptfmt"}
