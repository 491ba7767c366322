"""Variants of a format that change one thing; the axes and their values are in `data/variants.yaml`.

Names are canonical: `mcqa+enumerator-roman+choice_order-reversed`, axes in the order of `axes()`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import FormatError, did_you_mean
from pytest_promptfmt.formats.format import PROMPT_FIELDS, Format


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that can differ between two ways to ask; `field` is the field of a format that its values are for."""

    name: str
    summary: str
    values: Mapping[str, Any]
    field: str | None = None

    def change(self, format_: Format, value: str) -> Mapping[str, Any]:
        """Return the fields that a value changes in a format."""
        written = self.values[value]
        if self.field is not None:
            return {self.field: written}
        if self.name == "descriptor_casing":
            return {
                name: f"{before}{getattr(words, written)()}{after}"
                for name, (before, words, after) in _descriptors(format_).items()
            }
        if self.name == "descriptor_separator":
            # The text after the last descriptor is the target, and the gap before it is the target delimiter's.
            return {
                name: before + words + (written.rstrip(" ") if name == "answer_prompt" else written)
                for name, (before, words, _) in _descriptors(format_).items()
            }
        return dict(written)


@dataclass(frozen=True, slots=True)
class Variant:
    """One value of one axis."""

    axis: str
    value: str

    @property
    def id(self) -> str:
        """Return `axis-value`."""
        return f"{self.axis}-{self.value}"


@cache
def axes() -> Mapping[str, Axis]:
    """Return the axes by name, in the order of canonical names."""
    return MappingProxyType({name: Axis(name, **written) for name, written in data_table("variants").items()})


_DESCRIPTOR = re.compile(r"(\s*)([^\W\d_]+(?: [^\W\d_]+){0,2})(\s*[:\-]+\s*|\s*)\Z")
"""One to three words and what separates them from what follows: `Question: `, `Answer:`."""


def _descriptors(format_: Format) -> dict[str, tuple[str, str, str]]:
    texts = {name: getattr(format_, name) or "" for name in ("question_prefix", "choices_prefix", "answer_prompt")}
    found = ((name, _DESCRIPTOR.match(text)) for name, text in texts.items())
    return {name: (match[1], match[2], match[3]) for name, match in found if match}


def vary(format_: Format, variants: Iterable[Variant]) -> Format:
    """Return the format with these values, named canonically.

    Of two values of one axis the later counts. Raises FormatError for an unknown axis or value, and for an axis that
    this format does not have.
    """
    chosen = {variant.axis: variant for variant in variants}
    unknown = next((name for name in chosen if name not in axes()), None)
    if unknown is not None:
        raise FormatError(f"unknown variant axis {unknown!r}", hint=did_you_mean(unknown, axes()) or ", ".join(axes()))
    ordered = [chosen[name] for name in axes() if name in chosen]
    varied = format_
    for variant in ordered:
        varied = _varied(varied, variant)
    return dataclasses.replace(varied, name="+".join([format_.name, *(variant.id for variant in ordered)]))


def _varied(format_: Format, variant: Variant) -> Format:
    axis = axes()[variant.axis]
    if variant.value not in axis.values:
        raise FormatError(
            f"axis {axis.name!r} has no value {variant.value!r}; its values are {', '.join(axis.values)}",
            hint=did_you_mean(variant.value, axis.values),
        )
    if not has_axis(format_, variant.axis):
        reason = f"the axis {axis.name!r} changes {axis.summary}"
        raise FormatError(f"{variant.id!r} has no effect in format {format_.name!r}", hint=reason)
    return format_.changed(axis.change(format_, variant.value))


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


def variants_of(format_: Format, names: Sequence[str] = ()) -> tuple[Format, ...]:
    """Return the format in every value of each axis, one axis at a time, without those that change nothing.

    `names` are names of axes (`enumerator`) or single values (`enumerator-roman`); none means all axes. An axis that
    the format does not have gives nothing. Raises FormatError for a name that is neither.
    """
    found = {}
    for variant in _wanted(names or tuple(axes())):
        if has_axis(format_, variant.axis):
            varied = vary(format_, [variant])
            if _prompt_fields(varied) != _prompt_fields(format_):
                found[varied.name] = varied
    return tuple(found.values())


def _wanted(names: Sequence[str]) -> Iterable[Variant]:
    for name in names:
        if name in axes():
            yield from (Variant(name, value) for value in axes()[name].values)
        else:
            yield parse_variant(name)


def parse_variant(name: str) -> Variant:
    """Return the variant that `axis-value` names. Raises FormatError with a did-you-mean."""
    axis, dash, value = name.partition("-")
    if axis not in axes() or not dash or value not in axes()[axis].values:
        known = [f"{axis.name}-{value}" for axis in axes().values() for value in axis.values]
        hint = did_you_mean(name, [*axes(), *known]) or f"the axes are {', '.join(axes())}"
        raise FormatError(f"there is no variant {name!r}", hint=hint)
    return Variant(axis, value)


def split_variants(name: str) -> tuple[str, tuple[Variant, ...]]:
    """Return the format's name and the variants that a canonical name holds. Raises FormatError."""
    base, *ids = name.split("+")
    return base, tuple(parse_variant(part) for part in ids)


def _prompt_fields(format_: Format) -> dict[str, Any]:
    return {name: getattr(format_, name) for name in PROMPT_FIELDS}
