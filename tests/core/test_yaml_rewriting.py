"""Edits of YAML: the value or key is right, and every other byte stays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import assume, example, given, strategies as st

from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.yaml_rewriting import with_key, with_keys, with_quotes, with_value, without_earlier

PAGE = """\
# a page
double: "Q: {{q}}\\nAnswer: "   # keep
single: 'it''s\\nhere' # x
plain: some text here
literal: |
  line one
  line two\x20

stripped: |-
  only
  this
folded: >-
  folded
  text
listed:
  - no
  - "x"   # y
again: 1
again: 2 # z
several: "more
  lines \\"q\\"
  end "
flow: {x: 1, untill: 2, x: 3}
"""


def place(text: str) -> tuple[int, int]:
    number, line = next((number, line) for number, line in enumerate(PAGE.splitlines(), 1) if text in line)
    return number, line.index(text) + 1


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("at", "value", "old", "new"),
    [
        ("double", "Q: {{q}}\nAnswer:", 'Answer: "', 'Answer:"'),
        ("single", "it's\nhere", r"'it''s\nhere'", r'"it' + r"'s\nhere" + '"'),
        ("plain", "some texts here", "some text", "some texts"),
        ("plain", "some text here\n\n", "some text here", r'"some text here\n\n"'),
        ("literal", "line one\nline two\n", "line two \n", "line two\n"),
        ("stripped", "only\nthis thing", "  this\n", "  this thing\n"),
        ("stripped", "only\nthis\n\n", "|-\n  only\n  this\n", "|+\n  only\n  this\n\n"),
        ("folded", "folded text\n\n", ">-\n  folded\n  text\n", '"folded text\\n\\n"\n'),
        ('"x"', "yy", '"x"', '"yy"'),
        ("several", 'more lines "q" end', 'end "', 'end"'),
    ],
)
def test_only_what_differs_is_written(at: str, value: str, old: str, new: str, newline: str) -> None:
    page, old, new = (text.replace("\n", newline) for text in (PAGE, old, new))
    assert with_value(page, *place(at), value) == page.replace(old, new, 1)


def test_a_key_is_renamed() -> None:
    assert with_key(PAGE, *place("untill"), "until") == PAGE.replace("untill", "until")


def test_a_word_is_put_in_quotes() -> None:
    line, column = place("- no")
    assert with_quotes(PAGE, line, column + 2) == PAGE.replace("- no", '- "no"')


def test_the_earlier_of_two_keys_is_removed() -> None:
    assert without_earlier(PAGE, *place("again: 2")) == PAGE.replace("again: 1\n", "")
    line, _ = place("flow")
    assert without_earlier(PAGE, line, PAGE.splitlines()[line - 1].rindex("x") + 1) == PAGE.replace("x: 1, ", "")


def test_a_question_mark_inside_a_mapping_of_one_line_is_read_as_lm_eval_reads_it() -> None:
    page = "docs: [{question: Which rusts?, answer: 0}]\nrepeats: 1\nrepeats: 2\n"
    assert without_earlier(page, 3, 1) == page.replace("repeats: 1\n", "")


def test_the_comment_of_a_removed_entry_stays() -> None:
    assert without_earlier("a: 1  # why\nb: 2\na: 3\n", 3, 1) == "# why\nb: 2\na: 3\n"


@pytest.mark.parametrize("page", ["a: &x text\nb: *x\n", "a: !function x.y\n", "a: [1, 2]\n"])
def test_what_cannot_be_changed_alone_is_refused(page: str) -> None:
    with pytest.raises(SourceError):
        with_value(page, 1, 1, "other")
    with pytest.raises(SourceError):
        with_value(page, 1, 2, "other")


TEXTS = st.text(st.sampled_from("aé \n\t'\"\\#:-{}[]|>&*!%"), max_size=12)
STYLES = st.sampled_from(["'", '"', "|", ">", None])


@given(old=TEXTS, new=TEXTS, style=STYLES)
@example(old="\\", new="é\t>", style=None)
def test_every_text_in_every_style_becomes_any_other_or_is_refused(old: str, new: str, style: str | None) -> None:
    page = "# c\n" + yaml.dump({"a": 1, "key": {"k": old}, "z": "é"}, default_style=style, allow_unicode=True)
    line = next(
        number
        for number, text in enumerate(page.splitlines(), 1)
        if text.strip().startswith(('"k"', "k:", "'k'", '? "k', "? |", "? >"))
    )
    column = len(page.splitlines()[line - 1]) - len(page.splitlines()[line - 1].lstrip()) + 1
    try:
        made = with_value(page, line, column, new)
    except SourceError:
        return
    assert yaml.safe_load(made) == {**yaml.safe_load(page), "key": {"k": new}}
    assert made.startswith("# c\n")


KEYS = """\
# head
task: a   # name
doc_to_text:   "Q: {{q}}\\nA:"  # c1
doc_to_choice: [a,
  # c2
  b] # c3
# own line
output_type: multiple_choice  # c4
template: mcq # c5
process_docs: !function u.f
metadata:
    version: 1"""


def test_written_keys_keep_their_place_and_spacing_and_every_comment() -> None:
    written = {"doc_to_text": "q", "doc_to_choice": "choices", "formats": {"type": "mcqa", "question_prefix": None}}
    assert (
        with_keys(KEYS, written, ("output_type",))
        == """\
# head
task: a   # name
doc_to_text:   q  # c1
# c2
doc_to_choice: choices # c3
formats:
    type: mcqa
    question_prefix: null
# own line
# c4
template: mcq # c5
process_docs: !function u.f
metadata:
    version: 1"""
    )


def test_text_becomes_a_mapping_and_the_same_bytes_again() -> None:
    there = with_keys(KEYS, {"template": {"template_type": "cloze", "choice_delimiter": "\n"}})
    assert 'template: # c5\n    template_type: cloze\n    choice_delimiter: "\\n"\nprocess_docs' in there
    assert with_keys(there, {"template": "mcq"}) == KEYS


def test_options_of_a_mapping_change_one_by_one() -> None:
    page = "template:\n  # why\n  template_type: mcq  # kind\n  prefix: 'P'   # quoted so\n  suffix: x\ntask: a\n"
    written = {"template": {"template_type": "cloze", "prefix": "P", "choice_delimiter": "\n"}}
    assert with_keys(page, written) == (
        "template:\n  # why\n  template_type: cloze  # kind\n  prefix: 'P'   # quoted so\n"
        '  choice_delimiter: "\\n"\ntask: a\n'
    )


def test_new_first_option_stands_before_the_others() -> None:
    page = "template:\n  prefix: P\ntask: a\n"
    assert with_keys(page, {"template": {"template_type": "cloze"}}) == "template:\n  template_type: cloze\ntask: a\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n# end\n", "\n...\n"])
def test_line_ends_and_the_end_of_the_file_stay(newline: str, end: str) -> None:
    page = f"---\ntask: a\noutput_type: x{end}".replace("\n", newline)
    # Without a last line end the line above keeps its own when the last line goes.
    kept = f"---\ntask: b\nnew: 1{end or chr(10)}".replace("\n", newline)
    assert with_keys(page, {"task": "b", "new": 1}, ("output_type",)) == kept


def test_byte_order_mark_stays() -> None:
    assert with_keys("\ufefftask: a\nb: 1\n", {}, ("task",)) == "\ufeffb: 1\n"
    assert with_keys("\ufefftask: a\nb: 1\n", {"new": 2}, ("task",)) == "\ufeffnew: 2\nb: 1\n"


def test_block_scalars_are_replaced_whole_and_blank_lines_below_them_stay() -> None:
    page = "a: |  # why\n  # no comment\n\n  text\n\n# comment\nb: >-\n  folded\n\n\nc: 1\n"
    assert with_keys(page, {"a": "x", "b": "y z"}) == 'a: x  # why\n\n# comment\nb: "y z"\n\n\nc: 1\n'


def test_value_that_stays_the_same_is_not_written_anew() -> None:
    page = "a: 'x'\nb: [ 1,2 ]\nc: {a:  1}\nd: 0x10\n"
    assert with_keys(page, {"a": "x", "b": [1, 2], "c": {"a": 1}, "d": 16}) == page


def test_alias_is_replaced_where_it_stands() -> None:
    assert with_keys("a: &x [1]\nb: *x  # c\n", {"b": "t"}) == "a: &x [1]\nb: t  # c\n"


def test_anchor_that_others_use_is_not_removed() -> None:
    with pytest.raises(SourceError, match="changed automatically here: found undefined alias"):
        with_keys("a: &x [1]\nb: *x\n", {}, ("a",))


@pytest.mark.parametrize("page", ["{a: 1}\n", "[a]\n", "? a\n: 1\n"])
def test_file_without_keys_on_lines_of_their_own_is_refused(page: str) -> None:
    with pytest.raises(SourceError, match=r"separate lines|of the form"):
        with_keys(page, {"a": 2})


def test_key_written_twice_is_refused() -> None:
    with pytest.raises(SourceError, match="changed automatically here"):
        with_keys("a: 1\nb: 2\na: 3\n", {}, ("a",))


VALUES = st.sampled_from(
    [
        "",
        "null",
        "text",
        "two words",
        "'single ''quoted'' # no comment'",
        '"double \\"quoted\\" \\n # no comment"',
        '"over\n\n    two lines"',
        "'{{ jinja }}'",
        "[a, 'b', \"c # d\"]",
        "[a,  # inside\n   b,\n   # alone\n   c]",
        "{x: 1,   y: [2]}",
        "|\n    literal\n      # no comment\n\n    text",
        "|-  # header\n    literal",
        ">+\n    folded\n    text",
        "\n    # above the list\n    - a   # first\n    -  b\n    - - c",
        "\n    x: 1   # nested\n    y:\n       z: 'deep'\n       # end of z",
        "!function module.name",
        "&anchor text",
        "0o17",
        "yes",
        "ünïcödé 😀",
        "plain over\n    two lines",
    ]
)
GAPS = st.sampled_from([" ", "  ", "      "])
TAILS = st.sampled_from(["", "", "  # behind", " #close", "   "])
BETWEEN = st.sampled_from(["", "", "\n", "# alone\n", "\n# two\n#three\n\n", "   \n", "      # indented\n"])
NAMES = ("task", "doc_to_text", "doc_to_choice", "output_type", "template", "metadata")


@st.composite
def pages(draw: st.DrawFn) -> str:
    parts = [draw(st.sampled_from(["", "---\n", "# head\n", "%YAML 1.1\n---\n", "--- # start\n\n"]))]
    for name in draw(st.permutations(NAMES))[: draw(st.integers(1, len(NAMES)))]:
        value = draw(VALUES)
        gap = "" if value.startswith("\n") or not value else draw(GAPS)
        # A comment behind a block scalar or a nested value would be text of it, or stand elsewhere.
        tail = draw(TAILS) if "\n" not in value or value.startswith(("[", '"')) else ""
        key = draw(st.sampled_from([name, name, f'"{name}"', f"'{name}'"]))
        parts.append(f"{draw(BETWEEN)}{key}:{gap}{value.replace('&anchor', f'&{name}')}{tail}\n")
    page = "".join(parts) + draw(st.sampled_from(["", "# end\n", "\n\n", "...\n"]))
    page = page.removesuffix("\n") if draw(st.booleans()) else page
    return draw(st.sampled_from(["", "\ufeff"])) + page.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


WRITTEN_TEXTS = st.one_of(
    st.sampled_from(["mcqa", "null", "yes", "1", "{{ [a, b] }}", "Q: ", "a\nb", " x", "#", "", "é\u2028\x85😀\t"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
WRITTEN = st.dictionaries(
    st.sampled_from([*NAMES, "formats", "added"]),
    st.one_of(
        WRITTEN_TEXTS,
        st.none(),
        st.booleans(),
        st.integers(),
        st.lists(WRITTEN_TEXTS, max_size=3),
        st.dictionaries(st.sampled_from(["type", "x", "y", "prefix"]), st.one_of(WRITTEN_TEXTS, st.none()), min_size=1),
    ),
    min_size=1,
    max_size=3,
)


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_constructor("!function", lambda _loader, node: f"!function {node.value}")


def read(page: str) -> Mapping[str, Any]:
    return dict(yaml.load(page, _Loader))


def comments_in(page: str) -> list[str]:
    """Return the comments of the generated pages that no text of theirs can hold."""
    words = "inside|alone|header|above the list|first|nested|end of z|behind|close|two|three|head|start|end"
    return sorted(re.findall(rf"# ?(?:{words})\b", page))


UNDER_LITERAL = "task: |\n    text\ndoc_to_text:\n      # indented\ndoc_to_choice:\n"


@given(page=pages(), written=WRITTEN, removed=st.sets(st.sampled_from(NAMES), max_size=2))
@example(page=UNDER_LITERAL, written={"doc_to_choice": None}, removed={"doc_to_text"})
def test_apart_from_the_given_keys_nothing_changes(page: str, written: dict[str, Any], removed: set[str]) -> None:
    before = read(page)
    removed = removed - written.keys()
    assume(not any("#" in str(value) for value in written.values()))
    # A document that lost all of its keys would be no mapping any more.
    assume(written.keys() - removed or before.keys() - removed)
    try:
        made = with_keys(page, written, sorted(removed))
    except SourceError as error:
        # Blank lines below a `>+` are its text: what is written below it must not make them more or fewer.
        assert ">+" in page, error  # noqa: PT017
        return
    after = read(made)
    assert after == {**{key: value for key, value in before.items() if key not in removed}, **written}
    assert [key for key in after if key in before] == [key for key in before if key in after]
    assert comments_in(made) == comments_in(page)
    newline = "\r\n" if "\r\n" in page else "\n"
    assert newline == "\r\n" or "\r" not in made
    assert made.startswith("\ufeff") == page.startswith("\ufeff")


@given(page=pages())
def test_writing_what_stands_there_changes_nothing(page: str) -> None:
    plain = {key: value for key, value in read(page).items() if not str(value).startswith("!function")}
    assert with_keys(page, plain) == page


def untouched_lines(page: str, keys: set[str]) -> list[str]:
    """Return the lines from each other top-level key up to the next key."""
    blocks = re.split(r"(?m)^(?=[\"']?\w+[\"']?:)", page)
    return [block for block in blocks[1:] if re.match(r"[\"']?(\w+)", block)[1] not in keys]  # type: ignore[index]


@given(page=pages(), value=WRITTEN_TEXTS)
def test_lines_of_other_keys_are_the_same_bytes(page: str, value: str) -> None:
    keys = set(read(page))
    name = sorted(keys)[0]
    assume("\n# indented" not in page and "#" not in value)
    try:
        made = with_keys(page, {name: value})
    except SourceError:
        assume(False)
    before, after = untouched_lines(page, {name}), untouched_lines(made, {name})
    # Comments out of the replaced value move above its key, that is below the key before it.
    assert all(new.startswith(old.rstrip("\r\n")) for old, new in zip(before, after, strict=True))


def test_comments_of_a_removed_collection_stay_on_separate_lines() -> None:
    page = "x:   # why\n  - 1  # one\n  # two\n  - 2\ny: 3\nx: 4\n"
    assert without_earlier(page, 6, 1) == "# why\n# one\n# two\ny: 3\nx: 4\n"


def test_byte_order_mark_does_not_move_an_edit() -> None:
    assert with_value("\ufeffa: 1\nb: [x, y]\n", 2, 8, "z") == "\ufeffa: 1\nb: [x, z]\n"


def test_lines_of_a_literal_block_that_stay_keep_their_whitespace() -> None:
    page = "a: |+  # all\n    one\n      \n\n    two\n\nb: 1\n"
    assert with_value(page, 1, 1, "one\n  \n\nthree\n\n") == page.replace("two", "three")


def test_option_of_a_mapping_that_an_alias_repeats_is_refused() -> None:
    with pytest.raises(SourceError, match="changed automatically here"):
        with_keys("a: &x\n  k: 1\n  l: 2\nb: *x\n", {"a": {"k": 2, "l": 2}})
