"""What stands in a HELM file beside its spec: liberties that it takes, instances, and what a run recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.core.errors import Position, ScoringError, SourceError, did_you_mean
from pytest_promptfmt.core.task import Doc
from pytest_promptfmt.systems.helm.helm_file import (
    STATES,
    HelmFile,
    Row,
    is_evaluated,
    is_train,
    labelled,
    read_helm_file,
    row_of,
)
from pytest_promptfmt.systems.helm.helm_spec import AdapterSpec, Deviation, ReadSpec, read_spec
from pytest_promptfmt.systems.helm.json_text import repeated_keys

if TYPE_CHECKING:
    from pytest_promptfmt.systems.helm.references import RankingSpec

RUN_SPEC: Final = "run_spec.json"
SCENARIO_STATE: Final = "scenario_state.json"
LOOKED_AT: Final = 200
"""How many request states of a file are looked at when it is collected."""

METRICS: Final = ("exact_match", "quasi_exact_match", "prefix_exact_match", "quasi_prefix_exact_match")
"""HELM's metrics of generic tasks; `promptfmt.metrics`, or `metric_specs` here or in `run_spec.json`, name others."""

_TOP: Final = frozenset(
    {"adapter_spec", STATES, "annotator_specs", "promptfmt", "output_mapping", "answer_mapping"}
    | {"name", "scenario_spec", "metric_specs", "data_augmenter_spec", "groups", "annotators"}
)


@dataclass(frozen=True, kw_only=True, eq=False)
class HelmSource:
    """What a file holds, as far as it was looked at: liberties, states that cannot be used, and what is recorded.

    `metrics` are those of completions, `ranking` the arguments of a RankingMetric, where one is named. `rows` are the
    instances of those states.

    `has_train` tells whether demonstrations stand in the file as instances.
    """

    file: HelmFile
    read: ReadSpec
    deviations: tuple[Deviation, ...]
    bad: tuple[SourceError, ...]
    has_states: bool
    has_train: bool
    has_evaluated: bool
    has_prompts: bool
    has_completions: bool
    metrics: tuple[str, ...]
    ranking: RankingSpec | None
    rows: tuple[Row, ...]

    @property
    def spec(self) -> AdapterSpec:
        """Return the spec."""
        return self.read.spec

    @property
    def draws_from_all(self) -> bool:
        """Return whether demonstrations are drawn from the instances to evaluate, for want of a training split.

        So are the files of data providers meant. A state that HELM wrote has its demonstrations in its prompt.
        """
        return len({row.split for row in self.rows}) < 2 and not self.has_prompts


def looked_at(file: HelmFile) -> HelmSource:
    """Return what a file holds, by its spec and first states; raises SourceError for a spec that HELM cannot work with.

    States that cannot be used are kept as `HelmSource.bad`.
    """

    def where(*keys: str | int) -> Position:
        for length in range(len(keys), -1, -1):
            found = file.locate(keys[:length]) if length else None
            if found is not None:
                return found
        return Position(file.path)

    first = list(islice(file.states(), LOOKED_AT))
    plain = AdapterSpec(method="generation")
    rows: list[Row] = []
    bad: list[SourceError] = [file.broken] if file.broken is not None else []
    good: list[Any] = []
    for state in first:
        try:
            rows.append(row_of(file, state, plain))
            good.append(state)
        except SourceError as error:
            bad.append(error)
    read = read_spec(file.top["adapter_spec"], where, lambda: _inferred(rows))
    splits = {row.split for row in rows}
    results = [result_of(state.value) for state in good]
    specs = _metric_specs(file)
    ranking = _ranking(file, specs) if read.spec.method == "ranking_binary" else None
    if isinstance(ranking, SourceError):
        bad.append(ranking)
    source = HelmSource(
        file=file,
        read=read,
        deviations=(),
        bad=tuple(bad),
        has_states=bool(first),
        has_train=any(is_train(split) for split in splits),
        has_evaluated=any(is_evaluated(split, read.spec) for split in splits),
        has_prompts=any(recorded_prompt(state.value) is not None for state in good),
        has_completions=any(result is not None for result, _ in results),
        metrics=_metrics(file, specs),
        ranking=None if isinstance(ranking, SourceError) else ranking,
        rows=tuple(replace(row, doc=labelled(row.doc, read.spec)) for row in rows),
    )
    nested = any(is_nested for _, is_nested in results)
    return replace(source, deviations=tuple(_deviations(source, rows, nested)))


def _inferred(rows: Sequence[Row]) -> str:
    if any(row.doc.get("messages") for row in rows) and not any(row.doc["input"] for row in rows):
        return "chat"
    return "multiple_choice_joint" if any(len(row.doc["references"]) > 1 for row in rows) else "generation"


def _deviations(source: HelmSource, rows: Sequence[Row], result_is_nested: bool) -> Iterator[Deviation]:
    spec, file = source.spec, source.file
    yield from source.read.deviations
    if not file.is_strict:
        yield Deviation(
            kind="not-strict",
            message="the file is no plain JSON, and HELM reads nothing else",
            do="remove comments and trailing commas",
        )
    for name, _ in repeated_keys(file.whole.text, ("adapter_spec",)) if file.whole is not None else ():
        yield Deviation(
            kind="duplicate",
            message=f"adapter_spec has the key {name!r} more than once, and the last one counts",
            do="remove the others",
            keys=("adapter_spec", name),
        )
    for key in file.top:
        if key not in _TOP:
            hint = did_you_mean(str(key), _TOP)
            yield Deviation(
                kind="unknown",
                message=f"the file has the key {key!r}, which is none of HELM's",
                do=hint or "remove it; settings of this plugin belong under promptfmt",
                keys=(str(key),),
            )
    if "answer_mapping" in file.top or any("answer_mapping" in _value(state) for state in _some(file)):
        yield Deviation(
            kind="alias",
            message="answer_mapping is HELM's output_mapping under another name",
            saw="read as output_mapping",
            do="did you mean 'output_mapping'?",
        )
    if any(row.split_under_references for row in rows):
        yield Deviation(
            kind="split",
            message="the split stands under the references, and HELM reads it from the instance",
            do='write "split" beside "references"',
            keys=(STATES,),
        )
    if result_is_nested:
        yield Deviation(
            kind="nested-result",
            message="results stand inside `request`, and HELM reads them beside it",
            do='move "result" out of "request"',
            keys=(STATES,),
        )
    shows = spec.max_train_instances > 0 and spec.method not in ("chat", "language_modeling")
    if shows and source.has_states and not source.draws_from_all and not source.has_train and not source.has_prompts:
        yield Deviation(
            kind="split",
            message="no instance is of the split train, so that no demonstrations are shown",
            saw=f"max_train_instances {spec.max_train_instances}",
            do='write "split": "train" at the demonstrations, or set max_train_instances to 0',
            keys=("adapter_spec", "max_train_instances"),
        )
    if shows and source.has_states and source.draws_from_all:
        count, wanted = len(rows), spec.max_train_instances
        if count < wanted + 1:
            yield Deviation(
                kind="few-rows",
                message="too few instances to show the demonstrations that the adapter asks for",
                saw=f"{count} instances, and {wanted} demonstrations wanted besides at least one question",
                do="add instances, or lower max_train_instances",
                keys=("adapter_spec", "max_train_instances"),
            )
        else:
            yield Deviation(
                kind="split",
                message="no instance is marked as a demonstration, and HELM shows only those of the split train",
                saw=f"{wanted} of the instances are drawn as demonstrations, and not evaluated",
                do='write "split": "train" at the demonstrations and "split": "test" at the others',
                keys=(STATES,),
            )


def _some(file: HelmFile) -> Iterator[Any]:
    return islice(file.states(), LOOKED_AT)


def _value(state: Any) -> Mapping[str, Any]:
    return state.value if isinstance(state.value, dict) else {}


def recorded_prompt(state: Mapping[str, Any]) -> str | None:
    """Return the prompt that a request state was sent with, None where it holds none."""
    request = state.get("request")
    prompt = request.get("prompt") if isinstance(request, dict) else None
    return prompt if isinstance(prompt, str) and prompt else None


def result_of(state: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the result of a request state, None where it holds none, and whether it stands inside `request`."""
    result, request = state.get("result"), state.get("request")
    if result is None and isinstance(request, dict) and isinstance(request.get("result"), dict):
        return request["result"], True
    return (result, False) if isinstance(result, dict) else (None, False)


def recorded_completions(state: Mapping[str, Any], spec: AdapterSpec) -> list[tuple[str, float]] | None:
    """Return the completions of a request state with their log-probabilities, None where it has no result.

    With output_format "string" only the first one counts. Raises ValueError for completions without text.
    """
    result, _ = result_of(state)
    if result is None:
        return None
    given = result.get("completions")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ValueError("`result.completions` must be a list of mappings")
    if not all(isinstance(each.get("text"), str) for each in given):
        raise ValueError("a completion has no text")
    made = [
        (each["text"], float(number) if isinstance(number := each.get("logprob"), int | float) else 0.0)
        for each in given
    ]
    return made[:1] if spec.output_format == "string" else made


def output_mapping_of(state: Mapping[str, Any], file: HelmFile, doc: Doc) -> Mapping[str, str] | None:
    """Return what labels mean in a state: as written there or in the file, else as the adapter makes them."""
    for holder in (state, file.top):
        for name in ("output_mapping", "answer_mapping"):
            given = holder.get(name)
            if isinstance(given, dict) and all(isinstance(each, str) for each in given.values()):
                return given
    made = doc.get("output_mapping")
    return made if isinstance(made, dict) else None


def _metric_specs(file: HelmFile) -> Sequence[Mapping[str, Any]]:
    """Return the `metric_specs` of the file, or of the `run_spec.json` beside a file that HELM wrote."""
    written = file.top.get("metric_specs")
    beside = file.path.with_name(RUN_SPEC)
    if written is None and file.path.name == SCENARIO_STATE and beside.is_file():
        try:
            run = read_helm_file(beside)
            written = run.top.get("metric_specs") if run is not None else None
        except SourceError:
            written = None  # it is no part of this file
    return [each for each in written if isinstance(each, dict)] if isinstance(written, list) else []


def _ranking(file: HelmFile, specs: Sequence[Mapping[str, Any]]) -> RankingSpec | SourceError | None:
    from pytest_promptfmt.systems.helm.references import ranking_spec

    for number, each in enumerate(specs):
        arguments = each.get("args")
        if str(each.get("class_name")).endswith("RankingMetric") and isinstance(arguments, dict):
            try:
                return ranking_spec(arguments)
            except ScoringError as error:
                position = file.locate(("metric_specs", number)) or Position(file.path)
                return SourceError(f"metric_specs: {error.message}", position=position, hint=error.hint)
    return None


def _metrics(file: HelmFile, specs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    from pytest_promptfmt.systems.helm.helm_metrics import HELM_METRICS

    own = file.top.get("promptfmt")
    told = own.get("metrics") if isinstance(own, dict) else None
    if told is not None:
        unknown = [name for name in told if name not in HELM_METRICS] if isinstance(told, list) else [told]
        if unknown:
            raise SourceError(
                f"promptfmt.metrics names {unknown[0]!r}, which is no metric; there are {', '.join(HELM_METRICS)}",
                position=file.locate(("promptfmt", "metrics")),
                hint=did_you_mean(str(unknown[0]), HELM_METRICS),
            )
        return tuple(told)
    named: list[str] = []
    for each in specs:
        arguments = each.get("args")
        names = arguments.get("names") if isinstance(arguments, dict) else None
        named += [name for name in (names if isinstance(names, list) else ()) if name in HELM_METRICS]
    return tuple(dict.fromkeys(named)) or METRICS
