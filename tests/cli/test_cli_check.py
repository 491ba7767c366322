"""`promptfmt check`: what pytest finds, printed as a linter prints it, with its exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import forked_runs
import pytest
from promptfmt_command import git, promptfmt
from slices import needs
from typer.main import get_command

from pytest_promptfmt import cli
from pytest_promptfmt.engine.processes import CAN_FORK

TASK = """\
task: NAME
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metadata: {version: 1, promptfmt: {docs: [{question: Which rusts, choices: [iron, gold], answer: 0}]}}
"""


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three tasks and their snapshots."""
    root = tmp_path_factory.mktemp("accepted")
    (root / "tasks").mkdir()
    (root / "pytest.ini").write_text("[pytest]\naddopts = --of-a-plugin-that-is-not-there\n", "utf-8")
    for name in ("metals", "stones", "woods"):
        (root / f"tasks/{name}.yaml").write_text(TASK.replace("NAME", name), "utf-8")
    assert pytest_in(root, "-q", "--snapshot-update") == 0
    return root


@pytest.fixture
def tasks(tmp_path: Path, accepted: Path) -> Path:
    shutil.copytree(accepted, tmp_path, dirs_exist_ok=True)
    return tmp_path / "tasks"


@pytest.fixture
def settled(tasks: Path) -> Path:
    time.sleep(2.1)  # files that are younger than two seconds are not cached
    return tasks


def pytest_in(folder: Path, *options: str) -> int:
    alone = ["-o", "addopts=", "--promptfmt", "tasks", *options]
    environment = os.environ | {"PYTEST_ADDOPTS": ""}
    return forked_runs.run("pytest", *alone, folder=folder, environment=environment).returncode


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_all_is_well_and_the_second_time_nothing_is_run(settled: Path) -> None:
    first = promptfmt(settled.parent, "check", "tasks")
    assert (first.returncode, first.stdout) == (0, "")
    assert first.stderr == "all is well (3 files checked)\n"
    again = promptfmt(settled.parent, "check", "tasks")
    assert again.stderr == "all is well (3 files checked, 3 unchanged and not tested again)\n"
    assert "unchanged" not in promptfmt(settled.parent, "check", "--no-cache").stderr


def test_tasks_that_cannot_be_rendered_are_not_well_and_the_cause_is_named_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(
            f"task: {name}\ntest_split: test\noutput_type: generate_until\n"
            "doc_to_text: !function parts.head\ndoc_to_target: '{{answer}}'\n",
            "utf-8",
        )
    code = "def head(doc):\n    return str(int(doc['text'].split('[part]')[1]))\n"
    (tmp_path / "parts.py").write_text(code, "utf-8")
    for _ in range(2):
        run = promptfmt(tmp_path, "check")
        assert run.returncode == 0
        assert "\nno errors (2 files checked, " in f"\n{run.stderr}"
        assert ", 6 tests skipped" in run.stderr
        assert run.stdout.count("the Python function parts.head") == 1
        assert "fails with synthetic docs (ValueError: invalid literal for int() with base 10: " in run.stdout
        assert run.stdout.endswith("), 2 tasks\n")
    (skipped,) = json.loads(promptfmt(tmp_path, "check", "--output-format", "json").stdout)["skipped"]
    assert list(skipped["causes"].values()) == [["one", "two"]]


@pytest.mark.parametrize("where", ["a terminal", "CI", "a pipe"])
def test_a_run_says_how_far_it_is_on_a_terminal_and_in_a_log_once_it_takes_long(where: str, tmp_path: Path) -> None:
    member = "- task: t{}\n  test_split: test\n  doc_to_text: '{{{{q}}}}'\n  doc_to_target: a\n"
    (tmp_path / "many.yaml").write_text("group: many\ntask:\n" + "".join(map(member.format, range(40))), "utf-8")
    command = [sys.executable, "-m", "pytest_promptfmt", "check", "many.yaml", "--output-format", "json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "CI": "true" if where == "CI" else ""}
    ours, theirs = os.openpty() if where == "a terminal" else os.pipe()
    shown = ""
    with (tmp_path / "out.json").open("wb") as out:
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=theirs)
        os.close(theirs)
        with contextlib.suppress(OSError):  # how a terminal ends
            while piece := os.read(ours, 4096):
                shown += piece.decode()
        run.wait()
        os.close(ours)
    json.loads((tmp_path / "out.json").read_text("utf-8"))
    count = re.search(r"promptfmt: [\d,]+ of (\d+) tests", shown)
    if where == "a terminal":  # logs: tests/plugin/test_progress.py
        assert count is not None, shown
        assert "\r\x1b[2Kpromptfmt: 40 files, folders and tasks read\r\x1b[2K" in shown
        assert "\r\x1b[2Kall is well (" in shown
    else:
        assert "\x1b" not in shown


def test_a_changed_prompt_is_shown_with_the_command_that_accepts_it(tasks: Path) -> None:
    edit(tasks / "stones.yaml", "Question:", "Q:")
    time.sleep(2.1)
    for _ in range(2):  # the second time from the cache
        found = promptfmt(tasks.parent, "check", "tasks")
        assert found.returncode == 1
        assert "-| Question: Which rusts\n+| Q: Which rusts\n" in found.stdout
        assert "changed, 3 tests of 1 task" in found.stdout
        assert "accept all changes: pytest --promptfmt tasks --snapshot-update\n" in found.stdout
        assert "\nfound problems (3 files checked" in f"\n{found.stderr}"


def test_what_is_remembered_is_what_a_fresh_run_finds_and_what_pytest_finds(tasks: Path) -> None:
    edit(tasks / "stones.yaml", "Question:", "Q:")
    edit(tasks / "woods.yaml", 'Answer:"', 'Answer: "')
    time.sleep(2.1)
    runs = [promptfmt(tasks.parent, "check", "--output-format", "json", *more) for more in ((), (), ("--no-cache",))]
    assert {run.returncode for run in runs} == {1}
    first, second, fresh = (json.loads(run.stdout) for run in runs)
    assert first == second == fresh
    assert (first["counts"]["changed"], first["counts"]["finding"]) == (5, 1)
    report = tasks.parent / "report.json"
    assert pytest_in(tasks.parent, f"--promptfmt-json={report}") == 1
    by_pytest = json.loads(report.read_text("utf-8"))
    commands = ("command", "next_steps")
    assert {key: by_pytest[key] for key in by_pytest if key not in commands} == {
        key: first[key] for key in first if key not in commands
    }


def test_a_release_that_is_not_known_is_named_once(tasks: Path) -> None:
    (tasks.parent / "promptfmt.yaml").write_text('lm_eval: "0.5.0"\n', "utf-8")
    shown = promptfmt(tasks.parent, "check", "tasks")
    said = shown.stdout + shown.stderr
    assert said.count("the prompts of lm-eval 0.5.0 may differ") == 1, said


def test_annotations_of_github_obey_no_text_of_a_task(tasks: Path) -> None:
    edit(tasks / "woods.yaml", "Question: {{question}}\\nAnswer:", "100% of::error::%0A{{question}}\\nAnswer: ")
    found = promptfmt(tasks.parent, "check", "--output-format", "github")
    assert found.returncode == 1
    lines = found.stdout.splitlines()
    assert lines[0].startswith(
        "::error file=tasks/woods.yaml,line=4,col=1,title=PF201 doubled-whitespace::double space"
    )
    assert all(
        line.startswith(("::error file=tasks/", "::warning file=tasks/", "::notice file=tasks/")) for line in lines
    )
    assert not any("%0A{{" in line for line in lines)


def test_an_error_of_a_single_item_is_printed_once(tasks: Path) -> None:
    edit(tasks / "woods.yaml", "doc_to_target", "doc_to_targt")
    done = promptfmt(tasks.parent, "check")
    assert done.returncode == 1
    assert done.stdout.count("unknown task key 'doc_to_targt'") == 1


def test_concise_output_is_one_line_for_each_place_of_a_finding_or_change(tasks: Path) -> None:
    edit(tasks / "woods.yaml", 'Answer:"', 'Answer: "')
    found = promptfmt(tasks.parent, "check", "--output-format", "concise")
    assert found.returncode == 1
    assert found.stdout.splitlines()[0] == (
        "tasks/woods.yaml:4:1: error: PF201 double space between the question and the answer [*]"
    )
    assert any(line.startswith("tasks/woods.yaml:1:1: error: changed: ") for line in found.stdout.splitlines())


def test_without_snapshots_only_mistakes_are_reported(tasks: Path) -> None:
    shutil.rmtree(tasks / "__prompts__")
    time.sleep(2.1)
    for _ in range(2):  # the second time from the cache
        well = promptfmt(tasks.parent, "check")
        assert (well.returncode, well.stdout) == (0, "")
        assert "3 files" in well.stderr
        assert "3 without snapshots; to write snapshots: `promptfmt accept`" in well.stderr
    edit(tasks / "woods.yaml", 'Answer:"', 'Answer: "')
    found = promptfmt(tasks.parent, "check")
    assert found.returncode == 1
    assert found.stdout.splitlines() == [
        "tasks/woods.yaml:4:1: error: PF201 double space between the question and the answer [*]",
        "  saw: on: Which rusts⟨LF⟩Answer:  iron",
        '  do: remove the trailing whitespace from doc_to_text, or set target_delimiter: ""',
        "1 error; try `promptfmt fix` for the 1 marked [*]; details: `promptfmt explain CODE`",
    ]
    assert promptfmt(tasks.parent, "accept", "metals").returncode == 0
    (tasks / "__prompts__/metals/metals/plain.txt").unlink()
    again = promptfmt(tasks.parent, "check", "tasks/metals.yaml")
    assert again.returncode == 1, "a file with other snapshots"
    assert "there is no snapshot yet" in again.stdout


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import a_module_that_is_missing\n", "conftest.py: No module named"),
        (
            'def pytest_addoption(parser):\n    parser.addoption("--snapshot-update")\n',
            "argument --snapshot-update: conflicting option string",
        ),
    ],
    ids=["missing", "option of syrupy"],
)
def test_tasks_are_tested_without_a_conftest_that_cannot_be_loaded(tasks: Path, code: str, said: str) -> None:
    edit(tasks / "woods.yaml", 'Answer:"', 'Answer: "')
    (tasks.parent / "conftest.py").write_text(code, "utf-8")
    for _ in range(2):  # outcomes without it are not cached
        found = promptfmt(tasks.parent, "check")
        assert (found.returncode, "PF201" in found.stdout) == (1, True)
        assert f"without conftest.py files, because this one cannot be loaded: {said}" in found.stderr


def test_statistics_count_what_each_rule_reported(tasks: Path) -> None:
    for name in ("woods", "stones"):
        edit(tasks / f"{name}.yaml", 'Answer:"', 'Answer: "')
    found = promptfmt(tasks.parent, "check", "--statistics")
    assert found.returncode == 1
    assert found.stdout.splitlines()[0] == "2 PF201 doubled-whitespace [*]"


def test_sarif_lists_findings_changes_and_versions(tasks: Path) -> None:
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "tasks"]):
        git(tasks.parent, *command)
    edit(tasks / "woods.yaml", 'Answer:"', 'Answer: "')
    found = promptfmt(tasks.parent, "check", "--base", "HEAD", "--profile", "plain", "--output-format", "sarif")
    assert found.returncode == 1
    (run,) = json.loads(found.stdout)["runs"]
    places = [(each["ruleId"], each["locations"][0]["physicalLocation"]) for each in run["results"]]
    assert all(place["artifactLocation"] == {"uri": "tasks/woods.yaml"} for _, place in places)
    lines = {rule: place.get("region", {}).get("startLine") for rule, place in places}
    assert lines == {"PF201": 4, "changed": None, "version": 7}


def test_fix_makes_what_can_be_made_and_checks_what_is_left(tasks: Path) -> None:
    edit(tasks / "woods.yaml", 'Answer:"', 'Answer: "')
    found = promptfmt(tasks.parent, "check", "--fix")
    assert (found.returncode, "fixed 1 finding in 1 file" in found.stderr) == (0, True)
    assert 'Answer:"' in (tasks / "woods.yaml").read_text("utf-8")
    assert promptfmt(tasks.parent, "check", "--fix", "--output-format", "json").returncode == 2


def test_choices_reach_the_run(tasks: Path) -> None:
    edit(tasks / "stones.yaml", "Question:", "Q:")
    assert promptfmt(tasks.parent, "check", "--task", "metals").returncode == 0
    chosen = promptfmt(tasks.parent, "check", "--profile", "plain", "--task", "stones")
    assert "changed, 1 test of 1 task" in chosen.stdout
    assert "--promptfmt-task=stones --promptfmt-profile=plain --snapshot-update" in chosen.stdout
    assert promptfmt(tasks.parent, "check", "tasks/metals.yaml").returncode == 0


@pytest.mark.slow
def test_a_prompt_that_changed_since_a_revision_without_a_new_version_is_told(tasks: Path) -> None:
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "tasks"]):
        git(tasks.parent, *command)
    assert promptfmt(tasks.parent, "check", "--base", "HEAD").returncode == 0
    edit(tasks / "stones.yaml", "Question:", "Q:")
    assert pytest_in(tasks.parent, "-q", "--snapshot-update") == 0
    found = promptfmt(tasks.parent, "check", "--base", "HEAD")
    assert found.returncode == 1
    assert "tasks/stones.yaml:7:" in found.stdout
    assert "but still has version 1; 1 task: stones" in found.stdout
    annotated = promptfmt(tasks.parent, "check", "--base", "HEAD", "--output-format", "github")
    assert "::error file=tasks/stones.yaml,line=7,title=a task changed without a new version::" in annotated.stdout
    edit(tasks / "stones.yaml", "version: 1", "version: 2")
    assert promptfmt(tasks.parent, "check", "--base", "HEAD", "--profile", "plain").returncode == 0
    assert promptfmt(tasks.parent, "check", "--base", "no-such-revision").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "next_step"),
    [
        ("chek", "did you mean 'check'?"),
        ("lint tasks", "promptfmt check tasks"),
        ("check --profil plain", "did you mean '--profile'?"),
        ("check --profile qwen", "`promptfmt profiles` lists all profiles; *"),
        ("check --output-format xml", "`promptfmt check --help` describes the command"),
        ("check --select PF999", "`promptfmt explain` lists all rules"),
        ("check task", "did you mean 'tasks'?"),
        ("check nowhere", "the working directory contains *'pytest.ini', 'tasks'"),
        ("check nowhere/a.yaml", "there is no folder nowhere"),
        ("check tasks/woods.yaml::wods", "`pytest --promptfmt --collect-only -q tasks/woods.yaml` lists ids"),
        ("freeze tasks/wods.yaml", "did you mean 'woods.yaml'?"),
        ("fix tasks/wods.yaml", "did you mean 'woods.yaml'?"),
        ("why nowhere", "the working directory contains *'pytest.ini', 'tasks'"),
        ("verify --lm-eval nowhere", "name the top folder of a checkout or of an environment"),
        ("profiles taks", "did you mean 'tasks'?"),
        ("init taks", "did you mean 'tasks'?"),
        ("compare tasks/woods.jinja tasks", "did you mean 'woods.yaml'?"),
        ("review tasks/woods.jsonl", "did you mean 'woods.yaml'?"),
        ("show wods", "did you mean 'woods'?"),
        ("explain announced-and-missin", "did you mean PF812 (announced-and-missing)?"),
        ("formats mcq", "did you mean 'mcqa'?"),
        ("schema tusk", "`promptfmt schema --help` describes the command"),
        ("diff", "run the command in a clone of a git repository"),
        ("diff --harness 0.4.13", "write two releases of lm-eval, as in 0.4.9..0.4.13"),
        ("convert tasks/woods.yaml", "add --to mcq, --to cloze or --format NAME"),
        ("record", "--engine llama.cpp:URL, *"),
        ("outdated", "name a copied file and its origin: promptfmt outdated *"),
        ("check pytest.ini", "name a task file, a chat template, or a folder"),
        ("check --fix --output-format json", "run `promptfmt fix --write` first"),
        ("explain PF2O1", "did you mean 'PF201'?"),
    ],
)
def test_a_wrong_use_ends_with_a_next_step(tasks: Path, arguments: str, next_step: str) -> None:
    done = promptfmt(tasks.parent, *arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    *_, last = done.stderr.splitlines()
    assert fnmatchcase(last, f"  hint: {next_step}"), done.stderr


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_has_a_summary_of_each_command(name: str) -> None:
    shown = get_command(cli.app).get_command(None, name)  # type: ignore[attr-defined]
    assert shown.help.partition("\n")[0] == str(cli.command(name).help).partition("\n")[0]


def test_without_a_command_the_help_is_all_that_is_printed(tmp_path: Path) -> None:
    done = promptfmt(tmp_path)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)  # the oldest typer colours it
    assert "Usage: promptfmt" in shown
    assert "hint" not in shown


def test_names_are_those_of_the_options_of_the_command(tasks: Path) -> None:
    assert promptfmt(tasks.parent, "check", "--select", "PF999").stderr.startswith("--select: unknown rule code")
    assert promptfmt(tasks.parent, "check", "--select=").stderr.startswith("--select is empty")
    found = promptfmt(tasks.parent, "check", "--task", "gold")
    assert "--task 'gold' matches none of the 3 tasks: metals, stones, woods" in found.stdout + found.stderr


def test_a_refused_run_is_not_the_last_run(tasks: Path) -> None:
    edit(tasks / "woods.yaml", "Question:", "Q:")
    found = promptfmt(tasks.parent, "check")
    assert found.returncode == 1
    assert found.stdout.startswith("woods [plain]: 1 of 1 doc changed\n")
    assert promptfmt(tasks.parent, "check", "tasks/woods.yaml::wods").returncode == 2
    assert promptfmt(tasks.parent, "accept").stderr == "3 of 3 snapshots accepted\n"


def test_a_file_that_cannot_be_read_is_one_message_and_the_others_are_tested(tasks: Path) -> None:
    edit(tasks / "stones.yaml", "doc_to_target: answer", "doc_to_target: [answer")
    edit(tasks / "woods.yaml", "Question:", "Q:")
    found = promptfmt(tasks.parent, "check")
    assert found.returncode == 1
    assert "tasks/stones.yaml:7:" in found.stdout
    assert "+| Q: Which rusts" in found.stdout


@pytest.mark.slow
def test_watch_checks_again_after_a_change(tasks: Path) -> None:
    pytest.importorskip("watchfiles")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "WATCHFILES_FORCE_POLLING": "true"}
    command = [sys.executable, "-m", "pytest_promptfmt", "check", "tasks", "--watch"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    options["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # jobs in the background ignore it
    with subprocess.Popen(command, cwd=tasks.parent, env=environment, **options) as running:
        try:
            assert "all is well (3 files checked)" in _until(running, "all is well")
            time.sleep(2)
            edit(tasks / "stones.yaml", "Question:", "Q:")
            assert "+| Q: Which rusts" in _until(running, "found problems")
            running.send_signal(signal.SIGINT)
            assert running.wait(120) == 0
        finally:
            running.kill()


def _until(running: subprocess.Popen[bytes], end: str) -> str:
    """Return what a process prints up to a text; whoever waits longer than the runner allows has no such text."""
    said = b""
    assert running.stdout is not None
    while end.encode() not in said:
        ready, _, _ = select.select([running.stdout], [], [], 120)
        assert ready, said.decode()
        said += os.read(running.stdout.fileno(), 65536)
    return said.decode()


@needs("templates")
def test_warnings_are_no_errors_and_not_all_is_well(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(
        " {{ '' }}{% if tools %}<|begin|>tools\n{{ tools | tojson }}<|end|>\n{% endif %}"
        "{% for m in messages %}<|begin|>{{ m.role + '\n' + (m.content or '') }}"
        "{% for call in m.tool_calls or [] %}"
        "<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>{% endfor %}"
        "<|end|>\n{% endfor %}",
        "utf-8",
    )
    update = ("--promptfmt", "-q", "--snapshot-update")
    forked_runs.run("pytest", *update, folder=tmp_path)
    assert (
        "\nfound problems (1 file checked" in f"\n{promptfmt(tmp_path, 'check').stderr}"
    )  # after progress, if it is slow
    adding = "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
    with (tmp_path / "chat_template.jinja").open("a", encoding="utf-8") as file:
        file.write(adding)
    forked_runs.run("pytest", *update, folder=tmp_path)
    found = promptfmt(tmp_path, "check")
    assert (found.returncode, found.stderr) == (0, "no errors (1 file checked)\n")
    assert "warning" in found.stdout


@needs("templates")
def test_a_folder_without_tasks_has_its_templates_checked(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats/brief.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{{ m.nane }}{% endfor %}", "utf-8"
    )
    done = promptfmt(tmp_path, "check", "--output-format", "concise")
    assert "there are no task files; checking the chat templates in chats" in done.stderr
    assert "chats/brief.jinja" in done.stdout
    assert "1 file" in done.stderr
    (tmp_path / "arc.yaml").write_text(TASK.replace("NAME", "arc"), "utf-8")
    assert "chats" not in promptfmt(tmp_path, "check", "--output-format", "concise").stdout


@pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")
def test_a_check_leaves_the_first_snapshot_of_a_template_to_pytest(tmp_path: Path) -> None:
    turn = "{% for m in messages %}<|begin|>{{ m.role + '\n' + (m.content or '') }}<|end|>\n{% endfor %}"
    prompt = "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
    (tmp_path / "chat_template.jinja").write_text(turn + prompt, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    shown = [promptfmt(tmp_path, "check", ".") for _ in range(2)]
    assert ["1 unchanged" in each.stderr for each in shown] == [False, True]
    assert shown[0].stdout == shown[1].stdout
    run = ("--promptfmt", "-q", ".")
    assert "<|begin|>assistant" in forked_runs.run("pytest", *run, folder=tmp_path).stdout  # the new snapshot
    assert "1 unchanged" in promptfmt(tmp_path, "check", ".").stderr
    forked_runs.run("pytest", *run, "--snapshot-update", folder=tmp_path)
    assert "1 snapshot passed" in forked_runs.run("pytest", *run, folder=tmp_path).stdout
