"""A chat template's behaviour in any conversation, from what its trial renders. Nothing here judges."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from weakref import WeakKeyDictionary

from jinja2 import Undefined, nodes
from jinja2.tests import test_iterable
from jinja2.utils import missing

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import LimitExceededError
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.profiles.conversation import REASONING_KEYS
from pytest_promptfmt.profiles.dialect import compiled_template, template_with
from pytest_promptfmt.profiles.probe_conversations import (
    MARKER,
    Conversation,
    State,
    builtin_conversations,
    builtin_tools,
    conversations_of,
)
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.turn_layout import ANSWER, INSTRUCTION, QUESTION, THOUGHT, TurnLayout, layout_of

Fate = Literal["kept", "stripped", "changed", "dropped", "refused"]
"""The fate of a message: `changed` is anything but its own text without outer whitespace."""

System = Literal["kept", "merged", "dropped", "refused"]
"""The fate of a system message: `merged` means that it becomes part of the user's turn."""

Fit = Literal["fits", "gap", "differs", "refused"]
"""How an answer follows the generation prompt: directly, after more text (`gap`), or not at all."""

_SECONDS: Final = 5.0
"""Time limit for all facts together."""

_PREFILL: Final = "The metal is "
"""The text of an answer to be continued."""

_ROLE_WORDS: Final = frozenset("system user assistant developer model human gpt bot instruction response".split())  # noqa: SIM905
_FEWEST_WORDS: Final = 4
_DATE: Final = re.compile(
    r"\b\d{1,2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d{4}\b"
    r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* (?:\d{1,2}, )?\d{4}\b|\b20\d\d-\d\d(?:-\d\d)?\b"
)
_INDENTED: Final = re.compile(r"^ {4,}(?=[^\s*•\d-]|\n)", re.MULTILINE)  # lists of a text are meant
_KEYS_OF_CALLS: Final = ("id", "type", "function")
_WITH_TOOLS: Final = ("tools", "call-finished")
_KEYS_OF_FUNCTIONS: Final = ("name", "description", "parameters", "arguments")
_REASONING_MARK: Final = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


@dataclass(frozen=True, slots=True)
class UndefinedName:
    """A name that a template prints or iterates over though it has no value; `line` is the template's, from 1.

    `is_elsewhere` tells that there is a value of this name, but not where the template looks: in a message, in a tool
    call, or in another branch. `is_field` names are looked for in a message, which may have more fields than usual.
    """

    name: str
    line: int | None
    is_elsewhere: bool = False
    is_field: bool = False


class ThinkingMarks(NamedTuple):
    """The marks that open and close the reasoning: `<think>` and `</think>`."""

    open: str
    close: str


@dataclass(frozen=True, kw_only=True)
class TemplateFacts:
    """A chat template's behaviour with its profile's arguments; texts are as rendered.

    `failure` is why nothing is known: not even one user message renders.
    """

    failure: str = ""
    user: Fate = "kept"
    assistant: Fate = "kept"
    system: System = "kept"
    takes_two_users: bool = True
    takes_assistant_first: bool = True
    opening: str = ""
    """The text before the first user message when no system message is given."""
    default_system: str = ""
    """The words of `opening` that are not markers: what the template adds on its own."""
    bos: str = ""
    """The BOS token that the text begins with, if any."""
    dates: tuple[str, ...] = ()
    """The dates in the text, whether today's or fixed ones."""
    follows_clock: bool = False
    generation_prompt: str | None = ""
    """The text added where an answer begins: empty when nothing is added, None when the text before it changes too."""
    answer: Fit = "fits"
    answer_gap: str = ""
    """The text between the generation prompt and a finished answer."""
    answer_end: str = ""
    """The text after a finished answer."""
    prefill: Fit = "fits"
    prefill_gap: str = ""
    prefill_lost: str = ""
    """Whitespace at the end of a prefilled answer that is missing from the text."""
    undefined: tuple[UndefinedName, ...] = ()
    indentation: str = ""
    """A line that begins with four or more spaces that are in no message."""
    markers: tuple[str, ...] = ()
    """The texts that look like control tokens and that the template writes."""
    thinking_marks: ThinkingMarks | None = None
    """The marks around the reasoning of a last answer; None for a template that writes none, or no marks."""

    def lines(self) -> Iterator[str]:
        """Yield the facts as short sentences; texts are quoted as in JSON."""
        if self.failure:
            yield f"renders nothing: {self.failure}"
            return
        yield f"user {self.user}, assistant {self.assistant}, system {self.system}"
        taken = {"two user messages in a row": self.takes_two_users, "an answer first": self.takes_assistant_first}
        refused = [name for name, is_taken in taken.items() if not is_taken]
        if refused:
            yield f"refuses {' and '.join(refused)}"
        if self.opening:
            yield f"begins with {_quoted(self.opening)}"
        if self.default_system:
            yield "adds a system text if none is given"
        if self.follows_clock or self.dates:
            dates = ", ".join(self.dates) or "the date"
            yield f"writes {dates}, {'which follows the clock' if self.follows_clock else 'hard-coded'}"
        if self.generation_prompt is None:
            yield "changes the text of earlier messages when it adds the generation prompt"
        elif self.generation_prompt:
            yield f"adds the generation prompt {_quoted(self.generation_prompt)}"
        else:
            yield "adds no generation prompt"
        if self.answer == "gap":
            yield f"has {_quoted(self.answer_gap)} before a finished answer"
        elif self.answer == "differs":
            yield "begins finished answers with a text that is not the generation prompt"
        if self.answer_end:
            yield f"ends an answer with {_quoted(self.answer_end)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# -- from renderings -------------------------------------------------------------------------------------------------


_known: Final[WeakKeyDictionary[TemplateTrial, TemplateFacts]] = WeakKeyDictionary()


def template_facts(trial: TemplateTrial) -> TemplateFacts:
    """Return the facts of the chat template of a trial, known as long as the trial is there."""
    if trial not in _known:
        _known[trial] = _facts(trial)
    return _known[trial]


def _facts(trial: TemplateTrial) -> TemplateFacts:
    try:
        with time_limit(_SECONDS, f"trying out the chat template of profile {trial.profile.name!r}"):
            facts = _Probe(trial).facts()
    except LimitExceededError as error:
        return TemplateFacts(failure=error.message)
    return facts if trial.limit is None else TemplateFacts(failure=trial.limit.error or "")


@cache
def _conversations() -> Mapping[str, Conversation]:
    more = conversations_of(data_table("conversations/probes"), Path("probes.yaml"), builtin_tools())
    return {**builtin_conversations(), **more}


class _Probe:
    """The renderings that facts are read from."""

    def __init__(self, trial: TemplateTrial) -> None:
        self.trial = trial
        self.profile = trial.profile

    def text(self, name: str, count: int | None = None, *, generation_prompt: bool = False) -> str | None:
        """Return the text of the first messages of a conversation, None where the template refuses them."""
        conversation = _conversations()[name]
        count = len(conversation.messages) if count is None else count
        state = State(count=count, generation_prompt=generation_prompt, continues=conversation.continue_final_message)
        return self.trial.render(conversation, state).text

    @cached_property
    def turns(self) -> TurnLayout:
        return layout_of(self.trial, self.text)

    def facts(self) -> TemplateFacts:
        lone, broken = self.turns.asked, self.trial.syntax_error
        if broken is not None and broken.line is not None:
            return TemplateFacts(failure=f"TemplateSyntaxError: {broken.error}")
        if lone is None:
            made = self.trial.render(_conversations()["question"], State(count=1, generation_prompt=False))
            return TemplateFacts(failure=made.error or f"TemplateError: {made.refusal}")
        opening = lone.partition(QUESTION)[0] if QUESTION in lone else ""
        bos = self.profile.special_tokens.get("bos_token") or ""
        answer, answer_gap, answer_end = self._answer()
        prefill, prefill_gap, prefill_lost = self._prefill()
        first, second = (self.text(name) for name in ("first-date", "second-date"))
        return TemplateFacts(
            user=self._fate("whitespace", QUESTION),
            assistant=self._fate("whitespace-in-answer", ANSWER),
            system=self._system(),
            takes_two_users=self.text("two-users") is not None,
            takes_assistant_first=self.text("assistant-first") is not None,
            opening=opening,
            default_system=_words(opening),
            bos=bos if lone.startswith(bos) else "",
            dates=tuple(dict.fromkeys(_DATE.findall(lone))),
            follows_clock=first != second,
            generation_prompt=self.turns.generation_prompt,
            answer=answer,
            answer_gap=answer_gap,
            answer_end=answer_end,
            prefill=prefill,
            prefill_gap=prefill_gap,
            prefill_lost=prefill_lost,
            undefined=self._undefined(),
            indentation=self._indentation(),
            markers=self._markers(),
            thinking_marks=self._thinking_marks(),
        )

    def _fate(self, name: str, word: str) -> Fate:
        message = next(each for each in _conversations()[name].messages if word in each["content"])
        text, padded = self.text(name, 1 if message["role"] == "user" else 2), message["content"]
        if text is None:
            return "refused"
        if padded in text:
            return "kept"
        if word not in text:
            return "dropped"
        around = text[max(text.rindex(word) - 3, 0) : text.rindex(word) + len(word) + 3]
        return "changed" if padded.strip("\n") in text or f"  {word}" in around else "stripped"

    def _system(self) -> System:
        text = self.text("system-alone-with-question")
        if text is None:
            return "refused"
        if INSTRUCTION not in text:
            return "dropped"
        return "merged" if self._is_merged(text) else "kept"

    def _is_merged(self, text: str) -> bool:
        # After a separate system turn the user's turn begins as it does without a system message.
        bos = self.profile.special_tokens.get("bos_token") or ""
        opening = (self.turns.asked or "").partition(QUESTION)[0].replace(bos, "").rstrip()
        marks = [mark for mark in MARKER.finditer(opening) if "SYS" not in mark.group()]
        user_head = opening[marks[-1].start() :] if marks else opening.rpartition("\n")[2].strip()
        before, _, after = text.partition(INSTRUCTION)
        if not marks and not before.replace(bos, "").strip():
            return True  # loose text before the first label
        between = after.partition(QUESTION)[0]
        # Before the first question some templates put a text about tools.
        later_head = (self.turns.gap or "").removeprefix(self.turns.tail or "").replace(bos, "").strip()
        return not (user_head and user_head in between) and not (later_head and later_head in between)

    def _answer(self) -> tuple[Fit, str, str]:
        opened, closed, end = self.turns.opened, self.turns.closed, self.turns.tail
        if opened is None or closed is None or end is None:
            return "refused", "", ""
        if not closed.startswith(opened):
            return "differs", "", end
        gap = closed[len(opened) : closed.rindex(ANSWER)]
        return ("gap" if gap else "fits"), gap, end

    def _prefill(self) -> tuple[Fit, str, str]:
        begun = self.text("prefill-with-space")
        if begun is None or self.turns.opened is None:
            return "refused", "", ""
        stem = _PREFILL.rstrip()
        lost = "" if begun.endswith(_PREFILL) else _PREFILL[len(stem) :]
        if not begun.startswith(self.turns.opened):
            return "differs", "", lost
        gap = begun[len(self.turns.opened) :].partition(stem)[0]
        return ("gap" if gap else "fits"), gap, lost

    def _undefined(self) -> tuple[UndefinedName, ...]:
        found: dict[tuple[str, int | None], UndefinedName] = {}
        source, is_call = self.trial.source, False

        def note(undefined: Undefined, known: Collection[str]) -> None:
            name, line = str(undefined._undefined_name), _template_line(source)
            holder, keys = undefined._undefined_obj, _KEYS_OF_CALLS if is_call else known
            is_field = holder is not missing
            if isinstance(holder, dict) and "function" in holder:
                keys = _KEYS_OF_FUNCTIONS
            is_elsewhere = name in keys and is_call == is_field
            if undefined._undefined_name is not None and (is_elsewhere or not is_call):  # not that of `first`
                found.setdefault((name, line), UndefinedName(name, line, is_elsewhere, is_field))

        stored = {each.name for each in self.trial.nodes if isinstance(each, nodes.Name) and each.ctx == "store"}

        class Logged(Undefined):
            """Records the names that are printed without having a value."""

            __slots__ = ()

            def __str__(self) -> str:
                note(self, ("role", "content"))
                return ""

            def __iter__(self) -> Any:
                if sys._getframe(1).f_code is not test_iterable.__code__:
                    note(self, stored)
                return iter(())

            def __contains__(self, _: object) -> bool:
                return False  # only tested for

        renderer = template_with(source, Logged)
        for name in ("question", "system", *(each for each in _WITH_TOOLS if each in self.trial.sent)):
            conversation, is_call = _conversations()[name], bool(_conversations()[name].tools)
            self.trial.rendered_by(renderer, conversation, State(count=len(conversation.messages)))
        return tuple(found.values())

    def _indentation(self) -> str:
        text = self.turns.opened or self.turns.asked or ""
        found = _INDENTED.search(text)
        return text[found.start() : found.end() + 20].partition("\n")[0] if found else ""

    def _markers(self) -> tuple[str, ...]:
        system = self.text("system-alone-with-question")
        texts = [self.turns.asked, self.turns.opened, self.turns.closed, self.turns.longer, system]
        return tuple(dict.fromkeys(marker for text in texts if text for marker in MARKER.findall(text)))

    def _thinking_marks(self) -> ThinkingMarks | None:
        if not self.trial.mentions(*REASONING_KEYS):
            return None
        before, thought, rest = (self.text("reasoning") or "").partition(THOUGHT)
        between, answer, _ = rest.partition(ANSWER)
        opened, closed = _REASONING_MARK.findall(before), _REASONING_MARK.findall(between)
        return ThinkingMarks(opened[-1], closed[0]) if thought and answer and opened and len(closed) == 1 else None


def _words(opening: str) -> str:
    """Return the text of an opening without markers and roles, empty when it is hardly more than a label."""
    said = MARKER.sub(" ", opening)
    words = [word for word in said.split() if word.strip("#:*[]<>|/").casefold() not in _ROLE_WORDS]
    return " ".join(words) if len([word for word in words if any(map(str.isalpha, word))]) >= _FEWEST_WORDS else ""


def _template_line(source: str) -> int | None:
    """Return the line of the template that is just being rendered."""
    frame = sys._getframe(3)
    while frame is not None and frame.f_code.co_filename != "<template>":
        frame = frame.f_back  # type: ignore[assignment]
    return compiled_template(source).get_corresponding_lineno(frame.f_lineno) if frame is not None else None
