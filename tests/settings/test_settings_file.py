"""What `promptfmt.yaml` may say, and where each mistake is reported."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.profile import Profile, builtin_profile
from pytest_promptfmt.settings.file import read_settings_file
from pytest_promptfmt.settings.profiles import defined_profiles
from pytest_promptfmt.settings.table import KEYS, PROFILE_KEYS, SETTINGS
from pytest_promptfmt.settings.tree import Settings


def defined(folder: Path, text: str) -> dict[str, Profile]:
    path = folder / "promptfmt.yaml"
    path.write_text(text, "utf-8")
    return defined_profiles(read_settings_file(path, is_at_rootdir=True), rootdir=folder)


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("profils: {}\n", ":1:1", "did you mean 'profiles'"),
        ("docs: 2\nselect: 3\n", ":2:1", "select is 3, expected a list of codes"),
        ("docs: 0\n", ":1:1", "docs is 0, expected a whole number, 1 or more"),
        ("docs: true\n", ":1:1", "docs is True"),
        ("time_limit: .inf\n", ":1:1", "expected seconds"),
        ("docs: 1\ndocs: 2\n", ":2:1", "appears twice"),
        ("docs: [1\n", ":2:1", "not valid YAML"),
        ("- docs\n", ":1:1", "a list at its top level"),
        ("profiles: {a b: {}}\n", ":1:12", "cannot be the name of a profile"),
        ("profiles:\n  q: qwen\n", ":2:3", "must be a mapping"),
        ("profiles:\n  q:\n    tokenzier: x\n", ":3:5", "did you mean 'tokenizer'"),
        ("profiles:\n  q:\n    mode: chat\n", ":3:5", "profiles.q.mode is 'chat', expected loglikelihood or generate"),
        ("profiles:\n  q:\n    clock: soon\n", ":3:5", "expected a date"),
        ("profiles:\n  q:\n    template_args: {f: !function a.b}\n", ":3:5", "expected a mapping of names to values"),
        ("profiles:\n  plain: {}\n", ":2:3", "the profile 'plain' is built in"),
        ("profiles:\n  a: {extends: chat-chatm}\n", ":2:7", "did you mean 'chat-chatml'"),
        ("profiles:\n  a: {extends: b}\n  b: {extends: a}\n", ":3:7", "in a circle: a -> b -> a"),
        ("profiles:\n  a: {extends: a}\n", ":2:7", "in a circle: a -> a"),
        ("profiles:\n  a: {chat_template: own}\n", ":2:7", "the profile has no tokenizer in which to look"),
        ("profiles:\n  a: {chat_template: chatlm}\n", ":2:7", "did you mean 'chatml'"),
        ("profiles:\n  a: {chat_template: mine.jnja}\n", ":2:7", "the profile has no tokenizer in which to look"),
        ("profiles:\n  a: {chat_template: ours.jinja}\n", ":2:7", "did you mean 'our.jinja'"),
    ],
)
def test_mistakes_are_reported_with_their_line_and_column(tmp_path: Path, text: str, place: str, says: str) -> None:
    (tmp_path / "our.jinja").write_text("{{ messages }}")
    with pytest.raises(SettingsError) as caught:
        defined(tmp_path, text)
    assert f"promptfmt.yaml{place}: " in str(caught.value)
    assert says in str(caught.value)


def test_codes_are_separated_by_commas_and_whitespace(tmp_path: Path) -> None:
    path = tmp_path / "promptfmt.yaml"
    path.write_text("select: ['PF1,PF203 PF9', PF7]\n")
    assert read_settings_file(path, is_at_rootdir=True).values["select"] == ("PF1", "PF203", "PF9", "PF7")


def test_what_lets_code_run_is_read_in_the_rootdir_only(tmp_path: Path) -> None:
    path = tmp_path / "promptfmt.yaml"
    for key, value in (("rules", "rules.py"), ("allow_code", "[/]"), ("download", "true"), ("paths", "x")):
        path.write_text(f"{key}: {value}\n")
        assert key in read_settings_file(path, is_at_rootdir=True).values
        with pytest.raises(SettingsError, match=f"'{key}' has no effect here: it is used only in the rootdir"):
            read_settings_file(path, is_at_rootdir=False)


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing yet\n", "  # nothing\n\n#\n"])
def test_file_without_keys_says_nothing(tmp_path: Path, text: str) -> None:
    assert defined(tmp_path, text) == {}


def test_profile_takes_over_what_it_extends_and_merges_arguments_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("MINE", "utf-8")
    (tmp_path / "model").mkdir()
    made = defined(
        tmp_path,
        "profiles:\n"
        "  child: {extends: middle, template_args: {date_string: 2024-01-02, depth: null}}\n"
        "  middle:\n"
        "    extends: chat-chatml-single\n"
        "    tokenizer: model\n"
        "    template_args: {enable_thinking: false, depth: 3, tools: [{name: look_up}]}\n"
        "    system_instruction: Be brief.\n"
        "    split: pairwise\n"
        "    clock: 2025-02-03\n"
        "  other: {extends: child, chat_template: mine.jinja, tokenizer: null, mode: generate,"
        "          fewshot_as_turns: true}\n",
    )
    chatml = builtin_profile("chat-chatml-single")
    child = made["child"]
    assert child.chat_template == chatml.chat_template
    assert (child.fewshot_as_turns, child.system_instruction, child.split) == (False, "Be brief.", "pairwise")
    assert (child.tokenizer, child.tokenizer_name) == (str(tmp_path / "model"), "model")
    assert child.clock == datetime(2025, 2, 3, 12)
    assert child.template_args == {
        "enable_thinking": False,
        "depth": None,
        "date_string": "2024-01-02",
        "tools": [{"name": "look_up"}],
    }
    other = made["other"]
    assert (other.chat_template, other.tokenizer, other.mode, other.fewshot_as_turns) == (
        "MINE",
        None,
        "generate",
        True,
    )


@pytest.mark.parametrize(
    ("written", "tokenizer", "shown"),
    [
        ("archetype:bytelevel-gpt2", "archetype:bytelevel-gpt2", "archetype:bytelevel-gpt2"),
        ("owner/model", "owner/model", "owner/model"),
        ("here/model", "{root}/here/model", "here/model"),
        ("../outside/model", "{root}/../outside/model", "model"),
        ("./missing", "{root}/missing", "missing"),
        ("mistral:here/model", "mistral:{root}/here/model", "mistral:here/model"),
    ],
)
def test_tokenizer_is_a_path_where_there_is_one(tmp_path: Path, written: str, tokenizer: str, shown: str) -> None:
    root = tmp_path / "root"
    (root / "here" / "model").mkdir(parents=True)
    (tmp_path / "outside" / "model").mkdir(parents=True)
    profile = defined(root, f"profiles:\n  p: {{tokenizer: '{written}'}}\n")["p"]
    assert (profile.tokenizer, profile.tokenizer_name) == (tokenizer.format(root=root), shown)


def test_every_setting_says_what_it_is_for_in_words_and_in_json_schema() -> None:
    for setting in (*SETTINGS, *PROFILE_KEYS.values()):
        assert all(text.endswith((".", "…")) for text in (setting.help, setting.ini_help, setting.key_help) if text)
        assert setting.option or setting.ini or setting.key
        assert setting.kind.expected
        assert {"type", "enum", "anyOf"} & set(setting.kind.schema)


def test_every_setting_of_a_folder_is_a_field_of_its_settings() -> None:
    fields = Settings.__dataclass_fields__
    of_profiles = {"tokenizers", "chat_templates"}  # they become profiles
    of_runs = {"baseline"}  # one file for all folders
    assert {setting.name for setting in KEYS.values()} - fields.keys() == of_runs
    assert {setting.name for setting in SETTINGS if setting.is_repeated} - fields.keys() == of_profiles


def test_options_that_decide_what_is_rendered_are_repeated_for_another_run() -> None:
    assert {setting.option.removeprefix("--promptfmt-") for setting in SETTINGS if setting.is_repeated} == {
        *("profile", "tokenizer", "chat-template", "format", "variants", "docs", "num-fewshot", "lm-eval", "renderer"),
        *("allow-code", "allow-path", "download", "scoring", "strict"),
    }


def test_settings_that_let_code_run_or_a_network_be_used_are_read_in_the_rootdir_only() -> None:
    assert {key for key, setting in KEYS.items() if setting.at_rootdir} == {
        *("allow_code", "download", "rules", "paths", "task_modules", "templates"),
        *("snapshot_dir", "docs_dir", "version_parts", "baseline"),
    }


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["settings.md", "profiles.md"])
def test_examples_of_the_pages_can_be_read(tmp_path: Path, page: str) -> None:
    (tmp_path / "models" / "qwen3").mkdir(parents=True)
    blocks = re.findall(r"```yaml\n(profiles:\n.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    for text in blocks:
        made = defined(tmp_path, text)
        assert made["qwen3-thinks"].template_args == {"enable_thinking": True}
        assert made["qwen3"].tokenizer == str(tmp_path / "models" / "qwen3")
