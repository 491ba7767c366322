"""Files that mean harm: each gives one message of its own, and the rest goes on."""

import json
import os
import shlex
from pathlib import Path

import pytest
from plugin_project import Project

pytestmark = pytest.mark.slow

DOC = {"question": "Is it?", "answer": "yes"}
TEMPLATES = {
    "sums": "{{ " + " + ".join(["question"] * 3000) + " }}",
    "conditions": "{% if question %}" * 3000 + "x" + "{% endif %}" * 3000,
    "brackets": "{{ " + "(" * 5000 + "question" + ")" * 5000 + " }}",
    "filters": "{{ question|" + "|".join(["trim"] * 3000) + " }}",
    "lists": "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "attributes": "{{ question" + ".a" * 3000 + " }}",
}
ENDLESS = {
    "range": "{% for i in range(10**9) %}{% endfor %}{{question}}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{{question}}",
    "output": "{{ question * 999999999 }}",
}
NAMES = ["a::b", "a[b]", "a/b", "../../up", "two words", "été 日本", "-x", "%41", "a" * 180]
CANNOT_BE_NAMES = ["a" * 300, "", "line\nbreak", "\x1b[31mred"]


def sidecar(project: Project, path: str, *docs: object) -> None:
    project.write(path, "".join(f"{json.dumps(doc)}\n" for doc in docs))


def test_hostile_templates_and_docs_fail_one_by_one(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain chat-chatml\npromptfmt_time_limit = 2\n")
    for name, template in (TEMPLATES | ENDLESS).items():
        project.task(f"tasks/{name}.yaml", doc_to_text=template)
        sidecar(project, f"tasks/{name}.docs.jsonl", DOC)
    project.task("tasks/surrogate.yaml")
    sidecar(project, "tasks/surrogate.docs.jsonl", {"question": "\ud800", "answer": "\udfff"})
    project.task("tasks/huge.yaml")
    sidecar(project, "tasks/huge.docs.jsonl", {"question": "x" * 20_000_000, "answer": "y"})
    project.task("tasks/folder.yaml")
    (project.root / "tasks/folder.docs.jsonl").mkdir()
    project.task("tasks/pipe.yaml")
    os.mkfifo(project.root / "tasks/pipe.docs.jsonl")
    project.task("tasks/nul.yaml", doc_to_text="\0{{question}}\x01\r\n\x85\ufeff")
    sidecar(project, "tasks/nul.docs.jsonl", {"question": "\0\x7f\u2028\u202e", "answer": "\x1b[31m"})
    project.task("tasks/fine.yaml")
    arguments = ("tasks", "--promptfmt-profile", "plain", "--snapshot-update")
    failures = project.failures(*arguments)
    files = {*TEMPLATES, *ENDLESS, "surrogate", "huge", "folder", "pipe"}
    failing = {name: text for name in files for text in failures if text.startswith(f"tasks/{name}.")}
    assert set(failing) == files
    assert len(failures) == len(files)
    for name in TEMPLATES:
        assert failing[name].startswith(f"tasks/{name}.yaml:5:1: doc_to_text")
        assert "too many nested blocks" in failing[name]
    for name in ENDLESS:
        assert failing[name].startswith(f"tasks/{name}.yaml:5:1: ")
    assert "\x1b" not in "".join(failures)
    project.run(*arguments[:3], "-k", "nul or fine").assert_outcomes(passed=2, deselected=len(files))


def test_hostile_files_are_told_or_passed_over(project: Project) -> None:
    tasks = project.root / "tasks"
    bomb = ["task: bomb", "a: &a [x, x, x, x, x, x, x, x, x]"]
    bomb += [
        f"{now}: &{now} [{', '.join([f'*{before}'] * 9)}]" for before, now in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    project.write("tasks/bomb.yaml", "\n".join([*bomb, 'doc_to_text: "x"', ""]))
    project.write("tasks/circle.yaml", "task: &a [*a]\ndoc_to_text: x\n")
    project.write("tasks/deep.yaml", f"task: deep\ndoc_to_text: {'[' * 5000}{']' * 5000}\n")
    (tasks / "binary.yaml").write_bytes(b"task: \xff\xfe\0bin\ndoc_to_text: x\n")
    project.write("tasks/pipe_included.yaml", "include: pipe.yaml\ntask: pipe_included\ndoc_to_text: x\n")
    os.mkfifo(tasks / "pipe.yaml")
    (tasks / "dangling.yaml").symlink_to("nowhere.yaml")
    (tasks / "circular.yaml").symlink_to("circular.yaml")
    (tasks / "zeros.yaml").symlink_to("/dev/zero")
    project.task("tasks/folder.yaml/inside.yaml")
    result = project.run("tasks", "--promptfmt-profile", "plain", "--snapshot-update")
    result.assert_outcomes(passed=1, failed=5)
    for name in ("bomb", "circle", "deep", "binary", "pipe_included"):
        assert sum(f"FAILED tasks/{name}.yaml::load" in line for line in result.outlines) == 1
        assert any(line.startswith(f"tasks/{name}.yaml:") for line in result.outlines)
    missing = project.run("tasks/dangling.yaml")
    assert missing.ret == pytest.ExitCode.USAGE_ERROR


def test_hostile_names_can_be_selected_and_accepted(project: Project) -> None:
    for number, name in enumerate([*NAMES, *CANNOT_BE_NAMES]):
        project.task(f"tasks/n{number}.yaml", name, doc_to_text=f"{number} {{{{question}}}}")
    files = ["x [1].yaml", "y::z.yaml", "sp ace.yaml", "ünï.yaml"]
    for number, file in enumerate(files):
        project.task(f"tasks/{file}", f"file{number}", doc_to_text=f"file {number} {{{{question}}}}")
    arguments = ("tasks", "--promptfmt-profile", "plain")
    result = project.run(*arguments, "--snapshot-update")
    good = len(NAMES) + len(files)
    result.assert_outcomes(passed=good, failed=len(CANNOT_BE_NAMES))
    assert len(project.snapshots()) == good
    assert all(Path(name).parts[:2] == ("tasks", "__prompts__") for name in project.snapshots())
    for written in (project.root / "tasks").glob("*.yaml"):
        written.write_text(written.read_text("utf-8").replace(" {{", " changed {{"), "utf-8")
    commands = [text.rpartition("accept: pytest ")[2] for text in project.failures(*arguments) if "accept: " in text]
    assert len(commands) == good
    before = project.snapshots()
    wanted = ("a.b::", "a(b)::", "../../up::", "::-x::", "file0", "file1")
    chosen = [command for command in commands if any(name in command for name in wanted)]
    assert len(chosen) == len(wanted)
    for command in chosen:
        accepted = project.start(*shlex.split(command))
        assert accepted.ret == 0
        assert accepted.parseoutcomes()["passed"] == 1
    after = project.snapshots()
    assert len([name for name in before if before[name] != after[name]]) == len(chosen)
