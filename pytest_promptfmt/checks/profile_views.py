"""What rules about profiles look at: a profile by itself, and one task@format as it sees it.

The text that a chat template makes, the facts about the template, and the tokens of what is scored are made once, and
only when a rule asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from pytest_promptfmt.chat.template_facts import TemplateFacts
from pytest_promptfmt.chat.template_probes import template_facts
from pytest_promptfmt.checks.views import TaskView
from pytest_promptfmt.core.errors import LimitExceededError, Position, PromptfmtError, TokenizerError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Prompt, Request
from pytest_promptfmt.tokens import Encoding, Tokenizer
from pytest_promptfmt.tokens.encoding import LONGEST_LOOKED_AT, EncodedPair, PairEncoder


class TemplateView:
    """A profile by itself: what its chat template does to any conversation, and its tokenizer to any text."""

    def __init__(self, profile: Profile, *, name: str, tokenizer: Tokenizer | None = None) -> None:
        self.profile = profile
        self.name = name
        self.tokenizer = tokenizer

    @cached_property
    def facts(self) -> TemplateFacts | None:
        """Return the facts of the chat template; None without one, and for one that renders nothing."""
        if self.profile.chat_template is None:
            return None
        facts = template_facts(self.profile)
        return None if facts.failure else facts

    def place(self, line: int | None = None) -> Position | None:
        """Return a line of the chat template's file, else where the profile is defined, None for a built-in one."""
        if self.profile.template_file is not None:
            return Position(self.profile.template_file, line)
        return self.profile.origin

    def place_of(self, *texts: str) -> Position | None:
        """Return the line of the chat template's file that holds one of the texts, as `place`."""
        source = self.profile.chat_template or ""
        found = [source.find(text) + len(text) - len(text.lstrip("\n")) for text in texts if text in source]
        return self.place(source.count("\n", 0, min(found)) + 1 if found else None)

    def line(self, number: int | None) -> str:
        """Return a line of the chat template (from 1) without its indentation; empty where there is none."""
        lines = (self.profile.chat_template or "").splitlines()
        return lines[number - 1].strip() if number is not None and 0 < number <= len(lines) else ""


@dataclass(frozen=True, slots=True)
class Scored:
    """One continuation whose likelihood is asked for, in tokens."""

    instance: Instance
    request: Request
    context: str
    continuation: str
    pair: EncodedPair

    @property
    def ids(self) -> tuple[int, ...]:
        """Return the ids that are scored."""
        return self.pair.continuation_ids


class ProfileView:
    """One task@format as one profile sees it: its prompts with chat template, and what a tokenizer makes of them.

    `instances` are empty when they cannot be rendered; `failure` says why.
    """

    def __init__(
        self,
        task: TaskView,
        profile: Profile,
        *,
        name: str,
        prepare: Callable[[], Sequence[Instance]],
        tokenizer: Tokenizer | None = None,
        pairs: Callable[[], PairEncoder] | None = None,
    ) -> None:
        self.task = task
        self.profile = profile
        self.name = name
        self._prepare = prepare
        self.tokenizer = tokenizer
        self._pairs = pairs
        self._template = TemplateView(profile, name=name, tokenizer=tokenizer)

    @cached_property
    def _rendered(self) -> Sequence[Instance] | PromptfmtError:
        if self.task.failure is not None:
            return ()
        try:
            return self._prepare()
        except PromptfmtError as error:
            return error

    @property
    def instances(self) -> Sequence[Instance]:
        """Return the rendered docs for this profile."""
        return () if isinstance(self._rendered, PromptfmtError) else self._rendered

    @property
    def failure(self) -> PromptfmtError | None:
        """Return why this profile alone cannot render the task, None where it can."""
        return self._rendered if isinstance(self._rendered, PromptfmtError) else None

    def prepare(self) -> None:
        """Render now instead of when a rule asks for it, and try the chat template out."""
        self._rendered  # noqa: B018  # cached
        self.facts  # noqa: B018  # cached

    @property
    def real_instances(self) -> Sequence[Instance]:
        """Return the rendered docs when the docs are the user's own."""
        return self.instances if self.task.has_real_docs else ()

    @property
    def facts(self) -> TemplateFacts | None:
        """Return the facts of the chat template, as `TemplateView.facts`; none of one that went past a limit here."""
        return None if isinstance(self.failure, LimitExceededError) else self._template.facts

    @cached_property
    def prompts(self) -> tuple[tuple[Instance, Prompt], ...]:
        """Return all prompts, each with the doc it is for."""
        return tuple((instance, prompt) for instance in self.instances for prompt in instance.prompts)

    def encode(self, text: str) -> Encoding | None:
        """Return a text in tokens; None without a tokenizer, and for a text that no tokenizer can encode."""
        try:
            return self.tokenizer.encode(text) if self.tokenizer is not None else None
        except TokenizerError:
            return None

    @cached_property
    def scored(self) -> tuple[tuple[Scored, ...], ...]:
        """Return the continuations of each doc that follow a prompt and are scored.

        None without a tokenizer, none that are too long to be looked at, and none where the split is not made for the
        tokenizer, which is a finding of its own.
        """
        tokenizer = self.tokenizer
        if tokenizer is None or self.profile.mode == "generate":
            return ()
        if self.profile.split == "lm-eval" and ends_every_text(tokenizer):
            return ()
        asked = [
            (instance, request, request.context, request.continuation)
            for instance in self.instances
            for request in instance.requests
            if request.kind == "loglikelihood" and request.context and isinstance(request.continuation, str)
            if len(request.context) + len(request.continuation) <= LONGEST_LOOKED_AT
        ]
        try:
            encode = self._pairs() if self._pairs is not None else PairEncoder(tokenizer, self.profile.split)
            pairs = encode((context or "", text or "") for _, _, context, text in asked)
        except PromptfmtError:
            return ()
        by_doc: dict[int, list[Scored]] = {}
        for (instance, request, context, text), pair in zip(asked, pairs, strict=True):
            by_doc.setdefault(instance.index, []).append(Scored(instance, request, context or "", text or "", pair))
        return tuple(tuple(scored) for scored in by_doc.values())


@cache
def ends_every_text(tokenizer: Tokenizer) -> bool:
    """Return whether the tokenizer puts a token of its own after every text, as those of T5 and BERT do."""
    return tokenizer.ids("red")[-1:] != tokenizer.ids("red", add_special_tokens=False)[-1:]


def shown_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return tokens for a reader, with blanks between them and brackets that no finding takes for its own."""
    return " ".join(tokenizer.visible(token) for token in ids).translate(_BRACKETS)


_BRACKETS: Final = str.maketrans("\u27e8\u27e9", "\u2039\u203a")
