"""Edits of YAML: the value is right, and every byte beside it stays."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, strategies as st

from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.yaml_rewriting import with_key, with_quotes, with_value, without_earlier

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
