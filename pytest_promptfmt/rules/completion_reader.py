"""A task's own filters, tried on completions by the rules that look for mistakes of filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.phrasings import Answers, answers_of, contract_sentences
from pytest_promptfmt.answers.subject import Subject
from pytest_promptfmt.answers.trials import AnswerTrial, trials_of
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.rules.smoke import scoring_failure
from pytest_promptfmt.study import Study
from pytest_promptfmt.tasks import FilterPipeline, looks_for_answers

_NUMBERS: Final = ("42", "18")

Numbered = Iterable[tuple[int, FilterPipeline]]


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

    def finding(self, message: str, severity: Severity | None = None) -> Finding:
        """Return a finding with this message."""
        saw = f"{self.text!r} is read as {self.read!r}"
        return finding(message, saw, ("filter_list", self.number), severity=severity)


def misread_by_all(pipelines: Numbered, probe: Callable[[FilterPipeline], tuple[str, str] | None]) -> Misread | None:
    """Return what the first pipeline misreads; None where `probe` gives no misread text for one of them."""
    found = []
    for number, pipeline in pipelines:
        wrong = probe(pipeline)
        if wrong is None:
            return None
        found.append(Misread(number, *wrong))
    return found[0] if found else None


def bare_answer(text: str) -> str:
    """Return an answer without brackets, marks and separators."""
    return text.strip("()[]*$ \n\t").rstrip(".").replace(",", "")


def filters_of(study: Study) -> Filters | None:
    """Return the filters of a task; None where nothing looks for an answer, or they cannot be tried."""
    if not study.generates or not looks_for_answers(study.task) or study.has_guessed_text:
        return None
    if scoring_failure(study) is not None:
        return None
    trials = trials_of(study)
    instances = trials.scoring.instances
    return None if trials.chain is None or not instances else Filters(trials.chain, instances[0].doc)


def scored_answers(study: Study) -> tuple[Chain, Sequence[AnswerTrial]] | None:
    """Return filters and metrics, and what gold answers score; None where scoring fails, which other rules report."""
    if not study.generates or scoring_failure(study) is not None:
        return None
    try:
        trials = trials_of(study)
    except PromptfmtError:
        return None  # reported by the item that scores
    return None if trials.chain is None else (trials.chain, trials.answers)


def reader_of(study: Study) -> Reader | None:
    """Return what reads the answers of a task; None where code judges them, or any text may be one."""
    filters = filters_of(study)
    if filters is None:
        return None
    return study.once("reader", lambda: _reader(filters, Subject(trials_of(study).scoring)))


def limited_answers(subject: Subject) -> Answers | None:
    """Return the possible answers to a question, imagined ones to a synthetic one; None where any text may be one."""
    answers = answers_of(subject.questions[0], subject.prompt)
    if answers is not None and answers.kind == "text" and subject.synthetic:
        answers = subject.imagined(answers)
    return None if answers is None or answers.kind == "text" else answers


def _reader(filters: Filters, subject: Subject) -> Reader | None:
    answers = limited_answers(subject)
    if answers is None:
        return None
    found = [(number, one) for number, one in enumerate(filters.chain.pipelines) if one.patterns]
    return Reader(filters.chain, subject.instances[0].doc, subject, answers, found) if found else None
