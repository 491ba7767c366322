"""Prompts and requests are those of lm-eval 0.4.13, on the tasks it ships, for docs full of awkward text.

A sample by default; `PROMPTFMT_PARITY=all` compares every task that needs no Python code for its prompts. Tasks that
are written alike in everything that can reach a prompt are compared once.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import PromptfmtError, RenderError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.task import FunctionRef, Task, Unset, locate_nowhere
from pytest_promptfmt.tasks.recognition import kind_of
from pytest_promptfmt.tasks.renderer import render_task
from pytest_promptfmt.tasks.synthetic.synthetic_docs import synthetic_docs
from pytest_promptfmt.tasks.task_config import task_from_config
from pytest_promptfmt.tasks.yaml_file import read_yaml

pytest.importorskip("lm_eval", reason="compares with lm-evaluation-harness")
datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.parity

COMPARES_ALL = os.environ.get("PROMPTFMT_PARITY") == "all"
CHUNKS = 16
SAMPLED = 1 if COMPARES_ALL else 40

EVALUATED = 4
STUB = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% if not loop.last or add_generation_prompt %}</{{ message.role }}>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
UGLY = (
    "  leading and trailing  ",
    "tab\tand\nnewline\n",
    "carriage\r\nreturn",
    "{{ braces }} {% too %}",
    "back\\slash \\n",
    'it\'s "quoted"',
    "ünïcödé 東京 🎉",
    "<b>&amp;</b>",
    "\u00a0nbsp\u00a0",
    "plain",
)
EDGES = ("3", "007", "²", "[1, 2]", "[broken", "", "None", "0", "-1", "['a']", " 1", "1\n", "[1],[2]", "00")
KEYS = (
    *("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix", "target_delimiter"),
    *("fewshot_delimiter", "fewshot_config", "output_type", "generation_kwargs", "num_fewshot", "use_prompt"),
    *("training_split", "validation_split", "test_split", "fewshot_split"),
)
CODE_KEYS = (
    *("process_docs", "doc_to_text", "doc_to_target", "doc_to_choice", "custom_dataset", "fewshot_config"),
    *("description", "gen_prefix", "doc_to_image", "doc_to_audio"),
)


def has_code(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(has_code, value.values()))
    return any(map(has_code, value)) if isinstance(value, list) else isinstance(value, FunctionRef)


@functools.cache
def shipped_tasks() -> Mapping[int, Sequence[tuple[Path, Mapping[str, Any], int]]]:
    """Return path, configuration and the number of equal tasks for each way of writing, by chunk."""
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None
    assert spec.submodule_search_locations
    found: dict[str, list[Any]] = {}
    for path in sorted((Path(spec.submodule_search_locations[0]) / "tasks").rglob("*.yaml")):
        try:
            file = read_yaml(path)
        except PromptfmtError:
            continue
        config = file.config
        if kind_of(config) != "task" or any(has_code(config.get(key)) for key in CODE_KEYS):
            continue
        if config.get("doc_to_image") or config.get("doc_to_audio"):
            # Only text is rendered here.
            continue
        entry = found.setdefault(json.dumps([config.get(name) for name in KEYS], default=repr), [path, config, 0])
        entry[2] += 1
    chunks: dict[int, list[tuple[Path, Mapping[str, Any], int]]] = {chunk: [] for chunk in range(CHUNKS)}
    for key, (path, config, count) in found.items():
        digest = zlib.crc32(key.encode())
        if digest % SAMPLED == 0:
            chunks[digest // SAMPLED % CHUNKS].append((path, config, count))
    return chunks


def uglified(value: Any, words: Sequence[str], known: dict[str, str]) -> Any:
    """Replace the readable synthetic texts; equal texts stay equal, everything else stays."""
    if isinstance(value, str) and "«" in value:
        return known.setdefault(
            value, words[zlib.crc32(value.encode()) % len(words)] + str(len(known)) * (words is UGLY)
        )
    if isinstance(value, dict):
        return {key: uglified(item, words, known) for key, item in value.items()}
    return [uglified(item, words, known) for item in value] if isinstance(value, list) else value


@dataclass
class Case:
    """One task, its docs as `datasets` gives them back, and both ways to render it."""

    config: Mapping[str, Any]
    words: Sequence[str] = UGLY
    task: Task = field(init=False)
    splits: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.task = task_from_config(self.config, path=None, locate=locate_nowhere)
        size = EVALUATED + 4 + (self.task.num_fewshot or 0)
        dataset = self.task.dataset
        evaluated = self._docs(dataset.evaluation_split, size)
        self.splits = {}
        own = self.task.fewshot.split
        names = [dataset.training_split, dataset.validation_split, dataset.test_split, dataset.fewshot_split]
        for name in (*names, None if isinstance(own, Unset) else own):
            if name is not None and name not in self.splits:
                docs = evaluated if name == dataset.evaluation_split else self._docs(name, size)
                # A copy of an evaluated doc among the demonstrations: the one that may have to be left out.
                docs = docs if docs is evaluated else [*docs, evaluated[1]]
                self.splits[name] = datasets.Dataset.from_list(docs)

    def _docs(self, split: str | None, size: int) -> list[Doc]:
        return [uglified(dict(doc), self.words, {}) for doc in synthetic_docs(self.task, count=size, split=split)]

    def ours(self, profile: Profile, shots: int) -> list[Any]:
        dataset = self.task.dataset
        rows = {name: [dict(row) for row in rows] for name, rows in self.splits.items()}
        own = self.task.fewshot.split
        split = dataset.fewshot_split if isinstance(own, Unset) else own
        if split is None and self.task.fewshot.samples is not None:
            pool = self.task.fewshot.samples
        else:
            names = (split, dataset.training_split, dataset.validation_split, dataset.test_split)
            pool = rows[next(name for name in names if name is not None)]
        assert dataset.evaluation_split is not None
        docs = TaskDocs(
            evaluated=tuple(rows[dataset.evaluation_split][:EVALUATED]),
            fewshot=tuple(pool),
            columns=tuple(self.splits[dataset.evaluation_split].features),
            origin="",
            fewshot_origin="",
        )
        results: list[Any] = []
        try:
            for instance in render_task(self.task, docs, profile, num_fewshot=shots):
                for prompt in instance.prompts:
                    assert "".join(span.text for span in prompt.spans) == prompt.text
                results.append([request.arguments for request in instance.requests])
        except RenderError as error:
            results.append(type(error.__cause__))
        return results

    def theirs(self, profile: Profile, shots: int, made: Any) -> list[Any]:
        if isinstance(made, BaseException):
            return [type(made)]
        results: list[Any] = []
        chat = profile.chat_template is not None
        made.set_fewshot_seed(1234)
        for doc in list(made.eval_docs)[:EVALUATED]:
            try:
                context = made.fewshot_context(
                    doc,
                    num_fewshot=shots,
                    system_instruction=profile.system_instruction,
                    apply_chat_template=chat,
                    fewshot_as_multiturn=profile.fewshot_as_turns,
                    chat_template=stub_chat if chat else None,
                    gen_prefix=made.doc_to_prefix(doc),
                )
                requests = made.construct_requests(doc=doc, ctx=context, metadata=("t", 0, 1), apply_chat_template=chat)
                requests = requests if isinstance(requests, list) else [requests]
                results.append([request.args for request in requests])
            except Exception as error:
                results.append(type(error))
                break
        return results

    def lm_eval_task(self) -> Any:
        from lm_eval.api.task import ConfigurableTask

        dropped = ("tag", "group", "task_list", "dataset_kwargs", "metric_list", "filter_list", "process_results")
        config = {key: copy.deepcopy(value) for key, value in self.config.items() if key not in dropped}
        config["custom_dataset"] = lambda **_: self.splits
        try:
            return ConfigurableTask(config=config)
        except Exception as error:
            return error


def stub_chat(messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
    """Return what `STUB` prints, the last message left open when it is to be continued."""
    parts = [f"<{message['role']}>{message['content']}</{message['role']}>" for message in messages]
    if add_generation_prompt:
        return "".join(parts) + "<assistant>"
    return "".join(parts).removesuffix(f"</{messages[-1]['role']}>")


PROFILES = [
    Profile(name=f"{shape}-{system}", chat_template=template, fewshot_as_turns=turns, system_instruction=instruction)
    for shape, template, turns in (("plain", None, True), ("turns", STUB, True), ("single", STUB, False))
    for system, instruction in (("bare", None), ("system", "You are terse."))
]


def differences(config: Mapping[str, Any], words: Sequence[str]) -> tuple[int, int, list[str]]:
    """Return the number of comparisons, of equal failures among them, and what differs."""
    case = Case(config, words)
    made = case.lm_eval_task()
    compared = failed = 0
    found = []
    own = case.task.num_fewshot
    for shots in (0,) if own == 0 else (0, own or 2):
        if shots == 0 and own:
            case.task = task_from_config({**config, "num_fewshot": 0}, path=None, locate=locate_nowhere)
        elif own:
            case.task = task_from_config(config, path=None, locate=locate_nowhere)
        for profile in PROFILES:
            ours, theirs = case.ours(profile, shots), case.theirs(profile, shots, made)
            compared += len(theirs)
            failed += sum(isinstance(result, type) for result in theirs)
            if ours != theirs:
                found.append(f"{shots} shots, {profile.name}: {first_difference(ours, theirs)}")
    return compared, failed, found


def first_difference(ours: list[Any], theirs: list[Any]) -> str:
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            return f"doc {index}\n  ours   {str(mine)[:600]}\n  theirs {str(other)[:600]}"
    return f"{len(ours)} and {len(theirs)} results"


@pytest.mark.parametrize("words", [UGLY, EDGES], ids=["ugly", "edges"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_prompts_and_requests_of_shipped_tasks_are_those_of_lm_eval(
    chunk: int, words: Sequence[str], record_property: Any
) -> None:
    totals = dict.fromkeys(("tasks", "ways", "without docs", "compared", "equal failures"), 0)
    wrong = []
    for path, config, count in shipped_tasks()[chunk]:
        try:
            compared, failed, found = differences(config, words)
        except PromptfmtError:
            totals["without docs"] += count
            continue
        totals["tasks"] += count
        totals["ways"] += 1
        totals["compared"] += compared
        totals["equal failures"] += failed
        wrong += [f"{path.stem} ({count} alike): {each}" for each in found]
    record_property("totals", totals)
    if out := os.environ.get("PROMPTFMT_PARITY_LOG"):
        with Path(out).open("a") as log:
            log.write(json.dumps({"chunk": chunk, "edges": words is EDGES, **totals, "wrong": wrong}) + "\n")
    assert not wrong, "\n".join(wrong[:20])
