"""The filters that lm-eval 0.4.13 registers, and pipelines of them, built from a task's `filter_list`.

A filter maps the responses of all docs (one list of repeats each) to what the next one sees; what the last one gives
is the extraction. Filters raise what lm-eval's raise, with plain Python exceptions, and those that give generators
there give them here: what fails first stays the same, also among users' classes.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from operator import itemgetter, methodcaller
from typing import Any, Final, Protocol

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import (
    Position,
    PromptfmtError,
    ScoringError,
    UnavailableScoringError,
    did_you_mean,
    is_misspelt,
)
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.tasks.harness import harness_around
from pytest_promptfmt.tasks.scoring.budget import plain_key

NUMBER_AFTER_HASHES: Final = r"#### (\-?[0-9\.\,]+)"
NOT_FOUND: Final = "[invalid]"


class Filter(Protocol):
    """A step of a pipeline once it is built."""

    def apply(self, resps: Any, docs: Sequence[Doc]) -> Iterable[Any]:
        """Return the filtered responses, in the order of the docs."""


@dataclass
class EachResponse:
    """Applies a function to each response, at once."""

    change: Callable[[Any], Any]

    def apply(self, resps: Any, docs: Sequence[Doc]) -> Iterable[Any]:
        """Return one list for each doc."""
        return [[self.change(response) for response in repeats] for repeats in resps]


class RegexFilter(EachResponse):
    """Gives the chosen match of a pattern in each response, stripped; the fallback without a match."""

    def __init__(
        self, regex_pattern: str = NUMBER_AFTER_HASHES, group_select: int = 0, fallback: Any = NOT_FOUND
    ) -> None:
        super().__init__(self._extracted)
        self.pattern = re.compile(regex_pattern)
        self.group_select = group_select
        self.fallback = fallback

    def _extracted(self, response: Any) -> Any:
        found = self._chosen(self.pattern, response)
        if found is None:
            return self.fallback
        return (self.fallback if found == () else found).strip()

    def _chosen(self, pattern: re.Pattern[str], response: Any) -> Any:
        """Return the chosen match as text, None without a match, and () where all its groups are empty."""
        matches = pattern.findall(response if isinstance(response, str) else "")
        if not matches:
            return None
        match = matches[self.group_select]
        return next((group for group in match if group), ()) if isinstance(match, tuple) else match


class MultiChoiceRegexFilter(RegexFilter):
    """Reads a label such as `(A)` by the pattern, else by the text of a choice, else after a colon."""

    def __init__(
        self,
        regex_pattern: str = NUMBER_AFTER_HASHES,
        group_select: int = 0,
        fallback: Any = NOT_FOUND,
        ignore_case: bool = False,
        ignore_punctuation: bool = False,
        regexes_to_ignore: Sequence[str] | None = None,
    ) -> None:
        super().__init__(regex_pattern, group_select, fallback)
        self.ignore_case = ignore_case
        self.ignore_punctuation = ignore_punctuation
        self.regexes_to_ignore = regexes_to_ignore

    def apply(self, resps: Any, docs: Sequence[Doc]) -> Iterable[Any]:
        """Return one list for each doc; every doc needs the column `choices`."""
        return [self._of_doc(repeats, doc["choices"]) for repeats, doc in zip(resps, docs, strict=True)]

    def _of_doc(self, repeats: Any, choices: Iterable[Any]) -> list[Any]:
        label_of_text: dict[str, str] = {}
        texts = []
        labels = []
        for index, choice in enumerate(choices):
            text = self._normalised(choice.strip())
            label = chr(ord("A") + index)
            label_of_text[text] = f"({label})"
            texts.append(re.escape(text))
            labels.append(label)
        # Longest first (since 0.4.13): a choice that begins another one must not win over it.
        by_text = re.compile("|".join(sorted(texts, key=len, reverse=True)))
        after_colon = re.compile(rf":[\s]*({'|'.join(labels)})")
        label_of_letter = {label: f"({label})" for label in labels}
        found = []
        for response in repeats:
            extracted = (
                self._label(self.pattern, response, {})
                or self._label(by_text, self._normalised(response), label_of_text)
                or self._label(after_colon, response, label_of_letter)
            )
            found.append(extracted or self.fallback)
        return found

    def _label(self, pattern: re.Pattern[str], response: Any, names: Mapping[str, str]) -> str:
        match = self._chosen(pattern, response) or ""
        text: str = match.strip()
        return names.get(text, text) if text else ""

    def _normalised(self, text: Any) -> Any:
        for pattern in self.regexes_to_ignore if self.regexes_to_ignore is not None else ():
            text = re.sub(pattern, "", text)
        if self.ignore_case:
            text = text.lower()
        return text.translate(_WITHOUT_PUNCTUATION) if self.ignore_punctuation else text


class _WithoutPunctuation(dict[int, int | None]):
    """Drops characters of Unicode's categories P*, each judged where it first occurs: all of them took a second."""

    def __missing__(self, code: int) -> int | None:
        return self.setdefault(code, None if unicodedata.category(chr(code)).startswith("P") else code)


_WITHOUT_PUNCTUATION: Final = _WithoutPunctuation()


class PartOfSpeechFilter:
    """Gives the tags of `('token', 'TAG')` pairs; `regex_pattern` and `group_select` are taken and not used."""

    _PAIR: Final = re.compile(r"\('([^']*)', '([^']*)'\)")

    def __init__(self, regex_pattern: str = r"\['(.*?)'\]", group_select: int = 0, fallback: Any = None) -> None:
        re.compile(regex_pattern)
        self.group_select = group_select
        self.fallback = ["invalid"] if fallback is None else fallback

    def apply(self, resps: Any, docs: Sequence[Doc]) -> Iterable[Any]:
        """Return one list of tag lists for each doc."""
        return ([self._tags(response) for response in repeats] for repeats in resps)

    def _tags(self, response: Any) -> Any:
        pairs = self._PAIR.findall(response) if isinstance(response, str) else response
        return [tag for _, tag in pairs] or self.fallback


@dataclass
class AllResponses:
    """Applies a function to the responses and docs of a task together."""

    change: Callable[[Any, Sequence[Doc]], Iterable[Any]]

    def apply(self, resps: Any, docs: Sequence[Doc]) -> Iterable[Any]:
        """Return what the function gives."""
        return self.change(resps, docs)


def each_doc(change: Callable[[Any], Any]) -> Filter:
    """Return a filter that applies a function to the repeats of each doc, when it is requested."""
    return AllResponses(lambda resps, _docs: map(change, resps))


def custom_filter(**arguments: Any) -> Filter:
    """Return a filter that calls `filter_fn(responses, docs)`."""
    return AllResponses(arguments["filter_fn"])


def map_filter(mapping_dict: Any = None, default_value: Any = None) -> Filter:
    """Return a filter that looks each response up in a mapping."""
    mapping = {} if mapping_dict is None else mapping_dict
    assert isinstance(mapping, dict), f"mapping_dict is a {type(mapping_dict).__name__}, not a mapping"
    return EachResponse(lambda response: mapping.get(response, default_value))


def _most_frequent(repeats: Sequence[Any]) -> list[Any]:
    return [Counter(repeats).most_common(1)[0][0]]  # the earliest of equals


def take_first_k(**arguments: Any) -> Filter:
    """Return a filter that gives the first k repeats; only the first doc is asked whether it has as many."""
    count = arguments["k"]

    def first(resps: Any, _docs: Sequence[Doc]) -> Iterable[Any]:
        listed = list(resps)
        assert len(listed[0]) >= count, f"take_first_k needs {count} repeats, but there are {len(listed[0])}"
        return (repeats[:count] for repeats in listed)

    return AllResponses(first)


_LABELS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("person", "people", "persons", "per"), "PER"),
    **dict.fromkeys(("location", "counties", "places", "country", "continent", "loc"), "LOC"),
    **dict.fromkeys(("organization", "company", "org"), "ORG"),
    **dict.fromkeys(("time", "date"), "DATE"),
}
_LABEL: Final = re.compile(rf"\b({'|'.join(_LABELS)})\s*:")
_ENTITY: Final = re.compile(r"\b(PER|LOC|ORG|DATE):\s*([^$]+)")


def _entities(response: Any) -> str:
    """Return named entities as `per: name $ loc: place`, without those that are `none`."""
    labelled = _LABEL.sub(lambda match: f"{_LABELS[match[1]]}:", response.lower())
    text = labelled.replace("$$", "$").rstrip("$").replace("\n", "$").strip()
    return " $ ".join(
        f"{label.lower()}: {name}"
        for label, names in _ENTITY.findall(text)
        for name in (part.strip() for part in names.split(","))
        if name.lower() != "none"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownFilter:
    """A filter and what it does to responses; what is unknown of other filters is the default.

    `picks`: it picks an answer out of a text, so that one can be missed. `keeps_text`: responses stay unchanged.
    `reads_docs`: its result may depend on the doc.
    """

    make: Callable[..., Filter]
    picks: bool = True
    keeps_text: bool = False
    reads_docs: bool = True


FILTERS: Final[Mapping[str, KnownFilter]] = {
    "custom": KnownFilter(make=custom_filter),
    "format_span": KnownFilter(make=partial(EachResponse, _entities), reads_docs=False),
    "lowercase": KnownFilter(make=partial(EachResponse, methodcaller("lower")), picks=False, reads_docs=False),
    "majority_vote": KnownFilter(
        make=partial(each_doc, _most_frequent), picks=False, keeps_text=True, reads_docs=False
    ),
    "map": KnownFilter(make=map_filter, picks=False, reads_docs=False),
    "multi_choice_regex": KnownFilter(make=MultiChoiceRegexFilter),
    "regex": KnownFilter(make=RegexFilter, reads_docs=False),
    "regex_pos": KnownFilter(make=PartOfSpeechFilter, reads_docs=False),
    # Its arguments are taken and not used.
    "remove_whitespace": KnownFilter(
        make=lambda **_: EachResponse(methodcaller("strip")), picks=False, reads_docs=False
    ),
    # Of a text the first response is its first character.
    "take_first": KnownFilter(make=partial(each_doc, itemgetter(0)), picks=False, keeps_text=True, reads_docs=False),
    "take_first_k": KnownFilter(make=take_first_k, picks=False, keeps_text=True, reads_docs=False),
    "uppercase": KnownFilter(make=partial(EachResponse, methodcaller("upper")), picks=False, reads_docs=False),
}
"""Every filter of lm-eval 0.4.13 by the name it is registered under."""


def known_filter(function: Any) -> KnownFilter:
    """Return what is known of the `function` of a filter step: a name, or a class or function that makes filters."""
    if isinstance(function, KnownFilter):
        return function
    if isinstance(function, str):
        return FILTERS.get(function) or KnownFilter(make=custom_filter)
    return next((known for known in FILTERS.values() if known.make is function), KnownFilter(make=function))


@dataclass(frozen=True, slots=True)
class FilterStep:
    """A filter with its arguments; a call builds it."""

    filter: KnownFilter
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Filter:
        """Return the filter; raises what its class raises for these arguments."""
        return self.filter.make(**self.arguments)


@dataclass(frozen=True, slots=True)
class FilterPipeline:
    """A named row of filters. Each application builds the filters again, so wrong arguments show only then."""

    name: str
    steps: tuple[FilterStep, ...]

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the regular expressions that the task gives its filters."""
        return tuple(str(value) for value in self._arguments("regex_pattern"))

    @property
    def fallbacks(self) -> frozenset[str]:
        """Return what the task's filters give where they find nothing, without single labels: those may be answers."""
        said = (str(value).strip() for value in self._arguments("fallback"))
        return frozenset(text for text in said if len(text) > 1 or not text.isalnum())

    @property
    def looks(self) -> bool:
        """Return whether a filter picks an answer out of a text, so that there is something to miss."""
        return any(step.filter.picks for step in self.steps)

    @property
    def fingerprint(self) -> Hashable | None:
        """Return what is equal for pipelines that do the same; None if it depends on docs, functions or objects."""
        parts = [(step.filter.make, plain_key(dict(step.arguments))) for step in self.steps]
        if any(step.filter.reads_docs for step in self.steps) or any(arguments is None for _, arguments in parts):
            return None
        return tuple(parts)

    def _arguments(self, name: str) -> Iterator[Any]:
        return (step.arguments[name] for step in self.steps if name in step.arguments)

    def apply(self, responses: Sequence[Sequence[Any]], docs: Sequence[Doc]) -> list[Any]:
        """Return the extraction of each doc, from its repeats; raises what a filter raises."""
        values: Any = list(responses)
        for step in self.steps:
            values = step().apply(values, docs)
        return list(values)

    def extract(self, response: str, doc: Doc, repeats: int = 1) -> Any:
        """Return the extraction from one response to one doc, given `repeats` times."""
        return self.apply([[response] * repeats], [doc])[0]


TAKE_FIRST: Final = FilterPipeline("none", (FilterStep(FILTERS["take_first"]),))
"""The filters of a task without `filter_list`."""


def pipelines_of(task: Task) -> tuple[FilterPipeline, ...]:
    """Return the task's pipelines, in order.

    Raises ScoringError for a filter that does not exist, or one that is a function not bound yet.
    """
    if task.filter_list is None:
        return (TAKE_FIRST,)
    return tuple(
        FilterPipeline(
            str(pipeline["name"]),
            tuple(
                _step(step, task.position("filter_list", index, "filter", number))
                for number, step in enumerate(pipeline["filter"])
            ),
        )
        for index, pipeline in enumerate(task.filter_list)
    )


def looks_for_answers(task: Task) -> bool:
    """Return whether a filter of the task picks an answer out of a text."""
    steps = (step.get("function") for pipeline in task.filter_list or () for step in pipeline.get("filter") or ())
    return any(known_filter(step).picks for step in steps)


def _step(step: Mapping[str, Any], position: Position | None) -> FilterStep:
    arguments = {key: value for key, value in step.items() if key != "function"}
    function = step["function"]
    if isinstance(function, FunctionRef):
        raise ScoringError(f"the filter !function {function} was not imported", position=position)
    is_named = isinstance(function, str) and function in FILTERS
    if not (callable(function) or isinstance(function, KnownFilter) or is_named):
        raise unknown_filter(function, position, FILTERS)
    return FilterStep(known_filter(function), arguments)


def unknown_filter(function: object, position: Position | None, known: Collection[str]) -> ScoringError:
    """Return the error for a filter that does not exist, or that only a fork may have: then it is unavailable."""
    is_mistake = not isinstance(function, str) or is_misspelt(function, known)
    error = (ScoringError if is_mistake else UnavailableScoringError)(
        f"unknown filter {function!r}; the filters of lm-eval 0.4.13 are {', '.join(FILTERS)}",
        position=position,
        hint=did_you_mean(str(function), known)
        or (
            "to use this filter, install an lm-eval that has it, or a package "
            "that adds it through the entry point pytest_promptfmt.filters"
        ),
    )
    if isinstance(error, UnavailableScoringError):
        is_in_fork = position is not None and harness_around(position.path.parent) is not None
        error.because(
            "the filter is part of a fork of lm-eval, which is not installed", "pip install -e ." if is_in_fork else ""
        )
    return error


def buildable_pipelines_of(task: Task) -> tuple[FilterPipeline, ...]:
    """Return the task's pipelines, each of whose filters takes its arguments.

    Raises ScoringError as `pipelines_of`, and for a filter that cannot be built: lm-eval finds that out when the model
    has answered everything.
    """
    pipelines = pipelines_of(task)
    for index, pipeline in enumerate(pipelines):
        for number, step in enumerate(pipeline.steps):
            try:
                step()
            except PromptfmtError:
                raise
            except Exception as error:
                names = _parameters(step.filter.make)
                unknown = [name for name in step.arguments if name not in names]
                message = f"a filter cannot be built: {type(error).__name__}: {error}"
                hint = did_you_mean(unknown[0], names) if unknown and names else ""
                raise task.error(ScoringError, message, "filter_list", index, "filter", number, hint=hint) from error
    return pipelines


def _parameters(make: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a callable's arguments; none if its signature is unknown."""
    try:
        return tuple(signature(make).parameters)
    except (TypeError, ValueError):
        return ()
