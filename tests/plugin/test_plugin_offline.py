"""No run asks the network for anything unless it is told to: seen in every Python process that it starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from plugin_project import Project

from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder

pytestmark = pytest.mark.slow

# Python imports this module at the start of every process that has its folder on the path.
NO_NETWORK = """
import os, socket, sys

def refuse(*arguments, **_):
    with open(os.environ["PROMPTFMT_TEST_ASKED"], "a") as asked:
        print(sys.argv[:1], arguments, file=asked)
    raise OSError("the network is switched off")

socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.gethostbyname = refuse
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def asked(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that holds who asked the network, one line each; nobody gets an answer."""
    folder = project.write("nowhere/sitecustomize.py", NO_NETWORK).parent
    file = project.root / "asked.txt"
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    monkeypatch.setenv("PROMPTFMT_TEST_ASKED", str(file))
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(project.root / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(project.root / "hub"))
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    repository = project.root / "hub" / "models--some--model"
    folder = Path(shutil.copytree(archetype_folder("sentencepiece-llama2-legacy"), repository / "snapshots" / COMMIT))
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "LlamaTokenizer"}), "utf-8")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT, "ascii")
    project.write(
        "promptfmt.yaml",
        "default_profiles: [plain, cached, absent]\nprofiles:\n"
        "  cached: {tokenizer: some/model}\n  absent: {tokenizer: other/model}\n",
    )
    project.task("hub.yaml", dataset_path="allenai/ai2_arc", dataset_name="ARC-Easy")
    project.task("metric.yaml", metric_list=[{"metric": "exact_match"}, {"metric": "bleu"}])
    return file


def test_default_run_asks_nobody(project: Project, asked: Path) -> None:
    failures = project.failures("--snapshot-update", "-o", "promptfmt_lint=true")
    assert failures
    assert all("'other/model' is neither a path nor a tokenizer in the Hugging Face cache" in text for text in failures)
    assert [path for path in project.snapshots() if path.endswith("hub/cached.txt")]
    assert not asked.exists()


def test_download_that_is_asked_for_is_tried_and_its_failure_told(project: Project, asked: Path) -> None:
    failures = project.failures("--promptfmt-download", "--promptfmt-profile", "absent")
    assert any("the tokenizer 'other/model' could not be downloaded" in text for text in failures)
    assert "huggingface.co" in asked.read_text("utf-8")
