from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pytest_promptfmt.core.errors import SnapshotError
from pytest_promptfmt.snapshots.changes import compare, narrowed
from pytest_promptfmt.snapshots.document import (
    DocRecord,
    Document,
    Section,
    SectionEntry,
    UnknownVersionError,
    read_document,
    write_document,
)

FILE = Path("arc/plain.txt")

# Plain `st.text()` rarely meets what matters here, so the traps are drawn as often as everything else together.
CHARACTERS = "\n\r\t\v\f \x00\x1f\x7f\x85\xa0\xad|*:⟨⟩<=>\u2028\u200b\ufeff\ud83d\ude00\uffffé"
PIECES = "⟨end⟩,⟨SP⟩,⟨empty⟩,⟨U+0020⟩,  | ,doc 1,end: 0 docs,\n\n,e\u0301,👩\u200d🔬,  "
TRAPS = st.sampled_from([*CHARACTERS, *PIECES.split(",")])
TEXTS = st.lists(TRAPS | st.characters(exclude_categories=()), max_size=12).map("".join)
TITLES = st.sampled_from(["prompt", "prompt 1 of 2", "continuations", "generate", "target", "tokens of gpt2 (3)"])
SECTIONS = st.builds(
    Section,
    TITLES,
    st.none() | TEXTS,
    st.lists(st.builds(SectionEntry, TEXTS, st.booleans()), max_size=3).map(tuple),
)
HEADERS = st.dictionaries(st.sampled_from(["task", "profile", "output", "docs", "shots"]), TEXTS, max_size=3)


@st.composite
def documents(draw: st.DrawFn) -> Document:
    numbers = sorted(draw(st.sets(st.integers(1, 999), max_size=3)))
    sections = st.lists(SECTIONS, max_size=3).map(tuple)
    docs = tuple(DocRecord(number, draw(sections)) for number in numbers)
    return Document(draw(HEADERS), docs, draw(sections))


def document(*texts: str, **header: str) -> Document:
    return Document(
        {"task": "arc@mcqa", "profile": "plain", "docs": f"{len(texts)} synthetic"} | header,
        tuple(
            DocRecord(number, (Section("prompt", text), Section("continuations", None, (SectionEntry('" A"', True),))))
            for number, text in enumerate(texts, 1)
        ),
    )


@given(documents())
def test_every_document_is_read_back_as_it_was(written: Document) -> None:
    assert read_document(write_document(written), FILE) == written


@given(documents())
def test_tools_that_tidy_files_find_nothing_to_do(written: Document) -> None:
    text = write_document(written)
    assert text.encode().decode() == text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert text.splitlines() == text[:-1].split("\n"), "no other line end than LF"
    assert all(line == line.rstrip() for line in text.split("\n"))
    assert all(character == "\n" or character >= " " for character in text)


@given(TEXTS, TEXTS)
def test_different_texts_are_written_differently(one: str, other: str) -> None:
    assert (write_document(document(one)) == write_document(document(other))) == (one == other)


def test_every_code_point_survives() -> None:
    for plane in range(17):
        text = "".join(map(chr, range(plane * 0x10000, (plane + 1) * 0x10000)))
        assert read_document(write_document(document(text)), FILE).docs[0].sections[0].text == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Answer:", "Answer:⟨end⟩"),
        ("Answer: ", "Answer: ⟨end⟩"),
        ("a \nb", "a⟨SP⟩|b⟨end⟩"),
        ("a\n", "a|⟨end⟩"),
        ("a\tb", "a⟨TAB⟩b⟨end⟩"),
        ("a\r\nb", "a⟨CR⟩|b⟨end⟩"),
        ("a\xa0b", "a⟨NBSP⟩b⟨end⟩"),
        ("\u200b\ufeff", "⟨U+200B⟩⟨U+FEFF⟩⟨end⟩"),
        ("⟨end⟩", "⟨U+27E8⟩end⟩⟨end⟩"),
        ("«question» – ж 漢", "«question» – ж 漢⟨end⟩"),
    ],
)
def test_what_cannot_be_seen_has_a_name(text: str, shown: str) -> None:
    lines = [line.removeprefix("  | ") for line in write_document(document(text)).split("\n") if "  |" in line]
    assert "|".join(lines) == shown


def damaged(old: str, new: str) -> str:
    text = write_document(document("Question: «question»\n\nAnswer:", "second"))
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (damaged("\n", "\r\n"), 1, "line endings were converted"),
        (damaged("pytest", "\ufeffpytest"), 1, "byte order mark"),
        (damaged("doc 1", "<<<<<<< HEAD\ndoc 1"), 6, "merge conflict"),
        (damaged("doc 1", "=======\ndoc 1"), 6, "merge conflict"),
        (damaged("Answer", "Answr"), 20, "edited by hand"),
        (damaged("Answer:⟨end⟩", "Answer:⟨en⟩"), 10, "unknown escape"),
        (damaged("Answer:⟨end⟩", "Answer:⟨U+110000⟩"), 10, "unknown escape"),
        (damaged("Answer:⟨end⟩", "⟨en⟩Answer:⟨end⟩"), 10, "unknown escape"),
        (damaged('* " A"', '* "⟨en⟩ A"'), 12, "unknown escape"),
        (damaged("Answer:⟨end⟩", "Answer:"), 11, "does not end with ⟨end⟩"),
        (damaged("doc 2", "doc 1"), 14, "doc 1 is after doc 1"),
        (damaged("doc 2", "doc two"), 14, "expected "),
        (damaged("  prompt", " prompt"), 7, "title of a section"),
        (damaged("docs: 2", "docs 2"), 4, "not a header line"),
        (damaged("end: 2", "end: 3"), 20, "counts 3 docs, but the file has 2"),
        (damaged("end: 2 docs", "end 2 docs"), 20, "expected "),
        (damaged(", digest", ", digst"), 20, "incomplete"),
        (write_document(document("a")) + "\n", 12, "only a line break after the last line"),
        (write_document(document("a"))[:-1], 12, "only a line break after the last line"),
        (write_document(document("a"))[:58], 3, "truncated"),
        ("", 1, "expected the first line"),
        ("# My notes\n", 1, "expected the first line"),
    ],
)
def test_damage_is_named_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        read_document(text, FILE)
    assert message in str(caught.value)
    assert caught.value.position is not None
    assert (caught.value.position.line, caught.value.position.path) == (line, FILE)
    assert caught.value.hint


def test_each_cut_off_file_is_noticed() -> None:
    text = write_document(document("Question: «question»\n\nAnswer: ", "second"))
    for length in range(len(text)):
        with pytest.raises(SnapshotError):
            read_document(text[:length], FILE)


@given(st.data())
def test_no_changed_character_of_the_body_goes_unnoticed(data: st.DataObject) -> None:
    text = write_document(document("Question: «question»\n\nAnswer: ", "second"))
    at = data.draw(st.integers(text.index("doc 1"), len(text) - 1))
    changed = text[:at] + data.draw(st.sampled_from(["x", " ", "\n", "⟨", ""])) + text[at + 1 :]
    if changed != text:
        with pytest.raises(SnapshotError):
            read_document(changed, FILE)


@given(st.text())
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    for hostile in (text, "pytest-promptfmt snapshot 1\n" + text, "pytest-promptfmt snapshot 1\n\n\ndoc 1\n" + text):
        with pytest.raises(SnapshotError):
            read_document(hostile, FILE)


def test_another_version_is_not_called_damage() -> None:
    with pytest.raises(UnknownVersionError, match="has version 2"):
        read_document(damaged("snapshot 1", "snapshot 2"), FILE)


def test_states_of_comparison() -> None:
    rendered = document("a", "b")
    text = write_document(rendered)
    assert compare(None, rendered, FILE).state == "missing"
    assert compare(text.encode(), rendered, FILE).state == "equal"
    assert compare(write_document(document("a", "b", docs="2 others")).encode(), rendered, FILE).state == "header-only"
    assert compare(write_document(document("a", "c")).encode(), rendered, FILE).state == "changed"
    assert compare(text.replace("\n", "\r\n").encode(), rendered, FILE).state == "damaged"
    assert compare(text.encode("utf-16"), rendered, FILE).state == "damaged"


def test_a_file_in_another_encoding_is_named_with_its_line() -> None:
    error = compare(write_document(document("é")).encode("latin-1", "replace"), document("é"), FILE).error
    assert "is not UTF-8" in str(error)
    assert error is not None
    assert error.position is not None
    assert error.position.line == 8


def test_a_narrowed_run_keeps_the_docs_it_did_not_render() -> None:
    stored = document("a", "b", "c")
    merged = narrowed(document("A"), stored)
    assert [doc.sections[0].text for doc in merged.docs] == ["A", "b", "c"]
    assert merged.header["docs"] == "3 synthetic"
    assert compare(write_document(stored).encode(), document("a"), FILE, narrowed_run=True).state == "equal"
    changed = compare(write_document(stored).encode(), document("A"), FILE, narrowed_run=True)
    assert (changed.state, read_document(changed.text, FILE)) == ("changed", merged)
