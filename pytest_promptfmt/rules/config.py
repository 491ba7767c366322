"""Rules about the configuration: lost keys, values that YAML misreads, comments, and task files of forks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import Position, did_you_mean
from pytest_promptfmt.core.task import FunctionRef, leaves
from pytest_promptfmt.core.yaml_parser import MAX_BYTES
from pytest_promptfmt.rules import Family, FileView, Finding, Severity, Study, rule
from pytest_promptfmt.rules.fixes import Fix, anything, respelt
from pytest_promptfmt.rules.rule_registry import also, reads_names
from pytest_promptfmt.rules.rule_views import finding, pattern, words
from pytest_promptfmt.study.layout import layout_of
from pytest_promptfmt.systems import known_systems
from pytest_promptfmt.tasks import (
    LMMS_EVAL_KEYS,
    Harness,
    harness_of,
    names_its_sets,
    shot_split,
    unknown_keys,
    value_kinds,
)

_OWN_KEYS: Final[Sequence[str]] = data_table("rules")["own_keys"].split()
_BOOLEANS: Final = words("boolean_keys")
_NUMBERS: Final = words("number_keys")
_USUAL_SPLITS: Final = ("train", "validation", "test", "dev", "val", "valid")
_CUT: Final = pattern("config", "cut")
_FOLD: Final = re.compile(r"([ \t]*)(description|doc_to_text|doc_to_target):[ \t]*>[-+0-9]*[ \t]*(?:#.*)?")


@runtime_checkable
class HasMetadataKeys(Protocol):
    """A system whose tasks have further keys below `metadata.promptfmt`."""

    metadata_keys: tuple[str, ...]


def _without_earlier(_view: FileView, finding: Finding) -> Fix | None:
    return Fix(position=finding.position, action="earlier") if finding.position is not None else None


@rule("PF101", "repeated-key", severity=Severity.ERROR, family=Family.CONFIG, scope="file", fix=_without_earlier)
def repeated_key(view: FileView) -> Iterator[Finding]:
    """Report a key that appears twice in one mapping of a file.

    Why: YAML silently keeps the last value, and strict parsers refuse the file. If you edit the first value, nothing
    changes. If both values are equal, the finding is a warning.

    Fix: remove one of the two keys.

    Real: lm-evaluation-harness #1769 (ifeval).
    """
    for part in view.yaml.parts:
        for key, position, is_same in (*part.repeated, *part.repeated_inside):
            how = " with the same value" if is_same else ", and only the last value counts"
            severity = Severity.WARNING if is_same else None
            yield finding(f"the key is repeated{how}", str(key), position, severity=severity)


def _in_quotes(study: Study, finding: Finding) -> Fix | None:
    position = study.task.position(*finding.keys)
    return None if position is None else Fix(position=position, action="quotes", keeps=anything)


@rule("PF102", "not-text", severity=Severity.ERROR, family=Family.CONFIG, fix=_in_quotes)
def not_text(study: Study) -> Iterator[Finding]:
    """Report choices that YAML does not read as text: `no`, `012`, `2024-01-01`.

    Why: YAML 1.1 reads the words `yes`, `no`, `on` and `off` as booleans, and `012` as the number ten. With such a
    choice, lm-eval fails or scores the word `True`.

    Fix: put the choice in quotes.

    Real: the Norway problem of YAML, which affects every yes/no task without quotes.
    """
    choices = study.written.doc_to_choice
    values = choices.items() if isinstance(choices, dict) else enumerate(choices) if isinstance(choices, list) else ()
    for number, choice in values:
        if not isinstance(choice, str):
            message = f"YAML reads a choice without quotes as {type(choice).__name__}, not as text"
            yield finding(message, str(choice), ("doc_to_choice", number))


@rule("PF103", "overwritten-by-format", severity=Severity.WARNING, family=Family.CONFIG)
def overwritten_by_format(study: Study) -> Iterator[Finding]:
    """Report a key that has no effect because a format or the task's `doc_to_text` overrides it.

    Why: If a task has `formats:`, the format sets the layout. The task's own `target_delimiter` and `doc_to_text` then
    have no effect. If a task has `template:` and `doc_to_text`, `doc_to_text` overrides the template.

    Fix: remove the key, or set it inside `formats`.

    Real: lm-evaluation-harness's proposal for formats does not define whether the format's or the task's own
    key wins.
    """
    for overwritten in getattr(study.task, "overwritten", ()):
        what, at = f"{overwritten.key} has no effect, because the task's format sets it", overwritten.position
        do = "remove the key, or set it inside formats"
        yield finding(what, str(overwritten.written), overwritten.key, do=do, position=at)
    template = getattr(study.task, "template", None)
    written = study.given.config.get("doc_to_text")
    if template is not None and written is not None:
        message = f"the task's doc_to_text replaces the prompt of template {template.template_type!r}"
        yield finding(message, str(written), "template", do="keep either template: or doc_to_text")


@rule("PF105", "unseen-suffix", severity=Severity.WARNING, family=Family.CONFIG, scope="file")
def unseen_suffix(view: FileView) -> Iterator[Finding]:
    """Report a task in a file that ends in `.yml`.

    Why: lm-eval 0.4.13 reads only `*.yaml`. This plugin tests the task, but lm-eval cannot run it.

    Fix: rename the file to `.yaml`.

    Real: lm-evaluation-harness before #1216 (siqa/default.yml).
    """
    if view.path.suffix == ".yml":
        yield finding("lm-eval ignores files that end in .yml", view.path.name)


@rule("PF106", "unused-generation-arguments", severity=Severity.INFO, family=Family.CONFIG)
def unused_generation_arguments(study: Study) -> Iterator[Finding]:
    """Report `generation_kwargs` of a task that generates no text.

    Why: `generation_kwargs` are only used with `output_type: generate_until`. In other tasks they mislead readers.

    Fix: remove `generation_kwargs`, or set `output_type: generate_until`.

    Real: several multiple-choice tasks of lm-evaluation-harness 0.4.13.
    """
    if not study.generates and study.task.generation_kwargs:
        saw = str(dict(study.task.generation_kwargs))
        yield finding("generation_kwargs have no effect: the task generates no text", saw, "generation_kwargs")


def _known_own_key(study: Study, finding: Finding) -> Fix | None:
    return respelt(study, finding, _own_keys(study), action="key")


def _own_keys(study: Study) -> tuple[str, ...]:
    system = known_systems().get(study.task.system)
    return (*_OWN_KEYS, *(system.metadata_keys if isinstance(system, HasMetadataKeys) else ()))


@rule("PF107", "unknown-own-key", severity=Severity.ERROR, family=Family.CONFIG, fix=_known_own_key)
def unknown_own_key(study: Study) -> Iterator[Finding]:
    """Report an unknown key of `metadata.promptfmt`.

    Why: lm-eval accepts anything under `metadata`, so nothing else reports the mistake.

    Fix: use a known key, such as `docs`, `fields`, `ignore`, `normalize` or `profiles`.

    Real: if `docs` is misspelled, the task is tested with synthetic docs.
    """
    known = _own_keys(study)
    for key in study.task.own_metadata:
        if key not in known:
            do = did_you_mean(str(key), known) or f"use one of {', '.join(known)}"
            yield finding("unknown key of metadata.promptfmt", str(key), ("metadata", "promptfmt", str(key)), do=do)


@reads_names
@rule("PF116", "docs-of-another-split", severity=Severity.WARNING, family=Family.CONFIG)
def docs_of_another_split(study: Study) -> Iterator[Finding]:
    """Report a docs file for a split that the task does not evaluate.

    Why: A task that evaluates its `test_split` never reads `arc.docs.validation.jsonl`. The task is then tested with
    synthetic docs, although its author expects the rows of that file.

    Fix: rename the file to `<task>.docs.<split>.jsonl` with the evaluated split, or to `<task>.docs.jsonl` for any
    split.

    Real: datasets whose test rows are not public.
    """
    task, path = study.task, study.task.path
    if path is None or study.docs is None or study.docs.kind != "synthetic":
        return
    data = task.dataset
    own = (data.training_split, data.validation_split, data.test_split, data.fewshot_split)
    splits = {*_USUAL_SPLITS, *(split for split in own if split)} - {data.evaluation_split, shot_split(task)}
    folder = study.settings.docs_folder(path)
    for place in (path.parent, *([folder] if folder is not None else [])):
        for stem in dict.fromkeys((task.name, path.stem)):
            for split in sorted(splits):
                if gate.is_there(place / f"{stem}.docs.{split}.jsonl"):
                    saw = f"{stem}.docs.{split}.jsonl, but the task evaluates {data.evaluation_split!r}"
                    yield finding(
                        "this file of docs is not used, because its split is not evaluated", saw, "test_split"
                    )
                    return


@rule("PF110", "comment-cuts-text", severity=Severity.ERROR, family=Family.CONFIG, scope="file")
def comment_cuts_text(view: FileView) -> Iterator[Finding]:
    r"""Report a text that YAML cuts at ` #`, because a comment begins there.

    Why: YAML reads `description: Write the number after #### at the end.` as `Write the number after`. It reads
    `regex_pattern: #### (\d+)` as an empty value. No parser reports this.

    Fix: put the text in quotes.

    Real: answers after `####` (GSM8K), Markdown headings, and names of channels such as `#general`.
    """
    own = view.yaml.parts[-1].values
    for number, line in enumerate(_lines(view), start=1):
        found = _CUT.fullmatch(line)
        if found is None:
            continue
        key, kept, lost = found[1], (found[2] or "").strip(), found[3]
        if line.startswith(key) and (own.get(key) or "") != kept:
            continue  # a line of a longer text
        if not kept and not lost.startswith("##"):
            continue
        yield finding(
            "YAML reads the end of a text as a comment",
            f"the text ends after {kept!r}; {lost!r} is a comment",
            Position(view.path, number, line.index(lost) + 1),
        )


def _lines(view: FileView) -> list[str]:
    """Return the lines of the file itself, without its includes; none if it cannot be read any more."""
    try:
        return _lines_of(view.path, view.yaml.parts[-1].stamp)
    except OSError:
        return []


@lru_cache(maxsize=4)
def _lines_of(path: Path, _stamp: tuple[int, int]) -> list[str]:
    return gate.read_bytes(path, limit=MAX_BYTES).decode("utf-8", "replace").splitlines()


def _is_element(line: str) -> bool:
    """Return whether a line of a template begins with the label of an option, or of a column."""
    layout = layout_of(line)
    return any(one.space and one.text for one in layout.options) or any(
        one.value[:2] in ("", "{{") for one in layout.labels
    )


@also("PF110", scope="file")
def folded_lines(view: FileView) -> Iterator[Finding]:
    """Report a folded text (`>`) that joins the lines of options or labels into one line."""
    lines = _lines(view)
    for number, line in enumerate(lines):
        opened = _FOLD.fullmatch(line)
        if opened is None:
            continue
        block = []
        for text in lines[number + 1 :]:
            if text.strip() and len(text) - len(text.lstrip()) <= len(opened[1]):
                break
            block.append(text)
        depth = min((len(text) - len(text.lstrip()) for text in block if text.strip()), default=0)
        joined = [
            after.strip()
            for before, after in pairwise(block)
            if before.strip() and before[depth : depth + 1].strip() and after[depth : depth + 1].strip()
            if _is_element(after.strip())
        ]
        if len(joined) > 1:
            saw = " ".join(joined)[:80]
            yield finding(
                "`>` joins the following lines of options or labels into one line",
                saw,
                Position(view.path, number + 1, 1),
            )


@rule("PF115", "quoted-value", severity=Severity.WARNING, family=Family.CONFIG)
def quoted_value(study: Study) -> Iterator[Finding]:
    """Report a boolean or number that is text, because it is in quotes.

    Why: python treats the text `"false"` as true. So `do_sample: "false"` turns sampling on, and `ignore_case: "false"`
    ignores letter case. The same is true of any other word, such as `flase`. The text `"0.0"` as a temperature is not
    equal to 0. If the text is `"false"`, the finding is an error.

    Fix: remove the quotes.

    Real: google/BIG-bench #374 (`append_choices_to_input: "false"`).
    """
    entries: list[tuple[tuple[str | int, ...], Any]] = [(("generation_kwargs",), study.written.generation_kwargs)]
    entries += [((), {key: study.config.get(key) for key in ("should_decontaminate", "unsafe_code")})]
    entries += [(("metric_list", number), entry) for number, entry in enumerate(study.written.metric_list or ())]
    for keys, values in entries:
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if _is_quoted(key, value):
                saw = f'{key}: "{value}"'
                severity = Severity.ERROR if value.strip().casefold() == "false" else None
                yield finding(
                    "a boolean or number is text, because it is in quotes", saw, (*keys, key), severity=severity
                )
            elif key in _BOOLEANS and isinstance(value, str):
                do = did_you_mean(value, ("true", "false")) or "write true or false"
                yield finding("this word is not a boolean", f"{key}: {value}", (*keys, key), do=do)


def _is_quoted(key: Any, value: Any) -> bool:
    if not isinstance(value, str):
        return False
    is_boolean = key in _BOOLEANS and value.strip().casefold() in ("true", "false")
    return is_boolean or (key in _NUMBERS and re.fullmatch(r"-?\d+(?:\.\d+)?", value.strip()) is not None)


@rule("PF117", "unknown-key", severity=Severity.WARNING, family=Family.CONFIG, scope="file")
def unknown_key(view: FileView) -> Iterator[Finding]:
    """Report a key of a task that lm-eval does not have.

    Why: lm-eval refuses the task, and silently drops its file. This plugin tests the prompts without the key. A fork of
    lm-eval may have the key. Therefore the finding is an info if lmms-eval or the `TaskConfig` of the harness has the
    key. The harness is the lm-eval checkout that contains the file, or otherwise the installed lm-eval. It is also an
    info if there is no harness to compare with, and for a key in `fewshot_config` next to a sampler class: in early
    releases of lm-eval, such a class can use the key.

    Fix: remove the key, or move it under `metadata` if it is a setting of your own.

    Real: lmms-eval's `doc_to_visual` and `lmms_eval_specific_kwargs`, in 700 of its files.
    """
    if view.file.kind != "task":
        return
    keys = list(unknown_keys(view.config))
    harness = view.index.harness if keys else None
    for at in keys:
        key = at[-1]
        is_read = len(at) > 1 and isinstance(view.config[at[0]].get("sampler"), FunctionRef)
        is_of_fork = is_read or harness is None or not harness.task_keys or key in {*harness.task_keys, *LMMS_EVAL_KEYS}
        message = "this key exists only in forks of lm-eval" if is_of_fork else "lm-eval does not have this key"
        severity = Severity.INFO if is_of_fork else None
        do = did_you_mean(key, value_kinds()) or ""
        yield finding(message, key, view.yaml.locate(at), do="" if is_of_fork else do, severity=severity)


@rule("PF137", "group-of-a-task", severity=Severity.WARNING, family=Family.NAMES, scope="file")
def group_of_a_task(view: FileView) -> Iterator[Finding]:
    """Report a task with the key `group`, which lm-eval 0.4.4 renamed to `tag`.

    Why: lm-eval 0.4.13 treats such a file as a group without members, and silently drops the task. Releases up to
    0.4.11 load the task. In a checkout of such a release, the finding is an info.

    Fix: write `tag:` instead of `group:`.

    Real: lm-evaluation-harness's storycloze_2018, and task folders of forks of 0.4.3.
    """
    if names_its_sets(view.config):
        message, severity = "lm-eval 0.4.13 drops a task that has the key `group`", _severity(view.index.harness)
        yield finding(message, str(view.config["group"]), view.yaml.locate(("group",)), severity=severity)


@also("PF137", scope="file")
def early_yaml(view: FileView) -> Iterator[Finding]:
    """Report a file that is included twice, or a `!function` with a path. lm-eval 0.4.12 and later support neither."""
    paths = [value for value in leaves(view.config) if isinstance(value, FunctionRef) and value.is_path]
    if not paths and not view.yaml.has_release_includes:
        return
    harness = view.index.harness  # which makes it an input of the outcome
    harness = harness_of(view.yaml.path.parent)
    if harness is not None and not harness.reads_early_yaml:
        return  # reading the file or its code fails
    severity = _severity(harness)
    for position in view.yaml.early:
        message = "lm-eval 0.4.12 and later drop a task file that includes the same file twice"
        yield finding(message, "", position, severity=severity)
    for each in dict.fromkeys(paths):
        message = "lm-eval 0.4.12 and later do not find a `!function` that names a path"
        do = "copy the module into the folder of the task"
        yield finding(message, str(each), each.position, severity=severity, do=do)


def _severity(harness: Harness | None) -> Severity | None:
    return Severity.INFO if harness is not None and harness.reads_early_yaml else None
