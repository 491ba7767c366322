"""Whether two finished runs asked the same: sample by sample, and which difference of the runs explains the rest.

An explanation is what differs between the runs and can change the parts that differ; nothing is rendered here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pytest_promptfmt.answers.run_samples import AskedDoc, FinishedRun, Part, TaskSamples

Verdict = Literal["same", "different", "unknown"]
Kind = Literal["edit", "data", "template", "tokenizer", "version", "settings"]

_ALL: Final[frozenset[Part]] = frozenset({"doc", "text", "request", "stops", "target"})
_SHOWN: Final[frozenset[Part]] = frozenset({"text", "request"})
_OF_KEY: Final[Mapping[str, frozenset[Part]]] = {
    **dict.fromkeys(
        (
            "dataset_path",
            "dataset_name",
            "dataset_kwargs",
            "custom_dataset",
            "test_split",
            "validation_split",
            "process_docs",
            "output_type",
        ),
        _ALL,
    ),
    **dict.fromkeys(
        (
            "doc_to_text",
            "description",
            "gen_prefix",
            "use_prompt",
            "num_fewshot",
            "fewshot_config",
            "fewshot_split",
            "fewshot_delimiter",
            "training_split",
        ),
        _SHOWN,
    ),
    **dict.fromkeys(("doc_to_choice", "doc_to_target", "target_delimiter"), _SHOWN | {"target"}),
    "generation_kwargs": frozenset({"stops"}),
}
"""The keys of lm-eval's `configs` in a result file, and what they can change."""

_OF_RUN: Final[Mapping[str, tuple[Kind, frozenset[Part]]]] = {
    "chat_template_sha": ("template", _SHOWN),
    "system_instruction_sha": ("template", _SHOWN),
    "fewshot_as_multiturn": ("template", _SHOWN),
    "model_name": ("tokenizer", frozenset({"tokens"})),
    "tokenizers": ("tokenizer", frozenset({"tokens"})),
    "transformers": ("tokenizer", frozenset({"tokens"})),
    "transformers_version": ("tokenizer", frozenset({"tokens"})),
    "lm_eval_version": ("version", _ALL),
}
_OF_CONFIG: Final[Mapping[str, frozenset[Part]]] = {
    **dict.fromkeys(("random_seed", "numpy_seed", "torch_seed", "fewshot_seed"), _SHOWN),
    "gen_kwargs": frozenset({"stops"}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDifference:
    """Something that differs between two runs, and that can change `parts`. `name` is a key of the task or the run."""

    kind: Kind
    name: str
    first: str
    second: str
    parts: frozenset[Part]


@dataclass(frozen=True, kw_only=True, slots=True)
class DocDifference:
    """A doc that was asked differently, with the parts that differ."""

    first: AskedDoc
    second: AskedDoc
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskComparison:
    """One task in both runs.

    `verdict` is `same` where every sample of both runs is in the other with the same bytes, `unknown` where a file
    does not show what was asked. `only_first` and `only_second` are samples of one run. `tokens` is about the ids.
    `causes` can have changed what differs; `unexplained` are parts that none of them can. `version` are both versions.
    """

    task: str
    verdict: Verdict
    same: int = 0
    differing: tuple[DocDifference, ...] = ()
    only_first: int = 0
    only_second: int = 0
    tokens: Verdict = "unknown"
    causes: tuple[RunDifference, ...] = ()
    unexplained: tuple[Part, ...] = ()
    version: tuple[str, str] = ("", "")


def comparison(first: FinishedRun, second: FinishedRun) -> tuple[TaskComparison, ...]:
    """Return the tasks of either run, by name."""
    found = []
    for name in sorted({*first.tasks, *second.tasks}):
        one, other = first.tasks.get(name), second.tasks.get(name)
        if one is None or other is None:
            counts = [len(side.samples) if side is not None else 0 for side in (one, other)]
            found.append(TaskComparison(task=name, verdict="unknown", only_first=counts[0], only_second=counts[1]))
        else:
            found.append(_task(name, one, other, first, second))
    return tuple(found)


def _task(name: str, one: TaskSamples, other: TaskSamples, first: FinishedRun, second: FinishedRun) -> TaskComparison:
    pairs, only_first, only_second = _paired(one, other)
    differing: list[DocDifference] = []
    hidden = 0
    for before, after in pairs:
        parts = _differing(before, after)
        is_known = _is_shown(before) and _is_shown(after)
        if parts and parts != ("doc",):
            differing.append(DocDifference(first=before, second=after, parts=parts))
        elif not is_known:
            hidden += 1
    causes = tuple(_causes(name, first, second))
    tokens = _of_tokens(pairs)
    changed: set[Part] = {part for difference in differing for part in difference.parts}
    changed |= {"tokens"} if tokens == "different" else set()
    if "doc" in changed:
        causes = (*causes, RunDifference(kind="data", name="doc", first="", second="", parts=_ALL - {"doc"}))
    verdict: Verdict = "same"
    if differing or only_first or only_second:
        verdict = "different"
    elif hidden or not pairs:
        verdict = "unknown"
    able = [cause for cause in causes if cause.parts & changed]
    explained = {part for cause in able for part in cause.parts}
    versions = [str((run.facts.get("versions") or {}).get(name, "")) for run in (first, second)]
    return TaskComparison(
        task=name,
        verdict=verdict,
        same=len(pairs) - len(differing) - hidden,
        differing=tuple(differing),
        only_first=only_first,
        only_second=only_second,
        tokens=tokens,
        causes=tuple(able),
        unexplained=tuple(sorted(changed - explained)),
        version=(versions[0], versions[1]),
    )


def _paired(one: TaskSamples, other: TaskSamples) -> tuple[list[tuple[AskedDoc, AskedDoc]], int, int]:
    """Return the samples about the same doc, and how many only one side has: by the doc, then by its number."""
    pairs: list[tuple[AskedDoc, AskedDoc]] = []
    rest = [list(side.samples) for side in (one, other)]
    for name in ("key", "number"):
        waiting: defaultdict[Any, list[AskedDoc]] = defaultdict(list)
        for sample in rest[1]:
            waiting[getattr(sample, name)].append(sample)
        left = []
        for sample in rest[0]:
            same = waiting[getattr(sample, name)]
            if same:
                # Of equal docs the one with the same number.
                match = next((each for each in same if each.number == sample.number), same[0])
                same.remove(match)
                pairs.append((sample, match))
            else:
                left.append(sample)
        rest = [left, [sample for same in waiting.values() for sample in same]]
    return pairs, len(rest[0]), len(rest[1])


def _differing(one: AskedDoc, other: AskedDoc) -> tuple[Part, ...]:
    shown = [part for part in one.parts if part != "tokens" and part in other.parts]
    return tuple(part for part in shown if one.parts[part] != other.parts[part])


def _is_shown(sample: AskedDoc) -> bool:
    return "request" in sample.parts


def _of_tokens(pairs: list[tuple[AskedDoc, AskedDoc]]) -> Verdict:
    known = [pair for pair in pairs if all("tokens" in sample.parts for sample in pair)]
    if not known or len(known) < len(pairs):
        return "unknown"
    return "different" if any(one.parts["tokens"] != other.parts["tokens"] for one, other in known) else "same"


def _causes(task: str, first: FinishedRun, second: FinishedRun) -> Iterator[RunDifference]:
    configs = [_own_keys((run.facts.get("configs") or {}).get(task)) for run in (first, second)]
    for key, parts in _OF_KEY.items():
        yield from _cause("edit", key, configs[0].get(key), configs[1].get(key), parts)
    for key, (kind, parts) in _OF_RUN.items():
        yield from _cause(kind, key, first.facts.get(key), second.facts.get(key), parts)
    options = [run.facts.get("config") or {} for run in (first, second)]
    for key, parts in _OF_CONFIG.items():
        yield from _cause("settings", key, options[0].get(key), options[1].get(key), parts)


def _own_keys(config: Any) -> Mapping[str, Any]:
    """Return the keys of a task, without those of `fewshot_config` that lm-eval filled in from the task itself."""
    own: dict[str, Any] = dict(config) if isinstance(config, Mapping) else {}
    shots = own.get("fewshot_config")
    if isinstance(shots, Mapping):
        own["fewshot_config"] = {key: shots[key] for key in shots if shots[key] != own.get(key)}
    return own


def _cause(kind: Kind, name: str, first: Any, second: Any, parts: frozenset[Part]) -> Iterator[RunDifference]:
    if first != second:
        yield RunDifference(kind=kind, name=name, first=str(first), second=str(second), parts=parts)


def counted_parts(differing: tuple[DocDifference, ...]) -> Mapping[str, int]:
    """Return how many samples differ in each part, the most frequent first."""
    return dict(Counter(part for difference in differing for part in difference.parts).most_common())
