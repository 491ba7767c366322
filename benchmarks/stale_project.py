"""A small project that `stale_outcomes.py` edits at random."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from stale_parts import APPEARING, LINES, SWAPS, files_of

OWN: Final = ("found.json", "output.txt", "memory.json")
"""What the runs themselves write into the project."""

State = Mapping[str, bytes | str]
"""The files of a project: their contents, of a link where it leads."""


class Place(Protocol):
    """A folder that is tested, and the variable of the environment that its code asks for."""

    root: Path
    variable: str | None


def kind_of(name: str) -> str:
    """Return what kind of input a file is."""
    path = Path(name)
    if "__prompts__" in path.parts or path.name == "promptfmt.lock":
        return "snapshot"
    if path.name in ("promptfmt.yaml", "pytest.ini"):
        return "settings"
    if "tok" in path.parts or path.name.startswith("tokenizer"):
        return "tokenizer"
    if path.name.endswith(".conversations.yaml"):
        return "conversations"
    if path.name.startswith("_") and path.suffix == ".yaml":
        return "include"
    if "formats" in path.parts[:-1] and path.name == "own.yaml":
        return "format"
    if name.startswith("lib/"):
        return "version"
    named = {"conftest.py": "conftest", "own_formats.py": "conftest", "rules.py": "rule", "rule_words.py": "rule"}
    named |= {"helpers.py": "imported module", "dep.py": "imported module", "words.txt": "opened file"}
    by_suffix = {".yaml": "YAML", ".jsonl": "docs", ".py": "function module", ".jinja": "template"}
    return named.get(path.name) or by_suffix.get(path.suffix, "other")


@dataclass
class Project:
    """The files of one project, the variable of the environment, and what has been done to them."""

    root: Path
    chance: random.Random
    parts: list[str]
    variable: str | None = None
    edits: Counter[str] = field(default_factory=Counter)
    touched: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        """Lay out the files in an empty folder."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.pristine = files_of(self.parts)
        for name, content in self.pristine.items():
            self._write(name, content)

    def _write(self, name: str, content: bytes | str) -> None:
        path = self.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        for folder in path.relative_to(self.root).parents:
            if (self.root / folder).is_file():
                (self.root / folder).unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.unlink(missing_ok=True)
            path.symlink_to(content)
        elif self.chance.random() < 0.3:  # as editors do that write beside the file and rename
            beside = path.with_name(".beside")
            beside.write_bytes(content)
            beside.replace(path)
        else:
            if path.is_symlink():
                path.unlink()
            path.write_bytes(content)

    def state(self) -> dict[str, bytes | str]:
        """Return all files with what is in them."""
        found: dict[str, bytes | str] = {}
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(each for each in folders if not each.startswith(".") and each != "__pycache__")
            for name in sorted(names):
                path = Path(folder, name)
                inside = path.relative_to(self.root).as_posix()
                if not name.startswith(".") and inside not in OWN:
                    found[inside] = str(path.readlink()) if path.is_symlink() else path.read_bytes()
        return found

    def files(self) -> list[str]:
        """Return the files that may be edited; installed packages change with their version, by `install`."""
        return [name for name in self.state() if not name.startswith("lib/")]

    def pick(self) -> str:
        """Return a file, each kind as likely as the others."""
        by_kind: dict[str, list[str]] = {}
        for name in self.files():
            by_kind.setdefault(kind_of(name), []).append(name)
        return self.chance.choice(by_kind[self.chance.choice(sorted(by_kind))])

    def text(self, name: str) -> bytes:
        """Return the content of a file, of a broken link nothing."""
        path = self.root / name
        return path.read_bytes() if path.is_file() else b""

    # -- edits ---------------------------------------------------------------------------------------------------------

    def edit(self) -> str:
        """Do one thing, and return what it was."""
        kinds: list[Callable[[], str]] = [self.swap] * 8 + [self.line] * 3 + [self.restore] * 6 + [self.appear] * 4
        kinds += [self.vanish, self.vanish, self.empty, self.cut, self.move, self.link, self.touch, self.drop]
        kinds += [self.disguise, self.disguise]
        if "code" in self.parts:
            kinds += [self.install]
        if "environment" in self.parts:
            kinds += [self.variable_set] * 2
        while True:
            kind = self.chance.choice(kinds)
            done = kind()
            if done:
                self.edits[kind.__name__] += 1
                return f"{kind.__name__} {done}"

    def _change(self, name: str, content: bytes) -> str:
        self._write(name, content)
        self.touched[kind_of(name)] += 1
        return name

    def swap(self) -> str:
        """Replace a text by another."""
        name = self.pick()
        content = self.text(name)
        fitting = [(old.encode(), new.encode()) for old, new in SWAPS if old.encode() in content]
        if not fitting:
            return ""
        old, new = self.chance.choice(fitting)
        self._change(name, content.replace(old, new, self.chance.choice((1, -1))))
        return f"{name}: {old!r} -> {new!r}"

    def line(self) -> str:
        """Add a line, or take one away."""
        name = self.pick()
        lines = self.text(name).splitlines(keepends=True)
        if lines and self.chance.random() < 0.3:
            del lines[self.chance.randrange(len(lines))]
        else:
            lines.insert(self.chance.randrange(len(lines) + 1), self.chance.choice(LINES).encode() + b"\n")
        self._change(name, b"".join(lines))
        return f"{name}: {b''.join(lines)[:60]!r}"

    def disguise(self) -> str:
        """Change a file without changing its size and the time of its last change."""
        name = self.pick()
        path = self.root / name
        content = self.text(name)
        places = [match.start() for match in re.finditer(rb"[a-zA-Z?.:]", content)]
        if not places or path.is_symlink():
            return ""
        before = path.stat()
        at = self.chance.choice(places)
        path.write_bytes(content[:at] + self.chance.choice((b"x", b"y", b"!")) + content[at + 1 :])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.touched[kind_of(name)] += 1
        return f"{name} at {at}"

    def restore(self) -> str:
        """Let a file be as it was in the beginning, or take one away that has appeared."""
        now, before = self.state(), self.pristine
        changed = [name for name, content in before.items() if now.get(name) != content and "lib/" not in name]
        name = self.chance.choice([*changed, *sorted(now.keys() & APPEARING.keys() - before.keys())] or [""])
        if name in before:
            return self._change(name, before[name])
        if name:
            (self.root / name).unlink()
            self.touched["sidecars and others, vanishing"] += 1
        return name

    def appear(self) -> str:
        """Add a file: a sidecar, a task, settings, a module that comes before another."""
        name = self.chance.choice(sorted(APPEARING))
        is_far = not (self.root / name).parent.is_dir() and self.chance.random() < 0.8
        if os.path.lexists(self.root / name) or is_far:
            return ""
        self._write(name, APPEARING[name].encode())
        self.touched["sidecars and others, appearing"] += 1
        return name

    def vanish(self) -> str:
        """Remove a file."""
        name = self.pick()
        (self.root / name).unlink()
        self.touched[kind_of(name)] += 1
        return name

    def drop(self) -> str:
        """Remove a folder, or give it another name."""
        folders = sorted({str(Path(name).parent) for name in self.files()} - {".", "tasks"})
        if not folders:
            return ""
        folder = self.root / self.chance.choice(folders)
        self.touched["folder"] += 1
        if self.chance.random() < 0.5:
            shutil.rmtree(folder)
            return str(folder.name)
        other = folder.with_name(f"{folder.name}2")
        if other.exists():
            return ""
        folder.rename(other)
        return f"{folder.name} -> {other.name}"

    def empty(self) -> str:
        """Let nothing be in a file."""
        return self._change(self.pick(), b"")

    def cut(self) -> str:
        """End a file early."""
        name = self.pick()
        content = self.text(name)
        return self._change(name, content[: self.chance.randrange(len(content) + 1)])

    def move(self) -> str:
        """Give a file the place of another, or another place; its times remain."""
        name = self.pick()
        suffix = Path(name).suffix
        places = [other for other in {**self.pristine, **APPEARING} if Path(other).suffix == suffix and other != name]
        if not places or not (self.root / name).is_file():
            return ""
        other = self.chance.choice(sorted(places))
        if (self.root / other).is_dir() or (self.root / other).parent.is_file() or other.startswith("lib/"):
            return ""
        (self.root / other).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).replace(self.root / other)
        self.touched[kind_of(name)] += 1
        return f"{name} -> {other}"

    def link(self) -> str:
        """Let a file be a link to another of its kind."""
        name = self.pick()
        others = [other for other in self.files() if kind_of(other) == kind_of(name) and other != name]
        if not others:
            return ""
        other = self.chance.choice(others)
        path = self.root / name
        path.unlink()
        path.symlink_to(os.path.relpath(self.root / other, path.parent))
        self.touched["link"] += 1
        return f"{name} -> {other}"

    def touch(self) -> str:
        """Change a file's times alone."""
        name = self.pick()
        if (self.root / name).is_file():
            os.utime(self.root / name)
        return name

    def install(self) -> str:
        """Install another version of the package that a task's code imports."""
        place = self.root / "lib/site-packages"
        version = f"1.{self.chance.randrange(3)}"
        for folder in place.glob("dep-*.dist-info"):
            shutil.rmtree(folder)
        metadata = f"Metadata-Version: 2.1\nName: dep\nVersion: {version}\n"
        self._write(f"lib/site-packages/dep-{version}.dist-info/METADATA", metadata.encode())
        self._write("lib/site-packages/dep.py", f"END = {version[1:]!r}\n".encode())
        self.touched["version"] += 1
        return version

    def variable_set(self) -> str:
        """Give the variable of the environment another value, or none."""
        before = self.variable
        self.variable = self.chance.choice([each for each in (None, "a", "b") if each != before])
        self.touched["environment"] += 1
        return f"{before} -> {self.variable}"

    def become(self, state: State, variable: str | None) -> None:
        """Be as in an earlier state, as by going back to another revision: files that differ are written."""
        now = self.state()
        for name in now.keys() - state.keys():
            (self.root / name).unlink()
        for folder, _, _ in os.walk(self.root, topdown=False):
            if not os.listdir(folder):
                Path(folder).rmdir()
        for name, content in state.items():
            if now.get(name) != content:
                self._write(name, content)
        self.variable = variable
        self.touched["another revision"] += 1
