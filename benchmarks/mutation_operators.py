"""Mutation operators: how mistakes get into a task, each as the keys that change.

An operator is given the merged configuration of a task and a source of chance, and returns the keys with their new
values (None removes what an include wrote), or None where it does not apply. A text instead of a mapping is the whole
file.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]
Changed = dict[str, Any] | str | None
Operator = Callable[[Config, random.Random], Changed]

OPERATORS: list[Named] = []
"""All operators, in the order of the report."""

_COLUMN = re.compile(r"\{\{-?\s*([A-Za-z_]\w{2,})")
_LABEL = re.compile(r"(?m)^(\(?)([B-D])([.):])(?= )")
_CUE = re.compile(r"([A-Za-z]{3,}):(\s*)\Z")


@dataclass(frozen=True)
class Named:
    """An operator with its name and class; one that is `harmless` must not be reported by any rule."""

    name: str
    group: str
    run: Operator
    harmless: bool = False


def operator(group: str, *, harmless: bool = False) -> Callable[[Operator], Operator]:
    """Register a function as an operator of a class."""

    def register(function: Operator) -> Operator:
        OPERATORS.append(Named(function.__name__.replace("_", "-"), group, function, harmless))
        return function

    return register


# -- what operators share ----------------------------------------------------------------------------------------------


def text_of(config: Config, key: str = "doc_to_text") -> str:
    """Return a template of the task, "" where it is something else."""
    value = config.get(key)
    return value if isinstance(value, str) and "{{" in value else ""


def changed(config: Config, key: str, new: Any) -> Changed:
    """Return the change of a key, None where it stays as it is."""
    return {key: new} if new is not None and new != config.get(key) else None


def one_of(text: str, pattern: str | re.Pattern[str], new: Any, chance: random.Random) -> str | None:
    """Return the text with one match replaced, None without any."""
    found = list(re.finditer(pattern, text))
    if not found:
        return None
    match = chance.choice(found)
    return text[: match.start()] + (new(match) if callable(new) else match.expand(new)) + text[match.end() :]


def misspelt(word: str, chance: random.Random) -> str:
    """Return a word of which two letters are swapped, or one is lost."""
    at = [number for number in range(1, len(word) - 1) if word[number] != word[number + 1]]
    if at and chance.random() < 0.6:
        number = chance.choice(at)
        return word[:number] + word[number + 1] + word[number] + word[number + 2 :]
    number = chance.randrange(1, len(word))
    return word[:number] + word[number + 1 :]


def stops(config: Config) -> list[str] | None:
    """Return the stop sequences of a task that generates."""
    kwargs = config.get("generation_kwargs")
    until = kwargs.get("until") if isinstance(kwargs, Mapping) else None
    until = [until] if isinstance(until, str) else until
    return list(until) if isinstance(until, list) and all(isinstance(each, str) for each in until) else None


def with_stops(config: Config, until: list[str]) -> Changed:
    """Return the change of the stop sequences."""
    return changed(config, "generation_kwargs", {**config["generation_kwargs"], "until": until})


def generates(config: Config) -> bool:
    """Return whether the task generates."""
    return config.get("output_type") == "generate_until"


def listed_choices(config: Config) -> list[str] | None:
    """Return the choices that the configuration lists."""
    choices = config.get("doc_to_choice")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(each, str) for each in choices):
        return None
    return list(choices)


def in_filters(config: Config, change: Callable[[list[Any]], bool]) -> Changed:
    """Return the filters with one pipeline changed in place; `change` returns whether it did."""
    pipelines = deepcopy(config.get("filter_list"))
    for pipeline in pipelines if isinstance(pipelines, list) else ():
        steps = pipeline.get("filter") if isinstance(pipeline, dict) else None
        if isinstance(steps, list) and change(steps):
            return {"filter_list": pipelines}
    return None


def in_regex(config: Config, change: Callable[[str], str | None]) -> Changed:
    """Return the filters with the first pattern changed."""

    def run(steps: list[Any]) -> bool:
        for step in steps:
            pattern = step.get("regex_pattern") if isinstance(step, dict) else None
            new = change(pattern) if isinstance(pattern, str) else None
            if new is not None and new != pattern:
                step["regex_pattern"] = new
                return True
        return False

    return in_filters(config, run)


# -- whitespace --------------------------------------------------------------------------------------------------------


@operator("whitespace")
def space_at_the_end(config: Config, _chance: random.Random) -> Changed:
    text = text_of(config)
    return {"doc_to_text": f"{text} "} if text and not text[-1].isspace() else None


@operator("whitespace")
def newline_at_the_end(config: Config, _chance: random.Random) -> Changed:
    text = text_of(config)
    return {"doc_to_text": f"{text}\n"} if text and not text[-1].isspace() else None


@operator("whitespace")
def space_lost(config: Config, chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", one_of(text_of(config), r"(?<=[:.)?]) (?=\{\{)", "", chance))


@operator("whitespace")
def space_doubled(config: Config, chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", one_of(text_of(config), r"(?<=[:.)?}]) (?=[\w{])", "  ", chance))


@operator("whitespace")
def newline_lost(config: Config, chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", one_of(text_of(config), r"(?<=\S)\n(?=\S)", "", chance))


@operator("whitespace")
def newline_becomes_space(config: Config, chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", one_of(text_of(config), r"(?<=\S)\n(?=\S)", " ", chance))


@operator("whitespace")
def newline_doubled(config: Config, chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", one_of(text_of(config), r"(?<=\S)\n(?=\S)", r"\n\n", chance))


@operator("whitespace")
def newline_before_everything(config: Config, _chance: random.Random) -> Changed:
    text = text_of(config)
    return {"doc_to_text": f"\n{text}"} if text and not text[0].isspace() else None


@operator("whitespace")
def delimiter_of_the_answer_lost(config: Config, _chance: random.Random) -> Changed:
    return changed(config, "target_delimiter", "") if text_of(config) else None


@operator("whitespace")
def delimiter_of_the_answer_doubled(config: Config, _chance: random.Random) -> Changed:
    return changed(config, "target_delimiter", "  ") if text_of(config) else None


@operator("whitespace")
def description_loses_its_newline(config: Config, _chance: random.Random) -> Changed:
    text = config.get("description")
    return changed(config, "description", text.rstrip()) if isinstance(text, str) and text.strip() else None


@operator("whitespace")
def description_added_without_newline(config: Config, _chance: random.Random) -> Changed:
    return (
        {"description": "Answer the following question."} if text_of(config) and not config.get("description") else None
    )


# -- names and markup --------------------------------------------------------------------------------------------------


@operator("names")
def column_misspelt_in_the_question(config: Config, chance: random.Random) -> Changed:
    new = one_of(text_of(config), r"(?<=\{\{)[a-z_]\w{3,}(?=\}\})", lambda match: misspelt(match[0], chance), chance)
    return changed(config, "doc_to_text", new)


@operator("names")
def column_of_the_target_misspelt(config: Config, chance: random.Random) -> Changed:
    target = config.get("doc_to_target")
    if not isinstance(target, str) or len(target) < 4:
        return None
    if "{{" not in target:
        return {"doc_to_target": misspelt(target, chance)} if target.isidentifier() else None
    new = one_of(target, r"(?<=\{\{)[a-z_]\w{3,}(?=\}\})", lambda match: misspelt(match[0], chance), chance)
    return changed(config, "doc_to_target", new)


@operator("names")
def column_of_the_choices_misspelt(config: Config, chance: random.Random) -> Changed:
    choices = config.get("doc_to_choice")
    if not isinstance(choices, str):
        return None
    if choices.isidentifier():
        return {"doc_to_choice": misspelt(choices, chance)}
    return changed(
        config, "doc_to_choice", one_of(choices, r"[a-z_]{4,}", lambda match: misspelt(match[0], chance), chance)
    )


@operator("names")
def single_braces(config: Config, chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", one_of(text_of(config), r"\{\{\s*(\w+)\s*\}\}", r"{\1}", chance))


@operator("names")
def name_in_quotes(config: Config, chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", one_of(text_of(config), r"\{\{\s*(\w+)\s*\}\}", r"{{'\1'}}", chance))


@operator("names")
def brace_lost(config: Config, chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", one_of(text_of(config), r"\{\{([^{}]*)\}\}", r"{{\1}", chance))


@operator("names")
def columns_swapped(config: Config, _chance: random.Random) -> Changed:
    text = text_of(config)
    names = list(dict.fromkeys(re.findall(r"\{\{\s*(\w+)\s*\}\}", text)))
    if len(names) < 2:
        return None
    pair: dict[str, str] = {names[0]: names[1], names[1]: names[0]}
    new = re.sub(r"(?<=\{\{)\s*(\w+)\s*(?=\}\})", lambda match: pair.get(str(match[1]), str(match[1])), text)
    return changed(config, "doc_to_text", new)


@operator("names")
def column_in_place_of_another(config: Config, _chance: random.Random) -> Changed:
    text = text_of(config)
    names = list(dict.fromkeys(re.findall(r"\{\{\s*(\w+)\s*\}\}", text)))
    if len(names) < 2:
        return None
    return changed(config, "doc_to_text", re.sub(rf"\b{names[1]}\b", names[0], text))


# -- labels and choices ------------------------------------------------------------------------------------------------


@operator("labels")
def label_shifted(config: Config, chance: random.Random) -> Changed:
    new = one_of(text_of(config), _LABEL, lambda match: match[1] + chr(ord(match[2]) + 1) + match[3], chance)
    return changed(config, "doc_to_text", new)


@operator("labels")
def label_repeated(config: Config, chance: random.Random) -> Changed:
    new = one_of(text_of(config), _LABEL, lambda match: match[1] + chr(ord(match[2]) - 1) + match[3], chance)
    return changed(config, "doc_to_text", new)


@operator("labels")
def label_with_other_punctuation(config: Config, chance: random.Random) -> Changed:
    other = {".": ")", ")": ".", ":": "."}
    return changed(
        config,
        "doc_to_text",
        one_of(text_of(config), _LABEL, lambda match: match[1] + match[2] + other[match[3]], chance),
    )


@operator("labels")
def labels_in_lower_case(config: Config, _chance: random.Random) -> Changed:
    choices = listed_choices(config)
    is_labels = choices is not None and all(re.fullmatch("[A-Z]", each) for each in choices)
    return {"doc_to_choice": [each.lower() for each in choices or ()]} if is_labels else None


@operator("labels")
def letters_become_numbers(config: Config, _chance: random.Random) -> Changed:
    choices = listed_choices(config)
    is_labels = choices is not None and all(re.fullmatch("[A-Z]", each) for each in choices)
    return {"doc_to_choice": [str(number + 1) for number in range(len(choices or ()))]} if is_labels else None


@operator("choices")
def choice_lost(config: Config, _chance: random.Random) -> Changed:
    choices = listed_choices(config)
    return {"doc_to_choice": choices[:-1]} if choices and len(choices) > 2 else None


@operator("choices")
def choices_reordered(config: Config, _chance: random.Random) -> Changed:
    choices = listed_choices(config)
    return {"doc_to_choice": [choices[1], choices[0], *choices[2:]]} if choices else None


@operator("choices")
def choice_with_a_space(config: Config, chance: random.Random) -> Changed:
    choices = listed_choices(config)
    if not choices:
        return None
    at = chance.randrange(len(choices))
    return {"doc_to_choice": [*choices[:at], f" {choices[at]}", *choices[at + 1 :]]}


@operator("choices")
def choice_twice(config: Config, _chance: random.Random) -> Changed:
    choices = listed_choices(config)
    return {"doc_to_choice": [choices[0], choices[0], *choices[2:]]} if choices else None


@operator("choices")
def choices_as_booleans(config: Config, _chance: random.Random) -> Changed:
    choices = listed_choices(config)
    words = {"yes": True, "no": False, "true": True, "false": False}
    is_boolean = choices is not None and all(each.casefold() in words for each in choices)
    return {"doc_to_choice": [words[each.casefold()] for each in choices or ()]} if is_boolean else None


@operator("choices")
def option_lost_from_the_prompt(config: Config, _chance: random.Random) -> Changed:
    new = re.sub(r"(?m)\n\(?D[.):] [^\n]*", "", text_of(config), count=1)
    return changed(config, "doc_to_text", new or None)


# -- gold --------------------------------------------------------------------------------------------------------------


@operator("gold")
def gold_off_by_one(config: Config, _chance: random.Random) -> Changed:
    target = config.get("doc_to_target")
    if config.get("output_type") != "multiple_choice" or not isinstance(target, str):
        return None
    if target.isidentifier():
        return {"doc_to_target": f"{{{{{target} + 1}}}}"}
    new = re.sub(r"\A\{\{(.*)\}\}\Z", r"{{(\1) + 1}}", target)
    return (
        changed(config, "doc_to_target", new)
        if "index" in target or re.fullmatch(r"\{\{\s*\w+\s*\}\}", target)
        else None
    )


@operator("gold")
def target_with_a_space(config: Config, _chance: random.Random) -> Changed:
    target = config.get("doc_to_target")
    if not isinstance(target, str) or not generates(config):
        return None
    return {"doc_to_target": f" {target}" if "{{" in target else f" {{{{{target}}}}}"}


@operator("gold")
def target_in_quotes(config: Config, _chance: random.Random) -> Changed:
    target = config.get("doc_to_target")
    return {"doc_to_target": f"{{{{'{target}'}}}}"} if isinstance(target, str) and target.isidentifier() else None


@operator("gold")
def target_of_the_question(config: Config, _chance: random.Random) -> Changed:
    names = _COLUMN.findall(text_of(config))
    return changed(config, "doc_to_target", f"{{{{{names[0]}}}}}") if names else None


@operator("gold")
def answer_in_the_prompt(config: Config, _chance: random.Random) -> Changed:
    target, text = config.get("doc_to_target"), text_of(config)
    if not text or not isinstance(target, str) or not generates(config):
        return None
    return {"doc_to_text": f"{text} {target if '{{' in target else '{{' + target + '}}'}"}


@operator("gold")
def target_with_its_sentence(config: Config, _chance: random.Random) -> Changed:
    target = config.get("doc_to_target")
    if not isinstance(target, str) or config.get("output_type") != "multiple_choice":
        return None
    return {"doc_to_target": f"The answer is {target if '{{' in target else '{{' + target + '}}'}."}


# -- cues --------------------------------------------------------------------------------------------------------------


@operator("cues")
def cue_changed(config: Config, chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", one_of(text_of(config), _CUE, r"Response:\2", chance))


@operator("cues")
def cue_lost(config: Config, _chance: random.Random) -> Changed:
    text = text_of(config)
    new = re.sub(r"\n[^\n{}]*:\s*\Z", "", text)
    return changed(config, "doc_to_text", new or None)


@operator("cues")
def colon_lost(config: Config, chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", one_of(text_of(config), _CUE, r"\1\2", chance))


@operator("cues")
def colon_in_full_width(config: Config, chance: random.Random) -> Changed:
    text = text_of(config)
    return changed(config, "doc_to_text", one_of(text, _CUE, "\\1\uff1a\\2", chance)) if text.isascii() else None


@operator("cues")
def cue_twice(config: Config, chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", one_of(text_of(config), _CUE, r"\1:\n\1:\2", chance))


@operator("cues")
def label_of_the_question_glued(config: Config, _chance: random.Random) -> Changed:
    new = re.sub(r"\A([A-Za-z]+:)\s+", r"\1", text_of(config))
    return changed(config, "doc_to_text", new or None)


# -- shots -------------------------------------------------------------------------------------------------------------


def in_shots(config: Config, **values: Any) -> Changed:
    """Return the change of keys that concern few-shot examples alone."""
    own = config.get("fewshot_config")
    return {"fewshot_config": {**(own if isinstance(own, Mapping) else {}), **values}}


def has_shots(config: Config) -> bool:
    """Return whether the task has examples to show, from a split."""
    own = config.get("fewshot_config") or {}
    return bool(config.get("fewshot_split") or config.get("training_split")) and "samples" not in own


@operator("shots")
def cue_changed_in_shots(config: Config, chance: random.Random) -> Changed:
    new = one_of(text_of(config), _CUE, r"Response:\2", chance)
    return in_shots(config, doc_to_text=new) if new and has_shots(config) else None


@operator("shots")
def space_in_shots_alone(config: Config, _chance: random.Random) -> Changed:
    text = text_of(config)
    return in_shots(config, doc_to_text=f"{text} ") if text and has_shots(config) and not text[-1].isspace() else None


@operator("shots")
def target_of_shots_is_the_question(config: Config, _chance: random.Random) -> Changed:
    names = _COLUMN.findall(text_of(config))
    return in_shots(config, doc_to_target=f"{{{{{names[0]}}}}}") if names and has_shots(config) else None


@operator("shots")
def delimiter_of_shots_lost(config: Config, _chance: random.Random) -> Changed:
    return changed(config, "fewshot_delimiter", "") if text_of(config) and has_shots(config) else None


@operator("shots")
def delimiter_of_shots_a_space(config: Config, _chance: random.Random) -> Changed:
    return changed(config, "fewshot_delimiter", " ") if text_of(config) and has_shots(config) else None


@operator("shots")
def shots_from_the_test_split(config: Config, _chance: random.Random) -> Changed:
    split = config.get("test_split")
    if not isinstance(split, str) or not has_shots(config):
        return None
    return {"fewshot_split": split, "num_fewshot": config.get("num_fewshot") or 3}


@operator("shots")
def sampler_misspelt(config: Config, _chance: random.Random) -> Changed:
    return in_shots(config, sampler="first_m") if has_shots(config) else None


# -- stops and generation ----------------------------------------------------------------------------------------------


@operator("stops")
def stop_lost(config: Config, _chance: random.Random) -> Changed:
    until = stops(config)
    return with_stops(config, until[1:]) if until else None


@operator("stops")
def space_as_a_stop(config: Config, _chance: random.Random) -> Changed:
    until = stops(config)
    return with_stops(config, [*until, " "]) if until is not None else None


@operator("stops")
def full_stop_as_a_stop(config: Config, _chance: random.Random) -> Changed:
    until = stops(config)
    return with_stops(config, [*until, "."]) if until is not None and "." not in until else None


@operator("stops")
def stop_with_a_literal_escape(config: Config, _chance: random.Random) -> Changed:
    until = stops(config)
    return with_stops(config, [each.replace("\n", "\\n") for each in until]) if until else None


@operator("stops")
def stop_of_another_layout(config: Config, _chance: random.Random) -> Changed:
    until = stops(config)
    other = {"Question:": "Q:", "Q:": "Question:", "\n\n": "\n"}
    new = [other.get(each, each) for each in until or ()]
    return with_stops(config, new) if until and new != until else None


@operator("stops")
def until_misspelt(config: Config, _chance: random.Random) -> Changed:
    kwargs = config.get("generation_kwargs")
    if not isinstance(kwargs, Mapping) or "until" not in kwargs:
        return None
    return {"generation_kwargs": {("untill" if key == "until" else key): value for key, value in kwargs.items()}}


@operator("stops")
def budget_of_two_tokens(config: Config, _chance: random.Random) -> Changed:
    kwargs = config.get("generation_kwargs")
    return {"generation_kwargs": {**kwargs, "max_gen_toks": 2}} if isinstance(kwargs, Mapping) else None


# -- regular expressions and filters -----------------------------------------------------------------------------------


@operator("regexes")
def group_not_captured(config: Config, _chance: random.Random) -> Changed:
    return in_regex(config, lambda pattern: re.sub(r"\((?!\?)", "(?:", pattern, count=1))


@operator("regexes")
def escape_doubled(config: Config, _chance: random.Random) -> Changed:
    return in_regex(config, lambda pattern: re.sub(r"\\([dwsb.])", r"\\\\\1", pattern))


@operator("regexes")
def escape_lost(config: Config, _chance: random.Random) -> Changed:
    return in_regex(config, lambda pattern: re.sub(r"\\([dws])", r"\1", pattern))


@operator("regexes")
def phrase_of_the_pattern_changed(config: Config, _chance: random.Random) -> Changed:
    return in_regex(config, lambda pattern: re.sub(r"answer is", "answer was", pattern, flags=re.I))


@operator("regexes")
def repetition_lost(config: Config, _chance: random.Random) -> Changed:
    return in_regex(config, lambda pattern: re.sub(r"(?<=[\])dw])[+*]", "", pattern, count=1))


@operator("regexes")
def letters_of_the_pattern_shortened(config: Config, _chance: random.Random) -> Changed:
    return in_regex(config, lambda pattern: re.sub(r"\[?A-([D-J])\]?", "[A-C]", pattern, count=1))


@operator("regexes")
def anchor_added(config: Config, _chance: random.Random) -> Changed:
    return in_regex(config, lambda pattern: None if pattern.startswith("^") else f"^{pattern}")


@operator("regexes")
def first_in_place_of_last(config: Config, _chance: random.Random) -> Changed:
    def run(steps: list[Any]) -> bool:
        for step in steps:
            if isinstance(step, dict) and "regex_pattern" in step:
                step["group_select"] = 0 if step.get("group_select", 0) == -1 else -1
                return True
        return False

    return in_filters(config, run)


@operator("filters")
def filters_swapped(config: Config, _chance: random.Random) -> Changed:
    def run(steps: list[Any]) -> bool:
        steps.reverse()
        return len(steps) > 1

    return in_filters(config, run)


@operator("filters")
def filter_misspelt(config: Config, chance: random.Random) -> Changed:
    def run(steps: list[Any]) -> bool:
        named = [step for step in steps if isinstance(step, dict) and isinstance(step.get("function"), str)]
        for step in named[:1]:
            step["function"] = misspelt(step["function"], chance)
        return bool(named)

    return in_filters(config, run)


@operator("filters")
def argument_of_a_filter_misspelt(config: Config, _chance: random.Random) -> Changed:
    def run(steps: list[Any]) -> bool:
        for step in steps:
            if isinstance(step, dict) and "regex_pattern" in step:
                step["pattern"] = step.pop("regex_pattern")
                return True
        return False

    return in_filters(config, run)


@operator("filters")
def last_filter_lost(config: Config, _chance: random.Random) -> Changed:
    def run(steps: list[Any]) -> bool:
        return len(steps) > 1 and bool(steps.pop())

    return in_filters(config, run)


@operator("filters")
def extraction_lost(config: Config, _chance: random.Random) -> Changed:
    if not generates(config) or not config.get("filter_list"):
        return None
    return {"filter_list": [{"name": "none", "filter": [{"function": "take_first"}]}]}


# -- metrics and configuration -----------------------------------------------------------------------------------------


def in_metrics(config: Config, change: Callable[[dict[str, Any]], bool]) -> Changed:
    """Return the metrics with the first one changed in place."""
    metrics = deepcopy(config.get("metric_list"))
    if not isinstance(metrics, list) or not metrics or not isinstance(metrics[0], dict):
        return None
    return {"metric_list": metrics} if change(metrics[0]) else None


@operator("metrics")
def metric_misspelt(config: Config, chance: random.Random) -> Changed:
    def run(entry: dict[str, Any]) -> bool:
        name = entry.get("metric")
        if not isinstance(name, str) or len(name) < 5:
            return False
        entry["metric"] = misspelt(name, chance)
        return True

    return in_metrics(config, run)


@operator("metrics")
def aggregation_misspelt(config: Config, _chance: random.Random) -> Changed:
    return in_metrics(config, lambda entry: bool(entry.update(aggregation="meen") or True))


@operator("metrics")
def higher_is_worse(config: Config, _chance: random.Random) -> Changed:
    return in_metrics(
        config, lambda entry: bool(entry.update(higher_is_better=not entry.get("higher_is_better", True)) or True)
    )


@operator("metrics")
def accuracy_of_generated_text(config: Config, _chance: random.Random) -> Changed:
    is_exact = generates(config) and not config.get("process_results")
    return {"metric_list": [{"metric": "acc"}]} if is_exact else None


@operator("configuration")
def other_output_type(config: Config, _chance: random.Random) -> Changed:
    is_choice = config.get("output_type") == "multiple_choice"
    return {"output_type": "generate_until" if is_choice else "multiple_choice"} if text_of(config) else None


@operator("configuration")
def key_misspelt(config: Config, chance: random.Random) -> Changed:
    keys = [key for key in ("doc_to_target", "fewshot_split", "metric_list", "generation_kwargs") if key in config]
    if not keys:
        return None
    key = chance.choice(keys)
    return {misspelt(key, chance): config[key]}


@operator("configuration")
def option_of_the_shots_misspelt(config: Config, _chance: random.Random) -> Changed:
    return in_shots(config, doc_to_txt="{{question}}") if has_shots(config) else None


@operator("configuration")
def escape_in_single_quotes(config: Config, _chance: random.Random) -> Changed:
    text = text_of(config)
    return {"doc_to_text": text.replace("\n", "\\n")} if "\n" in text else None


@operator("configuration")
def description_with_a_literal_escape(config: Config, _chance: random.Random) -> Changed:
    text = config.get("description")
    return {"description": text.replace("\n", "\\n")} if isinstance(text, str) and "\n" in text else None


@operator("configuration")
def include_misspelt(_config: Config, _chance: random.Random) -> Changed:
    return {"include": "_no_such_file_yaml"}


@operator("groups")
def group_member_misspelt(config: Config, chance: random.Random) -> Changed:
    return f"group: {config['task']}_group\ntask:\n- {misspelt(str(config['task']), chance)}\n"


# -- harmless edits: a rule that reports one of these is wrong ---------------------------------------------------------


@operator("harmless", harmless=True)
def nothing_but_a_copy(config: Config, _chance: random.Random) -> Changed:
    return {"doc_to_text": config.get("doc_to_text")} if text_of(config) else {}


@operator("harmless", harmless=True)
def spaces_inside_of_braces(config: Config, _chance: random.Random) -> Changed:
    return changed(config, "doc_to_text", re.sub(r"\{\{(\w+)\}\}", r"{{ \1 }}", text_of(config)) or None)


@operator("harmless", harmless=True)
def a_note_in_the_metadata(config: Config, _chance: random.Random) -> Changed:
    own = config.get("metadata")
    return {"metadata": {**(own if isinstance(own, Mapping) else {}), "note": "see the paper"}}
