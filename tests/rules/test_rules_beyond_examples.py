"""What rules see beyond their own examples: the other forms of the mistake, and what looks like it and is none."""

from pathlib import Path

import pytest
from linting import linted, study_of
from rule_examples import write_example

from pytest_promptfmt import rules
from pytest_promptfmt.core.finding import Reported
from pytest_promptfmt.rules.linter import check_file
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.rules.rule_views import FileView, shots_of
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex

SELECTION = Selection(rules={code: each for code, each in known_rules().items() if each.is_builtin})


RULES = "".join(file.read_text("utf-8") for file in Path(rules.__file__).parent.glob("*.py"))


def reported_in(folder: Path, example: str) -> list[Reported]:
    """Return the findings in an example as it stands in the docstring of a rule."""
    write_example(example, folder)
    path = folder / "example.yaml"
    file = read_task_file(path, TaskIndex([folder]))
    assert file is not None
    assert file.yaml is not None
    view = FileView(path=path, yaml=file.yaml, file=file, index=TaskIndex([folder]))
    found = list(linted(study_of(file.tasks[0], folder), SELECTION).findings) if file.tasks else []
    return [*found, *check_file(view, SELECTION).findings]


def found_in(folder: Path, example: str) -> dict[str, str]:
    """Return code to what was seen."""
    return {finding.code: f"{finding.message}: {finding.saw}" for finding in reported_in(folder, example)}


def test_a_gold_answer_may_be_the_body_of_a_function_whose_head_is_in_a_column(tmp_path: Path) -> None:
    example = """\
output_type: generate_until
doc_to_text: "Complete the function, and reply with all of it.\\n\\n{{head}}"
doc_to_target: "{{body}}"
process_results: !function helper.scored
metric_list: [{metric: same, aggregation: mean, higher_is_better: true}]
metadata:
  promptfmt:
    docs:
    - {head: "def two():\\n", body: "    return 2\\n"}
    - {head: "def six():\\n", body: "    return 6\\n"}
# file: helper.py
def scored(doc, results):
    return {"same": int(results[0].strip() == (doc["head"] + doc["body"]).strip())}
"""
    assert "PF605" not in found_in(tmp_path / "whole", example)
    assert "PF605" in found_in(tmp_path / "wrong", example.replace('doc["body"])', 'doc["head"])'))


@pytest.mark.parametrize("key", ["process_docs", "doc_to_text", "doc_to_choice"])
def test_no_rule_fails_where_code_of_a_task_cannot_be_imported(key: str, tmp_path: Path) -> None:
    example = f"{key}: !function helper.made\n# file: helper.py\nimport a_package_that_nobody_has\n"
    assert "PF003" not in found_in(tmp_path, example)


def severities_in(folder: Path, example: str) -> dict[str, str]:
    """Return code to severity."""
    return {finding.code: str(finding.severity) for finding in reported_in(folder, example)}


def docs(*written: str) -> str:
    return "metadata: {promptfmt: {docs: [" + ", ".join(written) + "]}}"


OPTIONS = "{question: Q?, options: \"['tin', 'ice']\", choices: [a, b], answer: 0}"
LABELLED = 'doc_to_text: "Which rusts?\\n{labels}\\nAnswer:"'


@pytest.mark.parametrize("labels", [r"9. tin\n10. iron", r"Y. tin\nZ. iron", r"A. [tin\nB. iron"])
def test_labels_that_go_on_as_they_should_are_left_alone(tmp_path: Path, labels: str) -> None:
    assert "PF249" not in found_in(tmp_path, LABELLED.format(labels=labels))


def test_keys_repeated_below_the_top_are_found_and_merged_ones_are_not(tmp_path: Path) -> None:
    twice = "output_type: generate_until\ngeneration_kwargs:\n  until: [a]\n  max_gen_toks: 8\n  until: [b]"
    assert found_in(tmp_path, twice)["PF101"].endswith("until")
    merged = (
        "output_type: generate_until\ngeneration_kwargs: &one {until: [a], max_gen_toks: 8}\n"
        "fewshot_config: {<<: {sampler: first_n}, sampler: default}"
    )
    assert "PF101" not in found_in(tmp_path, merged)


def test_a_label_without_its_blank_is_glued_and_scripts_without_blanks_are_not(tmp_path: Path) -> None:
    options = 'doc_to_text: "{{question}}\\nA.{{choices[0]}}\\nB.{{choices[1]}}\\nAnswer:"\n'
    assert "A.iron" in found_in(tmp_path, options + docs("{question: Q?, choices: [iron, gold], answer: 0}"))["PF203"]
    assert "PF203" not in found_in(tmp_path, options + docs("{question: Q?, choices: [铁, 金], answer: 0}"))


def test_a_word_before_each_option_is_no_label_of_one_letter(tmp_path: Path) -> None:
    loop = 'doc_to_text: "{{question}}\\nThe right item:\\n{% for c in choices %} item: {{c}}\\n{% endfor %}Answer:"\n'
    found = found_in(tmp_path, loop + docs("{question: Q?, choices: [iron, gold], answer: 0}"))
    assert not {"PF203", "PF242", "PF249"} & set(found)
    glued = "doc_to_text: \"{{question}}\\n{% for c in choices %}{{'AB'[loop.index0]}}. {{c}}{% endfor %}\\nAnswer:\"\n"
    found = found_in(tmp_path, glued + docs("{question: Q?, choices: [iron, gold], answer: 0}"))
    assert "between two options" in found["PF203"]


def test_what_code_does_to_texts_is_found_unless_a_column_holds_it(tmp_path: Path) -> None:
    example = (
        '# file: example.yaml\ndoc_to_text: !function helper.asked\nmetadata: {{promptfmt: {{docs: [{{question: "A B, '
        'which metal rusts?", {more}choices: [copper, silver, iron], answer: 2}}]}}}}\n# file: helper.py\n'
        'def asked(doc):\n    return {text} + "\\nAnswer:"'
    )
    upper = example.format(more="", text='doc["question"].upper()')
    assert "case or punctuation" in found_in(tmp_path, upper)["PF223"]
    explained = example.format(more='asked: "A B, WHICH METAL RUSTS?", ', text='doc["question"].upper()')
    assert "PF223" not in found_in(tmp_path, explained)
    spaced = example.format(more="", text='doc["question"].replace(" ", "  ")')
    assert "the task changes whitespace" in found_in(tmp_path, spaced)["PF223"]


def test_a_backslash_and_n_that_a_text_is_about_are_not_a_literal_newline(tmp_path: Path) -> None:
    spoken = """doc_to_text: "Separate lines with '\\\\\\\\n'. {{question}}\\nAnswer:\""""
    assert "PF126" not in found_in(tmp_path, spoken.replace("\\\\\\\\", "\\\\"))
    meant = "doc_to_text: '```{{question}}```\\nAnswer:'"
    assert "PF126" in found_in(tmp_path, meant)
    listed = "doc_to_choice: \"['{{choices[0]}}\\\\nyes', '{{choices[1]}}\\\\nyes']\""
    assert "PF126" not in found_in(tmp_path, listed)


LEAKED = 'doc_to_text: "{{passage}}\\nQuestion: {{question}}\\nAnswer:"\n'


def test_a_gold_choice_that_alone_is_in_the_prompt_is_found(tmp_path: Path) -> None:
    rows = [
        '{passage: "Iron rusts.", question: Which rusts?, choices: [iron, gold, zinc], answer: 0}',
        '{passage: "Only mercury is liquid.", question: And which flows?, choices: [tin, Mercury, lead], answer: 1}',
        '{passage: "A ring of real gold.", question: Which is yellow?, choices: [iron, tin, gold], answer: 2}',
    ]
    assert "appears in the prompt" in found_in(tmp_path, LEAKED + docs(*rows))["PF706"]
    shown_too = rows[2].replace("A ring of", "No iron, a ring of")
    inside_a_word = rows[2].replace("real gold", "real goldsmiths")
    for last in (shown_too, inside_a_word):
        assert "PF706" not in found_in(tmp_path, LEAKED + docs(*rows[:2], last))
    assert "PF706" not in found_in(tmp_path, LEAKED + docs(*rows[:2]))


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (r"What is $\frac{1}{2}$.}?", "closing brace"),
        (r"What is $\frac{1}{2$?", "unclosed brace"),
        ("\\begin{align*}\n\nx &= 1,\\\n\ny &= 2\n\n\\end{align*}", "one backslash instead of two"),
    ],
)
def test_broken_formulas_of_few_shot_examples_are_found(tmp_path: Path, problem: str, message: str) -> None:
    assert message in found_in(tmp_path, shot_with(problem))["PF235"]


@pytest.mark.parametrize(
    "problem",
    [
        r"What is $\left\{x \mid x < \frac{1}{2}\right\}$?",
        "\\begin{align*}\n\nx &= 1, \\\\\n\ny &= 2\n\n\\end{align*}",
        r"What does `if (x) {` begin?",
        r"Which command prints \{ and \}? It is \text{none}.",
    ],
)
def test_sound_formulas_and_code_are_left_alone(tmp_path: Path, problem: str) -> None:
    assert "PF235" not in found_in(tmp_path, shot_with(problem))


def shot_with(problem: str) -> str:
    sample = f"{{question: '{problem}', choices: [iron], answer: 0}}"
    return f"output_type: generate_until\nnum_fewshot: 1\nfewshot_config:\n  samples:\n  - {sample}"


@pytest.mark.parametrize(
    "text", ["Say (in one word: {{question}}", "【题 {{question}}\\n答", "(A) {{question}} (B or C"]
)
def test_unclosed_brackets_are_found(tmp_path: Path, text: str) -> None:
    assert "a bracket is opened" in found_in(tmp_path, f'doc_to_text: "{text}"')["PF235"]


@pytest.mark.parametrize(
    "text",
    [
        "A) {{question}}\\nB) or [C]\\n1) (one)\\nThe answer is (",
        "Is {{question}} in [0, 1)?",
        "{{question}} :( Answer:",
        "Complete:\\n```\\nprint({{question}}\\n```",
        "What does ) close in {{question}}? And (",
    ],
)
def test_brackets_of_labels_intervals_faces_and_code_are_left_alone(tmp_path: Path, text: str) -> None:
    assert "PF235" not in found_in(tmp_path, f'doc_to_text: "{text}"')


@pytest.mark.parametrize(
    ("row", "target", "is_found"),
    [
        ("marks: {texts: [iron, gold, steel], right: [1, 0, 1]}", "0", True),
        ("right: [true, false, true]", "0", True),
        ("right: [1, 0, 0]", "0", False),
        ("right: [1, 0, 1, 1]", "0", False),
        ("marks: {texts: [a, b, c], right: [1, 0, 1]}", "0", False),
        ("right: [1, 0, 1]", '"{{[0, 2]}}"', False),
    ],
)
def test_several_right_answers_of_which_one_counts_are_found(
    tmp_path: Path, row: str, target: str, is_found: bool
) -> None:
    example = f"doc_to_target: {target}\n" + docs(f"{{question: Q?, choices: [iron, gold, steel], {row}}}")
    assert ("PF701" in found_in(tmp_path, example)) == is_found


@pytest.mark.parametrize(
    ("keys", "is_found"),
    [
        ("doc_to_choice: [It is so., It is not.]", True),
        ("output_type: loglikelihood\ndoc_to_target: question", False),  # which lm-eval gives no delimiter
        ('doc_to_choice: [yes, no]\ndescription: "Say it. "', False),
    ],
)
def test_a_blank_begins_the_text_only_where_nothing_comes_before(tmp_path: Path, keys: str, is_found: bool) -> None:
    assert ("PF202" in found_in(tmp_path, f'doc_to_text: ""\n{keys}')) == is_found


def test_a_task_that_is_lost_as_a_second_group_is_told_to_take_a_tag(tmp_path: Path) -> None:
    (tmp_path / "another.yaml").write_text("task: melts\ngroup: metals\ndoc_to_text: q\n", "utf-8")
    found = found_in(tmp_path, "task: rusts\ngroup: metals\ndoc_to_text: q\n")
    assert found["PF137"] == "lm-eval 0.4.13 drops a task that has the key `group`: metals"


def file_findings(folder: Path, example: str, name: str) -> list[tuple[str, str, str]]:
    """Return code, severity and text of what is said about one file of an example."""
    write_example(example, folder)
    index = TaskIndex([folder])
    file = read_task_file(folder / name, index)
    assert file is not None
    assert file.yaml is not None
    view = FileView(path=folder / name, yaml=file.yaml, file=file, index=index)
    return [(one.code, str(one.severity), one.saw) for one in check_file(view, SELECTION).findings]


MEMBER = """
# file: melts.yaml
task: metal_melts
output_type: generate_until
metric_list: [{metric: exact_match}]
filter_list: [{name: strict, filter: [{function: take_first}]}]
"""


def test_without_a_filter_list_a_group_averages_whatever_filters_its_members_have(tmp_path: Path) -> None:
    group = "# file: group.yaml\ngroup: metals\ntask: [metal_melts]\naggregate_metric_list: [{metric: exact_match}]"
    assert file_findings(tmp_path, group + MEMBER, "group.yaml") == []


def test_a_filter_that_no_member_has_is_found(tmp_path: Path) -> None:
    entry = "{metric: exact_match, filter_list: loose}"
    group = f"# file: group.yaml\ngroup: metals\ntask: [metal_melts]\naggregate_metric_list: [{entry}]"
    assert file_findings(tmp_path, group + MEMBER, "group.yaml") == [("PF133", "error", "exact_match,loose")]


def test_the_average_of_a_group_inside_a_group_is_looked_at(tmp_path: Path) -> None:
    inner = "{group: liquid, task: [metal_melts], aggregate_metric_list: [{metric: acc}]}"
    group = f"# file: group.yaml\ngroup: metals\ntask: [{inner}]"
    assert ("PF133", "error", "acc") in file_findings(tmp_path, group + MEMBER, "group.yaml")


def test_the_advice_for_a_tag_inside_a_group_is_not_to_write_a_group(tmp_path: Path) -> None:
    files = """
# file: group.yaml
group: metals
task: [{task: liquid, num_fewshot: 2}]
# file: melts.yaml
task: metal_melts
tag: liquid
"""
    (found,) = file_findings(tmp_path, files.lstrip(), "group.yaml")
    assert found[:2] == ("PF131", "error")
    assert "; list each" in found[2]


@pytest.mark.parametrize(("second", "severity"), [("0", "warning"), ("2", "error")])
def test_a_repeated_key_with_the_same_value_is_a_warning(tmp_path: Path, second: str, severity: str) -> None:
    found = file_findings(tmp_path, f"num_fewshot: 0\nrepeats: 1\nnum_fewshot: {second}", "example.yaml")
    assert [one[:2] for one in found] == [("PF101", severity)]


def test_a_prompt_with_a_quoted_name_is_reported_once(tmp_path: Path) -> None:
    found = found_in(tmp_path, "output_type: generate_until\ndoc_to_text: \"Question: {{'question'}}\\nAnswer:\"")
    assert "PF246" in found
    assert "PF125" not in found


def test_docs_that_differ_in_a_number_alone_have_one_prompt_for_a_reason(tmp_path: Path) -> None:
    rows = docs(
        "{id: 1, question: Which rusts?, choices: [iron, tin], answer: 0}",
        "{id: 2, question: Which rusts?, choices: [iron, tin], answer: 0}",
    )
    assert "PF125" not in found_in(tmp_path, rows)


def test_four_glued_options_are_one_finding(tmp_path: Path) -> None:
    letters = "\\n".join(f"{letter}.{{{{choices[{number}]}}}}" for number, letter in enumerate("ABC"))
    write_example(f'doc_to_text: "{{{{question}}}}\\n{letters}\\nAnswer:"\ndoc_to_choice: ["A", "B", "C"]', tmp_path)
    file = read_task_file(tmp_path / "example.yaml", TaskIndex([tmp_path]))
    assert file is not None
    found = linted(study_of(file.tasks[0], tmp_path), SELECTION).findings
    assert [one.code for one in found].count("PF203") == 1


def test_shots_with_options_below_each_other_have_no_other_labels_than_options_on_one_line(tmp_path: Path) -> None:
    text = r"""
doc_to_text: "Q: {{question}}{% if choices is defined %}\n(A) {{choices[0]}} (B) {{choices[1]}}{% endif %}\nA:"
doc_to_choice: ["A", "B"]
doc_to_target: "{{'AB'[answer]}}"
num_fewshot: 1
fewshot_config:
  samples: [{question: "Which metal is yellow?\n(A) iron\n(B) gold", answer: 1}]
metadata: {promptfmt: {docs: [{question: Which rusts?, choices: [iron, gold], answer: 0}]}}
"""
    assert "PF807" not in found_in(tmp_path, text.lstrip())


def test_recordings_are_a_key_of_the_metadata(tmp_path: Path) -> None:
    assert "PF107" not in found_in(tmp_path, "metadata: {promptfmt: {recordings: [a.jsonl]}}")


def test_a_list_that_the_data_hold_as_text_is_not_changed_text(tmp_path: Path) -> None:
    files = """
# file: example.yaml
doc_to_text: !function helper.asked
doc_to_choice: ["yes", "no"]
doc_to_target: "{{answer}}"
metadata:
  promptfmt:
    docs: [{question: Does iron rust?, parts: "['It rusts in rain', 'It rusts in air']", answer: 0}]
# file: helper.py
import ast
def asked(doc):
    return doc["question"] + " " + " ".join(ast.literal_eval(doc["parts"])) + " Answer:"
"""
    assert "PF223" not in found_in(tmp_path, files.lstrip())


def test_a_fence_that_is_left_open_is_found_before_a_gen_prefix(tmp_path: Path) -> None:
    task = 'output_type: generate_until\ngen_prefix: "Here it is:\\n"\n'
    open_fence = 'doc_to_text: "Solve this problem:\\n```\\n{{question}}\\nAnswer in words:"'
    assert "PF235" in found_in(tmp_path, task + open_fence)


def test_a_stop_inside_the_gen_prefix_of_shots_cuts_no_answer(tmp_path: Path) -> None:
    task = """output_type: generate_until
num_fewshot: 1
gen_prefix: "Answer: it is"
generation_kwargs: {until: [":"]}
metadata:
  promptfmt:
    docs:
      test: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]
      fewshot: [{question: Which metal melts?, choices: [tin, ice], answer: 0}]
"""
    assert "PF903" not in found_in(tmp_path, task)


SHOTS = """metadata:
  promptfmt:
    docs:
      test: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]
      fewshot: [{question: Which metal melts?, choices: [tin, ice], answer: 0}]
"""


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        ("Question: {{question}}\\nAnswer: ", "spaces around the answer cue differ"),
        ("Question: {{question}}\\n", "only the question has an answer cue"),
        ("Question: {{question}}\\nReply:", "different answer cues"),
    ],
)
def test_the_end_of_shots_is_compared_with_the_end_of_the_question(tmp_path: Path, shown: str, message: str) -> None:
    found = found_in(tmp_path, f'fewshot_config: {{doc_to_text: "{shown}"}}\n{SHOTS}')
    assert message in found["PF807"]


def test_shots_with_the_answer_in_the_question_are_one_finding(tmp_path: Path) -> None:
    shown = 'doc_to_text: "Q: {{question}}\\nA: {{choices[answer]}}\\n\\n", doc_to_target: ""'
    found = found_in(tmp_path, f'doc_to_text: "Q: {{{{question}}}}\\nA:"\nfewshot_config: {{{shown}}}\n{SHOTS}')
    assert {"PF806", "PF807"} & set(found) == {"PF806"}
    assert found["PF806"].endswith(": Q: Which metal melts?⟨LF⟩A: tin⟨LF⟩⟨LF⟩")


@pytest.mark.parametrize(("version", "how"), [("0.4.9", "one example less if"), ("0.4.10", "evaluated doc can be one")])
def test_shots_from_the_test_split_are_those_of_the_release(tmp_path: Path, version: str, how: str) -> None:
    write_example("test_split: test\nnum_fewshot: 2", tmp_path)
    file = read_task_file(tmp_path / "example.yaml", TaskIndex([tmp_path]))
    assert file is not None
    found = linted(study_of(file.tasks[0], tmp_path, lm_eval=version), SELECTION).findings
    assert any(how in one.message for one in found if one.code == "PF803")


@pytest.mark.parametrize(("choices", "severity"), [("{{choices}}", "info"), ("[It is so., It is not.]", "warning")])
def test_texts_of_the_data_alone_may_begin_with_a_space(tmp_path: Path, choices: str, severity: str) -> None:
    task = f'doc_to_text: ""\ndoc_to_choice: {choices if choices[0] == "[" else repr(choices)}\n{SHOTS}'
    assert severities_in(tmp_path, task)["PF202"] == severity


@pytest.mark.parametrize(
    ("text", "severity"),
    [("A.{{choices[0]}}\\nB.{{choices[1]}}\\nAnswer:", "info"), ("A. {{choices[0]}}\\nB.{{choices[1]}}", "warning")],
)
def test_options_that_are_all_glued_are_a_style(tmp_path: Path, text: str, severity: str) -> None:
    assert severities_in(tmp_path, f'doc_to_text: "{text}"\ndoc_to_choice: [A, B]\n')["PF203"] == severity


def test_a_shot_that_goes_on_as_the_question_does_has_the_same_cue(tmp_path: Path) -> None:
    task = """output_type: generate_until
doc_to_text: "Q: {{question}}\\nA: Let's think:"
fewshot_config: {doc_to_text: "Q: {{question}}\\nA:", doc_to_target: "Let's think: {{choices[answer]}}"}
"""
    assert "PF807" not in found_in(tmp_path, task + SHOTS)


def test_shots_of_synthetic_docs_are_looked_at_for_their_layout_alone(tmp_path: Path) -> None:
    task = "target_delimiter: ''\nfewshot_delimiter: ''\nmetadata: {version: 1}\ntraining_split: train"
    found = found_in(tmp_path, task)
    assert "between two few-shot examples" in found["PF203"]
    assert not {"PF803", "PF807", "PF903", "PF910"} & set(found)


@pytest.mark.parametrize(
    "text",
    ['Use 5\\" nails. {{question}}', "Say: it is (e.g., tin) {{question}}", 'It ends so: \\"{{question}} is \\"'],
)
def test_ordinary_punctuation_is_left_alone(tmp_path: Path, text: str) -> None:
    assert not {"PF235", "PF238"} & set(found_in(tmp_path, f'doc_to_text: "{text}"'))


def test_shots_made_up_for_a_task_with_real_docs_need_not_be_what_a_template_expects(tmp_path: Path) -> None:
    doc = "{question: Which rusts?, options: {A: gold, B: iron}, answer: B}"
    task = (
        'training_split: train\ndoc_to_choice: "{{options.keys() | list}}"\ndoc_to_target: answer\n'
        f"metadata: {{promptfmt: {{docs: {{test: [{doc}]}}}}}}\n"
    )
    assert "PF808" not in found_in(tmp_path, task)


@pytest.mark.parametrize(("template", "is_found"), [("{{question | nosuch}}", True), ("{{question.a.b}}", False)])
def test_shots_that_no_docs_could_render_are_found_without_docs(tmp_path: Path, template: str, is_found: bool) -> None:
    task = f'training_split: train\nfewshot_config: {{doc_to_text: "{template}"}}\nmetadata: {{version: 1}}\n'
    assert ("PF808" in found_in(tmp_path, task)) == is_found


def test_prompts_have_as_many_shots_as_there_are_docs(tmp_path: Path) -> None:
    write_example(f"num_fewshot: 5\n{SHOTS}", tmp_path)
    file = read_task_file(tmp_path / "example.yaml", TaskIndex([tmp_path]))
    assert file is not None
    study = study_of(file.tasks[0], tmp_path)
    assert study.shots == 1
    assert len(shots_of(study.instances[0])) == 1


@pytest.mark.parametrize(("shots", "is_reported"), [(1, True), (0, False)])
def test_shots_from_the_evaluated_split_matter_only_where_some_are_shown(
    shots: int, is_reported: bool, tmp_path: Path
) -> None:
    found = found_in(tmp_path, f"training_split: train\nfewshot_split: test\nnum_fewshot: {shots}\n")
    assert ("PF803" in found) == is_reported


@pytest.mark.parametrize(("default", "is_found"), [("nee", False), ("geen", True)])
def test_a_default_label_earns_its_own_docs_and_another_word_for_it_loses_them(
    tmp_path: Path, default: str, is_found: bool
) -> None:
    example = f"""
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{label}}}}"
process_results: !function helper.scored
metric_list: [{{metric: hit, aggregation: mean, higher_is_better: true}}]
metadata: {{promptfmt: {{docs: [{{question: Rust ijzer?, label: ja}}, {{question: Rust tin?, label: nee}}]}}}}
# file: helper.py
def scored(doc, results):
    return {{"hit": float(doc["label"] == ("ja" if "ja" in results[0] else "{default}"))}}
"""
    assert ("PF605" in found_in(tmp_path, example)) == is_found


UNLISTED = r"{{question}}\n{% for one in choices[:2] %}{{'ABC'[loop.index0]}}. {{one}}\n{% endfor %}Answer:"
SAMPLE = "{question: Is it tin?, answer: 0}"
DIALOGUE = 'doc_to_text: "{{question}}\\nAnswer:"\ndoc_to_choice: [A, B, C]\n' + docs(
    r'{question: "A: How much?\nB: Two.", answer: 2}', r'{question: "A: Who?\nB: I.", answer: 0}'
)


@pytest.mark.parametrize(
    ("message", "task"),
    [
        (
            "that is not listed",
            f'description: "C if no other fits. "\ndoc_to_text: "{UNLISTED}"\ndoc_to_choice: [A, B, C]',
        ),
        (
            "that is not listed",
            'doc_to_text: "1. Read.\\n2. Rate.\\n{{question}}\\nRating:"\ndoc_to_choice: ["1", "2", "3"]',
        ),
        ("that is not listed", DIALOGUE),
        ("a label is misspelled", 'doc_to_text: "Question: {{question}}\\nReponse:"'),
        ("a label is misspelled", docs(r'{question: "Hm.\nAnwser: no", choices: [a, b], answer: 0}')),
        ("points in the wrong direction", 'doc_to_text: "{{question}}\\n\\nSimplify the text above.\\nText:"'),
        (
            "points in the wrong direction",
            'doc_to_text: "Passage above the line.\\nPassage: {{question}}\\nAnswer:"',
        ),
        ("in the order of", f"doc_to_choice: [a, b]\nfewshot_config: {{doc_to_choice: [b, a], samples: [{SAMPLE}]}}"),
        (
            "the same answer",
            f"num_fewshot: 3\ndoc_to_choice: [a, b]\nfewshot_config: {{samples: [{', '.join([SAMPLE] * 4)}]}}",
        ),
        (
            "solved examples",
            r'doc_to_text: "Use this form.\nAnswer: a word\n\nQuestion: {{question}}\nAnswer:"' + "\nnum_fewshot: 1",
        ),
        (
            "nothing after it",
            r'doc_to_text: "Paragraph:\nTitle: {{question}}\nAnswer:"'
            + "\n"
            + docs("{question: Tin, remark: two people looked at it twice, choices: [a, b], answer: 0}"),
        ),
        (
            "no placeholder",
            "output_type: generate_until\ndoc_to_image: [picture]\n"
            + docs("{picture: null, question: Which rusts?, choices: [iron], answer: 0}"),
        ),
    ],
)
def test_what_looks_like_a_slip_of_a_prompt_is_left_alone(tmp_path: Path, message: str, task: str) -> None:
    assert message in RULES, "a message that nothing reports would be missing whatever happens"
    assert not [each for each in reported_in(tmp_path, task) if message in each.message]


def test_letters_of_full_width_are_those_that_are_scored(tmp_path: Path) -> None:
    listed = 'doc_to_text: "{{question}}\\nＡ．{{choices[0]}}\\nＢ．{{choices[1]}}\\n答え："\n'
    found = reported_in(tmp_path, listed + "doc_to_choice: [A, B]\ndoc_to_target: 0")
    assert [each.severity for each in found if "from the labels of the listed options" in each.message] == ["warning"]


@pytest.mark.parametrize("label", ["Текст", "Дан текст", "Нетрудный текст"])
def test_a_word_that_begins_with_a_scored_one_does_not_name_it(tmp_path: Path, label: str) -> None:
    text = f'doc_to_text: "{label}: {{{{question}}}}\\nОтветьте «верно» или «неверно».\\nОтвет:"\n'
    assert "PF714" in found_in(tmp_path, f"{text}doc_to_choice: [нет, да]\ndoc_to_target: 0")


GENERATES = "output_type: generate_until\ndoc_to_target: '{{answer}}'\n"


@pytest.mark.parametrize(
    ("code", "example"),
    [
        (
            "PF714",
            'doc_to_text: "You see a tweet, headline or comment.\\nText: {{question}}\\nSentiment:"\n'
            "doc_to_choice: [positive, negative, neutral]",
        ),
        (
            "PF714",
            f"{GENERATES}doc_to_text: 'Write YYYY-MM-DD, or XX/XX/XXXX if nobody knows. {{{{question}}}}'\n"
            + docs("{question: When?, answer: 2020-01-02}"),
        ),
        (
            "PF714",
            f"{GENERATES}doc_to_text: 'No unit such as \"5 km\". {{{{question}}}}'\n"
            + docs('{question: a, answer: "12"}'),
        ),
        ("PF702", GENERATES + docs(r'{question: a, answer: "\u09b9\u09df"}')),
        ("PF702", GENERATES + docs(r'{question: a, answer: "\u0645\u0651\u064e\u062f"}')),
        ("PF701", "doc_to_target: answer\n" + docs("{question: a, choices: [x, y], seen: [0, 1], answer: 0}")),
        (
            "PF509",
            f"{GENERATES}doc_to_text: 'Do not explain anything, then stop. {{{{question}}}}'\n"
            + docs("{question: a, answer: x}"),
        ),
        ("PF908", "output_type: generate_until\ngeneration_kwargs: {do_sample: false, temperature: 0.7}"),
        (
            "PF714",
            'doc_to_text: "{{question}}\\nأجب بنعم أو لا.\\nالجواب:"\ndoc_to_choice: [لا, نعم]\ndoc_to_target: 0',
        ),
        ("PF714", 'doc_to_text: "{{question}}\\nענה בכן או לא.\\nתשובה:"\ndoc_to_choice: [לא, כן]\ndoc_to_target: 0'),
        (
            "PF714",
            'doc_to_text: "{{question}}\\nأجب بصحيح أو خطأ أو محايد.\\nالجواب:"\n'
            "doc_to_choice: [خطأ, صحيح, محايد]\ndoc_to_target: 0",
        ),
        ("PF701", 'doc_to_choice: options\ndoc_to_target: "Option {{answer}}"'),
        ("PF701", "doc_to_choice: '{{labels}}'\ndoc_to_target: 'Class {{answer}}'"),
        (
            "PF702",
            "output_type: generate_until\ndoc_to_target: '{{sentence}}'\n"
            + docs(
                "{question: Fill in the number., sentence: The train to the coast leaves at 12., answer: '12'}",
                "{question: Fill in the number., sentence: The bus to the town has the number 45., answer: '45'}",
            ),
        ),
        (
            "PF701",
            "doc_to_choice: [A, B, C]\ndoc_to_target: '{{answer + 1}}'\n"
            + docs("{question: Q?, choices: [iron, gold], answer: 0}"),
        ),
        ("PF701", "doc_to_choice: ['1', '2', '3']\ndoc_to_target: stars\n" + docs("{question: Q?, stars: 0}")),
        ("PF701", "doc_to_choice: [bad, fair, good]\ndoc_to_target: stars\n" + docs("{question: Q?, stars: 1}")),
        ("PF723", "doc_to_text: '{{options[1:-1]}}'\n" + docs(OPTIONS)),
        ("PF723", "doc_to_text: \"{% if 'tin' in options %}{{options}}{% endif %}\"\n" + docs(OPTIONS)),
        ("PF723", "doc_to_text: '{% for one in options[1:-1].split() %}{{one}}{% endfor %}'\n" + docs(OPTIONS)),
        ("PF723", "doc_to_target: '{{key[2]}}'\n" + docs("{question: Q?, key: \"['B']\", choices: [a, b]}")),
        ("PF247", "doc_to_text: '<p>{{question}}</p>\n\nAnswer: <br>'"),
        ("PF247", docs("{question: <p>Q?<br>R?</p>, choices: [a, b], answer: 0}")),
        (
            "PF701",
            "process_docs: !function helper.docs\ndoc_to_text: '{{question}} {{shown}}'\n"
            + docs("{question: Q?, choices: [iron, gold], answer: 0}")
            + "\n# file: helper.py\n"
            "def docs(dataset):\n    return dataset.map(lambda doc: {**doc, 'shown': sorted(doc['choices'])})",
        ),
        ("PF203", "doc_to_text: 'Name the city in the text between the backticks:``` {{question}} ```\n\nCity:'"),
        (
            "PF203",
            "doc_to_text: '{{question}}\n\nAfter the code comes one more fence (three backticks:```).\n\nAnswer:'",
        ),
        *(
            (
                "PF502",
                "doc_to_text: !function helper.asked\n# file: helper.py\n"
                f"def asked(doc):\n    return doc['question'].lstrip({letters!r})",
            )
            for letters in ("ABCD). ", "0123456789abcdef", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        ),
    ],
)
def test_what_looks_like_a_mistake_is_left_alone(tmp_path: Path, code: str, example: str) -> None:
    assert code not in found_in(tmp_path, example)


def test_a_fence_that_begins_inside_a_line_is_glued(tmp_path: Path) -> None:
    text = 'doc_to_text: "{{question}}\\nComplete this function.```python\\ndef f():\\n```\\nAnswer:"'
    found = [finding for finding in reported_in(tmp_path, text) if finding.code == "PF203"]
    assert [(finding.message, finding.severity, finding.do) for finding in found] == [
        ("no newline between a sentence and the code fence after it", "warning", "begin the fence on a new line")
    ]
