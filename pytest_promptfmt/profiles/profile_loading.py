"""A profile with its tokenizer loaded, and the chat template that the tokenizer brings along."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_promptfmt.core.errors import SettingsError, TokenizerError, did_you_mean
from pytest_promptfmt.core.profile import OWN, Profile
from pytest_promptfmt.profiles.probe_conversations import Conversation, builtin_conversations
from pytest_promptfmt.profiles.template_facts import TemplateFacts, template_facts
from pytest_promptfmt.profiles.template_trial import TemplateOwner, TemplateTrial

if TYPE_CHECKING:
    from pytest_promptfmt.profiles import Tokenizer

_DEFAULT = "default"
_TOOL_USE = "tool_use"
_ROLES = ("system", "user", "assistant")
_MOST_TRIALS = 64
_trials: dict[tuple[object, ...], TemplateTrial] = {}


@dataclass(frozen=True, kw_only=True)
class LoadedProfile(TemplateOwner):
    """A profile whose chat template and special tokens are known, and its tokenizer, if it has one.

    `tested` is the trial of a template under test, with its own conversations.
    """

    profile: Profile
    tokenizer: Tokenizer | None = None
    tested: TemplateTrial | None = field(default=None, compare=False, repr=False)

    @cached_property
    def trial(self) -> TemplateTrial | None:
        """Return the chat template tried with conversations; None without one, and for one that does not compile."""
        trial = self._any_trial
        return trial if trial is not None and trial.syntax_error is None else None

    @property
    def _any_trial(self) -> TemplateTrial | None:
        return self.tested or (None if self.profile.chat_template is None else profile_trial(self.profile))

    @cached_property
    def facts(self) -> TemplateFacts | None:
        """Return the facts of the chat template; None without one, and for one that renders nothing."""
        trial = self._any_trial
        facts = template_facts(trial) if trial is not None else None
        return None if facts is None or facts.failure else facts


def profile_trial(profile: Profile) -> TemplateTrial:
    """Return the chat template of a profile tried with what tasks send; once for each template with its arguments.

    Raises ValueError for a profile without a chat template.
    """
    settings = (profile.special_tokens, profile.template_args)
    place = (profile.template_file, profile.origin)
    key = (profile.chat_template, *(repr(sorted(each.items())) for each in settings), profile.clock, *place)
    if key not in _trials:
        has_tools = bool(profile.template_args.get("tools"))
        sent = {name: each for name, each in builtin_conversations().items() if _is_sent(each, has_tools=has_tools)}
        while len(_trials) >= _MOST_TRIALS:
            del _trials[next(iter(_trials))]
        _trials[key] = TemplateTrial(profile, sent)
    return _trials[key]


def _is_sent(conversation: Conversation, *, has_tools: bool) -> bool:
    """Return whether a task can send a conversation: texts of the usual roles, with tools if the profile gives them."""
    given = conversation.documents or conversation.template_args or conversation.clock or conversation.keep_null
    return (
        not given
        and (has_tools or not conversation.tools)
        and all(
            set(each) == {"role", "content"} and isinstance(each["content"], str) and each["role"] in _ROLES
            for each in conversation.messages
        )
    )


def load_profile(profile: Profile, *, download: bool = False) -> LoadedProfile:
    """Return the profile with its tokenizer; the tokenizer's special tokens and, where requested, template in place.

    For the template `own` see `wanted_template`. Raises TokenizerError for a tokenizer that cannot be loaded and
    SettingsError for a template that it does not have, both with the place where the profile is defined.
    """
    if profile.tokenizer is None:
        if profile.template_name is not None:
            raise SettingsError(
                f"profile {profile.name!r} uses the chat template {profile.template_name!r} of its tokenizer, "
                "but has no tokenizer",
                position=profile.origin,
                hint="set a tokenizer in the profile, or name a file as the chat template",
            )
        return LoadedProfile(profile=profile)
    from pytest_promptfmt.profiles import load_tokenizer

    try:
        tokenizer = load_tokenizer(profile.tokenizer, download=download)
    except TokenizerError as error:
        raise type(error)(error.message, position=error.position or profile.origin, hint=error.hint) from error
    known = replace(profile, special_tokens=tokenizer.special_tokens)
    if profile.template_name is not None:
        known = replace(known, chat_template=_own_template(profile, tokenizer))
    return LoadedProfile(profile=known, tokenizer=tokenizer)


def wanted_template(templates: Collection[str], name: str | None = None, *, tools: bool = False) -> str:
    """Return which of a tokenizer's own templates transformers 5.23 takes, whether it is there or not.

    The one called `name`; without a name `tool_use` when tools are given and it is there, else `default`.
    """
    if name is not None:
        return name
    return _TOOL_USE if tools and _TOOL_USE in templates else _DEFAULT


def _own_template(profile: Profile, tokenizer: Tokenizer) -> str:
    templates = tokenizer.chat_templates
    name = None if profile.template_name == OWN else profile.template_name
    wanted = wanted_template(templates, name, tools=profile.template_args.get("tools") is not None)
    if wanted in templates:
        return templates[wanted]
    there = f"its templates are {', '.join(templates)}" if templates else "it has no chat template"
    raise SettingsError(
        f"the tokenizer {profile.tokenizer_name} has no chat template {wanted!r}: {there}",
        position=profile.origin,
        hint=did_you_mean(wanted, templates) or "name a Jinja file, a template of this tokenizer, or `none`",
    )
