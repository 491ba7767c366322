"""Every rule about tokens and chat templates finds its mistake with real models, and is silent where there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from linting import linted, study_of
from rule_examples import write_example

from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.profiles import load_tokenizer
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex

DATA = Path(__file__).parents[3] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real tokenizers and chat templates are not here")

LETTERS = 'doc_to_text: "{{question}}\\nAnswer:"\ndoc_to_choice: [A, B, C]\ndoc_to_target: answer'
GLUED = f'{LETTERS}\ntarget_delimiter: ""'
BROKEN = 'doc_to_text: "{{question}}\\nAnswer:\\n"\ndoc_to_choice: [A, B, C]\ntarget_delimiter: ""'
SPACED = 'doc_to_choice: [" A", " B", " C"]\ntarget_delimiter: ""'
SHOTS = f"{LETTERS}\nnum_fewshot: 2"
BRACKETS = "doc_to_choice: [(A), (B), (C)]"
GREEK = 'doc_to_choice: ["Α", "Β", "Γ"]'
INDENTED = 'doc_to_text: "    return {{question}}\\n    return"'
THOUGHT = (
    "output_type: generate_until\nnum_fewshot: 1\n"
    'doc_to_target: "<think>Iron rusts, and gold never does.</think> {{choices[answer]}}"'
)
CASES = 'doc_to_choice: [US, us, "no"]'
CHINESE = "doc_to_choice: [我不知道, 不是的, 他来了]"
UNANSWERED = 'num_fewshot: 1\nfewshot_config: {doc_to_target: ""}'
DESCRIBED = 'description: "Answer with a letter.\\n\\n"'
BEGUN = 'gen_prefix: "The answer is"'
ENDING = 'metadata: {promptfmt: {docs: [{question: "What is <|im_end|>?", choices: [end, start], answer: 0}]}}'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks <b>up</b>",
            "parameters": {"type": "object", "properties": {"word": {"type": "string", "description": "a word"}}},
        },
    }
]


@dataclass(frozen=True)
class Case:
    """A tokenizer, a chat template and a task, each of them real where it decides."""

    tokenizer: str | None = None
    template: str | None = None
    task: str = ""
    more: tuple[tuple[str, Any], ...] = ()

    def profile(self) -> Profile:
        profile = Profile(name="real", **dict(self.more))
        if self.tokenizer is not None:
            source = str(DATA / "tokenizers" / self.tokenizer)
            profile = replace(profile, tokenizer=source, special_tokens=load_tokenizer(source).special_tokens)
        if self.template is not None:
            text = (DATA / "chat_templates" / f"{self.template}.jinja").read_bytes().decode()
            tokens = profile.special_tokens or {"bos_token": "<s>", "eos_token": "</s>"}
            profile = replace(profile, chat_template=text, special_tokens=MappingProxyType(dict(tokens)))
        return profile


QWEN2 = Case(template="Qwen-Qwen2.5-7B-Instruct")
QWEN3 = Case(template="Qwen-Qwen3-0.6B")
CHATML = Case(template="axolotl-chatml")
PAIRWISE = (("split", "pairwise"),)
WITH_TOOLS = (("template_args", {"tools": TOOLS}),)
HITS_AND_SILENCES = {
    "PF301": (Case("qwen3", task=GLUED), Case("gpt2", task=GLUED)),
    "PF302": (Case("qwen3", task=BROKEN), Case("llama2", task=BROKEN)),
    "PF303": (
        Case("qwen3", "Qwen-Qwen2.5-7B-Instruct", SPACED),
        Case("phi3-mini", "axolotl-phi_3", SPACED),  # which eats the blank
    ),
    "PF304": (Case("llama2", "mistralrs-default", SHOTS), Case("qwen3", "Qwen-Qwen2.5-7B-Instruct", SHOTS)),
    "PF302 apart": (Case("llama2", task=BROKEN, more=PAIRWISE), Case("gpt2", task=BROKEN, more=PAIRWISE)),
    "PF306": (Case("qwen3", task=GREEK), Case("qwen3", task=LETTERS)),
    "PF309 first": (Case("llama2", task=BRACKETS), Case("qwen3", "Qwen-Qwen2.5-7B-Instruct", BRACKETS)),
    "PF309 begins": (
        Case("gpt2", task="doc_to_choice: ['No', 'No, only at night', 'Yes']\nmetric_list: [{metric: acc}]"),
        Case("gpt2", task="doc_to_choice: ['No', 'Only at night', 'Yes']\nmetric_list: [{metric: acc}]"),
    ),
    "PF309": (Case("bert-base-uncased", task=CASES, more=PAIRWISE), Case("roberta-base", task=CASES, more=PAIRWISE)),
    "PF310": (Case("t5-small", task=CHINESE, more=PAIRWISE), Case("mistral-v1", task=CHINESE)),
    "PF310 bytes": (Case("gpt2", task=CHINESE), Case("gpt2", task=LETTERS)),
    "PF401": (QWEN2, QWEN3),
    "PF402": (Case(template="Mistral-Small-3.2-24B-Instruct-2506"), QWEN3),
    "PF406": (
        Case(template="meetkai-functionary-medium-v3.1", more=WITH_TOOLS),
        Case(template="Qwen-Qwen3-0.6B", more=WITH_TOOLS),
    ),
    "PF407": (Case(template="royallab-chatml_with_headers"), QWEN3),
    "PF408": (Case(template="chujie-zephyr"), QWEN2),
    "PF409": (Case(template="chujie-qwen2.5-instruct"), QWEN2),
    "PF413": (Case("gpt2", "axolotl-chatml"), Case("qwen3", "Qwen-Qwen3-0.6B")),
    "PF414": (Case("llama2", "chujie-llama-2-chat"), Case("qwen3", "Qwen-Qwen3-0.6B")),
    "PF415": (Case("llama2", "axolotl-llava"), Case("llama2", "mistralrs-default")),
    "PF416": (Case("t5-small", more=PAIRWISE), Case("gpt2")),
    "PF417": (Case("t5-small"), Case("t5-small", more=PAIRWISE)),
    "PF418": (Case("llama2"), Case("qwen3")),
    "PF421": (replace(CHATML, template="google-gemma-2-2b-it", task=DESCRIBED), replace(QWEN3, task=DESCRIBED)),
    "PF422": (replace(CHATML, template="google-gemma-2-2b-it", task=UNANSWERED), replace(QWEN3, task=UNANSWERED)),
    "PF423": (replace(CHATML, template="google-gemma-2-2b-it", task=INDENTED), replace(QWEN3, task=INDENTED)),
    "PF424": (replace(CHATML, template="trl-llava_next"), QWEN3),
    "PF425": (Case("qwen3", task=ENDING), Case("gpt2", task=ENDING)),
    "PF426": (replace(QWEN3, task=THOUGHT), replace(CHATML, task=THOUGHT)),
    "PF427": (replace(QWEN3, task=BEGUN), replace(QWEN2, task=BEGUN)),
    "PF439": (Case(template="axolotl-chatml", more=WITH_TOOLS), QWEN3),
    "PF440": (Case(template="GLM-4.7-Flash"), QWEN2),
    "PF441": (QWEN3, QWEN2),
    "PF442": (QWEN3, QWEN2),
}
OPENED = "output_type: generate_until\ngeneration_kwargs: {until: ['\\n'], max_gen_toks: 64}"
HITS_AND_SILENCES["PF462"] = (
    Case(template="NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", task=OPENED),
    Case(template="Qwen-Qwen3-0.6B", task=OPENED),
)
LOOKS_FOR_ANSWER = (
    'output_type: generate_until\ndoc_to_text: "{{question}}\\nA. {{choices[0]}}'
    '\\nB. {{choices[1]}}\\nC. {{choices[2]}}"\n'
    "doc_to_target: \"{{'ABC'[answer]}}\"\nfilter_list: [{name: one, filter: ["
    "{function: regex, regex_pattern: 'answer is ([ABC])'}, {function: take_first}]}]"
)
HITS_AND_SILENCES["PF464"] = (
    Case(template="mistralcommon-v15_think", task=LOOKS_FOR_ANSWER),
    Case(template="Qwen-Qwen3-0.6B", task=LOOKS_FOR_ANSWER),
)


def found(code: str, case: Case, folder: Path) -> list[str]:
    (path,) = write_example(case.task or "num_fewshot: 0", folder)
    file = read_task_file(path, TaskIndex([folder]))
    assert file is not None
    selection = Selection(rules=known_rules(), select=(code[:5], "PF003"))
    checked = linted(study_of(file.tasks[0], folder), selection, case.profile(), name="real")
    assert checked.failure is None
    assert not [finding for finding in checked.findings if finding.code == "PF003"], checked.findings
    return [str(finding) for finding in checked.findings]


@pytest.mark.parametrize("code", HITS_AND_SILENCES)
def test_a_rule_finds_its_mistake_with_a_real_model(code: str, tmp_path: Path) -> None:
    if code == "PF418" and int(version("transformers").partition(".")[0]) < 5:
        pytest.skip("only transformers 5 builds tokenizers again from a part of the file")
    assert found(code, HITS_AND_SILENCES[code][0], tmp_path)


@pytest.mark.parametrize("code", HITS_AND_SILENCES)
def test_a_rule_is_silent_where_a_real_model_is_fine(code: str, tmp_path: Path) -> None:
    assert found(code, HITS_AND_SILENCES[code][1], tmp_path) == []


def test_every_rule_about_models_is_tried() -> None:
    ours = {code: rule for code, rule in known_rules().items() if rule.is_builtin and code[:3] in ("PF3", "PF4")}
    about = {code for code, rule in ours.items() if ".systems.templates." not in rule.function.__module__}
    assert about == {code[:5] for code in HITS_AND_SILENCES}
