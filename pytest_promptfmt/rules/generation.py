"""Rules about generation: stop sequences, budgets and arguments."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from pytest_promptfmt.core.errors import did_you_mean
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.fixes import Fix, nothing, respelt, rewritten, without_trailing_space
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import around, finding, shots_of
from pytest_promptfmt.study import Study
from pytest_promptfmt.tasks import METRICS

_KNOWN: Final = frozenset(
    """
    add_special_tokens bad_words_ids best_of chat_template_args diversity_penalty do_sample early_stopping
    enable_thinking eos_token_id frequency_penalty length_penalty logprobs max_completion_tokens max_gen_toks
    max_length max_new_tokens max_tokens min_length min_new_tokens min_p n no_repeat_ngram_size num_beam_groups
    num_completions num_beams num_return_sequences pad_token_id penalty_alpha presence_penalty reasoning_effort
    repetition_penalty seed skip_special_tokens spaces_between_special_tokens stop temperature think_end_token
    top_k top_k_per_token top_p typical_p until use_cache
    """.split()  # noqa: SIM905
)
_USER_TURN: Final = re.compile(r"<.*\buser\b", re.I)
"""A stop that is the header of the user's next turn in a chat template."""

_UNTIL: Final = ("generation_kwargs", "until")
_BREAKS: Final = {"\\n": "\n", "\\t": "\t", "\\r": "\r"}
_EXACT: Final = {*(name for name, metric in METRICS.items() if metric.compares_text), "rouge1", "rouge2", "rougeL"}


@rule("PF901", "stop-is-not-text", severity=Severity.ERROR, family=Family.GENERATION, scores=True)
def stop_is_not_text(study: Study) -> Iterator[Finding]:
    """Report a stop sequence that is not text, or is empty.

    Why: back ends compare text. `until: [[]]` or `until: [no]` fails in some back ends and is ignored in others; an
    empty stop sequence ends every completion immediately.

    Example:
        output_type: generate_until
        generation_kwargs: {until: [[]]}

    Silent with:
        generation_kwargs: {until: ["Question:"]}

    Fix: use a list of texts; with an empty list only the end of text stops generation.

    Real: lm-evaluation-harness #2827 (mmlu_pro_llama).
    """
    if not study.generates or study.stops is None:
        return
    stops: Any = [study.stops] if isinstance(study.stops, str) else study.stops
    if not isinstance(stops, list | tuple):
        yield _bad_stop(study.stops, _UNTIL)
        return
    for number, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop:
            yield _bad_stop(stop, (*_UNTIL, number))


def _bad_stop(stop: Any, keys: tuple[str | int, ...]) -> Finding:
    what = "is empty" if stop == "" else f"is not text but {type(stop).__name__}"
    return finding(f"a stop sequence {what}", repr(stop), keys)


def _with_real_breaks(study: Study, finding: Finding) -> Fix | None:
    at = finding if isinstance(study.stops, list) else replace(finding, keys=_UNTIL)
    return rewritten(study, at, lambda text: re.sub(r"\\[ntr]", lambda found: _BREAKS[found[0]], text), keeps=nothing)


@rule("PF902", "literal-stop", severity=Severity.ERROR, family=Family.GENERATION, scores=True, fix=_with_real_breaks)
def literal_stop(study: Study) -> Iterator[Finding]:
    r"""Report a stop sequence with a literal backslash and n.

    Why: in single quotes YAML reads `\n` as two characters. Completions do not contain them, so generation never stops.

    Example:
        output_type: generate_until
        generation_kwargs: {until: ['\n']}

    Silent with:
        generation_kwargs: {until: ["\n"]}

    Fix: use double quotes.

    Real: lm-evaluation-harness #2983 (LongBench).
    """
    if not study.generates:
        return
    for number, stop in enumerate(study.stop_texts):
        if is_literal(stop):
            yield finding("a stop sequence contains a literal backslash escape", stop, (*_UNTIL, number))


def is_literal(stop: str) -> bool:
    """Return whether a stop sequence has a literal backslash escape instead of the character."""
    return "\\n" in stop or stop in ("\\t", "\\r")


@rule("PF903", "stop-cuts-answer", severity=Severity.ERROR, family=Family.GENERATION, scores=True)
def stop_cuts_answer(study: Study) -> Iterator[Finding]:
    """Report a stop sequence inside the gold answer or inside the answer of a few-shot example.

    Why: a model that answers exactly like the examples is cut off early and scored as wrong.

    Example:
        output_type: generate_until
        doc_to_target: "Rust needs iron. The answer is {{choices[answer]}}"
        generation_kwargs: {until: ["."]}

    Silent with:
        generation_kwargs: {until: ["Question:"]}

    Fix: use the start of the next question as stop sequence.

    Real: lm-evaluation-harness #2816 (mmlu_pro_llama).
    """
    if not study.generates:
        return
    prefix = str(study.task.gen_prefix or "")
    shown: Sequence[tuple[int, Any]] = [
        (instance.index, (shot.answer or "").removeprefix(prefix))  # which is not generated
        for instance in study.demonstrated[:1]
        for shot in shots_of(instance)
    ]
    golds: Sequence[tuple[int, Any]] = ()
    if set(study.metrics or ("exact_match",)) <= _EXACT and study.written.process_results is None:
        golds = [(instance.index, instance.target) for instance in study.real_instances]
    for number, stop in enumerate(study.stop_texts):
        for kind, answers in (("answer of a few-shot example", shown), ("gold answer", golds)):
            texts = [(doc, text) for doc, text in answers if isinstance(text, str)]
            hit = next(((doc, text) for doc, text in texts if stop and _cuts(stop, text.strip())), None)
            if hit is not None:
                at = hit[1].find(stop)
                yield finding(
                    f"a stop sequence is inside the {kind}",
                    f"{stop!r} in {around(hit[1], at, 30, 20)}",
                    (*_UNTIL, number),
                    hit[0],
                )
                return


def _cuts(stop: str, answer: str) -> bool:
    """Return whether a stop sequence removes a part of an answer: it is inside it, or equal to it."""
    return stop == answer or stop in answer.removesuffix(stop)


_LISTED: Final = re.compile(r"(?m)^\(?[A-B1-2][.):] ?\S.*\n\(?[B-C2-3][.):]")
"""Two options below each other."""

_REASONS: Final = "There are 3 + 4 = 7 of them, so we take half. That is\n3.5 - 1 = 2.5: not (yet) all.\nSo it is 2. "
"""What any reasoning may look like: a stop sequence in it ends it before the answer."""


@rule("PF904", "full-stop-ends-reasoning", severity=Severity.ERROR, family=Family.GENERATION)
def full_stop_ends_reasoning(study: Study) -> Iterator[Finding]:
    """Report a stop such as `.`, `=` or a newline, which ordinary reasoning contains, in a task that asks for it.

    Why: reasoning needs several sentences, lines and equations. It stops in the first one, long before the answer.

    Example:
        output_type: generate_until
        description: "Think step by step. "
        generation_kwargs: {until: ["."], max_gen_toks: 512}

    Silent with:
        generation_kwargs: {until: ["Question:"], max_gen_toks: 512}

    Fix: use the start of the next question as stop sequence.

    Real: lm-evaluation-harness #2816 (mmlu_pro_llama), huggingface/lighteval #649 (gsm8k: `=`).
    """
    if not study.asks_for_reasoning:
        return
    gold_ends = study.task.gen_prefix is not None  # the answer follows the prefix, without reasoning
    for number, stop in enumerate(study.stop_texts):
        if not gold_ends and stop and stop in _REASONS:
            yield finding(
                "the prompt asks for reasoning, but a stop sequence ends it early",
                stop,
                (*_UNTIL, number),
                severity=Severity.WARNING if stop == "\n" else None,
            )


@rule("PF941", "stop-of-one-character", severity=Severity.WARNING, family=Family.GENERATION)
def stop_of_one_character(study: Study) -> Iterator[Finding]:
    r"""Report a stop sequence of one letter or mark in a task whose gold answers are texts of the data.

    Why: `.` ends `3.5` and `Washington D.C.` after the first part, `,` ends `1,000` and `May 1, 1990`, `Q` without its
    colon ends `The Queen` after the first word. With docs of your own PF903 reports the answers that are cut.

    Example:
        output_type: generate_until
        doc_to_text: "Q: {{question}}\nA:"
        doc_to_target: answer
        generation_kwargs: {until: ["\n", "."]}
        metadata: {note: no docs}

    Silent with:
        generation_kwargs: {until: ["\n"]}

    Fix: stop at the newline or at the label of the next question, with its colon.

    Real: lm-evaluation-harness #2137 and #978 (drop), #1381 (nq_open, triviaqa); `Q` in bbh.
    """
    if not study.generates or study.has_real_docs or study.asks_for_reasoning or study.has_guessed_text:
        return
    targets = [str(instance.target) for instance in study.instances]
    if not targets or not all("«" in target for target in targets):
        return  # labels, or something that code makes
    shown = study.instances[0].prompts[0].text if study.instances[0].prompts else ""
    if _LISTED.search(shown):
        return
    for number, stop in enumerate(study.stop_texts):
        if re.fullmatch(r"[^\W_]|[.,'-]", stop):
            yield finding("a stop sequence of one character cuts ordinary answers", stop, (*_UNTIL, number))


@rule("PF905", "blank-line-ends-reasoning", severity=Severity.WARNING, family=Family.GENERATION)
def blank_line_ends_reasoning(study: Study) -> Iterator[Finding]:
    """Report a task that asks for reasoning and stops at a blank line, by default or by its stop sequences.

    Why: without `until`, lm-eval stops at the few-shot delimiter, two newlines. Models that write paragraphs are cut
    off after the first one.

    Example:
        output_type: generate_until
        description: "Think step by step. "
        generation_kwargs: {max_gen_toks: 512}

    Silent with:
        generation_kwargs: {until: ["Question:"], max_gen_toks: 512}

    Fix: set `until` to the start of the next question.

    Real: lm-evaluation-harness #1837, #1086, #3700.
    """
    if not study.asks_for_reasoning or study.shots > 0:
        return  # few-shot examples show how long the reasoning is, and that it has no blank lines
    if study.stops is None and "\n\n" in study.task.fewshot_delimiter:
        yield finding("the prompt asks for reasoning, but stops at blank lines by default", at="generation_kwargs")
    elif "\n\n" in study.stop_texts:
        yield finding(
            "the prompt asks for reasoning, but stops at blank lines", at=(*_UNTIL, study.stop_texts.index("\n\n"))
        )


@rule("PF906", "shadowed-stop", severity=Severity.WARNING, family=Family.GENERATION)
def shadowed_stop(study: Study) -> Iterator[Finding]:
    r"""Report a stop sequence that never fires because it contains another one.

    Why: with `"\n"` in the list, generation ends before `"\n\n"` can appear. Either the longer one is useless, or
    the shorter one is a mistake: a model that begins with a newline then gives no answer.

    Example:
        output_type: generate_until
        generation_kwargs: {until: ["\n\n", "\n"]}

    Silent with:
        generation_kwargs: {until: ["Question:", "</s>"]}

    Fix: keep only one of the two.

    Real: lm-evaluation-harness #3465 (mgsm_ca).
    """
    if not study.generates:
        return
    stops = study.stop_texts
    for number, stop in enumerate(stops):
        shadow = next((other for other in stops if other and other != stop and other in stop), None)
        if shadow is not None:
            yield finding(
                "a stop sequence never fires: it contains another one",
                f"{stop!r} contains {shadow!r}",
                (*_UNTIL, number),
            )
            return


@rule("PF907", "no-budget-for-reasoning", severity=Severity.WARNING, family=Family.GENERATION)
def no_budget(study: Study) -> Iterator[Finding]:
    """Report a task that asks for reasoning without setting a token budget, or with one of a few tokens.

    Why: without `max_gen_toks`, lm-eval generates 256 tokens. Longer reasoning is cut off before its answer, and 64
    tokens are too few for any.

    Example:
        output_type: generate_until
        description: "Think step by step. "
        generation_kwargs: {until: ["Question:"]}

    Silent with:
        generation_kwargs: {until: ["Question:"], max_gen_toks: 1024}

    Fix: set `generation_kwargs.max_gen_toks`.

    Real: four bugs of lm-evaluation-harness were a missing or misnamed budget.
    """
    kwargs = study.task.generation_kwargs or {}
    if study.asks_for_reasoning and not any("max" in str(key) for key in kwargs):
        yield finding("the prompt asks for reasoning with the default budget of 256 tokens", at="generation_kwargs")
    for key in _BUDGETS if study.asks_for_reasoning and study.task.gen_prefix is None else ():
        budget = kwargs.get(key)
        if isinstance(budget, int) and not isinstance(budget, bool) and 0 < budget < _LEAST_TO_REASON:
            yield finding(
                "the prompt asks for reasoning in a few tokens", f"{key}: {budget}", ("generation_kwargs", key)
            )


_BUDGETS: Final = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_LEAST_TO_REASON: Final = 64


def _known_argument(study: Study, finding: Finding) -> Fix | None:
    return respelt(study, finding, _KNOWN, action="key")


@rule(
    "PF908",
    "unknown-generation-argument",
    severity=Severity.WARNING,
    family=Family.GENERATION,
    fix=_known_argument,
)
def unknown_argument(study: Study) -> Iterator[Finding]:
    """Report an unknown generation argument, or one that includes the prompt.

    Why: back ends pass unknown arguments on or drop them silently. `max_length` limits prompt and completion
    together, so with a long prompt nothing is generated.

    Example:
        output_type: generate_until
        generation_kwargs: {max_gen_tokens: 64}

    Silent with:
        generation_kwargs: {max_gen_toks: 64}

    Fix: use `max_gen_toks`, `until`, `do_sample`, `temperature`, `top_p` or `top_k`.

    Real: lm-evaluation-harness tasks with `max_length`.
    """
    if not study.generates:
        return
    for key in study.task.generation_kwargs or {}:
        if key == "max_length":
            yield finding("max_length includes the prompt", str(key), ("generation_kwargs", key), do="use max_gen_toks")
        elif key not in _KNOWN:
            yield finding(
                "unknown generation argument",
                str(key),
                ("generation_kwargs", str(key)),
                do=did_you_mean(str(key), _KNOWN) or "",
            )


@rule(
    "PF909",
    "prefix-ends-with-space",
    severity=Severity.WARNING,
    family=Family.GENERATION,
    fix=without_trailing_space,
)
def prefix_ends_with_space(study: Study) -> Iterator[Finding]:
    """Report a `gen_prefix` that ends with a space.

    Why: the answer follows the prefix directly. lm-eval adds a space after it in few-shot examples, so they have two;
    and a model that must continue after a space begins with a rare token.

    Example:
        output_type: generate_until
        gen_prefix: "The answer is "

    Silent with:
        gen_prefix: "The answer is"

    Fix: remove the space at the end of `gen_prefix`.

    Real: lm-evaluation-harness #3508, #3220.
    """
    prefix = study.written.gen_prefix
    if isinstance(prefix, str) and prefix.strip() and prefix[-1] in " \t":
        yield finding("gen_prefix ends with a space", prefix[-30:], "gen_prefix")


@rule("PF910", "stop-unlike-shots", severity=Severity.WARNING, family=Family.GENERATION, scores=True)
def stop_unlike_shots(study: Study) -> Iterator[Finding]:
    r"""Report stop sequences that do not match the start of the next question.

    Why: after its answer a base model continues with the next question, in the layout of the few-shot examples. A stop
    `Q:` does not end it if the examples have `Question:`, nor does `Frage:` with a colon of another width.

    Example:
        output_type: generate_until
        num_fewshot: 1
        doc_to_text: "Question: {{question}}\nAnswer:"
        generation_kwargs: {until: ["Q:"]}

    Silent with:
        generation_kwargs: {until: ["Question:"]}

    Fix: use the exact label at the start of a question, or a newline.

    Real: lm-evaluation-harness #2945 (mmlu_pro), #2587 (mgsm_zh, mgsm_ja).
    """
    labels = question_labels(study)
    if not study.generates or not labels:
        return
    for instance in study.demonstrated[:1]:
        shots = shots_of(instance)
        if not shots or any(shot.answer is None for shot in shots):
            return
        begins = [study.task.fewshot_delimiter + shot.question[:60] for shot in shots]
        if not any(stop in begin for stop in study.stop_texts for begin in begins):
            plain = [unicodedata.normalize("NFKC", begin) for begin in begins]
            wide = [stop for stop in labels if any(unicodedata.normalize("NFKC", stop) in begin for begin in plain)]
            yield finding(
                "no stop sequence matches the start of the next question",
                f"{labels[0]!r}, but a question begins with {begins[0][:40]}",
                _UNTIL,
                instance,
                do=f"use the character of the prompt: {wide[0]!r} differs only in the width of a character"
                if wide
                else "",
            )


@rule("PF911", "sampling-at-temperature-zero", severity=Severity.WARNING, family=Family.GENERATION)
def sampling_at_zero(study: Study) -> Iterator[Finding]:
    """Report `do_sample: true` with a temperature of 0.

    Why: the two contradict each other. Some back ends refuse them, others sample at temperature 1, others take the
    most likely token; the score depends on the back end.

    Example:
        output_type: generate_until
        generation_kwargs: {until: ["Question:"], do_sample: true, temperature: 0.0}

    Silent with:
        generation_kwargs: {until: ["Question:"], do_sample: false, temperature: 0.0}

    Fix: set `do_sample: false`, or a temperature above 0.

    Real: lm-evaluation-harness #3273 (34 LongBench tasks).
    """
    kwargs = study.task.generation_kwargs or {}
    temperature = kwargs.get("temperature")
    is_zero = isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0
    if study.generates and kwargs.get("do_sample") is True and is_zero:
        yield finding("do_sample is true at a temperature of 0", at=("generation_kwargs", "do_sample"))


@rule("PF912", "stop-before-answer", severity=Severity.ERROR, family=Family.GENERATION, scores=True)
def stop_before_answer(study: Study) -> Iterator[Finding]:
    r"""Report a stop sequence that is the whitespace with which an answer begins.

    Why: after `Answer:` the answer begins with the target delimiter, a space or newline. With that as a stop sequence
    the completion ends before its first word.

    Example:
        output_type: generate_until
        generation_kwargs: {until: [" "]}

    Silent with:
        generation_kwargs: {until: ["\n"]}

    Fix: use a stop sequence that comes after an answer.

    Real: stops copied from tasks whose prompt ends with the delimiter.
    """
    if not study.generates or study.task.gen_prefix or study.has_guessed_text:
        return
    delimiter = study.task.target_delimiter
    for instance in study.instances[:1]:
        text = instance.prompts[0].text if instance.prompts else ""
        for number, stop in enumerate(study.stop_texts):
            if stop and delimiter.startswith(stop) and text.strip() and not text[-1].isspace():
                # a chat model begins without a newline
                severity = Severity.WARNING if stop.startswith("\n") else None
                saw = f"{stop!r} after {text[-20:]!r}"
                what = "a stop sequence is the whitespace before the answer"
                yield finding(what, saw, (*_UNTIL, number), instance, severity=severity)


@rule("PF913", "gold-longer-than-budget", severity=Severity.ERROR, family=Family.GENERATION, scores=True)
def gold_longer_than_budget(study: Study) -> Iterator[Finding]:
    """Report a gold answer with more words than the task lets a model generate tokens.

    Why: a word is at least one token. The completion is cut off before the answer is complete.

    Example:
        output_type: generate_until
        doc_to_target: "It is {{choices[answer]}}, as every chemist knows."
        generation_kwargs: {until: ["Question:"], max_gen_toks: 4}

    Silent with:
        generation_kwargs: {until: ["Question:"], max_gen_toks: 32}

    Fix: raise `max_gen_toks`.

    Real: budgets for a letter in tasks whose answer became a sentence.
    """
    if not study.generates:
        return
    kwargs = study.task.generation_kwargs or {}
    budgets = [kwargs[key] for key in _BUDGETS if isinstance(kwargs.get(key), int) and kwargs[key] > 0]
    for instance in study.real_instances if budgets else ():
        target = instance.target
        if isinstance(target, str) and len(target.split()) > max(budgets):
            yield finding(
                "the gold answer has more words than tokens may be generated",
                f"{len(target.split())} words, {max(budgets)} tokens",
                "generation_kwargs",
                instance,
            )
            return


def question_labels(study: Study) -> list[str]:
    """Return the stop sequences that are labels, such as `Q:`; none if one is the header of a user's turn."""
    if any(_USER_TURN.search(stop) for stop in study.stop_texts):
        return []
    return [stop for stop in study.stop_texts if stop.strip().endswith((":", "："))]
