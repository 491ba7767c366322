"""Rules about profiles: said once in a run, no task ignores them, and no task makes one of them fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from linting import linted, study_of
from test_rules_engine import run, write_task
from test_rules_properties import whole_configs

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.profile import Profile, builtin_profile
from pytest_promptfmt.core.task import locate_nowhere
from pytest_promptfmt.profiles import ARCHETYPES
from pytest_promptfmt.profiles.profile_loading import load_profile
from pytest_promptfmt.results.clusters import finding_groups
from pytest_promptfmt.results.terminal import finding_lines
from pytest_promptfmt.rules.chat_tokens import marker_is_plain_text
from pytest_promptfmt.rules.linter import LintResult
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.tasks.task_config import task_from_config

FRIENDLY = """\
{% if messages[0].role != 'system' %}<|im_start|>system
You are a patient and friendly helper.<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}"""


def write_profiles(folder: Path, **profiles: dict[str, Any]) -> None:
    (folder / "promptfmt.yaml").write_text(json.dumps({"profiles": profiles}), "utf-8")


def test_what_is_wrong_with_a_template_is_said_once_and_for_no_task(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(FRIENDLY, "utf-8")
    write_profiles(tmp_path, mine={"chat_template": "mine.jinja"})
    write_task(tmp_path, "first")
    text = (tmp_path / "first.yaml").read_text("utf-8") + "    ignore: {PF401: not mine}\n"
    (tmp_path / "first.yaml").write_text(text, "utf-8")
    write_task(tmp_path, "second")
    done = run(tmp_path, "--promptfmt-select=PF401", profile="mine")
    assert "mine.jinja:2: warning: PF401 the chat template adds a default system text" in done.stdout
    assert "  in profile mine\n" in done.stdout
    assert "saw: You are a patient and friendly helper." in done.stdout
    assert done.returncode == 0


def test_three_tokens_on_each_side_of_a_split_one_are_shown(tmp_path: Path) -> None:
    config = {
        "task": "metals",
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "Which metal rusts, {{metals}}\nAnswer:\n",
        "doc_to_choice": ["A metal of the north", "B"],
        "doc_to_target": 0,
        "target_delimiter": "",
        "metadata": {"promptfmt": {"docs": [{"metals": "iron or gold?"}]}},
    }
    study = study_of(task_from_config(config, path=None, locate=locate_nowhere))
    profile = Profile(name="mine", tokenizer="archetype:bytelevel-llama3")
    [found] = linted(study, Selection(rules=known_rules(), select=("PF302",)), profile).findings
    assert found.saw == "scored tokens: ?⏎ Answer : A ␣m et; tokens of the whole text: ?⏎ Answer :⏎ A ␣m et"


def test_a_tokenizer_of_another_model_fails_the_first_task_alone(tmp_path: Path) -> None:
    write_profiles(tmp_path, mixed={"tokenizer": "archetype:bytelevel-gpt2", "chat_template": "chatml"})
    write_task(tmp_path, "first")
    write_task(tmp_path, "second")
    done = run(tmp_path, "--promptfmt-select=PF413", profile="mixed")
    assert "PF413 the tokenizer encodes the control tokens of the template as text" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_what_workers_find_out_each_for_itself_is_counted_once() -> None:
    finding = Reported(
        code="PF401",
        name="default-system-text",
        severity=Severity.WARNING,
        task="",
        file="",
        profiles=("mine",),
        message="the template has a default system text",
        do="remove it",
        stable_keys=("k",),
    )
    lines = [*finding_lines(finding_groups([finding, finding, replace(finding, profiles=("other",))]))]
    assert lines[-2:] == ["  in profiles mine, other", "2 warnings; details: `promptfmt explain CODE`"]


CHATS = tuple(builtin_profile(name) for name in ("chat-chatml", "chat-gemma", "chat-llama3", "chat-mistral"))
SPLITS = ("lm-eval", "pairwise")
PROFILES = (
    *CHATS,
    *(Profile(name=f"{n}-{s}", tokenizer=f"archetype:{n}", split=s) for n in ARCHETYPES for s in SPLITS),  # type: ignore[arg-type]
)
SELECTION = Selection(rules=known_rules(), select=("PF3", "PF4", "PF003"))


def checked(config: dict[str, Any], profile: Profile) -> LintResult | None:
    try:
        task = task_from_config(config, path=None, locate=locate_nowhere)
        return linted(study_of(task), SELECTION, profile)
    except PromptfmtError:
        return None


@settings(max_examples=150)
@given(whole_configs, st.sampled_from(PROFILES))
def test_no_rule_about_profiles_raises_and_findings_are_stable(config: dict[str, Any], profile: Profile) -> None:
    first, second = checked(config, profile), checked(config, profile)
    if first is None or second is None:
        assert first is second
        return
    assert not [str(finding) for finding in first.findings if finding.code == "PF003"]
    assert first.findings == second.findings
    assert all(finding.message and finding.do and "\n" not in finding.saw for finding in first.findings)


@pytest.mark.parametrize("profile", CHATS, ids=lambda profile: profile.name)
def test_our_own_templates_have_no_mistake(profile: Profile) -> None:
    config = {
        "task": "fine",
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "Q: {{question}}\nA:",
        "doc_to_target": "{{answer}}",
        "metadata": {"promptfmt": {"docs": [{"question": "Which metal rusts?", "answer": "iron"}]}},
    }
    found = checked(config, profile)
    assert found is not None
    assert [str(finding) for finding in found.findings if finding.severity != "info"] == []


MULTIPLE_CHOICE = {
    "task": "arc",
    "dataset_path": "nowhere",
    "output_type": "multiple_choice",
    "num_fewshot": 2,
    "doc_to_text": "{{question}}\nAnswer:",
    "doc_to_choice": ["A", "B"],
    "doc_to_target": "answer",
}
# A blank before finished answers, a line break where one is requested.
LAID_OUT = (
    "{% for m in messages %}{{ '[' ~ m.role ~ ']' }} {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)


def test_advice_is_about_the_template_where_the_template_lays_out_the_answers() -> None:
    profile = Profile(name="mine", tokenizer="archetype:sentencepiece-llama2", chat_template=LAID_OUT)
    found = checked(MULTIPLE_CHOICE, profile)
    assert found is not None
    advice = {finding.code: finding.do for finding in found.findings}
    for code in ("PF304", "PF442"):
        assert "fewshot_as_turns: false" in advice[code]
        assert "target_delimiter" not in advice[code]
        assert "enable_thinking" not in advice[code]


def test_a_target_that_continues_a_text_is_not_told_to_lose_its_space() -> None:
    profile = Profile(name="mine", tokenizer="archetype:sentencepiece-llama2", chat_template=LAID_OUT)
    task = {"task": "last", "test_split": "test", "output_type": "loglikelihood", "doc_to_text": "{{text}}"}
    docs = {"promptfmt": {"docs": [{"text": "The knife was made of", "word": " steel"}]}}
    found = checked({**task, "doc_to_target": "{{word}}", "metadata": docs}, profile)
    assert found is not None
    [advice] = [finding for finding in found.findings if finding.code == "PF303"]
    assert (str(advice.severity), "without a chat template" in advice.do) == ("info", True)


@pytest.mark.parametrize(("tokenizer", "is_found"), [("sentencepiece-llama2", True), ("bytelevel-llama3", False)])
def test_the_bos_of_the_tokenizer_does_not_make_a_foreign_template_its_own(tokenizer: str, is_found: bool) -> None:
    turn = "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
    template = f"{{{{ bos_token }}}}{{% for m in messages %}}{turn}{{% endfor %}}"
    loaded = load_profile(Profile(name="mixed", chat_template=template, tokenizer=f"archetype:{tokenizer}"))
    assert [finding.severity for finding in marker_is_plain_text(loaded)] == [None] * is_found
