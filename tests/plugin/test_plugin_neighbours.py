"""Beside ordinary tests, ordinary snapshots, strict warnings and other plugins."""

import json
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from plugin_project import Project

pytestmark = pytest.mark.slow

AMBER = "def test_amber(snapshot):\n    assert snapshot == {'a': 1}\n"
REMARKABLE = (
    "group: suite\ntask:\n  - task: inline\n    include: base_yaml\n    dataset_path: nowhere/x\n"
    '    doc_to_text: "{{q}}"\n    doc_to_target: a\n'
)


def test_ordinary_tests_and_snapshots_live_in_the_same_folder(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.write("tasks/test_arc.py", AMBER)
    project.accept("tasks")
    amber = project.root / "tasks/__snapshots__/test_arc.ambr"
    assert amber.exists()
    ours = project.snapshots()
    assert len(ours) == 2
    result = project.run("tasks")
    result.assert_outcomes(passed=3)
    assert "3 snapshots passed." in result.stdout.str()
    assert "unused" not in result.stdout.str()
    project.start("tasks").assert_outcomes(passed=1)
    project.edit("tasks/test_arc.py", "1", "2")
    project.edit("tasks/arc.yaml", "A:", "B:")
    both = project.run("tasks", "-n", "2")
    assert both.ret == pytest.ExitCode.TESTS_FAILED
    assert "3 failed" in both.stdout.str()
    project.start("tasks", "--snapshot-update").assert_outcomes(passed=1)
    assert project.snapshots() == ours


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (("tasks",), 3),
        (("tasks/arc.yaml", "tasks/test_arc.py::test_one"), 2),
        (("tasks/arc.yaml::arc::snapshot[plain]",), 1),
        (("tasks/test_arc.py",), 2),
        (("tasks", "--promptfmt-no-code"), 1),
        (("tasks", "-k", "two or snapshot", "-x"), 2),
    ],
    ids=str,
)
def test_with_xdist_the_same_tests_run(project: Project, arguments: tuple[str, ...], passed: int) -> None:
    project.task("tasks/arc.yaml")
    project.write("tasks/test_arc.py", "def test_one():\n    pass\n\n\ndef test_two():\n    pass\n")
    project.run("tasks/arc.yaml", "--snapshot-update", "--promptfmt-profile", "plain")
    for workers in ((), ("-n", "2")):
        result = project.run(*arguments, "--promptfmt-profile", "plain", *workers)
        assert (result.ret, result.parseoutcomes()["passed"]) == (0, passed)


def test_a_task_in_a_python_package_needs_nothing_of_the_package(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.write("tasks/__init__.py", "raise ImportError('a package that is not installed here')\n")
    project.accept("tasks")
    project.run("tasks").assert_outcomes(passed=2)
    project.write("tasks/__init__.py", "def setup_module():\n    open('set_up', 'a').write('once')\n")
    project.run("tasks").assert_outcomes(passed=2)
    assert not (project.root / "set_up").exists()
    project.write("tasks/test_arc.py", "def test_of_the_package():\n    assert open('set_up').read() == 'once'\n")
    project.run("tasks").assert_outcomes(passed=3)


def test_tests_that_cannot_be_set_up_make_no_baseline(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.write("conftest.py", "def pytest_runtest_setup(item):\n    raise RuntimeError('no')\n")
    result = project.run("tasks", "--promptfmt-baseline", "all.jsonl", "--promptfmt-baseline-update", "write")
    result.stdout.fnmatch_lines(["all.jsonl is not written: 2 tests did not run, such as tasks/arc.yaml::*"])
    assert not (project.root / "all.jsonl").exists()


def test_remarks_are_warnings_and_strict_warnings_make_them_failures_of_their_own(project: Project) -> None:
    project.write("tasks/base_yaml", "output_type: generate_until\ntest_split: test\n")
    project.write("tasks/suite.yaml", REMARKABLE)
    project.accept("tasks")
    result = project.run("tasks")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(
        ["*tasks/suite.yaml:1*", "*PromptfmtWarning: lm-eval 0.4.13 does not accept the member*"]
    )
    assert result.stdout.str().count("does not accept the member") == 1
    strict = project.run("tasks", "-W", "error")
    strict.assert_outcomes(passed=2, failed=1)
    strict.stdout.fnmatch_lines(["lm-eval 0.4.13 does not accept the member 'inline'*"])


def test_without_syrupy_one_sentence_says_so(project: Project) -> None:
    project.task("tasks/arc.yaml")
    result = project.run("tasks", "-p", "no:syrupy")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = [line for line in result.errlines if line]
    assert told == [
        "ERROR: promptfmt: the plugin syrupy compares the prompts, but it is switched off",
        "  hint: remove -p no:syrupy",
    ]


def test_exit_codes_are_pytests_own(project: Project) -> None:
    project.write("tasks/notes.yaml", "a: 1\n")
    nothing = project.run("tasks")
    assert nothing.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    nothing.stdout.fnmatch_lines(["there is no task file here; `promptfmt init` writes an example"])
    project.task("tasks/arc.yaml")
    assert project.run("tasks", "--strict-markers", "--strict-config").ret == pytest.ExitCode.TESTS_FAILED
    assert project.run("tasks", "--snapshot-update").ret == pytest.ExitCode.OK


def test_a_checkout_whose_tasks_are_not_yaml_is_named(project: Project) -> None:
    project.write("lm_eval/tasks/__init__.py", "TASK_REGISTRY = {}\n")
    project.write("setup.py", 'setuptools.setup(\n    name="lm_eval",\n    version="0.3.0",\n)\n')
    reason = "there is no task file here: lm-eval 0.3.0 defines tasks in Python, but only YAML tasks are tested"
    project.run(".").stdout.fnmatch_lines([reason])


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_a_diff_has_colours_where_the_terminal_has_them_and_nowhere_else(project: Project, workers: list[str]) -> None:
    project.task("tasks/arc.yaml")
    project.accept("tasks")
    project.edit("tasks/arc.yaml", "A:", "B:")
    coloured = project.run("tasks", "--color=yes", "--junitxml", "report.xml", *workers).stdout.str()
    assert "\x1b[7m\x1b[31mA\x1b[0m\x1b[31m:" in coloured, "what differs within the line is marked"
    assert "\x1b[7m\x1b[32mB\x1b[0m\x1b[32m:" in coloured
    texts = [failure.text or "" for failure in ElementTree.parse(project.root / "report.xml").iter("failure")]
    assert len(texts) == 2
    assert "\n-| A:" in texts[0]
    assert not [text for text in texts if "\x1b" in text or "#x1B" in text]


def test_annotations_and_pytests_html_report_name_the_task_file(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pytest_github_actions_annotate_failures", reason="a plugin of the test group")
    pytest.importorskip("pytest_html", reason="a plugin of the test group")
    project.write("tasks/first.txt", "")
    project.task("tasks/arc.yaml")
    project.edit("tasks/arc.yaml", "task: ", "# one line above\ntask: ")
    project.accept("tasks")
    project.edit("tasks/arc.yaml", "A:", "<b>:")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = project.run("tasks", "--html", "all.html", "--self-contained-html")
    marks = [line for line in (*result.outlines, *result.errlines) if line.startswith("::error ")]
    assert len(marks) == 2
    assert all("file=tasks/arc.yaml,line=2:" in mark for mark in marks)
    assert "%0A+| <b>:" in marks[0]
    page = (project.root / "all.html").read_text("utf-8")
    assert "tasks/arc.yaml::arc::snapshot[plain]" in page
    assert "<b>:" not in page


EDITOR = """
import inspect
import pytest

def pytest_sessionfinish(session):
    for item in session.items:
        names, node = [item.name], item.parent
        while isinstance(node, pytest.Class):  # editors nest below these alone, and look for the lines of their code
            names.append(node.name)
            with pytest.raises(TypeError):
                inspect.getsourcelines(node.obj)
            node = node.parent
        print("tree:", node.path.name, *reversed(names))
"""


def test_the_tree_of_an_editor_has_the_names_of_tasks(project: Project) -> None:
    project.write("conftest.py", EDITOR)
    members = [
        {"task": name, "test_split": "test", "doc_to_text": "{{question}}", "doc_to_target": "answer"}
        for name in ("arc", "boolq", "copa")
    ]
    project.write("all.yaml", json.dumps({"group": "all", "task": members}))
    shown = project.run("--collect-only", "-q", "--promptfmt-profile=plain").outlines
    assert [line for line in shown if line.startswith("tree: ")] == [
        f"tree: all.yaml all.{name} snapshot[plain]" for name in ("arc", "boolq", "copa")
    ]


def test_pytest_split_gives_each_group_its_tests_and_misses_no_snapshot(project: Project) -> None:
    pytest.importorskip("pytest_split", reason="a plugin of the test group")
    for name in ("arc", "boolq", "copa"):
        project.task(f"tasks/{name}.yaml")
    project.accept("tasks")
    counts = []
    for group in ("1", "2"):
        result = project.run("tasks", "-m", "promptfmt_snapshot", "--splits", "2", "--group", group)
        result.stdout.no_fnmatch_line("obsolete*")
        counts.append(result.parseoutcomes()["passed"])
    assert sum(counts) == 6
    assert min(counts) > 0


def test_switches_of_pytest_do_what_they_do_elsewhere(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.task("tasks/boolq.yaml")
    project.accept("tasks")
    project.edit("tasks/boolq.yaml", "A:", "B:")
    assert project.run("tasks", "-x", "-q").parseoutcomes()["failed"] == 1
    again = project.run("tasks", "--lf", "-q")
    assert "boolq [plain]" in again.stdout.str()
    assert again.parseoutcomes()["deselected"] > 0
    project.run("tasks", "-p", "no:cacheprovider", "-k", "arc and plain", "-m", "promptfmt_snapshot").assert_outcomes(
        passed=1, deselected=3
    )
    assert "::" in project.run("tasks", "-v").stdout.str()


def test_the_debugger_opens_in_the_tasks_own_function(project: Project) -> None:
    project.write("utils.py", "def text(doc):\n    found = doc['question'] * 2\n    return found + 1\n")
    file = project.task("arc.yaml", doc_to_text=None, dataset_path=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.write("arc.docs.jsonl", '{"question": "why", "answer": "so"}\n')
    arguments = ["--promptfmt", "--pdb", "-x", "--promptfmt-profile", "plain", "-m", "promptfmt_snapshot"]
    result = project.pytester.run(sys.executable, "-m", "pytest", *arguments, stdin=b"p found\nc\n")
    result.stdout.fnmatch_lines(["*  hint: the function failed at utils.py:3", "*utils.py(3)text()", "*'whywhy'*"])


def test_a_ci_server_sees_each_diff_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    project.task("tasks/arc.yaml")
    project.accept("tasks", "-m", "promptfmt_snapshot")
    project.edit("tasks/arc.yaml", "A:", "B:")
    shown = project.run("tasks", "-m", "promptfmt_snapshot").stdout.str()
    assert shown.count("+| B:⟨end⟩") == 2, "once for each of the two docs"
    assert "- arc [plain]: 2 of 2 docs changed\n" in shown
    briefly = project.run("tasks", "-m", "promptfmt_snapshot", "--tb=line", "--junitxml", "all.xml").outlines
    assert "arc [plain]: 2 of 2 docs changed" in briefly
    failure, _ = ElementTree.parse(project.root / "all.xml").iter("failure")
    assert failure.get("message") == "arc [plain]: 2 of 2 docs changed"
    assert "+| B:⟨end⟩" in (failure.text or "")


def test_what_narrows_or_stops_a_run_does_so_here(project: Project) -> None:
    for name in ("arc", "boolq", "cola"):
        project.task(f"tasks/{name}.yaml")
    project.accept("tasks")
    project.edit("tasks/boolq.yaml", "A:", "B:")
    project.run("tasks", "--sw", "-q").stdout.fnmatch_lines(["*Interrupted: Test failed, continuing from this test*"])
    again = project.run("tasks", "--sw", "-q")
    again.stdout.no_fnmatch_line("*arc.yaml*")
    project.edit("tasks/boolq.yaml", "B:", "A:")
    assert project.run("tasks", "--sw", "-q").ret == pytest.ExitCode.OK
    assert project.run("tasks", "--durations=1", "-vv", "-o", "addopts=-q").ret == pytest.ExitCode.OK
    project.edit("tasks/boolq.yaml", "A:", "B:")
    silent = project.run("tasks", "-p", "no:terminal", "--promptfmt-json", "result.json", "--junitxml", "all.xml")
    assert (silent.ret, silent.outlines) == (pytest.ExitCode.TESTS_FAILED, [])
    assert (project.root / "result.json").exists()
    failures = [found.text or "" for found in ElementTree.parse(project.root / "all.xml").iter("failure")]
    assert len(failures) == 2


COUNT_KEPT = """
def pytest_terminal_summary(terminalreporter):
    print("kept:", {kind: len(reports) for kind, reports in terminalreporter.stats.items()})
"""


def test_reports_of_nothing_are_kept_for_durations_alone(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.write("conftest.py", COUNT_KEPT)
    project.accept("tasks", "-m", "promptfmt_snapshot")
    kept = [line for line in project.run("tasks", "-m", "promptfmt_snapshot").outlines if line.startswith("kept: ")]
    assert kept == ["kept: {'': 0, 'passed': 2}"]
    timed = project.run("tasks", "-m", "promptfmt_snapshot", "--durations", "0", "-vv").stdout.str()
    assert "'': 4" in timed
    assert timed.count(" setup ") == 2


NAME_PASSED = """
def pytest_terminal_summary(terminalreporter):
    print("passed:", sorted(report.nodeid.partition("::")[2] for report in terminalreporter.stats["passed"]))
"""


def test_another_summary_finds_the_report_of_each_test(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.accept("tasks")
    project.write("conftest.py", NAME_PASSED)
    assert "passed: ['arc::snapshot[chat-chatml]', 'arc::snapshot[plain]']" in project.run("tasks").outlines


BROKEN_END = """
import pytest

@pytest.fixture(scope="session")
def opened():
    yield
    raise RuntimeError("cannot be closed")
"""


def test_fixtures_are_torn_down_in_the_run_if_unchanged_files_are_last(cached_project: Project) -> None:
    cached_project.task("tasks/arc.yaml")
    cached_project.accept("tasks")
    cached_project.write("conftest.py", BROKEN_END)
    cached_project.write("a_test.py", "def test_a(opened):\n    pass\n")
    cached_project.settle()
    first, again = (cached_project.run("--tb=no", "--promptfmt-ignore", "PF501") for _ in range(2))
    assert first.parseoutcomes() == {"passed": 4, "errors": 1}
    again.stdout.fnmatch_lines(["*1 passed, 1 error, 3 unchanged in *"])
    again.stdout.fnmatch_lines(["ERROR tasks*arc.yaml - RuntimeError: cannot be closed"])


def test_warnings_that_are_errors_meet_none_of_ours(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\nfilterwarnings = error\n")
    project.write("conftest.py", "def pytest_runtest_teardown(item):\n    pass\n")  # so items have three phases
    project.task("arc.yaml")
    project.accept("arc.yaml")
    assert set(project.run("arc.yaml", "--promptfmt-no-cache").parseoutcomes()) == {"passed"}
