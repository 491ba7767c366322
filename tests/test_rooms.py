"""Data moves one way: no package imports from one on its right, nothing from inside a slice, nothing heavy at start."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from slices import MISSING, SLICES as OPTIONAL, needs

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pytest_promptfmt"

# From left to right; each may import from those before it, and from those on its own line. Imports for types count.
ORDER = (
    "core",
    "profiles",
    "formats",
    "tasks",
    "systems",
    "settings",
    "study",
    "rules answers snapshots",
    "results",
    "engine inputs",
    "systems.helm systems.eval_framework systems.templates models",
    "revisions",
    "plugin",
    "cli",
    "__init__ __main__",
)
PLACE = {room: place for place, rooms in enumerate(ORDER) for room in rooms.split()}

# What can be deleted together with its line in a registry: others know it by name alone.
SLICES = ("systems.helm", "systems.eval_framework", "systems.templates", "models")

# The convenience methods of a task begin the way from left to right, and load it when they are called.
CONVENIENCE = "pytest_promptfmt/core/task.py"

ONLY_IN = {
    "pytest": {"plugin"},
    "_pytest": set[str](),
    "syrupy": {"snapshots"},
    "torch": {"models"},
    "transformers": {"models", "profiles"},
    "tokenizers": {"profiles"},
    "huggingface_hub": {"tasks", "profiles"},
    "lm_eval": set[str](),
}
HEAVY = {
    "torch",
    "transformers",
    "tokenizers",
    "huggingface_hub",
    "datasets",
    "openai",
    "pyarrow",
    "sacrebleu",
    "sklearn",
}


@dataclass(frozen=True)
class Import:
    """One import: the module and line it is in, what it names, whether it waits for a call, or is for types alone."""

    module: str
    where: str
    target: str
    is_called: bool
    is_for_types: bool

    @property
    def is_ours(self) -> bool:
        return self.target.partition(".")[0] == PACKAGE.name

    @property
    def package(self) -> str:
        """The package that is imported, ours or another one."""
        return room_of(self.target) if self.is_ours else self.target.partition(".")[0]


def room_of(module: str) -> str:
    """Return the room of one of our modules; a slice is one of its own."""
    parts = module.split(".")[1:]
    two = ".".join(parts[:2])
    return two if two in PLACE else parts[0] if parts else "__init__"


class Imports(ast.NodeVisitor):
    """Collects the imports of one module, those for types among them."""

    def __init__(self, path: Path, modules: set[str]) -> None:
        self.module = name_of(path)
        self.name = path.relative_to(ROOT).as_posix()
        self.modules = modules
        self.depth = 0
        self.for_types = False
        self.found: list[Import] = []

    def visit_If(self, node: ast.If) -> None:
        is_for_types = ast.unparse(node.test) == "TYPE_CHECKING"
        for each in node.body:
            self.for_types, before = self.for_types or is_for_types, self.for_types
            self.visit(each)
            self.for_types = before
        for each in node.orelse:
            self.visit(each)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert not node.level, f"{self.name}:{node.lineno}: write the whole name"
        for alias in node.names:
            dotted = f"{node.module}.{alias.name}"
            self._add(node, dotted if dotted in self.modules else str(node.module))

    def _add(self, node: ast.stmt, target: str) -> None:
        where = f"{self.name}:{node.lineno}"
        self.found.append(Import(self.module, where, target, self.depth > 0, self.for_types))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def all_imports() -> Iterator[Import]:
    paths = sorted(PACKAGE.rglob("*.py"))
    modules = {name_of(path) for path in paths}
    for path in paths:
        visitor = Imports(path, modules)
        visitor.visit(ast.parse(path.read_text("utf-8")))
        yield from visitor.found


@cache
def imports() -> Sequence[Import]:
    return tuple(all_imports())


def ours() -> list[Import]:
    return [each for each in imports() if each.is_ours]


def test_every_package_has_its_place_and_is_in_the_table_of_contributing() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms == {room for room in PLACE if "." not in room} - MISSING
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    missing = {room for room in PLACE if f"`{room.replace('.', '/')}/`" not in table}
    assert missing == {"__init__", "__main__"}


def test_no_module_imports_from_a_package_on_its_right() -> None:
    to_the_right = [each for each in ours() if PLACE[each.package] > PLACE[room_of(each.module)]]
    assert [each for each in to_the_right if not each.where.startswith(CONVENIENCE)] == []
    assert all(each.is_called or each.is_for_types for each in to_the_right)
    assert to_the_right  # else the exception has become needless


def test_nothing_outside_a_slice_imports_from_inside_it() -> None:
    inside = [each for each in ours() if each.package in SLICES and room_of(each.module) != each.package]
    assert inside == []


def test_the_task_model_is_imported_through_its_face() -> None:
    inside = [
        each for each in ours() if each.target.startswith("pytest_promptfmt.tasks.") and room_of(each.module) != "tasks"
    ]
    assert inside == []


@needs(*OPTIONAL)
def test_the_face_of_the_task_model_names_nothing_that_is_not_used_outside() -> None:
    face = PACKAGE / "tasks/__init__.py"
    imports = [node for node in ast.walk(ast.parse(face.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    names = [alias.name for each in imports if str(each.module).startswith("pytest_promptfmt.") for alias in each.names]
    assert len(names) > 80
    outside = [path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(face.parent)]
    text = "\n".join(path.read_text("utf-8") for path in [*outside, *(ROOT / "docs").glob("*.md")])
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
    assert len(names) == len(set(names))


def test_no_circle_of_imports_even_with_those_for_types() -> None:
    graph: dict[str, set[str]] = {}
    for each in ours():
        if not each.where.startswith(CONVENIENCE):
            graph.setdefault(each.module, set()).add(each.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_findings_become_reports_in_one_place() -> None:
    makers = {
        (path.relative_to(PACKAGE).as_posix(), function.name)
        for path in PACKAGE.rglob("*.py")
        if "Reported(" in (text := path.read_text("utf-8"))
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Reported"
    }
    assert makers == {("rules/linter.py", "_reported")}


def test_names_of_public_classes_are_unique() -> None:
    texts = [path.read_text("utf-8") for path in PACKAGE.rglob("*.py")]
    written = Counter(name for text in texts for name in re.findall(r"^ *class ([A-Za-z]\w*)", text, re.MULTILINE))
    twice = "|".join(name for name, count in written.items() if count > 1)  # also in examples
    names = Counter(
        node.name
        for text in texts
        if re.search(rf"class (?:{twice})\b", text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_files_and_classes_stay_small() -> None:
    """Classes that are records have the fields of what they describe; others keep at most twelve attributes."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    assert {name: lines for name, text in texts.items() if (lines := len(text.splitlines())) > 450} == {}
    wide = {
        each.name: sorted(kept)
        for text in texts.values()
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.ClassDef) and len(kept := _kept_by(each)) > 12
    }
    assert wide == {}


def _kept_by(node: ast.ClassDef) -> set[str]:
    """Return the attributes that the methods of a class assign."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
    }


@pytest.mark.parametrize("package", ONLY_IN)
def test_package_is_imported_in_its_own_rooms_alone(package: str) -> None:
    found = [each for each in imports() if each.package == package and not each.is_ours and not each.is_for_types]
    assert [each for each in found if room_of(each.module) not in ONLY_IN[package]] == []
    assert {room_of(each.module) for each in found} == ONLY_IN[package] - MISSING


def test_heavy_packages_are_imported_by_the_functions_that_need_them() -> None:
    heavy = [each for each in imports() if each.package in HEAVY and not each.is_ours]
    assert [each for each in heavy if not each.is_called and not each.is_for_types] == []
