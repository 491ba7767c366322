"""Runs HELM's own adapters and metrics, in an interpreter that has crfm-helm: one JSON line in, one out.

It is a program, started by test_helm.py. Window services are HELM's own code round two small tokenizers.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from typing import Any

SECONDS = 60.0


class NeverEnds(BaseException):
    """HELM's choice of demonstrations went on for longer than the job's `seconds`."""


def never_ends(*_: object) -> None:
    raise NeverEnds


class Bytes:
    """A token for each byte: cuts through characters decode to replacement characters."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


class Pieces:
    """Tokens of up to three letters, each with the blank before it."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"\s?\w{1,3}|\s?[^\w\s]|\s", text)


class Words:
    """A token for each word; blanks come back as one space."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        found = re.findall(r"\S+", text)
        for word in found:
            if word not in self.ids:
                self.ids[word] = len(self.words)
                self.words.append(word)
        return [self.ids[word] for word in found]

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.words[each] for each in ids)


def main() -> None:
    import nltk

    nltk.download = lambda *_, **__: True  # HELM fetches word lists on import, which nothing here needs
    from helm.benchmark.adaptation.adapter_spec import AdapterSpec, Substitution
    from helm.benchmark.adaptation.adapters import adapter as adapter_module
    from helm.benchmark.adaptation.adapters.adapter_factory import AdapterFactory
    from helm.benchmark.metrics import evaluate_reference_metrics as metrics
    from helm.benchmark.scenarios.scenario import Input, Instance, Output, Reference
    from helm.benchmark.window_services.local_window_service import LocalWindowService
    from helm.benchmark.window_services.window_service import EncodeResult
    from helm.common.tokenization_request import TokenizationToken

    logging.disable(logging.CRITICAL)
    out = sys.stdout
    sys.stdout = sys.stderr

    class Service(LocalWindowService):  # type: ignore[misc]  # HELM is not where types are checked
        def __init__(self, told: dict[str, Any]) -> None:
            limits = {key: value for key, value in told.items() if key not in ("codec",)}
            limits.setdefault("max_sequence_length", limits["max_request_length"])
            super().__init__(service=None, tokenizer_name="test", **limits)
            self.codec = Words() if told["codec"] == "words" else Bytes()

        def encode(self, text: str, truncation: bool = False, max_length: int | None = None) -> EncodeResult:
            ids = self.codec.encode(text)
            if truncation:
                ids = ids[: self.max_request_length if max_length is None else max_length]
            return EncodeResult(text=text, tokens=[TokenizationToken(each) for each in ids])

        def decode(self, tokens: list[TokenizationToken], normalized_text: str | None = None) -> str:
            return self.codec.decode([token.value for token in tokens])

    def instance(told: dict[str, Any]) -> Instance:
        references = [
            Reference(Output(text=text), tags=["correct"] if index in told["correct"] else [])
            for index, text in enumerate(told["references"])
        ]
        extra = {"chain_of_thought": told["chain_of_thought"]} if "chain_of_thought" in told else None
        return Instance(
            Input(text=told["input"], messages=told.get("messages")), references, split=told["split"], extra_data=extra
        )

    def adapted(job: dict[str, Any]) -> list[dict[str, Any]]:
        fields = dict(job["spec"])
        fields["substitutions"] = [Substitution(**each) for each in fields.get("substitutions", [])]
        spec = AdapterSpec(**fields)
        adapter_module.WindowServiceFactory.get_window_service = lambda *_: Service(job["window"])
        adapter = AdapterFactory.get_adapter(spec, None)
        instances = [instance(each) for each in job["instances"]]
        numbers = {id(each): number for number, each in enumerate(instances)}
        return [
            {
                "instance": numbers[id(state.instance)],
                "trial": state.train_trial_index,
                "reference": state.reference_index,
                "mode": state.request_mode,
                "mapping": state.output_mapping,
                "truncated": state.prompt_truncated,
                "prompt": state.request.prompt,
                "messages": state.request.messages,
                "num_completions": state.request.num_completions,
                "top_k_per_token": state.request.top_k_per_token,
                "temperature": state.request.temperature,
                "max_tokens": state.request.max_tokens,
                "stop_sequences": state.request.stop_sequences,
                "echo_prompt": state.request.echo_prompt,
                "random": state.request.random,
            }
            for state in adapter.adapt(instances, parallelism=1)
        ]

    def scored(job: dict[str, Any]) -> dict[str, float]:
        from helm.benchmark.adaptation.request_state import RequestState
        from helm.common.request import GeneratedOutput, Request, RequestResult

        told = instance(job["instance"])
        completions = [GeneratedOutput(text=text, logprob=logprob, tokens=[]) for text, logprob in job["completions"]]
        state = RequestState(
            instance=told,
            reference_index=None,
            request_mode=None,
            train_trial_index=0,
            output_mapping=job["mapping"],
            request=Request(),
            result=RequestResult(success=True, embedding=[], completions=completions, cached=False),
            num_train_instances=0,
            prompt_truncated=False,
        )
        spec = AdapterSpec(method="generation", num_outputs=job["num_outputs"], output_mapping_pattern=job["pattern"])
        stats = metrics.compute_reference_metrics(job["names"], spec, state, None)
        return {stat.name.name: stat.mean for stat in stats if stat.name.name != "max_prob"}

    def of_references(job: dict[str, Any]) -> dict[str, float]:
        from helm.benchmark.adaptation.request_state import RequestState
        from helm.benchmark.metrics import basic_metrics
        from helm.common.request import GeneratedOutput, Request, RequestResult, Token

        told = instance(job["instance"])
        states = [
            RequestState(
                instance=told,
                reference_index=each["reference"],
                request_mode=each["mode"],
                train_trial_index=0,
                output_mapping=None,
                request=Request(),
                result=RequestResult(
                    success=True,
                    embedding=[],
                    completions=[
                        GeneratedOutput(
                            text=each["text"],
                            logprob=each["logprob"],
                            tokens=[Token(text=text, logprob=logprob) for text, logprob in each["tokens"]],
                        )
                    ],
                    cached=False,
                ),
                num_train_instances=0,
                prompt_truncated=False,
            )
            for each in job["states"]
        ]
        # Counts of requests, seconds and emissions are no scores, and need files of past runs.
        basic_metrics.compute_request_state_metrics = lambda *_: []
        basic_metrics.WindowServiceFactory.get_window_service = lambda *_: Pieces()
        metric: Any = basic_metrics.BasicReferenceMetric()
        stats = metric.evaluate_references(AdapterSpec(method=job["method"]), states, None, "")
        return {stat.name.name: stat.mean for stat in stats}

    signal.signal(signal.SIGALRM, never_ends)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            signal.setitimer(signal.ITIMER_REAL, job.get("seconds", SECONDS))
            answer = adapted if "spec" in job else of_references if "states" in job else scored
            result: dict[str, Any] = {"value": answer(job)}
        except NeverEnds:
            result = {"error": "never ends"}
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        out.write(json.dumps(result) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
