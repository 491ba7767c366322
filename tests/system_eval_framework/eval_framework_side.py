"""What eval-framework makes of generated docs, beside what we make of them; run by an interpreter that has it.

Prints one JSON object: for each kind of comparison how many were equal, and those that were not. Nothing is
downloaded: the loader of every benchmark is replaced by one that gives the generated rows.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import io
import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
    from eval_framework.contract import ResponseType
    from eval_framework.fewshot import Predefined, SampleSplit
    from eval_framework.metrics.loglikelihood.accuracy_loglikelihood import (
        AccuracyLoglikelihood,
        AccuracyNormLoglikelihood,
    )
    from eval_framework.metrics.loglikelihood.bits_per_byte import BitsPerByteLoglikelihood
    from eval_framework.metrics.loglikelihood.confidence_weighted_accuracy import ConfidenceWeightedAccuracy
    from eval_framework.metrics.loglikelihood.dcs import DistributionalCorrectnessScore
    from eval_framework.metrics.loglikelihood.probability_mass import ProbabilityMass, ProbabilityMassNorm
    from eval_framework.metrics.loglikelihood.ternary import TernaryScore
    from eval_framework.shared.types import Loglikelihood
    from eval_framework.tasks.base import BaseTask
    from eval_framework.tasks.registry import Registry
    from eval_framework.tasks.task_names import register_all_tasks
    from eval_framework.tasks.task_style import BPBStyle, ClozeStyle, MCCompletionStyle, MCStyle
    from template_formatting.formatter import (
        ConcatFormatter,
        HFFormatter,
        IdentityFormatter,
        Llama3Formatter,
        NoStripConcatFormatter,
        Role,
    )

from pytest_promptfmt import load_tasks
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.profile import Profile, builtin_profile
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.systems.eval_framework.hooks import task_class
from pytest_promptfmt.systems.eval_framework.metric_classes import LIKELIHOOD_METRICS
from pytest_promptfmt.systems.eval_framework.tasks import ClassAssembly
from pytest_promptfmt.tasks.docs.doc_sources import load_docs
from pytest_promptfmt.tasks.renderer import render_task

FORMATTERS = {
    "concat": ConcatFormatter(),
    "no-strip-concat": NoStripConcatFormatter(),
    "llama3": Llama3Formatter(),
    "identity": IdentityFormatter(),
}
METRICS = (
    AccuracyLoglikelihood,
    AccuracyNormLoglikelihood,
    ConfidenceWeightedAccuracy,
    ProbabilityMass,
    ProbabilityMassNorm,
    TernaryScore,
    DistributionalCorrectnessScore,
    BitsPerByteLoglikelihood,
)
ROWS = 6
SHOTS = (0, 2)
THINGS = ("lamp", "river", "ladder", "violin", "harbour", "glove", "kettle", "comet", "basket", "anchor", "pebble")


# -- generated rows ----------------------------------------------------------------------------------------------------


def row_for(module: str, number: int) -> dict[str, Any]:
    """Return a generated row with every column that the readers of one module of benchmarks ask for."""
    thing, letter = THINGS[number % len(THINGS)], "ABCD"[number % 4]
    texts = [f"{thing} of {name}" for name in ("wood", "tin", "Zürich", "glass")]
    question = f"  Which {thing} no. {number} is the oldest? " if number % 3 == 0 else f"Which {thing} no. {number}?"
    row: dict[str, Any] = {
        "question": question,
        "problem": f"How many {thing}s are {number} and {number + 1}?",
        "solution": f"We add them. The answer is $\\boxed{{{2 * number + 1}}}$.",
        "extracted_answer": str(2 * number + 1),
        "answer": f"{number} and {number + 1} make {2 * number + 1}.\n#### {2 * number + 1}",
        "final_answer": str(2 * number + 1),
        "choices": texts,
        "answerKey": letter,
        "answer_key": letter,
        "correct_answer": texts[0],
        "incorrect_answers": texts[1:],
        "easy_distractors": texts[1:],
        "hard_distractors": [text + "!" for text in texts[1:]],
        "title": f"The {thing}",
        "context": f"There was a {thing} in house {number}.\nIt was old.",
        "prompt": f"def {thing}_{number}(x):\n    return x",
        "canonical_solution": f"    return {number}\n",
        "entry_point": f"{thing}_{number}",
        "test": f"assert {thing}_{number}(1) == 1",
        "test_list": [f"assert {thing}_{number}(1) == 1", "assert True"],
        "text": f"Write {thing} {number}.",
        "code": f"def {thing}_{number}(x): return x",
        "id": number,
    }
    return row | OVERRIDES[module](number, thing, letter, texts) if module in OVERRIDES else row


Override = Callable[[int, str, str, list[str]], dict[str, Any]]


def labelled(texts: list[str]) -> dict[str, Any]:
    return {"text": texts, "label": list("ABCDE")[: len(texts)]}


OVERRIDES: Mapping[str, Override] = {
    "arc": lambda n, t, k, x: {"choices": labelled(x), "answerKey": str(n % 4 + 1) if n % 2 else k},
    "arc_de": lambda n, t, k, x: {"question_de": f"Welche {t} {n}?", "choices_de": labelled(x)},
    "arc_ellamind": lambda n, t, k, x: {"choices": x},
    "bigcodebench": lambda n, t, k, x: {
        "complete_prompt": f"import {t}\n\ndef f{n}():\n    pass\n",
        "code_prompt": f"import {t}\n",
    },
    "copa": lambda n, t, k, x: {
        "premise": f"The {t} no. {n} fell.",
        "question": ("cause", "effect")[n % 2],
        "choice1": "It was pushed.",
        "choice2": "It rang.",
        "label": n % 2,
    },
    "csqa": lambda n, t, k, x: {"choices": labelled(x)},
    "drop": lambda n, t, k, x: {
        "passage": f"Once {n} {t}s stood there.",
        "passage_original": f"Once {n} {t}s stood there.",
        "question_original": f"How many {t}s, {n}?",
        "choices": labelled(x),
        "answers_spans": {"spans": [str(n)], "types": ["number"]},
        "answer": {"number": str(n), "date": {"day": "", "month": "", "year": ""}, "spans": []},
        "validated_answers": {"number": [], "date": [], "spans": []},
    },
    "global_mmlu": lambda n, t, k, x: {
        "option_a": x[0],
        "option_b": x[1],
        "option_c": x[2],
        "option_d": x[3],
        "answer": k,
    },
    "goldenswag": lambda n, t, k, x: OVERRIDES["hellaswag"](n, t, k, x),
    "gpqa": lambda n, t, k, x: {
        "Question": f"Which {t} {n}?",
        "Correct Answer": x[0],
        "Incorrect Answer 1": x[1],
        "Incorrect Answer 2": x[2],
        "Incorrect Answer 3": x[3],
    },
    "hellaswag": lambda n, t, k, x: {
        "activity_label": f"Polishing a {t}",
        "ctx_a": f"A man takes {t} {n}.",
        "ctx_b": "he [title] turns",
        "endings": x,
        "label": str(n % 4),
    },
    "hellaswag_ellamind": lambda n, t, k, x: {"activity": f"{t} {n}", "correct_ending": x[0]},
    "ifeval": lambda n, t, k, x: {
        "prompt": f"Write about {t} {n}.",
        "key": n,
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    },
    "mmlu": lambda n, t, k, x: {"answer": n % 4},
    "mmlu_pro": lambda n, t, k, x: {"options": x, "answer_index": n % 4, "answer": k, "category": "math"},
    "multipl_e": lambda n, t, k, x: {"tests": "assert(true)", "language": "cpp"},
    "naturalqs_open": lambda n, t, k, x: {"answer": x[:2], "choices": labelled(x)},
    "piqa": lambda n, t, k, x: {"goal": f"Lift a {t} {n}", "sol1": x[0], "sol2": x[1], "label": n % 2},
    "piqa_ellamind": lambda n, t, k, x: {
        "goal": f"{t} {n} heben",
        "correct_solution": x[0],
        "easy_distractor": x[1],
        "hard_distractor": x[2],
    },
    "sciq": lambda n, t, k, x: {"distractor1": x[1], "distractor2": x[2], "distractor3": x[3], "support": "None."},
    "social_iqa": lambda n, t, k, x: {"answerA": x[0], "answerB": x[1], "answerC": x[2], "label": str(n % 3 + 1)},
    "squad": lambda n, t, k, x: {"answers": {"text": x[:2], "answer_start": [0, 1]}},
    "simpleqa_ellamind": lambda n, t, k, x: {"answer": x[0]},
    "winogrande": lambda n, t, k, x: {
        "sentence": f"The {t} {n} hit the wall because _ was heavy.",
        "option1": "the " + t,
        "option2": "the wall",
        "answer": str(n % 2 + 1),
    },
    "winogrande_ellamind": lambda n, t, k, x: OVERRIDES["winogrande"](n, t, k, x),
}


@dataclasses.dataclass
class Rows:
    """Splits by name; replaces the loader of a benchmark, which asks for one subject at a time."""

    splits: dict[str, list[dict[str, Any]]]

    def load(self, name: str | None) -> dict[str, list[dict[str, Any]]]:
        return {
            split: [copy.deepcopy(row) for row in rows if name is None or row.get("subject", name) == name]
            for split, rows in self.splits.items()
        }

    def metadata(self) -> dict[str, str]:
        return {}


# -- one benchmark ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Case:
    """One benchmark with its generated rows, for one number of shots."""

    name: str
    benchmark: Any
    shots: int
    labels: list[str]
    splits: dict[str, list[dict[str, Any]]]

    @property
    def source(self) -> Any:
        return getattr(self.benchmark._fewshot, "_source", None)


def cases() -> Iterator[Case]:
    registry = Registry()
    register_all_tasks(registry)
    for name, benchmark in registry.items():
        module = type(benchmark._kind).__module__.rpartition(".")[2]
        module = family(name, module)
        labels = [subject.label for subject in benchmark._subjects.select([])][:2]
        test, train = benchmark.sample_split, getattr(getattr(benchmark._fewshot, "_source", None), "_split", None)
        named = {"subject": labels[0]} if labels[0] != "no_subject" else {}
        splits = {
            test: [
                row_for(module, number) | ({"subject": labels[number % len(labels)]} if named else {})
                for number in range(ROWS)
            ]
        }
        if train is not None and train != test:
            splits[train] = [row_for(module, number) for number in range(ROWS, ROWS + 5)]
        if module == "global_mmlu":
            for row in (row for rows in splits.values() for row in rows):
                row["language"] = ast.literal_eval(labels[0])[0]
        for shots in SHOTS:
            yield Case(name, benchmark, shots, labels, splits)


FAMILIES = (
    ("ARC_DE", "arc_de"),
    ("ARC_ELLAMIND", "arc_ellamind"),
    ("ARC", "arc"),
    ("BigCodeBench", "bigcodebench"),
    ("COPA", "copa"),
    ("CommonsenseQA", "csqa"),
    ("CSQA_ELLAMIND", "csqa_ellamind"),
    ("Drop", "drop"),
    ("GlobalMMLU", "global_mmlu"),
    ("GoldenSwag", "goldenswag"),
    ("GPQA_ELLAMIND", "gpqa_ellamind"),
    ("GPQA", "gpqa"),
    ("HELLASWAG_ELLAMIND", "hellaswag_ellamind"),
    ("HellaSwag", "hellaswag"),
    ("IFEval", "ifeval"),
    ("MMLU_PRO", "mmlu_pro"),
    ("MMLU", "mmlu"),
    ("FullTextMMLU", "mmlu"),
    ("MultiPLE", "multipl_e"),
    ("NaturalQs", "naturalqs_open"),
    ("PIQA_ELLAMIND", "piqa_ellamind"),
    ("PIQA", "piqa"),
    ("SCIQ", "sciq"),
    ("SocialIQA", "social_iqa"),
    ("SQuAD", "squad"),
    ("SIMPLEQA", "simpleqa_ellamind"),
    ("WINOGRANDE_ELLAMIND", "winogrande_ellamind"),
    ("WINOGRANDE", "winogrande"),
)


def family(name: str, default: str) -> str:
    return next((module for prefix, module in FAMILIES if name.startswith(prefix)), default)


def plain(sample: Any) -> dict[str, Any]:
    """Return a sample of eval-framework as JSON values."""
    return {
        "messages": [[message.role.value, message.content] for message in sample.messages],
        "truth": sample.ground_truth,
        "candidates": sample.possible_completions,
    }


def upstream_of_benchmark(case: Case) -> list[Any]:
    evaluation = case.benchmark.create(case.shots, case.labels if case.labels != ["no_subject"] else None, None, 42)
    evaluation.loader = Rows(case.splits)
    return list(evaluation.iterate_samples())


def ours(found: Any, case: Case, profile: Profile, *, rows: Mapping[str, Any]) -> list[Any]:
    position = Position(Path("generated.yaml"))
    given = task_class(found, case.name, position=position)
    reference = FunctionRef("generated", case.name, Path(), position)
    metadata = {"promptfmt": {"docs": copy.deepcopy(dict(rows))}}
    task = Task(
        name=case.name, num_fewshot=case.shots, metadata=metadata, assembly=ClassAssembly(reference, case.name, given)
    )
    bound = task.assembly.bound(task, lambda _path: True, 60.0)
    docs = load_docs(bound, count=100)
    return list(render_task(bound, docs, profile))


def as_upstream(instance: Any) -> list[dict[str, Any]]:
    """Return our instance in the shape of `plain`: one entry for each of its prompts."""
    found = []
    for index, prompt in enumerate(instance.prompts):
        texts = [request.continuation for request in instance.requests if request.prompt == index]
        truth = instance.target if len(instance.prompts) == 1 else instance.target[index]
        found.append(
            {
                "messages": [[message.role, message.text] for message in prompt.messages],
                "truth": truth,
                "candidates": None if texts == [None] else texts,
                "context": prompt.text,
            }
        )
    return found


def bridged(case: Case) -> Any:
    """Return the benchmark as a class with hooks on the real BaseTask; None for one that hooks cannot say."""
    benchmark, kind, source = case.benchmark, case.benchmark._kind, case.source
    renderer = getattr(benchmark._fewshot, "_renderer", None)
    probe = copy.deepcopy(case.splits[benchmark.sample_split][0]) | {"subject": case.labels[0]}
    if len(kind.samples(probe)) != 1:
        return None
    keep = getattr(source, "_keep", None)

    def body(item: dict[str, Any]) -> Any:
        return kind.samples(item)[0]

    def opening(item: dict[str, Any]) -> str:
        one = body(item)
        messages = kind.messages(one, fewshot=[], subject_label=str(item["subject"]))
        first = messages[1 if messages[0].role is Role.SYSTEM else 0].content
        return str(first.removesuffix(one.prompt).removesuffix("\n\n"))

    members: dict[str, Any] = {
        "__module__": __name__,
        "NAME": case.name,
        "DATASET_PATH": "generated/rows",
        "REVISION_LOCKFILE": None,
        "SAMPLE_SPLIT": benchmark.sample_split,
        "FEWSHOT_SPLIT": getattr(source, "_split", benchmark.sample_split),
        "SUBJECTS": list(case.labels),
        "RESPONSE_TYPE": benchmark.response_type(),
        "METRICS": [],
        "_get_instruction_text": lambda self, item: body(item).prompt,
        "_get_ground_truth": lambda self, item: body(item).ground_truth,
        "_get_possible_completions": lambda self, item: body(item).possible_completions or None,
        "_get_cue_text": lambda self, item: body(item).cue,
        "_get_initial_prompt_text": lambda self, item: opening(item),
        "_get_system_prompt_text": lambda self, item: body(item).system_prompt,
    }
    if renderer is not None:
        members["_get_fewshot_target_text"] = lambda self, item: renderer.render(item).answer
        for row in copy.deepcopy(case.splits[benchmark.sample_split]):
            if renderer.render(row).prompt != body(row | {"subject": case.labels[0]}).prompt:
                return None  # shots look different from questions, which no hook can tell apart
    if isinstance(source, Predefined):
        members["_sample_fewshot_examples"] = lambda self, item: copy.deepcopy(source._items[: source._count])
    elif keep is not None:
        extra = isinstance(source, SampleSplit)

        def draw(self: Any, item: dict[str, Any]) -> list[dict[str, Any]]:
            pool = [row for row in self.dataset[self.FEWSHOT_SPLIT] if keep(row)]
            return [row for row in self.rnd.sample(pool, self.num_fewshot + extra) if row != item][: self.num_fewshot]

        members["_sample_fewshot_examples"] = draw
    return type("Bridged", (BaseTask,), members)


# -- comparisons -----------------------------------------------------------------------------------------------------


class Tally:
    """Counts of equal comparisons, and those that were not equal."""

    def __init__(self) -> None:
        self.equal: dict[str, int] = {}
        self.different: list[dict[str, Any]] = []
        self.unfed: dict[str, str] = {}
        self.names: dict[str, set[str]] = {}

    def compare(self, kind: str, name: str, mine: Any, theirs: Any) -> None:
        if mine == theirs:
            self.equal[kind] = self.equal.get(kind, 0) + 1
            self.names.setdefault(kind, set()).add(name)
        else:
            self.different.append({"kind": kind, "name": name, "ours": mine, "theirs": theirs})


def question_of(messages: Any) -> str:
    return str(next(content for role, content in reversed(messages) if role == "user"))


def compare_case(case: Case, tally: Tally) -> None:
    try:
        upstream = upstream_of_benchmark(case)
    except Exception as error:
        if case.shots == 0 or "0-shot" not in str(error):
            tally.unfed[f"{case.name}/{case.shots}"] = f"{type(error).__name__}: {error}"[:200]
        return
    subjects = [str(sample.subject) for sample in upstream]
    wanted = [plain(sample) for sample in upstream]
    compare_formatters(case, tally, upstream)
    first = [entry for entry, subject in zip(wanted, subjects, strict=True) if subject == subjects[0]]
    compare_samples(case, tally, first)
    found = bridged(case)
    if found is None:
        return
    resolved = case.source.resolve_count(case.shots) if case.source is not None else case.shots
    case = dataclasses.replace(case, shots=resolved)
    theirs = found.with_overwrite(resolved, custom_subjects=None, custom_hf_revision=None)
    rows = Rows(case.splits)
    theirs._load_hf_dataset = lambda **options: Splits(rows.load(options.get("name")))
    base = [plain(sample) for sample in theirs.iterate_samples()]
    key = question_of
    wanted.sort(key=lambda entry: key(entry["messages"]))
    base.sort(key=lambda entry: key(entry["messages"]))
    tally.compare("BaseTask against the benchmark it was made from", case.name, base, wanted)
    profiles = [(Profile(name=name, formatter=name), FORMATTERS[name]) for name in ("concat", "llama3")]
    for profile, formatter in (*profiles, *chat_formatters()):
        instances = ours(found, case, profile, rows=case.splits)
        mine = [entry for instance in instances for entry in as_upstream(instance)]
        mine.sort(key=lambda entry: key(entry["messages"]))
        for entry, other, sample in zip(
            mine, wanted, sorted(upstream, key=lambda one: key(plain(one)["messages"])), strict=True
        ):
            context = entry.pop("context")
            if benchmark_generates(case):
                other = {**other, "candidates": None}
            tally.compare("messages, gold and candidates of hooks", case.name, entry, other)
            try:
                expected = formatter.format(sample.messages)
            except Exception:  # a chat template that takes no system message; ours then tries without
                continue
            tally.compare(f"prompt of hooks, {profile.name}", case.name, context, expected)


@cache
def chat_formatters() -> tuple[tuple[Profile, Any], ...]:
    """Return the built-in chat templates, each with the real HFFormatter round a tokenizer that has it."""
    try:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        return ()
    fast: Any = PreTrainedTokenizerFast
    found = []
    for name in ("chat-chatml", "chat-gemma", "chat-llama3", "chat-mistral"):
        profile = builtin_profile(name)
        tokenizer: Any = fast(tokenizer_object=Tokenizer(models.BPE()), **profile.special_tokens)
        tokenizer.chat_template = profile.chat_template
        formatter = HFFormatter.__new__(HFFormatter)  # its constructor asks a hub for the tokenizer
        formatter.tokenizer, formatter.chat_template_kwargs = tokenizer, {}
        found.append((profile, formatter))
    return tuple(found)


class Splits(dict[str, Any]):
    """A mapping of splits whose missing ones are empty."""


def benchmark_generates(case: Case) -> bool:
    return bool(case.benchmark.response_type().value == "completion")


def compare_samples(case: Case, tally: Tally, wanted: list[dict[str, Any]]) -> None:
    one_subject = dataclasses.replace(case)
    first = case.labels[0]
    rows = {split: [row for row in rows if row.get("subject", first) == first] for split, rows in case.splits.items()}
    instances = ours(OneSubject(case.benchmark, case.labels), one_subject, Profile(name="plain"), rows=rows)
    mine = [entry for instance in instances for entry in as_upstream(instance)]
    for entry, other in zip(mine, wanted, strict=False):
        entry.pop("context")
        if benchmark_generates(case):
            other = {**other, "candidates": None}
        tally.compare("samples of benchmarks", case.name, entry, other)


class OneSubject:
    """A benchmark that is only ever asked for its first subject."""

    def __init__(self, benchmark: Any, labels: list[str]) -> None:
        self._benchmark = benchmark
        self._labels = labels
        self.sample_split = benchmark.sample_split

    def subjects(self) -> list[Any]:
        return self._labels[:1]

    def response_type(self) -> Any:
        return self._benchmark.response_type()

    def create(self, num_fewshot: int, *_others: Any) -> Any:
        subjects = self._labels[:1] if self._labels != ["no_subject"] else None
        return self._benchmark.create(num_fewshot, subjects, None, 42)


def compare_formatters(case: Case, tally: Tally, upstream: list[Any]) -> None:
    from pytest_promptfmt.core.prompt import Message as OurMessage, Origin, Span, join
    from pytest_promptfmt.profiles.chat_prompt import find_formatter, format_messages

    for sample in upstream:
        for name, formatter in FORMATTERS.items():
            messages = [
                OurMessage(message.role.value, (Span(message.content, Origin("question")),))
                for message in sample.messages
            ]
            mine = join(format_messages(find_formatter(name), messages))
            tally.compare(f"formatter {name}", case.name, mine, formatter.format(sample.messages))


# -- metrics ---------------------------------------------------------------------------------------------------------


def compare_metrics(tally: Tally, rounds: int = 2000) -> None:
    draw = random.Random(7)
    texts = [" A", " B", " Zürich", " the city of Berlin", "yes", " yes", " I don't know.", "No", " no", " C "]
    for _ in range(rounds):
        candidates = draw.sample(texts, draw.randint(1, 6))
        scores = {text: round(draw.uniform(-20, 0), draw.choice((0, 3))) for text in candidates}
        golds = draw.sample(texts, draw.randint(1, 3))
        truth: Any = golds if draw.random() < 0.7 else golds[0]
        for metric in METRICS:
            is_mass = metric in (ProbabilityMass, ProbabilityMassNorm)  # which take no single text there
            asked = [truth] if is_mass and isinstance(truth, str) else truth
            response = Loglikelihood.model_construct(
                id=0, subject="s", ground_truth=asked, prompt="", loglikelihoods=scores, error=None
            )
            theirs = outcome(lambda metric=metric, response=response: metric().calculate(response)[0].value)
            if metric is DistributionalCorrectnessScore and isinstance(theirs, float):
                theirs *= correction(scores)
            name = metric.__name__
            mine = outcome(LIKELIHOOD_METRICS[name], scores, asked)
            same = mine == theirs or (
                isinstance(mine, float)
                and isinstance(theirs, float)
                and math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-12)
            )
            tally.compare(f"metric {name}", name, theirs if same else mine, theirs)


def correction(scores: Mapping[str, float]) -> float:
    """Return the factor that eval-framework's number lacks: it looks "I don't know" up without spaces and capitals."""
    weights = {text: math.exp(score / len(text)) for text, score in scores.items()}
    total = sum(weights.values())
    last = list(scores)[-1]
    plain = last.strip().lower()
    return 1.0 if last == plain else (1 - weights[last] / total) / (1 - weights.get(plain, 0.0) / total)


def outcome(calculate: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        value = calculate(*arguments, **options)
    except Exception:
        return "refused"
    return "refused" if value is None else float(value)


# -- task styles -----------------------------------------------------------------------------------------------------

STYLES = {
    "ef_mc": MCStyle(),
    "ef_mc_olmes": MCStyle(space_prefixed_labels=True),
    "ef_mc_completion": MCCompletionStyle(),
    "ef_cloze": ClozeStyle(),
    "ef_bpb": BPBStyle(),
    "ef_mc_idk": MCStyle().with_abstention_option(" I don't know."),
    "ef_cloze_idk": ClozeStyle().with_abstention_option(" I don't know."),
}
"""Formats and the stylers that they imitate. The words before an abstention are each task's own there."""


def compare_styles(tally: Tally) -> None:
    rows = [
        {"question": f"Which {thing} is best?", "choices": [f"{thing} {n}" for n in range(2 + number % 4)], "answer": 1}
        for number, thing in enumerate(THINGS)
    ]
    for name, styler in STYLES.items():
        members = {
            "NAME": name,
            "DATASET_PATH": "generated/rows",
            "REVISION_LOCKFILE": None,
            "SAMPLE_SPLIT": "test",
            "FEWSHOT_SPLIT": "train",
            "SUBJECTS": ["no_subject"],
            "TASK_STYLER": styler,
            "_get_raw_question": lambda self, item: item["question"],
            "_get_choices": lambda self, item: item["choices"],
            "_get_correct_index": lambda self, item: item["answer"],
            "_get_initial_prompt_text": lambda self, item: "",
            "_get_fewshot_target_text": lambda self, item: shown_shot(self.TASK_STYLER, item),
        }
        found: Any = type("Styled", (BaseTask,), members)
        config = {
            "task": name,
            "test_split": "test",
            "fewshot_split": "train",
            "num_fewshot": 1,
            "doc_to_text": "question",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
        }
        for row, shot in pairwise(rows):
            task = found.with_overwrite(1, custom_subjects=None, custom_hf_revision=None)
            splits = {"test": [dict(row)], "train": [dict(shot)]}
            task._load_hf_dataset = lambda splits=splits, **_options: splits
            (sample,) = task.iterate_samples()
            laid_out = load_tasks(config)[0].with_format(name)
            laid_out = dataclasses.replace(laid_out, description="")
            (instance,) = laid_out.render(TaskDocs.in_memory([row], [shot]), Profile(name="p", formatter="concat"))
            texts = [request.continuation for request in instance.requests if request.continuation is not None]
            tally.compare(
                "task styles as formats",
                name,
                [instance.prompts[0].text, texts or None],
                [FORMATTERS["concat"].format(sample.messages), sample.possible_completions],
            )


def shown_shot(styler: Any, item: dict[str, Any]) -> str:
    """Return what the base style shows; the one with an abstention has no question prefix to build on."""
    return str(getattr(styler, "_inner", styler).get_fewshot_target_text(item["choices"], item["answer"]))


# -- the guide -------------------------------------------------------------------------------------------------------

GUIDE_DOCS: Mapping[str, dict[str, Any]] = {
    "StandardMCQTask": {"question": "Which falls?", "choices": ["stone", "smoke"], "answer_idx": 0},
    "MMLUStyleTask": {"question": "Which falls?", "choices": list("wxyz"), "answer": "A"},
    "TrueFalseTask": {"statement": "Stones fall.", "is_true": True},
    "ScienceQuizTask": {"question": "Which falls?", "choices": list("wxyz"), "answer_key": "A"},
}


def compare_guide(tally: Tally, guide: Path) -> None:
    """Compare the classes of the guide on the real BaseTask, which needs one attribute more than the guide gives."""
    blocks = re.findall(r"(?m)^class \w+\([^\n]*\):\n(?:(?: {4,}[^\n]*|)\n)+", guide.read_text("utf-8"))
    names: dict[str, Any] = {
        "__name__": __name__,
        "Any": Any,
        "Enum": Enum,
        "BaseTask": BaseTask,
        "ResponseType": ResponseType,
        "AccuracyLoglikelihood": AccuracyLoglikelihood,
    }
    wanted = ("StandardMCQTask", "MMLUStyleTask", "TrueFalseTask", "ScienceSubject", "ScienceQuizTask")
    for name in wanted:
        exec(next(block for block in blocks if block.startswith(f"class {name}(")), names)
    for name, doc in GUIDE_DOCS.items():
        found = names[name]
        tally.compare("guide: not built without REVISION_LOCKFILE", name, "AttributeError", raised(found))
        subject = found.SUBJECTS[0]
        row = {**doc, "subject": getattr(subject, "value", subject)}
        rows = {"test": [row], found.FEWSHOT_SPLIT: [dict(row)]}
        case = Case(name, None, 1, [], {})
        found.REVISION_LOCKFILE = None
        task = found.with_overwrite(1, custom_subjects=[str(subject)], custom_hf_revision=None)
        task._load_hf_dataset = lambda rows=rows, **_options: copy.deepcopy(rows)
        theirs = outcome_of(lambda task=task: [plain(sample) for sample in task.iterate_samples()])
        mine = outcome_of(ours_without_context, found, case, rows)
        tally.compare("guide as written", name, mine, theirs)


def ours_without_context(found: Any, case: Case, rows: Mapping[str, Any]) -> list[dict[str, Any]]:
    made = [each for one in ours(found, case, Profile(name="plain"), rows=rows) for each in as_upstream(one)]
    return [{key: value for key, value in each.items() if key != "context"} for each in made]


def raised(found: Any) -> str:
    try:
        found.with_overwrite(0, custom_subjects=None, custom_hf_revision=None)
    except Exception as error:
        return type(error).__name__
    return "nothing"


def outcome_of(calculate: Callable[..., Any], *arguments: Any) -> Any:
    """Return what comes out, or the kind of the error in the class's own code."""
    try:
        return calculate(*arguments)
    except Exception as error:
        return type(error.__cause__ or error).__name__


def main() -> None:
    tally = Tally()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for case in cases():
            compare_case(case, tally)
        compare_metrics(tally)
        compare_styles(tally)
        if len(sys.argv) > 1:
            compare_guide(tally, Path(sys.argv[1]))
    report = {
        "equal": tally.equal,
        "tasks": {kind: len(names) for kind, names in tally.names.items()},
        "different": tally.different[:20],
        "differences": len(tally.different),
        "unfed": tally.unfed,
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
