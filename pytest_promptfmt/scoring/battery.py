"""The phrasing battery: every way to write an answer, through the task's own stops, filters and metrics.

A row of the matrix is one phrasing, a column one filter pipeline, a cell the verdict over all gold answers: extraction
must not depend on which option is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pytest_promptfmt.errors import LimitExceededError
from pytest_promptfmt.rendering.prompt import Instance, Message
from pytest_promptfmt.scoring.answers import Answers, answers_of
from pytest_promptfmt.scoring.completions import Chain, Stages, is_nothing, with_gold
from pytest_promptfmt.scoring.filters import FilterPipeline
from pytest_promptfmt.scoring.phrasings import (
    CLASSES,
    Phrasing,
    PhrasingClass,
    choice_phrasings,
    contract_sentences,
    degenerate_phrasings,
    number_phrasings,
)
from pytest_promptfmt.scoring.regexes import within_budget
from pytest_promptfmt.scoring.results import Question, questions_of
from pytest_promptfmt.scoring.told import Told
from pytest_promptfmt.tasks import UNSET, Task

OK: Final = "OK"
MISS: Final = "MISS"
UNKNOWN: Final = "-"
_LABEL: Final = re.compile(r"[\s(\[\"'*]*([A-Za-z]|[1-9])[\s)\].\"'*:]*")
_REASONING: Final = re.compile(r"(?i)step[- ]by[- ]step|reasoning|explain|think")
_ASKED_IN_DEMO: Final = re.compile(r"(?i)answer is:?\s*\(?([^\s().]+)\)?|####\s*(\S+)|boxed\{([^{}]*)\}")
_SHORT_WORDS: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One phrasing, its verdict in each pipeline, and whether that is a failure by the rules of its class.

    `evidence` tells, for the first pipeline that fails, what became of the completion stage by stage.
    """

    id: str
    kind: PhrasingClass
    verdicts: tuple[str, ...]
    failed: bool
    evidence: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """All rows of a task; `answers` says in words what was tried, `nothing` why there are no rows."""

    pipelines: tuple[str, ...]
    rows: tuple[Row, ...]
    answers: str
    nothing: str = ""

    @property
    def failures(self) -> tuple[Row, ...]:
        """Return the rows that fail by the default rules."""
        return tuple(row for row in self.rows if row.failed)


def try_phrasings(
    task: Task, instances: Sequence[Instance], *, synthetic: bool = False, told: Sequence[Told] = ()
) -> Matrix:
    """Return the verdict matrix of a generation task whose functions are bound, from its rendered docs.

    `synthetic` docs say little of what real answers look like: their own answers count only where the pipeline
    accepts them without the delimiter. `told` are the user's own completions. Raises ScoringError or RenderError for a
    task that cannot be scored at all.
    """
    return _Trial(task, instances, synthetic, told).matrix()


@dataclass(slots=True)
class _Trial:
    task: Task
    instances: Sequence[Instance]
    synthetic: bool
    told: Sequence[Told]
    chain: Chain = field(init=False)
    questions: list[Question] = field(init=False)
    prompt: str = field(init=False)
    prefix: str = field(init=False)
    _cells: dict[tuple[PhrasingClass, str], dict[str, dict[str, str]]] = field(init=False, default_factory=dict)
    _evidence: dict[tuple[PhrasingClass, str, str], str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        arguments = self.instances[0].requests[0].generation_kwargs or {}
        until = arguments.get("until") or ()
        self.chain = Chain(self.task, [until] if isinstance(until, str) else list(until))
        self.questions = questions_of(self.task, [instance.doc for instance in self.instances])
        self.prompt = _own_text(self.instances[0])
        spans = self.instances[0].prompts[0].spans
        own = (span for span in spans if span.origin.part == "gen prefix" and span.origin.shot is None)
        self.prefix = "".join(span.text for span in own)

    def matrix(self) -> Matrix:
        names = tuple(pipeline.name for pipeline in self.chain.pipelines)
        answers = answers_of(self.questions[0], self.prompt)
        if answers is not None and answers.kind == "text" and self.synthetic:
            answers = self._imagined(answers)
        if answers is None:
            return Matrix(pipelines=names, rows=(), answers="", nothing="the target is no text and no number")
        self._ask_for_contract(answers)
        self._round_trips()
        self._own_answers(answers)
        for one in self.told:
            self._try_told(one)
        if answers.kind == "choice":
            for gold in self._golds(answers):
                for phrasing in choice_phrasings(gold):
                    self._try(phrasing, gold)
        elif answers.kind == "number":
            for phrasing in number_phrasings():
                self._try_number(phrasing, answers)
        for phrasing in degenerate_phrasings():
            self._try_degenerate(phrasing)
        return Matrix(pipelines=names, rows=tuple(self._rows()), answers=_in_words(answers))

    def _imagined(self, answers: Answers) -> Answers:
        """Return what the filters look for, where made-up docs give a text that none of them finds.

        The right answer then is what the filters make of `C` or of `42`.
        """
        doc = self.instances[0].doc
        if callable(self.task.process_results) or self.questions[0].has_several_targets:
            return answers
        text = answers.labels[0]
        if any(
            str(self.chain.read(one, text, doc, "a text").extracted).strip() == text for one in self.chain.pipelines
        ):
            return answers
        options = Answers(
            kind="choice", labels=tuple("ABCD"), texts=("",) * 4, targets=("(A)", "(B)", "(C)", "(D)"), gold=2
        )
        number = Answers(kind="number", labels=("42",), texts=("",), targets=("42",), gold=0, number="42")
        for imagined, forms in ((options, choice_phrasings(options)), (number, number_phrasings())):
            label = imagined.labels[imagined.gold]
            asked = contract_sentences(self.prompt, imagined, self.prefix)
            for form in (*asked, *(one.text for one in forms if one.kind == "tolerance" or one.number == label)):
                for pipeline in self.chain.pipelines:
                    found = self.chain.read(pipeline, form, doc, "a form").extracted
                    if found == label:
                        return replace(imagined, targets=imagined.labels)
                    if found == f"({label})":
                        return imagined
        return answers

    # -- what is tried ---------------------------------------------------------------------------------------------

    def _golds(self, answers: Answers) -> Iterator[Answers]:
        """Yield the answers with each option as the right one; only the doc's own where a function judges."""
        if callable(self.task.process_results) or answers.kind != "choice":
            yield answers
        else:
            yield from (replace(answers, gold=index) for index in range(len(answers.labels)))

    def _ask_for_contract(self, answers: Answers) -> None:
        reasons = bool(_REASONING.search(self.prompt))
        for gold in self._golds(answers):
            for number, sentence in enumerate(contract_sentences(self.prompt, gold, self.prefix), start=1):
                name = "asked-for" if number == 1 else f"asked-for-{number}"
                self._try(Phrasing(id=name, kind="contract", text=sentence), gold)
                if reasons:
                    text = f"It was asked which one fits.\nSome are ruled out. {sentence}"
                    self._try(Phrasing(id=f"{name}-reasoned", kind="contract", text=text), gold)

    def _round_trips(self) -> None:
        for number, text in enumerate(self._demonstrations(), start=1):
            for pipeline in self.chain.pipelines:
                made_up = self.synthetic and "«" in text
                bare = self.chain.read(pipeline, text, self.instances[0].doc, "a shot") if made_up else None
                counts = bare is None or self._is_own_gold(bare.extracted, text)
                kind: PhrasingClass = "contract" if counts else "tolerance"
                phrasing = Phrasing(id=f"shot-{number}", kind=kind, text=self._delimited(text))
                stages = self.chain.read(pipeline, phrasing.text, self.instances[0].doc, phrasing.id)
                verdict = _problem(stages) or (OK if self._is_own_gold(stages.extracted, text) else MISS)
                self._note(phrasing, pipeline, "", verdict, stages)

    def _is_own_gold(self, extracted: Any, text: str) -> bool:
        """Return whether a demonstration gives its own answer: itself, or what it says the answer is."""
        if _says(text, str(extracted).strip()):
            return True
        asked = [part for found in _ASKED_IN_DEMO.findall(text) for part in found if part]
        golds = [text, text.strip(), *[made for part in asked[-1:] for made in (part, f"({part})", part.rstrip("."))]]
        question = replace(self.questions[0], choices=None, has_several_targets=False)
        if callable(self.task.process_results):
            return str(extracted).strip() in golds or not is_nothing(extracted)
        for gold in golds:
            try:
                if self.chain.is_right(replace(question, target=gold), self.instances[0].doc, extracted):
                    return True
            except Exception:
                continue
        is_long = len(text.split()) > _SHORT_WORDS
        return is_long and not asked and not is_nothing(extracted)

    def _own_answers(self, answers: Answers) -> None:
        demonstrations = list(self._demonstrations())
        own = self._own_texts()
        is_contract = not (
            contract_sentences(self.prompt, answers, self.prefix)
            or (_REASONING.search(self.prompt) and not demonstrations)
            or any(len(text.split()) > _SHORT_WORDS for text in demonstrations)
        )
        one = len(self.chain.pipelines) == 1
        for number, (text, question) in enumerate(zip(own, self.questions, strict=True), start=1):
            if text is None:
                continue
            doc = self.instances[number - 1].doc
            forms = {"": text, "-delimited": self._delimited(text)}
            read = {
                (name, pipeline.name): self._verdict_of_right(pipeline, form, question, doc)
                for name, form in forms.items()
                for pipeline in self.chain.pipelines
            }
            found_bare = OK in (verdict for (name, _), verdict in read.items() if not name)
            for name, form in forms.items():
                # A strict pipeline beside a lenient one waits for another form than a bare answer.
                found = OK in (verdict for (other, _), verdict in read.items() if other == name)
                counts = is_contract and not found and (found_bare or not self.synthetic)
                kind: PhrasingClass = "contract" if counts or (found and is_contract and one) else "tolerance"
                phrasing = Phrasing(id=f"own-answer-{number}{name}", kind=kind, text=form)
                for pipeline in self.chain.pipelines:
                    stages = self.chain.read(pipeline, form, doc, phrasing.id)
                    self._note(phrasing, pipeline, "", read[name, pipeline.name], stages)

    def _verdict_of_right(self, pipeline: FilterPipeline, text: str, question: Question, doc: Any) -> str:
        stages = self.chain.read(pipeline, text, doc, "the own answer")
        return _problem(stages) or self._right_or(question, doc, stages.extracted, MISS)

    def _own_texts(self) -> list[str | None]:
        """Return each doc's answer as a demonstration would show it; None where it is no text."""
        texts: list[str | None] = []
        for question in self.questions:
            target = question.target
            if question.choices is not None and isinstance(target, int) and 0 <= target < len(question.choices):
                target = question.choices[target]
            if isinstance(target, list) and target:
                target = target[0]
            is_text = isinstance(target, str | int | float) and not isinstance(target, bool) and str(target).strip()
            shown = self.task.fewshot.doc_to_target in (UNSET, None, self.task.doc_to_target)
            texts.append(str(target) if is_text and shown else None)
        return texts

    def _try_told(self, one: Told) -> None:
        if one.doc >= len(self.instances):
            return
        doc, question = self.instances[one.doc].doc, self.questions[one.doc]
        phrasing = Phrasing(id=one.id, kind="own", text=one.completion)
        for pipeline in self.chain.pipelines:
            if one.pipeline not in (None, pipeline.name):
                continue
            stages = self.chain.read(pipeline, one.completion, doc, one.id)
            verdict = _problem(stages)
            if verdict is None and one.correct is not None:
                right = self._right_or(question, doc, stages.extracted, MISS)
                as_told = right if one.correct else OK if right == MISS else "WRONG(counted as right)"
                verdict = as_told
            if verdict in (None, OK) and one.expected is not UNSET and not one.expects(stages.extracted):
                verdict = MISS if is_nothing(stages.extracted) else f"WRONG({_short(stages.extracted)})"
            self._note(phrasing, pipeline, "", verdict or OK, stages)

    def _demonstrations(self) -> Iterator[str]:
        """Yield the answers of the first doc's demonstrations, without gen prefix."""
        for message in _messages(self.instances[0]):
            spans = [span for span in message.content if span.origin.part == "answer" and span.origin.shot is not None]
            text = "".join(span.text for span in spans)
            if message.role == "assistant" and text:
                yield text

    def _delimited(self, text: str) -> str:
        if self.task.gen_prefix:
            return text if text[:1].isspace() else f" {text}"
        delimiter = self.task.target_delimiter
        return text if self.instances[0].prompts[0].text[-1:].isspace() else f"{delimiter}{text}"

    # -- one phrasing ----------------------------------------------------------------------------------------------

    def _try(self, phrasing: Phrasing, answers: Answers) -> None:
        doc = self.instances[0].doc
        label = answers.labels[answers.gold]
        for pipeline in self.chain.pipelines:
            stages = self.chain.read(pipeline, phrasing.text, doc, phrasing.id)
            verdict = _problem(stages) or self._verdict(phrasing, answers, stages)
            self._note(phrasing, pipeline, label, verdict, stages)

    def _verdict(self, phrasing: Phrasing, answers: Answers, stages: Stages) -> str:
        extracted, doc = stages.extracted, self.instances[0].doc
        order = sorted(range(len(answers.targets)), key=lambda index: index != answers.gold)
        if callable(self.task.process_results):
            order = order[:1]
        for index in order:
            question = self.questions[0]
            if not callable(self.task.process_results):
                question = with_gold(question, answers.targets[index], index)
            right = self._right_or(question, doc, extracted, "")
            if right == "":
                continue
            if right != OK:
                return right
            if not phrasing.answer:
                return f"SPURIOUS({_short(answers.labels[index])})"
            return OK if index == answers.gold else f"WRONG({_short(answers.labels[index])})"
        read = _label_in(extracted, answers, stages.stopped)
        if not phrasing.answer:
            return OK if read is None else f"SPURIOUS({read})"
        return MISS if read is None or read == answers.labels[answers.gold] else f"WRONG({read})"

    def _try_number(self, phrasing: Phrasing, answers: Answers) -> None:
        doc = self.instances[0].doc
        number = phrasing.number or answers.number or ""
        question = self.questions[0]
        if not callable(self.task.process_results):
            question = with_gold(question, answers.target_with(number), 0)
        elif phrasing.number is not None:
            return  # a function judges by the doc, which has its own number
        for pipeline in self.chain.pipelines:
            stages = self.chain.read(pipeline, phrasing.text, doc, phrasing.id)
            verdict = _problem(stages)
            if verdict is None:
                right = self._right_or(question, doc, stages.extracted, "")
                read = _number_in(stages)
                if phrasing.answer:
                    verdict = right or (MISS if read is None else f"WRONG({_short(read)})")
                elif right not in ("", OK):
                    verdict = right
                else:
                    verdict = OK if read is None and right == "" else f"SPURIOUS({_short(read or number)})"
            self._note(phrasing, pipeline, "", verdict, stages)

    def _try_degenerate(self, phrasing: Phrasing) -> None:
        doc, question = self.instances[0].doc, self.questions[0]
        for pipeline in self.chain.pipelines:
            stages = self.chain.read(pipeline, phrasing.text, doc, phrasing.id)
            verdict = _problem(stages)
            if verdict is None:
                try:
                    what = f"the metrics on {phrasing.id}"
                    within_budget(self.chain.is_right, question, doc, stages.extracted, what=what)
                    verdict = OK
                except LimitExceededError as error:
                    verdict, stages = "SLOW", replace(stages, problem=error.message)
                except Exception as error:
                    verdict, stages = "CRASH", replace(stages, problem=f"{type(error).__name__}: {error}")
            self._note(phrasing, pipeline, "", verdict, stages)

    def _right_or(self, question: Question, doc: Any, extracted: Any, otherwise: str) -> str:
        try:
            return OK if self.chain.is_right(question, doc, extracted) else otherwise
        except Exception as error:
            return f"CRASH({type(error).__name__} in the metric)"

    # -- the matrix ------------------------------------------------------------------------------------------------

    def _note(self, phrasing: Phrasing, pipeline: FilterPipeline, label: str, verdict: str, stages: Stages) -> None:
        if self.synthetic and verdict == "CRASH(KeyError)":
            verdict = UNKNOWN  # a filter looks at a column that made-up docs do not have
        cells = self._cells.setdefault((phrasing.kind, phrasing.id), {})
        cells.setdefault(pipeline.name, {})[label] = verdict
        key = (phrasing.kind, phrasing.id, pipeline.name)
        if _fails(phrasing.kind, verdict) and key not in self._evidence:
            self._evidence[key] = _stages_in_words(stages)

    def _rows(self) -> Iterator[Row]:
        for kind in CLASSES:
            for (kind_of_row, name), cells in self._cells.items():
                if kind_of_row != kind:
                    continue
                names = [pipeline.name for pipeline in self.chain.pipelines]
                failing = [one for one in names if any(_fails(kind, cell) for cell in cells.get(one, {}).values())]
                yield Row(
                    id=name,
                    kind=kind,
                    verdicts=tuple(_combined(cells[one]) if one in cells else UNKNOWN for one in names),
                    failed=bool(failing),
                    evidence=self._evidence[kind, name, failing[0]] if failing else "",
                )


def _says(text: str, extracted: str) -> bool:
    """Return whether a demonstration says that this, and no more of the same word, is the answer."""
    _, said, rest = text.rpartition("answer is")
    rest = rest.lstrip(" :")
    whole = extracted.count("(") <= extracted.count(")") and not rest[len(extracted) : len(extracted) + 1].isalnum()
    return bool(said and extracted) and rest.startswith(extracted) and whole


def _fails(kind: PhrasingClass, verdict: str) -> bool:
    if verdict.startswith(("CRASH", "SLOW")):
        return True
    if kind in ("contract", "own"):
        return verdict not in (OK, UNKNOWN)
    return kind in ("hazard", "abstain") and verdict.startswith(("WRONG", "SPURIOUS"))


def _problem(stages: Stages) -> str | None:
    if stages.problem is None:
        return None
    kind, _, detail = stages.problem.partition(": ")
    return kind if kind == "SLOW" else f"{kind}({detail.partition(':')[0]})"


def _combined(cells: Mapping[str, str]) -> str:
    """Return one verdict for all gold answers: alike where they agree, else each with the labels it holds for."""
    by_verdict: dict[str, list[str]] = {}
    for label, verdict in cells.items():
        by_verdict.setdefault(verdict.partition("(")[0], []).append(label)
    if len(by_verdict) == 1:
        named = dict.fromkeys(cells.values())
        if len(named) == 1:
            return next(iter(named))
        kind = next(iter(by_verdict))
        inside = " ".join(dict.fromkeys(one.partition("(")[2].rstrip(")") for one in named))
        return f"{kind}({inside})"
    return ", ".join(f"{kind} at {' '.join(labels)}" for kind, labels in by_verdict.items())


def _label_in(extracted: Any, answers: Answers, stopped: str) -> str | None:
    """Return the label that an extraction is, when it is one of the family of the labels."""
    if not isinstance(extracted, str) or any(len(label) != 1 for label in answers.labels):
        return None
    match = _LABEL.fullmatch(extracted)
    if match is None or extracted.strip() == stopped.strip():
        return None
    alike = match[1].isupper() == answers.labels[0].isupper() and match[1].isdigit() == answers.labels[0].isdigit()
    return match[1] if alike else None


def _number_in(stages: Stages) -> str | None:
    text = str(stages.extracted).strip()
    if not any(letter.isdigit() for letter in text) or text == stages.stopped.strip():
        return None
    return text


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 16 else f"{text[:15]}…"


def _stages_in_words(stages: Stages) -> str:
    parts = [f"completion {_quoted(stages.raw)}"]
    if stages.stopped != stages.raw:
        parts.append(f"after stops {_quoted(stages.stopped)}")
    parts.append(stages.problem or f"extracted {_quoted(stages.extracted)}")
    return " → ".join(parts)


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 90 else f"{text[:60]}… ({len(str(value)):,} characters)"


def _in_words(answers: Answers) -> str:
    if answers.kind == "choice":
        return f"options {', '.join(_short(label) for label in answers.labels)}"
    return f"a number such as {answers.number}" if answers.kind == "number" else "a text"


def _messages(instance: Instance) -> Sequence[Message]:
    return instance.prompts[0].messages


def _own_text(instance: Instance) -> str:
    """Return the prompt without its demonstrations."""
    return "".join(span.text for span in instance.prompts[0].spans if span.origin.shot is None)
