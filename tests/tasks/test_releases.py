"""Each release of lm-eval has its own prompts and requests; tests/parity compares them with the releases themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import RenderError, UnavailableError
from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.release import LATEST, OLDEST, release_of
from pytest_promptfmt.core.task import locate_nowhere
from pytest_promptfmt.tasks import render_task
from pytest_promptfmt.tasks.task_config import task_from_config

CHAT = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
TURNS = Profile(name="turns", chat_template=CHAT)
SINGLE = Profile(name="single", chat_template=CHAT, fewshot_as_turns=False)
QA = {"task": "t", "test_split": "test", "doc_to_text": "{{q}}", "doc_to_target": "{{a}}", "fewshot_split": "train"}
CHOICES: dict[str, Any] = {"output_type": "multiple_choice", "doc_to_choice": ["x", "y"], "doc_to_target": 0}
OTHER = ({"q": "other", "a": "x"},)
DOCS = tuple({"q": f"q{number}", "a": f"a{number}"} for number in range(6))


def requests(version: str, profile: Profile = PLAIN, shots: int = 0, docs: Any = DOCS[:1], **keys: Any) -> list[Any]:
    task = task_from_config({**QA, **keys}, path=None, locate=locate_nowhere).following(release_of(version))
    given = TaskDocs(evaluated=docs, fewshot=DOCS, columns=tuple(DOCS[0]), origin="", fewshot_origin="")
    return [each.arguments for one in render_task(task, given, profile, num_fewshot=shots) for each in one.requests]


def first(version: str, *arguments: Any, **keys: Any) -> Any:
    return requests(version, *arguments, **keys)[0][0]


def test_a_version_follows_the_last_row_that_is_not_newer() -> None:
    assert not release_of("0.4.9.2").differs_from(release_of("0.4.9"))
    assert release_of("0.4.8").differs_from(release_of("0.4.9"))
    assert not release_of("0.4.11").differs_from(release_of("0.4.10"))
    assert not release_of("0.5.0").differs_from(LATEST)
    assert release_of("0.4.2").differs_from(LATEST)
    assert not release_of("0.1.0").differs_from(LATEST)
    assert [release_of(each).is_compared for each in ("0.4.2", OLDEST, "0.4.13.dev0", "0.5.0")] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("version", "arguments"),
    [
        ("0.4.8", {"do_sample": False}),
        ("0.4.9", {"do_sample": False, "temperature": 0}),
        ("0.4.10", {"do_sample": False, "temperature": 0, "max_gen_toks": 256}),
        ("0.4.13", {"do_sample": False, "temperature": 0, "max_gen_toks": 256}),
    ],
)
def test_default_generation_arguments_are_those_of_the_release(version: str, arguments: dict[str, Any]) -> None:
    assert requests(version)[0][1] == {**arguments, "until": ["\n\n"]}


def test_a_question_that_is_no_text_is_an_error_with_what_the_release_sends() -> None:
    def in_parentheses(doc: Any) -> Any:
        return (doc["q"],)

    with pytest.raises(RenderError, match=r"got \('q0',\); lm-eval 0.4.9 leaves the question out, without an error$"):
        requests("0.4.9", doc_to_text=in_parentheses)
    with pytest.raises(RenderError, match=r"; lm-eval 0.4.9 puts it unchanged into chat turns, without an error$"):
        requests("0.4.9", doc_to_text=in_parentheses, shots=2)
    with pytest.raises(RenderError, match=r"got \('q0',\)$"):
        requests("0.4.13", doc_to_text=in_parentheses)


def test_a_shot_that_equals_the_doc_is_dropped_without_replacement_before_0410() -> None:
    assert first("0.4.9", shots=6, fewshot_split="train").count("\n\n") == 5
    assert first("0.4.10", shots=6, fewshot_split="train").count("\n\n") == 6


def test_a_chat_with_one_user_turn_has_the_shots_of_a_second_draw_before_0410() -> None:
    docs = OTHER
    assert first("0.4.9", SINGLE, 2, docs) != "<u>" + first("0.4.9", PLAIN, 2, docs) + "<a>"
    assert first("0.4.10", SINGLE, 2, docs) == "<u>" + first("0.4.10", PLAIN, 2, docs) + "<a>"


def test_a_shot_without_answer_is_an_empty_turn_before_0410() -> None:
    keys: dict[str, Any] = {"doc_to_target": "", "docs": OTHER}
    assert first("0.4.9", TURNS, 1, **keys).count("<a>") == 2
    assert first("0.4.10", TURNS, 1, **keys).count("<a>") == 1


def test_the_target_delimiter_always_precedes_a_gen_prefix_before_0410() -> None:
    assert first("0.4.9", doc_to_text="{{q}}\n", gen_prefix="So") == "q0\n So"
    assert first("0.4.10", doc_to_text="{{q}}\n", gen_prefix="So") == "q0\nSo"


def test_a_gen_prefix_of_a_shot_is_rendered_from_the_evaluated_doc_before_0413() -> None:
    keys: dict[str, Any] = {"gen_prefix": "{{q}}:", "docs": OTHER, "shots": 1}
    assert "other: a" in first("0.4.9", **keys)
    assert "other: a" in first("0.4.12", **keys)
    assert "other: a" not in first("0.4.13", **keys)


def test_keys_of_fewshot_config_that_a_release_ignores_have_no_effect() -> None:
    keys: dict[str, Any] = {"fewshot_config": {"fewshot_delimiter": "###"}, "docs": OTHER, "shots": 1}
    assert "###" not in first("0.4.9", **keys)
    assert "###" in first("0.4.10", **keys)


def test_a_system_instruction_is_always_delimited_before_0410() -> None:
    profile = Profile(name="system", system_instruction="Be terse.")
    assert first("0.4.9", profile, description="\nSolve.") == "Be terse.\n\n\nSolve.q0"
    assert first("0.4.10", profile, description="\nSolve.") == "Be terse.\nSolve.q0"


@pytest.mark.parametrize(
    ("version", "plain", "chat"),
    [("0.4.5", " x", " x"), ("0.4.7", " x", "x"), ("0.4.9", " x", "x"), ("0.4.13", " x", "x")],
)
def test_the_delimiter_before_a_choice_is_that_of_the_release(version: str, plain: str, chat: str) -> None:
    assert requests(version, **CHOICES)[0][1] == plain
    assert requests(version, TURNS, **CHOICES)[0][1] == chat


def test_a_gen_prefix_keeps_the_delimiter_of_choices_in_chats_since_0410() -> None:
    keys: dict[str, Any] = {**CHOICES, "gen_prefix": "So"}
    assert requests("0.4.9", TURNS, **keys)[0][1] == "x"
    assert requests("0.4.10", TURNS, **keys)[0][1] == " x"


def test_choices_by_themselves_are_delimited_since_049() -> None:
    keys: dict[str, Any] = {**CHOICES, "metric_list": [{"metric": "acc_mutual_info"}]}
    assert requests("0.4.8", **keys)[2:] == [("", "x"), ("", "y")]
    assert requests("0.4.9", **keys)[2:] == [("", " x"), ("", " y")]


@pytest.mark.parametrize(
    ("version", "context"),
    [("0.4.7", "<s>Hi.<a>x"), ("0.4.8", "<s>Hi.<a><u>x<a>"), ("0.4.10", "<s>Hi.<u>x<a>")],
)
def test_choices_that_are_inputs_follow_the_rendered_chat_before_0410(version: str, context: str) -> None:
    keys: dict[str, Any] = {**CHOICES, "doc_to_text": 0, "doc_to_target": "{{a}}"}
    profile = Profile(name="chat", chat_template=CHAT, system_instruction="Hi.")
    assert first(version, profile, **keys) == context


def test_a_newline_at_the_end_of_a_template_is_dropped_before_044() -> None:
    assert first("0.4.3", doc_to_text="{{q}}\n\n", description="Solve.\n") == "Solve.q0\n"
    assert first("0.4.4", doc_to_text="{{q}}\n\n", description="Solve.\n") == "Solve.\nq0\n\n"


def test_an_empty_answer_of_a_shot_is_delimited_before_044() -> None:
    keys: dict[str, Any] = {"doc_to_target": "", "docs": OTHER, "shots": 1}
    assert first("0.4.3", **keys).endswith(" \n\nother")
    assert "\n\n" not in first("0.4.4", **keys)


def test_mappings_of_fewshot_config_are_read_since_044() -> None:
    keys: dict[str, Any] = {"fewshot_config": {"doc_to_text": "S: {{q}}"}, "docs": OTHER, "shots": 1}
    assert "S: " not in first("0.4.3", **keys)
    assert "S: " in first("0.4.4", **keys)


def test_a_sampler_class_of_an_early_release_is_skipped() -> None:
    task = task_from_config({**QA}, path=None, locate=locate_nowhere)
    keys: dict[str, Any] = {"fewshot_config": {"sampler": lambda *_, **__: None}}
    assert task.following(release_of("0.4.13")) is task
    with pytest.raises(
        UnavailableError, match=r"the sampler of 't' writes the few-shot text itself, as in lm-eval 0\.4\.9"
    ):
        requests("0.4.9", shots=1, **keys)


def test_a_key_that_a_release_does_not_know_stops_the_task_unless_its_fork_has_it(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"lm-eval 0\.4\.7 does not know the key 'gen_prefix'"):
        requests("0.4.7", gen_prefix="So:")
    assert requests("0.4.8", gen_prefix="So:")[0][0].endswith("So:")
    fork = tmp_path / "lm_eval"
    (fork / "tasks").mkdir(parents=True)
    (fork / "__init__.py").write_text('__version__ = "0.4.7"\n')
    (fork / "api").mkdir()
    (fork / "api/task.py").write_text("class TaskConfig:\n    gen_prefix: str = ''\n")
    config = {**QA, "gen_prefix": "So:"}
    task = task_from_config(config, path=fork / "tasks/t.yaml", locate=locate_nowhere).following(release_of("0.4.7"))
    [made] = render_task(task, TaskDocs.in_memory(DOCS[:1]))
    assert made.prompts[0].text.endswith("So:")
