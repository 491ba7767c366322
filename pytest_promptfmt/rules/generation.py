"""Rules about generation: reasoning, also of models that begin with it, budgets, arguments, and stops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pytest_promptfmt.answers.completions import THINK_END, is_nothing
from pytest_promptfmt.answers.phrasings import Answers, Subject, contract_sentences
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import PromptfmtError, did_you_mean
from pytest_promptfmt.profiles.template_facts import ThinkingMarks
from pytest_promptfmt.rules import Family, Finding, ProfileView, Severity, Study, rule
from pytest_promptfmt.rules.extraction import limited_answers
from pytest_promptfmt.rules.fixes import respelt
from pytest_promptfmt.rules.gold_values import local_questions
from pytest_promptfmt.rules.page import Page, error_query, generating, own, query
from pytest_promptfmt.rules.rule_views import (
    around,
    finding,
    first_text,
    pattern,
    question_layout,
    scores_exact_match,
    severity_of_shots,
    shots_of,
    warning,
    words,
)
from pytest_promptfmt.rules.stops import UNTIL
from pytest_promptfmt.study.gold import accepted_texts, gold_kind
from pytest_promptfmt.study.scoring import BUDGETS, token_budget
from pytest_promptfmt.tasks import METRICS, looks_for_answers

_KNOWN: Final = words("generation_arguments")
_KNOWN_ARGUMENT: Final = partial(respelt, known=_KNOWN, action="key")
_EXACT: Final = {*(name for name, metric in METRICS.items() if metric.compares_text), "rouge1", "rouge2", "rougeL"}

_LEAST_TO_REASON: Final = 64
_STEPS: Final = pattern("generation", "steps")
_BEGUN: Final = re.compile(r"step[- ]by[- ]step\W*\Z", re.I)
"""The end of a prompt that begins the reasoning, of which its author knows how it goes on."""

_OPENED: Final = re.compile(r"(?:<(?:\w+:)?(?:think|thinking|reasoning|thought)>|\[THINK\])\s*\Z", re.I)
_BREAKS: Final = re.compile(r"\s+|[.,:;]\s*")
"""Stops that every reasoning holds."""

_LONG_WORD: Final = 10
"""Letters of a word that most tokenizers split."""

_LEAST_BUDGET: Final = 1024
_SHOWN: Final = 40
_SENTENCES: Final[Sequence[str]] = data_table("rules")["after_reasoning"]
_NUMBERS: Final = ("42", "17")


@query("PF714", "the prompt requests reasoning, but the choices are scored right after the prompt")
def _reasoning_without_generation(page: Page) -> Iterator[str]:
    found = _STEPS.search(page.study.own_text) if page.study.has_choices else None
    if found is not None:
        yield found[0]


@rule("PF903", "stop-cuts-answer", severity=Severity.ERROR, family=Family.GENERATION, scores=True)
def stop_cuts_answer(study: Study) -> Iterator[Finding]:
    """Report a stop sequence that is inside a text which the model has to write, such as the gold answer.

    Why: if a model answers exactly like the few-shot examples, generation stops too early, and the answer counts as
    wrong. The finding is a warning if the doc has another gold answer without the stop sequence. It is also a warning
    if the task has few-shot examples only with `--num_fewshot`.

    Fix: use the start of the next question as stop sequence.

    Real: lm-evaluation-harness #2816 (mmlu_pro_llama).
    """
    if not study.generates:
        return
    prefix = str(study.task.gen_prefix or "")
    are_shown = study.shots > 0 or gold_kind(study) != "tests"  # an example with tests as its answer is never meant
    shown = [
        (instance.index, ((shot.answer or "").removeprefix(prefix),))  # which is not generated
        for instance in (study.demonstrated[:1] if are_shown else ())
        for shot in shots_of(instance)
    ]
    golds: list[tuple[int, Sequence[str]]] = []
    if set(study.metrics or ("exact_match",)) <= _EXACT and study.written.process_results is None:
        golds = [(number, accepted_texts(one.target)) for number, one in enumerate(local_questions(study).questions)]
    ignored = ("ignore_punctuation", "regexes_to_ignore")
    is_exact = scores_exact_match(study) and not looks_for_answers(study.task)
    is_exact &= not any(one.get(key) for one in study.task.metric_list or () for key in ignored)
    kinds = (("gold answer", golds, None), ("answer of a few-shot example", shown, severity_of_shots(study)))
    for number, stop in enumerate(study.stop_texts):
        for kind, answers, severity in kinds:
            cut = [
                (doc, texts, [one for one in texts if _cuts(stop, one, is_exact=is_exact and answers is golds)])
                for doc, texts in answers
            ]
            cut = sorted((one for one in cut if one[2]), key=lambda one: len(one[2]) < len(one[1]))
            for doc, texts, lost in cut[:1]:
                saw = f"{stop!r} is in {around(lost[0], lost[0].find(stop), 30, 20)!r}"
                mild = severity or (Severity.WARNING if len(lost) < len(texts) else None)
                yield finding(f"a stop sequence is inside the {kind}", saw, (*UNTIL, number), doc, severity=mild)
                return


def _cuts(stop: str, answer: str, *, is_exact: bool) -> bool:
    """Return whether a stop sequence removes a part of an answer: it is inside or equal to it, or its exact end."""
    answer = answer.strip()
    return bool(stop) and (stop == answer or stop in (answer if is_exact else answer.removesuffix(stop)))


def _reasoning(study: Study) -> Sequence[Study]:
    """Return a task that requests reasoning."""
    return (study,) if study.asks_for_reasoning else ()


@error_query("PF903", "the prompt requests reasoning, but a stop sequence ends it early", _reasoning, every=True)
def _full_stop_ends_reasoning(study: Study) -> Iterator[Finding]:
    """Report a task that requests reasoning, but has a stop sequence that is part of reasoning, such as `.` or `=`."""
    for number, stop in enumerate(study.stop_texts if study.task.gen_prefix is None else ()):
        # else the answer follows the prefix, without reasoning
        if stop and stop in data_table("rules")["reasoning"]:
            severity = Severity.WARNING if stop == "\n" else None
            yield finding("", stop, (*UNTIL, number), severity=severity)


@query("PF903", "the prompt requests reasoning, but reasoning may contain a stop sequence", _reasoning)
def _label_without_colon(study: Study) -> Iterator[Finding]:
    """Report a stop sequence that is the label of the question without its colon, such as `Q` instead of `Q:`."""
    names = {label.name for instance in study.instances[:1] for label in question_layout(instance).labels}
    for number, stop in enumerate(study.stop_texts):
        if stop in names and not any(other.startswith(stop) for other in study.stop_texts if other != stop):
            yield finding("", f"{stop!r}, but the label is {stop + ':'!r}", (*UNTIL, number))


@query("PF903", "the prompt requests reasoning, but generation stops at a blank line", _reasoning)
def _blank_line_ends_reasoning(study: Study) -> Iterator[Finding]:
    """Report a task that requests reasoning, but whose generation stops at a blank line, for example by default."""
    stops = [study.task.fewshot_delimiter] if study.stops is None else study.stop_texts
    is_begun = any(_BEGUN.search(first_text(one)) for one in study.instances[:1]) and study.stops is not None
    # few-shot examples show reasoning without blank lines, and after a prefix there is an answer without reasoning
    if "\n\n" in stops and study.shots == 0 and study.task.gen_prefix is None and not is_begun:
        yield finding("", at=UNTIL)


@rule("PF907", "no-budget-for-reasoning", severity=Severity.WARNING, family=Family.GENERATION)
def no_budget(study: Study) -> Iterator[Finding]:
    """Report a task that requests reasoning, but has no token budget, or a very small one.

    Why: if `max_gen_toks` is missing, lm-eval generates at most 256 tokens. Longer reasoning is cut off before the
    answer. A budget of up to 64 tokens is too small for any reasoning.

    Fix: set `generation_kwargs.max_gen_toks`.

    Real: four bugs of lm-evaluation-harness, in which the token budget was missing or misspelled.
    """
    kwargs = study.task.generation_kwargs or {}
    if study.asks_for_reasoning and not any("max" in str(key) for key in kwargs):
        yield finding("the prompt requests reasoning, but the default budget is 256 tokens", at="generation_kwargs")
    for key in BUDGETS if study.asks_for_reasoning and study.task.gen_prefix is None else ():
        budget = kwargs.get(key)
        if isinstance(budget, int) and not isinstance(budget, bool) and 0 < budget <= _LEAST_TO_REASON:
            message, at = "the prompt requests reasoning, but the token budget cuts it off", ("generation_kwargs", key)
            yield finding(message, f"{key}: {budget}", at, do=f"raise generation_kwargs.{key}")


@rule("PF908", "unknown-generation-argument", severity=Severity.WARNING, family=Family.GENERATION, fix=_KNOWN_ARGUMENT)
def unknown_argument(study: Study) -> Iterator[Finding]:
    """Report an unknown generation argument, or `max_length`, which limits prompt and completion together.

    Why: a back end passes an unknown argument on, or silently drops it. If the prompt is as long as `max_length`, the
    model generates nothing.

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


@query("PF908", "the value of a generation argument is out of range", generating, every=True)
def _out_of_range(study: Study) -> Iterator[Finding]:
    for key, (least, most) in data_table("rules")["ranges"].items():
        value = (study.task.generation_kwargs or {}).get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and not least <= value <= most:
            at = ("generation_kwargs", key)
            yield finding("", f"{key}: {value}", at, do=f"use a value from {least} to {most}")


@query("PF908", "do_sample is true at a temperature of 0", generating, at=("generation_kwargs", "do_sample"))
def _sampling_at_zero(study: Study) -> Iterator[str]:
    kwargs = study.task.generation_kwargs or {}
    if kwargs.get("do_sample") is True and str(kwargs.get("temperature")) in ("0", "0.0"):
        yield ""


@error_query(
    "PF907",
    "the gold answer is longer than the token budget",
    lambda study: own(study) if study.generates else (),
    at="generation_kwargs",
    scores=True,
)
def _gold_longer_than_budget(page: Page) -> Iterator[Finding]:
    budget, target = token_budget(page.study.task), page.instance.target
    words = target.split() if isinstance(target, str) else []
    least = sum(1 + len(word) // (_LONG_WORD if word.isascii() else _LONG_WORD // 2) for word in words)
    if budget is not None and least > budget:
        mild = None if len(words) > budget else Severity.WARNING  # long words have several tokens
        yield finding("", f"{target!r:.60}, but the budget is {budget} tokens", severity=mild)


@rule("PF462", "task-ends-reasoning", severity=Severity.ERROR, family=Family.CHAT, scope="profile")
def task_ends_reasoning(view: ProfileView) -> Iterator[Finding]:
    """Report a task that cuts off or skips reasoning, although the chat template begins it.

    Why: the generation prompt ends with `<think>`, so the model first writes its reasoning. A stop sequence such as a
    line break ends the reasoning, and there is no answer. In three cases, the finding is a warning: the token budget is
    too small for reasoning; choices are scored where reasoning should begin; or a `gen_prefix` prevents reasoning.

    Fix: turn reasoning off with `enable_thinking: false` in `template_args`. If you want reasoning, change the stop
    sequences, and set `max_gen_toks` to several thousand.

    Real: lm-evaluation-harness PR #3700 (17 tasks that stop at a blank line), PR #3675, #3403; lighteval #869.
    """
    study, opened = view.study, (view.facts.generation_prompt if view.facts is not None else None) or ""
    if not _OPENED.search(opened):
        return
    if not any(_OPENED.search(prompt.text) for _, prompt in view.prompts[:1]):
        if view.prompts and study.task.gen_prefix:
            saw = repr(view.prompts[0][1].text[-_SHOWN:])
            yield warning("gen_prefix replaces the reasoning block that the chat template opens", saw, "gen_prefix")
        return
    if not study.generates:
        message = "choices are scored inside the reasoning that the chat template opens"
        yield warning(message, opened.strip(), "output_type")
        return
    by_default = study.stops is None
    stops = [study.task.fewshot_delimiter] if by_default else study.stop_texts
    for number, stop in [(number, stop) for number, stop in enumerate(stops) if stop and _BREAKS.fullmatch(stop)][:1]:
        message = "a stop sequence ends the reasoning that the chat template opens"
        yield finding(message, repr(stop), UNTIL[:1] if by_default else (*UNTIL, number))
    kwargs = study.task.generation_kwargs or {}
    budget = next((kwargs[key] for key in BUDGETS if key in kwargs), 256)
    if isinstance(budget, int) and not isinstance(budget, bool) and 0 < budget < _LEAST_BUDGET:
        message = "the token budget is too small for the reasoning that the chat template opens"
        yield warning(message, f"{budget} tokens", "generation_kwargs")


@rule("PF464", "reasoning-read-as-answer", severity=Severity.WARNING, family=Family.CHAT, scope="profile")
def reasoning_read_as_answer(view: ProfileView) -> Iterator[Finding]:
    """Report filters that find their answer in the model's reasoning, not after it.

    Why: lm-eval removes all text up to `</think>`, which ends the reasoning of most models. Some models end it with
    another tag. Then lm-eval removes nothing, unless this tag is configured. So a filter may take the first answer that
    the model considered in its reasoning.

    Fix: set the tag that ends reasoning in both places: `--model_args think_end_token=…` for lm-eval, and
    `metadata.promptfmt.think_end_token` for this plugin.

    Real: Ministral 3 Reasoning (`[/THINK]`), Gemma 4 (`<channel|>`), Seed-OSS (`</seed:think>`).
    """
    facts = view.facts if view.study.generates and view.failure is None else None
    marks = facts.thinking_marks if facts is not None else None
    if marks is None or marks.close == THINK_END:
        return  # the phrasing battery tries that one for every task
    try:
        misread = _misread(Subject(view.study.scoring), marks)
    except PromptfmtError:
        return  # reported by the item `scoring`
    if misread is not None:
        do = f"set think_end_token={marks.close} in lm-eval's model_args and in metadata.promptfmt"
        yield finding("a filter takes its answer from the model's reasoning", misread, "filter_list", do=do)


def _misread(subject: Subject, marks: ThinkingMarks) -> str | None:
    """Return what is read from a completion with reasoning, where the bare answer is read rightly; else None."""
    answers = limited_answers(subject)
    if answers is None:
        return None
    doc = subject.instances[0].doc
    for pipeline in subject.chain.pipelines:
        for right, wrong in _sentences(subject, answers):
            alone = subject.chain.read(pipeline, right, doc, "an answer").extracted
            if is_nothing(alone):
                continue
            thought = f"{marks.open}\n{wrong} No, that is wrong.\n{marks.close}\n{right}"
            read = subject.chain.read(pipeline, thought, doc, "reasoning").extracted
            if read != alone:
                return f"{str(read)!r} from {thought!r}"
            break
    return None


def _sentences(subject: Subject, answers: Answers) -> Iterator[tuple[str, str]]:
    """Yield sentences that give the right answer, each with the same that gives a wrong one."""
    if answers.kind == "number":
        yield from ((form.format(_NUMBERS[0]), form.format(_NUMBERS[1])) for form in _SENTENCES)
        return
    golds = [replace(answers, gold=number) for number in ((answers.gold + 1) % len(answers.labels), answers.gold)]
    wrong, right = (contract_sentences(subject.prompt, each, subject.prefix) for each in golds)
    yield from zip(right, wrong, strict=False)
    labels = [each.labels[each.gold] for each in golds]
    yield from ((form.format(labels[1]), form.format(labels[0])) for form in _SENTENCES)
