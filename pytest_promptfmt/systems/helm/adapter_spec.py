"""HELM's `AdapterSpec` at 0.5.16: its fields, defaults and methods, and the reader that checks a file against them.

Keys that are written in another way (formats of data providers, misspellings) are understood where it is clear what is
meant, and each such deviation from the schema is a finding of PF151.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, SourceError, did_you_mean, named_value
from pytest_promptfmt.core.finding import Finding

JOINT_METHODS: Final = ("multiple_choice_joint", "multiple_choice_joint_chain_of_thought")
SEPARATE_METHODS: Final = ("multiple_choice_separate_original", "multiple_choice_separate_calibrated")
METHODS: Final = ("generation", "chat", "language_modeling", *JOINT_METHODS, *SEPARATE_METHODS, "ranking_binary")
OTHER_METHODS: Final = ("ehr_instruction", "generation_multimodal", "multiple_choice_joint_multimodal")
"""Methods of HELM that need data beyond text, or a scenario's own code."""

ALIASES: Final[Mapping[str, str]] = {
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
"""Names that are written for a field, and the field that is meant."""

OUTPUT_FORMAT_NAMES: Final = ("output_format", "ouput_format")
OUTPUT_FORMATS: Final = ("list", "string")
"""How completions count, in files of data providers; HELM has no such key."""

Where = Callable[..., Position | None]
"""From the keys of a path to its place in the file."""


Substitution = tuple[str, str]
"""A regular expression and what `re.sub` puts in its place, over the whole prompt."""


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
        """Return whether all references are listed in one prompt."""
        return self.method in JOINT_METHODS

    @property
    def is_separate(self) -> bool:
        """Return whether each reference is scored by itself."""
        return self.method in SEPARATE_METHODS

    @property
    def asks_references(self) -> bool:
        """Return whether each reference has a request."""
        return self.is_separate or self.method == "ranking_binary"

    def evaluates(self, split: str | None) -> bool:
        """Return whether instances of a split are evaluated: valid and test, of those what the spec names."""
        return split in ("valid", "test") and (self.eval_splits is None or split in self.eval_splits)

    def label(self, index: int) -> str:
        """Return the label of a reference: `A`, `B` … by code point, or one of the characters of the spec.

        Raises ValueError where HELM fails: no letter or digit in the prefix, fewer characters than references.
        """
        return self._with_label(self.label_character, index)

    def reference_text(self, index: int) -> str:
        """Return the prefix of a reference; raises as `label`.

        HELM replaces the label's character everywhere in the prefix: `Answer A: ` becomes `Bnswer B: `.
        """
        return self._with_label(self.reference_prefix, index)

    @property
    def label_character(self) -> str:
        """Return the first letter or digit of the reference prefix; raises ValueError without one."""
        for character in self.reference_prefix:
            if character.isalnum():
                return character
        raise ValueError(
            f"reference_prefix {self.reference_prefix!r} needs a letter or digit, so that labels can be made from it"
        )

    def _with_label(self, prefix: str, index: int) -> str:
        first = self.label_character
        given = self.reference_prefix_characters
        if given and index >= len(given):
            raise ValueError(
                f"reference_prefix_characters has {len(given)} characters, but there are {index + 1} references"
            )
        if not given and ord(first) + index > 0x10FFFF:
            raise ValueError("there are more references than characters for their labels")
        return prefix.replace(first, given[index] if given else chr(ord(first) + index))


_TYPES: Final = {field.name: str(field.type) for field in dataclasses.fields(AdapterSpec)}
_FIELDS: Final = tuple(name for name in _TYPES if name != "output_format")
_OTHER_FIELDS: Final = ("image_generation_parameters", "reeval_parameters", "decoding_parameters")
_DECODING: Final = ("temperature", "max_tokens", "stop_sequences", "num_outputs", "random")
_DECODING_ALIASES: Final[Mapping[str, str]] = {
    "stop": "stop_sequences",
    "max_new_tokens": "max_tokens",
    "n": "num_outputs",
    "seed": "random",
}
_KINDS: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "str": ("text", lambda value: isinstance(value, str)),
    "int": ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "float": (
        "a number",
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308,
    ),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "tuple[str, ...]": (
        "a list of texts",
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
    ),
    "tuple[Substitution, ...]": (
        "a list of {source, target}",
        lambda value: (
            isinstance(value, list)
            and all(
                isinstance(each, Mapping) and all(isinstance(each.get(key), str) for key in ("source", "target"))
                for each in value
            )
        ),
    ),
    "None": ("null", lambda value: value is None),
}
"""The values that a file may hold for a field of each type."""
_LARGEST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """A spec, and what its file writes in another way; `method_is_inferred` when the file names no method."""

    spec: AdapterSpec
    deviations: tuple[Finding, ...]
    method_is_inferred: bool = False


def read_spec(written: Any, where: Where, infer_method: Callable[[], str]) -> ReadSpec:
    """Return the spec that a file's `adapter_spec` means; `where` gives the place of a key path within the file.

    `infer_method` is asked where it names no method. Raises SourceError for values HELM cannot work with, and for
    methods that need more than text.
    """
    reader = _Reader(where)
    deviations = tuple(reader.read(written))
    fields = reader.values | {name: tuple(value) for name, value in reader.values.items() if isinstance(value, list)}
    if "substitutions" in fields:
        fields["substitutions"] = tuple((each["source"], each["target"]) for each in fields["substitutions"])
    inferred = not fields.get("method")
    if inferred:
        fields["method"] = infer_method()
    _check_method(fields["method"], where)
    _check_patterns(fields, where)
    return ReadSpec(AdapterSpec(**fields), deviations, inferred)


class _Reader:
    """Collects the values of fields; yields what deviates from HELM's schema."""

    def __init__(self, where: Where) -> None:
        self.values: dict[str, Any] = {}
        self._where = where

    def read(self, written: Any) -> Iterator[Finding]:
        if not isinstance(written, Mapping):
            raise self._error(f"adapter_spec must be a mapping, not {named_value(written)}")
        for key, value in written.items():
            yield from self._field(str(key), value)
        decoding = written.get("decoding_parameters")
        if decoding is not None and not isinstance(decoding, Mapping):
            raise self._error(
                f"decoding_parameters must be a mapping, not {named_value(decoding)}", "decoding_parameters"
            )
        for key, value in (decoding or {}).items():
            yield self._decoding(str(key), value)

    def _error(self, message: str, *keys: str, hint: str | None = None) -> SourceError:
        return SourceError(message, position=self._where("adapter_spec", *keys), hint=hint)

    def _field(self, key: str, value: Any) -> Iterator[Finding]:
        if key in _FIELDS:
            self.values[key] = self._checked(key, value, key)
            return
        if key in _OTHER_FIELDS:
            return
        saw = ""
        if key in OUTPUT_FORMAT_NAMES:
            if value not in OUTPUT_FORMATS:
                raise self._error(f'{key} is {named_value(value)}, but must be "list" or "string"', key)
            self.values["output_format"] = value
            is_misspelled = key != "output_format"
            do = (
                "did you mean 'output_format'? HELM itself has no such key"
                if is_misspelled
                else "remove the key from files for HELM"
            )
            saw = "this plugin treats it as output_format" if is_misspelled else ""
        elif (meant := ALIASES.get(key) or _near(key)) is not None and meant not in self.values:
            self.values[meant] = self._checked(key, value, meant)
            saw, do = f"this plugin treats it as {meant}", f"did you mean {meant!r}?"
        else:
            do = did_you_mean(key, _FIELDS) or f"remove the key; known keys are {', '.join(_FIELDS)}"
        message = f"unknown key {key!r} in adapter_spec"
        yield Finding(message=message, saw=saw, do=do, keys=("adapter_spec", key))

    def _decoding(self, key: str, value: Any) -> Finding:
        name = _DECODING_ALIASES.get(key, key)
        keys = ("decoding_parameters", key)
        if name not in _DECODING:
            return Finding(
                message=f"unknown decoding parameter {key!r}",
                do=did_you_mean(key, _DECODING) or f"use one of {', '.join(_DECODING)}",
                keys=("adapter_spec", *keys),
            )
        value = self._checked(key, value, name, *keys)
        if name in self.values and self.values[name] != value:
            own, other = named_value(self.values[name]), named_value(value)
            raise self._error(
                f"{name} is {own} in adapter_spec, but {other} in decoding_parameters",
                *keys,
                hint="set the value once, in adapter_spec",
            )
        self.values[name] = value
        return Finding(
            message="HELM does not accept decoding_parameters in adapter_spec",
            saw=f"this plugin treats {key} as adapter_spec.{name}",
            do="move the parameters to adapter_spec itself",
            keys=("adapter_spec", *keys),
        )

    def _checked(self, key: str, value: Any, name: str, *keys: str) -> Any:
        """Return a value that fits the field `name`; raises SourceError at `keys`, else at the key."""
        kinds, place = _TYPES[name].split(" | "), keys or (key,)
        if not any(_KINDS[kind][1](value) for kind in kinds):
            hint = "put the text in quotes" if kinds == ["str"] and isinstance(value, int | float) else None
            if value is None and name != "method" and "str" in kinds:
                hint = "for HELM's default, remove the key"
            expected = " or ".join(_KINDS[kind][0] for kind in kinds)
            raise self._error(f"adapter_spec.{key} must be {expected}, not {named_value(value)}", *place, hint=hint)
        if kinds[0] == "int" and value is not None and not 0 <= value <= _LARGEST:
            raise self._error(f"adapter_spec.{key} is {value}", *place, hint=f"write a number from 0 to {_LARGEST:,}")
        return value


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


def _check_method(method: str, where: Where) -> None:
    if method in METHODS:
        return
    position, supported = where("adapter_spec", "method"), f"supported are {', '.join(METHODS)}"
    if method in OTHER_METHODS:
        message = f"the method {method!r} is not supported, because it needs more than text"
        raise SourceError(message, position=position, hint=supported)
    message = f"unknown adaptation method {method!r}; {supported}"
    raise SourceError(message, position=position, hint=did_you_mean(method, METHODS))


def _check_patterns(fields: Mapping[str, Any], where: Where) -> None:
    patterns: dict[tuple[str | int, ...], Substitution] = {
        ("substitutions", number): each for number, each in enumerate(fields.get("substitutions", ()))
    }
    if fields.get("output_mapping_pattern") is not None:
        patterns = {("output_mapping_pattern",): (fields["output_mapping_pattern"], ""), **patterns}
    for keys, (pattern, target) in patterns.items():
        try:
            re.compile(pattern).sub(target, "")  # also reads the target, which may name missing groups
        except (re.error, IndexError, OverflowError, RecursionError) as error:
            raise SourceError(
                f"{keys[0]}: invalid regular expression: {error}",
                position=where("adapter_spec", *keys),
                hint=f"the pattern is {pattern!r}",
            ) from error
