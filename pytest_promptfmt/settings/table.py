"""The settings as `data/settings.json` lists them: option, ini value and key of `promptfmt.yaml`, values and help.

Options, ini values, keys, their JSON Schema, how they are read, and the tables of the docs are made from this.
pytest imports this module at every start of every project: it imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from pytest_promptfmt.settings.setting_values import ValueType, type_named


class Setting(NamedTuple):
    """One setting and where it can be written: as an option, an ini value, a key of `promptfmt.yaml`.

    `written` is the option with the name of its value, `const` the value of an option that takes none, `default` that
    of an ini value that is not written. `at_rootdir`: only the file in the rootdir may have the key, since it lets
    code run or the network be used, or is read before any folder is entered. `is_repeated`: another run needs the
    option to render the same. `help` is Markdown; `ini_help` and `key_help` take its place for the ini value or key.
    `page` is the page of the docs about it. (A named tuple, which is made faster than a dataclass.)
    """

    name: str
    kind: ValueType
    written: str = ""
    const: Any = None
    ini: str | None = None
    key: str | None = None
    at_rootdir: bool = False
    default: Any = None
    is_repeated: bool = False
    is_hidden: bool = False
    help: str = ""
    ini_help: str = ""
    key_help: str = ""
    page: str = ""

    @property
    def option(self) -> str:
        """Return the option, "" if it has none."""
        return self.written.partition(" ")[0]

    @property
    def metavar(self) -> str | None:
        """Return what help calls the value of the option, None where it takes none."""
        return self.written.partition(" ")[2] or None

    @property
    def is_repeatable(self) -> bool:
        """Return whether the option can be given several times."""
        return self.kind.ini_type in ("args", "paths")


def _listed(kind: str) -> Iterator[Setting]:
    for row in _ROWS[kind]:
        written = row.pop("option", "")
        yield Setting(**{**row, "kind": type_named(row["kind"]), "written": written})


_ROWS: Final = json.loads((Path(__file__).parents[1] / "data/settings.json").read_text("utf-8"))

SETTINGS: Final = tuple(_listed("settings"))
"""Every setting, in the order of the docs."""

BY_NAME: Final = {setting.name: setting for setting in SETTINGS}

REPORTS: Final = ("patch", "json", "html")
"""The settings that name a file which the run writes."""

KEYS: Final = {setting.key: setting for setting in SETTINGS if setting.key is not None}
"""The settings that are keys of `promptfmt.yaml`, by key."""

PROFILE_KEYS: Final = {setting.name: setting for setting in _listed("profile")}
"""The keys of one profile in `promptfmt.yaml`."""
