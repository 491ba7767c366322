"""Switches of everyday use that change no prompt: the outcomes of the run before hold after each of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import forked_runs
import pytest
import yaml
from plugin_project import Project
from promptfmt_command import git

import pytest_promptfmt
from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")]

FUNCTION = "from helpers import mark\n\n\ndef text(doc):\n    return f\"Q: {doc['question']}{mark()}\\nA:\"\n"

FILES = 3
ITEMS = 4
"""Of each file."""


@pytest.fixture
def tree(cached_project: Project, kept: Path) -> Project:
    """Return a repository with three task files, one of them with code, whose prompts are accepted and committed."""
    project = cached_project
    project.make_once(kept / "tree", lambda: _write(project))
    project.settle()
    return project


def _write(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\n")
    project.write(".gitignore", "settled.py\n.pytest_cache/\n__pycache__/\n")
    project.write("conftest.py", "")  # puts the folder on the path of imports
    project.write("helpers.py", "def mark():\n    return '?'\n")
    project.task("tasks/arc.yaml")
    project.task("tasks/sub/boolq.yaml")
    project.write("tasks/code/utils.py", FUNCTION)
    file = project.task("tasks/code/cola.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.accept("tasks")
    git(project.root, "init", "--quiet")
    git(project.root, "remote", "add", "origin", "https://user:token@Example.org/group/evals.git")
    _commit(project, "first")


def _commit(project: Project, message: str) -> None:
    git(project.root, "add", ".")
    git(project.root, "commit", "--quiet", "--allow-empty", "-m", message)


def unchanged(project: Project, *options: str) -> int:
    """Return the number of files that a run shows as unchanged."""
    counts = project.run("tasks", *options).parseoutcomes()
    assert counts.keys() <= {"passed", "unchanged", "warnings", "warning"}
    files, rest = divmod(counts.get("unchanged", 0), ITEMS)
    assert not rest
    return files


def _touched(project: Project) -> None:
    for path in (project.root / "tasks").rglob("*"):
        if path.is_file():
            os.utime(path)


def _checked_out_again(project: Project) -> None:
    git(project.root, "checkout", "--quiet", "-b", "other")
    project.edit("tasks/arc.yaml", "Q: ", "Question: ")
    _commit(project, "other")
    git(project.root, "checkout", "--quiet", "-")


def _made_anew(project: Project) -> None:
    """Write all files again: other times, other numbers, the same contents."""
    for path in sorted((project.root / "tasks").rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)


VARIABLES = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "LC_TIME": "fr_FR.UTF-8",
    "TZ": "Asia/Tokyo",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONHASHSEED": "1",
    "PYTHONFAULTHANDLER": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_TOKEN": "hf_x",
    "TRANSFORMERS_VERBOSITY": "error",
}


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_no_code_reads_changes_nothing(
    tree: Project, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.run("tasks")
    monkeypatch.setenv(name, VARIABLES[name])
    assert unchanged(tree) == FILES


CHANGES: dict[str, Callable[[Project], object]] = {
    "touched": _touched,
    "checked out again": _checked_out_again,
    "made anew": _made_anew,
    "an empty commit": lambda project: _commit(project, "empty"),
    "a file of another kind": lambda project: shutil.copy(project.root / "pytest.ini", project.root / "notes.txt"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_files_with_the_same_content_are_unchanged(tree: Project, change: str) -> None:
    tree.run("tasks")
    CHANGES[change](tree)
    assert unchanged(tree) == FILES


@pytest.mark.parametrize(
    "before",
    [
        ("-k", "arc"),
        ("-n", "2"),
        ("-W", "ignore::ResourceWarning"),
        ("--snapshot-update",),
        ("-p", "no:cacheprovider"),
        ("-v",),
        ("--promptfmt-json=found.json",),
        ("--promptfmt-no-cache",),
    ],
    ids=" ".join,
)
def test_a_run_with_other_options_in_between_throws_nothing_out(
    tree: Project, before: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.run("tasks")
    with monkeypatch.context() as context:
        context.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")  # processes of xdist do not find the plugin there
        tree.run("tasks", *before)
    assert unchanged(tree) == FILES


def test_a_report_outside_of_the_rootdir_changes_nothing(
    tree: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("reports")
    tree.run("tasks", f"--promptfmt-json={folder / 'first.json'}")
    assert unchanged(tree, f"--promptfmt-write=sarif={folder / 'second.sarif'}") == FILES
    assert unchanged(tree) == FILES


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["here", "xdist"])
def test_the_run_after_an_update_runs_nothing(
    tree: Project, workers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    tree.edit("tasks/sub/boolq.yaml", "Q: ", "Question: ")
    tree.task("tasks/sub/cb.yaml")
    tree.settle()
    assert "updated" in tree.run("tasks", "--snapshot-update", *workers).stdout.str()
    assert unchanged(tree, *workers) == unchanged(tree) == FILES + 1


def test_a_run_with_xdist_reads_and_writes_the_same_outcomes(tree: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    fresh = tree.found("tasks", "-n", "2")
    assert unchanged(tree) == unchanged(tree, "-n", "2") == FILES
    assert tree.found("tasks", "-n", "2") == fresh
    tree.edit("helpers.py", "?", "!")
    tree.settle()
    assert tree.found("tasks", "-n", "2")["exit"] == tree.run("tasks", "-n", "2", "--promptfmt-no-cache").ret == 1


def test_two_runs_at_once_leave_the_outcomes_of_one(tree: Project) -> None:
    command = [sys.executable, "-m", "pytest", "--promptfmt", "tasks"]
    runs = [subprocess.Popen(command, cwd=tree.root, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    assert unchanged(tree) == FILES


def test_pytest_its_module_and_the_command_share_outcomes(tree: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    tree.run("tasks")  # python -m pytest
    script = [str(Path(sys.executable).with_name("pytest")), "--promptfmt", "tasks"]
    ran = subprocess.run(script, cwd=tree.root, capture_output=True, text=True, check=True)
    assert f"{FILES * ITEMS} unchanged" in ran.stdout
    tree.edit("tasks/sub/boolq.yaml", "task: ", "# of the command\ntask: ")
    tree.settle()
    forked_runs.run("pytest_promptfmt", "check", "tasks", folder=tree.root)
    assert unchanged(tree) == FILES


def test_folders_that_collecting_python_tests_adds_to_the_path_are_no_inputs_of_all_tasks(tree: Project) -> None:
    tree.write("tasks/checks/test_own.py", "def test():\n    pass\n")
    tree.run("tasks")  # compiles the test, into a folder that code may import from
    tree.edit("tasks/arc.yaml", "Q: ", "Question: ")
    tree.settle()
    assert tree.run("tasks", "--snapshot-update").parseoutcomes()["passed"] == FILES * ITEMS + 1
    assert tree.run("tasks").parseoutcomes() == {"passed": 1, "unchanged": FILES * ITEMS}


def test_outcomes_of_several_branches_lie_side_by_side(tree: Project) -> None:
    tree.run("tasks")
    first = (tree.root / "tasks/sub/boolq.yaml").read_text("utf-8")
    tree.edit("tasks/sub/boolq.yaml", "task: ", "# of a branch\ntask: ")
    second = (tree.root / "tasks/sub/boolq.yaml").read_text("utf-8")
    assert unchanged(tree) == FILES - 1
    for content in (first, second, first):
        tree.write("tasks/sub/boolq.yaml", content)
        assert unchanged(tree) == FILES


# -- other places ------------------------------------------------------------------------------------------------------


def _copied(project: Project, place: Path) -> None:
    shutil.copytree(project.root, place, symlinks=True)


def _cloned(project: Project, place: Path) -> None:
    git(project.root, "clone", "--quiet", str(project.root), str(place))


def _cloned_twice(project: Project, place: Path) -> None:
    bare = str(place.with_name("bare"))
    git(project.root, "clone", "--quiet", "--bare", str(project.root), bare)
    git(project.root, "clone", "--quiet", bare, str(place))


def _worktree(project: Project, place: Path) -> None:
    git(project.root, "worktree", "add", "--quiet", "--detach", str(place))


def _cloned_by_ssh(project: Project, place: Path) -> None:
    _copied(project, place)
    git(place, "remote", "set-url", "origin", "git@example.org:group/evals")


@pytest.mark.parametrize("move", [_copied, _cloned, _cloned_twice, _worktree, _cloned_by_ssh])
def test_another_checkout_has_the_same_outcomes(
    tree: Project,
    move: Callable[[Project, Path], None],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree.run("tasks")
    place = tmp_path_factory.mktemp("home of another user") / "work"
    move(tree, place)
    (place / "settled.py").write_text((tree.root / "settled.py").read_text("utf-8"), "utf-8")
    monkeypatch.setenv("HOME", str(place.parent))
    monkeypatch.setenv("PWD", str(place))
    monkeypatch.chdir(place)
    assert unchanged(tree) == FILES
    assert unchanged(tree) == FILES, "also by folders"


def test_a_repository_of_another_name_has_outcomes_of_its_own(
    tree: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.run("tasks")
    _copied(tree, tmp_path / "work")
    git(tmp_path / "work", "remote", "set-url", "origin", "https://example.org/group/other.git")
    monkeypatch.chdir(tmp_path / "work")
    assert unchanged(tree) == 0


SHOWS = "import os\n\n\ndef text(doc):\n    return f\"{os.path.abspath(__file__)} {doc['question']}\"\n"


def test_code_that_can_show_the_path_of_the_checkout_runs_in_another_one(
    tree: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write("tasks/code/utils.py", SHOWS)
    tree.settle()
    tree.accept("tasks")
    assert unchanged(tree) == FILES
    _copied(tree, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    assert tree.run("tasks").parseoutcomes()["failed"] > 0


# -- the recipe for CI -------------------------------------------------------------------------------------------------

PAGE = Path(pytest_promptfmt.__file__).parents[1] / "docs/running.md"


def _installed(folder: Path) -> Path:
    """Return the Python of a new environment with this package, and the same versions of all others as here."""
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    shutil.copytree(PAGE.parents[1] / "pytest_promptfmt", site / "pytest_promptfmt")
    here = [path for path in sys.path if path and Path(path).is_dir() and Path(path).name == "site-packages"]
    own = [next(Path(path).glob("pytest_promptfmt-*.dist-info"), None) for path in here]
    for info in filter(None, own):
        shutil.copytree(info, site / info.name, dirs_exist_ok=True)
    (site / "others.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here), "utf-8")
    return folder / "bin/python"


def test_the_recipe_for_github_shows_outcomes_of_the_job_before(
    tree: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job has a new home, a new installation and another checkout; only the folder of the recipe is kept."""
    [recipe] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    restore, run, save = yaml.safe_load(recipe)
    monkeypatch.delenv("PROMPTFMT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def job(number: int) -> str:
        home = tmp_path / f"runner{number}"
        python = _installed(home / f"python{number}")
        _copied(tree, home / f"work{number}/evals")
        kept = Path(restore["with"]["path"].replace("~", str(home)))
        if (tmp_path / "kept").exists():
            shutil.copytree(tmp_path / "kept", kept)
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ran = subprocess.run(
            [python, "-m", *run["run"].split(), "tasks"],
            cwd=home / f"work{number}/evals",
            env={**variables, "HOME": str(home)},
            capture_output=True,
            text=True,
            check=True,
        )
        if save["with"]["path"] == restore["with"]["path"]:
            shutil.copytree(kept, tmp_path / "kept", dirs_exist_ok=True)
        shutil.rmtree(home)
        return ran.stdout

    assert "unchanged" not in job(1)
    assert f"{FILES * ITEMS} unchanged" in job(2)
    assert f"{FILES * ITEMS} unchanged" in job(3)


# -- names of a harness around the tasks -------------------------------------------------------------------------------


@pytest.fixture
def checkout(cached_project: Project) -> Project:
    """Return a checkout of a harness in which a group of a tested folder lists a task of another folder."""
    project = cached_project
    project.write("pytest.ini", "[pytest]\n")
    project.write("lm_eval/__init__.py", '__version__ = "0.4.13"\n')
    project.task("lm_eval/tasks/arc/named.yaml", "outside")
    project.task("lm_eval/tasks/mine/arc.yaml")
    group = "group: mine\ntask:\n  - task: outside\n    num_fewshot: 2\n  - arc\n"
    project.write("lm_eval/tasks/mine/group.yaml", group)
    project.accept("lm_eval/tasks/mine")
    project.settle()
    for _ in range(2):
        project.run("lm_eval/tasks/mine")
    assert project.run("lm_eval/tasks/mine").parseoutcomes()["unchanged"] > 0
    return project


def _edited(project: Project) -> None:
    project.edit("lm_eval/tasks/arc/named.yaml", "Q: ", "Question: ")


def _overtaken(project: Project) -> None:
    project.task("lm_eval/tasks/arc/first.yaml", "outside", doc_to_text="Question: {{question}}\nA:")


@pytest.mark.parametrize("change", [_edited, _overtaken])
def test_a_task_outside_of_the_tested_folder_is_an_input(checkout: Project, change: Callable[[Project], None]) -> None:
    change(checkout)
    assert "failed" in checkout.run("lm_eval/tasks/mine").parseoutcomes()


def test_code_of_a_checkout_is_an_input_and_not_all_that_it_could_use(
    checkout: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    loader = (
        "import importlib.util\nimport time\n\n\ndef load(path):\n    return importlib.util.module_from_spec(path)\n"
    )
    checkout.write("lm_eval/tasks/__init__.py", f"{loader}\n\nMARK = '?'\n")
    checkout.write("lm_eval/tasks/mine/__init__.py", "")
    checkout.write("lm_eval/tasks/mine/shared.py", "from lm_eval.tasks import MARK\n")
    code = (
        "from lm_eval.tasks.mine.shared import MARK\n\n\ndef text(doc):\n    return doc['question'] + MARK + '\\nA:'\n"
    )
    checkout.write("lm_eval/tasks/mine/utils.py", code)
    file = checkout.task("lm_eval/tasks/mine/cb.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    checkout.accept("lm_eval/tasks/mine")
    counts = checkout.run("lm_eval/tasks/mine").parseoutcomes()  # python -m pytest
    assert "passed" not in counts
    script = [str(Path(sys.executable).with_name("pytest")), "--promptfmt", "lm_eval/tasks/mine"]
    ran = subprocess.run(script, cwd=checkout.root, capture_output=True, text=True, check=True)
    assert f"{counts['unchanged']} unchanged" in ran.stdout
    checkout.edit("lm_eval/tasks/__init__.py", "'?'", "'!'")
    assert "failed" in checkout.run("lm_eval/tasks/mine").parseoutcomes()
    checkout.edit("lm_eval/tasks/__init__.py", "'!'", "'?'")
    checkout.edit("lm_eval/tasks/mine/shared.py", "MARK\n", "MARK\nimport time\nMARK = MARK[: time.time() > 0]\n")
    for _ in range(2):
        assert "passed" in checkout.run("lm_eval/tasks/mine").parseoutcomes()


def test_the_keys_of_tasks_that_a_checkout_knows_are_an_input(checkout: Project) -> None:
    config = "class TaskConfig(dict):\n    task: str\n"
    checkout.write("lm_eval/api/task.py", config)
    checkout.task("lm_eval/tasks/mine/other.yaml", of_another_release="x")
    checkout.settle()
    before = [checkout.found("lm_eval/tasks/mine") for _ in range(3)][-1]
    checkout.write("lm_eval/api/task.py", f"{config}    of_another_release: str\n")
    fresh = checkout.found("lm_eval/tasks/mine", "--promptfmt-no-cache")
    assert checkout.found("lm_eval/tasks/mine") == fresh != before


def test_the_metrics_that_a_checkout_registers_are_an_input_of_all_tasks_with_the_same_prompts(
    checkout: Project,
) -> None:
    metrics = "def register_metric(**_about):\n    return lambda function: function\n"
    checkout.write("lm_eval/api/metrics.py", metrics)
    for name in ("first", "second"):
        checkout.task(f"lm_eval/tasks/mine/{name}.yaml", metric_list=[{"metric": "own"}])
    checkout.settle()
    before = [checkout.found("lm_eval/tasks/mine") for _ in range(3)][-1]
    checkout.write("lm_eval/api/metrics.py", f"{metrics}\n@register_metric(metric='own')\ndef own(items):\n    ...\n")
    fresh = checkout.found("lm_eval/tasks/mine", "--promptfmt-no-cache")
    assert checkout.found("lm_eval/tasks/mine") == fresh != before


def test_another_clone_of_a_checkout_has_the_same_outcomes(
    checkout: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(checkout.root, "init", "--quiet")
    git(checkout.root, "remote", "add", "origin", "https://example.org/group/evals.git")
    before = [checkout.run("lm_eval/tasks/mine").parseoutcomes() for _ in range(2)][-1]
    _copied(checkout, tmp_path / "work")
    for path in (tmp_path / "work").rglob("*.yaml"):
        os.utime(path, (1_500_000_000, 1_500_000_000))
    monkeypatch.chdir(tmp_path / "work")
    assert [checkout.run("lm_eval/tasks/mine").parseoutcomes() for _ in range(2)] == [before] * 2
