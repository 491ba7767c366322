"""Whatever happens to a run with --snapshot-update, only snapshots that no task defines are deleted.

Each situation is one in which a rule of "not used in this run" would delete living files. All runs are separate
processes: syrupy keeps settings on classes.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import forked_runs
import pytest
from plugin_project import run_pytest

pytestmark = pytest.mark.slow

TASK = """\
task: {name}
dataset_path: nowhere/{name}
output_type: multiple_choice
test_split: test
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: [" yes", " no"]
doc_to_target: label
"""
TASKS = ("tasks/arc", "tasks/boolq", "tasks/sub/wic")
PROFILES = ("plain", "chat-chatml")
COUNT = len(TASKS) * len(PROFILES)
SERIAL, PARALLEL = (), ("-n", "2")

# Processes of xdist take ten times as long to start, so only what they could get wrong is tried with them.
PARALLEL_TOO = [pytest.param(SERIAL, id="serial"), pytest.param(PARALLEL, id="parallel")]
both = pytest.mark.parametrize("suite", PARALLEL_TOO, indirect=True)

Files = dict[str, bytes]


class Suite:
    """A folder of task files with all their snapshots, and pytest to be run in it."""

    def __init__(self, pytester: pytest.Pytester, distribution: tuple[str, ...]) -> None:
        self.pytester = pytester
        self.distribution = distribution
        self.root = pytester.path

    def run(self, *args: str, paths: tuple[str, ...] = ("tasks",)) -> pytest.RunResult:
        return run_pytest("--promptfmt", *paths, *self.distribution, *args)

    def files(self) -> Files:
        """Return the content of every file below a snapshot folder, temporary ones too."""
        found = (path for path in self.root.rglob("*") if "__prompts__" in path.parts and path.is_file())
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in found}

    def task(self, path: str) -> Path:
        return self.root / f"{path}.yaml"

    def edit(self, path: str, old: str, new: str) -> None:
        text = self.task(path).read_text("utf-8")
        assert old in text
        self.task(path).write_text(text.replace(old, new), "utf-8")

    def snapshot(self, path: str, profile: str = "plain") -> Path:
        folder, _, stem = path.rpartition("/")
        return self.root / folder / "__prompts__" / stem / stem / f"{profile}.txt"


def write_tasks(root: Path) -> None:
    for path in TASKS:
        file = root / f"{path}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TASK.format(name=file.stem), "utf-8")
    (root / "pytest.ini").write_text("[pytest]\npromptfmt_profiles = plain chat-chatml\n")


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with task files and their snapshots, made once."""
    root = tmp_path_factory.mktemp("accepted")
    write_tasks(root)
    made = forked_runs.run("pytest", "--promptfmt", "tasks", "--snapshot-update", "-p", "no:cacheprovider", folder=root)
    assert made.returncode == 0, made.stdout + made.stderr
    return root


@pytest.fixture
def suite(request: pytest.FixtureRequest, pytester: pytest.Pytester, accepted: Path) -> Suite:
    shutil.copytree(accepted, pytester.path, dirs_exist_ok=True)
    suite = Suite(pytester, getattr(request, "param", SERIAL))
    assert len(suite.files()) == COUNT
    return suite


# --- nothing is lost


NARROWED = {
    "nothing": (),
    "collect-only": ("--collect-only",),
    "setup-plan": ("--setup-plan",),
    "keyword": ("-k", "arc"),
    "keyword of nothing": ("-k", "nothing"),
    "deselect": ("--deselect", "tasks/arc.yaml::arc::snapshot[plain]"),
    "ignore": ("--ignore", "tasks/arc.yaml"),
    "ignore glob": ("--ignore-glob", "*arc*"),
    "ignored folder": ("--ignore", "tasks/sub"),
    "task globs": ("--promptfmt-task", "bool*"),
    "profile": ("--promptfmt-profile", "plain"),
    "docs": ("--promptfmt-docs", "1"),
    "no code": ("--promptfmt-no-code",),
    "last failed": ("--last-failed",),
    "stepwise": ("--stepwise",),
    "one of two shards": ("--splits", "2", "--group", "1"),
    "no cleanup": ("--snapshot-no-cleanup",),
    "unused not looked for": ("--snapshot-disable-unused",),
}


@pytest.mark.parametrize("args", NARROWED.values(), ids=NARROWED)
def test_a_run_that_reaches_less_loses_nothing(suite: Suite, args: tuple[str, ...]) -> None:
    before = suite.files()
    result = suite.run("--snapshot-update", *args)
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    assert suite.files() == before


@pytest.mark.parametrize("suite", [PARALLEL], indirect=True)
@pytest.mark.parametrize("args", [(), ("-k", "arc"), ("--ignore", "tasks/arc.yaml"), ("--promptfmt-profile", "plain")])
def test_workers_that_reach_less_lose_nothing(suite: Suite, args: tuple[str, ...]) -> None:
    before = suite.files()
    assert suite.run("--snapshot-update", *args).ret == 0
    assert suite.files() == before


@pytest.mark.parametrize("paths", [("tasks/arc.yaml",), ("tasks/arc.yaml::arc::snapshot[plain]",), ("tasks/sub",)])
def test_a_run_of_one_path_loses_nothing(suite: Suite, paths: tuple[str, ...]) -> None:
    before = suite.files()
    suite.run("--snapshot-update", paths=paths).assert_outcomes(passed=1 if "::" in paths[0] else 2)
    assert suite.files() == before


@both
@pytest.mark.parametrize("args", [(), ("-x",)])
def test_broken_yaml_loses_nothing(suite: Suite, args: tuple[str, ...]) -> None:
    before = suite.files()
    suite.edit("tasks/arc", "doc_to_target: label", "doc_to_target: [label")
    result = suite.run("--snapshot-update", *args)
    assert result.ret != 0
    assert suite.files() == before


def test_a_template_that_fails_loses_nothing(suite: Suite) -> None:
    before = suite.files()
    suite.edit("tasks/arc", "{{question}}", "{{question.a.b.c}}{{ 1 / 0 }}")
    suite.run("--snapshot-update", "-x")
    assert suite.files() == before


def test_formats_and_shots_from_the_command_line_only_add_files(suite: Suite) -> None:
    before = suite.files()
    suite.run("--snapshot-update", "--promptfmt-format", "mcqa")
    suite.run("--snapshot-update", "--promptfmt-num-fewshot", "1")
    more = suite.files()
    assert {name: more[name] for name in before} == before
    suite.run("--snapshot-update")
    assert suite.files() == more


@both
@pytest.mark.parametrize("how", ["raise KeyboardInterrupt", "pytest.exit('enough')"])
def test_an_interrupted_run_loses_nothing(suite: Suite, how: str) -> None:
    before = suite.files()
    (suite.root / "conftest.py").write_text(
        f"import pytest\ndef pytest_runtest_setup(item):\n    if 'boolq' in item.nodeid:\n        {how}\n"
    )
    assert suite.run("--snapshot-update").ret != 0
    assert suite.files() == before


@pytest.mark.parametrize("suite", [PARALLEL], indirect=True)
def test_a_crashed_worker_loses_nothing(suite: Suite) -> None:
    before = suite.files()
    (suite.root / "conftest.py").write_text(
        "import os\n"
        "def pytest_runtest_setup(item):\n"
        "    if 'boolq::snapshot[plain]' in item.nodeid:\n"
        "        os._exit(1)\n"
    )
    suite.run("--snapshot-update").assert_outcomes(passed=COUNT - 1, failed=1)
    assert suite.files() == before


@both
def test_ordinary_snapshots_beside_the_tasks_are_no_danger(suite: Suite) -> None:
    before = suite.files()
    (suite.root / "tasks" / "test_amber.py").write_text("def test_amber(snapshot):\n    assert snapshot == 'x'\n")
    inactive = run_pytest("tasks", "--snapshot-update", *suite.distribution)
    inactive.assert_outcomes(passed=1)
    assert suite.files() == before
    mixed = suite.run("--snapshot-update")
    mixed.assert_outcomes(passed=COUNT + 1)
    assert suite.files() == before
    assert (suite.root / "tasks/__snapshots__/test_amber.ambr").exists()


def test_without_syrupy_nothing_runs(suite: Suite) -> None:
    before = suite.files()
    result = suite.run("-p", "no:syrupy")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "syrupy" in result.stderr.str() + result.stdout.str()
    assert suite.files() == before


# --- what is obsolete goes, when asked


@both
def test_snapshots_of_a_deleted_task_file_are_reported_then_deleted(suite: Suite) -> None:
    before = suite.files()
    suite.task("tasks/boolq").unlink()
    result = suite.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*2 snapshots unused*"])
    assert suite.run("--snapshot-warn-unused").ret == 0
    assert suite.run("--snapshot-update", "--snapshot-no-cleanup").ret == 0
    assert suite.files() == before
    result = suite.run("--snapshot-update")
    result.stdout.fnmatch_lines(["*2 unused snapshots deleted*"])
    assert suite.files() == {name: content for name, content in before.items() if "boolq" not in name}
    assert not (suite.root / "tasks/__prompts__/boolq").exists()


@both
def test_snapshots_of_a_renamed_task_move(suite: Suite) -> None:
    before = suite.files()
    suite.edit("tasks/arc", "task: arc", "task: arc_easy")
    result = suite.run()
    old, new = (f"tasks/__prompts__/arc/{name}/plain.txt" for name in ("arc", "arc_easy"))
    assert f"renamed {old} → {new}" in result.stdout.str()
    assert suite.files() == before
    suite.run("--snapshot-update")
    names = {name.replace("arc/arc/", "arc/arc_easy/") for name in before}
    assert set(suite.files()) == names


def test_a_changed_prompt_is_not_renamed_even_if_an_unused_snapshot_shows_it(suite: Suite) -> None:
    stored = suite.snapshot("tasks/arc").read_bytes()
    suite.edit("tasks/arc", "Question:", "Q:")
    suite.run("--snapshot-update", "--promptfmt-profile", "plain")
    unused = suite.root / "tasks/__prompts__/arc/arc_old/plain.txt"
    unused.parent.mkdir()
    suite.snapshot("tasks/arc").rename(unused)
    suite.snapshot("tasks/arc").write_bytes(stored)
    told = suite.run("--promptfmt-profile", "plain").stdout.str()
    assert "arc [plain]: 2 of 2 docs changed" in told
    assert "renamed tasks/" not in told
    assert "changed, 1 test of 1 task: " in told


def test_files_of_others_in_the_snapshot_folder_stay(suite: Suite) -> None:
    folder = suite.root / "tasks" / "__prompts__"
    (folder / "README.md").write_text("notes")
    (folder / ".gitattributes").write_text("* -text")
    (folder / "boolq" / "boolq" / "notes.txt").write_text("notes")
    suite.task("tasks/boolq").unlink()
    suite.run("--snapshot-update")
    left = {name for name in suite.files() if "arc" not in name and "wic" not in name}
    assert left == {f"tasks/__prompts__/{name}" for name in ("README.md", ".gitattributes", "boolq/boolq/notes.txt")}


# --- changed, damaged and missing files


@both
def test_a_changed_prompt_fails_until_it_is_accepted(suite: Suite) -> None:
    before = suite.files()
    suite.edit("tasks/arc", "Question:", "Q:")
    for args in ((), ("--snapshot-update-new-only",)):
        suite.run(*args).assert_outcomes(passed=COUNT - 2, failed=2)
        assert suite.files() == before
    suite.run("--snapshot-update").assert_outcomes(passed=COUNT)
    after = suite.files()
    assert {name for name in before if after[name] != before[name]} == {name for name in before if "arc" in name}
    suite.run().assert_outcomes(passed=COUNT)


@both
def test_missing_snapshots_fail_and_are_written_by_either_update(suite: Suite) -> None:
    before = suite.files()
    for path in TASKS:
        suite.snapshot(path).unlink()
    assert suite.run().ret == 1
    assert len(suite.files()) == COUNT - len(TASKS)
    result = suite.run("--snapshot-update-new-only")
    result.assert_outcomes(passed=COUNT)
    assert suite.files() == before


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "line endings were converted": lambda content: content.replace(b"\n", b"\r\n"),
    "merge conflict": lambda content: content.replace(b"doc 1", b"<<<<<<< HEAD\ndoc 1"),
    "edited by hand": lambda content: content.replace(b"Answer", b"Answr"),
    "truncated": lambda content: content[: content.rindex(b"end:")],
    "not a snapshot": lambda content: b"",
    "not UTF-8": lambda content: b"\xff\xfe" + content,
}


@both
def test_damaged_files_are_told_and_repaired_by_update(suite: Suite) -> None:
    before = suite.files()
    for name, damage in zip(before, DAMAGES.values(), strict=True):
        (suite.root / name).write_bytes(damage(before[name]))
    damaged = suite.files()
    result = suite.run()
    result.assert_outcomes(failed=COUNT)
    for message in DAMAGES:
        assert message in result.stdout.str()
    assert suite.files() == damaged
    suite.run("--snapshot-update").assert_outcomes(passed=COUNT)
    assert suite.files() == before


def test_a_narrowed_update_keeps_the_other_docs(suite: Suite) -> None:
    before = suite.snapshot("tasks/arc").read_text("utf-8")
    suite.edit("tasks/arc", "Answer:", "A:")
    suite.run("--snapshot-update", "--promptfmt-docs", "1").assert_outcomes(passed=COUNT)
    first, second = suite.snapshot("tasks/arc").read_text("utf-8").split("\ndoc 2\n")
    assert "| A:⟨end⟩" in first
    assert before.split("\ndoc 2\n")[1].rpartition("\nend:")[0] == second.rpartition("\nend:")[0]


def test_a_narrowed_update_does_not_rewrite_a_damaged_file(suite: Suite) -> None:
    file = suite.snapshot("tasks/arc")
    file.write_text(file.read_text("utf-8").replace("Answer", "Answr"), "utf-8")
    before = suite.files()
    suite.run("--snapshot-update", "--promptfmt-docs", "1").assert_outcomes(passed=COUNT - 1, failed=1)
    assert suite.files() == before


def test_a_header_alone_passes_and_is_rewritten_by_update_only(suite: Suite) -> None:
    before = suite.files()
    file = suite.snapshot("tasks/arc")
    file.write_text(file.read_text("utf-8").replace("docs: 2", "docs: 5"), "utf-8")
    stale = suite.files()
    suite.run().assert_outcomes(passed=COUNT)
    assert suite.files() == stale
    suite.run("--snapshot-update").assert_outcomes(passed=COUNT)
    assert suite.files() == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_a_folder_that_cannot_be_written_is_told(suite: Suite) -> None:
    suite.edit("tasks/arc", "Answer:", "A:")
    folder = suite.snapshot("tasks/arc").parent
    before = suite.files()
    folder.chmod(0o555)
    try:
        result = suite.run("--snapshot-update")
    finally:
        folder.chmod(0o755)
    assert "cannot be written" in result.stdout.str()
    assert suite.files() == before
