"""Code of tasks that reaches for its worker, or prints without end: one failing item, or one bounded section."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from plugin_project import Project

from pytest_promptfmt.answers.run_comparison import compared_runs
from pytest_promptfmt.answers.run_samples import read_run
from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.engine.processes import CAN_FORK
from pytest_promptfmt.plugin.item_results import is_sent

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="workers are processes")

QUIET = ("-q", "--promptfmt-profile", "plain", "-m", "promptfmt_snapshot")
DOCS = {"promptfmt": {"docs": [{"question": "Q", "answer": "A"}]}}


def task_with_code(project: Project, body: str, name: str = "t") -> None:
    """Write a task whose prompt is made by code, and one without."""
    project.write(f"{name}_utils.py", f"import json, os, struct, sys, time\n\n\ndef text(doc):\n{body}    return 'Q'\n")
    file = project.task(f"{name}.yaml", doc_to_text=None, metadata=DOCS)
    file.write_text(file.read_text("utf-8") + f"doc_to_text: !function {name}_utils.text\n", "utf-8")
    project.task("other.yaml")


# -- 28: messages ------------------------------------------------------------------------------------------------------

FORGED = """
    message = json.dumps({message}).encode()
    for number in range(3, 4096):
        try:
            os.write(number, (struct.pack(">I", len(message)) + message) * 20)
        except OSError:
            pass
    time.sleep(20)  # it is ended before that
"""


@pytest.mark.parametrize(
    "message", ['[[{"reports": []}], True, False]', "[[0], [None], True, False]", "{}", '"x" * 100', "[[0], 5, 1, 1]"]
)
def test_a_forged_message_is_one_failing_item(project: Project, message: str) -> None:
    task_with_code(project, FORGED.format(message=message))
    result = project.run(*QUIET, "--snapshot-update")
    assert result.parseoutcomes() == {"failed": 1, "passed": 1}
    assert "t::snapshot[plain] damaged the connection to its worker process" in result.stdout.str()
    assert not any("/t/" in name for name in project.snapshots())


def test_a_worker_holds_no_descriptor_of_the_run(project: Project) -> None:
    body = """
    for name in sorted(os.listdir("/dev/fd")):
        try:
            print(name, os.readlink("/proc/self/fd/" + name))
        except OSError:
            pass
    raise ValueError
"""
    task_with_code(project, body)
    held = dict(re.findall(r"(?m)^(\d+) (.*[/:].*)$", project.run(*QUIET).stdout.str()))
    pipes = [int(number) for number, target in held.items() if target.startswith("pipe:")]
    assert len(pipes) == 2
    assert min(pipes) >= 128
    others = {target for target in held.values() if not target.startswith("pipe:")}
    assert "/dev/null" in others
    assert [each for each in others if not re.fullmatch(r"/dev/null|/proc/\d+/(statm|fd)|.* \(deleted\)", each)] == []


@pytest.mark.slow
def test_a_job_that_returns_twice_is_counted_once(project: Project) -> None:
    task_with_code(project, "    os.fork()\n")
    assert project.run(*QUIET, "--snapshot-update").parseoutcomes() == {"passed": 2}


REPORT = {"when": "call", "passed": 0.1, "promptfmt": {"task": "t", "file": "t.yaml"}}
RESULT = {"reports": [REPORT], "warnings": [], "counted": [], "seen": {"files": [], "asked": [], "wrote": []}}


@pytest.mark.parametrize(
    "wrong",
    [None, [], {}, {"reports": []}, {"reports": 3}, {"reports": [{}]}, {"warnings": [3]}, {"counted": ["x"]},
     {"seen": {}}, {"seen": {"files": [[1, [], ""]], "asked": [], "wrote": []}},
    {"seen": {"files": [], "asked": [], "wrote": [["x", 1]]}}, {"reports": [{**REPORT, "passed": "x"}]},
     {"reports": [{**REPORT, "when": "later"}]}, {"reports": [{**REPORT, "promptfmt": {"task": 1}}]},
     {"reports": [{**REPORT, "promptfmt": {"task": "t", "file": "t", "category": "unknown"}}]},
     {"reports": [{**REPORT, "promptfmt": {"task": "t", "file": "t", "unknown": 1}}]},
     {"reports": [{"when": "call", "passed": 0.1}]}, {"reports": [{"when": "call", "nodeid": "t"}]}],
)  # fmt: skip
def test_a_result_of_another_shape_or_type_is_none(wrong: object) -> None:
    assert is_sent(RESULT, "t")
    is_part = isinstance(wrong, dict) and wrong and wrong != {"reports": []}
    assert not is_sent({**RESULT, **wrong} if is_part and isinstance(wrong, dict) else wrong, "t")


# -- 29: large files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["big.yaml", "big.yml"])
def test_a_file_that_is_too_large_fails_and_the_others_are_judged(project: Project, name: str) -> None:
    project.task("other.yaml")
    with project.write(name, "").open("wb") as file:
        file.truncate(5 * 2**30)
    result = project.run(*QUIET, "--promptfmt-no-code", "--snapshot-update")
    assert result.parseoutcomes()["passed"] == 1
    reason = f" - {name}: the file cannot be read: the file is larger" if pytest.version_tuple >= (9,) else ""
    assert f"FAILED {name}::load{reason}" in result.stdout.str()  # pytest 8 shows no reason in its summary


# -- 30: finished runs -------------------------------------------------------------------------------------------------

SAMPLE = {
    "doc_id": 0,
    "doc": {"q": "a"},
    "target": "b",
    "arguments": {"gen_args_0": {"arg_0": "Q", "arg_1": {}}},
    "doc_hash": "ab",
    "prompt_hash": "cd",
    "target_hash": "ef",
}


def finished_run(folder: Path, sample: object, facts: object) -> Path:
    folder.mkdir()
    (folder / "results_2026-01-05T10-00-00.000000.json").write_text(json.dumps(facts), "utf-8")
    (folder / "samples_t_2026-01-05T10-00-00.000000.jsonl").write_text(json.dumps(sample) + "\n", "utf-8")
    return folder


@pytest.mark.parametrize(
    ("changed", "facts"),
    [({"doc_hash": "a\ud800"}, {}), ({"target_hash": "é"}, {}), ({"doc_id": "x"}, {}), ({}, {"configs": [1]}),
     ({}, {"config": "x"}), ({}, {"versions": 3}), ({}, {"task_hashes": [""]}), ({}, [])],
)  # fmt: skip
def test_a_finished_run_of_another_shape_is_one_located_error(tmp_path: Path, changed: object, facts: object) -> None:
    assert isinstance(changed, dict)
    good = read_run(finished_run(tmp_path / "A", SAMPLE, {"configs": {"t": {}}, "versions": {"t": 1.0}}))
    assert [each.verdict for each in compared_runs(good, good)] == ["same"]
    with pytest.raises(SourceError, match=r"2026-01-05|/B") as raised:
        read_run(finished_run(tmp_path / "B", {**SAMPLE, **changed}, facts))
    assert "\ud800" not in str(raised.value)


def test_a_recording_of_another_shape_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    line = {"task": "t", "profile": "p", "doc": 0, "key": "k"}
    path.write_text(json.dumps(line | {"with": {"configs": [1]}}) + "\n", "utf-8")
    with pytest.raises(SourceError, match="configs is not a mapping"):
        read_run(path)


# -- 31: printed output ------------------------------------------------------------------------------------------------

PRINTERS = {
    "sys.stdout": "sys.stdout.write('A' * 2**20)",
    "buffer": "sys.stderr.buffer.write(b'A' * 2**20)",
    "descriptor": "os.write(1, b'A' * 2**20)",
    "program": "os.system('head -c 1048576 /dev/zero >&2')",
}


@pytest.mark.parametrize("how", PRINTERS)
def test_printed_output_is_kept_up_to_a_bound(project: Project, how: str) -> None:
    task_with_code(project, f"    for _ in range(20): {PRINTERS[how]}\n    raise ValueError\n")
    result = project.run(*QUIET)
    assert result.parseoutcomes()["failed"] >= 1
    said = result.stdout.str()
    assert "… 20,938,752 more bytes are left out" in said
    assert len(said) < 300_000
    assert "\0" not in said


def run_in_interpreter(project: Project, setup: str, *options: str) -> pytest.RunResult:
    """Return what a run printed in an interpreter that begins with `setup`, and ends with the peak of its memory."""
    code = (
        f"import resource, pytest\n{setup}\npytest.main({['--promptfmt', *QUIET, *options]!r})\n"
        "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    return project.pytester.run(sys.executable, "-c", code)


@pytest.mark.slow
def test_a_gigabyte_of_output_is_not_in_the_memory_of_pytest(project: Project) -> None:
    task_with_code(project, "    for _ in range(1024): sys.stdout.write('A' * 2**20)\n    raise ValueError\n", "loud")
    task_with_code(project, "    raise ValueError\n", "quiet")
    peaks = {}
    for name in ("loud", "quiet"):
        said = run_in_interpreter(project, "", f"{name}.yaml").stdout.str()
        assert "1 failed" in said
        peaks[name] = int(said.rpartition("peak ")[2])
    assert peaks["loud"] - peaks["quiet"] < 20 * 1024  # in KiB: a fiftieth of what was printed


def test_warnings_are_bounded(project: Project) -> None:
    warn = "warnings.warn_explicit(str(n) + 'A' * 2**17, UserWarning, 'x', n + 1)"
    body = f"    import warnings\n    for n in range(300): {warn}\n"
    task_with_code(project, body)
    result = project.run(*QUIET, "--snapshot-update")
    assert result.parseoutcomes()["warnings"] == 100
    assert len(result.stdout.str()) < 10_000_000


def test_printed_output_gives_no_command_to_a_terminal_or_server(project: Project) -> None:
    body = "    print('\\x1b[31mred\\n::error::stop\\n##[error]stop')\n    raise ValueError\n"
    task_with_code(project, body)
    said = project.run(*QUIET).stdout.str()
    assert "\\x1b[31mred" in said
    assert "\x1b" not in said
    assert not [line for line in said.splitlines() if line.startswith("::") or "##[" in line]


def test_printed_output_of_a_task_that_passes_is_shown_where_it_is_wanted(project: Project) -> None:
    task_with_code(project, "    print('from the task')\n")
    project.accept()
    assert "from the task" not in project.run(*QUIET).stdout.str()
    project.edit("t_utils.py", "'Q'", "'Q2'")
    assert "from the task" in project.run(*QUIET, "-rP").stdout.str()
    assert "from the task" in project.run(*QUIET, "-s", "--promptfmt-no-cache").stdout.str()


def test_what_code_prints_while_tasks_are_collected_is_dropped(project: Project) -> None:
    loud = "import os, sys\nsys.stdout.write('::error::A' * 10**6)\nos.write(2, b'::error::B' * 10**6)\n"
    project.write("modules/classes.py", loud + "class Template:\n    pass\n")
    project.task("template.yaml", doc_to_text=None)
    file = project.root / "template.yaml"
    file.write_text(file.read_text("utf-8") + "template: !function modules/classes.Template\n", "utf-8")
    project.task("other.yaml")
    project.write("promptfmt.yaml", "task_modules: [modules]\n")
    result = project.run(*QUIET, "--snapshot-update")
    assert result.parseoutcomes()["passed"] == 1
    assert "::error::" not in result.stdout.str() + result.stderr.str()


def test_descriptors_may_be_few(project: Project) -> None:
    task_with_code(project, "    pass\n")
    few = "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    assert "2 passed" in run_in_interpreter(project, few, "--snapshot-update").stdout.str()
