"""HELM adapter files as tasks: objects with `adapter_spec`, with or without the request states of a run (0.5.16)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.core.errors import Position, SourceError
from pytest_promptfmt.core.task import Dataset, OutputType, Task, TaskDocs
from pytest_promptfmt.systems.helm.helm_docs import helm_docs
from pytest_promptfmt.systems.helm.helm_file import HelmFile, read_helm_file
from pytest_promptfmt.systems.helm.helm_source import RUN_SPEC, SCENARIO_STATE, HelmSource, looked_at
from pytest_promptfmt.systems.helm.helm_spec import AdapterSpec
from pytest_promptfmt.systems.lm_eval.task_config import check_name

if TYPE_CHECKING:
    from pytest_promptfmt.core.recorded import RecordedPrompts, RecordedScores
    from pytest_promptfmt.systems.helm.helm_assembly import HelmAssembler

SYSTEM: Final = "helm"
MOST_TRIALS: Final = 100
"""How many trials, each with demonstrations of its own, are rendered where `promptfmt.trials` names no number."""
_GENERIC_STEMS: Final = frozenset({"scenario_state", "run_spec"})
_OUTPUT_TYPES: Final[Mapping[str, OutputType]] = MappingProxyType(
    {
        "language_modeling": "loglikelihood_rolling",
        "multiple_choice_separate_original": "multiple_choice",
        "multiple_choice_separate_calibrated": "multiple_choice",
    }
)


@dataclass(frozen=True)
class HelmAssembly:
    """Puts a task's prompts together as a HELM adapter does, for so many of its trials."""

    spec: AdapterSpec
    source: HelmSource | None = field(default=None, repr=False, compare=False)
    trials: int = MOST_TRIALS

    @property
    def facts(self) -> Mapping[str, str]:
        """Return the method, that it was inferred where the file names none, and trials that are not rendered."""
        inferred = self.source is not None and self.source.read.method_is_inferred
        facts = {"method": f"{self.spec.method}, inferred" if inferred else self.spec.method}
        if self.spec.num_train_trials > self.trials and self.spec.method != "language_modeling":
            facts["trials"] = f"{self.trials} of {self.spec.num_train_trials}"
        return facts

    def assembler(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> HelmAssembler:
        """Return what makes the instances; raises RenderError where HELM's choice of demonstrations fails."""
        from pytest_promptfmt.systems.helm.helm_assembly import HelmAssembler  # rendering loads only when asked for

        return HelmAssembler(task, self, docs, num_fewshot)

    @property
    def has_recorded_prompts(self) -> bool:
        """Return whether the file holds prompts that were sent, or is too large to have been read to its end."""
        return self.source is not None and (self.source.has_prompts or self.source.file.whole is None)

    @property
    def has_recorded_answers(self) -> bool:
        """Return whether the file holds completions that are answers."""
        if self.source is None or not self.source.has_completions or self.spec.method == "language_modeling":
            return False
        return self.spec.method != "ranking_binary" or self.source.ranking is not None

    def recorded_prompts(self) -> RecordedPrompts:
        """Return how the recorded prompts compare with ours."""
        from pytest_promptfmt.systems.helm.recorded_prompts import reproduce

        assert self.source is not None
        return reproduce(self.source)

    def recorded_scores(self) -> RecordedScores:
        """Return the scores of the recorded completions."""
        from pytest_promptfmt.systems.helm.states import score_recorded

        assert self.source is not None
        return score_recorded(self.source)


@dataclass(frozen=True, kw_only=True)
class HelmTasks:
    """The tasks of a file (one), what is odd about it, and the states that cannot be used."""

    path: Path
    tasks: tuple[Task, ...]
    source: HelmSource


def read_helm_tasks(path: Path) -> HelmTasks | None:
    """Return the task of an adapter file, None for other JSON; raises SourceError for a file that cannot be read."""
    path = Path(path)
    if path.name == RUN_SPEC and path.with_name(SCENARIO_STATE).exists():
        return None  # the same adapter, and nothing else that is shown
    file = read_helm_file(path)
    if file is None:
        return None
    source = looked_at(file)
    return HelmTasks(path=path, tasks=(_task(path, source),), source=source)


def helm_source(task: Task) -> HelmSource | None:
    """Return where a HELM task came from, None for other tasks and for formats of HELM tasks."""
    return task.assembly.source if isinstance(task.assembly, HelmAssembly) else None


def _task(path: Path, source: HelmSource) -> Task:
    from pytest_promptfmt.systems.helm.helm_scoring import HelmOutput, helm_results
    from pytest_promptfmt.systems.helm.references import helm_reference_results

    spec, file = source.spec, source.file
    own = file.top.get("promptfmt")
    if own is not None and not isinstance(own, dict):
        raise SourceError("promptfmt must be a mapping", position=file.locate(("promptfmt",)))
    generates = spec.method not in _OUTPUT_TYPES
    settings = {"fields": _fields(spec), **(own or {})}
    written = file.top["adapter_spec"]

    def locate(keys: tuple[str | int, ...]) -> Position | None:
        if keys == ("task",):
            return file.locate(("adapter_spec",))
        if keys[:2] == ("metadata", "promptfmt"):
            return file.locate(("promptfmt", *keys[2:]))
        return file.locate(keys) or (file.locate(("adapter_spec", *keys)) if keys[0] != "adapter_spec" else None)

    plain = Task(
        name=_name(path, file, own or {}),
        path=path,
        system=SYSTEM,
        doc_to_text="{{input}}",
        metadata=MappingProxyType({"promptfmt": settings}),
        dataset=Dataset(training_split="train", test_split="test"),
        locate=locate,
    )
    if spec.is_joint or spec.is_separate or spec.method == "ranking_binary":
        plain = replace(
            plain, output_type="multiple_choice", doc_to_choice="{{references}}", doc_to_target="answer_index"
        )
    else:
        plain = replace(plain, doc_to_target="{{answer}}")
    return replace(
        plain,
        output_type=_OUTPUT_TYPES.get(spec.method, "generate_until"),
        doc_to_text="input",
        doc_to_target="label" if spec.is_joint else "answer_index" if spec.is_separate else _target(spec),
        doc_to_choice="references" if spec.is_separate else None,
        target_delimiter=spec.output_prefix[len(spec.output_prefix.rstrip()) :],
        fewshot_delimiter=spec.output_suffix + spec.instance_prefix,
        num_fewshot=0 if spec.method in ("chat", "language_modeling") else spec.max_train_instances,
        dataset=replace(plain.dataset, given=partial(helm_docs, source, plain)),
        generation_kwargs=generation_kwargs(spec) if generates else None,
        metric_list=_metric_list(source),
        filter_list=[
            {
                "name": "helm",
                "filter": [
                    {"function": partial(HelmOutput, spec.output_mapping_pattern)},
                    {"function": "take_first"},
                ],
            },
        ]
        if generates
        else None,
        process_results=partial(helm_results, source.metrics)
        if generates
        else partial(helm_reference_results, spec.method.endswith("calibrated"))
        if spec.is_separate
        else None,
        assembly=HelmAssembly(spec, source, _trials(file, own or {})),
        config=MappingProxyType({"adapter_spec": written}),
    )


def _metric_list(source: HelmSource) -> list[dict[str, Any]] | None:
    from pytest_promptfmt.systems.helm.references import REFERENCE_METRIC

    if source.spec.is_separate:
        return [{"metric": REFERENCE_METRIC, "aggregation": "mean", "higher_is_better": True}]
    if source.spec.method == "language_modeling":
        return None
    return [{"metric": name, "aggregation": "mean"} for name in source.metrics]


def _target(spec: AdapterSpec) -> str:
    return "input" if spec.method == "language_modeling" else "answer"


def _fields(spec: AdapterSpec) -> dict[str, Any]:
    """Return the fields that a format lays out."""
    if spec.is_joint or spec.is_separate:
        return {"question": "{{input}}", "choices": "{{references}}", "answer": "answer_index"}
    return {"question": "{{input}}", "choices": None, "answer": "{{answer}}"}


def generation_kwargs(spec: AdapterSpec) -> dict[str, Any]:
    """Return what HELM asks of a model, by lm-eval's names where it has one; joint methods send no stop sequences."""
    stops = [] if spec.is_joint else list(spec.stop_sequences)
    sampling = {"num_completions": 1, "top_k_per_token": spec.num_outputs} if spec.is_joint else {}
    return {
        "until": stops,
        "max_gen_toks": spec.max_tokens,
        "temperature": float(spec.temperature),
        "do_sample": spec.temperature > 0,
        **(sampling or {"num_completions": spec.num_outputs}),
    }


def _trials(file: HelmFile, own: Mapping[str, Any]) -> int:
    told = own.get("trials", MOST_TRIALS)
    if type(told) is not int or told < 1:
        raise SourceError(
            f"promptfmt.trials is {told!r}",
            position=file.locate(("promptfmt", "trials")),
            hint="how many trials are rendered, from 1",
        )
    return told


def _name(path: Path, file: HelmFile, own: Mapping[str, Any]) -> str:
    """Return the name of the task: told, else that of the file, or of the run's folder for the files HELM writes."""
    told = own.get("task")
    if told is not None and not isinstance(told, str):
        raise SourceError("promptfmt.task must be a text", position=file.locate(("promptfmt", "task")))
    name = told or (file.path.parent.name if path.stem in _GENERIC_STEMS else path.stem)
    check_name(name, file.locate(("promptfmt", "task")) or Position(path))
    return name
