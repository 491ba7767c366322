"""HELM's `AdapterSpec` at 0.5.16: its fields, defaults and methods, and the reader that checks what a file says.

Keys that are written in another way (seed formats of data providers, misspellings) are understood where it is clear
what is meant, and each such liberty is kept as a `Deviation`, which the checks tell.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, Literal

from pytest_promptfmt.core.errors import Position, SourceError, did_you_mean

METHODS: Final = (
    "generation",
    "chat",
    "language_modeling",
    "multiple_choice_joint",
    "multiple_choice_joint_chain_of_thought",
    "multiple_choice_separate_original",
    "multiple_choice_separate_calibrated",
    "ranking_binary",
)
JOINT_METHODS: Final = ("multiple_choice_joint", "multiple_choice_joint_chain_of_thought")
SEPARATE_METHODS: Final = ("multiple_choice_separate_original", "multiple_choice_separate_calibrated")
OTHER_METHODS: Final = ("ehr_instruction", "generation_multimodal", "multiple_choice_joint_multimodal")
"""Methods of HELM that need data beyond text, or a scenario's own code."""

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "instance_prefixw": "instance_prefix",
        "ouput_prefix": "output_prefix",
        "ouput_suffix": "output_suffix",
        "instruction": "instructions",
        "stop_sequence": "stop_sequences",
        "stop": "stop_sequences",
        "max_train_instance": "max_train_instances",
        "max_eval_instance": "max_eval_instances",
        "adapter_method": "method",
    }
)
"""Names that are written for a field, and the field that is meant."""

OUTPUT_FORMAT_NAMES: Final = ("output_format", "ouput_format")
OUTPUT_FORMATS: Final = ("list", "string")
"""How completions count, in files of data providers; HELM has no such key."""

Kind = Literal[
    "alias", "unknown", "lifted", "inferred", "ignored", "not-strict", "duplicate", "split", "few-rows", "nested-result"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Deviation:
    """One liberty that a file takes: what it says, what was made of it, and where."""

    kind: Kind
    message: str
    do: str
    keys: tuple[str | int, ...] = ()
    saw: str = ""


@dataclass(frozen=True, slots=True)
class Substitution:
    """A regular expression and what `re.sub` puts in its place, over the whole prompt."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterSpec:
    """The fields of HELM 0.5.16 that make prompts and requests, with its defaults.

    `method` has none there: an empty one is refused. `output_format` is not HELM's (`OUTPUT_FORMATS`).
    """

    method: str = ""
    global_prefix: str = ""
    global_suffix: str = ""
    instructions: str = ""
    input_prefix: str = "Input: "
    input_suffix: str = "\n"
    reference_prefix: str = "A. "
    reference_prefix_characters: tuple[str, ...] | None = None
    reference_suffix: str = "\n"
    chain_of_thought_prefix: str = ""
    chain_of_thought_suffix: str = "\n"
    output_prefix: str = "Output: "
    output_suffix: str = "\n"
    instance_prefix: str = "\n"
    substitutions: tuple[Substitution, ...] = ()
    max_train_instances: int = 5
    max_eval_instances: int | None = None
    num_outputs: int = 5
    num_train_trials: int = 1
    num_trials: int = 1
    sample_train: bool = True
    model_deployment: str = ""
    model: str = ""
    temperature: float = 1
    max_tokens: int = 100
    stop_sequences: tuple[str, ...] = ()
    random: str | None = None
    multi_label: bool = False
    eval_splits: tuple[str, ...] | None = None
    output_mapping_pattern: str | None = None
    output_format: str = "list"

    @property
    def is_joint(self) -> bool:
        """Return whether all references stand in one prompt."""
        return self.method in JOINT_METHODS

    @property
    def is_separate(self) -> bool:
        """Return whether each reference is scored by itself."""
        return self.method in SEPARATE_METHODS

    def label(self, index: int) -> str:
        """Return the label of a reference: `A`, `B` … by code point, or one of the characters of the spec.

        Raises ValueError where HELM fails: no letter or digit in the prefix, fewer characters than references.
        """
        return self._with_label(self.label_character, index)

    def reference_text(self, index: int) -> str:
        """Return the prefix of a reference; raises as `label`.

        HELM puts the label in place of its character everywhere in the prefix: `Answer A: ` becomes `Bnswer B: `.
        """
        return self._with_label(self.reference_prefix, index)

    @property
    def label_character(self) -> str:
        """Return the first letter or digit of the reference prefix; raises ValueError without one."""
        for character in self.reference_prefix:
            if character.isalnum():
                return character
        raise ValueError(f"reference_prefix {self.reference_prefix!r} has no letter or digit to make labels of")

    def _with_label(self, prefix: str, index: int) -> str:
        first = self.label_character
        given = self.reference_prefix_characters
        if given and index >= len(given):
            raise ValueError(
                f"reference_prefix_characters has {len(given)} characters, and there are {index + 1} references"
            )
        if not given and ord(first) + index > 0x10FFFF:
            raise ValueError("there is no character for so many references")
        return prefix.replace(first, given[index] if given else chr(ord(first) + index))


_FIELDS: Final = tuple(field.name for field in dataclasses.fields(AdapterSpec) if field.name != "output_format")
_OTHER_FIELDS: Final = ("image_generation_parameters", "reeval_parameters")
_DECODING: Final = (
    "temperature",
    "max_tokens",
    "stop_sequences",
    "num_outputs",
    "random",
)
_DECODING_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"stop": "stop_sequences", "max_new_tokens": "max_tokens", "n": "num_outputs", "seed": "random"}
)

_TEXTS: Final = "a list of texts"
_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "text": lambda value: isinstance(value, str),
    "a whole number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "a number": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value),
    "true or false": lambda value: isinstance(value, bool),
    _TEXTS: lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
    "a list of {source, target}": lambda value: isinstance(value, list) and all(_is_substitution(v) for v in value),
    "null": lambda value: value is None,
}
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(_FIELDS, ("text",)),
    **dict.fromkeys(("max_train_instances", "num_outputs", "num_train_trials", "num_trials"), ("a whole number",)),
    "max_tokens": ("a whole number",),
    "max_eval_instances": ("a whole number", "null"),
    "temperature": ("a number",),
    **dict.fromkeys(("sample_train", "multi_label"), ("true or false",)),
    "stop_sequences": (_TEXTS,),
    **dict.fromkeys(("reference_prefix_characters", "eval_splits"), (_TEXTS, "null")),
    **dict.fromkeys(("random", "output_mapping_pattern"), ("text", "null")),
    "substitutions": ("a list of {source, target}",),
}
_LARGEST: Final = 1_000_000

Where = Callable[..., Position | None]


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """A spec and the liberties its file takes; `method_is_inferred` when the file names none."""

    spec: AdapterSpec
    deviations: tuple[Deviation, ...]
    method_is_inferred: bool = False


def read_spec(written: Any, where: Where, infer_method: Callable[[], str]) -> ReadSpec:
    """Return the spec that a file's `adapter_spec` means; `where` gives the place of a key path within the file.

    `infer_method` is asked where it names no method. Raises SourceError for values HELM cannot work with, and for
    methods that need more than text.
    """
    if not isinstance(written, Mapping):
        raise SourceError(
            f"adapter_spec must be a mapping, not {_what(written)}", position=where("adapter_spec"), hint=None
        )
    found: list[Deviation] = []
    values: dict[str, Any] = {}
    for key, value in written.items():
        _take(str(key), value, values, found, where)
    decoding = written.get("decoding_parameters")
    if decoding is not None:
        _lift(decoding, values, found, where)
    fields = {name: _frozen(name, value) for name, value in values.items()}
    inferred = not fields.get("method")
    if inferred:
        fields["method"] = infer_method()
        found.append(
            Deviation(
                kind="inferred",
                message="the adapter has no method, and HELM refuses an empty one",
                saw=f"read as {fields['method']}",
                do=f'write "method": "{fields["method"]}"',
                keys=("adapter_spec",),
            )
        )
    _check_method(fields["method"], where)
    _check_patterns(fields, where)
    return ReadSpec(AdapterSpec(**fields), tuple(found), inferred)


def _take(key: str, value: Any, values: dict[str, Any], found: list[Deviation], where: Where) -> None:
    keys = ("adapter_spec", key)
    if key in _FIELDS:
        values[key] = _checked(key, value, where(*keys))
    elif key in OUTPUT_FORMAT_NAMES:
        if value not in OUTPUT_FORMATS:
            raise SourceError(f'{key} is {_what(value)}; there are "list" and "string"', position=where(*keys))
        values["output_format"] = value
        found.append(_own_key(key, keys))
    elif key not in ("decoding_parameters", *_OTHER_FIELDS):
        meant = ALIASES.get(key) or _near(key)
        if meant is not None and meant not in values:
            values.setdefault(meant, _checked(key, value, where(*keys), meant))
            found.append(
                Deviation(
                    kind="alias",
                    message=f"adapter_spec has the key {key!r}, which HELM refuses",
                    saw=f"read as {meant}",
                    do=f"did you mean {meant!r}?",
                    keys=keys,
                )
            )
            return
        hint = did_you_mean(key, _FIELDS)
        found.append(
            Deviation(
                kind="unknown",
                message=f"adapter_spec has the key {key!r}, which HELM refuses",
                do=hint or f"remove it; the keys are {', '.join(_FIELDS)}",
                keys=keys,
            )
        )


def _own_key(key: str, keys: tuple[str, ...]) -> Deviation:
    misspelt = key != "output_format"
    return Deviation(
        kind="alias" if misspelt else "unknown",
        message=f"adapter_spec has the key {key!r}, which HELM refuses",
        saw="read as output_format" if misspelt else "",
        do="did you mean 'output_format'? HELM has neither" if misspelt else "leave it out of files for HELM",
        keys=keys,
    )


def _near(key: str) -> str | None:
    """Return the field that a key misspells: one or two letters wrong, and only one field that near."""
    from difflib import SequenceMatcher  # only for keys that are not known

    lower = key.casefold()
    near = [
        name
        for name in _FIELDS
        if abs(len(name) - len(lower)) <= 2 and SequenceMatcher(None, lower, name).ratio() > 0.9
    ]
    return near[0] if len(near) == 1 else None


def _lift(decoding: Any, values: dict[str, Any], found: list[Deviation], where: Where) -> None:
    keys = ("adapter_spec", "decoding_parameters")
    if not isinstance(decoding, Mapping):
        raise SourceError(f"decoding_parameters must be a mapping, not {_what(decoding)}", position=where(*keys))
    for key, value in decoding.items():
        name = _DECODING_ALIASES.get(key, key)
        place = where(*keys, key)
        if name not in _DECODING:
            found.append(
                Deviation(
                    kind="unknown",
                    message=f"decoding_parameters has the key {key!r}, and an adapter has no such parameter",
                    do=did_you_mean(str(key), _DECODING) or f"an adapter has {', '.join(_DECODING)}",
                    keys=(*keys, str(key)),
                )
            )
            continue
        value = _checked(str(key), value, place, name)
        if name in values and values[name] != value:
            raise SourceError(
                f"{name} is {_what(values[name])} in adapter_spec and {_what(value)} in decoding_parameters",
                position=place,
                hint="write it once, in adapter_spec",
            )
        values[name] = value
        found.append(
            Deviation(
                kind="lifted",
                message="adapter_spec has decoding_parameters, which HELM refuses",
                saw=f"{key} read as adapter_spec.{name}",
                do="write decoding parameters into adapter_spec itself",
                keys=(*keys, str(key)),
            )
        )


def _checked(key: str, value: Any, position: Position | None, name: str | None = None) -> Any:
    kinds = _TYPES[name or key]
    if not any(_KINDS[kind](value) for kind in kinds):
        if value is None and name != "method" and "text" in kinds:
            hint: str | None = "leave the key out for HELM's default"
        else:
            hint = "put the text in quotes" if kinds == ("text",) and isinstance(value, int | float) else None
        raise SourceError(
            f"adapter_spec.{key} must be {' or '.join(kinds)}, not {_what(value)}", position=position, hint=hint
        )
    if kinds[0] == "a whole number" and value is not None and not 0 <= value <= _LARGEST:
        raise SourceError(f"adapter_spec.{key} is {value}", position=position, hint=f"a number from 0 to {_LARGEST:,}")
    return value


def _frozen(name: str, value: Any) -> Any:
    if name == "substitutions":
        return tuple(Substitution(each["source"], each["target"]) for each in value)
    return tuple(value) if isinstance(value, list) else value


def _is_substitution(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("source", "target"))


def _check_method(method: str, where: Where) -> None:
    if method in METHODS:
        return
    position = where("adapter_spec", "method")
    if method in OTHER_METHODS:
        raise SourceError(
            f"the method {method!r} needs more than text, and is not supported",
            position=position,
            hint=f"supported are {', '.join(METHODS)}",
        )
    raise SourceError(
        f"there is no adaptation method {method!r}; there are {', '.join(METHODS)}",
        position=position,
        hint=did_you_mean(method, METHODS),
    )


def _check_patterns(fields: Mapping[str, Any], where: Where) -> None:
    patterns: list[tuple[tuple[str | int, ...], Any, str | None]] = [
        (("output_mapping_pattern",), fields.get("output_mapping_pattern"), None)
    ]
    for number, each in enumerate(fields.get("substitutions", ())):
        patterns.append((("substitutions", number), each.source, each.target))
    for keys, pattern, target in patterns:
        if pattern is None:
            continue
        try:
            compiled = re.compile(pattern)
            if target is not None:
                compiled.sub(target, "")  # also reads the target, which may name groups that are not there
        except (re.error, IndexError, OverflowError, RecursionError) as error:
            raise SourceError(
                f"{keys[0]} has no regular expression that Python reads: {error}",
                position=where("adapter_spec", *keys),
                hint=f"the pattern is {pattern!r}",
            ) from error


def _what(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
