"""Systems of others: registered by code or by an installed package, and asked before the built-in ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from plugin_project import Project
from promptfmt_command import promptfmt

from pytest_promptfmt.systems import _BUILTIN

CARDS = """
from pytest_promptfmt import Dataset, SourceError, System, Task, TaskDocs, TaskFile

class Cards(System):
    name = "cards"
    suffixes = (".cards", ".yaml")
    shape = "a file of cards"

    def recognizes(self, path, head):
        return head.startswith(b"cards:")

    def read(self, path, context):
        lines = path.read_text("utf-8").splitlines()[1:]
        docs = [dict(zip(("question", "answer"), line.split(" | "))) for line in lines]
        if not docs:
            raise SourceError("there are no cards")
        given = lambda count, shots: TaskDocs.in_memory(docs[:count])
        task = Task(name=path.stem, path=path, system=self.name, doc_to_text="{{question}}", doc_to_target="answer",
                    dataset=Dataset(given=given))
        return TaskFile(path=path, tasks=(task,), names=(task.name,))

SYSTEM = Cards()
"""
REGISTERED = "from pytest_promptfmt import register_system\nfrom cards import SYSTEM\nregister_system(SYSTEM)\n"


def install(project: Project, target: str = "cards:SYSTEM") -> None:
    """Put a package with an entry point beside the tasks, where pytest finds it as if it were installed."""
    project.write("cards.py", CARDS)
    project.write("cards-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: cards\nVersion: 1\n")
    project.write("cards-1.dist-info/entry_points.txt", f"[pytest_promptfmt.systems]\ncards = {target}\n")
    project.pytester.syspathinsert()


def test_a_system_registered_in_a_conftest_has_its_files_collected(project: Project) -> None:
    project.write("cards.py", CARDS)
    project.write("conftest.py", REGISTERED)
    project.pytester.syspathinsert()
    project.write("metals.cards", "cards:\nWhich metal rusts? | iron\n")
    project.write("other.cards", "not ours\n")
    project.accept("-m", "promptfmt_snapshot")
    assert sorted(project.snapshots()) == [
        "__prompts__/metals/metals/chat-chatml.txt",
        "__prompts__/metals/metals/plain.txt",
    ]


@pytest.mark.parametrize("named", [["metals"], ["metals", "."], ["metals", "metals.cards"]])
def test_prompts_without_answers_are_shown_by_the_name_of_their_file(project: Project, named: list[str]) -> None:
    unanswered = CARDS.replace('doc_to_target="answer"', 'doc_to_target="", output_type="none"')
    assert unanswered != CARDS
    project.write("cards.py", unanswered)
    project.write("conftest.py", REGISTERED)
    project.pytester.syspathinsert()
    project.write("metals.cards", "cards:\nWhich metal rusts? | iron\n")
    done = promptfmt(project.pytester.path, "show", *named, "--profile=plain", "--no-spaces")
    assert done.returncode == 0, done.stderr
    assert "metals [plain]" in done.stdout
    assert "Which metal rusts?" in done.stdout


def test_a_cached_run_knows_the_snapshots_of_files_with_another_suffix(cached_project: Project) -> None:
    project = cached_project
    install(project)
    project.write(
        "cards.py", CARDS.replace("SYSTEM = ", "    def inputs_of(self, path):\n        return ()\n\nSYSTEM = ")
    )
    project.write("metals.cards", "cards:\nWhich metal rusts? | iron\n")
    project.accept()
    project.settle()
    project.run()
    again = project.run()
    assert again.parseoutcomes()["unchanged"] == 3
    again.stdout.no_fnmatch_line("*obsolete*")


def test_a_task_is_shown_by_its_name_from_a_file_of_an_installed_system(project: Project) -> None:
    install(project)
    project.write("cards.py", CARDS.replace("name=path.stem", "name='noble'"))
    project.write("metals.cards", "cards:\nnoble | gold\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest_promptfmt", "show", "noble", "--profile=plain"],
        cwd=project.pytester.path,
        env=dict(os.environ, PYTHONPATH=str(project.pytester.path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "noble [plain]" in done.stdout, done.stderr


def test_a_system_of_an_installed_package_is_asked_before_lm_eval(project: Project) -> None:
    install(project)
    project.write("metals.yaml", "cards:\nWhich metal rusts? | iron\n")
    project.task("arc.yaml")
    found = project.collected("--promptfmt", "--promptfmt-profile=plain", "-m", "promptfmt_snapshot")
    assert found == ["arc.yaml::arc::snapshot[plain]", "metals.yaml::metals::snapshot[plain]"]


def test_what_a_system_refuses_is_a_failing_test_and_a_named_file_without_tasks_says_what_would_be_one(
    project: Project,
) -> None:
    install(project)
    project.write("empty.cards", "cards:\n")
    project.write("other.cards", "not ours\n")
    (text,) = project.failures("empty.cards")
    assert "there are no cards" in text
    project.run("other.cards").stdout.fnmatch_lines(["other.cards: this file defines no task", "*a file of cards*"])


BROKEN = """
from pytest_promptfmt import System, register_system

class Broken(System):
    name = "broken"
    suffixes = (".deck.json",)
    def recognizes(self, path, head): return [][1] if "unknown" in path.name else True
    def read(self, path, context): return [] if "list" in path.name else {}["key"]

register_system(Broken())
"""


def test_an_error_in_the_code_of_a_system_is_a_failing_test_and_other_files_go_on(project: Project) -> None:
    project.write("conftest.py", BROKEN)
    project.write("a.deck.json", "{}")
    project.write("list.deck.json", "{}")
    project.write("unknown.deck.json", "{}")
    project.task("arc.yaml")
    project.accept("arc.yaml")
    first, second, third = project.failures()
    assert "a.deck.json: the file cannot be read: KeyError: 'key'" in first
    assert "reading it failed at conftest.py:8" in first
    assert "list.deck.json: the file cannot be read: TypeError: Broken.read returned list, not a TaskFile" in second
    assert "unknown.deck.json: the file cannot be read: IndexError: list index out of range" in third
    project.run().assert_outcomes(failed=3, passed=2)


@pytest.mark.parametrize("endings", ['[".deck.json"]', '(".deck.json")'])
def test_endings_in_a_list_or_as_one_text_end_no_run(project: Project, endings: str) -> None:
    project.write("conftest.py", BROKEN.replace('(".deck.json",)', endings))
    project.write("a.deck.json", "{}")
    project.write("b.json", "{}")
    (text,) = project.failures()
    assert "a.deck.json: the file cannot be read: KeyError: 'key'" in text


def test_an_entry_point_that_is_not_a_system_ends_the_run_with_its_name(project: Project) -> None:
    install(project, "cards:missing")
    result = project.start("--promptfmt")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*the system of cards:missing cannot be imported: AttributeError*"])
    install(project, "json:dumps")
    project.start("--promptfmt").stderr.fnmatch_lines(["*json:dumps is not a System*"])


def test_collecting_yaml_loads_no_reader_of_other_systems(project: Project) -> None:
    project.task("arc.yaml")
    collect = "pytest.main(['--promptfmt', '--collect-only', '-q', '--promptfmt-profile=plain'])"
    others = sorted(set(_BUILTIN) - {"lm_eval"})
    packages = [f"pytest_promptfmt.systems.{name}" for name in others]
    rules = [module for package in packages for module in import_module(package).SYSTEM.rules]
    collected = loaded_after(f"import pytest; {collect}", project.root)
    needed = loaded_after("; ".join(f"import {name}" for name in [*packages, *rules]) or "pass", project.root)
    assert {module for module in collected if module.split(".")[2] in others} == {
        module for module in needed if module.split(".")[2] in others
    }
    readers = {f"pytest_promptfmt.systems.{name}" for name in ("helm.adapter_files", "templates.template_files")}
    assert readers.isdisjoint(collected)


def loaded_after(code: str, folder: Path) -> set[str]:
    shown = "print(*(name for name in sys.modules if name.startswith('pytest_promptfmt.systems.')))"
    command = [sys.executable, "-c", f"import sys; {code}; {shown}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_each_built_in_system_is_in_the_registry() -> None:
    folder = Path(sys.modules["pytest_promptfmt.systems"].__file__ or "").parent
    modules = {path.stem: path.read_text("utf-8") for path in folder.glob("*.py") if path.name != "__init__.py"}
    modules |= {path.parent.name: path.read_text("utf-8") for path in folder.glob("*/__init__.py")}
    assert {name for name, text in modules.items() if re.search(r"^SYSTEM\b", text, re.MULTILINE)} == set(_BUILTIN)
