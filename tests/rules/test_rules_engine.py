"""The engine of the rules: which rules run, what is ignored and by whom, rules of the user, and what a run reports."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import forked_runs
import pytest
from linting import linted, study_of

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.finding import shown
from pytest_promptfmt.rules.rule_registry import find_rule, known_rules, rule
from pytest_promptfmt.rules.rule_selection import Selection, parse_per_file, written_ignores
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex

ROOT = Path(__file__).parents[2]

TASK = r"""task: {name}
test_split: test
doc_to_text: "Question: {{{{question}}}}\nAnswer: "
doc_to_target: answer
filter_list: [{{name: strip, filter: [{{function: remove_whitespace}}, {{function: take_first}}]}}]
description: "{description}"
metadata:
  promptfmt:
    docs: [{{question: Which metal rusts?, answer: iron}}, {{question: Which metal is yellow?, answer: gold}}]
"""


def write_task(folder: Path, name: str, *, description: str = "", more: str = "") -> Path:
    path = folder / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TASK.format(name=name, description=description) + more, "utf-8")
    return path


def run(folder: Path, *options: str, ini: str = "", profile: str | None = "plain") -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}", "utf-8")
    chosen = [f"--promptfmt-profile={profile}"] if profile is not None else []
    return forked_runs.run(
        *("pytest", "--promptfmt", "-m", "promptfmt_lint", *chosen, "-p", "no:cacheprovider", *options),
        folder=folder,
        environment={**os.environ, "COLUMNS": "200", "PYTEST_ADDOPTS": ""},
    )


# -- selection --------------------------------------------------------------------------------------------------------


def chosen(**options: tuple[str, ...]) -> set[str]:
    return {each.code for each in Selection(rules=known_rules(), **options).chosen}  # type: ignore[arg-type]


def test_without_options_every_rule_runs() -> None:
    assert chosen() == set(known_rules())


def test_a_prefix_selects_a_family_and_a_code_one_rule() -> None:
    assert chosen(select=("PF2",)) == {code for code in known_rules() if code.startswith("PF2")}
    assert chosen(select=("PF203",)) == {"PF203"}


def test_the_longer_of_select_and_ignore_wins() -> None:
    assert "PF203" not in chosen(ignore=("PF2",))
    assert "PF203" in chosen(select=("PF203",), ignore=("PF2",))
    assert "PF203" not in chosen(select=("PF203",), ignore=("PF203",))
    assert "PF203" not in chosen(select=("PF2",), ignore=("PF203",))


def test_an_unknown_code_is_refused_with_a_suggestion() -> None:
    with pytest.raises(SettingsError, match=r"--promptfmt-ignore: unknown rule code or prefix 'PF20Z'") as caught:
        Selection(rules=known_rules(), ignore=("PF20Z",))
    assert str(caught.value.hint).startswith("did you mean 'PF2")


def test_per_file_lines_need_a_glob_and_codes() -> None:
    assert parse_per_file(["tasks/old/*.yaml: PF2, PF101"]) == (("tasks/old/*.yaml", ("PF2", "PF101")),)
    with pytest.raises(SettingsError, match="promptfmt_per_file_ignores"):
        parse_per_file(["tasks/old/*.yaml"])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"PF201": "in the paper"}, {"PF201": "in the paper"}),
        (["PF201", "PF2"], {"PF201": None, "PF2": None}),
        ("PF201", {"PF201": None}),
        (None, {}),
    ],
)
def test_ignores_of_a_task_are_a_mapping_with_reasons_or_a_list(written: object, read: dict[str, object]) -> None:
    assert written_ignores({"ignore": written}) == read


# -- registry ---------------------------------------------------------------------------------------------------------


def test_a_rule_is_found_by_code_and_by_name() -> None:
    assert find_rule("pf203").name == "glued-text"
    assert find_rule("glued-text").code == "PF203"


def test_an_unknown_rule_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(SettingsError) as caught:
        find_rule("PF714X")
    assert "PF714" in str(caught.value.hint)


@pytest.mark.parametrize(("code", "name"), [("acme1", "a"), ("PF999", "a"), ("ACME001", "Not A Name")])
def test_codes_and_names_of_the_wrong_shape_are_refused(code: str, name: str) -> None:
    with pytest.raises(SettingsError):
        rule(code, name)(lambda _view: ())


def test_codes_and_names_are_unique() -> None:
    rules = known_rules().values()
    assert len({each.name for each in rules}) == len(rules)
    assert list(known_rules()) == sorted(known_rules())


def test_the_text_that_was_seen_is_short_and_its_spaces_are_visible() -> None:
    assert shown("Answer: ") == "Answer:⟨SP⟩"
    assert shown("a\nb\u00a0") == "a⟨LF⟩b⟨NBSP⟩"
    assert len(shown("x" * 1000)) == 100


def keys_of(path: Path) -> dict[str, list[str]]:
    file = read_task_file(path, TaskIndex([path.parent]))
    assert file is not None
    selection = Selection(rules=known_rules(), rootdir=path.parent)
    found = linted(study_of(file.tasks[0], path.parent), selection).findings
    keys: dict[str, list[str]] = {}
    for finding in found:
        keys.setdefault(finding.code, []).extend(finding.stable_keys)
    return keys


def test_the_key_of_a_finding_outlives_edits_that_have_nothing_to_do_with_it(tmp_path: Path) -> None:
    stops = 'generation_kwargs: {until: ["\\\\n", "\\\\n\\\\n"]}\n'
    path = write_task(tmp_path, "metals", description="Name a metal.", more=stops)
    before = keys_of(path)
    assert {code: len(keys) for code, keys in before.items()} == {
        "PF202": 1,
        "PF203": 1,
        "PF803": 1,
        "PF902": 3,
    }
    assert len({key for keys in before.values() for key in keys}) == 6
    text = path.read_text("utf-8")
    docs = "docs: [{question: Which metal is new?, answer: tin}, "
    path.write_text("# a remark\n\n" + text.replace("docs: [", docs).replace("until: [", "until: [end, "), "utf-8")
    assert before.items() <= keys_of(path).items()
    path.write_text(text.replace("Name a metal.", "Name a metal.\\n"), "utf-8")
    assert set(keys_of(path)) == set(before) - {"PF203"}


# -- a run ------------------------------------------------------------------------------------------------------------


def test_warnings_pass_and_are_listed_once_at_the_end_with_a_count(tmp_path: Path) -> None:
    for number in range(3):
        write_task(tmp_path, f"metal_{number}")
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    assert ": warning: PF202 " in done.stdout
    assert "in 3 tasks" in done.stdout
    assert done.stdout.count("the prompt ends with a space") == 1
    assert "saw: " in done.stdout
    assert "⟨SP⟩" in done.stdout


def test_errors_fail_with_place_and_fix_and_are_reported_once(tmp_path: Path) -> None:
    for number in range(3):
        write_task(tmp_path, f"metal_{number}", description="Name a metal.")
    done = run(tmp_path)
    assert done.returncode == 1
    assert "metal_0.yaml:6:1 (description" in done.stdout
    assert "PF203 no space or newline between the description and the question" in done.stdout
    assert ": error: PF203 " in done.stdout
    assert "in 3 tasks" in done.stdout
    assert "3 failed" in done.stdout
    assert "2 of them for the same cause as a failure above" in done.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_findings_of_workers_are_gathered(tmp_path: Path, workers: str) -> None:
    for number in range(4):
        write_task(tmp_path, f"metal_{number}")
    done = run(tmp_path, "-n", workers)
    assert ": warning: PF202 " in done.stdout
    assert "in 4 tasks" in done.stdout


def test_infos_are_shown_with_v_or_when_selected(tmp_path: Path) -> None:
    path = write_task(tmp_path, "metals")
    keys = "output_type: loglikelihood\ngeneration_kwargs: {max_gen_toks: 32}\n"
    path.write_text(keys + path.read_text("utf-8"), "utf-8")
    assert "PF106" not in run(tmp_path).stdout
    assert "PF106" in run(tmp_path, "-v").stdout
    assert "PF106" in run(tmp_path, "--promptfmt-select", "PF106").stdout


def test_codes_are_ignored_by_option_by_file_and_by_the_task_itself(tmp_path: Path) -> None:
    write_task(tmp_path, "metals")
    assert "PF202" not in run(tmp_path, "--promptfmt-ignore", "PF202").stdout
    assert "PF202" not in run(tmp_path, ini="promptfmt_per_file_ignores =\n  met*.yaml: PF2\n").stdout
    write_task(tmp_path, "metals", more="    ignore: {PF202: the space is in the paper}\n")
    done = run(tmp_path)
    assert "PF202" not in done.stdout
    assert "PF002" not in done.stdout


def test_ignores_that_match_nothing_are_reported(tmp_path: Path) -> None:
    write_task(tmp_path, "metals", more="    ignore: {PF203: it was so, PFX: mistyped}\n")
    write_task(tmp_path / "far", "other")
    lines = ("met*.yaml", "other*.yaml", "far/*.yaml", "gone*.yaml", "nowhere/*.yaml")
    ini = "promptfmt_per_file_ignores =\n" + "".join(f"  {glob}: PF7\n" for glob in lines)
    done = run(tmp_path, "metals.yaml", ini=ini)
    assert ": warning: PF001 " in done.stdout
    assert ": warning: PF002 " in done.stdout
    assert "'met*.yaml' no longer ignores any finding" in done.stdout
    assert "'gone*.yaml' no longer matches any file" in done.stdout
    assert "'nowhere/*.yaml' no longer matches any file" in done.stdout
    assert "other*.yaml" not in done.stdout  # files of another run
    assert "far/*.yaml" not in done.stdout


def test_an_unknown_code_on_the_command_line_ends_the_run_with_one_message(tmp_path: Path) -> None:
    done = run(tmp_path, "--promptfmt-select", "PF9999")
    assert done.returncode == 4
    assert "promptfmt: --promptfmt-select: unknown rule code or prefix 'PF9999'" in done.stderr + done.stdout


def test_a_task_that_cannot_be_rendered_fails_its_lint_item_and_is_checked_as_far_as_it_is_written(
    tmp_path: Path,
) -> None:
    path = write_task(tmp_path, "metals")
    text = path.read_text("utf-8").replace("{{question}}", "{{qestion}}")
    path.write_text(text + 'generation_kwargs: {until: ["\\n", "\\n\\n"]}\n', "utf-8")
    done = run(tmp_path)
    assert done.returncode == 1
    assert "did you mean 'question'?" in done.stdout
    assert "PF902" in done.stdout


def test_a_group_without_tasks_of_its_own_has_a_lint_item(tmp_path: Path) -> None:
    write_task(tmp_path, "metals")
    (tmp_path / "group.yaml").write_text("group: all_metals\ntask: [metals, mettals]\n", "utf-8")
    done = run(tmp_path, "-v")
    assert "group.yaml::lint" in done.stdout
    assert ": PF131 " in done.stdout  # a warning where no lm-eval is installed that may have the member
    assert "1 passed" in run(tmp_path, "--promptfmt-task", "metals").stdout, "the group was not chosen"
    assert "did you mean 'metals'?" in done.stdout


def test_what_a_rule_tells_is_no_warning_of_pytest_as_well(tmp_path: Path) -> None:
    (tmp_path / "metals.yaml").write_text(
        "task: metals\ntest_split: test\nformats: mcqa\ntarget_delimiter: ': '\ntarget_delimiter: ':'\n"
        "doc_to_text: '{{question}}'\ndoc_to_choice: choices\ndoc_to_target: answer\n"
        "metadata: {promptfmt: {docs: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]}}\n",
        "utf-8",
    )
    (tmp_path / "group.yaml").write_text("group: all_metals\ntask: [metals, mettals]\n", "utf-8")
    done = run(tmp_path)
    assert "PF101 " in done.stdout
    assert ": PF131 " in done.stdout  # a warning where no lm-eval is installed that may have the member
    assert "PF103 " in done.stdout
    assert "PromptfmtWarning" not in done.stdout
    assert "PromptfmtWarning" in run(tmp_path, "-m", "promptfmt_snapshot", ini="promptfmt_lint = false\n").stdout


# -- rules of the user ------------------------------------------------------------------------------------------------

HOUSE_RULES = ROOT / "fixtures" / "rules" / "house_rules.py"


def test_a_rule_of_the_user_runs_is_explained_and_may_fail_without_harm(tmp_path: Path) -> None:
    write_task(tmp_path, "METALS", description=r"Answer!\n\n")
    shutil.copy(HOUSE_RULES, tmp_path)
    done = run(tmp_path, ini="promptfmt_rules = house_rules.py\n")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ACME001 the prompt shouts" in done.stdout
    assert ": warning: ACME002 " in done.stdout
    assert "the rule ACME003 failed" in done.stdout
    assert "KeyError: 'METALS'" in done.stdout
    shown = promptfmt("explain", "shouting", "--rules", str(HOUSE_RULES))
    assert "Our prompts keep calm" in shown.stdout


def test_a_mistake_in_several_profiles_is_one_finding_of_the_one_lint_item_and_names_them(tmp_path: Path) -> None:
    write_task(tmp_path, "metals", more="    profiles: [chat-llama3, chat-chatml]\n    ignore: {PF203: as it was}\n")
    shutil.copy(HOUSE_RULES, tmp_path)
    done = run(tmp_path, "-v", ini="promptfmt_rules = house_rules.py\npromptfmt_profiles = plain\n", profile=None)
    assert [line.split()[0] for line in done.stdout.splitlines() if "::metals::" in line] == [
        "metals.yaml::metals::lint"
    ], done.stdout
    assert ": warning: PF202 " in done.stdout
    assert ": warning: ACME004 " in done.stdout
    assert "in 1 task: metals, profiles chat-llama3, chat-chatml" in done.stdout
    assert ": warning: PF002 " in done.stdout
    assert "metals::lint" in run(tmp_path, "-v", profile="plain").stdout


def test_an_installed_package_offers_rules_through_its_entry_point(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "acme_rules-1.0.dist-info").mkdir(parents=True)
    (site / "acme_rules-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme_rules\nVersion: 1.0\n"
    )
    (site / "acme_rules-1.0.dist-info" / "entry_points.txt").write_text("[pytest_promptfmt.rules]\nall = acme_rules\n")
    shutil.copy(HOUSE_RULES, site / "acme_rules.py")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    listed = promptfmt("explain", PYTHONPATH=path).stdout
    assert "ACME001  error    shouting" in listed


def test_a_file_of_rules_that_is_not_there_ends_the_run_with_one_message(tmp_path: Path) -> None:
    done = run(tmp_path, ini="promptfmt_rules = no_rules.py\n")
    assert done.returncode == 4
    assert "no_rules.py: this file of rules does not exist" in done.stderr + done.stdout


# -- the command ------------------------------------------------------------------------------------------------------


def promptfmt(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked_runs.run("pytest_promptfmt", *arguments, environment={**os.environ, **environment})


def test_explain_tells_why_with_examples_and_lists_all_without_a_code() -> None:
    shown = promptfmt("explain", "PF203")
    assert shown.returncode == 0
    assert "## Why" in shown.stdout
    assert 'description: "Answer with the correct letter."' in shown.stdout
    listed = promptfmt("explain").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [code for code in known_rules() if code.startswith("PF")]


def test_explain_of_an_unknown_code_suggests_one() -> None:
    shown = promptfmt("explain", "glued-txt")
    assert shown.returncode == 2
    assert "did you mean PF203 (glued-text)?" in shown.stderr


# -- kinds of docs ----------------------------------------------------------------------------------------------------

WITH_SIDECAR = r"""task: {name}
dataset_path: nowhere/docs
test_split: test
output_type: multiple_choice
doc_to_text: "Q: {{{{question}}}}\nA:"
doc_to_choice: choices
doc_to_target: "{{{{answer}}}}"
"""
ROWS = """{"question": "What rusts?", "choices": ["iron", "tin"], "answer": "Iron"}
{"question": "What floats?", "choices": ["cork", "lead"], "answer": "cork"}
"""


def test_a_file_called_synthetic_has_the_findings_of_any_other_name(tmp_path: Path) -> None:
    found: dict[str, list[tuple[str, str]]] = {}
    for name in ("answers", "synthetic_answers"):
        (tmp_path / f"{name}.yaml").write_text(WITH_SIDECAR.format(name=name), "utf-8")
        (tmp_path / f"{name}.docs.jsonl").write_text(ROWS, "utf-8")
        run(tmp_path, "--promptfmt-json", "out.json", f"{name}.yaml", "-v")
        out = json.loads((tmp_path / "out.json").read_text("utf-8"))
        found[name] = [(finding["code"], finding["message"]) for finding in out["findings"]]
    assert "PF701" in dict(found["answers"])
    assert found["synthetic_answers"] == found["answers"]
