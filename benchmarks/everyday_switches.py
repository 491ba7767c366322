"""Switches of everyday use that change no prompt: whether a run after each of them shows all files as unchanged.

    python benchmarks/everyday_switches.py [--only TEXT] [--folder FOLDER]

A repository with three task files (one with code, one with a tokenizer's profile) is run until its outcomes are cached;
after each switch it is run once more, with `pytest --promptfmt tasks` unless the switch is the way in which it is run.
Prints a table, and exits with 1 if a switch makes a file run again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sysconfig import get_path
from typing import Final

import pytest_promptfmt

FILES: Final = 3
PROFILES: Final = 2
PACKAGE: Final = Path(pytest_promptfmt.__file__).parent
TASK: Final = """\
task: {name}
dataset_path: nowhere/docs
test_split: test
output_type: generate_until
doc_to_text: {text}
doc_to_target: answer
"""
CODE: Final = "from helpers import mark\n\n\ndef text(doc):\n    return f\"Q: {doc['question']}{mark()}\\nA:\"\n"
SETTINGS: Final = "profiles:\n  own: {tokenizer: tok}\ndefault_profiles: [plain, own]\nlint: false\n"
SUMMARY: Final = re.compile(r"(\d+) unchanged(?! since)|(\d+) unchanged since")


@dataclass
class Place:
    """A checkout, and the environment and program that it is tested with."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    program: Sequence[str] = (sys.executable, "-m", "pytest", "--promptfmt")
    umask: int = -1

    def run(self, *options: str, paths: Sequence[str] = ("tasks",)) -> str:
        """Return what a run prints."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CI"))}
        ran = subprocess.run(
            [*self.program, *options, *paths],
            cwd=self.folder,
            env={**kept, **self.variables},
            capture_output=True,
            text=True,
            umask=self.umask,
            check=False,
        )
        return ran.stdout + ran.stderr

    def with_variables(self, **variables: str) -> Place:
        """Return the same place with more environment variables."""
        return Place(self.folder, {**self.variables, **variables}, self.program, self.umask)

    def git(self, *arguments: str) -> None:
        """Run git there."""
        subprocess.run(["git", "-C", str(self.folder), *arguments], check=True, capture_output=True)


def made(folder: Path) -> Place:
    """Return the repository, whose prompts are accepted and committed."""
    tasks = folder / "tasks"
    for name, text in (("arc", '"Q: {{question}}\\nA:"'), ("sub/boolq", '"Q: {{question}}\\nA:"')):
        path = tasks / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TASK.format(name=path.stem, text=text), "utf-8")
    (tasks / "code").mkdir()
    (tasks / "code/cola.yaml").write_text(TASK.format(name="cola", text="!function utils.text"), "utf-8")
    (tasks / "code/utils.py").write_text(CODE, "utf-8")
    (folder / "helpers.py").write_text("def mark():\n    return '?'\n", "utf-8")
    (folder / "conftest.py").write_text("", "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (folder / "promptfmt.yaml").write_text(SETTINGS, "utf-8")
    (folder / ".gitignore").write_text(".pytest_cache/\n__pycache__/\n", "utf-8")
    (folder / "tok").mkdir()
    tokenizers = (PACKAGE / "data/tokenizers").glob("*/tokenizer.json")
    shutil.copy(min(tokenizers, key=lambda path: path.stat().st_size), folder / "tok/tokenizer.json")
    place = Place(folder, {"PROMPTFMT_CACHE_DIR": str(folder.with_name("cache"))})
    folder.with_name("cache").mkdir(mode=0o700)
    place.git("init", "--quiet", "-b", "main")
    place.git("config", "user.name", "a")
    place.git("config", "user.email", "a@b")
    place.git("remote", "add", "origin", "https://example.org/group/evals.git")
    place.run("--snapshot-update")
    _commit(place)
    return place


def _commit(place: Place) -> None:
    place.git("add", ".")
    place.git("commit", "--quiet", "--allow-empty", "-m", "one")


def _touch(place: Place) -> Place:
    for path in (place.folder / "tasks").rglob("*"):
        os.utime(path)
    return place


def _there_and_back(place: Place) -> Place:
    place.git("checkout", "--quiet", "-b", "other")
    arc = place.folder / "tasks/arc.yaml"
    arc.write_text(arc.read_text("utf-8").replace("Q: ", "Question: "), "utf-8")
    _commit(place)
    place.run()
    place.git("checkout", "--quiet", "main")
    return place


def _cloned(place: Place, *, umask: int = -1) -> Place:
    folder = place.folder.with_name("elsewhere") / "deep" / "clone"
    command = ["git", "clone", "--quiet", str(place.folder), str(folder)]
    subprocess.run(command, check=True, capture_output=True, umask=umask)
    return Place(folder, place.variables, umask=umask)


def _moved(place: Place) -> Place:
    folder = place.folder.with_name("renamed")
    shutil.move(place.folder, folder)
    return Place(folder, place.variables)


def _after(*options: str, paths: Sequence[str] = ("tasks",)) -> Callable[[Place], Place]:
    def switch(place: Place) -> Place:
        place.run(*options, paths=paths)
        return place

    return switch


def _two_at_once(place: Place) -> Place:
    for path in (place.folder / "tasks").rglob("*.yaml"):
        path.write_text(path.read_text("utf-8") + "# edited\n", "utf-8")
    command, variables = [*place.program, "tasks"], {**os.environ, **place.variables}
    runs = [
        subprocess.Popen(command, cwd=place.folder, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    for run in runs:
        run.wait()
    return place


def _other_environment(place: Place) -> Place:
    folder = place.folder.with_name("environment")
    venv.create(folder, with_pip=False)
    [site] = folder.glob("lib/python*/site-packages")
    for path in {*map(Path, (get_path("purelib"), get_path("platlib")))}:
        for entry in path.iterdir():  # as if the same versions were installed there
            if not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    if PACKAGE.parent != Path(get_path("purelib")):
        (site / "promptfmt_of_this_checkout.pth").write_text(f"{PACKAGE.parent}\n", "utf-8")
    return Place(place.folder, place.variables, (str(folder / "bin/python"), "-m", "pytest", "--promptfmt"))


def _of_another_user(place: Place) -> Place:
    home = place.folder.with_name("home")
    home.mkdir()
    return place.with_variables(HOME=str(home), USER="somebody", LOGNAME="somebody")


def _script(place: Place) -> Place:
    start = "import sys; del sys.path[0]; import pytest; sys.exit(pytest.console_main())"
    return Place(place.folder, place.variables, (sys.executable, "-P", "-c", start, "--promptfmt"))


def _command(place: Place) -> Place:
    return Place(place.folder, place.variables, (sys.executable, "-m", "pytest_promptfmt", "check"))


def _set(**variables: str) -> Callable[[Place], Place]:
    return lambda place: place.with_variables(**variables)


SWITCHES: Final[Mapping[str, Callable[[Place], Place]]] = {
    "nothing": lambda place: place,
    "git checkout there and back": _there_and_back,
    "touch": _touch,
    "an empty commit": lambda place: _commit(place) or place,  # type: ignore[func-returns-value]
    "a new clone": _cloned,
    "a new clone with umask 077": lambda place: _cloned(place, umask=0o077),
    "another path of the checkout": _moved,
    "another environment with the same versions": _other_environment,
    "another user and home": _of_another_user,
    "-k before all": _after("-k", "arc"),
    "one folder before all": _after(paths=("tasks/sub",)),
    "-n 2 before all": _after("-n", "2"),
    "-W before all": _after("-W", "ignore::ResourceWarning"),
    "--snapshot-update before all": _after("--snapshot-update"),
    "--promptfmt-no-cache before all": _after("--promptfmt-no-cache"),
    "two at once after an edit": _two_at_once,
    "LANG": _set(LANG="C.UTF-8"),
    "LC_ALL": _set(LC_ALL="C.UTF-8"),
    "TZ": _set(TZ="Asia/Tokyo"),
    "PYTHONHASHSEED": _set(PYTHONHASHSEED="1"),
    "PYTHONDONTWRITEBYTECODE": _set(PYTHONDONTWRITEBYTECODE="1"),
    "HF_HUB_OFFLINE": _set(HF_HUB_OFFLINE="1"),
    "HF_TOKEN": _set(HF_TOKEN="hf_x"),
    "TRANSFORMERS_VERBOSITY": _set(TRANSFORMERS_VERBOSITY="error"),
    "TOKENIZERS_PARALLELISM": _set(TOKENIZERS_PARALLELISM="false"),
    "CI": _set(CI="true", GITHUB_ACTIONS="true"),
    "COLUMNS and NO_COLOR": _set(COLUMNS="200", NO_COLOR="1"),
    "pytest instead of python -m pytest": _script,
    "promptfmt check": _command,
}


def unchanged(output: str) -> int:
    """Return the number of files that a run showed as unchanged."""
    return sum(int(tests) // PROFILES if tests else int(files) for tests, files in SUMMARY.findall(output))


def main() -> None:
    """Try the switches that the command line names, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a text in the names of switches")
    parser.add_argument("--folder", type=Path, help="where the repositories are made")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        first = Path(folder, "first")
        (first / "work").mkdir(parents=True)
        made(first / "work").run()
        for number, (name, switch) in enumerate(SWITCHES.items()):
            if arguments.only in name:
                top = Path(folder, str(number))
                shutil.copytree(first, top, symlinks=True)
                place = Place(top / "work", {"PROMPTFMT_CACHE_DIR": str(top / "cache")})
                place.run()
                output = switch(place).run()
                is_same = unchanged(output) == FILES
                failed += not is_same
                print(f"| {name} | {'yes' if is_same else 'no: ' + ' '.join(output.split()[-12:])} |", flush=True)
                shutil.rmtree(top)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
