"""The places outside the rootdir that a command line may name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.settings.setting_lookup import SettingLookup, given_places


class Typed:
    """A config of which only options of the command line were given."""

    def __init__(self, rootpath: Path, **options: Any) -> None:
        self.rootpath = rootpath
        self._options = {f"--promptfmt-{name.replace('_', '-')}": value for name, value in options.items()}

    def getoption(self, name: str, default: Any = None) -> Any:
        return self._options.get(name, default)

    def getini(self, name: str) -> Any:
        return None


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/tokenizer.json").write_text("{}", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({"model": "hf:models/mine"}, ["models/mine"]),
        ({"model": "replay:answers.jsonl"}, ["answers.jsonl"]),
        ({"model": "openai:http://localhost"}, []),
        ({"allow_path": ["data"], "allow_code": ["code"]}, ["data", "code"]),
        ({"json": "out/found.json", "patch": "all.patch"}, ["all.patch", "out/found.json"]),
        ({"write": ["html=page.html", "json"]}, ["page.html"]),
        ({"tokenizer": ["tok"]}, ["tok"]),
        ({"tokenizer": ["mistral:tok/tokenizer.json", "gpt2"]}, ["tok"]),
        ({"chat_template": ["tok/tokenizer.json"]}, ["tok"]),
    ],
)
def test_places_are_those_that_options_name(here: Path, options: dict[str, Any], places: list[str]) -> None:
    found = given_places(SettingLookup(Typed(here / "root", **options)), ())
    assert [each.absolute() for each in found] == [here / place for place in places]


def test_a_path_to_collect_is_a_folder_or_that_of_its_file(here: Path) -> None:
    found = given_places(SettingLookup(Typed(here / "root")), [Path("tok"), Path("tok/tokenizer.json")])
    assert [*found] == [here / "tok", here / "tok"]
