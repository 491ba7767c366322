"""A task's own answers: those of its few-shot examples, gold answers, and texts that its filters find.

The battery tries these; here is how they are found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from pytest_promptfmt.answers.completions import Chain, is_nothing
from pytest_promptfmt.answers.phrasings import (
    DEGENERATE_LENGTH,
    Answers,
    choice_phrasings,
    contract_sentences,
    number_phrasings,
)
from pytest_promptfmt.core.task import UNSET, Task
from pytest_promptfmt.study.scoring import Scoring, token_budget

_ASKED_IN_DEMO: Final = re.compile(r"(?i)answer is:?\s*\(?([^\s().]+)\)?|####\s*(\S+)|boxed\{([^{}]*)\}")
_PER_TOKEN: Final = 10
"""Characters of a long token; a word has four or five."""

_DEFAULT_BUDGET: Final = 256

SHORT_WORDS: Final = 8
"""Words of an answer that is an answer and no reasoning."""


def _longest_completion(task: Task) -> int:
    """Return the characters of a degenerate completion, as far as the token budget has room for them.

    lm-eval's models generate 256 tokens for a task that sets no budget; other systems have budgets of their own.
    """
    budget = token_budget(task) or (_DEFAULT_BUDGET if task.system == "lm-eval" else None)
    return DEGENERATE_LENGTH if budget is None else min(DEGENERATE_LENGTH, max(1, budget * _PER_TOKEN // 1000) * 1000)


class Subject:
    """A task with its rendered docs, and the texts that are read from them once; `doc` is the first of them."""

    def __init__(self, scoring: Scoring) -> None:
        self.task, self.instances = scoring.task, scoring.instances
        self.synthetic, self.questions = scoring.is_synthetic, scoring.questions
        scoring.pipelines  # noqa: B018  # a filter that cannot be built is one failure, not one for every phrasing
        self.chain = Chain(self.task, scoring.stops, is_synthetic=scoring.is_synthetic)
        self.doc = self.instances[0].doc
        self.longest = _longest_completion(self.task)
        spans = [span for span in self.instances[0].prompts[0].spans if span.origin.shot is None]
        self.prompt = "".join(span.text for span in spans)
        self.prefix = "".join(span.text for span in spans if span.origin.part == "gen prefix")

    def imagined(self, answers: Answers) -> Answers:
        """Return answers that the filters find, where synthetic docs give a text that none of them finds.

        The right answer then is what the filters make of `C` or of `42`, whichever more of them find.
        """
        if callable(self.task.process_results) or self.questions[0].has_several_targets:
            return answers
        text, pipelines = answers.labels[0], self.chain.pipelines
        if any(str(self.chain.read(one, text, self.doc, "a text").extracted).strip() == text for one in pipelines):
            return answers
        options = Answers(
            kind="choice", labels=tuple("ABCD"), texts=("",) * 4, targets=("(A)", "(B)", "(C)", "(D)"), gold=2
        )
        number = Answers(kind="number", labels=("42",), texts=("",), targets=("42",), gold=0, number="42")
        best, most = answers, 0
        for imagined, tried in ((options, choice_phrasings(options)), (number, number_phrasings())):
            label = imagined.labels[imagined.gold]
            asked = contract_sentences(self.prompt, imagined, self.prefix)
            forms = [*asked, *(one.text for one in tried if one.kind == "tolerance" or one.number == label)]
            found = [[self.chain.read(one, form, self.doc, "a form").extracted for form in forms] for one in pipelines]
            hits = [[one for one in each if one in (label, f"({label})")] for each in found]
            if (finding := sum(map(bool, hits))) > most:
                first = next(one for form in zip(*found, strict=True) for one in form if one in (label, f"({label})"))
                best, most = replace(imagined, targets=imagined.labels) if first == label else imagined, finding
        return best

    def is_own_gold(self, extracted: Any, text: str) -> bool:
        """Return whether an extraction from a few-shot answer is right: all of it, or the part marked as the answer."""
        if _marks(text, str(extracted).strip()):
            return True
        asked = [part for found in _ASKED_IN_DEMO.findall(text) for part in found if part]
        golds = [text, text.strip(), *[made for part in asked[-1:] for made in (part, f"({part})", part.rstrip("."))]]
        question = replace(self.questions[0], choices=None, has_several_targets=False)
        if callable(self.task.process_results):
            return str(extracted).strip() in golds or not is_nothing(extracted)
        for gold in golds:
            try:
                if self.chain.is_right(replace(question, target=gold), self.doc, extracted):
                    return True
            except Exception:
                continue
        is_long = len(text.split()) > SHORT_WORDS
        return is_long and not asked and not is_nothing(extracted)

    def marks_answer(self, text: str) -> bool:
        """Return whether a few-shot answer marks which part of it is the answer."""
        return bool(_ASKED_IN_DEMO.search(text))

    def own_texts(self) -> list[str | None]:
        """Return each doc's answer as a few-shot example would show it; None where it is not text."""
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

    def shot_answers(self) -> Iterator[str]:
        """Yield the answers of the first doc's few-shot examples, without gen prefix."""
        for message in self.instances[0].prompts[0].messages:
            spans = [span for span in message.content if span.origin.part == "answer" and span.origin.shot is not None]
            text = "".join(span.text for span in spans)
            if message.role == "assistant" and text:
                yield text

    def delimited(self, text: str) -> str:
        """Return an answer as it follows the prompt, with the delimiter that few-shot examples show."""
        if self.task.gen_prefix:
            return text if text[:1].isspace() else f" {text}"
        delimiter = self.task.target_delimiter
        return text if self.instances[0].prompts[0].text[-1:].isspace() else f"{delimiter}{text}"


def _marks(text: str, extracted: str) -> bool:
    """Return whether a few-shot answer marks this, and not only the beginning of a word, as the answer."""
    _, cue, rest = text.rpartition("answer is")
    rest = rest.lstrip(" :")
    whole = extracted.count("(") <= extracted.count(")") and not rest[len(extracted) : len(extracted) + 1].isalnum()
    return bool(cue and extracted) and rest.startswith(extracted) and whole
