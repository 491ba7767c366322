"""Formats on real multiple-choice tasks of the installed lm-eval, and their output in lm-eval's own renderer."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import jinja2
import pytest

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import FormatError, RenderError
from pytest_promptfmt.core.task import Dataset, FewShot, Task, TextTemplate
from pytest_promptfmt.formats import LaidOutTask, apply_format, known_formats, variants_of
from pytest_promptfmt.systems.task_files import load_tasks, read_task_file
from pytest_promptfmt.tasks.synthetic.synthetic_docs import synthetic_docs

lm_eval = pytest.importorskip("lm_eval")
pytestmark = pytest.mark.parity

TASKS = Path(lm_eval.__file__).parent / "tasks"
MULTIPLE_CHOICE = (
    "arc/arc_easy.yaml",
    "arc/arc_challenge.yaml",
    "mmlu/default/mmlu_anatomy.yaml",
    "mmlu/default/mmlu_world_religions.yaml",
    "hellaswag/hellaswag.yaml",
    "openbookqa/openbookqa.yaml",
    "piqa/piqa.yaml",
    "belebele/belebele_eng_Latn.yaml",
    "belebele/belebele_zho_Hans.yaml",
    "sciq/sciq.yaml",
    "commonsense_qa/default.yaml",
    "super_glue/boolq/default.yaml",
)
FORMATS = ("mcqa", "cloze", "generate", "cot")


def read(file: str) -> Task:
    return load_tasks(TASKS / file)[0]


def value(spec: Any, doc: Doc) -> Any:
    if not isinstance(spec, str):
        return spec
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return ast.literal_eval(environment.from_string(spec).render(**doc))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("file", MULTIPLE_CHOICE)
def test_real_task_is_laid_out_and_its_gold_survives(file: str, name: str) -> None:
    task = read(file)
    docs = synthetic_docs(task, count=3)
    made = apply_format(task, name)
    assert synthetic_docs(made, count=3) == docs
    as_written = list(task.render(TaskDocs.in_memory(docs), num_fewshot=0))
    laid_out = list(made.render(TaskDocs.in_memory(docs), num_fewshot=1))
    for doc, before, after in zip(docs, as_written, laid_out, strict=True):
        gold = value(made.gold, doc)
        choices = value(made.choices, doc)
        written_gold = before.target if isinstance(before.target, int) else task_choices(task, doc).index(before.target)
        assert gold == written_gold
        assert len(choices) == len(before.requests)
        if name == "generate":
            assert after.target == value(made.labels, doc)[gold]
        elif name == "cot":
            assert after.target == choices[gold]
        else:
            assert after.target == gold
            expected = choices if name == "cloze" else value(made.labels, doc)
            assert [request.continuation for request in after.requests] == [f" {text}" for text in expected]
            assert [request.gold for request in after.requests].index(True) == gold
        if name in ("mcqa", "generate"):
            for label, choice in zip(value(made.labels, doc), choices, strict=True):
                assert f"\n{label}. {choice}\n" in after.prompts[0].text


def task_choices(task: Task, doc: Doc) -> Any:
    return doc[task.doc_to_choice] if task.doc_to_choice in doc else value(task.doc_to_choice, doc)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("race/race.yaml", "doc_to_text is a function"),
        ("gsm8k/gsm8k.yaml", "needs doc_to_choice"),
        ("wikitext/wikitext.yaml", "output_type loglikelihood_rolling"),
    ],
)
def test_real_task_that_cannot_be_laid_out_says_why(file: str, says: str) -> None:
    with pytest.raises(FormatError, match=says) as caught:
        apply_format(read(file), "mcqa")
    assert caught.value.position is not None


def test_no_real_task_crashes_under_any_format() -> None:
    laid_out, refused, failed = 0, [], []
    for path in sorted(TASKS.rglob("*.yaml"))[::97]:
        file = read_task_file(path) if "group:" not in path.read_text("utf-8") else None
        for task in file.tasks if file is not None else ():
            for name in known_formats():
                try:
                    made = apply_format(task, name)
                except FormatError as error:
                    refused.append(error)
                    continue
                laid_out += 1
                docs = synthetic_docs(made, count=1)
                try:
                    next(iter(made.render(TaskDocs.in_memory(docs), num_fewshot=0)))
                except RenderError as error:
                    failed.append(error.message)
    assert laid_out > len(refused) > 0
    assert all(error.position is not None for error in refused)
    assert not [message for message in failed if "has no column" not in message]


FRANCE = {"question": "Capital of {{ France }}?", "choices": ["Berlin", "'Madrid'", "Paris\n", "7"], "answer": 2}
CHINA = {"question": "And {of} China?", "choices": ["Beijing", "Xi'an"], "answer": 0}
SPAIN = {"question": "And Spain?", "choices": ["Rome", "Oslo", "Madrid"], "answer": 2}
OWN = Task(
    name="t",
    doc_to_text="question",
    doc_to_target="answer",
    doc_to_choice="choices",
    dataset=Dataset(test_split="test", training_split="train", fewshot_split="train"),
    fewshot=FewShot(split="train"),
)
EVERY = [layout.name for layout in known_formats().values() if layout.topic is None]
EVERY += [layout.name for name in FORMATS for layout in variants_of(known_formats()[name])]


@pytest.mark.parametrize("name", EVERY)
def test_generated_templates_give_the_same_prompts_and_requests_in_lm_eval(name: str) -> None:
    from lm_eval.api.task import ConfigurableTask

    made = apply_format(OWN, name)
    docs, shots = [FRANCE, CHINA, SPAIN], [SPAIN, CHINA, FRANCE, {**CHINA, "question": "Again?"}]
    config = _config_of(made, docs, shots)
    theirs = ConfigurableTask(config=config)
    theirs.set_fewshot_seed(1234)
    ours = made.render(TaskDocs.in_memory(docs, shots), num_fewshot=2)
    for index, instance in enumerate(ours):
        doc = theirs.eval_docs[index]
        context = theirs.fewshot_context(doc, 2, gen_prefix=theirs.doc_to_prefix(doc))
        requests = theirs.construct_requests(doc, context)
        requests = requests if isinstance(requests, list) else [requests]
        assert instance.prompts[0].text == context
        if made.output_type == "multiple_choice":
            assert [request.arguments for request in instance.requests] == [request.args for request in requests]


def _config_of(made: LaidOutTask, docs: list[Any], shots: list[Any]) -> dict[str, Any]:
    import datasets

    def plain(spec: Any) -> Any:
        return str(spec) if isinstance(spec, TextTemplate) else spec

    splits = {"test": datasets.Dataset.from_list(docs), "train": datasets.Dataset.from_list(shots)}
    return {
        "task": "t",
        "custom_dataset": lambda **_: splits,
        "test_split": "test",
        "training_split": "train",
        "fewshot_split": "train",
        "output_type": made.output_type,
        "doc_to_text": plain(made.doc_to_text),
        "doc_to_target": plain(made.doc_to_target),
        "doc_to_choice": plain(made.doc_to_choice),
        "description": made.description,
        "target_delimiter": made.target_delimiter,
        "fewshot_delimiter": made.fewshot_delimiter,
        "gen_prefix": made.gen_prefix,
    }
