"""The phrasing battery: every way to write an answer, through the task's own stops, filters and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pytest_promptfmt.answers.completions import Stages, is_nothing
from pytest_promptfmt.answers.metric_scores import BACKTRACKS, SLOW_PROBLEM, with_gold
from pytest_promptfmt.answers.phrasing_verdicts import (
    MISS,
    OK,
    SLOW,
    UNKNOWN,
    UNLISTED,
    Cells,
    Matrix,
    Tried,
    in_words,
    label_in,
    number_in,
    problem_of,
    shared_matrix,
    short,
    stages_in_words,
)
from pytest_promptfmt.answers.phrasings import (
    REASONING,
    SHORT_WORDS,
    Answers,
    Phrasing,
    PhrasingClass,
    Subject,
    answers_of,
    asks_another_form,
    asks_for_reasoning,
    choice_phrasings,
    contract_sentences,
    degenerate_phrasings,
    number_phrasings,
)
from pytest_promptfmt.core.errors import (
    LimitExceededError,
    Position,
    ScoringError,
    SlowScoringError,
    TooSlowError,
    UnavailableError,
    did_you_mean,
)
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.task import UNSET
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.gold import is_test
from pytest_promptfmt.study.scoring import ExpectedCompletion, Scoring, expected_failures, unmet_expectations
from pytest_promptfmt.tasks import FilterPipeline, Question

BATTERY_SECONDS: Final = 30.0
"""The processor time that all phrasings of a task have together; half a second is usual."""

_SLOW: Final = "make the filters and metrics of this task faster"

_FEW: Final = 3
"""Phrasings of each kind that are tried where scoring starts processes, as it does to run generated code."""

_MOST_PROCESSES: Final = 64
"""Processes that scoring a task may start before the remaining phrasings are left out."""

_SIMPLE: Final = ("A", "42", "The answer is (B).", "First this, then that.\nAnswer: iron")
"""Completions of which code reads at least one, if it reads any."""


def try_phrasings(scoring: Scoring, *, expected: Sequence[ExpectedCompletion] = ()) -> Matrix:
    """Return the verdict matrix of a generation task.

    Synthetic docs show little of the form of real answers: their own answers count only where the pipeline accepts
    them without the delimiter. `expected` are the user's own completions. Raises ScoringError or RenderError
    for a task that cannot be scored at all.
    """
    battery = _Battery(scoring)
    return battery.matrix(expected) if expected else shared_matrix(battery, lambda: battery.matrix(()))


def phrasing_texts(scoring: Scoring) -> list[str]:
    """Return the texts that the battery tries for the first doc of a generation task, each once."""
    battery = _Battery(scoring)
    return [*dict.fromkeys([*battery.texts(battery.answers()), *map(_text, degenerate_phrasings(battery.longest))])]


def try_answers(study: Study) -> Tried:
    """Return the result of the battery for a generation task; raises the PromptfmtError that stops it.

    How many answers fit into the limit depends on the machine: SlowScoringError is raised where they do not, and
    LimitExceededError only if an answer made to be hard to read is too slow by itself.
    """
    task = study.given
    position, what = task.position("filter_list"), f"testing how {task.id} reads answers"
    all_in_time = partial(time_limit, BATTERY_SECONDS, what, position, hint=_SLOW, error=SlowScoringError)
    shared = study.shared if not study.expected else {}
    if "answers" not in shared:
        try:
            with all_in_time():
                matrix = try_phrasings(study.scoring, expected=study.expected)
        except SlowScoringError:
            with all_in_time():
                _Battery(study.scoring).require_speed(position)
            raise
        made = matrix, study.scoring.docs.origin
        shared = shared if not any(SLOW in cell for row in matrix.rows for cell in row.verdicts) else {}
        shared["answers"] = made
    matrix, docs = shared["answers"]
    expected, failing = expected_failures(study.given), [row.id for row in matrix.failures]
    return Tried(
        matrix=matrix,
        failing=[row for row in matrix.failures if row.id not in expected],
        problems=unmet_expectations(expected, failing, [row.id for row in matrix.rows]),
        docs=docs,
    )


def _text(phrasing: Phrasing) -> str:
    return phrasing.text


class _Battery(Subject):
    """A task with the verdicts on its phrasings."""

    def __init__(self, scoring: Scoring) -> None:
        super().__init__(scoring)
        pipelines = self.chain.pipelines
        passing = {one.name for one in pipelines if not one.looks}
        self.cells = Cells([one.name for one in pipelines], passing if len(passing) < len(pipelines) else ())
        self.slow_metric = ""
        self.slow_reads: set[str] = set()
        self.right_before: dict[tuple[str, int, str], bool] = {}
        self.questions_by_gold: dict[int, Question] = {}
        self.judges_by_doc = callable(self.task.process_results)
        self.fails_on_doc: dict[str, bool] = {}

    def matrix(self, expected: Sequence[ExpectedCompletion]) -> Matrix:
        names = tuple(self.cells.pipelines)
        answers = self.answers()
        if answers is None:
            return Matrix(pipelines=names, rows=(), answers="", nothing="the target is neither text nor a number")
        self._read_together(answers)
        self._ask_for_contract(answers)
        self._round_trips()
        self._own_answers(answers)
        for one in expected:
            if one.pipeline not in (None, *names):
                raise ScoringError(
                    f"completion {one.id!r}: unknown filter pipeline {one.pipeline!r}; known: {', '.join(names)}",
                    position=self.task.position("filter_list"),
                    hint=did_you_mean(str(one.pipeline), names),
                )
            self._try_expected(one)
        if answers.kind == "choice":
            for gold in self.golds(answers):
                for phrasing in self._some(choice_phrasings(gold, prompt=self.prompt)):
                    self._try(phrasing, gold)
        elif answers.kind == "number":
            for phrasing in self._some(number_phrasings()):
                self._try_number(phrasing, answers)
        degenerate = degenerate_phrasings(self.longest)
        self.chain.expect([(each.text, self.doc) for each in degenerate], are_timed=True)
        for phrasing in self._some(degenerate):
            self._try_degenerate(phrasing)
        few = "; only some phrasings, because the metric starts processes" if self.chain.processes else ""
        if self.chain.scores_nothing:
            few = "; compared as texts: the metric runs generated code, and synthetic docs contain none"
        return Matrix(pipelines=names, rows=tuple(self.cells.rows()), answers=f"{in_words(answers)}{few}")

    def answers(self) -> Answers | None:
        """Return the answers of the first doc; None where its target is neither text nor a number."""
        answers = answers_of(self.questions[0], self.prompt)
        imagines = answers is not None and answers.kind == "text" and self.synthetic
        return self.imagined(answers) if answers is not None and imagines else answers

    def texts(self, answers: Answers | None) -> list[str]:
        """Return the texts that are tried for the first doc, without degenerate ones."""
        own = [*self.shot_answers(), *filter(None, self.own_texts()[:1])]
        texts = [*own, *map(self.delimited, own)]
        for gold in self.golds(answers) if answers is not None else ():
            texts += contract_sentences(self.prompt, gold, self.prefix)
            texts += map(_text, choice_phrasings(gold, prompt=self.prompt) if gold.kind == "choice" else ())
        texts += map(_text, number_phrasings() if answers is not None and answers.kind == "number" else ())
        return texts

    def _read_together(self, answers: Answers) -> None:
        """Read what is tried below at once, as lm-eval does: a filter may take long to be built or called."""
        asked = [(text, self.doc) for text in self.texts(answers)]
        for text, instance in zip(self.own_texts(), self.instances, strict=True):
            asked += [(form, instance.doc) for form in (text, self.delimited(text))] if text is not None else []
        self.chain.expect(asked)

    def require_speed(self, position: Position | None) -> None:
        """Raise LimitExceededError if a pipeline is too slow for a degenerate answer."""
        for phrasing in degenerate_phrasings(self.longest):
            for pipeline in self.chain.pipelines:
                problem = self.chain.read_uncounted(pipeline, phrasing.text, self.doc, phrasing.id).problem or ""
                if problem.startswith(SLOW_PROBLEM):
                    raise LimitExceededError(problem.removeprefix(SLOW_PROBLEM), position=position, hint=BACKTRACKS)

    def _some(self, phrasings: Iterable[Phrasing]) -> Iterator[Phrasing]:
        """Yield the phrasings; a handful where each of them takes processes to score."""
        for number, phrasing in enumerate(phrasings):
            processes = self.chain.processes
            if processes >= _MOST_PROCESSES or (processes and number >= _FEW):
                return
            yield phrasing

    # -- what is tried ---------------------------------------------------------------------------------------------

    def golds(self, answers: Answers) -> Iterator[Answers]:
        """Yield the answers with each option as the right one; only the doc's own where a function judges."""
        if self.judges_by_doc or answers.kind != "choice":
            yield answers
        else:
            yield from (replace(answers, gold=index) for index in range(len(answers.labels)))

    def _ask_for_contract(self, answers: Answers) -> None:
        reasons = asks_for_reasoning(self.prompt)
        for gold in self.golds(answers):
            sentences = contract_sentences(self.prompt, gold, self.prefix)
            for number, sentence in enumerate(sentences, start=1):
                name = "asked-for" if number == 1 else f"asked-for-{number}"
                self._try(Phrasing(id=name, kind="contract", text=sentence), gold)
                if reasons:
                    text = f"It was asked which one fits.\nSome are ruled out. {sentence}"
                    self._try(Phrasing(id=f"{name}-reasoned", kind="contract", text=text), gold)

    def _round_trips(self) -> None:
        docs = [instance.doc for instance in self.instances]
        for number, text in enumerate(self.shot_answers(), start=1):
            is_made_up, name, delimited = self.makes_shots and "«" in text, f"shot-{number}", self.delimited(text)
            # A pipeline whose extraction contains its doc cannot read another doc's answer.
            able = [one for one in self.chain.pipelines if not self.chain.puts_doc_in(one, text, docs)]
            read = {pipeline.name: self.chain.read(pipeline, delimited, self.doc, name) for pipeline in able}
            found = {name for name, stages in read.items() if self.is_own_gold(stages.extracted, text)}
            for pipeline in able:
                bare = self.chain.read(pipeline, text, self.doc, "a shot") if is_made_up else None
                counts = bare is None or self.is_own_gold(bare.extracted, text)
                # A bare answer is for the lenient pipeline, where there is one.
                counts = counts and (not found or pipeline.name in found or self.marks_answer(text))
                phrasing = Phrasing(id=name, kind="contract" if counts else "tolerance", text=delimited)
                verdict = problem_of(read[pipeline.name]) or (OK if pipeline.name in found else MISS)
                self._note(phrasing, pipeline, "", verdict, read[pipeline.name], None)

    def _own_answers(self, answers: Answers) -> None:
        shots = list(self.shot_answers())
        own = self.own_texts()
        is_contract = not (
            contract_sentences(self.prompt, answers, self.prefix)
            or (REASONING.search(self.prompt) and not shots)
            or (asks_another_form(self.prompt) and not shots)
            or any(len(text.split()) > SHORT_WORDS for text in shots)
            or any(map(is_test, own))
        )
        one = len(self.chain.pipelines) == 1
        shown = {pipeline.name for pipeline in self.chain.pipelines if self.shows_form(pipeline)}
        for number, (text, question) in enumerate(zip(own, self.questions, strict=True), start=1):
            if text is None or self.chain.processes >= _MOST_PROCESSES:
                continue
            doc = self.instances[number - 1].doc
            delimited = self.delimited(text)
            if delimited == text and self.instances[0].prompts[0].text.endswith(" "):
                delimited = f" {text}"  # most tokenizers write a space anyway
            forms = {"": text, "-delimited": delimited}
            read = {
                (name, pipeline.name): self._verdict_of_right(pipeline, form, question, doc)
                for name, form in forms.items()
                for pipeline in self.chain.pipelines
            }
            for name, form in forms.items():
                # A strict pipeline next to a lenient one expects another form than a bare answer.
                found = OK in (verdict for (other, _), verdict in read.items() if other == name)
                for pipeline in self.chain.pipelines:
                    # A synthetic answer need not have the form that a filter looks for, unless it finds it.
                    may_miss = read["", pipeline.name] != OK and (self.synthetic or pipeline.name in shown)
                    counts = is_contract and not found and not may_miss
                    # Where nothing shows the delimiter, only some models begin with it: PF501 warns of that.
                    counts = counts and (not name or bool(shots) or pipeline.looks)
                    kind: PhrasingClass = "contract" if counts or (found and is_contract and one) else "tolerance"
                    phrasing = Phrasing(id=f"own-answer-{number}{name}", kind=kind, text=form)
                    stages = self.chain.read(pipeline, form, doc, phrasing.id)
                    self._note(phrasing, pipeline, "", read[name, pipeline.name], stages, question)

    def _verdict_of_right(self, pipeline: FilterPipeline, text: str, question: Question, doc: Any) -> str:
        stages = self.chain.read(pipeline, text, doc, "the doc's own answer")
        return problem_of(stages) or self._right_or(question, doc, stages.extracted, MISS)

    def _try_expected(self, one: ExpectedCompletion) -> None:
        doc, question = self.instances[one.doc].doc, self.questions[one.doc]
        phrasing = Phrasing(id=one.id, kind="own", text=one.completion)
        for pipeline in self.chain.pipelines:
            if one.pipeline not in (None, pipeline.name):
                continue
            stages = self.chain.read(pipeline, one.completion, doc, one.id)
            verdict = problem_of(stages)
            if verdict is None and one.correct is not None:
                right = self._right_or(question, doc, stages.extracted, MISS)
                verdict = right if one.correct else OK if right == MISS else "WRONG(counted as right)"
            if verdict in (None, OK) and one.expected is not UNSET and not one.expects(stages.extracted):
                verdict = MISS if is_nothing(stages.extracted, pipeline) else f"WRONG({short(stages.extracted)})"
            self._note(phrasing, pipeline, "", verdict or OK, stages, question)

    # -- one phrasing ----------------------------------------------------------------------------------------------

    def _try(self, phrasing: Phrasing, answers: Answers) -> None:
        label, question = answers.labels[answers.gold], self._question_with(answers, answers.gold)
        self._try_each(phrasing, label, question, lambda stages: self._verdict(phrasing, answers, stages))

    def _try_each(self, phrasing: Phrasing, label: str, question: Question, judge: Callable[[Stages], str]) -> None:
        """Try a phrasing in each pipeline; `judge` gives the verdict of one that has an extraction."""
        read = [(one, self.chain.read(one, phrasing.text, self.doc, phrasing.id)) for one in self.chain.pipelines]
        verdicts = [problem_of(stages) or judge(stages) for _, stages in read]
        # A synthetic answer need not have the form that another filter finds; code may judge by columns it lacks.
        golds = (question.target, [question.target]) if self.synthetic and self.judges_by_doc else ()
        is_uncounted = golds and all(self._right_or(question, self.doc, gold, "") != OK for gold in golds)
        is_made_up = self.synthetic and "«" in label
        for (pipeline, stages), verdict in zip(read, verdicts, strict=True):
            knows = OK not in verdicts and self.chain.knows_gold(question, self.doc, stages.extracted)
            is_open = verdict == MISS and (is_uncounted or (is_made_up and not knows))
            self._note(phrasing, pipeline, label, UNKNOWN if is_open else verdict, stages, question)

    def _verdict(self, phrasing: Phrasing, answers: Answers, stages: Stages) -> str:
        extracted = stages.extracted
        order = sorted(range(len(answers.targets)), key=lambda index: index != answers.gold)
        if self.judges_by_doc:
            order = order[:1]
        for index in order:
            question = self._question_with(answers, index)
            right = self._right_or(question, self.doc, extracted, "")
            if right == "":
                continue
            if right != OK:
                return right
            if not phrasing.answer:
                return f"SPURIOUS({short(answers.labels[index])})"
            return OK if index == answers.gold else f"WRONG({short(answers.labels[index])})"
        read = label_in(extracted, answers, stages.stopped)
        if not phrasing.answer:
            # A label that no option has scores nothing for any doc.
            return OK if read is None else f"{'SPURIOUS' if read in answers.labels else UNLISTED}({read})"
        return MISS if read is None or read == answers.labels[answers.gold] else f"WRONG({read})"

    def _question_with(self, answers: Answers, index: int) -> Question:
        """Return the first doc's question with another right answer; its own where a function judges by the doc."""
        question = self.questions[0]
        if self.judges_by_doc:
            return question
        if index not in self.questions_by_gold:  # of one task all answers have the same targets
            self.questions_by_gold[index] = with_gold(question, answers.targets[index], index)
        return self.questions_by_gold[index]

    def _try_number(self, phrasing: Phrasing, answers: Answers) -> None:
        number = phrasing.number or answers.number or ""
        question = self.questions[0]
        if not self.judges_by_doc:
            question = with_gold(question, answers.target_with(number), 0)
        elif phrasing.number is not None:
            return  # a function judges by the doc, which has its own number

        def judge(stages: Stages) -> str:
            right, read = self._right_or(question, self.doc, stages.extracted, ""), number_in(stages)
            if phrasing.answer:
                return right or (MISS if read is None else f"WRONG({short(read)})")
            if right not in ("", OK):
                return right
            return OK if read is None and right == "" else f"SPURIOUS({short(read or number)})"

        self._try_each(phrasing, "", question, judge)

    def _try_degenerate(self, phrasing: Phrasing) -> None:
        for pipeline in self.chain.pipelines:
            if pipeline.name in self.slow_reads:
                self.cells.note(phrasing, pipeline.name, "", UNKNOWN)
                continue  # one says enough: measuring how time grows takes seconds
            stages = self.chain.read_uncounted(pipeline, phrasing.text, self.doc, phrasing.id)
            verdict = problem_of(stages)
            if verdict == SLOW:
                self.slow_reads.add(pipeline.name)
            if verdict is None:
                what = f"scoring the phrasing {phrasing.id}"
                try:
                    self.chain.try_scoring(self.questions[0], self.doc, stages.extracted, what)
                    verdict = OK
                except UnavailableError:
                    raise
                except LimitExceededError as error:
                    verdict, stages = SLOW, replace(stages, problem=error.message)
                except Exception as error:
                    verdict, stages = "CRASH", replace(stages, problem=f"{type(error).__name__}: {error}")
            self._note(phrasing, pipeline, "", verdict, stages, None)

    def _right_or(self, question: Question, doc: Any, extracted: Any, otherwise: str) -> str:
        # Most phrasings are read as the same few texts: each is scored once.
        asked = repr(question.target), id(doc), repr(extracted)
        try:
            if asked not in self.right_before:
                self.right_before[asked] = self.chain.is_right(question, doc, extracted)
            return OK if self.right_before[asked] else otherwise
        except (TooSlowError, UnavailableError):
            raise
        except LimitExceededError as error:
            self.slow_metric = error.message
            return SLOW
        except Exception as error:
            return f"CRASH({type(error).__name__} in the metric)"

    def _fails_on_doc(self, pipeline: FilterPipeline) -> bool:
        """Return whether code fails on a synthetic doc whatever the completion is."""
        if not self.synthetic or (pipeline.fingerprint is not None and not self.judges_by_doc):
            return False
        if pipeline.name not in self.fails_on_doc:
            tried = (self.chain.read_uncounted(pipeline, text, self.doc, "an answer") for text in _SIMPLE)
            self.fails_on_doc[pipeline.name] = all(
                problem_of(stages)
                or self._right_or(self.questions[0], self.doc, stages.extracted, "").startswith("CRASH")
                for stages in tried
            )
        return self.fails_on_doc[pipeline.name]

    def _note(
        self,
        phrasing: Phrasing,
        pipeline: FilterPipeline,
        label: str,
        verdict: str,
        stages: Stages,
        question: Question | None,
    ) -> None:
        """Keep a verdict; where it fails, with the stages of the completion and its score for a question."""
        if (verdict == "CRASH(KeyError)" and self.synthetic) or (
            verdict.startswith("CRASH") and self._fails_on_doc(pipeline)
        ):
            verdict = UNKNOWN  # code reads columns or values that synthetic docs do not have
        if not self.cells.note(phrasing, pipeline.name, label, verdict):
            return
        score = None
        if verdict == SLOW:
            stages = replace(stages, problem=stages.problem or f"SLOW: {self.slow_metric}")
        if question is not None and stages.problem is None:
            with suppress(Exception):  # a metric that crashes has its verdict
                score = self.chain.score(question, self.doc, stages.extracted)
        compared = self.chain.compared(stages.extracted) if stages.problem is None else None
        self.cells.explain(phrasing, pipeline.name, stages_in_words(stages, compared, score))
