"""Ways in which mistakes arise, each with what it must not be confused with: listings, leftovers, scorers."""

from pathlib import Path

import pytest
from linting import study_of
from rule_examples import complete

from pytest_promptfmt.rules.linter import Linter, check_file
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex

SELECTION = Selection(rules=known_rules())
OWN = 'output_type: generate_until\ndoc_to_target: "{{choices[answer]}}"\n'
ROWS = "metadata: {promptfmt: {docs: [{question: Which metal rusts?, choices: [iron, gold, tin], answer: 0}]}}\n"
METRIC = "metric_list: [{metric: !function helper.score, aggregation: mean, higher_is_better: %s}]\n"


SUMS = (("3 + 4", 7), ("2 + 6", 8), ("9 + 9", 18), ("3 - 5", -2))


def found_in(folder: Path, task: str, code: str = "") -> set[str]:
    """Return the codes of the errors and warnings about a task, with a module `helper` beside it."""
    (folder / "example.yaml").write_text(complete(task), "utf-8")
    (folder / "helper.py").write_text(code, "utf-8")
    file = read_task_file(folder / "example.yaml", TaskIndex([folder]))
    assert file is not None
    found = Linter().check(study_of(file.tasks[0], folder), SELECTION).findings
    return {one.code for one in found if str(one.severity) != "info"}


def loop(label: str, before: str = "", after: str = "\\n") -> str:
    options = f"{{% for c in choices %}}{before}{label}{{{{c}}}}{after}{{% endfor %}}"
    return f'doc_to_text: "{{{{question}}}}\\n{options}Answer:"\ndoc_to_choice: "{{{{choices}}}}"\n{ROWS}'


@pytest.mark.parametrize(
    ("label", "codes"),
    [
        ("{{'ABCD'[loop.index0]}}. ", set()),
        ("{{loop.index}}) ", set()),
        ("({{'abc'[loop.index0]}}) ", set()),
        ("- ", set()),
        ("{{'ABCD'[loop.index]}}. ", {"PF249"}),
        ("{{'AAA'[loop.index0]}}. ", {"PF249"}),
        ("{{'@AB'[loop.index0]}}. ", {"PF249"}),
    ],
)
def test_labels_of_a_loop(tmp_path: Path, label: str, codes: set[str]) -> None:
    assert found_in(tmp_path, loop(label)) & {"PF249", "PF203", "PF242"} == codes


def test_turns_of_a_conversation_are_not_options(tmp_path: Path) -> None:
    turns = "{% for q in asked[:-1] %}Q: {{q}}\\nA: {{told[loop.index0]}}\\n{% endfor %}Q: {{asked[-1]}}\\nA:"
    task = (
        f'output_type: generate_until\ndoc_to_text: "{{{{story}}}}\\n\\n{turns}"\ndoc_to_target: "{{{{told[-1]}}}}"\n'
    )
    boat = "story: Ida has a red boat called Tern., asked: [Who has it?, What colour is it?, What is its name?]"
    docs = f"metadata: {{promptfmt: {{docs: [{{{boat}, told: [Ida, red, Tern]}}]}}}}\n"
    assert found_in(tmp_path, task + docs) & {"PF242", "PF249"} == set()


@pytest.mark.parametrize(("labels", "codes"), [("[A, B]", {"PF249"}), ("[A, B, C]", set())])
def test_a_loop_lists_as_many_options_as_there_are_labels(tmp_path: Path, labels: str, codes: set[str]) -> None:
    listing = loop("{{'ABC'[loop.index0]}}. ").replace('"{{choices}}"', labels)
    assert found_in(tmp_path, listing) & {"PF249"} == codes


def test_options_on_one_line_are_not_glued(tmp_path: Path) -> None:
    label = "{{'ABC'[loop.index0]}}. "
    assert "PF203" not in found_in(tmp_path, loop(label, after=" "))
    assert "PF203" not in found_in(tmp_path, loop(label, after=", "))
    assert "PF203" in found_in(tmp_path, loop(label, after=""))


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("Compute ${n}$ and ${2}$. {{question}}", set()),
        ("Give 50% of {{question}}", set()),
        ("Write f(x) = {x}. {{question}}", set()),
        ("In %(country)s: {{question}}", {"PF246"}),
        ("Use &lt;b&gt; in HTML. {{question}}", {"PF247"}),
        ("AT&T; R&D: {{question}}", set()),
        ("ÂNGULO, Ãngulo: {{question}}", set()),
        ("{{question.title}}", {"PF245"}),
        ("Look at the image: {{question}}", set()),
        ("<image> {{question}}", {"PF246"}),
        ("<your answer> replaces X. {{question}}", set()),
        ("A. A. Milne wrote {{question}}", set()),
        ("Answer: Answer: {{question}}", {"PF242"}),
    ],
)
def test_texts_of_templates(tmp_path: Path, text: str, codes: set[str]) -> None:
    found = found_in(tmp_path, f'doc_to_text: "{text}\\nReply:"\n{ROWS}')
    assert set(found) & {"PF242", "PF245", "PF246", "PF247", "PF249"} == codes


def test_a_topic_in_single_braces_of_a_description_is_not_filled_in(tmp_path: Path) -> None:
    assert "PF246" in found_in(tmp_path, f'description: "Questions about {{subject}}.\\n\\n"\n{ROWS}')


@pytest.mark.parametrize(
    ("better", "body", "codes"),
    [
        ("true", "float(references[0] == predictions[0].strip(' .\\n'))", set()),
        ("true", "abs(len(references[0]) - len(predictions[0]))", {"PF605"}),
        ("false", "abs(len(references[0]) - len(predictions[0].strip(' .\\n')))", set()),
        ("true", "0.0", {"PF605"}),
    ],
)
def test_metrics_of_a_task(tmp_path: Path, better: str, body: str, codes: set[str]) -> None:
    code = f"def score(references, predictions):\n    return {body}\n"
    found = found_in(tmp_path, OWN + METRIC % better + ROWS, code)
    assert found & {"PF614", "PF615", "PF605"} == codes


@pytest.mark.parametrize(("name", "codes"), [("exact", set()), ("exact_match", {"PF615"})])
def test_names_of_process_results(tmp_path: Path, name: str, codes: set[str]) -> None:
    task = f"process_results: !function helper.score\nmetric_list: [{{metric: {name}, aggregation: mean}}]\n{ROWS}"
    code = "def score(doc, results):\n    return {'exact': float(max(results) == results[doc['answer']])}\n"
    assert found_in(tmp_path, task, code) & {"PF615", "PF605"} == codes


@pytest.mark.parametrize(
    ("line", "codes"),
    [
        ("description: 'Give the number after #### here. '", set()),
        ("description: Answer the question.  # short on purpose", set()),
        ("description: Give the number after #### here.", {"PF110"}),
        ("description: Say it in #general.", {"PF110"}),
        ("description: |\n  Give it after #### here.\n  See description: it is #### there.\n", set()),
        ("filter_list: [{name: x, filter: [{function: take_first}]}]  #### kept as it is", set()),
        ("doc_to_text: >-\n  {{question}} is asked.\n  It is long, and goes on.\n  Answer:", set()),
        ("doc_to_text: >-\n  {{question}}\n  A. {{choices[0]}}\n  B. {{choices[1]}}\n  Answer:", {"PF110"}),
        ("doc_to_text: >-\n  {{question}}\n\n  A. {{choices[0]}}\n\n  B. {{choices[1]}}\n\n  Answer:", set()),
    ],
)
def test_what_yaml_makes_of_a_text(tmp_path: Path, line: str, codes: set[str]) -> None:
    (tmp_path / "example.yaml").write_text(complete(line), "utf-8")
    index = TaskIndex([tmp_path])
    file = read_task_file(tmp_path / "example.yaml", index)
    assert file is not None
    assert file.yaml is not None
    view = FileView(path=tmp_path / "example.yaml", yaml=file.yaml, file=file, index=index)
    assert {one.code for one in check_file(view, SELECTION).findings} & {"PF110"} == codes


@pytest.mark.parametrize(
    ("text", "choices", "codes"),
    [
        ("Classify it as good, bad or neither.", ["good", "bad", "neither"], set()),
        ("Classify it as good or bad.", ["good", "bad", "neither"], {"PF714"}),
        ("Classify it as good, bad or mixed.", ["good", "bad", "neither"], {"PF714"}),
        ("Classify it as red or blue.", ["good", "bad"], {"PF714"}),
        ("Is it made of tin or lead? Answer good or bad.", ["good", "bad"], set()),
        ("Answer good or bad, and neither if you do not know.", ["good", "bad", "neither"], set()),
        ("Choose one of the three options.", ["good", "bad", "neither"], set()),
        ("Choose one of the four options.", ["good", "bad", "neither"], {"PF249"}),
        ("The first two options are wrong.", ["good", "bad", "neither"], set()),
        ("Think step by step.", ["good", "bad"], {"PF714"}),
        ("Show step by step how you decide.", ["good", "bad"], {"PF714"}),
        ("The recipe says step by step how to cook.", ["good", "bad"], set()),
        ("Read the step-by-step guide.", ["good", "bad"], set()),
    ],
)
def test_instructions_against_choices(tmp_path: Path, text: str, choices: list[str], codes: set[str]) -> None:
    task = f'description: "{text} "\ndoc_to_choice: {choices}\ndoc_to_target: 0\n{ROWS}'
    assert found_in(tmp_path, task) & {"PF714", "PF249"} == codes


@pytest.mark.parametrize(
    ("text", "target", "codes"),
    [
        ("Q: {{question}}\\nA:", "answer", set()),
        ("Q: {{question}}\\nA: {{answer}}", "answer", {"PF706"}),
        ("Q: {{question}}\\nA: {{ choices[answer] }}", "{{answer}}", {"PF706"}),
        ("Q: {{question}}\\n1. {{choices[answer]}}\\nA:", "{{answer}}", set()),
        ("{{question}}", "{{question}}", set()),
    ],
)
def test_answers_in_questions(tmp_path: Path, text: str, target: str, codes: set[str]) -> None:
    task = f'doc_to_text: "{text}"\ndoc_to_target: "{target}"\n{ROWS}'
    assert found_in(tmp_path, task) & {"PF706"} == codes


HINTED = (
    ("rusts", "iron", "tin"),
    ("is dear", "gold", "tin"),
    ("is in cans", "tin", "gold"),
    ("is red", "copper", "tin"),
)
ROWS_OF_METALS = ", ".join(
    f"{{q: Which metal {what}?, best: {best}, weak: {weak}, hint: {best}}}" for what, best, weak in HINTED
)
METALS = f"metadata: {{promptfmt: {{docs: [{ROWS_OF_METALS}]}}}}\n"


@pytest.mark.parametrize(
    ("text", "target", "codes"),
    [
        ("Q: {{q}}\\nNote: {{hint}}\\nA:", "{{best}}", {"PF706"}),
        ("Q: {{q}}\\nNote: {{weak}}\\nA:", "{{best}}", set()),
        ("Q: {{q}}\\n1. {{hint}}\\nA:", "{{best}}", set()),
        ("Repeat: {{best}} ({{hint}})", "{{best}}{{hint}}", set()),
    ],
)
def test_columns_with_the_answer_of_each_doc(tmp_path: Path, text: str, target: str, codes: set[str]) -> None:
    task = f'output_type: generate_until\ndoc_to_text: "{text}"\ndoc_to_target: "{target}"\n{METALS}'
    assert found_in(tmp_path, task) & {"PF706"} == codes


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("Answer with one word: metal, gas or neither.", {"PF714"}),
        ("Possible answers: metal, gas", {"PF714"}),
        ("Answer (metal/gas):", {"PF714"}),
        ("Choose one of [metal, gas].", {"PF714"}),
        ("Choose from: gold, tin.", {"PF714"}),
        ("If it is a coin, choose from: gold, tin.", set()),
        ("Answer iron or gold.", {"PF714"}),
        ("If it is a coin, answer iron or gold; otherwise, name a metal.", set()),
        ("Say in a few words: hot or cold metals?", set()),
        ("Answer with one word: iron, gold, copper or tin.", set()),
        ("Answer in one word.", set()),
        ("Give the speed in (km/h):", set()),
    ],
)
def test_requested_words_against_gold_answers(tmp_path: Path, text: str, codes: set[str]) -> None:
    task = f'output_type: generate_until\ndoc_to_text: "{{{{q}}}} {text}"\ndoc_to_target: "{{{{best}}}}"\n{METALS}'
    assert found_in(tmp_path, task) & {"PF714"} == codes


@pytest.mark.parametrize(("asked", "codes"), [("gold, tin", {"PF714"}), ("gold, iron, tin", set())])
def test_requested_words_that_a_filter_reads(tmp_path: Path, asked: str, codes: set[str]) -> None:
    steps = "[{function: lowercase}, {function: regex, regex_pattern: (iron|gold|tin)}, {function: take_first}]"
    task = (
        f'output_type: generate_until\ndoc_to_text: "{{{{q}}}} Choose from: {asked}."\ndoc_to_target: "{{{{best}}}}"\n'
    )
    assert found_in(tmp_path, f"{task}filter_list: [{{name: x, filter: {steps}}}]\n{METALS}") & {"PF714"} == codes


@pytest.mark.parametrize(("delimiter", "codes"), [(" ", {"PF203"}), ("\\n", set()), (" ### ", set())])
def test_examples_of_several_lines_on_one_line(tmp_path: Path, delimiter: str, codes: set[str]) -> None:
    task = f'doc_to_text: "Q: {{{{question}}}}\\nA:"\ndoc_to_target: 0\nfewshot_delimiter: "{delimiter}"\n{ROWS}'
    assert found_in(tmp_path, task) & {"PF203"} == codes


@pytest.mark.parametrize(
    ("target", "output", "codes"),
    [
        ("answer", "multiple_choice", set()),
        ("{{answer + 1}}", "multiple_choice", {"PF701"}),
        ("{{answer + 1}}", "generate_until", set()),
    ],
)
def test_indices_of_options_in_a_column(tmp_path: Path, target: str, output: str, codes: set[str]) -> None:
    text = "{{question}}\\n1. {{choices[0]}}\\n2. {{choices[1]}}\\n3. {{choices[2]}}\\nNumber:"
    task = (
        f'output_type: {output}\ndoc_to_text: "{text}"\ndoc_to_choice: "{{{{choices}}}}"\ndoc_to_target: "{target}"\n'
    )
    assert found_in(tmp_path, task + ROWS) & {"PF701"} == codes


@pytest.mark.parametrize(("pattern", "codes"), [("(-?[0-9]+)", set()), ("([0-9]+)", {"PF512"})])
def test_filters_against_later_worked_solutions(tmp_path: Path, pattern: str, codes: set[str]) -> None:
    rows = [f"{{question: {asked}?, solution: 'It is easy.\n\n  #### {gold}'}}" for asked, gold in SUMS]
    steps = f"[{{function: regex, regex_pattern: '#### {pattern}'}}, {{function: take_first}}]"
    task = (
        'output_type: generate_until\ndoc_to_text: "{{question}}"\ndoc_to_target: "{{solution}}"\n'
        f"filter_list: [{{name: x, filter: {steps}}}]\n"
        "metric_list: [{metric: exact_match, regexes_to_ignore: ['(?s).*#### ']}]\n"
        f"metadata: {{promptfmt: {{docs: [{', '.join(rows)}]}}}}\n"
    )
    assert found_in(tmp_path, task) & {"PF512"} == codes


def test_a_gold_answer_in_json_is_one_answer(tmp_path: Path) -> None:
    code = """
import json


def score(doc, results):
    try:
        found = set(json.loads(results[0]))
    except ValueError:
        found = set()
    return {"f1": float(found == set(doc["metals"]))}
"""
    task = (
        'output_type: generate_until\ndoc_to_text: "List metals of {{kind}} in JSON."\n'
        "process_results: !function helper.score\n"
        'doc_to_target: "{{metals | tojson}}"\nmetric_list: [{metric: f1, aggregation: mean, higher_is_better: true}]\n'
        "metadata: {promptfmt: {docs: [{kind: coins, metals: [gold, silver]}, {kind: cans, metals: [tin]}]}}\n"
    )
    assert found_in(tmp_path, task, code) & {"PF605"} == set()
    assert found_in(tmp_path, task, code.replace('doc["metals"]', "[]")) & {"PF605"} == {"PF605"}


def test_tests_in_a_question_may_be_what_a_function_runs(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def passes(references, predictions):\n    return 1.0\n", "utf-8")
    task = 'output_type: generate_until\ndoc_to_text: "Pass {{answer}}"\ndoc_to_target: answer\n' + ROWS
    assert "PF706" in found_in(tmp_path, task)
    assert "PF706" not in found_in(tmp_path, f"{task}metric_list: [{{metric: !function helper.passes}}]\n")


@pytest.mark.parametrize(
    ("stop", "codes"),
    [
        ("Question:", set()),
        ("\\n\\n", {"PF903"}),
        ("</s>", set()),
        ("=", {"PF903"}),
        ("(", {"PF903"}),
        ("So", {"PF903"}),
    ],
)
def test_stops_that_reasoning_contains(tmp_path: Path, stop: str, codes: set[str]) -> None:
    task = (
        f'output_type: generate_until\ndescription: "Think step by step. "\ngeneration_kwargs: {{until: ["{stop}"]}}\n'
    )
    assert found_in(tmp_path, task) & {"PF903"} == codes


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("Options: tin, iron. {{question}}", set()),
        ("Options: ['tin', 'iron']. {{question}}", {"PF245"}),
        ("Write a Python list such as ['tin', 'iron']. {{question}}", set()),
        ("{{question}} {{question}}", {"PF242"}),
    ],
)
def test_lists_and_repeated_texts(tmp_path: Path, text: str, codes: set[str]) -> None:
    rows = ROWS.replace("Which metal rusts?", "Which metal rusts in moist air?")
    assert found_in(tmp_path, f'doc_to_text: "{text}\\nReply:"\n{rows}') & {"PF245", "PF242"} == codes
