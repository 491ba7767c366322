"""Rules about forms that completions have: special tokens, code blocks, and sentences that the prompt asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.phrasings import Answers, contract_sentences
from pytest_promptfmt.answers.trials import AnswerTrial, trials_of
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.captures import chain_of, read_by
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.rules.smoke import scoring_failure
from pytest_promptfmt.study import Study
from pytest_promptfmt.tasks import FilterPipeline, looks_for_answers

_BARS: Final = re.compile(r"(?<!\\)<\|[\w ]+\|>|(?<!\\)\[/?(?:INST|SEP|CLS|PAD|MASK|BOS|EOS|ANSWER)\](?![*+?{])")
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_CODE: Final = "def double(x):\n    return 2 * x"
_LANGUAGES: Final = ("python", "py", "json", "sql", "cpp", "java")
_SHORT: Final = 60
"""Characters of a gold answer that a sentence may end with."""


@rule("PF522", "special-token-as-pattern", severity=Severity.ERROR, family=Family.EXTRACTION)
def special_token_as_pattern(study: Study) -> Iterator[Finding]:
    r"""Report a special token in a pattern whose bars or brackets are not escaped.

    Why: in a pattern `<|endoftext|>` means `<` or `endoftext` or `>`, and `[INST]` is one of four letters. The
    completion is cut at the first less-than sign, or an answer is read anywhere.

    Example:
        output_type: generate_until
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: "(.*?)(?:<|endoftext|>|$)"}, {function: take_first}]}

    Silent with:
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: '(.*?)(?:<\|endoftext\|>|$)'}, {function: take_first}]}

    Fix: put a backslash before each bar or bracket of the token.

    Real: bigcode-project/bigcode-evaluation-harness #121 (mbpp).
    """
    for keys, text in study.strings:
        found = _BARS.search(text) if any("regex" in str(key) for key in keys[-3:]) else None
        if found is not None:
            yield finding("a special token is read as a pattern", found[0], keys)


@rule("PF524", "fence-with-language-only", severity=Severity.WARNING, family=Family.EXTRACTION, scope="scoring")
def fence_with_language(study: Study) -> Iterator[Finding]:
    r"""Report filters that find code only in a block that names its language, which the prompt does not ask for.

    Why: models write ```` ```python ```` and ```` ``` ````. Code in the latter is not found, and counts as wrong.

    Example:
        output_type: generate_until
        doc_to_text: "Write a function. {{question}}\n"
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: '```python\n([\s\S]*?)```'}, {function: take_first}]}

    Silent with:
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: '```(?:python)?\n([\s\S]*?)```'}, {function: take_first}]}

    Fix: make the language optional, `(?:python)?`, or ask for it in the prompt.

    Real: UKGovernmentBEIS/inspect_evals #2170 (mbpp), where five other tasks had the same pattern.
    """
    chain = chain_of(study)
    if chain is None:
        return
    prompt = trials_of(study).scoring.instances[0].prompts[0].text
    missed = []
    for number, pipeline in enumerate(chain.pipelines):
        if not pipeline.patterns or read_by(study, chain, pipeline, f"```\n{_CODE}\n```") == _CODE:
            return
        tags = (one for one in _LANGUAGES if f"```{one}" not in prompt)
        tag = next((one for one in tags if read_by(study, chain, pipeline, f"```{one}\n{_CODE}\n```") == _CODE), None)
        if tag is not None:
            missed.append((number, tag))
    for number, tag in missed[:1]:
        yield finding(
            "a filter finds code only in a block that names its language",
            f"```{tag} is read, ``` is not",
            ("filter_list", number),
        )


@rule("PF525", "asked-sentence-compared-whole", severity=Severity.ERROR, family=Family.EXTRACTION, scores=True)
def asked_sentence_compared(study: Study) -> Iterator[Finding]:
    r"""Report a prompt that asks for a sentence with the answer, where whole completions are compared with the answer.

    Why: a model that ends with `The answer is Lisbon`, as asked, is wrong, because no filter takes `Lisbon` out
    of it.

    Example:
        output_type: generate_until
        doc_to_text: "{{question}}\nEnd with \"The answer is [answer]\".\n"
        filter_list: [{name: x, filter: [{function: remove_whitespace}, {function: take_first}]}]

    Silent with:
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "answer is (.+)"}, {function: take_first}]}]

    Fix: add a filter that picks the answer, or ask for the answer alone.

    Real: facebookresearch/multiloko #10.
    """
    if not study.generates or looks_for_answers(study.task) or study.has_own_scorer or study.has_guessed_text:
        return
    if set(study.metrics or ("exact_match",)) != {"exact_match"} or scoring_failure(study) is not None:
        return
    try:
        trials = trials_of(study)
    except PromptfmtError:
        return  # the item that scores says why
    for trial in trials.answers[:1] if trials.chain is not None else ():
        gold, chain = trial.gold, trials.chain
        if not gold or len(gold) > _SHORT or "\n" in gold:
            return
        said = Answers(kind="text", labels=(gold,), texts=("",), targets=(gold,), gold=0)
        asked = contract_sentences(trial.instance.prompts[0].text, said, str(study.task.gen_prefix or ""))
        for sentence in (one for one in asked if _WORD.search(one.replace(gold, ""))):
            if chain is None or any(_is_right(chain, one, trial, sentence) for one in chain.pipelines):
                return
            yield finding(
                "the prompt asks for a sentence, and the whole completion is compared with the answer",
                f"{sentence!r}, gold {gold!r}",
                "filter_list" if study.task.filter_list else "metric_list",
            )
            return


def _is_right(chain: Chain, pipeline: FilterPipeline, trial: AnswerTrial, sentence: str) -> bool:
    """Return whether a sentence scores as the answer in it does; so does one that cannot be tried."""
    stages = chain.read(pipeline, sentence, trial.instance.doc, "the sentence that the prompt asks for")
    try:
        return stages.problem is not None or chain.is_right(trial.question, trial.instance.doc, stages.extracted)
    except PromptfmtError:
        raise
    except Exception:
        return True
