"""Functions for notebooks and other projects' tests, without pytest: studies, findings, changes, conversations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import PromptfmtError, RenderError, SettingsError, UnavailableError
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.release import LATEST
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.profiles.conversation import render_messages
from pytest_promptfmt.profiles.profile_loading import load_profile
from pytest_promptfmt.results.clusters import SEVERITIES
from pytest_promptfmt.rules.linter import Linter
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.snapshots.changes import Change, changes
from pytest_promptfmt.snapshots.content import snapshot_document
from pytest_promptfmt.snapshots.document import read_document, write_document
from pytest_promptfmt.study import Study, seen_by
from pytest_promptfmt.tasks import found_release


def study_of(
    task: Task,
    *,
    docs: TaskDocs | Iterable[Doc] | None = None,
    profiles: Sequence[Profile] = (PLAIN,),
    num_fewshot: int | None = None,
    allow_code: bool = False,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Study:
    """Return the study of a task. It makes docs, prompts, tokens and scores once, when they are first used.

    `docs` replace the docs of the task. `select` and `ignore` are codes and prefixes of rules. With `allow_code`,
    Python functions of the task may run.
    """
    if docs is not None:
        given = docs if isinstance(docs, TaskDocs) else TaskDocs.in_memory(docs)
        task = replace(task, dataset=replace(task.dataset, given=lambda _count, _shots: given))
    top = Path.cwd()
    release, found = found_release(top) or (LATEST.version, "")
    settings = Settings(
        rootdir=top,
        profiles=tuple(profiles),
        num_fewshot=num_fewshot,
        lm_eval=release,
        lm_eval_found=found,
        no_code=not allow_code,
        allow_code=(Path(top.anchor),) if allow_code else (),
        select=tuple(select),
        ignore=tuple(ignore),
    )
    return Study(task, settings)


def check(task: Task | Study, **options: Any) -> list[Reported]:
    """Return the findings in a task, errors first; infos only if `select` names them.

    `options` are those of `study_of`. Raises PromptfmtError if the task cannot be rendered, except for missing docs.
    """
    study = task if isinstance(task, Study) else study_of(task, **options)
    selection = Selection.of(study.settings, known_rules())
    views = [seen_by(study, profile) for profile in study.settings.profiles]
    checked = Linter().check(study, selection, views)
    if checked.failure is not None and not isinstance(checked.failure, UnavailableError):
        raise checked.failure
    wanted = (
        each for each in checked.findings if each.severity is not Severity.INFO or selection.is_asked_for(each.code)
    )
    return sorted(wanted, key=lambda each: SEVERITIES.index(each.severity))


def compare(
    before: Task | Study, after: Task | Study, *, profile: Profile = PLAIN, **options: Any
) -> tuple[Change, ...]:
    """Return how the prompts and requests of two tasks differ for a profile; an empty tuple if they are the same.

    The content of a snapshot is compared. `options` are those of `study_of`, for both tasks. Raises PromptfmtError.
    """
    documents = []
    for task in (before, after):
        study = task if isinstance(task, Study) else study_of(task, profiles=(profile,), **options)
        document = snapshot_document(seen_by(study, profile), with_task=True)
        documents.append(read_document(write_document(document), Path(study.given.id)))
    return changes(*documents)


def render(
    messages: Sequence[Mapping[str, Any]],
    profile: Profile,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool | str = False,
    **template_args: Any,
) -> str:
    """Return a conversation as the chat template of a profile renders it, byte for byte as transformers 5.23 does.

    Messages have `role` and `content`, and other fields that the template reads, such as `tool_calls`. `template_args`
    are further arguments of the template, such as `enable_thinking=False`. With `continue_final_message`, the text ends
    in the last message, or in the field that it names. Raises SettingsError or TokenizerError if the profile cannot be
    loaded, and RenderError if the template refuses the conversation.
    """
    loaded = load_profile(profile).profile
    if loaded.chat_template is None:
        raise SettingsError(f"profile {profile.name!r} has no chat template", hint="give the profile a chat template")
    known = replace(loaded, template_args={**loaded.template_args, **template_args})
    try:
        return render_messages(
            known,
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            continue_final_message=continue_final_message,
        )
    except PromptfmtError:
        raise
    except (TemplateError, ValueError, TypeError, AttributeError, KeyError) as error:
        what = f"the chat template of profile {profile.name!r} refuses the conversation"
        raise RenderError(f"{what}: {type(error).__name__}: {error}") from error
