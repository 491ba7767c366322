"""Where this package came from, and which packages tasks import: what CI has to install."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, metadata, packages_distributions, version
from pathlib import Path
from typing import Final

from pytest_promptfmt.core import gate

_OPTIONAL: Final = ("datasets", "sacrebleu", "scikit-learn")
"""What this package imports itself where it is installed, for data and metrics."""
_GITHUB: Final = re.compile(r"github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?$")


def action_reference() -> tuple[str, bool]:
    """Return the GitHub action as `owner/name@revision`, and whether that is what is installed here.

    A package that pip took from a repository is that commit of it (PEP 610), one of the index the tag of its version.
    """
    dist = distribution("pytest-promptfmt")
    source = next((url for url in dist.metadata.get_all("Project-URL", []) if url.startswith("Source,")), "")
    found = _GITHUB.search(source)
    name = found[1] if found else "OWNER/pytest-promptfmt"
    written = dist.read_text("direct_url.json")
    origin = json.loads(written) if written is not None else {}
    repository = origin.get("vcs_info")
    if repository is not None:
        found = _GITHUB.search(origin["url"])
        return f"{found[1] if found else name}@{repository['commit_id']}", found is not None
    return f"{name}@v{dist.version}", written is None


def imported_packages(files: Iterable[Path]) -> list[str]:
    """Return the installed packages that Python files import as requirements `name==version`, sorted."""
    by_module = packages_distributions()
    known = {name for file in files for module in _imports(file) for name in by_module.get(module, ())[:1]}
    names = {name for name in (*known, *_OPTIONAL) if _is_installed(name)} - {"pytest-promptfmt", "pytest_promptfmt"}
    return sorted(f"{metadata(name)['Name']}=={version(name).partition('+')[0]}" for name in names)


def _imports(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(gate.read_bytes(file))
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        yield from {name.partition(".")[0] for name in names} - sys.stdlib_module_names


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
