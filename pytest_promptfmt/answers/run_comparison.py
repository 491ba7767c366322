"""Two finished runs compared: whether both asked the same bytes, sample by sample, and which difference explains it.

Nothing is rendered here.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pytest_promptfmt.answers.run_samples import MAX_LINE, AskedDoc, FinishedRun, Part, TaskSamples, arguments_of
from pytest_promptfmt.core import gate
from pytest_promptfmt.core.text import shared_start

SameOrNot = Literal["same", "different", "unknown"]

_WIDTH: Final = 120

_ALL: Final[frozenset[Part]] = frozenset({"doc", "text", "request", "stops", "target"})
_SHOWN: Final[frozenset[Part]] = frozenset({"text", "request"})
_CAUSES: Final[Sequence[tuple[str, str, frozenset[Part], str]]] = (
    ("configs", "edit", _ALL, "dataset_path dataset_name dataset_kwargs custom_dataset test_split validation_split"),
    ("configs", "edit", _ALL, "process_docs output_type"),
    ("configs", "edit", _SHOWN, "doc_to_text description gen_prefix use_prompt num_fewshot fewshot_config"),
    ("configs", "edit", _SHOWN, "fewshot_split fewshot_delimiter training_split"),
    ("configs", "edit", _SHOWN | {"target"}, "doc_to_choice doc_to_target target_delimiter"),
    ("configs", "edit", frozenset({"stops"}), "generation_kwargs"),
    ("", "template", _SHOWN, "chat_template_sha system_instruction_sha fewshot_as_multiturn"),
    ("", "tokenizer", frozenset({"tokens"}), "model_name tokenizers transformers transformers_version"),
    ("", "version", _ALL, "lm_eval_version"),
    ("config", "settings", _SHOWN, "random_seed numpy_seed torch_seed fewshot_seed"),
    ("config", "settings", frozenset({"stops"}), "gen_kwargs"),
)
"""Sections of lm-eval's result file, kinds of causes, and the parts that their keys can change.

`configs` are the keys of a task, `config` the options of the run; the others are at the top.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDifference:
    """A difference between two runs that can change `parts`. `name` is a key of the task or the run."""

    kind: str
    name: str
    first: str
    second: str
    parts: frozenset[Part]

    def __str__(self) -> str:
        """Return the difference as a line."""
        change = f"{self.kind} {self.name}: {_short(self.first)} → {_short(self.second)}"
        return "other data in the docs" if self.kind == "data" else change


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskComparison:
    """One task in both runs.

    `verdict` is `same` where every sample of both runs is in the other with the same bytes, `unknown` where a file
    does not show what was asked. `differing` are docs that were asked differently, with these parts, `only_first` and
    `only_second` samples of one run. `tokens` is about the ids. `causes` can have changed what differs, none of them
    the `unexplained` parts. `version` are both versions.
    """

    task: str
    verdict: SameOrNot
    same: int = 0
    differing: tuple[tuple[AskedDoc, AskedDoc, tuple[Part, ...]], ...] = ()
    only_first: int = 0
    only_second: int = 0
    tokens: SameOrNot = "unknown"
    causes: tuple[RunDifference, ...] = ()
    unexplained: tuple[Part, ...] = ()
    version: tuple[str, ...] = ("", "")

    def to_json(self, places: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return a mapping for JSON; `places` are facts about causes, by name."""
        causes = [{**asdict(each), "parts": sorted(each.parts), **places.get(each.name, {})} for each in self.causes]
        return {
            "task": self.task,
            "verdict": self.verdict,
            "same": self.same,
            "only_in_A": self.only_first,
            "only_in_B": self.only_second,
            "tokens": self.tokens,
            "version": list(self.version),
            "differing": [{"A": one.number, "B": other.number, "parts": parts} for one, other, parts in self.differing],
            "causes": causes,
            "unexplained": list(self.unexplained),
        }


def compared_runs(first: FinishedRun, second: FinishedRun) -> tuple[TaskComparison, ...]:
    """Return the tasks of either run, by name."""
    found = []
    for name in sorted({*first.tasks, *second.tasks}):
        if name in first.tasks and name in second.tasks:
            found.append(_compared_task(name, first, second))
        else:
            counts = [len(run.tasks[name].samples) if name in run.tasks else 0 for run in (first, second)]
            found.append(TaskComparison(task=name, verdict="unknown", only_first=counts[0], only_second=counts[1]))
    return tuple(found)


def _compared_task(name: str, first: FinishedRun, second: FinishedRun) -> TaskComparison:
    pairs, only_first, only_second = _paired(first.tasks[name], second.tasks[name])
    differing: list[tuple[AskedDoc, AskedDoc, tuple[Part, ...]]] = []
    hidden = 0
    for before, after in pairs:
        shown = [part for part in before.parts if part != "tokens" and part in after.parts]
        parts = tuple(part for part in shown if before.parts[part] != after.parts[part])
        if parts not in ((), ("doc",)):
            differing.append((before, after, parts))
        elif "request" not in before.parts or "request" not in after.parts:
            hidden += 1
    tokens = _compared_tokens(pairs)
    changed: set[Part] = {part for *_, parts in differing for part in parts}
    changed |= {"tokens"} if tokens == "different" else set()
    causes = [cause for cause in _causes(name, first, second) if cause.parts & changed]
    if changed & _ALL > {"doc"}:
        causes.append(RunDifference(kind="data", name="doc", first="", second="", parts=_ALL - {"doc"}))
    verdict: SameOrNot = "unknown" if hidden or not pairs else "same"
    return TaskComparison(
        task=name,
        verdict="different" if differing or only_first or only_second else verdict,
        same=len(pairs) - len(differing) - hidden,
        differing=tuple(differing),
        only_first=only_first,
        only_second=only_second,
        tokens=tokens,
        causes=tuple(causes),
        unexplained=tuple(sorted(changed.difference(*(cause.parts for cause in causes)))),
        version=tuple(str((run.facts.get("versions") or {}).get(name, "")) for run in (first, second)),
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


def _compared_tokens(pairs: Sequence[tuple[AskedDoc, AskedDoc]]) -> SameOrNot:
    if not pairs or any("tokens" not in sample.parts for pair in pairs for sample in pair):
        return "unknown"
    return "different" if any(one.parts["tokens"] != other.parts["tokens"] for one, other in pairs) else "same"


def _causes(task: str, first: FinishedRun, second: FinishedRun) -> Iterator[RunDifference]:
    sections: dict[str, list[Mapping[str, Any]]] = {
        "configs": [_own_keys((run.facts.get("configs") or {}).get(task)) for run in (first, second)],
        "config": [run.facts.get("config") or {} for run in (first, second)],
        "": [first.facts, second.facts],
    }
    for section, kind, parts, keys in _CAUSES:
        for key in keys.split():
            one, other = (side.get(key) for side in sections[section])
            if one != other:
                yield RunDifference(kind=kind, name=key, first=str(one), second=str(other), parts=parts)


def _own_keys(config: Any) -> Mapping[str, Any]:
    """Return the keys of a task, without those of `fewshot_config` that lm-eval filled in from the task itself."""
    own: dict[str, Any] = dict(config) if isinstance(config, Mapping) else {}
    shots = own.get("fewshot_config")
    if isinstance(shots, Mapping):
        own["fewshot_config"] = {key: shots[key] for key in shots if shots[key] != own.get(key)}
    return own


# -- lines -------------------------------------------------------------------------------------------------------------


def comparison_lines(
    task: TaskComparison, runs: tuple[FinishedRun, FinishedRun], places: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yield a comparison as lines; `places` are the place and commits of causes, by name."""
    parts = [f"{task.same:,} sample{'' if task.same == 1 else 's'} with the same requests"]
    if task.differing:
        counts = Counter(part for *_, parts in task.differing for part in parts).most_common()
        parts.append(f"{len(task.differing):,} different ({', '.join(f'{n:,} in {part}' for part, n in counts)})")
    parts += [f"{count:,} only in {name}" for name, count in (("A", task.only_first), ("B", task.only_second)) if count]
    yield f"{task.task}: {task.verdict}; {', '.join(parts)}"
    if task.tokens != "unknown":
        yield f"  token ids: {task.tokens}"
    is_certain = len(task.causes) == 1 and not task.unexplained
    for cause in task.causes:
        place = places.get(cause.name, {})
        at = f", {place['place']}" if place.get("place") else ""
        yield f"  {'because of' if is_certain else 'perhaps because of'} {cause}{at}"
        yield from (f"    {commit}" for commit in place.get("commits", ()))
    for part in task.unexplained:
        yield (
            f"  the cause of the different {part} is unknown: all settings that "
            "can change it are equal in the result files"
        )
    if task.differing and task.version[0] == task.version[1] and task.version[0]:
        yield f"  both have version {task.version[0]}"
    if task.differing and not runs[0].tasks[task.task].path.name.endswith("recording.jsonl"):
        yield from _example([run.tasks[task.task] for run in runs], task.differing[0][:2])


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= _WIDTH else f"{shown[: _WIDTH - 1]}…"


def _example(samples: Sequence[TaskSamples], docs: Sequence[AskedDoc]) -> Iterator[str]:
    """Yield the first request of a doc that differs."""
    requests = []
    for side, doc in zip(samples, docs, strict=True):
        with gate.open_file(side.path) as file:
            file.seek(doc.start)
            line = json.loads(file.readline(MAX_LINE))
        requests.append([str(value) for arguments in arguments_of(line) for value in arguments])
    old, new = next((pair for pair in zip(*requests, strict=False) if pair[0] != pair[1]), ("", ""))
    if old != new:
        start = max(0, shared_start(old, new) - 30)
        head = f"doc {docs[0].number}:"
        yield f"  {head} {_short(old[start : start + _WIDTH])}"
        yield f"  {'now:':>{len(head)}} {_short(new[start : start + _WIDTH])}"
