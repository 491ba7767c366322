"""The files of the projects of `stale_outcomes.py`, what may appear beside them, and what is written in their place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest_promptfmt

PACKAGE: Final = Path(pytest_promptfmt.__file__).parent

VARIABLE: Final = "TRIAL_MARK"
"""A variable of the environment that the code of a task asks for."""


def _task(name: str, more: str = "", **keys: Any) -> str:
    config = {
        "task": name,
        "dataset_path": "nowhere/docs",
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "Q: {{question}}\nA:",
        "doc_to_target": "answer",
    }
    return (
        "".join(f"{key}: {json.dumps(value)}\n" for key, value in (config | keys).items() if value is not None) + more
    )


def _rows(*rows: Any) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


ROW: Final = {"question": "why", "answer": "so"}
OTHER_ROW: Final = {"question": "how much is 1", "answer": "1"}
_NUMBER = [{"name": "n", "filter": [{"function": "regex", "regex_pattern": "([0-9]+)"}, {"function": "take_first"}]}]
_RULE = """\
from rule_words import WORDS

from pytest_promptfmt.rules import Family, Finding, Severity, rule

@rule("XX101", "word", severity=Severity.WARNING, family=Family.PROMPT)
def word(task):
    if any(word in str(task.config) for word in WORDS):
        yield Finding(message="a word of the list")
"""
_FORMAT = """\
from pytest_promptfmt import Format, register_format

register_format(Format(name="exam", summary="As in exams.", question_prefix="", answer_prompt="A:"))
"""
_HOOK = """\
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        if "lint" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason="not here"))
"""
_MINIMAL: Final = {
    "pytest.ini": "[pytest]\npromptfmt_profiles = plain\n",
    "tasks/a/first.yaml": _task("first"),  # the first with a profile is run each time
    "tasks/plain/arc.yaml": _task("arc"),
}

PARTS: Final[Mapping[str, Mapping[str, str]]] = {
    "neighbours": {"tasks/plain/hella.yaml": _task("hella"), "tasks/deep/er/cb.yaml": _task("cb", num_fewshot=1)},
    "include": {
        "tasks/shared/_root.yaml": "target_delimiter: ' '\n",
        "tasks/shared/_other.yaml": "description: 'Other. '\n",
        "tasks/shared/_base.yaml": 'include: _root.yaml\nfewshot_delimiter: "\\n\\n"\n',
        "tasks/shared/boolq.yaml": _task("boolq", include="_base.yaml"),
        "tasks/shared/rte.yaml": _task("rte", include="_base.yaml", tag="nli"),
    },
    "code": {
        "tasks/code/cola.yaml": _task("cola", "doc_to_text: !function utils.text\n", doc_to_text=None),
        "tasks/code/utils.py": "import dep\nfrom tasks.code.helpers import mark\n\n\ndef text(doc):\n"
        "    return f\"Q: {doc['question']}{mark()}{dep.END}\\nA:\"\n",
        "tasks/code/helpers.py": "def mark():\n    return '?'\n",
        "lib/site-packages/dep.py": "END = '.0'\n",
        "lib/site-packages/dep-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: dep\nVersion: 1.0\n",
    },
    "environment": {
        "tasks/env/mark.yaml": _task("mark", "doc_to_text: !function env.text\n", doc_to_text=None),
        "tasks/env/env.py": f"import os\n\nMARK = os.environ.get('{VARIABLE}', '?')\n\n\ndef text(doc):\n"
        "    return f\"Q: {doc['question']}{MARK}\\nA:\"\n",
    },
    "opened": {
        "tasks/opened/words.yaml": _task("words", "process_docs: !function read.docs\n"),
        "tasks/opened/words.docs.jsonl": _rows(ROW, OTHER_ROW),
        "tasks/opened/read.py": "import os\n\n\ndef docs(dataset):\n"
        "    with open(os.path.join(os.path.dirname(__file__), 'words.txt')) as file:\n        words = file.read()\n"
        "    return dataset.map(lambda doc: {**doc, 'question': doc['question'] + words.strip()})\n",
        "tasks/opened/words.txt": "?\n",
    },
    "docs": {"tasks/docs/wic.yaml": _task("wic"), "tasks/docs/wic.docs.jsonl": _rows(ROW)},
    "data": {
        "tasks/data/own.yaml": _task("own", dataset_path="json", dataset_kwargs={"data_files": {"test": "own.jsonl"}}),
        "tasks/data/own.jsonl": _rows(ROW, OTHER_ROW),
    },
    "group": {"tasks/groups/all.yaml": "group: all\ntask: [arc, hella, {task: wic, num_fewshot: 1}]\n"},
    "formats": {
        "tasks/formats/sciq.yaml": _task("sciq", doc_to_text=None, doc_to_target=None, formats="own")
        + "metadata: {promptfmt: {fields: {question: question, choices: choices, answer: answer},"
        + " docs: [{question: x, choices: [a, b], answer: 0}]}}\n",
        "tasks/formats/formats/own.yaml": 'type: mcqa\nsummary: Own.\nlabel_suffix: ") "\n',
    },
    "answers": {
        "tasks/answers/gsm.yaml": _task("gsm", filter_list=_NUMBER),
        "tasks/answers/gsm.docs.jsonl": _rows({"question": "1+1", "answer": "2"}),
        "tasks/answers/gsm.recording.jsonl": _rows({"doc": 0, "completion": "2", "expected": "2", "correct": True}),
    },
    "chat": {
        "tasks/chat/promptfmt.yaml": "profiles: {own: {chat_template: chat.jinja, tokenizer: tok}}\n"
        "default_profiles: [own]\n",
        "tasks/chat/a.yaml": _task("chat"),
        "tasks/chat/piqa.yaml": _task("piqa"),
        "tasks/chat/chat.jinja": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>",
        "tasks/chat/tok/tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}',
        "tasks/chat/tok/tokenizer.json": "",  # that of the package, by `files_of`
    },
    "helm": {
        "tasks/helm/quiz.json": json.dumps(
            {
                "adapter_spec": {"input_prefix": "Q: ", "output_prefix": "\nA:", "max_tokens": 5},
                "instances": [
                    {
                        "input": {"text": "why"},
                        "references": [{"output": {"text": "so"}, "tags": ["correct"]}],
                        "split": "test",
                        "id": "1",
                    }
                ],
            },
            indent=1,
        ),
    },
    "model": {
        "tasks/model.jinja": "{% for message in messages %}<{{ message.role }}>{{ message.content }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
        "tasks/own.conversations.yaml": "conversations:\n  why:\n    about: asked why\n    messages:\n"
        "      - {role: user, content: why}\n      - {role: assistant, content: so}\n",
        "tasks/tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}',
        "tasks/tokenizer.json": "",  # as above
    },
    "rule": {"promptfmt.yaml": "rules: [rules.py]\n", "rules.py": _RULE, "rule_words.py": "WORDS = ['banned']\n"},
    "conftest": {
        "conftest.py": "import own_formats\n",
        "own_formats.py": _FORMAT,
        "tasks/exams/exam.yaml": _task("exam", doc_to_text=None, doc_to_target=None, formats="exam")
        + "metadata: {promptfmt: {fields: {question: question, choices: choices, answer: answer},"
        + " docs: [{question: x, choices: [a, b], answer: 0}]}}\n",
    },
}
APPEARING: Final[Mapping[str, str]] = {
    "tasks/helm/arc.json": PARTS["helm"]["tasks/helm/quiz.json"],
    "tasks/plain/arc.docs.jsonl": _rows({"question": "x", "answer": "y"}),
    "tasks/plain/arc.docs.train.jsonl": _rows({"question": "z", "answer": "y"}),
    "tasks/plain/arc.recording.jsonl": _rows({"doc": 0, "completion": "2", "expected": "2", "correct": True}),
    "tasks/plain/arc2.yaml": _task("arc"),
    "tasks/plain/new.yaml": _task("new"),
    "tasks/plain/other.yaml": "a: file\n",
    "tasks/plain/promptfmt.yaml": "ignore: [PF2]\n",
    "tasks/plain/test_own.py": "def test_own():\n    pass\n",
    "tasks/conftest.py": _HOOK,
    "tasks/later/late.yaml": _task("late"),
    "tasks/groups/more.yaml": "group: more\ntask: [boolq, {task: arc, num_fewshot: 1}]\n",
    "tasks/groups/nli.yaml": "group: nlis\ntask: [nli]\n",
    "tasks/shared/boolq.docs.jsonl": _rows(ROW),
    "tasks/shared/promptfmt.yaml": "docs: 1\n",
    "tasks/code/helpers/__init__.py": "def mark():\n    return '!!'\n",
    "tasks/code/dep.py": "END = ' here'\n",
    "dep.py": "END = ' root'\n",
    "tasks/env/os.py": "environ = {}\n",
    "tasks/answers/gsm.completions.jsonl": _rows({"completion": "3", "expected": "3"}),
    "tasks/docs/wic.docs.train.jsonl": _rows({"question": "how", "answer": "well"}),
    "tasks/formats/own.yaml": "task: [1]\n",
    "tasks/chat/tok/special_tokens_map.json": '{"bos_token": "<s>"}',
    "tasks/chat/tok/chat_template.jinja": "{{ messages }}",
    "tasks/model_training.jinja": "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}",
    "tasks/more.conversations.yaml": "conversations: {why: {about: why, messages: [{role: user, content: why not}]}}\n",
    "tasks/special_tokens_map.json": '{"bos_token": "<s>"}',
    "tasks/chat_template.jinja": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "tasks/additional_chat_templates/rag.jinja": "{{ messages }}",
    "tasks/model.yaml": _task("model"),
    "tasks/zebra/model.yaml": _task("model"),
    "tasks/arc.jinja": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "tasks/plain/model.jinja": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "nowhere/docs/test.jsonl": _rows(ROW),
    "promptfmt.yaml": "docs: 1\n",
}
SWAPS: Final = (
    ("Q: ", "Question: "), ("Question: ", "Q: "), ("A:", "B:"), ("B:", "A:"), ("?", "!"), ("!", "?"), ("why", "who"),
    ("' '", "'  '"), ("1", "2"), ("2", "1"), (") ", "] "), ("'.'", "';'"), ("<", "["), ("[", "<"), ("Q:", "banned"),
    ("docs: 1", "docs: 2"), ("task", "tasq"), ("answer", "question"), ("rules: [rules.py]", "ignore: [PF]"),
    ("Severity.WARNING", "Severity.INFO"), ("[pytest]", "[pytest]\npromptfmt_docs = 1"), ("banned", "answer"),
    ("= plain", "= plain chat-chatml"), ("arc", "wic"), ("a word", "words"), ("tasq", "task"), ("[rules", "[/rules"),
    ("[pytest]", "[pytest]\nfilterwarnings = error"), ("[pytest]", "[pytest]\npromptfmt_lint = false"),
    ("[pytest]", "[pytest]\nnorecursedirs = docs"), ("[pytest]", "[pytest]\npromptfmt_snapshot_dir = kept"),
    ("true", "false"), ("</s>", "<s>"), ("plain", "blank"), ("text", "txet"), ("hella", "cb"), ("_base", "_root"),
    ("import dep", "import dep, time"), ("import os", "import os, time"), ("question", "answer"), ("so", "se"),
    ("MARK = ", "MARK = 'x' or "), ("def text", "import tasks.code.helpers\ndef text"), ("words.txt", "read.py"),
    ("generate_until", "multiple_choice"), ("dep.END", "END"), ("import own_formats", "import own_formats  #"),
)  # fmt: skip
LINES: Final = (
    "num_fewshot: 2", "description: 'Be brief. '", "target_delimiter: '  '", "tag: nli",
    "include: ../shared/_base.yaml",
    "gen_prefix: 'So'", "generation_kwargs: {until: ['\\n']}", "metadata: {version: 2}", "fewshot_split: train",
    "process_docs: !function utils.gone", "doc_to_choice: [a, b]", "metric_list: [{metric: exact_match}]",
    "should_decontaminate: true", "x: 1", "task: arc", "ignore: [PF2]", "docs: 3", "# a remark", "  - broken", "\t",
)  # fmt: skip


def files_of(parts: Iterable[str]) -> dict[str, bytes]:
    """Return the files of a project with these parts, besides one plain task."""
    files = {name: text.encode() for name, text in _MINIMAL.items()}
    for part in parts:
        files |= {name: text.encode() for name, text in PARTS[part].items()}
    paths = (PACKAGE / "data/tokenizers").glob("*/tokenizer.json")
    smallest = min(paths, key=lambda path: path.stat().st_size).read_bytes()
    files |= {name: smallest for name in files if name.endswith("/tokenizer.json")}
    return files
