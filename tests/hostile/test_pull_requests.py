"""What SECURITY.md promises about pull requests, tried: its command, the workflow, the files that are opened."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml
from plugin_project import Project

import pytest_promptfmt

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGE = Path(pytest_promptfmt.__file__).parent
TOKEN = "TOKEN-VALUE-123"
TASK = 'test_split: test\noutput_type: generate_until\ndoc_to_text: "{{question}}"\ndoc_to_target: answer\n'
MODULES = (
    *("conftest", "test_evil", "evil_test", "evil_plugin", "evil", "__init__", "sitecustomize", "usercustomize"),
    *("pytest", "_pytest", "yaml", "jinja2", "syrupy", "pytest_promptfmt", "setup", "tokenizers"),
)


@pytest.fixture
def repository(project: Project) -> Path:
    """Return a repository whose every Python file says that it ran, wherever pytest may look."""
    root = project.root / "repository"
    for name in MODULES:
        for folder in (root, root / "tasks"):
            folder.mkdir(parents=True, exist_ok=True)
            ran = project.root / f"ran-{folder.name}-{name}"
            (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'w').close()\ndef f(doc): return 'x'\n", "utf-8")
    (root / "__init__.py").unlink()
    configured = "[pytest]\naddopts = -p evil_plugin --doctest-modules\npython_files = *.py\n"
    for name in ("pytest.ini", "tox.ini", ".pytest.ini"):
        (root / name).write_text(configured, "utf-8")
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "-p evil_plugin"\n', "utf-8")
    (root / "promptfmt.yaml").write_text("rules: [evil.py]\ntask_modules: [tasks]\nallow_code: [.]\n", "utf-8")
    egg = root / "x.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1\n", "utf-8")
    (egg / "entry_points.txt").write_text("[pytest11]\nevil = evil_plugin\n", "utf-8")
    (root / "test_doc.txt").write_text(f">>> open({str(project.root / 'ran-doctest')!r}, 'w').close()\n", "utf-8")
    (root / "tasks/t.yaml").write_text(f"task: t\n{TASK}", "utf-8")
    (root / "tasks/u.yaml").write_text(f"task: u\n{TASK}doc_to_text: !function evil.f\n", "utf-8")
    (project.root / "trusted.ini").write_text("[pytest]\n", "utf-8")
    return root


def commands_of(page: str) -> list[str]:
    return re.findall(r"^pytest .*--promptfmt-no-code.*$", (ROOT / page).read_text("utf-8"), re.MULTILINE)


def start(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTEST_ADDOPTS": "", "GH_TOKEN": TOKEN}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("options", [(), ("--promptfmt-workers=0",), ("tasks", "-v", "--promptfmt-workers=0")])
def test_the_command_of_the_security_page_runs_nothing_of_a_pull_request(
    repository: Path, options: tuple[str, ...]
) -> None:
    [command] = commands_of("SECURITY.md")
    words = shlex.split(command.replace("trusted.ini", "../trusted.ini"))
    words[0] = str(Path(sysconfig.get_path("scripts")) / "pytest")
    done = start([*words, *options], repository)
    assert "t.yaml::t::snapshot[plain] - t [plain]: there is no snapshot yet" in done.stdout, done.stdout + done.stderr
    assert sorted(path.name for path in repository.parent.glob("ran-*")) == []
    start([sys.executable, "-m", "pytest", "--promptfmt"], repository)
    assert list(repository.parent.glob("ran-*")), "else this test shows nothing"


def test_no_python_test_is_collected_without_code(project: Project) -> None:
    project.task("tasks/t.yaml")
    for name in ("tasks/__init__.py", "tasks/test_more.py", "tasks/test_words.txt"):
        project.write(name, "def test_one(): pass\n")
    assert project.collected("--promptfmt", "--promptfmt-no-code", "-m", "promptfmt_snapshot") == [
        "tasks/t.yaml::t::snapshot[plain]",
        "tasks/t.yaml::t::snapshot[chat-chatml]",
    ]
    assert "tasks/test_more.py::test_one" in project.collected("--promptfmt")


# -- the workflow ------------------------------------------------------------------------------------------------------

ASKING: dict[str, dict[str, Any]] = {
    "environ": {"metadata": {"promptfmt": {"docs": "/proc/self/environ"}}},
    "parent": {"dataset_path": "csv", "dataset_kwargs": {"data_files": {"test": "/proc/1/environ"}, "names": ["a"]}},
    "config": {"metadata": {"promptfmt": {"docs": "../.git/config"}}},
    "template": {"doc_to_text": "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ environ }}{{ env('GH_TOKEN') }}"},
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_token_in_the_environment_of_the_job_is_in_no_output(project: Project) -> None:
    """Replay the steps of the action, which run files of a pull request, with a token where none should be."""
    root = project.root
    for name, keys in ASKING.items():
        project.task(f"tasks/{name}.yaml", **keys)
    (root / "tasks/link.docs.jsonl").symlink_to("/proc/self/environ")
    project.task("tasks/link.yaml")
    identity = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-qm", "one"],
        ["commit", "-q", "--allow-empty", "-m", "two"],
    ):
        subprocess.run([*identity, *words], cwd=root, check=True, capture_output=True)
    steps = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))["runs"]["steps"]
    scripts = [step["run"] for step in steps if "promptfmt" in step.get("run", "")]
    said = []
    for script in scripts:
        named = dict.fromkeys(("PATHS", "ARGS", "SHARD", "NUMBER", "REPOSITORY", "OUTCOME", "DIFFERS"), "")
        files = {name: str(root / f"out-{name}") for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV")}
        variables = {**os.environ, **named, **files, "BASE": "HEAD~1", "GH_TOKEN": TOKEN, "GITHUB_TOKEN": TOKEN}
        variables |= {
            "PYTHONPATH": str(PACKAGE.parent),
            "PYTEST_ADDOPTS": "",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=root, env=variables, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        said.append(done.stdout + done.stderr)
    assert any("environ" in text for text in said), said
    written = [path for path in root.rglob("*") if path.is_file() and ".git" not in path.relative_to(root).parts]
    for text in [*said, *(path.read_bytes().decode("utf-8", "replace") for path in written)]:
        assert TOKEN not in text


# -- files that are opened ---------------------------------------------------------------------------------------------


def test_a_hostile_run_opens_nothing_but_the_repository_python_and_its_own(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project.root / "repository"
    root.mkdir()
    names = [
        "/proc/self/environ",
        "../secret.jsonl",
        "/etc/passwd",
        "/dev/zero",
        "link",
        "~root/.ssh/id_rsa",
        "folder/x",
    ]
    project.write("secret.jsonl", '{"question": "x", "answer": "y"}\n')
    (root / "link").symlink_to("../secret.jsonl")
    (root / "folder").symlink_to("/etc")
    project.write("repository/pytest.ini", "[pytest]\n")
    for number, name in enumerate(names):
        project.task(f"repository/docs{number}.yaml", metadata={"promptfmt": {"docs": name}})
        project.task(f"repository/include{number}.yaml", include=name)
        project.task(f"repository/path{number}.yaml", dataset_path=name)
        project.task(f"repository/prompt{number}.yaml", use_prompt=f"{name}:x", doc_to_text=None)
        data = {"data_files": {"test": name}, "column_names": ["a"]}
        project.task(f"repository/data{number}.yaml", dataset_path="csv", dataset_kwargs=data)
        project.task(f"repository/recorded{number}.yaml", metadata={"promptfmt": {"recordings": [name]}})
        place = root / f"__prompts__/docs{number}/docs{number}"
        place.mkdir(parents=True)
        (place / "plain.txt").symlink_to(name)
    log = project.root / "opened.txt"
    for name, variable in (("temporary", "TMPDIR"), ("cache", "PROMPTFMT_CACHE_DIR")):
        (project.root / name).mkdir()
        monkeypatch.setenv(variable, str(project.root / name))
    monkeypatch.chdir(root)
    monkeypatch.setenv("OPENED_FILES", str(log))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), str(PACKAGE.parent)]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--promptfmt", "--promptfmt-no-code", "-p", "opened_files"],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert " failed" in done.stdout, done.stdout + done.stderr
    opened = log.read_text("utf-8", "surrogateescape").splitlines()
    assert str(root / "docs0.yaml") in opened
    own = [str(place) for place in (root, PACKAGE, Path(__file__).parent, project.root / "temporary")]
    own += [str(project.root / "cache"), sys.prefix, sys.base_prefix, "/usr/lib", "/usr/local/lib", "/lib", "/dev/null"]
    measures = re.compile(
        r"/proc/(?:self|[0-9]+)/(?:statm|stat|task/[0-9]+/children)|/proc/(?:cpuinfo|meminfo)|/sys/(?:devices|fs/cgroup)/.*"
    )
    allowed = tuple(os.path.realpath(place) for place in (*own, *filter(None, sys.path)))
    strangers = [
        name for name in opened if not os.path.realpath(name).startswith(allowed) and not measures.fullmatch(name)
    ]
    assert strangers == []
