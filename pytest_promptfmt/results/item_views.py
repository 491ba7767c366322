"""The part of the HTML report that is made with each item: prompts, what changed, verdicts, as small JSON."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.prompt import Instance, Origin, Prompt, Request
from pytest_promptfmt.core.text import show, show_inner
from pytest_promptfmt.snapshots.changes import SnapshotComparison, unified_diff
from pytest_promptfmt.snapshots.content import to_json
from pytest_promptfmt.snapshots.hunks import changed_words

if TYPE_CHECKING:
    from pytest_promptfmt.answers.phrasing_verdicts import Matrix
    from pytest_promptfmt.core.profile import Profile
    from pytest_promptfmt.profiles import Tokenizer
    from pytest_promptfmt.profiles.encoding import EncodedPair, PairEncoder

MOST_CHARACTERS: Final = 20_000
"""Of one prompt; longer ones are cut, and the page shows that."""

MOST_ROWS: Final = 400
"""Of one comparison."""

_HEADS: Final = ("--- ", "+++ ")


def packed_view(view: Mapping[str, Any]) -> str:
    """Return what the page shows of an item as small text, for its outcome."""
    return b64encode(zlib.compress(json.dumps(view).encode(), 1)).decode()


def unpacked_view(view: str) -> bytes:
    """Return the JSON that `packed_view` packed."""
    return zlib.decompress(b64decode(view))


def prompts_view(
    instances: Sequence[Instance], profile: Profile, tokenizer: Tokenizer | None, pairs: PairEncoder | None
) -> dict[str, Any]:
    """Return the docs of an item: prompts with spans and, where there is a tokenizer, tokens; requests.

    `pairs` encodes for the profile, and knows what its snapshot shows.
    """
    origins: dict[Origin, int] = {}
    docs = []
    for instance in instances:
        scored = scored_pairs(instance, pairs)
        contexts = {instance.requests[number].prompt: pair for number, pair in scored.items() if not pair.moved}
        docs.append(
            {
                "doc": instance.index + 1,
                "heading": instance.heading,
                "prompts": [
                    _prompt(prompt, origins, profile, tokenizer, contexts.get(number))
                    for number, prompt in enumerate(instance.prompts)
                ],
                "requests": [
                    _request(request, scored.get(number), tokenizer) for number, request in enumerate(instance.requests)
                ],
            }
        )
    return {"docs": docs, "origins": [_origin(origin) for origin in origins]}


def comparison_view(comparison: SnapshotComparison | None) -> dict[str, Any]:
    """Return what the page shows of a comparison, whole docs first, header and task last; nothing without two."""
    if comparison is None or comparison.old is None or comparison.new is None:
        return {}
    whole = {"context": MOST_CHARACTERS, "max_lines": MOST_ROWS, "max_width": MOST_CHARACTERS}
    view = diff_view(unified_diff(comparison.old, comparison.new, **whole))
    parts = sorted(view.get("comparison", ()), key=lambda part: str(part["title"]).startswith(("header", "task")))
    return {**view, "comparison": parts} if parts else view


def diff_view(lines: Iterable[str], remarks: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the page shows of a unified diff: parts with rows of an old and a new line, other lines as remarks.

    Each line of a row is in pieces with whether they differ, or None where a side has no such line.
    """
    parts: list[dict[str, Any]] = []
    sides: tuple[list[str], list[str]] = [], []
    others = list(remarks)
    for line in (*lines, ""):
        sign, text = line[:1], line[1:]
        if sign != "+" and (sides[1] or (sides[0] and sign != "-")):
            parts = parts or [{"title": "the prompts", "rows": []}]
            parts[-1]["rows"] += [_row(*pair) for pair in zip_longest(*sides)]
            sides = [], []
        if line.startswith(_HEADS):
            continue
        if sign in ("-", "+"):
            sides[sign == "+"].append(text)
        elif line.startswith("@@ "):
            parts.append({"title": line.removeprefix("@@ ").removesuffix(" @@"), "rows": []})
        elif sign == " " and parts:
            parts[-1]["rows"].append(_row(text, text))
        elif line and not (parts and line.startswith("… and ")):  # the page has the whole prompts as well
            others.append(line)
    return {"remarks": "\n".join(others), **({"comparison": parts} if parts else {})}


def matrix_view(matrix: Matrix) -> dict[str, Any]:
    """Return the verdicts of the phrasing battery: pipelines, and a row for each phrasing."""
    rows = [[row.kind, row.id, list(row.verdicts), row.failed] for row in matrix.rows]
    return {
        "title": "how answers are read",
        "things": ["phrasing", "phrasings", "read wrongly"],
        "pipelines": list(matrix.pipelines),
        "rows": rows,
        "nothing": matrix.nothing,
    }


def _prompt(
    prompt: Prompt,
    origins: dict[Origin, int],
    profile: Profile,
    tokenizer: Tokenizer | None,
    known: EncodedPair | None,
) -> dict[str, Any]:
    spans = []
    left = MOST_CHARACTERS
    for span in prompt.spans:
        if left <= 0:
            break
        spans.append([_named(span.text[:left]), origins.setdefault(span.origin, len(origins))])
        left -= len(span.text)
    view: dict[str, Any] = {"spans": spans, "cut": len(prompt.text) > MOST_CHARACTERS}
    if tokenizer is not None:
        try:
            if known is not None and not view["cut"]:
                ids = known.context_ids
            else:
                ids = tokenizer.ids(prompt.text[:MOST_CHARACTERS], add_special_tokens=not profile.is_chat)
            view["tokens"] = [[_visible(tokenizer, token), token] for token in ids]
        except PromptfmtError as error:
            view["no_tokens"] = str(error)
    return view


def _request(request: Request, pair: EncodedPair | None, tokenizer: Tokenizer | None) -> dict[str, Any]:
    view: dict[str, Any] = {"kind": request.kind, "gold": request.gold, "prompt": request.prompt}
    if request.kind == "generate_until":
        view["settings"] = [
            [show(str(name)), show(to_json(value))] for name, value in (request.generation_kwargs or {}).items()
        ]
    else:
        view["text"] = show(to_json(request.continuation))
    if pair is not None and tokenizer is not None:
        view["tokens"] = [_visible(tokenizer, token) for token in pair.continuation_ids]
    return view


def scored_pairs(instance: Instance, pairs: PairEncoder | None) -> Mapping[int, EncodedPair]:
    """Return what is scored in tokens, by the number of its request."""
    scored = {
        number: (request.context, request.continuation)
        for number, request in enumerate(instance.requests)
        if request.kind == "loglikelihood" and request.context is not None and request.continuation is not None
    }
    if pairs is None or not scored:
        return {}
    try:
        return dict(zip(scored, pairs(scored.values()), strict=True))
    except PromptfmtError:
        return {}


@lru_cache(maxsize=200_000)
def _visible(tokenizer: Tokenizer, token: int) -> str:
    """Return a token as a reader sees it; called for each token of each prompt, and there are few different ones."""
    return tokenizer.visible(token)


def _origin(origin: Origin) -> list[Any]:
    position = None if origin.position is None else show(str(origin.position))
    shot = None if origin.shot is None else origin.shot + 1
    return [origin.part, origin.key, position, shot, None if origin.field is None else show(origin.field)]


def _named(text: str) -> str:
    return "\n".join(show_inner(line) for line in text.split("\n"))


def _row(before: str | None, after: str | None) -> list[Any]:
    if before is None or after is None or before == after:
        return [None if line is None else [[line, False]] for line in (before, after)]
    return [[list(piece) for piece in side] for side in changed_words(before, after)]
