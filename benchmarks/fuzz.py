# ruff: noqa: E501, RUF005  # tables of bytes and readers
"""Feed mutated files to every reader, and look at what comes of it: an error of ours, or nothing at all.

    python benchmarks/fuzz.py --inputs 100000 --state fuzz.json
    python benchmarks/fuzz.py --reader task --seconds 60 --seed 7
    python benchmarks/fuzz.py --again --state fuzz.json        # the inputs of its violations once more

Mutation is guided by coverage: an input that reaches a line of the package which none before it reached, or that gives
a new message, joins the pool that later ones are mutated from. Inputs run in child processes with a limit of memory;
the parent ends a child that makes no progress. A violation is

- an exception that is not one of ours, a child that dies, or more than `--limit` seconds for one input;
- a file or folder that is opened or listed outside the scratch folder and the interpreter's own, or anything written,
  renamed, deleted, started or connected to;
- the text of a file outside the scratch folder in a message or a value;
- a run of pytest that is green although a file with snapshots was not judged, or that loses a snapshot.

The counts of a run that was interrupted are in the file of `--state`; the same command continues there.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import json
import math
import os
import random
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import cache, partial
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
BATCH: Final = 250
CANARY: Final = "canary-7f3a91"
SILENCE: Final = 600.0
"""Seconds without any progress after which an input is one that waits for something."""
TRACED: Final = 20
"""One input of so many is traced by Python 3.11; later versions see every line at no cost."""
MEMORY: Final = 3 * 2**30

YAML_PIECES: Final = (
    b"&a ", b"*a", b"<<: *a\n", b"!!str ", b"!!binary ", b"!!set ", b"!!omap ", b"!!python/object/apply:os.system ",
    b"!function ", b"!function utils.f", b"include: ", b"include: _base.yaml\n", b"? ", b": ", b"- ", b"---\n", b"...\n",
    b"%YAML 1.1\n", b"|-\n  ", b">+\n  ", b"{", b"}", b"[", b"]", b"#", b"\t", b"~", b"null", b"1:1:1", b"0o17", b"0x",
    b".inf", b".nan", b"2026-02-30", b"=", b"task: ", b"group: ", b"class: ", b"metadata: {promptfmt: {docs: ",
    b"formats: ", b"profiles: ", b"chat_template: ", b"tokenizer: ", b"extends: ", b"rules: ", b"template_args: ",
    b"doc_to_choice: ", b"{{question}}", b"{% for i in range(9) %}", b"data_files: ", b"dataset_path: json\n",
)  # fmt: skip
JSON_PIECES: Final = (
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"null", b"true", b"1e999", b"-0", b"NaN", b"Infinity", b"1" * 5000,
    b"[" * 500, b'{"a":' * 300, b'"\\ud800"', b'"\\u0000"', b"\\", b'"path": ', b'"doc": ', b'"file": ',
)  # fmt: skip
OTHER_PIECES: Final = (
    b"\0", b"\x1b[31m", b"::error::x\n", b"##[error]x\n", b"\r", b"\r\n", b"\x85", b"\xe2\x80\xa8", b"\xef\xbb\xbf",
    b"\xff\xfe", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xe2\x9f\xa8", b"\xe2\x9f\xa9", b"\xe2\x9f\xa8end\xe2\x9f\xa9",
    b"../outside/secret.jsonl", b"../outside", b"link.jsonl", b"folder/secret.jsonl", b"/etc/passwd", b"/proc/self/environ",
    b"/proc", b"/dev/zero", b"/dev/stdin", b"C:\\secret", b"\\\\server\\share", b"NUL", b"con.txt", b"~root/x", b"*", b"**/*",
    b"../**/*", b"a" * 300, b"x" * 5000, b" " * 300, b"|", b"-", b"@", b"%", b"{{", b"}}", b"{%", b"%}", b"{#",
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """One kind of file: real ones to begin with, and what reads a mutated one in the scratch folder.

    `read` returns what came of it, in any form that can be turned into text. `pieces` are bytes that mean something
    to this kind of file.
    """

    name: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path, bytes], object]
    pieces: tuple[bytes, ...] = ()
    share: float = 1


# -- readers -----------------------------------------------------------------------------------------------------------


def _files(*patterns: str, most: int = 60) -> Callable[[], list[bytes]]:
    def read() -> list[bytes]:
        found = [path for pattern in patterns for path in sorted(FIXTURES.glob(pattern)) if path.is_file()]
        small = [path.read_bytes() for path in found if path.stat().st_size < 60_000]
        return small[:: max(1, len(small) // most)] or [b""]

    return read


def _texts(*texts: str) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


def _written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    with Watch.paused():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return path


def read_task(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.answers.recordings import recordings_of
    from pytest_promptfmt.core.errors import PromptfmtError
    from pytest_promptfmt.study.scoring import expected_completions, expected_failures
    from pytest_promptfmt.systems import recognized
    from pytest_promptfmt.systems.task_files import read_task_file
    from pytest_promptfmt.tasks.docs.doc_sources import _Search

    path = _written(folder, "t.yaml", data)
    recognized(path)
    file = read_task_file(path)
    found: list[object] = []
    for task in islice(file.tasks if file is not None else (), 20):
        for look in (recordings_of, expected_completions, expected_failures):
            try:
                found.append(look(task))
            except PromptfmtError as error:
                found.append(str(error))
        try:
            source = _Search(task).evaluated()
            found.append(list(islice(source.checked(), 5)) if source is not None else None)
        except PromptfmtError as error:
            found.append(str(error))
    return file, found


def read_settings(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.settings.file import find_settings_file, read_settings_file
    from pytest_promptfmt.settings.profiles import defined_profiles

    _written(folder, "promptfmt.yaml", data)
    path = find_settings_file(folder)
    assert path is not None
    file = read_settings_file(path, is_at_rootdir=True)
    return file.values, defined_profiles(file, rootdir=folder)


def read_ini(folder: Path, data: bytes) -> object:
    """Read an ini as pytest does, and the settings of a folder from it."""
    from pytest_promptfmt.core.errors import PromptfmtError
    from pytest_promptfmt.core.profile import DEFAULT_PROFILES
    from pytest_promptfmt.settings.tree import SettingsTree

    path = _written(folder, "pytest.ini", data)
    config = _config(path)
    if isinstance(config, str):
        return config
    try:
        return SettingsTree(config, DEFAULT_PROFILES).of(folder, folder)
    except PromptfmtError as error:
        return str(error)


def _config(path: Path) -> Any:
    """Return a config of pytest with our ini values, or the message of pytest for a file that it refuses."""
    import pytest
    from _pytest.config.findpaths import load_config_dict_from_file

    from pytest_promptfmt.plugin import pytest_addoption

    config = pytest.Config(pytest.PytestPluginManager())
    pytest_addoption(config._parser, config.pluginmanager)
    config.option = config._parser.parse_known_args([])
    config._rootpath, config._inipath = path.parent, path
    try:
        vars(config)["_inicfg"] = load_config_dict_from_file(path) or {}
        for name in config._parser._inidict:
            config.getini(name)
    except (pytest.UsageError, ValueError, TypeError) as error:
        return str(error)
    return config


def read_last_run(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.core.files import private_directory
    from pytest_promptfmt.results.pending import LastRun, Problem, _name, keep_last_run, last_run_around

    with Watch.paused():
        below = private_directory("last-runs")
        assert below is not None
        (below / _name(folder)).write_bytes(data)
    read = last_run_around(folder)
    problem = Problem(path="t.yaml", task="t", profile="plain", category="changed", key="", title="x")
    run = LastRun(rootdir=str(folder), folder=str(folder), options=("-k", "\udcff"), problems=(problem,))
    with Watch.paused():
        keep_last_run(run)
        assert last_run_around(folder) == run, "what was written is not there"
    return read


def read_finished_run(folder: Path, data: bytes) -> object:
    """Compare a run with another as `promptfmt compare` does, and print what it prints as UTF-8."""
    import typer

    from pytest_promptfmt.cli.compare import _compare_runs

    names = {b"{": "run/samples_t_2026-01-01T00-00-00.1.jsonl", b"[": "run/results_2026-01-01T00-00-00.1.json"}
    with Watch.paused():
        shutil.rmtree(folder / "run", ignore_errors=True)
        for below in ("run", "other"):
            _written(folder / below, "samples_t_2026-01-01T00-00-00.1.jsonl", _SAMPLES)
            _written(folder / below, "results_2026-01-01T00-00-00.1.json", _RESULTS)
    name, first, second = names[b"{"], folder / "run", folder / "other"
    if b'"key"' in data:
        name, first, second = "run/answers.jsonl", folder / "run/answers.jsonl", folder / "other.jsonl"
        _written(folder, "other.jsonl", _ANSWERS)
    elif b'"configs"' in data:
        name = names[b"["]
    _written(folder, name, data)
    printed = TextIOWrapper(BytesIO(), "utf-8")
    for as_json in (False, True):
        with redirect_stdout(printed):
            try:
                _compare_runs(first, second, None, as_json=as_json)
            except typer.Exit:
                pass
            finally:
                printed.flush()
    return printed.buffer.getvalue().decode()


def read_conversations(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.profiles.probe_conversations import conversations_beside, read_conversations as read

    path = _written(folder / "chats", "own.conversations.yaml", data)
    own = list(read(path).values())[:20]
    shown = [(each.states, each.digests, each.named, each.units, each.is_regular, each.has_parts) for each in own]
    return shown, len(conversations_beside(path.parent))


def read_engine_recording(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.systems.templates.server_engines import RecordedEngine

    engine = RecordedEngine(_written(folder, "engine.jsonl", data))
    found = []
    for content in ("Hello", "Hi"):
        try:
            found.append(engine.render({"messages": [{"role": "user", "content": content}]}))
        except RuntimeError as error:
            found.append(str(error))
    return engine.name, found


def read_helm(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.systems import recognized
    from pytest_promptfmt.systems.task_files import read_task_file

    path = _written(folder, "h.json", data)
    recognized(path)
    return read_task_file(path)


def read_docs(name: str) -> Callable[[Path, bytes], object]:
    def read(folder: Path, data: bytes) -> object:
        from pytest_promptfmt.tasks.docs.data_files import read_data_file

        return list(islice(read_data_file(_written(folder, name, data)), 100))

    return read


def read_tokenizer(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.profiles.tokenizer_loader import _facts_if_verbatim, _tokenizer
    from pytest_promptfmt.profiles.tokenizer_sources import find_source

    path = _written(folder, "tokenizer.json", data)
    source = find_source(path)
    source.digest()
    facts = _facts_if_verbatim(source)
    return facts, _tokenizer(source, path, facts).encode("a b") if facts is not None else None


def read_tokenizer_config(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.profiles.tokenizer_loader import _facts_if_verbatim
    from pytest_promptfmt.profiles.tokenizer_sources import find_source

    below = folder / "tokenizer"
    if not (below / "tokenizer.json").exists():
        _written(below, "tokenizer.json", _small_tokenizers()[0])
    _written(below, "tokenizer_config.json", data)
    source = find_source(str(below))
    source.digest()
    return _facts_if_verbatim(source)


def read_template(folder: Path, data: bytes) -> object:
    from jinja2 import TemplateError

    from pytest_promptfmt.core.profile import PLAIN
    from pytest_promptfmt.profiles.conversation import render_messages
    from pytest_promptfmt.settings.profiles import with_template

    profile = with_template(PLAIN, str(_written(folder, "chat.jinja", data)), folder, None)
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    try:
        return render_messages(profile, messages)
    # What a template does wrong comes unchanged from here; whoever asks reports it.
    except (
        TemplateError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        LookupError,
        RecursionError,
    ) as error:
        return type(error).__name__


def read_snapshot(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.core.errors import SnapshotError
    from pytest_promptfmt.snapshots.changes import compare
    from pytest_promptfmt.snapshots.document import read_document
    from pytest_promptfmt.snapshots.paths import read_snapshot as stored

    path = _written(folder / "__prompts__/t/t", "plain.txt", data)
    text = stored(str(path)) or b""
    now = read_document(_snapshots()[0].decode(), path)
    compared = compare(text, now, path, narrowed_run=False)
    try:
        return compared.state, read_document(text.decode(), path)
    except (UnicodeDecodeError, SnapshotError) as error:
        assert compared.error is not None, "a damaged file was not noticed"
        return str(error)


def read_baseline(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.results.baseline import Baseline, error_key, read_entries

    entries = read_entries(_written(folder, "baseline.jsonl", data))
    file = str(folder / "t.yaml")
    return Baseline(entries, rootdir=folder).accepts(file, "t", error_key(file, "t", "x"))


def read_lock(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.snapshots.lock import lock_text, read_lock as read

    locked = read(_written(folder, "promptfmt.lock", data))
    return lock_text(locked)


def read_recording(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.answers.recordings import read_recording as read

    return list(islice(read(_written(folder, "t.recording.jsonl", data)), 200))


def read_model_recording(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.models.recording import read_entries

    return read_entries(_written(folder, "answers.jsonl", data))


def read_pending(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.results.pending import read_edits

    return read_edits(_written(folder, "pending.jsonl", data), folder)


def read_format(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.formats.format_registry import find_format

    _written(folder / "formats", "f.yaml", data)
    return find_format("f", folder)


def read_completions(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.study.scoring import expected_completions
    from pytest_promptfmt.systems.task_files import load_tasks

    _written(folder, "c.completions.jsonl", data)
    task = _written(folder, "c.yaml", b"task: c\noutput_type: generate_until\ntest_split: test\ndoc_to_text: x\n")
    return expected_completions(load_tasks(task)[0])


_RUN_TASK: Final = (
    "task: t\ntest_split: test\noutput_type: generate_until\ndoc_to_text: 'Q: {{q}}'\ndoc_to_target: '{{a}}'\n"
    "metadata: {promptfmt: {docs: [{q: x, a: y}]}}\n"
)


def read_run(folder: Path, data: bytes) -> object:
    """Run pytest on three tasks with snapshots, one of them mutated: it is green only where all three were judged."""
    with Watch.paused():
        project = folder / "run"
        if not project.exists():
            for name in ("t", "u", "v"):
                _written(project / "tasks", f"{name}.yaml", _RUN_TASK.replace("task: t", f"task: {name}").encode())
            _written(project, "pytest.ini", b"[pytest]\n")
            assert _pytest(project, "--snapshot-update")[0] == 0
        _written(project / "tasks", "t.yaml", data)
        code, said = _pytest(project)
        assert "Traceback" not in said, said[-2000:]
        assert "INTERNALERROR" not in said, said[-2000:]
        assert code in (0, 1), f"pytest ended with {code}: {said[-500:]}"
        assert code == 1 or "3 passed" in said, f"green, but not all snapshots were judged: {said[-500:]}"
        assert len(list(project.rglob("plain.txt"))) == 3, "a snapshot is gone"
        return code


def read_store(folder: Path, data: bytes) -> object:
    from pytest_promptfmt.inputs.store import FILE_NAME, Store

    _written(folder / "store", FILE_NAME, data)
    store = Store(folder / "store")
    found = [store.row(kind, "t.yaml") for kind in ("outcomes", "items", "entries")]
    with Watch.paused():
        store.put("outcomes", "t.yaml", {"x": 1})
        store.write()
        row = Store(folder / "store").row("outcomes", "t.yaml")
    assert row == {"x": 1}, "what was written is not there"
    return found


def read_store_run(folder: Path, data: bytes) -> object:
    """Run pytest with rows of JSON as its outcomes of earlier runs; two tasks are as their snapshots say, one is not."""
    from pytest_promptfmt.inputs.store import FILE_NAME, store_folder

    with Watch.paused():
        project = folder / "remembering"
        if not project.exists():
            for name in ("t", "u", "v"):
                _written(project / "tasks", f"{name}.yaml", _RUN_TASK.replace("task: t", f"task: {name}").encode())
            _written(project, "pytest.ini", b"[pytest]\n")
            assert _pytest(project, "--snapshot-update", plugins=())[0] == 0
            changed = _RUN_TASK.replace("Q:", "R:").encode()
            assert changed != _RUN_TASK.encode()
            for path in [_written(project / "tasks", "t.yaml", changed), *project.rglob("*")]:
                os.utime(path, (1_600_000_000, 1_600_000_000))
            assert _pytest(project, plugins=())[0] == 1
        below = store_folder(project)
        assert below is not None
        with closing(sqlite3.connect(below / FILE_NAME)) as connection, connection:
            for kind, path, content in connection.execute("SELECT kind, path, content FROM rows").fetchall():
                at = random.Random(data).randrange(len(content) + 1)
                row = random.Random(f"{data!r}{path}").choice(
                    (data.decode("latin-1"), content[:at] + content[at + 1 :])
                )
                connection.execute("UPDATE rows SET content = ? WHERE kind = ? AND path = ?", (row, kind, path))
        code, said = _pytest(project, plugins=())
        assert "Traceback" not in said, said[-2000:]
        assert "INTERNALERROR" not in said, said[-2000:]
        assert code == 1, f"pytest ended with {code}: {said[-500:]}"
        assert "1 failed" in said, f"not all files were judged: {said[-500:]}"
        return code


_NO_CACHE: Final = ("-p", "no:cacheprovider")


def _pytest(project: Path, *options: str, plugins: tuple[str, ...] = _NO_CACHE) -> tuple[int, str]:
    quiet = ("-q", "-p", "no:hypothesispytest", "-o", "promptfmt_lint=false", "-o", "promptfmt_scoring=none", *plugins)
    command = [sys.executable, "-m", "pytest", "--promptfmt", "--promptfmt-no-code", "--promptfmt-profile", "plain"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [*command, *quiet, *options], cwd=project, env=environment, capture_output=True, timeout=SILENCE
    )
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


# -- what they begin with ----------------------------------------------------------------------------------------------


def _archetypes() -> list[Path]:
    return sorted(
        (ROOT / "pytest_promptfmt/data/tokenizers").glob("*/tokenizer.json"), key=lambda path: path.stat().st_size
    )


@cache
def _small_tokenizers() -> list[bytes]:
    made = []
    for path in _archetypes():
        content = json.loads(path.read_bytes())
        model = content["model"]
        if isinstance(model.get("vocab"), dict):
            model["vocab"] = dict(list(model["vocab"].items())[:300])
        elif isinstance(model.get("vocab"), list):
            model["vocab"] = model["vocab"][:300]
        known = set(model["vocab"]) if isinstance(model.get("vocab"), dict) else set()
        if "merges" in model:
            pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
            model["merges"] = [pair for pair in pairs if {*pair, "".join(pair)} <= known][:50]
        made.append(json.dumps(content).encode())
    return made


@cache
def _snapshots() -> list[bytes]:
    return [path.read_bytes() for path in sorted(FIXTURES.glob("**/__prompts__/*/*/*.txt"))[:40]]


def _stores() -> list[bytes]:
    from pytest_promptfmt.inputs.store import FILE_NAME, Store

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        for number in range(5):
            store.put("outcomes", f"{number}.yaml", {"context": "c", "inputs": ["0a"], "items": {}})
            store.put("entries", f"{number}.yaml", {"parts": [], "entry": [f"t{number}", "task", "t.yaml", []]})
        store.write()
        path = Path(folder) / FILE_NAME
        made = [path.read_bytes()]
        for statement in _STATEMENTS:
            path.unlink()
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.executescript(f"PRAGMA user_version = 1; {statement}")
            made.append(path.read_bytes())
        return made


_ENDLESS: Final = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x, 'a', '1' FROM n"
_ROWS: Final = "CREATE TABLE rows (kind TEXT, path TEXT, content TEXT, PRIMARY KEY (kind, path)) WITHOUT ROWID;"
_STATEMENTS: Final = (
    f"CREATE VIEW rows(kind, path, content) AS {_ENDLESS};",
    f"{_ROWS} CREATE TRIGGER t BEFORE INSERT ON rows BEGIN INSERT INTO rows {_ENDLESS}; END;",
    f"{_ROWS} INSERT INTO rows VALUES ('outcomes', 'x', zeroblob(100000));",
    "CREATE TABLE rows (kind TEXT, path TEXT, content TEXT AS (hex(zeroblob(50000000))));",
    "CREATE TABLE rows (kind BLOB, path INTEGER); INSERT INTO rows VALUES ('outcomes', 5);",
)
"""Databases that mean harm: without an end, of gigabytes, of other columns."""


def _parquets() -> list[bytes]:
    found = [path.read_bytes() for path in sorted(FIXTURES.glob("**/*.parquet")) if path.stat().st_size < 60_000]
    return found or [b"PAR1PAR1"]


_ENTRY: Final = {"file": "t.yaml", "task": "t", "code": "PF201", "message": "m", "key": "0123456789abcdef"}
_EDIT: Final = {
    "path": "__prompts__/t/t/plain.txt", "category": "changed", "task": "t", "profile": "plain", "key": "", "title": "x",
    "old": "a", "new": "b",
}  # fmt: skip
_TASK_MORE: Final = (
    "task: t\noutput_type: generate_until\ntest_split: test\ndoc_to_text: '{{q}}'\ndoc_to_target: a\n"
    "metadata: {promptfmt: {docs: docs.jsonl, recordings: ['runs/*.jsonl'], completions: [{completion: x, expected: x}]}}\n",
    "task: t\ndataset_path: csv\ndataset_kwargs: {data_files: {test: data.csv}, delimiter: ';'}\ntest_split: test\n"
    "output_type: multiple_choice\ndoc_to_text: q\ndoc_to_choice: [a, b]\ndoc_to_target: 0\n",
    "include: [_base.yaml]\ntask: t\nuse_prompt: prompts.yaml:one\nfewshot_config: {samples: [{q: x, a: y}]}\n",
    "group: g\ntask: [t, {task: u, include: _base.yaml, num_fewshot: 2}]\naggregate_metric_list: [{metric: acc}]\n",
    "task: t\ndataset_path: folder\ntest_split: test\noutput_type: loglikelihood\ndoc_to_text: q\ndoc_to_target: a\n",
)

_SAMPLES: Final = (
    b'{"doc_id": 0, "doc": {"q": "x"}, "target": "a", "arguments": [["Q: x", " a"]], "filter": "none", "doc_hash": "d", "prompt_hash": "p", "target_hash": "t"}\n'
    b'{"doc_id": 1, "doc": {"q": "y"}, "target": "b", "arguments": {"gen_args_0": {"arg_0": "Q: y", "arg_1": {"until": ["."]}}}, "doc_hash": "d"}\n'
)
_RESULTS: Final = (
    b'{"config": {"model": "m", "gen_kwargs": null, "random_seed": 0}, "configs": {"t": {"task": "t", "doc_to_text": "{{q}}", "num_fewshot": 0}}, '
    b'"versions": {"t": 1.0}, "task_hashes": {"t": "h"}, "model_name": "m", "chat_template_sha": null, "lm_eval_version": "0.4.13"}'
)
_ANSWERS: Final = (
    b'{"task": "t", "profile": "plain", "doc": 0, "request": 0, "key": "k", "sent": "s", "model": "m", "with": {"tokenizers": "0.22"}}\n'
    b'{"task": "t", "profile": "plain", "doc": 1, "request": 0, "key": "l", "model": "m"}\n'
)

READERS: Final = (
    Reader("task", lambda: _files("**/*.yaml")() + [text.encode() for text in _TASK_MORE], read_task, YAML_PIECES, share=6),
    Reader(
        "settings",
        lambda: _files("**/promptfmt.yaml")()
        + [
            b"profiles:\n  x: {extends: chat-chatml, chat_template: chat.jinja, template_args: {a: 1}}\n"
            b"default_profiles: [x, plain]\nignore: [PF201]\nper_file_ignores: {'*.yaml': [PF1]}\ndownload: false\n"
            b"rules: [rules.py]\nallow_code: [lib]\npaths: [tasks]\ntime_limit: 3\ndocs: 2\nscoring: auto\n"
        ],
        read_settings,
        YAML_PIECES,
        share=3,
    ),
    Reader(
        "ini",
        _texts(
            "[pytest]\npromptfmt = true\npromptfmt_profiles = plain chat-chatml\npromptfmt_docs = 3\npromptfmt_ignore = PF201\n",
            "[pytest]\npromptfmt_tokenizer = archetype:bytelevel\npromptfmt_chat_template = chatml\npromptfmt_allow_code =\n  lib\n  ..\n",
        ),
        read_ini,
        tuple(f"\npromptfmt_{name} = ".encode() for name in ("docs", "rules", "memory", "workers", "time_limit", "scoring", "paths", "clock"))
        + (b"[pytest]\n", b"\n  ", b" = ", b"%(x)s"),
    ),
    Reader(
        "conversations",
        lambda: [path.read_bytes() for path in sorted((ROOT / "pytest_promptfmt/data/conversations").glob("*.yaml"))]
        + [
            b"tools: {t: [{type: function, function: {name: f}}]}\nconversations:\n  x:\n    about: a\n    base: question\n    tools: t\n"
            b"    clock: 2026-01-02\n    template_args: {a: 1}\n    severity: info\n    messages:\n"
            b"    - {role: user, content: [{type: text, text: Hi}]}\n"
            b"    - {role: assistant, content: '', tool_calls: [{type: function, function: {name: f, arguments: '{\"a\": 1}'}}]}\n"
        ],
        read_conversations,
        (*YAML_PIECES, b"messages: ", b"role: ", b"content: ", b"tool_calls: ", b"function: ", b"arguments: ", b"clock: ", b"tools: "),
        share=2,
    ),
    Reader(
        "prompts of an engine",
        _texts('{"engine": "e", "from": "x", "key": "k", "text": "t"}\n{"engine": "e", "key": "l", "refused": "r"}\n'),
        read_engine_recording,
        JSON_PIECES,
    ),
    Reader("finished run", lambda: [_SAMPLES, _RESULTS, _ANSWERS], read_finished_run, JSON_PIECES, share=2),
    Reader(
        "last run",
        _texts(
            '{"rootdir": "/r", "folder": "/r", "options": ["-k", "x"], "problems": [{"path": "t.yaml", "task": "t", '
            '"profile": "plain", "category": "changed", "key": "k", "title": "x"}]}'
        ),
        read_last_run,
        JSON_PIECES,
    ),
    Reader("helm", _files("helm/**/*.json", "bugs/**/*.json"), read_helm, JSON_PIECES, share=2),
    Reader("docs.jsonl", _files("**/*.jsonl"), read_docs("docs.jsonl"), JSON_PIECES, share=2),
    Reader("docs.json", _texts('[{"q": "a", "n": 1.5, "l": ["x"], "m": {"k": null}}]'), read_docs("docs.json"), JSON_PIECES),
    Reader("docs.csv", _texts('q,a\n"x, y",1\nz,2.5\n', "q;a\n1;NaN\n", "a\n"), read_docs("docs.csv"), (b",", b'"', b"\n")),
    Reader("docs.parquet", _parquets, read_docs("docs.parquet"), (b"PAR1",)),
    Reader("tokenizer", _small_tokenizers, read_tokenizer, JSON_PIECES),
    Reader(
        "tokenizer config",
        _texts('{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "chat_template": "{{ messages }}"}'),
        read_tokenizer_config,
        JSON_PIECES,
    ),
    Reader(
        "chat template",
        lambda: [path.read_bytes() for path in sorted((ROOT / "pytest_promptfmt/data/chat_templates").glob("*.jinja"))],
        read_template,
        (b"{{ messages }}", b"{% for m in messages %}", b"{% endfor %}", b"{{ raise_exception('x') }}", b"|tojson",
         b"{% generation %}", b"messages[0]['content']", b"{% set x = namespace() %}", b"{{ ''.__class__ }}"),
        share=2,
    ),
    Reader("snapshot", _snapshots, read_snapshot, (b"  | ", b"doc 1", b"end: 1 docs", b"pytest-promptfmt snapshot 1"), share=3),
    Reader("baseline", _texts('{"pytest-promptfmt baseline": 1}\n' + json.dumps(_ENTRY) + "\n"), read_baseline, JSON_PIECES, share=2),
    Reader("lock", _texts('tokenizers:\n  "a":\n    loader: "tokenizers 0.22"\n    content: "abc"\n'), read_lock, YAML_PIECES),
    Reader(
        "recording",
        _texts(
            '{"doc": 0, "completion": "2", "expected": "2", "correct": true}\n',
            '{"doc_id": 0, "doc": {"q": 1}, "resps": [["x"]], "filtered_resps": ["x"], "filter": "none", "metrics": ["em"], "em": 1.0}\n',
            '{"kind": "generate", "key": 1, "text": "x", "doc": 0, "task": "t", "request": 0}\n',
        ),
        read_recording,
        JSON_PIECES,
        share=2,
    ),
    Reader(
        "answers of a model",
        _texts('{"task": "t", "profile": "plain", "doc": 0, "request": 0, "key": "k", "kind": "generate", "text": "x", "model": "m"}\n'),
        read_model_recording,
        JSON_PIECES,
    ),
    Reader("pending", _texts(json.dumps(_EDIT) + "\n"), read_pending, JSON_PIECES, share=2),
    Reader("store", _stores, read_store, (b"SQLite format 3\0", b"rows", b"CREATE TABLE ", b"CREATE VIEW ")),
    Reader("store of a run", _texts('{"context": "c", "inputs": [], "asked": [], "tasks": [], "claims": [], "items": {}}'), read_store_run, JSON_PIECES, share=0.01),
    Reader("run", _texts(_RUN_TASK), read_run, YAML_PIECES, share=0.05),
    Reader("format", lambda: [path.read_bytes() for path in sorted((ROOT / "pytest_promptfmt/data/formats").glob("*.yaml"))[:12]], read_format, YAML_PIECES),
    Reader("completions", _texts('{"completion": "x", "expected": "x"}\n{"completion": "y", "correct": false, "doc": 1}\n'), read_completions, JSON_PIECES),
)  # fmt: skip


# -- mutation ----------------------------------------------------------------------------------------------------------


def mutated(seeds: list[bytes], pieces: tuple[bytes, ...], random_: random.Random) -> bytes:
    """Return one of the seeds with one to six changes: of bytes, lines, values of JSON, and pieces with a meaning."""
    data = random_.choice(seeds)
    for _ in range(random_.choice((1, 1, 2, 2, 3, 6))):
        data = random_.choice(_CHANGES)(data, seeds, pieces, random_)
    return data[:200_000]


def _mutations(reader: Reader, random_: random.Random, count: int, pool: list[bytes]) -> Iterator[bytes]:
    """Yield inputs made of a pool that may grow on the way."""
    for _ in range(count):
        yield mutated(pool, reader.pieces, random_)


def _place(data: bytes, random_: random.Random) -> tuple[int, int]:
    start = random_.randrange(len(data) + 1)
    return start, min(len(data), start + random_.choice((1, 1, 4, 16, 64, 400)))


def _flip(data: bytes, _s: object, _p: object, random_: random.Random) -> bytes:
    if not data:
        return data
    at = random_.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random_.randrange(8)]) + data[at + 1 :]


def _delete(data: bytes, _s: object, _p: object, random_: random.Random) -> bytes:
    start, end = _place(data, random_)
    return data[:start] + data[end:]


def _repeat(data: bytes, _s: object, _p: object, random_: random.Random) -> bytes:
    start, end = _place(data, random_)
    return data[:end] + data[start:end] * random_.choice((1, 2, 30)) + data[end:]


def _cut(data: bytes, _s: object, _p: object, random_: random.Random) -> bytes:
    return data[: random_.randrange(len(data) + 1)]


def _insert(data: bytes, _s: object, pieces: tuple[bytes, ...], random_: random.Random) -> bytes:
    at, _ = _place(data, random_)
    return data[:at] + random_.choice((*pieces, *OTHER_PIECES)) + data[at:]


def _replace_word(data: bytes, _s: object, pieces: tuple[bytes, ...], random_: random.Random) -> bytes:
    words = list(re.finditer(rb"[\w./-]+", data))
    if not words:
        return data
    word = random_.choice(words)
    return data[: word.start()] + random_.choice((*pieces, *OTHER_PIECES)) + data[word.end() :]


def _splice(data: bytes, seeds: list[bytes], _p: object, random_: random.Random) -> bytes:
    other = random_.choice(seeds)
    return data[: random_.randrange(len(data) + 1)] + other[random_.randrange(len(other) + 1) :]


def _swap_lines(data: bytes, _s: object, _p: object, random_: random.Random) -> bytes:
    lines = data.split(b"\n")
    first, second = random_.randrange(len(lines)), random_.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


_VALUES: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1.5, 10**30, "", "x", "../outside/secret.jsonl", "/etc/passwd", "\ud800", "\0", [], {}, [[]], {"": 0},
    {"a": 1}, [None], "{{x}}", "*", "a" * 300,
)  # fmt: skip


def _value(data: bytes, _s: object, _p: object, random_: random.Random) -> bytes:
    """Change one value of a file of JSON, or of one of its lines."""
    lines = [data] if random_.random() < 0.5 else data.split(b"\n")
    at = random_.randrange(len(lines))
    try:
        parsed = json.loads(lines[at])
    except (ValueError, RecursionError):
        return data
    places = list(_places(parsed))
    if not places:
        lines[at] = json.dumps(random_.choice(_VALUES)).encode()
        return b"\n".join(lines)
    inside, key = random_.choice(places)
    change = random_.random()
    if change < 0.7:
        inside[key] = random_.choice(_VALUES)
    elif change < 0.85:
        del inside[key]
    elif isinstance(inside, dict):
        inside[random_.choice(("path", "x", "", "include", "\ud800"))] = random_.choice(_VALUES)
    return b"\n".join([*lines[:at], json.dumps(parsed).encode(), *lines[at + 1 :]])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inner in pairs[:200]:
        yield value, key
        yield from _places(inner)


_CHANGES: Final = (
    _flip,
    _delete,
    _repeat,
    _cut,
    _insert,
    _insert,
    _replace_word,
    _replace_word,
    _splice,
    _swap_lines,
    _value,
    _value,
)


# -- a batch in a child process ----------------------------------------------------------------------------------------


class Watch:
    """The audit hook: notes every event that leads out of the scratch folder while an input is read."""

    READS: Final = frozenset({"open", "os.listdir", "os.scandir", "glob.glob", "pathlib.Path.glob", "os.walk"})
    EFFECTS: Final = frozenset(
        {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "shutil.rmtree",
         "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "socket.connect", "socket.bind"}
    )  # fmt: skip

    is_on = False

    @classmethod
    @contextmanager
    def paused(cls) -> Iterator[None]:
        """Do not look inside the block: the harness writes the input."""
        before, cls.is_on = cls.is_on, False
        try:
            yield
        finally:
            cls.is_on = before

    def __init__(self, scratch: Path) -> None:
        self.seen: list[str] = []
        own = (
            sys.prefix,
            sys.base_prefix,
            sys.exec_prefix,
            str(ROOT),
            "/usr/lib",
            "/usr/share",
            "/lib",
            *filter(None, sys.path),
        )
        self._inside = str(scratch)
        self._own = tuple(os.path.realpath(path) for path in own)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not Watch.is_on or (event not in self.READS and event not in self.EFFECTS):
            return
        path = arguments[0] if arguments else ""
        if isinstance(path, int):
            return
        name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else str(path)
        where = os.path.abspath(name) if name else os.getcwd()
        if event in self.READS:
            mode = arguments[1] if event == "open" and len(arguments) > 1 else None
            flags = arguments[2] if event == "open" and len(arguments) > 2 else 0
            is_write = (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & 3)
            if where.startswith(self._inside) and not is_write:
                return
            # The memory of this process is read by whatever bounds it.
            if not is_write and (where.startswith(self._own) or where in ("/dev/null", "/proc/self/statm")):
                return
            if where.startswith(self._cache):
                return
        elif where.startswith(self._cache):
            return
        self.seen.append(f"{event} {name[:200]!r}")

    @property
    def _cache(self) -> str:
        return os.environ.get("PROMPTFMT_CACHE_DIR", "\0")


class Reached:
    """The lines of the package that inputs have reached, as `file:line`; a child process begins with its parent's."""

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self.new: list[str] = []
        self._package = str(ROOT / "pytest_promptfmt")
        self._traced = 0

    def begin(self) -> None:
        """See every line from now on; most inputs are not traced where that is slow."""
        if sys.version_info >= (3, 12):
            monitoring = vars(sys)["monitoring"]
            if monitoring.get_tool(monitoring.COVERAGE_ID) is not None:
                return
            monitoring.use_tool_id(monitoring.COVERAGE_ID, "fuzz")
            monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, self._line)
            monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
        else:
            self._traced = (self._traced + 1) % TRACED
            sys.settrace(None if self._traced else self._call)

    def taken(self) -> list[str]:
        """Return the lines that were reached for the first time since the last call."""
        sys.settrace(None)
        found, self.new = self.new, []
        return found

    def _line(self, code: CodeType, line: int) -> object:
        self._note(code, line)
        return vars(sys)["monitoring"].DISABLE

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._step if frame.f_code.co_filename.startswith(self._package) else None

    def _step(self, frame: FrameType, _event: str, _argument: object) -> Any:
        self._note(frame.f_code, frame.f_lineno)
        return self._step

    def _note(self, code: CodeType, line: int) -> None:
        if code.co_filename.startswith(self._package):
            place = f"{code.co_filename[len(self._package) :]}:{line}"
            if place not in self.lines:
                self.lines.add(place)
                self.new.append(place)


def signature(text: str) -> str:
    """Return a message without what differs from input to input."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|[0-9]+|/\S+", "_", text)[:160]


def run_batch(
    reader: Reader,
    inputs: Callable[[list[bytes]], Iterator[bytes]],
    pool: Pool,
    limit: float,
    tell: Callable[[Any], None],
) -> None:
    """Read the inputs that are made of a pool, and tell of each before and after it is read."""
    scratch = Path(tempfile.mkdtemp(prefix="promptfmt-fuzz-")).resolve()
    try:
        os.environ["PROMPTFMT_CACHE_DIR"] = str(scratch / "cache")
        folder = _laid_out(scratch)
        if reader.name == "docs.parquet":
            reader.read(folder, pool.seeds[0])  # libraries are imported before the watch
        watch = Watch(folder)
        sys.addaudithook(watch)
        os.chdir(folder)
        for index, data in enumerate(inputs(pool.seeds)):
            tell({"begin": index, "input": base64.b64encode(data).decode()})
            pool.reached.begin()
            what, violation = _outcome_of(reader, folder, data, watch, limit)
            found = {"end": index, "what": what.partition(":")[0], "violation": violation[:500]}
            lines, message = pool.reached.taken(), signature(what)
            if lines or message not in pool.messages:
                pool.add(data, lines, message)
                found |= {"lines": lines, "message": message}
            tell(found)
    finally:
        os.chdir("/")
        shutil.rmtree(scratch, ignore_errors=True)


def _outcome_of(reader: Reader, folder: Path, data: bytes, watch: Watch, limit: float) -> tuple[str, str]:
    """Return what became of one input, and how it violates what has to hold, "" for not at all."""
    from pytest_promptfmt.core import gate
    from pytest_promptfmt.core.errors import PromptfmtError

    violation = ""
    before = time.process_time()
    with gate.limited_to([folder]):
        watch.seen, Watch.is_on = [], True
        try:
            shown, what = str(reader.read(folder, data)), "read"
        except PromptfmtError as error:
            shown, what = str(error), f"{type(error).__name__}: {error.message}"
        except Exception as error:
            shown, what = str(error), f"{type(error).__name__}"
            violation = f"{type(error).__name__}: {error} at {_place_of(error)}"
        finally:
            Watch.is_on = False
    seconds = time.process_time() - before
    if watch.seen:
        violation = violation or f"left the folder: {', '.join(watch.seen[:3])}"
    if CANARY in shown:
        violation = violation or "shows a file that it must not open"
    if seconds > limit:
        violation = violation or f"took {seconds:.1f} s of processor time"
    return what, violation


def _place_of(error: BaseException) -> str:
    traceback, place = error.__traceback__, "?"
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "pytest_promptfmt" in code.co_filename:
            place = f"{Path(code.co_filename).name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def _laid_out(scratch: Path) -> Path:
    """Return the folder that files may be read from; beside it lies what must never be shown."""
    folder, outside = scratch / "root", scratch / "outside"
    folder.mkdir()
    outside.mkdir()
    for name in ("secret.jsonl", "secret.yaml", "secret.csv"):
        (outside / name).write_text(json.dumps({CANARY: CANARY}) + "\n", "utf-8")
    (folder / "link.jsonl").symlink_to(outside / "secret.jsonl")
    (folder / "folder").symlink_to(outside)
    (folder / "_base.yaml").write_text("output_type: generate_until\ntest_split: test\ndoc_to_text: '{{q}}'\n", "utf-8")
    (folder / "docs.jsonl").write_text('{"q": "x", "a": "y"}\n', "utf-8")
    (folder / "data.csv").write_text("q;a\nx;0\n", "utf-8")
    os.mkfifo(folder / "pipe.jsonl")
    return folder


# -- the parent --------------------------------------------------------------------------------------------------------


@dataclass
class Pool:
    """What inputs of one reader are mutated from: files that reached something new."""

    MOST = 400

    seeds: list[bytes]
    reached: Reached = field(default_factory=Reached)
    messages: set[str] = field(default_factory=set)

    def add(self, data: bytes, lines: list[str], message: str) -> None:
        """Keep an input, and what it reached."""
        self.reached.lines.update(lines)
        self.messages.add(message)
        if len(self.seeds) < self.MOST:
            self.seeds.append(data)


@dataclass
class State:
    """How far a campaign has come; it is a file of JSON."""

    done: Counter[str]
    outcomes: dict[str, Counter[str]]
    violations: list[dict[str, Any]]
    batches: Counter[str]
    lines: dict[str, int]
    seconds: float = 0.0

    @classmethod
    def of(cls, path: Path | None) -> State:
        if path is None or not path.exists():
            return cls(Counter(), {}, [], Counter(), {})
        data = json.loads(path.read_text("utf-8"))
        outcomes = {name: Counter(counts) for name, counts in data["outcomes"].items()}
        return cls(**data | {"done": Counter(data["done"]), "outcomes": outcomes, "batches": Counter(data["batches"])})

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.__dict__, indent=1) + "\n", "utf-8")


def child_batch(
    reader: Reader, inputs: Callable[[list[bytes]], Iterator[bytes]], pool: Pool, limit: float, state: State
) -> None:
    """Run one batch in a child process, and note what it tells."""
    read_end, write_end = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(read_end)
        _in_child(reader, inputs, pool, limit, write_end)
    os.close(write_end)
    data, rest, status, is_silent = "", b"", 0, False
    outcomes = state.outcomes.setdefault(reader.name, Counter())
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], SILENCE)
            received = pipe.read(1 << 20) if ready else b""
            if not received:
                is_silent = not ready
                break
            *lines, rest = (rest + received).split(b"\n")
            for told in map(json.loads, lines):
                data = told.get("input", data)
                if "end" in told:
                    state.done[reader.name] += 1
                    outcomes[told["what"]] += 1
                    if told["violation"]:
                        state.violations.append({"reader": reader.name, "violation": told["violation"], "input": data})
                    elif "message" in told:
                        pool.add(base64.b64decode(data), told["lines"], told["message"])
    if is_silent:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if is_silent or status:
        how = f"no progress for {SILENCE:.0f} s" if is_silent else f"the process ended with status {status}"
        state.violations.append({"reader": reader.name, "violation": how, "input": data})
        state.done[reader.name] += 1
    state.lines[reader.name] = len(pool.reached.lines)


def _in_child(
    reader: Reader, inputs: Callable[[list[bytes]], Iterator[bytes]], pool: Pool, limit: float, write_end: int
) -> None:
    import resource

    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

        def tell(what: Any) -> None:
            if "begin" in what:  # ended by its processor time, not by that of a busy machine
                resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + 6 * limit) + 1, -1))
            rest = json.dumps(what).encode() + b"\n"
            while rest:
                rest = rest[os.write(write_end, rest) :]

        run_batch(reader, inputs, pool, limit, tell)
        code = 0
    except BaseException as error:
        os.write(2, f"{reader.name}: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def report(state: State) -> Iterator[str]:
    """Yield the counts by reader as a table of Markdown, and the violations."""
    yield "| reader | inputs | read | refused | lines reached |"
    yield "|---|--:|--:|--:|--:|"
    for name, count in state.done.items():
        read = state.outcomes.get(name, Counter())["read"]
        yield f"| {name} | {count:,} | {read:,} | {count - read:,} | {state.lines.get(name, 0):,} |"
    total = sum(state.done.values())
    yield f"\n{total:,} inputs, {len(state.violations):,} violations, {state.seconds:,.0f} s"
    same: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in state.violations:
        same.setdefault((each["reader"], signature(each["violation"])), []).append(each)
    for first, *others in same.values():
        more = f" ({len(others):,} more)" if others else ""
        yield f"{first['reader']}: {first['violation']}{more}"


_PRELOADED: Final = (
    "answers.recordings", "results.pending", "formats.format_registry", "models.recording", "results.baseline",
    "answers.run_samples", "cli.compare", "plugin", "settings.tree", "profiles.probe_conversations",
    "systems.templates.server_engines", "settings.profiles", "snapshots.changes", "snapshots.lock", "study.scoring", "systems.task_files", "profiles.tokenizer_loader",
)  # fmt: skip
"""What children would import again for each batch."""


def main() -> None:
    """Run the campaign, print the counts, and exit with 1 where there were violations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="how many in all, shared out among the readers")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop at the latest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of processor time that one input may take")
    parser.add_argument("--reader", action="append", choices=[reader.name for reader in READERS])
    parser.add_argument("--again", action="store_true", help="read the inputs of the violations in --state once more")
    parser.add_argument("--state", type=Path, help="where counts are kept, to continue later")
    given = parser.parse_args()
    for module in _PRELOADED:
        importlib.import_module(f"pytest_promptfmt.{module}")
    readers = [reader for reader in READERS if given.reader is None or reader.name in given.reader]
    state = State.of(given.state)
    began = time.monotonic() - state.seconds
    shares = sum(reader.share for reader in readers)
    wanted = {reader.name: math.ceil(given.inputs * reader.share / shares) for reader in readers}
    pools = {reader.name: Pool(reader.seeds()) for reader in readers}
    if given.again:
        violations, state = state.violations, State.of(None)
        began = time.monotonic()
        for reader in readers:
            mine = [base64.b64decode(each["input"]) for each in violations if each["reader"] == reader.name]
            for data in mine:
                child_batch(reader, lambda _, data=data: iter([data]), pools[reader.name], given.limit, state)  # type: ignore[misc]
    while not given.again and time.monotonic() - began < given.seconds:
        left = [reader for reader in readers if state.done[reader.name] < wanted[reader.name]]
        if not left:
            break
        reader = min(left, key=lambda each: state.done[each.name] / wanted[each.name])
        count = min(BATCH, wanted[reader.name] - state.done[reader.name])
        chance = random.Random(f"{given.seed}/{reader.name}/{state.batches[reader.name]}")
        inputs = partial(_mutations, reader, chance, count)
        child_batch(reader, inputs, pools[reader.name], given.limit, state)
        state.batches[reader.name] += 1
        state.seconds = time.monotonic() - began
        if given.state is not None:
            state.save(given.state)
    state.seconds = time.monotonic() - began
    print("\n".join(report(state)))
    sys.exit(1 if state.violations else 0)


if __name__ == "__main__":
    main()
