"""The text that the tiny model is trained on: our own formats over questions whose answer stands in the question.

Everything is drawn from one seeded generator, so the same numbers give the same text on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pytest_promptfmt import PLAIN, Profile, Task, TaskDocs, builtin_profile, load_tasks
from pytest_promptfmt.core.prompt import Instance

_LIST: Final = """
apple arrow basket bell bird boat book bottle bread bridge brush bucket butter button cabin candle carpet cat chair
cheese circle clock cloud coat coin copper corn cotton crown cup desk dog door dragon drum eagle engine farm feather
fence field fire fish flag flower forest fork fox frog garden gate ghost glass glove goat gold grape grass hammer
harbour hat hill honey horse house ice iron island jacket jar key king kite knife ladder lake lamp leaf lemon letter
lion map marble milk mirror moon mountain mouse nail needle nest oak ocean onion orange owl paint paper parrot pear
pencil pepper piano pillow plate pocket pond potato queen rabbit radio rain ribbon ring river road robot rocket roof
rope rose sailor salt sand saw school shadow sheep shell ship shoe silver sister snake snow soap sock spider spoon
star stone storm sugar sun table tailor tea tent tiger tower train tree truck turtle valley village violin wagon
wall water whale wheel whistle window winter wolf wool
"""

WORDS: Final = tuple(_LIST.split())

QUESTIONS: Final = (
    "Which of these is the {word}?",
    "Which one is the {word}?",
    "What is another name for the {word}?",
    "Who asked for the {word}?",
    "Which word means {word}?",
    "The {word} is the same as what?",
    "Find the {word}.",
    "What do we call the {word} here?",
)

TASK: Final[Mapping[str, Any]] = {
    "task": "tiny",
    "test_split": "test",
    "doc_to_text": "question",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
}

END_OF_TEXT: Final = "\n\n"
END_OF_TURN: Final = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Form:
    """A format, and what the model learns to write after its prompts; a chat turn drops the blank it begins with."""

    formats: str | Mapping[str, Any]
    answer: str
    labels: str = "ABCDEF"


FORMS: Final = (
    Form("mcqa", " {label}"),
    Form("cloze", " {word}"),
    Form("generate", " {label}"),
    Form("cot", "The {word} is named. The final answer is {word}"),
    Form("mcqa", " {label}"),
    Form("mmlu_without_topic_fixed", " {label}"),
    Form("helm_without_topic_fixed", " {label}"),
    Form({"type": "mcqa", "choice_labels": "numbers", "answer_prompt": "Number:"}, " {label}", labels="123456"),
)


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, what is to follow it, and where the answers of its demonstrations stand (characters)."""

    prompt: str
    answer: str
    shown: tuple[tuple[int, int], ...]


def examples(count: int, seed: int) -> Iterator[Example]:
    """Yield `count` examples: every form in turn, plain and as chat, with none to two demonstrations."""
    draw = random.Random(seed)
    laid_out = [_laid_out(form) for form in FORMS]
    chats = (builtin_profile("chat-chatml"), builtin_profile("chat-chatml-single"))
    for number in range(count):
        form, laid = FORMS[number % len(FORMS)], laid_out[number % len(FORMS)]
        profile = PLAIN if draw.random() < 0.6 else draw.choice(chats)
        shots = draw.choice((0, 0, 0, 1, 2))
        yield _example(laid, form, [_doc(draw) for _ in range(shots + 1)], profile)


def _laid_out(form: Form) -> Task:
    [task] = load_tasks({**TASK, "formats": form.formats})
    name = form.formats if isinstance(form.formats, str) else form.formats["type"]
    return task.with_format(name)


def _doc(draw: random.Random) -> dict[str, Any]:
    words = draw.sample(WORDS, draw.choice((2, 3, 4, 4, 4, 5)))
    answer = draw.randrange(len(words))
    question = draw.choice(QUESTIONS).format(word=words[answer])
    return {"question": question, "choices": words, "answer": answer}


def _example(laid: Task, form: Form, docs: Sequence[dict[str, Any]], profile: Profile) -> Example:
    [instance] = laid.render(TaskDocs.in_memory(docs[:1], fewshot=docs[1:]), profile, num_fewshot=len(docs) - 1)
    [prompt] = instance.prompts
    words, gold = docs[0]["choices"], docs[0]["answer"]
    written = form.answer.format(label=form.labels[gold], word=words[gold])
    if profile is not PLAIN and prompt.text.endswith("\n"):  # else a gen prefix began the answer, and is gone on with
        written = written.lstrip()
    end = END_OF_TEXT if profile is PLAIN else END_OF_TURN
    return Example(prompt=prompt.text, answer=written + end, shown=tuple(_shown(instance)))


def _shown(instance: Instance) -> Iterator[tuple[int, int]]:
    """Yield where the answers of the demonstrations stand, a blank before them included."""
    start = 0
    text = instance.prompts[0].text
    for span in instance.prompts[0].spans:
        end = start + len(span.text)
        if span.origin.part == "answer":
            yield start - (text[start - 1] == " "), end
        start = end
