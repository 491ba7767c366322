"""The scores that a task's own code gives to the gold answer and to near misses, as lines for a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.metric_scores import NONSENSE, short_repr
from pytest_promptfmt.answers.trials import AnswerTrial, ChoiceTrial, trials_of
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.study import Study

_DOCS: Final = 2
_CHOICES: Final = {"gold_best": "gold most likely", "other_best": "another most likely", "all_equal": "all alike"}


def score_lines(study: Study) -> Iterator[str]:
    """Yield the scores of the first docs, of a task that Python code of its own scores; nothing for other tasks.

    A completion goes through stop sequences and the first filters. Scores that are other ones when tried again are not
    shown. Raises what stops scoring as a whole: code not allowed, docs not found.
    """
    if not study.renders_fields or not study.has_own_scorer:
        return
    trials = trials_of(study)
    for trial in trials.choices[:_DOCS]:
        yield from _of_choices(trial)
    for answer in trials.answers[:_DOCS] if trials.chain is not None else ():
        if trials.chain is not None:
            yield from _of_completions(trials.chain, answer)


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
