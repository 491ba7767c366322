"""Layouts: options, labels and cue of a question, in any script, and the values of a list in it."""

import pytest

from pytest_promptfmt.core.prompt import Message, Origin, Span
from pytest_promptfmt.study.layout import follow_each_other, layout_of, listing_of


def message(*pieces: tuple[str, str | None]) -> Message:
    return Message("user", tuple(Span(text, Origin("question", field=name)) for text, name in pieces))


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("Which?\nA. tin\nB. iron\nAnswer:", ["A", "B"]),
        ("Which?\n(1) tin\n(2) iron\n(3) gold", ["1", "2", "3"]),
        ("A. Lincoln wrote it.\nWhich?\nA) tin\nB) iron", ["A", "B"]),
        ("Which?\nB. tin\nC. iron", []),
        ("Which?\nA. tin\nC. iron", []),
    ],
)
def test_the_last_list_of_options_in_order_is_read(text: str, labels: list[str]) -> None:
    assert [option.label for option in layout_of(text).listed] == labels


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("Which rusts? (A) tin (B) iron", ("A", "B")),
        ("[選択肢]:[1: 錫, 2: 鉄, 3: 金]", ("1", "2", "3")),
        ("The ferry leaves at 1:30, 2:15, 3:40.", ()),
        ("Ratio 1: 2, then 2: 3.", ()),
    ],
)
def test_options_within_a_line_have_labels_in_order(text: str, labels: tuple[str, ...]) -> None:
    assert layout_of(text).listed_inline == labels


def test_labels_of_other_scripts_may_leave_letters_out() -> None:
    lines = layout_of("คำถาม\nก. เหล็ก\nข. ทอง\nค. เงิน").listed_in_other_scripts
    assert [option.label for option in lines] == ["ก", "ข", "ค"]


def test_options_differ_in_style() -> None:
    one, other = layout_of("A. tin\nB.  iron").options
    assert (one.lead, other.lead) == ("A. ", "B.  ")
    assert one.style != other.style


@pytest.mark.parametrize(
    "text", ["Question: Which?\nAnswer:", "问题：哪个？\n答案：", "प्रश्न: कौन सा?\nउत्तर:", "Q: Which?\nA: "]
)
def test_the_label_at_the_end_is_the_cue(text: str) -> None:
    layout = layout_of(text)
    assert len(layout.labels) == 2
    assert layout.cue == layout.labels[1]


def test_a_text_after_the_last_label_is_no_cue() -> None:
    assert layout_of("Question: Which?").cue is None


def test_the_values_of_a_list_are_found_with_their_labels_and_origin() -> None:
    asked = message(
        ("Which?\nA. ", None), ("iron", "choices"), ("\nB. ", None), ("tin", "choices"), ("\nC. gold", None)
    )
    listing = listing_of(asked, {"question": "Which?", "choices": ["tin", "iron", "gold", "lead"]})
    assert listing is not None
    assert [(one.index, one.label, one.is_printed) for one in listing.options] == [
        (1, "A", True),
        (0, "B", True),
        (2, "C", False),
    ]
    assert listing.missing == ["lead"]


@pytest.mark.parametrize(
    ("labels", "expected"), [("ABC", True), ("123", True), ("ACB", False), ("BC", False), ("", False)]
)
def test_labels_follow_each_other_from_the_first(labels: str, expected: bool) -> None:
    assert follow_each_other(list(labels)) is expected
