from hypothesis import given, strategies as st

from pytest_promptfmt.snapshots.hunks import changed_words, marked_lines

LINES = st.text("ab «é⟨SP⟩\t.", max_size=30)


@given(old=LINES, new=LINES)
def test_the_pieces_make_up_both_lines_and_what_is_shared_is_the_same(old: str, new: str) -> None:
    before, after = changed_words(old, new)
    assert ("".join(text for text, _ in before), "".join(text for text, _ in after)) == (old, new)
    shared = [[text for text, differs in side if not differs] for side in (before, after)]
    assert "".join(shared[0]) == "".join(shared[1])


def test_only_the_word_that_was_added_stands_out() -> None:
    before, after = changed_words("| Answer the question:⟨end⟩", "| Answer this question: ⟨end⟩")
    assert [text for text, differs in before if differs] == ["the"]
    assert [text for text, differs in after if differs] == ["this", " "]


def test_a_line_of_megabytes_is_compared_at_once() -> None:
    old = "word " * 200_000
    before, after = changed_words(old + "x" + old, old + "y" + old)
    assert [text for text, differs in before if differs] == ["x"]
    assert [text for text, differs in after if differs] == ["y"]


def test_names_of_the_files_of_a_diff_are_no_changed_lines() -> None:
    lines = ["--- arc/plain.txt", "+++ arc/plain.txt", "-a", "+b", "--- "]
    assert [sign for sign, _ in marked_lines(lines)] == ["", "", "-", "+", ""]
