"""Variants of a format that change one thing: which axes there are, and their values.

Names are canonical: `mcqa+enumerator-roman+choice_order-reversed`, axes in the order of `AXES`. Values are those of
PromptSuite, DOVE (arXiv:2503.01622) and FormatSpread (arXiv:2310.11324).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pytest_promptfmt.core.errors import FormatError, did_you_mean
from pytest_promptfmt.formats.format import ORDERS, PROMPT_FIELDS, Format

Change = Callable[[Format], Mapping[str, Any]]
"""From a format to the fields that a value of an axis changes in it."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that can differ between two ways to ask."""

    name: str
    summary: str
    values: Mapping[str, Change]


@dataclass(frozen=True, slots=True)
class Variant:
    """One value of one axis."""

    axis: str
    value: str

    @property
    def id(self) -> str:
        """Return `axis-value`."""
        return f"{self.axis}-{self.value}"


def _set(**fields: Any) -> Change:
    return lambda _format: fields


def _each(field: str, values: Mapping[str, str]) -> Mapping[str, Change]:
    return {name: _set(**{field: value}) for name, value in values.items()}


_DESCRIPTORS = ("question_prefix", "choices_prefix", "answer_prompt")
_DESCRIPTOR = re.compile(r"(\s*)([^\W\d_]+(?: [^\W\d_]+){0,2})(\s*[:\-]+\s*|\s*)\Z")
"""One to three words and what separates them from what follows: `Question: `, `Answer:`."""


def _with_separator(separator: str) -> Change:
    def change(format_: Format) -> Mapping[str, Any]:
        found = _descriptors(format_)
        # What follows the last descriptor is the target, and the gap before it is the target delimiter's.
        return {
            name: before + words + (separator.rstrip(" ") if name == "answer_prompt" else separator)
            for name, (before, words, _) in found.items()
        }

    return change


def _with_casing(case: Callable[[str], str]) -> Change:
    def change(format_: Format) -> Mapping[str, Any]:
        return {name: before + case(words) + after for name, (before, words, after) in _descriptors(format_).items()}

    return change


def _descriptors(format_: Format) -> dict[str, tuple[str, str, str]]:
    found = {}
    for name in _DESCRIPTORS:
        match = _DESCRIPTOR.match(getattr(format_, name) or "")
        if match:
            found[name] = (match[1], match[2], match[3])
    return found


_SPACES = {
    "space": " ",
    "newline": "\n",
    "comma": ", ",
    "semicolon": "; ",
    "pipe": " | ",
    "or": " or ",
    "capital_or": " OR ",
}
_SECTIONS = {
    "newline": "\n",
    "blank_line": "\n\n",
    "space": " ",
    "two_spaces": "  ",
    "tab": "\t",
    "double_pipe": " || ",
    "dashes": " -- ",
    "semicolon": "; ",
}
_SEPARATORS = {
    "colon": ": ",
    "spaced_colon": " : ",
    "double_colon": ":: ",
    "triple_colon": "::: ",
    "dash": " - ",
    "double_dash": " -- ",
    "space": " ",
    "tab": "\t",
    "newline": "\n",
}
_ENUMERATORS = {
    "capitals": "letters",
    **{name: name for name in ("lowercase", "numbers", "roman", "greek", "keyboard")},
}
_STYLES = {
    "dot": _set(label_prefix="", label_suffix=". "),
    "parenthesis": _set(label_prefix="", label_suffix=") "),
    "parentheses": _set(label_prefix="(", label_suffix=") "),
    "brackets": _set(label_prefix="[", label_suffix="] "),
    "angles": _set(label_prefix="<", label_suffix="> "),
    "colon": _set(label_prefix="", label_suffix=": "),
}
_CASINGS: Mapping[str, Callable[[str], str]] = {"upper": str.upper, "lower": str.lower, "title": str.title}
_GAPS = {"space": " ", "none": "", "newline": "\n"}

AXES: Mapping[str, Axis] = MappingProxyType(
    {
        axis.name: axis
        for axis in (
            Axis("enumerator", "how choices are labelled", _each("choice_labels", _ENUMERATORS)),
            Axis("label_style", "what is around a label", _STYLES),
            Axis("choice_separator", "what is between choices", _each("choice_delimiter", _SPACES)),
            Axis(
                "section_separator",
                "what is between question, choices and answer cue",
                _each("section_separator", _SECTIONS),
            ),
            Axis(
                "descriptor_separator",
                "what follows the words before question, choices and answer",
                {name: _with_separator(text) for name, text in _SEPARATORS.items()},
            ),
            Axis(
                "descriptor_casing",
                "upper and lower case of the words before question, choices and answer",
                {name: _with_casing(case) for name, case in _CASINGS.items()},
            ),
            Axis("answer_gap", "what is between answer cue and answer", _each("target_delimiter", _GAPS)),
            Axis(
                "choice_order",
                "the order of the choices; the gold answer follows",
                _each("choice_order", {name: name for name in ORDERS}),
            ),
        )
    }
)


def vary(format_: Format, variants: Iterable[Variant]) -> Format:
    """Return the format with these values, named canonically.

    Of two values of one axis the later counts. Raises FormatError for an unknown axis or value, and for an axis that
    this format does not have.
    """
    chosen = {variant.axis: variant for variant in variants}
    unknown = next((name for name in chosen if name not in AXES), None)
    if unknown is not None:
        raise FormatError(f"there is no axis {unknown!r}", hint=did_you_mean(unknown, AXES) or ", ".join(AXES))
    ordered = [chosen[name] for name in AXES if name in chosen]
    varied = format_
    for variant in ordered:
        varied = _varied(varied, variant)
    return dataclasses.replace(varied, name="+".join([format_.name, *(variant.id for variant in ordered)]))


def _varied(format_: Format, variant: Variant) -> Format:
    axis = AXES[variant.axis]
    if variant.value not in axis.values:
        raise FormatError(
            f"axis {axis.name!r} has no value {variant.value!r}; it has {', '.join(axis.values)}",
            hint=did_you_mean(variant.value, axis.values),
        )
    if not has_axis(format_, variant.axis):
        raise FormatError(
            f"format {format_.name!r} has nothing that {variant.id!r} could change: the axis is {axis.summary}"
        )
    return format_.changed(axis.values[variant.value](format_))


def has_axis(format_: Format, name: str) -> bool:
    """Return whether the format writes anything that the axis could change."""
    if name == "label_style":
        return format_.choice_labels is not None and format_.choice_format is None
    if name in ("enumerator", "choice_separator"):
        return format_.choice_labels is not None
    if name == "choice_order":
        return bool(format_.needs_choices)
    if name.startswith("descriptor"):
        return bool(_descriptors(format_))
    return True


def variants_of(format_: Format, axes: Sequence[str] = ()) -> tuple[Format, ...]:
    """Return the format in every value of each axis, one axis at a time, without those that change nothing.

    `axes` are names of axes (`enumerator`) or single values (`enumerator-roman`); none means all axes. An axis that
    the format does not have gives nothing. Raises FormatError for a name that is neither.
    """
    found = {}
    for variant in _wanted(axes or tuple(AXES)):
        if has_axis(format_, variant.axis):
            varied = vary(format_, [variant])
            if _prompt_fields(varied) != _prompt_fields(format_):
                found[varied.name] = varied
    return tuple(found.values())


def _wanted(names: Sequence[str]) -> Iterable[Variant]:
    for name in names:
        if name in AXES:
            yield from (Variant(name, value) for value in AXES[name].values)
        else:
            yield parse_variant(name)


def parse_variant(name: str) -> Variant:
    """Return the variant that `axis-value` names. Raises FormatError with a did-you-mean."""
    axis, dash, value = name.partition("-")
    if axis not in AXES or not dash or value not in AXES[axis].values:
        known = [f"{axis.name}-{value}" for axis in AXES.values() for value in axis.values]
        raise FormatError(
            f"there is no variant {name!r}",
            hint=did_you_mean(name, [*AXES, *known]) or f"the axes are {', '.join(AXES)}",
        )
    return Variant(axis, value)


def split_variants(name: str) -> tuple[str, tuple[Variant, ...]]:
    """Return the format's name and the variants that a canonical name holds. Raises FormatError."""
    base, *ids = name.split("+")
    return base, tuple(parse_variant(part) for part in ids)


def _prompt_fields(format_: Format) -> dict[str, Any]:
    return {name: getattr(format_, name) for name in PROMPT_FIELDS}
