"""One task@format as one profile sees it: its prompts with chat template, and the tokens of what is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError, TokenizerError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Prompt, Request
from pytest_promptfmt.profiles import Encoding, Tokenizer
from pytest_promptfmt.profiles.encoding import LONGEST_LOOKED_AT, EncodedPair, PairEncoder
from pytest_promptfmt.profiles.profile_loading import LoadedProfile
from pytest_promptfmt.profiles.template_facts import TemplateFacts
from pytest_promptfmt.study.study import Study


@dataclass(frozen=True, slots=True)
class ScoredContinuation:
    """One continuation whose likelihood is requested, in tokens."""

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
    """The study of a task as one profile sees it; `name` is what the run calls the profile.

    `instances` are empty when they cannot be rendered; `failure` is the reason.
    """

    def __init__(self, study: Study, profile: Profile, *, name: str) -> None:
        self.study = study
        self.name = name
        self._given = profile

    def load(self) -> LoadedProfile:
        """Return the profile with its tokenizer; raises TokenizerError or SettingsError."""
        return self.study.load(self._given)

    def render(self) -> tuple[Instance, ...]:
        """Return the rendered docs for this profile; raises as `load`, and what stops rendering."""
        self.study.require_material()  # what stops all profiles comes before what stops this one
        return self.study.render(self.load().profile)

    @cached_property
    def loaded(self) -> LoadedProfile:
        """Return the profile with its tokenizer; where that cannot be loaded, without it."""
        try:
            return replace(self.load(), tested=self.study.tested)
        except PromptfmtError:
            return LoadedProfile(profile=self._given, tested=self.study.tested)

    @property
    def profile(self) -> Profile:
        """Return the profile."""
        return self.loaded.profile

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer, None without one or if it cannot be loaded."""
        return self.loaded.tokenizer

    @cached_property
    def pairs(self) -> PairEncoder | None:
        """Return what encodes contexts with continuations, each once; None without a tokenizer."""
        return None if self.tokenizer is None else PairEncoder(self.tokenizer, self.profile.split)

    @cached_property
    def failure(self) -> PromptfmtError | None:
        """Return why only this profile cannot render the task, None if it can, or if no profile can."""
        if self.study.failure is not None:
            return None
        try:
            if self.study.given.assembly.brings_profiles:
                self.load()  # where its template fails is noted in the prompts
            elif not self.study.renders(self.load().profile):
                self.render()
        except PromptfmtError as error:
            return error
        return None

    @property
    def instances(self) -> Sequence[Instance]:
        """Return the rendered docs for this profile."""
        return self.render() if self.failure is None and self.study.failure is None else ()

    @property
    def real_instances(self) -> Sequence[Instance]:
        """Return the rendered docs when the docs are the user's own."""
        return self.instances if self.study.has_real_docs else ()

    def prepare(self) -> tuple[PromptfmtError | None, TemplateFacts | None]:
        """Render for this profile and try its chat template now, under their own limits; return both results."""
        return self.failure, self.facts

    @property
    def facts(self) -> TemplateFacts | None:
        """Return the facts of the chat template, as `LoadedProfile.facts`; none of one that exceeds a limit here."""
        return None if isinstance(self.failure, LimitExceededError) else self.loaded.facts

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
    def scored(self) -> tuple[tuple[ScoredContinuation, ...], ...]:
        """Return the continuations of each doc that follow a prompt and are scored.

        Empty without a tokenizer, and where the split does not fit the tokenizer, which is a separate finding; without
        those that are too long to be encoded.
        """
        tokenizer, encode = self.tokenizer, self.pairs
        if tokenizer is None or encode is None or self.profile.mode == "generate":
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
            pairs = encode((context or "", text or "") for _, _, context, text in asked)
        except PromptfmtError:
            return ()
        by_doc: dict[int, list[ScoredContinuation]] = {}
        for (instance, request, context, text), pair in zip(asked, pairs, strict=True):
            found = ScoredContinuation(instance, request, context or "", text or "", pair)
            by_doc.setdefault(instance.index, []).append(found)
        return tuple(tuple(scored) for scored in by_doc.values())


def seen_by(study: Study, profile: Profile, name: str = "") -> ProfileView:
    """Return the task as a profile sees it, made once; `name` is what the run calls the profile."""
    return study.once(("view", profile.name), lambda: ProfileView(study, profile, name=name or profile.name))


@cache
def ends_every_text(tokenizer: Tokenizer) -> bool:
    """Return whether the tokenizer puts a token after every text, as those of T5 and BERT do."""
    return tokenizer.ids("red")[-1:] != tokenizer.ids("red", add_special_tokens=False)[-1:]
