"""The value written for a setting: the command line over `promptfmt.yaml`, nearest file first, over the ini."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from pytest_promptfmt.core.errors import Position, SettingsError
from pytest_promptfmt.core.writing import leads_out
from pytest_promptfmt.settings.file import SettingsFile, find_settings_file, read_settings_file
from pytest_promptfmt.settings.table import BY_NAME, REPORTS, SETTINGS, Setting, ValueType


class Config(Protocol):
    """The part of a pytest config that reading settings needs."""

    @property
    def rootpath(self) -> Path:
        """Return the rootdir."""

    def getoption(self, name: str, default: Any = ...) -> Any:
        """Return the value of a command-line option."""

    def getini(self, name: str) -> Any:
        """Return an ini value."""


TRUST: Final = ("allow_code", "download", "rules", "task_modules")
"""The settings that let code run or the network be used."""


@dataclass(frozen=True, slots=True)
class SettingLookup:
    """The settings of a run, by their names in the table; None for those that are not written.

    Paths are absolute: those of the command line were relative to the working directory, those of a file to its
    folder, and those of the ini to the rootdir. Each method raises SettingsError for an invalid value.
    """

    config: Config
    files: Sequence[SettingsFile] = ()

    def value(self, name: str) -> Any:
        """Return the value of a setting."""
        given = self.option(name)
        return self.configured(name) if given is None else given

    def option(self, name: str) -> Any:
        """Return the value of the command line."""
        setting = BY_NAME[name]
        if not setting.option:
            return None
        given = self.config.getoption(setting.option)
        if isinstance(given, list) and not all(str(each).strip() for each in given):
            raise SettingsError(f"{setting.option} is empty", hint=f"write {setting.written}, or remove the setting")
        return _parsed(setting, given or None, setting.option, Path.cwd())

    def configured(self, name: str) -> Any:
        """Return the value of the nearest file with the key, else of the ini."""
        setting = BY_NAME[name]
        if name == "download" and self.option("no_code"):
            return None  # only the command line may allow it then
        if name in TRUST and self.option("trust"):
            return self._trusted(setting)
        file = self.owner(name)
        if file is not None:
            return _absolute(setting.kind, file.values[str(setting.key)], file.path.parent)
        return self.ini(name)

    def _trusted(self, setting: Setting) -> Any:
        """Return the value of the settings file of the base revision, else of the ini.

        Rules are run as they were there; other paths name files of this revision.
        """
        folder = self.trusted_rootdir
        path = find_settings_file(folder)
        values = read_settings_file(path, is_at_rootdir=True).values if path is not None else {}
        if setting.key is None or setting.key not in values:
            return self.ini(setting.name)
        base = folder if setting.name == "rules" else self.config.rootpath
        return _absolute(setting.kind, values[setting.key], base)

    @property
    def trusted_rootdir(self) -> Path:
        """Return where the rootdir is in the base revision, whose working directory the option names."""
        return Path(os.path.normpath(self.option("trust") / os.path.relpath(self.config.rootpath)))

    def ini(self, name: str) -> Any:
        """Return the value of the ini."""
        setting = BY_NAME[name]
        if setting.ini is None:
            return None
        found = self.config.getini(setting.ini)
        return _parsed(setting, found, f"the ini value {setting.ini}", self.config.rootpath)

    def owner(self, name: str) -> SettingsFile | None:
        """Return the nearest file that has the key of a setting."""
        key = BY_NAME[name].key
        return next((file for file in self.files if key in file.values), None)

    def position(self, name: str) -> Position | None:
        """Return the place of what holds for a setting, where that is a file."""
        owner = self.owner(name) if self.option(name) is None else None
        return owner.position(str(BY_NAME[name].key)) if owner is not None else None

    def repeated_options(self) -> Iterator[str]:
        """Yield the options that another run needs to render the same, as they were given."""
        for setting in SETTINGS:
            if not (setting.is_repeated and setting.option):
                continue
            given = self.config.getoption(setting.option) or None
            for value in given if isinstance(given, list) else [given]:
                if value is not None:
                    yield from (setting.option, str(value)) if setting.metavar else (setting.option,)


def _parsed(setting: Setting, written: Any, where: str, base: Path) -> Any:
    if written in (None, "", []):
        return None
    try:
        value = setting.kind.parse(written)
    except ValueError:
        raise SettingsError(f"{where} is {written!r}", hint=f"give {setting.kind.expected}") from None
    return None if value == () else _absolute(setting.kind, value, base)


def _absolute(kind: ValueType, value: Any, base: Path) -> Any:
    if not kind.is_path:
        return value
    if isinstance(value, tuple):
        return tuple(_absolute(kind, each, base) for each in value)
    return (base / Path(value).expanduser()).absolute()


def given_places(written: SettingLookup, paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the places that the command line names and that may lie outside the rootdir: files, or folders with all.

    `paths` are those to collect; of a file its folder is meant, because its includes lie next to it.
    """
    for path in paths:
        absolute = Path(path).absolute()
        yield absolute if absolute.is_dir() else absolute.parent
    for name in ("allow_path", "allow_code"):
        yield from written.option(name) or ()
    files = [written.option(name) for name in ("baseline", "left_out", "record", *REPORTS)]
    files += [Path(file) for _, _, file in (each.partition("=") for each in written.option("write") or ()) if file]
    # A path into the repository is that of a file of the repository, whatever the repository makes of it.
    yield from (file for file in files if file and not leads_out(file, written.config.rootpath))
    if written.option("trust"):
        yield written.trusted_rootdir
    for given in (*(written.option("tokenizers") or ()), *(written.option("chat_templates") or ())):
        place = Path.cwd() / Path(given.removeprefix("mistral:")).expanduser()
        if place.exists():
            yield place if place.is_dir() else place.parent
    model = written.option("model") or ""
    if model.startswith(("hf:", "replay:")):
        yield Path.cwd() / model.partition(":")[2]
