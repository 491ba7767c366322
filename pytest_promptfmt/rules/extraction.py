"""Rules about filters, what they read of a completion, and completions that are compared as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.phrasings import Answers, Subject, answers_of, contract_sentences
from pytest_promptfmt.answers.trials import AnswerTrial, Trials, trials_of
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError
from pytest_promptfmt.core.randomness import OwnRandomness
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.page import query, task
from pytest_promptfmt.rules.rule_views import comparing_key, finding, first_text
from pytest_promptfmt.rules.smoke import scoring_failure
from pytest_promptfmt.tasks import FilterPipeline, known_filter, looks_for_answers

_CODE: Final = "def double(x):\n    return 2 * x"
_EXPLAINED: Final = "It takes a number. For example:\n```python\ndouble(2)\n```"
_LANGUAGES: Final = ("python", "py", "json", "sql", "cpp", "java")
_FEW_WORDS: Final = 8
"""Words of a gold answer that is an answer and no reasoning."""

_NUMBERS: Final = ("42", "18")


@rule("PF112", "filters-without-generation", severity=Severity.ERROR, family=Family.CONFIG)
def filters_without_generation(study: Study) -> Iterator[Finding]:
    """Report filters that search for an answer, if the task generates no text.

    Why: lm-eval applies filters to log-likelihoods, too. A regex finds no match in these numbers, so it returns its
    fallback text for every choice. Scoring then fails at the end of the run.

    Fix: remove `filter_list`, or set `output_type: generate_until`.

    Real: generation tasks that were turned into multiple choice by changing only `output_type`.
    """
    task = study.task
    is_known = study.renders_fields and task.output_type != "other"
    if task.filter_list and not study.generates and is_known and looks_for_answers(task):
        saw = f"output_type: {task.output_type}"
        yield finding("a filter searches for an answer, but the task generates no text", saw, "filter_list")


@rule("PF501", "exact-match-keeps-space", severity=Severity.WARNING, family=Family.EXTRACTION)
def exact_match_keeps_space(study: Study) -> Iterator[Finding]:
    """Report `exact_match` on completions whose leading space is not removed.

    Why: after `Answer:`, a model continues with ` Paris`, because few-shot examples have a space there. `exact_match`
    compares ` Paris` with `Paris`, so the score is 0. Some back ends strip completions, which hides the mistake.

    Fix: add the filter `remove_whitespace` or `regex` before `take_first`. Both remove the space.

    Real: lm-evaluation-harness #1206 (fld), #2503 (mmlu_generative).
    """
    task = study.task
    is_exact = "exact_match" in (study.metrics or ("exact_match",))
    if not study.generates or task.process_results is not None or not is_exact:
        return
    for pipeline in task.filter_list or ():
        steps = pipeline.get("filter") if isinstance(pipeline, Mapping) else None
        if not all(known_filter(step.get("function")).keeps_text for step in steps or () if isinstance(step, Mapping)):
            return
    for entry in task.metric_list or ():
        if entry.get("regexes_to_ignore") or entry.get("ignore_punctuation_and_whitespace"):
            return
    prompt = study.instances[0].prompts[0] if study.instances and study.instances[0].prompts else None
    if prompt is None or not task.target_delimiter.startswith(" ") or task.gen_prefix or study.has_guessed_text:
        return
    if all(isinstance(one.target, str) and one.target[:1] == " " for one in study.instances):
        return  # the gold answers begin with it as well, which PF702 reports
    text = prompt.text
    last = prompt.span_at(len(text))
    if last is None or text[-1:] in ("", "\n") or (last.origin.field is not None and not study.has_real_docs):
        return  # a synthetic column does not show how the prompt ends
    saw = f"prompt and completion: {text[-20:]}{task.target_delimiter}…"
    yield finding("exact_match does not remove the space at the start of the completion", saw, comparing_key(study))


@rule("PF509", "completion-compared-whole", severity=Severity.ERROR, family=Family.EXTRACTION)
def reasoning_compared_whole(study: Study) -> Iterator[Finding]:
    """Report a task that compares the whole completion with the gold answer, although the prompt requests more text.

    Why: if no filter extracts the answer, `exact_match` compares several sentences with a word or number. So a
    completion with reasoning is never right.

    Fix: add a filter that extracts the answer, such as `regex`.

    Real: tasks with short answers, to which someone added a prompt for step-by-step reasoning.
    """
    if not study.asks_for_reasoning or study.has_own_scorer or looks_for_answers(study.task):
        return
    if tuple(study.metrics or ("exact_match",)) != ("exact_match",) or study.task.gen_prefix:
        return
    if any(entry.get("regexes_to_ignore") for entry in study.task.metric_list or ()):
        return
    for instance in study.instances[:1]:
        if isinstance(instance.target, str | int) and len(str(instance.target).split()) <= _FEW_WORDS:
            yield finding(
                "the prompt requests reasoning, but the whole completion is compared with the gold answer",
                f"the gold answer is {str(instance.target)[:40]!r}",
                comparing_key(study),
            )


@query("PF504", "a filter finds code only in a block that names its language", task, scope="scoring")
def _fence_with_language(study: Study) -> Iterator[Finding]:
    for filters in filters_of(study):
        readers = [one.patterns and filters.read(one, f"```\n{_CODE}\n```") != _CODE for one in filters.chain.pipelines]
        prompt = first_text(study.instances[0])
        tags = [one for one in _LANGUAGES if f"```{one}" not in prompt] if all(readers) else []
        blocks = {one: f"```{one}\n{_CODE}\n```" for one in tags}
        filters.chain.expect([(block, filters.doc) for block in blocks.values()])
        for number, pipeline in enumerate(filters.chain.pipelines):
            if tag := next((one for one, block in blocks.items() if filters.read(pipeline, block) == _CODE), ""):
                yield finding("", f"the filter finds code after ```{tag}, but not after ```", ("filter_list", number))


@query("PF504", "a filter keeps the text between two code blocks as code", task, scope="scoring")
def _text_after_block(study: Study) -> Iterator[Finding]:
    for filters in filters_of(study):
        with OwnRandomness(filters.chain.task).used():
            kept = [_kept_after_block(filters, one) for one in filters.chain.pipelines]
        for number, saw in enumerate(kept):
            yield from [finding("", saw, ("filter_list", number))] if saw else ()


def _kept_after_block(filters: Filters, pipeline: FilterPipeline) -> str:
    """Return what a pipeline reads of two code blocks with a sentence between them, "" where it ends the first one."""
    for begun in ("", "```python\n"):
        alone, text = filters.read(pipeline, f"{begun}{_CODE}\n```"), f"{begun}{_CODE}\n```\n{_EXPLAINED}"
        read = filters.read(pipeline, text) if _CODE in alone and "```" not in alone else ""
        if _CODE in read and _EXPLAINED.partition("\n")[0] in read:
            return f"the filter extracts {read[-60:]!r} from {text[-80:]!r}"
    return ""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters and metrics of a generation task, and a doc to try them with."""

    chain: Chain
    doc: Doc

    def read(self, pipeline: FilterPipeline, text: str) -> str:
        """Return what a pipeline reads, as text; "" for an exception or a pattern that takes too long."""
        stages = self.chain.read(pipeline, text, self.doc, "a probe")
        return "" if stages.problem is not None else str(stages.extracted).strip()


@dataclass(frozen=True, slots=True)
class Reader(Filters):
    """Filters with patterns, the possible answers to a question, and sentences that give an answer."""

    subject: Subject
    answers: Answers
    pipelines: Sequence[tuple[int, FilterPipeline]]

    def is_read(self, pipeline: FilterPipeline, text: str, answer: str) -> bool:
        """Return whether a pipeline reads this answer from a text, with brackets, marks and separators or not."""
        return bare_answer(self.read(pipeline, text)) == bare_answer(answer)

    @property
    def examples(self) -> tuple[str, ...]:
        """Return answers to put into sentences: the labels of the options, or two numbers."""
        return self.answers.labels if self.answers.kind == "choice" else _NUMBERS

    def sentences(self, answer: str) -> tuple[str, ...]:
        """Return ways to give an answer, those that the prompt demands first; the last four are always the same."""
        if self.answers.kind == "choice":
            given = replace(self.answers, gold=self.answers.labels.index(answer), number=None)
        else:
            given = Answers(kind="number", labels=(answer,), texts=("",), targets=(answer,), gold=0, number=answer)
        usual = (f"The answer is {answer}.", f"The answer is ({answer}).", f"Answer: {answer}", f"#### {answer}")
        return (*contract_sentences(self.subject.prompt, given, self.subject.prefix), *usual)


class Misread(NamedTuple):
    """The number of a pipeline, a text, and what the pipeline reads of it."""

    number: int
    text: str
    read: str

    def finding(self, severity: Severity | None = None) -> Finding:
        """Return a finding without its message."""
        saw = f"the filter extracts {self.read!r} from {self.text!r}"
        return finding("", saw, ("filter_list", self.number), severity=severity)


def misread_by_all(
    reader: Reader, probe: Callable[[Reader, FilterPipeline], tuple[str, str] | None]
) -> Iterator[Misread]:
    """Yield what the first pipeline misreads, if `probe` gives a misread text for each of them, and what is read."""
    found = [(number, probe(reader, pipeline)) for number, pipeline in reader.pipelines]
    if found and all(wrong is not None for _, wrong in found):
        yield from (Misread(number, *wrong) for number, wrong in found[:1] if wrong is not None)


def readers(study: Study) -> Sequence[Reader]:
    """Return what reads the answers of a task; nothing where code judges them, or any text may be one."""
    made = (study.once("reader", partial(_reader, study, one)) for one in filters_of(study))
    return [one for one in made if one is not None]


def bare_answer(text: str) -> str:
    """Return an answer without brackets, marks and separators."""
    return text.strip("()[]*$ \n\t").rstrip(".").replace(",", "")


def filters_of(study: Study) -> Sequence[Filters]:
    """Return the filters of a task; nothing where none looks for an answer, or they cannot be tried."""
    trials = tried(study) if study.generates and looks_for_answers(study.task) and not study.has_guessed_text else None
    if trials is None or trials.chain is None or not trials.scoring.instances:
        return ()
    return (Filters(trials.chain, trials.scoring.instances[0].doc),)


def tried(study: Study) -> Trials | None:
    """Return what scoring gives; None where it fails or cannot be tried, which other rules report."""
    if study.failure is not None or scoring_failure(study) is not None:
        return None
    try:
        return trials_of(study)
    except LimitExceededError:
        raise
    except PromptfmtError:
        return None  # reported by the item that scores


def scored_answers(study: Study) -> Sequence[AnswerTrial]:
    """Return what the gold answers of a generation task score; nothing where scoring fails or takes too long."""
    with suppress(LimitExceededError):
        trials = tried(study) if study.generates else None
        return trials.answers if trials is not None else ()
    return ()


def limited_answers(subject: Subject) -> Answers | None:
    """Return the possible answers to a question, imagined ones to a synthetic one; None where any text may be one."""
    answers = answers_of(subject.questions[0], subject.prompt)
    if answers is not None and answers.kind == "text" and subject.synthetic:
        answers = subject.imagined(answers)
    return None if answers is None or answers.kind == "text" else answers


def _reader(study: Study, filters: Filters) -> Reader | None:
    subject = Subject(trials_of(study).scoring)
    answers = limited_answers(subject)
    if answers is None:
        return None
    found = [(number, one) for number, one in enumerate(filters.chain.pipelines) if one.patterns]
    return Reader(filters.chain, subject.instances[0].doc, subject, answers, found) if found else None
