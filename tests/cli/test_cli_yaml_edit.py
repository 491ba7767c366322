"""Keys of a YAML file change, and not one byte of the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, strategies as st

from pytest_promptfmt.cli.yaml_edit import with_keys
from pytest_promptfmt.core.errors import FormatError

PAGE = """\
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
        with_keys(PAGE, written, ("output_type",))
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
    there = with_keys(PAGE, {"template": {"template_type": "cloze", "choice_delimiter": "\n"}})
    assert 'template: # c5\n    template_type: cloze\n    choice_delimiter: "\\n"\nprocess_docs' in there
    assert with_keys(there, {"template": "mcq"}) == PAGE


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
    with pytest.raises(FormatError, match="without damage to the rest: found undefined alias"):
        with_keys("a: &x [1]\nb: *x\n", {}, ("a",))


@pytest.mark.parametrize("page", ["{a: 1}\n", "[a]\n", "? a\n: 1\n"])
def test_file_without_keys_on_lines_of_their_own_is_refused(page: str) -> None:
    with pytest.raises(FormatError, match=r"separate lines|of the form"):
        with_keys(page, {"a": 2})


def test_key_written_twice_is_refused() -> None:
    with pytest.raises(FormatError, match="without damage"):
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


TEXTS = st.one_of(
    st.sampled_from(["mcqa", "null", "yes", "1", "{{ [a, b] }}", "Q: ", "a\nb", " x", "#", "", "é\u2028\x85😀\t"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
WRITTEN = st.dictionaries(
    st.sampled_from([*NAMES, "formats", "added"]),
    st.one_of(
        TEXTS,
        st.none(),
        st.booleans(),
        st.integers(),
        st.lists(TEXTS, max_size=3),
        st.dictionaries(st.sampled_from(["type", "x", "y", "prefix"]), st.one_of(TEXTS, st.none()), min_size=1),
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


@given(page=pages(), written=WRITTEN, removed=st.sets(st.sampled_from(NAMES), max_size=2))
def test_apart_from_the_given_keys_nothing_changes(page: str, written: dict[str, Any], removed: set[str]) -> None:
    before = read(page)
    removed = removed - written.keys()
    assume(not any("#" in str(value) for value in written.values()))
    # A document that lost all of its keys would be no mapping any more.
    assume(written.keys() - removed or before.keys() - removed)
    try:
        made = with_keys(page, written, sorted(removed))
    except FormatError as error:
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


@given(page=pages(), value=TEXTS)
def test_lines_of_other_keys_are_the_same_bytes(page: str, value: str) -> None:
    keys = set(read(page))
    name = sorted(keys)[0]
    assume("\n# indented" not in page and "#" not in value)
    try:
        made = with_keys(page, {name: value})
    except FormatError:
        assume(False)
    before, after = untouched_lines(page, {name}), untouched_lines(made, {name})
    # Comments out of the replaced value move above its key, that is below the key before it.
    assert all(new.startswith(old.rstrip("\r\n")) for old, new in zip(before, after, strict=True))
