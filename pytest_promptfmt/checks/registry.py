"""All rules by their code: the built-in ones, those of installed packages, and those of Python files of the user."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Literal

from pytest_promptfmt.checks.fixes import FixRule
from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SettingsError, did_you_mean
from pytest_promptfmt.core.finding import Effect, Family, Finding, Severity
from pytest_promptfmt.systems import known_systems

GROUP: Final = "pytest_promptfmt.checks"
"""The entry-point group in which packages name modules that define rules."""

_BUILTIN: Final = (
    "checks.ignores",
    "checks.config",
    "checks.smoke",
    "checks.scorers",
    "checks.scores",
    "checks.choice_scores",
    "checks.stops",
    "checks.templates",
    "checks.names",
    "checks.prompt",
    "checks.leftovers",
    "checks.options",
    "checks.raw_text",
    "checks.written",
    "checks.data",
    "checks.joins",
    "checks.answers",
    "checks.answer_signs",
    "checks.answer_forms",
    "checks.instructions",
    "checks.rows",
    "checks.pairs",
    "checks.fewshot",
    "checks.shot_layout",
    "checks.shot_answers",
    "checks.task_code",
    "checks.code_slips",
    "checks.generation",
    "checks.extraction",
    "checks.readings",
    "checks.gold_readings",
    "checks.label_readings",
    "checks.chat_templates",
    "checks.chat_markup",
    "checks.chat_prompts",
    "checks.chat_tokens",
    "checks.reasoning_models",
    "checks.seams",
    "checks.choice_tokens",
    "checks.characters",
    "checks.slips",
    "checks.answer_slips",
    "checks.captures",
    "checks.answer_texts",
    "checks.author_texts",
    "checks.glued_texts",
    "checks.mistaken_values",
    "models.rules",
)
_PACKAGE: Final = __package__.partition(".")[0]
_CODE: Final = re.compile(r"[A-Z]{2,8}[0-9]{3,4}")

Rule = Callable[[Any], Iterable[Finding]]
Scope = Literal["task", "file", "profile", "template", "scoring", "model", "ignores"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One rule: a function that yields findings, with its name and severity.

    `scope` is what the function is given: the `Study` of each task@format (`task`, and `scoring` where its scoring is
    tried), a `ProfileView` for each profile that sees it, a `LoadedProfile` for each profile once in a run
    (`template`), a `FileView` for each YAML file, what a model answered where one is asked (`model`), or what became of
    the `Ignores` of a task once all others have run.
    `scores` says of a rule about tasks that what it finds spoils the score: where the lint of a task does not run, the
    item `scoring` applies it.
    `effect` is what its findings are expected to do to the score, None where `checks/effects.py` says it.
    `fix` gives the edit that fixes one of its findings, where there is a mechanical one (`checks/fixes.py`).
    """

    code: str
    name: str
    severity: Severity
    family: Family
    scope: Scope
    rule: Rule
    is_builtin: bool
    scores: bool = False
    fix: FixRule | None = None
    effect: Effect | None = None


_checks: dict[str, Check] = {}


def check(
    code: str,
    name: str,
    *,
    severity: Severity | str = Severity.WARNING,
    family: Family | str = Family.PROMPT,
    scope: Scope = "task",
    scores: bool = False,
    fix: FixRule | None = None,
    effect: Effect | str | None = None,
) -> Callable[[Rule], Rule]:
    """Register a function as the rule `code`; its docstring is its documentation.

    `code` is letters and digits (`ACME001`); the letters `PF` are this plugin's own. Raises SettingsError for a code
    or name of the wrong shape, and for one that another rule has already.
    """

    def register(rule: Rule) -> Rule:
        is_builtin = rule.__module__.startswith(f"{_PACKAGE}.")
        if not _CODE.fullmatch(code) or (code.startswith("PF") and not is_builtin):
            raise SettingsError(
                f"invalid rule code {code!r}",
                hint="use two to eight capital letters and three or four digits, such as ACME001; PF is reserved",
            )
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            raise SettingsError(f"invalid rule name {name!r}", hint="use lower-case words, joined by hyphens")
        other = _checks.get(code)
        if other is not None and _source(other.rule) != _source(rule):
            raise SettingsError(f"two rules have the code {code}: {other.name} and {name}", hint="rename one of them")
        _checks[code] = Check(
            code=code,
            name=name,
            severity=Severity(severity),
            family=Family(family),
            scope=scope,
            rule=rule,
            is_builtin=is_builtin,
            scores=scores,
            fix=fix,
            effect=None if effect is None else Effect(effect),
        )
        return rule

    return register


def known_checks(files: Iterable[Path] = ()) -> Mapping[str, Check]:
    """Return all rules by code, in the order of their codes, those of `files` among them.

    Importing a file or an installed package runs it. Raises SettingsError for what cannot be imported.
    """
    _load_installed()
    for file in files:
        _load_file(file)
    return dict(sorted(_checks.items()))


def find_check(name: str, files: Iterable[Path] = ()) -> Check:
    """Return the rule with this code or name; raises SettingsError with a did-you-mean."""
    checks = known_checks(files)
    for each in checks.values():
        if name.casefold() in (each.code.casefold(), each.name):
            return each
    names = [*checks, *(each.name for each in checks.values())]
    raise SettingsError(f"unknown rule {name!r}", hint=did_you_mean(name.upper(), names) or did_you_mean(name, names))


@cache
def _load_installed() -> None:
    for module in _BUILTIN:
        import_module(f"{_PACKAGE}.{module}")
    for module in (module for system in known_systems().values() for module in system.rules):
        import_module(module)
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except SettingsError:
            raise
        except Exception as error:
            raise SettingsError(f"the rules of {entry.value} do not import: {type(error).__name__}: {error}") from error


@cache
def _load_file(file: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"promptfmt_checks_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise SettingsError("no such Python file of rules", position=Position(file))
    try:
        gate.status_of(file)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except SettingsError:
        raise
    except gate.RefusedError as error:
        raise SettingsError(f"these rules are not run: {error.strerror}", position=Position(file)) from error
    except Exception as error:
        raise SettingsError(
            f"these rules do not import: {type(error).__name__}: {error}", position=Position(file)
        ) from error


def _source(rule: Rule) -> tuple[str, str]:
    return rule.__code__.co_filename, rule.__qualname__
