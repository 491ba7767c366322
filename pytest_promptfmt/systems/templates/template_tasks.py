"""Template files as tasks: one doc, seen by one profile for each conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Message, Origin, Part, Prompt, Request, Span
from pytest_promptfmt.core.task import Assembly, Dataset, Task
from pytest_promptfmt.profiles.probe_conversations import (
    Conversation,
    State,
    builtin_conversations,
    conversations_beside,
)
from pytest_promptfmt.profiles.template_trial import Rendering, TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import written_lines
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.answers_read_back import loop_lines, loop_table
from pytest_promptfmt.systems.templates.template_files import WrittenChatTemplate, templates_of
from pytest_promptfmt.tasks import TaskFile

PROFILE: Final = "conversations"
"""The name of the only profile of a template, and of its snapshot."""

_NAME: Final = "conversation"
_OWN: Final = 1000
"""The number of a first conversation of one's own, minus one: built-in ones that come later move none."""


@dataclass(frozen=True)
class TemplateAssembly(Assembly):
    """The conversations as a chat template renders them; each is a doc, with its states as prompts."""

    brings_profiles: ClassVar = True
    template: WrittenChatTemplate = field(repr=False)
    conversations: Mapping[str, Conversation] = field(repr=False)

    @property
    def facts(self) -> Mapping[str, str]:
        """Return what takes the place of an output type in the header."""
        return {"output": "conversation"}

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """Return the template with its tokenizer, which is known by its content: folders of clones differ."""
        template = self.template
        profile = Profile(
            name=PROFILE,
            tokenizer=template.tokenizer,
            chat_template=template.source,
            template_file=template.path,
            special_tokens=template.special_tokens,
            origin=Position(template.path),
        )
        return (profile,)

    def trial(self, study: Study) -> TemplateTrial:
        """Return the template tried with the conversations, with its tokenizer where that loads."""
        from pytest_promptfmt.core.errors import PromptfmtError

        options = self.template.options(
            engines=study.settings.template_engines,
            hosts=study.settings.hosts,
            trains_for=study.settings.trained_by(self.template.path),
            may_run_code=not study.settings.no_code,
        )
        make = partial(TemplateTrial, conversations=self.conversations, options=options)
        try:
            loaded = study.load(self.profiles[0])
        except PromptfmtError:  # the snapshot reports it
            return make(self.profiles[0])
        return make(loaded.profile, tokenizer=loaded.tokenizer)

    def verdicts(self, study: Study) -> Mapping[str, Any] | None:
        """Return which answers of the template come back."""
        trial = study.tested
        return loop_table(trial) if trial is not None and trial.syntax_error is None else None

    def assembler(self, _task: Task, _docs: TaskDocs, _num_fewshot: int | None) -> ConversationAssembler:
        """Return what renders the conversations."""
        return ConversationAssembler(self)


class ConversationAssembler:
    """Renders the conversation that a doc names."""

    is_repeatable = True

    def __init__(self, assembly: TemplateAssembly) -> None:
        self._conversations = assembly.conversations
        self._options = assembly.template.options()
        self._trials: dict[int, TemplateTrial] = {}

    def layout(self, _number: int, _doc: Doc) -> None:
        """Return nothing: conversations share nothing."""

    def instance(self, _layout: None, number: int, doc: Doc, profile: Profile) -> Instance:
        """Return each state of the conversation as a prompt, refusals and the mask as notes."""
        conversation = self._conversations[doc[_NAME]]
        index = number if conversation.name in builtin_conversations() else _OWN + number
        if profile.chat_template is None:
            return Instance(index=index, doc=doc, prompts=(), requests=(), target=None)
        trial = self._trial(profile)
        made = [trial.render(conversation, state) for state in conversation.states]
        requests = tuple(
            Request(kind="generate_until", index=at, context=each.text, prompt=at, generation_kwargs={})
            for at, each in enumerate(made)
            if each.text and profile.tokenizer is not None
        )
        notes = [_stopped(at, each) for at, each in enumerate(made) if each.text is None]
        whole = trial.render(conversation, conversation.finished)
        if whole.text is not None and whole.mask:
            notes.append(("mask", tuple(whole.text[first:last] for first, last in whole.mask)))
        if read_back := tuple(loop_lines(trial, conversation)):
            notes.append(("answers read back", read_back))
        return Instance(
            index=index,
            doc=doc,
            heading=f"{_NAME} {_shown(conversation.name)}",
            prompts=tuple(
                _prompt(trial, conversation, state, each) for state, each in zip(conversation.states, made, strict=True)
            ),
            requests=requests,
            target=None,
            notes=tuple(notes),
        )

    def _trial(self, profile: Profile) -> TemplateTrial:
        """Return the trial of a profile, which a study renders all docs with."""
        if id(profile) not in self._trials:
            trial = TemplateTrial(profile, self._conversations, options=self._options)
            self._trials = {id(profile): trial}
        return self._trials[id(profile)]


def _shown(name: str) -> str:
    """Return a name in printable ASCII, as titles of snapshots are."""
    return name if name.isascii() and name.isprintable() and name == name.strip() != "" else json.dumps(name)


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
        docs = [{_NAME: name} for name in conversations]
        return replace(TaskDocs.in_memory(docs), origin="built in, and *.conversations.yaml")

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


def _prompt(trial: TemplateTrial, conversation: Conversation, state: State, rendering: Rendering) -> Prompt:
    """Return the text of a state; its pieces, and the lines of the template that wrote them, when they are used."""
    text = rendering.text or ""

    def make() -> tuple[tuple[Span, ...], tuple[Message, ...]]:
        return (role_spans(trial, conversation, state, rendering) if text else ()), ()

    return Prompt.lazy(text, make)


def role_spans(
    trial: TemplateTrial, conversation: Conversation, state: State, rendering: Rendering
) -> tuple[Span, ...]:
    """Return the text of a state in pieces; texts that the template does not write as they are belong to it."""
    text = rendering.text or ""
    parts, lines = list(_found(conversation, state, text)), written_lines(trial, conversation, state)
    edges = {0, len(text), *(place for first, last, _ in parts for place in (first, last))}
    edges |= {place for mask in rendering.mask for place in mask} | {at for at, _ in lines if at < len(text)}
    spans = []
    for first, last in pairwise(sorted(edges)):
        part = next((part for begin, end, part in parts if begin <= first < end), _TEMPLATE)
        is_learnt = any(begin <= first < end for begin, end in rendering.mask)
        line = next((line for at, line in reversed(lines) if at <= first), None)
        spans.append(Span(text[first:last], Origin(part, LEARNT if is_learnt else None, trial.place(line))))
    return tuple(spans)


def _found(conversation: Conversation, state: State, text: str) -> Iterator[tuple[int, int, Part]]:
    """Yield where the texts of the messages are, each after the one before."""
    end = 0
    for unit in conversation.units:
        at = text.find(unit.text, end) if unit.message < state.count else -1
        if at >= 0:
            end = at + len(unit.text)
            yield at, end, _PARTS.get(unit.kind, _TEMPLATE)
