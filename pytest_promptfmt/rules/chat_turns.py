"""Rules about turns as any chat template writes them: how they open and close, and what stays of them later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from typing import Final

from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.profiles.probe_conversations import MARKER, Conversation, State
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, first_difference, last_answer
from pytest_promptfmt.profiles.turn_layout import (
    ANSWER,
    INSTRUCTION,
    MOST_HEADER_WORDS,
    QUESTION,
    REASONING,
    TurnLayout,
    alternates,
    broken_turn,
    closings,
    end_of_all,
    is_closed,
    is_for_chat,
    layout_of,
    marker_pairs,
    turns_of,
    unclosed,
)
from pytest_promptfmt.rules import Family, rule
from pytest_promptfmt.rules.chat_templates import on_trial
from pytest_promptfmt.rules.rule_views import finding, info

_AGAINST: Final = "turn reasoning off with a template argument, or set fewshot_as_turns: false in the profile"
_TWICE: Final = re.compile(r"(\S.{2,})\s*\1", re.S)
_CONTROL_TOKENS: Final = "control-tokens"
_CONTROL: Final = ("<|", "<｜")
_BEFORE: Final = "Look at the nail."
_ARGUMENT, _RESULT = "seventh", "Mostly copper with tin."
"""Texts of the built-in conversations."""
_FEWEST_WORDS: Final = 3
_ADJACENT: Final = (
    ("parallel", "tool results", _RESULT, "Forty grams exactly."),
    ("assistants-in-a-row", "answers in a row", ANSWER, "Steel does as well."),
    ("two-users", "user messages in a row", _BEFORE, QUESTION),
)
"""Conversations with two messages of one role in a row, and their texts."""


@rule("PF440", "turn-not-closed", severity=Severity.ERROR, family=Family.CHAT, scope="template")
@on_trial()
def turn_not_closed(trial: TemplateTrial) -> Iterator[Finding]:
    """Report turns that are not closed before the next one begins, and turns of two roles that begin in the same way.

    Why: Without a marker at its end, the model's turn seems to continue through tool results and user messages. The
    model then no longer stops where it should.

    Fix: in every branch of the template, write the marker that closes the turn.

    Real: Gemma 4, which did not close the turn after a tool result; axolotl's Mistral v7; Falcon-H1R, which checks the
    wrong neighbors of a tool result if there is a system message.
    """
    layout, pairs = layout_of(trial), marker_pairs(trial)
    closing, plain = layout.closing, set(trial.markers(trial.text("turns") or ""))
    first = layout.first_marker
    if layout.tail is not None and not first:
        yield from _open_end(trial, layout)
    if layout.header and layout.header.strip() and is_for_chat(trial):
        yield from _same_headers(trial, layout, layout.header)
    own = (layout.asked or "").partition(QUESTION)[0]
    if (problem := _own_turn(trial, layout, trial.markers(own))) is not None:
        yield finding(problem, excerpt(own, len(own)), trial.place())
    if first and layout.gap is not None and first not in layout.gap:
        yield finding(
            "an answer has no end token if another turn follows",
            f"{layout.tail!r} after the last answer, but {layout.gap!r} before a user message",
            trial.place_of(first, "eos_token"),
            severity=Severity.INFO if is_closed(trial, layout) else Severity.WARNING,
        )
    if (ends := end_of_all(trial, layout)) is not None:
        message, do = "an end token follows the last message of any role", "write the end token after answers only"
        # A token that stops generation may end the document, after another one that ends the turn.
        is_known = trial.added_tokens.get(ends) in trial.options.stop_ids
        severity, place = Severity.INFO if is_known else Severity.WARNING, trial.place_of(ends, "eos_token")
        yield finding(message, layout.asked or "", place, severity=severity, do=do)
    for message, marker, severity in _closed_by_role(trial, layout):
        yield finding(message, f"{layout.header!r} and {layout.gap!r}", trial.place_of(marker), severity=severity)
    if (ran := _into_result(trial, layout)) is not None:
        yield finding("a tool result is in the same turn as the tool call", ran, trial.place_of("'tool'", '"tool"'))
    called = (trial.text("call" if "call" in trial.sent else "") or "").rpartition(_ARGUMENT)
    if closing and called[1] and not trial.markers(called[2]):
        saw = excerpt("".join(called), len(called[0]))
        yield finding("no marker follows a tool call", saw, trial.place_of(closing))
    for name, what, one, other in _ADJACENT:
        between = (trial.text(name if name in trial.sent else "") or "").partition(one)[2].partition(other)
        if between[1] and not (between[0].strip() if name == "parallel" else between[0]) and is_for_chat(trial):
            severity = Severity.WARNING if name == "parallel" else Severity.INFO
            place = trial.place_of("'tool'" if name == "parallel" else "content")
            yield finding(f"nothing separates two {what}", f"{one!r} and {other!r}", place, severity=severity)
    found = dict(closings(trial))
    if len(found) > 1:
        (usual, _), (other, where) = list(found.items())[:2]
        saw, place = f"{usual!r} and {other!r}: {where}", trial.place_of(usual)
        yield finding("only some user messages are closed", saw, place, severity=Severity.WARNING)

    def faults(conversation: Conversation) -> frozenset[str]:
        text = trial.finished(conversation)
        if text is None or conversation.name.startswith(_CONTROL_TOKENS) or conversation.continue_final_message:
            return frozenset()
        if unpaired(conversation) is not None:
            return frozenset({"pair"})
        return frozenset({"answer"} if closing and any(unclosed(text, conversation, closing)) else ())

    def unpaired(conversation: Conversation) -> str | None:
        """Return the text, without generation prompt or as it is sent, whose markers do not alternate."""
        for text in dict.fromkeys((trial.finished(conversation) or "", trial.whole(conversation) or "")):
            markers = trial.markers(text) if pairs else []
            for one, other in pairs:
                only = turns_of(markers, one, other, plain)
                ends = last_answer(conversation) is not None or not only or only[-1] == other
                if not alternates(only if ends else only[:-1], one, other):
                    return text
        return None

    for conversation, kind in trial.attributed(faults):
        text, lacks, how = trial.finished(conversation) or "", closing, "closed"
        if kind == "answer":
            at = next(unclosed(text, conversation, closing))
            saw = f"no {closing} follows this answer: {excerpt(text, at)}"
        else:
            text = unpaired(conversation) or ""
            lacks, *at_turn = broken_turn(text, pairs)
            how = "opened" if lacks in dict(pairs) else "closed"
            saw = f"{lacks} is missing before {excerpt(text, *at_turn)}"
        yield conversation.finding(
            f"a turn is not {how} in a conversation with {conversation.about}", saw, trial.place_of(lacks)
        )


def _open_end(trial: TemplateTrial, layout: TurnLayout) -> Iterator[Finding]:
    """Yield that a last answer has no end token, which training on whole conversations learns from."""
    closing, opening = trial.markers(layout.gap or "")[:1], (layout.asked or "").partition(QUESTION)[0]
    if closing and closing[0] not in opening and is_for_chat(trial):
        saw = f"{layout.tail!r} after the last answer, but {layout.gap!r} before a user message"
        message, place = "the last answer has no end token, but earlier answers have one", trial.place_of("loop.last")
        severity = Severity.INFO if trial.mentions("loop.last") else Severity.WARNING  # on purpose, to continue it
        yield finding(message, saw, place, severity=severity)
    else:
        tail = f"after the answer: {layout.tail}" if layout.tail else ""
        yield info("no end token after a finished answer", tail, trial.place())


def _same_headers(trial: TemplateTrial, layout: TurnLayout, header: str) -> Iterator[Finding]:
    """Yield whose text begins as an answer does."""
    closing = (trial.markers(layout.gap or "") or [""])[0]
    begins = header.strip().removeprefix(closing).strip()
    texts = {"question": ("user messages", QUESTION), "system": ("system messages", INSTRUCTION)}
    if "result" in trial.sent:
        texts["result"] = ("tool results", _RESULT)
    for name, (whose, text) in texts.items():
        before, found, _ = (trial.text(name) or "").partition(text)
        before = re.sub(r"<[a-z_]+>\s*\Z", "", before).rstrip()
        if begins and found and before.endswith(begins):
            # Some models have results in their own turn; embeddings have no turns.
            severity = Severity.INFO if name == "result" or layout.asked == layout.opened else Severity.ERROR
            saw, place = excerpt(before, len(before)), trial.place_of("role")
            yield finding(f"{whose} begin in the same way as answers", saw, place, severity=severity)


def _own_turn(trial: TemplateTrial, layout: TurnLayout, markers: list[str]) -> str | None:
    """Return whether a turn before the first question, which the template writes on its own, lacks an end or begin."""
    between = trial.markers((layout.closed or "").partition(QUESTION)[2].partition(ANSWER)[0])
    closing, *opening = trial.markers(layout.gap or "") or [""]
    bos = trial.profile.special_tokens.get("bos_token")
    own = markers[: -len(opening)] if opening and markers[-len(opening) :] == opening else []
    if not closing or {closing} != {layout.first_marker, *between[:1]} or closing in opening or bos in opening:
        return None  # the turns of users are closed otherwise
    if own and opening[0] in own and closing not in own:
        return "the template's own turn before the first question is not closed"
    alone = [each for each in own if each != bos]
    text = (layout.asked or "").partition(alone[0])[2].partition(opening[0])[0] if len(alone) == 1 else ""
    given = trial.markers((trial.text("system") or "").partition(INSTRUCTION)[0])[-1:]
    if len(text.split()) > _FEWEST_WORDS and closing not in own and given == alone:  # roles have markers of their own
        return "the template's own turn before the first question is not closed"
    return "an end token comes before the first turn" if alone == [closing] else None


def _into_result(trial: TemplateTrial, layout: TurnLayout) -> str | None:
    """Return a call with its result where only the marker of the next turn ends turns, and none is between them."""
    loop, opening = trial.conversations.get("call-finished"), [each[:2] for each in trial.markers(layout.gap or "")]
    if loop is None or layout.closing or not opening or opening[0] not in _CONTROL:
        return None
    *_, argument, result, _ = (unit.text for unit in loop.units)
    before, found, _ = (trial.finished(loop) or "").partition(result)
    between = before.rpartition(argument)[2]
    tags = re.findall(r"<([^<>/\s]+)>", between)
    if not found or between == before or any(f"</{name}>" not in (trial.finished(loop) or "") for name in tags):
        return None  # what is never closed is a control token
    return argument + between + result


def _closed_by_role(trial: TemplateTrial, layout: TurnLayout) -> Iterator[tuple[str, str, Severity]]:
    """Yield which role's turns are never closed, what closes the others, and an error where one marker opens all.

    An end token of the answers alone is a format of its own: a system text has to be closed as well.
    """
    between = (layout.closed or "").partition(QUESTION)[2].partition(ANSWER)[0]
    header, gap = (trial.markers(REASONING.sub("", text)) for text in (between, layout.gap or ""))
    if header[1:] and gap == header[1:] and header[0] not in (layout.tail or ""):
        yield "user messages are closed, but answers are not", header[0], Severity.ERROR
    system = (trial.text("system-alone-with-question") or "").partition(INSTRUCTION)[2]
    if header and len(gap) == len(header) + 1 and gap[0] not in header and trial.markers(system)[:1] == gap[:1]:
        severity = Severity.ERROR if gap[1:] == header else Severity.INFO  # each role has a marker that opens its turn
        yield "answers are closed, but user messages are not", gap[0], severity


@rule("PF441", "history-changes", severity=Severity.WARNING, family=Family.CHAT, scope="template")
@on_trial()
def history_changes(trial: TemplateTrial) -> Iterator[Finding]:
    """Report earlier turns whose text changes when the conversation continues.

    Why: If earlier turns change, a server cannot use its cached prefixes again. In multi-turn training, the text of a
    turn is not the text that the model had when it answered. Mostly, the finding is an info. It is a warning if the
    template has `{% generation %}`, and the next step of a tool loop changes earlier turns: the trainer TRL appends the
    tokens of a tool result to the generated tokens. It is also a warning if a system message changes turns after the
    first question: the template then counts messages in one list, but looks them up in another.

    Fix: make the text of each turn independent of later turns.

    Real: Phi-3.5 (an end token after the last turn of any role), Qwen3 (reasoning of earlier turns).
    """
    for conversation, kind in trial.attributed(lambda each: {what for *_, what in islice(_changes(trial, each), 1)}):
        before, after, _ = next(_changes(trial, conversation))
        at = first_difference(before, after)
        message = f"earlier turns are written differently after {kind} (in a conversation with {conversation.about})"
        saw = f"{excerpt(before, at)!r} becomes {excerpt(after, at)!r}"
        is_kept = "".join(before.split()) in "".join(after.split())
        is_trained = {"tools", "training"} <= trial.kinds
        severity = None if kind == _LOOP and is_trained and not is_kept else Severity.INFO
        yield conversation.finding(message, saw, trial.place(), severity)
    for name in _BELOW_SYSTEM:
        if name in trial.sent and (changed := _below_system(trial, trial.conversations[name])) is not None:
            message = f"a system message changes later turns of a conversation with {trial.conversations[name].about}"
            yield trial.conversations[name].finding(message, changed, trial.place(), Severity.WARNING)
            break
    for name, message in _FOLLOWED.items():
        if name in trial.sent:
            answered = trial.conversations[name]
            finished = trial.finished(answered, 2)
            later = trial.render(answered, State(count=3)).text
            at = first_difference(finished or "", later or "")
            # Another end of the last answer has a rule.
            if finished is not None and later is not None and at < len(finished) and ANSWER not in finished[:at]:
                saw = f"{excerpt(finished, at)!r} becomes {excerpt(later, at)!r}"
                is_trained = answered.has_tools and "training" in trial.kinds
                yield answered.finding(message, saw, trial.place_of("loop.last"), None if is_trained else Severity.INFO)


_LOOP: Final = "the next step of a tool loop"
_FOLLOWED: Final = {
    "turns": "a later message changes a finished answer",
    "call-finished": "a tool result changes the call before it",
}


_BELOW_SYSTEM: Final = ("turns", "parallel", "reasoning-loop")


def _below_system(trial: TemplateTrial, conversation: Conversation) -> str | None:
    """Return how the markers after the first question differ once a system message precedes it; None where they do not.

    A system text that is written among them makes them differ on purpose, as does a default text in place of one.
    """
    asked, system = conversation.units[0].text, {"role": "system", "content": INSTRUCTION}
    below = replace(conversation, messages=[system, *conversation.messages])
    texts = [trial.finished(each) for each in (conversation, below)]
    before, after = ((text or "").partition(asked)[2] for text in texts)
    alike = trial.markers(before) == trial.markers(after)
    if alike or None in texts or not before or not after or INSTRUCTION in after:
        return None
    at = first_difference(before, after)
    return f"{excerpt(before, at)!r} becomes {excerpt(after, at)!r}"


def _changes(trial: TemplateTrial, conversation: Conversation) -> Iterator[tuple[str, str, str]]:
    """Yield the texts of a state and a later one that does not begin with it, and what came between them."""
    if conversation.continue_final_message or conversation.name == "system-later":
        return
    for state, later in pairwise(conversation.states):
        before = trial.finished(conversation, state.count)
        after = trial.render(conversation, later).text
        if before is not None and after is not None and not after.startswith(before):
            roles = [message["role"] for message in conversation.messages[state.count : later.count]]
            loop = _LOOP if "tool" in roles else "an answer"
            yield before, after, "a user message" if "user" in roles else loop


@rule("PF442", "generation-prompt", severity=Severity.ERROR, family=Family.CHAT, scope="template")
@on_trial(Severity.WARNING, _AGAINST)
def generation_prompt(trial: TemplateTrial) -> Iterator[Finding]:
    """Report a generation prompt that is missing, written without a request, or unlike the start of finished answers.

    Why: The generation prompt is the header of an answer, at the end of the prompt. If it is wrong, the model has to
    continue a text that it never saw in training. Some templates write it after each user message, even if another user
    message follows. If it ends with a space, and finished answers have this space as well, the finding is an info. If
    its reasoning tags after a tool result differ from those after a question, the finding is a warning.

    Fix: end the template with `{% if add_generation_prompt %}`, the header of an answer, and `{% endif %}`.

    Real: axolotl's Alpaca (missing), chat_templates' Alpaca (the header of a user), NousResearch's Llama 3.1 (always
    written).
    """
    layout = layout_of(trial)
    asked, opened, closed, header = layout.asked, layout.opened, layout.closed, layout.header
    if asked is None or opened is None:
        return
    place = trial.place_of("add_generation_prompt")
    tail, label = (layout.tail or "").rstrip(), (header or "").strip()
    between = (asked if asked == opened and not header else "").partition(QUESTION)[2]
    twice = (trial.text("two-users") or "").partition(_BEFORE)[2].partition(QUESTION)
    is_each = len(trial.markers(between)) > 1 and twice[0].startswith(between) and twice[2] == between
    if is_each and is_for_chat(trial):
        message = "a generation prompt follows each user message, even before another user message"
        yield info(message, between, place)  # one that an answer follows is right
    elif (len(label) > 2 and tail.endswith(label)) or (_is_always_written(layout) and is_for_chat(trial)):
        yield finding(
            "a generation prompt is written although none is requested",
            f"after the last answer: {layout.tail!r}",
            place,
            severity=None if trial.mentions("add_generation_prompt") else Severity.WARNING,
        )
    elif opened == asked and label and label not in asked and closed is not None and closed.startswith(asked):
        yield finding(
            _MISSING,
            f"answers begin with {header!r}, but add_generation_prompt adds nothing",
            place,
            do=_WRITE_PROMPT,
        )
    elif _TWICE.fullmatch((layout.generation_prompt or "").strip()):
        yield finding("the generation prompt is written twice", repr(layout.generation_prompt), place)
    elif closed is not None and ANSWER in closed and (opened != asked or not label):
        added = layout.generation_prompt
        is_header = added is not None and len(added.split()) <= MOST_HEADER_WORDS
        is_added = is_header and closed.startswith(asked)
        yield from _compared(trial, opened, closed.rpartition(ANSWER)[0], is_added=is_added)
    eos = trial.profile.special_tokens.get("eos_token")
    if eos and label and opened.endswith(eos) and opened.removesuffix(eos).rstrip().endswith(label):
        yield finding("an end token follows the generation prompt", excerpt(opened, len(opened)), place)
    if opened != opened.rstrip(" \t"):
        is_format = (closed or "").startswith(opened + ANSWER)  # of the model, which never saw it otherwise
        severity = Severity.INFO if is_format else Severity.WARNING
        saw, do = excerpt(opened, len(opened)), "remove the space at the end of the generation prompt"
        yield finding("the generation prompt ends with a space", saw, place, severity=severity, do=do)
    yield from _elsewhere(trial, (layout.generation_prompt or "").strip())
    if "result" in trial.sent and trial.conversations["result"].messages == trial.given["result"].messages:
        called, added = trial.conversations["result"], layout.generation_prompt or ""
        before, after = (trial.text("result", generation_prompt=each) or "" for each in (False, True))
        begun = after.removeprefix(before)
        plain = {"".join(REASONING.sub("", each).split()) for each in (begun, added)}
        if "".join(begun.split()) != "".join(added.split()) and before and len(plain) == 1 and plain != {""}:
            message = "the generation prompt has other reasoning tags after a tool result than after a question"
            yield called.finding(message, f"{begun!r}, after a question {added!r}", place, Severity.WARNING)


def _elsewhere(trial: TemplateTrial, added: str) -> Iterator[Finding]:
    """Yield how answers begin differently from their prompt in a conversation, though not in simpler ones."""
    seen = dict[str, str]()
    for conversation, what in trial.attributed(lambda one: {each[2] for each in _unlike(trial, one, added)}):
        # A plain answer is compared more closely.
        if seen.setdefault(what, conversation.name) == conversation.name != "answer":
            opened, done, _ = next(each for each in _unlike(trial, conversation, added) if each[2] == what)
            at = first_difference(opened, done)
            yield conversation.finding(
                f"{what} in a conversation with {conversation.about}",
                f"generation prompt {excerpt(opened, at)!r}, but finished answer {excerpt(done, at)!r}",
                trial.place_of("add_generation_prompt"),
                None if what == _MISSING else Severity.INFO,
            )


_MISSING: Final = "the generation prompt is missing"
_WRITE_PROMPT: Final = "write the header of an answer if add_generation_prompt is true"
_SPACE: Final = "the generation prompt and finished answers have different whitespace before the answer"
_OTHERWISE: Final = "finished answers begin differently from the generation prompt"


def _unlike(trial: TemplateTrial, conversation: Conversation, added: str) -> Iterator[tuple[str, str, str]]:
    """Yield the prompt of each answer that begins differently, the finished answer, and how it differs."""
    whole = trial.finished(conversation) if conversation.is_regular and conversation.answers else None
    for number in conversation.answers if whole is not None else ():
        opened, done = trial.render(conversation, State(count=number)).text, whole
        if opened is not None and not (whole or "").startswith(opened):  # history may be written differently
            done = trial.finished(conversation, number + 1)
        said = [unit for unit in conversation.units if unit.message == number]
        if opened is None or done is None or not said:
            continue
        begun = done[len(opened) :]
        if not done.startswith(opened):
            is_space = "".join(done.split()).startswith("".join(opened.split()))
            plain, finished = ("".join(REASONING.sub("", text).split()) for text in (opened, done))
            if is_space or not finished.startswith(plain):
                yield opened, done, _SPACE if is_space else _OTHERWISE
        elif added and begun.lstrip().startswith(added):
            if opened == trial.finished(conversation, number):
                yield opened, done, _MISSING
        elif begun[:1].isspace() and begun.lstrip().startswith(said[0].text) and said[0].kind == "assistant":
            yield opened, done, _SPACE


def _is_always_written(layout: TurnLayout) -> bool:
    """Return whether a finished conversation ends with what is before an answer: another one is opened."""
    begun = (layout.closed or "").rpartition(ANSWER)[0].rpartition(QUESTION)[2]
    tail = (layout.tail or "").rstrip()
    if layout.asked != layout.opened or not tail or (layout.gap or "").startswith(tail):
        return False
    return re.findall(rf"{MARKER.pattern}|[^\s<]+", tail)[-1] in begun


def _compared(trial: TemplateTrial, opened: str, begun: str, *, is_added: bool) -> Iterator[Finding]:
    """Yield how finished answers begin in another way than the generation prompt ends."""
    if begun == opened:
        return
    place = trial.place_of("add_generation_prompt")
    at = first_difference(opened, begun)
    saw = f"generation prompt {excerpt(opened, at)!r}, but finished answer {excerpt(begun, at)!r}"
    plain, finished = (re.sub(r"\s+", "", REASONING.sub("", text)) for text in (opened, begun))
    if plain != finished:
        is_more = plain.startswith(finished) or finished.startswith(plain)
        how = "with more text than" if is_more else "differently from"
        less = None if is_added else Severity.WARNING
        yield finding(
            f"finished answers begin {how} the generation prompt",
            saw,
            place,
            severity=Severity.INFO if is_more else less,
        )
    elif re.sub(r"\s+", "", opened) != re.sub(r"\s+", "", begun):
        do = "write the same reasoning tags in finished answers and in the generation prompt"
        yield info("finished answers and the generation prompt have different reasoning tags", saw, place, do=do)
    else:
        # The line break of a header such as `<|im_start|>assistant`; some models write more after the role.
        is_header = opened[-1:].isalpha() and begun[len(opened) :][:1] == "\n" and not trial.mentions("think")
        yield finding(_SPACE, saw, place, severity=Severity.WARNING if is_header and is_added else Severity.INFO)
