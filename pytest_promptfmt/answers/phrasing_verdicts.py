"""Verdicts of the phrasing battery: what one extraction is worth, and how the cells of a matrix become rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from pytest_promptfmt.answers.completions import THINK_END, Chain, Stages
from pytest_promptfmt.answers.metric_scores import NONSENSE, short_repr
from pytest_promptfmt.answers.phrasings import CLASSES, Answers, Phrasing, PhrasingClass, Subject
from pytest_promptfmt.answers.trials import AnswerTrial, ChoiceTrial, trials_of
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.limits import are_applied
from pytest_promptfmt.core.randomness import OwnRandomness
from pytest_promptfmt.core.task import UNSET
from pytest_promptfmt.study import Study
from pytest_promptfmt.tasks import Question, ValueCache, key_of_metrics, plain_key

OK: Final = "OK"
MISS: Final = "MISS"
SLOW: Final = "SLOW"
UNKNOWN: Final = "-"
UNLISTED: Final = "UNLISTED"
_LABEL: Final = re.compile(r"[\s(\[\"'*]*([A-Za-z]|[1-9])[\s)\].\"'*:]*")

_MOST_KEPT: Final = 8_000_000
"""Characters of the matrices that a process keeps, and of what they were made of."""

_PROBLEMS: Final = {
    "WRONG": "the filters read a wrong answer",
    MISS: "the filters do not find the answer",
    "SPURIOUS": "the filters read an answer where there is none",
    SLOW: "the filters take too long",
    "CRASH": "a filter or metric fails",
}
"""The meanings of failing verdicts, by their first letters."""

_DOCS: Final = 2
_CHOICES: Final = {"gold_best": "gold most likely", "other_best": "another most likely", "all_equal": "all alike"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PhrasingRow:
    """One phrasing, its verdict in each pipeline, and whether that is a failure by the rules of its class.

    `evidence` shows the completion stage by stage for the first pipeline that fails.
    """

    id: str
    kind: PhrasingClass
    verdicts: tuple[str, ...]
    failed: bool
    evidence: str = ""

    @property
    def title(self) -> str:
        """Return the row in one line: class, name and verdicts."""
        return f"{self.kind} {self.id}: {' | '.join(self.verdicts)}"

    @property
    def problem(self) -> str:
        """Return the failure in words, before the title."""
        meanings = (text for cell in self.verdicts for word, text in _PROBLEMS.items() if cell.startswith(word))
        return f"{next(meanings, 'the answer is misread')}: {self.title}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """All rows of a task; `answers` describes what was tried, `nothing` why there are no rows."""

    pipelines: tuple[str, ...]
    rows: tuple[PhrasingRow, ...]
    answers: str
    nothing: str = ""

    @property
    def failures(self) -> tuple[PhrasingRow, ...]:
        """Return the rows that fail by the default rules."""
        return tuple(row for row in self.rows if row.failed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """The result of the battery for a task: the matrix, the rows that fail unexpectedly, and wrong expectations."""

    matrix: Matrix
    failing: Sequence[PhrasingRow]
    problems: Sequence[str]
    docs: str


@dataclass(slots=True)
class Cells:
    """The verdicts noted so far: by phrasing, by pipeline, by the label that was right.

    A pipeline of `lenient` may miss the form that the task requests: it looks for nothing, next to one that does.
    """

    pipelines: Sequence[str]
    lenient: Container[str] = ()
    _cells: dict[tuple[PhrasingClass, str], dict[str, dict[str, str]]] = field(default_factory=dict)
    _evidence: dict[tuple[PhrasingClass, str, str], str] = field(default_factory=dict)

    def note(self, phrasing: Phrasing, pipeline: str, label: str, verdict: str) -> bool:
        """Keep a verdict; return whether it is the first failure of this phrasing, which wants evidence."""
        cells = self._cells.setdefault((phrasing.kind, phrasing.id), {})
        cells.setdefault(pipeline, {})[label] = verdict
        is_explained = (phrasing.kind, phrasing.id, pipeline) in self._evidence
        return not is_explained and self._fails(phrasing.kind, pipeline, verdict)

    def explain(self, phrasing: Phrasing, pipeline: str, evidence: str) -> None:
        """Keep what became of a completion that failed."""
        self._evidence[phrasing.kind, phrasing.id, pipeline] = evidence

    def _fails(self, kind: PhrasingClass, pipeline: str, verdict: str) -> bool:
        if kind == "contract" and verdict == MISS and pipeline in self.lenient:
            return False
        return fails(kind, verdict)

    def rows(self) -> Iterator[PhrasingRow]:
        """Yield the rows, class by class."""
        for kind in CLASSES:
            for (kind_of_row, name), cells in self._cells.items():
                if kind_of_row != kind:
                    continue
                failing = [
                    one
                    for one in self.pipelines
                    if any(self._fails(kind, one, cell) for cell in cells.get(one, {}).values())
                ]
                yield PhrasingRow(
                    id=name,
                    kind=kind,
                    verdicts=tuple(_combined(cells[one]) if one in cells else UNKNOWN for one in self.pipelines),
                    failed=bool(failing),
                    evidence=self._evidence[kind, name, failing[0]] if failing else "",
                )


def fails(kind: PhrasingClass, verdict: str) -> bool:
    """Return whether a verdict is a failure by the rules of its class."""
    if verdict.startswith(("CRASH", "SLOW")):
        return True
    if kind in ("contract", "own"):
        return verdict not in (OK, UNKNOWN)
    return kind in ("hazard", "abstain") and verdict.startswith(("WRONG", "SPURIOUS"))


def problem_of(stages: Stages) -> str | None:
    """Return the verdict of a completion without extraction, None where there is one."""
    if stages.problem is None:
        return None
    kind, _, detail = stages.problem.partition(": ")
    return kind if kind == SLOW else f"{kind}({detail.partition(':')[0]})"


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


def label_in(extracted: Any, answers: Answers, stopped: str) -> str | None:
    """Return the label that an extraction is, when it is one of the family of the labels."""
    if not isinstance(extracted, str) or any(len(label) != 1 for label in answers.labels):
        return None
    match = _LABEL.fullmatch(extracted)
    if match is None or extracted.strip() == stopped.strip():
        return None
    alike = match[1].isupper() == answers.labels[0].isupper() and match[1].isdigit() == answers.labels[0].isdigit()
    return match[1] if alike else None


def number_in(stages: Stages) -> str | None:
    """Return the extraction when it holds a digit and is not merely the whole completion."""
    text = str(stages.extracted).strip()
    if not any(letter.isdigit() for letter in text) or text == stages.stopped.strip():
        return None
    return text


def short(value: Any) -> str:
    """Return a value as it fits into a cell."""
    text = " ".join(str(value).split())
    return text if len(text) <= 16 else f"{text[:15]}…"


def stages_in_words(stages: Stages, compared: str | None = None, score: float | None = None) -> str:
    """Return what became of a completion, stage by stage; those that change nothing are left out.

    `compared` is what is left of the extraction after what the metric ignores, `score` what it is worth, if known.
    """
    parts = [f"completion {_quoted(stages.raw)}"]
    if stages.answer != stages.raw:
        parts.append(f"after the reasoning {_quoted(stages.answer)}")
    if stages.stopped != stages.answer:
        parts.append(f"after stops {_quoted(stages.stopped)}")
    parts.append(stages.problem or f"extracted {_quoted(stages.extracted)}")
    if stages.problem is None and compared is not None and compared != stages.extracted:
        parts.append(f"compared as {_quoted(compared)}")
    if stages.problem is None and score is not None:
        parts.append(f"scores {score:g}")
    return " → ".join(parts)


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 90 else f"{text[:60]}… ({len(str(value)):,} characters)"


def in_words(answers: Answers) -> str:
    """Return what was tried, for the head of a matrix."""
    if answers.kind == "choice":
        return f"options {', '.join(short(label) for label in answers.labels)}"
    return f"a number such as {answers.number}" if answers.kind == "number" else "a text"


def score_lines(study: Study) -> Iterator[str]:
    """Yield the scores of the first docs, of a task that Python code of its own scores; nothing for other tasks.

    A completion goes through stop sequences and the first filters. Scores that are other ones when tried again are not
    shown; what code draws at random is the same in every run. Raises what stops scoring as a whole: code not allowed,
    docs not found.
    """
    if not study.renders_fields or not study.has_own_scorer:
        return
    trials = trials_of(study)
    for trial in trials.choices[:_DOCS]:
        yield from _of_choices(trial)
    if trials.chain is not None:
        with OwnRandomness(trials.scoring.task).used():
            answers = trials.answers[:_DOCS]
            lines = [line for answer in answers for line in _of_completions(trials.chain, answer)]
        yield from lines


def _of_choices(trial: ChoiceTrial) -> Iterator[str]:
    for name, what in _CHOICES.items():
        shown = trial.error.partition(":")[0] or _shown(getattr(trial, name))
        yield f"doc {trial.instance.index + 1}, {what}: {shown}"


def _of_completions(chain: Chain, trial: AnswerTrial) -> Iterator[str]:
    answers, gold = trial.answers, trial.gold.strip()
    other = next((one for at, one in enumerate(answers.labels) if at != answers.gold), NONSENSE)
    texts = {"gold": gold, "gold in a sentence": f"The answer is {gold}.", "gold and a digit": f"{gold}5"}
    for what, text in {**texts, "another answer": other, "nothing": ""}.items():
        first, again = (_score(chain, trial, text) for _ in range(2))
        yield f"doc {trial.instance.index + 1}, {what}: {first if first == again else 'another score each time'}"


def _score(chain: Chain, trial: AnswerTrial, text: str) -> str:
    doc = trial.instance.doc
    stages = chain.read_uncounted(chain.pipelines[0], text, doc, "an answer")
    try:
        return stages.problem or _shown(chain.values(trial.question, doc, stages.extracted))
    except PromptfmtError:
        raise
    except Exception as error:
        return type(error).__name__


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in values.items()) or "no score"


def _number(value: Any) -> str:
    try:
        return f"{float(value):.6g}"
    except (TypeError, ValueError):
        return short_repr(value) if isinstance(value, str | list | tuple | dict) else type(value).__name__


def shared_matrix(subject: Subject, make: Callable[[], Matrix]) -> Matrix:
    """Return the matrix of a task without expected completions: that of an equal one, else what `make` gives."""
    key = _key_of(subject)
    known = None if key is None else _known.get(key)
    if known is not None:
        return known
    made = make()
    if key is None or any(SLOW in cell for row in made.rows for cell in row.verdicts):
        return made  # the time of another trial may differ
    texts = sum(len(row.id) + len(row.evidence) + sum(map(len, row.verdicts)) for row in made.rows)
    return _known.keep(key, made, texts + len(repr(key)))


def _key_of(subject: Subject) -> Hashable | None:
    """Return all that the verdicts depend on; None where code of the task or a doc is part of that."""
    task, chain = subject.task, subject.chain
    metrics = None if callable(task.process_results) else key_of_metrics(chain.metrics)
    pipelines = tuple((each.name, each.fingerprint) for each in chain.pipelines)
    questions = tuple(map(_key_of_question, subject.questions))
    shows_targets = task.fewshot.doc_to_target in (UNSET, None, task.doc_to_target)
    asked = [subject.prompt, subject.prefix, *subject.shot_answers(), subject.instances[0].prompts[0].text[-1:]]
    think_end = task.own_metadata.get("think_end_token", THINK_END)
    kept = task.repeats, task.gen_prefix, task.target_delimiter, subject.longest
    read = [chain.stops, think_end, shows_targets, *kept]
    written = plain_key([subject.synthetic, subject.makes_shots, asked, read])
    if metrics is None or written is None or None in questions or any(each is None for _, each in pipelines):
        return None
    return metrics, pipelines, questions, written, are_applied()


def _key_of_question(question: Question) -> Hashable | None:
    return plain_key([getattr(question, each.name) for each in fields(question)])


_known: Final[ValueCache[Matrix]] = ValueCache(_MOST_KEPT)
