"""Rules about the docs of the user after those that are rendered: each can be rendered, and its gold answer is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.rules import Finding, Severity, Study
from pytest_promptfmt.rules.completion_reader import scored_answers
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.study.gold import gold_kind
from pytest_promptfmt.tasks import FilterPipeline, Question, looks_for_answers, questions_of

_LONGEST: Final = 60
"""Characters of a gold answer that a sentence may give."""


@dataclass(frozen=True, slots=True)
class LocalDocs:
    """The user's docs, many more than are rendered, each with what scoring needs, up to one where that fails."""

    docs: Sequence[Mapping[str, Any]]
    questions: Sequence[Question]
    failure: PromptfmtError | None = None


def local_questions(study: Study) -> LocalDocs:
    """Return the user's docs with their golds and choices; none where nothing is rendered or scored by docs."""
    return study.once("local questions", lambda: _questions(study))


def _questions(study: Study) -> LocalDocs:
    docs = study.local_docs if study.failure is None and study.renders_fields else ()
    if not docs:
        return LocalDocs((), ())
    try:
        return LocalDocs(docs, questions_of(study.bound, docs))
    except PromptfmtError:
        pass
    questions: list[Question] = []
    for doc in docs:
        try:
            questions += questions_of(study.bound, [doc])
        except PromptfmtError as error:
            return LocalDocs(docs, questions, error)
    return LocalDocs(docs, questions)


@also("PF109", severity=Severity.ERROR)
def later_doc_fails(study: Study) -> Iterator[Finding]:
    """Report a local doc, after those that are rendered, of which a template or function fails.

    Fix: handle the values of this doc.
    """
    local = local_questions(study)
    number = len(local.questions)
    if local.failure is not None and number >= len(study.real_docs):
        yield Finding(
            message="a doc after those that are rendered fails",
            saw=local.failure.message,
            do=local.failure.hint or "",
            doc=number,
            position=local.failure.position,
        )


@also("PF512", severity=Severity.ERROR, scores=True)
def later_gold_misread(study: Study) -> Iterator[Finding]:
    """Report a gold answer that filters misread although they read those of the first docs in the same form.

    Fix: match all answers that the docs have: signs, separators, several digits or words.
    """
    if not study.generates or not looks_for_answers(study.task) or study.has_own_scorer:
        return
    local = local_questions(study)
    first = len(study.real_docs)
    if len(local.questions) <= first or gold_kind(study) != "text" or not study.task.filter_list:
        return
    chain, trials = scored_answers(study) or (None, ())
    if chain is None or not trials or any(trial.error or not _is_short(trial.gold) for trial in trials):
        return
    known = [(trial.question, trial.instance.doc) for trial in trials]
    asked = [form.written("{}") for form in study.contract.wrapped]
    forms = ["{}", *asked, *data_table("rules")["gold_forms"]]
    for number, pipeline in enumerate(chain.pipelines):
        read = [form for form in forms if all(_reads(chain, pipeline, form, *one) for one in known)]
        later = list(zip(local.questions, local.docs, strict=False))[first:]
        for doc, (question, row) in enumerate(later if read else (), first):
            if _is_short(question.target) and not any(_reads(chain, pipeline, form, question, row) for form in read):
                text = _said(read[0], question.target)
                saw = f"{text!r} is read as {chain.read(pipeline, text, row, 'a gold answer').extracted!r}"
                message = "a filter misreads the gold answer of a later doc"
                yield finding(message, saw, ("filter_list", number), doc)
                return


def _is_short(gold: Any) -> bool:
    return isinstance(gold, str | int | float) and 0 < len(str(gold).strip()) <= _LONGEST and "\n" not in str(gold)


def _said(form: str, gold: Any) -> str:
    return form.replace("{{", "{").replace("}}", "}").replace("{}", str(gold).strip(), 1)


def _reads(chain: Chain, pipeline: FilterPipeline, form: str, question: Question, doc: Mapping[str, Any]) -> bool:
    """Return whether the gold answer, given in a form, is right."""
    stages = chain.read(pipeline, _said(form, question.target), doc, "a gold answer")
    try:
        return stages.problem is None and chain.is_right(question, doc, stages.extracted)
    except PromptfmtError:
        raise
    except Exception:
        return False
