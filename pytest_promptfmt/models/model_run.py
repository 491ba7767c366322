"""One model for a whole run: opened at the first task, asked, recorded, and its answers judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import ModelError, UnavailableError, kept
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.models import open_model
from pytest_promptfmt.models.model import Answer, AskedQuestion, Model, ModelOptions, questions, with_ids
from pytest_promptfmt.models.model_answers import ModelAnswers, Reply, Thresholds, scored_questions, thresholds_of
from pytest_promptfmt.models.recording import AnswerRecorder, RecordingEntry, ReplayModel, digest_of, join_parts
from pytest_promptfmt.profiles import Tokenizer, load_tokenizer

TINY: Final = "tiny"
TINY_FORMATS: Final = frozenset(
    {"mcqa", "cloze", "generate", "cot", "mmlu_without_topic_fixed", "helm_without_topic_fixed"}
)
"""The formats that the bundled model was trained on; it is judged on others only where a task sets thresholds."""

Progress = Callable[[int, str], AbstractContextManager[Callable[[int], object]]]
"""For a number of questions and what they are about, a context manager of what is called with the answers so far."""


class ModelRun:
    """The model of a run, opened once; an error while opening is raised for each task.

    `written` is what `open_model` takes, `options` are those of `ModelOptions`. Answers are recorded in the file
    `record` (None: nowhere).
    """

    def __init__(self, written: str, *, record: Path | None = None, **options: Any) -> None:
        self._written = written
        self._options = ModelOptions(**options)
        self._record = record
        self._opened: dict[str, Any] = {}
        self._recorder: AnswerRecorder | None = None

    @property
    def model(self) -> Model:
        """Return the model, opened at the first use; raises ModelError when that fails."""
        return kept(self._opened, self._written, lambda: open_model(self._written, self._options))

    def judged(
        self,
        task: Task,
        instances: Sequence[Instance],
        *,
        profile: Profile,
        profile_id: str,
        shown: frozenset[str] | None = None,
        progress: Progress = lambda _count, _what: nullcontext(lambda _done: None),
    ) -> ModelAnswers:
        """Return the model's answers about a task's docs in one profile, and what they show.

        `shown` are the digests of ids in the profile's snapshot, None where it shows none. A model that runs here has
        its own tokenizer and sees the ids that it makes; one behind a server gets the ids of the profile's tokenizer,
        or text where that has none. Functions of the task must be bound. Raises ModelError when the model cannot be
        asked, or cannot answer, UnavailableError for a profile with the tokenizer of another model.
        """
        thresholds = thresholds_of(task)
        model = self.model
        if thresholds is None and (
            TINY not in (model.name, getattr(model, "recorded_by", None)) or task.format in TINY_FORMATS
        ):
            thresholds = Thresholds()
        tokenizer = _tokenizer_for(model, profile)
        asked = questions(instances)
        if not asked:
            raise ModelError("the task has no prompt that a model can answer")
        if tokenizer is not None:
            asked = with_ids(asked, tokenizer, split=profile.split)
        began = time.perf_counter()
        with progress(len(asked), f"{task.id} [{profile_id}]") as show:
            replies = list(self._replies(model, asked, task, profile_id, show))
        seconds = time.perf_counter() - began
        return ModelAnswers(
            task=task,
            profile=profile_id,
            replies=replies,
            questions=scored_questions(task, instances, replies),
            tokenizer=tokenizer,
            shown=shown,
            thresholds=thresholds,
            seconds=seconds,
        )

    def close(self) -> None:
        """Close the recording, with the parts that earlier runs left; raises ModelError when it cannot be written."""
        if self._recorder is not None:
            self._recorder.close()
        if self._record is not None:
            join_parts(self._record)

    def _replies(
        self, model: Model, asked: Sequence[AskedQuestion], task: Task, profile: str, show: Callable[[int], object]
    ) -> Iterator[Reply]:
        """Yield the answers in the order of the questions, those that are recorded already without asking."""
        if self._recorder is None and self._record is not None:
            self._recorder = AnswerRecorder(self._record)
        recorder = self._recorder
        known = {at: entry for at, one in enumerate(asked) if (entry := self._known(recorder, model, one)) is not None}
        waiting = [at for at in range(len(asked)) if at not in known]
        # Log-likelihoods and generations are asked apart, the rows of each together.
        answers: dict[int, Answer] = {}
        done = len(known)
        for kind in ("loglikelihood", "generate"):
            places = [at for at in waiting if asked[at].ask.kind == kind]
            asks = [asked[at].ask for at in places]
            stream: Iterator[Answer] = model.loglikelihood(asks) if kind == "loglikelihood" else model.generate(asks)
            for at, answer in zip(places, stream, strict=True):
                answers[at] = answer
                done += 1
                show(done)
                if recorder is not None:
                    one, sent = asked[at], digest_of(answer.sent)
                    of = dict[str, Any](task=task.id, profile=profile, doc=one.doc, request=at, key=one.ask.key)
                    recorder.keep(RecordingEntry(**of, answer=answer, sent=sent, model=model.name, facts=model.facts))
        for at, one in enumerate(asked):
            if at in known:
                yield Reply(asked=one, answer=known[at].answer, sent=known[at].sent)
            else:
                yield Reply(asked=one, answer=answers[at], sent=digest_of(answers[at].sent))

    @staticmethod
    def _known(recorder: AnswerRecorder | None, model: Model, one: AskedQuestion) -> RecordingEntry | None:
        if isinstance(model, ReplayModel):
            return model.entry(one.ask)
        return recorder.known(one.ask, model.name) if recorder is not None else None


def _tokenizer_for(model: Model, profile: Profile) -> Tokenizer | None:
    if profile.tokenizer is None:
        return model.tokenizer
    own = load_tokenizer(profile.tokenizer)
    if model.tokenizer is not None and model.tokenizer.facts.digest != own.facts.digest:
        message = f"profile {profile.name!r} is for a model with the tokenizer {profile.tokenizer_name!r}"
        refusal = UnavailableError(f"{message}, but {model.name} has another tokenizer")
        raise refusal.because("profiles whose tokenizer is not the model's")
    return own
