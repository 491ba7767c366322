"""Slips of the keyboard in tasks without docs: what is reported, and what looks alike and is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from linting import linted, study_of

from pytest_promptfmt.formats.apply import apply_template
from pytest_promptfmt.rules.columns import meant
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.systems.task_files import load_tasks

TASK = {
    "task": "a",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_choice": ["yes", "no"],
    "doc_to_target": "label",
}


def codes(**changed: object) -> set[str]:
    [task] = load_tasks({**TASK, **changed})
    found = linted(study_of(task), Selection(rules=known_rules(), rootdir=Path())).findings
    return {finding.code for finding in found}


@pytest.mark.parametrize(
    ("name", "intended"),
    [
        ("qusetion", "question"),
        ("queston", "question"),
        ("questtion", "question"),
        ("anwser", "answer"),
        ("question", None),
        ("questions", None),
        ("question1", None),
        ("sentence1", None),
        ("choice1", None),
        ("answerKey", None),
        ("options_a", None),
        ("text2", None),
        ("contest", None),
        ("labels_en", None),
    ],
)
def test_only_a_slip_of_one_common_name_is_misspelt(name: str, intended: str | None) -> None:
    assert meant(name) == intended


@pytest.mark.parametrize(
    ("text", "is_reported"),
    [
        ("{{q}}\nA. {{a}}\nB. {{b}}\nB. {{c}}\nAnswer:", True),
        ("{{q}}\nA. {{a}}\nB. {{b}}\nD. {{c}}\nAnswer:", True),
        ("{{q}}\n(A) {{a}} (B) {{b}} (C) {{c}}\nAnswer:", False),
        ("Q: {{q}}\nA: {{a}}\nQ: {{r}}\nA:", False),
        ("{% if a %}{{q}} (A) {{a}} (B) {{b}} (C) {{c}}\nA:{% else %}{{q}}\nA:{% endif %}", False),
        ("{{q}}\nA. {{a}}\nB. {{b}}\nC. {{c}}\n{{r}}\nA. {{d}}\nB. {{e}}\nC. {{f}}\nAnswer:", False),
    ],
)
def test_labels_are_in_order(text: str, is_reported: bool) -> None:
    assert ("PF249" in codes(doc_to_text=text, doc_to_choice=["A", "B", "C"])) is is_reported


@pytest.mark.parametrize(
    ("text", "is_reported"),
    [
        ("Question:  {{question}}\nAnswer:", True),
        ("Read it.  Then answer.\n{{question}}\nAnswer:", False),
        ("Name:   {{question}}\nAge:  {{age}}\nAnswer:", False),
        ("{{context}}  {{question}}\nAnswer:", False),
        ("{{context}}  Question: {{question}}\nAnswer:", True),
        ("{% if question %}  {{question}}{% endif %}\nAnswer:", False),
    ],
)
def test_two_spaces_are_reported_where_nothing_is_aligned(text: str, is_reported: bool) -> None:
    assert ("PF201" in codes(doc_to_text=text)) is is_reported


def test_common_columns_in_wrong_markup_are_reported_without_docs() -> None:
    assert "PF246" in codes(doc_to_text="{{context}}\nQuestion: {question}\nAnswer:")
    assert "PF246" in codes(doc_to_text="{{context}}\nQuestion: {{'question'}}\nAnswer:")
    assert not {"PF246"} & codes(doc_to_text="{{context}}\nWrite it as {number} or {{'#'}}\nAnswer:")


@pytest.mark.parametrize(
    ("text", "is_reported"),
    [
        ("Question: {{question}}\nAnswer", True),
        ("Frage: {{question}}\nAntwort", True),
        ("Question: {{question}}\nAnswer:", False),
        ("{{question}}\nAnswer", False),
        ("Question: {{question}}\nThe answer is", False),
    ],
)
def test_a_cue_has_a_colon_where_other_labels_have_one(text: str, is_reported: bool) -> None:
    assert ("PF240" in codes(doc_to_text=text)) is is_reported


def test_an_answer_that_stays_a_list_is_reported_where_it_is_compared() -> None:
    filters = [{"name": "x", "filter": [{"function": "remove_whitespace"}]}]
    generating = {"output_type": "generate_until", "doc_to_choice": None, "doc_to_target": "{{label}}"}
    assert "PF509" in codes(**generating, filter_list=filters)
    assert "PF509" in codes(**generating, filter_list=filters, metric_list=[{"metric": "exact_match"}])
    assert "PF509" not in codes(**generating, filter_list=filters, metric_list=[{"metric": "f1"}])
    sampled = {"generation_kwargs": {"do_sample": True, "temperature": 0.7}}
    assert "PF509" not in codes(**generating, filter_list=filters, repeats=4, **sampled)
    assert "PF509" in codes(**generating, generation_kwargs={"do_sample": True})
    assert "PF509" not in codes(**generating, generation_kwargs={"do_sample": False})
    assert "PF509" not in codes(**generating)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("{{'Q: ' ~ question ~ ' A: '}}", "the text inside the braces"),
        ("{{question}}", "strip the column"),
        ("{{question}}\nAnswer: ", "remove"),
    ],
)
def test_advice_about_a_last_space_is_about_what_prints_it(text: str, advice: str) -> None:
    docs = {"promptfmt": {"docs": [{"question": "Which rusts? ", "label": "iron"}]}}
    [task] = load_tasks({**TASK, "output_type": "generate_until", "doc_to_text": text, "metadata": docs})
    found = linted(study_of(task), Selection(rules=known_rules(), rootdir=Path())).findings
    [last] = [one for one in found if one.code == "PF202"]
    assert advice in last.do


@pytest.mark.parametrize(("text", "is_reported"), [("Q: {{question}}", True), ("Q: {{question}}\n", False)])
def test_a_choice_of_the_file_is_glued_to_the_end_of_a_synthetic_text(text: str, is_reported: bool) -> None:
    assert ("PF203" in codes(doc_to_text=text, target_delimiter="")) is is_reported


def test_a_long_text_may_end_with_the_newline_that_its_label_needs() -> None:
    for column, severity in (("question", "warning"), ("passage", "info")):
        [task] = load_tasks({**TASK, "doc_to_text": f"{{{{{column}}}}}Answer:"})
        found = linted(study_of(task), Selection(rules=known_rules(), rootdir=Path())).findings
        assert [str(one.severity) for one in found if one.code == "PF203"] == [severity]


@pytest.mark.parametrize(
    ("listed", "is_reported"), [("{% if choices|length > 3 %}\nD. {{choices[3]}}{% endif %}", False), ("", True)]
)
def test_an_option_that_only_some_docs_have_is_listed(listed: str, is_reported: bool) -> None:
    options = "A. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}" + listed
    text = "{{question}}\n" + options + "\nGive one letter, one of A, B, C or D.\nAnswer:"
    assert ("PF249" in codes(doc_to_text=text, doc_to_choice=["A", "B", "C"])) is is_reported


def test_the_end_of_a_sentence_is_no_label_of_the_line_below() -> None:
    own = {"docs": [{"question": "Who?", "lines": ["[1] Nora keeps hens.", "[2] Pip is old."], "label": 0}]}
    text = "{{lines | join('\\n')}}\nQuestion: {{question}}\nAnswer:"
    assert "PF203" not in codes(doc_to_text=text, metadata={"promptfmt": own})


@pytest.mark.parametrize(
    ("choices", "is_reported"),
    [(["yes", "no'"], True), (["'yes", "no"], True), (["'yes'", "'no'"], False), (["isn't", "is"], False)],
)
def test_a_quote_at_one_end_of_a_choice_needs_a_partner(choices: list[str], is_reported: bool) -> None:
    assert ("PF235" in codes(doc_to_choice=choices)) is is_reported


WRITTEN = "Q: Does tin rust?\\nA: No.\\n\\nQ: Does steel rust?\\nA: Yes."


@pytest.mark.parametrize(("label", "is_reported"), [("问题", True), ("問題", False)])
def test_solved_examples_without_blank_lines_have_a_layout_as_well(label: str, is_reported: bool) -> None:
    shown = f"{label}：邊個起咗呢條橋？\n答案：伊藤\n{label}：而家幾多度？\n答案：三\n"
    text = f"請回答。\n{shown}問題：{{{{question}}}}\n答案："
    assert ("PF807" in codes(doc_to_text=text, doc_to_choice=["伊藤", "三"])) is is_reported


@pytest.mark.parametrize(("end", "is_reported"), [("", True), ("\\nA:", False)])
def test_solved_examples_are_seen_in_the_expression_that_prints_the_question(end: str, is_reported: bool) -> None:
    text = "{% set examples = '" + WRITTEN + "' %}{{examples + '\\n\\nQ: ' + question + '" + end + "'}}"
    assert ("PF807" in codes(doc_to_text=text)) is is_reported


@pytest.mark.parametrize(
    ("text", "is_reported"),
    [
        ("Answer this question:{{question}}\n(A) {{a}}\n(B) {{b}}\nAnswer:", True),
        ("Answer this question:{{question}}\n(A){{a}}\n(B){{b}}\nAnswer:", False),
    ],
)
def test_a_glued_label_is_seen_beside_labels_of_options(text: str, is_reported: bool) -> None:
    assert ("PF240" in codes(doc_to_text=text, doc_to_choice=["A", "B"])) is is_reported


def test_carriage_returns_are_seen_in_examples_that_are_written_out() -> None:
    samples = [{"question": "Does tin\r\nrust?", "label": 1}, {"question": "Does steel rust?", "label": 0}]
    assert "PF247" in codes(num_fewshot=2, fewshot_config={"sampler": "first_n", "samples": samples})


@pytest.mark.parametrize(
    ("keys", "is_reported"),
    [
        ({}, True),
        ({"doc_to_target": "{{'AB'[label]}}"}, False),
        ({"generation_kwargs": {"until": ["Q:"]}}, False),
        ({"doc_to_text": "Q: {{question}}\nA. {{a}}\nB. {{b}}\nA:"}, False),
    ],
)
def test_a_stop_of_one_character_is_harmless_where_labels_are_asked_for(
    keys: dict[str, object], is_reported: bool
) -> None:
    task = {
        "output_type": "generate_until",
        "doc_to_choice": None,
        "doc_to_text": "Q: {{question}}\nA:",
        "doc_to_target": "answer",
        "generation_kwargs": {"until": ["\n", ","]},
    }
    assert ("PF903" in codes(**(task | keys))) is is_reported


@pytest.mark.parametrize("line", ["", 'doc_to_text: "Question: {{question}}\\nAnswer:"\n'])
def test_a_template_that_a_written_prompt_replaces_is_reported(line: str, tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(f"task: t\ntest_split: test\ntemplate: mcq\ndoc_to_choice: choices\ndoc_to_target: answer\n{line}")
    [task] = load_tasks(path)
    study = study_of(apply_template(task), tmp_path)
    found = linted(study, Selection(rules=known_rules(), rootdir=tmp_path)).findings
    assert ("PF103" in {finding.code for finding in found}) is bool(line)


def test_a_list_of_texts_for_the_gold_choice_stops_no_rule() -> None:
    found = codes(doc_to_text="", doc_to_target=[""], doc_to_choice=[])
    assert "PF003" not in found


@pytest.mark.parametrize(
    ("choices", "is_reported"),
    [
        (["\u0410", "B", "C"], True),
        (["(A)", "(\u0392)"], True),
        (["A", "B"], False),
        (["\u0410", "\u0411", "\u0412"], False),  # all Cyrillic
        (["\u0434\u0430", "no"], False),
    ],
)
def test_a_letter_that_looks_latin_is_reported_among_latin_labels(choices: list[str], is_reported: bool) -> None:
    assert ("PF247" in codes(doc_to_choice=choices)) is is_reported


@pytest.mark.parametrize(
    ("kwargs", "is_reported"),
    [
        ({"temperature": 50, "do_sample": True}, True),
        ({"top_p": 9}, True),
        ({"max_gen_toks": -5}, True),
        ({"temperature": 0.7, "top_p": 0.9, "top_k": 50, "max_gen_toks": 32768, "do_sample": True}, False),
        ({"temperature": "0.7"}, False),  # is text, which another rule reports
    ],
)
def test_values_of_generation_arguments_have_ranges(kwargs: dict[str, object], is_reported: bool) -> None:
    assert ("PF908" in codes(output_type="generate_until", doc_to_choice=None, generation_kwargs=kwargs)) is is_reported


@pytest.mark.parametrize(
    ("keys", "is_reported"),
    [
        ({"gen_prefix": "Answer:\n"}, False),  # only what is generated is searched for stops
        ({"gen_prefix": "So, in one word:\nAnswer:"}, False),
        ({"gen_prefix": "The answer is"}, False),
        ({"doc_to_text": "{{question}}\nThink step by step, and end with 'The answer is X'.\n"}, True),
        ({"doc_to_text": "{{question}}\nA: Let's think step by step."}, False),
    ],
)
def test_a_stop_that_comes_before_the_answer_is_reported(keys: dict[str, object], is_reported: bool) -> None:
    until = ["\n"] if "gen_prefix" in keys else ["\n\n"]
    task = {"output_type": "generate_until", "doc_to_choice": None, "generation_kwargs": {"until": until}}
    assert ("PF903" in codes(**(task | keys))) is is_reported


@pytest.mark.parametrize(
    ("split", "is_reported"),
    [("vaildation", True), ("tain", True), ("validation", False), ("val", False), ("train_hard", False)],
)
def test_a_misspelt_split_is_reported(split: str, is_reported: bool) -> None:
    assert ("PF261" in codes(fewshot_split=split)) is is_reported
