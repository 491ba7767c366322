"""Docs and tokenizers come from a hub where they are requested: a real one in the small, on the loopback interface."""

import json
import shutil
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from loopback_hub import COMMIT, LoopbackHub
from promptfmt_command import promptfmt, write_task

from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder

pytestmark = pytest.mark.skipif(
    find_spec("datasets") is None, reason="needs Hugging Face datasets from the package index"
)
ROWS = [{"question": f"Who is {name}@example.org?", "answer": name} for name in "abcdefgh"]
CARD = "---\nconfigs:\n- config_name: easy\n  data_files: [{split: test, path: data/test*}]\n---\n"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHub]:
    """A hub with a dataset and a tokenizer of the owner `people`."""
    root = tmp_path_factory.mktemp("hub")
    data = root / "people/who/data"
    data.mkdir(parents=True)
    (data / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    (root / "people/who/README.md").write_text(CARD, "utf-8")
    shutil.copytree(archetype_folder("bytelevel-gpt2"), root / "people/words")
    with LoopbackHub(root) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def folder(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose commands ask the hub and keep what it gives there."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_frozen_docs_say_licence_commit_and_rows(folder: Path) -> None:
    write_task(folder, "who", "{{question}}", dataset_path="people/who")
    rules = ["--redact", r"question~\S+@\S+=<mail>"]
    done = promptfmt(folder, "freeze", "tasks/who.yaml", "--rows", "5,1", "--revision", "main", *rules)
    assert done.returncode == 0, done.stderr
    docs = [json.loads(line) for line in (folder / "tasks/who.docs.jsonl").read_text("utf-8").splitlines()]
    assert docs == [{"question": "Who is <mail>", "answer": name} for name in "bf"]
    note = json.loads((folder / "tasks/who.docs.origin.json").read_text("utf-8"))
    kept = {"dataset": "people/who", "split": "test", "revision": COMMIT, "license": "cc-by-4.0", "rows": [1, 5]}
    assert {name: note[name] for name in kept} == kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "where", "told", "hint"),
    [
        ({"dataset_path": "people/hwo"}, "6:1", "Dataset 'people/hwo' doesn't exist", "did you mean 'people/who'?"),
        ({"dataset_path": "closed/who"}, "6:1", "is a gated dataset", "log in with `hf auth login`"),
        ({"dataset_path": "people/who", "dataset_name": "eazy"}, "7:1", "'eazy' not found", "did you mean 'easy'?"),
        ({"dataset_path": "people/who", "split": "tset"}, "2:1", 'Unknown split "tset"', "did you mean 'test'?"),
    ],
)
def test_what_the_hub_refuses_is_told_with_what_to_do(
    folder: Path, keys: dict[str, str], where: str, told: str, hint: str
) -> None:
    split = keys.get("split", "test")
    file = write_task(folder, "who", "{{question}}", **{key: value for key, value in keys.items() if key != "split"})
    file.write_text(file.read_text("utf-8").replace("test_split: test", f"test_split: {split}"), "utf-8")
    done = promptfmt(folder, "freeze", "tasks/who.yaml")
    assert done.returncode == 1
    message, _, do = done.stderr[done.stderr.index("tasks/who.yaml:") :].partition("\n  hint: ")
    assert message.startswith(f"tasks/who.yaml:{where}: the dataset '{keys['dataset_path']}' cannot be loaded: ")
    assert told in message
    assert hint in do
    assert not (folder / "tasks/who.docs.jsonl").exists()


def test_a_tokenizer_is_fetched_once_and_at_hand_from_then_on(folder: Path, hub: LoopbackHub) -> None:
    write_task(folder, "who")
    settings = folder / "promptfmt.yaml"
    settings.write_text("download: true\nprofiles: {own: {tokenizer: people/words}}\n", "utf-8")
    online = promptfmt(folder, "show", "who", "--profile", "own", "--tokens", "--doc", "1")
    assert " tokens\n" in online.stdout, online.stderr
    settings.write_text("profiles: {own: {tokenizer: people/words}}\n", "utf-8")
    offline = promptfmt(folder, "show", "who", "--profile", "own", "--tokens", "--doc", "1")
    assert offline.stdout == online.stdout
    settings.write_text("download: true\nprofiles: {own: {tokenizer: people/wrods}}\n", "utf-8")
    wrong = promptfmt(folder, "show", "who", "--profile", "own", "--tokens", "--doc", "1")
    assert wrong.returncode == 1
    assert "the tokenizer 'people/wrods' could not be downloaded" in wrong.stderr
    assert "hint: did you mean 'people/words'?" in wrong.stderr
