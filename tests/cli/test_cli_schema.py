"""The schemas accept what the readers accept, and refuse what they refuse."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pytest_promptfmt.cli import app
from pytest_promptfmt.tasks.recognition import looks_like_task

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema from the package index")
FIXTURES = Path(__file__).parents[2] / "fixtures"


class Loader(yaml.SafeLoader):
    """Reads tags such as !function as their text, as yaml-language-server does."""


Loader.add_multi_constructor("!", lambda loader, _tag, node: node.value)


def validator(kind: str) -> Any:
    result = CliRunner().invoke(app, ["schema", kind])
    assert result.exit_code == 0
    schema = json.loads(result.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def task_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.yaml")) if looks_like_task(path.read_bytes()))


def test_every_task_of_the_gallery_is_valid() -> None:
    schema = validator("task")
    files = list(task_files(FIXTURES / "tasks"))
    assert len(files) > 15
    read = {path.name: yaml.load(path.read_text("utf-8"), Loader) for path in files}
    assert {name: schema.validate(content) for name, content in read.items()}.keys() == read.keys()


@pytest.mark.parametrize("name", ["misspelt_key", "misspelt_fewshot_key", "unknown_output_type"])
def test_what_the_reader_refuses_is_not_valid(name: str) -> None:
    text = (FIXTURES / "broken" / f"{name}.yaml").read_text("utf-8")
    assert not validator("task").is_valid(yaml.load(text, Loader))


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("docs: 3\nprofiles: {a: {tokenizer: 'archetype:unigram-t5', mode: generate}}", True),
        ("default_profiles: [plain, chat]", True),
        ("docs: 0", False),
        ("profiles: {a: {tokenizr: x}}", False),
        ("profiles: {a: {mode: chat}}", False),
        ("per_file_ignores: {'old/*.yaml': [PF2]}", True),
    ],
)
def test_settings_are_valid_as_they_are_read(text: str, valid: bool) -> None:
    assert validator("settings").is_valid(yaml.safe_load(text)) is valid
