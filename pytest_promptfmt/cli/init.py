"""`promptfmt init`: a working start in a new or old repository; existing files are not changed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Final

import typer

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import SettingsError, display_path
from pytest_promptfmt.core.text import escape_controls

_ATTRIBUTES: Final = "**/__prompts__/** text eol=lf linguist-generated"
_IGNORED: Final = ".promptfmt-*.tmp"
"""What a run leaves that is killed while it writes; the next one removes it."""
_FILES: Final = {
    "promptfmt.yaml": "promptfmt.yaml",
    ".github/workflows/prompts.yaml": "workflow.yaml",
}
_EXAMPLE: Final = {"tasks/capitals.yaml": "capitals.yaml", "tasks/capitals.docs.jsonl": "capitals.docs.jsonl"}


def init(
    folder: Annotated[Path, typer.Argument(help="The top folder of the repository.")] = Path(),
    example: Annotated[
        bool | None, typer.Option("--example/--no-example", help="Write a task; by default where there is none.")
    ] = None,
    workflow: Annotated[bool, typer.Option("--workflow/--no-workflow", help="Write a workflow for GitHub.")] = True,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Accept all current findings: see docs/baseline.md.")
    ] = False,
) -> None:
    """Write settings, git's attributes and ignores, a workflow and, where there is no task, an example.

    Nothing is overwritten.
    """
    if not folder.is_dir():
        raise SettingsError(f"no such folder: {display_path(folder)}")
    wanted = dict(_FILES)
    if not workflow:
        del wanted[".github/workflows/prompts.yaml"]
    if example if example is not None else not any(_tasks_in(folder)):
        wanted |= _EXAMPLE
    if (folder / "promptfmt.yml").exists():
        del wanted["promptfmt.yaml"]
    requirement = _requirement()
    for name, source in wanted.items():
        text = (resources.files("pytest_promptfmt") / "data" / "init" / source).read_text("utf-8")
        _write(folder / name, text.replace("REQUIREMENT", requirement or "pytest-promptfmt"))
    if workflow and requirement is None:
        typer.echo("pytest-promptfmt is installed from a folder here: change in the workflow where CI installs it from")
    _add_line(folder / ".gitattributes", _ATTRIBUTES)
    _add_line(folder / ".gitignore", _IGNORED)
    if baseline:
        _write_baseline(folder)
        typer.echo("next: commit the baseline; pytest --promptfmt -m promptfmt_lint then fails only on new findings")
    else:
        typer.echo("next: pytest --promptfmt --snapshot-update, then review the files in __prompts__ and commit them")


def _requirement() -> str | None:
    """Return what pip installed the package from: the index or a repository; None for a folder or file (PEP 610)."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        written = distribution("pytest-promptfmt").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    if written is None:
        return "pytest-promptfmt"
    origin = json.loads(written)
    repository = origin.get("vcs_info")
    if repository is None:
        return None
    return shlex.quote(f"pytest-promptfmt @ {repository['vcs']}+{origin['url']}@{repository['commit_id']}")


def _tasks_in(folder: Path) -> Iterator[Path]:
    from pytest_promptfmt.systems.lm_eval.kinds import looks_like_task

    for path in sorted(folder.rglob("*.yaml")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not is_hidden and path.is_file() and looks_like_task(gate.read_bytes(path)):
            yield path


def _write(path: Path, text: str) -> None:
    if path.exists():
        typer.echo(escape_controls(f"{display_path(path)} exists already and stays as it is"))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    typer.echo(escape_controls(f"{display_path(path)} written"))


def _add_line(path: Path, line: str) -> None:
    text = path.read_text("utf-8") if path.exists() else ""
    if line in text.splitlines():
        typer.echo(escape_controls(f"{display_path(path)} has its line already"))
        return
    ended = text if not text or text.endswith("\n") else f"{text}\n"
    path.write_text(f"{ended}{line}\n", "utf-8")
    typer.echo(escape_controls(f"{display_path(path)}: {line}"))


def _write_baseline(folder: Path) -> None:
    import subprocess
    import sys

    typer.echo("checking every task once, about a hundred per second", err=True)
    # -P, as where pytest is called by its name: what a module can import decides about errors that are accepted.
    command = [sys.executable, "-P", "-m", "pytest", "--promptfmt", "-q", "-q", "--no-header", "--tb=no"]
    command += ["-o", "python_files=", "-m", "promptfmt_lint"]
    command += ["--promptfmt-baseline=promptfmt-baseline.jsonl", "--promptfmt-baseline-update=write"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    file = folder / "promptfmt-baseline.jsonl"
    if done.returncode not in (0, 1, 5) or not file.exists():
        raise SettingsError(f"pytest ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    entries = len(file.read_text("utf-8").splitlines()) - 1
    is_named = any("promptfmt_baseline" in path.read_text("utf-8", "replace") for path in _inis(folder))
    hint = "" if is_named else f"; put promptfmt_baseline = {file.name} into the ini"
    typer.echo(escape_controls(f"{display_path(file)} written, {entries:,} entries{hint}"))


def _inis(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that pytest 9 may take its ini values from."""
    names = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
    yield from (folder / name for name in names if (folder / name).is_file())
