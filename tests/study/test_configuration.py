"""What rules read of a task's configuration without docs and prompts: texts, names, stops, metrics, media."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from linting import study_of

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.task import FewShot, FunctionRef, Task
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.configuration import read_template

CODE = FunctionRef("code", "text", Path(), Position(Path("t.yaml")))


def study(config: dict[str, Any] | None = None, **fields: Any) -> Study:
    return study_of(Task(name="t", config=config or {}, **fields))


def deep(depth: int) -> Any:
    return "end" if depth == 0 else [deep(depth - 1)]


def test_texts_have_their_key_paths_without_metadata_and_samples() -> None:
    config = {
        "doc_to_text": "a",
        "doc_to_choice": ["b", 1, {"c": "d"}],
        "metadata": {"note": "no"},
        "fewshot_config": {"samples": [{"q": "no"}], "sampler": "first_n"},
        "samples": ["e"],
    }
    assert study(config).strings == (
        (("doc_to_text",), "a"),
        (("doc_to_choice", 0), "b"),
        (("doc_to_choice", 2, "c"), "d"),
        (("fewshot_config", "sampler"), "first_n"),
        (("samples", 0), "e"),
    )


@pytest.mark.parametrize(("depth", "is_read"), [(7, True), (8, False)])
def test_texts_are_read_to_a_depth(depth: int, is_read: bool) -> None:
    assert bool(study({"key": deep(depth)}).strings) == is_read


def test_names_are_those_of_templates_and_of_bare_columns() -> None:
    fields: dict[str, Any] = {
        "doc_to_text": "{{question}} {% if hint %}{{ 'x' }}{% endif %}",
        "doc_to_choice": ["{{a}}", "b"],
        "doc_to_target": "answer",
        "fewshot": FewShot(doc_to_text="{{other}}"),
    }
    assert study(**fields).used_names >= {"question", "hint", "a", "b", "answer", "other"}
    assert "doc_to_text" not in study(**fields).used_names


@pytest.mark.parametrize(
    ("fields", "makes_text", "asks", "scores"),
    [
        ({}, False, False, False),
        ({"doc_to_text": CODE}, True, True, False),
        ({"doc_to_target": CODE}, True, False, False),
        ({"fewshot": FewShot(doc_to_text=CODE)}, True, False, False),
        ({"process_results": CODE}, False, False, True),
        ({"metric_list": [{"metric": CODE}]}, False, False, True),
        ({"metric_list": [{"metric": "acc"}]}, False, False, False),
    ],
)
def test_code_is_known_by_what_it_makes(fields: dict[str, Any], makes_text: bool, asks: bool, scores: bool) -> None:
    found = study(**fields)
    assert (found.runs_functions, found.asks_by_code, found.has_own_scorer) == (makes_text, asks, scores)


@pytest.mark.parametrize(
    ("kwargs", "stops"),
    [
        (None, ()),
        ({}, ()),
        ({"until": "a"}, ("a",)),
        ({"until": ["a", 1, "b"]}, ("a", "b")),
        ({"until": ()}, ()),
        ({"until": 3}, ()),
    ],
)
def test_stops_are_the_texts_among_them(kwargs: Any, stops: tuple[str, ...]) -> None:
    assert study(generation_kwargs=kwargs).stop_texts == stops


def test_metrics_are_named_those_of_code_by_its_name() -> None:
    assert study(metric_list=[{"metric": "acc"}, {"metric": CODE}, {}]).metrics == ("acc", "!function text", "None")


@pytest.mark.parametrize(
    ("config", "keys"), [({}, ()), ({"doc_to_image": None}, ()), ({"doc_to_audio": "a"}, ("doc_to_audio",))]
)
def test_a_task_with_images_or_sound_is_multimodal(config: dict[str, Any], keys: tuple[str, ...]) -> None:
    assert (study(config).media_keys, study(config).is_multimodal) == (keys, bool(keys))


@pytest.mark.parametrize(
    ("source", "constants", "names", "quoted", "has_markup"),
    [
        ("", (), set(), (), False),
        ("a b", ("a b",), set(), (), False),
        ("a {{b.c}}\n", ("a ", "\n"), {"b"}, (), True),
        ("{{ 'q' }}{{ 3 }}", (), set(), ("q",), True),
        ("{# c #}a", ("a",), set(), (), True),
        ("{% if b %}a{% endif %}", ("a",), {"b"}, (), True),
        ("{{ broken", (), set(), (), True),
    ],
)
def test_a_template_is_taken_apart(
    source: str, constants: tuple[str, ...], names: set[str], quoted: tuple[str, ...], has_markup: bool
) -> None:
    found = read_template(source)
    assert (found.constants, set(found.names), found.quoted, found.has_markup) == (constants, names, quoted, has_markup)
