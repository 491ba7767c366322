"""Whole tasks: fields, demonstrations, messages, requests, and the errors a user sees."""

from __future__ import annotations

import copy
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import CodeNotAllowedError, LimitExceededError, Position, RenderError, SettingsError
from pytest_promptfmt.core.profile import PLAIN, Profile, builtin_profile, resolve_profiles
from pytest_promptfmt.core.prompt import Instance, join
from pytest_promptfmt.core.task import Dataset, FewShot, FunctionRef, Task, TextTemplate
from pytest_promptfmt.tasks.renderer import TaskRenderer, render_task
from pytest_promptfmt.tasks.rendering import field_mappings
from pytest_promptfmt.tasks.rendering.sampling import drawable

DOCS: list[Doc] = [{"question": f"Q{n}?", "choices": ["red", "blue"], "answer": n % 2} for n in range(8)]
CHATML = builtin_profile("chat-chatml")


def choice_task(**changes: Any) -> Task:
    settings: dict[str, Any] = {
        "name": "arc",
        "path": Path("arc.yaml"),
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
    }
    return Task(**{**settings, **changes})


def generation_task(**changes: Any) -> Task:
    return Task(**{"name": "qa", "doc_to_text": "{{question}}", "doc_to_target": "{{choices[answer]}}", **changes})


def instances(task: Task, profile: Profile = PLAIN, docs: list[Doc] | None = None, **options: Any) -> list[Instance]:
    found = list(render_task(task, TaskDocs.in_memory(DOCS if docs is None else docs), profile, **options))
    for instance in found:
        for prompt in instance.prompts:
            assert join(prompt.spans) == prompt.text
    return found


def text(task: Task, profile: Profile = PLAIN, docs: list[Doc] | None = None, **options: Any) -> str:
    return instances(task, profile, docs, **options)[0].prompts[0].text


def failure(task: Task, docs: list[Doc] | None = None, **options: Any) -> RenderError:
    with pytest.raises(RenderError) as caught:
        instances(task, docs=docs, **options)
    return caught.value


# -- fields ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "choices", "value"),
    [
        ("{{answer}}", ["a", "b"], 1),
        ("{{answer}}", None, "1"),
        ("00", ["a", "b"], 0),
        (" 1", ["a", "b"], " 1"),
        ("1\n", ["a", "b"], "1\n"),
        ("-1", ["a", "b"], "-1"),
        ("['x', 'y']", None, ["x", "y"]),
        ("[1],[2]", None, ([1], [2])),
        ("[broken", None, "[broken"),
        ("[broken]", None, "[broken]"),
        ("answer", ["a", "b"], 1),
        (1, ["a", "b"], 1),
        (["x"], None, ["x"]),
        (TextTemplate("{{answer}}"), ["a", "b"], "1"),
    ],
)
def test_target_is_read_from_text_as_lm_eval_reads_it(target: Any, choices: Any, value: Any) -> None:
    doc = {"question": "q", "answer": 1}
    task = generation_task(doc_to_text="question", doc_to_target=target, doc_to_choice=choices)
    assert instances(task, docs=[doc])[0].target == value


@pytest.mark.parametrize("target", ["007", "²"])
def test_digits_that_are_no_number_fail(target: str) -> None:
    error = failure(choice_task(doc_to_target=target))
    assert isinstance(error.__cause__, SyntaxError)
    assert "doc_to_target of 'arc', doc 1: expected a column or a list, got" in str(error)


def test_column_is_taken_raw_and_a_mistyped_one_is_a_template() -> None:
    assert text(generation_task(doc_to_text="question")) == "Q0?"
    assert text(generation_task(doc_to_text="qestion")) == "qestion"


def test_column_name_may_be_any_text() -> None:
    assert (
        text(generation_task(doc_to_text="The Question!", doc_to_target="x"), docs=[{"The Question!": "raw"}]) == "raw"
    )


def test_choices_from_template_list_and_mapping() -> None:
    for spec in ("{{choices}}", ["red", "blue"], {"x": "red", "y": "blue"}, "choices"):
        found = instances(choice_task(doc_to_choice=spec))[0]
        assert [request.continuation for request in found.requests] == [" red", " blue"]


def test_choices_of_a_list_are_not_rendered() -> None:
    found = instances(choice_task(doc_to_choice=["{{a}}", "{{b}}"]))[0]
    assert found.requests[0].continuation == " {{a}}"


@pytest.mark.parametrize(
    ("changes", "cause", "says"),
    [
        ({"doc_to_choice": ["", "b"]}, IndexError, "every choice must be text, and not empty"),
        ({"doc_to_choice": [1, 2]}, TypeError, "every choice must be text, and not empty"),
        ({"doc_to_target": 5}, IndexError, "the target is 5, but there are only the choices"),
        ({"doc_to_choice": "not a literal"}, SyntaxError, "expected a column or a list"),
        ({"doc_to_text": None}, TypeError, "expected a column, a template or a function, got None"),
        (
            {"doc_to_text": "answer", "doc_to_choice": None, "doc_to_target": "x"},
            AssertionError,
            "expected text, got 0",
        ),
        ({"description": "choices"}, TypeError, "description"),
        ({"gen_prefix": "choices"}, TypeError, "gen_prefix"),
        ({"doc_to_choice": None, "doc_to_target": "x"}, TypeError, "multiple_choice needs it"),
        ({"fewshot": FewShot(sampler="firstn")}, KeyError, "did you mean 'first_n'?"),
        ({"fewshot": FewShot(sampler=3)}, TypeError, "must be a name or a sampler class"),
        ({"num_fewshot": 8}, ValueError, "(and one more, in case the doc itself is drawn), but there are only 8"),
        ({"num_fewshot": 9, "fewshot": FewShot(sampler="first_n")}, AssertionError, "there are only 8"),
        ({"num_fewshot": 1, "fewshot": FewShot(target_delimiter=None)}, TypeError, "fewshot_config.target_delimiter"),
    ],
)
def test_what_lm_eval_refuses_is_refused_with_a_reason(
    changes: dict[str, Any], cause: type[Exception], says: str
) -> None:
    error = failure(choice_task(**changes))
    assert isinstance(error.__cause__, cause)
    assert says in str(error)
    assert str(error).startswith("arc.yaml")


def test_task_without_docs_is_refused() -> None:
    assert isinstance(failure(choice_task(), docs=[]).__cause__, IndexError)


def test_missing_column_names_the_doc_and_the_closest_column() -> None:
    docs = [*DOCS[:2], {"qestion": "?", "choices": ["a", "b"], "answer": 0}]
    error = failure(choice_task(), docs=docs)
    assert "doc_to_text uses the column 'question', but no doc has it ('arc', doc 3" in str(error)
    assert error.hint == "did you mean 'qestion'?"


# -- demonstrations ----------------------------------------------------------------------------------------------------


def shots_of(instance: Instance) -> list[str]:
    return [message.text for message in instance.prompts[0].messages if message.role == "user"][:-1]


def test_demonstrations_come_in_the_order_of_one_seeded_draw_per_doc() -> None:
    task = choice_task(num_fewshot=2, dataset=Dataset(test_split="test", training_split="train"))
    rng = random.Random(1234)
    for instance in instances(task):
        drawn = [DOCS[index]["question"] for index in rng.sample(range(8), 2)]
        assert shots_of(instance) == [f"Question: {question}\nAnswer:" for question in drawn]


def test_evaluated_doc_is_left_out_when_the_split_names_are_equal() -> None:
    for dataset in (Dataset(test_split="t", fewshot_split="t"), Dataset(validation_split="v")):
        for instance in instances(choice_task(num_fewshot=7, dataset=dataset)):
            assert instance.prompts[0].messages[-1].text not in shots_of(instance)
    rng = random.Random(1234)
    for instance in instances(choice_task(num_fewshot=2, dataset=Dataset(test_split="t", fewshot_split="t"))):
        own = instance.prompts[0].messages[-1].text
        drawn = (f"Question: {DOCS[index]['question']}\nAnswer:" for index in rng.sample(range(8), 3))
        assert shots_of(instance) == [shot for shot in drawn if shot != own][:2]
    leaking = choice_task(num_fewshot=8, dataset=Dataset(test_split="t"))
    assert instances(leaking)[0].prompts[0].messages[-1].text in shots_of(instances(leaking)[0])


def test_duplicates_of_the_evaluated_doc_are_replaced_by_a_second_draw() -> None:
    pool = TaskDocs.in_memory(DOCS[:1], [DOCS[0]] * 5 + DOCS[1:4])
    for instance in render_task(choice_task(num_fewshot=3), pool):
        assert len(shots_of(instance)) == 3
        assert instance.prompts[0].messages[-1].text not in shots_of(instance)


def test_first_n_takes_the_first_others() -> None:
    task = choice_task(num_fewshot=2, fewshot=FewShot(sampler="first_n"))
    assert shots_of(instances(task)[0]) == ["Question: Q1?\nAnswer:", "Question: Q2?\nAnswer:"]
    assert shots_of(instances(task)[5]) == ["Question: Q0?\nAnswer:", "Question: Q1?\nAnswer:"]


@pytest.mark.parametrize(("own", "asked", "count"), [(None, None, 0), (None, 2, 2), (3, None, 3), (3, 1, 1), (0, 5, 0)])
def test_requested_number_wins_unless_the_task_says_zero(own: int | None, asked: int | None, count: int) -> None:
    assert len(shots_of(instances(choice_task(num_fewshot=own), num_fewshot=asked)[0])) == count


def test_every_profile_sees_the_same_demonstrations() -> None:
    renderer = TaskRenderer(choice_task(num_fewshot=3), TaskDocs.in_memory(DOCS))
    plain, chat = list(renderer.instances()), list(renderer.instances(CHATML))
    assert [shots_of(instance) for instance in plain] == [shots_of(instance) for instance in chat]
    assert [shots_of(instance) for instance in plain] == [shots_of(instance) for instance in renderer.instances()]


def test_error_of_a_doc_comes_again_for_every_profile() -> None:
    renderer = TaskRenderer(choice_task(doc_to_text="{{ 1 // answer }}"), TaskDocs.in_memory([DOCS[1], DOCS[0]]))
    for profile in (PLAIN, PLAIN):
        with pytest.raises(RenderError, match="ZeroDivisionError") as caught:
            list(renderer.instances(profile))
        assert "doc 2" in str(caught.value)


def test_interrupted_task_starts_over_for_the_next_profile() -> None:
    interrupted = iter([KeyboardInterrupt()])

    def question(doc: Doc) -> str:
        if doc["question"] == "Q3?":
            for error in interrupted:
                raise error
        return str(doc["question"])

    renderer = TaskRenderer(choice_task(doc_to_text=question, num_fewshot=2), TaskDocs.in_memory(DOCS))
    with pytest.raises(KeyboardInterrupt):
        list(renderer.instances())
    expected = list(render_task(choice_task(doc_to_text="question", num_fewshot=2), TaskDocs.in_memory(DOCS)))
    assert [each.prompts[0].text for each in renderer.instances()] == [each.prompts[0].text for each in expected]


def test_demonstrations_have_their_own_mappings_and_delimiters() -> None:
    shots = FewShot(
        sampler="first_n",
        doc_to_text="S {{question}}",
        doc_to_target="gold",
        doc_to_choice=None,
        target_delimiter="=>",
        fewshot_delimiter="|",
        gen_prefix=None,
    )
    task = choice_task(num_fewshot=1, fewshot=shots, gen_prefix="It is")
    assert text(task) == "S Q1?=>gold|Question: Q0?\nAnswer: It is"


# -- messages and prompts ----------------------------------------------------------------------------------------------


def test_plain_prompt_is_description_demonstrations_question() -> None:
    task = choice_task(num_fewshot=1, fewshot=FewShot(sampler="first_n"), description="Answer {{question}}\n\n")
    assert text(task) == "Answer Q0?\n\nQuestion: Q1?\nAnswer: blue\n\nQuestion: Q0?\nAnswer:"


def test_system_instruction_is_delimited_from_the_description_only() -> None:
    profile = Profile(name="p", system_instruction="SYS")
    assert text(generation_task(), profile) == "SYSQ0?"
    assert text(generation_task(description="D "), profile) == "SYS\n\nD Q0?"
    assert text(generation_task(description=" D"), profile) == "SYS DQ0?"


@pytest.mark.parametrize(
    ("question", "prefix", "expected"),
    [
        ("{{question}}", "Answer:", "Q1? Answer: blue\n\nQ0? Answer:"),
        ("{{question}}\n", "Answer:", "Q1?\nAnswer: blue\n\nQ0?\nAnswer:"),
        ("{{question}}", " Answer: ", "Q1? Answer: blue\n\nQ0? Answer: "),
        ("{{question}}", "", "Q1? blue\n\nQ0?"),
    ],
)
def test_gen_prefix_is_set_off_where_neither_side_has_space(question: str, prefix: str, expected: str) -> None:
    task = generation_task(doc_to_text=question, gen_prefix=prefix, num_fewshot=1, fewshot=FewShot(sampler="first_n"))
    assert text(task) == expected


def test_empty_answer_leaves_out_answer_and_delimiters() -> None:
    task = generation_task(doc_to_target="", num_fewshot=1, fewshot=FewShot(sampler="first_n"))
    assert text(task) == "Q1?Q0?"


def test_turns_become_messages_without_delimiters() -> None:
    task = generation_task(num_fewshot=1, fewshot=FewShot(sampler="first_n"), description="D")
    assert text(task, CHATML) == (
        "<|im_start|>system\nD<|im_end|>\n<|im_start|>user\nQ1?<|im_end|>\n<|im_start|>assistant\nblue<|im_end|>\n"
        "<|im_start|>user\nQ0?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_single_turn_holds_the_demonstrations_as_text() -> None:
    task = generation_task(num_fewshot=1, fewshot=FewShot(sampler="first_n"), gen_prefix="A:")
    profile = Profile(name="p", chat_template=CHATML.chat_template, fewshot_as_turns=False)
    assert text(task, profile) == "<|im_start|>user\nQ1? A: blue\n\nQ0?<|im_end|>\n<|im_start|>assistant\nA:"


def test_gen_prefix_is_continued_and_trailing_space_kept_or_lost_as_the_template_does() -> None:
    task = generation_task(gen_prefix="The answer is ")
    assert text(task, CHATML).endswith("<|im_start|>assistant\nThe answer is ")
    assert text(task, builtin_profile("chat-llama3")).endswith("<|end_header_id|>\n\nThe answer is")


@pytest.mark.parametrize("name", ["chat-mistral", "chat-gemma"])
def test_template_without_system_role_gets_the_messages_without_it(name: str) -> None:
    shown = text(generation_task(description="DESC", num_fewshot=1), builtin_profile(name))
    assert "DESC" not in shown
    assert "Q0?" in shown


def test_template_that_refuses_everything_is_an_error_that_says_so() -> None:
    profile = Profile(name="strict", chat_template="{{ raise_exception('never') }}")
    with pytest.raises(RenderError, match="'strict' fails for 'qa', doc 1: TemplateError: never") as caught:
        instances(generation_task(), profile)
    assert caught.value.__cause__ is not None


def test_choices_as_inputs_give_one_prompt_each() -> None:
    docs: list[Doc] = [{"first": "A ran", "second": "B ran", "label": 1, "end": "away"}]
    task = choice_task(
        doc_to_text="{{label}}", doc_to_choice="{{[first, second]}}", doc_to_target="end", description="D "
    )
    instance = instances(task, docs=docs)[0]
    assert [prompt.text for prompt in instance.prompts] == ["D A ran", "D B ran"]
    assert [request.arguments for request in instance.requests] == [("D A ran", " away"), ("D B ran", " away")]
    assert [request.gold for request in instance.requests] == [False, True]
    assert [request.prompt for request in instance.requests] == [0, 1]


def test_spans_know_where_their_text_came_from() -> None:
    def locate(keys: tuple[str | int, ...]) -> Position | None:
        return Position(Path("arc.yaml"), 5, 1) if keys == ("doc_to_text",) else None

    task = choice_task(num_fewshot=1, fewshot=FewShot(sampler="first_n"), description="D\n", locate=locate)
    for profile in (PLAIN, CHATML):
        spans = instances(task, profile)[0].prompts[0].spans
        found = [
            (span.origin.part, span.origin.field, span.origin.shot, span.text)
            for span in spans
            if span.origin.part not in ("chat template", "target delimiter", "fewshot delimiter")
        ]
        assert found == [
            ("description", None, None, "D\n"),
            ("question", None, 0, "Question: "),
            ("question", "question", 0, "Q1?"),
            ("question", None, 0, "\nAnswer:"),
            ("answer", "choices", 0, "blue"),
            ("question", None, None, "Question: "),
            ("question", "question", None, "Q0?"),
            ("question", None, None, "\nAnswer:"),
        ]
        assert {str(span.origin.position) for span in spans if span.origin.part == "question"} == {"arc.yaml:5:1"}


def test_stripped_contents_are_still_found_in_chat_text() -> None:
    spans = (
        instances(generation_task(doc_to_text="  {{question}} \n"), builtin_profile("chat-gemma"))[0].prompts[0].spans
    )
    assert ("Q0?", "question") in [(span.text, span.origin.field) for span in spans]


def test_prompts_are_values() -> None:
    first, again = (instances(choice_task(num_fewshot=2))[0].prompts[0] for _ in range(2))
    assert first == again
    assert hash(first) == hash(again)
    assert pickle.loads(pickle.dumps(first)) == copy.deepcopy(again) == first
    with pytest.raises(AttributeError):
        first.nothing  # noqa: B018


# -- requests ----------------------------------------------------------------------------------------------------------


def test_choice_requests_carry_delimiter_gold_and_prompt() -> None:
    requests = instances(choice_task())[1].requests
    assert [request.arguments for request in requests] == [
        ("Question: Q1?\nAnswer:", " red"),
        ("Question: Q1?\nAnswer:", " blue"),
    ]
    assert [request.gold for request in requests] == [False, True]


@pytest.mark.parametrize(
    ("prefix", "continuation"), [(None, "red"), ("", "red"), ("It is", " red"), ("It is ", "red"), ("{{' '}}", " red")]
)
def test_chat_drops_the_delimiter_unless_an_unspaced_gen_prefix_is_written(
    prefix: str | None, continuation: str
) -> None:
    assert instances(choice_task(gen_prefix=prefix), CHATML)[0].requests[0].continuation == continuation


@pytest.mark.parametrize(
    ("target", "gold"), [("blue", [1]), ("{{['red', 'blue']}}", [0, 1]), ("other", []), (-5, None)]
)
def test_gold_is_found_by_index_text_or_list(target: Any, gold: list[int] | None) -> None:
    if gold is None:
        failure(choice_task(doc_to_target=target))
        return
    requests = instances(choice_task(doc_to_target=target))[0].requests
    assert [request.index for request in requests if request.gold] == gold


def test_mutual_information_adds_unconditional_requests() -> None:
    requests = instances(choice_task(metric_list=[{"metric": "acc_mutual_info"}]))[0].requests
    assert [request.arguments for request in requests[2:]] == [("", " red"), ("", " blue")]
    assert [request.index for request in requests] == [0, 1, 2, 3]
    assert [request.prompt for request in requests] == [0, 0, None, None]
    assert [request.gold for request in requests] == [True, False, False, False]


def test_loglikelihood_has_no_delimiter_and_rolling_no_context() -> None:
    single = instances(generation_task(output_type="loglikelihood"))[0].requests[0]
    assert single.arguments == ("Q0?", "red")
    rolling = instances(generation_task(output_type="loglikelihood_rolling", doc_to_text=""))[0].requests[0]
    assert rolling.arguments == ("red",)
    assert rolling.context is None


def test_generation_arguments_are_completed() -> None:
    given = [
        (None, {"temperature": 0.0, "do_sample": False, "max_gen_toks": 256, "until": ["\n\n"]}),
        ({"temperature": "1"}, {"temperature": 1.0, "until": ["\n\n"]}),
        ({"until": ["x"]}, {"until": ["x"]}),
    ]
    for written, expected in given:
        assert instances(generation_task(generation_kwargs=written))[0].requests[0].generation_kwargs == expected
    assert isinstance(failure(generation_task(generation_kwargs={"temperature": "hot"})).__cause__, ValueError)


# -- functions ---------------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[[Doc], str]:
    def function(doc: Doc) -> str:
        raise error

    return function


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), GeneratorExit(), MemoryError(), RecursionError()])
def test_whatever_a_function_raises_becomes_an_error_with_its_cause(error: BaseException) -> None:
    found = failure(generation_task(doc_to_text=raising(error)))
    assert found.__cause__ is error
    assert "the function function() failed with" in str(found)


def test_keyboard_interrupt_of_a_function_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        instances(generation_task(doc_to_text=raising(KeyboardInterrupt())))


def test_function_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(doc: Doc) -> str:
        while True:
            pass

    monkeypatch.setattr(field_mappings, "FUNCTION_SECONDS", 0.05)
    assert isinstance(failure(generation_task(doc_to_text=spin)), LimitExceededError)


def test_functions_change_copies_of_the_docs_and_see_their_own_changes() -> None:
    def shuffled(doc: dict[str, Any]) -> str:
        doc["choices"].reverse()
        doc["question"] += "!"
        return str(doc["question"])

    docs = copy.deepcopy(DOCS)
    task = generation_task(doc_to_text=shuffled, doc_to_target="{{choices[0]}}", output_type="loglikelihood")
    assert [request.continuation for each in instances(task, docs=docs) for request in each.requests] == ["blue"] * 8
    assert docs == DOCS


def test_random_functions_repeat_and_leave_the_global_state_alone() -> None:
    numpy = pytest.importorskip("numpy")

    def drawn(doc: Doc) -> str:
        return f"{random.random()} {numpy.random.rand()}"

    random.seed(7)
    numpy.random.seed(7)
    before = random.getstate()
    task = generation_task(doc_to_text=drawn)
    first = [instance.prompts[0].text for instance in instances(task)]
    assert random.getstate() == before
    random.random()
    assert [instance.prompts[0].text for instance in instances(task)] == first
    assert len(set(first)) == len(first)


def test_random_filter_repeats() -> None:
    task = generation_task(doc_to_text="{{ range(1000) | random }}")
    assert [each.prompts[0].text for each in instances(task)] == [each.prompts[0].text for each in instances(task)]


def test_function_that_was_not_allowed_is_not_run() -> None:
    ref = FunctionRef("utils", "doc_to_text", Path("x"), Position(Path("arc.yaml"), 3))
    with pytest.raises(CodeNotAllowedError, match=r"arc.yaml:3: doc_to_text of 'qa', doc 1"):
        instances(generation_task(doc_to_text=ref))


def test_shots_are_fewer_only_where_a_named_sampler_draws_from_files() -> None:
    docs = TaskDocs.in_memory([{"question": "1"}, {"question": "2"}])
    assert [drawable(choice_task(fewshot=FewShot(sampler=one)), docs, 5) for one in ("first_n", dict)] == [1, 5]
    synthetic = replace(docs, fewshot_kind="synthetic")
    assert drawable(choice_task(fewshot=FewShot(sampler="first_n")), synthetic, 5) == 5


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ({}, "has no attribute 'set_rnd'"),
        ({"set_rnd": lambda *_: None, "sample": max}, "max() failed with TypeError"),
    ],
)
def test_a_sampler_class_that_cannot_be_driven_is_an_error_of_its_task(methods: dict[str, Any], says: str) -> None:
    sampler = type("Own", (), {"__init__": lambda self, *_, **__: None, **methods})
    assert says in str(failure(choice_task(num_fewshot=1, fewshot=FewShot(sampler=sampler))))


def test_sampler_class_of_a_user_is_driven_as_in_lm_eval() -> None:
    class LastN:
        def __init__(self, df: list[Doc], rnd: Any = None) -> None:
            self.df = df

        def set_rnd(self, seed: int) -> None:
            assert seed == 1234

        def sample(self, n: int, eval_doc: Doc | None = None) -> list[Doc]:
            return self.df[-n:]

    task = choice_task(num_fewshot=1, fewshot=FewShot(sampler=LastN))
    assert shots_of(instances(task)[0]) == ["Question: Q7?\nAnswer:"]


# -- profiles ----------------------------------------------------------------------------------------------------------


def test_chat_stands_for_all_chat_profiles_once() -> None:
    names = [profile.name for profile in resolve_profiles(["plain", "chat-gemma", "chat"])]
    assert names == ["plain", "chat-gemma", "chat-chatml", "chat-llama2", "chat-llama3", "chat-mistral"]


def test_unknown_profile_gets_a_suggestion() -> None:
    with pytest.raises(SettingsError, match="did you mean 'chat-llama3'"):
        resolve_profiles(["chat-lllama3"])


def test_clock_of_the_profile_is_pinned() -> None:
    profile = Profile(name="p", chat_template="{{ strftime_now('%Y-%m-%d') }}")
    assert text(generation_task(), profile) == "2024-07-26"


def test_rendering_never_imports_transformers_or_tokenizers() -> None:
    import subprocess

    code = (
        "import sys; from pytest_promptfmt.tasks.renderer import render_task; "
        "sys.exit(any(name in sys.modules for name in ('transformers', 'tokenizers', 'numpy', 'yaml', 'pytest')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
