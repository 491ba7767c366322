"""Writes the generated pages and sections of docs/: a page for each rule, their list, formats and settings.

    python scripts/docs_pages.py

A section of a page is between the comments `<!-- generated: NAME -->` and `<!-- generated: end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pytest_promptfmt.cli.explain import catalogue
from pytest_promptfmt.core.finding import Family
from pytest_promptfmt.formats.format_registry import published_format, published_names
from pytest_promptfmt.formats.variants import axes
from pytest_promptfmt.rules.documentation import documentation_of, page
from pytest_promptfmt.rules.rule_registry import Rule, known_rules
from pytest_promptfmt.settings.table import PROFILE_KEYS, SETTINGS, Setting

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGES: Final = ("formats.md", "formats-catalogue.md", "settings.md", "profiles.md")
"""The pages with generated sections."""

_SECTION: Final = re.compile(
    r"(?P<begin><!-- generated: (?P<name>.+?) -->\n).*?(?P<end><!-- generated: end -->\n)", re.DOTALL
)


def rule_pages() -> dict[str, str]:
    """Return file name to text of everything in docs/rules."""
    rules = [rule for rule in known_rules().values() if rule.is_builtin]
    return {"README.md": index_page(rules)} | {f"{rule.code}.md": page(rule) for rule in rules}


def with_sections(text: str) -> str:
    """Return the text of a page with new sections."""
    known = sections()
    return _SECTION.sub(lambda match: match["begin"] + known[match["name"]] + match["end"], text)


def sections() -> Mapping[str, str]:
    """Return the sections of pages: published formats, the axes of variants, and tables of settings."""
    formats = {kind: catalogue(map(published_format, names)) for kind, names in published_names().items()}
    rows = [
        f"| `{axis.name}` | {axis.summary} | {', '.join(f'`{value}`' for value in axis.values)} |\n"
        for axis in axes().values()
    ]
    table = "| axis | what differs | values |\n|---|---|---|\n" + "".join(rows)
    return {name: f"\n{text}\n" for name, text in {**formats, "axes": table, **settings_tables()}.items()}


def index_page(rules: Iterable[Rule]) -> str:
    """Return the page that lists all rules."""
    lines = [
        "# Every rule",
        "",
        "A finding with severity error fails the test. Warnings are printed at the end of the run. Infos are printed",
        "only with `-v`. [Rules](../rules.md) explains how to select, ignore and write rules. Each rule has a page",
        "with examples. These show only the keys of a task that matter for the rule.",
        "",
    ]
    ordered = sorted(rules, key=lambda rule: rule.code)
    for family in Family:
        members = [rule for rule in ordered if rule.family is family]
        if members:
            lines += [f"## {family[0].upper()}{family[1:]}", "", "| code | name | severity | |", "|---|---|---|---|"]
            for rule in members:
                summary = documentation_of(rule).summary.replace("|", r"\|")
                lines.append(f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} | {summary} |")
            lines.append("")
    return "\n".join(lines)


# -- settings ----------------------------------------------------------------------------------------------------------

_TITLES: Final = {
    "baseline.md": "Baselines",
    "chat-templates.md": "Chat templates",
    "ci.md": "Continuous integration",
    "docs-sources.md": "Where docs come from",
    "formats.md": "Formats",
    "lm-eval.md": "Compatibility with lm-eval",
    "models.md": "A model in the loop",
    "profiles.md": "Profiles",
    "report.md": "The HTML report",
    "rules.md": "Rules",
    "scoring.md": "Answers and scores",
    "security.md": "Untrusted files",
    "snapshots.md": "Snapshots",
    "task-classes.md": "Task classes",
    "versions.md": "Versions",
}
"""The pages of the docs about settings, with their titles."""


def settings_tables() -> Mapping[str, str]:
    """Return name to Markdown of the tables that the docs have of settings."""
    return {
        "settings": _table("option, ini value, key", map(_row, (each for each in SETTINGS if not each.is_hidden))),
        "profile keys": _table("key", ((f"`{key}`", setting.help) for key, setting in PROFILE_KEYS.items())),
    }


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return "".join((f"| {title} | meaning |\n|---|---|\n", *(f"| {name} | {text} |\n" for name, text in rows)))


def _row(setting: Setting) -> tuple[str, str]:
    """Return all names of a setting, and its meaning, with what differs in the ini file or in `promptfmt.yaml`."""
    names = [f"`{name}`" for name in (setting.written, setting.ini) if name]
    names += [f"`{setting.key}:`{' *(rootdir)*' if setting.at_rootdir else ''}"] if setting.key else []
    own = {setting.ini_help: "Ini file", setting.key_help: "`promptfmt.yaml`"}
    own |= {setting.ini_help: "In files"} if setting.ini_help == setting.key_help else {}
    more = ["Repeatable."] if setting.option and setting.is_repeatable else []
    more += [f"See [{_TITLES[setting.page]}]({setting.page})."] if setting.page else []
    texts = [" ".join((setting.help, *more)), *(f"{where}: {text}" for text, where in own.items() if text)]
    return "<br>".join(names), "<br>".join(texts)


def main() -> None:
    """Write all pages."""
    for name, text in rule_pages().items():
        (DOCS / "rules" / name).write_text(text, "utf-8")
    for name in PAGES:
        (DOCS / name).write_text(with_sections((DOCS / name).read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
