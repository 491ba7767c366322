"""Files with HELM's `adapter_spec`: their parts, request states, and what a run recorded in them.

A `scenario_state.json` may be large: what does not fit into memory with ease is read state by state, each time again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SourceError, did_you_mean, raising
from pytest_promptfmt.core.task import nearest
from pytest_promptfmt.systems.helm.adapter_spec import AdapterSpec, ReadSpec, read_spec
from pytest_promptfmt.systems.helm.helm_metrics import HELM_METRICS
from pytest_promptfmt.systems.helm.instances import STATES, HelmInstance, RequestState, mapping_in, stream_states
from pytest_promptfmt.systems.helm.json_text import JsonText, Keys, json_items, read_json
from pytest_promptfmt.tasks import resolved

RUN_SPEC: Final = "run_spec.json"
SCENARIO_STATE: Final = "scenario_state.json"
MAX_WHOLE: Final = 16 << 20
"""Up to how many bytes a file is read at once, as JSON or JSON5; larger ones are JSON and read state by state."""

FIRST_STATES: Final = 200
"""How many request states of a file are read when it is collected."""

METRICS: Final = ("exact_match", "quasi_exact_match", "prefix_exact_match", "quasi_prefix_exact_match")
"""HELM's metrics of generic tasks; `promptfmt.metrics`, or `metric_specs` here or in `run_spec.json`, name others."""

_HEAD: Final = 65_536
_SAVE: Final = "save the file as UTF-8"


@dataclass(frozen=True, slots=True)
class FirstStates:
    """The contents of the first request states of a file that can be used; the others are `bad`."""

    rows: tuple[HelmInstance, ...]
    bad: tuple[SourceError, ...]
    has_prompts: bool
    has_results: bool
    has_nested_results: bool
    has_answer_mapping: bool


def _first_of(states: Iterable[RequestState]) -> FirstStates:
    rows: list[HelmInstance] = []
    bad: list[SourceError] = []
    signs = [(False, False, False, False)]
    for state in states:
        try:
            rows.append(state.row())
        except SourceError as error:
            bad.append(error)
            continue
        has_alias = state.get("answer_mapping") is not None
        signs.append((state.prompt is not None, state.result is not None, state.has_nested_result, has_alias))
    return FirstStates(tuple(rows), tuple(bad), *map(any, zip(*signs, strict=True)))


@dataclass(frozen=True, eq=False)
class AdapterFile:
    """A file with an adapter. `top` is everything but the request states.

    `whole` is the text of a file that was read at once. `broken` is where the text breaks off, if it does.
    """

    path: Path
    top: Mapping[str, Any]
    whole: JsonText | None = None
    broken: SourceError | None = None

    # -- places --------------------------------------------------------------------------------------------------------

    def locate(self, keys: Keys) -> Position | None:
        """Return where a key path is, a request state as a whole; of a large file only what its first bytes hold."""
        if keys[:1] == (STATES,) and len(keys) > 1 and self.whole is not None and isinstance(keys[1], int):
            return next((each.position for each in islice(self.states(), keys[1], None)), Position(self.path))
        value: Any = self.top if self.whole is None else self.whole.value
        for key in keys:  # the text is only walked through for what is there
            try:
                value = value[key]
            except (LookupError, TypeError):
                return None
        if keys not in self._known:
            whole = self.whole
            if whole is None:
                with gate.open_file(self.path) as file:
                    whole = JsonText(self.path, file.read(_HEAD).decode("utf-8-sig", "replace"))
            self._known[keys] = whole.locate(keys)
        return self._known[keys]

    def where(self, *keys: str | int) -> Position:
        """Return where a key path is, else its nearest parent, else the file."""
        return nearest(self.locate, keys) or Position(self.path)

    @cached_property
    def _known(self) -> dict[Keys, Position | None]:
        return {}

    # -- request states ------------------------------------------------------------------------------------------------

    def states(self, *, to_the_end: bool = False) -> Iterator[RequestState]:
        """Yield the request states in order, up to where the file breaks off: with `to_the_end` raising there."""
        if self.whole is not None and not self.whole.is_strict:
            places = chain(self.whole.item_positions(STATES), repeat(Position(self.path)))  # of the key's first value
            pairs = zip(self.whole.value.get(STATES, ()), places, strict=False)
            yield from (RequestState(number, *pair) for number, pair in enumerate(pairs))
            return
        try:
            yield from stream_states(self.path)
        except SourceError:
            if to_the_end:
                raise

    def rows(self) -> Iterator[HelmInstance]:
        """Yield the instance of each request state that can be used."""
        for state in self.states():
            try:
                yield state.row()
            except SourceError:
                continue  # a failing item reports it

    @cached_property
    def first(self) -> FirstStates:
        """Return what the first request states hold."""
        return _first_of(islice(self.states(), FIRST_STATES))

    @cached_property
    def bad(self) -> tuple[SourceError, ...]:
        """Return what cannot be used: the end of a broken file, request states among the first."""
        return (*([self.broken] if self.broken is not None else []), *self.first.bad)

    @cached_property
    def has_states(self) -> bool:
        """Return whether the file has request states."""
        return any(True for _ in self.states())

    @cached_property
    def has_train(self) -> bool:
        """Return whether there are shots among the instances."""
        return any(row.is_train for row in self.first.rows)

    @cached_property
    def has_evaluated(self) -> bool:
        """Return whether there are instances of a split that is evaluated."""
        return any(self.spec.evaluates(row.split) for row in self.first.rows)

    @property
    def draws_from_all(self) -> bool:
        """Return whether shots are drawn from the instances to evaluate, because the instances have one split.

        Files of data providers mean this. A state that HELM wrote has its shots in its prompt.
        """
        return len({row.split for row in self.first.rows}) < 2 and not self.first.has_prompts

    # -- the adapter ---------------------------------------------------------------------------------------------------

    @cached_property
    def read(self) -> ReadSpec:
        """Return the spec with its deviations; raises SourceError for one that HELM cannot work with."""
        return read_spec(self.top["adapter_spec"], self.where, self._inferred_method)

    @property
    def spec(self) -> AdapterSpec:
        """Return the spec."""
        return self.read.spec

    @cached_property
    def own(self) -> Mapping[str, Any]:
        """Return the key `promptfmt` of the file; raises SourceError where it is not a mapping."""
        own = self.top.get("promptfmt")
        if not isinstance(own, dict | None):
            raise SourceError("promptfmt must be a mapping", position=self.locate(("promptfmt",)))
        return own or {}

    def output_mapping(self, state: RequestState, row: HelmInstance) -> Mapping[str, str] | None:
        """Return what labels mean in a state: as written there or in the file, else as the adapter makes them."""
        return state.output_mapping or mapping_in(self.top.get) or row.labels(self.spec).get("output_mapping")

    def _inferred_method(self) -> str:
        rows = self.first.rows
        if any(row.messages for row in rows) and not any(row.text for row in rows):
            return "chat"
        return "multiple_choice_joint" if any(len(row.references) > 1 for row in rows) else "generation"

    # -- metrics -------------------------------------------------------------------------------------------------------

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics of completions; raises SourceError for one that is not known."""
        named = self.own.get("metrics")
        if named is None:
            arguments = [given for each in self._metric_specs if isinstance(given := each.get("args"), dict)]
            written = [names for each in arguments if isinstance(names := each.get("names"), list)]
            return tuple(dict.fromkeys(name for names in written for name in names if name in HELM_METRICS)) or METRICS
        unknown = [name for name in named if name not in HELM_METRICS] if isinstance(named, list) else [named]
        if unknown:
            raise SourceError(
                f"unknown metric {unknown[0]!r} in promptfmt.metrics; expected one of {', '.join(HELM_METRICS)}",
                position=self.locate(("promptfmt", "metrics")),
                hint=did_you_mean(str(unknown[0]), HELM_METRICS),
            )
        return tuple(named)

    @cached_property
    def _metric_specs(self) -> Sequence[Mapping[str, Any]]:
        written = self.top.get("metric_specs")
        beside = self.path.with_name(RUN_SPEC)
        if written is None and self.path.name == SCENARIO_STATE and beside.is_file():
            try:
                run = read_adapter_file(beside)
                written = run.top.get("metric_specs") if run is not None else None
            except SourceError:
                written = None  # it is another file
        return [each for each in written if isinstance(each, dict)] if isinstance(written, list) else []


def read_adapter_file(path: Path) -> AdapterFile | None:
    """Return the parts of a file that is an object with `adapter_spec`, None for any other JSON.

    A file that breaks off is read up to there where it has a spec. Raises SourceError for one that cannot be read.
    """
    real = resolved(path)
    with raising(SourceError, "the file cannot be read", Position(path)):
        status = gate.status_of(real)
        return _read(real, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)
def _read(path: Path, _modified: int, size: int) -> AdapterFile | None:
    if size > MAX_WHOLE:
        return _streamed(path, size)
    try:
        whole = read_json(path, _decoded(path, gate.read_bytes(path)))
    except SourceError as error:
        try:
            salvaged = _streamed(path, size)
        except SourceError:
            salvaged = None
        if salvaged is None or not salvaged.has_states:
            raise error from None
        return salvaged
    if not isinstance(whole.value, dict) or "adapter_spec" not in whole.value:
        return None
    if not isinstance(whole.value.get(STATES, []), list):
        raise SourceError(f"{STATES} must be a list", position=whole.locate((STATES,)))
    top = {key: value for key, value in whole.value.items() if key != STATES}
    return AdapterFile(path, MappingProxyType(top), whole)


def _decoded(path: Path, data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SourceError("the file is UTF-16, but JSON must be UTF-8", position=Position(path), hint=_SAVE)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        position = Position.after(path, data[: error.start].decode("utf-8-sig", "replace"))
        raise SourceError(f"the byte 0x{data[error.start]:02x} is not UTF-8", position=position, hint=_SAVE) from None


def _streamed(path: Path, size: int) -> AdapterFile | None:
    """Return a file of which only what comes before the end of its first request states is read now."""
    top: dict[str, Any] = {}
    broken: SourceError | None = None
    try:
        for item in json_items(path, STATES):
            if item.index is None:
                top[item.key] = item.value
            elif "adapter_spec" in top and size > MAX_WHOLE:
                break
    except SourceError as error:
        broken = error
    if "adapter_spec" in top:
        return AdapterFile(path, MappingProxyType(top), broken=broken)
    if broken is not None:
        raise broken
    return None
