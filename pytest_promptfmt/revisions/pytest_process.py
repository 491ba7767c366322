"""pytest in a process of its own for one side of a comparison: a copy of this one where the system can fork.

The copy has loaded pytest once for both sides, since loading takes longer than a few prompts.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, NoReturn

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError
from pytest_promptfmt.engine.confinement import possible
from pytest_promptfmt.engine.processes import CAN_FORK, on_sigterm
from pytest_promptfmt.rules.rule_registry import known_rules

_ENDED_WELL: Final = (0, 1, 5)  # all passed, some failed, no tests
_USAGE_ERROR: Final = 4

ISOLATED: Final = (
    *("-p", "syrupy", "-p", "promptfmt", "-p", "pytest_promptfmt.plugin.isolation"),
    *("--promptfmt", "-o", "addopts=", "-o", "python_files=", "-o", "required_plugins="),
)
"""Options of pytest in a command: task files only, and with `isolated` variables no plugin of another package."""

MEMBERS: Final = "::"
"""After the path of a group in the list of files that are left out: its members in such files are left out, too."""

_NOT_ISOLATED: Final = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


def isolated(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with which pytest loads the plugins that its options name, and no others."""
    kept = {name: value for name, value in variables.items() if name not in _NOT_ISOLATED}
    return {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


class RevisionError(PromptfmtError):
    """A revision whose tasks could not be run."""


def run_pytest(folder: Path, options: Sequence[str], paths: Sequence[str]) -> None:
    """Run pytest in a folder. Raises RevisionError where it did not finish, SettingsError for wrong options."""
    quiet = ["-p", "no:cacheprovider", "-W", "ignore", "-q", "-q", "--no-header", "--tb=no", "--color=no"]
    # Without the variable of a CI job, so that no summary is written twice.
    environment = {name: value for name, value in isolated(os.environ).items() if name != "GITHUB_STEP_SUMMARY"}
    with on_sigterm():
        done = _pytest_process(folder, [*ISOLATED, *quiet, *options, *paths], environment)
    if done.returncode == _USAGE_ERROR:
        output = done.stderr.decode("utf-8", "replace").strip()
        raise SettingsError(output.removeprefix("ERROR: ").removeprefix("promptfmt: ")[-2000:])
    if done.returncode not in _ENDED_WELL:
        output = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise RevisionError(f"pytest ended with {done.returncode}: {output[-2000:]}")


def _pytest_process(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Return how pytest ended in a folder, with what it printed."""
    if not _can_be_copied():
        command = [sys.executable, *(["-P"] if _is_safe() else []), "-m", "pytest", *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, env=environment)
    _load()
    with TemporaryFile() as output, TemporaryFile() as errors:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: that of a spinner holds no lock of ours
            child = os.fork()
        if child == 0:
            _be_pytest(folder, arguments, environment, (output, errors))
        try:
            _, status = os.waitpid(child, 0)
        except SystemExit:
            os.kill(child, signal.SIGKILL)
            raise
        texts = [_read(file) for file in (output, errors)]
    return subprocess.CompletedProcess(["pytest"], os.waitstatus_to_exitcode(status), *texts)


@cache
def _can_be_copied() -> bool:
    """Return whether this process may be forked: pytest, and code of a project, have not run in it yet."""
    return CAN_FORK and "pytest" not in sys.modules


def _is_safe() -> bool:
    """Return whether modules in the folder of a run are not imported: with `python -P`, and where no code may run."""
    return sys.flags.safe_path or not gate.allows_code()


_LOADED: Final = ("session", "isolation", "items.prompt_items", "items.answer_items", "items.command_items")


@cache
def _load() -> None:
    """Import pytest and the modules that it would load itself; the run reports those that cannot be imported."""
    from_pytest = [f"_pytest.{name}" for name in import_module("_pytest.config").default_plugins]
    for name in ("pytest", *from_pytest, "syrupy", *(f"pytest_promptfmt.plugin.{name}" for name in _LOADED)):
        with suppress(Exception):
            import_module(name)
    known_rules()
    possible()


def _be_pytest(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str], outputs: tuple[IO[bytes], IO[bytes]]
) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number, file in enumerate(outputs, start=1):
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        pytest = import_module("pytest")
        sys.argv = [str(Path(str(pytest.__file__)).with_name("__main__.py")), *arguments]
        sys.path[: 0 if sys.flags.safe_path else 1] = [] if _is_safe() else [str(folder)]
        gc.freeze()
        gc.enable()
        status = int(pytest.main([*arguments]))
    except BaseException:  # noqa: BLE001, RUF100  # it must not unwind into the copy of the caller
        with suppress(BaseException):
            traceback.print_exc()
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
