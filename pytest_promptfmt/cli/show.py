"""`promptfmt show`: the prompts of a task, with the origin of each piece."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from pytest_promptfmt.cli.display import as_data, legend, prompt_lines, request_lines, token_lines
from pytest_promptfmt.cli.options import AllowCode, AsJson, NoCode, Profiles, pytest_options
from pytest_promptfmt.cli.output import note, print_json, print_lines, styled
from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, UnavailableError, did_you_mean
from pytest_promptfmt.core.finding import Reported
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.formats.apply import declared_formats
from pytest_promptfmt.formats.format_registry import known_formats
from pytest_promptfmt.results.item_views import scored_pairs
from pytest_promptfmt.results.wording import NAMES, counted
from pytest_promptfmt.settings.file import FILE_NAMES
from pytest_promptfmt.snapshots.paths import DIRECTORY
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems import file_suffixes
from pytest_promptfmt.systems.task_files import load_tasks

if TYPE_CHECKING:
    from pytest_promptfmt.plugin.collected import CollectedPrompts

_BINARY: Final = frozenset({".gguf"})
"""The suffixes of files that are not text, whose tasks are named after the file."""

_FORMS: Final = {
    "sentence": "a sentence",
    "boxed": "a box",
    "tagged": "tags",
    "json": "JSON",
    "letter": "a letter",
    "number": "a number",
    "labels": "labels",
}
_NAMED: Final = re.compile(rb"""^(?:task|group): *["']?([\w.-]{1,200})["']? *$""", re.MULTILINE)
"""A line of YAML that names a task or group, for a hint."""


def show(
    task: Annotated[
        str,
        typer.Argument(
            help="The name of a task, or `task@format`, or a glob for such names, or a file.", show_default=False
        ),
    ],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files or folders to search. Default: the setting `paths`, or the current folder.", show_default=False
        ),
    ] = None,
    profile: Profiles = None,
    format_name: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="The format for tasks that set no format.")
    ] = None,
    doc: Annotated[int | None, typer.Option("--doc", min=1, help="Show only this doc. The first doc is 1.")] = None,
    spaces: Annotated[bool, typer.Option("--spaces/--no-spaces", help="Show spaces as dots.")] = True,
    tokens: Annotated[bool, typer.Option("--tokens", help="Mark where each token ends.")] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Show token ids too.")] = False,
    answers: Annotated[bool, typer.Option("--answers", help="Show which form of answer each prompt requests.")] = False,
    allow_code: AllowCode = None,
    no_code: NoCode = False,
    as_json: AsJson = False,
) -> None:
    """Show the prompts of a task, with findings. Colours show where text comes from."""
    chosen = paths or []
    if Path(task).is_file() or (os.sep in task and Path(task).is_dir()):  # a task may have the name of a folder
        task, chosen = "*", [Path(task), *chosen]
    files, names = narrowed(task, chosen)
    in_root = bool(chosen) or _is_root(Path())
    if files is None and in_root:
        if as_json:
            typer.echo("[]")
        raise unknown_task(task, names)
    from pytest_promptfmt.plugin.collected import Collection, with_collected  # later: an unknown name fails at once

    options = pytest_options(tasks=[task], profiles=profile, allow_code=allow_code, no_code=no_code)
    options += [f"--promptfmt-format={format_name}"] if format_name is not None else []
    options += [f"--promptfmt-docs={doc}"] if doc is not None else []
    shown = _Shown(doc=doc, tokens=tokens or ids, ids=ids, spaces=spaces, answers=answers, as_json=as_json)
    collected = with_collected(shown.take, files, options) if files is not None else Collection()
    root = next((folder for folder in Path.cwd().parents if _is_root(folder)), None)
    if not collected.found and not in_root and root is not None:
        collected = with_collected(shown.take, [root], options)  # the project begins above the working directory
    if as_json:
        print_json(shown.data)
    for problem in shown.problems:
        note(problem)
    if not collected.found:
        for line in collected.errors:
            note(line)
        if collected.errors:
            raise typer.Exit(1)
        raise unknown_task(task, names, files or ())
    if not shown.data:
        raise typer.Exit(1)


def _asked_lines(study: Study) -> Iterator[Text]:
    """Yield the forms in which a prompt requests its answer, each with the text that says so and an answer in it."""
    for form in study.contract.forms:
        example = f", such as {form.written('B')!r}" if form.before or form.after else ""
        labels = f": {', '.join(form.labels)}" if form.labels else ""
        yield styled(f"requests {_FORMS[form.form]}{labels}{example}, by {form.said.strip()!r}")
    if not study.contract.forms:
        yield styled("promptfmt recognizes no form of answer that the prompt requests")


@dataclass(kw_only=True, slots=True)
class _Shown:
    """Shows the prompts that are collected, and keeps their data and what cannot be shown."""

    doc: int | None
    tokens: bool
    ids: bool
    spaces: bool
    answers: bool
    as_json: bool
    data: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def take(self, found: Sequence[CollectedPrompts]) -> None:
        for prompts in found:
            name = f"{prompts.task.id} [{prompts.profile_id}]"
            try:
                every = [*prompts.seen.render()]
            except PromptfmtError as error:
                self.problems.append(f"{name}: {error}")
                if isinstance(error, UnavailableError) or len(found) > 1:
                    continue
                raise
            instances = [each for each in every if self.doc is None or each.index + 1 == self.doc]
            if self.doc is not None and not instances:
                self.problems.append(f"{name}: no doc {self.doc}, only {counted(len(every), 'doc')}")
                continue
            self.data.append(_as_data(prompts, instances))
            if not self.as_json:
                print_lines(self._lines(prompts, instances))
                if self.tokens and prompts.seen.tokenizer is None:
                    self.problems.append(f"{name}: this profile has no tokenizer")

    def _lines(self, prompts: CollectedPrompts, instances: Sequence[Instance]) -> Iterator[Text]:
        """Yield the prompts; on demand with their tokens, where the profile has a tokenizer."""
        yield styled(f"{prompts.task.id} [{prompts.profile_id}]", "bold underline")
        yield styled(prompts.task.position("task") or prompts.path, "dim")
        findings = prompts.findings()
        for instance in instances:
            yield styled(f"doc {instance.index + 1}", "bold")
            of_doc = [finding for finding in findings if finding.doc == instance.index]
            yield from self._instance_lines(prompts, instance, of_doc)
            yield from _finding_lines(of_doc)
            yield styled("")
        yield legend([prompt for instance in instances for prompt in instance.prompts])
        yield from _asked_lines(prompts.seen.study) if self.answers else ()
        shown = {instance.index for instance in instances}
        yield from _finding_lines([finding for finding in findings if finding.doc not in shown])
        yield styled("")

    def _instance_lines(
        self, prompts: CollectedPrompts, instance: Instance, findings: Sequence[Reported]
    ) -> Iterator[Text]:
        """Yield the lines of a doc: its prompts, tokens and requests."""
        tokenizer = prompts.seen.tokenizer if self.tokens else None
        pairs = scored_pairs(instance, prompts.seen.pairs) if self.tokens else {}
        requests = list(enumerate(instance.requests))
        for number, prompt in enumerate(instance.prompts):
            if len(instance.prompts) > 1:
                yield styled(f"prompt {number + 1} of {len(instance.prompts)}", "bold dim")
            marked = [finding.span for finding in findings if finding.span is not None] if number == 0 else []
            yield from map(_inert, prompt_lines(prompt, spaces=self.spaces, marked=marked))
            if tokenizer is not None:
                special = not prompts.profile.is_chat
                yield from map(_inert, token_lines(tokenizer, prompt.text, ids=self.ids, special=special))
            own = [each for each in requests if each[1].prompt == number]
            yield from map(_inert, request_lines(own, tokenizer, pairs, self.ids))
        own = [each for each in requests if each[1].prompt is None]
        yield from map(_inert, request_lines(own, tokenizer, pairs, self.ids))


def unknown_task(task: str, names: Collection[str], files: Sequence[Path] = ()) -> SettingsError:
    """Return the error for a name that no task has, or for a format that a task of these files does not name."""
    name, _, wanted = task.partition("@")
    if wanted and name in names:
        named: list[str] = []
        for file in files:
            with suppress(PromptfmtError):
                named += [each for known in load_tasks(file) if known.name == name for each in declared_formats(known)]
        known = known_formats()
        use = (
            f"to show this format anyway: `promptfmt show {name} --format {wanted}`"
            if wanted in known
            else "`promptfmt formats` lists all formats"
        )
        lists = f"its formats are {', '.join(named)}" if named else use
        hint = did_you_mean(wanted, named or (known if wanted not in known else ()))
        return SettingsError(f"task {name!r} has no format {wanted!r}", hint=hint or lists)
    here = f"the tasks are {', '.join(sorted(names))}" if 0 < len(names) <= NAMES else ""
    hint = did_you_mean(name, names) or here or "name other files or folders to search, or use a glob"
    return SettingsError(f"no task matches {task!r}", hint=hint)


def narrowed(task: str, paths: Sequence[Path]) -> tuple[Sequence[Path] | None, set[str]]:
    """Return the files that write the task's name, None for none, so that a large tree need not be collected for it.

    With the names of tasks and groups in them. For a glob these are the given paths.
    """
    name = task.partition("@")[0]
    if any(wildcard in task for wildcard in "*?["):
        return paths, set()
    text = name.encode()
    written = re.compile(rb"(?<![\w.-])" + re.escape(text) + rb"(?![\w-])")
    found: list[Path] = []
    of_name: list[Path] = [path for path in paths if path.is_file()]
    names: set[str] = set()
    suffixes = file_suffixes() - _BINARY
    for file in map(Path, _candidates(list(paths) or [Path()], name, suffixes)):
        if file.suffix not in suffixes:
            of_name.append(file)
            continue
        try:
            content = gate.read_bytes(file)
        except OSError:
            found.append(file)  # collecting it reports why it cannot be read
            continue
        is_named_after = file.name.startswith(f"{name}.")  # as chat templates and files of some systems are
        if is_named_after or (text in content and written.search(content)):
            found.append(file)
        names |= {file.stem} if file.suffix == ".jinja" else {each.decode() for each in _NAMED.findall(content)}
    return found or list(dict.fromkeys(of_name)) or None, names


def _candidates(paths: Iterable[Path], name: str, suffixes: Collection[str]) -> Iterator[str]:
    """Yield the files that may define a task, in the order of their folders; some systems name tasks after files."""
    for root in paths:
        if not root.is_dir():
            yield str(root)
            continue
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(each for each in folders if each != DIRECTORY and not each.startswith((".", "__")))
            for each in sorted(names):
                if (Path(each).suffix in suffixes or each.startswith(f"{name}.")) and each not in FILE_NAMES:
                    yield os.path.join(folder, each)


def _is_root(folder: Path) -> bool:
    """Return whether a project begins in a folder."""
    return any((folder / name).exists() for name in (".git", "pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"))


def _as_data(prompts: CollectedPrompts, instances: Sequence[Instance]) -> dict[str, Any]:
    return {
        "task": prompts.task.id,
        "profile": prompts.profile_id,
        "file": str(prompts.path),
        "output_type": prompts.task.output_type,
        "docs": [as_data(instance) for instance in instances],
        "findings": [finding.to_json() for finding in prompts.findings()],
    }


def _inert(line: Text) -> Text:
    """Return a line of a prompt; a command that a CI server would obey gets a backslash, and loses its style."""
    escaped = escape_controls(line.plain)
    return line if escaped == line.plain else type(line)(escaped)


def _finding_lines(findings: Sequence[Reported]) -> Iterator[Text]:
    for finding in findings:
        style = {"error": "bold red", "warning": "yellow"}.get(finding.severity.value, "cyan")
        yield styled(f"{finding.where}: {finding.code} {finding.message}", style)
        yield from (styled(line, "dim") for line in str(finding).splitlines()[2:])
