"""Releases of lm-eval that make different prompts or requests, each a row of a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from typing import Any, Final, Literal

from pytest_promptfmt.core.data_tables import data_table


@dataclass(frozen=True, kw_only=True)
class Release:
    """The behaviour of one release of lm-eval, and of those after it up to the next row.

    Read from the wheels of 0.4.3 to 0.4.13, and compared with each of them by `tests/parity/test_release_parity.py`.
    `version` is the one that was set or found, which may lie between two rows.
    """

    version: str = "0.4.13"
    redraws: bool = True
    """Whether more shots are drawn where several of those drawn equal the evaluated doc; else the task fails."""
    first_n_leaves_doc_out: bool = True
    """Whether the sampler `first_n` leaves the evaluated doc out."""
    prefix_of_shot: bool = True
    """Whether the `gen_prefix` of a shot is rendered from the shot; else from the evaluated doc."""
    numbers_drawn: int = 24
    """How many random numbers are drawn between building a task and its docs: for three names that it does not need."""
    reads_pool_twice: bool = False
    """Whether the few-shot docs are processed twice, which matters to a `process_docs` that draws at random."""
    makes_turns: bool = True
    """Whether prompts are made of messages with delimiters; else of text, as described at `EarlyContextBuilder`."""
    chat_delimiter: Literal["kept", "dropped", "with gen_prefix"] = "with gen_prefix"
    """Whether the target delimiter precedes a choice under a chat template."""
    delimits_unconditional: bool = True
    """Whether the target delimiter precedes the choices by themselves, which `acc_mutual_info` needs."""
    renders_inputs: bool = True
    """Whether choices that are inputs are messages of a chat template; else text after it."""
    generation: tuple[tuple[str, Any], ...] = (("temperature", 0.0), ("do_sample", False), ("max_gen_toks", 256))
    """The generation arguments of a task without any, without `until`."""
    ignored_shot_keys: frozenset[str] = frozenset()
    """Keys of `fewshot_config` that have no effect."""
    unknown_keys: frozenset[str] = frozenset()
    """Keys that stop a task, and that 0.4.13 takes."""
    keeps_newline: bool = True
    """Whether templates keep a newline at their end."""
    renders_description: bool = True
    """Whether a description is a template, so that a newline at its end is one of those that templates drop."""
    delimits_empty: bool = False
    """Whether delimiters surround the answer of a shot that is empty."""
    chat_arguments: int = 2
    """How many arguments about chat templates `construct_requests` of a class gets: whether, and which."""
    chats_question: bool = False
    """Whether a chat is the question only, without description and shots, as for the chat models of lmms-eval."""

    @property
    def is_compared(self) -> bool:
        """Return whether the version is in the range that the table covers."""
        return numbers_of(OLDEST) <= numbers_of(self.version)[:3] <= numbers_of(LATEST.version)

    @property
    def is_older(self) -> bool:
        """Return whether the version is an early one of 0.4; forks count their own from less."""
        return [0, 4] <= numbers_of(self.version) < numbers_of(OLDEST)

    def differs_from(self, other: Release) -> bool:
        """Return whether two releases make different prompts or requests."""
        return replace(self, version=other.version) != other


LATEST: Final = Release()
"""The release that is followed where none is set or installed."""

OLDEST: Final = "0.4.3"

OF_LMMS_EVAL: Final = f"{OLDEST} as in lmms-eval"
"""The version that lmms-eval is: its code is that of an early lm-eval, its messages are its own."""


@cache
def releases() -> Sequence[Release]:
    """Return the rows by rising version, the last of them `LATEST`."""

    def row(version: str, written: Mapping[str, Any]) -> Release:
        keys = {name: frozenset(written.get(name, ())) for name in ("ignored_shot_keys", "unknown_keys")}
        generation = tuple(written.get("generation", dict(LATEST.generation)).items())
        return Release(version=version, **{**written, **keys, "generation": generation})

    return *(row(*each) for each in reversed([*data_table("releases").items()])), LATEST


@cache
def release_of(version: str) -> Release:
    """Return the behaviour of a version such as `0.4.9.1` or `0.4.11.dev0`: the last row that is not newer.

    An earlier one of 0.4 gets the first row, the own number of a fork, such as `0.1`, the latest. `0.4.3+0.4.7` is
    0.4.3 with what the row of 0.4.7 changed.
    """
    numbers, rows = numbers_of(version), releases()
    other = rows[0] if numbers >= [0, 4] else LATEST
    made = next((row for row in reversed(rows) if numbers_of(row.version) <= numbers), other)
    for before, row in pairwise(rows):
        if row.version in version.split("+")[1:]:
            changed = [each.name for each in fields(Release) if getattr(row, each.name) != getattr(before, each.name)]
            made = replace(made, **{name: getattr(row, name) for name in changed})
    return replace(made, version=version, chats_question=version == OF_LMMS_EVAL)


def numbers_of(version: str) -> list[int]:
    """Return up to four numbers of a version, without those of a development version; none for text without any."""
    return [int(each) for each in re.findall(r"\d+", re.split(r"dev|\+", version)[0])][:4]
