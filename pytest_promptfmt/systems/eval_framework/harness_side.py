"""The requests of a task class as the installed eval-framework makes them: its samples, and its formatters' texts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import FunctionError, RenderError, described
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.profiles.conversation import render_messages
from pytest_promptfmt.systems.eval_framework.class_docs import (
    ClassDocs,
    SampleDoc,
    is_of,
    part,
    replace_loader,
    subject_of,
)
from pytest_promptfmt.systems.eval_framework.hooks import SEED, TaskClass, is_on_base
from pytest_promptfmt.systems.eval_framework.messages import DEFAULT_FORMATTER
from pytest_promptfmt.systems.eval_framework.tasks import class_of

_SUBJECT = "subject"

Requests = list[list[tuple[Any, ...]]]


def sees(_task: Task, profile: Profile) -> bool:
    """Return whether eval-framework can show messages as a profile does: no system instruction, shots as turns."""
    return not profile.system_instruction and (profile.chat_template is None or profile.fewshot_as_turns)


def requests_of(task: Task, docs: TaskDocs, shots: int) -> Callable[[Profile], Requests]:
    """Return what makes the requests of a bound task for a profile, doc by doc.

    Raises FunctionError where eval-framework cannot be imported or has no part in the prompts, RenderError where it
    refuses the class.
    """
    found = class_of(task)
    if found is None:
        raise FunctionError(f"the class of the task {task.name} was not imported")
    try:
        formatters, contract = import_module("template_formatting.formatter"), import_module("eval_framework.contract")
    except Exception as error:
        raise FunctionError(f"eval-framework cannot be imported: {type(error).__name__}: {error}") from error
    made, samples = _run(task, lambda: _samples(found, docs, shots))
    if not isinstance(made, contract.Eval):
        raise FunctionError(f"{found.name} cannot run in eval-framework, because it does not extend one of its classes")
    generates = _run(task, made.get_response_type) == contract.ResponseType.COMPLETION
    arguments = {"until": list(made.get_stop_sequences() or [])} if generates else {}
    if generates and (most := made.get_max_tokens()) is not None:
        arguments["max_gen_toks"] = most

    def requests(profile: Profile) -> Requests:
        formatter = _formatter(formatters, profile)
        made: Requests = _run(task, lambda: [[*_requests(each, formatter)] for each in samples])
        return made

    def _requests(own: Sequence[Any], formatter: Any) -> Iterator[tuple[Any, ...]]:
        for sample in own:
            text = formatter.format([_message(formatters, each) for each in part(sample, "messages")])
            if generates:
                yield text, dict(arguments)
            else:
                yield from ((text, each) for each in part(sample, "possible_completions") or ())

    return requests


def _run(task: Task, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (FunctionError, RenderError):
        raise
    except Exception as error:
        message = f"eval-framework makes no prompts for {task.name!r}: it raises {described(error)}"
        raise RenderError(message, position=task.position("class")) from error


def _samples(found: TaskClass, docs: TaskDocs, shots: int) -> tuple[Any, list[list[Any]]]:
    """Return eval-framework's object, and its samples of each evaluated doc."""
    given = [[doc.sample] for doc in docs.evaluated if isinstance(doc, SampleDoc)]
    if given:  # of `iterate_samples`, which is eval-framework's own code or the author's
        return found.make(shots), given
    if not isinstance(docs, ClassDocs) or not is_on_base(found.found):
        return found.make(shots), []
    constants = found.constants()
    if shots and docs.shares_split and constants.fewshot_split != constants.sample_split:
        raise FunctionError(
            f"eval-framework draws few-shot examples from {constants.fewshot_split!r}, "
            "but there are no docs of this split"
        )
    options: Any = {"custom_subjects": None, "custom_hf_revision": None, "seed": SEED}
    made = found.found.with_overwrite(shots, **options)
    subjects = constants.subjects
    made.SUBJECTS = [each for each in subjects if any(subject_of(row, subjects) == each for row in docs.rows)]
    rows = [_Row(row, number) for number, row in enumerate(docs.rows)]
    if docs.given:
        replace_loader(made, docs.given)
    else:

        def load(*_: Any, name: Any = None, **_options: Any) -> Mapping[str, Sequence[Doc]]:
            own = subjects[0] if name is None else name
            pool = [copy.deepcopy(dict(row)) for row in docs.fewshot if is_of(row, own, subjects)]
            mine = [row for row in rows if subject_of(row, subjects) == own]
            return {constants.fewshot_split: pool, constants.sample_split: mine}

        made._load_hf_dataset = load
    noted: dict[int, list[Any]] = {}
    create = made._create_samples

    def note(item: Any, *rest: Any) -> Any:
        number = _number(item, docs.rows, noted)
        noted[number] = list(create(item, *rest))
        return noted[number]

    made._create_samples = note
    for _ in made.iterate_samples(None):
        if all(number in noted for number in range(len(docs.evaluated))):
            break
    missing = next((number for number in range(len(docs.evaluated)) if number not in noted), None)
    if missing is not None:
        raise RenderError(f"eval-framework makes no sample of doc {missing + 1} of {found.name!r}")
    return made, [noted[number] for number in range(len(docs.evaluated))]


class _Row(dict[str, Any]):
    """A row that knows its place before eval-framework shuffles."""

    def __init__(self, row: Doc, number: int) -> None:
        super().__init__(copy.deepcopy(dict(row)))
        self.number = number


def _number(item: Any, rows: Sequence[Doc], noted: Mapping[int, Any]) -> int:
    """Return which row an item is; one of a loader that makes its own is known by its columns."""
    if isinstance(item, _Row):
        return item.number
    asked = {key: value for key, value in item.items() if key != _SUBJECT}
    same = (at for at, row in enumerate(rows) if {**row, _SUBJECT: 0} == {**asked, _SUBJECT: 0} and at not in noted)
    return next(same, -1)


def _formatter(formatters: Any, profile: Profile) -> Any:
    if profile.chat_template is None:
        words = (profile.formatter or DEFAULT_FORMATTER).split("-")
        return getattr(formatters, f"{''.join(map(str.capitalize, words))}Formatter")()
    made = formatters.HFFormatter.__new__(formatters.HFFormatter)  # its constructor loads a tokenizer from the hub
    made.chat_template_kwargs = {}

    def render(messages: Sequence[Mapping[str, Any]], **given: Any) -> str:
        del given["tokenize"]
        return render_messages(profile, messages, **given)

    made.tokenizer = SimpleNamespace(apply_chat_template=render)
    return made


def _message(formatters: Any, given: Any) -> Any:
    if isinstance(given, formatters.Message):
        return given
    role = part(given, "role")
    with suppress(AttributeError):
        role = role.value
    return formatters.Message(role=role, content=part(given, "content"))
