"""The four built-in formats of seed 000."""

from __future__ import annotations

from pytest_promptfmt.formats.format import Format

MCQA = Format(name="mcqa", summary="Labelled choices in the prompt; the label is scored by log-likelihood.")

CLOZE = Format(
    name="cloze",
    choice_labels=None,
    summary="The question alone; the full text of each choice is scored by log-likelihood.",
)

GENERATE = Format(
    name="generate",
    output_type="generate_until",
    instruction="Given the following question and {{ _num_choices }} candidate answers ({{ _choice_list_and }}), choose"
    " the best answer.\n",
    answer_prompt='Your response should end with "The best answer is [answer_letter]" where the [answer_letter] is one'
    " of {{ _choice_list_or }}.",
    gen_prefix="The best answer is",
    target_delimiter="\n",
    scorer="first_token",
    summary="Labelled choices in the prompt; the model writes the label after a given beginning.",
)

COT = Format(
    name="cot",
    output_type="generate_until",
    instruction="Given the following problem, reason step by step to find the final answer.\n",
    question_prefix="Problem: ",
    choice_labels=None,
    answer_prompt='Your response should end with "The final answer is [answer]" where [answer] is the response to the'
    " problem.",
    target_delimiter="\n",
    scorer="first_token",
    summary="The question alone; the model reasons freely and ends with its answer.",
)

BUILTIN_FORMATS: tuple[Format, ...] = (MCQA, CLOZE, GENERATE, COT)
