"""One template tried with every conversation: what it renders, refuses, or fails on, each once.

Where it fails, the conversation is tried again without what may be the cause: one failure would hide
everything behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from jinja2 import nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from pytest_promptfmt.core.errors import LimitExceededError, Position, SettingsError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.profiles.conversation import Renderer, described, render_masked
from pytest_promptfmt.profiles.dialect import (
    ASKED,
    compiled_template,
    generation_prompt_of,
    line_of,
    template_tree,
)
from pytest_promptfmt.profiles.probe_conversations import (
    MARKER,
    Conversation,
    State,
    builtin_conversations,
)
from pytest_promptfmt.profiles.template_hosts import sent_severity, template_kinds

if TYPE_CHECKING:
    from pytest_promptfmt.profiles import Tokenizer

Key = TypeVar("Key", bound=Hashable)

PLACEHOLDERS: Final[Mapping[str, str]] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    **{f"{name}_token": f"<{name}>" for name in ("unk", "pad", "sep", "cls", "mask")},
}
"""The special tokens of a template that comes without a tokenizer."""

_SIMPLEST, _PARTS = "question", "user-parts"
_COMMENT: Final = re.compile(r"\{#.*?#\}", re.S)
_REPR: Final = re.compile(r"[\[{]['\"]type")


class Rendering(NamedTuple):
    """The result for one state: its text with the mask, the message of a refusal, or an error.

    `line` is the line of the template at which it stopped, `prompt` the place in the text where a generation prompt
    begins that is known to be all that was added.
    """

    text: str | None = None
    mask: tuple[tuple[int, int], ...] = ()
    refusal: str | None = None
    error: str | None = None
    line: int | None = None
    prompt: int | None = None


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """What a template is tried for, next to its conversations.

    It is compared with `engines`; `hosts` decide the severity of findings, by default all that are known.
    `parser` reads answers back: a `response_template`, a recording, or the name of an installed one (`vllm/hermes`).
    `trains_for` is the template that serves the model, if this one is for its training. Without `may_run_code`
    no engine is tried that the repository under test can bring. A template that `is_for_scores` makes no chat.
    `added_tokens` and `stop_ids` are those of the files next to the template.
    """

    engines: Sequence[str] = ()
    hosts: Collection[str] = ()
    parser: Mapping[str, Any] | Path | str | None = None
    trains_for: Path | None = None
    may_run_code: bool = True
    is_for_scores: bool = False
    added_tokens: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    stop_ids: Collection[int] = ()


class TemplateOwner:
    """What has a profile, and finds places in its chat template."""

    profile: Profile

    def place(self, line: int | None = None) -> Position | None:
        """Return a line of the template's file, else where its profile is defined, None for a built-in one."""
        file = self.profile.template_file
        return Position(file, line) if file is not None else self.profile.origin

    def place_of(self, *texts: str) -> Position | None:
        """Return the first line of the template that holds one of the texts outside comments, else as `place`."""
        source = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), self.profile.chat_template or "")
        found = [source.find(text) + len(text) - len(text.lstrip("\n")) for text in texts if text in source]
        return self.place(source.count("\n", 0, min(found)) + 1 if found else None)


class TemplateTrial(TemplateOwner):
    """A template with the conversations that it is tried with; its renderings are kept."""

    def __init__(
        self,
        profile: Profile,
        conversations: Mapping[str, Conversation] | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        options: TrialOptions | None = None,
    ) -> None:
        """Try the chat template of `profile`; raises ValueError where it has none."""
        if profile.chat_template is None:
            raise ValueError(f"the profile {profile.name!r} has no chat template")
        self.profile = profile
        self.source = profile.chat_template
        self.given = builtin_conversations() if conversations is None else conversations
        self.tokenizer = tokenizer
        self.options = options or TrialOptions()
        settings = (repr(sorted(each.items())) for each in (profile.special_tokens, profile.template_args))
        # Without conversations of its own a trial is for docs, of which there may be any number.
        self._made = _renderings(self.source, *settings, profile.clock) if self.given else {}
        self._reads = cache(self.source.__contains__)
        self._seen: dict[tuple[int, State], tuple[Conversation, Rendering]] = {}
        self.limit: Rendering | None = None
        """The first rendering that exceeded a limit: nothing is rendered after it."""
        self._tried: dict[str, tuple[frozenset[str], Conversation]] = {}
        self._bases: dict[str, Sequence[Conversation]] = {}

    @cached_property
    def _code(self) -> str:
        return _COMMENT.sub("", self.source)

    @cached_property
    def sent(self) -> Mapping[str, Conversation]:
        """Return the conversations that show something, each with the severity of what happens to it.

        A template that writes no tools, or takes no list of parts in a user message, does so nowhere: one finding is
        enough.
        """
        writes_tools, parts = self.mentions("tool_call"), self.given.get(_PARTS)
        takes_parts = parts is None or self._takes(parts)
        return {
            each.name: each.as_severe(sent_severity(each, self.kinds, self.options.hosts))
            for each in self.given.values()
            if (writes_tools or not each.has_tools) and (takes_parts or not each.has_parts or each.name == _PARTS)
        }

    @cached_property
    def conversations(self) -> Mapping[str, Conversation]:
        """Return all conversations; where the template fails on one, the same one without what it fails on, if any.

        Those have a condition in their `about`.
        """
        return {**self.given, **{name: self._relaxed(each)[1] for name, each in self.sent.items()}}

    @cached_property
    def hidden_failures(self) -> Mapping[str, tuple[Conversation, Rendering]]:
        """Return the conversations that fail also without what simpler ones fail on, and how."""
        found: dict[str, tuple[Conversation, Rendering]] = {}
        for name, conversation in self.sent.items():
            base = self.sent.get(conversation.base or "")
            removed = self._relaxed(base)[0] if base is not None else frozenset()
            tried = dict(conversation.relaxations) if removed else {}
            variant = tried.get(removed)
            simpler = [found[each.name][1][2:4] for each in self.bases(conversation) if each.name in found]
            stopped = self.stopped(variant) if variant is not None else None
            if variant is not None and stopped is not None and stopped[2:4] not in simpler:
                found[name] = variant, stopped
        return found

    def _relaxed(self, conversation: Conversation) -> tuple[frozenset[str], Conversation]:
        """Return what was taken from a conversation to have it rendered, and the rest; nothing where that fails."""
        if conversation.name not in self._tried:
            self._tried[conversation.name] = frozenset(), conversation
            if self.syntax_error is None and self.stopped(conversation) is not None and self.limit is None:
                variants = ((names, each) for names, each in conversation.relaxations if self.stopped(each) is None)
                self._tried[conversation.name] = next(variants, self._tried[conversation.name])
        return self._tried[conversation.name]

    @cached_property
    def syntax_error(self) -> Rendering | None:
        """Return why the template does not compile, None where it does."""
        try:
            compiled_template(self.source)
        except TemplateSyntaxError as error:
            return Rendering(error=f"{error.message}", line=error.lineno)
        except Exception as error:
            return Rendering(error=f"{type(error).__name__}: {error}"[:300])
        return None

    @cached_property
    def takes_only_parts(self) -> bool:
        """Return whether contents have to be lists of parts: then all conversations are sent like that."""
        parts = self.given.get(_PARTS)
        if _SIMPLEST not in self.given or parts is None or self.syntax_error is not None:
            return False
        word = self.given[_SIMPLEST].units[0].text
        if word in (self.as_text.text or ""):
            return False
        return word in (self._rendered(parts, State(count=1), as_parts=False).text or "")

    @cached_property
    def as_text(self) -> Rendering:
        """Return what becomes of the simplest question whose content is text."""
        return self._rendered(self.given[_SIMPLEST], State(count=1), as_parts=False)

    @cached_property
    def marker(self) -> re.Pattern[str]:
        """Return what finds a marker in a prompt, the end token among them."""
        eos = self.profile.special_tokens.get("eos_token")
        return re.compile(f"{MARKER.pattern}|{re.escape(eos)}") if eos else MARKER

    @cached_property
    def added_tokens(self) -> Mapping[str, int]:
        """Return the ids of the tokens that are found in a text as a whole, as far as they are known."""
        given = self.tokenizer.added_tokens if self.tokenizer is not None else {}
        return {token.content: number for number, token in given.items()} or self.options.added_tokens

    @cached_property
    def tree(self) -> nodes.Template:
        """Return the syntax tree of the template, not to be changed; raises TemplateSyntaxError."""
        return template_tree(self.source)

    @cached_property
    def _prompt(self) -> nodes.If | None:
        return None if self.syntax_error is not None else generation_prompt_of(self.source)

    @cached_property
    def nodes(self) -> tuple[nodes.Node, ...]:
        """Return all nodes below the root of the syntax tree; raises TemplateSyntaxError."""
        found, waiting = list[nodes.Node](), list[nodes.Node]([self.tree])
        while waiting:  # Jinja's own walk takes five times as long
            node = waiting.pop()
            for name in node.fields:
                value = getattr(node, name, None)
                children = value if value.__class__ is list else (value,)
                waiting += (inner := [each for each in children if isinstance(each, nodes.Node)])
                found += inner
        return tuple(found)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Return what is known of the template from its source, as `template_kinds`."""
        return frozenset() if self.syntax_error is not None else template_kinds(self.nodes)

    def mentions(self, *names: str) -> bool:
        """Return whether the template has one of these names, outside comments."""
        return any(name in self._code for name in names)

    def render(self, conversation: Conversation, state: State) -> Rendering:
        """Return what became of a state of a conversation."""
        seen = self._seen.get((id(conversation), state))
        if seen is None:
            seen = self._seen[id(conversation), state] = conversation, self._made_of(conversation, state)
        return seen[1]

    def _made_of(self, conversation: Conversation, state: State) -> Rendering:
        """Return what became of a state, which is rendered once for all that a template cannot tell apart."""
        prompt = self._prompt if not (state.generation_prompt or state.continues) else None
        if prompt is not None:
            asked = self.render(conversation, state._replace(generation_prompt=True))
            if asked.text is not None and asked.prompt is not None:
                mask = tuple(span for span in asked.mask if span[0] < asked.prompt)
                return Rendering(asked.text[: asked.prompt], mask)
            if asked.text is not None:
                return asked
        named = tuple(each for each in conversation.named.items() if self._reads(each[0]))
        asks = state.generation_prompt and (state.continues or self._reads(ASKED))
        key = conversation.digests[state.count], named, asks, state.continues, self.takes_only_parts
        made = self._made.get(key)
        if made is None:
            made = self.limit or self.syntax_error or self._rendered(conversation, state)
            if self.limit is None:
                self._made[key] = made
        return made

    def text(self, name: str, *, generation_prompt: bool = False) -> str | None:
        """Return the text of a whole conversation; None where it is missing or not rendered."""
        conversation = self.conversations.get(name)
        if conversation is None:
            return None
        return self.render(conversation, conversation.finished._replace(generation_prompt=generation_prompt)).text

    def stopped(self, conversation: Conversation) -> Rendering | None:
        """Return the first state that is refused or fails, None where all are rendered."""
        made = (self.render(conversation, state) for state in conversation.states)
        return next((each for each in made if each.text is None), None)

    def whole(self, conversation: Conversation) -> str | None:
        """Return the text of a whole conversation as it is sent."""
        return self.render(conversation, conversation.states[-1]).text

    def finished(self, conversation: Conversation, count: int | None = None) -> str | None:
        """Return the text of a whole conversation, or of its first messages, without what opens another answer."""
        count = len(conversation.messages) if count is None else count
        return self.render(conversation, State(count=count, generation_prompt=False)).text

    def markers(self, text: str) -> list[str]:
        """Return the markers of a text in order, the end token among them."""
        return self.marker.findall(text)

    def bases(self, conversation: Conversation) -> Sequence[Conversation]:
        """Return the simpler conversations below one."""
        if conversation.name not in self._bases:
            found, waiting = {conversation.name: conversation}, [conversation.base, conversation.also]
            while waiting:
                name = waiting.pop(0)
                if name is not None and name not in found:
                    simpler = found[name] = self.conversations[name]
                    waiting += [simpler.base, simpler.also]
            self._bases[conversation.name] = tuple(found.values())[1:]
        return self._bases[conversation.name]

    def applicable(self) -> list[Conversation]:
        """Return the conversations that show something about the template, as far as it renders them."""
        return [self.conversations[name] for name in self.sent]

    def _takes(self, parts: Conversation) -> bool:
        text = self.whole(parts)
        return text is not None and all(unit.text in text for unit in parts.units) and not _REPR.search(text)

    def attributed(self, faults: Callable[[Conversation], Set[Key]]) -> Iterator[tuple[Conversation, Key]]:
        """Yield each fault with the simplest conversations that show it; faults of a simpler one are not repeated."""
        known: dict[str, Set[Key]] = {}

        def of(conversation: Conversation) -> Set[Key]:
            if conversation.name not in known:
                known[conversation.name] = faults(conversation)
            return known[conversation.name]

        for conversation in self.applicable():
            found = of(conversation)
            if found:
                simpler = {key for base in self.bases(conversation) for key in of(base)}
                for key in sorted(found - simpler, key=str):
                    yield conversation, key

    def simplest(self, shows: Callable[[Conversation], object]) -> Iterator[Conversation]:
        """Yield the simplest conversations that show something."""
        for conversation, _ in self.attributed(lambda each: frozenset({True} if shows(each) else ())):
            yield conversation

    def rendered_by(self, renderer: Renderer, conversation: Conversation, state: State) -> Rendering:
        """Return what another compiled template makes of a state; nothing of it is kept."""
        return self.syntax_error or self._rendered(conversation, state, renderer=renderer)

    def _rendered(
        self,
        conversation: Conversation,
        state: State,
        *,
        as_parts: bool | None = None,
        renderer: Renderer | None = None,
    ) -> Rendering:
        profile = self.profile
        messages: Sequence[Mapping[str, Any]] = conversation.chat[: state.count]
        if self.takes_only_parts if as_parts is None else as_parts:
            messages = [_in_parts(message) for message in messages]
        if conversation.template_args or conversation.clock is not None:
            profile = replace(
                profile,
                template_args={**profile.template_args, **conversation.template_args},
                clock=conversation.clock or profile.clock,
            )
        options: dict[str, Any] = {"tools": conversation.tools, "documents": conversation.documents}
        if conversation.tools and "functions" in self.kinds:
            functions = [tool.get("function", tool) for tool in conversation.tools]
            profile = replace(profile, template_args={"functions": functions, **profile.template_args})
        try:
            text, mask, prompt = render_masked(
                profile,
                messages,
                add_generation_prompt=state.generation_prompt,
                continue_final_message=state.continues,
                is_plain=True,
                renderer=renderer,
                **options,
            )
        except LimitExceededError as error:
            self.limit = Rendering(error=error.message)
            return self.limit
        except SettingsError:
            raise  # a server that does not answer has not rendered anything
        except Exception as error:
            line = line_of(error)
            if type(error) is TemplateError:
                return Rendering(refusal=str(error), line=line)
            return Rendering(error=described(error)[:300], line=line)
        return Rendering(text=text, mask=mask, prompt=prompt)


@lru_cache(maxsize=16)
def _renderings(*_settings: Hashable) -> dict[Hashable, Rendering]:
    """Return where the renderings of a template with these settings are kept, for all its trials."""
    return {}


def _in_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def lone_profile(source: str, path: Path | None = None, name: str = "template") -> Profile:
    """Return the profile of a template that comes without a tokenizer."""
    return Profile(name=name, chat_template=source, template_file=path, special_tokens=PLACEHOLDERS)
