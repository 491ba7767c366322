"""The one way to git: nothing that a repository configures is run, and both time and output are bounded.

The configuration of a repository can name programs: a file monitor, hooks, content filters, transport helpers. Each
call turns them off; nothing is fetched; a bare repository inside a folder of files is not used. Settings that the user
has for all repositories, such as `safe.directory` and `core.autocrlf`, apply.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Timer
from typing import IO, Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import PromptfmtError

MAX_BYTES: Final = 512 * 2**20
"""The longest output that is read."""

MAX_SECONDS: Final = 600.0
"""The longest wait for a command: a guard against waiting forever, far above the time that a large repository takes."""

_MAX_MESSAGE: Final = 4000
_CHUNK: Final = 2**20

_NAMED: Final = re.compile(r"(filter|hook)\..*\.[^.]*")
_PASSED_ON: Final = re.compile(
    r"(?!GIT_).*|GIT_(?:CONFIG_(?:COUNT|KEY_\d+|VALUE_\d+|GLOBAL|SYSTEM|NOSYSTEM)|EXEC_PATH|CEILING_DIRECTORIES"
    r"|DISCOVERY_ACROSS_FILESYSTEM|TEST_ASSUME_DIFFERENT_OWNER)"
)
"""The user's variables that git sees: none that names another repository, index, object store, pager or trace."""


class GitError(PromptfmtError):
    """Git gave no answer: it is missing, refuses the repository or the question, or takes too long.

    No answer is not an answer: a file that git does not list for such a reason may be tracked all the same.
    """


def git(
    folder: Path,
    *arguments: str,
    given: bytes = b"",
    variables: Mapping[str, str] | None = None,
    limit: int = MAX_BYTES,
    seconds: float = MAX_SECONDS,
) -> bytes:
    """Return what `git ARGUMENTS` prints in a folder of a work tree; raises GitError.

    `given` is its input; `variables` are added to its environment, such as another index. More than `limit` bytes of
    output, and more than `seconds`, are errors.
    """
    settings = {**data_table("git")["settings"], **_settings_of_named(_top_of(folder), seconds)}
    code, output, message = _run(folder, settings, arguments, variables or {}, given, limit, seconds)
    if code:
        raise _refused(arguments[0], code, message)
    return output


def has_repository(folder: Path) -> bool:
    """Return whether a folder may be in a work tree, even if git gives no answer there."""
    here = folder.resolve()
    return "GIT_DIR" in os.environ or any(os.path.lexists(each / ".git") for each in (here, *here.parents))


def work_tree(folder: Path) -> Path:
    """Return the uppermost folder of the work tree around a folder, on which git agrees.

    Raises GitError otherwise: a repository can configure a work tree that is elsewhere.
    """
    top = _top_of(folder)
    named = Path(os.fsdecode(git(folder, "rev-parse", "--show-toplevel").removesuffix(b"\n")))
    if named.resolve() != top:
        raise GitError(
            f"git uses {named}, not {top}, as the work tree of this repository. A work tree elsewhere is not supported"
        )
    return top


def _top_of(folder: Path) -> Path:
    """Return the uppermost folder of the work tree around a folder, links resolved.

    Raises GitError outside of a repository, and in a bare one (git before 2.38 has no safe.bareRepository).
    """
    here = folder.resolve()
    for each in (here, *here.parents):
        if os.path.lexists(each / ".git/HEAD") or (each / ".git").is_file():
            return each
        if os.path.lexists(each / "HEAD") and any(os.path.lexists(each / name) for name in ("objects", "commondir")):
            raise GitError(f"{each} is a bare repository; bare repositories are not supported")
    raise GitError(f"{here} is not in a git repository", hint="run the command in a clone of a git repository")


@lru_cache(maxsize=8)
def _settings_of_named(top: Path, seconds: float) -> Mapping[str, str]:
    """Return settings that turn off all configured filters and hooks, which have names of their own."""
    listing = ("config", "--null", "--name-only", "--get-regexp", r"^(filter|hook)\.")
    code, output, message = _run(top, data_table("git")["settings"], listing, seconds=seconds)
    if code not in (0, 1):  # 1: there are none
        raise _refused("config", code, message)
    settings: dict[str, str] = {}
    turned_off = data_table("git")["named"]
    for name in os.fsdecode(output).split("\0"):
        if found := _NAMED.fullmatch(name):
            if "=" in name:  # git -c would split it there
                raise GitError(f"the repository sets the git option {name}, which cannot be turned off")
            settings |= {f"{name.rpartition('.')[0]}.{key}": off for key, off in turned_off[found[1]].items()}
    return settings


def _refused(command: str, code: int, message: str) -> GitError:
    message, hint = message.removeprefix("fatal: "), None
    if "promisor" in message or "lazy fetch" in message:
        hint = "this clone is partial; to get the missing objects, run git fetch --refetch"
    elif "dubious ownership" in message:  # the last line is the command that trusts the folder
        (message, *_, hint) = message.splitlines()
    return GitError(message or f"git {command} failed with exit code {code}", hint=hint.strip() if hint else None)


# -- the process -------------------------------------------------------------------------------------------------------


def _run(
    folder: Path,
    settings: Mapping[str, str],
    arguments: tuple[str, ...],
    variables: Mapping[str, str] | None = None,
    given: bytes = b"",
    limit: int = MAX_BYTES,
    seconds: float = MAX_SECONDS,
) -> tuple[int, bytes, str]:
    """Return exit code, output and message of one process. Raises GitError where it does not end by itself."""
    command = [_program(), "--no-pager", *(word for pair in settings.items() for word in ("-c", "=".join(pair)))]
    environment = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    environment |= {**data_table("git")["variables"], **(variables or {})}
    is_late = Event()
    with TemporaryFile() as typed, TemporaryFile() as errors:
        typed.write(given)
        typed.seek(0)
        try:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=folder,
                env=environment,
                stdin=typed,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # a group to kill, without a terminal for questions
            )
        except OSError as error:
            raise GitError(f"git {arguments[0]} cannot be started: {error.strerror or error}") from None

        def end() -> None:
            is_late.set()
            _kill(process)

        guard = Timer(seconds, end)
        guard.daemon = True
        guard.start()
        try:
            with process:
                assert process.stdout is not None
                output = _read(process.stdout, limit)
                if len(output) > limit:
                    raise GitError(f"git {arguments[0]} printed more than {limit:,} bytes")
        finally:
            guard.cancel()
            _kill(process)
        if is_late.is_set():
            raise GitError(f"git {arguments[0]} did not end within {seconds:g} s")
        errors.seek(0)
        return process.returncode, output, errors.read(_MAX_MESSAGE).decode("utf-8", "replace").strip()


def _read(pipe: IO[bytes], limit: int) -> bytes:
    """Return the content of a pipe, at most one chunk more than `limit` bytes."""
    chunks, size = [], 0
    while size <= limit and (chunk := os.read(pipe.fileno(), _CHUNK)):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process that has not ended, with all that it started."""
    if process.poll() is None:
        if os.name == "nt":
            process.kill()
        else:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _program() -> str:
    """Return the path of git. Raises GitError.

    Relative folders of PATH are not searched, and neither is the working directory, where Windows looks first: both may
    be of the repository.
    """
    name = "git.exe" if os.name == "nt" else "git"
    for folder in filter(os.path.isabs, os.get_exec_path()):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise GitError("git is not installed")
