"""The document that a snapshot stores of rendered instances: prompts, then the requests, then the target.

How answers are read and scored, what code of the task gives to the first answers, and which columns of synthetic docs
the task reads, is the same for all profiles of a task, so one snapshot of a task shows it, before its docs: a reviewer
sees a changed pattern as one changed line, not as one for each profile. It is that of the profile of plain text where
the run has one, otherwise the first one that shows text (`shows_task`). Stop sequences and generation arguments are
part of each request, and shown there. The same snapshot shows how few-shot examples look of a task that is rendered
without any, where its question does not show it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.answers.phrasing_verdicts import score_lines
from pytest_promptfmt.answers.phrasings import CLASSES
from pytest_promptfmt.core.errors import PromptfmtError, UnavailableError
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Request, join
from pytest_promptfmt.core.task import Unset
from pytest_promptfmt.snapshots.changes import FEW_SHOT, SCORES, SCORING, VERSION
from pytest_promptfmt.snapshots.document import DocRecord, Document, Section, SectionEntry
from pytest_promptfmt.snapshots.expected import stored_document
from pytest_promptfmt.snapshots.token_sections import profile_facts, token_sections
from pytest_promptfmt.tasks import columns_read, task_reading

if TYPE_CHECKING:
    from pytest_promptfmt.answers.phrasing_verdicts import Matrix
    from pytest_promptfmt.answers.replaying import Transcript
    from pytest_promptfmt.core.docs import TaskDocs
    from pytest_promptfmt.core.recorded import RecordedScores, ScoredAnswer
    from pytest_promptfmt.core.task import Task
    from pytest_promptfmt.study import ProfileView, Study

COLUMNS: Final = "columns"
"""The title of the section about the columns that a task reads, shown where synthetic docs have all of them."""

_USUAL_DELIMITERS: Final = {"target_delimiter": " ", "fewshot_delimiter": "\n\n"}
_MAX_DEPTH = 20
_MAX_INT_BITS = 4096  # far below the 4300 digits at which Python refuses to write a number
_LONGEST_ARGUMENT = 120
_TOO_MUCH_TEXT = "the docs are very long: use fewer docs in snapshots, or raise time_limit"


def most_informative_profile(profiles: Sequence[Profile]) -> Profile | None:
    """Return the profile whose snapshots show best what changed: one of text, with little else."""
    shown = [profile for profile in profiles if profile.shows_text]
    return next((profile for profile in shown if not profile.is_chat), next(iter(shown), None))


def shows_task(profile: Profile, profiles: Sequence[Profile], *, is_chosen: bool) -> bool:
    """Return whether the snapshot of a profile, one of those of a task, shows the facts about the task itself.

    Where the command line has chosen them, what a chat profile shows does not depend on it.
    """
    return profile is most_informative_profile(profiles) and not (is_chosen and profile.is_chat)


def snapshot_document(seen: ProfileView, *, with_task: bool = False) -> Document:
    """Return the document of a task in one profile; `with_task`, with the facts about the whole task.

    Raises the PromptfmtError that stopped it: code not allowed, docs not found, a template that fails, a text that the
    tokenizer cannot encode, a time limit.
    """
    study = seen.study
    study.require_material()
    profile, tokenizer = seen.load().profile, seen.tokenizer
    task, docs, shots = study.material.task, study.material.docs, study.material.shots
    header = header_facts(task, profile, docs, shots, name=seen.name)
    if tokenizer is not None:
        header |= profile_facts(profile, tokenizer)
    records = study.shared.get(("records", profile.name))
    if records is None:
        records = study.shared["records", profile.name] = _records(seen)
    document = Document(header, records)
    if not with_task:
        return document
    known = study.shared.get("task")
    if known is not None:
        return replace(document, task=known)
    sections, unknown = [*_fewshot_section(study)], None
    columns = columns_read(task, docs.columns) if docs.kind == "synthetic" else {}
    if columns:
        entries = tuple(SectionEntry(f"{key}: {', '.join(names)}") for key, names in columns.items())
        sections.append(Section(COLUMNS, entries=entries))
    try:
        sections.extend(_scoring_sections(study))
        study.shared["task"] = tuple(sections)
    except UnavailableError as error:
        unknown = error
    except PromptfmtError:
        pass  # reported where answers are tried
    return replace(document, task=tuple(sections), unknown=unknown)


def _records(seen: ProfileView) -> tuple[DocRecord, ...]:
    """Return the rendered docs with their tokens; raises as `snapshot_document`."""
    instances = seen.render()
    study, profile, tokenizer = seen.study, seen.profile, seen.tokenizer
    more: Callable[[Instance], Iterable[Section]] = lambda _instance: ()  # noqa: E731
    if tokenizer is not None and seen.pairs is not None:
        task = study.material.task
        what = f"encoding the prompts of {task.id} with {tokenizer.name}"
        with time_limit(study.settings.time_limit, what, task.position("doc_to_text"), hint=_TOO_MUCH_TEXT):
            more = token_sections(tokenizer, profile, instances, seen.pairs)
    return make_document({}, instances, more, shows_text=profile.shows_text).docs


def _fewshot_section(study: Study) -> Iterator[Section]:
    """Yield the first doc in plain text with few-shot examples, where the run shows none and they need to be seen.

    They need not where they are made of the question's own templates, with lm-eval's default delimiters,
    and all around them is as without. Errors in them are PF808.
    """
    task, shots = study.material.task, study.material.task.fewshot
    if study.shots or not study.with_shots or not study.with_shots[0].prompts:
        return
    shown, alone = study.with_shots[0].prompts[0], study.instances[0].prompts[0]
    own = {key: getattr(shots, key) for key in _USUAL_DELIMITERS}
    delimiters = {key: getattr(task, key) if isinstance(text, Unset) else text for key, text in own.items()}
    if (
        delimiters != _USUAL_DELIMITERS
        or any((span.origin.key or "").startswith("fewshot_config.") for span in shown.spans)
        or join(span for span in shown.spans if span.origin.shot is None) != alone.text
    ):
        yield Section(FEW_SHOT, shown.text)


def _scoring_sections(study: Study) -> Iterator[Section]:
    lines = task_reading(study.material.task).items()
    if lines:
        yield Section(SCORING, entries=tuple(SectionEntry(f"{name}: {line}") for name, line in lines))
    scores = tuple(map(SectionEntry, score_lines(study)))
    if scores:
        yield Section(SCORES, entries=scores)


def header_facts(task: Task, profile: Profile, docs: TaskDocs, shots: int = 0, *, name: str = "") -> dict[str, str]:
    """Return the stable facts of a snapshot's header, in their order; `name` is what the run calls the profile.

    They have the arguments that the profile gives its chat template: a name like `qwen3` does not show them.
    """
    facts, version = {"task": task.id, "profile": name or profile.name}, task.metadata.get("version")
    if profile.is_chat and profile.template_args:
        facts["template arguments"] = ", ".join(
            f"{key}={_shortened(to_json(profile.template_args[key]))}" for key in sorted(profile.template_args)
        )
    facts["output"] = task.output_type
    if version is not None:
        facts[VERSION] = _shortened(str(version))
    facts["docs"] = docs.origin
    if shots:
        facts["shots"] = f"{shots}, out of {docs.fewshot_origin}"
    return {**facts, **task.assembly.facts}


def make_document(
    header: Mapping[str, str],
    instances: Iterable[Instance],
    more: Callable[[Instance], Iterable[Section]] = lambda _instance: (),
    *,
    shows_text: bool = True,
) -> Document:
    """Return the document of rendered docs; `more` gives further sections of a doc (tokens), put at its end.

    Without `shows_text` there are no others: the text is in another snapshot.
    """
    return Document(
        dict(header),
        tuple(
            DocRecord(instance.index + 1, (*(_sections(instance) if shows_text else ()), *more(instance)))
            for instance in sorted(instances, key=lambda instance: instance.index)
        ),
    )


def to_json(value: Any) -> str:
    """Return `value` as JSON in one line; other types are shown by their name, sets in sorted order."""
    return json.dumps(_plain(value, _MAX_DEPTH), ensure_ascii=False)


def _sections(instance: Instance) -> Iterator[Section]:
    count = len(instance.prompts)
    if instance.heading:
        yield Section(instance.heading)
    for index, prompt in enumerate(instance.prompts):
        yield Section("prompt" if count == 1 else f"prompt {index + 1} of {count}", prompt.text)
        yield from _request_sections([request for request in instance.requests if request.prompt == index])
    known = range(count)
    apart = [request for request in instance.requests if request.prompt not in known]
    for context, requests in groupby(apart, key=lambda request: request.context):
        if context:
            yield Section("context", context)
        yield from _request_sections(tuple(requests), suffix=" without context" if context == "" else "")
    is_shown = any(each.gold or each.kind == "loglikelihood_rolling" for each in instance.requests)
    if instance.target is not None and not is_shown:
        yield Section("target", entries=(SectionEntry(to_json(instance.target)),))
    for title, lines in instance.notes:
        yield Section(title, entries=tuple(SectionEntry(to_json(line)) for line in lines))


def _request_sections(requests: Sequence[Request], suffix: str = "") -> Iterator[Section]:
    for kind, group in groupby(requests, key=lambda request: request.kind):
        if kind == "loglikelihood":
            yield Section(
                f"continuations{suffix}",
                entries=tuple(SectionEntry(to_json(request.continuation), request.gold) for request in group),
            )
        elif kind == "generate_until":
            for request in group:
                yield Section(f"generate{suffix}", entries=_settings(request.generation_kwargs or {}))
        else:
            for request in group:
                yield Section("rolling text", request.continuation or "")


def _shortened(argument: str) -> str:
    """Return an argument shortened for a header line; the digest of a long one (tools) shows when it changes."""
    if len(argument) <= _LONGEST_ARGUMENT:
        return argument
    digest = sha256(argument.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{argument[:_LONGEST_ARGUMENT]}… ({len(argument):,} characters, digest {digest})"


def _settings(generation_kwargs: Mapping[str, Any]) -> tuple[SectionEntry, ...]:
    """Return one entry per setting, the stop sequences first, the rest as written."""
    names = sorted(generation_kwargs, key=lambda name: name != "until")
    return tuple(
        SectionEntry(f"{name if isinstance(name, str) and name.isidentifier() else to_json(name)} {to_json(value)}")
        for name, value in ((name, generation_kwargs[name]) for name in names)
    )


def _plain(value: Any, depth: int) -> Any:
    # Values come from YAML tags and user functions: they can be anything, and nothing may stop a snapshot.
    if value is None or isinstance(value, (str, bool)):
        return value
    try:
        if isinstance(value, float):
            return float(value)
        if isinstance(value, int):
            return int(value) if value.bit_length() <= _MAX_INT_BITS else hex(value)
        if depth == 0:
            return "…"
        if isinstance(value, Mapping):
            return {_key(key): _plain(item, depth - 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [_plain(item, depth - 1) for item in value]
        if isinstance(value, (set, frozenset)):
            return sorted((_plain(item, depth - 1) for item in value), key=json.dumps)
        if type(value).__module__ == "numpy":
            return _plain(value.tolist(), depth - 1)
    except Exception:
        return _type_name(value)
    return _type_name(value)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return json.dumps(key) if key is None or isinstance(key, (bool, int, float)) else _type_name(key)


def _type_name(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


# -- scoring: verdicts on phrasings and recordings, scores of recorded answers ---------------------------------------

EXTRACTION = "extraction"
"""Takes the place of a profile in the name of the snapshot file."""

RECORDING = "recording"
"""The same for a recording, followed by its name."""

RECORDED = "recorded"
"""The same for recorded answers."""

_VERDICTS = "verdicts"
_LONGEST_QUOTE = 120


def extraction_document(header: Mapping[str, str], matrix: Matrix) -> Document:
    """Return the document of a verdict matrix; rows that fail by the default rules are marked."""
    return Document(dict(header), (DocRecord(1, tuple(_matrix_sections(matrix))),))


def recording_document(header: Mapping[str, str], transcript: Transcript) -> Document:
    """Return the document of a replayed recording: totals, a line for each record, and those that cannot be used."""
    sections = {
        "filters": transcript.pipelines,
        "totals": transcript.totals(),
        _VERDICTS: transcript.verdicts(),
        "bad records": transcript.bad(),
    }
    made = (Section(title, entries=tuple(map(SectionEntry, lines))) for title, lines in sections.items() if lines)
    return Document(dict(header), (DocRecord(1, tuple(made)),))


def recorded_document(header: Mapping[str, str], scores: RecordedScores) -> Document:
    """Return the document of a file's recorded completions."""
    means = [SectionEntry(f"{name} {mean:.6g}") for name, mean in scores.means.items()]
    summary = [SectionEntry(f"completions {scores.count}")]
    if scores.not_mapped:
        summary.append(SectionEntry(f"none of the labels {scores.not_mapped}"))
    sections = [Section("scores", entries=(*summary, *means))]
    if scores.first:
        sections.append(
            Section("completions", entries=tuple(SectionEntry(_answer_line(each)) for each in scores.first))
        )
    return Document(dict(header), (DocRecord(1, tuple(sections)),))


def verdict_lines(document: Document) -> dict[str, str]:
    """Return the verdicts of a recording's document: the record's number (or those of a block) to its line."""
    lines = (entry.text.partition("  ") for entry in _entries(document, _VERDICTS.__eq__))
    return {number: verdicts for number, _, verdicts in lines}


def accepted_failures(path: str) -> Mapping[str, Sequence[str]]:
    """Return the cells of each phrasing that an accepted matrix marks as failing."""
    document = stored_document(Path(path))
    rows = _entries(document, lambda title: title in CLASSES) if document is not None else ()
    failed = (re.split(r" {2,}", entry.text) for entry in rows if entry.marked)
    return {name: cells for name, *cells in failed}


def _entries(document: Document, is_meant: Callable[[str], bool]) -> Iterator[SectionEntry]:
    """Yield the entries of the sections of docs whose titles are meant."""
    sections = (section for doc in document.docs for section in doc.sections if is_meant(section.title))
    return (entry for section in sections for entry in section.entries)


def _matrix_sections(matrix: Matrix) -> Iterator[Section]:
    yield Section("answers", entries=(SectionEntry(matrix.answers or matrix.nothing),))
    yield Section("filters", entries=tuple(SectionEntry(name) for name in matrix.pipelines))
    for kind, rows in groupby(matrix.rows, key=lambda row: row.kind):
        lines = ((row, "  ".join(f"{verdict:<18}" for verdict in row.verdicts)) for row in rows)
        entries = (SectionEntry(f"{row.id:<24}  {cells}".rstrip(), marked=row.failed) for row, cells in lines)
        yield Section(kind, entries=tuple(entries))


def _answer_line(each: ScoredAnswer) -> str:
    name = f"{each.number + 1}" + (f" {each.id}" if each.id and each.id.isprintable() else "")
    if each.completion is None:
        read = f"{_quoted(each.answer or '')} comes first"
    else:
        answer = "none of the labels" if each.answer is None else f"read as {_quoted(each.answer)}"
        read = f"{_quoted(each.completion)} {answer}"
    golds = " or ".join(_quoted(gold) for gold in each.golds)
    scores = ", ".join(f"{metric} {score:.6g}" for metric, score in each.scores.items())
    right = f"right is {golds}" if golds else "none is marked as right"
    return f"{name}: {read}, {right}: {scores}"


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…", ensure_ascii=False)
