"""Tasks put to the bundled model through the plugin: what holds passes, what is broken on purpose is caught."""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import pytest_promptfmt
from pytest_promptfmt.models.model import Ask
from pytest_promptfmt.models.transformers import TINY_FOLDER

pytest.importorskip("torch", reason="running a model needs torch, of the extra `model`")

DOCS = [
    {"question": "Which of these is the river?", "choices": ["lamp", "river", "goat"], "answer": 1},
    {"question": "Find the stone.", "choices": ["stone", "paper", "cloud"], "answer": 0},
    {"question": "What is another name for the window?", "choices": ["harbour", "goat", "window"], "answer": 2},
]

LABELS = "Question: {{question}}\\n{% for c in choices %}{{'ABC'[loop.index0]}}. {{c}}\\n{% endfor %}Answer:"
CHOICE = f"""
output_type: multiple_choice
doc_to_text: "{LABELS}"
doc_to_choice: ["A", "B", "C"]
doc_to_target: answer
"""
INSTRUCTION = "Given the following question and 3 candidate answers (A, B and C), choose the best answer."
ENDING = (
    'Your response should end with \\"The best answer is [answer_letter]\\" '
    "where the [answer_letter] is one of A, B or C."
)
GENERATE = f"""
output_type: generate_until
doc_to_text: "{INSTRUCTION}\\n{LABELS.removesuffix("Answer:")}{ENDING}"
doc_to_target: "{{{{'ABC'[answer]}}}}"
gen_prefix: "The best answer is"
metric_list: [{{metric: exact_match}}]
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 32}}
filter_list:
  - name: letter
    filter: [{{function: regex, regex_pattern: "\\\\b([A-C])\\\\b"}}, {{function: take_first}}]
"""


@pytest.fixture(autouse=True, scope="module")
def imported_once(tiny: Any) -> None:
    """Import everything before the first run in this process: pytester forgets what a run imports."""
    for module in pkgutil.walk_packages(pytest_promptfmt.__path__, "pytest_promptfmt."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    import_module("yaml")
    list(tiny.generate([Ask(context="Answer:", context_ids=tiny.tokenizer.ids("Answer:"), stop=("A",), max_tokens=2)]))


def task(pytester: pytest.Pytester, text: str, *, name: str = "asked") -> None:
    thresholds = "    model: {mass: 0.5, stops: 0.9, extraction: 0.9}\n"
    docs = f"    docs: {json.dumps(DOCS)}\n"
    path = pytester.path / f"{name}.yaml"
    path.write_text(f"task: {name}\ntest_split: test\n{text.strip()}\nmetadata:\n  promptfmt:\n{docs}{thresholds}")


def run(pytester: pytest.Pytester, *options: str, model: str = "tiny") -> pytest.RunResult:
    arguments = ("--promptfmt", "-p", "no:cacheprovider", "-m", "promptfmt_model", "--promptfmt-profile", "plain")
    return pytester.runpytest_inprocess(
        *arguments, "--promptfmt-model", model, "--promptfmt-model-device", "cpu", *options
    )


def test_what_holds_passes_with_a_table(pytester: pytest.Pytester) -> None:
    task(pytester, CHOICE)
    task(pytester, GENERATE, name="written")
    result = run(pytester)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["task*profile*mass*extracted*score*tokens*seconds", "asked*plain*", "written*plain*100%*"]
    )


@pytest.mark.parametrize(
    ("good", "right", "wrong", "says"),
    [
        pytest.param(
            CHOICE,
            "doc_to_target: answer",
            'doc_to_target: answer\ntarget_delimiter: ""',
            "PF654 the model prefers another spelling of the candidates",
            id="the space before the choices is missing",
        ),
        pytest.param(
            GENERATE,
            'gen_prefix: "The best answer is"',
            'gen_prefix: "Therefore, the river"',
            "PF657 too few answers of the model contain an answer that the filters find",
            id="another gen prefix",
        ),
        pytest.param(
            GENERATE,
            "([A-C])",
            "([1-3])",
            "PF657 too few answers of the model contain an answer that the filters find",
            id="a regex for other labels",
        ),
        pytest.param(
            GENERATE,
            'until: ["\\n\\n"]',
            'until: [" "]',
            "PF657 too few answers of the model contain an answer that the filters find",
            id="a stop sequence that cuts the answer",
        ),
        pytest.param(
            GENERATE,
            'until: ["\\n\\n"], max_gen_toks: 32',
            'until: ["</answer>"], max_gen_toks: 3',
            "PF656 too few answers of the model end before the maximum length",
            id="a stop sequence that never comes",
        ),
    ],
)
def test_what_is_broken_is_caught_and_only_that(
    pytester: pytest.Pytester, good: str, right: str, wrong: str, says: str
) -> None:
    assert good.count(right) == 1
    task(pytester, good)
    task(pytester, good.replace(right, wrong), name="broken")
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"{says}*", "  at: broken.yaml:*profile plain)", "  saw: *", "  do: *"])


SPACELESS = f'{CHOICE}target_delimiter: ""\n'


def test_a_finding_about_a_model_is_ignored_like_any_other(pytester: pytest.Pytester) -> None:
    task(pytester, SPACELESS)
    run(pytester).assert_outcomes(failed=1)
    run(pytester, "--promptfmt-ignore", "PF654").assert_outcomes(passed=1)
    path = pytester.path / "asked.yaml"
    path.write_text(f"{path.read_text()}    ignore: {{PF654: the server adds the space}}\n")
    run(pytester).assert_outcomes(passed=1)


def test_the_baseline_accepts_what_a_model_showed_until_a_model_shows_that_it_is_fixed(
    pytester: pytest.Pytester,
) -> None:
    task(pytester, SPACELESS)
    written = run(pytester, "--promptfmt-baseline", "base.jsonl", "--promptfmt-baseline-update", "write")
    written.assert_outcomes(passed=1)
    assert Path("base.jsonl").read_text().count('"PF') == Path("base.jsonl").read_text().count('"PF654"') == 1
    run(pytester, "--promptfmt-baseline", "base.jsonl").assert_outcomes(passed=1)
    task(pytester, CHOICE)
    arguments = ("-p", "no:cacheprovider", "-o", "promptfmt_lint=true", "--promptfmt-baseline", "base.jsonl")
    without = pytester.runpytest_inprocess("--promptfmt", *arguments, "--promptfmt-profile", "plain")
    without.stdout.no_fnmatch_line("*no longer occur*")
    result = run(pytester, "--promptfmt-baseline", "base.jsonl")
    result.stdout.fnmatch_lines(["base.jsonl: 1 entry no longer occurs*"])


def test_findings_about_a_model_are_counted_and_written_with_all_others(pytester: pytest.Pytester) -> None:
    task(pytester, SPACELESS)
    result = run(pytester, "--promptfmt-json", "out.json")
    result.stdout.fnmatch_lines(["*: error: PF654 *", "1 error; *"])
    assert '"PF654"' in Path("out.json").read_text()


def test_the_ids_that_the_model_gets_are_those_of_the_snapshot(pytester: pytest.Pytester) -> None:
    task(pytester, CHOICE)
    Path("promptfmt.yaml").write_text(f"profiles:\n  own:\n    tokenizer: {TINY_FOLDER}\n")
    run(pytester, "--promptfmt-profile", "own").assert_outcomes(passed=2)


def test_a_profile_of_another_tokenizer_is_skipped(pytester: pytest.Pytester) -> None:
    task(pytester, CHOICE)
    other = pytester.mkdir("other")
    written = json.loads((TINY_FOLDER / "tokenizer.json").read_text())
    written["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    (other / "tokenizer.json").write_text(json.dumps(written))
    (other / "tokenizer_config.json").write_text((TINY_FOLDER / "tokenizer_config.json").read_text())
    Path("promptfmt.yaml").write_text(f"profiles:\n  own:\n    tokenizer: {other}\n")
    result = run(pytester, "--promptfmt-profile", "own")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*profiles whose tokenizer is not the model's*"])


def test_a_recording_is_replayed_without_the_model_until_the_prompt_changes(pytester: pytest.Pytester) -> None:
    task(pytester, CHOICE)
    task(pytester, GENERATE, name="written")
    run(pytester, "--promptfmt-record", "answers.jsonl").assert_outcomes(passed=2)
    lines = Path("answers.jsonl").read_text().splitlines()
    assert len(lines) == len(DOCS) * (2 * 3 + 1)  # each candidate and its other spelling, and what was written
    assert [json.loads(line)["task"] for line in lines] == ["asked"] * 18 + ["written"] * 3
    run(pytester, model="replay:answers.jsonl").assert_outcomes(passed=2)
    task(pytester, CHOICE.replace("Question:", "Q:"))
    result = run(pytester, model="replay:answers.jsonl")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*has no answer for this prompt*it changed after 'tiny' was recorded*"])


def test_what_is_recorded_is_not_asked_again(pytester: pytest.Pytester) -> None:
    task(pytester, CHOICE)
    run(pytester, "--promptfmt-record", "answers.jsonl").assert_outcomes(passed=1)
    before = Path("answers.jsonl").read_text()
    lines = before.splitlines()
    first = json.loads(lines[0])
    first["logprobs"] = [-0.125] * len(first["logprobs"])
    Path("answers.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    task(pytester, GENERATE, name="written")
    run(pytester, "--promptfmt-record", "answers.jsonl").assert_outcomes(passed=2)
    after = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert [entry["logprobs"] for entry in after if entry["key"] == first["key"]] == [first["logprobs"]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ("--promptfmt-record", "x.jsonl", "--promptfmt-model", "replay:y.jsonl"),
            "needs a running model, not a recording",
        ),
        (("--promptfmt-model-batch-size", "none"), "--promptfmt-model-batch-size is 'none'"),
    ],
)
def test_options_that_make_no_sense_end_the_run(pytester: pytest.Pytester, options: tuple[str, ...], says: str) -> None:
    task(pytester, CHOICE)
    result = run(pytester, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{says}*"])


def test_a_model_that_cannot_be_loaded_fails_each_task_with_one_message(pytester: pytest.Pytester) -> None:
    task(pytester, CHOICE)
    task(pytester, GENERATE, name="written")
    result = run(pytester, model="hf:nowhere")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*of 'nowhere'*", "error, 2 tests of 2 tasks:*"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("[0.5]", "metadata.promptfmt.model is"),
        ("{mas: 1}", "did you mean 'mass'"),
        ("{mass: 2}", "a number from 0 to 1"),
    ],
)
def test_thresholds_that_make_no_sense_are_reported_with_their_place(
    pytester: pytest.Pytester, written: str, says: str
) -> None:
    path = pytester.path / "asked.yaml"
    path.write_text(
        f"task: asked\ntest_split: test\n{CHOICE.strip()}\nmetadata:\n  promptfmt:\n    docs: {json.dumps(DOCS)}\n"
        f"    model: {written}\n"
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["asked.yaml:1[0-9]:*", f"*{says}*"])


def test_what_was_answered_before_a_run_is_broken_off_is_kept(pytester: pytest.Pytester) -> None:
    task(pytester, CHOICE)
    task(pytester, GENERATE, name="written")
    pytester.makeconftest(
        "def pytest_runtest_setup(item):\n    if 'written' in item.nodeid:\n        raise KeyboardInterrupt\n"
    )
    arguments = ("--promptfmt", "-p", "no:cacheprovider", "-m", "promptfmt_model", "--promptfmt-profile", "plain")
    asked = ("--promptfmt-model", "tiny", "--promptfmt-model-device", "cpu", "--promptfmt-record", "answers.jsonl")
    pytester.inline_run(*arguments, *asked, no_reraise_ctrlc=True)
    assert {json.loads(line)["task"] for line in Path("answers.jsonl").read_text().splitlines()} == {"asked"}


def test_a_run_with_xdist_records_one_file(pytester: pytest.Pytester) -> None:
    task(pytester, CHOICE)
    task(pytester, GENERATE, name="written")
    arguments = ("--promptfmt", "-p", "no:cacheprovider", "-m", "promptfmt_model", "--promptfmt-profile", "plain")
    asked = ("--promptfmt-model", "tiny", "--promptfmt-model-device", "cpu", "--promptfmt-record", "answers.jsonl")
    result = pytester.runpytest_subprocess(*arguments, *asked, "-n", "2")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["task*profile*mass*"])
    assert len(Path("answers.jsonl").read_text().splitlines()) == 21
    assert not list(Path.cwd().glob("*.part"))
