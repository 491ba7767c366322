"""What a chat template does is found out by rendering; real templates do what was observed of them by other means."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.profile import PLAIN, Profile, builtin_profile
from pytest_promptfmt.profiles import template_facts as module
from pytest_promptfmt.profiles.profile_loading import profile_trial
from pytest_promptfmt.profiles.template_facts import TemplateFacts, UndefinedName

TEMPLATES = Path(__file__).parents[3] / "shared" / "data" / "chat_templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
LABELS = "{% for m in messages %}{{ m.role }}: BODY\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"


def template_facts(profile: Profile) -> TemplateFacts:
    return module.template_facts(profile_trial(profile))


def facts_of(source: str, **arguments: Any) -> TemplateFacts:
    return template_facts(Profile(name="p", chat_template=source, special_tokens=TOKENS, template_args=arguments))


def labelled(body: str = "{{ m.content }}") -> str:
    return LABELS.replace("BODY", body)


# -- archetypes and small templates -----------------------------------------------------------------------------------


def test_chatml_keeps_everything() -> None:
    facts = template_facts(builtin_profile("chat-chatml"))
    assert (facts.user, facts.assistant, facts.system) == ("kept", "kept", "kept")
    assert facts.takes_two_users
    assert facts.takes_assistant_first
    assert facts.generation_prompt == "<|im_start|>assistant\n"
    assert (facts.answer, facts.prefill, facts.prefill_lost) == ("fits", "fits", "")
    assert facts.answer_end == "<|im_end|>\n"
    assert facts.markers == ("<|im_start|>", "<|im_end|>")
    assert not facts.default_system


def test_gemma_strips_and_refuses() -> None:
    facts = template_facts(builtin_profile("chat-gemma"))
    assert (facts.user, facts.assistant, facts.system) == ("stripped", "stripped", "refused")
    assert not facts.takes_two_users
    assert not facts.takes_assistant_first
    assert facts.bos == "<bos>"
    assert facts.prefill_lost == " "


def test_mistral_asks_without_words_and_puts_a_blank_before_the_answer() -> None:
    facts = template_facts(builtin_profile("chat-mistral"))
    assert facts.generation_prompt == ""
    assert (facts.answer, facts.answer_gap) == ("gap", " ")
    assert facts.answer_end == "</s>"


def test_a_system_turn_is_one_also_behind_a_long_text_with_marks_of_its_own() -> None:
    tools = "You have tools: <|tool_start|>a call<|tool_end|> and so on.\n"
    body = (
        "{% for m in messages %}<|start|>{{ m.role }}<|end|>\n{% if loop.first %}" + tools + "{% endif %}"
        "{{ m.content }}<|eot|>{% endfor %}"
    )
    assert facts_of(body).system == "kept"


def test_text_said_in_the_users_name_is_found() -> None:
    said = "{% if messages[0].role != 'system' %}system: You are a careful and friendly helper.\n{% endif %}"
    assert facts_of(said + labelled()).default_system == "You are a careful and friendly helper."
    assert facts_of(labelled()).default_system == ""


def test_dates_are_found_whether_they_move_or_not() -> None:
    today = facts_of("Today: {{ strftime_now('%d %B %Y') }}\n" + labelled())
    assert (today.follows_clock, today.dates) == (True, ("26 July 2024",))
    fixed = facts_of("Cutting off: December 2023\n" + labelled())
    assert (fixed.follows_clock, fixed.dates) == (False, ("December 2023",))
    given = facts_of("{{ date or strftime_now('%Y-%m-%d') }}\n" + labelled(), date="2020-01-01")
    assert (given.follows_clock, given.dates) == (False, ("2020-01-01",))


def test_a_name_without_value_is_found_where_it_is_printed_and_not_where_it_is_asked_for() -> None:
    source = "{% if mood is defined %}{{ mood }}{% endif %}\n{{ temper }}" + labelled()
    assert facts_of(source).undefined == (UndefinedName("temper", 2),)
    assert facts_of(source, temper="mild").undefined == ()
    assert facts_of("{% for x in xs %}{% endfor %}" + labelled()).undefined == (UndefinedName("xs", 1),)


def test_an_answer_that_is_begun_otherwise_than_finished_is_found() -> None:
    begins = labelled() + "{% if add_generation_prompt %}<think>\n{% endif %}"
    assert facts_of(begins).answer == "differs"
    closes = labelled("{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}")
    assert (facts_of(closes).answer, facts_of(closes).answer_gap) == ("gap", "<think></think>")
    assert facts_of(closes).prefill_gap == "<think></think>"


def test_indentation_of_the_file_is_found() -> None:
    assert facts_of("{% for m in messages %}\n    {{ m.role }}: {{ m.content }}\n{% endfor %}").indentation
    assert not facts_of(labelled()).indentation


def test_a_template_that_renders_nothing_at_all_says_why() -> None:
    assert facts_of("{{ raise_exception('no') }}").failure == "TemplateError: no"
    assert facts_of("{% if %}").failure.startswith("TemplateSyntaxError: Expected an expression")
    assert "characters" in facts_of("{{ 'a' * 10**9 }}").failure


def test_a_profile_without_template_has_no_facts() -> None:
    with pytest.raises(ValueError, match="plain"):
        template_facts(PLAIN)


def test_facts_are_found_out_once_for_each_template_and_its_arguments() -> None:
    profile = builtin_profile("chat-chatml")
    assert template_facts(profile) is template_facts(replace(profile, name="other", system_instruction="Be brief."))
    assert template_facts(profile) is not template_facts(replace(profile, template_args={"a": 1}))


# -- real templates ---------------------------------------------------------------------------------------------------

SYSTEM = {"kept": "kept", "merged": "merged-into-user", "dropped": "dropped", "refused": "rejected"}
SPACE = {"kept": "kept", "stripped": "stripped", "changed": "partly"}
OTHERWISE = {
    # The observed column calls a system text of over 90 characters a default; these two are short, or have a header.
    ("royallab-inkbot.jinja", "default_system"),
    ("trl-qwen2_5_vl_training.jinja", "default_system"),
    # Loose text before the first label: the other method took it for a turn of its own here, and not in vicuna's.
    ("chujie-falcon-instruct.jinja", "system"),
    # It walks over the characters of a text and prints none of them.
    ("trl-llava_next.jinja", "user_ws"),
}


def stated(facts: TemplateFacts) -> dict[str, str]:
    """The facts in the words of the observations."""
    return {
        "user_only": "ok",
        "system": SYSTEM[facts.system],
        "two_users": "ok" if facts.takes_two_users else "rejected",
        "assistant_first": "ok" if facts.takes_assistant_first else "rejected",
        "gen_prompt": {"": "ignored", None: "not-an-extension"}.get(
            facts.generation_prompt, repr(facts.generation_prompt)
        ),
        "default_system": str(bool(facts.default_system)),
        "bos_in_template": str(bool(facts.bos)),
        "date": "nondeterministic" if facts.follows_clock else "fixed-date" if facts.dates else "",
        "user_ws": SPACE.get(facts.user, "?"),
        "asst_ws": SPACE.get(facts.assistant, "?"),
        "gen_prefix_ok": {"fits": "True", "gap": "prefix-only", "differs": "False", "refused": "?"}[facts.answer],
        "ends_after_assistant": repr(facts.answer_end),
    }


@pytest.mark.skipif(not TEMPLATES.is_dir(), reason="the collection of real chat templates is not here")
def test_facts_of_real_templates_are_those_that_were_observed() -> None:
    compared: Counter[str] = Counter()
    wrong = []
    with (TEMPLATES / "FACTS.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        name = row["template"]
        facts = facts_of((TEMPLATES / name).read_bytes().decode())
        if row["user_only"] != "ok":
            assert facts.failure.replace(": ", ":", 1) == row["user_only"]
            continue
        assert not facts.failure
        for column, ours in stated(facts).items():
            theirs = row[column].partition(":")[0] if ours in ("rejected", "err") else row[column]
            if column == "ends_after_assistant":  # observed up to 40 characters
                ours = ours[: len(theirs)]
            if theirs == "?" or (name, column) in OTHERWISE:
                continue
            compared[column] += 1
            if ours != theirs:
                wrong.append((name, column, ours, theirs))
    assert wrong == []
    assert compared.total() > 1000
