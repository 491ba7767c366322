"""One `Settings` object from command line, `promptfmt.yaml` and ini; everything else asks it and never the options.

The command line wins over `promptfmt.yaml`, the file nearest above a task over those further up, and all files over
the ini.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from pytest_promptfmt.core.errors import Position, SettingsError
from pytest_promptfmt.core.profile import PLAIN, Profile, is_profile_name, resolve_profiles
from pytest_promptfmt.settings.file import FILE_NAMES, SettingsFile, find_settings_file, read_settings_file
from pytest_promptfmt.settings.profiles import defined_profiles, given_profiles, overridden

Answers = Literal["auto", "all", "none"]

DEFAULT_TIME_LIMIT = 10.0
DEFAULT_IMPORT_LIMIT = 60.0
"""More than for rendering: modules import large libraries, once."""


class Options(Protocol):
    """What `Settings` needs of a pytest config."""

    @property
    def rootpath(self) -> Path:
        """Return the rootdir."""

    def getoption(self, name: str, default: Any = ...) -> Any:
        """Return a command-line option by its dest."""

    def getini(self, name: str) -> Any:
        """Return an ini value."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What this run is to do with the tasks of one folder.

    `profiles` are rendered, `defined` all that some file defines, by name. `docs` is how many docs a snapshot shows
    (None: 2 synthetic, 3 otherwise), `num_fewshot` overrides the shots of every task that does not fix them to 0,
    `time_limit` is in seconds for rendering one task with one profile, `import_limit` for importing one module of
    functions.
    `is_narrowed` says that the command line asked for a number of docs: stored docs beyond it are kept.
    `has_chosen_profiles` says that the command line named the profiles: what tasks say of profiles is then left out.
    `answers` says of which tasks the reading and scoring of answers is tried: `auto` (those with a filter that looks
    for an answer), `all` or `none`. `is_strict_about_answers` fails what a snapshot has accepted as well. `download`
    allows the network for tokenizers that are not at hand.
    `repeat` are the command-line options that another run needs to render the same.
    `lint` says whether the checks run, `select` and `ignore` are codes and prefixes of rules, `per_file_ignores` lines
    `glob: codes`, with globs of paths below `per_file_base`, `checks` Python files that define rules.
    `task_modules` are paths and globs of Python files with task classes.
    `positions` tells where a key stands that came from a file.
    """

    rootdir: Path
    profiles: tuple[Profile, ...]
    defined: Mapping[str, Profile] = field(default_factory=lambda: MappingProxyType({}))
    task_globs: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    docs: int | None = None
    num_fewshot: int | None = None
    allow_code: tuple[Path, ...] = ()
    no_code: bool = False
    time_limit: float = DEFAULT_TIME_LIMIT
    import_limit: float = DEFAULT_IMPORT_LIMIT
    is_narrowed: bool = False
    has_chosen_profiles: bool = False
    answers: Answers = "auto"
    is_strict_about_answers: bool = False
    download: bool = False
    repeat: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    lint: bool = True
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[str, ...] = ()
    per_file_base: Path = Path()
    checks: tuple[Path, ...] = ()
    task_modules: tuple[Path, ...] = ()
    positions: Mapping[str, Position] = field(default_factory=lambda: MappingProxyType({}))

    def trusts(self, file: Path) -> bool:
        """Return whether Python code in `file` may run: below the rootdir or an allowed path, unless switched off."""
        if self.no_code:
            return False
        resolved = file.resolve()
        return any(resolved.is_relative_to(root.resolve()) for root in (self.rootdir, *self.allow_code))

    def names_module(self, file: Path) -> bool:
        """Return whether a Python file is one that task classes are looked for in."""
        if file.suffix != ".py" or not self.task_modules:
            return False
        return any(fnmatchcase(str(file), str(each)) or file.is_relative_to(each) for each in self.task_modules)

    def placed(self, error: SettingsError) -> SettingsError:
        """Return an error about the checks that are chosen, at the place of the key in the file that it is about."""
        if error.key is None or error.key not in self.positions:
            return error
        return SettingsError(error.message, position=self.positions[error.key], hint=error.hint)

    def run_id(self, kind: str) -> str:
        """Return the name in node ids and snapshot files: `plain`, or `plain-5shot` with other shots."""
        return kind if self.num_fewshot is None else f"{kind}-{self.num_fewshot}shot"


class SettingsTree:
    """The settings of every folder, each read once."""

    def __init__(self, config: Options, default_profiles: Sequence[str], places: Iterable[Path] = ()) -> None:
        """Read the rootdir's file; raises SettingsError for settings that make no sense.

        `places` are the files and folders of this run: a profile that the command line chooses has to be known to some
        folder there.
        """
        self._config = config
        self._defaults = tuple(default_profiles)
        self._rootdir = config.rootpath
        self._known: dict[Path, _Level] = {}
        self.root = self._level(self._rootdir, self._rootdir).settings
        self._require_chosen(places)

    def of(self, folder: Path, top: Path) -> Settings:
        """Return the settings for task files in a folder.

        Files are looked for in it and above it, up to the rootdir; above a folder that lies elsewhere up to `top`,
        and then in the rootdir. Raises SettingsError for a file that makes no sense, each time.
        """
        return self._level(folder, top).settings

    def _level(self, folder: Path, top: Path) -> _Level:
        known = self._known.get(folder)
        if known is None:
            known = self._known[folder] = self._fresh(folder, top)
        return known

    def _fresh(self, folder: Path, top: Path) -> _Level:
        above: _Level | None = None
        if folder != self._rootdir:
            stops = folder == top and not folder.is_relative_to(self._rootdir)
            above = self._level(self._rootdir if stops or folder == folder.parent else folder.parent, top)
        path = find_settings_file(folder)
        if path is None:
            return above or _Level(settings=self._settings((), {}), files=(), defined={})
        file = read_settings_file(path, is_at_rootdir=folder == self._rootdir)
        outer = above.defined if above is not None else {}
        defined = {**outer, **defined_profiles(file, outer, rootdir=self._rootdir)}
        files = (file, *(above.files if above is not None else ()))
        return _Level(settings=self._settings(files, defined), files=files, defined=defined)

    def _settings(self, files: Sequence[SettingsFile], defined: Mapping[str, Profile]) -> Settings:
        config = self._config
        written = _Written(files)
        given = config.getoption
        ini = config.getini
        limit = written.get("time_limit")
        asked = written.get("scoring", ini("promptfmt_scoring"))
        answers: Answers = "all" if given("promptfmt_scoring") else _answers(str(asked))
        per_file = written.owner("per_file_ignores")
        return Settings(
            rootdir=self._rootdir,
            profiles=self._profiles(written, defined),
            defined=MappingProxyType(dict(defined)),
            task_globs=tuple(given("promptfmt_task")),
            formats=tuple(given("promptfmt_format")),
            variants=tuple(given("promptfmt_variants")),
            docs=_count(config, written, "docs", least=1),
            num_fewshot=_count(config, written, "num_fewshot", least=0),
            allow_code=(
                *written.paths("allow_code", ini("promptfmt_allow_code")),
                *(Path(path).absolute() for path in given("promptfmt_allow_code_path")),
            ),
            no_code=given("promptfmt_no_code"),
            time_limit=limit or _seconds(ini("promptfmt_time_limit"), DEFAULT_TIME_LIMIT),
            import_limit=limit or _seconds(ini("promptfmt_time_limit"), DEFAULT_IMPORT_LIMIT),
            has_chosen_profiles=bool(
                given("promptfmt_profile") or given("promptfmt_tokenizer") or given("promptfmt_chat_template")
            ),
            is_narrowed=given("promptfmt_docs") is not None,
            answers=answers,
            is_strict_about_answers=answers == "all",
            download=bool(given("promptfmt_download") or written.get("download", ini("promptfmt_download"))),
            repeat=tuple(_given(config)),
            paths=written.paths("paths", ini("promptfmt_paths")),
            lint=bool(written.get("lint", ini("promptfmt_lint"))),
            select=_codes(given("promptfmt_select")) or written.get("select", _codes(ini("promptfmt_select"))),
            ignore=_codes(given("promptfmt_ignore")) or written.get("ignore", _codes(ini("promptfmt_ignore"))),
            per_file_ignores=written.get("per_file_ignores", tuple(ini("promptfmt_per_file_ignores"))),
            per_file_base=per_file.path.parent if per_file is not None else self._rootdir,
            checks=written.paths("checks", ini("promptfmt_checks")),
            task_modules=written.paths("task_modules", ini("promptfmt_task_modules")),
            positions=MappingProxyType(written.positions()),
        )

    def _require_chosen(self, places: Iterable[Path]) -> None:
        chosen = self._config.getoption("promptfmt_profile")
        if all(is_profile_name(name, self.root.defined) for name in chosen):
            return
        elsewhere = {name: PLAIN for place in places for name in _names_below(place)}
        for name in chosen:
            if not is_profile_name(name, {**self.root.defined, **elsewhere}):
                resolve_profiles([name], {**self.root.defined, **elsewhere})

    def _profiles(self, written: _Written, defined: Mapping[str, Profile]) -> tuple[Profile, ...]:
        config, here = self._config, Path.cwd()
        tokenizers = tuple(config.getoption("promptfmt_tokenizer"))
        templates = tuple(config.getoption("promptfmt_chat_template"))
        names = tuple(config.getoption("promptfmt_profile"))
        if names:
            known = [name for name in names if is_profile_name(name, defined)]
            return overridden(resolve_profiles(known, defined), tokenizers, templates, here, self._rootdir)
        if tokenizers or templates:
            return given_profiles(tokenizers, templates, here, self._rootdir)
        owner = written.owner("default_profiles")
        if owner is not None:
            try:
                return resolve_profiles(owner.values["default_profiles"], defined)
            except SettingsError as error:
                raise SettingsError(
                    error.message, position=owner.position("default_profiles"), hint=error.hint
                ) from None
        if defined:
            return resolve_profiles(("plain", *defined), defined)
        tokenizers = tuple(config.getini("promptfmt_tokenizer"))
        templates = tuple(config.getini("promptfmt_chat_template"))
        names = tuple(config.getini("promptfmt_profiles"))
        own = given_profiles(tokenizers, templates, self._rootdir, self._rootdir) if tokenizers or templates else ()
        return (*resolve_profiles(names or (() if own else self._defaults), defined), *own)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Level:
    """What a folder's files come to: the nearest one first."""

    settings: Settings
    files: tuple[SettingsFile, ...]
    defined: Mapping[str, Profile]


@dataclass(frozen=True, slots=True)
class _Written:
    """What the files say, the nearest one first."""

    files: Sequence[SettingsFile]

    def owner(self, key: str) -> SettingsFile | None:
        return next((file for file in self.files if key in file.values), None)

    def get(self, key: str, default: Any = None) -> Any:
        file = self.owner(key)
        return default if file is None else file.values[key]

    def paths(self, key: str, default: Sequence[Path | str]) -> tuple[Path, ...]:
        file = self.owner(key)
        if file is None:
            return tuple(Path(path) for path in default)
        return tuple((file.path.parent / Path(path).expanduser()).absolute() for path in file.values[key])

    def positions(self) -> dict[str, Position]:
        return {key: file.position(key) for file in reversed(self.files) for key in file.values}


def _names_below(place: Path) -> Iterator[str]:
    """Yield the names of the profiles that files in and below a place define, and those in the folders above it."""
    folders = [place if place.is_dir() else place.parent]
    above = list(folders[0].parents)
    below = (Path(folder) for folder, _, files in os.walk(folders[0]) if not set(FILE_NAMES).isdisjoint(files))
    for folder in (*above, *below):
        path = find_settings_file(folder)
        if path is not None:
            try:
                yield from read_settings_file(path, is_at_rootdir=True).profiles
            except SettingsError:
                continue  # told where its tasks are collected


def _answers(written: str) -> Answers:
    known: dict[str, Answers] = {"": "auto", "auto": "auto", "all": "all", "true": "all", "none": "none"}
    known |= {"false": "none"}
    if written.strip().lower() not in known:
        raise SettingsError(f"the ini value promptfmt_scoring is {written!r}", hint="give auto, all or none")
    return known[written.strip().lower()]


def _given(config: Options) -> Iterator[str]:
    """Yield the command-line options that change what is rendered, as they were given."""
    names = ("profile", "tokenizer", "chat_template", "format", "variants", "docs", "num_fewshot", "allow_code_path")
    for name in names:
        given = config.getoption(f"promptfmt_{name}")
        for value in given if isinstance(given, list) else [given]:
            if value is not None:
                yield from (f"--promptfmt-{name.removesuffix('_path').replace('_', '-')}", str(value))
    for name in ("scoring", "download"):
        if config.getoption(f"promptfmt_{name}"):
            yield f"--promptfmt-{name}"


def _codes(written: Sequence[str]) -> tuple[str, ...]:
    """Return codes with commas and blanks between them."""
    return tuple(code for text in written for code in text.replace(",", " ").split())


def _count(config: Options, written: _Written, key: str, *, least: int) -> int | None:
    """Return a whole number from the option, else from the files, else from the ini value of the same name."""
    name = f"promptfmt_{key}"
    given = config.getoption(name)
    where = f"--{name.replace('_', '-')}"
    if given is None and written.owner(key) is not None:
        return int(written.get(key))
    if given is None:
        given = config.getini(name) or None
        where = f"the ini value {name}"
    if given is None:
        return None
    try:
        number = int(given)
    except ValueError:
        number = least - 1
    if number < least:
        raise SettingsError(f"{where} is {str(given)!r}", hint=f"give a whole number from {least}")
    return number


def _seconds(written: str, default: float) -> float:
    try:
        seconds = float(written or default)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise SettingsError(f"the ini value promptfmt_time_limit is {written!r}", hint="give seconds, such as 10")
    return seconds
