"""One `Settings` object for each folder of task files, from command line, `promptfmt.yaml` and ini."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from pytest_promptfmt.core.errors import Position, SettingsError, display_path, raising
from pytest_promptfmt.core.profile import PLAIN, Profile, is_profile_name, resolve_profiles
from pytest_promptfmt.core.release import LATEST, Release, release_of
from pytest_promptfmt.settings.file import FILE_NAMES, SettingsFile, find_settings_file, read_settings_file
from pytest_promptfmt.settings.profiles import (
    defined_profiles,
    given_profiles,
    known_engine,
    known_host,
    overridden,
    trained_template,
)
from pytest_promptfmt.settings.setting_lookup import Config, SettingLookup
from pytest_promptfmt.settings.table import BY_NAME
from pytest_promptfmt.tasks import found_release

Answers = Literal["auto", "all", "none"]

DEFAULT_TIME_LIMIT = 10.0
DEFAULT_IMPORT_LIMIT = 60.0
"""More than for rendering: modules import large libraries, once."""

_OF_PROFILES: Final = ("profiles", "tokenizers", "chat_templates")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of this run for the tasks of one folder.

    `profiles` are rendered, `defined` all that some file defines, by name. `docs` is how many docs a snapshot shows
    (None: 2 synthetic, 3 otherwise), `num_fewshot` overrides the shots of every task that does not fix them to 0,
    `time_limit` is in seconds for rendering one task with one profile, `import_limit` for importing one module of
    functions.
    `lm_eval` is the release of lm-eval that is followed, `lm_eval_found` where it was found if it is not set.
    `renderer`: whether the tasks of lm-eval are rendered here (`fast`) or by the lm-eval that is `installed`.
    `allow_path` are places outside the rootdir whose files may be opened.
    `is_narrowed`: the command line gives a number of docs; stored docs beyond it are kept.
    `has_chosen_profiles`: the command line names the profiles; profiles of tasks are then left out.
    `answers`: of which tasks the reading and scoring of answers is tried: `auto` (those with a filter that looks
    for an answer), `all` or `none`. `snapshots`: whether files without any snapshot fail (`all`) or wait to be
    `adopted`. `download` allows the network for tokenizers that are not in the local cache.
    `repeat` are the command-line options that another run needs to render the same.
    `lint`: whether the rules run, `select` and `ignore` are codes and prefixes of rules, `per_file_ignores` lines
    `glob: codes`, with globs of paths below `per_file_base`, `rules` Python files that define rules.
    `task_modules` are paths and globs of Python files with task classes, `templates` those of chat templates.
    `training_of` are globs of training templates, each with the template that they train for.
    `positions`: where the codes of `select`, `ignore` and `per_file_ignores` were written, if in a file.
    """

    rootdir: Path
    profiles: tuple[Profile, ...]
    defined: Mapping[str, Profile] = field(default_factory=lambda: MappingProxyType({}))
    task_globs: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    docs: int | None = None
    num_fewshot: int | None = None
    lm_eval: str = LATEST.version
    lm_eval_found: str = ""
    renderer: Literal["fast", "installed"] = "fast"
    allow_code: tuple[Path, ...] = ()
    no_code: bool = False
    allow_path: tuple[Path, ...] = ()
    time_limit: float = DEFAULT_TIME_LIMIT
    import_limit: float = DEFAULT_IMPORT_LIMIT
    is_narrowed: bool = False
    has_chosen_profiles: bool = False
    answers: Answers = "auto"
    snapshots: Literal["all", "adopted"] = "all"
    strict: bool = False
    download: bool = False
    repeat: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    lint: bool = True
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[str, ...] = ()
    per_file_base: Path = Path()
    rules: tuple[Path, ...] = ()
    task_modules: tuple[Path, ...] = ()
    templates: tuple[Path, ...] = ()
    template_engines: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    training_of: tuple[tuple[str, Path], ...] = ()
    version_parts: tuple[str, ...] = ()
    snapshot_dir: Path | None = None
    docs_dir: Path | None = None
    beside: bool = False
    positions: Mapping[str, Position] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def release(self) -> Release:
        """Return the behaviour of lm-eval that is followed."""
        return release_of(self.lm_eval)

    @property
    def is_strict_about_answers(self) -> bool:
        """Return whether what a snapshot has accepted fails as well."""
        return self.answers == "all"

    def trusts(self, file: Path) -> bool:
        """Return whether Python code in `file` may run: below the rootdir or an allowed path, unless switched off."""
        if self.no_code:
            return False
        resolved = file.resolve()
        return any(resolved.is_relative_to(root.resolve()) for root in (self.rootdir, *self.allow_code))

    def names_module(self, file: Path) -> bool:
        """Return whether a Python file is one that task classes are looked for in."""
        return file.suffix == ".py" and _is_named(file, self.task_modules)

    def names_template(self, file: Path) -> bool:
        """Return whether a file is one that chat templates are tested in."""
        return _is_named(file, self.templates)

    def trained_by(self, file: Path) -> Path | None:
        """Return the template that a chat template trains for, by `training_of`; None where it is not listed."""
        asked = (template for glob, template in self.training_of if file.match(glob))
        return next((template for template in asked if template != file), None)

    def docs_folder(self, file: Path | None) -> Path | None:
        """Return the folder of `docs_dir` for the docs of a task file.

        None without the setting, and for a file outside the rootdir. Raises SettingsError as `mirror`.
        """
        mirror = self.mirror("docs_dir")
        if mirror is None or file is None or not file.is_relative_to(self.rootdir):
            return None
        return mirror / file.parent.relative_to(self.rootdir)

    def mirror(self, name: str) -> Path | None:
        """Return the folder of a setting for a tree that mirrors the rootdir; None without one, and for the rootdir.

        Raises SettingsError for a folder outside of the rootdir.
        """
        written: Path | None = getattr(self, name)
        folder = None if written is None else Path(os.path.normpath(written))
        if folder is not None and not folder.is_relative_to(self.rootdir):
            raise SettingsError(
                f"{name}, {display_path(folder)}, is outside {display_path(self.rootdir)}",
                hint=f"{name} must be a folder below the rootdir",
            )
        return None if folder == self.rootdir else folder

    def run_id(self, kind: str) -> str:
        """Return the name in node ids and snapshot files: `plain`, or `plain-5shot` with other shots."""
        return kind if self.num_fewshot is None else f"{kind}-{self.num_fewshot}shot"


def _is_named(file: Path, places: tuple[Path, ...]) -> bool:
    return any(fnmatchcase(str(file), str(each)) or file.is_relative_to(each) for each in places)


class SettingsTree:
    """The settings of every folder, each read once."""

    def __init__(self, config: Config, default_profiles: Sequence[str], places: Iterable[Path] = ()) -> None:
        """Read the rootdir's file; raises SettingsError for invalid settings.

        `places` are the files and folders of this run: a profile that the command line chooses has to be known to some
        folder there.
        """
        self._config = config
        self._defaults = tuple(default_profiles)
        self._rootdir = config.rootpath
        self._known: dict[Path, _Level] = {}
        self._found = found_release(self._rootdir)
        self.root = self._level(self._rootdir, self._rootdir).settings
        self._require_chosen(places)

    def of(self, folder: Path, top: Path) -> Settings:
        """Return the settings for task files in a folder.

        Files are looked for in it and above it, up to the rootdir; above a folder that lies elsewhere up to `top`,
        and then in the rootdir. Raises SettingsError for an invalid file, each time.
        """
        return self._level(folder, top).settings

    @property
    def written(self) -> SettingLookup:
        """Return what is written for the rootdir."""
        return SettingLookup(self._config, self._level(self._rootdir, self._rootdir).files)

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
        written = SettingLookup(self._config, files)
        values = {name: written.value(name) for name in BY_NAME if name in Settings.__dataclass_fields__}
        if values["lm_eval"] is None and self._found is not None:
            values["lm_eval"], values["lm_eval_found"] = self._found
        values["import_limit"] = values["time_limit"]
        values["allow_code"] = (*(written.configured("allow_code") or ()), *(written.option("allow_code") or ()))
        values["profiles"] = self._profiles(written, defined)
        values["defined"] = MappingProxyType(dict(defined))
        positions = {name: written.position(name) for name in ("select", "ignore", "per_file_ignores")}
        base, where = self._base(written, "training_of"), written.position("training_of")
        values["training_of"] = tuple(
            (str(base / training), trained_template(template, base, where))
            for training, template in values["training_of"] or ()
        )
        base, where = self._base(written, "template_engines"), written.position("template_engines")
        values["template_engines"] = tuple(known_engine(each, base, where) for each in values["template_engines"] or ())
        where = written.position("hosts")
        values["hosts"] = tuple(known_host(each, where) for each in values["hosts"] or ())
        return Settings(
            rootdir=self._rootdir,
            has_chosen_profiles=any(written.option(name) for name in _OF_PROFILES),
            is_narrowed=written.option("docs") is not None,
            repeat=tuple(written.repeated_options()),
            per_file_base=self._base(written, "per_file_ignores"),
            positions=MappingProxyType({name: place for name, place in positions.items() if place is not None}),
            **{name: value for name, value in values.items() if value is not None},
        )

    def _base(self, written: SettingLookup, name: str) -> Path:
        """Return the folder that the paths of a setting are relative to."""
        owner = written.owner(name)
        return owner.path.parent if owner is not None else self._rootdir

    def _require_chosen(self, places: Iterable[Path]) -> None:
        chosen = SettingLookup(self._config).option("profiles") or ()
        if all(is_profile_name(name, self.root.defined) for name in chosen):
            return
        elsewhere = {name: PLAIN for place in places for name in _names_below(place)}
        for name in chosen:
            if not is_profile_name(name, {**self.root.defined, **elsewhere}):
                resolve_profiles([name], {**self.root.defined, **elsewhere})

    def _profiles(self, written: SettingLookup, defined: Mapping[str, Profile]) -> tuple[Profile, ...]:
        here, root = Path.cwd(), self._rootdir
        names, tokenizers, templates = (written.option(name) or () for name in _OF_PROFILES)
        if names:
            known = [name for name in names if is_profile_name(name, defined)]
            return overridden(resolve_profiles(known, defined), tokenizers, templates, here, root)
        if tokenizers or templates:
            return given_profiles(tokenizers, templates, here, root)
        owner = written.owner("profiles")
        if owner is not None:
            with raising(SettingsError, position=written.position("profiles")):
                return resolve_profiles(written.configured("profiles"), defined)
        if defined:
            return resolve_profiles((PLAIN.name, *defined), defined)
        names, tokenizers, templates = (written.ini(name) or () for name in _OF_PROFILES)
        own = given_profiles(tokenizers, templates, root, root) if tokenizers or templates else ()
        return (*resolve_profiles(names or (() if own else self._defaults), defined), *own)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Level:
    """The settings of a folder's files: the nearest one first."""

    settings: Settings
    files: tuple[SettingsFile, ...]
    defined: Mapping[str, Profile]


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
                continue  # reported where its tasks are collected
