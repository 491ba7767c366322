"""Options, and the test whether they ask for anything; the plugin that does the work is registered only then.

pytest imports this module at every start of every project it is installed in: it imports nothing heavy.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from pytest_promptfmt.settings.table import SETTINGS, Setting, plain
from pytest_promptfmt.settings.values import FLAG


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options and ini values; all of them begin with promptfmt."""
    group = parser.getgroup("promptfmt", "prompt-format regression tests")
    for setting in SETTINGS:
        if setting.option is not None:
            group.addoption(setting.option, **_option(setting))
        if setting.ini is not None:
            written = setting.ini_help or (f"As {setting.option}." if setting.option else setting.help)
            default = {} if setting.default is None else {"default": setting.default}
            parser.addini(setting.ini, plain(written), type=setting.kind.ini_type, **default)


def _option(setting: Setting) -> dict[str, Any]:
    """Return what argparse is to know of a setting."""
    help_text = plain(setting.help)
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


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers always, and the working plugin when this run asks for it."""
    config.addinivalue_line("markers", "promptfmt_snapshot: the prompts of a task compared with their snapshot")
    config.addinivalue_line("markers", "promptfmt_lint: a task or group looked at by the checks")
    config.addinivalue_line("markers", "promptfmt_variant: a variant of a format, rendered without a snapshot")
    config.addinivalue_line("markers", "promptfmt_extraction: whether a task's filters read answers as they should")
    config.addinivalue_line("markers", "promptfmt_scoring: whether a task's metrics tell right from wrong answers")
    config.addinivalue_line("markers", "promptfmt_recorded: prompts and completions of a recorded run, made again")
    config.addinivalue_line("markers", "promptfmt_recording: recorded completions, replayed")
    config.addinivalue_line("markers", "promptfmt_model: a task put to a model")
    if not (config.getoption("promptfmt") or config.getini("promptfmt")):
        return
    _load_as_compiled(config)
    from pytest_promptfmt.core.errors import SettingsError
    from pytest_promptfmt.plugin.session import activate

    try:
        activate(config)
    except SettingsError as error:
        raise pytest.UsageError(f"promptfmt: {error}") from None


def _load_as_compiled(config: pytest.Config) -> None:
    """Let our modules be loaded as they were compiled when they were installed.

    pytest 9.2 writes the asserts of all plugins anew for the sake of their messages, which costs more than the rest of
    a first start: ours has a hundred modules, and none of them asserts anything about the code of others.
    """
    names = getattr(getattr(config.pluginmanager, "rewrite_hook", None), "_must_rewrite", None)
    if isinstance(names, set):
        names -= {name for name in names if name.partition(".")[0] == "pytest_promptfmt"}
