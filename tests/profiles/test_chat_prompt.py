"""From turns to a prompt: answers that are continued, and whitespace by eval-framework 0.15.4's documented rules."""

import pytest

from pytest_promptfmt.core.errors import RenderError, SettingsError
from pytest_promptfmt.core.profile import builtin_profile
from pytest_promptfmt.core.prompt import Message, Origin, Span, Turn, join
from pytest_promptfmt.profiles.chat_prompt import find_formatter, format_messages, formatters, prompt_of

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


def text(formatter: str, *messages: tuple[str, str]) -> str:
    made = [Message(role, (Span(content, Origin("question")),)) for role, content in messages]  # type: ignore[arg-type]
    return join(format_messages(find_formatter(formatter), made))


def in_chatml(*messages: tuple[str, str], as_turns: bool = True) -> str:
    made = tuple(Message(role, (Span(content, Origin("question")),)) for role, content in messages)  # type: ignore[arg-type]
    profile = builtin_profile("chat-chatml" if as_turns else "chat-chatml-single")
    return prompt_of(profile, (), (Turn.of(made),)).text


@pytest.mark.parametrize("as_turns", [True, False])
def test_a_begun_answer_is_continued_where_it_ends(as_turns: bool) -> None:
    asked = "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    assert in_chatml((USER, "2 + 2?"), as_turns=as_turns) == asked
    assert in_chatml((USER, "2 + 2?"), (ASSISTANT, "It is "), as_turns=as_turns) == f"{asked}It is "


SHOT = ((SYSTEM, " Be right. "), (USER, " Q1 \n"), (ASSISTANT, " B "), (USER, "\n Q2 \n"))


def test_concat_strips_the_last_question_and_keeps_the_answers_of_demonstrations() -> None:
    assert text("concat", *SHOT) == " Be right. \n\n Q1 \n B \n\nQ2"


def test_concat_without_stripping_keeps_everything() -> None:
    assert text("no-strip-concat", *SHOT) == " Be right. \n\n Q1 \n B \n\n\n Q2 \n"


def test_llama3_strips_every_message() -> None:
    assert text("llama3", *SHOT) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe right.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nQ1<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        "B<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nQ2<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_a_cue_is_stripped_and_leaves_the_question_before_it_alone() -> None:
    cue = ((USER, "Q \n"), (ASSISTANT, " Answer: "))
    assert text("concat", *cue) == "Q \nAnswer:"
    assert text("no-strip-concat", *cue) == "Q \n Answer: "
    assert text("llama3", *cue).endswith("Q<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nAnswer:")


def test_llama3_fills_an_empty_system_message_and_adds_none() -> None:
    assert "You are a helpful AI assistant" in text("llama3", (SYSTEM, ""), (USER, "Q"))
    assert "system" not in text("llama3", (USER, "Q"))


def test_spans_keep_their_origins_through_stripping() -> None:
    origins = Origin("description"), Origin("question")
    message = Message("user", (Span("  one ", origins[0]), Span(" two  ", origins[1]), Span(" \n", origins[1])))
    spans = format_messages(find_formatter("concat"), [message])
    assert [(span.text, span.origin.part) for span in spans] == [("one ", "description"), (" two", "question")]


@pytest.mark.parametrize(
    "roles", [(ASSISTANT, USER), (USER, USER), (SYSTEM, ASSISTANT), (USER, ASSISTANT, SYSTEM)], ids="-".join
)
def test_roles_out_of_turn_are_refused(roles: tuple[str, ...]) -> None:
    with pytest.raises(RenderError, match="expected"):
        text("concat", *((role, "text") for role in roles))


def test_a_mistyped_formatter_is_told() -> None:
    with pytest.raises(SettingsError, match="did you mean 'llama3'"):
        find_formatter("lama3")


@pytest.mark.parametrize("name", ["concat", "no-strip-concat", "llama3"])
def test_each_formatter_has_a_profile(name: str) -> None:
    formatter = builtin_profile(f"formatter-{name}").formatter
    assert formatter in formatters()
