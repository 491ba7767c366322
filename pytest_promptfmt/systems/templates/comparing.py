"""Two chat templates, or the tokenizers beside them, compared by what they make of all conversations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.systems.templates.checking import checked_template, written_template
from pytest_promptfmt.systems.templates.conversations import builtin_conversations
from pytest_promptfmt.systems.templates.evidence import excerpt, first_difference
from pytest_promptfmt.systems.templates.template_files import WrittenChatTemplate, tokenizer_beside
from pytest_promptfmt.systems.templates.trial import Rendering, Trial

if TYPE_CHECKING:
    from pytest_promptfmt.tokens import Tokenizer

_MOST_NAMES: Final = 6
_PROBES: Final = ("  two  spaces", "a\nb\n\n\nc", "\t", "1234567890", "naïve ﬁ Ａ", "don't", "<b>&amp;</b>", "🔩 鉄")
"""Texts on which tokenizers differ by normalization, splitting of numbers, and spaces."""


def compared(first: Path, second: Path) -> Iterator[str]:
    """Yield lines that say what differs, none where nothing does; raises SourceError, TokenizerError."""
    paths = (first, second)
    tokenizers = [tokenizer_beside(path) for path in paths]
    try:
        written = [written_template(path) for path in paths]
    except SourceError:
        if None in tokenizers:
            raise
    else:
        one, other = (Trial(_profile(each)) for each in written)
        yield from _prompts(one, other)
        yield from _findings(first, second)
    before, after = tokenizers
    if before is not None and after is not None:
        from pytest_promptfmt.tokens import load_tokenizer

        yield from _tokens(load_tokenizer(before), load_tokenizer(after))


def _profile(written: WrittenChatTemplate) -> Profile:
    tokens = written.special_tokens
    return Profile(name=written.name, chat_template=written.source, special_tokens=tokens)


def _prompts(one: Trial, other: Trial) -> Iterator[str]:
    """Yield each kind of change once, with the conversations that it is in."""
    changes: dict[tuple[str, str], list[str]] = {}
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for conversation in one.conversations.values():
        for state in conversation.states:
            before, after = (_shown(trial.render(conversation, state)) for trial in (one, other))
            if before != after:
                at = first_difference(before, after)
                change = _word(before, at), _word(after, at)
                seen.setdefault(change, (excerpt(before, at), excerpt(after, at)))
                changes.setdefault(change, []).append(conversation.name)
    changed = {name for names in changes.values() for name in names}
    if changed:
        yield f"{len(changed)} of {len(one.conversations)} conversations give another prompt"
    for change, names in sorted(changes.items(), key=lambda each: -len(each[1])):
        some = list(dict.fromkeys(names))
        yield f"  {', '.join(some[:_MOST_NAMES])}{f' and {len(some) - _MOST_NAMES} more' if some[_MOST_NAMES:] else ''}"
        yield f"    - {escape_controls(seen[change][0])!r}"
        yield f"    + {escape_controls(seen[change][1])!r}"


def _word(text: str, at: int) -> str:
    """Return the word or other character at a place, by which changes are grouped."""
    found = re.compile(r"\w+|\W").match(text, at)
    return found[0] if found is not None else ""


def _shown(rendering: Rendering) -> str:
    if rendering.text is not None:
        return rendering.text
    return f"refused: {rendering.refusal}" if rendering.refusal is not None else f"fails: {rendering.error}"


def _findings(first: Path, second: Path) -> Iterator[str]:
    before, after = (
        {(each.code, each.message): each.severity for each in checked_template(path)} for path in (first, second)
    )
    for sign, ours, theirs in (("no longer", before, after), ("new", after, before)):
        for (code, message), severity in ours.items():
            if (code, message) not in theirs:
                yield f"{sign}: {code} {severity}: {message}"


def _tokens(one: Tokenizer, other: Tokenizer) -> Iterator[str]:
    """Yield how two tokenizers differ: their special tokens, and texts that they encode differently."""
    for name in sorted({*one.special_tokens, *other.special_tokens}):
        before, after = one.special_tokens.get(name), other.special_tokens.get(name)
        if before != after:
            yield f"{name}: {before!r} becomes {after!r}"
    texts = [unit.text for each in builtin_conversations().values() for unit in each.units]
    probes = dict.fromkeys((*_PROBES, *texts))
    different = [text for text in probes if one.ids(text) != other.ids(text)]
    if different:
        yield f"{len(different)} of {len(probes)} texts have other tokens"
    for text in different[:_MOST_NAMES]:
        yield f"  {text!r}"
        yield f"    - {' '.join(map(str, one.ids(text)[:12]))}"
        yield f"    + {' '.join(map(str, other.ids(text)[:12]))}"
