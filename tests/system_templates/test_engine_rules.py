"""Other engines: what they lack, and prompts that differ, tried with the real one where it is installed."""

from __future__ import annotations

import importlib.util
import runpy
import tarfile
from pathlib import Path

import pytest
from jinja2 import nodes
from jinja2.exceptions import TemplateError

from pytest_promptfmt import SettingsError, check_template
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.files import VARIABLE
from pytest_promptfmt.core.profile import ENGINES
from pytest_promptfmt.profiles.dialect import compiled_template, parsed_template
from pytest_promptfmt.profiles.template_trial import Rendering, TemplateTrial, TrialOptions, lone_profile
from pytest_promptfmt.systems.templates import engine_rules
from pytest_promptfmt.systems.templates.constructs import unknown_constructs
from pytest_promptfmt.systems.templates.engine_deviations import DEVIATIONS, deviating
from pytest_promptfmt.systems.templates.engine_rules import engines_differ
from pytest_promptfmt.systems.templates.engines import LLAMA, PACKAGE, compiled_by
from pytest_promptfmt.systems.templates.llama_build import build

LACKS = data_table("engines/minijinja")

LOOP = "{% for message in messages %}{{ message.role + ': ' + BODY }}{% endfor %}"
UNKNOWN = {
    ".removeprefix()": "{{ 'abc'.removeprefix('a') }}",
    ".rsplit()": "{{ 'a b'.rsplit(' ', 1) | join }}",
    "tojson(ensure_ascii=…)": "{{ 'a' | tojson(ensure_ascii=False) }}",
    "test callable": "{{ range is callable }}",
    "text % values": "{{ '%s' % 1 }}",
    "{% generation %}": "{% generation %}a{% endgeneration %}",
    "cycler()": "{{ cycler(1, 2).next() }}",
    "filter wordcount": "{{ 'a b' | wordcount }}",
}
KNOWN = "{{ 'a b'.split(' ')[-1].strip() }}{{ messages[1:] | length }}{{ 'x'.startswith('x') }}{{ {'a': 1}.items() }}"


def is_there(engine: str) -> bool:
    try:
        compiled_by(engine, "{{ messages }}")
    except SettingsError:
        return False
    return True


needs_minijinja = pytest.mark.skipif(
    importlib.util.find_spec("minijinja") is None, reason="minijinja is not installed (extra engines)"
)


def nodes_of(source: str) -> list[nodes.Node]:
    return list(parsed_template(source).find_all(nodes.Node))


@pytest.mark.parametrize("construct", UNKNOWN)
def test_constructs_that_engines_lack_are_found_in_the_source(construct: str) -> None:
    assert [name for name, _ in unknown_constructs(nodes_of(UNKNOWN[construct]))] == [construct]
    assert not list(unknown_constructs(nodes_of(KNOWN)))


@needs_minijinja
@pytest.mark.parametrize("construct", UNKNOWN)
def test_the_engine_really_lacks_them(construct: str) -> None:
    with pytest.raises(RuntimeError):
        compiled_by("minijinja", UNKNOWN[construct]).render({})
    assert compiled_by("minijinja", KNOWN).render({"messages": [1, 2]})


@needs_minijinja
@pytest.mark.parametrize("name", sorted({*LACKS["filters"], *LACKS["functions"]}))
def test_the_engine_knows_no_such_filter_or_function(name: str) -> None:
    source = f"{{{{ {name}() }}}}" if name in LACKS["functions"] else f"{{{{ 'a' | {name} }}}}"
    with pytest.raises(RuntimeError):
        compiled_by("minijinja", source).render({})


@needs_minijinja
def test_prompts_that_differ_are_reported_with_their_cause() -> None:
    def causes(body: str) -> list[str]:
        found = check_template(LOOP.replace("BODY", body), engines=["minijinja"])
        return [finding.message for finding in found if finding.code == "PF449" and finding.severity == "warning"]

    assert not causes("message.content")
    escaped = "`tojson` escapes characters of HTML"
    assert f"minijinja renders another prompt: {escaped}" in causes("message.content | tojson")
    assert causes("message.content.zfill(9)")[0].endswith("string has no method named zfill")


@pytest.mark.parametrize(
    ("ours", "theirs", "cause"),
    [
        ("Iron.\n", "Iron.", "line breaks around tags differ"),
        ("<a>\n  Iron.\n<b>", "<a>\nIron.\n<b>", "whitespace is stripped differently"),
        ('{"a": 1}<b>', '{"a":1}<b>', "other whitespace"),
        ("{'a': 'one\\ntwo'}<b>", "{'a': 'one\ntwo'}<b>", "line breaks of printed texts are not escaped"),
        ("<a>Iron.<b>", "<a>Tin.<b>", "unknown cause"),
    ],
)
def test_two_texts_tell_why_they_differ(ours: str, theirs: str, cause: str) -> None:
    assert engine_rules._cause(Rendering(text=ours), Rendering(text=theirs))[0] == cause


SHOWN = {
    "`tojson` escapes characters of HTML": ("{{ '<' | tojson }}", '"\\u003c"'),
    "Jinja escapes text that is joined to the result of `safe`, the engine does not": ("{{ ('' | safe) + '<' }}", "<"),
    "`none` is iterable": ("{% if none is iterable %}{% for a in none %}{% endfor %}a{% endif %}", "a"),
    "a text is not a sequence": ("{{ 'a' is sequence }}", "False"),
    "`none` is printed as nothing": ("<{{ none }}>", "<>"),
    "mappings and lists are printed as nothing, or without brackets": ("{{ ['a', {}, none] }}{{ {'a': 1} }}", "a"),
    "mappings, lists, `true` and `false` are printed as JSON": ("{{ ['a', {'b': none}] }}", '["a", {"b": null}]'),
    "an empty text equals `false`, and a list or mapping never equals a copy of it": (
        "{% if '' == false and [] != [] %}a{% endif %}",
        "a",
    ),
    "`strip` ignores its argument, and removes whitespace": ("<{{ ' a '.strip('a') }}>", "<a>"),
    "a mapping is not iterable": ("{% if {} is iterable %}{% else %}a{% endif %}", "a"),
    "the filter `first` returns empty text for an empty list": (
        "{% set a = [] | first | default('a') %}<{{ a }}>",
        "<>",
    ),
    "numbers such as 1.0 are written as 1": ("{{ number | tojson }}", "1"),
    "the filter `format` ignores its arguments": ("{{ '<%s>' | format('a') }}", "<%s>"),
    "a variable that is set in a loop keeps its value in the next iteration": (
        "{% for a in [1, 2] %}{% if b is defined %}b{% endif %}{% set b = a %}{% endfor %}",
        "b",
    ),
    "if an argument of a macro is left out, later keyword arguments are ignored": (
        "{% macro f(a=1, b=2) %}{{ b }}{% endmacro %}{{ f(b=3) }}",
        "2",
    ),
    "text before `continue` or `break` in an `if` block is lost": (
        "{% for a in [1] %}{% if a %}{{ a }}{% continue %}{% endif %}{% endfor %}b",
        "b",
    ),
}
"""A template for each deviation, and its text in engines that have it."""


@pytest.mark.parametrize("name", DEVIATIONS)
def test_jinja_imitates_a_deviation(name: str) -> None:
    source, text = SHOWN[name]
    assert deviating(source, name).render({"number": 1.0}) == text
    assert compiled_template(source).render({"number": 1.0}) != text


@pytest.mark.parametrize(("name", "engine"), [(name, each) for name in DEVIATIONS for each in ENGINES])
def test_the_engines_that_a_deviation_names_have_it_and_no_others(name: str, engine: str) -> None:
    if not is_there(engine):
        pytest.skip(f"{engine} is not installed")
    source, text = SHOWN[name]
    try:
        made = compiled_by(engine, source).render({"number": 1.0, "strftime_now": print})
    except RuntimeError:
        made = ""
    assert (made == text) == (engine in DEVIATIONS[name].engines)


@needs_minijinja
def test_the_deviation_that_explains_most_of_a_text_is_the_cause() -> None:
    source = LOOP.replace("BODY", "('<' | tojson) + ('\\u003c' if 'a' is sequence else '')")
    found = [each for each in check_template(source, engines=["minijinja"]) if "another prompt" in each.message]
    assert {each.message.partition(": ")[2] for each in found} == {"`tojson` escapes characters of HTML"}


def test_the_table_of_engines_counts_what_only_an_engine_renders_as_one_cause() -> None:
    table = runpy.run_path(str(Path(__file__).parents[2] / "scripts/engines_table.py"))
    for error in ("no such filter", "roles must alternate"):
        cause, _, _ = engine_rules._cause(Rendering(text=None, error=error), Rendering(text="Iron."))
        made = table["_cause"](f"minijinja renders another prompt: {cause}")
        assert made == "the engine continues where Jinja stops with an error"


@needs_minijinja
def test_a_refusal_is_the_same_in_both_engines() -> None:
    refusing = "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}" + LOOP
    found = check_template(refusing.replace("BODY", "message.content"), engines=["minijinja"])
    assert not [finding for finding in found if finding.code == "PF449"]


def test_an_unknown_engine_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(SettingsError, match="unknown template engine 'minijinjaa'"):
        check_template("{{ messages }}", engines=["minijinjaa"])


needs_node = pytest.mark.skipif(not is_there(PACKAGE), reason=f"node finds no {PACKAGE} from the working directory")


@needs_node
def test_node_renders_what_jinja_renders_and_says_what_it_does_not_know() -> None:
    def causes(body: str) -> list[str]:
        found = check_template(LOOP.replace("BODY", body), engines=[PACKAGE])
        return [finding.message for finding in found if finding.code == "PF449" and finding.severity == "warning"]

    assert not causes("(message.content if message.content is string else '') + strftime_now('%Y')")
    assert causes("message.content.zfill(9)")[0].startswith(f"{PACKAGE} renders another prompt: Cannot call something")


needs_llama = pytest.mark.skipif(not is_there(LLAMA), reason="the engine of llama.cpp is not built")


@needs_llama
def test_llama_cpp_renders_what_jinja_renders_and_numbers_in_its_own_way() -> None:
    def causes(body: str) -> list[str]:
        found = check_template(LOOP.replace("BODY", body), engines=[LLAMA])
        return [finding.message for finding in found if finding.code == "PF449" and finding.severity == "warning"]

    assert not causes("(message.content if message.content is string else '') + strftime_now('%Y %B %d')")
    assert causes("(1.0 | tojson)") == [f"{LLAMA} renders another prompt: numbers such as 1.0 are written as 1"]


@needs_llama
def test_llama_cpp_names_its_refusals_and_the_line_of_an_error() -> None:
    variables = {"strftime_now": print}
    with pytest.raises(TemplateError, match=r"^not this$"):
        compiled_by(LLAMA, "{{ raise_exception('not this') }}").render(variables)
    with pytest.raises(RuntimeError, match=r"\(in chat:2\)$"):
        compiled_by(LLAMA, "\n{{ none.strip() }}").render(variables)


def test_an_engine_that_is_not_built_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(SettingsError, match=r"not built") as error:
        compiled_by(LLAMA, "{{ messages }}")
    assert "llama_build" in (error.value.hint or "")


def test_an_archive_without_the_engine_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    archive = tmp_path / "other.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(__file__, "other/vendor/llama.cpp/common/readme.py")
    with pytest.raises(SettingsError, match=r"other\.tar\.gz lacks files of the engine"):
        build(archive)
    archive.write_bytes(b"no archive")
    with pytest.raises(SettingsError, match="cannot be unpacked"):
        build(archive)


def test_an_engine_of_the_repository_is_not_tried_where_no_code_may_run() -> None:
    trial = TemplateTrial(
        lone_profile(LOOP.replace("BODY", "''")), options=TrialOptions(engines=(PACKAGE,), may_run_code=False)
    )
    assert [finding.message for finding in engines_differ(trial)] == [f"the engine {PACKAGE} was not tried"]


def test_a_recording_that_cannot_be_read_is_named_as_one_would_type_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vllm.jsonl").write_text("{}\n", "utf-8")
    trial = TemplateTrial(
        lone_profile(LOOP.replace("BODY", "''")), options=TrialOptions(engines=(str(tmp_path / "vllm.jsonl"),))
    )
    assert [finding.message for finding in engines_differ(trial)] == ["the engine vllm.jsonl was not tried"]


def test_without_node_or_its_package_the_setting_is_a_mistake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"needs node|is not installed"):
        check_template("{{ messages }}", engines=[PACKAGE])


@needs_minijinja
def test_a_construct_at_which_an_engine_stops_is_said_once(tmp_path: Path) -> None:
    masked = (
        LOOP.replace("BODY", "message.content")
        .replace("{{", "{% generation %}{{")
        .replace("}}", "}}{% endgeneration %}")
    )
    served, training = tmp_path / "chat_template.jinja", tmp_path / "chat_template_training.jinja"
    for path in (served, training):
        path.write_text(masked, "utf-8")

    def messages(path: Path, *engines: str) -> list[str]:
        return [finding.message for finding in check_template(path, engines=engines) if finding.code == "PF449"]

    stopped = "minijinja does not compile the template: syntax error: unknown statement generation"
    assert messages(served, "minijinja") == [stopped]
    assert messages(served) == ["some engines do not support {% generation %}"]
    assert messages(training) == []
