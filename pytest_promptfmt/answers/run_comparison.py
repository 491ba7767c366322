"""Two finished runs compared: whether both asked the same bytes, sample by sample, and which difference explains it.

Runs are lm-eval's `--log_samples` files and recordings of this plugin. lm-eval 0.4.13 writes SHA-256 digests of each
doc, its target and the prompt of its first request, and one of all of these for each task. They are computed again from
the texts, so that an edited file is noticed. Nothing is rendered here.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SettingsError, SourceError
from pytest_promptfmt.core.text import shared_start

Part = Literal["doc", "text", "request", "stops", "target", "tokens"]
SameOrNot = Literal["same", "different", "unknown"]

_WIDTH: Final = 120
_MAX_LINE: Final = 1 << 26
_FILE: Final = re.compile(r"(?:samples_(?P<task>.+)|results)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl?")
_HASHES: Final = ("doc_hash", "prompt_hash", "target_hash")
_ORDER: Final = ("task", "profile", "doc", "request")  # the keys of a recording's lines that identify a question

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
class AskedDoc:
    """One doc as it was asked: digests of its parts, without those that the file does not show.

    `key` is equal for the same doc in another run. `number` is that of the doc, `start` where its line begins.
    """

    key: str
    number: int
    parts: Mapping[Part, str]
    start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSamples:
    """The samples of a task in one file; `checked` of its digests were computed again, those in `wrong` differ.

    `digest` is that of all samples as lm-eval makes it, None where a line lacks a part of it.
    """

    path: Path
    samples: tuple[AskedDoc, ...] = ()
    checked: int = 0
    wrong: tuple[str, ...] = ()
    digest: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    """A finished run: its tasks, and the facts in its result file (of a recording its models and packages)."""

    tasks: Mapping[str, TaskSamples]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def hashes(self) -> dict[str, Any]:
        """Return how many digests were computed again; a wrong one means that the file was edited."""
        written = self.facts.get("task_hashes") or {}
        known = {name: each.digest for name, each in self.tasks.items() if each.digest and name in written}
        wrong = [name for samples in self.tasks.values() for name in samples.wrong]
        wrong += [f"task_hashes {name}" for name, digest in known.items() if digest != written[name]]
        checked = sum(samples.checked for samples in self.tasks.values()) + len(known)
        return {"checked": checked, "reproduced": checked - len(wrong), "wrong": wrong}


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
    parts = [f"{task.same:,} sample{'' if task.same == 1 else 's'} asked the same"]
    if task.differing:
        counts = Counter(part for *_, parts in task.differing for part in parts).most_common()
        parts.append(f"{len(task.differing):,} not ({', '.join(f'{part} of {count:,}' for part, count in counts)})")
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
        yield f"  unknown why {part} differs: nothing in the result files that can change it does"
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
            line = json.loads(file.readline(_MAX_LINE))
        requests.append([str(value) for arguments in _arguments(line) for value in arguments])
    old, new = next((pair for pair in zip(*requests, strict=False) if pair[0] != pair[1]), ("", ""))
    if old != new:
        start = max(0, shared_start(old, new) - 30)
        head = f"doc {docs[0].number}:"
        yield f"  {head} {_short(old[start : start + _WIDTH])}"
        yield f"  {'became':>{len(head)}} {_short(new[start : start + _WIDTH])}"


# -- reading -----------------------------------------------------------------------------------------------------------


def is_run(path: Path) -> bool:
    """Return whether a path looks like a finished run: JSON lines, or a folder with lm-eval's samples."""
    if path.is_dir():
        return any(_FILE.fullmatch(file.name) for file in path.rglob("samples_*.jsonl"))
    return path.suffix == ".jsonl"


def read_run(path: Path) -> FinishedRun:
    """Return the newest run of a folder of lm-eval's results, or a recording of ours.

    Raises SettingsError for a place that is neither or holds the results of several models, SourceError for a file that
    cannot be read.
    """
    if not path.exists():
        raise SettingsError(f"there is no file or folder {path}")
    try:
        return _results(path) if path.is_dir() else _recorded(path)
    except OSError as error:
        position = Position(Path(error.filename or path))
        raise SourceError(f"the file cannot be read: {error.strerror or error}", position=position) from error


def _results(path: Path) -> FinishedRun:
    found = [(match, file) for file in sorted(path.rglob("*.json*")) if (match := _FILE.fullmatch(file.name))]
    if not found:
        raise SettingsError(f"{path} holds no samples_*.jsonl", hint="run lm-eval with --log_samples and --output_path")
    folders = sorted({str(file.parent) for _, file in found})
    if len(folders) > 1:
        raise SettingsError(f"{path} holds several runs", hint=f"give one of {', '.join(folders[:5])}")
    newest = max(match["date"] for match, _ in found)
    files = {match["task"]: file for match, file in found if match["date"] == newest}
    results = files.pop(None, None)
    facts = _mapping(gate.read_bytes(results), Position(results)) if results is not None else {}
    return FinishedRun(tasks={task: _logged(file) for task, file in files.items()}, facts=facts)


def _logged(path: Path) -> TaskSamples:
    """Return the samples of a file of lm-eval, with its digests computed again."""
    samples: dict[tuple[str, int], AskedDoc] = {}
    wrong: list[str] = []
    checked = 0
    chain: Any = sha256()
    for number, (start, line) in enumerate(_lines(path), 1):
        made = _hashes(line)
        written: dict[str, str] = {name: str(line[name]) for name in _HASHES if name in line}
        checked += len(written.keys() & made.keys())
        wrong += [f"{path.name}:{number} {name}" for name in made if written.get(name, made[name]) != made[name]]
        hashes = made | written
        if chain is not None and len(hashes) == len(_HASHES):
            chain.update("".join(hashes[name] for name in _HASHES).encode())
        else:
            chain = None
        parts = dict(_parts(line, hashes))
        key, at = parts.get("doc", ""), line.get("doc_id", number - 1)
        if not isinstance(at, int):
            position = Position(path, number)
            raise SourceError(f"the number of the doc is {at!r:.40}", position=position, hint="not lm-eval's file")
        # A line for each filter; the requests are the same in all of them.
        samples.setdefault((key, at), AskedDoc(key=key, number=at, parts=parts, start=start))
    digest = chain.hexdigest() if chain is not None else None
    return TaskSamples(path=path, samples=tuple(samples.values()), checked=checked, wrong=tuple(wrong), digest=digest)


def _arguments(line: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the arguments of each request of a line; lm-eval has written them as lists and as mappings."""
    written = line.get("arguments")
    requests = [*written.values()] if isinstance(written, Mapping) else written
    if not isinstance(requests, list):
        return []
    values = [[*each.values()] if isinstance(each, Mapping) else each for each in requests]
    return [tuple(each) for each in values if isinstance(each, list)]


def _hashes(line: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of a line as lm-eval 0.4.13 makes them, of what the line shows."""
    requests = _arguments(line)
    made = {}
    if "doc" in line:
        made["doc_hash"] = _digest(json.dumps(line["doc"], indent=2, ensure_ascii=False))
    if requests and requests[0] and isinstance(requests[0][0], str):
        made["prompt_hash"] = _digest(requests[0][0])
    if "target" in line:
        made["target_hash"] = _digest(str(line["target"]))
    return made


def _parts(line: Mapping[str, Any], hashes: Mapping[str, str]) -> Iterator[tuple[Part, str]]:
    requests = _arguments(line)
    if "doc_hash" in hashes:
        yield "doc", hashes["doc_hash"]
    if requests:
        others = [arguments[1:] for arguments in requests]
        texts = [[each for each in rest if isinstance(each, str)] for rest in others]
        settings = [[each for each in rest if not isinstance(each, str)] for rest in others]
        yield "text", _digest(json.dumps([arguments[:1] for arguments in requests]))
        yield "request", _digest(json.dumps(texts))
        yield "stops", _digest(json.dumps(settings, sort_keys=True))
    elif "prompt_hash" in hashes:
        yield "text", hashes["prompt_hash"]  # of the first request only
    if "target_hash" in hashes:
        yield "target", hashes["target_hash"]


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _recorded(path: Path) -> FinishedRun:
    """Return the run of a recording; a sample is a doc of a task in one profile with `key` and `sent` of its questions.

    Its facts are the models and the packages that asked them.
    """
    lines = [*_lines(path)]
    if not lines or not all({*_ORDER[:3], "key"} <= line.keys() for _, line in lines):
        raise SettingsError(
            f"{path} is not a recording", hint="give a folder of lm-eval's results, or a file of --promptfmt-record"
        )
    facts: dict[str, Any] = {"model_name": ", ".join(sorted({str(line.get("model")) for _, line in lines}))}
    for _, line in lines:
        facts |= line["with"] if isinstance(line.get("with"), dict) else {}
    lines.sort(key=lambda pair: tuple(str(pair[1].get(name)) for name in _ORDER))
    found: dict[str, list[AskedDoc]] = {}
    for (task, profile, doc), group in groupby(lines, key=lambda pair: tuple(pair[1][name] for name in _ORDER[:3])):
        entries = [*group]
        parts: dict[Part, str] = {"request": json.dumps(sorted(str(line["key"]) for _, line in entries))}
        if all(line.get("sent") is not None for _, line in entries):
            parts["tokens"] = json.dumps(sorted(str(line["sent"]) for _, line in entries))
        sample = AskedDoc(key=str(doc), number=int(doc), parts=parts, start=entries[0][0])
        found.setdefault(f"{task} [{profile}]", []).append(sample)
    tasks = {name: TaskSamples(path=path, samples=tuple(made)) for name, made in found.items()}
    return FinishedRun(tasks=tasks, facts=facts)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield where each line begins, and its mapping; raises SourceError with its number for anything else."""
    with gate.open_file(path) as file:
        start = number = 0
        while data := file.readline(_MAX_LINE):
            number += 1
            if data.strip():
                yield start, _mapping(data, Position(path, number))
            start += len(data)


def _mapping(data: bytes, position: Position) -> dict[str, Any]:
    try:
        read = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"invalid JSON: {error}", position=position) from None
    if not isinstance(read, dict):
        raise SourceError("not a mapping", position=position)
    return read
