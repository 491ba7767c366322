"""Words for messages: foreign values, and names that are close to known ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import (
    MissingResource,
    MissingResourceError,
    Position,
    SettingsError,
    SourceError,
    described,
    did_you_mean,
    is_misspelt,
    named_value,
    place_in_user_code,
    quoted,
    raising,
    shortened,
    without_task,
)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "null"), ([], "a list"), ({}, "a mapping"), (True, "true"), (7, "7"), ("7", "'7'"),
        ("x" * 58, f"'{'x' * 58}'"), ("x" * 59, f"'{'x' * 56}…"),
    ],
)  # fmt: skip
def test_a_value_is_named_as_yaml_writes_it(value: object, name: str) -> None:
    assert named_value(value) == name


def test_foreign_text_is_shortened_only_where_it_is_long() -> None:
    assert [quoted("x" * 60), quoted("x" * 61)] == [repr("x" * 60), repr("x" * 57 + "…")]
    assert [shortened("x" * 500), shortened("x" * 501)] == ["x" * 500, "x" * 500 + "… (501 characters)"]
    assert described(ValueError("a\n b")) == "ValueError: a b"
    assert described(ValueError()) == "ValueError"


def test_only_close_names_are_suggested_and_only_closer_ones_are_mistakes() -> None:
    assert did_you_mean("doc_to_txt", ["doc_to_text", "task"]) == "did you mean 'doc_to_text'?"
    assert did_you_mean("colour", ["doc_to_text", "task"]) is None
    assert is_misspelt("doc_to_txt", ["doc_to_text"])
    assert is_misspelt("atsk", ["task"])  # its letters in another order
    assert not is_misspelt("text", ["task", "tests"])


def test_the_cause_of_a_message_names_neither_task_nor_doc() -> None:
    assert without_task("the target of 'arc@mcqa', doc 2, shot 1 is empty", "arc@mcqa") == "the target is empty"
    assert without_task("'arc' has no docs", "arc@mcqa") == "the task has no docs"


def failing() -> Iterator[str]:
    raise KeyError("of the user")
    yield ""


def test_the_place_of_an_error_is_in_code_that_this_package_called() -> None:
    with pytest.raises(KeyError) as called:
        did_you_mean("name", failing())
    line = failing.__code__.co_firstlineno + 1
    assert (place_in_user_code(called.value) or "").endswith(f"tests/core/test_errors.py:{line}")
    with pytest.raises(TypeError) as ours:
        shortened(3)  # type: ignore[arg-type]
    assert place_in_user_code(ours.value) is None


def test_an_error_of_the_system_is_a_message_only_if_it_is_known_what_failed() -> None:
    with (
        pytest.raises(SettingsError, match=r"^the file cannot be read: No space$"),
        raising(SettingsError, "the file cannot be read"),
    ):
        raise OSError(28, "No space")
    with pytest.raises(OSError, match="No space"), raising(SettingsError):
        raise OSError(28, "No space")


def test_an_error_of_ours_keeps_its_place_and_words_in_another_kind() -> None:
    here, there = Position(Path("a.yaml"), 1), Position(Path("b.yaml"), 2)
    with pytest.raises(SettingsError) as found, raising(SettingsError, "the file cannot be read", here):
        raise SourceError("not a mapping", position=there, hint="write a: 1")
    assert (found.value.message, found.value.position, found.value.hint) == ("not a mapping", there, "write a: 1")


def test_what_makes_a_missing_resource_available_is_the_hint() -> None:
    assert MissingResourceError("no x", MissingResource("x is missing", "pip install x")).hint == "pip install x"
    assert MissingResourceError("no x", MissingResource("x is missing")).hint is None


@pytest.mark.parametrize("before", ["", "a", "a\n", "a\nbc", "\n\n\u00e9"])
def test_a_place_counts_lines_and_characters_from_one(before: str) -> None:
    lines = before.split("\n")
    assert Position.after(Path("a.json"), before) == Position(Path("a.json"), len(lines), len(lines[-1]) + 1)
