"""Template files as tasks: one doc, seen by one profile for each conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Origin, Part, Prompt, Request, Span
from pytest_promptfmt.core.task import Assembly, Dataset, Task
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.conversations import Conversation, State, conversations_beside
from pytest_promptfmt.systems.templates.template_files import WrittenChatTemplate, templates_of
from pytest_promptfmt.systems.templates.trial import Rendering, TemplateTrial
from pytest_promptfmt.tasks import TaskFile

_DOC: Final[Doc] = MappingProxyType({})


@dataclass(frozen=True)
class TemplateAssembly(Assembly):
    """The conversations as a chat template renders them; each is a profile, with its states as prompts."""

    brings_profiles: ClassVar = True
    template: WrittenChatTemplate = field(repr=False)
    conversations: Mapping[str, Conversation] = field(repr=False)

    @property
    def facts(self) -> Mapping[str, str]:
        """Return what takes the place of an output type in the header."""
        return {"output": "conversation"}

    @cached_property
    def base_profile(self) -> Profile:
        """Return the template with its tokenizer, as all conversations see it."""
        template = self.template
        return Profile(
            name=template.name,
            tokenizer=template.tokenizer,
            tokenizer_name=template.path.parent.name if template.tokenizer else "",
            chat_template=template.source,
            template_file=template.path,
            special_tokens=template.special_tokens,
            origin=Position(template.path),
        )

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """Return a profile for each conversation, which has its name."""
        return tuple(
            replace(self.base_profile, name=each.name, template_args=each.template_args)
            for each in self.conversations.values()
        )

    def trial(self, study: Study) -> TemplateTrial:
        """Return the template tried with the conversations, with its tokenizer where that loads."""
        from pytest_promptfmt.core.errors import PromptfmtError

        make = partial(
            TemplateTrial,
            conversations=self.conversations,
            engines=study.settings.template_engines,
            trains_for=study.settings.trained_by(self.template.path),
            may_run_code=not study.settings.no_code,
        )
        try:
            loaded = study.load(self.base_profile)
        except PromptfmtError:  # the snapshots of the conversations report it
            return make(self.base_profile)
        return make(loaded.profile, tokenizer=loaded.tokenizer)

    def assembler(self, _task: Task, _docs: TaskDocs, _num_fewshot: int | None) -> ConversationAssembler:
        """Return what renders the conversations."""
        return ConversationAssembler(self)


class ConversationAssembler:
    """Renders the conversation that a profile is named after."""

    is_repeatable = True

    def __init__(self, assembly: TemplateAssembly) -> None:
        self._conversations = assembly.conversations

    def layout(self, _number: int, _doc: Doc) -> None:
        """Return nothing: conversations share nothing."""

    def instance(self, _layout: None, number: int, doc: Doc, profile: Profile) -> Instance:
        """Return each state of the conversation as a prompt, refusals and the mask as notes."""
        conversation = self._conversations.get(profile.name)
        if conversation is None or profile.chat_template is None:
            return Instance(index=number, doc=doc, prompts=(), requests=(), target=None)
        base = replace(profile, template_args=MappingProxyType({}))
        tried = {name: self._conversations[name] for name in ("question", "user-parts") if name in self._conversations}
        trial = TemplateTrial(base, {**tried, conversation.name: conversation})
        made = [trial.render(conversation, state) for state in conversation.states]
        rendered = zip(conversation.states, made, strict=True)
        prompts = tuple(Prompt(role_spans(conversation, state, each) if each.text else ()) for state, each in rendered)
        requests = tuple(
            Request(kind="generate_until", index=at, context=each.text, prompt=at, generation_kwargs={})
            for at, each in enumerate(made)
            if each.text and profile.tokenizer is not None
        )
        notes = [_stopped(at, each) for at, each in enumerate(made) if each.text is None]
        whole = trial.render(conversation, State(count=len(conversation.messages), generation_prompt=False))
        if whole.text is not None and whole.mask:
            notes.append(("mask", tuple(whole.text[first:last] for first, last in whole.mask)))
        return Instance(index=number, doc=doc, prompts=prompts, requests=requests, target=None, notes=tuple(notes))


def read_template_tasks(path: Path, system: str) -> TaskFile | None:
    """Return the templates of a file as tasks of a system; None where it holds none. Raises SourceError."""
    path = Path(path)
    templates = templates_of(path)
    if not templates:
        return None
    conversations = conversations_beside(path.parent)
    tasks = tuple(_task(template, conversations, system) for template in templates)
    return TaskFile(path=path, tasks=tasks, names=tuple(task.name for task in tasks))


def _task(template: WrittenChatTemplate, conversations: Mapping[str, Conversation], system: str) -> Task:
    def given(count: int | None, shots: int) -> TaskDocs:  # noqa: ARG001
        return replace(TaskDocs.in_memory([_DOC]), origin="built in, and *.conversations.yaml")

    return Task(
        name=template.name,
        path=template.path,
        system=system,
        output_type="none",
        num_fewshot=0,
        dataset=Dataset(given=given),
        assembly=TemplateAssembly(template, conversations),
        locate=lambda keys: Position(template.path, 1) if keys == ("task",) else None,
    )


def _stopped(at: int, rendering: Rendering) -> tuple[str, tuple[str, ...]]:
    how = "refused" if rendering.refusal is not None else "failed"
    return f"prompt {at + 1} {how}", (rendering.refusal or rendering.error or "",)


LEARNT: Final = "generation"
"""The key of the origin of what is inside `{% generation %}`."""

_TEMPLATE: Final[Part] = "chat template"
_PARTS: Final[Mapping[str, Part]] = {
    "system": "system message",
    "developer": "system message",
    "user": "user message",
    "assistant": "assistant message",
    "tool": "tool result",
    "reasoning": "reasoning",
    "call": "tool call",
    "argument": "tool call",
}


def role_spans(conversation: Conversation, state: State, rendering: Rendering) -> tuple[Span, ...]:
    """Return the text of a state in pieces; texts that the template does not write as they are belong to it."""
    text = rendering.text or ""
    parts = list(_found(conversation, state, text))
    edges = {0, len(text), *(place for first, last, _ in parts for place in (first, last))}
    edges |= {place for mask in rendering.mask for place in mask}
    spans = []
    for first, last in pairwise(sorted(edges)):
        part = next((part for begin, end, part in parts if begin <= first < end), _TEMPLATE)
        is_learnt = any(begin <= first < end for begin, end in rendering.mask)
        spans.append(Span(text[first:last], Origin(part, LEARNT if is_learnt else None)))
    return tuple(spans)


def _found(conversation: Conversation, state: State, text: str) -> Iterator[tuple[int, int, Part]]:
    """Yield where the texts of the messages are, each after the one before."""
    end = 0
    for unit in conversation.units:
        at = text.find(unit.text, end) if unit.message < state.count else -1
        if at >= 0:
            end = at + len(unit.text)
            yield at, end, _PARTS.get(unit.kind, _TEMPLATE)
