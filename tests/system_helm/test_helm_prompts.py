"""Prompts of HELM's adapters: the worked cases that were run with HELM 0.5.16, and what its code promises besides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pytest_promptfmt.core.errors import RenderError
from pytest_promptfmt.core.prompt import Origin, Span
from pytest_promptfmt.systems.helm.adapter_spec import AdapterSpec
from pytest_promptfmt.systems.helm.adapters import HelmAdapter, HelmRequest, Window, draw_rows, language_windows
from pytest_promptfmt.systems.helm.instances import HelmInstance
from pytest_promptfmt.systems.helm.prompt_blocks import PromptBuilder, PromptPiece, substituted

JOINT = "multiple_choice_joint"
SHOT = HelmInstance("2+2?", ("3", "4"), (1,), split="train")
QUESTION = HelmInstance("1+1?", ("1", "2"), (1,))
FACTORY: dict[str, Any] = {"input_prefix": "", "input_suffix": "", "output_prefix": " ", "output_suffix": ""}
MMLU: dict[str, Any] = {
    "instructions": "The following are multiple choice questions (with answers) about anatomy.\n",
    "input_prefix": "Question: ",
    "output_prefix": "Answer: ",
    "max_tokens": 1,
}


def requests(
    method: str, row: HelmInstance = QUESTION, shots: tuple[HelmInstance, ...] = (SHOT,), **fields: Any
) -> list[HelmRequest]:
    spec = AdapterSpec(method=method, **fields)
    return list(HelmAdapter(spec, shots).requests(row))


def prompts(
    method: str, row: HelmInstance = QUESTION, shots: tuple[HelmInstance, ...] = (SHOT,), **fields: Any
) -> list[str]:
    return [request.prompt.text for request in requests(method, row, shots, **fields)]


def numbered(count: int) -> HelmInstance:
    return HelmInstance("?", tuple(str(number) for number in range(count)), ())


CASES: Mapping[str, tuple[list[str], list[str]]] = {
    "joint with defaults": (
        prompts(JOINT),
        ["Input: 2+2?\nA. 3\nB. 4\nOutput: B\n\nInput: 1+1?\nA. 1\nB. 2\nOutput:"],
    ),
    "instructions without a line break": (
        prompts(JOINT, shots=(), instructions="Answer."),
        ["Answer.\nInput: 1+1?\nA. 1\nB. 2\nOutput:"],
    ),
    "instructions with a line break": (
        prompts(JOINT, shots=(), instructions="Answer.\n"),
        ["Answer.\n\nInput: 1+1?\nA. 1\nB. 2\nOutput:"],
    ),
    "the factory's spec of MMLU": (
        prompts(JOINT, **MMLU),
        [
            "The following are multiple choice questions (with answers) about anatomy.\n\n"
            "Question: 2+2?\nA. 3\nB. 4\nAnswer: B\n\nQuestion: 1+1?\nA. 1\nB. 2\nAnswer:"
        ],
    ),
    "labels in parentheses": (
        prompts(JOINT, shots=(), reference_prefix="(A) "),
        ["Input: 1+1?\n(A) 1\n(B) 2\nOutput:"],
    ),
    "a prefix with the label's letter in a word": (
        prompts(JOINT, shots=(), reference_prefix="Answer A: "),
        ["Input: 1+1?\nAnswer A: 1\nBnswer B: 2\nOutput:"],
    ),
    "digits that run past 9": (
        [prompts(JOINT, numbered(11), (), reference_prefix="1) ")[0].partition("8) 7\n")[2]],
        ["9) 8\n:) 9\n;) 10\nOutput:"],
    ),
    "letters that run past Z": (
        [prompts(JOINT, numbered(28), ())[0].partition("Y. 24\n")[2]],
        ["Z. 25\n[. 26\n\\. 27\nOutput:"],
    ),
    "characters of one's own": (
        prompts(JOINT, shots=(), reference_prefix_characters=("ㄱ", "ㄴ")),
        ["Input: 1+1?\nㄱ. 1\nㄴ. 2\nOutput:"],
    ),
    "a chain of thought in the shot": (
        prompts(
            f"{JOINT}_chain_of_thought",
            shots=(HelmInstance("2+2?", ("3", "4"), (1,), split="train", chain_of_thought="two and two"),),
            chain_of_thought_prefix="Let's think. ",
        ),
        ["Input: 2+2?\nA. 3\nB. 4\nOutput: Let's think. two and two\nB. \n\nInput: 1+1?\nA. 1\nB. 2\nOutput:"],
    ),
    "separate with defaults": (
        prompts("multiple_choice_separate_original", shots=()),
        ["Input: 1+1?\nOutput: 1\n", "Input: 1+1?\nOutput: 2\n"],
    ),
    "separate as the factory sets it": (
        prompts("multiple_choice_separate_original", shots=(), **FACTORY),
        ["1+1? 1", "1+1? 2"],
    ),
    "calibrated as the factory sets it": (
        prompts("multiple_choice_separate_calibrated", shots=(), **FACTORY),
        ["1+1? 1", "Answer: 1", "1+1? 2", "Answer: 2"],
    ),
    "several right answers shown": (
        prompts("generation", shots=(HelmInstance("?", ("a", "b"), (0, 1), split="train"),), multi_label=True),
        ["Input: ?\nOutput: a, b\n\nInput: 1+1?\nOutput:"],
    ),
    "only the first right answer without multi_label": (
        prompts("generation", shots=(HelmInstance("?", ("a", "b"), (0, 1), split="train"),)),
        ["Input: ?\nOutput: a\n\nInput: 1+1?\nOutput:"],
    ),
    "a shot without right answer": (
        prompts("generation", shots=(HelmInstance("?", ("a",), (), split="train"),)),
        ["Input: ?\nOutput: n/a\n\nInput: 1+1?\nOutput:"],
    ),
    "a joint shot without right answer": (
        prompts(JOINT, shots=(HelmInstance("?", ("a",), (), split="train"),)),
        ["Input: ?\nA. a\nOutput: n/a\n\nInput: 1+1?\nA. 1\nB. 2\nOutput:"],
    ),
    "several right labels shown": (
        prompts(JOINT, shots=(HelmInstance("?", ("a", "b", "c"), (0, 2), split="train"),), multi_label=True),
        ["Input: ?\nA. a\nB. b\nC. c\nOutput: A, C\n\nInput: 1+1?\nA. 1\nB. 2\nOutput:"],
    ),
    "global affixes and a substitution": (
        prompts(
            "generation",
            global_prefix="<s>",
            global_suffix=" END",
            output_prefix="Output:\n",
            substitutions=(("\n", ";\n"),),
        ),
        ["<s>Input: 2+2?;\nOutput:;\n4;\n;\nInput: 1+1?;\nOutput: END"],
    ),
    "a ranking asks about each reference": (
        prompts("ranking_binary", shots=(), reference_prefix="Passage: ", input_prefix="Query: "),
        ["Passage: 1\nQuery: 1+1?\nOutput:", "Passage: 2\nQuery: 1+1?\nOutput:"],
    ),
    "language modelling shows the text alone": (
        prompts("language_modeling", instructions="Answer."),
        ["1+1?"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_worked_cases_of_helm(name: str) -> None:
    made, expected = CASES[name]
    assert made == expected


def test_labels_mean_the_references_they_stand_before() -> None:
    assert requests(JOINT)[0].output_mapping == {"A": "1", "B": "2"}
    assert requests(JOINT, reference_prefix="(A) ")[0].output_mapping == {"A": "1", "B": "2"}
    own = requests(JOINT, reference_prefix_characters=("ㄱ", "ㄴ"))
    assert own[0].output_mapping == {"ㄱ": "1", "ㄴ": "2"}


def test_joint_requests_send_no_stop_sequences_and_ask_for_one_completion() -> None:
    asked = requests(JOINT, stop_sequences=("\n",), num_outputs=5)[0].parameters
    assert (asked["stop_sequences"], asked["num_completions"], asked["top_k_per_token"]) == ([], 1, 5)
    assert requests("generation", stop_sequences=("\n",))[0].parameters["stop_sequences"] == ["\n"]


def test_too_few_characters_and_prefixes_without_a_label_are_told() -> None:
    with pytest.raises(RenderError, match="2 characters, but there are 3 references"):
        prompts(JOINT, numbered(3), (), reference_prefix_characters=("x", "y"))
    with pytest.raises(RenderError, match="needs a letter or digit"):
        prompts(JOINT, shots=(), reference_prefix="- ")


def test_the_choice_of_shots_that_helm_never_ends_is_an_error() -> None:
    rows = [HelmInstance("a", ("x",), (0,)), HelmInstance("b", ("y",), ())]
    with pytest.raises(RenderError, match="would run forever"):
        draw_rows(rows, 2, trial=0)
    assert draw_rows(rows, 1, trial=0) == rows[:1]
    assert sorted(row.text for row in draw_rows(rows[1:] * 2, 2, trial=0)) == ["b", "b"]


def test_shots_take_turns_among_answers_the_most_frequent_first() -> None:
    rows = [
        HelmInstance(f"{answer} {number}", (answer,), (0,))
        for answer, count in (("no", 1), ("yes", 3))
        for number in range(count)
    ]
    for trial in range(4):
        drawn = [row.references[0] for row in draw_rows(rows, 4, trial=trial)]
        assert drawn == ["yes", "no", "yes", "yes"]
    assert draw_rows(rows, 2, trial=1, sample=False) == rows[2:4]


def characters(text: str) -> list[int]:
    """Return a token for each character."""
    return list(map(ord, text))


def text_of(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def test_a_window_of_text_that_grows_when_it_is_decoded_predicts_fewer_tokens() -> None:
    window = Window(encode=characters, decode=lambda ids: text_of(ids).replace("e", "ee"), max_request_length=4)
    assert language_windows("abcdef", 0, window) == ["abcd", "cdee"]


@given(st.integers(0, 90), st.integers(0, 6))
def test_a_window_drops_shots_from_the_end_and_then_the_end_of_the_question(size: int, tokens: int) -> None:
    spec = AdapterSpec(method="generation", max_tokens=tokens, max_train_instances=3, sample_train=False)
    shots = [HelmInstance(f"{number}", ("x",), (0,), split="train") for number in range(3)]
    whole = [PromptBuilder(spec).built(shots[:count], QUESTION).text for count in range(4)]
    window = Window(encode=characters, decode=text_of, max_request_length=size + tokens)
    adapter = HelmAdapter(spec, shots, window=window)
    made = next(iter(adapter.requests(QUESTION))).prompt
    fitting = [text for text in whole if len(text) <= size]
    assert made.text == (fitting[-1] if fitting else whole[0][:size] or whole[0])


@settings(max_examples=200)
@given(
    st.lists(st.text("ab\n", max_size=5), min_size=1, max_size=5).filter(any),
    st.sampled_from([("a", "xy"), ("", "-"), ("b+$", ""), (r"(a)(b)", r"\2\1"), (r"\n", ";\n"), ("ab?", r"[\g<0>]")]),
    st.integers(0, 25),
)
def test_substitutions_over_pieces_are_those_over_their_text(
    texts: list[str], pattern: tuple[str, str], mark: int
) -> None:
    pieces, text = [PromptPiece(Span(text, Origin("question")), 0) for text in texts if text], "".join(texts)
    made, moved = substituted(pieces, *pattern, Origin("question"), mark=min(mark, len(text)))
    assert "".join(piece.span.text for piece in made) == re.sub(*pattern, text)
    matches = [*re.finditer(pattern[0], text)]
    grown = sum(len(each.expand(pattern[1])) - len(each[0]) for each in matches if each.end() <= mark)
    inside = next((each.start() for each in matches if each.start() < mark < each.end()), min(mark, len(text)))
    assert moved == inside + grown
