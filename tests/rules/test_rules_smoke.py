"""Every task is loaded, rendered, filtered and scored once; every exception is reported with its place."""

from pathlib import Path

import pytest
from linting import linted, study_of

from pytest_promptfmt.answers.battery import try_answers
from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex

TASK = r"""task: metals
test_split: test
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: answer
"""
DOCS = "metadata: {promptfmt: {docs: [{question: Which metal rusts?, answer: iron, number: 26}]}}\n"
HELPER = """
def crashes(doc, results):
    return {"exact_match": 1 / 0}

def asks_for_a_column(doc, results):
    return {"exact_match": doc["chocies"]}

def gives_no_mapping(doc, results):
    return 1.0

def needs_a_package(doc, results):
    import a_package_that_nobody_has

class Grammar:
    def __init__(self):
        import a_package_that_nobody_has

def right(doc, results):
    doc["answer"] = None  # lm-eval hands the doc on as well
    return {"exact_match": float(results[0] == "iron")}
"""


def scoring_findings(folder: Path, text: str, *, docs: str = DOCS, trusted: bool = True) -> list[Reported]:
    path = folder / "metals.yaml"
    path.write_text(TASK + text + docs, "utf-8")
    (folder / "helper.py").write_text(HELPER, "utf-8")
    file = read_task_file(path, TaskIndex([folder]))
    assert file is not None
    selection = Selection(rules=known_rules(), select=("PF109",), rootdir=folder)
    return list(linted(study_of(file.tasks[0], folder, no_code=not trusted), selection).findings)


@pytest.mark.parametrize(
    ("text", "line", "saw"),
    [
        ("filter_list: [{name: a, filter: [{function: take_frist}]}]", 6, "unknown filter 'take_frist'"),
        (
            "filter_list:\n- {name: a, filter: [{function: regex, regex_pattern: '(open'}]}",
            7,
            "unterminated subpattern",
        ),
        ("filter_list:\n- {name: a, filter: [{function: lowercase, n: 2}]}", 7, "TypeError: EachResponse.__init__()"),
        ("metric_list:\n- {metric: exact_match, weight_by_size: true}", 6, "does not take weight_by_size"),
        ("metric_list:\n- {metric: exact_mach, aggregation: mean}", 7, "lm-eval has no metric 'exact_mach'"),
        ("metric_list:\n- {metric: exact_match, aggregation: maen}", 6, "unknown aggregation of exact_match"),
    ],
)
@pytest.mark.parametrize("docs", [DOCS, ""], ids=["own docs", "synthetic docs"])
def test_what_fails_with_any_docs_is_reported(tmp_path: Path, docs: str, text: str, line: int, saw: str) -> None:
    (found,) = scoring_findings(tmp_path, f"output_type: generate_until\n{text}\n", docs=docs)
    assert found.severity is Severity.ERROR
    assert saw in found.saw
    assert f"metals.yaml:{line}:" in found.where


@pytest.mark.parametrize(
    ("text", "saw"),
    [
        ("process_results: !function helper.crashes", "ZeroDivisionError"),
        ("process_results: !function helper.asks_for_a_column", "KeyError: 'chocies'"),
        ("process_results: !function helper.gives_no_mapping", "must return a mapping, not float"),
        ("filter_list: [{name: a, filter: [{function: multi_choice_regex}]}]", "KeyError: 'choices'"),
        ("doc_to_choice: [iron, gold]", "TypeError: list indices must be integers"),
        ("metric_list: [{metric: bleu, aggregation: mean}]", "TypeError"),
    ],
)
def test_what_fails_on_the_docs_is_told_with_the_doc_and_only_where_they_are_real(
    tmp_path: Path, text: str, saw: str
) -> None:
    (found,) = scoring_findings(tmp_path, f"output_type: generate_until\n{text}\n")
    assert found.severity is Severity.ERROR
    assert saw in found.saw
    assert "doc 1" in found.where
    assert not scoring_findings(tmp_path, f"output_type: generate_until\n{text}\n", docs="")


@pytest.mark.parametrize(
    "text",
    [
        "output_type: generate_until\nprocess_results: !function helper.right\n",
        "output_type: generate_until\nmetric_list: [{metric: wer, aggregation: mean}]\n",
        "output_type: generate_until\n",
        "output_type: multiple_choice\ndoc_to_choice: [iron, gold]\n",
        "output_type: loglikelihood\n",
        "output_type: loglikelihood_rolling\n",
    ],
)
def test_a_task_that_can_be_scored_is_silent(tmp_path: Path, text: str) -> None:
    assert not scoring_findings(tmp_path, text)


def test_several_golds_that_are_texts_are_told_at_the_target(tmp_path: Path) -> None:
    choices = 'output_type: multiple_choice\ndoc_to_choice: [iron, gold]\ndoc_to_target: "{{[answer]}}"\n'
    (found,) = scoring_findings(tmp_path, choices)
    assert (found.keys, found.saw) == (("doc_to_target",), "the list of gold answers has texts: ['iron']")
    assert "indexes of the right choices" in found.do


def test_what_is_not_installed_here_is_an_info_and_code_that_may_not_run_is_not_tried(tmp_path: Path) -> None:
    text = "output_type: generate_until\nprocess_results: !function helper.{}\n"
    (found,) = scoring_findings(tmp_path, text.format("needs_a_package"))
    assert found.severity is Severity.INFO
    assert "a_package_that_nobody_has" in found.saw
    assert not scoring_findings(tmp_path, text.format("crashes"), trusted=False)


def test_a_filter_that_needs_a_package_is_an_info(tmp_path: Path) -> None:
    text = "output_type: generate_until\nfilter_list:\n- {name: a, filter: [{function: !function helper.Grammar}]}\n"
    (found,) = scoring_findings(tmp_path, text)
    assert (found.severity, found.do) == (Severity.INFO, "install the package or data that is missing, and check again")


def test_a_misspelt_argument_of_a_filter_is_one_failure_with_the_name_that_is_meant(tmp_path: Path) -> None:
    text = "output_type: generate_until\nfilter_list:\n- {name: a, filter: [{function: regex, regexp_pattern: a}]}\n"
    [found] = scoring_findings(tmp_path, text)
    assert "did you mean 'regex_pattern'?" in found.do
    file = read_task_file(tmp_path / "metals.yaml", TaskIndex([tmp_path]))
    assert file is not None
    with pytest.raises(ScoringError, match="cannot be built"):  # instead of a row for every phrasing
        try_answers(study_of(file.tasks[0], tmp_path))
