"""A task class: which hooks its author wrote, its constants, and the lines of each.

The protocol is that of eval-framework 0.15.4 (`BaseTask`, and objects with `iterate_samples`), recognized by the names
of methods only: eval-framework is never imported here, and a class that does not import it works as well.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final, Literal

from pytest_promptfmt.core.errors import (
    LimitExceededError,
    Position,
    PromptfmtError,
    RenderError,
    SourceError,
    described,
    did_you_mean,
)
from pytest_promptfmt.core.limits import exits_raise, must_propagate, time_limit
from pytest_promptfmt.core.task import OutputType

SEED: Final = 42
"""The seed of a task in eval-framework 0.15.4."""
HOOK_SECONDS: Final = 5.0
"""How long one call of a hook may take: less than rendering a task, so that the error names the hook."""
NO_SUBJECT: Final = "no_subject"

TEXT_HOOKS: Final = (
    "_get_instruction_text",
    "_get_ground_truth",
    "_get_possible_completions",
    "_get_fewshot_target_text",
    "_get_cue_text",
    "_get_initial_prompt_text",
    "_get_system_prompt_text",
)
ASSEMBLY_HOOKS: Final = (
    "_get_instruction_messages",
    "_get_example_messages",
    "_get_messages",
    "_create_samples",
    "_sample_fewshot_examples",
    "_load_dataset",
)
STYLER_HOOKS: Final = ("_get_raw_question", "_get_choices", "_get_correct_index")
POST_PROCESS: Final = "post_process_generated_completion"
HOOKS: Final = (*TEXT_HOOKS, POST_PROCESS, *ASSEMBLY_HOOKS, *STYLER_HOOKS, "_get_context")
_SAMPLES: Final = "iterate_samples"
_BASE: Final = ("eval_framework.tasks.base", "BaseTask")
"""The class whose methods are defaults: its author did not write what a task inherits from it."""
_DRAWERS: Final = frozenset({"__init__", "_load_dataset", "_load_hf_dataset", "_sample_fewshot_examples"})
"""Methods whose draws from `self.rnd` are repeated in any case."""
_NO_CODE: Final = (lambda: None).__code__
_OUTPUT_TYPES: Final[Mapping[str, OutputType]] = {
    "completion": "generate_until",
    "loglikelihoods": "multiple_choice",
}

Kind = Literal["hooks", "samples", "benchmark"]


@dataclass(frozen=True, slots=True)
class Constants:
    """The class attributes that matter: splits, subjects, the output type, and the names of its metrics."""

    sample_split: str
    fewshot_split: str
    subjects: tuple[Any, ...]
    output_type: OutputType
    metrics: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TaskClass:
    """A task class, or an object that gives samples.

    `own` are the hooks that its author wrote (inherited ones too, but not those of eval-framework's own base class),
    `position` the line of the class, None for an object whose line is unknown.
    """

    name: str
    found: Any
    kind: Kind
    own: frozenset[str]
    position: Position | None

    @property
    def styler(self) -> Any:
        """Return the task style of the class, None without one."""
        return getattr(self.found, "TASK_STYLER", None)

    @property
    def by_default(self) -> tuple[str, ...]:
        """Return the text hooks that its author left to their defaults."""
        if self.kind != "hooks":
            return ()
        written = ("_get_initial_prompt_text", "_get_system_prompt_text") if self.styler is not None else TEXT_HOOKS
        return tuple(hook for hook in TEXT_HOOKS if hook not in self.own and hook in written)

    @property
    def draws(self) -> bool:
        """Return whether code of the class, other than what loads and draws rows, draws from `self.rnd`."""
        classes = self.found.__mro__ if isinstance(self.found, type) else ()
        functions = (item for each in classes if not _is_base(each) for item in vars(each).items())
        return any(
            "rnd" in getattr(inspect.unwrap(getattr(value, "__func__", value)), "__code__", _NO_CODE).co_names
            for name, value in functions
            if callable(getattr(value, "__func__", value)) and name not in _DRAWERS
        )

    def line_of(self, hook: str) -> Position | None:
        """Return where a hook is written; the line of the class for a default."""
        function = inspect.unwrap(getattr(self.found, spelled(self.found, hook), None) or self.found)
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if hook not in self.own or code is None:
            return self.position
        return Position(Path(code.co_filename), code.co_firstlineno)

    def constants(self, instance: Any = None) -> Constants:
        """Return the class attributes; raises SourceError for one of the wrong type."""
        source = self.found if instance is None else instance
        sample = self._text(source, "SAMPLE_SPLIT", getattr(source, "sample_split", "test"))
        subjects = _attribute(source, "SUBJECTS", None)
        if isinstance(subjects, str) or not isinstance(subjects, Sequence | type(None)):
            raise self._wrong("SUBJECTS", subjects, "a list of subjects")
        return Constants(
            sample_split=sample,
            fewshot_split=self._text(source, "FEWSHOT_SPLIT", sample),
            subjects=tuple(subjects or (NO_SUBJECT,)),
            output_type=self._output_type(source),
            metrics=self._metrics(source),
        )

    def _text(self, source: Any, name: str, default: Any) -> str:
        value = _attribute(source, name, default)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, value, "the name of a split")
        return value

    def _output_type(self, source: Any) -> OutputType:
        given = _attribute(source, "RESPONSE_TYPE", None) if self.styler is None else self.styler.response_type
        for asked, method in ((source, "get_response_type"), (source, "response_type"), (self.found, "response_type")):
            if given is None:
                with suppress(Exception):
                    given = getattr(asked, method)()
        if given is None:
            return "multiple_choice" if "_get_possible_completions" in self.own else "generate_until"
        value = str(given.value if isinstance(given, Enum) else given)
        if value not in _OUTPUT_TYPES:
            raise self._wrong("RESPONSE_TYPE", given, f"one of {', '.join(_OUTPUT_TYPES)}")
        return _OUTPUT_TYPES[value]

    def _metrics(self, source: Any) -> tuple[str, ...]:
        given = _attribute(source, "METRICS", None) if self.styler is None else self.styler.metrics
        if given is None and self.kind == "benchmark":
            with suppress(Exception):
                given = self.found.metrics()
        if isinstance(given, str) or not isinstance(given, Sequence | None):
            raise self._wrong("METRICS", given, "a list of metric classes")
        return tuple(each if isinstance(each, str) else getattr(each, "__name__", str(each)) for each in given or ())

    def _wrong(self, name: str, value: Any, expected: str) -> SourceError:
        return SourceError(
            f"{name} of {self.name} is {in_words(value)}", position=self.position, hint=f"give {expected}"
        )

    def make(self, num_fewshot: int, subjects: Sequence[str] | None = None) -> Any:
        """Return a new object of the class, seeded as eval-framework does; call its hooks through `call`.

        `subjects` are the requested subjects of a benchmark, None for all of them. Raises RenderError for anything that
        its constructor raises.
        """
        if self.kind == "benchmark":
            return self.call(self.found.create, num_fewshot, subjects, None, SEED, hook="create")
        if not isinstance(self.found, type):
            return self.found
        build = self.found
        if misses_lock_file(self.found):
            # 0.15.4 refuses to build such a class, 0.9 does not know the attribute; PF757 reports it.
            build = type(self.found.__name__, (self.found,), {"REVISION_LOCKFILE": None})
        overwrite = getattr(build, "with_overwrite", None)
        if callable(overwrite):
            given: dict[str, Any] = {"custom_subjects": None, "custom_hf_revision": None, "seed": SEED}
            return self.call(overwrite, num_fewshot, **given, hook="with_overwrite")
        instance = self.call(_constructor(build), num_fewshot, hook="__init__")
        for name, value in {"rnd": random.Random(SEED), "num_fewshot": num_fewshot}.items():
            with suppress(AttributeError):
                if getattr(instance, name, None) is None:
                    setattr(instance, name, value)
        return instance

    def shots(self, asked: int) -> int:
        """Return the number of shots: the one that the constructor fixes, else the requested one."""
        if self.kind != "hooks":
            return asked
        fixed = getattr(self.make(asked), "num_fewshot", asked)
        return fixed if isinstance(fixed, int) and not isinstance(fixed, bool) and fixed >= 0 else asked

    def call(self, function: Callable[..., Any], *arguments: Any, hook: str, where: str = "", **options: Any) -> Any:
        """Return what a hook returns; `where` names the doc.

        Raises RenderError at the line of the user's file that raised, for any exception (SystemExit too), and
        LimitExceededError after `HOOK_SECONDS`.
        """
        what = f"{hook} of {self.name!r}{where}"
        try:
            with time_limit(HOOK_SECONDS, what, self.line_of(hook)), exits_raise():
                return function(*arguments, **options)
        except PromptfmtError:
            raise
        except BaseException as error:
            if must_propagate(error):
                raise
            ends = "ended the program with" if isinstance(error, SystemExit) else "raised"
            raise RenderError(
                f"{what} {ends} {described(error)}",
                position=self._raised_at(error) or self.line_of(hook),
                hint=_hint(error, arguments),
            ) from error

    def _raised_at(self, error: BaseException) -> Position | None:
        """Return the last line of a file of the class, or of its bases, that the error went through."""
        classes = self.found.__mro__ if isinstance(self.found, type) else type(self.found).__mro__
        files = {file for each in classes if (file := _file_of(each)) is not None}
        places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
        return next((Position(Path(file), line) for file, line in reversed(places) if file in files), None)


def task_class(found: Any, name: str, *, position: Position | None = None) -> TaskClass:
    """Return an object as a task class; raises SourceError, with what is missing, for anything else."""
    kind = _kind(found)
    where = _position(found) or position
    if kind is None:
        methods = [each for each in dir(found) if not each.startswith("__")]
        hint = next((close for hook in HOOKS[:2] if (close := did_you_mean(hook, methods))), None)
        raise SourceError(
            f"{name} is not a task class: it needs _get_instruction_text and _get_ground_truth, or iterate_samples",
            position=where,
            hint=hint or "add the missing methods. docs/task-classes.md lists all hooks",
        )
    own = frozenset(hook for hook in HOOKS if _is_own(found, hook))
    return TaskClass(name=name, found=found, kind=kind, own=own, position=where)


def is_task_class(found: Any) -> bool:
    """Return whether an object of a module is a task: a class with the hooks, or an object that gives samples."""
    return _kind(found) is not None and not inspect.isabstract(found)


def is_lm_eval_class(found: Any) -> bool:
    """Return whether a class is a task of lm-eval's own Python interface, whose prompts only lm-eval can make."""
    return isinstance(found, type) and all(hasattr(found, name) for name in ("construct_requests", "doc_to_text"))


def spelled(found: Any, hook: str) -> str:
    """Return the name under which a class has a hook: with the underscore, or without it."""
    public = hook.lstrip("_")
    return public if not hasattr(found, hook) and hasattr(found, public) else hook


def _kind(found: Any) -> Kind | None:
    if not isinstance(found, type) and callable(getattr(found, "create", None)):
        return "benchmark" if callable(getattr(found, "subjects", None)) else None
    if _is_own(found, _SAMPLES):
        return "samples"
    if not isinstance(found, type):
        return None
    styled = getattr(found, "TASK_STYLER", None) is not None
    hooks = STYLER_HOOKS if styled else TEXT_HOOKS[:2]
    return "hooks" if all(_is_own(found, hook) for hook in hooks) or _is_own(found, "_create_samples") else None


def _is_own(found: Any, hook: str) -> bool:
    """Return whether an author wrote the hook: it is there, and not merely inherited from eval-framework's base."""
    name = spelled(found, hook)
    for each in found.__mro__ if isinstance(found, type) else type(found).__mro__:
        if name in vars(each):
            return (
                not _is_base(each)
                and callable(getattr(found, name, None))
                and not getattr(vars(each)[name], "__isabstractmethod__", False)
            )
    return False


def misses_lock_file(found: Any) -> bool:
    """Return whether a class derives from eval-framework's base and lacks what 0.15.4 needs to build it."""
    return is_on_base(found) and not hasattr(found, "REVISION_LOCKFILE")


def is_on_base(found: Any) -> bool:
    """Return whether something is a class that derives from eval-framework's base."""
    return isinstance(found, type) and any((each.__module__, each.__name__) == _BASE for each in found.__mro__)


def _is_base(each: type) -> bool:
    return (each.__module__, each.__name__) == _BASE or each.__module__ == "eval_framework.contract"


def _constructor(build: type) -> Callable[[int], Any]:
    """Return a function that builds an object, given the number of shots where its constructor takes that."""
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(build).parameters
    takes = "num_fewshot" in parameters or any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()
    )
    return (lambda shots: build(num_fewshot=shots)) if takes else (lambda _shots: build())


def _attribute(source: Any, name: str, default: Any) -> Any:
    try:
        return getattr(source, name, default)
    except (Exception, RecursionError):  # properties of the user's; eval-framework's RESPONSE_TYPE asks itself
        return default


def _position(found: Any) -> Position | None:
    each = found if isinstance(found, type) else type(found)
    file = _file_of(each)
    if file is None or not isinstance(found, type):
        return None
    try:
        return Position(Path(file), inspect.findsource(each)[1] + 1)
    except (OSError, TypeError, IndexError):
        return Position(Path(file))


def _file_of(each: type) -> str | None:
    codes = (getattr(value, "__code__", None) for value in vars(each).values())
    files = [code.co_filename for code in codes if code is not None and each.__module__ != "builtins"]
    return files[0] if files else None


def _hint(error: BaseException, arguments: Sequence[Any]) -> str | None:
    if isinstance(error, LimitExceededError):
        return None
    item = next((one for one in arguments if isinstance(one, dict)), {})
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        close = did_you_mean(error.args[0], map(str, item))
        return close or (f"the columns of the doc are {', '.join(map(str, item))}" if item else None)
    subject = item.get("subject")
    if isinstance(error, AttributeError) and isinstance(subject, Enum) and error.obj is subject:
        return f"item['subject'] is {subject}, an enum member as in eval-framework. Write item['subject'].value"
    return None


def in_words(value: Any) -> str:
    """Return a value as messages show it: the beginning of its repr, or its type where that fails."""
    try:
        return f"{value!r:.80}"
    except Exception:
        return f"a {type(value).__name__}"
