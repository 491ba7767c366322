"""Rules about stop sequences that need the prompt: one is at its end, or none ends an answer."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from pytest_promptfmt.answers.trials import trials_of
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.prompt import Span, join
from pytest_promptfmt.rules.generation import is_literal, question_labels
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.study import constant_spans
from pytest_promptfmt.tasks import looks_for_answers

_UNTIL: Final = ("generation_kwargs", "until")
_SHOWN: Final = 40
_TURN: Final = re.compile(r"<\|(?!end_?of_?text)[^|]+\|>|<(?:start|end)_of_turn>|\[/?INST\]")


_BLOCK: Final = "```python\ndef double(x):\n    return 2 * x\n```"
_ASKS_BLOCK: Final = re.compile(
    r"\b(?:a|one|single|markdown|python) code block\b|\b(?:between|in|inside|within|with) (?:triple backticks|```)",
    re.IGNORECASE,
)


@rule("PF618", "stop-cuts-code-block", severity=Severity.ERROR, family=Family.SCORING)
def stop_cuts_block(study: Study) -> Iterator[Finding]:
    r"""Report a stop sequence inside the code block that the prompt asks for.

    Why: `\ndef` and `\nclass` end the continuation of a function that the prompt has begun. In a block the function
    begins after a newline, and the completion ends before it.

    Example:
        output_type: generate_until
        doc_to_text: "Write a function. {{question}}\nAnswer with a code block.\n"
        generation_kwargs: {until: ["\ndef"]}

    Silent with:
        generation_kwargs: {until: ["</s>"]}

    Fix: remove the stop sequence; a filter can take the code out of the block.

    Real: bigcode-project/bigcode-evaluation-harness #119 (humaneval for chat models).
    """
    if not study.generates or study.task.gen_prefix or study.has_guessed_text:
        return
    for instance in study.instances[:1]:
        asks = _ASKS_BLOCK.search(join(constant_spans(instance)))
        number = next((number for number, stop in enumerate(study.stop_texts) if stop and stop in _BLOCK[:-3]), None)
        if asks is not None and number is not None:
            yield finding(
                "a stop sequence is inside the code block that the prompt asks for",
                study.stop_texts[number],
                ("generation_kwargs", "until", number),
                instance,
            )


@rule("PF612", "stop-in-prefix", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def stop_in_prefix(study: Study) -> Iterator[Finding]:
    """Report a stop sequence that is part of `gen_prefix`, the end of the prompt.

    Why: back ends that look for stop sequences in the whole text stop before the first token of the answer.

    Example:
        output_type: generate_until
        gen_prefix: "Answer:"
        generation_kwargs: {until: ["Answer:"]}

    Silent with:
        generation_kwargs: {until: ["Question:"]}

    Fix: use the start of the next question as stop sequence.

    Real: the prefix `Answer:` with the stop `Answer:` in tasks that repeat it after each example.
    """
    scoring = study.scoring
    prefix = scoring.task.gen_prefix
    if not study.generates or not prefix:
        return
    end = scoring.instances[0].prompts[0].text[-len(str(prefix)) :]
    for number, stop in enumerate(scoring.stops):
        if isinstance(stop, str) and stop and stop in end:
            yield finding("a stop sequence is at the end of the prompt", f"{stop!r} in {end!r}", (*_UNTIL, number))


@rule("PF613", "no-stop-before-next-question", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def no_stop_before_next_question(study: Study) -> Iterator[Finding]:
    r"""Report stop sequences that do not match the text after an answer in the few-shot examples.

    Why: a base model continues with the next question. If nothing stops it, the filters may read the answer to that
    question. It is a warning if the filters read the same with the next question behind the answer, and an info if a
    stop is the marker of a turn, as in tasks for chat models. PF910 reports a stop that is a label, such as `Q:`, and
    PF902 a literal `\n`.

    Example:
        output_type: generate_until
        num_fewshot: 2
        generation_kwargs: {until: ["</s>"]}

    Silent with:
        generation_kwargs: {until: ["\n\n"]}

    Fix: use the exact label at the start of a question, or a newline.

    Real: lm-evaluation-harness #2945 (mmlu_pro).
    """
    stops = study.scoring.stops
    texts = [stop for stop in stops if isinstance(stop, str) and stop]
    if not study.generates or not texts or question_labels(study) or any(map(is_literal, texts)):
        return
    shown = study.scoring.instances if study.shots > 0 else study.demonstrated
    if not shown:
        return
    spans = shown[0].prompts[0].spans
    shots = sorted({span.origin.shot for span in spans if span.origin.shot is not None})
    if not shots:
        return
    after = [span for span in spans if span.origin.shot == shots[0] and span.origin.part == "fewshot delimiter"]
    second = shots[1] if len(shots) > 1 else None
    question = [
        span for span in spans if span.origin.shot == second and span.origin.part not in ("answer", "description")
    ]
    following = "".join(span.text for span in (*after, *question))
    answer = "".join(span.text for span in spans if span.origin.shot == shots[0] and span.origin.part == "answer")
    if any(stop in answer + following for stop in texts):
        return
    plain = unicodedata.normalize("NFKC", following)
    similar = [stop for stop in texts if unicodedata.normalize("NFKC", stop) in plain]
    is_sure = study.shots > 0 and study.docs is not None and study.docs.fewshot_kind == "given"
    if similar or is_sure:
        yield finding(
            "no stop sequence matches the text after an answer",
            f"{', '.join(map(repr, texts))}, but an answer is followed by {_begin_of([*after, *question])!r}",
            _UNTIL,
            shown[0],
            severity=None if similar else _severity(study, texts, answer, following),
            do=f"use the character of the prompt: {similar[0]!r} differs only in the width of a character"
            if similar
            else "",
        )


def _severity(study: Study, stops: Sequence[str], answer: str, following: str) -> Severity | None:
    """Return a milder severity where generating on changes nothing: for models that end their turns, or by filters."""
    if any(map(_TURN.search, stops)):
        return Severity.INFO
    chain = trials_of(study).chain
    if chain is None or not looks_for_answers(study.task):
        return None
    doc = study.scoring.instances[0].doc
    for pipeline in chain.pipelines:
        alone, longer = (chain.read(pipeline, text, doc, "a probe") for text in (answer, f"{answer}{following}"))
        if alone.problem is not None or longer.problem is not None or alone.extracted != longer.extracted:
            return None
    return Severity.WARNING


def _begin_of(spans: Sequence[Span]) -> str:
    """Return the constant start of a question: the text before the data."""
    own = "".join(span.text for span in takewhile(lambda span: span.origin.field is None, spans))[:_SHOWN]
    return own if own == "".join(span.text for span in spans) else f"{own}…"
