"""What is made from the table of settings for readers: the JSON Schema of `promptfmt.yaml`, and tables of the docs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytest_promptfmt.settings.setting_values import FLAG
from pytest_promptfmt.settings.table import KEYS, PROFILE_KEYS, SETTINGS, Setting


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of `promptfmt.yaml`."""
    properties = _properties(KEYS)
    properties["profiles"]["additionalProperties"] = {
        "type": "object",
        "properties": _properties(PROFILE_KEYS),
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of pytest-promptfmt",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _properties(keys: Mapping[str, Setting]) -> dict[str, Any]:
    return {key: {**each.kind.schema, "description": each.key_help or each.help} for key, each in keys.items()}


def settings_tables() -> Mapping[str, str]:
    """Return name to Markdown of the tables that the docs have of settings."""
    return {
        "options": _table("option", _options()),
        "ini values": _table("value", _ini_values()),
        "keys": _table("key", _keys(KEYS)),
        "profile keys": _table("key", _keys(PROFILE_KEYS)),
    }


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return "".join((f"| {title} | |\n|---|---|\n", *(f"| {name} | {text} |\n" for name, text in rows)))


def _options() -> Iterator[tuple[str, str]]:
    for setting in SETTINGS:
        if setting.option and not setting.is_hidden:
            yield f"`{setting.written}`", " ".join((setting.help, *_more(setting)))


def _more(setting: Setting) -> Iterator[str]:
    if setting.option and setting.is_repeatable:
        yield "Repeatable."
    if setting.page:
        yield f"See [{setting.page}]({setting.page})."


def _ini_values() -> Iterator[tuple[str, str]]:
    for setting in SETTINGS:
        if setting.ini is None:
            continue
        if not setting.option:
            text = " ".join((setting.ini_help or setting.help, *_more(setting)))
        elif setting.kind is FLAG:
            text = setting.ini_help or f"`true`: always act as with `{setting.option}`."
        else:
            text = setting.ini_help or f"As `{setting.option}`."
        yield f"`{setting.ini}`", text


def _keys(keys: Mapping[str, Setting]) -> Iterator[tuple[str, str]]:
    for key, setting in keys.items():
        yield f"`{key}`{' *(rootdir)*' if setting.at_rootdir else ''}", setting.key_help or setting.help
