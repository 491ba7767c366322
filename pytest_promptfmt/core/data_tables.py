"""Tables of the package: YAML files of `data/` and of slices, each read once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any


@cache
def data_table(name: str, folder: str = "data") -> Mapping[str, Any]:
    """Return the mapping in `<name>.yaml` of a folder of the package; its values are shared and must not be changed."""
    import yaml  # rendering needs no YAML otherwise

    text = (resources.files("pytest_promptfmt") / folder / f"{name}.yaml").read_text("utf-8")
    return MappingProxyType(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
