"""The lines that the terminal shows before and after a run; colours and sections are pytest's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Final

from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.core.release import LATEST, OLDEST
from pytest_promptfmt.core.text import printable
from pytest_promptfmt.results.baseline import baseline_lines
from pytest_promptfmt.results.clusters import SEVERITIES, FindingGroup, FindingPlace
from pytest_promptfmt.results.run_result import RunResult, used_globs
from pytest_promptfmt.results.wording import (
    LINES,
    LISTED_BY_V,
    NAMES,
    PLACES,
    archetype_note,
    counted,
    first_of,
    listed,
)
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.tasks import found_release

_OF_TEMPLATES: Final = (".jinja", ".json", ".gguf")
SHOWN_CAUSES: Final = 10
"""How many causes of findings are shown without -v where a run has more: those that matter most."""


def header_lines(settings: Settings) -> list[str]:
    """Return the lines for pytest's header: what is rendered, and whose Python code may run."""
    allowed = ", ".join(["the rootdir", *(display_path(path) for path in settings.allow_code)])
    code = "Python code is not run" if settings.no_code else f"Python code may run below {allowed}"
    if settings.no_code and settings.rules:
        code += f"; rules of your own are not loaded from {', '.join(display_path(path) for path in settings.rules)}"
    profiles = ", ".join(settings.run_id(profile.name) for profile in settings.profiles)
    lines = [f"promptfmt: profiles {profiles}; {code}"]
    notes = (archetype_note(archetypes_of(settings)), release_note(settings))
    lines += [f"promptfmt: {each}" for each in notes if each]
    names = dict.fromkeys(profile.tokenizer for profile in settings.profiles if profile.tokenizer is not None)
    if names:
        from pytest_promptfmt.profiles.tokenizer_loader import is_first_use  # only where there is a tokenizer

    first = [name for name in names if is_first_use(name)]
    if first:
        lines.append(f"promptfmt: {', '.join(first)} will be converted before the first use, which may take minutes")
    return lines


def release_note(settings: Settings) -> str:
    """Return a line about the release of lm-eval that is followed, "" where its prompts are those of 0.4.13.

    If another one is set than that around the rootdir or installed, which built-in files are read from, it names both.
    """
    release, found = settings.release, settings.lm_eval_found
    place = f", {found}" if found else ""
    around = None if found else found_release(settings.rootdir)
    files = ""
    if around is not None and around[0] != release.version:
        files = f"; the built-in tasks come from lm-eval {around[0]}, {around[1]}"
    if not release.is_compared:
        nearest = OLDEST if release.is_older else LATEST.version
        other = f"{release.version} ({found})" if found else release.version
        what = (
            "in few-shot examples, delimiters or default generation arguments; to compare them, use `promptfmt verify`"
        )
        return f"prompts are made as in lm-eval {nearest}; the prompts of lm-eval {other} may differ {what}{files}"
    differs = files or release.differs_from(LATEST)
    return f"prompts are made as in lm-eval {release.version}{place}{files}" if differs else ""


def archetypes_of(settings: Settings) -> tuple[str, ...]:
    """Return the names of the run's profiles that are built-in approximations."""
    return tuple(profile.name for profile in settings.profiles if profile.is_archetype)


def sections(
    result: RunResult, *, verbosity: int = 0, more: Iterable[str] = (), findings: Iterable[str] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Yield the closing sections, title and lines, without empty ones.

    `more` are the lines that end the first, about the files that were written; `findings` begin the last.
    """
    titled = (
        ("prompt formats", [*_summary(result, verbosity), *more]),
        ("prompt model", _figures(result, verbosity)),
        ("prompt findings", [*findings, *_globs(result)]),
    )
    yield from ((title, lines) for title, lines in titled if lines)


def _summary(result: RunResult, verbosity: int) -> Iterator[str]:
    """Yield each distinct problem once, with how often and where; nothing when all was well."""
    yield from result.unmatched
    clusters = result.unexplained
    shown, names = (len(clusters), None) if verbosity > 0 else (LINES, NAMES)
    for cluster in clusters[:shown]:
        yield cluster.line
        if len(cluster.members) > 1:
            yield f"    {listed(cluster.tasks, names)}"
        yield from (f"    {profile}: {tokens}" for profile, tokens in cluster.tokens.items())
    if len(clusters) > shown:
        yield f"… and {len(clusters) - shown:,} more problems; -v lists them all"
    for keys, tasks in result.unseen.items():
        told = f"images or audio of {keys} are not tested, only the text next to them, in {counted(len(tasks), 'task')}"
        yield f"{told}: {listed(tasks, names)}"
    for reason, tasks in sorted(result.skipped.items(), key=lambda entry: -len(entry[1])):
        remedy = result.remedies.get(reason)
        yield f"skipped, {counted(len(tasks), 'test')}: {reason}" + (f"; {remedy}" if remedy else "")
        causes = [f"{cause}, {counted(len(names), 'task')}" for cause, names in result.skip_causes[reason].items()]
        yield from first_of(causes, None if verbosity > 0 else PLACES, "    ")
    if result.accept_command:
        yield f"accept all changes: {result.accept_command}"
    if result.baseline is not None:
        yield from baseline_lines(result.baseline, verbosity=verbosity)
    yield from since_lines(result)
    yield from result.notes


def since_lines(result: RunResult) -> Iterator[str]:
    """Yield how many causes are new since the earlier run, and which are gone; nothing where none is named."""
    if result.earlier is None:
        return
    now = [cause.identity for cause in result.causes.values()]
    new, gone = sum(map(result.is_new, now)), sorted(result.earlier.difference(now))
    yield f"compared with the earlier run: {counted(new, 'new problem')}, {len(gone):,} gone"
    yield from first_of([f"gone: {' '.join(identity)}" for identity in gone], LINES)


def _globs(result: RunResult) -> Iterator[str]:
    unused = [glob for glob, is_used in used_globs(result.outcomes).items() if not is_used]
    for what, globs in (("ignores any finding", unused), ("matches any file", result.unmatched_globs)):
        yield from (f"promptfmt_per_file_ignores: the line {glob!r} no longer {what}; remove it" for glob in globs)


def _figures(result: RunResult, verbosity: int) -> list[str]:
    """Return the table about a model as aligned lines; empty when none was asked."""
    rows = [dict(outcome.figures) for outcome in result.outcomes if outcome.figures]
    if not rows:
        return []
    columns = list(rows[0])
    cells = [columns, *([row.get(column, "") for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if number < 2 else cell.rjust(width)  # names, then figures
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    return [*first_of(lines, None if verbosity > 0 else LINES + 1, note=f" rows{LISTED_BY_V}")]


def finding_lines(
    groups: Iterable[FindingGroup],
    *,
    is_verbose: bool = False,
    result: RunResult | None = None,
    above: Container[tuple[str, str, str]] = (),
) -> Iterator[str]:
    """Yield each cause with an excerpt and the fix, those first that matter most to the score, and the totals.

    Of many causes the first are shown, then how often each rule reported something. Causes that explain failures of
    `result` come before the others, each with those. Infos are among them only where they were selected. The excerpt
    and the fix of causes that are shown in full `above` are left out.
    """
    explaining = {id(group) for group in result.explained.values()} if result is not None else set[int]()
    ordered, here = sorted(groups, key=lambda group: (id(group) not in explaining, group.rank)), Path.cwd()
    shown = ordered if is_verbose else ordered[:SHOWN_CAUSES]
    for group in shown:
        where = group.places[0].at(here) if group.places else ""
        yield printable(f"{where or group.where}: {group.headline}")
        most = None if is_verbose else PLACES
        yield from map(printable, cause_lines(group, here, most, is_above=group.cluster in above))
        for cluster in result.explained_by(group) if result is not None else ():
            yield printable(f"  explains: {cluster.line}")
    if len(shown) < len(ordered):
        yield f"… and {len(ordered) - len(shown):,} more causes{LISTED_BY_V}; by rule:"
        yield from (f"  {line}" for line in statistics_lines(ordered))
    if ordered:
        yield totals(ordered)


def statistics_lines(groups: Iterable[FindingGroup]) -> Iterator[str]:
    """Yield how often each rule reported something, the most frequent first: `12 PF201 doubled-whitespace`."""
    counts = Counter[tuple[str, str, str]]()
    for group in groups:
        counts[group.code, group.name, group.mark] += group.count
    width = max((len(str(count)) for count in counts.values()), default=0)
    for (code, name, mark), count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        yield f"{count:>{width}} {code} {name}{mark}"


def totals(groups: Iterable[FindingGroup]) -> str:
    """Return how many findings there are of each severity, how many can be fixed, and where they are explained."""
    counts: Counter[str] = Counter()
    fixable = 0
    for group in groups:
        counts[group.severity] += group.count
        fixable += group.count if group.is_fixable else 0
    found = ", ".join(counted(counts[severity], severity) for severity in SEVERITIES if counts[severity])
    fix = f"; try `promptfmt fix` for the {fixable:,} marked [*]" if fixable else ""
    return f"{found}{fix}; details: `promptfmt explain CODE`"


def cause_lines(group: FindingGroup, rootdir: Path, most: int | None, *, is_above: bool = False) -> Iterator[str]:
    """Yield what was seen in each folder, the fix, and where the mistake is: tasks, profiles, other places.

    The only excerpt and the fix of a cause that `is_above` in full are left out.
    """
    seen = [*excerpts(group, most)]
    yield from seen if len(seen) > 1 or not is_above else ()
    if not is_above:
        yield f"  do: {group.do}"
    differing: dict[str, FindingPlace] = {}
    for place in group.places:
        if place.do not in ("", group.do):
            differing.setdefault(place.do, place)
    for do, place in [*differing.items()][:most]:
        yield f"  do at {place.at(rootdir) or ', '.join(place.tasks)}: {do}"
    others = [place.at(rootdir) for place in group.places[1:]]
    names = f": {', '.join(group.tasks)}" if most is None else ""
    # Files of chat templates are no tasks for a reader.
    is_of_templates = group.code.startswith("PF4") and all(each.file.endswith(_OF_TEMPLATES) for each in group.places)
    found = [] if group.concerns_profiles or is_of_templates else [counted(len(group.tasks), "task") + names]
    if group.profiles:
        found.append(f"profile{'s' if len(group.profiles) > 1 else ''} {listed(group.profiles, most)}")
    where = [f"in {', '.join(found)}"] if found and (len(group.tasks) > 1 or others or group.profiles) else []
    if others:
        where.append(f"also at {listed(others, most)}")
    if where:
        yield f"  {'; '.join(where)}"


def excerpts(group: FindingGroup, most: int | None) -> Iterator[str]:
    """Yield the text that was seen, one for each folder with another text."""
    seen: dict[str, str] = {}
    for place in group.places:
        folder = display_path(place.file).rpartition("/")[0] or "."
        if place.saw and place.saw not in seen.values():
            seen.setdefault(folder, place.saw)
    shown = [*seen.items()][:most] if group.places else [("", group.saw)] * bool(group.saw)
    for folder, saw in shown:
        yield f"  saw: {saw}" if len(shown) == 1 or folder == "." else f"  saw in {folder}: {saw}"
    if len(seen) > len(shown):
        yield f"  … and other texts in {counted(len(seen) - len(shown), 'more folder')}"
