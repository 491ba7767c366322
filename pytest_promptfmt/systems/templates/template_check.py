"""Chat templates checked and compared without pytest, for notebooks and the test suites of others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.limits import applied, rarely_collected
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.profiles.probe_conversations import (
    Conversation,
    ConversationSpec,
    builtin_conversations,
    builtin_tools,
    conversations_beside,
    conversations_of,
)
from pytest_promptfmt.profiles.profile_loading import LoadedProfile
from pytest_promptfmt.profiles.template_trial import PLACEHOLDERS, Rendering, TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, first_difference
from pytest_promptfmt.rules.linter import check_subjects
from pytest_promptfmt.rules.rule_registry import Scope, rules_in
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.settings.profiles import known_host
from pytest_promptfmt.systems import known_systems
from pytest_promptfmt.systems.task_files import files_of
from pytest_promptfmt.systems.templates.answer_parsers import parts_of
from pytest_promptfmt.systems.templates.engines import compiled_by
from pytest_promptfmt.systems.templates.template_files import (
    GgufMetadata,
    WrittenChatTemplate,
    read_gguf,
    templates_of,
    tokenizer_beside,
)

if TYPE_CHECKING:
    from pytest_promptfmt.profiles import Tokenizer


_SYSTEM: Final = "templates"
_GENERAL_RULES: Final = tuple(f"pytest_promptfmt.rules.chat_{about}" for about in ("templates", "tokens", "turns"))


@applied()
@rarely_collected()
def checked_template(
    template: str | Path,
    tokenizer: str | Path | None = None,
    *,
    conversations: Mapping[str, Conversation | ConversationSpec] | None = None,
    engines: Sequence[str] = (),
    hosts: Sequence[str] = (),
    response_template: Mapping[str, Any] | None = None,
    parser: str | None = None,
) -> list[Reported]:
    """Return the findings of a template; arguments and errors are those of `check_template`."""
    written = written_template(template)
    special_tokens = written.special_tokens
    loaded = None
    if tokenizer is not None:
        from pytest_promptfmt.profiles import load_tokenizer

        loaded = load_tokenizer(str(tokenizer))
        special_tokens = loaded.special_tokens
    for engine in engines:
        with suppress(RuntimeError):
            compiled_by(engine, "{{ messages }}")  # a mistake of the caller, not a finding
    for host in hosts:
        known_host(host, None)
    if parser is not None:
        parts_of(parser)
    is_file = written.path.name != ""
    profile = Profile(
        name=written.name,
        chat_template=written.source,
        template_file=written.path if is_file else None,
        special_tokens=special_tokens,
    )
    trial = TemplateTrial(
        profile,
        _tried(conversations, written.path.parent if is_file else None),
        tokenizer=loaded,
        options=written.options(
            engines=tuple(engines), hosts=hosts, parser=parser or response_template or written.parser
        ),
    )
    return sorted(
        findings_of(trial, written.name), key=lambda finding: (list(Severity).index(finding.severity), finding.code)
    )


def _tried(
    given: Mapping[str, Conversation | ConversationSpec] | None, folder: Path | None
) -> Mapping[str, Conversation]:
    """Return the conversations to try: those that are given, else the built-in ones with those of a folder."""
    if given is None:
        return builtin_conversations() if folder is None else conversations_beside(folder)
    specs = {name: dict(each) for name, each in given.items() if not isinstance(each, Conversation)}
    made = conversations_of({"conversations": specs}, Path("conversations"), builtin_tools())
    return {name: each if isinstance(each, Conversation) else made[name] for name, each in given.items()}


def findings_of(trial: TemplateTrial, name: str) -> Iterable[Reported]:
    """Return what the rules of this system find in a trial, and the general ones where it compiles.

    Each message of a rule is returned once, with the first conversation that shows it.
    """
    subjects: dict[Scope, object] = {"task": trial}
    if trial.syntax_error is None:
        subjects["template"] = LoadedProfile(profile=trial.profile, tokenizer=trial.tokenizer, tested=trial)
    path = trial.profile.template_file or Path()
    checked = check_subjects(subjects, _selection(), name=name, path=path, system=_SYSTEM)
    first: dict[tuple[str, str], Reported] = {}
    for finding in checked.findings:
        first.setdefault((finding.code, finding.message), finding)
    return first.values()


@cache
def _selection() -> Selection:
    """Return the rules about templates; to import those about tasks takes longer than a template."""
    return Selection(rules=rules_in((*known_systems()[_SYSTEM].rules, *_GENERAL_RULES)))


def written_template(template: str | Path) -> WrittenChatTemplate:
    """Return the first template of Jinja source, a file or a folder; raises SourceError without one."""
    if isinstance(template, str) and ("{" in template or "\n" in template):
        tokens = PLACEHOLDERS
        return WrittenChatTemplate(name="template", source=template, path=Path(), tokenizer=None, special_tokens=tokens)
    path = Path(template)
    files = files_of(known_systems()[_SYSTEM], path) if path.is_dir() else [path]
    found = [each for file in files for each in templates_of(file)]
    if not found:
        raise SourceError(f"there is no chat template in {path}")
    return found[0]


# -- two templates compared --------------------------------------------------------------------------------------------

_MOST_NAMES: Final = 6
_PADDING: Final = re.compile(r"\[PAD\d+\]|<unused\d+>|<dummy\d+>")
"""Tokens with which converters fill the vocabulary up to the number of rows of the embedding."""
_PROBES: Final = ("  two  spaces", "a\nb\n\n\nc", "\t", "1234567890", "naïve ﬁ Ａ", "don't", "<b>&amp;</b>", "🔩 鉄")
"""Texts on which tokenizers differ by normalization, splitting of numbers, and spaces."""


def compared(first: Path, second: Path) -> Iterator[str]:
    """Yield lines about the differences, none where nothing differs; raises SourceError, TokenizerError."""
    paths = (first, second)
    tokenizers = [_tokenizer(path) for path in paths]
    try:
        written = [written_template(path) for path in paths]
    except SourceError:
        if None in tokenizers:
            raise
    else:
        one, other = (TemplateTrial(_profile(each)) for each in written)
        yield from _prompts(one, other)
        yield from _findings(first, second)
    before, after = tokenizers
    if before is None or after is None:
        return
    yield from _special_tokens(before.special_tokens, after.special_tokens)
    if isinstance(before, GgufMetadata) or isinstance(after, GgufMetadata):
        yield from _vocabulary(before, after)
    else:
        yield from _tokens(before, after)


def _tokenizer(path: Path) -> Tokenizer | GgufMetadata | None:
    """Return the tokenizer of a path: that of a GGUF file's metadata, or the one in the folder."""
    if path.suffix == ".gguf":
        metadata = read_gguf(path)
        return metadata if metadata is not None and metadata.tokens else None
    name = tokenizer_beside(path)
    if name is None:
        return None
    from pytest_promptfmt.profiles import load_tokenizer

    return load_tokenizer(name)


def _profile(written: WrittenChatTemplate) -> Profile:
    tokens = written.special_tokens
    return Profile(name=written.name, chat_template=written.source, special_tokens=tokens)


def _prompts(one: TemplateTrial, other: TemplateTrial) -> Iterator[str]:
    """Yield each kind of change once, with the conversations that it is in."""
    changes: dict[tuple[str, str], list[str]] = {}
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for conversation in one.given.values():
        for state in conversation.states:
            before, after = (_shown(trial.render(conversation, state)) for trial in (one, other))
            if before != after:
                at = first_difference(before, after)
                change = _word(before, at), _word(after, at)
                seen.setdefault(change, (excerpt(before, at), excerpt(after, at)))
                changes.setdefault(change, []).append(conversation.name)
    changed = {name for names in changes.values() for name in names}
    if changed:
        yield f"the prompts of {len(changed)} of {len(one.given)} conversations differ"
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


def _special_tokens(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield f"{name}: {before.get(name)!r} becomes {after.get(name)!r}"


def _tokens(one: Tokenizer, other: Tokenizer) -> Iterator[str]:
    """Yield the texts that two tokenizers encode differently."""
    texts = [unit.text for each in builtin_conversations().values() for unit in each.units]
    probes = dict.fromkeys((*_PROBES, *texts))
    different = [text for text in probes if one.ids(text) != other.ids(text)]
    if different:
        yield f"the tokens of {len(different)} of {len(probes)} texts differ"
    for text in different[:_MOST_NAMES]:
        yield f"  {text!r}"
        yield f"    - {' '.join(map(str, one.ids(text)[:12]))}"
        yield f"    + {' '.join(map(str, other.ids(text)[:12]))}"


def _vocabulary(one: Tokenizer | GgufMetadata, other: Tokenizer | GgufMetadata) -> Iterator[str]:
    """Yield how the vocabulary of a GGUF file, of which only pieces and ids are compared, differs from another one."""
    for name in ("bos_token", "eos_token"):
        before, after = (_adds(each, name) for each in (one, other))
        if None not in (before, after) and before != after:
            yield (
                f"{name} {'is' if after else 'is not'} added to a text now, but "
                f"{'was' if before else 'was not'} added before"
            )
    count = max(len(each.tokens) for each in (one, other) if isinstance(each, GgufMetadata))
    pairs = [(number, _piece(one, number), _piece(other, number)) for number in range(count)]
    different = [
        each for each in pairs if each[1] != each[2] and not any(_PADDING.fullmatch(piece or "") for piece in each[1:])
    ]
    if different:
        yield f"{len(different)} of {count} tokens of the vocabulary differ"
    for number, before_piece, after_piece in different[:_MOST_NAMES]:
        yield f"  {number}: {before_piece!r} becomes {after_piece!r}"


def _piece(tokenizer: Tokenizer | GgufMetadata, number: int) -> str | None:
    if isinstance(tokenizer, GgufMetadata):
        return tokenizer.tokens[number] if number < len(tokenizer.tokens) else None
    return tokenizer.piece(number)


def _adds(tokenizer: Tokenizer | GgufMetadata, name: str) -> bool | None:
    """Return whether a tokenizer adds a special token to a text; None where that is not known."""
    if isinstance(tokenizer, GgufMetadata):
        return tokenizer.adds.get(name)
    token = tokenizer.special_tokens.get(name)
    return None if token is None else tokenizer.id_of(token) in tokenizer.ids("iron")
