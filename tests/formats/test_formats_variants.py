"""Variants change one axis: by name, canonically, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest
from format_pieces import CHANGED_BY_AXIS, Asked, differences, undeclared_changes

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats import apply_format, known_formats, laid_out, variants_of
from pytest_promptfmt.formats.attempts import variant_names
from pytest_promptfmt.formats.variants import Variant, axes, parse_variant, split_variants, vary

TASK = Task(name="t", doc_to_text="question", doc_to_target="answer", doc_to_choice="choices")
DOC = {"question": "Q", "choices": ["Rome", "Oslo", "Ulm"], "answer": 1, "topic": "T"}
ALL = [(layout, varied) for layout in known_formats().values() for varied in variants_of(layout)]


def rendered(name: str) -> tuple[str, object, list[str | None]]:
    instance = next(iter(apply_format(TASK, name).render(TaskDocs.in_memory([DOC]), num_fewshot=0)))
    return instance.prompts[0].text, instance.target, [request.continuation for request in instance.requests]


@pytest.mark.parametrize(
    ("variant", "text"),
    [
        ("enumerator-lowercase", "Question: Q\na. Rome\nb. Oslo\nc. Ulm\nAnswer:"),
        ("enumerator-numbers", "Question: Q\n1. Rome\n2. Oslo\n3. Ulm\nAnswer:"),
        ("enumerator-roman", "Question: Q\nI. Rome\nII. Oslo\nIII. Ulm\nAnswer:"),
        ("enumerator-greek", "Question: Q\nα. Rome\nβ. Oslo\nγ. Ulm\nAnswer:"),
        ("enumerator-keyboard", "Question: Q\n!. Rome\n@. Oslo\n#. Ulm\nAnswer:"),
        ("label_style-parentheses", "Question: Q\n(A) Rome\n(B) Oslo\n(C) Ulm\nAnswer:"),
        ("choice_separator-comma", "Question: Q\nA. Rome, B. Oslo, C. Ulm\nAnswer:"),
        ("section_separator-blank_line", "Question: Q\n\nA. Rome\nB. Oslo\nC. Ulm\n\nAnswer:"),
        ("descriptor_separator-dash", "Question - Q\nA. Rome\nB. Oslo\nC. Ulm\nAnswer -"),
        ("descriptor_casing-upper", "QUESTION: Q\nA. Rome\nB. Oslo\nC. Ulm\nANSWER:"),
        ("choice_order-reversed", "Question: Q\nA. Ulm\nB. Oslo\nC. Rome\nAnswer:"),
        ("choice_order-alphabetical", "Question: Q\nA. Oslo\nB. Rome\nC. Ulm\nAnswer:"),
        ("choice_order-alphabetical_descending", "Question: Q\nA. Ulm\nB. Rome\nC. Oslo\nAnswer:"),
        ("choice_order-shortest_first", "Question: Q\nA. Ulm\nB. Rome\nC. Oslo\nAnswer:"),
        ("choice_order-longest_first", "Question: Q\nA. Rome\nB. Oslo\nC. Ulm\nAnswer:"),
        ("choice_order-correct_first", "Question: Q\nA. Oslo\nB. Rome\nC. Ulm\nAnswer:"),
        ("choice_order-correct_last", "Question: Q\nA. Rome\nB. Ulm\nC. Oslo\nAnswer:"),
    ],
)
def test_variant_of_mcqa_prints(variant: str, text: str) -> None:
    assert rendered(f"mcqa+{variant}")[0] == text


@pytest.mark.parametrize("order", axes()["choice_order"].values)
@pytest.mark.parametrize("name", ["mcqa", "cloze", "generate"])
def test_gold_follows_the_order_of_the_choices(name: str, order: str) -> None:
    text, target, continuations = rendered(f"{name}+choice_order-{order}")
    if name == "cloze":
        assert continuations[target] == " Oslo"  # type: ignore[call-overload]
    else:
        label = target if name == "generate" else continuations[target].strip()  # type: ignore[call-overload]
        assert f"{label}. Oslo" in text


def test_scored_gap_is_the_one_of_the_demonstrations() -> None:
    assert rendered("mcqa+answer_gap-none")[2] == ["A", "B", "C"]


def test_axes_may_be_combined_and_the_name_does_not_depend_on_the_order_given() -> None:
    variants = [Variant("choice_order", "reversed"), Variant("enumerator", "roman")]
    names = {vary(known_formats()["mcqa"], order).name for order in (variants, variants[::-1])}
    assert names == {"mcqa+enumerator-roman+choice_order-reversed"}
    assert rendered(names.pop())[0] == "Question: Q\nI. Ulm\nII. Oslo\nIII. Rome\nAnswer:"


def test_name_leads_back_to_its_variants() -> None:
    assert split_variants("mcqa+enumerator-roman") == ("mcqa", (Variant("enumerator", "roman"),))
    assert split_variants("mcqa") == ("mcqa", ())
    for layout, varied in ALL:
        base, variants = split_variants(varied.name)
        assert (base, vary(layout, variants)) == (layout.name, varied)


@pytest.mark.parametrize("name", known_formats())
def test_every_variant_of_a_format_changes_exactly_its_axis(name: str) -> None:
    layout = known_formats()[name]
    asked = Asked(question="Q", choices=["bb", "a", "ccc"], gold=1, topic="T")
    naming_labels = {"instruction", "answer_prompt"}  # of generate: `one of A, B or C`
    for varied in variants_of(layout):
        (variant,) = split_variants(varied.name)[1]
        allowed = {*CHANGED_BY_AXIS[variant.axis].kinds, *(naming_labels if variant.axis == "enumerator" else ())}
        assert set(differences(layout, varied, asked)) <= allowed, varied.name
        assert undeclared_changes(layout, varied, [variant.axis]) == ()


def test_oracle_finds_what_an_axis_may_not_change() -> None:
    layout = known_formats()["mcqa"]
    sneaky = dataclasses.replace(layout, choice_labels="roman", answer_prompt="Answer: ")
    assert undeclared_changes(layout, sneaky, ["enumerator"]) == ("answer_prompt",)
    assert undeclared_changes(layout, sneaky, ["enumerator", "descriptor_separator"]) == ()


def test_variants_that_would_change_nothing_are_left_out() -> None:
    names = [varied.name for varied in variants_of(known_formats()["mcqa"])]
    assert len(names) == len(set(names))
    for same in ("enumerator-capitals", "label_style-dot", "choice_separator-newline", "choice_order-as_is"):
        assert f"mcqa+{same}" not in names
    assert not [name for name in names if name.startswith("mcqa+descriptor_casing-title")]


def test_format_without_labels_has_no_axis_of_labels() -> None:
    names = [varied.name for varied in variants_of(known_formats()["cloze"])]
    assert not [name for name in names if "enumerator" in name or "label_style" in name]
    assert variants_of(known_formats()["cloze"], ["enumerator"]) == ()
    with pytest.raises(FormatError, match="'enumerator-roman' has no effect in format 'cloze'"):
        apply_format(TASK, "cloze+enumerator-roman")


def test_format_with_a_line_of_its_own_for_choices_has_no_axis_of_label_styles() -> None:
    format_ = known_formats()["mcqa"].changed({"choice_format": "{choice} [{label}]"})
    varying = {split_variants(varied.name)[1][0].axis for varied in variants_of(format_)}
    assert varying == set(axes()) - {"label_style"}
    for varied in variants_of(format_):
        (variant,) = split_variants(varied.name)[1]
        kinds = CHANGED_BY_AXIS[variant.axis].kinds
        moved = {"choice_format"} if variant.axis in ("enumerator", "choice_order") else set()
        assert set(differences(format_, varied, Asked(question="Q", choices=["bb", "a"], gold=1))) <= {*kinds, *moved}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("enumerater-roman", "did you mean 'enumerator-roman'?"),
        ("enumerator-romn", "did you mean 'enumerator-roman'?"),
        ("zzz", "the axes are"),
        ("enumerator", "did you mean 'enumerator'?"),
    ],
)
def test_unknown_variant_comes_with_the_closest_one(name: str, hint: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_variant(name)
    assert (caught.value.hint or "").startswith(hint)


def test_variants_are_added_to_the_formats_that_are_tested() -> None:
    assert variant_names(TASK, "mcqa", ["enumerator-roman", "answer_gap"]) == (
        "mcqa+enumerator-roman",
        "mcqa+answer_gap-none",
        "mcqa+answer_gap-newline",
    )
    every = laid_out(TASK, ["mcqa"], variants=["all"])
    assert len(every) == 2 + len(variants_of(known_formats()["mcqa"]))
    assert [task.id for task in every[:3]] == ["t", "t@mcqa", "t@mcqa+enumerator-lowercase"]


def test_task_in_no_format_has_no_variants() -> None:
    assert laid_out(TASK, (), variants=["all"]) == (TASK,)


def test_variants_start_from_the_overrides_of_the_task() -> None:
    config = {"formats": {"type": "mcqa", "question_prefix": "Q: "}}
    made = laid_out(dataclasses.replace(TASK, config=config), variants=["descriptor_casing-upper", "enumerator-roman"])
    assert [task.id for task in made] == ["t@mcqa", "t@mcqa+descriptor_casing-upper", "t@mcqa+enumerator-roman"]
    assert [task.layout.question_prefix for task in made] == ["Q: ", "Q: ", "Q: "]  # type: ignore[attr-defined]
