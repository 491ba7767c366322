"""Apply the fixes of docs/findings.md to a checkout, and show that each finding is gone.

    python benchmarks/findings.py CHECKOUT [--repository EleutherAI/lm-evaluation-harness]
    python benchmarks/findings.py --page > docs/findings.md

CHECKOUT is changed: take a copy, or `git checkout` the files afterwards. Its version should be the one of the page.
`rows` of a finding are written next to its task, where a rule needs rows of data.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

REPOSITORIES: Final[list[dict[str, Any]]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
_LINE: Final = re.compile(r"(?m)^(.+?):\d+(?::\d+)?: (?:error|warning|info): (PF\d{3}) ")
_INTRODUCTION: Final = """\
# 40 findings in published benchmarks

The rules found these mistakes in published task files and chat templates. Each was verified by hand. The issue
texts below each table describe what the mistakes do, and how to fix them.

This script applies the fixes to a copy of a checkout, and shows that the findings disappear. Findings 15 and 39 need
real data, so the script writes some rows next to these tasks. To see 13, 17 and 28, first save rows of the data sets
with [`promptfmt freeze`](more-commands.md#promptfmt-freeze):

<!-- not run: needs the checkout of a repository -->
```sh
python benchmarks/findings.py path/to/the/copy --repository EleutherAI/lm-evaluation-harness
```
"""


def found_in(root: Path, checked: list[str], codes: set[str]) -> dict[tuple[str, str], int]:
    """Return how often each code is reported at each file, by a run of `promptfmt check` in a folder."""
    command = [sys.executable, "-m", "pytest_promptfmt", "check", "--output-format", "concise"]
    select = [option for code in sorted(codes) for option in ("--select", code)]
    result = subprocess.run([*command, *select, *checked], cwd=root, capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1):
        sys.exit(result.stderr or result.stdout)
    found: dict[tuple[str, str], int] = {}
    for match in _LINE.finditer(result.stdout):
        found[match[1], match[2]] = found.get((match[1], match[2]), 0) + 1
    return found


def apply(root: Path, fixes: list[list[str]]) -> bool:
    """Replace the old texts by the new ones; return whether all were there."""
    for name, old, new in fixes:
        file = root / name
        text = file.read_text("utf-8") if file.is_file() else ""
        if old not in text:
            return False
        file.write_text(text.replace(old, new, 1), "utf-8")
    return True


def verify(checkout: Path, repository: dict[str, Any]) -> int:
    """Print a line for each finding of a repository; return how many are not gone."""
    root = checkout / repository["root"]
    findings = repository["findings"]
    checked = sorted({one.get("check", one["place"].partition(":")[0]) for one in findings})
    codes = {code for one in findings for code in one["rules"]}
    for name, rows in (each for one in findings for each in one.get("rows", {}).items()):
        (root / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    before = found_in(root, checked, codes)
    applied = {one["place"]: apply(root, one["fixes"]) for one in findings}
    after, remaining = found_in(root, checked, codes), 0
    for one in findings:
        file = one["place"].partition(":")[0]
        names = {file, one.get("check", file), *(name for name, _, _ in one["fixes"])}
        for code in one["rules"]:
            counts = [
                sum(n for (path, each), n in found.items() if each == code and path.endswith(tuple(names)))
                for found in (before, after)
            ]
            is_gone = applied[one["place"]] and counts[0] > 0 and counts[1] < (counts[0] if one.get("partly") else 1)
            remaining += not is_gone
            state = "gone" if is_gone else "NOT FOUND" if not counts[0] else "remains"
            print(f"{state:9} {code} {counts[0]} -> {counts[1]} {one['place']}")
    return remaining


def page() -> str:
    """Return docs/findings.md."""
    parts, number = [_INTRODUCTION], 0
    for repository in REPOSITORIES:
        parts.append(
            f"\n## {repository['repository']} at {repository['version']}\n\nFiles are below `{repository['root']}`.\n"
        )
        parts.append("\n| no. | file and line | rules | excerpt |\n|--:|---|---|---|\n")
        for one in repository["findings"]:
            number += 1
            rules = ", ".join(f"[{code}](rules/{code}.md)" for code in one["rules"])
            more = f" (and {one['more']})" if one.get("more") else ""
            saw = one["saw"].replace("|", "\\|")
            parts.append(f"| {number} | `{one['place']}`{more} | {rules} | `{saw}` |\n")
        parts += [f"\n### Issue: {issue['title']}\n\n{issue['text'].strip()}\n" for issue in repository["issues"]]
    return "".join(parts)


def main() -> int:
    """Print the page, or verify the findings of one repository; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [one["repository"] for one in REPOSITORIES]
    parser.add_argument("checkout", type=Path, nargs="?")
    parser.add_argument("--repository", choices=names, default=names[0])
    parser.add_argument("--page", action="store_true", help="print docs/findings.md")
    arguments = parser.parse_args()
    if arguments.page or arguments.checkout is None:
        print(page(), end="")
        return 0
    return int(verify(arguments.checkout, REPOSITORIES[names.index(arguments.repository)]) > 0)


if __name__ == "__main__":
    sys.exit(main())
