"""Rules about `{% generation %}`: what of a conversation is learnt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.errors import TokenizerError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.evidence import (
    excerpt,
    markers,
    trial_of,
)
from pytest_promptfmt.systems.templates.trial import Rendering, TemplateTrial

_TAGS: Final = re.compile(r"<[^<>\s]*(?:think|reason)[^<>\s]*>", re.I)
"""Tags of reasoning, which a generation prompt may hold or not, by its arguments."""


def _masked(study: Study | TemplateTrial, name: str) -> tuple[TemplateTrial, Rendering, str] | None:
    trial = trial_of(study)
    if (
        trial is None
        or name not in trial.conversations
        or not trial.mentions("{% generation", "{%- generation", "{%generation", "{%-generation")
    ):
        return None
    rendering = trial.last(name, generation_prompt=False)
    return (trial, rendering, rendering.text) if rendering.text is not None else None


def _joined(mask: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Return the spans of a mask with those as one that follow each other without a gap."""
    found: list[tuple[int, int]] = []
    for first, last in mask:
        if found and found[-1][1] == first:
            first = found.pop()[0]
        found.append((first, last))
    return found


def _covers(mask: tuple[tuple[int, int], ...], start: int, end: int) -> bool:
    return any(first <= start and end <= last for first, last in _joined(mask))


@rule("PF451", "mask-misses-answer", severity=Severity.ERROR, family=Family.CHAT)
def mask_misses_answer(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report answers and tool calls outside `{% generation %}`.

    Why: Only what is inside is learnt; an empty mask trains on nothing.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- '<|begin|>' + message.role + '\n' }}
            {%- if message.role == 'assistant' %}
                {{- message.content }}{% generation %}{{- '<|end|>' }}{% endgeneration %}{{- '\n' }}
            {%- else %}{{- message.content + '<|end|>\n' }}{%- endif %}
        {%- endfor %}
        {%- if add_generation_prompt %}{{- '<|begin|>assistant\n' }}{%- endif %}

    Silent example:
        # include: sound_template.txt

    Fix: put content, tool calls and the end token inside the tags.

    Real: marin #7237 (masks of zeros only).
    """
    for name in ("turns", "call-finished"):
        masked = _masked(study, name)
        if masked is None:
            continue
        trial, rendering, text = masked
        for unit in trial.conversations[name].units:
            if unit.kind in ("assistant", "argument") and text.count(unit.text) == 1:
                at = text.find(unit.text)
                if not _covers(rendering.mask, at, at + len(unit.text)):
                    what = "a tool call" if unit.kind == "argument" else "an answer"
                    yield Finding(
                        message=f"the mask does not cover {what}",
                        saw=f"{name}: {excerpt(text, at, at + len(unit.text))}",
                        conversation=name,
                        position=trial.place_of("generation"),
                    )
                    break


@rule("PF452", "mask-holds-prompt", severity=Severity.ERROR, family=Family.CHAT)
def mask_holds_prompt(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report headers, user texts and tool results inside `{% generation %}`.

    Why: The model learns to write what it is always given: headers, questions and tool results.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {%- generation %}{{- '<|begin|>' + message.role + '\n' + message.content + '<|end|>\n' }}{% endgeneration %}
        {%- endfor %}
        {%- if add_generation_prompt %}{{- '<|begin|>assistant\n' }}{%- endif %}

    Silent example:
        # include: sound_template.txt

    Fix: begin the tag after the header of the answer.

    Real: SmolLM3 (the header inside the mask).
    """
    for name in ("turns", "call-finished"):
        masked = _masked(study, name)
        if masked is None:
            continue
        trial, rendering, text = masked
        conversation = trial.conversations[name]
        for unit in conversation.units:
            at = text.find(unit.text)
            if unit.kind in ("user", "tool") and at >= 0 and _covers(rendering.mask, at, at + len(unit.text)):
                yield Finding(
                    message=f"the mask covers a {unit.kind} text",
                    saw=f"{name}: {excerpt(text, at, at + len(unit.text))}",
                    conversation=name,
                    position=trial.place_of("generation"),
                )
                break
        opened = trial.render(conversation, conversation.states[0]).text
        if opened is not None and text.startswith(opened):
            inside = [first for first, last in rendering.mask if first < len(opened) < last]
            if inside:
                covered = text[inside[0] : len(opened)]
                yield Finding(
                    message="the mask covers the generation prompt",
                    saw=f"{name}: {excerpt(text, inside[0], len(opened))}",
                    conversation=name,
                    position=trial.place_of("generation"),
                    severity=None if _TAGS.sub("", covered).strip() else Severity.INFO,
                )


@rule("PF453", "stop-token-outside-mask", severity=Severity.ERROR, family=Family.CHAT)
def stop_token_outside_mask(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report answers whose mask ends before the token that stops the model.

    Why: The model never learns to stop.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- '<|begin|>' + message.role + '\n' }}
            {%- if message.role == 'assistant' %}
                {%- generation %}{{- message.content }}{% endgeneration %}{{- '<|end|>\n' }}
            {%- else %}{{- message.content + '<|end|>\n' }}{%- endif %}
        {%- endfor %}
        {%- if add_generation_prompt %}{{- '<|begin|>assistant\n' }}{%- endif %}

    Silent example:
        # include: sound_template.txt

    Fix: end the tag after the token that closes the answer.

    Real: TRL PR #5988 and #6044 (GLM-4 MoE), axolotl PR #3756.
    """
    masked = _masked(study, "turns")
    if masked is None:
        return
    trial, rendering, text = masked
    mask = _joined(rendering.mask)
    for number, (first, last) in enumerate(mask):
        inside = text[first:last].rstrip()
        if any(inside.endswith(marker) for marker in markers(inside, trial)[-1:]):
            continue
        is_last = number == len(mask) - 1
        yield Finding(
            message=f"the mask of {'the last' if is_last else 'an'} answer ends without a stop token",
            saw=f"turns: {excerpt(text, last)}",
            conversation="turns",
            position=trial.place_of("endgeneration"),
        )
        if not is_last and number:
            return


@rule("PF465", "mask-cuts-token", severity=Severity.WARNING, family=Family.CHAT)
def mask_cuts_token(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report masks of `{% generation %}` that begin or end inside a token of the tokenizer, or at no token.

    Why: Tokens are learnt whole. One that holds the end of a header and the beginning of an answer is learnt with the
    header, and is another token than the model is given when it answers. Where a mask begins with a character that the
    tokenizer drops, transformers leaves out the rest of the conversation.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- message.role + ':' }}
            {%- if message.role == 'assistant' %}{% generation %}{{- message.content + '\n' }}{% endgeneration %}
            {%- else %}{{- message.content + '\n' }}{%- endif %}
        {%- endfor %}
        # file: tokenizer.json
        {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
         "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}

    Silent example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- message.role + ':\n' }}
            {%- if message.role == 'assistant' %}{% generation %}{{- message.content }}{% endgeneration %}{{- '\n' }}
            {%- else %}{{- message.content + '\n' }}{%- endif %}
        {%- endfor %}
        # file: tokenizer.json
        {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
         "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}

    Fix: begin and end the tag at control tokens, after the line break of the header.

    Real: transformers' `return_assistant_tokens_mask`, which stops at a character without a token (5.23).
    """
    masked = _masked(study, "turns")
    if masked is None or masked[0].tokenizer is None:
        return
    trial, rendering, text = masked
    tokenizer = masked[0].tokenizer
    try:
        encoded = tokenizer.encode(text, add_special_tokens=False)
    except TokenizerError:
        return  # the snapshots of the conversations report it
    added, spans = tokenizer.added_tokens, encoded.offsets
    # An added token may take the whitespace beside it, and is the same token with and without.
    texts = [span for token, span in zip(encoded.ids, spans, strict=True) if token not in added]
    # A marker that is no token belongs to another model, which PF413 reports.
    foreign = [each.span() for each in trial.marker.finditer(text) if tokenizer.id_of(each[0]) is None]
    texts = [(begin, end) for begin, end in texts if not any(begin < last and first < end for first, last in foreign)]
    place = trial.place_of("generation")
    dropped = [first for first, last in rendering.mask if not any(at <= first < end for at, end in spans)]
    if dropped:
        saw = f"turns: {excerpt(text, dropped[0])}"
        yield Finding(message="a mask begins with a character that is no token", saw=saw, position=place)
    for number, what in ((0, "begins"), (1, "ends")):
        cut = [span for mask in _joined(rendering.mask) for span in texts if span[0] < mask[number] < span[1]]
        if cut:
            saw = f"turns: the token {text[cut[0][0] : cut[0][1]]!r}"
            yield Finding(message=f"a mask {what} inside a token", saw=saw, position=place)
