"""A test module or conftest that cannot be imported fails the run, and prompts are tested all the same."""

import json

import pytest
from plugin_project import Project, run_pytest
from promptfmt_command import promptfmt

BROKEN = "from .nowhere import nothing\n"
WHOLE = "def test_it(): pass\n"
NOTE = "1 file could not be collected (see ERRORS), so the run fails. Prompts were tested. *"


def run(*args: str) -> pytest.RunResult:
    """Return what `pytest --promptfmt` did here; what it prints of a broken module is a traceback."""
    return run_pytest("--promptfmt", *args)


@pytest.fixture
def tree(project: Project) -> Project:
    """Return two adopted tasks in a folder with a test module that cannot be imported."""
    project.task("tasks/arc.yaml")
    project.task("tasks/deep/wic.yaml")
    project.accept("tasks")
    project.write("tasks/deep/test_broken.py", BROKEN)
    return project


def test_prompts_next_to_a_broken_test_module_are_tested(tree: Project) -> None:
    result = run("tasks")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes() == {"passed": 4, "errors": 1}
    result.stdout.fnmatch_lines(["*ERROR collecting tasks/deep/test_broken.py*", f"{NOTE}promptfmt check, or*"])
    result.stdout.fnmatch_lines(["ERROR tasks/deep/test_broken.py*"])


def test_a_prompt_that_changed_is_still_found(tree: Project) -> None:
    tree.edit("tasks/deep/wic.yaml", "Q: ", "Question: ")
    result = run("tasks", "--promptfmt-json=found.json")
    assert result.parseoutcomes()["failed"] == 2
    found = json.loads((tree.root / "found.json").read_text("utf-8"))
    assert found["counts"] == {"changed": 2, "passed": 2}


def test_other_tests_are_left_out_as_pytest_does(tree: Project) -> None:
    tree.write("tests/test_whole.py", WHOLE)
    result = run("tasks", "tests")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert result.parseoutcomes() == {"passed": 4, "errors": 1}
    result.stdout.fnmatch_lines(["*Interrupted: 1 error during collection. 1 test without prompts did not run*"])
    everything = run("tasks", "tests", "--continue-on-collection-errors")
    assert (everything.ret, everything.parseoutcomes()) == (1, {"passed": 5, "errors": 1})


def test_without_prompts_pytest_stops_as_always(project: Project) -> None:
    project.write("tests/test_broken.py", BROKEN)
    project.write("tests/test_whole.py", WHOLE)
    result = run("tests")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*Interrupted: 1 error during collection !*"])
    result.stdout.no_fnmatch_line(NOTE)


def test_exit_first_ends_the_run_at_the_error(tree: Project) -> None:
    result = run("tasks", "-x")
    assert result.parseoutcomes() == {"errors": 1}


def test_a_command_collects_no_test_modules(tree: Project) -> None:
    assert promptfmt(tree.root, "check", "tasks").returncode == 0


def test_a_folder_is_tested_without_its_broken_conftest(tree: Project) -> None:
    (tree.root / "tasks/deep/test_broken.py").unlink()
    tree.write("tasks/deep/conftest.py", "import nowhere\n")
    for _ in range(2):  # the second time other files are unchanged
        result = run("tasks")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        assert result.parseoutcomes()["errors"] == 1
        result.stdout.fnmatch_lines(
            ["*ERROR collecting tasks/deep*", "*No module named 'nowhere'*", f"{NOTE}, use --noconftest"]
        )
    assert run("tasks", "--noconftest").ret == pytest.ExitCode.OK
    tree.edit("tasks/deep/wic.yaml", "Q: ", "Question: ")
    assert run("tasks").parseoutcomes()["failed"] == 2


def test_a_broken_conftest_of_a_folder_without_prompts_is_no_error_of_a_command(tree: Project) -> None:
    tree.write("tasks/deep/own/conftest.py", "import nowhere\n")
    found = promptfmt(tree.root, "check", "tasks")
    assert (found.returncode, "nowhere" in found.stdout + found.stderr) == (0, False)


def test_an_update_leaves_a_folder_with_a_broken_conftest_alone(tree: Project) -> None:
    (tree.root / "tasks/deep/test_broken.py").unlink()
    tree.write("tasks/deep/conftest.py", "import nowhere\n")
    before = tree.snapshots()
    for file in ("tasks/arc.yaml", "tasks/deep/wic.yaml"):
        tree.edit(file, "Q: ", "Question: ")
    result = run("tasks", "--snapshot-update")
    apart = "except in tasks/deep: updating snapshots there needs the conftest.py"
    result.stdout.fnmatch_lines(
        [f"1 file could not be collected (see ERRORS), so the run fails. Prompts were tested, {apart}*"]
    )
    after = tree.snapshots()
    assert {path for path in before if after.get(path) != before[path]} == {
        path for path in before if path.startswith("tasks/__prompts__/arc/")
    }


def test_processes_of_xdist_test_prompts_too(tree: Project) -> None:
    pytest.importorskip("xdist")
    result = run("tasks", "-n", "2")
    assert (result.ret, result.parseoutcomes()) == (1, {"passed": 4, "errors": 1})


def test_outcomes_without_a_conftest_are_not_cached(cached_project: Project) -> None:
    project = cached_project
    for name in ("a/arc", "b/boolq", "c/cola"):
        project.task(f"tasks/{name}.yaml")
    project.accept("tasks")
    project.write("tasks/c/conftest.py", "import nowhere\n")
    project.settle()
    assert run("tasks").parseoutcomes()["errors"] == 1
    assert run("tasks").parseoutcomes() == {"passed": 3, "unchanged": 6, "errors": 1}
