"""All rules by their code: the built-in ones, those of installed packages, and those of Python files of the user."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final, Literal

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SettingsError, did_you_mean, load_entry
from pytest_promptfmt.core.finding import Effect, Family, Finding, Severity
from pytest_promptfmt.rules.fixes import FixRule
from pytest_promptfmt.systems import known_systems
from pytest_promptfmt.tasks import SourceLoader, imports_from_source

GROUP: Final = "pytest_promptfmt.rules"
"""The entry-point group in which packages name modules that define rules."""

_ELSEWHERE: Final[tuple[str, ...]] = ("models.model_rules",)
"""Modules with built-in rules outside of this package and of the systems."""

_WORST: Final[Mapping[Family, Effect]] = {
    Family.RULES: Effect.APPEARANCE,
    Family.PROMPT: Effect.SOME_DOCS,
    Family.TOKENS: Effect.SOME_DOCS,
    Family.FEWSHOT: Effect.SHOTS,
}
"""The worst that rules of a family do; every doc where a family is not listed."""

_UNLIKE_FAMILY: Final[Mapping[Effect, str]] = {
    Effect.EVERY_DOC: "PF501 PF706 PF714",
    Effect.SOME_DOCS: "PF101 PF704 PF705",
    Effect.APPEARANCE: "PF103 PF105 PF129 PF238 PF240 PF242 PF757",
}
_EFFECTS: Final = {code: effect for effect, codes in _UNLIKE_FAMILY.items() for code in codes.split()}
"""The effect of built-in rules that differ from their family."""

_PACKAGE: Final = __package__.partition(".")[0]
_CODE: Final = re.compile(r"[A-Z]{2,8}[0-9]{3,4}")
RuleFunction = Callable[[Any], Iterable[Finding]]
Scope = Literal["task", "file", "profile", "template", "scoring", "model", "ignores"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule: a function that yields findings, with its name and severity.

    `scope` is what the function is given: the `Study` of each task@format (`task`, and `scoring` where its scoring is
    tried), a `ProfileView` for each profile that sees it, a `LoadedProfile` for each profile once in a run
    (`template`), a `FileView` for each YAML file, what a model answered where one is asked (`model`), or what became of
    the `Ignores` of a task once all others have run. `scores` marks a rule about tasks whose findings spoil the score:
    where the lint of a task does not run, the item `scoring` applies it. `effect` is what its findings are expected to
    do to the score, None where `effect_of` derives it from family and severity. `fix` gives the edit that fixes one of
    its findings, where there is a mechanical one (`rules/fixes.py`). `parts` are further functions with the same code,
    each for another way in which the same mistake arises.
    """

    code: str
    name: str = ""
    severity: Severity
    family: Family = Family.RULES
    scope: Scope
    function: RuleFunction
    is_builtin: bool = True
    scores: bool = False
    fix: FixRule | None = None
    effect: Effect | None = None
    parts: list[Rule] = field(default_factory=list, compare=False, repr=False)

    @property
    def all_parts(self) -> tuple[Rule, ...]:
        """Return the rule itself, then its further parts."""
        return (self, *self.parts)

    @property
    def scopes(self) -> frozenset[Scope]:
        """Return the scopes of all its parts."""
        return frozenset(part.scope for part in self.all_parts)


_rules: dict[str, Rule] = {}
_parts: dict[str, list[Rule]] = {}
_with_names: set[RuleFunction] = set()


def rule(
    code: str,
    name: str,
    *,
    severity: Severity | str = Severity.WARNING,
    family: Family | str = Family.PROMPT,
    scope: Scope = "task",
    scores: bool = False,
    fix: FixRule | None = None,
    effect: Effect | str | None = None,
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as the rule `code`; its docstring is its documentation.

    `code` is letters and digits (`ACME001`); the letters `PF` are this plugin's own. Raises SettingsError for a code
    or name of the wrong shape, and for one that another rule has already.
    """

    def register(function: RuleFunction) -> RuleFunction:
        is_builtin = function.__module__.startswith(f"{_PACKAGE}.")
        if not _CODE.fullmatch(code) or (code.startswith("PF") and not is_builtin):
            raise SettingsError(
                f"invalid rule code {code!r}",
                hint="use two to eight capital letters and three or four digits, such as ACME001; PF is reserved",
            )
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            raise SettingsError(f"invalid rule name {name!r}", hint="use lower-case words, joined by hyphens")
        other = _rules.get(code)
        if other is not None and _source(other.function) != _source(function):
            raise SettingsError(f"two rules have the code {code}: {other.name} and {name}", hint="rename one of them")
        _rules[code] = Rule(
            code=code,
            name=name,
            severity=Severity(severity),
            family=Family(family),
            scope=scope,
            function=function,
            is_builtin=is_builtin,
            scores=scores,
            fix=fix,
            effect=None if effect is None else Effect(effect),
            parts=_parts.setdefault(code, []),
        )
        return function

    return register


def also(
    code: str,
    *,
    severity: Severity = Severity.WARNING,
    scope: Scope = "task",
    scores: bool = False,
    fix: FixRule | None = None,
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as a further part of the built-in rule `code`.

    Its docstring is what it reports; the fix and an example of each part are in data/rule_cases.yaml.
    """

    def register(function: RuleFunction) -> RuleFunction:
        parts = _parts.setdefault(code, [])
        if all(_source(part.function) != _source(function) for part in parts):
            parts.append(Rule(code=code, severity=severity, scope=scope, function=function, scores=scores, fix=fix))
        return function

    return register


def reads_names(function: RuleFunction) -> RuleFunction:
    """Mark a rule that reads names, places in files, or code: what it finds is true of this task alone."""
    _with_names.add(function)
    return function


def is_about_content(function: RuleFunction) -> bool:
    """Return whether a rule about tasks or profiles finds the same in tasks that differ only in their names."""
    return function.__module__.startswith(f"{__package__}.") and function not in _with_names


def known_rules(files: Iterable[Path] = ()) -> Mapping[str, Rule]:
    """Return all rules by code, in the order of their codes, those of `files` among them.

    Importing a file or an installed package runs it. Raises SettingsError for what cannot be imported.
    """
    _load_installed()
    for file in files:
        _load_file(file)
    return _registered()


def rules_in(modules: Iterable[str]) -> Mapping[str, Rule]:
    """Return the rules of some modules by code, as `known_rules`; others are there if they have been imported."""
    for module in modules:
        import_module(module)
    return _registered()


def _registered() -> Mapping[str, Rule]:
    for code, parts in _parts.items():
        head = _rules[code]
        if all(part.name == head.name for part in parts):
            continue  # completed before
        parts[:] = [replace(part, name=head.name, family=head.family, effect=head.effect) for part in parts]
        parts.sort(key=lambda part: _source(part.function))
    return dict(sorted(_rules.items()))


def find_rule(name: str, files: Iterable[Path] = ()) -> Rule:
    """Return the rule with this code or name; raises SettingsError with a did-you-mean."""
    rules = known_rules(files)
    for each in rules.values():
        if name.casefold() in (each.code.casefold(), each.name):
            return each
    raise SettingsError(f"unknown rule {name!r}", hint=rule_hint(name, rules))


def rule_hint(name: str, rules: Mapping[str, Rule]) -> str:
    """Return which rule an unknown code or name may mean; one number resembles another only by chance."""
    from difflib import get_close_matches

    codes = {each.name: each.code for each in rules.values()}
    for code in (f"PF{name}", name.upper().replace("O", "0")):
        if code in rules:
            return f"did you mean {code!r}?"
    part = [each for each in codes if name.casefold() in each]
    close = part or get_close_matches(name.casefold(), codes, n=1, cutoff=0.75)
    if close:
        return f"did you mean {codes[close[0]]} ({close[0]})?"
    is_number = name.upper().removeprefix("PF").isdigit()
    return (None if is_number else did_you_mean(name.upper(), rules)) or "`promptfmt explain` lists all rules"


def effect_of(rule: Rule, severity: Severity) -> Effect:
    """Return what a finding of a rule, this severe, is expected to do to the score."""
    if severity is Severity.INFO:
        return Effect.APPEARANCE
    declared = rule.effect or (_EFFECTS.get(rule.code) if rule.is_builtin else None)
    if declared is not None:
        return declared
    worst = _WORST.get(rule.family, Effect.EVERY_DOC)
    return Effect.SOME_DOCS if severity is Severity.WARNING and worst is Effect.EVERY_DOC else worst


@cache
def _load_installed() -> None:
    own = (f"rules.{module.name}" for module in iter_modules([str(Path(__file__).parent)]))
    for module in (*own, *_ELSEWHERE):
        import_module(f"{_PACKAGE}.{module}")
    for module in (module for system in known_systems().values() for module in system.rules):
        import_module(module)
    for entry in entry_points(group=GROUP):
        load_entry(entry, "the rules of", SettingsError)


@cache
def _load_file(file: Path) -> None:
    name = f"promptfmt_rules_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file, loader=SourceLoader(name, str(file)))
    if spec is None or spec.loader is None or not file.is_file():
        raise SettingsError("this file of rules does not exist", position=Position(file))
    try:
        gate.status_of(file)
        with imports_from_source():
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except SettingsError:
        raise
    except gate.RefusedError as error:
        raise SettingsError(f"the file of rules cannot be read: {error.strerror}", position=Position(file)) from error
    except Exception as error:
        raise SettingsError(
            f"the file of rules cannot be imported: {type(error).__name__}: {error}", position=Position(file)
        ) from error


def _source(function: RuleFunction) -> tuple[str, str]:
    return function.__code__.co_filename, function.__qualname__
