"""pytest in a process of its own, for both sides of a comparison: loading it takes longer than a few prompts.

Where this system can fork, it is loaded once, and each run is a copy of this process that has nothing else of it: its
folder, arguments, environment, module path and output are those of `python -m pytest`.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, NoReturn

from pytest_promptfmt.engine.processes import CAN_FORK
from pytest_promptfmt.rules.rule_registry import known_rules

_OWN: Final = tuple(f"pytest_promptfmt.plugin.{name}" for name in ("session", "collection", "closing", "working"))
"""What the plugin loads where it is switched on."""


def run_pytest(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Return how pytest ended in a folder, with what it printed."""
    if not _can_be_copied():
        command = [sys.executable, "-m", "pytest", *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, env=environment)
    _load(is_bare="PYTEST_DISABLE_PLUGIN_AUTOLOAD" in environment)
    with TemporaryFile() as output, TemporaryFile() as errors:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: that of a spinner holds no lock of ours
            child = os.fork()
        if child == 0:
            _be_pytest(folder, arguments, environment, (output, errors))
        _, status = os.waitpid(child, 0)
        texts = [_read(file) for file in (output, errors)]
    return subprocess.CompletedProcess(["pytest"], os.waitstatus_to_exitcode(status), *texts)


@cache
def _can_be_copied() -> bool:
    """Return whether this process may be copied: not one in which pytest, or code of a project, has already run."""
    return CAN_FORK and "pytest" not in sys.modules


@cache
def _load(*, is_bare: bool) -> None:
    """Import pytest and what it would load itself; whatever cannot be imported is reported by the run."""
    from_pytest = [f"_pytest.{name}" for name in import_module("_pytest.config").default_plugins]
    named = [] if is_bare else [each.module for each in entry_points(group="pytest11")]
    for name in ("pytest", *from_pytest, *named, *_OWN):
        with suppress(Exception):
            import_module(name)
    known_rules()


def _be_pytest(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str], outputs: tuple[IO[bytes], IO[bytes]]
) -> NoReturn:
    status = 1
    try:
        for number, file in enumerate(outputs, start=1):
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        pytest = import_module("pytest")
        sys.argv = [str(Path(str(pytest.__file__)).with_name("__main__.py")), *arguments]
        sys.path[: 0 if sys.flags.safe_path else 1] = [str(folder)]
        gc.freeze()
        gc.enable()
        status = int(pytest.main([*arguments]))
    except BaseException:  # noqa: BLE001, RUF100  # whatever it is, it must not unwind into the copy of the caller
        with suppress(BaseException):
            traceback.print_exc()
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
