"""Every printed output and every YAML snippet of the prompt-formats document (seed 000), through the real reader."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.core.profile import builtin_profile
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats import LaidOutTask, known_formats, laid_out
from pytest_promptfmt.systems.task_files import load_tasks

FRANCE = {"question": "What is the capital of France?", "choices": ["Berlin", "Madrid", "Paris", "London"], "answer": 2}
CHINA = {"question": "And of China?", "choices": ["Beijing", "Shanghai", "Xi'an", "Hong Kong"], "answer": 0}
FIELDS = """
    dataset_path: my_org/my_dataset
    test_split: test
    doc_to_text: question
    doc_to_target: answer
    doc_to_choice: choices
"""

Read = Callable[[str], list[Task]]
Make = Callable[[str], Task]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_yaml(source: str) -> list[Task]:
        path = tmp_path / "my_task.yaml"
        path.write_text(textwrap.dedent(source), "utf-8")
        return load_tasks(path)

    return read_yaml


@pytest.fixture
def my_task(read: Read) -> Make:
    return lambda formats: read(f"task: my_task\n{textwrap.dedent(FIELDS)}{textwrap.dedent(formats)}")[0]


def rendered(task: Task, shots: int = 0) -> Instance:
    docs = TaskDocs.in_memory([FRANCE], [CHINA] * 2)
    return next(iter(task.render(docs, num_fewshot=shots)))


def shown_with_answer(task: Task) -> str:
    """Return the demonstration that is made of a doc: its prompt and its answer."""
    docs = TaskDocs.in_memory([CHINA], [FRANCE] * 2)
    alone, after_one = (next(iter(task.render(docs, num_fewshot=shots))).prompts[0].text for shots in (0, 1))
    assert after_one.endswith(task.fewshot_delimiter + alone)
    return after_one.removesuffix(task.fewshot_delimiter + alone)


MCQA = """\
Question: What is the capital of France?
A. Berlin
B. Madrid
C. Paris
D. London
Answer: C"""
CLOZE = """\
Question: What is the capital of France?
Answer: Paris"""
GENERATE = """\
Given the following question and 4 candidate answers (A, B, C and D), choose the best answer.
Question: What is the capital of France?
A. Berlin
B. Madrid
C. Paris
D. London
Your response should end with "The best answer is [answer_letter]" where the [answer_letter] is one of A, B, C or D.
The best answer is C"""
COT = """\
Given the following problem, reason step by step to find the final answer.
Problem: What is the capital of France?
Your response should end with "The final answer is [answer]" where [answer] is the response to the problem."""


@pytest.mark.parametrize(("name", "expected"), [("mcqa", MCQA), ("cloze", CLOZE), ("generate", GENERATE)])
def test_built_in_format_prints_the_documented_prompt_with_its_answer(my_task: Make, name: Any, expected: Any) -> None:
    (task,) = laid_out(my_task(f"formats: {name}"))
    assert shown_with_answer(task) == expected


def test_cot_prints_the_documented_prompt_and_the_full_answer_after_a_newline(my_task: Make) -> None:
    (task,) = laid_out(my_task("formats: cot"))
    assert rendered(task).prompts[0].text == COT
    assert shown_with_answer(task) == COT + "\nParis"


@pytest.mark.parametrize(("name", "expected"), [("mcqa", MCQA), ("cloze", CLOZE), ("generate", GENERATE)])
def test_suffix_at_run_time_gives_the_same_prompt_without_a_formats_key(
    my_task: Make, name: Any, expected: Any
) -> None:
    task = my_task("")
    assert shown_with_answer(task.with_format(name)) == expected
    assert [made.id for made in laid_out(task, [name])] == ["my_task", f"my_task@{name}"]


@pytest.mark.parametrize(
    ("name", "output_type", "labels"),
    [
        ("mcqa", "multiple_choice", "letters"),
        ("cloze", "multiple_choice", None),
        ("generate", "generate_until", "letters"),
        ("cot", "generate_until", None),
    ],
)
def test_built_in_formats_have_the_documented_output_type_and_labels(name: Any, output_type: Any, labels: Any) -> None:
    layout = known_formats()[name]
    assert (layout.output_type, layout.choice_labels) == (output_type, labels)


def test_documented_defaults_of_mcqa() -> None:
    layout = known_formats()["mcqa"]
    assert layout.instruction is None
    assert layout.question_prefix == "Question: "
    assert layout.choice_labels == "letters"
    assert layout.choice_delimiter == "\n"
    assert layout.section_separator == "\n"
    assert layout.answer_instruction is None
    assert layout.answer_prompt == "Answer:"
    assert layout.gen_prefix is None
    assert layout.target_delimiter == " "
    assert layout.fewshot_delimiter == "\n\n"
    assert layout.scorer is None


def test_mcqa_scores_the_labels_and_cloze_the_texts(my_task: Make) -> None:
    mcqa, cloze = laid_out(my_task("formats: {mcqa: null, cloze: null}"))
    assert [request.continuation for request in rendered(mcqa).requests] == [" A", " B", " C", " D"]
    assert [request.continuation for request in rendered(cloze).requests] == [" Berlin", " Madrid", " Paris", " London"]
    assert [request.gold for request in rendered(mcqa).requests] == [False, False, True, False]


def test_generate_sends_the_gen_prefix_and_expects_the_label(my_task: Make) -> None:
    (task,) = laid_out(my_task("formats: generate"))
    instance = rendered(task)
    assert instance.requests[0].context == GENERATE.removesuffix(" C")
    assert instance.target == "C"


def test_inline_overrides(my_task: Make) -> None:
    (task,) = laid_out(
        my_task(
            """
            formats:
              type: mcqa
              instruction: "Choose the correct answer for this science question.\\n"
              question_prefix: "Q: "
              answer_prompt: "The answer is:"
            """
        )
    )
    assert task.id == "my_task@mcqa"
    assert shown_with_answer(task) == (
        "Choose the correct answer for this science question.\nQ: What is the capital of France?\n"
        "A. Berlin\nB. Madrid\nC. Paris\nD. London\nThe answer is: C"
    )


def test_numbered_choices_with_an_instruction(my_task: Make) -> None:
    (task,) = laid_out(
        my_task(
            """
            formats:
              type: mcqa
              instruction: "Select the correct option.\\n\\n"
              choice_labels: numbers
              answer_prompt: "Option:"
            """
        )
    )
    instance = rendered(task)
    assert instance.prompts[0].text == (
        "Select the correct option.\n\nQuestion: What is the capital of France?\n"
        "1. Berlin\n2. Madrid\n3. Paris\n4. London\nOption:"
    )
    assert [request.continuation for request in instance.requests] == [" 1", " 2", " 3", " 4"]
    assert instance.target == 2
    assert (
        rendered(task, 1)
        .prompts[0]
        .text.startswith(
            "Select the correct option.\n\nQuestion: And of China?\n1. Beijing\n2. Shanghai\n3. Xi'an\n4. Hong Kong\n"
            "Option: 1\n\n"
        )
    )


def test_custom_labels(my_task: Make) -> None:
    (task,) = laid_out(my_task('formats: {type: mcqa, choice_labels: ["I", "II", "III", "IV"]}'))
    assert shown_with_answer(task) == (
        "Question: What is the capital of France?\nI. Berlin\nII. Madrid\nIII. Paris\nIV. London\nAnswer: III"
    )


@pytest.mark.parametrize(("labels", "answer"), [("numbers", "3"), ('["I", "II", "III", "IV"]', "III")])
def test_generated_answer_is_the_label_for_every_labelling(my_task: Make, labels: Any, answer: Any) -> None:
    (task,) = laid_out(my_task(f"formats: {{type: generate, choice_labels: {labels}}}"))
    assert rendered(task).target == answer
    assert shown_with_answer(task).endswith(f"\nThe best answer is {answer}")


def test_several_formats_are_each_a_task_and_the_first_is_the_default(my_task: Make) -> None:
    tasks = laid_out(
        my_task(
            """
            formats:
              mcqa:
                instruction: "Pick the right answer."
              generate:
                instruction: "Generate the answer."
            """
        )
    )
    assert [task.id for task in tasks] == ["my_task@mcqa", "my_task@generate"]
    assert rendered(tasks[0]).prompts[0].text.startswith("Pick the right answer.Question: ")
    assert rendered(tasks[1]).prompts[0].text.startswith("Generate the answer.Question: ")


def test_null_in_a_mapping_of_formats_means_as_built_in(my_task: Make) -> None:
    tasks = laid_out(my_task('formats: {mcqa: null, generate: {instruction: "..."}}'))
    assert shown_with_answer(tasks[0]) == MCQA
    assert rendered(tasks[1]).prompts[0].text.startswith("...Question: ")


def test_formats_in_a_group_by_suffix_and_by_key(read: Read) -> None:
    tasks = read(
        """
        group: my_benchmark
        task:
          - task: subtask_a@mcqa
            dataset_path: my_org/my_dataset
            doc_to_text: question
            doc_to_target: answer
            doc_to_choice: choices

          - task: subtask_b
            dataset_path: my_org/my_dataset
            doc_to_text: question
            doc_to_target: answer
            doc_to_choice: choices
            formats: generate
        """
    )
    made = [task for member in tasks for task in laid_out(member)]
    assert [task.id.split(".")[-1] for task in made] == ["subtask_a@mcqa", "subtask_b@generate"]
    assert shown_with_answer(made[0]) == MCQA
    assert shown_with_answer(made[1]) == GENERATE


def test_computed_variables_have_the_documented_values(my_task: Make) -> None:
    (task,) = laid_out(
        my_task(
            """
            formats:
              type: mcqa
              instruction: "{{ _num_choices }}|{{ _choice_labels }}|{{ _choice_list_and }}|{{ _choice_list_or }}\\n"
            """
        )
    )
    first_line = rendered(task).prompts[0].text.splitlines()[0]
    assert first_line == "4|['A', 'B', 'C', 'D']|A, B, C and D|A, B, C or D"


def test_documented_instruction_and_answer_prompt_of_generate_can_be_written_in_the_task(
    my_task: Make,
) -> None:
    (task,) = laid_out(
        my_task(
            """
            formats:
              type: mcqa
              instruction: "Given the following question and {{ _num_choices }} candidate answers ({{ _choice_list_and }}), choose the best answer.\\n"
              answer_prompt: 'Your response should end with "The best answer is [answer_letter]" where the [answer_letter] is one of {{ _choice_list_or }}.'
            """  # noqa: E501
        )
    )
    assert rendered(task).prompts[0].text == GENERATE.removesuffix("\nThe best answer is C")


@pytest.mark.parametrize("name", ["mcqa", "cloze", "generate"])
def test_formats_that_offer_choices_need_them(read: Read, name: Any) -> None:
    (task,) = read(f"task: my_task\ndoc_to_text: question\ndoc_to_target: answer\nformats: {name}\n")
    with pytest.raises(FormatError, match="needs doc_to_choice"):
        laid_out(task)


def test_cot_needs_no_choices(read: Read) -> None:
    (task,) = read("task: my_task\ndoc_to_text: question\ndoc_to_target: answer\nformats: cot\n")
    (made,) = laid_out(task)
    docs = TaskDocs.in_memory([{"question": "1 + 1?", "answer": "2"}])
    instance = next(iter(made.render(docs, num_fewshot=0)))
    assert instance.target == "2"


def test_field_mappings_default_to_the_columns_question_and_answer(read: Read) -> None:
    (task,) = read("task: my_task\ndoc_to_choice: choices\nformats: mcqa\n")
    (made,) = laid_out(task)
    assert isinstance(made, LaidOutTask)
    assert shown_with_answer(made) == MCQA


SHOT_BODY = "Question: And of China?\nA. Beijing\nB. Shanghai\nC. Xi'an\nD. Hong Kong\n"
BODY = "Question: What is the capital of France?\nA. Berlin\nB. Madrid\nC. Paris\nD. London\n"
ASKED = GENERATE.removesuffix("\nThe best answer is C")


def in_chat(task: Task, *, turns: bool) -> list[tuple[str, str]]:
    profile = dataclasses.replace(builtin_profile("chat-chatml"), fewshot_as_turns=turns)
    docs = TaskDocs.in_memory([FRANCE], [CHINA] * 2)
    text = next(iter(task.render(docs, profile, num_fewshot=1))).prompts[0].text
    parts = [part.removesuffix("<|im_end|>\n") for part in text.split("<|im_start|>")[1:]]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def test_demonstrations_are_turns_of_a_chat(my_task: Make) -> None:
    mcqa, generate = laid_out(my_task("formats: {mcqa: null, generate: null}"))
    assert in_chat(mcqa, turns=True) == [
        ("user", f"{SHOT_BODY}Answer:"),
        ("assistant", "A"),
        ("user", f"{BODY}Answer:"),
        ("assistant", ""),
    ]
    chat = in_chat(generate, turns=True)
    assert chat[1:] == [
        ("assistant", "The best answer is A"),
        ("user", ASKED),
        ("assistant", "The best answer is"),
    ]


def test_demonstrations_in_one_turn_of_a_chat_read_as_without_one(my_task: Make) -> None:
    mcqa, generate = laid_out(my_task("formats: {mcqa: null, generate: null}"))
    assert in_chat(mcqa, turns=False) == [
        ("user", f"{SHOT_BODY}Answer: A\n\n{BODY}Answer:"),
        ("assistant", ""),
    ]
    user, assistant = in_chat(generate, turns=False)
    assert user[1].endswith(f"\nThe best answer is A\n\n{ASKED}")
    assert assistant == ("assistant", "The best answer is")
