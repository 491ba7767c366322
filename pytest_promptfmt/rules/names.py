"""Rules about names: of tasks, tags and groups, which are missing, the same, or cannot be selected."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, did_you_mean, is_misspelt
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.rules import Family, FileView, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import also, reads_names
from pytest_promptfmt.rules.rule_views import finding, words
from pytest_promptfmt.study.configuration import read_template
from pytest_promptfmt.tasks import GROUP_KEYS, TaskIndex, YamlFile, names_its_sets, tags_of

_WORD: Final = re.compile(r"[A-Za-z]{6,}")
_MAX_MEMBERS: Final = 5000
_MAX_DEPTH: Final = 16
_FEWEST_SIBLINGS: Final = 4
_DEFAULT_METRICS: Final[Mapping[str, tuple[str, ...]]] = {
    "multiple_choice": ("acc", "acc_norm"),
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "generate_until": ("exact_match",),
}


@rule("PF131", "unresolved-member", severity=Severity.ERROR, family=Family.NAMES, scope="file")
def unresolved_member(view: FileView) -> Iterator[Finding]:
    """Report a member of a group that neither a task file nor the harness defines.

    Why: lm-eval cannot load the group, but reports this only when it runs the group. The harness is the lm-eval
    checkout that contains the file, or otherwise the installed lm-eval. If there is no harness, the member may still be
    a task of lm-eval, so the finding is only an info. If one of your tasks has a similar name, the finding is a
    warning.

    Fix: use the name of a task, tag or group.

    Real: lm-evaluation-harness #2112 (haerae), #2420 (tmlu).
    """
    if not view.file.unresolved:
        return
    is_known = view.index.harness is not None
    for member in view.file.unresolved:
        severity = None if is_known else Severity.WARNING if is_misspelt(member, view.index.names) else Severity.INFO
        at = ("task", _number_of(view.config.get("task"), member))
        message = "unknown member of the group" if is_known else "no file defines this member of the group"
        do = did_you_mean(member, view.index.names) or ("" if is_known else "install lm-eval to check its names")
        place = view.yaml.locate(at) or view.yaml.locate(("task",))
        yield finding(message, member, at, do=do, severity=severity, position=place)


def _number_of(members: Any, name: str) -> int:
    for number, member in enumerate(members if isinstance(members, list) else ()):
        if member == name or (isinstance(member, Mapping) and name in (member.get("task"), member.get("group"))):
            return number
    return 0


@rule("PF132", "hidden-name", severity=Severity.ERROR, family=Family.NAMES, scope="file")
def hidden_name(view: FileView) -> Iterator[Finding]:
    """Report a name that lm-eval drops because it is already used.

    Why: tasks, groups and tags share one namespace. If two of them have the same name, only one can be run. Since
    lm-eval 0.4.12, this is the one in the first file. In earlier releases, it is the one in the file that the file
    system lists last. A tag with the name of a group contains no tasks.

    Fix: rename one of the two.

    Real: lm-evaluation-harness #3343 (longbench2), #3394 (mmlu_redux), storycloze_2018.
    """
    harness = view.index.harness
    replaces_tags = harness is not None and harness.reads_early_yaml  # the group has the name, as its author meant
    for duplicate in view.index.duplicates_in(view.yaml.path):
        if replaces_tags and (duplicate.dropped.kind, duplicate.first.kind) == ("group", "tag"):
            continue
        first = duplicate.first.position
        message = f"the name of this {duplicate.dropped.kind} is already used by a {duplicate.first.kind}"
        do = f"rename one of the two; the other one is at {first}" if first is not None else ""
        yield finding(message, duplicate.name, duplicate.dropped.position, do=do)
    if view.file.kind == "group":
        return
    for tag in tags_of(view.config) if not names_its_sets(view.config) else ():
        entry = view.index.find(tag)
        if entry is not None and entry.kind != "tag":
            message = f"the tag has the same name as a {entry.kind}, so lm-eval drops one of them"
            yield finding(
                message, tag, view.yaml.locate(("tag",)), do=f"rename the tag; the {entry.kind} is at {entry.position}"
            )


@rule("PF133", "group-metric-without-member", severity=Severity.ERROR, family=Family.NAMES, scope="file")
def group_metric(view: FileView) -> Iterator[Finding]:
    """Report a group that averages a metric or filter which none of its members has.

    Why: lm-eval averages the results that the members report as `metric,filter`. If no member has such a result, the
    row of the group stays empty, and lm-eval reports no error. If an entry of `aggregate_metric_list` has no
    `filter_list`, lm-eval 0.4.13 uses the filters of the members. The rule checks nested groups as well.

    Fix: use a metric and a filter pipeline that the members have.

    Real: thirteen bugs of lm-evaluation-harness, which PF131, PF132 or PF133 would have found.
    """
    if view.file.kind == "group":
        yield from _averages(view, view.config, ())


def _averages(view: FileView, group: Mapping[Any, Any], keys: tuple[str | int, ...]) -> Iterator[Finding]:
    """Yield what is wrong with the averages of a group and of the groups inside it."""
    members, written = group.get("task"), group.get("aggregate_metric_list")
    for number, member in enumerate(members if isinstance(members, list) and len(keys) < _MAX_DEPTH else ()):
        if isinstance(member, Mapping) and isinstance(member.get("task"), list):
            yield from _averages(view, member, (*keys, "task", number))
    reported = _reported_by_members(members, view.index) if written else frozenset()
    if not reported:
        return
    own = (*keys, "aggregate_metric_list")
    for number, entry in enumerate(written if isinstance(written, list) else [written]):
        metric = entry.get("metric") if isinstance(entry, Mapping) else None
        if not isinstance(metric, str):
            continue
        filters = entry.get("filter_list")
        for name in filters if isinstance(filters, list) else [filters]:
            is_known = (metric, name) in reported if name is not None else metric in {one for one, _ in reported}
            if not is_known:
                known = ", ".join(sorted({one if name is None else f"{one},{two}" for one, two in reported})[:6])
                message, place = "the group averages a metric that no member reports", view.yaml.locate((*own, number))
                saw, do = metric if name is None else f"{metric},{name}", f"use a metric of the members: {known}"
                yield finding(message, saw, (*own, number), do=do, position=place or view.yaml.locate(own))


def _reported_by_members(members: Any, index: TaskIndex) -> frozenset[tuple[str, str]]:
    """Return metric and pipeline of every member; nothing if those of a member are unknown."""
    reported = [_reported(file.config) for file in _tasks_of(members, index)]
    return frozenset() if None in reported else frozenset().union(*filter(None, reported))


def _tasks_of(members: Any, index: TaskIndex) -> Sequence[YamlFile]:
    """Return the files of the tasks of a group, with those of groups and tags inside it; none if one is unknown."""
    found: list[YamlFile] = []
    waiting = list(reversed(members)) if isinstance(members, list) else []
    seen: set[str] = set()
    while waiting:
        member = waiting.pop()
        if isinstance(member, Mapping):
            if isinstance(member.get("task"), list):
                waiting += reversed(member["task"])
                continue
            if set(member) & {"metric_list", "filter_list", "include", "process_results"}:
                return ()
            member = member.get("group", member.get("task"))
        entry = index.find(member) if isinstance(member, str) else None
        if entry is None or entry.kind == "class":
            return ()
        if entry.name in seen:
            continue
        seen.add(entry.name)
        if len(seen) > _MAX_MEMBERS:
            return ()
        if entry.kind == "tag":
            waiting += reversed(entry.tagged)
        elif entry.file is None:
            return ()
        elif entry.kind == "group":
            if set(entry.file.config) & {"metric_list", "filter_list"}:
                return ()
            inner = entry.file.config.get("task")
            waiting += reversed(inner) if isinstance(inner, list) else []
        else:
            found.append(entry.file)
    return found


@rule("PF136", "unlike-siblings", severity=Severity.INFO, family=Family.NAMES, scope="file")
def unlike_siblings(view: FileView) -> Iterator[Finding]:
    """Report a task of a group that differs from all its siblings in the value of one key.

    Why: the tasks of a family are copies. If a correction misses one file, that file keeps the old column, labels or
    stop sequence. Siblings are tasks that are in the same folder and include the same file. The rule needs at least
    five siblings, of which all but one agree. A task that differs in several keys is probably different on purpose, so
    it is not reported.

    Fix: use the value of the other tasks, unless the difference is intended.

    Real: lm-evaluation-harness #3465 (one language of mgsm).
    """
    names = _named_members(view)
    of_groups = {name for name in names if (entry := view.index.find(name)) is None or entry.kind == "group"}
    families = dict[tuple[Path, Path], list[YamlFile]]()
    for file in _tasks_of([name for name in names if name not in of_groups], view.index):
        families.setdefault((file.path.parent, file.parts[0].path), []).append(file)
    for files in (files for files in families.values() if len(files) > _FEWEST_SIBLINGS):
        odd = [(key, *pair) for key in words("keys_of_siblings") if (pair := _odd_one(files, key)) is not None]
        for key, file, other in odd if len(odd) == 1 else ():
            first, place = (each.locate((key,)) or Position(each.path, 1, 1) for each in (file, other))
            usual = f"{_compared(other.config, key)!r} at {place} and in {len(files) - 2} more tasks"
            saw = f"{_compared(file.config, key)!r}, but {usual}"
            yield Finding(message=f"one task of the group differs from the others in {key}", saw=saw, position=first)


def _named_members(view: FileView) -> list[str]:
    members = view.config.get("task") if view.file.kind == "group" else None
    return [name for name in members if isinstance(name, str)] if isinstance(members, list) else []


def _odd_one(files: Sequence[YamlFile], key: str) -> tuple[YamlFile, YamlFile] | None:
    """Return the only file with another value of a key than all others, which agree, and one of those."""
    values = [_compared(file.config, key) for file in files]
    usual = values[0] if values[0] in values[1:] else values[1]
    odd = [file for file, value in zip(files, values, strict=True) if value != usual]
    return (odd[0], files[values.index(usual)]) if len(odd) == 1 else None


def _compared(config: Mapping[Any, Any], key: str) -> object:
    """Return what tasks of a family have in common of a key: of a prompt its columns, for its words are translated."""
    value = config.get(key)
    if key == "doc_to_text" and isinstance(value, str):
        return sorted(read_template(value).names)
    return str(value) if isinstance(value, FunctionRef) else value


def _reported(config: Mapping[Any, Any]) -> set[tuple[str, str]] | None:
    """Return what a task reports; None if one of its functions chooses the names."""
    written = config.get("metric_list")
    if written:
        metrics = [entry.get("metric") for entry in written if isinstance(entry, Mapping)]
    else:
        metrics = list(_DEFAULT_METRICS.get(config.get("output_type", "generate_until"), ()))
    if any(isinstance(metric, FunctionRef) or callable(metric) for metric in metrics):
        return None
    names = [str(metric) for metric in metrics]
    filters = [each.get("name") for each in config.get("filter_list") or () if isinstance(each, Mapping)] or ["none"]
    return {(metric, str(name)) for metric in names for name in filters}


@reads_names
@rule("PF135", "swapped-letters", severity=Severity.WARNING, family=Family.NAMES)
def swapped_letters(study: Study) -> Iterator[Finding]:
    """Report a task name with swapped letters, compared with the path of its file.

    Why: a search for `translation` does not find `trasnlation`, and a group that spells the name correctly does not
    load.

    Fix: use the spelling of the file or folder, or rename the file or folder.

    Real: lm-evaluation-harness #3824 (20 DarijaBench tasks).
    """
    path = study.task.path
    if path is None:
        return
    known = {word.lower() for part in (*path.parts[-3:-1], path.stem) for word in _WORD.findall(part)}
    letters = {"".join(sorted(word)): word for word in sorted(known)}
    for word in _WORD.findall(study.task.name):
        twin = letters.get("".join(sorted(word.lower())))
        if twin is not None and word.lower() not in known:
            yield finding(
                "two letters are swapped in a word of the task's name",
                word,
                "task",
                do=f"did you mean {twin!r}, as in the path?",
            )


@also("PF131", scope="file")
def member_twice(view: FileView) -> Iterator[Finding]:
    """Report a member that a group lists twice, or a misspelt key of a group."""
    names = _named_members(view)
    for name in [name for name, count in Counter(names).items() if count > 1][:1]:
        yield finding("the group lists a member twice", name, view.yaml.locate(("task",)), do="list each member once")
    for key in view.config if view.file.kind == "group" else ():
        if isinstance(key, str) and key not in GROUP_KEYS and is_misspelt(key, GROUP_KEYS):
            do = did_you_mean(key, GROUP_KEYS) or ""
            yield finding("a key of the group is misspelt", key, view.yaml.locate((key,)), do=do)


@also("PF131", severity=Severity.ERROR, scope="file")
def group_remark(view: FileView) -> Iterator[Finding]:
    """Report a part that lm-eval refuses or ignores in a group."""
    for note, loses_member in view.file.group_notes.items():
        severity = None if loses_member else Severity.WARNING
        if view.index.harness is not None and view.index.harness.reads_early_yaml:
            severity = Severity.INFO  # which has other rules
        message = "lm-eval refuses a member of the group" if loses_member else "lm-eval ignores a part of the group"
        yield finding(message, note, view.yaml.locate(("group",)), severity=severity)
