"""HELM adapter files as tasks, with or without the request states of a run (0.5.16), and the docs of such a task."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import DocsError, Position, SourceError
from pytest_promptfmt.core.task import Assembly, Dataset, OutputType, Task
from pytest_promptfmt.systems.helm.adapter_files import RUN_SPEC, SCENARIO_STATE, AdapterFile, read_adapter_file
from pytest_promptfmt.systems.helm.adapter_spec import AdapterSpec
from pytest_promptfmt.systems.helm.adapters import arguments_of, parameters_of
from pytest_promptfmt.systems.helm.helm_metrics import (
    REFERENCE_METRIC,
    HelmOutput,
    helm_reference_results,
    helm_results,
)
from pytest_promptfmt.systems.helm.instances import HelmInstance, completed
from pytest_promptfmt.tasks import MAX_DOCS, TaskFile, check_name, load_docs

if TYPE_CHECKING:
    from pytest_promptfmt.core.recorded import RecordedPrompts, RecordedScores
    from pytest_promptfmt.systems.helm.assembler import HelmAssembler

MOST_TRIALS: Final = 100
"""How many trials, each with its own shots, are rendered where `promptfmt.trials` names no number."""

_GENERIC_STEMS: Final = frozenset({"scenario_state", "run_spec"})


@dataclass(frozen=True)
class HelmAssembly(Assembly):
    """Puts a task's prompts together as the adapter of a file does, for so many of its trials."""

    file: AdapterFile = field(repr=False)
    trials: int = MOST_TRIALS

    @property
    def spec(self) -> AdapterSpec:
        """Return the spec of the adapter."""
        return self.file.spec

    @property
    def facts(self) -> Mapping[str, str]:
        """Return the method, that it was inferred where the file names none, and trials that are not rendered."""
        method = self.spec.method
        facts = {"method": f"{method}, inferred" if self.file.read.method_is_inferred else method}
        if self.spec.num_train_trials > self.trials and method != "language_modeling":
            facts["trials"] = f"{self.trials} of {self.spec.num_train_trials}"
        return facts

    def assembler(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> HelmAssembler:
        """Return what makes the instances; raises RenderError where HELM's choice of shots fails."""
        from pytest_promptfmt.systems.helm.assembler import HelmAssembler  # only where prompts are rendered

        return HelmAssembler(task, self.file, docs, num_fewshot, trials=self.trials)

    @property
    def recorded_prompts(self) -> Callable[[], RecordedPrompts] | None:
        """Return what compares prompts, where the file holds some or is too large to have been read to its end."""
        from pytest_promptfmt.systems.helm.recorded_runs import compare_recorded

        return partial(compare_recorded, self.file) if self.file.first.has_prompts or self.file.whole is None else None

    @property
    def recorded_scores(self) -> Callable[[], RecordedScores] | None:
        """Return what scores completions, where the file holds some that are answers."""
        from pytest_promptfmt.systems.helm.recorded_runs import score_recorded

        is_scored = self.spec.method not in ("language_modeling", "ranking_binary")
        return partial(score_recorded, self.file) if is_scored and self.file.first.has_results else None


def read_adapter_task(path: Path, system: str) -> TaskFile | None:
    """Return the task of an adapter file, None for other JSON; raises SourceError for a file that cannot be read."""
    path = Path(path)
    if path.name == RUN_SPEC and path.with_name(SCENARIO_STATE).exists():
        return None  # the same adapter, and nothing else to show
    file = read_adapter_file(path)
    if file is None:
        return None
    task = _task(path, file, system)
    return TaskFile(path=path, tasks=(task,), names=(task.name,), problems=file.bad)


def _task(path: Path, file: AdapterFile, system: str) -> Task:
    spec, metrics = file.spec, file.metrics

    def locate(keys: tuple[str | int, ...]) -> Position | None:
        if keys == ("task",):
            return file.locate(("adapter_spec",))
        if keys[:2] == ("metadata", "promptfmt"):
            return file.locate(("promptfmt", *keys[2:]))
        return file.locate(keys) or (file.locate(("adapter_spec", *keys)) if keys[0] != "adapter_spec" else None)

    has_choices = spec.is_joint or spec.asks_references
    lists_choices = spec.is_joint or spec.is_separate
    fields = {
        "question": "{{input}}",
        "choices": "{{references}}" if lists_choices else None,
        "answer": "answer_index" if lists_choices else "{{answer}}",
    }
    plain = Task(
        name=_name(path, file),
        path=path,
        system=system,
        output_type="multiple_choice" if has_choices else "generate_until",
        doc_to_text="{{input}}",
        doc_to_choice="{{references}}" if has_choices else None,
        doc_to_target="answer_index" if has_choices else "{{answer}}",
        metadata=MappingProxyType({"promptfmt": {"fields": fields, **file.own}}),
        dataset=Dataset(training_split="train", test_split="test"),
        locate=locate,
    )
    target = "label" if spec.is_joint else "answer_index" if spec.is_separate else "answer"
    task = replace(
        plain,
        output_type=_output_type(spec),
        doc_to_text="input",
        doc_to_target="input" if spec.method == "language_modeling" else target,
        doc_to_choice="references" if spec.is_separate else None,
        target_delimiter=spec.output_prefix[len(spec.output_prefix.rstrip()) :],
        fewshot_delimiter=spec.output_suffix + spec.instance_prefix,
        num_fewshot=0 if spec.method in ("chat", "language_modeling") else spec.max_train_instances,
        dataset=replace(plain.dataset, given=InstanceDocs(file, plain)),
        assembly=HelmAssembly(file, _trials(file)),
        config=MappingProxyType({"adapter_spec": file.top["adapter_spec"]}),
    )
    if task.generates:
        steps = [{"function": partial(HelmOutput, spec.output_mapping_pattern)}, {"function": "take_first"}]
        return replace(
            task,
            generation_kwargs=arguments_of(parameters_of(spec)),
            metric_list=[{"metric": name, "aggregation": "mean"} for name in metrics],
            filter_list=[{"name": "helm", "filter": steps}],
            process_results=partial(helm_results, metrics),
        )
    if spec.is_separate:
        return replace(
            task,
            metric_list=[{"metric": REFERENCE_METRIC, "aggregation": "mean", "higher_is_better": True}],
            process_results=partial(helm_reference_results, spec.method.endswith("calibrated")),
        )
    return task


def _output_type(spec: AdapterSpec) -> OutputType:
    if spec.method == "language_modeling":
        return "loglikelihood_rolling"
    return "multiple_choice" if spec.is_separate else "generate_until"


def _trials(file: AdapterFile) -> int:
    trials = file.own.get("trials", MOST_TRIALS)
    if type(trials) is not int or trials < 1:
        raise SourceError(
            f"promptfmt.trials is {trials!r}",
            position=file.locate(("promptfmt", "trials")),
            hint="write the number of trials to render, 1 or more",
        )
    return trials


def _name(path: Path, file: AdapterFile) -> str:
    """Return the name of the task: the written one, that of the file, or of the run's folder for the files of HELM."""
    written, position = file.own.get("task"), file.locate(("promptfmt", "task"))
    if not isinstance(written, str | None):
        raise SourceError("promptfmt.task must be text", position=position)
    name = written or (file.path.parent.name if path.stem in _GENERIC_STEMS else path.stem)
    check_name(name, position or Position(path))
    return name


DEFAULT_COUNT: Final = 3


@dataclass(frozen=True, eq=False)
class InstanceDocs:
    """The docs of a file: its instances, and without states those of `plain`, which has columns and nothing of HELM."""

    file: AdapterFile
    plain: Task

    def __call__(self, count: int | None, shots: int) -> TaskDocs:
        """Return the docs, and those that shots are drawn from. Raises DocsError where no state can be used."""
        if self.file.has_states:
            return _of_states(self.file, count, shots)
        return _from_elsewhere(self.file, self.plain, count, shots)

    def placed(self, folder: Path) -> InstanceDocs:
        """Return the same docs, looked for in this folder as well."""
        return replace(self, plain=replace(self.plain, docs_folder=folder))


def _of_states(file: AdapterFile, count: int | None, shots: int) -> TaskDocs:
    wanted = count or DEFAULT_COUNT
    if file.draws_from_all:
        return _drawn(file, wanted, shots)
    evaluated: list[HelmInstance] = []
    train: list[HelmInstance] = []
    needs_train = shots > 0 and file.has_train
    for row in _instances(file):
        if row.is_train:
            if needs_train and len(train) < MAX_DOCS:
                train.append(row)
        elif len(evaluated) < wanted and (file.spec.evaluates(row.split) or not file.has_evaluated):
            evaluated.append(row)
        if len(evaluated) == wanted and not needs_train:
            break
    pool = (
        "the recorded prompts" if file.first.has_prompts and not file.has_train else f"{len(train)} of the split train"
    )
    return _docs(file, evaluated, train, pool)


def _from_elsewhere(file: AdapterFile, plain: Task, count: int | None, shots: int) -> TaskDocs:
    docs = load_docs(replace(plain, num_fewshot=shots), count=count)
    evaluated = tuple(completed(doc, file.spec) for doc in docs.evaluated)
    return replace(
        docs,
        evaluated=evaluated,
        fewshot=tuple(completed(doc, file.spec) for doc in docs.fewshot),
        columns=tuple(dict.fromkeys(column for doc in evaluated for column in doc)),
    )


def _drawn(file: AdapterFile, wanted: int, shots: int) -> TaskDocs:
    """Return docs of a file whose instances have one split: shots drawn by a seed, the others evaluated."""
    rows = list(islice(_instances(file), MAX_DOCS))
    number = min(shots, max(len(rows) - 1, 0))
    chosen = set(random.Random(0).sample(range(len(rows)), number))
    evaluated = [row for index, row in enumerate(rows) if index not in chosen][:wanted]
    train = [rows[index] for index in sorted(chosen)]
    return _docs(file, evaluated, train, f"{number} drawn from {len(rows)} instances")


def _docs(file: AdapterFile, evaluated: Sequence[HelmInstance], train: Sequence[HelmInstance], pool: str) -> TaskDocs:
    name = file.path.name
    if not evaluated and file.bad:
        raise file.bad[0]
    if not evaluated:
        raise DocsError(f"no docs: {name} has no instance of the split valid or test", position=Position(file.path))
    docs = tuple(row.doc(file.spec) for row in evaluated)
    return TaskDocs(
        evaluated=docs,
        fewshot=tuple(row.doc(file.spec) for row in train),
        columns=tuple(dict.fromkeys(column for doc in docs for column in doc)),
        origin=f"{len(docs)} from {name}",
        fewshot_origin=pool,
    )


def _instances(file: AdapterFile) -> Iterator[HelmInstance]:
    """Yield each instance of a file once, in order: states of other references and trials are of the same one."""
    seen: set[int] = set()
    last: Any = None
    for state in file.states():
        instance = state.get("instance")
        if last is not None and last == instance:
            continue
        last = instance
        digest = hash(json.dumps(instance, sort_keys=True))
        if digest in seen and file.first.has_prompts:
            continue
        seen.add(digest)
        try:
            yield state.row()
        except SourceError:
            continue  # a failing item reports it
