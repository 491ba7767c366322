"""What filters read of sentences that differ in one thing: which patterns are reported, and which are left alone."""

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from linting import study_of
from rule_examples import complete

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Reported
from pytest_promptfmt.rules.linter import Linter, check_scoring
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex

SELECTION = Selection(rules=known_rules())
OPTIONS = "{{question}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nC. {{choices[2]}}"
LETTERS = "doc_to_target: \"{{'ABC'[answer]}}\"\n"
ROWS = '[{question: How many metres are 2 km?, answer: "2000"}]'
NUMBERS = f'doc_to_target: "{{{{answer}}}}"\nmetadata: {{promptfmt: {{docs: {ROWS}}}}}\n'


def found_in(folder: Path, task: str) -> dict[str, str]:
    """Return code to the highest severity of what is said about a generation task, its filters tried."""
    order = ["info", "warning", "error"]
    reported = sorted(reported_in(folder, task), key=lambda one: order.index(str(one.severity)))
    return {one.code: str(one.severity) for one in reported}


def severity_of(message: str, folder: Path, task: str) -> str | None:
    """Return the severity of the finding with these words, None without one."""
    return next((str(one.severity) for one in reported_in(folder, task) if message in one.message), None)


def reported_in(folder: Path, task: str) -> list[Reported]:
    """Return what is said about a generation task, its filters tried."""
    (folder / "example.yaml").write_text(complete("output_type: generate_until\n" + task), "utf-8")
    file = read_task_file(folder / "example.yaml", TaskIndex([folder]))
    assert file is not None
    study = study_of(file.tasks[0], folder)
    found = list(Linter().check(study, SELECTION).findings)
    return [*found, *check_scoring(study, SELECTION, is_linted=True).findings]


def filters(pattern: str, select: int = 0) -> str:
    step = f"{{function: regex, regex_pattern: '{pattern}', group_select: {select}}}"
    return f"filter_list: [{{name: x, filter: [{step}, {{function: take_first}}]}}]\n"


@pytest.mark.parametrize(
    ("pattern", "codes"),
    [
        (r"[Tt]he answer is \(?([A-C])\b", set()),
        (r"answer is \(?([A-C])\b", set()),
        (r"([AB])\b", {"PF504"}),
        (r"(?i)answer[: is]*([A-C])", {"PF504"}),
        (r"RESULT=([A-C])\b", {"PF525"}),
        (r"(?<=answer is )(.*)(?=.)", {"PF502"}),
    ],
)
def test_patterns_for_letters(tmp_path: Path, pattern: str, codes: set[str]) -> None:
    task = f'doc_to_text: "{OPTIONS}\\nThink step by step."\n{LETTERS}{filters(pattern, -1)}'
    found = found_in(tmp_path, task)
    assert {code for code in found if code.startswith("PF5") and found[code] != "info"} == codes


@pytest.mark.parametrize(
    ("pattern", "select", "codes"),
    [
        (r"(-?[0-9][0-9,]*(?:\.[0-9]+)?)", -1, set()),
        (r"(-?[0-9]+)", -1, {"PF504"}),
        (r"(-?[0-9][0-9,]*)", 0, {"PF504"}),
        (r"(-?[0-9,]+(?:.[0-9]+)?)", -1, {"PF502", "PF504"}),
    ],
)
def test_patterns_for_numbers(tmp_path: Path, pattern: str, select: int, codes: set[str]) -> None:
    task = f'doc_to_text: "{{{{question}}}}\\nThink step by step."\n{NUMBERS}{filters(pattern, select)}'
    found = found_in(tmp_path, task)
    assert {code for code in found if code.startswith("PF5") and found[code] != "info"} == codes


def test_a_sentence_that_nothing_asks_for_is_only_noted_after_a_cue_for_the_letter(tmp_path: Path) -> None:
    found = found_in(tmp_path, f'doc_to_text: "{OPTIONS}\\nAnswer:"\n{LETTERS}{filters("([A-C])")}')
    assert found["PF504"] == "info"


@pytest.mark.parametrize(("end", "severity"), [("Adım adım düşünelim. Çözüm", "info"), ("Think hard", "warning")])
def test_an_english_sentence_is_only_noted_in_a_prompt_of_another_language(
    tmp_path: Path, end: str, severity: str
) -> None:
    task = f'doc_to_text: "{OPTIONS}\\n{end}."\n{LETTERS}{filters("([ABC])")}'
    assert severity_of("finds some option labels, but not others", tmp_path, task) == severity


def test_words_that_the_prompt_names_may_be_demanded(tmp_path: Path) -> None:
    text = f'doc_to_text: "End with RESULT= and the letter.\\n{OPTIONS}\\n"\n'
    assert "PF525" not in found_in(tmp_path, text + LETTERS + filters(r"RESULT=([A-C])\b"))


@pytest.mark.parametrize(("pattern", "is_reported"), [("answer is (.*)(?=.)", False), (r"answer is ([a-z]+)\.", True)])
def test_requested_brackets_may_be_part_of_answers_that_docs_do_not_show(
    tmp_path: Path, pattern: str, is_reported: bool
) -> None:
    text = 'doc_to_text: "Q: {{input}}\\nEnd with \\"The answer is ([answer]).\\"\\n"\ndoc_to_target: "{{target}}"\n'
    found = found_in(tmp_path, f"{text}{filters(pattern)}metadata: {{version: 1}}\n")
    assert (found.get("PF525") == "error") == is_reported


@pytest.mark.parametrize(("pattern", "is_reported"), [(r"Antwort: *([A-C])", True), (r"Antwort: *([A-C])\b", False)])
def test_a_cue_in_another_language_may_be_repeated(tmp_path: Path, pattern: str, is_reported: bool) -> None:
    asked = "Denke Schritt für Schritt und schreibe in die letzte Zeile 'Antwort: X'."
    found = found_in(tmp_path, f'doc_to_text: "{OPTIONS}\\n{asked}\\n"\n{LETTERS}{filters(pattern)}')
    assert ("PF504" in found) is is_reported


def test_a_pronoun_is_no_option(tmp_path: Path) -> None:
    listed = "{% for c in choices %}{{'ABCDEFGHI'[loop.index0]}}. {{c}}\\n{% endfor %}"
    rows = "[{question: Which rusts?, choices: [a1, b1, c1, d1, e1, f1, g1, h1, i1], answer: 2}]"
    task = f'doc_to_text: "{{{{question}}}}\\n{listed}Think step by step.\\n"\n'
    task += f"doc_to_target: \"{{{{'ABCDEFGHI'[answer]}}}}\"\nmetadata: {{promptfmt: {{docs: {rows}}}}}\n"
    assert "PF504" in found_in(tmp_path, task + filters(r"\b([A-I])\b", -1))
    assert "PF504" not in found_in(tmp_path, task + filters(r"answer is \(?([A-I])\b", -1))


def test_a_first_letter_beside_a_filter_for_another_language_is_a_warning(tmp_path: Path) -> None:
    first, other = filters("([A-C])"), filters("([A-C]) .{0,2}kk.d.r")
    both = f"{other.rstrip(chr(10))[:-1]}, {first[len('filter_list: [') :]}"
    task = f'doc_to_text: "{OPTIONS}\\nThink step by step.\\n"\n{LETTERS}'
    assert found_in(tmp_path, task + first)["PF504"] == "error"
    assert found_in(tmp_path, task + both)["PF504"] == "warning"


def test_of_two_pipelines_one_may_be_strict(tmp_path: Path) -> None:
    steps = "filter: [{function: regex, regex_pattern: '%s', group_select: -1}, {function: take_first}]"
    both = f"{{name: strict, {steps % '#### ([0-9,]+)'}}}, {{name: last, {steps % '([0-9][0-9,]*)'}}}"
    found = reported_in(tmp_path, f"{NUMBERS}filter_list: [{both}]\n")
    needs_words = [one for one in found if "needs words" in one.message]
    assert [str(one.severity) for one in needs_words] == ["info"], "0 examples give 0 right answers in one of them"
    assert not [one for one in found if "part of the reasoning" in one.message or "part of a number" in one.message]


@given(
    pattern=st.one_of(
        st.sampled_from(
            [r"(.*)", r"()", r"^", r"(A)|(B)", r"[^A]", r".", r"(?=.)", r"(\d)?", r"\b", r"answer is ([A-C]?)"]
        ),
        st.text(alphabet="AB.()[]|?*+\\d1 ", max_size=8),
    ),
    select=st.integers(-2, 2),
    prompt=st.sampled_from(["Think step by step.", "Answer with the letter only.", "End with '#### N'.", "Answer:"]),
    target=st.sampled_from(["{{'ABC'[answer]}}", "{{answer}}", "{{choices[answer]}}"]),
)
@settings(max_examples=60)
def test_no_rule_about_filters_raises(tmp_path: Path, pattern: str, select: int, prompt: str, target: str) -> None:
    written = pattern.replace("'", "")
    task = f'doc_to_text: "{OPTIONS}\\n{prompt}"\ndoc_to_target: "{target}"\n{filters(written, select)}'
    try:
        found = found_in(tmp_path, task)
    except PromptfmtError:
        return  # not a pattern, or one that takes too long
    assert "PF003" not in found


@pytest.mark.parametrize(
    ("target", "metric", "severity"),
    [
        ("{{answer}}", "{metric: exact_match}", "warning"),
        ("{{answer}}", "{metric: exact_match, regexes_to_ignore: ['.*#### ']}", "info"),
        ("{% if answer %}{{answer}}{% endif %}", "{metric: exact_match}", "info"),
    ],
)
def test_examples_that_are_compared_themselves_cannot_show_what_a_filter_cuts_off(
    tmp_path: Path, target: str, metric: str, severity: str
) -> None:
    steps = "filter: [{function: regex, regex_pattern: '%s', group_select: -1}, {function: take_first}]"
    both = f"{{name: strict, {steps % '#### ([0-9,]+)'}}}, {{name: last, {steps % '([0-9][0-9,]*)'}}}"
    text = NUMBERS.replace('"{{answer}}"', f'"{target}"')
    found = found_in(tmp_path, f"{text}filter_list: [{both}]\nmetric_list: [{metric}]\n")
    assert found.get("PF525") == severity


def test_labels_that_the_instruction_lacks_are_reported_once(tmp_path: Path) -> None:
    names = "technology, religion, politics, sports, health, entertainment, or geography"
    scored = "[business, entertainment, health, politics, religion, sports, technology]"
    text = f'output_type: multiple_choice\ndoc_to_text: "Label the text as {names}.\\n{{{{question}}}}\\n"\n'
    (tmp_path / "example.yaml").write_text(complete(f"{text}doc_to_choice: {scored}\ndoc_to_target: 0\n"), "utf-8")
    file = read_task_file(tmp_path / "example.yaml", TaskIndex([tmp_path]))
    assert file is not None
    found = Linter().check(study_of(file.tasks[0], tmp_path), SELECTION).findings
    assert [one.message for one in found if one.code == "PF714"] == [
        "the prompt names some of the scored answers, but not others"
    ]
