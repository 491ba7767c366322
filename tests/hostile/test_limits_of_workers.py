"""Tasks that take all the memory or time there is, or start processes: each is one failure, and the others go on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plugin_project import Project

from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="limits are those of worker processes")]

# No single value here is too large for the sandbox: it does not count what a cycler holds.
GROWING = "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = cycler(n.l, [0] * 999999) %}{% endfor %}"
BACKTRACKING = r"(.*)*x(.*)*y"


def function(project: Project, name: str, body: str) -> None:
    project.write(
        f"{name}_utils.py", f"import os, subprocess, sys, time\n\n\ndef text(doc):\n    {body}\n    return 'Q'\n"
    )
    file = project.task(f"{name}.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + f"doc_to_text: !function {name}_utils.text\n", "utf-8")


def outcomes(project: Project, *options: str) -> tuple[dict[str, int], str]:
    result = project.run("--promptfmt-profile", "plain", "-m", "promptfmt_snapshot", "-q", *options)
    return result.parseoutcomes(), result.stdout.str()


def test_memory_has_a_ceiling_whoever_ran_before(project: Project) -> None:
    for name in ("m0", "m1", "m2"):
        docs = {"promptfmt": {"docs": [{"question": "Q", "answer": "A"}]}}
        project.task(f"{name}.yaml", doc_to_text=GROWING + "{{question}}", metadata=docs)
    project.task("other.yaml")
    found, said = outcomes(project, "--promptfmt-memory", "100", "--snapshot-update")
    assert found == {"failed": 3, "passed": 1}
    assert "needs more memory than a worker may use (MemoryError)" in said
    assert "3 tests of 3 tasks" in said


def test_a_function_that_never_ends_is_stopped_and_named(project: Project) -> None:
    function(project, "endless", "exec('while True: pass')")
    project.task("other.yaml")
    project.write("promptfmt.yaml", "time_limit: 1\n")
    found, said = outcomes(project, "--snapshot-update")
    assert found == {"failed": 1, "passed": 1}
    assert "did not finish within 1 s of processor time" in said


def test_code_that_ends_its_process_costs_nobody_else_anything(project: Project) -> None:
    function(project, "leaving", "import ctypes; ctypes.string_at(0)")
    project.task("other.yaml")
    found, said = outcomes(project, "--snapshot-update")
    assert found == {"failed": 1, "passed": 1}
    assert "leaving::snapshot[plain] ended its worker process (signal 11)" in said


def test_filters_that_backtrack_have_a_budget_together(project: Project) -> None:
    filters = [
        {"name": f"f{n}", "filter": [{"function": "regex", "regex_pattern": f"{BACKTRACKING}{n}"}]} for n in range(20)
    ]
    project.task("redos.yaml", output_type="generate_until", doc_to_target="", filter_list=filters)
    result = project.run("--promptfmt-profile", "plain", "-m", "promptfmt_extraction", "-q")
    assert result.parseoutcomes()["failed"] == 1
    assert "did not finish within" in result.stdout.str()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("while True: pass", "did not finish within 1 s of processor time"),
        ("import ctypes; ctypes.string_at(0)", "ended its worker process (signal 11)"),
        ("kept = []\nwhile True: kept.append([0] * 10**6)", "took more than 300 MB of memory"),
    ],
)
def test_code_that_runs_while_tasks_are_collected_has_limits_too(project: Project, body: str, said: str) -> None:
    project.write("modules/hostile.py", f"{body}\n")
    project.task("template.yaml", doc_to_text=None)
    file = project.root / "template.yaml"
    file.write_text(file.read_text("utf-8") + "template: !function modules/hostile.Template\n", "utf-8")
    project.task("other.yaml")
    project.write("promptfmt.yaml", "time_limit: 1\ntask_modules: [modules]\n")
    found, output = outcomes(project, "--promptfmt-memory", "300", "--snapshot-update")
    assert found == {"failed": 2, "passed": 1}
    assert output.count(said) >= 2


def test_tokenizers_that_fail_have_a_budget_together(project: Project) -> None:
    pytest.importorskip("transformers")
    names = ("first", "second", "third")
    for name in names:
        project.write(f"{name}/tokenizer_config.json", json.dumps({"tokenizer_class": "NoSuchClass", "name": name}))
    profiles = {name: {"tokenizer": name, "chat_template": "chatml"} for name in names}
    project.write("promptfmt.yaml", json.dumps({"profiles": profiles, "default_profiles": [*names]}))
    project.write("conftest.py", "from pytest_promptfmt.core.limits import TOKENIZERS\nTOKENIZERS.seconds = 0.1\n")
    project.task("t.yaml")
    options = ("-o", "promptfmt_profiles=", "--promptfmt-workers", "1", "-m", "promptfmt_snapshot", "-q", "-rs")
    result = project.run(*options)
    assert result.parseoutcomes() == {"failed": 1, "skipped": 2}
    assert (
        "the tokenizer was not loaded, because other tokenizers, which failed, had used all the time for loading"
        in result.stdout.str()
    )


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_children_of_a_task_are_gone_when_the_run_is_over(project: Project) -> None:
    sleep = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)', 'left-behind-by-a-task'])"
    function(project, "leaves", sleep)
    outcomes(project, "--snapshot-update")
    deadline = time.monotonic() + 900
    while left_behind() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left_behind()


def left_behind() -> list[str]:
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and b"left-behind-by-a-task" in (place / "cmdline").read_bytes():
                found.append(place.name)
        except OSError:
            continue
    return found


def test_a_busy_machine_gives_the_same_verdicts(project: Project) -> None:
    pattern = [{"name": "x", "filter": [{"function": "regex", "regex_pattern": r"(?i)answer is (\w+)"}]}]
    project.task("arc.yaml", output_type="generate_until", doc_to_target="{{answer}}", filter_list=pattern)
    project.run("--promptfmt-profile", "plain", "--promptfmt-json=quiet.json", "--snapshot-update")
    project.run("--promptfmt-profile", "plain", "--promptfmt-json=quiet.json")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        project.run("--promptfmt-profile", "plain", "--promptfmt-json=busy.json")
    finally:
        for each in busy:
            each.kill()
            each.wait()
    quiet, loud = (json.loads((project.root / f"{name}.json").read_text("utf-8")) for name in ("quiet", "busy"))
    for found in (quiet, loud):
        del found["command"], found["next_steps"]
    assert quiet == loud
