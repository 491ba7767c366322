"""Prompts, requests, demonstrations, windows and scores are those of crfm-helm 0.5.16, adapter class by adapter class.

HELM needs packages that do not go with ours, so it runs in an interpreter of its own: PROMPTFMT_HELM_PYTHON names it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helm_reference import Bytes, Pieces, Words

from pytest_promptfmt.core.errors import RenderError
from pytest_promptfmt.systems.helm.adapter_spec import METHODS, AdapterSpec
from pytest_promptfmt.systems.helm.adapter_tasks import read_adapter_task
from pytest_promptfmt.systems.helm.adapters import HelmAdapter, Window
from pytest_promptfmt.systems.helm.helm_metrics import HELM_METRICS, score_completions
from pytest_promptfmt.systems.helm.instances import HelmInstance

PYTHON = os.environ.get("PROMPTFMT_HELM_PYTHON")
CASES = 30_000 if os.environ.get("PROMPTFMT_PARITY") == "all" else 2_400

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not PYTHON, reason="PROMPTFMT_HELM_PYTHON names no interpreter with crfm-helm 0.5.16"),
]


class Helm:
    """HELM in a process of its own, asked one thing at a time."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("helm_reference.py")
        self._process = subprocess.Popen(
            [str(PYTHON), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(scope="module")
def helm() -> Iterator[Helm]:
    process = Helm()
    yield process
    process.close()


TEXTS = (
    "2+2?",
    "",
    "Who wrote it?\n",
    " blank ",
    "déjà vu — ½",
    "ABBA is A. or B.",
    "北京市",
    "a\tb\r\nc",
    "x" * 40,
    "🙂🙂",
)
AFFIXES = ("", "\n", " ", "Input: ", "Answer: ", "Question:\t", "\n\n", "###\n", "A: \n ")
PREFIXES = ("A. ", "(A) ", "Answer A: ", "1) ", "\n- a) ", "Z. ", "9: ", "ㄱ. ")
PATTERNS = (("\n", ";\n"), ("A", "[\\g<0>]"), (r"(\w+):", r"\1 -"), ("", "·"), ("x+$", ""), (r"\s+$", ""))


def some(rng: random.Random, values: tuple[Any, ...], most: int) -> list[Any]:
    return [rng.choice(values) for _ in range(rng.randint(0, most))]


def spec_of(rng: random.Random, method: str) -> dict[str, Any]:
    """Return a spec; each field is left out half of the time."""
    fields: dict[str, Any] = {
        **{
            key: rng.choice(AFFIXES)
            for key in (
                *("global_prefix", "global_suffix", "instructions", "input_prefix", "input_suffix"),
                *("reference_suffix", "chain_of_thought_prefix", "chain_of_thought_suffix"),
                *("output_prefix", "output_suffix", "instance_prefix"),
            )
        },
        "reference_prefix": rng.choice(PREFIXES),
        "max_train_instances": rng.randint(0, 6),
        "num_outputs": rng.randint(1, 5),
        "num_train_trials": rng.randint(1, 3),
        "sample_train": rng.random() < 0.7,
        "temperature": rng.choice([0, 0.7, 1]),
        "max_tokens": rng.choice([0, 1, 5, 100]),
        "stop_sequences": some(rng, ("\n", "###", "Q:"), 2),
        "random": rng.choice([None, "7"]),
        "multi_label": rng.random() < 0.5,
    }
    if rng.random() < 0.2:
        fields["reference_prefix_characters"] = [rng.choice("ABCㄱㄴ") for _ in range(rng.randint(3, 6))]
    if rng.random() < 0.3:
        fields["substitutions"] = [
            {"source": source, "target": target} for source, target in rng.sample(PATTERNS, rng.randint(1, 2))
        ]
    kept = {key: value for key, value in fields.items() if rng.random() < 0.5}
    return {"method": method, "max_tokens": 3, **kept}


def instance_of(rng: random.Random, split: str, *, labelled: bool = True) -> dict[str, Any]:
    references = [rng.choice(TEXTS) or "-" for _ in range(rng.randint(1 if labelled else 0, 5))]
    correct = sorted(rng.sample(range(len(references)), rng.randint(1, len(references)))) if labelled else []
    made: dict[str, Any] = {"input": rng.choice(TEXTS), "references": references, "correct": correct, "split": split}
    if rng.random() < 0.5:
        made["chain_of_thought"] = rng.choice(TEXTS)
    return made


def window_of(rng: random.Random) -> dict[str, Any]:
    window: dict[str, Any] = {
        "codec": rng.choice(["bytes", "words"]),
        "max_request_length": rng.choice([110, 150, 250, 400, 100_000, 100_000]),
    }
    if rng.random() < 0.3:
        window["max_sequence_length"] = window["max_request_length"] - rng.randint(0, 5)
    if rng.random() < 0.2:
        window["max_sequence_and_generated_tokens_length"] = window["max_request_length"] + rng.randint(0, 50)
    if rng.random() < 0.3:
        window["prefix_token"] = "<s>"
    return window


def case_of(rng: random.Random) -> dict[str, Any]:
    method = rng.choice(METHODS)
    spec = spec_of(rng, method)
    if method == "language_modeling":
        text = " ".join(rng.choice(TEXTS) for _ in range(rng.randint(1, 60)))
        instances: list[dict[str, Any]] = [{"input": text, "references": [], "correct": [], "split": "test"}]
    else:
        labelled = rng.random() < 0.9
        train = [instance_of(rng, "train", labelled=labelled or rng.random() < 0.5) for _ in range(rng.randint(0, 8))]
        instances = [*train, *(instance_of(rng, rng.choice(["valid", "test"])) for _ in range(rng.randint(1, 3)))]
        rng.shuffle(instances)
    if method == "chat":
        for each in instances:
            each["messages"] = [{"role": "user", "content": rng.choice(TEXTS)}]
    return {"spec": spec, "instances": instances, "window": window_of(rng)}


def ours(job: dict[str, Any]) -> list[dict[str, Any]]:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in job["spec"].items()
    }
    fields["substitutions"] = tuple((each["source"], each["target"]) for each in fields.get("substitutions", ()))
    rows = [(number, HelmInstance.of(each, split=each["split"])) for number, each in enumerate(job["instances"])]
    limits = {key: value for key, value in job["window"].items() if key != "codec"}
    codec = Words() if job["window"]["codec"] == "words" else Bytes()
    window = Window(encode=codec.encode, decode=codec.decode, **limits)  # type: ignore[arg-type]
    adapter = HelmAdapter(AdapterSpec(**fields), [row for _, row in rows if row.is_train], window=window)
    made = []
    for number, row in rows:
        if row.is_train:
            continue
        for request in adapter.requests(row):
            told = {"top_k_per_token": 1, "echo_prompt": False, "random": None, **request.parameters}
            made.append(
                {
                    "instance": number,
                    "trial": request.trial,
                    "reference": request.reference_index,
                    "mode": request.mode,
                    "mapping": request.output_mapping,
                    "prompt": request.prompt.text,
                    "messages": None if request.messages is None else list(request.messages),
                    **told,
                }
            )
    return sorted(made, key=lambda each: each["trial"])  # HELM goes through the instances once for each trial


def ours_or_error(job: dict[str, Any]) -> list[dict[str, Any]] | RenderError:
    try:
        return ours(job)
    except RenderError as error:
        return error


def test_every_request_is_that_of_helms_own_adapters(helm: Helm) -> None:
    rng = random.Random(20260601)
    requests = endless = refused = cut = 0
    for _ in range(CASES):
        job = case_of(rng)
        mine = ours_or_error(job)
        # HELM gets a tenth of a second where it should never end, which is a thousand times what it needs to.
        theirs = helm.ask(job if isinstance(mine, list) else {**job, "seconds": 0.1})
        if isinstance(mine, RenderError):
            assert "error" in theirs, (job, theirs, mine)
            assert ("would run forever" in str(mine)) == (theirs["error"] == "never ends"), (job, theirs, mine)
            endless += theirs["error"] == "never ends"
            refused += 1
            continue
        cut += sum(each.pop("truncated") for each in theirs.get("value", ()))
        assert theirs == {"value": mine}, job
        requests += len(mine)
    print(f"{CASES} specs, {requests} requests equal, {cut} of them cut; {refused} refused by both, {endless} endless")
    assert requests > CASES
    assert endless
    assert cut


ANSWERS = (
    *("A", "a", "The", "the cat.", "cat", ".", "", " B\n", "-5", "5", "3.14", "314", "1", "15", "Berlin", "no"),
    *("Nobody knows", "北京", "北京市", "New York", "in York", "I count 15 , thanks", "15.0", "12", "Answer: 12/3"),
    *("range 3-5", "1000", "1,000", "It is a and b.", "b and a", "Nothing.", "x is a\nb", "Answer: B", "(C)", "D é"),
)


def test_every_completion_metric_scores_as_helms_own(helm: Helm) -> None:
    rng = random.Random(7)
    scores = 0
    for _ in range(CASES):
        references = [rng.choice(ANSWERS) for _ in range(rng.randint(1, 4))]
        correct = sorted(rng.sample(range(len(references)), rng.randint(1, len(references))))
        mapping = {chr(65 + index): text for index, text in enumerate(references)} if rng.random() < 0.4 else None
        job: dict[str, Any] = {
            "instance": {"input": "", "references": references, "correct": correct, "split": "test"},
            "completions": [[rng.choice(ANSWERS), -rng.random() * 3] for _ in range(rng.randint(1, 3))],
            "mapping": mapping,
            "pattern": rng.choice([None, "[A-D]", r"(?i)answer:\s*([A-Z])"]),
            "num_outputs": rng.choice([1, 3]),
            "names": rng.sample(list(HELM_METRICS), rng.randint(1, 4)),
        }
        theirs = helm.ask(job)
        golds = [references[index] for index in correct]
        if "error" in theirs:
            # An answer that maps to nothing is None there, which some of its functions cannot take.
            assert "NoneType" in theirs["error"], (job, theirs)
            continue
        mine = score_completions(
            job["names"],
            golds,
            [(text, logprob) for text, logprob in job["completions"]],
            mapping=mapping,
            pattern=job["pattern"],
            num_outputs=job["num_outputs"],
        )
        assert {name: float(value) for name, value in theirs["value"].items()} == pytest.approx(mine), job
        scores += len(mine)
    print(f"{scores} scores equal")
    assert scores > CASES


# -- references asked one by one ---------------------------------------------------------------------------------------

REFERENCES = ("Paris", "the city of Berlin", "3", "déjà vu", "北京市", "yes, no", "a", "Rome")


def recorded(path: Path, job: dict[str, Any], **more: Any) -> dict[str, float]:
    """Return the scores of a run that recorded what HELM is given, from a file as HELM writes it."""
    told = job["instance"]
    references = [
        {"output": {"text": text}, "tags": ["correct"] if index in told["correct"] else []}
        for index, text in enumerate(told["references"])
    ]
    states = [
        {
            "instance": {"input": {"text": told["input"]}, "references": references, "split": "test", "id": "id1"},
            "reference_index": each["reference"],
            "request_mode": each["mode"],
            "train_trial_index": 0,
            "result": {
                "completions": [
                    {
                        "text": each["text"],
                        "logprob": each["logprob"],
                        "tokens": [{"text": text, "logprob": logprob} for text, logprob in each["tokens"]],
                    }
                ]
            },
        }
        for each in job["states"]
    ]
    spec = {"method": job["method"], "max_train_instances": 0}
    path.write_text(json.dumps({"adapter_spec": spec, "request_states": states, **more}), "utf-8")
    found = read_adapter_task(path, "helm")
    assert found is not None
    recorded = found.tasks[0].assembly.recorded_scores
    assert recorded is not None
    scores = recorded()
    assert not scores.bad, scores.bad
    means: dict[str, float] = scores.means
    return means


def test_references_asked_one_by_one_score_as_helms_own(helm: Helm, tmp_path: Path) -> None:
    rng = random.Random(11)
    scores = 0
    for _ in range(CASES // 8):
        method = rng.choice(["multiple_choice_separate_original", "multiple_choice_separate_calibrated"])
        texts = rng.sample(REFERENCES, rng.randint(1, 5))
        modes = ["original", "calibration"][: 1 + method.endswith("calibrated")]
        suffix = rng.choice(["", "", "\n"])  # with a suffix HELM takes the wrong tokens, and so do we
        states = []
        for index, text in enumerate(texts):
            for mode in modes:
                words = Pieces().tokenize("Answer:" if mode == "calibration" else "Question: which?")
                words += [*Pieces().tokenize(f" {text}"), *suffix]
                # Few values, so that scores are often equal.
                tokens = [(word, -rng.choice([0.25, 0.5, 1.0, 2.0])) for word in words]
                states.append({"reference": index, "mode": mode, "text": "", "logprob": 0.0, "tokens": tokens})
        correct = sorted(rng.sample(range(len(texts)), rng.randint(1, len(texts))))
        job = {
            "method": method,
            "instance": {"input": "which?", "references": texts, "correct": correct, "split": "test"},
            "states": states,
        }
        theirs = helm.ask(job)
        assert "value" in theirs, (job, theirs)
        assert recorded(tmp_path / "scenario_state.json", job) == pytest.approx(theirs["value"]), job
        scores += len(theirs["value"])
    print(f"{scores} scores of references equal")
    assert scores > CASES // 8
