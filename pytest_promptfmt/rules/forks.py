"""Rules about task files of forks and other releases of lm-eval: keys that it does not have or reads differently."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_promptfmt.core.errors import did_you_mean
from pytest_promptfmt.core.task import FunctionRef, leaves
from pytest_promptfmt.rules import Family, FileView, Finding, Severity, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.tasks import Harness, harness_of, names_its_sets, unknown_keys, value_kinds


@rule("PF117", "unknown-key", severity=Severity.WARNING, family=Family.CONFIG, scope="file")
def unknown_key(view: FileView) -> Iterator[Finding]:
    """Report a key of a task that lm-eval does not have.

    Why: lm-eval refuses the task, and drops its file without a word. A fork may have the key: an info where the
    `TaskConfig` of the checkout around the file, or of the harness that is installed, has it, or where there is no
    harness to compare with. The prompts are tested without the key.

    Fix: remove the key; settings of your own belong under `metadata`.

    Real: lmms-eval's `doc_to_visual` and `lmms_eval_specific_kwargs`, in 700 of its files.
    """
    if view.file.kind != "task":
        return
    keys = list(unknown_keys(view.config))
    harness = view.index.harness if keys else None
    for at in keys:
        key = at[-1]
        is_of_fork = harness is None or not harness.task_keys or key in harness.task_keys
        message = "a key that only a fork of lm-eval has" if is_of_fork else "a key that lm-eval does not have"
        severity = Severity.INFO if is_of_fork else None
        do = did_you_mean(key, value_kinds()) or ""
        yield finding(message, key, view.yaml.locate(at), do="" if is_of_fork else do, severity=severity)


@rule("PF137", "group-of-a-task", severity=Severity.WARNING, family=Family.NAMES, scope="file")
def group_of_a_task(view: FileView) -> Iterator[Finding]:
    """Report a task with the key `group`, under which tasks named their sets up to lm-eval 0.4.3.

    Why: lm-eval 0.4.13 reads such a file as a group without members, and drops the task without a word. Up to
    0.4.11 it is a task. An info where the checkout around the file is such a release.

    Fix: write `tag:` instead of `group:`.

    Real: storycloze_2018 of lm-evaluation-harness, and task folders of forks of 0.4.3.
    """
    if names_its_sets(view.config):
        harness = view.index.harness
        severity = _severity(harness)
        message = "lm-eval 0.4.13 drops a task that has the key `group`"
        yield finding(message, str(view.config["group"]), view.yaml.locate(("group",)), severity=severity)


@also("PF137", scope="file")
def early_yaml(view: FileView) -> Iterator[Finding]:
    """Report a file that is included twice, and a `!function` with a path, which lm-eval reads only before 0.4.12.

    Fix: include the shared file in one place, and write modules of other folders into the folder of the task.
    """
    paths = [value for value in leaves(view.config) if isinstance(value, FunctionRef) and value.is_path]
    if not paths and not view.yaml.has_release_includes:
        return
    harness = view.index.harness  # which makes it an input of the outcome
    harness = harness_of(view.yaml.path.parent)
    if harness is not None and not harness.reads_early_yaml:
        return  # reading the file or its code fails
    severity = _severity(harness)
    for position in view.yaml.early:
        message = "lm-eval 0.4.12 and later drop a file that includes another one twice"
        yield finding(message, "", position, severity=severity)
    for each in dict.fromkeys(paths):
        message = "lm-eval 0.4.12 and later do not find a function by a path"
        yield finding(message, str(each), each.position, severity=severity)


def _severity(harness: Harness | None) -> Severity | None:
    return Severity.INFO if harness is not None and harness.reads_early_yaml else None
