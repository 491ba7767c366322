"""Masks of training in tokens: their ends are ends of tokens, with tokenizers of three families."""

from __future__ import annotations

import pytest

from pytest_promptfmt import check_template

TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}SEPARATOR{% if m.role == 'assistant' -%}
{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}
{%- else %}{{ m.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}
"""


@pytest.mark.parametrize("tokenizer", ["bytelevel-qwen", "sentencepiece-llama2", "sentencepiece-gemma"])
@pytest.mark.parametrize(
    ("separator", "expected"), [("{{ '\\n' }}", []), (": ", ["a training mask begins inside a token"])]
)
def test_a_mask_that_begins_after_the_space_of_a_header_cuts_the_first_token(
    tokenizer: str, separator: str, expected: list[str]
) -> None:
    found = check_template(TEMPLATE.replace("SEPARATOR", separator), f"archetype:{tokenizer}")
    assert [each.message for each in found if each.code == "PF465"] == expected


def test_a_prompt_that_shares_its_last_token_with_the_answer_is_reported() -> None:
    source = """\
{% for m in messages %}<|im_start|>{{ m.role }}{{ '\\n' }}{% if m.role == 'assistant' -%}
{% generation %}{{ '\\n' + m.content }}<|im_end|>{% endgeneration %}
{%- else %}{{ m.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
    found = [each for each in check_template(source, "archetype:bytelevel-qwen") if each.code == "PF465"]
    assert [each.message for each in found] == ["a training mask begins inside a token"]
    unmasked = source.replace("{% generation %}{{ '\\n' + m.content }}", "{{ '\\n' }}{% generation %}{{ m.content }}")
    (shared,) = [each for each in check_template(unmasked, "archetype:bytelevel-qwen") if each.code == "PF465"]
    assert shared.message == "the tokens before an answer differ from those of its prompt"
    assert shared.saw == "conversation 'turns': ⏎ becomes ⏎⏎"


def test_without_a_tokenizer_nothing_is_said_of_tokens() -> None:
    assert not [each for each in check_template(TEMPLATE.replace("SEPARATOR", ": ")) if each.code == "PF465"]


def test_markers_of_another_model_are_reported_by_one_rule() -> None:
    source = TEMPLATE.replace("SEPARATOR", "<|im_sep|>").replace("<|", "<|x")
    codes = {each.code for each in check_template(source, "archetype:bytelevel-gpt2")}
    assert "PF413" in codes
    assert not {"PF461", "PF465"} & codes
