"""Prints `data/registered.yaml`: digests of the filters, metrics and aggregations of releases of lm-eval.

Give the folders of their packages: `python scripts/registered_code.py DIR/0.4.0/lm_eval DIR/0.4.13/lm_eval`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_promptfmt.core import gate
from pytest_promptfmt.tasks.harness import Harness


def main() -> None:
    """Print the table for the packages that are given."""
    print("# Digests of what releases 0.4.0 to 0.4.13 of lm-eval register; made by scripts/registered_code.py.")
    for kind in ("filter", "metric", "aggregation"):
        found: dict[str, set[str]] = {}
        for folder in map(Path, sys.argv[1:]):
            with gate.also_reading(folder):
                for name, each in Harness(folder, is_installed=False).registrations(kind).items():
                    found.setdefault(name, set()).add(each.digest)
        print(f"{kind}:")
        for name, digests in sorted(found.items()):
            print(f"  {name}: [{', '.join(sorted(digests))}]")


if __name__ == "__main__":
    main()
