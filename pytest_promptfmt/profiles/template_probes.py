"""A chat template's behaviour in any conversation, found once by rendering a few probe conversations.

The probes have words that occur nowhere else and whitespace on both sides, so that the text shows what is lost, moved,
escaped or added. Nothing here judges: rules about templates decide what is a mistake.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from jinja2 import Undefined

from pytest_promptfmt.core.errors import LimitExceededError
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.profiles.conversation import REASONING_KEYS, render_messages
from pytest_promptfmt.profiles.dialect import compiled_template
from pytest_promptfmt.profiles.template_facts import Fate, Fit, Shown, System, TemplateFacts, UndefinedName

_SECONDS: Final = 5.0
"""Time limit for all probes together; a template that takes longer is tried once only."""

_USER: Final = "Quokka zero?"
_LATER: Final = "Quokka one?"
_ANSWER: Final = "Numbat zero"
_RULE: Final = "Wombat rules"
_THOUGHT: Final = "Bilby thought"
_HTML: Final = "<i>&amp;\"'é"
_PADDED: Final = "\n  {}  \n"
_PREFILL: Final = "The best answer is "
MARKER: Final = re.compile(
    r"<[|\uff5c][^|\uff5c<>\n]{1,60}[|\uff5c]>|</?[a-zA-Z_]{1,30}(?:\|)?>|<\|[a-z_]{1,30}>|<[a-z_]{1,30}\|>"
    r"|\[\|?/?[A-Za-z][A-Za-z_]{1,30}\|\]|\[/?[A-Z][A-Z_]{1,30}\]|<</?SYS>>"
)
"""Texts that look like the marker of a turn, role or tool call."""
_ROLE_WORDS: Final = frozenset("system user assistant developer model human gpt bot instruction response".split())  # noqa: SIM905
_FEWEST_WORDS: Final = 4
_DATE: Final = re.compile(
    r"\b\d{1,2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d{4}\b"
    r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* (?:\d{1,2}, )?\d{4}\b|\b20\d\d-\d\d(?:-\d\d)?\b"
)
_INDENTED: Final = re.compile(r"^ {4,}(?=\S)", re.MULTILINE)
_TOOL: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "type": "function",
        "function": {
            "name": "dunnart",
            "description": f"Potoroo {_HTML}",
            "parameters": {
                "type": "object",
                "properties": {"kowari": {"type": "string", "description": "A word"}},
                "required": ["kowari"],
            },
        },
    }
)


def template_facts(profile: Profile) -> TemplateFacts:
    """Return the facts of a profile's chat template, probed once for each template with its arguments.

    Raises ValueError for a profile without a chat template.
    """
    if profile.chat_template is None:
        raise ValueError(f"the profile {profile.name!r} has no chat template")
    key = (
        profile.chat_template,
        repr(sorted(profile.special_tokens.items())),
        repr(sorted(profile.template_args.items())),
        profile.clock,
    )
    return _facts(key, _Held(profile))


class _Held:
    """A profile that equals every other one: the cache key next to it decides."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=512)
def _facts(_: object, held: _Held) -> TemplateFacts:
    probe = _Probe(held.profile)
    try:
        with time_limit(_SECONDS, f"trying out the chat template of profile {held.profile.name!r}"):
            if probe.lone is None:
                return TemplateFacts(failure=probe.errors["one user message"])
            return probe.facts()
    except LimitExceededError as error:
        return TemplateFacts(failure=error.message)


def _user(text: Any = _USER) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: Any = _ANSWER, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


class _Probe:
    """Renders probes for one profile, and keeps the errors of refused ones."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.errors: dict[str, str] = {}

    def text(self, fact: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> str | None:
        """Return the rendered text, None where the template refuses; raises LimitExceededError."""
        options.setdefault("add_generation_prompt", False)
        try:
            return render_messages(options.pop("profile", self.profile), messages, **options)
        except LimitExceededError:
            raise
        except Exception as error:
            self.errors.setdefault(fact, f"{type(error).__name__}: {error}"[:300])
            return None

    @cached_property
    def lone(self) -> str | None:
        return self.text("one user message", [_user()])

    @cached_property
    def opened(self) -> str | None:
        return self.text("generation prompt", [_user()], add_generation_prompt=True)

    @cached_property
    def closed(self) -> str | None:
        return self.text("finished answer", [_user(), _assistant()])

    @cached_property
    def longer(self) -> str | None:
        return self.text("second question", [_user(), _assistant(), _user(_LATER)])

    def facts(self) -> TemplateFacts:
        lone = self.lone or ""
        opening = lone.partition(_USER)[0] if _USER in lone else ""
        answer, answer_gap, answer_end = self._answer()
        prefill, prefill_gap, prefill_lost = self._prefill()
        dates, follows_clock = self._dates(lone)
        return TemplateFacts(
            user=self._fate("user", [_user(_PADDED.format(_USER))], _USER),
            assistant=self._fate("finished answer", [_user(), _assistant(_PADDED.format(_ANSWER))], _ANSWER),
            system=self._system("system"),
            developer=self._system("developer"),
            takes_two_users=self.text("two user messages", [_user(), _user(_LATER)]) is not None,
            takes_assistant_first=self.text("assistant first", [_assistant(), _user()]) is not None,
            opening=opening,
            default_system=_words(opening),
            bos=self._bos(lone),
            dates=dates,
            follows_clock=follows_clock,
            generation_prompt=self._generation_prompt(lone),
            answer=answer,
            answer_gap=answer_gap,
            answer_end=answer_end,
            closes_answer=self._closes(answer_end),
            keeps_prefix=self._keeps_prefix(),
            prefill=prefill,
            prefill_gap=prefill_gap,
            prefill_lost=prefill_lost,
            keeps_think=self._keeps_thought(_assistant(f"<think>\n{_THOUGHT}\n</think>\n\n{_ANSWER}")),
            keeps_reasoning=self._keeps_thought(_assistant(reasoning_content=_THOUGHT)),
            escapes_html=tuple(self._escapes_html()),
            tools=self._tools(),
            tool_arguments=self._tool_arguments({"kowari": _THOUGHT}),
            tool_arguments_text=self._tool_arguments(f'{{"kowari": "{_THOUGHT}"}}'),
            parts=self._parts(),
            none=self._none(),
            undefined=self._undefined(),
            indentation=self._indentation(),
            has_carriage_return="\r" in (self.profile.chat_template or ""),
            markers=self._markers(),
            errors=MappingProxyType(dict(self.errors)),
        )

    def _fate(self, fact: str, messages: Sequence[Mapping[str, Any]], word: str) -> Fate:
        text = self.text(fact, messages)
        if text is None:
            return "refused"
        if _PADDED.format(word) in text:
            return "kept"
        if word not in text:
            return "dropped"
        around = text[max(text.rindex(word) - 3, 0) : text.rindex(word) + len(word) + 3]
        return "changed" if _PADDED.format(word).strip("\n") in text or f"  {word}" in around else "stripped"

    def _system(self, role: str) -> System:
        text = self.text(role, [{"role": role, "content": _RULE}, _user()])
        if text is None:
            return "refused"
        if _RULE not in text:
            return "dropped"
        return "merged" if self._is_merged(text) else "kept"

    def _is_merged(self, text: str) -> bool:
        # After a separate system turn the user's turn begins as it does without a system message.
        bos = self.profile.special_tokens.get("bos_token") or ""
        opening = (self.lone or "").partition(_USER)[0].replace(bos, "").rstrip()
        marks = [mark for mark in MARKER.finditer(opening) if "SYS" not in mark.group()]
        user_head = opening[marks[-1].start() :] if marks else opening.rpartition("\n")[2].strip()
        before, _, after = text.partition(_RULE)
        if not marks and not before.replace(bos, "").strip():
            return True  # loose text before the first label
        between = after.partition(_USER)[0]
        later_head = self._later_head().replace(bos, "").strip()
        return not (user_head and user_head in between) and not (later_head and later_head in between)

    def _later_head(self) -> str:
        """Return the text before a later question: some templates put a text about tools before the first one."""
        if self.closed is None or self.longer is None:
            return ""
        *_, end = self.closed.rpartition(_ANSWER)
        return self.longer.rpartition(_ANSWER)[2].partition(_LATER)[0].removeprefix(end)

    def _bos(self, lone: str) -> str:
        bos = self.profile.special_tokens.get("bos_token") or ""
        return bos if bos and lone.startswith(bos) else ""

    def _dates(self, lone: str) -> tuple[tuple[str, ...], bool]:
        later = replace(self.profile, clock=self.profile.clock + timedelta(days=400))
        other = self.text("date", [_user()], profile=later)
        return tuple(dict.fromkeys(_DATE.findall(lone))), other is not None and other != lone

    def _generation_prompt(self, lone: str) -> str | None:
        opened = self.opened
        if opened is None:
            return None
        return opened[len(lone) :] if opened.startswith(lone) else None

    def _answer(self) -> tuple[Fit, str, str]:
        opened, closed = self.opened, self.closed
        if opened is None or closed is None or _ANSWER not in closed:
            return "refused", "", ""
        end = closed[closed.rindex(_ANSWER) + len(_ANSWER) :]
        if not closed.startswith(opened):
            return "differs", "", end
        gap = closed[len(opened) : closed.rindex(_ANSWER)]
        return ("gap" if gap else "fits"), gap, end

    def _closes(self, end: str) -> bool:
        # BOS begins what comes next; it does not end this.
        tokens = [token for key, token in self.profile.special_tokens.items() if token and key != "bos_token"]
        return bool(MARKER.search(end)) or any(token in end for token in tokens)

    def _keeps_prefix(self) -> bool:
        longest = self.text("second answer", [_user(), _assistant(), _user(_LATER), _assistant("Numbat one")])
        pairs = ((self.lone, self.longer), (self.closed, longest))
        return all(later is None or (earlier is not None and later.startswith(earlier)) for earlier, later in pairs)

    def _prefill(self) -> tuple[Fit, str, str]:
        begun = self.text("continued answer", [_user(), _assistant(_PREFILL)], continue_final_message=True)
        if begun is None or self.opened is None:
            return "refused", "", ""
        stem = _PREFILL.rstrip()
        lost = "" if begun.endswith(_PREFILL) else _PREFILL[len(stem) :]
        if not begun.startswith(self.opened):
            return "differs", "", lost
        gap = begun[len(self.opened) :].partition(stem)[0]
        return ("gap" if gap else "fits"), gap, lost

    def _keeps_thought(self, answer: Mapping[str, Any]) -> bool:
        text = self.text("reasoning", [_user(), answer, _user(_LATER)])
        return text is None or _THOUGHT in text

    def _escapes_html(self) -> Sequence[str]:
        found = []
        text = self.text("html", [_user(_HTML), _assistant(_HTML), _user(_HTML)])
        if text is not None and _HTML not in text and ("&lt;" in text or "&#34;" in text or "&amp;amp;" in text):
            found.append("content")
        text = self.text("tools", [_user()], tools=[dict(_TOOL)])
        if text is not None and "&lt;i&gt;" in text:
            found.append("tools")
        called = self._called({"kowari": _HTML})
        if called is not None and _escapes(called) > _escapes(text or ""):
            found.append("tool arguments")
        return found

    def _tools(self) -> Shown:
        text = self.text("tools", [_user()], tools=[dict(_TOOL)])
        if text is None:
            return "refused"
        return ("escaped" if "&lt;i&gt;" in text else "shown") if "dunnart" in text else "missing"

    def _called(self, arguments: Any) -> str | None:
        call = {"id": "call00001", "type": "function", "function": {"name": "dunnart", "arguments": arguments}}
        answer = {"role": "tool", "content": "kultarr", "name": "dunnart", "tool_call_id": "call00001"}
        return self.text("tool call", [_user(), _assistant("", tool_calls=[call]), answer], tools=[dict(_TOOL)])

    def _tool_arguments(self, arguments: Any) -> Shown:
        text = self._called(arguments)
        if text is None:
            return "refused"
        if _THOUGHT not in text:
            return "missing"
        if '\\"kowari' in text:
            return "encoded twice"
        listed = self.text("tools", [_user()], tools=[dict(_TOOL)]) or ""
        return "escaped" if _escapes(text) > _escapes(listed) else "shown"

    def _parts(self) -> Shown:
        text = self.text("parts", [_user([{"type": "text", "text": _USER}])])
        if text is None:
            return "refused"
        if _USER not in text:
            return "missing"
        return "as Python" if "'type'" in text or '"type"' in text else "shown"

    def _none(self) -> Shown:
        # transformers drops None before it renders; other engines that render the same template do not.
        messages = [_user(), _assistant(None), _user(_LATER)]
        given = {**self.profile.special_tokens, **self.profile.template_args}
        try:
            text = compiled_template(self.profile.chat_template or "").render(
                **given, messages=messages, tools=None, documents=None, strftime_now=self.profile.clock.strftime
            )
        except LimitExceededError:
            raise
        except Exception:
            return "refused"
        return "as Python" if "None" in text else "shown"

    def _undefined(self) -> tuple[UndefinedName, ...]:
        found: dict[UndefinedName, None] = {}
        source = self.profile.chat_template or ""

        class Logged(Undefined):
            """Records the names that are printed without having a value."""

            __slots__ = ()

            def __str__(self) -> str:
                found[UndefinedName(str(self._undefined_name), _template_line(source))] = None
                return ""

            def __iter__(self) -> Any:
                found[UndefinedName(str(self._undefined_name), _template_line(source))] = None
                return iter(())

            def __contains__(self, _: object) -> bool:
                return False  # only tested for

        for messages in ([_user()], [{"role": "system", "content": _RULE}, _user(), _assistant(), _user(_LATER)]):
            self.text("undefined names", messages, add_generation_prompt=True, undefined=Logged)
        return tuple(found)

    def _indentation(self) -> str:
        text = self.opened or self.lone or ""
        found = _INDENTED.search(text)
        return text[found.start() : found.end() + 20].partition("\n")[0] if found else ""

    def _markers(self) -> tuple[str, ...]:
        texts = [self.lone, self.opened, self.closed, self.longer, self.text("system", [_system_message(), _user()])]
        return tuple(dict.fromkeys(marker for text in texts if text for marker in MARKER.findall(text)))


def _escapes(text: str) -> int:
    return sum(text.count(entity) for entity in ("&lt;", "&#34;", "&#39;"))


def _system_message() -> dict[str, Any]:
    return {"role": "system", "content": _RULE}


def _words(opening: str) -> str:
    """Return the text of an opening without markers and roles, empty when it is hardly more than a label."""
    said = MARKER.sub(" ", opening)
    words = [word for word in said.split() if word.strip("#:*[]<>|/").casefold() not in _ROLE_WORDS]
    return " ".join(words) if len([word for word in words if any(map(str.isalpha, word))]) >= _FEWEST_WORDS else ""


def _template_line(source: str) -> int | None:
    """Return the line of the template that is just being rendered."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != "<template>":
        frame = frame.f_back  # type: ignore[assignment]
    return compiled_template(source).get_corresponding_lineno(frame.f_lineno) if frame is not None else None


# -- marks of reasoning ----------------------------------------------------------------------------------------------

_REASONING_MARK: Final = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


class ThinkingMarks(NamedTuple):
    """The marks that open and close the reasoning: `<think>` and `</think>`."""

    open: str
    close: str


def thinking_marks(profile: Profile) -> ThinkingMarks | None:
    """Return the marks around the reasoning of a last answer; None for a template that writes none, or no marks."""
    if not any(key in (profile.chat_template or "") for key in REASONING_KEYS):
        return None
    try:
        messages = [_user(), _assistant(reasoning_content=_THOUGHT)]
        text = render_messages(profile, messages, add_generation_prompt=False)
    except Exception:
        return None  # other rules report what a template refuses
    before, thought, rest = text.partition(_THOUGHT)
    between, answer, _ = rest.partition(_ANSWER)
    opened, closed = _REASONING_MARK.findall(before), _REASONING_MARK.findall(between)
    return ThinkingMarks(opened[-1], closed[0]) if thought and answer and opened and len(closed) == 1 else None
