"""Synthetic docs for Python functions: what their source shows is tried where the usual docs fail, and only there."""

from __future__ import annotations

import ast
import json
import re
from functools import partial
from typing import Any

import pytest

from pytest_promptfmt.core.errors import SyntheticDocsError
from pytest_promptfmt.core.task import Dataset, Task
from pytest_promptfmt.tasks.synthetic.synthetic_docs import synthetic_docs

NUMBERS = {"1": 0, "2": 1}


def first_doc(doc_to_text: Any) -> dict[str, Any]:
    task = Task(name="t", dataset=Dataset(test_split="test"), doc_to_text=doc_to_text, doc_to_target=str)
    (doc,) = synthetic_docs(task, count=1, split="test")
    return dict(doc)


def first_letter(doc: Any) -> str:
    text = str(doc.get("groundtruth", "")).strip()
    return text[:1] if text.isupper() else text


def test_a_column_with_a_default_is_there_if_the_function_gives_nothing_without_it() -> None:
    task = Task(name="t", dataset=Dataset(test_split="test"), doc_to_text="{{prompt}}", doc_to_target=first_letter)
    (doc,) = synthetic_docs(task, count=1, split="test")
    assert first_letter(doc) == doc["groundtruth"] != ""


def looked_up(doc: Any) -> str:
    words = {"cause": "because", "effect": "therefore"}
    return f"{doc['premise']} {words[doc['question']]}"


def looked_up_in_module(doc: Any) -> str:
    return "AB"[NUMBERS[doc["answer"]]]


def looked_up_in_argument(doc: Any, connector: Any) -> str:
    kind = doc["question"]
    return str(connector[kind])


def of_options(doc: Any) -> str:
    return "ABCD"[["x", "y"].index(doc["key"])]


def parsed(text: str) -> Any:
    return ast.literal_eval(text)


def read_as_literal(doc: Any) -> str:
    return "\n".join(str(choice) for choice in parsed(doc["choices"]))


def read_as_json(doc: Any) -> str:
    return "".join(f"{problem['question']}: {problem['options'][3]}" for problem in json.loads(doc["problems"]))


def nested(doc: Any) -> str:
    turns = doc["messages"]
    return str("\n".join(turn["content"] for turn in turns) + doc["meta"]["source"])


def calculated(doc: Any) -> str:
    return "high" if doc["first"] + doc["second"] > 5.5 else "low"


def parted(doc: Any) -> str:
    sentence = doc["sentence"]
    return str(sentence[: sentence.index("_")])


def searched(doc: Any) -> str:
    return "".join(re.findall("[a-z]", doc["options"]))


def converted(doc: Any) -> str:
    labels = ["A", "B", "C"] if len(NUMBERS) > 1 else ["a", "b", "c"]
    return labels[int(doc["answer"]) - 1]


def of_columns(doc: Any) -> str:
    letters = [letter for letter in "ABCDEFGH" if letter in doc.keys()]  # noqa: SIM118
    return "\n".join(f"{letter}. {doc[letter]}" for letter in letters) if letters else str(1 // 0)


def one_less(doc: Any) -> int:
    return int(doc["number"]) - 1


def counted(doc: Any) -> str:
    if len(doc["choices"]) == 2:
        return "AB"
    raise ValueError(doc)


def of_two_texts(doc: Any) -> str:
    answers = {doc["right"].lower(), doc["wrong"].lower()}
    return "yes or no" if answers == {"yes", "no"} else str(1 // 0)


def keyed(doc: Any) -> str:
    language = [key for key in doc["translation"].keys() if key not in ["en", "fr"]][0]  # noqa: RUF015, SIM118
    names = {"sw": "Swahili", "yo": "Yoruba"}
    return f"{names[language]}: {doc['translation'][language]}, English: {doc['translation']['en']}"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (converted, {"answer": 2}),
        (of_columns, {"A": "«choice 1»", "B": "«second choice 1»", "C": "«third choice 1»", "D": "«fourth choice 1»"}),
        (counted, {"choices": ["«choice 1.1»", "«choice 1.2»"]}),
        (of_two_texts, {"right": "yes", "wrong": "no"}),
        (keyed, {"translation": {"sw": "«translation 1»", "en": "«second translation 1»"}}),
        (looked_up, {"premise": "«premise 1»", "question": "effect"}),
        (looked_up_in_module, {"answer": "2"}),
        (partial(looked_up_in_argument, connector={"a": "b", "c": "d"}), {"question": "c"}),
        (of_options, {"key": "y"}),
        (read_as_literal, {"choices": '["«choice 1.1»", "«choice 1.2»", "«choice 1.3»", "«choice 1.4»"]'}),
        (calculated, {"first": 1, "second": 1}),
        (parted, {"sentence": "«sentence 1, part 1»_«sentence 1, part 2»"}),
        (searched, {"options": "«choice 1»"}),
    ],
)
def test_what_a_function_asks_of_its_doc_is_read_from_its_source(function: Any, expected: dict[str, Any]) -> None:
    assert first_doc(function) == expected


def test_mappings_and_lists_inside_a_column_are_seen() -> None:
    doc = first_doc(nested)
    assert [turn["content"] for turn in doc["messages"]] == [f"«turn 1.{number}»" for number in (1, 2, 3)]
    assert doc["meta"] == {"source": "«question 1»"}
    (problem, *_) = json.loads(first_doc(read_as_json)["problems"])
    assert problem["options"][3] == "«choice 1.1.4»"


def test_a_function_that_accepts_the_usual_docs_gets_them() -> None:
    def tolerant(doc: Any) -> str:
        return str(NUMBERS.get(doc["answer"], doc["answer"]))

    assert first_doc(tolerant) == {"answer": "«answer 1»"}


def test_what_the_source_does_not_show_is_a_reason_to_skip() -> None:
    def hopeless(doc: Any) -> str:
        assert doc["answer"] == doc["question"]
        return ""

    with pytest.raises(SyntheticDocsError, match=r"the Python function .*hopeless fails .*AssertionError"):
        first_doc(hopeless)


def answers_of(doc: Any) -> list[str]:
    return [candidate["spans"] for candidate in [doc["answer"]] + doc["others"]]


def test_a_gold_answer_that_code_calculates_is_one_of_the_choices() -> None:
    task = Task(
        name="t",
        dataset=Dataset(test_split="test"),
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_choice=["1", "2", "3"],
        doc_to_target=one_less,
    )
    assert [doc["number"] for doc in synthetic_docs(task, count=3, split="train")] == ["1", "2", "3"]
