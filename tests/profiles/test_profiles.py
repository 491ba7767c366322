"""Which profiles a name or a task means."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.profile import BUILTIN_PROFILES, builtin_profile, resolve_profiles
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.settings.profiles import task_profiles


def task_with(profiles: object) -> Task:
    return Task(name="t", metadata=MappingProxyType({"promptfmt": {"profiles": profiles}}))


def names(task: Task, *wanted: str) -> list[str]:
    return [profile.name for profile in task_profiles(task, resolve_profiles(wanted), {})]


@pytest.mark.parametrize("name", BUILTIN_PROFILES)
def test_every_built_in_profile_exists_under_its_name(name: str) -> None:
    profile = builtin_profile(name)
    assert profile.name == name
    assert profile.fewshot_as_turns is not name.endswith("-single")
    assert (profile.chat_template is not None) is name.startswith("chat-")
    assert (profile.formatter is not None) is name.startswith("formatter-")


def test_chat_means_the_multi_turn_profiles_and_names_count_once() -> None:
    resolved = [profile.name for profile in resolve_profiles(["plain", "chat", "chat-gemma"])]
    assert resolved == ["plain", "chat-chatml", "chat-gemma", "chat-llama2", "chat-llama3", "chat-mistral"]


def test_single_turn_uses_the_template_of_its_archetype() -> None:
    assert builtin_profile("chat-llama3-single").chat_template == builtin_profile("chat-llama3").chat_template


def test_task_adds_profiles_to_those_of_the_run() -> None:
    assert names(task_with(["chat-mistral", "plain"]), "plain") == ["plain", "chat-mistral"]
    assert names(task_with("chat-gemma"), "plain") == ["plain", "chat-gemma"]
    assert names(Task(name="t"), "plain") == ["plain"]


@pytest.mark.parametrize(
    ("profiles", "message"), [(["chat-mistrl"], "unknown profile"), (3, "is 3"), ([1], "is \\[1\\]")]
)
def test_profiles_a_task_names_wrongly_are_told(profiles: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        names(task_with(profiles), "plain")


def test_misspelt_profile_gets_a_suggestion() -> None:
    with pytest.raises(SettingsError, match="did you mean 'chat-mistral'"):
        resolve_profiles(["chat-mistrl"])
