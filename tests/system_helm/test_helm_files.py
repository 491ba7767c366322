"""HELM adapter files: what is understood of them, what is refused and where, and large ones in little memory."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from linting import study_of

from pytest_promptfmt.core.errors import RenderError, SourceError
from pytest_promptfmt.core.finding import Finding
from pytest_promptfmt.rules.rule_registry import find_rule, known_rules
from pytest_promptfmt.systems.helm import SYSTEM
from pytest_promptfmt.systems.helm.adapter_files import MAX_WHOLE, AdapterFile
from pytest_promptfmt.systems.helm.adapter_tasks import HelmAssembly, read_adapter_task
from pytest_promptfmt.systems.helm.json_text import json_items, read_json
from pytest_promptfmt.tasks import TaskFile

ROOT = Path(__file__).parents[2]
SEED = ROOT.parent / "shared" / "seeds" / "003_21b38ebf6d0a45ce.txt"
SIZE_MB = 200 if os.environ.get("PROMPTFMT_PARITY") == "all" else 24


def state(number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "instance": {
            "input": {"text": f"{number}+{number}?"},
            "references": [{"output": {"text": str(2 * number)}, "tags": ["correct"]}],
            "split": "test",
        },
        **more,
    }


def read(folder: Path, text: str | dict[str, Any]) -> TaskFile:
    path = folder / "adapter.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text, indent=1), "utf-8")
    found = read_adapter_task(path, "helm")
    assert found is not None
    return found


def adapter_of(found: TaskFile) -> AdapterFile:
    assembly = found.tasks[0].assembly
    assert isinstance(assembly, HelmAssembly)
    return assembly.file


def deviations(found: TaskFile) -> list[tuple[str, Finding]]:
    """Return what the rules about files say, each finding with the code of its rule."""
    study = study_of(found.tasks[0])
    rules = (rule for rule in known_rules().values() if rule.function.__module__ == SYSTEM.rules[0])
    return [(rule.code, finding) for rule in rules for finding in rule.function(study)]


def refusal(folder: Path, text: str | dict[str, Any]) -> str:
    with pytest.raises(SourceError) as caught:
        read(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


# -- texts -------------------------------------------------------------------------------------------------------------


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=12,
    ),
    st.sampled_from([None, 0, 2]),
)
def test_every_key_of_a_json_text_is_found_where_it_is_written(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    read_back = read_json(Path("x.json"), text)
    assert read_back.value == value

    def check(part: Any, keys: tuple[str | int, ...]) -> None:
        members = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for key, inner in members:
            position = read_back.locate((*keys, key))
            assert position is not None
            assert position.line is not None
            assert position.column is not None
            there = text.split("\n")[position.line - 1][position.column - 1 :]
            shown = json.dumps(key if isinstance(part, dict) else inner, indent=indent, ensure_ascii=False)
            assert there.startswith(shown.split("\n")[0])
            check(inner, (*keys, key))

    check(value, ())


def test_json5_is_read_and_its_keys_are_found(tmp_path: Path) -> None:
    text = '// a file\n{a: 1, /* here */ \'b c\': [1, 2,],\n  // "d": 0\n  "d": {"e": \'x, {y}\',},}\n'
    found = read_json(tmp_path / "x.json", text)
    assert found.value == {"a": 1, "b c": [1, 2], "d": {"e": "x, {y}"}}
    assert not found.is_strict
    places = [found.locate(keys) for keys in (("a",), ("b c",), ("b c", 1), ("d",), ("d", "e"), ("f",))]
    shown = [None if place is None else (place.line, place.column) for place in places]
    assert shown == [(2, 2), (2, 19), (2, 30), (4, 3), (4, 9), None]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('{"adapter_spec": {}\n "x": 1}', "2:2", "unexpected"),
        ('{"adapter_spec": {"a": }}', "1:24", "unexpected"),
        ('{"adapter_spec": {"a": 1}', "1:26", "ends before it is complete"),
        ('{"adapter_spec": {}} {}', "1:22", "text after the end"),
        ('// note\n{"adapter_spec": {"a": tru}}', "2:", "neither JSON nor JSON5"),
        ('// note\n{"adapter_spec": ' + "[" * 5000 + "]" * 5000 + "}", "2:", "nested too deeply"),
        ('{"adapter_spec":\n {"max_tokens": ' + "9" * 5000 + "}}", "2:17", "has too many digits"),
    ],
)
def test_what_is_not_json_is_reported_with_its_place(text: str, place: str, message: str, tmp_path: Path) -> None:
    said = refusal(tmp_path, text)
    assert said.startswith(f"adapter.json:{place}")
    assert message in said


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('{"adapter_spec": {}}'.encode("utf-16"), "adapter.json: the file is UTF-16"),
        (b"\xfe\xff" + '{"adapter_spec": {}}'.encode("utf-16-be"), "adapter.json: the file is UTF-16"),
        (b'{"adapter_spec":\n {"instructions": "caf\xe9"}}', "adapter.json:2:23: the byte 0xe9 is not UTF-8"),
    ],
)
def test_other_encodings_are_reported_and_never_guessed(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "adapter.json"
    path.write_bytes(data)
    with pytest.raises(SourceError) as caught:
        read_adapter_task(path, "helm")
    assert str(caught.value).replace(f"{tmp_path}/", "").startswith(message)
    assert "save the file as UTF-8" in str(caught.value)


def test_a_byte_order_mark_of_utf8_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "adapter.json"
    path.write_bytes(b'\xef\xbb\xbf{"adapter_spec": {"method": "generation", "instructions": "x"}}')
    found = read_adapter_task(path, "helm")
    assert found is not None
    assert adapter_of(found).spec.instructions == "x"


@pytest.mark.parametrize(
    "text", ['"max_tokens": 5, "a": {"max_tokens": 1}, "max_tokens": 7', "max_tokens: 5, max_tokens: 7,"]
)
def test_of_a_key_that_appears_twice_the_last_counts_and_that_is_reported(text: str, tmp_path: Path) -> None:
    path = tmp_path / "adapter.json"
    path.write_text(f'{{"adapter_spec": {{"method": "generation", {text}}}}}', "utf-8")
    found = read_adapter_task(path, "helm")
    assert found is not None
    assert adapter_of(found).spec.max_tokens == 7
    twice = [each.keys for code, each in deviations(found) if code == "PF152" and "repeated" in each.message]
    assert twice == [("adapter_spec", "max_tokens")]


# -- the adapter -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"method": "generate"}, "3:3: unknown adaptation method 'generate'"),
        (
            {"method": "ehr_instruction"},
            "3:3: the method 'ehr_instruction' is not supported, because it needs more than text",
        ),
        ({"method": "generation", "max_tokens": "5"}, "4:3: adapter_spec.max_tokens must be a whole number, not '5'"),
        ({"method": "generation", "max_tokens": -5}, "4:3: adapter_spec.max_tokens is -5"),
        (
            {"method": "generation", "temperature": float("inf")},
            "4:3: adapter_spec.temperature must be a number, not inf",
        ),
        ({"method": "generation", "instructions": None}, "4:3: adapter_spec.instructions must be text, not null"),
        ({"method": "generation", "stop_sequences": "\n"}, "4:3: adapter_spec.stop_sequences must be a list of texts"),
        ({"method": "generation", "output_mapping_pattern": "("}, "4:3: output_mapping_pattern: invalid regular"),
        ({"method": "generation", "substitutions": [{"source": "a", "target": "\\1"}]}, "5:4: substitutions: invalid"),
        ({"temperature": 0, "decoding_parameters": {"temperature": 1}}, "5:4: temperature is 0 in adapter_spec, but 1"),
        ([], "2:2: adapter_spec must be a mapping, not a list"),
    ],
)
def test_what_no_adapter_can_work_with_is_refused(spec: Any, message: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, {"adapter_spec": spec}).startswith(f"adapter.json:{message}")


def test_deviations_are_understood_and_named(tmp_path: Path) -> None:
    spec = {"input_prefx": "Q: ", "max_train_instances": 0, "decoding_parameters": {"max_new_tokens": 7}, "colour": 1}
    found = read(tmp_path, {"adapter_spec": spec, "request_states": [state()]})
    assert (adapter_of(found).spec.input_prefix, adapter_of(found).spec.max_tokens) == ("Q: ", 7)
    assert [(code, each.saw) for code, each in deviations(found)] == [
        ("PF151", "this plugin treats it as input_prefix"),
        ("PF151", ""),
        ("PF151", "this plugin treats max_new_tokens as adapter_spec.max_tokens"),
        ("PF153", "this plugin assumes generation"),
    ]


def test_several_references_make_an_adapter_without_method_joint(tmp_path: Path) -> None:
    two = state()
    two["instance"]["references"].append({"output": {"text": "3"}, "tags": []})
    found = read(tmp_path, {"adapter_spec": {}, "request_states": [state(), two]})
    assert found.tasks[0].assembly.facts == {"method": "multiple_choice_joint, inferred"}


def test_the_seed_itself_is_read_rendered_and_scored(tmp_path: Path) -> None:
    if not SEED.is_file():
        pytest.skip("the text of the seed is not at hand")
    block = re.search(r"``` JSON\n(.*?)```", SEED.read_text("utf-8"), re.DOTALL)
    assert block is not None
    found = read(tmp_path, block[1])
    (task,) = found.tasks
    (instance,) = task.render()
    story = instance.doc["input"]
    assert story.endswith("Question: Where was the apple before the garden?")
    assert instance.prompts[0].text == f"Passage: {story}\nAnswer:"
    assert instance.target == "bedroom"
    assert instance.requests[0].generation_kwargs is not None
    assert instance.requests[0].generation_kwargs["until"] == ["\n"]
    assert task.assembly.recorded_scores is not None
    scores = task.assembly.recorded_scores()
    assert (scores.count, scores.first[0].answer, scores.bad) == (1, "office", [])
    assert set(scores.means.values()) == {0.0}
    named = " ".join(each.message + each.saw + each.do for _, each in deviations(found))
    for key in ("instance_prefix", "output_format", "decoding_parameters", "method", "comments", "result"):
        assert key in named


# -- instances ---------------------------------------------------------------------------------------------------------


def test_states_that_cannot_be_used_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    without, wrong, odd = state(2), state(3), state(4)
    del without["instance"]["references"]
    wrong["instance"]["input"] = {"text": 7}
    odd["instance"]["references"] = [{"tags": ["correct"]}]
    spec = {"method": "generation", "max_train_instances": 0}
    found = read(tmp_path, {"adapter_spec": spec, "request_states": [state(), without, wrong, odd, 5, state(6)]})
    said = [str(error).replace(f"{tmp_path}/", "").partition("\n")[0] for error in found.problems]
    assert [line.partition(": ")[2] for line in said] == [
        "request_states[1]: `instance.references` is missing, but answers are compared with the references",
        "request_states[2]: `instance.input.text` must be text",
        "request_states[3]: reference 1 has no `output.text`, or it is not text",
        "request_states[4]: a request state must be a mapping, not int",
    ]
    assert all(re.match(r"adapter\.json:\d+:\d+: ", line) for line in said)
    assert [instance.doc["input"] for instance in found.tasks[0].render()] == ["1+1?", "6+6?"]


def test_a_split_under_the_references_counts(tmp_path: Path) -> None:
    shot = state(2)
    del shot["instance"]["split"]
    shot["instance"]["references"][0]["split"] = "train"
    found = read(
        tmp_path,
        {
            "adapter_spec": {"method": "generation", "max_train_instances": 1},
            "request_states": [state(), state(3), state(4), shot],
        },
    )
    instance = next(found.tasks[0].render())
    assert instance.prompts[0].text == "Input: 2+2?\nOutput: 4\n\nInput: 1+1?\nOutput:"
    assert "PF154" in [code for code, _ in deviations(found)]


def test_shots_drawn_without_a_split_are_not_evaluated(tmp_path: Path) -> None:
    states = [state(number) for number in range(1, 8)]
    spec = {"method": "generation", "max_train_instances": 5}
    task = read(tmp_path, {"adapter_spec": spec, "request_states": states}).tasks[0]
    made = list(task.render())
    assert len(made) == 2
    for instance in made:
        assert instance.prompts[0].text.count("Input: ") == 6
        assert instance.prompts[0].text.count(f"Input: {instance.doc['input']}") == 1
    assert [one.prompts[0].text for one in made] == [one.prompts[0].text for one in task.render()]


def test_an_instance_without_references_lists_none_and_its_recorded_prompt_is_reproduced(tmp_path: Path) -> None:
    one = state(1, request={"prompt": "Input: 1+1?\nOutput:"})
    one["instance"]["references"] = []
    spec = {"method": "multiple_choice_joint", "max_train_instances": 0}
    (task,) = read(tmp_path, {"adapter_spec": spec, "request_states": [one]}).tasks
    assert [instance.prompts[0].text for instance in task.render()] == ["Input: 1+1?\nOutput:"]
    assert task.assembly.recorded_prompts is not None
    assert task.assembly.recorded_prompts().summary == "all 1 rendered prompts are equal to the recorded ones"
    spec["reference_prefix"] = "- "
    (task,) = read(tmp_path, {"adapter_spec": spec, "request_states": [one]}).tasks
    with pytest.raises(RenderError, match="needs a letter or digit, so that labels can be made from it"):
        list(task.render())


@pytest.mark.parametrize(("index", "shown"), [(None, "null"), ("0", "'0'"), (-1, "-1"), (1, "1")])
def test_a_state_about_a_reference_that_the_instance_lacks_is_bad(tmp_path: Path, index: object, shown: str) -> None:
    spec = {"method": "multiple_choice_separate_original", "max_train_instances": 0}
    states = [state(1, reference_index=index, request={"prompt": "1+1? 2"})]
    (task,) = read(tmp_path, {"adapter_spec": spec, "request_states": states}).tasks
    assert task.assembly.recorded_prompts is not None
    [error] = task.assembly.recorded_prompts().bad
    assert f"`reference_index` is {shown}, but must be the index of a reference of the instance" in str(error)


def test_instances_to_evaluate_without_training_split_show_no_shots(tmp_path: Path) -> None:
    states = [state(1), state(2)]
    states[1]["instance"]["split"] = "valid"
    spec = {"method": "generation", "max_train_instances": 1}
    found = read(tmp_path, {"adapter_spec": spec, "request_states": states})
    assert [instance.prompts[0].text.count("Input: ") for instance in found.tasks[0].render()] == [1, 1]
    assert [each.message for _, each in deviations(found)] == [
        "no instance is in the split 'train', so there are no shots"
    ]


def test_docs_of_an_adapter_alone_are_beside_it_or_synthetic(tmp_path: Path) -> None:
    task = read(tmp_path, {"adapter_spec": {"method": "multiple_choice_joint", "max_train_instances": 1}}).tasks[0]
    (instance, _) = task.render()
    assert instance.prompts[0].text.count("\nA. ") == 2
    assert instance.target in "ABC"
    lines = [
        {"input": "1+1?", "references": ["1", "2"], "answer_index": 1},
        {"input": "2+2?", "references": ["4", "5"], "answer": "4"},
    ]
    (tmp_path / "adapter.docs.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    made = list(task.render())
    assert [one.prompts[0].text.rpartition("\n\n")[2] for one in made] == [
        "Input: 1+1?\nA. 1\nB. 2\nOutput:",
        "Input: 2+2?\nA. 4\nB. 5\nOutput:",
    ]
    assert [one.target for one in made] == ["B", "A"]


def test_a_file_that_breaks_off_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    spec = {"method": "generation", "max_train_instances": 0}
    text = json.dumps({"adapter_spec": spec, "request_states": [state(1), state(2), state(3)]}, indent=1)
    cut = text[: text.index("3+3?")]
    found = read(tmp_path, cut)
    assert [instance.doc["input"] for instance in found.tasks[0].render()] == ["1+1?", "2+2?"]
    (error,) = found.problems
    lines = cut.split("\n")
    assert (
        str(error) == f"{tmp_path}/adapter.json:{len(lines)}:{len(lines[-1]) + 1}: the text ends before it is complete"
    )


def test_large_files_are_streamed_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "scenario_state.json"
    spec = {"method": "generation", "max_train_instances": 0}
    padding = "x" * 50_000
    count = SIZE_MB * 20
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{{"adapter_spec": {json.dumps(spec)}, "request_states": [\n')
        for number in range(count):
            result = {"completions": [{"text": str(2 * number + number % 2), "logprob": -1}]}
            one = state(
                number, result=result, request={"prompt": f"Input: {number}+{number}?\nOutput:"}, padding=padding
            )
            file.write(json.dumps(one) + (",\n" if number < count - 1 else "]}"))
    assert path.stat().st_size > MAX_WHOLE
    tracemalloc.start()
    found = read_adapter_task(path, "helm")
    assert found is not None
    assembly = found.tasks[0].assembly
    assert assembly.recorded_scores is not None
    assert assembly.recorded_prompts is not None
    scores, prompts = assembly.recorded_scores(), assembly.recorded_prompts()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (scores.count, scores.means["exact_match"]) == (count, 0.5)
    assert prompts.summary == f"all {count:,} rendered prompts are equal to the recorded ones"
    assert peak < 40 << 20


def test_the_metrics_of_a_run_are_in_its_run_spec(tmp_path: Path) -> None:
    spec = {"adapter_spec": {"method": "generation", "max_train_instances": 0}}
    metric = {"class_name": "helm.Basic", "args": {"names": ["quasi_exact_match", "rouge_l", "f1_score"]}}
    (tmp_path / "run_spec.json").write_text(json.dumps({**spec, "metric_specs": [metric]}), "utf-8")
    assert read_adapter_task(tmp_path / "run_spec.json", "helm") is not None
    done = state(1, result={"completions": [{"text": "The 2.", "logprob": 0}]})
    path = tmp_path / "scenario_state.json"
    path.write_text(json.dumps({**spec, "request_states": [done]}), "utf-8")
    found = read_adapter_task(path, "helm")
    assert found is not None
    assert adapter_of(found).metrics == ("quasi_exact_match", "f1_score")
    assert found.tasks[0].name == tmp_path.name
    assert read_adapter_task(tmp_path / "run_spec.json", "helm") is None
    recorded = found.tasks[0].assembly.recorded_scores
    assert recorded is not None
    assert recorded().means["quasi_exact_match"] == 1.0


def test_a_large_file_that_breaks_off_is_reported_with_its_place_even_without_recorded_prompts(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    head = '{"adapter_spec": {"method": "generation", "max_train_instances": 0}, "request_states": [\n'
    lines = [json.dumps(state(number, padding="x" * 400_000)) + "," for number in range(50)]
    path.write_text(head + "\n".join(lines)[:-9], "utf-8")
    found = read_adapter_task(path, "helm")
    assert found is not None
    assembly = found.tasks[0].assembly
    assert assembly.recorded_prompts is not None
    result = assembly.recorded_prompts()
    assert result.summary == "49 recorded requests, but none has a prompt"
    (error,) = result.bad
    assert f"long.json:51:{len(lines[-1]) - 8}: the text ends before it is complete" in str(error)


def test_a_large_value_and_a_late_mistake_are_reported_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": [1,\n 22, {"b": 3}],\n "c": nul}', "utf-8")
    items = json_items(path, "a")
    assert [
        (item.value, item.position.line, item.position.column) for item in (next(items), next(items), next(items))
    ] == [
        (1, 1, 8),
        (22, 2, 2),
        ({"b": 3}, 2, 6),
    ]
    with pytest.raises(SourceError, match=r"x\.json:3:7"):
        next(items)


@given(st.lists(st.integers() | st.text(max_size=3) | st.floats(allow_nan=False), max_size=6), st.integers(1, 7))
def test_streamed_values_are_those_of_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], chunk: int
) -> None:
    import pytest_promptfmt.systems.helm.json_text as room

    path = tmp_path_factory.mktemp("stream") / "x.json"
    path.write_text(json.dumps({"first": values, "array": values, "last": 7}, indent=1), "utf-8")
    whole = room._CHUNK
    try:
        room._CHUNK = chunk  # type: ignore[misc]
        items = list(json_items(path, "array"))
    finally:
        room._CHUNK = whole  # type: ignore[misc]
    assert [item.position for item in items] == [item.position for item in json_items(path, "array")]
    assert [item.value for item in items] == [values, *values, 7]


def test_a_large_file_in_another_encoding_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"a": ["caf\xe9"]}')
    with pytest.raises(SourceError, match="the byte 0xe9, in this value or a later one, is not UTF-8"):
        list(json_items(path, "a"))


@pytest.mark.parametrize(
    ("wrong", "is_told"), [("the Nile", True), ("nile!", True), ("Nile", False), ("Niles", False), ("", False)]
)
def test_a_wrong_reference_is_told_from_a_right_one_by_more_than_case_and_articles(
    wrong: str, is_told: bool, tmp_path: Path
) -> None:
    references = [{"output": {"text": wrong}, "tags": []}, {"output": {"text": "Nile"}, "tags": ["correct"]}]
    states = [{"instance": {"input": {"text": "Longest?"}, "references": references, "split": "test"}}]
    spec = {"method": "multiple_choice_joint", "max_train_instances": 0}
    task = read(tmp_path, {"adapter_spec": spec, "request_states": states}).tasks[0]
    found = [*find_rule("PF159").function(study_of(task))]
    assert [each.saw for each in found] == ([f"'Nile' and {wrong!r}"] if is_told else [])
    assert [each.keys[-2:] for each in found] == ([("references", 1)] if is_told else [])
