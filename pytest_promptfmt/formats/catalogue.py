"""Formats shown to people: what each is, a sample of its prompt, how its answers are read, where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_promptfmt.formats.format import Format
from pytest_promptfmt.formats.pieces import Asked, answer_pieces, prompt_pieces
from pytest_promptfmt.formats.scorers import make_scorer

SAMPLE = Asked(
    question="What is the capital of France?",
    choices=("Berlin", "Madrid", "Paris", "London"),
    gold=2,
    topic="geography",
)
"""The doc that samples show: the one of seed 000."""


def sample(layout: Format, asked: Asked = SAMPLE) -> str:
    """Return the prompt of a doc followed by its answer, as in a demonstration."""
    pieces = (*prompt_pieces(layout, asked), *answer_pieces(layout, asked))
    return "".join(piece.text for piece in pieces if piece.kind != "fewshot_delimiter")


def describe(layout: Format) -> Iterator[str]:
    """Yield the lines that describe a format: its name first, then summary, sample and the rest, indented."""
    yield layout.name
    yield f"  {layout.summary}"
    yield from (f"  | {line}" for line in sample(layout).splitlines())
    yield f"  output type: {layout.output_type}"
    scorer = make_scorer(layout.scorer, layout.choice_labels)
    if scorer is not None:
        yield f"  scorer {scorer.name}: reads {scorer.extracts}"
    for title, text in (("notes", layout.notes), ("source", layout.citation)):
        if text:
            yield f"  {title}: {text}"


def markdown(layouts: Iterable[Format]) -> str:
    """Return the section of the documentation that shows the formats."""
    blocks = []
    for layout in layouts:
        scorer = make_scorer(layout.scorer, layout.choice_labels)
        lines = [f"### `{layout.name}`", "", layout.summary, "", "```text", sample(layout), "```", ""]
        facts = [f"Output type `{layout.output_type}`."]
        facts += [f"Scorer `{scorer.name}`: reads {scorer.extracts}."] if scorer is not None else []
        facts += [layout.notes] if layout.notes else []
        facts += [f"Source: {layout.citation}."] if layout.citation else []
        blocks.append("\n".join([*lines, " ".join(facts)]))
    return "\n\n".join(blocks) + "\n"
