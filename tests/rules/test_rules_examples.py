"""Every rule finds the mistake of its own example, and nothing in the example without it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from linting import study_of
from rule_examples import write_example
from slices import MISSING, PACKAGE
from syrupy.assertion import SnapshotAssertion

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import MissingResourceError, PromptfmtError
from pytest_promptfmt.core.finding import Finding, Reported
from pytest_promptfmt.core.profile import Profile, resolve_profiles
from pytest_promptfmt.formats import laid_out
from pytest_promptfmt.rules.documentation import documentation_of, remedy_of
from pytest_promptfmt.rules.linter import Linter, check_file, check_scoring
from pytest_promptfmt.rules.rule_registry import Rule, known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.settings.file import read_settings_file
from pytest_promptfmt.settings.profiles import defined_profiles, task_profiles
from pytest_promptfmt.study import seen_by
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex

RULES = {code: rule for code, rule in known_rules().items() if rule.is_builtin}
TASKS = (".yaml", ".yml", ".json", "chat_template.jinja")
ASKED = {"model"}  # scopes of rules whose examples need a model: tests/models runs them
WITH_EXAMPLE = [code for code, rule in RULES.items() if documentation_of(rule).example and rule.scope not in ASKED]


def profiles_in(folder: Path) -> dict[str, Profile]:
    path = folder / "promptfmt.yaml"
    if not path.exists():
        return {}
    return defined_profiles(read_settings_file(path, is_at_rootdir=True), rootdir=folder)


def findings_in(
    folder: Path, example: str, *, renders: bool = False, rules: Mapping[str, Rule] = RULES
) -> list[Reported]:
    written = write_example(example, folder)
    files = [path for path in written if path.name.endswith(TASKS) and path.parent == folder]
    files = [path for path in files if path.stem not in ("promptfmt", "tokenizer")]
    own = profiles_in(folder)
    linter = Linter()
    selection = Selection(rules=rules, rootdir=folder)
    index = TaskIndex([folder])
    found: list[Reported] = []
    for path in files:
        file = read_task_file(path, index)
        if file is None and path.suffix == ".jinja" and "templates" in MISSING:
            pytest.skip("the example is a chat template, which a slice reads")
        assert file is not None
        view = None if file.yaml is None else FileView(path=path, yaml=file.yaml, file=file, index=index)
        tasks = [task for base in file.tasks for task in laid_out(base, ())]
        if not tasks:
            assert view is not None
            found += check_file(view, selection).findings
        for number, task in enumerate(tasks):
            study = study_of(task, folder)
            views = [seen_by(study, each) for each in task_profiles(task, resolve_profiles(("plain", *own), own), own)]
            if renders:  # else a rule would have nothing to look at, and be silent for that
                for each in views:
                    with suppress(MissingResourceError):  # lm-eval need not be installed
                        each.render()
            found += linter.check(study, selection, views, file=None if number else view).findings
            if task.output_type in ("generate_until", "multiple_choice"):
                with suppress(PromptfmtError):  # as a task that cannot be rendered
                    found += check_scoring(study, selection, is_linted=True).findings
    return found


OF_HARNESS = {"PF117", "PF131"}  # they know less where the harness is not installed


def places(found: Sequence[Reported], code: str) -> list[str]:
    """Return what findings of a rule have besides their words, which people may change: severity, place, own fix."""
    usual = {remedy_of(part) for part in RULES[code].all_parts}
    return [
        " ".join(
            [
                "-" if code in OF_HARNESS else one.severity,
                f"{one.position.path.name}:{one.position.line}:{one.position.column}" if one.position else "-",
                ".".join(map(str, one.keys)) or "-",
                f"doc {one.doc} {one.field} {one.span} {' '.join(one.profiles)}".replace("None", "-").rstrip(),
                *["own fix"] * (one.do not in usual and code not in OF_HARNESS),
            ]
        )
        for one in found
        if one.code == code
    ]


@pytest.mark.parametrize("code", WITH_EXAMPLE)
def test_the_example_of_a_rule_triggers_it(code: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    if code == "PF467":
        pytest.importorskip("transformers.utils.chat_parsing.response_parser", reason="which reads the answers")
    found = findings_in(tmp_path, documentation_of(RULES[code]).example)
    own = [finding for finding in found if finding.code == code]
    assert own, [str(finding) for finding in found]
    assert places(found, code) == snapshot
    assert all((str(tmp_path.name) in finding.where or not finding.task) and finding.do for finding in own)
    assert not [str(finding) for finding in found if finding.code == "PF003"]


@pytest.mark.parametrize("code", WITH_EXAMPLE)
def test_the_silent_example_of_a_rule_is_silent(code: str, tmp_path: Path) -> None:
    found = findings_in(tmp_path, documentation_of(RULES[code]).silent, renders=True)
    assert not [str(finding) for finding in found if finding.code in (code, "PF003")]


PARTS = {(code, part.function.__name__): part for code, rule in RULES.items() for part in rule.parts}
HEADS = {(code, rule.function.__name__) for code, rule in RULES.items()}
# `name.word` is another case of the part `name`
CASES = [(code, name) for code, cases in data_table("rule_cases").items() for name in cases]
OF_PARTS = [(code, name) for code, name in CASES if (code, name.partition(".")[0]) in PARTS]


def test_every_further_part_of_a_rule_has_a_case_and_no_case_is_of_nothing() -> None:
    assert {(code, name.partition(".")[0]) for code, name in CASES} - HEADS == set(PARTS)
    assert set(PARTS) <= set(CASES)


@pytest.mark.parametrize(("code", "name"), OF_PARTS, ids=str)
def test_a_part_of_a_rule_reports_its_example_and_not_the_silent_one(
    code: str, name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    part = PARTS[code, name.partition(".")[0]]
    page = documentation_of(part, name)
    if "aggregation: bleu" in page.example:
        pytest.importorskip("sacrebleu", reason="which computes this score")
    found = findings_in(tmp_path / "example", page.example, rules={code: replace(part, parts=[])})
    assert [finding for finding in found if finding.code == code and finding.do]
    assert places(found, code) == snapshot
    found = findings_in(tmp_path / "silent", page.silent, renders=True, rules={code: replace(part, parts=[])})
    assert not [str(finding) for finding in found if finding.code in (code, "PF003")]
    assert page.summary.startswith("Report ")


TABLES = [data_table("rule_cases", str(path.parent.relative_to(PACKAGE))) for path in PACKAGE.rglob("rule_cases.yaml")]
OF_HEADS = [
    (code, name)
    for table in TABLES
    for code, cases in table.items()
    for name in cases
    if "." in name and (code, name.partition(".")[0]) in HEADS
]


@pytest.mark.parametrize(("code", "name"), OF_HEADS, ids=str)
def test_another_case_of_a_rule_is_reported_and_the_silent_one_is_not(
    code: str, name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    rules, page = {code: replace(RULES[code], parts=[])}, documentation_of(RULES[code], name)
    found = findings_in(tmp_path / "example", page.example, rules=rules)
    assert [finding for finding in found if finding.code == code and finding.do]
    assert places(found, code) == snapshot
    found = findings_in(tmp_path / "silent", page.silent, renders=True, rules=rules)
    assert not [str(finding) for finding in found if finding.code in (code, "PF003")]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_is_documented(rule: Rule) -> None:
    page = documentation_of(rule)
    assert page.summary.startswith("Report ")
    assert page.why
    assert page.fix
    if rule.code != "PF003":  # no task makes a built-in rule fail
        assert page.example
        assert page.silent
        assert page.real


def test_silent_with_gives_the_example_with_other_keys_and_files() -> None:
    def rule(_study: object) -> Iterator[Finding]:
        """Report nothing.

        Example:
            # file: example.yaml
            doc_to_text: !function helper.asked
            metadata:
              note: one
            # file: helper.py
            asked = 1

        Silent with:
            # file: example.yaml
            metadata: {note: two}
            target_delimiter: ""
        """
        yield from ()

    documented = documentation_of(replace(next(iter(RULES.values())), function=rule))
    assert documented.silent == (
        "# file: example.yaml\ndoc_to_text: !function helper.asked\n"
        'metadata: {note: two}\ntarget_delimiter: ""\n# file: helper.py\nasked = 1'
    )
