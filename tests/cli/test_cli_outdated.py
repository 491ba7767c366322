"""Newer revisions of what came from the hub: what they would change here, asked on the loopback interface."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import forked_runs
import pytest
from loopback_hub import COMMIT, LoopbackHub
from promptfmt_command import promptfmt, write_task
from slices import needs

from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder

pytest.importorskip("huggingface_hub")
NEWER = "89abcdef0123456789abcdef0123456789abcdef"
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A hub with a tokenizer and its chat template, and commands that ask it."""
    words = tmp_path / "hub/people/words"
    shutil.copytree(archetype_folder("bytelevel-gpt2"), words)
    (words / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with LoopbackHub(tmp_path / "hub") as server:
        home = str(tmp_path / "home")
        for name, value in {"HF_ENDPOINT": server.url, "HF_HOME": home, "NO_PROXY": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def publish(hub: LoopbackHub, template: str) -> None:
    """Give the repository a second commit, with another chat template."""
    words = hub.root / "people/words"
    shutil.copytree(words, hub.root / "earlier" / COMMIT / "people/words")
    (words / "chat_template.jinja").write_text(template, "utf-8")
    hub.head = NEWER


@needs("templates")
def test_the_lock_says_where_a_tokenizer_is_from_and_a_newer_revision_shows_what_it_changes(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    write_task(folder, "who")
    settings = "download: true\nprofiles: {own: {tokenizer: people/words, chat_template: own}, text: {}}\n"
    (folder / "promptfmt.yaml").write_text(settings, "utf-8")
    forked_runs.run("pytest", "--promptfmt", "-q", "-p", "no:cacheprovider", "--snapshot-update", folder=folder)
    lock = folder / "promptfmt.lock"
    assert f'    origin: "people/words@{COMMIT}"\n' in lock.read_text("utf-8")
    same = promptfmt(folder, "outdated")
    assert (same.stdout, same.returncode) == (f"people/words: no newer revision than people/words@{COMMIT[:12]}\n", 0)
    publish(hub, TEMPLATE.replace("|>{{", "|>\n{{"))
    before = lock.read_bytes()
    newer = promptfmt(folder, "outdated")
    lines = newer.stdout.splitlines()
    assert newer.returncode == 1, newer.stderr
    assert lines[0] == f"people/words: people/words@{NEWER[:12]}, here {COMMIT[:12]}"
    assert lines[1].endswith("conversations differ")
    assert lines[-1] == "  1 of 1 tasks get other prompts or tokens: who [own]"
    assert lock.read_bytes() == before


@needs("templates")
def test_a_template_that_was_copied_is_followed_once_its_origin_is_given(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    mine = folder / "chat_template.jinja"
    mine.write_text(TEMPLATE, "utf-8")
    first = promptfmt(folder, "outdated", "chat_template.jinja", "--origin", "people/words")
    assert first.stdout.splitlines()[-1] == "promptfmt.lock was updated", first.stderr
    assert f'    revision: "{COMMIT}"\n' in (folder / "promptfmt.lock").read_text("utf-8")
    publish(hub, newer := TEMPLATE.replace("<|{{", "<{{"))
    found = promptfmt(folder, "outdated")
    assert found.returncode == 1, found.stderr
    assert found.stdout.startswith(f"chat_template.jinja: people/words@{NEWER[:12]}, here {COMMIT[:12]}\n")
    assert "\n    - " not in found.stdout.splitlines()[0]
    assert "conversations differ" in found.stdout
    mine.write_text(newer, "utf-8")
    taken = promptfmt(folder, "outdated")
    assert (taken.returncode, taken.stdout.count("\n")) == (0, 2)
    assert f'    revision: "{NEWER}"\n' in (folder / "promptfmt.lock").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "promptfmt.lock lists no tokenizer or template from the hub"),
        (("chat_template.jinja",), "PATH and --origin must be used together"),
        (("other.jinja", "--origin", "people/words"), "there is no other.jinja"),
        (("chat_template.jinja", "--origin", "people/wrods"), "the tokenizer 'people/wrods' could not be downloaded"),
        (("../x", "--origin", "people/words"), "is outside the working directory"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_a_mistake_is_one_message(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    done = promptfmt(folder, "outdated", *arguments)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert not (folder / "promptfmt.lock").exists()


def test_a_lock_cannot_name_a_place_outside(tmp_path: Path) -> None:
    entry = {"repository": "people/words", "revision": COMMIT, "content": "0"}
    lock = {"tokenizers": {}, "origins": {"../secret": entry}}
    (tmp_path / "promptfmt.lock").write_text(json.dumps(lock), "utf-8")
    done = promptfmt(tmp_path, "outdated")
    assert done.returncode == 2
    assert "promptfmt.lock lists '../secret', which is outside the rootdir" in done.stderr
