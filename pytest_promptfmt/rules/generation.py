"""Rules about generation: reasoning, budgets, arguments, and stops inside what is generated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import did_you_mean
from pytest_promptfmt.core.prompt import join
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.fixes import respelt, without_trailing_space
from pytest_promptfmt.rules.local_golds import local_questions
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    around,
    finding,
    first_text,
    questions,
    severity_of_shots,
    shots_of,
    words,
)
from pytest_promptfmt.rules.stops import UNTIL
from pytest_promptfmt.study.gold import accepted_texts
from pytest_promptfmt.study.scoring import BUDGETS, token_budget
from pytest_promptfmt.study.study import constant_spans
from pytest_promptfmt.tasks import METRICS

_KNOWN: Final = words("generation_arguments")
_KNOWN_ARGUMENT: Final = partial(respelt, known=_KNOWN, action="key")
_EXACT: Final = {*(name for name, metric in METRICS.items() if metric.compares_text), "rouge1", "rouge2", "rougeL"}

"""Arguments of generation that limit the tokens of a completion."""

_LEAST_TO_REASON: Final = 64
_STEPS: Final = re.compile(r"step[- ]by[- ]step|show your (?:work|reasoning)|explain your (?:reasoning|answer)", re.I)
_CUE: Final = re.compile(r"\n\s*(?:final )?answer\s*:\s*\Z", re.I)


@rule("PF229", "reasoning-without-room", severity=Severity.INFO, family=Family.PROMPT)
def reasoning_then_cue(study: Study) -> Iterator[Finding]:
    """Report a prompt that asks for reasoning and ends with `Answer:`.

    Why: the cue asks for the answer immediately, and models that follow it skip the reasoning.

    Fix: end the prompt with the start of the reasoning, or without a cue.

    Real: eval-framework's chain-of-thought tasks that keep the cue of the tasks without reasoning.
    """
    if not study.asks_for_reasoning:
        return
    for instance in study.instances[:1]:
        text = first_text(instance)
        if _CUE.search(text):
            yield finding(
                "the prompt requests reasoning but ends with an answer cue", text[-40:], "doc_to_text", instance
            )


@rule("PF903", "stop-cuts-answer", severity=Severity.ERROR, family=Family.GENERATION, scores=True)
def stop_cuts_answer(study: Study) -> Iterator[Finding]:
    """Report a stop sequence inside what the model has to write, such as the gold answer.

    Why: a model that answers exactly like the examples is cut off early and scored as wrong. It is a warning where the
    stop sequence leaves another accepted answer whole, and where only `--num_fewshot` shows examples.

    Fix: use the start of the next question as stop sequence.

    Real: lm-evaluation-harness #2816 (mmlu_pro_llama).
    """
    if not study.generates:
        return
    prefix = str(study.task.gen_prefix or "")
    shown = [
        (instance.index, ((shot.answer or "").removeprefix(prefix),))  # which is not generated
        for instance in study.demonstrated[:1]
        for shot in shots_of(instance)
    ]
    golds: list[tuple[int, Sequence[str]]] = []
    if set(study.metrics or ("exact_match",)) <= _EXACT and study.written.process_results is None:
        golds = [(number, accepted_texts(one.target)) for number, one in enumerate(local_questions(study).questions)]
    kinds = (("gold answer", golds, None), ("answer of a few-shot example", shown, severity_of_shots(study)))
    for number, stop in enumerate(study.stop_texts):
        for kind, answers, severity in kinds:
            cut = [(doc, texts, [one for one in texts if _cuts(stop, one)]) for doc, texts in answers]
            cut = sorted((one for one in cut if one[2]), key=lambda one: len(one[2]) < len(one[1]))
            for doc, texts, lost in cut[:1]:
                saw = f"{stop!r} in {around(lost[0], lost[0].find(stop), 30, 20)}"
                mild = severity or (Severity.WARNING if len(lost) < len(texts) else None)
                yield finding(f"a stop sequence is inside the {kind}", saw, (*UNTIL, number), doc, severity=mild)
                return


def _cuts(stop: str, answer: str) -> bool:
    """Return whether a stop sequence removes a part of an answer: it is inside it, or equal to it."""
    answer = answer.strip()
    return bool(stop) and (stop == answer or stop in answer.removesuffix(stop))


@also("PF903", severity=Severity.ERROR)
def full_stop_ends_reasoning(study: Study) -> Iterator[Finding]:
    """Report a stop such as `.`, `=` or a newline, which ordinary reasoning contains, in a task that requests it.

    Fix: use the start of the next question as stop sequence.
    """
    if not study.asks_for_reasoning:
        return
    gold_ends = study.task.gen_prefix is not None  # the answer follows the prefix, without reasoning
    for number, stop in enumerate(study.stop_texts):
        if not gold_ends and stop and stop in data_table("rules")["reasoning"]:
            yield finding(
                "the prompt requests reasoning, but a stop sequence ends it early",
                stop,
                (*UNTIL, number),
                severity=Severity.WARNING if stop == "\n" else None,
            )


@also("PF903")
def blank_line_ends_reasoning(study: Study) -> Iterator[Finding]:
    """Report a task that requests reasoning and stops at a blank line, by default or by its stop sequences.

    Fix: set `until` to the start of the next question.
    """
    if not study.asks_for_reasoning or study.shots > 0:
        return  # few-shot examples show how long the reasoning is, and that it has no blank lines
    if study.stops is None and "\n\n" in study.task.fewshot_delimiter:
        yield finding("the prompt requests reasoning, but stops at blank lines by default", at="generation_kwargs")
    elif "\n\n" in study.stop_texts:
        yield finding(
            "the prompt requests reasoning, but stops at blank lines", at=(*UNTIL, study.stop_texts.index("\n\n"))
        )


@rule("PF907", "no-budget-for-reasoning", severity=Severity.WARNING, family=Family.GENERATION)
def no_budget(study: Study) -> Iterator[Finding]:
    """Report a task that requests reasoning without setting a token budget, or with one of a few tokens.

    Why: without `max_gen_toks`, lm-eval generates 256 tokens. Longer reasoning is cut off before its answer, and 64
    tokens are too few for any.

    Fix: set `generation_kwargs.max_gen_toks`.

    Real: four bugs of lm-evaluation-harness were a missing or misnamed budget.
    """
    kwargs = study.task.generation_kwargs or {}
    if study.asks_for_reasoning and not any("max" in str(key) for key in kwargs):
        yield finding("the prompt requests reasoning with the default budget of 256 tokens", at="generation_kwargs")
    for key in BUDGETS if study.asks_for_reasoning and study.task.gen_prefix is None else ():
        budget = kwargs.get(key)
        if isinstance(budget, int) and not isinstance(budget, bool) and 0 < budget <= _LEAST_TO_REASON:
            message, at = "the prompt requests reasoning, which the token budget cuts off", ("generation_kwargs", key)
            yield finding(message, f"{key}: {budget}", at, do=f"raise generation_kwargs.{key}")


@rule("PF908", "unknown-generation-argument", severity=Severity.WARNING, family=Family.GENERATION, fix=_KNOWN_ARGUMENT)
def unknown_argument(study: Study) -> Iterator[Finding]:
    """Report an unknown generation argument, or one that includes the prompt.

    Why: back ends pass unknown arguments on or drop them silently. `max_length` limits prompt and completion
    together, so with a long prompt nothing is generated.

    Fix: use `max_gen_toks`, `until`, `do_sample`, `temperature`, `top_p` or `top_k`.

    Real: lm-evaluation-harness tasks with `max_length`.
    """
    if not study.generates:
        return
    for key in study.task.generation_kwargs or {}:
        if key == "max_length":
            yield finding("max_length includes the prompt", str(key), ("generation_kwargs", key), do="use max_gen_toks")
        elif key not in _KNOWN:
            do = did_you_mean(str(key), _KNOWN) or ""
            yield finding("unknown generation argument", str(key), ("generation_kwargs", str(key)), do=do)


@also("PF202", fix=without_trailing_space)
def prefix_ends_with_space(study: Study) -> Iterator[Finding]:
    """Report a `gen_prefix` that ends with a space.

    Fix: remove the space at the end of `gen_prefix`.
    """
    prefix = study.written.gen_prefix
    if isinstance(prefix, str) and prefix.strip() and prefix[-1] in " \t":
        yield finding("gen_prefix ends with a space", prefix[-30:], "gen_prefix")


@also("PF908")
def sampling_at_zero(study: Study) -> Iterator[Finding]:
    """Report `do_sample: true` with a temperature of 0.

    Fix: set `do_sample: false`, or a temperature above 0.
    """
    kwargs = study.task.generation_kwargs or {}
    temperature = kwargs.get("temperature")
    is_zero = isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0
    if study.generates and kwargs.get("do_sample") is True and is_zero:
        yield finding("do_sample is true at a temperature of 0", at=("generation_kwargs", "do_sample"))


@also("PF907", severity=Severity.ERROR, scores=True)
def gold_longer_than_budget(study: Study) -> Iterator[Finding]:
    """Report a gold answer with more words than the task lets a model generate tokens.

    Fix: raise `max_gen_toks`.
    """
    budget = token_budget(study.task) if study.generates else None
    for instance in study.real_instances if budget is not None else ():
        target = instance.target
        if budget is not None and isinstance(target, str) and len(target.split()) > budget:
            saw = f"{len(target.split())} words, {budget} tokens"
            yield finding(
                "the gold answer has more words than tokens may be generated", saw, "generation_kwargs", instance
            )
            return


@also("PF229")
def reasoning_without_generation(study: Study) -> Iterator[Finding]:
    """Report a prompt that asks for reasoning where choices are scored by their likelihood, so that none is written.

    Fix: remove the sentence, or generate the answer and filter it.
    """
    if not study.has_choices or study.has_guessed_text:
        return
    for instance, _ in questions(study.instances[:1]):
        found = _STEPS.search(join(constant_spans(instance)))
        if found is not None:
            saw = found[0]
            yield finding(
                "the prompt requests reasoning, but the choices are scored right after it", saw, "doc_to_text", instance
            )
