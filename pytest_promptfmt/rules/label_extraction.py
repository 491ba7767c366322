"""Rules about answers that name an option: by its label among other words, or by its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.trials import AnswerTrial, trials_of
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.answer_forms import asks_for_label_alone
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.rules.smoke import scoring_failure
from pytest_promptfmt.study import Study
from pytest_promptfmt.tasks import FilterPipeline, looks_for_answers

_FEWEST: Final = 3
"""Options from which on labels are labels, and no Yes and No."""

_FEW_TOKENS: Final = 10
"""A budget that has room for a label alone."""

_LONGEST: Final = 200


def _trials(study: Study) -> tuple[Chain | None, tuple[AnswerTrial, ...]]:
    """Return the filters and metrics, and the docs whose answer is one of several options; none without options."""
    if not study.generates or study.has_own_scorer or study.has_guessed_text or scoring_failure(study) is not None:
        return None, ()
    try:
        trials = trials_of(study)
    except PromptfmtError:
        return None, ()  # the item that scores says why
    chosen = (trial for trial in trials.answers if trial.answers.kind == "choice" and not trial.error)
    return trials.chain, tuple(trial for trial in chosen if len(trial.answers.labels) >= _FEWEST)


@rule("PF534", "label-compared-whole", severity=Severity.WARNING, family=Family.EXTRACTION)
def label_compared_whole(study: Study) -> Iterator[Finding]:
    r"""Report a prompt with options, without examples, whose whole completion is compared with the label.

    Why: a model that has seen no example writes `Answer: B` or a sentence. Both are compared with `B` and wrong.
    Nothing is reported if the prompt asks for the label alone, if there is a `gen_prefix`, or if only a few tokens are
    generated.

    Example:
        output_type: generate_until
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nAnswer:"
        doc_to_target: "{{'ABC'[answer]}}"
        metric_list: [{metric: exact_match}]

    Silent with:
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: "\\b([ABC])\\b"}, {function: take_first}]}

    Fix: add a filter that picks the label, or ask for the label alone.

    Real: lm-evaluation-harness #3842 (kormedmcqa).
    """
    if not study.generates or study.shots > 0 or looks_for_answers(study.task) or study.task.gen_prefix:
        return
    kwargs = study.task.generation_kwargs
    budget = kwargs.get("max_gen_toks") if isinstance(kwargs, Mapping) else None
    chain, trials = _trials(study)
    if chain is None or not trials or (isinstance(budget, int) and budget <= _FEW_TOKENS):
        return
    if asks_for_label_alone(trials[0].instance):
        return
    trial = trials[0]
    label = trial.answers.labels[trial.answers.gold]
    forms = (f"Answer: {label}", f"The answer is {label}")
    pipeline = chain.pipelines[0]
    if _scores(chain, pipeline, trial, trial.gold) and not any(_scores(chain, pipeline, trial, one) for one in forms):
        yield finding(
            "the label of an option is compared with the whole completion",
            f"{forms[0]!r} and {forms[1]!r} are wrong, {trial.gold!r} is right",
            "metric_list",
            trial.instance,
        )


def _scores(chain: Chain, pipeline: FilterPipeline, trial: AnswerTrial, text: str) -> bool:
    doc = trial.instance.doc
    stages = chain.read(pipeline, text, doc, "a probe")
    return stages.problem is None and chain.is_right(trial.question, doc, stages.extracted)


@rule("PF535", "text-of-option-misread", severity=Severity.ERROR, family=Family.EXTRACTION, scope="scoring")
def text_of_option_misread(study: Study) -> Iterator[Finding]:
    r"""Report a filter that finds options by their texts, and takes the text of one for another.

    Why: a pattern of all texts takes the first that fits: `tin` wins in `tin foil`. The docs whose right option begins
    with another one, or has it inside, are counted as wrong.

    Example:
        # file: example.yaml
        output_type: generate_until
        doc_to_text: "{{question}}\n(A) {{choices[0]}}\n(B) {{choices[1]}}\n(C) {{choices[2]}}\nAnswer:"
        doc_to_target: "{{['(A)', '(B)', '(C)'][answer]}}"
        filter_list: [{name: x, filter: [{function: !function helper.ByText}, {function: take_first}]}]
        metadata: {promptfmt: {docs: [{question: Which wraps?, choices: [tin, tin foil, oak], answer: 1}]}}
        # file: helper.py
        class ByText:
            def apply(self, resps, docs):
                return [[self.read(text, doc) for text in texts] for texts, doc in zip(resps, docs)]
            def read(self, text, doc):
                for label, choice in zip(["(A)", "(B)", "(C)"], doc["choices"]):
                    if choice in text:
                        return label
                return text

    Silent with:
        # file: helper.py
        class ByText:
            def apply(self, resps, docs):
                return [[self.read(text, doc) for text in texts] for texts, doc in zip(resps, docs)]
            def read(self, text, doc):
                found = [pair for pair in zip(doc["choices"], ["(A)", "(B)", "(C)"]) if pair[0] in text]
                return max(found, key=lambda pair: len(pair[0]))[1] if found else text

    Fix: try the longest texts first.

    Real: bbh of lm-evaluation-harness before 0.4.13, and its filter multi_choice_regex before that.
    """
    if not study.generates or not study.has_real_docs or not looks_for_answers(study.task):
        return
    chain, trials = _trials(study)
    for number, pipeline in enumerate(chain.pipelines if chain is not None else ()):
        for trial in trials:
            answers = trial.answers
            if chain is None or not all(answers.texts) or max(map(len, answers.texts)) > _LONGEST:
                continue
            targets = [str(target) for target in answers.targets]
            read = [str(chain.read(pipeline, text, trial.instance.doc, "a probe").extracted) for text in answers.texts]
            own = [said == target for said, target in zip(read, targets, strict=True)]
            wrong = next((at for at, said in enumerate(read) if not own[at] and said in targets), None)
            if wrong is not None and sum(own) >= len(own) // 2:
                yield finding(
                    "a filter takes the text of an option for another option",
                    f"{answers.texts[wrong]!r} is read as {read[wrong]!r}, and is {targets[wrong]!r}",
                    ("filter_list", number),
                    trial.instance,
                )
                return
