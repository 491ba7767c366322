"""`promptfmt fix` and `promptfmt convert`: edits of task files, shown as a difference, proved by rendering."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pytest_promptfmt.cli.display import diff_lines
from pytest_promptfmt.cli.options import AllowCode, NoCode, Paths, Select, pytest_options
from pytest_promptfmt.cli.output import note, print_lines
from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import (
    CodeNotAllowedError,
    FormatError,
    Position,
    SettingsError,
    SourceError,
    display_path,
    raising,
)
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.core.yaml_rewriting import with_keys
from pytest_promptfmt.formats.apply import has_template
from pytest_promptfmt.formats.conversion import (
    Conversion,
    convert_layout,
    convert_layout_to_template,
    convert_template_key,
)
from pytest_promptfmt.plugin.collected import CollectedPrompts, settings_around, with_collected
from pytest_promptfmt.results.wording import NAMES, counted, listed
from pytest_promptfmt.rules.fixing import Fixed, find_fixes, write_fixes
from pytest_promptfmt.systems.task_files import load_tasks, read_task_file
from pytest_promptfmt.tasks import bind_functions, load_docs, read_yaml

PROOF_SECONDS = 60.0
PROOF_DOCS = 20
PROOF_SHOTS = 2


def fix(
    paths: Paths = None,
    write: Annotated[bool, typer.Option("--write", help="Change the files.")] = False,
    select: Select = None,
    allow_code: AllowCode = None,
    no_code: NoCode = False,
) -> None:
    """Fix the findings that have an automatic fix.

    Without --write, no file is changed. The difference is shown, and the exit code is 1 if there is something to fix.

    Each fix is tested on all tasks that include the file. The finding must be gone, there must be no new error or
    warning, and the rest of each prompt must stay the same. Comments in the file are kept.
    """
    options = pytest_options(select=select, allow_code=allow_code, no_code=no_code)
    fixed = fix_files(paths or [], options, write=write)
    if not write and any(each.files for each in fixed):
        raise typer.Exit(1)


def fix_files(paths: Sequence[Path], options: Sequence[str], *, write: bool) -> Sequence[Fixed]:
    """Find, print and, with `write`, make the fixes of these paths with options of pytest; return them."""
    found: list[Fixed] = []

    def use(collected: Sequence[CollectedPrompts]) -> None:
        if collected:
            folders = collected[0].folders
            files = dict.fromkeys(each.path for each in collected)
            found.append(find_fixes(files, folders, below=paths or [folders.settings.rootdir]))
            if write:
                write_fixes(found[0])

    for error in with_collected(use, paths, [*pytest_options(profiles=["plain"]), *options]).errors:
        note(error)
    for fixed in found:
        _print_fixes(fixed, written=write)
    return found


def convert(
    file: Annotated[Path, typer.Argument(help="The task file.", show_default=False)],
    to: Annotated[str | None, typer.Option("--to", metavar="mcq|cloze", help="Convert to this template.")] = None,
    format_name: Annotated[str | None, typer.Option("--format", metavar="NAME", help="Convert to this format.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Change the file.")] = False,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print the new file instead of the difference.")] = False,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Run the task's own Python functions.")] = False,
    no_code: NoCode = False,
) -> None:
    """Convert the prompt layout of a task file, and show the difference.

    `--to` changes `template: mcq` to cloze, or the reverse. It can also replace a hand-written doc_to_text. `--format`
    replaces a hand-written doc_to_text by a format. A hand-written doc_to_text is replaced only if every prompt and
    request stays the same. Comments in the file are kept.
    """
    if (to is None) == (format_name is None):
        raise SettingsError("missing --to or --format", hint="add --to mcq, --to cloze or --format NAME")
    if to not in (None, "mcq", "cloze"):
        raise SettingsError(f"unknown template {to!r}", hint=f"write mcq, cloze, or --format {to}")
    if write and stdout:
        raise SettingsError("--write and --stdout exclude each other")
    path = file.resolve()
    task = _only_task(path, allow_code=allow_code and not no_code)
    with raising(SourceError, "the file cannot be read", Position(path)):
        before = gate.read_bytes(path).decode()
    try:
        conversion, notes = _conversion(task, to, format_name, pytest_options(no_code=no_code))
    except CodeNotAllowedError as error:
        error.hint = "use --allow-code if you trust the code"
        raise
    _refuse_keys_elsewhere(path, task, conversion)
    with raising(SourceError, position=task.position("task")):
        after = with_keys(before, conversion.written, conversion.removed)
    for line in notes if before != after else (f"{display_path(file)}: nothing to change",):
        note(line)
    if stdout:
        typer.get_binary_stream("stdout").write(after.encode())  # the file's bytes, in any encoding of the terminal
    elif before != after:
        _print_difference(before, after, display_path(file), "converted")
        if write:
            _replace(file, after)


def _print_difference(before: str, after: str, name: str, change: str) -> None:
    """Print what differs between a file and what it will be as a unified diff, in colours on a terminal."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, f"{name} ({change})", lineterm="")
    print_lines(diff_lines([*lines], most=None))


# -- fixes -------------------------------------------------------------------------------------------------------------


def _print_fixes(fixed: Fixed, *, written: bool) -> None:
    """Print the difference of each file, and on stderr what it changes and what was not fixed."""
    for file in fixed.files:
        name = display_path(file.path)
        _print_difference(file.before.decode(), file.after.decode(), name, "fixed")
        codes = Counter(finding.code for finding in file.findings)
        fixes = ", ".join(f"{code} ({count})" if count > 1 else code for code, count in sorted(codes.items()))
        changes = f"the prompts of {listed([*file.changed], NAMES)} change" if file.changed else "no prompt changes"
        note(f"{name}: {fixes}; {changes}")
    for finding, reason in fixed.refused:
        note(f"{finding.where}: {finding.code} is not fixed: {reason}")
    count = sum(len(file.findings) for file in fixed.files)
    total = f"{counted(count, 'finding')} in {counted(len(fixed.files), 'file')}"
    said = f"fixed {total}" if written else f"{total} can be fixed with --write"
    note(said if count else "there are no findings with an automatic fix")


# -- conversions -------------------------------------------------------------------------------------------------------


def _only_task(path: Path, *, allow_code: bool) -> Task:
    """Return the task of a file that defines exactly one. Raises SourceError."""
    if path.is_dir():
        raise SourceError("this is a folder, but only single files can be converted", position=Position(path))
    found = read_task_file(path) if path.exists() else None
    if found is not None and found.kind != "task":
        raise SourceError(
            f"the {found.kind} {found.names[0]!r} has no prompt layout to convert",
            position=Position(path, 1),
            hint="run promptfmt convert with the file of each task of the group" if found.kind == "group" else None,
        )
    [task] = found.tasks if found is not None else load_tasks(path)  # which raises with the reason
    return bind_functions(task, trusted=lambda _file: True) if allow_code else task


def _conversion(
    task: Task, to: str | None, format_name: str | None, options: Sequence[str]
) -> tuple[Conversion, Sequence[str]]:
    """Return what to write and remove, and notes: on which docs it was proved."""
    if to is not None and has_template(task):
        return convert_template_key(task, to), (
            "the prompts change, because mcq and cloze lay out prompts differently",
        )
    if task.path is not None:
        task = replace(task, docs_folder=settings_around(task.path, options).docs_folder(task.path))
    with time_limit(PROOF_SECONDS, f"testing the conversion of {task.name}", task.position("doc_to_text")):
        docs = load_docs(task, count=PROOF_DOCS, num_fewshot=PROOF_SHOTS)
        if format_name is not None:
            conversion = convert_layout(task, format_name, docs)
        else:
            conversion = _to_template(task, to or "", docs)
    shots = f", with 0 and {PROOF_SHOTS} shots" if len(docs.fewshot) > PROOF_SHOTS else ""
    proof = f"every prompt and request stays the same (tested with these docs: {docs.origin}{shots})"
    synthetic = (
        ()
        if docs.kind == "given"
        else ("  there are no real docs, so the test used docs that were made from the templates",)
    )
    return conversion, (proof, *synthetic)


def _to_template(task: Task, kind: str, docs: TaskDocs) -> Conversion:
    """Return the conversion of a hand-written layout; the hint of a refusal names another way."""
    try:
        return convert_layout_to_template(task, kind, docs)
    except FormatError as error:
        error.hint = "nothing was converted, because the prompt would change"
        error.hint += ". Try --to mcq first, and then --to cloze" if kind == "cloze" else ""
        raise


def _refuse_keys_elsewhere(path: Path, task: Task, conversion: Conversion) -> None:
    """Raise FormatError for a key that is to change and was not written in this file's own lines."""
    file = read_yaml(path)
    for key in (*conversion.written, *conversion.removed):
        owner = file.owner(key)
        place = task.position(key) if owner is not None else None
        if owner is None or place is None:
            continue
        if place.path != file.path:
            raise FormatError(
                f"{key} is in this file, which {display_path(path)} includes, so it cannot be converted",
                position=place,
                hint=(
                    "move the key into the file of the task. A conversion here would "
                    "change all tasks that include this file"
                ),
            )
        if any(key == repeated.name for repeated in file.repeated):
            raise FormatError(f"{key} is written twice", position=place, hint="remove the earlier key")
        if key not in owner.marks:
            raise FormatError(f"{key} comes from a merge (<<)", position=place, hint="write the key without <<")


def _replace(path: Path, text: str) -> None:
    """Write the file, that of a link in the repository at its place; raises SourceError."""
    with raising(SourceError, "the file cannot be written", Position(path)):
        if writing.leads_out(path, Path.cwd()):
            raise gate.RefusedError("the path is a symbolic link to a file outside the repository", path)
        writing.write(path.resolve(), text)
