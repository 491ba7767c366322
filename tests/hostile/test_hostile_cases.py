"""Files of a pull request that mean harm: what they ask for does not happen, and each gives one message."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

pytestmark = pytest.mark.slow

SECRET = "SECRET-VALUE-123"
REFUSALS = (
    "outside the rootdir",
    "files of the operating system are never opened",
    "a path with a drive is not allowed",
    "a path of a network share or device is not allowed",
    "not a regular file",
    "the name is that of a device",
)
QUIET = ("-q", "--promptfmt-no-code", "--promptfmt-profile", "plain")
WRITTEN = ("markdown", "html", "json", "patch", "pending")


@pytest.fixture
def hostile(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a task, in a process whose environment has a token, beside a folder of somebody else."""
    monkeypatch.setenv("GH_TOKEN", SECRET)
    project.root = project.root / "repository"
    project.root.mkdir()
    monkeypatch.chdir(project.root)
    project.write("pytest.ini", "[pytest]\n")
    project.write("../outside/secret.jsonl", json.dumps({SECRET: SECRET}) + "\n")
    project.task("t.yaml", metadata={"promptfmt": {"docs": [{"question": "x", "answer": "y"}]}})
    return project


def everything_said(project: Project, *args: str) -> str:
    """Return what a run prints and writes, all of it."""
    outputs = [f"--promptfmt-write={name}={project.root / f'out.{name}'}" for name in WRITTEN]
    result = project.run(*QUIET, *args, *outputs, f"--junitxml={project.root / 'out.xml'}", "--snapshot-update")
    files = [*project.root.glob("out.*"), *project.root.glob("__prompts__/*/*/*.txt")]
    written = [path.read_text("utf-8") for path in files if not path.is_symlink()]
    return "\n".join([result.stdout.str(), result.stderr.str(), *written])


# -- files that are not theirs to read ---------------------------------------------------------------------------------


OUTSIDE: list[dict[str, Any]] = [
    {"dataset_path": "csv", "dataset_kwargs": {"data_files": {"test": "/proc/self/environ"}, "names": ["a"]}},
    {"dataset_path": "csv", "dataset_kwargs": {"data_files": {"test": "link.csv"}, "column_names": ["a"]}},
    {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "../outside/*.jsonl"}}},
    {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "folder/secret.jsonl"}}},
    {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "*.jsonl"}, "data_dir": "../outside"}},
    {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "C:\\secret.jsonl"}}},
    {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "\\\\server\\share\\secret.jsonl"}}},
    {"dataset_path": "../outside"},
    {"dataset_path": "/proc"},
    {"dataset_path": "./folder"},
    {"metadata": {"promptfmt": {"docs": "../outside/secret.jsonl"}}},
    {"metadata": {"promptfmt": {"docs": "NUL"}}},
    {"metadata": {"promptfmt": {"recordings": ["../outside/secret.jsonl"]}}},
    {"metadata": {"promptfmt": {"recordings": ["../outside/*.jsonl"]}}},
    {"include": "../outside/secret.jsonl"},
    {"include": "folder/secret.jsonl"},
    {"include": "/etc/passwd"},
    {"use_prompt": "../outside/secret.yaml:x", "doc_to_text": None, "doc_to_target": None},
]  # fmt: skip


def test_no_name_in_a_task_opens_a_file_outside(hostile: Project) -> None:
    (hostile.root / "link.csv").symlink_to("/proc/self/environ")
    (hostile.root / "folder").symlink_to("../outside")
    hostile.write("../outside/secret.yaml", f"prompts: {{x: {{doc_to_text: {SECRET}, doc_to_target: {SECRET}}}}}\n")
    cases = {hostile.task(f"case{number}.yaml", **keys).stem: keys for number, keys in enumerate(OUTSIDE)}
    said = everything_said(hostile)
    assert SECRET not in said
    assert "root:x:0" not in said
    failures = dict.fromkeys(cases, "")
    for case in ElementTree.parse(hostile.root / "out.xml").iter("testcase"):
        name = re.search(r"\bcase\d+\b", f"{case.get('classname')} {case.get('name')}")
        if name is not None:
            failures[name[0]] += "".join(found.text or "" for found in case.iter("failure"))
    refusals = (*REFUSALS, "missing docs file: ")  # a pattern finds no file there
    refused = [name for name, text in failures.items() if any(refusal in text for refusal in refusals)]
    assert [keys for name, keys in cases.items() if name not in refused] == []


@pytest.mark.parametrize("kind", ["chat_template", "tokenizer"])
@pytest.mark.parametrize("path", ["/proc/self/environ", "../outside/secret.jsonl", "link", "NUL", "C:\\x", "\\\\s\\x"])
def test_no_profile_opens_a_file_outside(hostile: Project, kind: str, path: str) -> None:
    (hostile.root / "link").symlink_to("/proc/self/environ")
    settings = {"profiles": {"x": {kind: path, **({"chat_template": "chatml"} if kind == "tokenizer" else {})}}}
    hostile.write("promptfmt.yaml", json.dumps({**settings, "default_profiles": ["x"]}))
    result = hostile.run("-q", "--promptfmt-no-code")
    said = result.stdout.str() + result.stderr.str()
    assert SECRET not in said
    assert result.ret != 0
    assert any(refusal in said for refusal in ("cannot be read", "cannot look up", *REFUSALS)), said


def test_what_the_command_line_names_is_opened(hostile: Project) -> None:
    hostile.write("../outside/docs.jsonl", '{"question": "from outside", "answer": "y"}\n')
    hostile.task("t.yaml", metadata={"promptfmt": {"docs": "../outside/docs.jsonl"}})
    hostile.run(*QUIET, "-m", "promptfmt_snapshot", "--snapshot-update").assert_outcomes(failed=1)
    allowed = ("--promptfmt-allow-path", "../outside")
    hostile.run(*QUIET, *allowed, "-m", "promptfmt_snapshot", "--snapshot-update").assert_outcomes(passed=1)
    assert b"from outside" in next(iter(hostile.snapshots().values()))
    hostile.task("../outside/u.yaml", metadata={"promptfmt": {"docs": "docs.jsonl"}})
    hostile.run(*QUIET, "-m", "promptfmt_snapshot", "../outside", "--snapshot-update").assert_outcomes(passed=1)


def test_a_settings_file_cannot_allow_a_path(hostile: Project) -> None:
    hostile.write("promptfmt.yaml", "allow_path: [/]\n")
    result = hostile.run(*QUIET)
    assert "unknown key 'allow_path'" in result.stderr.str()


def test_a_hostile_run_opens_no_file_outside(hostile: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(
        ["/proc/self/environ", "../outside/secret.jsonl", "/etc/passwd", "/dev/zero", "link"]
    ):
        hostile.task(f"docs{number}.yaml", metadata={"promptfmt": {"docs": name}})
        hostile.task(f"include{number}.yaml", include=name)
        data = {"data_files": {"test": name}, "column_names": ["a"]}
        hostile.task(f"data{number}.yaml", dataset_path="csv", dataset_kwargs=data)
        hostile.task(f"recorded{number}.yaml", metadata={"promptfmt": {"recordings": [name]}})
    (hostile.root / "link").symlink_to("../outside/secret.jsonl")
    (hostile.root / "formats").mkdir()
    (hostile.root / "formats/f.yaml").symlink_to("/dev/zero")
    (hostile.root / "docs9.docs.jsonl").symlink_to("/etc/passwd")
    hostile.task("docs9.yaml")
    log = hostile.root.parent / "opened.txt"
    monkeypatch.setenv("OPENED_FILES", str(log))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    result = hostile.run(*QUIET, "-p", "opened_files")
    assert SECRET not in result.stdout.str()
    opened = log.read_text("utf-8", "surrogateescape").splitlines()
    assert str(hostile.root / "t.yaml") in opened, "the hook was there"
    # /proc is read by what bounds the memory of workers, never below the names of a file.
    forbidden = ("/etc/passwd", "/dev/zero", "/environ", str(hostile.root.parent / "outside"))
    assert [
        name for name in opened if any(name.endswith(part) or name.startswith(f"{part}/") for part in forbidden)
    ] == []


# -- snapshots ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["/etc/passwd", "/dev/zero", "../../../../outside/secret.jsonl", "nowhere"])
def test_a_snapshot_that_is_a_link_is_neither_read_nor_written(hostile: Project, target: str) -> None:
    folder = hostile.root / "__prompts__/t/t"
    folder.mkdir(parents=True)
    (folder / "plain.txt").symlink_to(target)
    said = everything_said(hostile)
    assert "the snapshot is a link, but snapshots must be regular files" in said
    assert "root:x:0" not in said
    assert SECRET not in said
    assert (folder / "plain.txt").is_symlink()


@pytest.mark.parametrize("linked", ["__prompts__", "__prompts__/t", "__prompts__/t/t"])
def test_nothing_is_written_or_deleted_through_a_linked_folder(hostile: Project, linked: str) -> None:
    victim = hostile.root.parent / "victim"
    (victim / "gone/x").mkdir(parents=True)
    (victim / "gone/x/plain.txt").write_text("pytest-promptfmt snapshot 1\nprecious", "utf-8")
    (victim / "plain.txt").write_text("pytest-promptfmt snapshot 1\nprecious", "utf-8")
    (victim / "x").mkdir()
    (victim / "x/plain.txt").write_text("pytest-promptfmt snapshot 1\nprecious", "utf-8")
    before = {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()}
    (hostile.root / linked).parent.mkdir(parents=True, exist_ok=True)
    (hostile.root / linked).symlink_to(victim)
    result = hostile.run(*QUIET, "--snapshot-update")
    assert result.parseoutcomes()["failed"] == 1
    assert "is a link, but snapshots must be regular files" in result.stdout.str()
    assert {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()} == before


def test_a_snapshot_of_gigabytes_is_refused(hostile: Project) -> None:
    place = hostile.write("__prompts__/t/t/plain.txt", "")
    with place.open("wb") as file:
        file.truncate(5 * 2**30)
    assert "larger than 64 MiB" in hostile.run(*QUIET).stdout.str()


# -- code --------------------------------------------------------------------------------------------------------------


def test_no_code_means_none_whatever_names_it(hostile: Project) -> None:
    mark = hostile.root.parent / "ran"
    evil = f"open({str(mark)!r}, 'w').close()\ndef f(doc): return 'x'\n"
    for name in ("evil.py", "metric/metric.py", "modules/classes.py"):
        hostile.write(name, evil)
    settings = {"rules": ["evil.py"], "task_modules": ["modules"], "allow_code": ["."], "ignore": ["OWN001"]}
    hostile.write("promptfmt.yaml", json.dumps(settings))
    hostile.write("function.yaml", "task: function\noutput_type: generate_until\ndoc_to_text: !function evil.f\n")
    hostile.write("class.yaml", "task: class\nclass: !function evil.f\n")
    hostile.task("metric.yaml", metric_list=[{"metric": "metric", "aggregation": "mean", "hf_evaluate": True}])
    result = hostile.run("-q", "--promptfmt-no-code")
    assert not mark.exists()
    assert "ERROR" not in result.stderr.str()
    hostile.run("-q")
    assert mark.exists(), "else this test shows nothing"


def test_a_settings_file_does_not_allow_downloads_without_code(hostile: Project) -> None:
    hostile.write("promptfmt.yaml", "download: true\nprofiles: {x: {tokenizer: nobody/has-this}}\n")
    code = (
        "from pathlib import Path\nfrom pytest_promptfmt.settings.setting_lookup import SettingLookup\n"
        "from pytest_promptfmt.settings.file import read_settings_file\n"
        "file = read_settings_file(Path('promptfmt.yaml'), is_at_rootdir=True)\n"
        "class Config:\n rootpath = Path.cwd()\n"
        " def __init__(self, *given): self.given = given\n"
        " def getoption(self, name, default=None): return name in self.given or None\n"
        " def getini(self, name): return True if name == 'promptfmt_download' else None\n"
        "for given in ((), ('--promptfmt-no-code',), ('--promptfmt-no-code', '--promptfmt-download')):\n"
        "    print(SettingLookup(Config(*given), (file,)).value('download'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["True", "None", "True"], done.stderr


# -- nothing is lost in silence ----------------------------------------------------------------------------------------

_BODY = 'test_split: test\noutput_type: generate_until\ndoc_to_text: "{{question}}"\ndoc_to_target: answer\n'


@pytest.mark.parametrize(
    "head",
    ["&x task: t", "!!str task: t", "? task\n: t", '"\\x74ask": t', "--- !!map\ntask: t", "<<: {task: t}",
     "<<: [{num_fewshot: 0}, {task: t}]", "description: &k task\n*k : t", "description: x\u0085task: t",
     "!<tag:yaml.org,2002:str> task: t", "? >-\n  task\n: t", "\ufefftask: t"],
)  # fmt: skip
def test_every_spelling_of_a_key_is_collected(project: Project, head: str) -> None:
    project.write("t.yaml", f"{head}\n{_BODY}")
    assert "t.yaml::t::snapshot[plain]" in project.collected("--promptfmt")


@pytest.mark.parametrize(
    "content",
    [b"", b"task: t\n", b"\0" * 200, b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n",
     b"\ttask: t\n", f"tsak: t\n{_BODY}".encode(), None],
)  # fmt: skip
def test_a_file_with_snapshots_that_defines_no_task_fails(project: Project, content: bytes | None) -> None:
    project.write("a/t.yaml", f"task: t\n{_BODY}")
    project.task("b/u.yaml")
    project.accept()
    before = project.snapshots()
    file = project.root / "a/t.yaml"
    if content is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(content)
    for arguments in ((), ("--snapshot-update",)):
        result = project.run("-q", *arguments)
        assert result.parseoutcomes()["failed"] == 1
        assert any(line.startswith("FAILED a/t.yaml::load") for line in result.outlines)
        assert project.snapshots() == before


def test_a_link_to_nothing_with_snapshots_fails(project: Project) -> None:
    project.task("t.yaml")
    project.task("u.yaml")
    project.accept()
    (project.root / "t.yaml").unlink()
    (project.root / "t.yaml").symlink_to("nowhere.yaml")
    before = project.snapshots()
    result = project.run("-q", "--snapshot-update")
    assert "FAILED t.yaml::load - t.yaml: the file cannot be read" in result.stdout.str()
    assert project.snapshots() == before


def test_data_beside_a_task_with_snapshots_is_no_failure(project: Project) -> None:
    project.task("t.yaml")
    project.write("t.json", '[{"question": "x", "answer": "y"}]')
    project.write("t.py", "x = 1\n")
    project.write("t.yml", "services: {}\n")
    project.accept()
    assert project.run("-q").ret == 0


@pytest.mark.parametrize(
    "name", ["promptfmt.yaml", "promptfmt.lock", "t.recording.jsonl", "t.completions.jsonl", "t.docs.jsonl"]
)
@pytest.mark.parametrize("target", ["nowhere", "/dev/zero"])
def test_links_to_nothing_and_devices_are_named(project: Project, name: str, target: str) -> None:
    project.task("t.yaml", filter_list=[{"name": "n", "filter": [{"function": "regex", "regex_pattern": "x"}]}])
    (project.root / name).symlink_to(target)
    result = project.run("-q", "--promptfmt-profile", "chat-chatml", "--snapshot-update")
    said = result.stdout.str() + result.stderr.str()
    assert name in said
    assert (project.root / name).is_symlink()


@pytest.mark.parametrize("target", ["nowhere", "/dev/zero", "../outside/secret.jsonl"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("promptfmt.yml", {}), ("sub/promptfmt.yaml", {}), ("base.jsonl", {}), ("named.jsonl", {}), ("formats/f.yaml", {}),
     ("engine.jsonl", {"profiles": {"x": {"chat_template": "chatml", "engine": "engine.jsonl"}}})],
)  # fmt: skip
def test_what_is_named_or_found_and_cannot_be_read_is_reported(
    hostile: Project, name: str, settings: dict[str, Any], target: str
) -> None:
    hostile.task("t.yaml", metadata={"promptfmt": {"recordings": ["named.jsonl"]}} if name == "named.jsonl" else {})
    hostile.task("sub/u.yaml")
    if settings:
        hostile.write("promptfmt.yaml", json.dumps({**settings, "default_profiles": [*settings["profiles"]]}))
    place = hostile.root / name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(os.path.relpath(hostile.root / target, place.parent) if target[0] == "." else target)
    baseline = ["--promptfmt-baseline=base.jsonl"] if name == "base.jsonl" else []
    result = hostile.run("-q", "--promptfmt-no-code", "--snapshot-update", "-o", "promptfmt_lint=true", *baseline)
    said = result.stdout.str() + result.stderr.str()
    assert place.name in said
    assert SECRET not in said


def test_left_over_temporary_files_are_removed_by_the_next_run(project: Project) -> None:
    project.task("t.yaml")
    project.accept()
    left = [project.write(f"{folder}.promptfmt-4194999-7.tmp", "half a sn") for folder in ("", "__prompts__/t/t/")]
    other = project.write("__prompts__/t/t/.promptfmt-notes.tmp", "somebody's")
    running = project.write(f"__prompts__/t/t/.promptfmt-{os.getpid()}-7.tmp", "of a process that runs")
    project.run("-q")
    assert [path.exists() for path in (*left, other, running)] == [False, False, True, True]


def test_a_sparse_checkout_deletes_no_snapshot(project: Project) -> None:
    def git(*args: str) -> None:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *args], cwd=project.root, check=True, capture_output=True)

    for name in ("kept", "absent", "deleted"):
        project.task(f"tasks/{name}.yaml")
    project.task("tasks/kept.yml", "same folder")
    project.accept()
    assert len([name for name in project.snapshots() if "/kept/" in name]) == 4
    git("init", "-q")
    git("add", "tasks")
    git("commit", "-qm", "one")
    git("sparse-checkout", "set", "--no-cone", "/*", "!/tasks/absent.yaml", "!/tasks/kept.yml")
    assert not (project.root / "tasks/absent.yaml").exists()
    (project.root / "tasks/deleted.yaml").unlink()
    project.run("-q", "--snapshot-update")
    assert {Path(name).parts[2] for name in project.snapshots()} == {"kept", "absent"}
    assert len([name for name in project.snapshots() if "/kept/" in name]) == 4


# -- one message -------------------------------------------------------------------------------------------------------


def test_a_baseline_with_a_name_that_no_file_can_have_is_no_error(project: Project) -> None:
    project.task("t.yaml")
    project.accept()
    names = ["A" * 300, "a\0b", "../../../etc/passwd", "\ud800", ""]
    entries = [
        {"file": name, "task": "t", "code": "PF201", "message": "x", "key": str(n)} for n, name in enumerate(names)
    ]
    lines = [{"pytest-promptfmt baseline": 1}, *entries]
    project.write("b.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert project.run("-q", "--promptfmt-baseline", "b.jsonl").ret == 0


def test_a_folder_that_may_not_be_read_is_one_message(project: Project) -> None:
    project.task("t.yaml", dataset_path="/proc")
    failures = project.failures("--promptfmt-profile", "plain", "-m", "promptfmt_snapshot")
    assert [failure.partition(": ")[0] for failure in failures] == ["t.yaml:2:1"]


def test_a_long_chain_of_includes_is_one_message_and_hurts_no_other_task(project: Project) -> None:
    for number in range(1200):
        project.write(
            f"inc{number}", f"include: inc{number + 1}\n" if number < 1199 else "output_type: generate_until\n"
        )
    project.write("a.yaml", "task: a\ninclude: inc0\ndoc_to_text: '{{q}}'\ndoc_to_target: ''\n")
    project.task("b.yaml")
    failures = project.failures("--promptfmt-profile", "plain", "--snapshot-update", "-o", "promptfmt_lint=true")
    assert len(failures) == 1
    assert "files include each other more than 50 deep" in failures[0]


def test_the_documented_key_for_recordings_is_known_to_the_rules(project: Project) -> None:
    project.write("runs/a.jsonl", '{"doc": 0, "completion": "2", "expected": "2", "correct": true}\n')
    filters = [
        {"name": "n", "filter": [{"function": "regex", "regex_pattern": "([0-9]+)"}, {"function": "take_first"}]}
    ]
    own = {"docs": [{"question": "1+1?", "answer": "2"}], "recordings": ["runs/*.jsonl"]}
    project.task("t.yaml", filter_list=filters, metadata={"promptfmt": own})
    result = project.run("-q", "-m", "promptfmt_lint", "-o", "promptfmt_lint=true", "--promptfmt-select", "PF107")
    assert result.ret == 0


@pytest.mark.parametrize("metric", [{"a": 1}, ["acc"], 3, None])
def test_a_metric_that_is_no_name_is_one_message(project: Project, metric: object) -> None:
    project.task(
        "t.yaml",
        output_type="multiple_choice",
        doc_to_choice=["a", "b"],
        doc_to_target=0,
        metric_list=[{"metric": metric}],
    )
    result = project.run("-q", "-o", "promptfmt_lint=true", "-m", "promptfmt_lint", "--promptfmt-select", "PF0,PF109")
    assert "PF003" not in result.stdout.str()
    assert result.parseoutcomes()["failed"] == 1


def test_docs_are_given_or_synthetic_by_a_field_and_not_by_a_name(project: Project) -> None:
    for name in ("answers", "synthetic_answers"):
        keys = {"output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "{{answer}}"}
        project.task(f"{name}.yaml", **keys)
        project.write(
            f"{name}.docs.jsonl", '{"question": "What rusts?", "choices": ["iron", "tin"], "answer": "Iron"}\n'
        )
    out = project.root / "out.json"
    project.run("-q", "-o", "promptfmt_lint=true", "-m", "promptfmt_lint", f"--promptfmt-json={out}")
    found = {group["code"]: set(group["tasks"]) for group in json.loads(out.read_text("utf-8"))["findings"]}
    assert found["PF701"] == {"answers", "synthetic_answers"}


# -- nothing active in reports -----------------------------------------------------------------------------------------


def test_no_line_of_a_report_is_a_command(hostile: Project) -> None:
    hostile.write("fn.yaml", f'task: fn\n{_BODY}doc_to_text: !function "a\\n::error::P1\\e[31m.b"\n')
    hostile.write("group.yaml", 'group: "g\\n::error::P2\\e[31m"\ntask: ["m"]\n')
    hostile.write(
        "ignore.yaml", f'task: i\n{_BODY}metadata: {{promptfmt: {{ignore: ["no\\n::error::P3##[error]x"]}}}}\n'
    )
    hostile.write(
        "docs.yaml", f'task: d\n{_BODY}metadata: {{promptfmt: {{docs: "no\\n  ::error::P4\\e[31m##vso[x].jsonl"}}}}\n'
    )
    hostile.write("::error::P5\x1b[31m.yaml", f"task: file\n{_BODY}")
    result = hostile.run("--promptfmt-no-code", "--promptfmt-profile", "plain", "-o", "promptfmt_lint=true", "-v")
    said = result.stdout.str() + result.stderr.str()
    for number in "1345":
        assert f"P{number}" in said
    assert "\x1b" not in said
    assert not [
        line for line in said.splitlines() if line.lstrip().startswith("::") or "##[" in line or "##vso[" in line
    ]


def test_names_in_markdown_are_code(hostile: Project) -> None:
    name = "@github/security-team fixes GH-1 #2 https://evil.example/x <img src=x> `x` |a| [l](u) _e_"
    hostile.task("t.yaml", name, doc_to_text="{{nope.x}}")
    hostile.run(*QUIET, f"--promptfmt-write=markdown={hostile.root / 'r.md'}")
    lines = (hostile.root / "r.md").read_text("utf-8").splitlines()
    assert any(line.startswith("<details open><summary><code>&#64;github") for line in lines)
    is_fenced = False
    for line in lines:
        is_fenced = is_fenced != line.startswith("```")
        without_code = line if is_fenced else "".join(line.split("`")[::2])
        if not is_fenced and "``" not in line:
            for live in ("@github", "GH-1", "#2", "https:", "<img", "[l]"):
                assert live not in without_code.partition("<code>")[0]


def test_junit_files_hold_names_as_text(hostile: Project) -> None:
    hostile.task("t.yaml", "a]]><failure>&\x1b", doc_to_text="{{nope.x}}")
    [failure, *_] = hostile.failures(*QUIET)
    assert "\x1b" not in failure


# -- the cases beside the repository -----------------------------------------------------------------------------------

CASES = Path(__file__).parents[3] / "shared/hostile"


@pytest.mark.skipif(not CASES.is_dir(), reason="needs ../shared/hostile")
@pytest.mark.parametrize("case", ["01-environ-leak", "02-env-leak-chat-template", "04-no-code-checks"])
def test_the_reported_files_give_nothing_away(hostile: Project, case: str) -> None:
    for path in sorted((CASES / case).iterdir()):
        hostile.write(path.name, path.read_text("utf-8"))
    hostile.write("evil.py", f"open({str(hostile.root / 'PWNED')!r}, 'w')\n")
    result = hostile.run(
        "-q", "--promptfmt-no-code", f"--promptfmt-write=markdown={hostile.root / 'r.md'}", "--snapshot-update"
    )
    assert SECRET not in result.stdout.str() + result.stderr.str()
    assert not any(SECRET.encode() in content for content in hostile.snapshots().values())
    assert not (hostile.root / "PWNED").exists()
