from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_promptfmt.core.errors import CodeNotAllowedError, Position, RenderError, SyntheticDocsError
from pytest_promptfmt.core.task import Dataset, FewShot, FunctionRef, Task
from pytest_promptfmt.tasks.docs.doc_sources import load_docs
from pytest_promptfmt.tasks.synthetic import synthetic_docs as synthetic
from pytest_promptfmt.tasks.synthetic.synthetic_docs import synthetic_docs
from pytest_promptfmt.tasks.synthetic.template_shapes import template_shapes


def make_task(**fields: Any) -> Any:
    return Task(**{"name": "t", "dataset": Dataset(training_split="train", test_split="test"), **fields})


def made(count: Any = 1, split: Any = "test", **fields: Any) -> Any:
    return synthetic_docs(make_task(**fields), count=count, split=split)


def prompts(**fields: Any) -> Any:
    task = make_task(**fields)
    return [instance.prompts[0].text for instance in task.render(load_docs(task))]


def golds(count: Any = 4, **fields: Any) -> Any:
    """Return the gold answer of each doc as an index into its choices."""
    task = make_task(output_type="multiple_choice", **fields)
    found = []
    for instance in task.render(load_docs(task, count=count)):
        assert sum(request.gold for request in instance.requests) == 1
        found += [request.index for request in instance.requests if request.gold]
    return found


# -- what they look like ----------------------------------------------------------------------------------------------


def test_text_names_the_role_of_its_column_and_its_doc() -> None:
    assert made(2, doc_to_text="Q: {{question}}", doc_to_target="answer") == (
        {"question": "«question 1»", "answer": "«answer 1»"},
        {"question": "«question 2»", "answer": "«answer 2»"},
    )


def test_elements_of_a_list_are_numbered_and_named_in_the_singular() -> None:
    (doc,) = made(doc_to_text="{{question}} {{choices[0]}} {{choices[2]}}")
    assert doc["choices"] == ["«choice 1.1»", "«choice 1.2»", "«choice 1.3»"]


def test_docs_of_another_split_carry_its_name() -> None:
    assert made(split="train", doc_to_text="{{question}}") == ({"question": "«train question 1»"},)


def test_hostile_split_names_leave_no_trace() -> None:
    (doc,) = made(split="a\n«\ud800»" + "b" * 1000, doc_to_text="{{question}}")
    assert doc["question"].startswith("«ab")
    assert len(doc["question"]) < 60


def test_description_gen_prefix_and_demonstrations_are_looked_at_as_well() -> None:
    (doc,) = made(
        doc_to_text="{{question}}",
        description="About {{subject}}.\n",
        gen_prefix="{{start}}",
        fewshot=FewShot(doc_to_target="{{reasoning}}"),
    )
    assert set(doc) == {"question", "subject", "start", "reasoning"}


def test_description_that_is_a_name_is_a_column() -> None:
    (doc,) = made(doc_to_text="{{question}}", description="system_prompt")
    assert set(doc) == {"question", "system_prompt"}


@pytest.mark.parametrize("constant", ["About rivers.", "Rivers", "", "Answer:"])
def test_constant_description_is_no_column(constant: Any) -> None:
    assert made(doc_to_text="{{question}}", description=constant) == ({"question": "«question 1»"},)


def test_constant_prompt_stays_constant_so_that_it_can_be_seen() -> None:
    assert prompts(doc_to_text="Say something.", doc_to_target="answer") == ["Say something."] * 2


# -- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{choices.text[1]}}", {"choices": {"text": ["«choice 1.1»", "«choice 1.2»"]}}),
        ("{{choices['label'][1]}}", {"choices": {"label": ["A", "B"]}}),
        (
            "{% for turn in turns %}{{turn.who}}{% endfor %}",
            {"turns": [{"who": f"«turn 1.{n}»"} for n in (1, 2, 3)]},
        ),
        ("{{['a', 'b'].index(x)}}", {"x": "b"}),
        ("{{['a1', 'b1'].index(x + '1')}}", {"x": "b"}),
        ("{{['a', 'b'].index(x.strip())}}", {"x": "b"}),
        ("{{['u', 'v'][x]}}", {"x": 1}),
        ("{{['u', 'v'][x - 1]}}", {"x": 2}),
        ("{{'ABCD'[x|int - 1]}}", {"x": 2}),
        ("{{{'cause': 1, 'effect': 2}[x]}}", {"x": "effect"}),
        ("{% if x == 'a' %}1{% elif x == 'b' %}2{% endif %}", {"x": "b"}),
        ("{{1 if x == 0 else 2}}", {"x": 1}),
        ("{{1 if x in ['a', 'b'] else 2}}", {"x": "b"}),
        ("{{names.index(name)}}", {"names": [f"«item 1.{n}»" for n in (1, 2, 3)], "name": "«item 1.2»"}),
        ("{{scores.index(1)}}", {"scores": [0, 1, 0, 0]}),
        ("{{names.copy()|first}}", {"names": [f"«item 1.{n}»" for n in (1, 2, 3)]}),
        ("{{x + 1}}", {"x": 1}),
        ("{{x.split(' ## ')[-1]}}", {"x": "«question 1, part 1» ## «question 1, part 2»"}),
        ("{{words|join(', ')}}", {"words": ["«item 1.1»", "«item 1.2»", "«item 1.3»"]}),
        ("{{x|length}}", {"x": "«question 1»"}),
        ("{{items|map(attribute='a.b')|list}}", {"items": [{"a": {"b": f"«item 1.{n}»"}} for n in (1, 2, 3)]}),
        ("{{a if a is defined else b}}", {"a": "«question 1»", "b": "«text 1»"}),
        ("{% if shown is defined %}{{a}}{% endif %}", {"a": "«question 1»"}),
        ("{% set y = x %}{{y[0]}}{{z}}", {"x": ["«item 1.1»"], "z": "«question 1»"}),
        ("{% set t = 'x' %}{{t}}{{z}}", {"z": "«question 1»"}),
        ("{% macro m(a) %}{{a}}{{z}}{% endmacro %}{{m('x')}}", {"z": "«question 1»"}),
        ("{% for i in range(n) %}{{loop.index}}{% endfor %}", {"n": 1}),
        ("{{x[:-1].strip()}}", {"x": "«question 1»"}),
        ("{{'%s' % x}} {{lipsum is defined}}", {"x": "«question 1»"}),
    ],
)
def test_shape_is_read_from_how_a_name_is_used(template: Any, expected: Any) -> None:
    assert made(doc_to_text=template) == (expected,)


def test_what_is_sliced_off_does_not_take_the_text_along() -> None:
    (doc,) = made(doc_to_text="{{answer[21:]}}")
    assert doc["answer"][21:] == "«answer 1»"


def test_guarded_choices_are_left_out() -> None:
    (doc,) = made(doc_to_text="{{c[0]}}{{c[3]}}{% if c|length > 4 %}{{c[4]}}{% endif %}")
    assert len(doc["c"]) == 4


def test_lists_side_by_side_have_the_same_length() -> None:
    (doc,) = made(doc_to_text="{{c.text[4]}}", doc_to_target="{{c.label.index(key)}}")
    assert doc["c"]["label"] == list("ABCDE")
    assert doc["key"] == "B"


@pytest.mark.parametrize("target", ["Answer Key", "answer", "Answer"])
def test_bare_name_is_a_column(target: Any) -> None:
    assert target in made(doc_to_text="{{q}}", doc_to_target=target)[0]


@pytest.mark.parametrize("text", ["", " ", "One, two, three", "A. B", "Translate this sentence\n", "{{q}"])
def test_constant_text_is_no_column(text: Any) -> None:
    assert made(doc_to_text=text, doc_to_target="answer")[0].keys() == {"answer"}


# -- gold answers -----------------------------------------------------------------------------------------------------

LETTERS = ["A", "B", "C", "D"]


@pytest.mark.parametrize(
    "fields",
    [
        {"doc_to_choice": LETTERS, "doc_to_target": "answer"},
        {"doc_to_choice": LETTERS, "doc_to_target": "{{answer}}"},
        {"doc_to_choice": LETTERS, "doc_to_target": "{{answer.strip()}}"},
        {"doc_to_choice": LETTERS, "doc_to_target": "{{answer - 1}}"},
        {"doc_to_choice": LETTERS, "doc_to_target": "{{answer|int - 1}}"},
        {"doc_to_choice": LETTERS, "doc_to_target": "{{['A', 'B', 'C', 'D'].index(answer)}}"},
        {"doc_to_choice": "choices", "doc_to_target": "answer"},
        {"doc_to_choice": "{{choices}}", "doc_to_target": "{{choices.index(answer)}}"},
        {"doc_to_choice": "{{choices.text}}", "doc_to_target": "{{choices.label.index(answer)}}"},
        {"doc_to_choice": "{{[a, b, c, d]}}", "doc_to_target": "label"},
        {"doc_to_choice": "{{answers|map(attribute='text')|list}}", "doc_to_target": "right"},
        {"doc_to_choice": "{{options.text}}", "doc_to_target": "{{number|int - 1}}"},
        {"doc_to_choice": {"x": "A", "y": "B", "z": "C", "w": "D"}, "doc_to_target": "{{label}}"},
    ],
)
def test_gold_answer_is_valid_and_moves_from_doc_to_doc(fields: Any) -> None:
    found = golds(doc_to_text="{{question}}", **fields)
    assert len(set(found)) > 2
    assert made(doc_to_text="{{question}}", **fields)[0]["question"] == "«question 1»"


def test_gold_of_two_choices_moves_too() -> None:
    assert golds(doc_to_text="{{question}}", doc_to_choice=["no", "yes"], doc_to_target="label") == [1, 0, 1, 0]


def test_target_that_is_always_the_same_choice_is_left_alone() -> None:
    fields = {"doc_to_text": "{{q}}", "doc_to_choice": "{{[wrong, right]}}"}
    assert golds(**fields, doc_to_target="right") == golds(**fields, doc_to_target=1) == [1, 1, 1, 1]


def test_choices_may_be_the_inputs() -> None:
    task = make_task(
        output_type="multiple_choice",
        doc_to_text="label",
        doc_to_choice="{{[sentence + one, sentence + two]}}",
        doc_to_target="{{rest}}",
    )
    instances = list(task.render(load_docs(task)))
    assert [len(instance.prompts) for instance in instances] == [2, 2]
    assert [doc["label"] for doc in load_docs(task).evaluated] == [1, 0]


def test_demonstrations_begin_with_another_gold_answer() -> None:
    fields = {"doc_to_text": "{{q}}", "doc_to_choice": LETTERS, "doc_to_target": "a"}
    assert [doc["a"] for doc in made(3, **fields)] == [1, 2, 3]
    assert [doc["a"] for doc in made(3, split="shot", **fields)] == [0, 1, 2]


# -- functions --------------------------------------------------------------------------------------------------------


def test_columns_that_a_function_asks_for_are_found_by_calling_it() -> None:
    def doc_to_text(doc: Any) -> Any:
        doc["seen"] = True
        return f"{doc['passage']}\n{doc['question']}\n{doc['choices'][3]}"

    (doc,) = made(doc_to_text=doc_to_text, doc_to_target=lambda doc: doc["answer"])
    assert doc["passage"] == "«passage 1»"
    assert doc["choices"] == [f"«choice 1.{n}»" for n in (1, 2, 3, 4)]
    assert set(doc) == {"passage", "question", "choices", "answer"}


def test_function_that_chokes_is_a_reason_to_skip() -> None:
    def doc_to_text(doc: Any) -> Any:
        return "a" + doc["number"] * 1.5

    position = Position(Path("t.yaml"), 3, 1)
    task = make_task(doc_to_text=doc_to_text, locate=lambda keys: position)
    with pytest.raises(
        SyntheticDocsError, match=r"the Python function .*doc_to_text fails with synthetic docs .*TypeError"
    ) as caught:
        synthetic_docs(task, count=1, split="test")
    assert caught.value.position == position
    assert "t.docs.jsonl or in metadata.promptfmt.docs" in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)


def test_function_that_wants_ever_more_columns_is_given_up() -> None:
    def doc_to_text(doc: Any) -> Any:
        return doc[f"column {len(doc)}"]

    with pytest.raises(SyntheticDocsError, match="KeyError"):
        made(doc_to_text=doc_to_text)


def test_function_that_asks_for_no_text_is_given_up() -> None:
    with pytest.raises(SyntheticDocsError, match="KeyError"):
        made(doc_to_text=lambda doc: doc[3])


def test_function_that_leaves_is_given_up() -> None:
    with pytest.raises(SyntheticDocsError, match="SystemExit"):
        made(doc_to_text=lambda doc: sys.exit(3))


def test_function_that_may_not_run_is_asked_for(tmp_path: Path) -> None:
    reference = FunctionRef("utils", "doc_to_text", tmp_path, Position(tmp_path / "t.yaml", 3))
    with pytest.raises(CodeNotAllowedError, match=r"utils\.doc_to_text"):
        made(doc_to_text=reference)


# -- templates that are wrong, or hostile -----------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["{{ a", "{% if %}", "{{ a|no_such_filter }}", "{{ ''.__class__.__mro__ }}{{a}}"])
def test_template_that_no_doc_can_please_is_left_to_rendering(template: Any) -> None:
    task = make_task(doc_to_text=template, doc_to_target="answer")
    docs = load_docs(task)
    assert docs.evaluated
    with pytest.raises(RenderError):
        list(task.render(docs))


HOSTILE = [
    "{{ a" + "[63]" * 40 + " }}",
    "{{ a" + "[63]" * 15 + " }}",
    "{{ a" + ".b" * 5000 + " }}",
    "{{ a[99999999999] }}",
    "{{ a[-99999999999] }}",
    "{{ a.split('x')[99999999999] }}",
    "{{ a[99999999999:] }}",
    "{{ a.index(b[0]) }}{{ b.index(a[0]) }}",
    "{{ a.index(a) }}{{ a.index(a[0]) }}",
    "{{ a[a] }}{{ [][b] }}{{ {}[c] }}{{ [].index(d) }}",
    "{{ a['\\ud800'] }}{{ a['x\\ny'] }}",
    "{{ a == [1] }}{{ a == {} }}{{ {'x': 1}[a] }}",
    "(" * 5000,
    "{{ " + "(" * 5000 + "a" + ")" * 5000 + " }}",
    "{{ " + "a + " * 3000 + "a }}",
    "{{ self }}{{ loop }}{{ namespace(a=b).a }}",
    "{% for a, b in c.items() %}{{ a }}{% endfor %}{% set d.e = 1 %}",
    "{{ a.strip().x.y() }}{{ a()() }}{{ a.b(c)[d].e }}",
    "{{ true[x] }}{{ none.x }}{{ 1.5[x] }}{{ x[none] }}{{ x[true] }}",
]


@pytest.mark.slow
@pytest.mark.parametrize("template", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_templates_do_no_harm(template: Any) -> None:
    for role in ("doc_to_text", "doc_to_target", "doc_to_choice", "description"):
        try:
            docs = made(2, **{"doc_to_text": "{{q}}", role: template})
        except SyntheticDocsError:
            continue
        for doc in docs:
            assert len(str(doc)) < 10_000_000
            str([value for value in doc.values() if isinstance(value, str)]).encode()


# -- laws -------------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["question", "choices", "label", "options", "answer", "text", "x"])
EXPRESSIONS = st.builds(
    str.replace,
    st.sampled_from(
        [
            "{{N}}",
            "{{N[2]}}",
            "{{N.strip()}}",
            "{{N|length}}",
            "{{N|join(' ')}}",
            "{{N.a.b}}",
            "{{N['k'][1]}}",
            "words",
            "{{['a','b'].index(N)}}",
            "{{['a','b'][N]}}",
            "{{N + 1}}",
            "{{N + '!'}}",
            "{% for y in N %}{{y}}{% endfor %}",
            "{{N.split('--')[1]}}",
            "{{1 if N == 'k' else 2}}",
            "{{N[3:]}}",
            "{{N|int}}",
        ]
    ),
    st.just("N"),
    NAMES,
)
TEMPLATES = st.lists(EXPRESSIONS, max_size=4).map("".join)


def fresh(**fields: Any) -> Any:
    synthetic._plan.cache_clear()
    template_shapes.cache_clear()
    try:
        return made(3, **fields)
    except SyntheticDocsError as error:
        return str(error)


@given(text=TEMPLATES, target=TEMPLATES | NAMES)
def test_docs_are_the_same_every_time(text: Any, target: Any) -> None:
    first = fresh(doc_to_text=text, doc_to_target=target)
    assert fresh(doc_to_text=text, doc_to_target=target) == first
    if not isinstance(first, str):
        assert made(1, doc_to_text=text, doc_to_target=target) == first[:1]


@pytest.mark.slow
@given(text=TEMPLATES, target=TEMPLATES | NAMES)
def test_docs_do_not_change_when_an_unrelated_field_is_added(text: Any, target: Any) -> None:
    before = fresh(doc_to_text=text, doc_to_target=target)
    after = fresh(doc_to_text=text, doc_to_target=target, description="On {{unrelated}} and {{other[3]}}.")
    if isinstance(before, str):
        assert after == before
        return
    assert [{name: doc[name] for name in old} for doc, old in zip(after, before, strict=True)] == list(before)


@given(text=EXPRESSIONS, target=NAMES)
def test_docs_that_are_made_can_be_rendered(text: Any, target: Any) -> None:
    task = make_task(doc_to_text=text, doc_to_target=target, num_fewshot=2)
    try:
        docs = load_docs(task)
    except SyntheticDocsError:
        return
    for doc in (*docs.evaluated, *docs.fewshot):
        assert isinstance(doc, dict)


def test_docs_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from pytest_promptfmt.core.task import Task\n"
        "from pytest_promptfmt.tasks.synthetic.synthetic_docs import synthetic_docs\n"
        "task = Task(name='t', doc_to_target='{{f}}',\n"
        "            doc_to_text='{{a.b[2]}}{{c in [1, 2]}}{{d == 4}}{{d == 5}}{{e}}',\n"
        "            doc_to_choice='{{[g, h.i, j[1]]}}', description='{{k}}{{ {1: 2, 3: 4}[l] }}')\n"
        "print(synthetic_docs(task, count=5, split='shot'))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1
