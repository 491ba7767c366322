"""The optional slices of the package, and which of them are there.

A test outside a slice that needs one has the mark `needs(NAME)`; tests of a slice are in its own folder of tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import pytest_promptfmt

PACKAGE = Path(pytest_promptfmt.__file__).parent


@dataclass(frozen=True)
class Slice:
    """A folder of the package, the line that names it in a registry, and the folder of its tests."""

    folder: str
    registry: str
    line: str
    tests: str


SLICES = {
    "helm": Slice("systems/helm", "systems/__init__.py", '    "helm",\n', "system_helm"),
    "eval_framework": Slice(
        "systems/eval_framework", "systems/__init__.py", '    "eval_framework",\n', "system_eval_framework"
    ),
    "templates": Slice("systems/templates", "systems/__init__.py", '    "templates",\n', "system_templates"),
    "models": Slice("models", "rules/rule_registry.py", '"models.model_rules",', "models"),
}
MISSING = frozenset(name for name, part in SLICES.items() if not (PACKAGE / part.folder).exists())


def is_missing(module: str) -> bool:
    """Return whether a module, by its path in the package, was deleted with its slice."""
    return any(module.startswith(f"{SLICES[name].folder}/") for name in MISSING)


def needs(*names: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests where one of these slices was deleted."""
    missing = sorted(MISSING.intersection(names))
    return pytest.mark.skipif(bool(missing), reason=f"needs the slice {', '.join(missing)}")
