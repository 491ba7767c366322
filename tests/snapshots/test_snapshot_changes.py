from dataclasses import replace
from difflib import SequenceMatcher

import pytest
from hypothesis import given, settings, strategies as st

from pytest_promptfmt.core.text import shared_end, shared_start
from pytest_promptfmt.snapshots.changes import ChangePlace, changes, clipped, unified_diff
from pytest_promptfmt.snapshots.document import DocRecord, Document, Section, SectionEntry
from pytest_promptfmt.snapshots.hunks import find_hunks

LINES = st.lists(st.sampled_from("abcdefg"), max_size=30)


def document(*prompts: str, header: str = "arc") -> Document:
    entries = (SectionEntry('" A"', True), SectionEntry('" B"'))
    return Document(
        {"task": header},
        tuple(
            DocRecord(number, (Section("prompt", prompt), Section("continuations", None, entries)))
            for number, prompt in enumerate(prompts, 1)
        ),
    )


@given(LINES, LINES)
def test_hunks_turn_the_old_lines_into_the_new(old: list[str], new: list[str]) -> None:
    made: list[str] = []
    at = 0
    for hunk in find_hunks(old, new):
        made += old[at : hunk.old_start] + new[hunk.new_start : hunk.new_end]
        assert hunk.old_start >= at
        at = hunk.old_end
    assert made + old[at:] == new


def test_hunks_of_long_lists_stay_small() -> None:
    old = [f"line {number % 700} of {number // 9}" if number % 3 else "" for number in range(6000)]
    new = [line.replace("line 5", "row 5") for line in old]
    del new[3000:3002]
    new.insert(17, "added")
    changed = sum(max(hunk.old_end - hunk.old_start, hunk.new_end - hunk.new_start) for hunk in find_hunks(old, new))
    assert changed <= 3 + sum("line 5" in line for line in old) * 2


def test_a_line_that_is_everywhere_is_matched_like_others() -> None:
    old, new = ["one", *["Answer:"] * 20, "end"], ["two", *["Answer:"] * 250, "last"]
    assert sum(hunk.old_end - hunk.old_start for hunk in find_hunks(old, new)) == 2


@given(st.text("ab"), st.text("ab"))
def test_shared_parts_are_as_long_as_they_can_be(one: str, other: str) -> None:
    start, end = shared_start(one, other), shared_end(one, other)
    assert one[:start] == other[:start]
    assert one[start : start + 1] != other[start : start + 1] or start == min(len(one), len(other))
    assert one[len(one) - end :] == other[len(other) - end :]


def test_a_trailing_blank_is_seen() -> None:
    old, new = document("Question: x\nAnswer:", "same"), document("Question: x\nAnswer: ", "same")
    assert unified_diff(old, new) == [
        "@@ doc 1, prompt, line 2 @@",
        " prompt",
        " | Question: x",
        "-| Answer:⟨end⟩",
        "+| Answer: ⟨end⟩",
        " continuations",
        ' * " A"',
        '   " B"',
    ]


def test_a_change_says_where_in_the_new_prompt_it_begins() -> None:
    old, new = document("same", "Question:\tx\nAnswer:"), document("same", "Question:\tx\nAnswer: ")
    (change,) = changes(old, new)
    assert (change.doc, change.section) == (2, "prompt")
    end = len("Question:\tx\nAnswer:")
    assert change.place == ChangePlace(prompt=0, first=end, last=end, length=1)


@pytest.mark.parametrize(
    ("old", "new", "first", "last", "length"),
    [
        ("a\n\nb", "a\nb", 1, 2, 0),  # which of the two line breaks is gone nobody can tell
        ("a\nb", "a\n\nb", 1, 2, 1),
        ("a\nb", "a\nx\nb", 1, 2, 2),
        ("a  b", "a b", 1, 2, 0),
        ("a b", "a  b", 1, 2, 1),
        ("x\na", "a", 0, 0, 0),
        ("a\nx", "a", 1, 1, 0),
        ("a\n\nb", "ab", 1, 1, 0),
        ("ab", "ax", 1, 1, 1),
        ("a", "a\nx", 1, 1, 2),  # lines added at the end bring the line break before them
        ("a\nb", "a\nb\nx\ny", 3, 3, 4),
        ("a", "x\na", 0, 0, 2),
        ("a\nb\nc", "a\nc", 1, 2, 0),
        ("a\nb\nc", "a", 1, 1, 0),
        ("aaa", "aaaa", 0, 3, 1),
        ("aaaa", "aaa", 0, 3, 0),
    ],
)
def test_a_place_says_how_far_a_change_could_be_moved(old: str, new: str, first: int, last: int, length: int) -> None:
    (change,) = changes(document("same", old), document("same", new))
    assert change.place == ChangePlace(0, first, last, length)


@settings(max_examples=60)
@given(
    lines=st.lists(st.sampled_from(["", "a", "b b"]), min_size=1, max_size=4),
    at=st.integers(0, 4),
    added=st.integers(1, 2),
)
def test_the_place_of_new_lines_holds_exactly_them(lines: list[str], at: int, added: int) -> None:
    more = [*lines[:at], *["new"] * added, *lines[at:]]
    old, new = "\n".join(lines), "\n".join(more)
    (change,) = changes(document("same", old), document("same", new))
    assert change.place is not None
    assert change.place.length == len(new) - len(old)
    assert {new[:start] + new[start + change.place.length :] for start in (change.place.first, change.place.last)} == {
        old
    }


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        (["a\nx"], ["a\nb", "c\nx"], ChangePlace(0, 1, 1, 5)),  # with the break before `b`
        (["x"], ["b", "x"], ChangePlace(0, 0, 0, 3)),
        (["a\nb", "c\nx"], ["a\nx"], ChangePlace(0, 1, 2, 0)),
        (["y", "b", "c"], ["y", "c"], None),  # nothing is left of that prompt
    ],
)
def test_lines_of_several_prompts_that_came_or_went_have_the_place_of_the_first(
    before: list[str], after: list[str], place: ChangePlace | None
) -> None:
    sides = [
        DocRecord(
            1, tuple(Section(f"prompt {text[0]}" if number else "prompt", text) for number, text in enumerate(side))
        )
        for side in (before, after)
    ]
    old, new = (Document({"task": "arc"}, (side,)) for side in sides)
    (change,) = changes(old, new)
    assert change.place == place


def test_a_change_of_a_continuation_is_in_no_prompt() -> None:
    old = document("same")
    sections = (
        old.docs[0].sections[0],
        Section("continuations", None, (SectionEntry('"A"', True), SectionEntry('" B"'))),
    )
    (change,) = changes(old, replace(old, docs=(DocRecord(1, sections),)))
    assert (change.removed, change.added) == (('* " A"',), ('* "A"',))
    assert change.place is None


def test_a_moved_gold_mark_is_a_change() -> None:
    old = document("same")
    sections = (
        old.docs[0].sections[0],
        Section("continuations", None, (SectionEntry('" A"'), SectionEntry('" B"', True))),
    )
    assert changes(old, replace(old, docs=(DocRecord(1, sections),)))


def test_equal_documents_have_no_diff() -> None:
    assert unified_diff(document("a"), document("a")) == []
    assert changes(document("a"), document("a")) == ()


def test_the_header_is_shown_but_is_no_change() -> None:
    old, new = document("a"), document("a", header="arc2")
    assert unified_diff(old, new) == ["@@ header @@", "-task: arc", "+task: arc2"]
    assert changes(old, new) == ()


def test_docs_that_came_or_went_are_shown_whole() -> None:
    assert "+| b⟨end⟩" in unified_diff(document("a"), document("a", "b"))
    assert "-| b⟨end⟩" in unified_diff(document("a", "b"), document("a"))
    assert [change.doc for change in changes(document("a", "b"), document("a"))] == [2]


def test_letters_that_look_alike_are_shown_by_their_code_points() -> None:
    for old, new in (("Answer", "Аnswer"), ("café", "cafe\u0301"), ("it's", "it’s"), ("Ａ", "A")):
        assert any(line.startswith("?they look alike") for line in unified_diff(document(old), document(new)))
    assert not any(line.startswith("?") for line in unified_diff(document("漢字"), document("漢語")))


def test_a_diff_is_bounded() -> None:
    old = document("\n".join(f"line {number}" for number in range(5000)))
    new = document("\n".join(f"row {number}" for number in range(5000)))
    lines = unified_diff(old, new, max_lines=50)
    assert len(lines) == 51
    assert lines[-1] == "… (more lines follow)"
    wide = unified_diff(document("x" * 100_000 + "a"), document("x" * 100_000 + "b"))
    assert max(map(len, wide)) < 500
    assert any(line.startswith("-") and line.endswith("a⟨end⟩") for line in wide)


@given(LINES, LINES)
def test_short_diffs_are_as_good_as_those_of_difflib(old: list[str], new: list[str]) -> None:
    ours = len(old) - sum(hunk.old_end - hunk.old_start for hunk in find_hunks(old, new))
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    assert ours * 2 >= sum(block.size for block in blocks)


def test_a_change_of_many_docs_is_shown_three_times_and_counted() -> None:
    questions = [f"Question {number}?\nAnswer:" for number in range(9)]
    lines = unified_diff(document(*questions), document(*(f"{question} " for question in questions)))
    assert sum(line.startswith("@@ doc ") for line in lines) == 3
    assert lines[-1] == "… and the same changes in 6 more places"


@given(st.lists(st.text("abc", min_size=1, max_size=30), min_size=1).map(" ".join), st.data())
def test_a_clipped_line_begins_with_a_whole_word_and_holds_the_place(line: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(line) - 1))
    shown = clipped(line, at, 60)
    part = shown.strip("…")
    places = [place for place in range(len(line)) if line.startswith(part, place)]
    assert any(place <= at < place + len(part) for place in places)
    assert any(place == 0 or line[place - 1] == " " for place in places)
    assert len(part) <= 60


def test_a_long_line_without_words_is_clipped_near_the_place() -> None:
    assert clipped("x" * 50 + "y" + "x" * 50, 50, 11) == "…xxxxxyxxxxx…"
