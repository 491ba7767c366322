"""Slow steps show a bar on a terminal, from a size on that takes a while."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_promptfmt.plugin.items.item import SHOWN_FROM_ANSWERS, answering

pty = pytest.importorskip("pty", reason="needs a terminal")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield the other end of a terminal that is the standard error of this process."""
    here, there = pty.openpty()
    with os.fdopen(there, "w") as stream:
        monkeypatch.setattr(sys, "__stderr__", stream)
        monkeypatch.setenv("TERM", "xterm")
        yield here
    os.close(here)


def printed(terminal: int, until: str = "") -> str:
    """Return what is on the terminal, once it has this text: bars are drawn from time to time."""
    text, seconds = "", 900 if until else 0
    while select.select([terminal], [], [], 0 if until in text else seconds)[0]:
        text += os.read(terminal, 65536).decode()
    return text


def test_a_bar_of_answers_is_shown_from_two_hundred_on(terminal: int) -> None:
    assert SHOWN_FROM_ANSWERS == 200
    for count in (199, 200):
        with answering(count, "asking the model") as show:
            show(count // 2)
            text = printed(terminal, "50%" if count == 200 else "")
        assert ("asking the model" in text) == (count == 200)
        printed(terminal)


def test_nothing_is_shown_where_standard_error_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "errors").open("w+") as stream:
        monkeypatch.setattr(sys, "__stderr__", stream)
        with answering(1000, "asking the model") as show:
            show(500)
        stream.seek(0)
        assert stream.read() == ""
    monkeypatch.setattr(sys, "__stderr__", None)
    with answering(1000, "asking the model") as show:
        show(500)
