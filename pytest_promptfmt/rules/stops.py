"""Rules about stop sequences: malformed ones, and those that do not end an answer."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.extraction import scored_answers, tried
from pytest_promptfmt.rules.fixes import Fix, nothing, rewritten
from pytest_promptfmt.rules.page import Page, error_query, generating, own, pages_of, query
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import COLUMN, finding, first_text, has_given_shots, pattern, scores_exact_match
from pytest_promptfmt.study.layout import layout_of
from pytest_promptfmt.tasks import looks_for_answers

_LISTED: Final = re.compile(r"(?m)^\(?[A-B1-2][.):] ?\S.*\n\(?[B-C2-3][.):]")
"""Two options below each other."""

_USER_TURN: Final = re.compile(r"<.*\buser\b", re.I)
"""A stop that is the header of the user's next turn in a chat template."""

UNTIL: Final = ("generation_kwargs", "until")
_BREAKS: Final = {"\\n": "\n", "\\t": "\t", "\\r": "\r"}
_SHOWN: Final = 40
_TURN: Final = re.compile(r"<\|(?!end_?of_?text)[^|]+\|>|<(?:start|end)_of_turn>|\[/?INST\]")
_TAG: Final = re.compile(r"</?[a-z]\w*>")
_AROUND_COLUMN: Final = re.compile(rf"<(\w+)>[^<{COLUMN}]*{COLUMN}.*?</\1>", re.DOTALL)
"""Tags around a part of the doc, which no answer has."""

_BLOCK: Final = "```python\ndef double(x):\n    return 2 * x\n```"
_ASKS_BLOCK: Final = pattern("stops", "asks_block")


def is_literal(stop: str) -> bool:
    """Return whether a stop sequence has a literal backslash escape instead of the character."""
    return "\\n" in stop or stop in ("\\t", "\\r")


def question_labels(study: Study) -> list[str]:
    """Return the stop sequences that are labels, such as `Q:`; none if one is the header of a user's turn."""
    if any(_USER_TURN.search(stop) for stop in study.stop_texts):
        return []
    return [stop for stop in study.stop_texts if stop.strip().endswith((":", "："))]


def _answered_freely(study: Study) -> Sequence[Study]:
    """Return a task that generates whole answers, after a prompt whose text is known."""
    return (study,) if study.generates and not study.task.gen_prefix and not study.has_guessed_text else ()


@error_query("PF903", "a stop sequence is inside the code block that the prompt requests", _answered_freely)
def _stop_cuts_block(study: Study) -> Iterator[Finding]:
    for number, stop in enumerate(study.stop_texts if _ASKS_BLOCK.search(study.own_text) else ()):
        if stop and stop in _BLOCK[:-3]:
            yield finding("", stop, (*UNTIL, number), 0)


@error_query("PF903", "a stop sequence is a tag that the prompt requests", _answered_freely)
def _stop_is_asked_tag(study: Study) -> Iterator[Finding]:
    """Report a stop sequence that is a requested tag, although the prompt requests another tag after it."""
    tags = _TAG.findall(study.own_text)
    around = {found[1] for page in own(study)[:1] for found in _AROUND_COLUMN.finditer(page.constant)}
    closed = [tag for tag in tags if f"</{tag.strip('</>')}>" in tags and tag.strip("</>") not in around]
    for number, stop in enumerate(study.stop_texts):
        if stop.strip() in closed[:-1] and stop.strip() != closed[-1]:
            saw = f"the answer ends at {stop!r}, but the prompt requests {closed[-1]!r} after it"
            yield finding("", saw, (*UNTIL, number), 0)


@also("PF902", severity=Severity.ERROR, scores=True)
def stop_is_not_text(study: Study) -> Iterator[Finding]:
    """Report that a stop sequence is empty, or is not text."""
    if not study.generates or study.stops is None:
        return
    stops: Any = [study.stops] if isinstance(study.stops, str) else study.stops
    are_many = isinstance(stops, list | tuple)
    for number, stop in enumerate(stops if are_many else [stops]):
        if not isinstance(stop, str) or not stop:
            what = "is empty" if stop == "" else f"is a {type(stop).__name__}, not text"
            yield finding(f"a stop sequence {what}", repr(stop), (*UNTIL, number) if are_many else UNTIL)


def _with_real_breaks(study: Study, finding: Finding) -> Fix | None:
    at = finding if isinstance(study.stops, list) else replace(finding, keys=UNTIL)
    return rewritten(study, at, lambda text: re.sub(r"\\[ntr]", lambda found: _BREAKS[found[0]], text), keeps=nothing)


@rule("PF902", "malformed-stop", severity=Severity.ERROR, family=Family.GENERATION, scores=True, fix=_with_real_breaks)
def literal_stop(study: Study) -> Iterator[Finding]:
    r"""Report a malformed stop sequence, such as one with a backslash and an n in the place of a newline.

    Why: in single quotes, YAML reads `\n` as a backslash and an n. Completions do not contain these two characters, so
    generation never stops.

    Fix: use double quotes.

    Real: lm-evaluation-harness #2983 (LongBench).
    """
    if not study.generates:
        return
    for number, stop in enumerate(study.stop_texts):
        if is_literal(stop):
            yield finding("a stop sequence contains a literal escape, such as \\n", stop, (*UNTIL, number))


@query("PF902", "a stop sequence has no effect, because it contains a shorter stop sequence", generating)
def _shadowed_stop(study: Study) -> Iterator[Finding]:
    stops = study.stop_texts
    for number, stop in enumerate(stops):
        shadow = next((other for other in stops if other and other != stop and other in stop), None)
        if shadow is not None:
            yield finding("", f"{stop!r} contains {shadow!r}", (*UNTIL, number))


@rule("PF910", "stop-unlike-shots", severity=Severity.ERROR, family=Family.GENERATION, scores=True)
def stop_unlike_shots(study: Study) -> Iterator[Finding]:
    """Report stop sequences that do not match the start of the next question in the prompt.

    Why: after its answer, a base model writes a new question in the layout of the few-shot examples. If questions begin
    with `Question:`, the stop sequence `Q:` does not end the answer. A full-width colon in the stop sequence does not
    match an ordinary colon, either. The finding is a warning if a stop sequence is a label, if the filters find the
    answer nevertheless, or if the examples are synthetic. It is an info if a stop sequence is the end of a chat model's
    turn.

    Fix: as stop sequence, use the exact label at the start of a question, or a newline.

    Real: lm-evaluation-harness #2945 (mmlu_pro), #2587 (mgsm_zh, mgsm_ja).
    """
    stops, labels = [stop for stop in study.stop_texts if stop], question_labels(study)
    shown = study.instances if study.shots > 0 and not labels else study.demonstrated
    if not study.generates or not stops or any(map(is_literal, stops)):
        return
    for page in pages_of(study, shown[:1]):
        shots, delimiter = page.shots, study.task.fewshot_delimiter
        asked = [*(shot.question for shot in shots[1:]), page.text, *(each.text for each in own(study) if labels)]
        if not shots or any(shot.answer is None for shot in shots):
            return
        if labels:  # a label inside of a question does not begin the next one
            cues = [layout_of(text).cue for text in asked]
            asked = [text[: cue.start if cue is not None else None][:60] for text, cue in zip(asked, cues, strict=True)]
        follows = [f"{delimiter}{text}" for text in asked]
        ends = follows if labels else [f"{shots[0].answer}{follows[0]}"]
        if any(stop in end for stop in stops for end in ends):
            return
        plain = [unicodedata.normalize("NFKC", text) for text in follows[: None if labels else 1]]
        wide = [stop for stop in labels or stops if any(unicodedata.normalize("NFKC", stop) in one for one in plain)]
        if labels or wide or study.shots > 0:
            mild = (
                Severity.WARNING if labels else None if wide else _severity(study, stops, shots[0].answer, follows[0])
            )
            begin, column, _ = page.constant.partition(COLUMN)  # which is the same for all data
            begin = f"{delimiter}{begin[:_SHOWN]}{'…' if column else ''}"
            saw = f"until has {', '.join(map(repr, labels[:1] or stops))}, but after an answer comes {begin!r}"
            do = f"write {wide[0]!r} exactly as in the prompt: one character is full-width" if wide else ""
            message = "no stop sequence matches the start of the next question"
            yield finding(message, saw, UNTIL, page.instance, severity=Severity.WARNING if labels else mild, do=do)


@query("PF910", "no stop sequence matches the start of the next question", at=UNTIL, scores=True)
def _written_examples_continue(page: Page) -> Iterator[Finding]:
    """Report solved examples in the text, if no stop sequence matches the start of the next question."""
    study, cue, names = page.study, page.cue, [label.name for label in layout_of(page.constant).labels]
    solved = [label.name for label in layout_of(study.own_text).labels if label.value]
    is_shown = cue is not None and names != [] and min(solved.count(names[0]), solved.count(cue.name)) > 1
    trials = scored_answers(study) if is_shown and study.stops and study.shots == 0 else ()
    following = f"\n\n{names[0]}: Is it iron?" if names else ""
    if any(map(_TURN.search, study.stop_texts)) or any(stop in following for stop in study.stop_texts):
        return
    for trial in trials[:1]:
        if trial.counts(trial.gold) and not trial.counts(trial.gold + following):
            saw = f"until has {', '.join(map(repr, study.stop_texts))}, but after an answer comes {following!r}"
            yield finding("", saw, doc=trial.instance)


def _severity(study: Study, stops: Sequence[str], answer: str | None, following: str) -> Severity | None:
    """Return a milder severity where generating on changes nothing: for models that end their turns, or by filters.

    Without rows it is unknown how the texts of the data begin, so this is a warning.
    """
    if any(map(_TURN.search, stops)):
        return Severity.INFO
    mild = None if has_given_shots(study) else Severity.WARNING
    trials = tried(study) if looks_for_answers(study.task) else None
    if trials is None or trials.chain is None:
        return mild
    doc, texts = trials.scoring.instances[0].doc, (f"{answer}", f"{answer}{following}")
    for pipeline in trials.chain.pipelines:
        alone, longer = (trials.chain.read(pipeline, text, doc, "a probe") for text in texts)
        if alone.problem is not None or longer.problem is not None or alone.extracted != longer.extracted:
            return mild
    return Severity.WARNING


@error_query(
    "PF903", "a stop sequence matches the whitespace before the answer", _answered_freely, scores=True, every=True
)
def _stop_before_answer(study: Study) -> Iterator[Finding]:
    text = first_text(study.instances[0]) if study.instances else ""
    for number, stop in enumerate(study.stop_texts if text.strip() and not text[-1].isspace() else ()):
        if stop and study.task.target_delimiter.startswith(stop):
            # a chat model begins without a newline
            severity = Severity.WARNING if stop.startswith("\n") else None
            yield finding("", f"{stop!r} matches right after {text[-20:]!r}", (*UNTIL, number), 0, severity=severity)


@query("PF910", "the whole completion is compared, but no stop sequence ends it", generating, at=UNTIL)
def _no_stop_at_all(study: Study) -> Iterator[str]:
    is_compared = (study.shots or scores_exact_match(study)) and not study.has_own_scorer
    cues = [layout_of(first_text(instance)).cue for instance in study.instances[:1]]
    is_expected = is_compared and not looks_for_answers(study.task)
    if study.stops == [] and is_expected and any(cues):  # without a cue, a chat model ends its answer itself
        yield "until: []"


@query("PF903", "a stop sequence of a single character cuts off ordinary answers", generating, every=True)
def _stop_of_one_character(study: Study) -> Iterator[Finding]:
    """Report a stop sequence of a single character in a task whose gold answers are texts of the data."""
    if study.has_real_docs or study.asks_for_reasoning or study.has_guessed_text or not study.instances:
        return
    are_texts = all("«" in str(instance.target) for instance in study.instances)  # no labels, and nothing made by code
    for number, stop in enumerate(study.stop_texts if are_texts else ()):
        if re.fullmatch(r"[^\W_]|[.,'-]", stop) and not _LISTED.search(first_text(study.instances[0])):
            yield finding("", stop, (*UNTIL, number))
