"""The GitHub Action, the workflow of `promptfmt init` and the pre-commit hooks: their scripts are run as they stand."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
TASK = (
    'task: arc\ntest_split: test\noutput_type: generate_until\ndoc_to_text: "Q: {{question}}\\nA:"\ndoc_to_target: a\n'
)


# A token that is not in the environment cannot be used, nor found.
# Keeps the comments of pull request 7 as files; that of the id 11 is there where `commented-11.md` is.
GH = """#!/bin/bash
[[ $GH_TOKEN == a-token ]] || { echo "no token" >&2; exit 4; }
case "$*" in
  "api --paginate repos/o/r/issues/7/comments --jq "*startswith*) [[ ! -e commented-11.md ]] || echo 11 ;;
  "api repos/o/r/issues/comments/11 --jq .body") cat commented-11.md ;;
  "api --method PATCH repos/o/r/issues/comments/11 --field body=@"*) cp "${6#body=@}" commented-11.md ;;
  "api --method POST repos/o/r/issues/7/comments --field body=@"*)
    [[ -z $READ_ONLY ]] && cp "${6#body=@}" commented-11.md ;;
  *) echo "what is this: $*" >&2; exit 3 ;;
esac
"""


def steps(file: str) -> dict[str, dict[str, Any]]:
    content = yaml.safe_load((ROOT / file).read_text("utf-8"))
    jobs = [content["runs"]] if "runs" in content else content["jobs"].values()
    return {step["name"]: step for job in jobs for step in job["steps"] if "name" in step}


def compare_and_comment(
    rendering: str, commenting: str, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run what compares with the base, and then what comments, which alone has the token and gets one file."""
    script = steps(rendering)["Compare with the base"]["run"]
    script = script.replace("\npromptfmt diff", "\npython -m pytest_promptfmt diff")
    output = folder / "promptfmt-output"
    output.unlink(missing_ok=True)
    done = run(script, folder, GITHUB_OUTPUT=str(output), **variables)
    if done.returncode:
        return done
    differs = output.read_text("utf-8").partition("differs=")[2].strip()
    return run(
        steps(commenting)["Comment what changed"]["run"], folder, DIFFERS=differs, GH_TOKEN="a-token", **variables
    )


def all_steps(file: str) -> list[dict[str, Any]]:
    content = yaml.safe_load((ROOT / file).read_text("utf-8"))
    jobs = [content["runs"]] if "runs" in content else content["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def run(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "GIT_CONFIG_GLOBAL": os.devnull}
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # As GitHub runs `shell: bash`.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=environment | variables, capture_output=True, text=True, timeout=900)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository on a branch that changes one delimiter, and a `gh` that has one pull request."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/arc.yaml").write_text(TASK, "utf-8")
    (tmp_path / "tasks/with blank.yaml").write_text(TASK.replace("arc", "blank"), "utf-8")
    (tmp_path / ".gitignore").write_text("bin/\npromptfmt*\ncommented*\n", "utf-8")
    run("python -m pytest --promptfmt -q --snapshot-update", tmp_path)
    commit = "git -c user.name=A -c user.email=a@example.org commit -qm"
    assert run(f"git init -q && git add . && {commit} one", tmp_path).returncode == 0
    (tmp_path / "tasks/arc.yaml").write_text(TASK.replace("A:", "A: "), "utf-8")
    assert run(f"git add . && {commit} two", tmp_path).returncode == 0
    (tmp_path / "bin").mkdir()
    gh = tmp_path / "bin/gh"
    gh.write_text(GH, "utf-8")
    gh.chmod(0o755)
    return tmp_path


def test_the_action_fails_on_a_changed_prompt_and_leaves_patch_report_and_summary(repository: Path) -> None:
    script = steps("action.yml")["Compare with the snapshots"]["run"]
    nothing = {"PATHS": "", "ARGS": "", "SHARD": ""}
    summary = repository / "promptfmt-summary.md"
    done = run(script, repository, **nothing, GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 1
    assert "+| A: ⟨end⟩" in summary.read_text("utf-8")
    assert {path.name for path in (repository / "promptfmt").iterdir()} == {
        "accept.patch",
        "report.html",
        "result.json",
        "next-steps.md",
    }
    before = {each: steps("action.yml")[each]["run"] for each in ("Clean up", "Keep the result for the next push")}
    assert run(before["Keep the result for the next push"], repository).returncode == 0
    assert run(script, repository, **nothing, GITHUB_STEP_SUMMARY=str(summary)).returncode == 1
    assert "compared with the earlier run: 0 new problems, 0 gone" in (repository / "promptfmt/report.html").read_text(
        "utf-8"
    )
    assert run("git apply promptfmt/accept.patch", repository).returncode == 0
    hostile = "tasks/with blank.yaml\n$(touch promptfmt-broken)"
    assert run(script, repository, **nothing | {"PATHS": hostile}).returncode != 0
    assert not (repository / "promptfmt-broken").exists()
    assert run(script, repository, **nothing | {"PATHS": "tasks/with blank.yaml", "SHARD": "1/1"}).returncode == 0
    assert run(before["Clean up"], repository).returncode == 0
    assert not [*(repository / "promptfmt").iterdir()]


WORKFLOW = "pytest_promptfmt/data/init/workflow.yaml"
ACTION, COMMENT = "action.yml", "comment/action.yml"


def test_the_comment_says_what_changed_against_the_base_and_every_step_to_pass(repository: Path) -> None:
    file, commenting = ACTION, COMMENT
    comment = repository / "commented-11.md"
    before = {
        "NUMBER": "7",
        "REPOSITORY": "o/r",
        "OUTCOME": "failure",
        "RUN": "https://example.org/run",
        "READ_ONLY": "",
    }
    assert compare_and_comment(file, commenting, repository, BASE="nope", **before).returncode == 2
    assert compare_and_comment(file, commenting, repository, BASE="HEAD", **before).returncode == 0
    assert not comment.exists(), "nothing changed, nothing is said"
    forked = compare_and_comment(file, commenting, repository, BASE="HEAD~1", **before | {"READ_ONLY": "1"})
    assert (forked.returncode, "could not comment: " in forked.stdout, comment.exists()) == (0, True, False)
    assert compare_and_comment(file, commenting, repository, BASE="HEAD~1", **before).returncode == 0
    assert "-| A:⟨end⟩\n+| A: ⟨end⟩" in comment.read_text("utf-8")
    assert "To pass" not in comment.read_text("utf-8"), "there is no result"
    task = repository / "tasks/letters.yaml"
    text = TASK.replace("arc", "letters").replace("generate_until", "multiple_choice") + "doc_to_choice: [a, b]\n"
    task.write_text(text.replace("A:", "A: "), "utf-8")
    assert (
        run(steps(file)["Compare with the snapshots"]["run"], repository, PATHS="", ARGS="", SHARD="").returncode == 1
    )
    task.unlink()
    assert compare_and_comment(file, commenting, repository, BASE="HEAD~1", **before).returncode == 0
    assert "Since the last push" not in comment.read_text("utf-8"), "the same change"
    said = comment.read_text("utf-8").rpartition("**To pass** ")[2].splitlines()
    assert said[0] == "([this run](https://example.org/run) keeps the patch and a report):"
    steps_said = [line for line in said if line.startswith("- ")]
    assert "PF201" in steps_said[0]
    assert "--snapshot-update does not fix findings" in steps_said[0]
    assert "git apply promptfmt/accept.patch" in steps_said[-1]
    assert (
        compare_and_comment(file, commenting, repository, BASE="HEAD", **before | {"OUTCOME": "success"}).returncode
        == 0
    )
    assert "nothing changed" in comment.read_text("utf-8"), "what was said before is brought up to date"
    assert comment.read_text("utf-8").splitlines()[1] == "Since the last push: 0 new, 1 gone."
    assert "To pass" not in comment.read_text("utf-8")


def test_what_runs_files_of_a_pull_request_has_no_token_and_the_actions_are_pinned() -> None:
    for file in (ACTION, COMMENT, WORKFLOW):
        text = (ROOT / file).read_text("utf-8")
        uses = [step["uses"] for step in all_steps(file) if "uses" in step]
        assert uses
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}|ACTION|COMMENT", each) for each in uses)
        for step in all_steps(file):
            if "promptfmt diff" in str(step) or "--promptfmt" in str(step):
                assert "token" not in str(step).lower()
                assert "secrets" not in str(step)
        assert text.count("github.token") == (file == COMMENT)
    jobs = yaml.safe_load((ROOT / WORKFLOW).read_text("utf-8"))["jobs"]
    assert jobs["prompts"]["permissions"] == {"contents": "read"}
    assert jobs["prompts"]["steps"][0]["with"]["persist-credentials"] is False
    assert jobs["comment"]["permissions"] == {"pull-requests": "write"}
    assert not any("checkout" in str(step) or "pip" in str(step) for step in jobs["comment"]["steps"])


def test_a_hostile_pull_request_gets_no_token_into_any_output(repository: Path) -> None:
    """The workflow offline: a token in the environment of the comment alone, files that ask for the environment."""
    leak = TASK.replace("arc", "leak").replace("Q: {{question}}", "{{ environ }}")
    data = "dataset_path: csv\ndataset_kwargs: {data_files: {test: /proc/self/environ}, column_names: [environ]}\n"
    (repository / "tasks/leak.yaml").write_text(leak + data, "utf-8")
    (repository / "tasks/promptfmt.yaml").write_text("profiles: {x: {chat_template: /proc/self/environ}}\n", "utf-8")
    (repository / "tasks/fn.yaml").write_text(TASK.replace("arc", "fn") + "process_docs: !function fn.f\n", "utf-8")
    (repository / "tasks/fn.py").write_text("import os\ndef f(docs): raise ValueError(dict(os.environ))\n", "utf-8")
    assert (
        run("git add . && git -c user.name=A -c user.email=a@example.org commit -qm three", repository).returncode == 0
    )
    script, nothing = steps(ACTION)["Compare with the snapshots"]["run"], {"PATHS": "", "ARGS": "", "SHARD": ""}
    render = run(script, repository, **nothing)
    (repository / "tasks/promptfmt.yaml").unlink()
    again = run(script, repository, **nothing)
    names = {
        "NUMBER": "7",
        "REPOSITORY": "o/r",
        "OUTCOME": "failure",
        "RUN": "https://example.org/run",
        "READ_ONLY": "",
    }
    comment = compare_and_comment(ACTION, COMMENT, repository, BASE="HEAD~1", **names)
    said = [each.stdout + each.stderr for each in (render, again, comment)]
    written = [
        path.read_text("utf-8", "replace")
        for path in repository.rglob("*")
        if path.is_file() and ".git/" not in str(path)
    ]
    assert "files of the operating system are never opened" in "".join(said)
    assert (repository / "commented-11.md").exists()
    assert not any("a-token" in text and "GH_TOKEN ==" not in text for text in [*said, *written])


def test_the_action_runs_task_files_alone_and_installs_what_it_is_told(repository: Path) -> None:
    (repository / "pytest.ini").write_text("[pytest]\naddopts = --cov=x -n auto\n", "utf-8")
    (repository / "tests").mkdir()
    (repository / "tests/test_own.py").write_text("import a_package_that_is_not_there\n", "utf-8")
    script = steps(ACTION)["Compare with the snapshots"]["run"]
    done = run(script, repository, PATHS="", ARGS="--snapshot-update", SHARD="")
    assert done.returncode == 0, done.stdout
    install = steps(ACTION)["Install"]["run"].replace("python -P -m pip", "echo")
    said = run(install, repository, GITHUB_ACTION_PATH="/action", PACKAGES="a==1\nb[c]>=2")
    assert said.stdout == "install --quiet /action a==1 b[c]>=2\n"
    assert run(install, repository, GITHUB_ACTION_PATH="/a", PACKAGES="").stdout == "install --quiet /a\n"


def test_a_hook_runs_tasks_alone_whatever_the_project_asks_of_pytest(repository: Path) -> None:
    (repository / "pytest.ini").write_text("[pytest]\naddopts = --of-a-plugin-that-is-not-there\n", "utf-8")
    (repository / "test_own.py").write_text("import a_package_that_is_not_there\n", "utf-8")
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    entry = next(hook["entry"] for hook in hooks if hook["id"] == "promptfmt")
    script = entry.replace("promptfmt ", "python -m pytest_promptfmt ")
    assert "+| A: ⟨end⟩" in run(script, repository).stdout
    accept = "python -m pytest --promptfmt -o addopts= -o python_files= --snapshot-update"
    assert run(accept, repository).returncode == 0
    assert run(script, repository).returncode == 0


def test_the_hooks_are_what_pre_commit_reads() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert [hook["id"] for hook in hooks] == ["promptfmt", "promptfmt-diff"]
    command = shutil.which("pre-commit", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("needs pre-commit to look further")
    done = subprocess.run([command, "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")], capture_output=True)
    assert done.returncode == 0, done.stdout
