"""Which files become tests, and where they are looked for."""

import ast
import os
import subprocess
import sys

import pytest
from plugin_project import Project

PLAIN = "snapshot[plain]"
CHAT = "snapshot[chat-chatml]"
WORKFLOW = "name: ci\non: push\njobs:\n  test:\n    runs-on: ubuntu\n"
IMPORTED = """
import sys

def pytest_unconfigure():
    ours = {"yaml", "jinja2", "tokenizers", "transformers"} & set(sys.modules)
    print("imported:", sorted(ours))
"""


def both(path: str, name: str | None = None) -> list[str]:
    task = name or path.rpartition("/")[2].rpartition(".")[0]
    return [f"{path}::{task}::{PLAIN}", f"{path}::{task}::{CHAT}"]


def test_a_copy_of_a_harness_in_another_project_is_tested_only_where_it_is_named(project: Project) -> None:
    project.write("pyproject.toml", "[project]\nname = 'evals'\n")
    project.write("lm_eval/api/task.py", "class TaskConfig:\n    pass\n")
    project.task("lm_eval/tasks/boolq/boolq.yaml")
    project.task("tasks/arc.yaml")
    own, copied = both("tasks/arc.yaml"), both("lm_eval/tasks/boolq/boolq.yaml")
    for paths in ((), (".",)):
        assert project.collected("--promptfmt", *paths) == own
    for _ in range(2):
        note = "lm_eval is a copy of a library; to test its tasks: promptfmt check lm_eval"
        project.run("--snapshot-update").stdout.fnmatch_lines([f"*{note}*"])
    for paths in (("lm_eval",), ("lm_eval/tasks",), ("lm_eval/tasks/boolq/boolq.yaml",)):
        assert project.collected("--promptfmt", *paths) == copied
    if pytest.version_tuple >= (9,):  # of a folder and one below it, pytest 8 collects only the second
        assert project.collected("--promptfmt", ".", "lm_eval/tasks") == [*copied, *own]
    project.write("pyproject.toml", "[project]\nname = 'lm_eval'\n")
    assert project.collected("--promptfmt") == [*copied, *own], "a fork tests its own tasks"


def test_only_files_that_define_tasks_are_tests(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.task("tasks/sub/wic.yml")
    project.write("tasks/derived.yaml", 'include: _shared.yaml\ntask: derived\ndoc_to_text: "{{q}}"\n')
    project.write("tasks/_shared.yaml", "output_type: generate_until\ntest_split: test\ndoc_to_target: answer\n")
    project.write("tasks/_default_template_yaml", "output_type: generate_until\n")
    project.write("tasks/arc.docs.jsonl", '{"question": "Is it?", "answer": "yes"}\n')
    project.write("tasks/docker-compose.yaml", WORKFLOW)
    project.write("tasks/tasks.yaml", "task: build\nsteps: [a, b]\n")
    project.write("tasks/broken.yaml", "a: [\n")
    project.write("tasks/empty.yaml", "")
    project.write(
        "tasks/promptfmt.yaml", "profiles:\n  task: {extends: plain}\ndefault_profiles: [plain, chat-chatml]\n"
    )
    expected = [
        *both("tasks/arc.yaml"),
        *both("tasks/derived.yaml"),
        *both("tasks/sub/wic.yml"),
    ]
    assert sorted(project.collected("--promptfmt", "tasks")) == sorted(expected)
    project.accept("tasks")
    assert sorted(project.collected("--promptfmt", "tasks")) == sorted(expected), "snapshots are no tests"
    for path, reason in [("docker-compose.yaml", "defines no task"), ("broken.yaml", "defines no task")]:
        result = project.run(f"tasks/{path}")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([f"tasks/{path}: this file {reason}", "  hint: *`task`*"])


def test_without_a_path_the_ini_paths_are_searched_else_the_rootdir(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.task("more/wic.yaml")
    project.write("tests/test_python.py", "def test_it(): pass\n")
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain chat-chatml\ntestpaths = tests\n")
    everything = [*both("more/wic.yaml"), *both("tasks/arc.yaml"), "tests/test_python.py::test_it"]
    assert sorted(project.collected("--promptfmt")) == sorted(everything)
    assert project.collected() == ["tests/test_python.py::test_it"]
    project.write(
        "pytest.ini", "[pytest]\npromptfmt_profiles = plain chat-chatml\ntestpaths = tests\npromptfmt_paths = more\n"
    )
    assert project.collected("--promptfmt") == both("more/wic.yaml")
    assert project.collected("--promptfmt", "tasks") == both("tasks/arc.yaml")
    result = project.run("-n", "2")
    result.stdout.fnmatch_lines(["FAILED more/wic.yaml::wic::*", "*2 failed*"])


@pytest.mark.parametrize("paths", ["", "promptfmt_paths = tasks\n"])
def test_without_a_path_another_folder_than_the_rootdir_is_searched_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch, paths: str
) -> None:
    project.task("tasks/arc.yaml")
    project.task("more/deep/wic.yaml")
    project.task("more/boolq.yaml")
    project.write("more/test_python.py", "def test_it(): pass\n")
    project.write("pytest.ini", f"[pytest]\npromptfmt_profiles = plain chat-chatml\ntestpaths = tasks\n{paths}")
    monkeypatch.chdir(project.root / "more")
    own = sorted([*both("more/boolq.yaml"), *both("more/deep/wic.yaml"), "more/test_python.py::test_it"])
    assert sorted(project.collected("--promptfmt")) == own
    assert project.collected("--promptfmt", "../tasks") == both("tasks/arc.yaml")
    project.write("pytest.ini", f"[pytest]\npromptfmt = true\npromptfmt_profiles = plain chat-chatml\n{paths}")
    assert sorted(project.collected()) == own


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pytest.ini", "[pytest]\npromptfmt = true\npromptfmt_paths = tasks\npromptfmt_profiles = plain\n"),
        (
            "pyproject.toml",
            '[tool.pytest.ini_options]\npromptfmt = true\npromptfmt_paths = ["tasks"]\n'
            'promptfmt_profiles = ["plain"]\npromptfmt_docs = "1"\n',
        ),
        pytest.param(
            "pyproject.toml",
            '[tool.pytest]\npromptfmt = true\npromptfmt_paths = ["tasks"]\npromptfmt_profiles = ["plain"]\n'
            'testpaths = ["tests"]\n',
            marks=pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 8 does not read this table"),
        ),
    ],
)
def test_an_ini_value_replaces_the_flag(project: Project, file: str, text: str) -> None:
    project.task("tasks/arc.yaml")
    project.write("tests/test_python.py", "def test_it(): pass\n")
    (project.root / "pytest.ini").unlink()
    project.write(file, text)
    ids = project.collected()
    assert sorted(set(ids)) == [f"tasks/arc.yaml::arc::{PLAIN}", "tests/test_python.py::test_it"]
    assert len(ids) == 2, "a file below two of the given paths is collected once"


def test_without_the_flag_the_plugin_collects_and_imports_nothing(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.write("test_python.py", "def test_it(): pass\n")
    project.write("conftest.py", IMPORTED)
    # A new interpreter, without pytest-html, which imports jinja2 where it is installed.
    result = project.pytester.runpytest_subprocess("-s", "-p", "no:html")
    result.assert_outcomes(passed=1)
    assert "imported: []" in result.stdout.str()
    assert "promptfmt:" not in result.stdout.str()
    assert project.start("tasks").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    asked = project.run("-s", "tasks", "--promptfmt-profile", "plain").stdout.str()
    assert "'yaml'" in asked
    assert "'transformers'" not in asked


def test_the_list_of_items_is_readable(project: Project) -> None:
    project.task("tasks/arc.yaml")
    result = project.run("tasks", "--collect-only", "-q")
    assert [line for line in result.outlines if line][:2] == both("tasks/arc.yaml")
    assert result.ret == 0
    assert "prompt formats" not in result.stdout.str()
    tree = project.run("tasks", "--collect-only").stdout
    tree.fnmatch_lines(["*<TaskFile arc.yaml>", "*<Task arc>", "*<Prompts snapshot[[]plain[]]>"])


def test_a_group_tests_what_it_changes_and_what_it_defines(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.task("tasks/wic.yaml")
    project.write(
        "tasks/suite.yaml",
        "group: suite\ntask:\n  - arc\n  - task: wic\n    num_fewshot: 1\n"
        "  - task: inline\n    dataset_path: nowhere/inline\n    output_type: generate_until\n    test_split: test\n"
        '    doc_to_text: "{{q}}"\n    doc_to_target: a\n',
    )
    ids = project.collected("--promptfmt", "tasks", "--promptfmt-profile", "plain")
    names = [line.split("::")[1] for line in ids]
    assert sorted(names) == ["arc", "suite.inline", "suite.wic", "wic"]


def test_a_name_in_two_files_is_a_located_finding_about_the_second(project: Project) -> None:
    project.task("tasks/a.yaml", "same")
    project.task("tasks/b.yaml", "same")
    project.accept("tasks")
    result = project.run("tasks", "--promptfmt-select", "PF132", "-o", "promptfmt_lint=true")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["*at: tasks/b.yaml:1:1", "*the other one is at tasks/a.yaml:1:1"])


REWRITTEN = """
import sys

def pytest_unconfigure():
    loaders = {name: type(getattr(module, "__loader__", None)).__name__ for name, module in list(sys.modules.items())}
    ours = sorted(name for name in loaders if name.startswith("pytest_promptfmt"))
    print("rewritten:", [name for name in ours if loaders[name] == "AssertionRewritingHook"], "of", len(ours))
"""


def test_pytest_rewrites_no_asserts_of_this_package(project: Project) -> None:
    project.task("arc.yaml")
    project.write("conftest.py", REWRITTEN)
    command = [sys.executable, "-m", "pytest", "--promptfmt", "-s", "arc.yaml"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, cwd=project.root, env=environment, capture_output=True, text=True, check=False)
    # pytest imports these before the plugin can tell it; it compiles them without rewriting them, or not at all.
    first = ["pytest_promptfmt", "pytest_promptfmt.core", "pytest_promptfmt.core.lazy_names", "pytest_promptfmt.plugin"]
    rewritten = ran.stdout.partition("rewritten: ")[2].partition(" of ")[0]
    assert {*ast.literal_eval(rewritten)} <= {*first}, ran.stdout
    assert int(ran.stdout.partition("] of ")[2].split()[0]) > 50
