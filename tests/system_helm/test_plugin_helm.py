"""HELM adapter files in pytest: found by what they hold, compared, checked, and their recorded runs made again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

FIXTURES = Path(__file__).parents[2] / "fixtures" / "helm"
PLAIN = "--promptfmt-profile=plain"


def copied(project: Project, *names: str) -> None:
    for name in names:
        (project.root / name).parent.mkdir(exist_ok=True)
        shutil.copy(FIXTURES / name, project.root / name)


def adapter(project: Project, path: str, states: list[Any] | None = None, **spec: Any) -> None:
    value = {"adapter_spec": {"method": "generation", "max_train_instances": 0, **spec}}
    project.write(path, json.dumps(value | ({} if states is None else {"request_states": states}), indent=1))


def state(question: str, answer: str, **more: Any) -> dict[str, Any]:
    reference = {"output": {"text": answer}, "tags": ["correct"]}
    return {"instance": {"input": {"text": question}, "references": [reference], "split": "test"}, **more}


def test_only_json_with_an_adapter_is_collected(project: Project) -> None:
    adapter(project, "quiz.json", [state("1+1?", "2")])
    project.write("five.json5", "{adapter_spec: {method: 'generation', max_train_instances: 0}}\n")
    project.write("package.json", '{"name": "x", "scripts": {}}')
    project.write("nested.json", '{"runs": [{"adapter_spec": {"method": "generation"}}]}')
    project.write("broken.json", '{"name": ')
    project.write("image.json", "\x00\x01")
    assert project.collected("--promptfmt", PLAIN, "-m", "promptfmt_snapshot") == [
        "five.json5::five::snapshot[plain]",
        "quiz.json::quiz::snapshot[plain]",
    ]
    named = project.run("nested.json")
    named.stdout.fnmatch_lines(["nested.json: this file defines no task", "*`adapter_spec` (HELM file)*"])


def test_a_file_as_data_providers_write_it_is_shown_checked_and_scored(project: Project) -> None:
    copied(project, "whereabouts.json")
    written = project.run(PLAIN, "-o", "promptfmt_lint=true", "--snapshot-update")
    assert written.ret == 0
    said = written.stdout.str()
    lines = (FIXTURES / "whereabouts.json").read_text("utf-8").split("\n")
    for code, key, saw in (
        ("PF151", "instance_prefixw", "this plugin treats it as instance_prefix"),
        ("PF151", "ouput_format", "this plugin treats it as output_format"),
        ("PF151", "temperature", "this plugin treats temperature as adapter_spec.temperature"),
        ("PF152", "adapter_spec", "remove comments"),
        ("PF153", "adapter_spec", "this plugin assumes generation"),
        ("PF154", "max_train_instances", "5 for shots and 1 for a question are needed"),
        ("PF155", "request_states", "move the key result out of the key request"),
        ("PF163", "reference_prefix", "'A. '"),
    ):
        number = next(number for number, line in enumerate(lines) if f'"{key}":' in line)
        place = f"whereabouts.json:{number + 1}:{lines[number].index(key)}"
        _, found, rest = said.partition(f"{place}: warning: {code} ")
        assert found, (code, place)
        assert saw in rest.partition("whereabouts.json")[0]
    folder = project.root / "__prompts__" / "whereabouts" / "whereabouts"
    prompt = (folder / "plain.txt").read_text("utf-8")
    assert "method: generation, inferred" in prompt
    assert "| Story: The pilot left her map in the tower." in prompt
    assert "| Answer:⟨end⟩" in prompt
    scores = (folder / "recorded.txt").read_text("utf-8")
    assert '1 map-1: " tower" read as "tower", right is "galley": exact_match 0' in scores
    assert project.run(PLAIN).ret == 0


def test_recorded_prompts_of_a_run_are_reproduced_without_its_training_instances(project: Project) -> None:
    copied(project, "oceans/scenario_state.json")
    project.accept(PLAIN)
    node = "oceans/scenario_state.json::oceans::recorded[prompts]"
    assert node in project.collected("--promptfmt", PLAIN)
    result = project.run(PLAIN, "-rA", node)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["all 3 rendered prompts are equal to the recorded ones"])
    recorded = json.loads((FIXTURES / "oceans" / "scenario_state.json").read_text("utf-8"))
    shown = (project.root / "oceans/__prompts__/scenario_state/oceans/plain.txt").read_text("utf-8")
    for one in recorded["request_states"]:
        lines = one["request"]["prompt"].split("\n")
        assert "\n".join(f"  | {line}".rstrip() for line in lines) in shown.replace("⟨end⟩", "")


def test_the_first_difference_from_a_recorded_prompt_is_shown_with_its_key(project: Project) -> None:
    copied(project, "oceans/scenario_state.json")
    project.edit("oceans/scenario_state.json", '"output_prefix": "Answer: "', '"output_prefix": "The answer: "')
    (text,) = project.failures(PLAIN, "-m", "promptfmt_recorded", "-k", "prompts")
    assert "3 of 3 rendered prompts differ from the recorded ones" in text
    assert "oceans/scenario_state.json:6:5 output_prefix" in text
    assert "request_states[0]" in text
    assert "recorded: …" in text
    assert "The answer:" in text


def test_a_changed_shot_of_one_recorded_prompt_is_a_difference(project: Project) -> None:
    copied(project, "oceans/scenario_state.json")
    path = project.root / "oceans" / "scenario_state.json"
    value = json.loads(path.read_text("utf-8"))
    request = value["request_states"][2]["request"]
    request["prompt"] = request["prompt"].replace("the largest?", "the largest ocean?")
    path.write_text(json.dumps(value, indent=2), "utf-8")
    (text,) = project.failures(PLAIN, "-m", "promptfmt_recorded", "-k", "prompts")
    assert "1 of 3 rendered prompts differ from the recorded ones" in text
    assert "request_states[2]" in text
    assert "the few-shot examples of earlier request states" in text


def test_a_changed_score_of_a_recorded_completion_is_a_change_of_its_snapshot(project: Project) -> None:
    copied(project, "oceans/scenario_state.json")
    project.accept(PLAIN)
    project.edit("oceans/scenario_state.json", '"text": " B"', '"text": " B."')
    (text,) = project.failures(PLAIN, "-m", "promptfmt_recorded", "-k", "scores")
    assert "the scores of the recorded completions have changed" in text
    assert '-  1 ocean-1: " B" read as "Atlantic"' in text
    assert '+  1 ocean-1: " B." none of the labels' in text


def answered(text: str, index: int, logprobs: list[float], **instance: Any) -> dict[str, Any]:
    """Return a state that asked about one reference of two, with the tokens of ` text` behind two others."""
    references = [{"output": {"text": "Paris"}, "tags": ["correct"]}, {"output": {"text": "the old Rome"}, "tags": []}]
    words = ["Capital", "?", *(f" {word}" for word in text.split(" "))]
    tokens = [{"text": word, "logprob": value} for word, value in zip(words, [-9.0, -9.0, *logprobs], strict=True)]
    return {
        "instance": {"input": {"text": "Capital?"}, "references": references, "split": "test", **instance},
        "reference_index": index,
        "request_mode": "original",
        "train_trial_index": 0,
        "result": {"completions": [{"text": "".join(words), "logprob": sum(logprobs), "tokens": tokens}]},
    }


def test_recorded_log_likelihoods_of_references_are_scored_by_the_token(project: Project) -> None:
    asked = [answered("Paris", 0, [-2.0]), answered("the old Rome", 1, [-1.0, -1.0, -3.0])]
    adapter(project, "capitals.json", asked, method="multiple_choice_separate_original", output_prefix=" ")
    project.accept(PLAIN)
    shown = (project.root / "__prompts__" / "capitals" / "capitals" / "recorded.txt").read_text("utf-8")
    # -5 in all against -2, but -5/3 for each token.
    assert 'the old Rome" comes first, right is "Paris": exact_match 0, predicted_index 1' in shown
    adapter(project, "capitals.json", asked[:1], method="multiple_choice_separate_original", output_prefix=" ")
    (text,) = project.failures(PLAIN, "-m", "promptfmt_recorded", "-k", "scores")
    assert "capitals.json:" in text
    assert "no recorded request scores reference 2 of the instance (original mode)" in text


def test_all_trials_are_rendered_or_as_many_as_the_file_says(project: Project) -> None:
    shots = [state(f"{n}+0?", str(n)) for n in range(9)]
    for one in shots:
        one["instance"]["split"] = "train"
    spec = {"num_train_trials": 7, "max_train_instances": 1}
    adapter(project, "trials.json", [*shots, state("1+1?", "2")], **spec)
    project.accept(PLAIN)
    path = project.root / "__prompts__" / "trials" / "trials" / "plain.txt"
    assert path.read_text("utf-8").count("⟨end⟩") == 7
    assert "trials:" not in path.read_text("utf-8")
    value = json.loads((project.root / "trials.json").read_text("utf-8"))
    project.write("trials.json", json.dumps({**value, "promptfmt": {"trials": 2}}))
    project.accept(PLAIN)
    assert path.read_text("utf-8").count("⟨end⟩") == 2
    assert "trials: 2 of 7" in path.read_text("utf-8")
    project.write("trials.json", json.dumps({**value, "promptfmt": {"trials": 0}}))
    (text,) = project.failures(PLAIN)
    assert "promptfmt.trials is 0" in text


def test_unusable_states_and_files_fail_alone(project: Project) -> None:
    odd = state("2+2?", "4")
    del odd["instance"]["references"]
    adapter(project, "some.json", [state("1+1?", "2"), odd])
    adapter(project, "wrong.json", max_tokens="many")
    adapter(project, "unknown.json", [state("1+1?", "2")], colour="red")
    project.write("cut.json", '{"adapter_spec": {"method": "generation"},\n "request_states": [{"instance": ')
    texts = "\n".join(project.failures(PLAIN, "--snapshot-update", "-m", "not promptfmt_extraction"))
    assert "some.json:" in texts
    assert "request_states[1]: `instance.references` is missing" in texts
    assert "wrong.json:5:3: adapter_spec.max_tokens must be a whole number, not 'many'" in texts
    assert "cut.json:2:33: " in texts
    assert sorted(project.snapshots()) == [
        "__prompts__/some/some/plain.txt",
        "__prompts__/unknown/unknown/plain.txt",
    ]


def test_a_choice_of_shots_that_never_ends_fails_with_a_reason(project: Project) -> None:
    shots = [state("a", "x"), state("b", "y")]
    shots[1]["instance"]["references"][0]["tags"] = []
    for shot in shots:
        shot["instance"]["split"] = "train"
    adapter(project, "endless.json", [*shots, state("1+1?", "2")], max_train_instances=2)
    (text,) = project.failures(PLAIN, "-m", "promptfmt_snapshot")
    assert "HELM 0.5.16 would run forever" in text


def test_a_window_that_cuts_the_question_is_an_error(project: Project) -> None:
    window = {"max_request_length": 30, "tokenizer": "archetype:bytelevel-gpt2"}
    value = {
        "adapter_spec": {"method": "generation", "max_train_instances": 0, "max_tokens": 5},
        "request_states": [state("Which of the metals " * 20, "mercury")],
        "promptfmt": {"window": window},
    }
    project.write("long.json", json.dumps(value, indent=1))
    (text,) = project.failures(PLAIN, "-o", "promptfmt_lint=true", "--snapshot-update")
    assert "PF160 the prompt is longer than the model's window, so the end of the question is lost" in text


@pytest.mark.parametrize("window", [{"max_request_length": 0}, {"max_sequence_length": 9}, {"size": 1}, []])
def test_a_window_without_a_length_is_refused(project: Project, window: object) -> None:
    value = {
        "adapter_spec": {"method": "generation", "max_train_instances": 0, "max_tokens": 5},
        "request_states": [state("Which metal rusts?", "iron")],
        "promptfmt": {"window": window},
    }
    project.write("long.json", json.dumps(value))
    (text,) = project.failures(PLAIN, "-m", "promptfmt_snapshot")
    assert "promptfmt.window cannot be" in text


def test_labels_that_run_out_are_reported_by_one_rule_alone(project: Project) -> None:
    one = state("Which metal rusts?", "iron")
    one["instance"]["references"] += [{"output": {"text": text}, "tags": []} for text in ("gold", "zinc")]
    adapter(project, "metals.json", [one], method="multiple_choice_joint", reference_prefix="8) ")
    text = "\n".join(project.failures(PLAIN, "-o", "promptfmt_lint=true", "--snapshot-update"))
    assert "PF156 an instance has too many references, so some labels are punctuation" in text
    assert "PF249 after Z or 9" not in text


def test_formats_lay_out_helm_tasks(project: Project) -> None:
    copied(project, "quiz.json")
    project.accept(PLAIN, "--promptfmt-format=mcqa", "--promptfmt-format=cloze")
    shown = (project.root / "__prompts__/quiz/quiz@mcqa/plain.txt").read_text("utf-8")
    assert "| Question: Which ocean has the Mariana Trench?" in shown
    assert '  * " A"\n    " B"\n    " C"' in shown
    cloze = (project.root / "__prompts__/quiz/quiz@cloze/plain.txt").read_text("utf-8")
    assert '  * " Pacific"' in cloze


def test_helms_exact_mapping_reads_a_bare_label_and_little_else(project: Project) -> None:
    copied(project, "quiz.json")
    project.accept(PLAIN, "--promptfmt-scoring")
    matrix = (project.root / "__prompts__/quiz/quiz/extraction.txt").read_text("utf-8").split("\n")
    verdicts = {
        line.split()[0]: line.split()[-1] for line in matrix if line.startswith("    ") and len(line.split()) == 2
    }
    assert verdicts["bare"] == verdicts["bare-space"] == "OK"
    assert {verdicts[name] for name in ("dot", "paren", "lower", "answer-colon")} == {"MISS"}


def test_the_snapshots_of_the_examples_are_those_of_the_present_code(project: Project) -> None:
    shutil.copytree(FIXTURES, project.root / "helm")
    result = project.run("helm")
    result.assert_outcomes(passed=6)
    assert result.ret == 0


def test_docs_in_the_tree_of_docs_are_those_of_an_adapter_without_states(project: Project) -> None:
    adapter(project, "runs/quiz.json")
    project.write(
        "tests/docs/runs/quiz.docs.jsonl", '{"input": "Is ice cold?", "references": ["yes"], "answer": "yes"}\n'
    )
    project.accept(PLAIN, "-o", "promptfmt_docs_dir=tests/docs", "-m", "promptfmt_snapshot")
    (text,) = project.snapshots().values()
    assert b"Is ice cold?" in text
    assert b"docs: 1 from quiz.docs.jsonl" in text
