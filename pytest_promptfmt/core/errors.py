"""The one family of errors that users see, and the places in files they point at.

Every message has three parts: where (`arc.yaml:7:3`), what is wrong, and what to do now. Nothing here knows
about YAML, Jinja or pytest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file. Lines and columns count from 1; None where only the file is known."""

    path: Path
    line: int | None = None
    column: int | None = None

    @classmethod
    def after(cls, path: Path, before: str) -> Position:
        """Return the place of the character that follows this beginning of a file."""
        return cls(path, before.count("\n") + 1, len(before) - before.rfind("\n"))

    def __str__(self) -> str:
        """Return `path:line:column`, the path relative to the working directory when it lies below it."""
        parts = [display_path(self.path)]
        parts += [str(number) for number in (self.line, self.column) if number is not None]
        return ":".join(parts)


class PromptfmtError(Exception):
    """A problem in the user's files or settings, in one message.

    `position` is where, the message what, `hint` what to do now. `str()` joins the three. `key` is the key or option
    that the message is about, for a caller who knows where it is written. `cause` is equal for the same mistake in
    many tasks: the message, unless that names the task.
    """

    def __init__(
        self, message: str, *, position: Position | None = None, hint: str | None = None, key: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.hint = hint
        self.key = key
        self.cause = message

    def naming(self, subject: str) -> Self:
        """Return the error, whose message names `subject`, a task or doc, which is not part of its cause."""
        self.cause = self.message.replace(subject, "…")
        return self

    def __str__(self) -> str:
        where = f"{self.position}: " if self.position else ""
        now = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{where}{self.message}{now}"


def without_task(message: str, task: str) -> str:
    """Return a message without the name of a task, `name` or `name@format`, and without the number of its doc."""
    names = "|".join(re.escape(repr(name)) for name in (task, task.partition("@")[0]))
    message = re.sub(rf" (?:of|in|for) (?:{names})(?:, doc \d+(?:, shot \d+)?)?", "", message)
    return re.sub(names, "the task", message)


class SourceError(PromptfmtError):
    """A file that cannot be read as the task or group it looks like."""


class UnavailableError(PromptfmtError):
    """Rendering needs something that is not available or not allowed: a reason to skip a task, not to fail.

    `reason` is the same for all tasks that lack the same resource, `remedy` what makes it available, "" if unknown.
    """

    reason = "rendering needs a resource that is not available"
    remedy = ""

    def because(self, reason: str, remedy: str = "") -> Self:
        """Return the error with the reason for which its task is skipped."""
        self.reason, self.remedy = reason, remedy
        return self


class CodeNotAllowedError(UnavailableError):
    """A task needs Python code that the user has not allowed to run."""

    reason = "Python code of the task is not allowed to run (it is outside the rootdir, or the run allows no code)"

    @classmethod
    def of(cls, message: str, position: Position | None) -> Self:
        """Return the error with how to allow code."""
        hint = "to allow code, use --promptfmt-allow-code PATH, or allow_code=True in Python"
        return cls(message, position=position, hint=hint)


class FunctionError(PromptfmtError):
    """A `!function` that does not resolve, or whose module does not import.

    `lacks_resource`: the module itself may be fine, but needs a package, data or a network that is missing here.
    """

    def __init__(self, message: str, *, lacks_resource: bool = False, **more: Any) -> None:
        super().__init__(message, **more)
        self.lacks_resource = lacks_resource


class OwnPromptsError(UnavailableError):
    """A class of lm-eval's own Python interface, whose prompts only lm-eval can make."""

    reason = "a Python task class makes its prompts in its own code, which only lm-eval can run"

    @classmethod
    def of(cls, name: str, found: object, position: Position | None = None) -> Self:
        """Return the error for the task of a class, which was found there."""
        message = f"{name} is a Python task class ({found}), which makes its prompts in its own code"
        return cls(message, position=position)


class MissingResource(NamedTuple):
    """Something that is not here: the reason to skip what needs it, and what makes it available ("" if unknown)."""

    reason: str
    remedy: str = ""


class MissingResourceError(FunctionError, UnavailableError):
    """Code that needs a package, an environment variable or a download which is not here: no mistake of the task.

    `reason` and `remedy` are the same for all tasks that need it.
    """

    def __init__(self, message: str, missing: MissingResource, *, position: Position | None = None) -> None:
        super().__init__(message, position=position, hint=missing.remedy or None, lacks_resource=True)
        self.reason, self.remedy = missing


class DocsError(PromptfmtError):
    """The docs of a task cannot be found, read or made."""


class SyntheticDocsError(DocsError, UnavailableError):
    """A task without docs whose functions or templates do not work with synthetic docs."""

    reason = "there are no docs, and functions or templates of the task fail with synthetic docs"
    remedy = "promptfmt freeze"


class RenderError(PromptfmtError):
    """A prompt or request cannot be rendered for a doc. `__cause__` is the original exception, if any."""


class LimitExceededError(RenderError):
    """A template, function or regex exceeded its limit of time or size."""


OUT_OF_MEMORY: Final = "look for a loop that needs more and more memory, or raise promptfmt_memory"


class TooSlowError(LimitExceededError):
    """A filter or metric that is too slow for most of its inputs, so it is not tried again."""


class SlowScoringError(LimitExceededError, UnavailableError):
    """Scoring that is too slow for all the answers to try, each within its own limit: no mistake of the task."""

    reason = "filters or metrics are too slow, so not all answers were tested"


class FormatError(PromptfmtError):
    """An unknown format, or one that does not fit the task."""


class ScoringError(PromptfmtError):
    """A filter or metric that is unknown, not available, or cannot score what it was given."""


class UnavailableScoringError(ScoringError, UnavailableError):
    """A filter or metric of a fork or of Hugging Face evaluate that is not available: no mistake of the task."""


class TokenizerError(PromptfmtError):
    """A tokenizer that cannot be found, read or loaded, or a text that it cannot encode."""


class TokenizerBudgetError(TokenizerError, UnavailableError):
    """A tokenizer that is not loaded, because others that failed took all the time that a run has for them."""

    reason = "the tokenizer was not loaded, because other tokenizers, which failed, had used all the time for loading"


class ModelError(PromptfmtError):
    """A model that cannot be loaded, reached or queried, or whose response cannot be read."""


class SnapshotError(PromptfmtError):
    """A snapshot file that cannot be trusted: damaged, edited by hand, or claimed twice."""


class SettingsError(PromptfmtError):
    """A setting or command-line option that is invalid."""


def load_entry(entry: EntryPoint, what: str, kind: type[PromptfmtError], position: Position | None = None) -> Any:
    """Return the object of an entry point, which `what` names in messages; raises `kind` where it does not load."""
    try:
        return entry.load()
    except kind:
        raise
    except Exception as error:
        message = f"{what} {entry.value} cannot be imported: {type(error).__name__}: {error}"
        raise kind(message, position=position) from error


@contextmanager
def raising(
    kind: type[PromptfmtError], what: str = "", position: Position | None = None, hint: str | None = None
) -> Iterator[None]:
    """Raise `kind` in place of another error of ours, in its words, or with `what` of a file that cannot be read."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        if not what:
            raise
        reason = error.strerror or error if isinstance(error, OSError) else f"not UTF-8 at byte {error.start}"
        raise kind(f"{what}: {reason}", position=position, hint=hint) from error
    except PromptfmtError as error:
        raise kind(error.message, position=error.position or position, hint=hint or error.hint) from error


def kept(made: dict[Any, Any], key: Hashable, make: Callable[[], Made]) -> Made:
    """Return what `make` gives, kept in `made`; a PromptfmtError is kept like a value, and raised each time."""
    if key not in made:
        try:
            made[key] = make()
        except PromptfmtError as error:
            made[key] = error
    found: Made = made[key]
    if isinstance(found, PromptfmtError):
        raise found.with_traceback(None)
    return found


def display_path(path: Path | str) -> str:
    """Return `path` as a person would type it: relative when below the working directory, POSIX slashes."""
    absolute = os.path.abspath(path)
    here = os.getcwd()
    if absolute == here or absolute.startswith(here.rstrip(os.sep) + os.sep):
        absolute = os.path.relpath(absolute, here)
    return absolute.replace(os.sep, "/")


_CLOSE: Final = 0.6
"""The ratio of similar letters from which a name may be meant."""


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return `did you mean 'x'?` for the closest known name, or None when none is close."""
    import difflib  # only when a message needs it: this module is imported at every pytest start

    # As `difflib.get_close_matches` with one result, but the slow ratio only of names that may still be the closest.
    matcher = difflib.SequenceMatcher(b=name)
    bounds: list[tuple[float, str]] = []
    for each in known:
        matcher.set_seq1(each)
        if matcher.real_quick_ratio() >= _CLOSE and (bound := matcher.quick_ratio()) >= _CLOSE:
            bounds.append((bound, each))
    found: list[tuple[float, str]] = []
    for bound, each in sorted(bounds, reverse=True):
        if found and bound < found[0][0]:
            break
        matcher.set_seq1(each)
        if (ratio := matcher.ratio()) >= _CLOSE:
            found = [max(*found, (ratio, each), (0.0, ""))]
    return f"did you mean {found[0][1]!r}?" if found else None


def is_misspelt(name: str, known: Iterable[str]) -> bool:
    """Return whether an unknown name is so close to a known one that it is a mistake, not another harness's name."""
    import difflib

    names = list(known)
    has_swapped_letters = any(sorted(name) == sorted(each) for each in names)
    return has_swapped_letters or bool(difflib.get_close_matches(name, names, n=1, cutoff=0.85))


def described(error: BaseException) -> str:
    """Return the type of a foreign error and the beginning of its message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".removesuffix(": ")


def quoted(text: str) -> str:
    """Return a foreign text in quotes, shortened to about 60 characters."""
    return repr(text if len(text) <= 60 else text[:57] + "…")


def json_mistake(error: ValueError) -> str:
    """Return Python's message about invalid JSON, without the words that introduce the position."""
    return str(getattr(error, "msg", error)).rstrip(": ").removesuffix(" at").removesuffix(" starting")


def named_value(value: object) -> str:
    """Return a value of YAML or JSON as messages about its type show it."""
    if value is None or isinstance(value, Mapping | list):
        return "null" if value is None else "a list" if isinstance(value, list) else "a mapping"
    text = str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


_MOST_SHOWN: Final = 500


def shortened(text: str) -> str:
    """Return foreign text shortened for a message: only its beginning where it is long."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}… ({len(text):,} characters)"


def traceback_of_user(error: BaseException) -> TracebackType | None:
    """Return the part of an error's traceback that is in the user's code: all below the last frame of this package."""
    own = str(Path(__file__).parent.parent) + os.sep
    found = below = error.__traceback__
    while below is not None:
        if below.tb_frame.f_code.co_filename.startswith(own):
            found = below.tb_next
        below = below.tb_next
    return found


def place_in_user_code(error: BaseException) -> str | None:
    """Return file and line of the user's file nearest to the error's origin; None if there are none."""
    traceback = traceback_of_user(error)
    if traceback is None:
        return None
    file = traceback.tb_frame.f_code.co_filename
    lines = [line for frame, line in walk_tb(traceback) if frame.f_code.co_filename == file]
    return f"{display_path(Path(file))}:{lines[-1]}"
