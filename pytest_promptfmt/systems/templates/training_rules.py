"""Rules about templates for training: the masks of `{% generation %}`, and prompts that inference never sends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from pytest_promptfmt.core.errors import SourceError, TokenizerError
from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.profiles import Encoding, Tokenizer
from pytest_promptfmt.profiles.probe_conversations import Conversation, State
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, first_difference, has_inner_mask
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.systems.templates.constructs import line_at
from pytest_promptfmt.systems.templates.template_subjects import template_rule
from pytest_promptfmt.systems.templates.turn_rules import EMPTY_THOUGHT

Mask = Sequence[tuple[int, int]]

TRAINING: Final = "_training.jinja"
"""The end of the name of a training variant, which is next to its template."""

_MOST_CHANGES: Final = 6
_FOLLOWING: Final = 8
_TAGS: Final = re.compile(r"<[^<>\s]*(?:think|reason)[^<>\s]*>", re.I)
"""Tags of reasoning, which a generation prompt may hold or not, by its arguments."""


@template_rule("PF454", "training-template-differs", severity=Severity.WARNING)
def training_template_differs(trial: TemplateTrial) -> Iterator[Finding]:
    """Report prompts that a model's training template writes differently from its template for inference.

    Why: The training template of `NAME.jinja` is `NAME_training.jinja`, or a template that the setting `training_of`
    pairs with it. It should differ only in `{% generation %}` and `{% endgeneration %}`, which mark the text to learn.
    If there is any other difference, the model is trained on prompts that it never gets later. The training template
    may keep reasoning, or an empty block of reasoning, on purpose. In this case, the finding is an info. It is also an
    info if only the training template accepts a certain shape of messages.

    Fix: copy the inference template, and add nothing but `{% generation %}` and `{% endgeneration %}`.

    Real: TRL's training templates for GLM-4 MoE and Qwen3.
    """
    file = trial.profile.template_file
    if file is None:
        return
    variant = file.with_name(f"{file.stem}{TRAINING}")
    if variant.is_file() and (training := _beside(trial, variant)) is not None:
        if training.syntax_error is None and "training" not in training.kinds:
            message, do = (
                "the training template has no {% generation %}, so it marks no text to learn",
                "write {% generation %} around answers",
            )
            yield finding(message, at=training.place(1), do=do)
        yield from _trained_otherwise(trial, training)
    asked = trial.options.trains_for
    if asked is not None and file != asked.with_name(f"{asked.stem}{TRAINING}"):
        inference = _beside(trial, asked)
        if inference is None or inference.syntax_error is not None:
            yield finding("the template that training_of names cannot be read", asked.name, trial.place())
        else:
            yield from _trained_otherwise(inference, trial)


def _beside(trial: TemplateTrial, file: Path) -> TemplateTrial | None:
    """Return another template tried as this one is; None for an unreadable one, which is reported for itself."""
    from pytest_promptfmt.systems.templates.template_files import templates_of  # collecting needs no reader

    try:
        found = templates_of(file)
    except SourceError:
        return None
    if not found:
        return None
    return TemplateTrial(replace(trial.profile, chat_template=found[0].source, template_file=file), trial.given)


def _trained_otherwise(inference: TemplateTrial, training: TemplateTrial) -> Iterator[Finding]:
    def differing(conversation: Conversation) -> Iterator[tuple[State, str, str]]:
        """Yield the states, up to each answer and as a whole, of which the two templates write different texts."""
        answered = [at for at, each in enumerate(conversation.messages, start=1) if each.get("role") == "assistant"]
        finished = sorted({*answered, len(conversation.messages)})
        states = [State(count=count, generation_prompt=False) for count in finished]
        for state in (*states, conversation.states[-1]):
            ours, theirs = (each.render(conversation, state).text for each in (inference, training))
            if ours is not None and ours != theirs:
                yield state, ours, theirs or ""

    simplest: dict[str, Conversation] = {}
    for conversation, change in inference.attributed(lambda each: {_change(*texts) for _, *texts in differing(each)}):
        simplest.setdefault(change, conversation)
    for change, conversation in islice(simplest.items(), _MOST_CHANGES):
        state, ours, theirs = next(each for each in differing(conversation) if _change(*each[1:]) == change)
        at = first_difference(ours, theirs)
        lost = [unit.text for unit in conversation.units if unit.kind == "reasoning" and unit.text not in theirs]
        given = inference.given[conversation.name]
        repairs = conversation.messages != given.messages and training.stopped(given) is None
        is_meant = repairs or conversation.has_reasoning or _differ_in_empty_blocks(ours, theirs)
        yield conversation.finding(
            f"the prompts for training and inference differ in a conversation with {conversation.about}",
            f"training: {excerpt(theirs, at)!r}; inference: {excerpt(ours, at)!r}",
            training.place(line_at(training, conversation, state, theirs, ours) if theirs else None),
            Severity.INFO if is_meant and not any(each in ours for each in lost) else None,
        )


def _differ_in_empty_blocks(ours: str, theirs: str) -> bool:
    """Return whether two texts differ only in the number of empty blocks of reasoning."""
    (one, ours_has), (other, theirs_has) = (
        re.subn(rf"{EMPTY_THOUGHT.pattern}\s*", "", text) for text in (ours, theirs)
    )
    return one == other and ours_has != theirs_has


def _change(ours: str, theirs: str) -> str:
    """Return what is added or left out at the first difference of two texts, which distinguishes changes.

    Its characters are sorted: where a marker follows, a `<` may count at either end.
    """
    at = first_difference(ours, theirs)
    found = []
    for sign, one, other in (("+", ours, theirs), ("-", theirs, ours)):
        end = other.find(one[at : at + _FOLLOWING], at) if one[at:] else len(other)
        found += [sign + "".join(sorted(other[at:end]))] if end > at else []
    return min(found, key=len, default=theirs[at : at + 1] + ours[at : at + 1])


# -- masks -------------------------------------------------------------------------------------------------------------


def _masked(trial: TemplateTrial, *names: str) -> Iterator[tuple[Conversation, str, Mask]]:
    """Yield conversations with their prompt and its mask, where the template has one."""
    if "training" in trial.kinds:
        for name in names:
            if name in trial.conversations:
                rendering = trial.render(trial.conversations[name], trial.conversations[name].finished)
                if rendering.text is not None:
                    yield trial.conversations[name], rendering.text, rendering.mask


def _joined(mask: Mask) -> list[tuple[int, int]]:
    """Return the spans of a mask with those as one that follow each other without a gap."""
    found: list[tuple[int, int]] = []
    for first, last in mask:
        if found and found[-1][1] == first:
            first = found.pop()[0]
        found.append((first, last))
    return found


def _covers(mask: Mask, start: int, end: int) -> bool:
    return any(first <= start and end <= last for first, last in _joined(mask))


@template_rule("PF451", "mask-misses-answer", severity=Severity.ERROR)
def mask_misses_answer(trial: TemplateTrial) -> Iterator[Finding]:
    """Report answers, tool calls and other text of the model that are outside `{% generation %}`.

    Why: In training, the model learns only the text between the tags `{% generation %}` and `{% endgeneration %}`. This
    text is called the mask. If it is empty, the model learns nothing. On a server, the model continues right after the
    generation prompt. If the mask begins a space or line break later, the model never learns to write this character.
    In this case, the finding is a warning. If a mask is inside a macro, transformers uses the start of the macro's
    output as the start of the mask.

    Fix: between `{% generation %}` and `{% endgeneration %}`, put all text that the model has to write: the content,
    the tool calls, the end token, and the part of the header that is not in the generation prompt.

    Real: marin #7237 (empty masks); arcee-ai's Trinity Large Preview (a line break before the mask).
    """
    seen = set[str]()
    for conversation, text, mask in _masked(trial, "turns", "call-finished"):
        if has_inner_mask(trial, conversation):
            message = "transformers misplaces the training mask ({% generation %}) inside a macro or {% set %}"
            saw, do = excerpt(text, *(mask or [(0, 0)])[0]), "write it outside, in the loop over messages"
            yield finding(message, saw, trial.place_of("generation"), do=do)
            return
        for unit in conversation.units:
            if unit.kind in ("assistant", "argument") and text.count(unit.text) == 1:
                at = text.find(unit.text)
                if not _covers(mask, at, at + len(unit.text)):
                    what = "a tool call" if unit.kind == "argument" else "an answer"
                    yield conversation.finding(
                        f"{what} is outside the training mask ({{% generation %}})",
                        excerpt(text, at, at + len(unit.text)),
                        trial.place_of("generation"),
                    )
                    break
        begins = next(_left_out(trial, conversation, text, mask), None)
        if begins is not None and text[slice(*begins)] not in seen:
            first, last = begins
            seen.add(text[first:last])
            yield conversation.finding(
                "the training mask ({% generation %}) begins too late",
                f"{text[first:last]!r} is neither in the generation prompt nor in the mask: "
                f"{excerpt(text, first, last)}",
                trial.place_of("generation"),
                Severity.WARNING if text[first:last].strip(" ") else Severity.INFO,  # a token may begin with a space
            )


def _left_out(trial: TemplateTrial, conversation: Conversation, text: str, mask: Mask) -> Iterator[tuple[int, int]]:
    """Yield what is between a generation prompt and the mask of its answer: a server has the model generate it."""
    for number in conversation.answers:
        prompt = trial.render(conversation, State(count=number)).text
        if prompt is not None and text.startswith(prompt):
            begins = min((first for first, last in mask if last > len(prompt)), default=0)
            said = (unit.text for unit in conversation.units if unit.message >= number)
            if begins > len(prompt) and not any(each in text[len(prompt) : begins] for each in said):
                yield len(prompt), begins


@template_rule("PF452", "mask-holds-prompt", severity=Severity.ERROR)
def mask_holds_prompt(trial: TemplateTrial) -> Iterator[Finding]:
    """Report headers, user texts and tool results inside `{% generation %}`.

    Why: In training, the model learns the text between `{% generation %}` and `{% endgeneration %}`. Headers, questions
    and tool results are always given to the model, so it should not learn to write them. For a header, the finding is a
    warning.

    Fix: move `{% generation %}` to the place right after the header of the answer.

    Real: SmolLM3 (a header).
    """
    for conversation, text, mask in _masked(trial, "turns", "call-finished"):
        for unit in conversation.units:
            at = text.find(unit.text)
            if unit.kind in ("user", "tool") and at >= 0 and _covers(mask, at, at + len(unit.text)):
                yield conversation.finding(
                    f"a {unit.kind} text is inside the training mask ({{% generation %}})",
                    excerpt(text, at, at + len(unit.text)),
                    trial.place_of("generation"),
                )
                break
        opened = trial.render(conversation, conversation.states[0]).text
        if opened is not None:
            end = first_difference(opened, text)
            if end < len(opened):  # up to the last marker or line break that both have
                end = max(text.rfind(each, 0, end) for each in ">]|\n") + 1
            inside = [first for first, last in mask if first < end < last]
            if inside:
                covered = text[inside[0] : end]
                yield conversation.finding(
                    "the generation prompt is inside the training mask ({% generation %})",
                    excerpt(text, inside[0], end),
                    trial.place_of("generation"),
                    Severity.WARNING if _TAGS.sub("", covered).strip() else Severity.INFO,
                )


@template_rule("PF453", "stop-token-outside-mask", severity=Severity.ERROR)
def stop_token_outside_mask(trial: TemplateTrial) -> Iterator[Finding]:
    """Report answers for which `{% endgeneration %}` is not directly after the token that stops the model.

    Why: The mask is the text that the model learns: it ends at `{% endgeneration %}`. If the mask ends before the stop
    token, the model never learns to stop. If the mask ends later, the model learns text that it never generates,
    because a server stops at the stop token. In this case, the finding is a warning, or an info if the text is a line
    break.

    Fix: put `{% endgeneration %}` right after the token that ends an answer.

    Real: TRL PR #5988 and #6044 (GLM-4 MoE), axolotl PR #3756; LLaVA-NeXT (a space after the token).
    """
    for conversation, text, mask in _masked(trial, "turns", "call-finished"):
        after = (_after_stop(trial, text[first:last]) for first, last in _joined(mask))
        found = next((each for each in after if each), "")
        if found:
            saw = f"{found!r} is in the mask after the end token of the answer"
            message, place = (
                "the training mask ({% generation %}) continues after the stop token",
                trial.place_of("endgeneration"),
            )
            is_line_end = found.strip(" ") == found
            yield conversation.finding(message, saw, place, Severity.INFO if is_line_end else Severity.WARNING)
            break
    spans = [
        (conversation, text, span) for conversation, text, mask in _masked(trial, "turns") for span in _joined(mask)
    ]
    for number, (conversation, text, (first, last)) in enumerate(spans):
        inside = text[first:last].rstrip()
        if any(inside.endswith(marker) for marker in trial.markers(inside)[-1:]):
            continue
        is_last = number == len(spans) - 1
        whose = "the last" if is_last else "an"
        message = f"the stop token of {whose} answer is outside the training mask ({{% generation %}})"
        yield conversation.finding(message, excerpt(text, last), trial.place_of("endgeneration"))
        if not is_last and number:
            return


def _after_stop(trial: TemplateTrial, learnt: str) -> str:
    """Return the whitespace that a span of a mask has after its last marker; empty where it ends in text."""
    ended = learnt.rstrip()
    return learnt[len(ended) :] if any(ended.endswith(each) for each in trial.markers(ended)[-1:]) else ""


@template_rule("PF465", "mask-cuts-token", severity=Severity.WARNING)
def mask_cuts_token(trial: TemplateTrial) -> Iterator[Finding]:
    """Report answers whose tokens in training differ from the tokens that a model generates on a server.

    Why: A token can contain both the end of a header and the beginning of an answer. In training, this token is a part
    of the header. On a server, the model gets only the header, so the answer begins with another token. There are two
    more cases. In tool loops, the trainer TRL appends the tokens of a tool result to the generated tokens, so the next
    prompt has to begin with exactly these tokens. And if a tokenizer drops the first character of a mask, transformers
    leaves the rest of the conversation out of the mask.

    Fix: write a line break after the header of the answer, directly before `{% generation %}`. Write the end token of
    the answer before `{% endgeneration %}`.

    Real: transformers 5.23, whose `return_assistant_tokens_mask` stops at a character without a token.
    """
    tokenizer, place = trial.tokenizer, trial.place_of("generation")
    if tokenizer is None:
        return
    for conversation, text, mask in _masked(trial, "turns", "call-finished"):
        try:
            encoded = tokenizer.encode(text, add_special_tokens=False)
            other = next(_other_tokens(trial, tokenizer, conversation, text, encoded), None)
        except TokenizerError:
            return  # the snapshots of the conversations report it
        added, spans = tokenizer.added_tokens, encoded.offsets
        # An added token may take the whitespace around it, and is the same token with and without.
        texts = [span for token, span in zip(encoded.ids, spans, strict=True) if token not in added]
        # A marker without a token belongs to another model, which PF413 reports.
        foreign = [each.span() for each in trial.marker.finditer(text) if tokenizer.id_of(each[0]) is None]
        texts = [(at, end) for at, end in texts if not any(at < last and first < end for first, last in foreign)]
        dropped = [first for first, end in mask if first < end and not any(at <= first < to for at, to in spans)]
        if dropped:
            yield conversation.finding(
                "a training mask begins with a character that no token covers", excerpt(text, dropped[0]), place
            )
        cuts = [
            (f"a training mask {what} inside a token", text[slice(*cut)])
            for number, what in ((0, "begins"), (1, "ends"))
            for cut in [span for edges in _joined(mask) for span in texts if span[0] < edges[number] < span[1]][:1]
        ]
        for message, token in cuts:
            yield conversation.finding(message, f"the token {token!r}", place)
        if other is not None and not cuts and not foreign:
            yield conversation.finding(*other, place)
        if cuts or other is not None:
            return


def _other_tokens(
    trial: TemplateTrial, tokenizer: Tokenizer, conversation: Conversation, text: str, encoded: Encoding
) -> Iterator[tuple[str, str]]:
    """Yield where the tokens of what a server has by then are not the first ones of the whole conversation."""
    roles = [message.get("role") for message in conversation.messages]
    for number in range(1, len(roles)):
        if roles[number] == "assistant":
            what, begun = "the tokens before an answer differ from those of its prompt", State(count=number)
        elif roles[number] == "tool" and roles[number - 1] == "assistant":
            what, begun = "a tool result changes the tokens before it", State(count=number, generation_prompt=False)
        else:
            continue
        given = trial.render(conversation, begun).text
        ids = tokenizer.ids(given, add_special_tokens=False) if given and text.startswith(given) else ()
        if ids != encoded.ids[: len(ids)]:
            at = next(at for at, (one, other) in enumerate(zip(ids, encoded.ids, strict=False)) if one != other)
            yield what, f"{tokenizer.visible(ids[at])} becomes {tokenizer.visible(encoded.ids[at])}"
