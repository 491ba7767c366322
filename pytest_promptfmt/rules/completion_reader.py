"""What a task's own filters read of a completion, for rules that try a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.phrasings import Answers, answers_of, contract_sentences
from pytest_promptfmt.answers.subject import Subject
from pytest_promptfmt.answers.trials import trials_of
from pytest_promptfmt.rules.smoke import scoring_failure
from pytest_promptfmt.study import Study
from pytest_promptfmt.tasks import FilterPipeline, looks_for_answers

_NUMBERS: Final = ("42", "18")


@dataclass(frozen=True, slots=True)
class Reader:
    """The filters of a generation task, what can be answered, and the sentences that say an answer."""

    chain: Chain
    subject: Subject
    answers: Answers
    pipelines: Sequence[tuple[int, FilterPipeline]]

    def read(self, pipeline: FilterPipeline, text: str) -> str:
        """Return what a pipeline reads, as text; "" for an exception or a pattern that takes too long."""
        stages = self.chain.read(pipeline, text, self.subject.instances[0].doc, "a probe")
        return "" if stages.problem is not None else str(stages.extracted).strip()

    def is_read(self, pipeline: FilterPipeline, text: str, said: str) -> bool:
        """Return whether a pipeline reads this answer from a text, with brackets, marks and separators or not."""
        return bare_answer(self.read(pipeline, text)) == bare_answer(said)

    @property
    def said(self) -> tuple[str, ...]:
        """Return answers to put into sentences: the labels of the options, or two numbers."""
        return self.answers.labels if self.answers.kind == "choice" else _NUMBERS

    def sentences(self, said: str) -> tuple[str, ...]:
        """Return ways to say an answer, those first that the prompt asks for; the last four are always the same."""
        answers = self.answers
        if answers.kind == "choice":
            asked = Answers(
                kind="choice",
                labels=answers.labels,
                texts=answers.texts,
                targets=answers.targets,
                gold=answers.labels.index(said),
            )
        else:
            asked = Answers(kind="number", labels=(said,), texts=("",), targets=(said,), gold=0, number=said)
        shown = (f"The answer is {said}.", f"The answer is ({said}).", f"Answer: {said}", f"#### {said}")
        return (*contract_sentences(self.subject.prompt, asked, self.subject.prefix), *shown)


def bare_answer(text: str) -> str:
    """Return an answer without brackets, marks and separators."""
    return text.strip("()[]*$ \n\t").rstrip(".").replace(",", "")


def chain_of(study: Study) -> Chain | None:
    """Return the filters and metrics of a generation task that looks for answers; None where they cannot be tried."""
    if not study.generates or not looks_for_answers(study.task) or study.has_guessed_text:
        return None
    if scoring_failure(study) is not None or not trials_of(study).scoring.instances:
        return None
    return trials_of(study).chain


def read_by(study: Study, chain: Chain, pipeline: FilterPipeline, text: str) -> str:
    """Return what a pipeline reads, as text; "" for an exception, or a pattern that takes too long."""
    stages = chain.read(pipeline, text, trials_of(study).scoring.instances[0].doc, "a probe")
    return "" if stages.problem is not None else str(stages.extracted).strip()


def reader_of(study: Study) -> Reader | None:
    """Return what reads the answers of a task; None where nothing looks for an answer, or code judges it."""
    if not study.generates or not looks_for_answers(study.task) or scoring_failure(study) is not None:
        return None
    trials = trials_of(study)
    if trials.chain is None or not trials.scoring.instances or study.has_guessed_text:
        return None
    return study.once("reader", lambda: _reader(trials.chain, Subject(trials.scoring)))


def _reader(chain: Chain | None, subject: Subject) -> Reader | None:
    answers = answers_of(subject.questions[0], subject.prompt)
    if answers is not None and answers.kind == "text" and subject.synthetic:
        answers = subject.imagined(answers)
    if chain is None or answers is None or answers.kind == "text":
        return None
    found = [(number, one) for number, one in enumerate(chain.pipelines) if one.patterns]
    return Reader(chain, subject, answers, found) if found else None
