"""`promptfmt init`: a working start in a new or old repository; existing files are not changed."""

from __future__ import annotations

import ast
import enum
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import resources
from importlib.metadata import PackageNotFoundError, distribution, metadata, packages_distributions, version
from pathlib import Path
from typing import Annotated, Final

import typer

from pytest_promptfmt.cli.options import NoCode, pytest_options, require_path
from pytest_promptfmt.cli.output import note, say, write_file
from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import SettingsError, display_path, raising
from pytest_promptfmt.core.source_imports import syntax_tree
from pytest_promptfmt.engine.processes import on_sigterm
from pytest_promptfmt.inputs.code_inputs import imported
from pytest_promptfmt.plugin.collected import settings_around
from pytest_promptfmt.results.baseline import STYLE, counted_by_effect, read_entries, write_baseline
from pytest_promptfmt.results.wording import counted
from pytest_promptfmt.revisions.pytest_process import ISOLATED, isolated
from pytest_promptfmt.settings.file import find_settings_file, read_settings_file, settings_schema
from pytest_promptfmt.systems import recognized
from pytest_promptfmt.tasks import Harness, harness_around, looks_like_task, task_schema

_ATTRIBUTES: Final = "**/__prompts__/** text eol=lf linguist-generated"
_IGNORED: Final = ".promptfmt-*.tmp"
"""Left by a run that is killed while it writes; the next one removes it."""
_EXAMPLE: Final = ("capitals.yaml", "capitals.docs.jsonl")
_BASELINE: Final = "promptfmt-baseline.jsonl"
_WORKFLOW: Final = ".github/workflows/prompts.yaml"
_TEMPLATES: Final = ("*.jinja", "chat_template.json", "tokenizer_config.json")
_INIS: Final = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
"""The files that pytest 9 may take its ini values from."""
_MOST_PATHS: Final = 6
_FORK_TASKS: Final = 200
"""With more task files than this, all snapshots are too many to read on the first day."""
_OPTIONAL: Final = ("datasets", "sacrebleu", "scikit-learn", "transformers")
"""Packages that this one imports where they are installed, for data, metrics and tokenizers."""
_GITHUB: Final = re.compile(r"github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?$")
_PINNED: Final = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")
"""An action at a commit. A tag can be moved, so linters of workflows refuse it."""


class RepositoryKind(enum.StrEnum):
    """The kinds of repositories for which different files are written."""

    BENCHMARKS = "benchmarks"
    FORK = "fork"
    MODEL = "model"
    TRAINING = "training"


_ABOUT: Final = {
    RepositoryKind.BENCHMARKS: "your own benchmarks: every task gets snapshots",
    RepositoryKind.FORK: "a fork of a harness: a baseline, and snapshots for the tasks that you adopt",
    RepositoryKind.MODEL: "a model with a chat template in the top folder",
    RepositoryKind.TRAINING: "a training repository: a baseline, and snapshots for chat templates in folders",
}


def init(
    folder: Annotated[Path, typer.Argument(help="The top folder of the repository.")] = Path(),
    kind: Annotated[
        RepositoryKind | None,
        typer.Option("--kind", help="The kind of repository. Default: ask in a terminal, otherwise guess."),
    ] = None,
    example: Annotated[
        bool | None,
        typer.Option("--example/--no-example", help="Write an example task. Default: if there is no task."),
    ] = None,
    workflow: Annotated[bool, typer.Option("--workflow/--no-workflow", help="Write a workflow for GitHub.")] = True,
    action: Annotated[
        str | None,
        typer.Option("--action", metavar="OWNER/NAME@COMMIT", help="The GitHub action for the workflow."),
    ] = None,
    baseline: Annotated[
        bool | None,
        typer.Option(
            "--baseline/--no-baseline",
            help="Write a baseline, which accepts all current findings. Default: in a fork or a training repository.",
        ),
    ] = None,
    style: Annotated[
        bool | None,
        typer.Option(
            "--style/--no-style", help="Report findings about style. Default: ask if the baseline has such findings."
        ),
    ] = None,
    editor: Annotated[bool, typer.Option("--editor", help="Write schemas and a problem matcher for VS Code.")] = False,
    no_code: NoCode = False,
) -> None:
    """Set up a repository: write settings, a GitHub workflow and an example task.

    It also adds lines to .gitattributes and .gitignore. Nothing is overwritten.
    """
    require_path(folder, "folder")
    if action is not None and not _PINNED.fullmatch(action):
        hint = "write OWNER/NAME@COMMIT. To see commit ids, use `git ls-remote`"
        raise SettingsError(f"--action {action!r} has no full commit id (40 hex digits)", hint=hint)
    options = pytest_options(no_code=no_code)
    with gate.limited_to([folder]):
        tasks = list(_files(folder, ("*.yaml",), lambda path: looks_like_task(gate.read_bytes(path))))
        templates = list(_files(folder, _TEMPLATES, lambda path: recognized(path) is not None))
        harness = harness_around(folder.resolve())
        if harness is not None:
            say(f"a checkout of {harness.title}")
        chosen = kind or _asked(_guessed(folder, tasks, templates, harness))
        has_tasks = chosen in (RepositoryKind.BENCHMARKS, RepositoryKind.FORK)
        wants_baseline = chosen in (RepositoryKind.FORK, RepositoryKind.TRAINING) if baseline is None else baseline
        rootdir = settings_around(folder, ["--noconftest"]).rootdir
        is_rootdir = rootdir == folder.resolve()
        if not is_rootdir and chosen is RepositoryKind.TRAINING:
            raise SettingsError("this folder is not the rootdir of pytest", hint=f"run `promptfmt init` in {rootdir}")
        settings = list(_settings(folder, chosen, tasks, templates, is_rootdir=is_rootdir))
        if wants_baseline and is_rootdir:
            settings.append(f"baseline: {_BASELINE} # findings listed there do not fail")
        earlier = find_settings_file(folder)
        if settings and (earlier is None or earlier.suffix == ".yaml"):
            _write(folder / "promptfmt.yaml", "\n".join(settings) + "\n")
        file = find_settings_file(folder) if wants_baseline and is_rootdir else None
        is_named = file is not None and "baseline" in read_settings_file(file, is_at_rootdir=True).values
        arguments = [f"--promptfmt-baseline={_BASELINE}"] if wants_baseline and not is_named else []
        action = action or _action_reference()
        if example is None:
            others = _files(folder, ("*.json",), lambda path: recognized(path) is not None)  # such as runs of HELM
            example = has_tasks and not tasks and not any(others)
        if example:
            for name in _EXAMPLE:
                _write(folder / "tasks" / name, _shipped(name))
        if editor:
            globs = [f"{top}/**/*.yaml" for top in _tops(folder, tasks)]
            _write_editor_files(
                folder / ".vscode", globs or (["*.yaml", "!promptfmt.yaml", "!.*/**"] if tasks else ["tasks/**/*.yaml"])
            )
        _add_line(folder / ".gitattributes", _ATTRIBUTES)
        _add_line(folder / ".gitignore", _IGNORED)
        if wants_baseline:
            arguments += _write_baseline(folder, options)
        if codes := _ignored_style(folder / _BASELINE if wants_baseline else None, style):
            line = f"ignore: {json.dumps(codes)} # rules about style"
            if earlier is None:
                _add_line(folder / "promptfmt.yaml", line)
            else:
                say(f"to ignore findings about style, add this line to {display_path(earlier)}: {line}")
        if workflow:
            _write(folder / _WORKFLOW, _workflow(action, _packages(tasks), arguments))
        if workflow and action is None:
            say(
                "the workflow installs pytest-promptfmt from PyPI. For comments on pull "
                f"requests, run init with --action {_address()}@COMMIT"
            )
        if file is not None and not is_named:
            say(f"to use the baseline without an option, add this line to {display_path(file)}: baseline: {_BASELINE}")
        _offer(folder)
        tests = " ".join(["pytest --promptfmt", *arguments])
        if chosen is RepositoryKind.FORK:
            say(
                f"next: commit these files. To write snapshots for some tasks: {tests} "
                "PATH --snapshot-update, then commit __prompts__"
            )
        else:
            say(f"next: run {tests} --snapshot-update, then review and commit the files in __prompts__")


def _asked(guess: RepositoryKind) -> RepositoryKind:
    """Return the kind that the user chooses; without a terminal the guess."""
    if not _is_terminal():
        return guess
    for kind in RepositoryKind:
        typer.echo(f"  {kind}: {_ABOUT[kind]}")
    while (answer := typer.prompt("What kind of repository is this", default=str(guess))) not in list(_ABOUT):
        typer.echo(f"Choose one of {', '.join(_ABOUT)}.")
    return RepositoryKind(answer)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _guessed(folder: Path, tasks: Sequence[Path], templates: Sequence[Path], harness: Harness | None) -> RepositoryKind:
    if len(tasks) >= _FORK_TASKS or harness is not None:
        return RepositoryKind.FORK
    if not tasks and templates:
        in_top = any(template.parent == folder for template in templates)
        return RepositoryKind.MODEL if in_top else RepositoryKind.TRAINING
    return RepositoryKind.BENCHMARKS


def _settings(
    folder: Path, kind: RepositoryKind, tasks: Sequence[Path], templates: Sequence[Path], *, is_rootdir: bool
) -> Iterator[str]:
    """Yield the lines of `promptfmt.yaml`; none where the defaults are right. Some keys are for the rootdir only."""
    if kind is RepositoryKind.MODEL:
        return
    yield "# Settings of pytest-promptfmt for this folder; `promptfmt init --editor` lets editors complete them."
    if kind is RepositoryKind.TRAINING:
        tops = json.dumps(_tops(folder, templates))
        yield f"templates: {tops}\npaths: {tops} # the repository's own tests stay out of `pytest --promptfmt`"
        return
    yield "default_profiles: [plain, chat-chatml]"
    paths = _tops(folder, tasks)
    if is_rootdir and paths and len(paths) <= _MOST_PATHS:
        yield f"paths: {json.dumps(paths)} # where task files are"
    if kind is RepositoryKind.FORK:
        yield "snapshots: adopted # files without snapshots are skipped, until their first --snapshot-update"


def _tops(folder: Path, files: Iterable[Path]) -> list[str]:
    """Return the deepest folders that hold all files, one for each top folder; none where a file is in `folder`."""
    by_top: dict[str, list[str]] = {}
    for file in files:
        parent = file.relative_to(folder).parent
        if not parent.parts:
            return []
        by_top.setdefault(parent.parts[0], []).append(parent.as_posix())
    return sorted(os.path.commonpath(parents) for parents in by_top.values())


def _write_editor_files(folder: Path, tasks: Sequence[str]) -> None:
    """Write the schemas of task files and settings with VS Code's settings for them, and a task that runs the check."""
    globs = {"task": [*tasks], "settings": ["**/promptfmt.yaml", "promptfmt.yaml"]}
    for kind, schema in (("task", task_schema()), ("settings", settings_schema())):
        _write(folder / f"promptfmt-{kind}.schema.json", json.dumps(schema, indent=1, ensure_ascii=False) + "\n")
    schemas = {f".vscode/promptfmt-{kind}.schema.json": paths for kind, paths in globs.items()}
    settings = {"yaml.schemas": schemas, "yaml.customTags": ["!function scalar"]}
    _write(folder / "settings.json", json.dumps(settings, indent=2) + "\n")
    _write(folder / "tasks.json", _shipped("vscode-tasks.json"))


def _workflow(action: str | None, packages: Sequence[str], arguments: Sequence[str]) -> str:
    """Return the workflow with an action, or with a package of the index where none is known."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if action is None:
        installed = " ".join([f"pytest-promptfmt=={version('pytest-promptfmt')}", *packages])
        text = _shipped("workflow-of-package.yaml").replace("PACKAGES", installed).replace("PYTHON", python)
        return text.replace(" ARGUMENTS", "".join(f" {each}" for each in arguments))
    inputs = "".join(
        f"\n          {name}: |" + "".join(f"\n            {line}" for line in lines)
        for name, lines in (("args", arguments), ("packages", packages))
        if lines
    )
    name, _, revision = action.partition("@")
    text = _shipped("workflow.yaml").replace(" # INPUTS", inputs).replace("PYTHON", python)
    return text.replace("ACTION", action).replace("COMMENT", f"{name}/comment@{revision}")


def _packages(tasks: Sequence[Path]) -> list[str]:
    """Return the installed packages that the code next to the tasks imports as requirements `name==version`, sorted.

    They decide whether a task can be rendered: CI needs the versions that are installed here.
    """
    files = {path for folder in {task.parent for task in tasks} for path in folder.glob("*.py")}
    by_module = packages_distributions()
    known = {name for file in files for module in _imports(file) for name in by_module.get(module, ())[:1]}
    found = set()
    for name in {*known, *_OPTIONAL} - {"pytest-promptfmt", "pytest_promptfmt"}:
        with suppress(PackageNotFoundError):
            found.add(f"{metadata(name)['Name']}=={version(name).partition('+')[0]}")
    return sorted(found)


def _imports(file: Path) -> Iterator[str]:
    try:
        tree = syntax_tree(gate.read_bytes(file))
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        yield from {parts[0] for level, parts in imported(node) if not level} - sys.stdlib_module_names


def _action_reference() -> str | None:
    """Return the GitHub action as `owner/name@commit` if pip installed the package from a repository (PEP 610)."""
    written = distribution("pytest-promptfmt").read_text("direct_url.json")
    origin = json.loads(written) if written is not None else {}
    found = _GITHUB.search(origin.get("url", ""))
    return f"{found[1]}@{origin['vcs_info']['commit_id']}" if found and "vcs_info" in origin else None


def _address() -> str:
    """Return `owner/name` of the repository, as the metadata of the installed package have it."""
    urls = metadata("pytest-promptfmt").get_all("Project-URL", [])
    found = next((each for url in urls if url.startswith("Source,") and (each := _GITHUB.search(url))), None)
    return found[1] if found else "OWNER/NAME"


def _shipped(name: str) -> str:
    return (resources.files("pytest_promptfmt") / "data" / "init" / name).read_text("utf-8")


def _files(folder: Path, globs: Iterable[str], is_wanted: Callable[[Path], bool]) -> Iterator[Path]:
    for path in sorted(path for glob in globs for path in folder.rglob(glob)):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        with suppress(OSError):  # a run reports files that cannot be read
            if not is_hidden and path.is_file() and is_wanted(path):
                yield path


def _write(path: Path, text: str) -> None:
    if path.exists():
        say(f"{display_path(path)} already exists, and was not changed")
        return
    write_file(path, text)
    say(f"{display_path(path)} written")


def _add_line(path: Path, line: str) -> None:
    with raising(SettingsError, f"{display_path(path)} cannot be read"):
        content = gate.read_bytes(path) if gate.is_there(path) else b""
    if line.encode() in content.splitlines():
        say(f"{display_path(path)} already has the line")
        return
    ended = content if not content or content.endswith(b"\n") else content + b"\n"
    write_file(path, ended + f"{line}\n".encode())
    say(f"{display_path(path)}: {line}")


def _write_baseline(folder: Path, options: Sequence[str]) -> list[str]:
    """Write the baseline and return the options that later runs need, too: some forks have tests with a conftest.

    Where that cannot be imported, as without the harness, pytest does not start at all.
    """
    note("checking every task once (about a hundred tasks per second)")
    # -P, as the action has it: what a module can import decides about errors that are accepted.
    # Snapshots are the next step: that they are missing is not a failure of this run.
    quiet = ["-q", "--no-header", "--no-summary", "-o", "promptfmt_snapshots=adopted"]
    command = [sys.executable, "-P", "-m", "pytest", *ISOLATED, *quiet]
    command += [f"--promptfmt-baseline={_BASELINE}", "--promptfmt-baseline-update=write", *options]
    # pytest shows its progress on stderr, apart from the lines of this command.
    needed: list[str] = []
    while True:
        with on_sigterm():
            done = subprocess.run([*command, *needed], cwd=folder, stdout=sys.stderr.fileno(), env=isolated(os.environ))
        if needed or (done.returncode != 4 and (folder / _BASELINE).exists()):
            break
        note("the run failed; trying again without conftest.py")
        needed = ["--noconftest"]
    file = folder / _BASELINE
    if done.returncode not in (0, 1, 5) or not file.exists():
        raise SettingsError("no baseline was written, because the run ended early (see above)")
    entries = read_entries(file)
    effects = f": {counted_by_effect(entries)}" if entries else ""
    say(f"{display_path(file)} written, {counted(len(entries), 'entry', 'entries')}{effects}")
    return needed


def _ignored_style(baseline: Path | None, is_reported: bool | None) -> Sequence[str]:
    """Return the rules about style if they are not to be reported, which a user with a baseline is asked.

    Their entries are then removed from the baseline.
    """
    entries = read_entries(baseline) if baseline is not None else ()
    others = [entry for entry in entries if entry.code not in STYLE]
    found = counted(len(entries) - len(others), "entry", "entries")
    if is_reported is None:
        question = f"Also report findings about style ({found} in the baseline)"
        is_reported = len(others) == len(entries) or not _is_terminal() or typer.confirm(question, default=True)
    if not is_reported and baseline is not None:
        write_baseline(others, baseline)
        say(f"{found} about style removed from {display_path(baseline)}")
    return () if is_reported else STYLE


def _offer(folder: Path) -> None:
    """Print, or in a terminal offer to write, the setting with which plain `pytest` and editors test prompts."""
    texts: dict[Path, str] = {}
    for path in (folder / name for name in _INIS):
        with suppress(OSError):
            texts[path] = gate.read_text(path, errors="replace")
    files = [path for path, text in texts.items() if "pytest" in text]
    if any("promptfmt " in texts[path] for path in files):
        return
    question = "Run the prompt tests with every pytest, and in editors (writes pytest.ini)"
    if not files and _is_terminal() and typer.confirm(question, default=True):
        _write(folder / "pytest.ini", "[pytest]\npromptfmt = true\n")
        return
    where = display_path(files[0]) if files else "pytest.ini, below [pytest]"
    say(f"to run prompt tests with plain `pytest` and in editors, add this line to {where}: promptfmt = true")
