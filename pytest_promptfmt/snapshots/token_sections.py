"""Tokens in a snapshot: those at the end of the prompt and of each continuation, counts, digests of all ids.

      tokens
        context 57 (1 control), digest 0123456789ab: ⟦<s>⟧ [ INST … ⏎ Answer :
        1: ␣A
      * 1: ␣B

Tokens are separated by a space, whitespace in the text is shown as symbols, control tokens are in ⟦ ⟧.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Final

from pytest_promptfmt.core.errors import TokenizerError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Request
from pytest_promptfmt.profiles.encoding import LONGEST_LOOKED_AT, digest_of_ids, encode_prompts, encode_rolling
from pytest_promptfmt.snapshots.document import Document, Section, SectionEntry

if TYPE_CHECKING:
    from pytest_promptfmt.profiles import Tokenizer
    from pytest_promptfmt.profiles.encoding import EncodedPair, PairEncoder

FIRST_TOKENS: Final = 3
"""Tokens shown of the beginning of a long text: BOS and its neighbours."""
LAST_TOKENS: Final = 8
"""Tokens shown of the end of a context."""
WHOLE_TOKENS: Final = 24
"""The longest continuation that is shown whole."""

# The snapshot has its own use for ⟨ and ⟩, with which tokenizers name bytes and characters.
_ANGLES: Final = str.maketrans("⟨⟩", "‹›")

_VERSION: Final = re.compile(r" \d[^\s,)]*")

_DIGEST: Final = re.compile(r"digest ([0-9a-f]{12}):")

Encoded = Mapping[tuple[int, int], "EncodedPair | tuple[int, ...]"]
"""The ids by doc and by request of the doc."""


TITLE: Final = "tokens"
"""The prefix of these sections' titles."""


def token_sections(
    tokenizer: Tokenizer, profile: Profile, instances: Sequence[Instance], pairs: PairEncoder
) -> Callable[[Instance], Iterable[Section]]:
    """Return a function from a doc to its token sections; all docs are encoded here, pairs by `pairs`.

    Raises TokenizerError, naming the doc, for text that no tokenizer can encode.
    """
    try:
        encoded = _encode(tokenizer, profile, instances, pairs)
    except TokenizerError:
        for instance in instances:
            try:
                _encode(tokenizer, profile, [instance], pairs)
            except TokenizerError as error:
                raise TokenizerError(
                    f"doc {instance.index + 1}: {error.message}", position=error.position, hint=error.hint
                ) from error
        raise
    return lambda instance: _sections(tokenizer, instance, encoded)


def profile_facts(profile: Profile, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the stable facts of a header about a profile's tokenizer; versions are in `promptfmt.lock`."""
    facts = {"tokenizer": profile.tokenizer_name or tokenizer.facts.digest, "loader": loader_kind(tokenizer.loader)}
    if profile.mode == "generate":
        facts["mode"] = "generate"
    elif profile.split != "lm-eval":
        facts["split"] = profile.split
    return facts


def shown_digests(document: Document) -> frozenset[str]:
    """Return the digests of ids that a document shows in its sections about tokens."""
    entries = (
        entry.text
        for doc in document.docs
        for section in doc.sections
        if section.title.startswith(TITLE)
        for entry in section.entries
    )
    return frozenset(found[1] for text in entries for found in _DIGEST.finditer(text))


def loader_kind(loader: str) -> str:
    """Return how a tokenizer was loaded, without the versions: `transformers (TokenizersBackend), tokenizers`."""
    return _VERSION.sub("", loader)


def _encode(
    tokenizer: Tokenizer, profile: Profile, instances: Sequence[Instance], encode_pairs: PairEncoder
) -> Encoded:
    pairs: dict[tuple[int, int], tuple[str, str]] = {}
    prompts: dict[tuple[int, int], str] = {}
    rolling: dict[tuple[int, int], str] = {}
    for key, request in _encodable(instances):
        context, continuation = request.context, request.continuation
        is_likelihood = request.kind == "loglikelihood"
        if request.kind == "generate_until" or (profile.mode == "generate" and is_likelihood):
            prompts[key] = context or ""
        elif request.kind == "loglikelihood_rolling":
            rolling[key] = continuation or ""
        else:
            pairs[key] = context or "", continuation or ""
    found: dict[tuple[int, int], EncodedPair | tuple[int, ...]] = {}
    found.update(zip(pairs, encode_pairs(pairs.values()), strict=True))
    texts = list(dict.fromkeys(prompts.values()))
    ids = dict(zip(texts, encode_prompts(tokenizer, texts), strict=True))
    found.update({key: ids[text] for key, text in prompts.items()})
    found.update(zip(rolling, encode_rolling(tokenizer, rolling.values()), strict=True))
    return found


def _encodable(instances: Iterable[Instance]) -> Iterator[tuple[tuple[int, int], Request]]:
    """Yield the requests that are encoded: not those with other types as text, or with too long texts."""
    for instance in instances:
        for number, request in enumerate(instance.requests):
            texts = [text for text in (request.context, request.continuation) if text is not None]
            if all(isinstance(text, str) for text in texts) and sum(map(len, texts)) <= LONGEST_LOOKED_AT:
                yield (instance.index, number), request


def _sections(tokenizer: Tokenizer, instance: Instance, encoded: Encoded) -> Iterator[Section]:
    count = len(instance.prompts)
    for prompt, group in groupby(enumerate(instance.requests), key=lambda pair: pair[1].prompt):
        requests = [(request, encoded.get((instance.index, number))) for number, request in group]
        entries = tuple(_entries(tokenizer, requests))
        if not entries:
            continue
        if prompt is None:
            apart = " without context" if requests[0][0].context == "" else ""
            yield Section(f"{TITLE}{apart}", entries=entries)
        else:
            yield Section(TITLE if count == 1 else f"{TITLE} of prompt {prompt + 1} of {count}", entries=entries)


def _entries(
    tokenizer: Tokenizer, requests: Sequence[tuple[Request, EncodedPair | tuple[int, ...] | None]]
) -> Iterator[SectionEntry]:
    shown: tuple[int, ...] | None = None
    has_long_entry = False
    for request, found in requests:
        if found is None:
            if not has_long_entry and _length(request) > LONGEST_LOOKED_AT:
                has_long_entry = True
                yield SectionEntry(f"{_length(request):,} characters, too long to be shown in tokens")
            continue
        is_pair = not isinstance(found, tuple)
        ids = found if isinstance(found, tuple) else found.context_ids
        if ids != shown:
            what = "text" if request.kind == "loglikelihood_rolling" else "context" if is_pair else "prompt"
            control = sum(map(_control_ids(tokenizer).__contains__, ids))
            size = f"{len(ids)} ({control} control)" if control else f"{len(ids)}"
            is_long = len(ids) > FIRST_TOKENS + LAST_TOKENS + 1
            parts = (ids[:FIRST_TOKENS], ids[-LAST_TOKENS:]) if is_long else (ids,)
            edges = [_shown(tokenizer, part) for part in parts]
            yield SectionEntry(f"{what} {size}, digest {digest_of_ids(ids)}:{' …'.join(edges)}")
            shown = ids
        if not isinstance(found, tuple):
            yield SectionEntry(_continuation(tokenizer, found), request.gold)


def _continuation(tokenizer: Tokenizer, pair: EncodedPair) -> str:
    ids = pair.continuation_ids
    merged = ", merged with the context" if pair.merged else ""
    if len(ids) <= WHOLE_TOKENS:
        return f"{len(ids)}{merged}:{_shown(tokenizer, ids)}"
    half = WHOLE_TOKENS // 2
    shown = f"{_shown(tokenizer, ids[:half])} …{_shown(tokenizer, ids[-half:])}"
    return f"{len(ids)}{merged}, digest {digest_of_ids(ids)}:{shown}"


def _shown(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    return "".join(f" {_token(tokenizer, token)}" for token in ids)


@lru_cache(maxsize=100_000)
def _token(tokenizer: Tokenizer, token: int) -> str:
    """Return a token as it is shown in a snapshot; few different ones occur, each many times."""
    visible = tokenizer.visible(token).translate(_ANGLES)
    return f"⟦{visible}⟧" if token in _control_ids(tokenizer) else visible


@lru_cache(maxsize=64)
def _control_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return tokenizer.all_special_ids | {number for number, token in tokenizer.added_tokens.items() if token.special}


def _length(request: Request) -> int:
    return sum(len(text) for text in (request.context, request.continuation) if isinstance(text, str))
