"""Lines of prompts, tokens, requests and changes in a terminal, with the style of each part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from rich.text import Text

from pytest_promptfmt.cli.display import (
    SHOWN_LINES,
    cluster_lines,
    diff_lines,
    legend,
    prompt_lines,
    request_lines,
    token_lines,
)
from pytest_promptfmt.core.prompt import Origin, Prompt, Request, Span
from pytest_promptfmt.profiles import load_tokenizer
from pytest_promptfmt.results.clusters import Cluster, Member
from pytest_promptfmt.results.wording import NAMES

PROMPT = Prompt(
    (
        Span("Q: ", Origin("description")),
        Span("a b\nc", Origin("question", field="ask")),
        Span("\n\n", Origin("fewshot delimiter", shot=0)),
        Span("A:", Origin("question", shot=1, field="ask")),
    )
)


def pieces(lines: Iterable[Text]) -> list[list[tuple[str, str]]]:
    """Return the texts of lines with their styles."""
    return [[(line.plain[span.start : span.end], str(span.style)) for span in line.spans] for line in lines]


def plain(lines: Iterable[Text]) -> list[str]:
    return [line.plain for line in lines]


def test_each_span_has_the_style_of_its_part_and_columns_and_shots_another() -> None:
    assert pieces(prompt_lines(PROMPT, spaces=False)) == [
        [("Q: ", "yellow"), ("a b", "default bold")],
        [("c", "default bold")],
        [],
        [("A:", "default bold dim"), ("⟨end⟩", "dim")],
    ]


def test_spaces_and_line_ends_are_shown_on_demand() -> None:
    assert plain(prompt_lines(PROMPT, spaces=False)) == ["Q: a b", "c", "", "A:⟨end⟩"]
    assert plain(prompt_lines(PROMPT, spaces=True)) == ["Q:·a·b↵", "c↵", "↵", "A:⟨end⟩"]


@pytest.mark.parametrize(
    ("marked", "highlighted"),
    [([(1, 4)], [":·", "a"]), ([(0, 3)], ["Q:·"]), ([(5, 7)], ["b", "↵"]), ([(4, 4)], []), ([(10, 12)], ["A:"])],
)
def test_marked_characters_are_highlighted_and_no_others(
    marked: Sequence[tuple[int, int]], highlighted: list[str]
) -> None:
    lines = pieces(prompt_lines(PROMPT, spaces=True, marked=marked))
    assert [text for line in lines for text, style in line if "underline" in style] == highlighted


@pytest.mark.parametrize(
    ("origins", "shown"),
    [
        ([Origin("question"), Origin("question")], "colours: question  "),
        ([Origin("question"), Origin("answer", field="a")], "colours: question  answer  a column of the doc  "),
        ([Origin("answer", shot=0)], "colours: answer  shot"),
    ],
)
def test_the_legend_names_the_parts_that_are_there(origins: list[Origin], shown: str) -> None:
    assert legend([Prompt(tuple(Span("a", each) for each in origins))]).plain == shown


def test_tokens_are_separated_and_lines_end_after_the_token_of_a_line_end() -> None:
    tokenizer = load_tokenizer("archetype:bytelevel-gpt2")
    ids = tokenizer.encode("ab c\nd", add_special_tokens=False).ids
    *lines, count = token_lines(tokenizer, "ab c\nd", ids=False, special=False)
    assert count.plain == f"{len(ids)} tokens"
    assert len(lines) == 2
    shown = [tokenizer.visible(each) for each in ids]
    assert "│".join(shown) == "│".join(plain(lines))
    assert [style for line in pieces(lines) for text, style in line if style == "reverse"]
    *lines, _ = token_lines(tokenizer, "ab c", ids=True, special=False)
    assert all(f" {each}" in lines[0].plain for each in tokenizer.encode("ab c", add_special_tokens=False).ids)


def test_requests_are_continuations_with_a_star_or_arguments() -> None:
    right = Request(kind="loglikelihood", index=0, continuation=" yes", gold=True)
    wrong = Request(kind="loglikelihood", index=1, continuation=" no")
    asked = Request(kind="generate_until", index=0, generation_kwargs={"until": ["\n"], "max_gen_toks": 4})
    free = Request(kind="generate_until", index=0)
    lines = [*request_lines([(0, right), (1, wrong), (2, asked), (3, free)])]
    assert plain(lines) == ['* " yes"', '  " no"', '  until ["\\n"]', "  max_gen_toks 4"]
    assert [style for [(_, style)] in pieces(lines[:2])] == ["bold green", "green"]


DIFF = ["@@ 1 @@", "-a b", "+a c", " d"]


def test_lines_of_a_diff_have_the_style_of_their_sign_and_words_that_differ_another() -> None:
    shown = [*diff_lines(DIFF)]
    assert plain(shown) == DIFF
    assert [str(line.style) for line in shown] == ["cyan", "red", "green", ""]
    assert [text for line in pieces(shown) for text, style in line if "reverse" in style] == ["b", "c"]


@pytest.mark.parametrize(("count", "most", "left"), [(3, 3, None), (4, 3, 1), (4, None, None), (1203, 2, "1,201")])
def test_a_long_diff_ends_with_how_many_lines_are_left(count: int, most: int | None, left: int | str | None) -> None:
    shown = plain(diff_lines([" a"] * count, most))
    assert shown[(most or count) :] == ([f"… and {left} more lines"] if left else [])
    assert shown[:most][:count] == [" a"] * min(count, most or count)


@pytest.mark.parametrize("verbose", [False, True])
def test_a_cluster_is_its_size_title_diff_and_tasks(verbose: bool) -> None:
    tasks = [f"task{number}" for number in range(NAMES + 1)]
    long = "\n".join([" a"] * (SHOWN_LINES + 1))
    members = tuple(Member(task=task, profile="plain", file="a.txt") for task in tasks)
    lines = plain(
        cluster_lines(
            Cluster(category="changed", key="", title="a\x1btitle", detail=long, members=members), verbose=verbose
        )
    )
    assert lines[0] == f"changed: {len(tasks)} prompts of {len(tasks)} tasks"
    assert "\x1b" not in lines[1]
    assert lines[-2] == f"in {', '.join(tasks if verbose else tasks[:NAMES])}{'' if verbose else ' and 1 more'}"
    assert len(lines) == 4 + SHOWN_LINES + 1
    one = Member(task="arc", profile="plain", file="a.txt")
    assert plain(cluster_lines(Cluster(category="changed", key="", title="title", detail=" a", members=(one,))))[
        1:
    ] == ["title", " a", ""]
    assert plain(cluster_lines(Cluster(category="changed", key="", title="title", members=(one,))))[1:] == [
        "title",
        "in arc",
        "",
    ]
