"""`promptfmt verify` and `promptfmt diff --harness`: our requests against lm-eval's, and those of two releases."""

from __future__ import annotations

import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from promptfmt_command import promptfmt, write_task

pytestmark = pytest.mark.parity

DOCS = "metadata: {promptfmt: {docs: [{question: one, answer: a}, {question: two, answer: b}]}}"


STEPS = "[{function: remove_whitespace}, {function: take_first}]"
STRIPPED = {"filter_list": f"[{{name: strip, filter: {STEPS}}}]", "generation_kwargs": "{until: [x]}"}


def installed() -> Path:
    """The folder of the installed lm-eval; tests that need one are skipped without."""
    spec = find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("compares with lm-evaluation-harness")
    pytest.importorskip("datasets")
    return Path(spec.submodule_search_locations[0])


def fork_of(package: Path, fork: Path) -> None:
    """Copy lm-eval without its tasks."""
    shutil.copytree(package, fork / "lm_eval", ignore=shutil.ignore_patterns("tasks", "__pycache__"))
    (fork / "lm_eval/tasks").mkdir()
    for module in (package / "tasks").glob("*.py"):
        shutil.copy(module, fork / "lm_eval/tasks")


def project(folder: Path) -> Path:
    write_task(folder, "plain")
    write_task(folder, "choices", output_type="multiple_choice", doc_to_choice="[x, y]", num_fewshot="2")
    write_task(folder, "laid", formats="cot")
    file = folder / "tasks/choices.yaml"
    file.write_text(file.read_text("utf-8").replace("output_type: generate_until\n", ""), "utf-8")
    file.write_text(file.read_text("utf-8").replace("doc_to_target: answer", "doc_to_target: 0"), "utf-8")
    return folder


def test_requests_are_equal_and_what_cannot_be_compared_is_named(tmp_path: Path) -> None:
    installed()
    write_task(tmp_path, "shown", doc_to_visual="[picture]")
    write_task(tmp_path, "in_template", template="mcq", doc_to_choice="[x, y]", output_type="multiple_choice")
    made = tmp_path / "tasks/in_template.yaml"
    made.write_text(made.read_text("utf-8").replace("doc_to_target: answer", "doc_to_target: 0"), "utf-8")
    done = promptfmt(project(tmp_path), "verify", "--profile", "plain", "--profile", "chat-chatml")
    assert done.returncode == 0, done.stdout
    *reasons, last = done.stdout.splitlines()
    assert reasons == ["not compared, 1 task: shown: lm-eval cannot read doc_to_visual"]
    assert last.endswith("requests compared, all equal, 1 not compared")


SCAN = """
task: scan
test_split: test
output_type: generate_until
doc_to_text: "<image> Q: {{question}}"
doc_to_target: answer
"""
ROWS = "{question: one, answer: a, picture: x.png}, {question: two, answer: b, picture: y.png}"


def test_images_and_sound_are_compared_by_their_digests(tmp_path: Path) -> None:
    package = installed()
    (tmp_path / "x.png").write_bytes(b"an image")
    (tmp_path / "media.py").write_text("def image(doc):\n    return [doc['picture']]\n", "utf-8")
    for name, key in {"column": "doc_to_image: [picture]", "code": "doc_to_image: !function media.image"}.items():
        text = f"{SCAN}{key}\nmetadata: {{promptfmt: {{docs: [{ROWS}]}}}}\n".replace("scan", name)
        (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
    (tmp_path / "sound.yaml").write_text(f"{SCAN}doc_to_audio: noise\n".replace("scan", "sound"), "utf-8")
    done = promptfmt(tmp_path, "verify", "--profile", "plain", "--profile", "chat-chatml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": 3 tasks, " in done.stdout
    assert done.stdout.rstrip().endswith("all equal")
    fork_of(package, tmp_path / "fork")
    module = tmp_path / "fork/lm_eval/api/task.py"
    old = 'multimodal_arg = {\n                **multimodal_arg,\n                **{"visual": self.doc_to_image(doc)},'
    text = module.read_text("utf-8")
    assert old in text
    module.write_text(text.replace(old, old.replace("self.doc_to_image(doc)", '["other.png"]')), "utf-8")
    done = promptfmt(tmp_path, "verify", "--lm-eval", "fork", "--profile", "plain", "column.yaml")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "doc 1, request 1: images and sound, from character" in done.stdout


TASK_CLASS = """
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask


class Own(ConfigurableTask):
    VERSION = 0
    DATASET_PATH = "none"

    def __init__(self, config=None):
        super().__init__(config={"metadata": {"version": self.VERSION}})

    def has_training_docs(self): return False
    def has_validation_docs(self): return True
    def has_test_docs(self): return False
    def validation_docs(self): return self.dataset["validation"]
    def doc_to_text(self, doc): return f"Q: {doc['question']}"
    def doc_to_target(self, doc): return f" {doc['answer']}"

    def construct_requests(self, doc, ctx, **kwargs):
        return [Instance("generate_until", doc, (ctx + "!", {"until": ["x"]}), 0, **{"metadata": kwargs["metadata"]})]

    def process_results(self, doc, results): return {"acc": 1.0}
    def aggregation(self): return {"acc": sum}
    def higher_is_better(self): return {"acc": True}
"""


def test_the_requests_of_a_class_are_those_of_its_object_in_lm_eval(tmp_path: Path) -> None:
    installed()
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/own.py").write_text(TASK_CLASS, "utf-8")
    (tmp_path / "tasks/own.yaml").write_text(f"task: own\nclass: !function own.Own\n{DOCS}\n", "utf-8")
    done = promptfmt(tmp_path, "verify", "--profile", "plain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 task, 2 requests compared, all equal" in done.stdout


def test_a_class_that_is_built_of_its_docs_is_compared_with_real_ones(tmp_path: Path) -> None:
    installed()
    (tmp_path / "tasks").mkdir()
    reads = "        self.named = 'test' in self.dataset and self.dataset['test'][0]['named']\n"
    made = TASK_CLASS.replace("    def has_training", f"{reads}\n    def has_training")
    (tmp_path / "tasks/own.py").write_text(made, "utf-8")
    yaml = tmp_path / "tasks/own.yaml"
    yaml.write_text("task: own\nclass: !function own.Own\n", "utf-8")
    done = promptfmt(tmp_path, "verify", "--profile", "plain")
    assert done.returncode == 3, done.stdout + done.stderr
    assert (
        "1 task: own: lm-eval builds no task for 'own' with synthetic docs: it raises KeyError: 'named'" in done.stdout
    )
    (tmp_path / "tasks/own.docs.jsonl").write_text('{"question": "one", "answer": "a", "named": "b"}\n', "utf-8")
    assert "1 task, 1 request compared, all equal" in promptfmt(tmp_path, "verify", "--profile", "plain").stdout


def test_a_sample_is_always_the_same(tmp_path: Path) -> None:
    installed()
    results = [json.loads(promptfmt(project(tmp_path), "verify", "--sample", "1", "--json").stdout) for _ in range(2)]
    assert len(results[0]) == 1
    assert results[0] == results[1]


def test_nothing_is_equal_where_nothing_is_compared(tmp_path: Path) -> None:
    package = tmp_path / "fork/lm_eval"
    (package / "tasks").mkdir(parents=True)
    (package / "__init__.py").touch()
    done = promptfmt(project(tmp_path / "mine"), "verify", "--lm-eval", str(package.parent), "--profile", "plain")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "lm-eval cannot be imported: ModuleNotFoundError: No module named 'lm_eval.api'" in done.stdout
    assert done.stdout.rstrip().endswith("0 tasks, 0 requests compared, 3 not compared")


def test_a_fork_that_makes_other_requests_differs_with_the_first_text(tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    fork_of(installed(), fork)
    (fork / "pyproject.toml").write_text('[project]\nversion = "0.4.13.dev0"\n', "utf-8")
    module = fork / "lm_eval/api/task.py"
    text = module.read_text("utf-8")
    assert '(ctx, f"{target_delimiter}{cont}")' in text
    changed = text.replace('(ctx, f"{target_delimiter}{cont}")', '(ctx, f"{target_delimiter}<{cont}>")')
    module.write_text(changed, "utf-8")
    done = promptfmt(project(tmp_path / "mine"), "verify", "--lm-eval", str(fork), "--profile", "plain")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "unknown cause, 1 task: choices" in done.stdout
    assert "doc 1, request 1: continuation, from character 1" in done.stdout
    assert "    lm-eval   <x>" in done.stdout
    assert "lm-eval 0.4.13.dev0: 3 tasks" in done.stdout


def test_a_fork_that_differs_in_one_known_behaviour_is_named_by_it(tmp_path: Path) -> None:
    package = installed()
    fork = tmp_path / "fork"
    fork_of(package, fork)
    module = fork / "lm_eval/api/task.py"
    text = module.read_text("utf-8")
    old = "target_delimiter = self.config.target_delimiter\n            if apply_chat_template:"
    assert old in text
    module.write_text(text.replace(old, old.replace("if apply_chat_template", "if False")), "utf-8")
    done = promptfmt(project(tmp_path / "mine"), "verify", "--lm-eval", str(fork), "--profile", "chat-chatml")
    assert "in the target delimiter before choices under a chat template, 1 task: choices" in done.stdout


def test_a_checkout_without_lm_eval_is_refused(tmp_path: Path) -> None:
    done = promptfmt(project(tmp_path), "verify", "--lm-eval", ".")
    assert done.returncode == 2
    assert "has no folder lm_eval" in done.stderr


def test_two_releases_are_compared_by_cause(tmp_path: Path) -> None:
    done = promptfmt(project(tmp_path), "diff", "--harness", "0.4.9..0.4.13", "--profile", "plain")
    assert done.returncode == 1
    assert "default generation arguments, 2 tasks: laid@cot, plain" in done.stdout
    assert "lm-eval 0.4.9 -> 0.4.13: 3 tasks" in done.stdout
    same = promptfmt(tmp_path, "diff", "--harness", "0.4.11..0.4.12")
    assert same.returncode == 0
    assert same.stdout.splitlines()[-1].endswith("all equal, scores of 3 tasks not computed")
    reason = "lm-eval 0.4.11 is not installed. Name its folder with --lm-eval; lm-eval 0.4.12 is not installed"
    assert f"scores not computed, 3 tasks: choices, laid@cot, plain: {reason}" in same.stdout


CLASS = """
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

class Quiz(ConfigurableTask):
    def __init__(self, config=None):
        super().__init__(config={"metadata": {"version": 1}})

    def doc_to_text(self, doc):
        return doc["question"]

    def doc_to_target(self, doc):
        return doc["answer"]

    def construct_requests(self, doc, ctx, **kwargs):
        return Instance(request_type="generate_until", doc=doc, arguments=(ctx, {"until": ["x"]}), idx=0)
"""


def test_shots_that_a_release_no_longer_makes_of_a_class_are_a_change(tmp_path: Path) -> None:
    installed()
    (tmp_path / "quiz.py").write_text(CLASS, "utf-8")
    rows = "".join(f'{{"question": "{word}", "answer": "{word}"}}\n' for word in ("one", "two", "three", "four"))
    (tmp_path / "quiz.docs.jsonl").write_text(rows, "utf-8")
    (tmp_path / "quiz.yaml").write_text("task: quiz\nclass: !function quiz.Quiz\nnum_fewshot: 1\n", "utf-8")
    done = promptfmt(tmp_path, "diff", "--harness", "0.4.9..0.4.13", "--profile", "plain")
    assert "how shots are drawn and joined, 1 task: quiz" in done.stdout
    assert "fails for few-shot examples (TypeError)" in done.stdout
    same = promptfmt(tmp_path, "diff", "--harness", "0.4.8..0.4.9", "--profile", "plain")
    assert "1 task, 3 requests compared, all equal" in same.stdout


def test_keys_that_a_release_begins_to_read_are_a_change(tmp_path: Path) -> None:
    keys = {"fewshot_config": '{fewshot_delimiter: "###"}', "training_split": "train", "num_fewshot": "2"}
    write_task(tmp_path, "keyed", generation_kwargs="{until: [x]}", **keys)
    done = promptfmt(tmp_path, "diff", "--harness", "0.4.9..0.4.13", "--profile", "plain")
    assert "which keys of fewshot_config have an effect, 1 task: keyed" in done.stdout
    assert done.returncode == 1
    back = promptfmt(tmp_path, "diff", "--harness", "0.4.13..0.4.9", "--profile", "plain")
    assert "which keys of fewshot_config have an effect, 1 task: keyed" in back.stdout


def test_keys_that_a_release_does_not_know_are_a_change(tmp_path: Path) -> None:
    write_task(tmp_path, "keyed", generation_kwargs="{until: [x]}", gen_prefix="'So:'")
    done = promptfmt(tmp_path, "diff", "--harness", "0.4.7..0.4.12", "--profile", "plain")
    assert "which keys a task may have, 1 task: keyed" in done.stdout
    assert "lm-eval 0.4.7 does not know the key 'gen_prefix'" in done.stdout


def test_filters_that_score_otherwise_in_a_release_are_named(tmp_path: Path) -> None:
    write_task(tmp_path, "stripped", **STRIPPED)
    done = promptfmt(tmp_path, "diff", "--harness", "0.4.9..0.4.13", "--profile", "plain")
    change = "remove_whitespace since 0.4.10: whitespace after an answer is removed as well"
    assert f"scores may change, 1 task: stripped: {change}" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("scores of 1 task may change, scores of 1 task not computed")
    later = promptfmt(tmp_path, "diff", "--harness", "0.4.10..0.4.12", "--profile", "plain")
    assert "may change" not in later.stdout
    assert later.returncode == 0


def with_change(fork: Path, name: str, old: str, new: str) -> Path:
    """A copy of the installed lm-eval that states the release before it, with other code in a module."""
    fork_of(installed(), fork)
    (fork / "pyproject.toml").write_text('[project]\nversion = "0.4.12"\n', "utf-8")
    module = fork / "lm_eval" / name
    text = module.read_text("utf-8")
    assert old in text
    module.write_text(text.replace(old, new), "utf-8")
    return fork


def test_scores_are_those_of_the_filters_and_metrics_of_both_releases(tmp_path: Path) -> None:
    before = with_change(tmp_path / "old", "filters/extraction.py", "resp.strip() for", "resp.lstrip() for")
    write_task(tmp_path / "mine", "stripped", **STRIPPED)
    write_task(tmp_path / "mine", "other", generation_kwargs="{until: [x]}")
    options = ("diff", "--harness", "0.4.12..0.4.13", "--lm-eval", str(before), "--profile", "plain")
    done = promptfmt(tmp_path / "mine", *options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 scores changed, 1 task: stripped" in done.stdout
    assert "doc 1, filter strip: exact_match of ' «answer 1» \\n'\n    0.4.12   0.0\n    0.4.13   1.0" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("scores of 1 task changed")
    other, stripped = json.loads(promptfmt(tmp_path / "mine", *options, "--json").stdout)
    assert not other["changed_scores"]
    assert min(other["tried"], stripped["tried"]) > 40
    assert {each["metric"] for each in stripped["changed_scores"]} == {"exact_match"}


def test_an_aggregation_that_changed_is_a_change_of_scores(tmp_path: Path) -> None:
    before = with_change(tmp_path / "old", "api/metrics.py", "sorted(arr)[len(arr) // 2]", "arr[len(arr) // 2]")
    write_task(tmp_path / "mine", "middle", metric_list="[{metric: exact_match, aggregation: median}]")
    done = promptfmt(
        tmp_path / "mine", *("diff", "--harness", "0.4.12..0.4.13", "--lm-eval", str(before), "--profile", "plain")
    )
    assert "scores changed, 1 task: middle" in done.stdout, done.stdout + done.stderr
    pair = "exact_match of '«answer 1»', then ' «answer 1»'"
    assert f"middle, filter none: {pair}\n    0.4.12   0.0\n    0.4.13   1.0" in done.stdout


def test_recorded_answers_are_scored_and_failing_filters_shown(tmp_path: Path) -> None:
    old = "if not isinstance(resp, str):\n                    resp = "
    new = f"if resp == 'Mercury':\n                    raise LookupError\n                {old}"
    before = with_change(tmp_path / "old", "filters/extraction.py", old, new)
    steps = "[{function: regex, regex_pattern: '([a-zA-Z]+)'}, {function: take_first}]"
    write_task(tmp_path / "mine", "read", filter_list=f"[{{name: words, filter: {steps}}}]")
    recording = tmp_path / "mine/tasks/read.recording.jsonl"
    recording.write_text('{"completion": "Mercury", "doc": 1}\n', "utf-8")
    done = promptfmt(
        tmp_path / "mine", *("diff", "--harness", "0.4.12..0.4.13", "--lm-eval", str(before), "--profile", "plain")
    )
    shown = "read, doc 2, filter words: exact_match of 'Mercury'\n    0.4.12   ! LookupError\n    0.4.13   0.0"
    assert shown in done.stdout, done.stdout + done.stderr


def test_an_environment_is_named_by_its_folder(tmp_path: Path) -> None:
    package = installed()
    site = tmp_path / "env/lib/python3.9/site-packages"
    fork_of(package, site)
    (site / "lm_eval-0.4.12.dist-info").mkdir()
    (site / "lm_eval-0.4.12.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: lm_eval\nVersion: 0.4.12\n")
    write_task(tmp_path / "mine", "stripped", **STRIPPED)
    done = promptfmt(tmp_path / "mine", "diff", "--harness", "0.4.12..0.4.13", "--lm-eval", str(tmp_path / "env"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "scores compared, all equal" in done.stdout
    refused = promptfmt(tmp_path / "mine", "diff", "--harness", "0.4.12..0.4.13", "--lm-eval", str(tmp_path / "mine"))
    assert refused.returncode == 2
    assert "has no folder lm_eval" in refused.stderr


def test_releases_of_lm_eval_itself_score_otherwise(tmp_path: Path) -> None:
    releases = os.environ.get("PROMPTFMT_LM_EVAL_RELEASES", "")
    if not releases:
        pytest.skip("the files of the release are not there: set PROMPTFMT_LM_EVAL_RELEASES")
    write_task(tmp_path, "stripped", **STRIPPED)
    write_task(tmp_path, "other", generation_kwargs="{until: [x]}")
    done = promptfmt(
        tmp_path,
        "diff",
        "--harness",
        "0.4.9..0.4.12",
        "--profile",
        "plain",
        *(word for release in ("0.4.9", "0.4.12") for word in ("--lm-eval", str(Path(releases, release)))),
    )
    change = "remove_whitespace since 0.4.10: whitespace after an answer is removed as well"
    assert f"3 scores changed, 1 task: stripped: {change}" in done.stdout, done.stdout + done.stderr
    assert "not computed" not in done.stdout


@pytest.mark.parametrize("written", ["0.4.9", "0.4.9..", "main..0.4.9", "0.4.9..0.5.0"])
def test_other_ranges_are_refused(tmp_path: Path, written: str) -> None:
    done = promptfmt(project(tmp_path), "diff", "--harness", written)
    assert done.returncode == 2
    assert f"invalid --harness '{written}'" in done.stderr
