"""`promptfmt init` leaves a repository whose tests pass, and changes no file that was there."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import forked_runs
import pytest
import yaml
from promptfmt_command import promptfmt, write_task

pytestmark = pytest.mark.slow


def status(folder: Path, *options: str) -> int:
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    return forked_runs.run("pytest", "--promptfmt", "-q", *options, folder=folder, environment=environment).returncode


def test_an_empty_folder_becomes_a_project_whose_tests_pass(tmp_path: Path) -> None:
    done = promptfmt(tmp_path, "init", "--action", "somebody/pytest-promptfmt@0123456789abcdef0123456789abcdef01234567")
    assert done.returncode == 0
    assert status(tmp_path, "--snapshot-update") == 0
    assert status(tmp_path) == 0
    workflow = yaml.safe_load((tmp_path / ".github/workflows/prompts.yaml").read_text("utf-8"))
    assert list(workflow["jobs"]) == ["prompts", "comment"]
    again = promptfmt(tmp_path, "init")
    assert again.stdout.count("already exists, and was not changed") == 2, "settings and workflow; no example"
    assert (
        "to run prompt tests with plain `pytest` and in editors, add this line "
        "to pytest.ini, below [pytest]: promptfmt = true" in done.stdout
    )
    assert (tmp_path / ".gitattributes").read_text("utf-8").count("__prompts__") == 1
    assert (tmp_path / ".gitignore").read_text("utf-8") == ".promptfmt-*.tmp\n"


def test_what_is_there_stays_and_a_baseline_accepts_it(tmp_path: Path) -> None:
    write_task(tmp_path, "old", "Q: {{question}}\\nA: ", doc_to_choice="[a, b]")
    file = tmp_path / "tasks/old.yaml"
    file.write_text(file.read_text("utf-8").replace("generate_until", "multiple_choice"), "utf-8")
    (tmp_path / ".gitattributes").write_text("*.png binary", "utf-8")
    (tmp_path / "promptfmt.yaml").write_text("docs: 1\n", "utf-8")
    done = promptfmt(tmp_path, "init", "--no-workflow", "--baseline")
    assert done.returncode == 0
    assert (tmp_path / "promptfmt.yaml").read_text("utf-8") == "docs: 1\n"
    assert (tmp_path / ".gitattributes").read_text("utf-8").splitlines()[0] == "*.png binary"
    assert not (tmp_path / "tasks/capitals.yaml").exists()
    assert not (tmp_path / ".github").exists()
    lines = (tmp_path / "promptfmt-baseline.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["code"] for line in lines[1:]} >= {"PF201"}
    assert status(tmp_path, "-m", "promptfmt_lint") == 1
    assert status(tmp_path, "-m", "promptfmt_lint", "--promptfmt-baseline=promptfmt-baseline.jsonl") == 0
    assert "add this line to promptfmt.yaml: baseline: promptfmt-baseline.jsonl" in done.stdout
    assert "pytest.ini, below [pytest]: promptfmt = true" in done.stdout
    (tmp_path / "promptfmt.yaml").write_text("docs: 1\nbaseline: promptfmt-baseline.jsonl\n", "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\npromptfmt = true\n", "utf-8")
    assert "to promptfmt.yaml: baseline" not in promptfmt(tmp_path, "init", "--no-workflow", "--baseline").stdout
    assert status(tmp_path, "-m", "promptfmt_lint") == 0


UNEVEN = "Passage: {{passage}}\\nQuestion:{{question}}\\nAnswer:"


def test_findings_about_style_are_left_out_if_they_are_not_wanted(tmp_path: Path) -> None:
    kept, ignored, own = (tmp_path / name for name in ("kept", "ignored", "own"))
    for folder in (kept, ignored, own):
        write_task(folder, "old", UNEVEN)
    (own / "promptfmt.yaml").write_text("docs: 1\n", "utf-8")
    assert promptfmt(kept, "init", "--no-workflow", "--baseline").returncode == 0
    assert '"PF240"' in (kept / "promptfmt-baseline.jsonl").read_text("utf-8")
    done = promptfmt(ignored, "init", "--no-workflow", "--baseline", "--no-style")
    assert "1 entry about style removed from promptfmt-baseline.jsonl" in done.stdout
    assert '"PF240"' not in (ignored / "promptfmt-baseline.jsonl").read_text("utf-8")
    assert "PF240" in yaml.safe_load((ignored / "promptfmt.yaml").read_text("utf-8"))["ignore"]
    assert "PF240" not in promptfmt(ignored, "check").stdout
    assert (
        "to ignore findings about style, add this line to promptfmt.yaml: ignore: ["
        in promptfmt(own, "init", "--no-style").stdout
    )


def test_in_a_terminal_init_asks_for_the_kind_and_about_style(tmp_path: Path) -> None:
    write_task(tmp_path, "old", UNEVEN)
    terminal, inner = pty.openpty()
    os.write(terminal, b"museum\nbenchmarks\nn\nn\n")
    command = [sys.executable, "-m", "pytest_promptfmt", "init", "--baseline", "--no-workflow"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=inner, stdout=inner, stderr=inner) as run:
        os.close(inner)
        shown = b""
        with suppress(OSError):  # the end of a terminal
            while more := os.read(terminal, 4096):
                shown += more
    os.close(terminal)
    assert run.returncode == 0, shown
    assert b"Choose one of benchmarks, fork, model, training." in shown
    assert b"Also report findings about style (1 entry in the baseline)" in shown
    assert "PF240" in yaml.safe_load((tmp_path / "promptfmt.yaml").read_text("utf-8"))["ignore"]
    assert '"PF240"' not in (tmp_path / "promptfmt-baseline.jsonl").read_text("utf-8")


def test_a_conftest_that_cannot_be_imported_keeps_no_baseline_from_being_written(tmp_path: Path) -> None:
    write_task(tmp_path, "old", "{{question")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/conftest.py").write_text("import a_harness_that_is_not_installed\n", "utf-8")
    done = promptfmt(tmp_path, "init", "--baseline")
    assert done.returncode == 0
    assert "promptfmt-baseline.jsonl written, 1 entry: 1 error\n" in done.stdout
    assert "next: run pytest --promptfmt --noconftest --snapshot-update" in done.stdout
    assert "--noconftest" in (tmp_path / ".github/workflows/prompts.yaml").read_text("utf-8")
    assert status(tmp_path, "--noconftest") == 0


def test_a_signal_ends_the_run_of_pytest_as_well(tmp_path: Path) -> None:
    write_task(tmp_path, "one")
    wait = "import os, pathlib, time\npathlib.Path('started').write_text(str(os.getpid()))\ntime.sleep(600)\n"
    (tmp_path / "conftest.py").write_text(wait, "utf-8")
    command = [sys.executable, "-m", "pytest_promptfmt", "init", "--baseline"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while not (tmp_path / "started").is_file() or not (child := (tmp_path / "started").read_text("utf-8")):
            assert run.poll() is None
            time.sleep(0.1)
        run.terminate()
    assert run.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)


def test_below_a_rootdir_init_writes_no_key_of_the_rootdir(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", "utf-8")
    folder = tmp_path / "evals"
    folder.mkdir()
    write_task(folder, "bad", "{{question")
    done = promptfmt(folder, "init", "--no-workflow", "--baseline")
    assert "promptfmt-baseline.jsonl written, 1 entry: 1 error\n" in done.stdout
    [line] = (folder / "promptfmt-baseline.jsonl").read_text("utf-8").splitlines()[1:]
    assert "tasks/bad.yaml" in line
    assert "template" in json.loads(line)["message"]
    assert status(folder, "--promptfmt-baseline=promptfmt-baseline.jsonl") == 0


def test_a_baseline_of_init_holds_for_pytest_called_by_its_name(tmp_path: Path) -> None:
    write_task(tmp_path, "coded", "TEXT")
    file = tmp_path / "tasks/coded.yaml"
    file.write_text(file.read_text("utf-8").replace('"TEXT"', "!function code.text"), "utf-8")
    (tmp_path / "tasks/code.py").write_text("import json.nowhere\n\ndef text(doc):\n    return ''\n", "utf-8")
    assert promptfmt(tmp_path, "init", "--no-workflow", "--baseline").returncode == 0
    [line] = (tmp_path / "promptfmt-baseline.jsonl").read_text("utf-8").splitlines()[1:]
    command = [sys.executable, "-P", "-m", "pytest", "--promptfmt", "-q", "-m", "promptfmt_lint"]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, (line, done.stdout)


def test_a_fork_of_a_harness_is_green_on_its_first_day_and_new_mistakes_are_red(tmp_path: Path) -> None:
    folder = tmp_path / "lm_eval/tasks/old"
    folder.mkdir(parents=True)
    task = (
        'task: old\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: "Q: {{question}}\\nA: "\n'
        "doc_to_choice: [a, b]\ndoc_to_target: answer\n"
    )
    (folder / "old.yaml").write_text(task, "utf-8")
    (folder / "utils.py").write_text("import yaml\nimport os\nfrom . import more\nimport not_there\n", "utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_own.py").write_text("import not_there\n", "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --cov=x\n", "utf-8")
    (tmp_path / "lm_eval/api").mkdir()
    (tmp_path / "lm_eval/api/task.py").touch()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "lm_eval"\nversion = "0.4.9"\n', "utf-8")
    done = promptfmt(tmp_path, "init", "--action", "somebody/pytest-promptfmt@0123456789abcdef0123456789abcdef01234567")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("a checkout of lm-eval 0.4.9\n")
    assert "To write snapshots for some tasks: pytest --promptfmt PATH --snapshot-update" in done.stdout
    settings = yaml.safe_load((tmp_path / "promptfmt.yaml").read_text("utf-8"))
    assert settings["paths"] == ["lm_eval/tasks/old"]
    workflow = yaml.safe_load((tmp_path / ".github/workflows/prompts.yaml").read_text("utf-8"))
    inputs = workflow["jobs"]["prompts"]["steps"][-1]["with"]
    assert "pyyaml" in inputs["packages"].lower()
    arguments = ["-o", "addopts=", "-o", "python_files="]
    assert status(tmp_path, *arguments) == 0
    (folder / "new.yaml").write_text(task.replace("old", "new"), "utf-8")
    assert status(tmp_path, *arguments) == 1


def test_a_repository_of_chat_templates_gets_no_tasks_and_only_the_settings_it_needs(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    model, training = tmp_path / "model", tmp_path / "training"
    for folder in (model, training / "assets/templates"):
        folder.mkdir(parents=True)
        (folder / "chat_template.jinja").write_text(template, "utf-8")
    assert promptfmt(model, "init").returncode == 0
    assert {path.name for path in model.iterdir()} == {".gitattributes", ".gitignore", ".github", "chat_template.jinja"}
    done = promptfmt(training, "init")
    assert done.returncode == 0
    assert "next: run pytest --promptfmt --snapshot-update" in done.stdout
    assert "failed" not in done.stdout + done.stderr, "missing snapshots are the next step"
    assert yaml.safe_load((training / "promptfmt.yaml").read_text("utf-8")) == {
        "templates": ["assets/templates"],
        "paths": ["assets/templates"],
        "baseline": "promptfmt-baseline.jsonl",
    }
    assert not (training / "tasks").exists()
    assert (training / "promptfmt-baseline.jsonl").is_file()
    forced = promptfmt(tmp_path / "model", "init", "--kind", "benchmarks", "--no-workflow")
    assert "promptfmt.yaml written" in forced.stdout


COMMIT = "0123456789abcdef0123456789abcdef01234567"
URL = "Project-URL: Source, https://github.com/somebody/pytest-promptfmt\n"


def test_a_repository_of_runs_of_helm_gets_no_example(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"adapter_spec": {"method": "generation"}}), "utf-8")
    assert promptfmt(tmp_path, "init", "--no-workflow").returncode == 0
    assert not (tmp_path / "tasks").exists()


@pytest.mark.parametrize(
    ("origin", "action", "remarks"),
    [
        (None, "", 1),
        ({"url": "file:///clone", "dir_info": {"editable": True}}, "", 1),
        (
            {"url": "https://github.com/a/fork.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
            f"a/fork@{COMMIT}",
            0,
        ),
    ],
)
def test_the_workflow_uses_the_action_of_what_is_installed(
    tmp_path: Path, origin: dict[str, Any] | None, action: str, remarks: int
) -> None:
    # What pip leaves behind, in the folder where Python looks first.
    about = tmp_path / "pytest_promptfmt-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.4\nName: pytest-promptfmt\nVersion: 0.1.0\n{URL}", "utf-8")
    if origin is not None:
        (about / "direct_url.json").write_text(json.dumps(origin), "utf-8")
    done = promptfmt(tmp_path, "init", "--no-example")
    assert done.stdout.count("run init with --action somebody/pytest-promptfmt@COMMIT") == remarks
    jobs = yaml.safe_load((tmp_path / ".github/workflows/prompts.yaml").read_text("utf-8"))["jobs"]
    if not action:
        assert "OWNER" not in (tmp_path / ".github/workflows/prompts.yaml").read_text("utf-8")
        assert "pip install pytest-promptfmt==0.1.0" in jobs["prompts"]["steps"][2]["run"]
        return
    name, revision = action.split("@")
    assert jobs["prompts"]["steps"][-1]["uses"] == action
    assert jobs["comment"]["steps"][0]["uses"] == f"{name}/comment@{revision}"


def test_facts_of_chat_templates_are_said_as_they_were_found_out(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ raise_exception('not today') }}", "utf-8")
    (tmp_path / "promptfmt.yaml").write_text(
        "profiles: {mine: {chat_template: mine.jinja}, lost: {tokenizer: no/where, chat_template: own}}\n", "utf-8"
    )
    told = promptfmt(tmp_path, "profiles", "--facts").stdout
    gemma = told.partition("\nchat-gemma ")[2].partition("\nchat-")[0]
    assert "\n    user stripped, assistant stripped, system refused\n" in gemma
    assert "\n    refuses two user messages in a row and an answer first\n" in gemma
    assert '\n    adds the generation prompt "<start_of_turn>model\\n"\n' in gemma
    assert "renders nothing: TemplateError: not today\n" in told
    assert "renders nothing: 'no/where' is neither a path nor a tokenizer" in told
    data = {each["name"]: each for each in json.loads(promptfmt(tmp_path, "profiles", "--facts", "--json").stdout)}
    assert data["chat-gemma"]["facts"]["takes_two_users"] is False
    assert data["plain"]["facts"] is None


def test_profiles_and_checks_are_listed_as_data(tmp_path: Path) -> None:
    (tmp_path / "promptfmt.yaml").write_text("profiles: {mine: {tokenizer: 'archetype:unigram-t5'}}\n", "utf-8")
    profiles = {entry["name"]: entry for entry in json.loads(promptfmt(tmp_path, "profiles", "--json").stdout)}
    assert profiles["plain"]["template"] is None
    assert "unigram-t5" in profiles["mine"]["tokenizer"]
    assert [name for name, entry in profiles.items() if entry["default"]] == ["plain", "mine"]
    settings = tmp_path / "promptfmt.yaml"
    settings.write_text(settings.read_text("utf-8") + "default_profiles: [mine, chat-gemma]\n", "utf-8")
    chosen = json.loads(promptfmt(tmp_path, "profiles", "--json").stdout)
    assert [entry["name"] for entry in chosen if entry["default"]] == ["chat-gemma", "mine"]
    listed = json.loads(promptfmt(tmp_path, "explain", "--json").stdout)
    assert {"code": "PF201", "name": "doubled-whitespace", "severity": "error"}.items() <= next(
        rule for rule in listed if rule["code"] == "PF201"
    ).items()


@pytest.mark.parametrize(
    ("tried", "meant"),
    [(["test", "tasks"], "pytest --promptfmt tasks"), (["lint", "tasks"], "promptfmt check tasks")],
)
def test_commands_that_people_try_point_to_what_does_it(tmp_path: Path, tried: list[str], meant: str) -> None:
    done = promptfmt(tmp_path, *tried)
    assert done.returncode == 2
    assert done.stderr == f"unknown command {tried[0]!r}\n  hint: {meant}\n"


FIXTURES = Path(__file__).parents[2] / "fixtures"
MATCHERS = {
    "$gcc of VS Code": r"^(.*?):(\d+):(\d*):?\s+(?:fatal\s+)?(warning|error):\s+(.*)$",
    "mypy": r"^(.+?):(\d+):(\d+): (error|warning|note): (.*)$",
    "ruff": r"^(.+?):(\d+):(\d+):? (.*)$",
    "pytest": r"^(.+?):(\d+): ?(.*)$",
    "file, line, column and message of any tool": r"^([^:]+):(\d+):(\d+):\s*(.*)$",
}
"""What editors use for the output of other tools."""


def test_an_editor_gets_schemas_and_a_task_that_reads_the_lines_of_check(tmp_path: Path) -> None:
    file = write_task(tmp_path, "old", "Q: {{question}}\\nA: ", doc_to_choice="[a, b]")
    file.write_text(file.read_text("utf-8").replace("generate_until", "multiple_choice"), "utf-8")
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode/settings.json").write_text("{}", "utf-8")
    done = promptfmt(tmp_path, "init", "--no-workflow", "--editor")
    assert ".vscode/settings.json already exists, and was not changed" in done.stdout
    assert (tmp_path / ".vscode/settings.json").read_text("utf-8") == "{}"
    (tmp_path / ".vscode/settings.json").unlink()
    promptfmt(tmp_path, "init", "--no-workflow", "--editor")
    settings = json.loads((tmp_path / ".vscode/settings.json").read_text("utf-8"))
    assert settings["yaml.schemas"][".vscode/promptfmt-task.schema.json"] == ["tasks/**/*.yaml"]
    for name in settings["yaml.schemas"]:
        assert json.loads((tmp_path / name).read_text("utf-8"))["type"] == "object"
    [task] = json.loads((tmp_path / ".vscode/tasks.json").read_text("utf-8"))["tasks"]
    pattern = task["problemMatcher"]["pattern"]
    slow = shutil.ignore_patterns("endless*", "*hangs*")
    shutil.copytree(FIXTURES / "broken", tmp_path / "broken", ignore=slow)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.nane }}{% endfor %}", "utf-8"
    )
    command = [*task["command"].split()[1:], "--profile", "chat-mistral", "tasks", "broken", "chat_template.jinja"]
    lines = promptfmt(tmp_path, *command).stdout.splitlines()
    found = [re.match(pattern["regexp"], line) for line in lines]
    assert all(found), [line for line, each in zip(lines, found, strict=True) if each is None]
    parts = [[each[pattern[name]] for name in ("file", "line", "severity", "code")] for each in found if each]
    assert ["tasks/old.yaml", "4", "error", "PF201"] in parts
    assert ["broken/missing_docs.yaml", "10", "error", None] in parts
    assert {"PF201", None} < {code for *_, code in parts}
    assert {severity for _, _, severity, _ in parts} == {"error", "warning", "info"} - {"info"}
    for name, matcher in MATCHERS.items():
        assert all(re.match(matcher, line) for line in lines), name
    files = {file for file, *_ in parts}
    assert {"broken", "tasks", "chat_template.jinja"} <= {Path(file).parts[0] for file in files}
    assert all((tmp_path / file).is_file() for file in files - {"promptfmt.yaml"})


def test_the_schema_covers_tasks_in_the_top_folder_and_an_action_needs_a_commit(tmp_path: Path) -> None:
    write_task(tmp_path, "old", "Q: {{question}}\\nA:").rename(tmp_path / "old.yaml")
    refused = promptfmt(tmp_path, "init", "--action", "somebody/pytest-promptfmt@v1.2.3")
    assert refused.returncode == 2
    assert not (tmp_path / "promptfmt.yaml").exists()
    assert promptfmt(tmp_path, "init", "--no-workflow", "--editor").returncode == 0
    settings = json.loads((tmp_path / ".vscode/settings.json").read_text("utf-8"))
    assert settings["yaml.schemas"][".vscode/promptfmt-task.schema.json"] == ["*.yaml", "!promptfmt.yaml", "!.*/**"]
