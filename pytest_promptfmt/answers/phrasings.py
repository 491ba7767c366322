"""The possible answers to a doc, read from target and prompt, and ways to write them, made without a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal, get_args

from pytest_promptfmt.answers.completions import Chain, is_nothing
from pytest_promptfmt.answers.metric_scores import gold_text
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.task import UNSET, Task
from pytest_promptfmt.study.contract import contract_of, without_begun
from pytest_promptfmt.study.requested_labels import Form
from pytest_promptfmt.study.scoring import Scoring, token_budget
from pytest_promptfmt.tasks import FilterPipeline, Question

_LABEL_TARGET: Final = re.compile(r"([(\[\"'* ]*)([A-Za-z]|[1-9]|[α-ω]|[ㄱ-ㅎ가-하])([)\].\"'*: ]*)")
_OPTION: Final = re.compile(
    r"(?:^|(?<=\s))[(\[]?([A-Za-z]|[1-9])[)\].:、：](?=\s)[ \t]*(\S[^\n]{0,200}?)[ \t]*$", re.MULTILINE
)
_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_FINAL_NUMBER: Final = re.compile(
    rf"(?:.*\s)?#### ?({_NUMBER.pattern})\.?\s*|[$€£]?({_NUMBER.pattern})%?\.?", re.DOTALL
)
_MOST_OPTIONS: Final = 10

_MARKS_AT_END: Final = " \n.!。！)]}*$"
_ASKED_IN_DEMO: Final = re.compile(r"(?i)answer is:?\s*\(?([^\s().]+)\)?|####\s*(\S+)|boxed\{([^{}]*)\}")
_PER_TOKEN: Final = 10
"""Characters of a long token; a word has four or five."""

_DEFAULT_BUDGET: Final = 256

SHORT_WORDS: Final = 8
"""Words of an answer that is an answer and no reasoning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """The possible answers to one doc.

    `labels` and `texts` name the options (one label for what has no options: the answer itself); `targets` is what the
    scorer compares each with; `gold` is the index of the right one; `number` is the number within a numeric target.
    """

    kind: Literal["choice", "number", "text"]
    labels: tuple[str, ...]
    texts: tuple[str, ...]
    targets: tuple[Any, ...]
    gold: int
    number: str | None = None

    def target_with(self, number: str) -> Any:
        """Return a numeric target with another number in it."""
        target = str(self.targets[self.gold])
        start = target.rindex(self.number or "")
        return target[:start] + number + target[start + len(self.number or "") :]


def answers_of(question: Question, prompt: str) -> Answers | None:
    """Return the possible answers to a generation doc; None for a target that is neither text nor number."""
    target = question.target
    if question.choices is not None:
        return _of_choices(question, prompt)
    if question.has_several_targets:
        return _text(str(target[0]), list(target)) if isinstance(target, list) and target else None
    if not isinstance(target, str | int | float) or isinstance(target, bool):
        return None
    return _labelled(str(target), prompt) or _numeric(str(target)) or _text(str(target), str(target))


def _of_choices(question: Question, prompt: str) -> Answers | None:
    choices, gold = question.choices, question.target
    if not isinstance(gold, int) or not isinstance(choices, list | tuple) or not 0 <= gold < len(choices):
        return None
    if not all(isinstance(choice, str) and choice.strip() for choice in choices):
        return None
    labelled = _labelled(choices[gold], prompt)
    labels = tuple(_bare(choice) for choice in choices)
    texts = labelled.texts if labelled is not None and len(labelled.texts) == len(choices) else ("",) * len(choices)
    return Answers(kind="choice", labels=labels, texts=texts, targets=tuple(choices), gold=gold)


def _bare(text: str) -> str:
    match = _LABEL_TARGET.fullmatch(text)
    return match[2] if match else text.strip()


def _labelled(target: str, prompt: str) -> Answers | None:
    """Return the options of the prompt when the target is the label of one of them."""
    match = _LABEL_TARGET.fullmatch(target)
    options = _last_options(prompt) if match else ()
    labels = tuple(label for label, _ in options)
    if match is None or match[2] not in labels:
        return None
    return Answers(
        kind="choice",
        labels=labels,
        texts=tuple(text for _, text in options),
        targets=tuple(f"{match[1]}{label}{match[3]}" for label in labels),
        gold=labels.index(match[2]),
    )


def _last_options(prompt: str) -> Sequence[tuple[str, str]]:
    """Return the last run of options in the prompt: labels that follow each other, from the first of their kind."""
    runs: list[list[tuple[str, str]]] = []
    for found in _OPTION.finditer(prompt):
        label, text = found[1], found[2]
        if runs and ord(label) == ord(runs[-1][-1][0]) + 1:
            runs[-1].append((label, text))
        elif label in "Aa1":
            runs.append([(label, text)])
    runs = [run for run in runs if len(run) > 1]
    return runs[-1][:_MOST_OPTIONS] if runs else ()


def _numeric(target: str) -> Answers | None:
    match = _FINAL_NUMBER.fullmatch(target.strip())
    if match is None:
        return None
    number = match[1] or match[2]
    return Answers(kind="number", labels=(number,), texts=("",), targets=(target,), gold=0, number=number)


def _text(text: str, target: Any) -> Answers:
    return Answers(kind="text", labels=(text,), texts=("",), targets=(target,), gold=0)


PhrasingClass = Literal["contract", "own", "hazard", "abstain", "tolerance", "numeric", "degenerate"]
CLASSES: Final[tuple[PhrasingClass, ...]] = get_args(PhrasingClass)


@dataclass(frozen=True, kw_only=True, slots=True)
class Phrasing:
    """One completion. `answer` is False where nothing should be read; `number` is the number it gives, if another."""

    id: str
    kind: PhrasingClass
    text: str
    answer: bool = True
    number: str | None = None


_HEAD: Final = re.compile(r"(?:\(\?[a-z]+\))?((?:\\[^\w\s]|[^\\.^$*+?{}\[\]|()])*)")
_LAST: Final = re.compile(r"\\?.\Z", re.DOTALL)
_LEAST_HEAD: Final = 3
"""Characters of a text that are hardly ever in a prompt by chance."""

_OTHER_FORM: Final = re.compile(
    r"(?i)\bjson\b|\bxml\b|\byaml\b|</\w+>|\\boxed|\bformat|\bformato\b|\bin (?:the|this) (?:form|manner)\b"
    r"|格式|形式|형식|формат|\blast line\b|\b(?:end|finish|conclude) (?:your|the|with|by)\b"
    r"|\bcode block\b|\bbrackets\b|\blist of\b|```"
)


REASONING: Final = re.compile(r"(?i)step[- ]by[- ]step|reasoning|explain|think")
_REFUSED: Final = re.compile(r"(?i)(?:\b(?:not|no|never|without|avoid)|n['’]t)(?:,? (?!but\b|only\b)[\w-]+){0,5},? ?\Z")
"""A negation and the words up to a place: `Do not explain`, `without any reasoning`."""

_FAR: Final = 60
"""Characters before a word within which its negation is sought."""


def asks_for_reasoning(prompt: str) -> bool:
    """Return whether a prompt mentions reasoning, and does not refuse it."""
    places = (found.start() for found in REASONING.finditer(prompt))
    return any(not _REFUSED.search(prompt, max(0, at - _FAR), at) for at in places)


def contract_sentences(prompt: str, answers: Answers, prefix: str = "") -> list[str]:
    """Return the sentences in which a prompt requests the answer, filled with it; each once.

    They are the forms of its contract, or the label or number where the prompt requests nothing else. A sentence that
    the prompt itself has begun, by a gen prefix, continues where the prefix ends.
    """
    contract, bare = contract_of(prompt), answers.labels[answers.gold]
    found = [form.written(bare) for form in contract.wrapped]
    if not found and answers.kind != "text":
        form: Form = "letter" if answers.kind == "choice" else "number"
        is_certain = any(one.is_certain for one in contract.of(form))
        found += [bare] if is_certain and not asks_another_form(prompt) else []
    return without_begun(found, prefix)


def _literal_head(pattern: str) -> str:
    """Return the text that each match of a pattern begins with, without whitespace around it."""
    head = _HEAD.match(pattern)
    assert head is not None  # it may be empty
    whole = head[1] if pattern[head.end() :][:1] not in {*"*+?{"} else _LAST.sub("", head[1])
    return re.sub(r"\\(.)", r"\1", whole).strip()


def asks_another_form(prompt: str) -> bool:
    """Return whether a prompt requests more than the mere answer: JSON, tags, a box, a last line, code."""
    return bool(_OTHER_FORM.search(prompt))


def answer_words() -> Mapping[str, str]:
    """Return the word for "answer" before a colon by language code."""
    words: Mapping[str, str] = data_table("phrasings")["answer_words"]
    return words


def choice_phrasings(answers: Answers, prompt: str = "") -> Iterator[Phrasing]:
    """Yield the phrasings of a labelled option, by the classes of the module's first lines.

    With a `prompt`, one of them repeats only that, unless it shows an answer in the very form that it requests, and
    none repeats a request for a form that it does not have.
    """
    count, labels = len(answers.labels), answers.labels
    right, text = labels[answers.gold], answers.texts[answers.gold]
    following = chr(ord(labels[-1][0]) + 1)
    options = (f"{label}. {text}".rstrip() for label, text in zip(labels, answers.texts, strict=True))
    values = {
        "right": right,
        "lower": right.lower(),
        "fullwidth": "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in right),
        "text": text,
        "wrong": labels[(answers.gold - 2) % count if count > 2 else 1 - answers.gold],
        "other": labels[(answers.gold - 1) % count],
        "question": "Question:",
        "answer": "Answer:",
        "options": "\n".join(options),
        "next": following,
    }
    yield from _filled_in("forms", "tolerance", values)
    yield from _filled_in("forms_with_text", "tolerance", values if text else None)
    has_request = not prompt or contract_of(prompt).wrapped
    hazards = _filled_in("hazards", "hazard", values)
    yield from (each for each in hazards if has_request or each.id != "echo-instruction")
    yield from _filled_in("hazards_of_three", "hazard", values if count > 2 else None)
    is_letter = right.isascii() and right.isalpha() and len(right) == 1
    yield from _filled_in("hazards_of_letters", "hazard", values if is_letter else None)
    for language, word in answer_words().items():
        colon = "：" if language in ("zh", "ja") else ":"
        kind: PhrasingClass = "hazard" if any(label in word for label in labels) else "tolerance"
        yield Phrasing(id=f"word-{language}", kind=kind, text=f"{word}{colon} {right}")
    yield from _filled_in("nothing", "abstain", values, answer=False)
    yield from _filled_in("abstentions", "abstain", values, answer=False)
    has_next = len(labels[-1]) == 1 and following.isalnum()
    yield from _filled_in("abstentions_out_of_range", "abstain", values if has_next else None, answer=False)
    shows_answer = any(one.written(label) in prompt for one in contract_of(prompt).wrapped for label in labels)
    if prompt.strip() and not shows_answer:
        yield Phrasing(id="prompt-again", kind="abstain", text=prompt, answer=False)


_GAP: Final = re.compile("‹([a-z]+)›")


def _filled_in(
    section: str, kind: PhrasingClass, values: Mapping[str, str] | None, *, answer: bool = True
) -> Iterator[Phrasing]:
    """Yield the phrasings of a section of the table with these values; nothing where they do not apply."""
    if values is not None:
        for name, form in data_table("phrasings")[section].items():
            text = _GAP.sub(lambda gap: values[gap[1]], form)
            yield Phrasing(id=name, kind=kind, text=text, answer=answer)


def number_phrasings() -> Iterator[Phrasing]:
    """Yield ways to write numbers; each brings the number that should be read."""
    for name, (text, number) in data_table("phrasings")["numbers"].items():
        yield Phrasing(id=name, kind="numeric", text=text, number=number)
    for language, word in answer_words().items():
        yield Phrasing(id=f"word-{language}", kind="numeric", text=f"{word}: 42", number="42")
    yield from _filled_in("nothing", "abstain", {}, answer=False)
    yield from _filled_in("number_abstentions", "abstain", {}, answer=False)
    yield from _filled_in("number_tolerances", "tolerance", {}, answer=False)


DEGENERATE_LENGTH: Final = 20_000
"""Characters of a degenerate completion."""

_LENGTHS: Final = (1_000, 2_000, 4_000, 8_000, DEGENERATE_LENGTH)
"""A few lengths, far apart: what is just fast enough for one of them is not just too slow for another."""


@cache
def degenerate_phrasings(length: int = DEGENERATE_LENGTH) -> tuple[Phrasing, ...]:
    """Return completions of one thing over and over, with so many characters, each with an end that fits nothing."""
    units: Mapping[str, str] = data_table("phrasings")["degenerate"]
    texts = {name: (unit * (length // len(unit) + 1))[:length] + "!" for name, unit in units.items()}
    texts["labels-then-words"] = "A " * (length // 2) + "words " * (length // 2)
    # Quadratic patterns need many of these before they are slow.
    texts["open-think"] = f"{'<think>' * length}!"
    texts["ANSWER-spaces"] = f"ANSWER:{' ' * length}!"
    texts["boxed-letters"] = f"\\boxed{{{'a' * length}"
    return tuple(Phrasing(id=name, kind="degenerate", text=text, answer=False) for name, text in texts.items())


def _longest_completion(task: Task) -> int:
    """Return the characters of a degenerate completion, as far as the token budget has room for them.

    lm-eval's models generate 256 tokens for a task that sets no budget; other systems have budgets of their own.
    """
    budget = token_budget(task) or (_DEFAULT_BUDGET if task.system == "lm-eval" else None)
    return max((each for each in _LENGTHS if budget is None or each <= budget * _PER_TOKEN), default=_LENGTHS[0])


class Subject:
    """A task with its rendered docs, and the texts that are read from them once; `doc` is the first of them."""

    def __init__(self, scoring: Scoring) -> None:
        self.task, self.instances = scoring.task, scoring.instances
        self.synthetic, self.questions = scoring.is_synthetic, scoring.questions
        self.makes_shots = scoring.docs.fewshot_kind != "given"
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
        if any(
            str(_alone(self.chain.read(one, text, self.doc, "a text").extracted)).strip() == text for one in pipelines
        ):
            return answers
        options = Answers(
            kind="choice", labels=tuple("ABCD"), texts=("",) * 4, targets=("(A)", "(B)", "(C)", "(D)"), gold=2
        )
        number = Answers(kind="number", labels=("42",), texts=("",), targets=("42",), gold=0, number="42")
        best, most, tries = answers, 0, []
        for imagined, tried in ((options, choice_phrasings(options)), (number, number_phrasings())):
            label = imagined.labels[imagined.gold]
            asked = contract_sentences(self.prompt, imagined, self.prefix)
            forms = [*asked, *(one.text for one in tried if one.kind == "tolerance" or one.number == label)]
            tries.append((imagined, label, forms))
        self.chain.expect([(form, self.doc) for _, _, forms in tries for form in forms])
        for imagined, label, forms in tries:
            read = [[self.chain.read(one, form, self.doc, "a form").extracted for form in forms] for one in pipelines]
            found = [[*map(_alone, each)] for each in read]
            hits = [[one for one in each if one in (label, f"({label})")] for each in found]
            if (finding := sum(map(bool, hits))) > most:
                first = next(one for form in zip(*found, strict=True) for one in form if one in (label, f"({label})"))
                best, most = replace(imagined, targets=imagined.labels) if first == label else imagined, finding
        return best

    def is_own_gold(self, extracted: Any, text: str) -> bool:
        """Return whether an extraction from a few-shot answer is right: all of it, or the part marked as the answer."""
        found = str(extracted).strip()
        ends = (form.written(found).strip(" .") for form in contract_of(self.prompt).wrapped if found)
        if _marks(text, found) or _ends_with(text, found) or any(text.strip(" .\n").endswith(end) for end in ends):
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
        shown = self.task.fewshot.doc_to_target in (UNSET, None, self.task.doc_to_target)
        golds = [gold_text(question) if not isinstance(question.target, bool) else None for question in self.questions]
        return [gold if shown and gold is not None and gold.strip() else None for gold in golds]

    def shows_form(self, pipeline: FilterPipeline) -> bool:
        """Return whether instructions, or few-shot examples if there are any, hold the text that a filter begins with.

        Then they show the form that it reads, in any language, and a bare answer has another form.
        """
        above, _, last = self.prompt.rstrip().rpartition("\n")
        shown = list(self.shot_answers()) or [above if last.endswith((":", "：")) else self.prompt]
        heads = (_literal_head(pattern) for pattern in pipeline.patterns)
        return any(len(head) >= _LEAST_HEAD and head in text for head in heads for text in shown)

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


def _alone(extracted: Any) -> Any:
    """Return what was extracted, out of the list of a pipeline that takes no first response."""
    return extracted[0] if isinstance(extracted, list) and len(extracted) == 1 else extracted


def _ends_with(text: str, extracted: str) -> bool:
    """Return whether a longer text ends with an answer, apart from marks, and not with the end of a word or number."""
    end = text.rstrip(_MARKS_AT_END)
    before = end[: -len(extracted)][-1:]
    is_inside = before.isdigit() if extracted[:1].isdigit() else before.isascii() and before.isalpha()
    return 0 < len(extracted) < len(text.strip(_MARKS_AT_END)) and end.endswith(extracted) and not is_inside


def _marks(text: str, extracted: str) -> bool:
    """Return whether a few-shot answer marks this, and not only the beginning of a word, as the answer."""
    _, cue, rest = text.rpartition("answer is")
    rest = rest.lstrip(" :")
    whole = extracted.count("(") <= extracted.count(")") and not rest[len(extracted) : len(extracted) + 1].isalnum()
    return bool(cue and extracted) and rest.startswith(extracted) and whole
