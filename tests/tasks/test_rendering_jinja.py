"""Task templates print what plain Jinja prints, in pieces, and nothing that would hurt the machine."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from jinja2 import Environment, StrictUndefined, TemplateSyntaxError, UndefinedError

from pytest_promptfmt.core.errors import LimitExceededError, Position, RenderError
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.tasks.rendering.jinja import compile_template, explain

PLAIN = Environment(undefined=StrictUndefined, keep_trailing_newline=True)

DOC: dict[str, Any] = {
    "question": " What?\r\n",
    "choices": ["a", " b ", "", "{{ c }}"],
    "answer": 2,
    "flag": None,
    "ratio": 1.0,
    "nested": {"key": ["x", {"y": True}]},
    "when": dt.datetime(2020, 1, 2),
    "Answer Key": "z",
}
PARTS = [
    "text",
    "\n",
    "\r\n",
    "\r",
    " trailing ",
    "{# comment #}",
    "{{ question }}",
    "{{ question.strip() }}",
    "{{ choices[answer] }}",
    "{{ choices | join(', ') }}",
    "{{ nested }}",
    "{{ nested.key[1].y }}",
    "{{ flag }}{{ ratio }}{{ when }}",
    "{{ 'a' ~ answer ~ choices }}",
    "{{ answer + 1 }}{{ answer * 2 }}{{ 'ab' * 2 }}{{ 7 % 4 }}{{ 2 ** 3 }}{{ '%s-%s' % (1, 2) }}",
    "{{ 'yes' if flag is none else question }}",
    "{{ '{}:{:>4}'.format(answer, ratio) }}",
    "{{ '<&>' | e }}{{ question | safe }}",
    "{% for choice in choices %}{{ loop.index }}. {{ choice }}\n{% endfor %}",
    "{%- for choice in choices -%} {{ choice }} {%- else -%} none {%- endfor -%}",
    "{% set first = choices[0] %}{{ first }}",
    "{% set block %}[{{ question }}]{% endset %}{{ block }}",
    "{% macro shown(x) %}<{{ x }}>{% endmacro %}{{ shown(answer) }}",
    "{% call(x) wrap() %}{{ x }}{% endcall %}",
    "{% macro wrap() %}({{ caller(question) }}){% endmacro %}",
    "{% filter upper %}{{ question }} shouted{% endfilter %}",
    "{% block named %}in {{ answer }}{% endblock %}{{ self.named() }}",
    "{% if flag %}never{% elif answer == 2 %}two{% endif %}",
    "{% raw %}{{ raw }}{% endraw %}",
    "{% with w = question %}{{ w }}{% endwith %}",
    "{% autoescape true %}{{ '<b>' }}{{ question }}{% endautoescape %}",
    "{% for c in choices %}{{ c.replace('a', 'bb') }}{{ c.center(4) }}{{ ', '.join(choices) }}{% endfor %}",
    "{% block loud %}{{ question.replace('W', 'w') }}{% endblock %}{{ question.replace() }}",
    "{{ missing }}",
    "{{ missing is defined }}{{ missing | default('-') }}",
    "{{ nested.nothing.more }}",
    "{{ choices | map('upper') | list }}{{ choices | length }}{{ [3, 1] | sort | first }}",
    "{{ 'a-b' | replace('-', '+') }}{{ 'x' | center(5) }}{{ 'l1\nl2' | indent(2) }}",
    "{{ range(3) | list }}{{ {'a': 1}.items() | list }}{{ namespace(a=1).a }}",
    "{{ ['A', 'B', 'C'][answer] }}{{ 'ABC'[answer] }}{{ question[1:3] }}",
    "{{ choices[1] == question }}{{ answer != ratio }}{{ question in choices }}{{ choices[0] not in nested }}",
    "{{ answer < ratio < flag }}{{ ratio < answer <= answer }}{{ ratio > flag }}",
    "{{ answer is eq(ratio) }}{{ choices | select('equalto', question) | list }}{{ answer is in(choices) }}",
    "{{ {question: 1, 'b': choices, answer ~ 'c': {}} }}{{ {choices: 1} }}{{ nested[('a', 'b')] }}",
    "{{ '{a:>{b}}{c!r}'.format(a=1, b=answer, c=question) }}{{ '{question}'.format_map({'question': 1}) }}",
    "{{ ('<{}>' | safe).format('<b>') }}{{ '{}'.format_map() }}{{ '{:{}}'.format(1, 'x') }}",
    "{{ ', '.join(choices | map('upper')) }}{{ ''.join('ab') }}{{ '-'.join([1]) }}",
    "{{ nested | tojson(2) }}{{ choices | join(d=';') }}{{ [1, 2, 3] | batch(linecount=2, fill_with=0) | list }}",
    "{{ 1 / 0 }}",
    "{{ answer",
    "{% for %}",
]


def plain(source: str, doc: dict[str, Any]) -> str | type[BaseException]:
    try:
        return PLAIN.from_string(source).render(**doc)
    except Exception as error:
        return type(error)


def ours(source: str, doc: dict[str, Any]) -> str | type[BaseException]:
    try:
        return "".join(piece[0] for piece in compile_template(source).pieces(doc))
    except Exception as error:
        return type(error)


@given(st.lists(st.sampled_from(PARTS), max_size=6).map("".join))
def test_joined_pieces_equal_plain_jinja(source: str) -> None:
    assert ours(source, DOC) == plain(source, DOC)


@given(st.text(alphabet="{}%#-+ \r\n\t\\'\"aé\u2028\x0b\x85", max_size=30))
def test_text_without_expressions_equals_plain_jinja(source: str) -> None:
    assert ours(source, DOC) == plain(source, DOC)


@pytest.mark.parametrize("part", PARTS)
def test_each_construct_equals_plain_jinja(part: str) -> None:
    assert ours(part, DOC) == plain(part, DOC)


@pytest.mark.parametrize(
    ("doc", "source"),
    [
        ({"self": 1}, "constant"),
        ({"self": 1}, "{{ 1 }}"),
        ({"range": "shadow"}, "{{ range }}"),
        ({"range": "shadow"}, "{{ range(3) }}"),
    ],
)
def test_columns_named_like_globals_or_self_do_what_they_do_in_lm_eval(doc: dict[str, Any], source: str) -> None:
    assert ours(source, doc) == plain(source, doc)


def test_regex_replace_is_re_sub() -> None:
    pieces = compile_template(r"{{ 'a1b22' | regex_replace('[0-9]+', '#', 1) }}").pieces({})
    assert pieces[0][0] == "a#b22"


@pytest.mark.parametrize(
    ("source", "columns"),
    [
        ("{{ question.strip() }}", ["question"]),
        ("Q: {{ question }}{{ answer }}", [None, "question", "answer"]),
        ("{% for c in choices %}{{ c }}{% endfor %}", ["choices"] * 4),
        ("{% for c in choices %}{{ loop.index }}{% endfor %}", [None] * 4),
        ("{% set q = question %}{{ q }}", ["question"]),
        ("{{ choices[answer] }}", ["choices"]),
        ("{{ 'x' if flag else question }}", ["question"]),
        ("{% macro m(x) %}{{ x }}{% endmacro %}{{ m(question) }}", ["question"]),
        ("{{ range(2) | list }}", [None]),
    ],
)
def test_pieces_know_their_column(source: str, columns: list[str | None]) -> None:
    assert [column for _, column, _ in compile_template(source).pieces(DOC)] == columns


def test_pieces_know_their_line() -> None:
    assert compile_template("a\n{{ answer }}\n\n{{ ratio }}").pieces(DOC)[1::2] == [
        ("2", "answer", 2),
        ("1.0", "ratio", 4),
    ]


def test_templates_are_compiled_once() -> None:
    assert compile_template("{{ once }}") is compile_template("{{ once }}")


BOMBS = [
    "{{ 'a' * 10**10 }}",
    "{{ 10**9 * 'a' }}",
    "{{ ['a'] * 10**9 }}",
    "{{ ('a' * 1000, ) * 10**9 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{% set n = namespace(x=2 ** 90000) %}{{ n.x * n.x }}",
    "{{ ('a' * 1000000) | regex_replace('', 'b' * 1000000) }}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "{% macro m() %}{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}{% endmacro %}{{ m() }}",
    "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
]


def test_a_namespace_that_contains_itself_is_printed_as_jinja_prints_it() -> None:
    source = "{% set n = namespace(x=1) %}{% set n.x = n %}{{ n }}"
    expected = Environment().from_string(source).render()
    assert "".join(piece[0] for piece in compile_template(source).pieces({})) == expected


@pytest.mark.parametrize("source", BOMBS)
def test_templates_cannot_make_huge_texts(source: str) -> None:
    with time_limit(20, "the bomb"), pytest.raises(LimitExceededError):
        compile_template(source).pieces({})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ '' | attr('__class__') | attr('__mro__') }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ joiner.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% set n = namespace() %}{{ n.__init__.__globals__ }}",
        "{{ choices.append('x') }}",
        "{{ nested.clear() }}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% extends 'x' %}",
    ],
)
def test_templates_cannot_reach_out_or_change_the_doc(source: str) -> None:
    with pytest.raises(Exception, match=r"unsafe|undefined|loader|no attribute"):
        compile_template(source).pieces(DOC)
    assert DOC["choices"] == ["a", " b ", "", "{{ c }}"]


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    ],
)
def test_huge_ranges_and_endless_recursion_fail_at_once(source: str) -> None:
    with time_limit(20, "it"), pytest.raises((OverflowError, RecursionError, TemplateSyntaxError)):
        compile_template(source).pieces({})


def test_endless_loops_end_with_the_time_limit_of_the_caller() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(LimitExceededError, match="did not finish"), time_limit(0.2, "the template"):
        compile_template(source).pieces({})


def explained(source: str, doc: dict[str, Any]) -> RenderError:
    try:
        compile_template(source).pieces(doc)
    except Exception as error:
        where = "of 'arc', doc 1"
        place = Position(Path("arc.yaml"), 7, 3)
        return explain(error, "doc_to_text", where, source, tuple(doc), place)
    raise AssertionError("it should have failed")


def test_missing_column_message_says_where_what_and_the_closest_column() -> None:
    message = str(explained("{{ qestion }}", DOC))
    assert message.startswith("arc.yaml:7:3: doc_to_text uses the column 'qestion', but no doc has it")
    assert "did you mean 'question'?" in message


def test_missing_column_without_a_close_one_lists_the_columns() -> None:
    assert "the columns are 'question', 'choices'" in str(explained("{{ zzz }}", DOC))


def test_syntax_error_message_gives_the_line_of_the_template() -> None:
    message = str(explained("fine\n{% if %}", DOC))
    assert "invalid Jinja, line 2 of the template" in message


def test_failing_expression_message_gives_the_line_of_the_template() -> None:
    assert "line 3 of the template" in str(explained("a\nb\n{{ 1 / 0 }}", DOC))


def test_sandbox_message_says_that_lm_eval_is_more_lenient() -> None:
    assert "promptfmt does not allow this, although lm-eval does" in str(explained("{{ ''.__class__.__mro__ }}", DOC))


def test_errors_of_the_engine_pass_as_they_are() -> None:
    with pytest.raises(UndefinedError):
        compile_template("{{ missing }}").pieces({})
    with pytest.raises(TemplateSyntaxError):
        compile_template("{{ ")
