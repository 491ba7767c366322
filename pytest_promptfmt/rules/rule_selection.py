"""Which rules run, and which findings are ignored: by codes and prefixes, per file, and in the task itself.

The rules about that, PF001 to PF003, are here as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, SettingsError, display_path
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import Rule, Scope, rule, rule_hint
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.settings.table import split_codes
from pytest_promptfmt.systems import concerns

_IGNORE: Final = ("metadata", "promptfmt", "ignore")
_WILDCARD: Final = re.compile(r"[*?\[]")
_FOREIGN: Final = frozenset({"node_modules", "venv", "site-packages", "__pycache__"})
_MOST_FILES: Final = 50_000


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rules of a run, and what is ignored where.

    `select` and `ignore` hold codes and prefixes; the longer one wins, and `ignore` if both are equally long.
    `per_file` pairs a glob (of the path below `rootdir`, or of the file name) with the codes to ignore in such files.
    """

    rules: Mapping[str, Rule]
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file: tuple[tuple[str, tuple[str, ...]], ...] = ()
    rootdir: Path = Path()

    lacks_rules: bool = False
    """Whether the user's own rules are not loaded: then their codes are unknown."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    """The positions of `select`, `ignore` and `per_file_ignores`, if they are in a file."""

    _about: dict[tuple[Scope, str | None], tuple[Rule, ...]] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        """Raise SettingsError for an unknown code."""
        self._require_known(self.select, "--promptfmt-select", "select")
        self._require_known(self.ignore, "--promptfmt-ignore", "ignore")
        for glob, codes in self.per_file:
            self._require_known(codes, f"promptfmt_per_file_ignores, {glob}", "per_file_ignores")

    @classmethod
    def of(cls, settings: Settings, rules: Mapping[str, Rule]) -> Selection:
        """Return what settings choose; raises SettingsError for an unknown code."""
        return cls(
            rules=rules,
            select=settings.select,
            ignore=settings.ignore,
            per_file=parse_per_file(settings.per_file_ignores, settings.positions.get("per_file_ignores")),
            rootdir=settings.per_file_base,
            lacks_rules=settings.no_code and bool(settings.rules),
            positions=settings.positions,
        )

    @cached_property
    def chosen(self) -> tuple[Rule, ...]:
        """Return the rules that run."""
        return tuple(rule for rule in self.rules.values() if self._chooses(rule.code))

    def about(self, scope: Scope, system: str | None) -> tuple[Rule, ...]:
        """Return the rules of a scope that apply to tasks of a system; None for all systems."""
        known = self._about.get((scope, system))
        if known is None:
            found = (part for rule in self.chosen for part in rule.all_parts if part.scope == scope)
            known = self._about[scope, system] = tuple(
                rule for rule in found if system is None or concerns(rule.code, rule.function.__module__, system)
            )
        return known

    @cached_property
    def looks_at_profiles(self) -> bool:
        """Return whether a rule about profiles runs."""
        return any(rule.scopes & {"profile", "template"} for rule in self.chosen)

    def is_asked_for(self, code: str) -> bool:
        """Return whether a rule was selected by code or prefix, so that its infos are shown, too."""
        return _longest(code, self.select) > 0

    def per_file_ignores(self, file: Path) -> dict[str, tuple[str, ...]]:
        """Return the globs that match a file, with the codes and prefixes ignored there."""
        if not self.per_file:
            return {}
        below = file.resolve()
        root = self.rootdir.resolve()
        name = below.relative_to(root).as_posix() if below.is_relative_to(root) else display_path(file)
        return {glob: codes for glob, codes in self.per_file if fnmatchcase(name, glob) or fnmatchcase(file.name, glob)}

    def globs_of_nothing(self, matched: Container[str]) -> tuple[str, ...]:
        """Return the globs of per-file ignores that match no file; `matched` are known to match some."""
        return tuple(glob for glob, _ in self.per_file if glob not in matched and not self._fits_a_file(glob))

    def _fits_a_file(self, glob: str) -> bool:
        """Return whether a file below the rootdir matches, or there are too many to check."""
        *folders, _ = glob.split("/")
        named = takewhile(lambda folder: not _WILDCARD.search(folder), folders)
        looked = 0
        for folder, inner, files in os.walk(self.rootdir.joinpath(*named)):
            inner[:] = [each for each in inner if not each.startswith(".") and each not in _FOREIGN]
            below = os.path.relpath(folder, self.rootdir).replace(os.sep, "/")
            paths = (name if below == "." else f"{below}/{name}" for name in files)
            if any(fnmatchcase(path, glob) or fnmatchcase(name, glob) for path, name in zip(paths, files, strict=True)):
                return True
            looked += len(files)
            if looked > _MOST_FILES:
                return True
        return False

    def knows(self, code: str) -> bool:
        """Return whether some rule has this code or prefix."""
        return bool(code) and any(known.startswith(code) for known in self.rules)

    def _chooses(self, code: str) -> bool:
        selected = _longest(code, self.select) if self.select else 1
        return selected > 0 and selected > _longest(code, self.ignore)

    def _require_known(self, codes: Iterable[str], where: str, setting: str) -> None:
        for code in codes:
            is_left_out = self.lacks_rules and not code.startswith("PF")
            if not is_left_out and not self.knows(code):
                raise SettingsError(
                    f"{where}: unknown rule code or prefix {code!r}",
                    position=self.positions.get(setting),
                    hint=rule_hint(code, self.rules),
                )


def parse_per_file(lines: Iterable[str], position: Position | None = None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the pairs in lines such as `tasks/old/*.yaml: PF2, PF101`; raises SettingsError for other lines."""
    pairs = []
    for line in lines:
        glob, colon, codes = line.rpartition(":")
        if not colon or not glob.strip() or not codes.strip():
            raise SettingsError(
                f"promptfmt_per_file_ignores: {line!r}",
                position=position,
                hint="write a glob, a colon and codes: `tasks/old/*.yaml: PF2`",
            )
        pairs.append((glob.strip(), split_codes([codes])))
    return tuple(pairs)


def written_ignores(own_metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return code to reason of `metadata.promptfmt.ignore`; a list of codes gives no reasons (None)."""
    written = own_metadata.get("ignore")
    if isinstance(written, Mapping):
        return {str(code): reason for code, reason in written.items()}
    if isinstance(written, list | tuple):
        return {str(code): None for code in written}
    return {} if written is None else {str(written): None}


def _longest(code: str, prefixes: Iterable[str]) -> int:
    return max((len(prefix) for prefix in prefixes if code.startswith(prefix)), default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignores:
    """Invalid and unused ignores, and rules that failed (code, error), known after all other rules have run."""

    unknown: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    crashes: tuple[tuple[str, str], ...] = ()


@rule("PF001", "unknown-ignore", severity=Severity.WARNING, family=Family.RULES, scope="ignores")
def unknown_ignore(ignores: Ignores) -> Iterator[Finding]:
    """Report an unknown rule code in `metadata.promptfmt.ignore`.

    Why: a misspelled code ignores nothing. The finding that it should hide is still reported.

    Fix: use the code of a rule, such as PF201, or the first characters of several codes, such as PF2. The command
    `promptfmt explain` lists all codes.

    Real: every linter with ignores has this problem; ruff reports it as RUF100.
    """
    for code in ignores.unknown:
        yield finding("unknown rule code in ignore", code, (*_IGNORE, code))


@rule("PF002", "unused-ignore", severity=Severity.WARNING, family=Family.RULES, scope="ignores")
def unused_ignore(ignores: Ignores) -> Iterator[Finding]:
    """Report a code in `metadata.promptfmt.ignore` that no longer matches a finding.

    Why: the mistake was fixed but the ignore stayed, so it hides the next mistake of this kind. An ignore
    from an include is not reported: it may be for another task.

    Fix: remove the code from `ignore`.

    Real: every linter with ignores has this problem; ruff reports it as RUF100.
    """
    for code in ignores.unused:
        yield finding("the ignored code matches no finding", code, (*_IGNORE, code))


@rule("PF003", "failed-rule", severity=Severity.WARNING, family=Family.RULES, scope="ignores")
def failed_rule(ignores: Ignores) -> Iterator[Finding]:
    """Report a rule that raised an exception.

    Why: a failed rule must not stop the run. Without this finding, a failed rule would look like a rule that found
    nothing.

    Fix: fix the rule, or ignore it; if it is built in, report a bug.
    """
    for code, error in ignores.crashes:
        yield finding(f"the rule {code} failed", error)
