"""Options, and the check whether a run uses them; the plugin that does the work is registered only then.

pytest imports this module at every start of every project it is installed in: it imports nothing heavy, and nothing of
ours before pytest knows that asserts of this package need not be rewritten (PYTEST_DONT_REWRITE).
"""

from __future__ import annotations

import argparse
import gc
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pytest_promptfmt.settings.table import Setting

_PREFIX: Final = "--promptfmt-"
_GC_THRESHOLDS: Final = (100_000, 50, 100)
"""Of Python's collector in pytest's process."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the command-line options and ini values; all of them begin with promptfmt."""
    _load_as_compiled(pluginmanager)
    from pytest_promptfmt.settings.table import SETTINGS

    group = parser.getgroup("promptfmt", "prompt-format regression tests")
    for setting in SETTINGS:
        if setting.option:
            group.addoption(setting.option, **_option(setting))
        if setting.ini is not None:
            written = setting.ini_help or (f"As {setting.option}." if setting.option else setting.help)
            default = {} if setting.default is None else {"default": setting.default}
            parser.addini(setting.ini, _plain(written), type=setting.kind.ini_type, **default)


def _option(setting: Setting) -> dict[str, Any]:
    """Return the arguments of argparse for a setting."""
    from pytest_promptfmt.settings.table import FLAG

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


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Name the closest of our options for one that is unknown; pytest itself prints its whole usage and no hint."""
    _, unknown = parser.parse_known_and_unknown_args(args)
    for name in (each.partition("=")[0] for each in unknown if each.startswith(_PREFIX)):
        from difflib import get_close_matches

        from pytest_promptfmt.settings.table import SETTINGS

        known = [setting.option.removeprefix(_PREFIX) for setting in SETTINGS if not setting.is_hidden]
        close = get_close_matches(name.removeprefix(_PREFIX), known, 1)
        hint = f"did you mean '{_PREFIX}{close[0]}'?" if close else "`pytest --help` lists the options"
        raise pytest.UsageError(f"promptfmt: unknown option {name}\n  hint: {hint}")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers always, and the plugins of a run if it tests prompts."""
    from pytest_promptfmt.plugin.items import KINDS

    for kind in KINDS:
        config.addinivalue_line("markers", f"{kind.marker}: {kind.help}")
    is_testing = bool(config.getoption("promptfmt") or config.getini("promptfmt"))
    config.pluginmanager.register(_Pointer(is_testing), "promptfmt-pointer")
    if not is_testing:
        return
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(_OtherTests(config), "promptfmt-other-tests")
        return
    # Nearly all objects live to the end: this saves a quarter of the time of collecting 60,000 items.
    config.add_cleanup(partial(gc.set_threshold, *gc.get_threshold()))
    gc.set_threshold(*_GC_THRESHOLDS)
    from pytest_promptfmt.core.errors import SettingsError
    from pytest_promptfmt.core.text import escape_controls
    from pytest_promptfmt.plugin.session import activate

    try:
        activate(config)
    except SettingsError as error:
        raise pytest.UsageError(escape_controls(f"promptfmt: {error}")) from None


class _Pointer:
    """A hint for a run that was given task files and found no test: --promptfmt is missing, or an id is unknown."""

    def __init__(self, is_testing: bool) -> None:
        self.is_testing = is_testing

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        """Check the paths of the command line if nothing was collected or a path was not found."""
        if exitstatus not in (pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.USAGE_ERROR):
            return
        arguments = terminalreporter.config.invocation_params.args
        given = [argument.partition("::") for argument in arguments if argument[:1] != "-"]
        files = [file for file, separator, _ in given if separator or not self.is_testing]
        if not any(_holds_tasks(Path(file)) for file in files):
            return
        if self.is_testing:
            command = shlex.join(["pytest", "--promptfmt", "--collect-only", "-q", *files])
            terminalreporter.write_line(f"promptfmt: {command} lists the ids of tests")
        else:
            command = shlex.join(["pytest", "--promptfmt", *arguments])
            terminalreporter.write_line(
                f"promptfmt: to test prompts, run {command} (or set promptfmt = true in the ini file)"
            )


class _OtherTests:
    """The hooks of a process of pytest-xdist, which runs tests that are not prompts: its main process tests these."""

    def __init__(self, config: pytest.Config) -> None:
        """Without a network, as in that process."""
        from pytest_promptfmt.core.limits import go_offline

        go_offline()
        config.args = config.workerinput["promptfmt"]  # type: ignore[attr-defined]  # of xdist

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore folders of snapshots, and copies of a harness."""
        if collection_path.name == "__prompts__":
            return True
        if not (collection_path / "tasks").is_dir():
            return None
        from pytest_promptfmt.tasks import is_copied_harness

        return is_copied_harness(collection_path) or None


def _holds_tasks(path: Path) -> bool:
    """Return whether a path is a task file, or a folder with one among the first YAML files in it."""
    from itertools import chain, islice

    from pytest_promptfmt.core import gate
    from pytest_promptfmt.tasks import looks_like_task

    files = chain(path.glob("*.yaml"), path.glob("*/*.yaml")) if path.is_dir() else [path]
    known = (file for file in islice(files, 50) if file.suffix in (".yaml", ".yml") and file.is_file())
    return any(looks_like_task(gate.read_bytes(file)) for file in known)


def _load_as_compiled(plugins: pytest.PytestPluginManager) -> None:
    """Load our modules as they were compiled when they were installed.

    pytest 9.2 rewrites the asserts of all plugins for better messages, which costs more than the rest of a first start,
    and of each one without byte code: ours has a hundred modules, and their asserts are not tests.
    """
    names = getattr(getattr(plugins, "rewrite_hook", None), "_must_rewrite", None)
    if isinstance(names, set):
        names -= {name for name in names if name.partition(".")[0] == "pytest_promptfmt"}
