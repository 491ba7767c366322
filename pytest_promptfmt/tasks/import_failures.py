"""Why a module of a task does not import, and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_promptfmt.core.errors import FunctionError, LimitExceededError, Position, display_path
from pytest_promptfmt.tasks.deferred_imports import missing_package


class ImportFailedError(Exception):
    """An import that failed; `__cause__` is the original exception the first time."""

    def __init__(self, message: str, hint: str | None, lacks_resource: bool = False, missing: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.lacks_resource = lacks_resource
        self.missing = missing

    def about(self, what: str, position: Position | None) -> FunctionError:
        """Return the error for what was to be imported."""
        message = f"{what}: {self.message}"
        error = FunctionError(message, position=position, hint=self.hint, lacks_resource=self.lacks_resource)
        if self.missing:  # the same cause for all modules that need it
            error.cause = f"no module named {self.missing!r}"
        return error


def explained(error: BaseException, file: Path | None) -> tuple[str, str | None, bool, str]:
    """Return the message, the hint, whether the module may work on another machine, and what module is missing."""
    if isinstance(error, LimitExceededError):
        return error.message, "look for work at the top level of the module, such as a download or a loop", False, ""
    if isinstance(error, SystemExit):
        return f"its module ends the program when it is imported (exit status {error.code!r})", None, True, ""
    at = _last_line_in(error, file)
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = _install_hint(error.name, file)
        return f"its module does not import{at}: no module named {error.name!r}", hint, True, error.name
    is_mistake = isinstance(error, SyntaxError | NameError)
    message = f"its module does not import{at}: {type(error).__name__}: {error}"
    missing = missing_package(error)
    return message, _install_hint(missing, file) if missing else None, not is_mistake, missing


def _install_hint(module: str, file: Path | None) -> str:
    package = module.partition(".")[0]
    if file is not None and (file.parent / f"{package}.py").is_file():
        return f"lm-eval 0.4.13 does not put this folder on sys.path, so {package}.py beside the YAML is not found"
    if package in sys.modules:
        return f"the installed version of {package!r} does not have it"
    return f"install the package that has {package!r}"


def _last_line_in(error: BaseException, file: Path | None) -> str:
    if file is None:
        return ""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f" ({display_path(file)}:{error.lineno})"
    line = None
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(file):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f" ({display_path(file)}:{line})" if line is not None else ""
