"""Tasks and their few-shot settings, as frozen values that every system produces.

A `Task` holds what the author wrote, typed and unrendered. How systems, formats and profiles turn it into prompts is
decided in `systems/`, `tasks/` and `formats/`; nothing here imports them except `FieldAssembly` and the two convenience
methods at the end of `Task`, which load them when called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypeVar

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.docs import Doc, GivenDocs, TaskDocs
from pytest_promptfmt.core.errors import Position, PromptfmtError
from pytest_promptfmt.core.release import LATEST, Release

if TYPE_CHECKING:
    from pytest_promptfmt.core.profile import Profile
    from pytest_promptfmt.core.prompt import Instance
    from pytest_promptfmt.core.recorded import RecordedPrompts, RecordedScores

_Error = TypeVar("_Error", bound=PromptfmtError)

OUTPUT_TYPES: Final = ("loglikelihood", "multiple_choice", "loglikelihood_rolling", "generate_until")
"""The output types of lm-eval 0.4.13."""
OutputType = Literal["loglikelihood", "multiple_choice", "loglikelihood_rolling", "generate_until", "none", "other"]
"""How a model is asked: an output type of lm-eval, `none` where no model answers and nothing is scored, or `other` for
one of a fork: its prompts are those of lm-eval, its requests and scores are unknown."""


class Unset:
    """The type of `UNSET`: a key that the author did not write, where writing null means something else."""

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET: Final = Unset()


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """A `!function module.name` as written: not imported, not trusted.

    `directory` is the folder of the YAML file that contains the tag: the lookup starts there (lm-eval 0.4.13).
    """

    module: str
    name: str
    directory: Path
    position: Position

    @property
    def file(self) -> Path:
        """Return the file that is tried before installed modules.

        A module with a slash is a path, as it was before lm-eval 0.4.12; `is_path` is then true.
        """
        name = self.module if self.is_path else self.module.replace(".", "/")
        return Path(gate.resolved(self.directory / f"{name}.py"))

    @property
    def is_path(self) -> bool:
        """Return whether the module is written as a path with dots, such as `../utils`."""
        return "/" in self.module and "." in self.module

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def leaves(config: object) -> Iterator[object]:
    """Yield the values inside mappings, lists and tuples at any depth, in their order; each container is read once."""
    waiting = [config]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) or not isinstance(value, Mapping | list | tuple):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            waiting += reversed([*value.values()] if isinstance(value, Mapping) else value)


def with_leaves(value: Any, change: Callable[..., Any], *keys: str | int) -> Any:
    """Return mappings and lists with other leaves: what `change` gives for each of them and the path of its key."""
    if isinstance(value, Mapping):
        return {key: with_leaves(item, change, *keys, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_leaves(item, change, *keys, index) for index, item in enumerate(value)]
    return change(value, *keys)


Spec = Any
"""A field mapping: column name, Jinja template, int, list, dict, `FunctionRef`, callable or None."""


class TextTemplate(str):
    """A Jinja template whose printed text is final: no number or list is read from it, as is from other templates.

    Formats make these where a target is text: the label `3` is not the choice at position 3.
    """

    __slots__ = ()


Locate = Callable[[tuple[str | int, ...]], Position | None]
"""From a key path (`("fewshot_config", "doc_to_text")`) to where it was written, through includes."""


def locate_nowhere(_keys: tuple[str | int, ...]) -> Position | None:
    """Return None: the positions of a task that was not read from a file."""
    return None


def nearest(locate: Locate, keys: tuple[str | int, ...]) -> Position | None:
    """Return where a key path was written, or the nearest of its parents; None where none was."""
    found = (locate(keys[:end]) for end in range(len(keys), 0, -1))
    return next((each for each in found if each is not None), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class FewShot:
    """`fewshot_config`: what differs for the shots. UNSET means inherited from the task."""

    sampler: Any = "default"
    split: Any = UNSET
    samples: Any = None
    process_docs: Spec = UNSET
    doc_to_text: Spec = UNSET
    doc_to_choice: Spec = UNSET
    doc_to_target: Spec = UNSET
    gen_prefix: Spec = UNSET
    fewshot_delimiter: Any = UNSET
    target_delimiter: Any = UNSET


class Assembler(Protocol):
    """Puts the prompts and requests of one task's docs together.

    Made once for a task and its docs. `layout` is called once for each doc, in their order, and what it returns is
    kept and handed back to `instance` for every profile; so code that draws shots, calls the user's functions or
    costs time belongs in `layout`, and only what a profile changes in `instance`.
    """

    @property
    def is_repeatable(self) -> bool:
        """Return whether nothing is drawn from global random state (Python's, numpy's) and no code of the user runs.

        Where it is False, `layout` and `instance` run with a random state that belongs to the task.
        """
        ...

    def layout(self, number: int, doc: Doc) -> Any:
        """Return what all profiles share of the doc with that number (from 0); raises RenderError."""
        ...

    def instance(self, layout: Any, number: int, doc: Doc, profile: Profile) -> Instance:
        """Return the prompts, requests and target of a doc as a profile shows them; raises RenderError.

        `prompt_of` (profiles/chat_prompt.py) makes a prompt of messages as lm-eval does.
        """
        ...


class Assembly(ABC):
    """How the prompts of a task are put together, with the facts that others need to know of it.

    A system whose harness makes prompts in another way than lm-eval sets an instance of a subclass: a small frozen
    value, whose `assembler` loads what makes prompts, so that collecting stays cheap. The task's field mappings still
    describe what its docs hold, for formats, synthetic docs and rules; a format sets `FIELDS` instead.
    """

    renders_fields: ClassVar[bool] = False
    """Whether field mappings are rendered, and answers scored, as lm-eval does."""

    brings_profiles: ClassVar[bool] = False
    """Whether `profiles` see the prompts instead of the profiles of the run."""

    is_class: ClassVar[bool] = False
    """Whether it is a Python class of the user, which `bound` has to import before there are prompts."""

    describes_scoring: ClassVar[bool] = True
    """Whether the task has its output type and filters before anything is imported."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Return its facts for the snapshot header: stable, short, in order; such as a method that was inferred."""
        return {}

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Return the profiles that it brings, each with its own snapshot."""
        return ()

    def trial(self, study: Any) -> Any:  # noqa: ARG002
        """Return the trial of the chat template that is tested (`profiles/template_trial.py`), None for other tasks."""
        return None

    def verdicts(self, study: Any) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return a table for the report of what was tried with the prompts of a study, None for most tasks."""
        return None

    @property
    def key_names(self) -> Mapping[str, str]:
        """Return lm-eval's keys with the names of what replaces them, for the messages of rules."""
        return {}

    @property
    def recorded_prompts(self) -> Callable[[], RecordedPrompts] | None:
        """Return what compares the prompts of a run with ours, None where its source holds none."""
        return None

    @property
    def recorded_scores(self) -> Callable[[], RecordedScores] | None:
        """Return what scores the completions of a run again, None where its source holds none."""
        return None

    @abstractmethod
    def assembler(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> Assembler:
        """Return what makes the instances of these docs; `num_fewshot` is that of the run (`Task.shots`).

        Called under a random state that belongs to the task. Raises a PromptfmtError for a task that cannot be
        rendered at all.
        """

    def bound(self, task: Task, trusted: Callable[[Path], bool], time_limit: float) -> Task:  # noqa: ARG002
        """Return the task with its class imported, completed with what that defines.

        `trusted` decides about every file that would run, `time_limit` is seconds for an import. Raises
        CodeNotAllowedError, FunctionError, SourceError.
        """
        return task

    def scored(self, task: Task) -> Task:
        """Return the bound task with the metrics and filters of its class, and with docs as scoring reads them."""
        return task


@dataclass(frozen=True)
class FieldAssembly(Assembly):
    """Field mappings rendered as lm-eval renders them."""

    renders_fields: ClassVar = True

    def assembler(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> Assembler:
        """Return lm-eval's assembler; raises RenderError for a task whose first doc lm-eval refuses."""
        from pytest_promptfmt.tasks import LmEvalAssembler  # loaded only when called

        return LmEvalAssembler(task, docs, num_fewshot)


FIELDS: Final = FieldAssembly()


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """Where the docs come from, as the author wrote it; `given` where they come with the task itself."""

    given: GivenDocs | None = None

    path: str | None = None
    name: str | None = None
    kwargs: Mapping[str, Any] | None = None
    custom: Spec = None
    training_split: str | None = None
    validation_split: str | None = None
    test_split: str | None = None
    fewshot_split: str | None = None
    process_docs: Spec = None

    @property
    def evaluation_split(self) -> str | None:
        """Return the split that is evaluated: test, else validation (lm-eval 0.4.13)."""
        return self.test_split if self.test_split is not None else self.validation_split


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task as its author wrote it; `name@format` once a format is chosen.

    `config` is the whole merged mapping, in lm-eval's key order, for rules that check what was written; the typed
    fields are what rendering uses. `locate` gives the position of any key, through includes. `assembly` is how
    its prompts are put together. `release` is the release of lm-eval that is followed. `docs_folder` is where its docs
    may be besides its own folder. `media` are the bound functions that give images and sound, by their keys.
    """

    name: str
    format: str | None = None
    group: str | None = None
    path: Path | None = None
    system: str = "lm-eval"
    output_type: OutputType = "generate_until"
    doc_to_text: Spec = None
    doc_to_target: Spec = None
    doc_to_choice: Spec = None
    description: Spec = ""
    gen_prefix: Spec = None
    target_delimiter: str = " "
    fewshot_delimiter: str = "\n\n"
    num_fewshot: int | None = None
    fewshot: FewShot = field(default_factory=FewShot)
    dataset: Dataset = field(default_factory=Dataset)
    generation_kwargs: Mapping[str, Any] | None = None
    metric_list: Sequence[Mapping[str, Any]] | None = None
    filter_list: Sequence[Mapping[str, Any]] | None = None
    process_results: Spec = None
    repeats: int = 1
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    assembly: Assembly = FIELDS
    release: Release = field(default=LATEST, repr=False)
    docs_folder: Path | None = field(default=None, repr=False, compare=False)
    media: Mapping[str, Spec] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)
    config: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)
    locate: Locate = field(default=locate_nowhere, repr=False, compare=False)

    @property
    def id(self) -> str:
        """Return `name`, or `name@format` when a format was chosen."""
        return self.name if self.format is None else f"{self.name}@{self.format}"

    @property
    def generates(self) -> bool:
        """Return whether the model generates the answer."""
        return self.output_type == "generate_until"

    @property
    def has_choices(self) -> bool:
        """Return whether the likelihoods of choices are compared."""
        return self.output_type == "multiple_choice"

    @property
    def has_question(self) -> bool:
        """Return whether the model is asked something; else the text of a doc is scored as it is, or nothing is."""
        return self.output_type not in ("loglikelihood_rolling", "none")

    @property
    def brings_delimiter(self) -> bool:
        """Return whether the target begins with its own delimiter, for lm-eval adds none to it (`loglikelihood`)."""
        return self.output_type == "loglikelihood"

    @property
    def own_metadata(self) -> Mapping[str, Any]:
        """Return `metadata.promptfmt`, the settings of this plugin inside a file that lm-eval also reads."""
        own = self.metadata.get("promptfmt")
        return own if isinstance(own, Mapping) else {}

    @property
    def doc_source(self) -> Task:
        """Return the task whose field mappings describe its docs: itself, unless a format laid it out."""
        return self

    def shots(self, requested: int | None = None) -> int:
        """Return the number of shots: `requested` wins over the task's own, unless that is 0.

        Source: lm-eval 0.4.13, where a task without a number has 0.
        """
        if self.num_fewshot is None:
            return requested or 0
        return self.num_fewshot if requested is None or self.num_fewshot == 0 else requested

    def position(self, *keys: str | int) -> Position | None:
        """Return where a key was written; the nearest parent, then the task's name, where it is not written."""
        found = nearest(self.locate, keys) or self.locate(("task",))
        return Position(self.path) if found is None and self.path is not None else found

    def error(self, kind: type[_Error], message: str, *keys: str | int, hint: str | None = None) -> _Error:
        """Return an error about a key, with the place where that is written."""
        return kind(message, position=self.position(*keys), hint=hint)

    def following(self, release: Release) -> Task:
        """Return the task as a release of lm-eval reads it, without the keys of `fewshot_config` that it ignores.

        So some keys are lost: start from the task as it was read to follow several.
        """
        if release == self.release or self.system != "lm-eval":
            return self
        ignored = dict.fromkeys(release.ignored_shot_keys, UNSET)
        if not release.makes_turns and self.fewshot.doc_to_choice is None:
            ignored["doc_to_choice"] = UNSET  # null is not written
        kept: dict[str, Any] = {}
        if not release.keeps_newline:
            names = ["doc_to_text", "doc_to_target", "doc_to_choice", *["description"] * release.renders_description]
            specs = {name: getattr(self, name) for name in names}
            kept = {name: type(each)(each.removesuffix("\n")) for name, each in specs.items() if isinstance(each, str)}
        return replace(self, release=release, fewshot=replace(self.fewshot, **ignored), **kept)

    def with_format(self, name: str) -> Task:
        """Return this task laid out by the named format.

        Raises FormatError when the format is unknown or does not fit the task.
        """
        from pytest_promptfmt.formats import apply_format  # loaded only when called

        return apply_format(self, name)

    def render(
        self,
        docs: TaskDocs | Iterable[Doc] | None = None,
        profile: Profile | None = None,
        *,
        num_fewshot: int | None = None,
    ) -> Iterator[Instance]:
        """Yield the rendered instance (doc, prompts, requests) of every doc, in order.

        Without `docs` they are found as on the command line (metadata, sidecar, local files, synthetic).
        Raises DocsError, RenderError or LimitExceededError at the first doc that fails.
        """
        from pytest_promptfmt.core.profile import PLAIN
        from pytest_promptfmt.profiles.profile_loading import load_profile
        from pytest_promptfmt.tasks import load_docs, render_task

        if docs is None:
            docs = load_docs(self, num_fewshot=num_fewshot)
        elif not isinstance(docs, TaskDocs):
            docs = TaskDocs.in_memory(docs)
        if profile is not None and profile.template_name is not None:
            profile = load_profile(profile).profile
        return render_task(self, docs, profile or PLAIN, num_fewshot=num_fewshot)
