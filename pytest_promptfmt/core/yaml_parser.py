"""One YAML file, without its includes: parsed as lm-eval 0.4.13 parses it, with the place of every key.

Files are not trusted: size, nesting, aliases, merge keys and long numbers are bounded before any of them can cost
time, memory or the C stack. `!function` tags become `FunctionRef`; nothing is imported or run.
"""

from __future__ import annotations

import io
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import stat_result
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import Position, SourceError, did_you_mean, quoted
from pytest_promptfmt.core.task import FunctionRef

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_DEPTH: Final = 100
MAX_NODES: Final = 300_000
"""How many values a file may have, also once its aliases are written out: about a second and 150 MB."""
MAX_MERGED: Final = 10_000
"""How many keys one `<<` may bring in."""
MAX_DIGITS: Final = 4_000

_SEPARATE_DOCS: Final = "keep docs in a separate file and name it under metadata.promptfmt.docs"

_STR: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"
# Fewer opening brackets than this and no such run of indentation means that the depth is bounded already.
_DEEP_INDENT: Final = re.compile(rb"[ \t?:-]{200,}")

# lm-eval 0.4.13 takes the C loader, and FullLoader without libyaml; both build the same plain values.
LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RepeatedKey(NamedTuple):
    """A key that a mapping has twice: the place of the later one, which wins, and whether both have the same value."""

    name: Any
    position: Position
    is_same: bool


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """The top-level mapping of one file as written, `include` among its keys.

    `marks` maps every top-level key to its line and column, both counted from 1. `repeated` are those of
    them that are written twice, `repeated_inside` those of mappings below the top. `stamp` is the file's mtime (ns) and
    size. The values are shared by all readers of the file: they must not be changed.
    """

    path: Path
    values: Mapping[Any, Any]
    marks: Mapping[Any, tuple[int, int]]
    repeated: tuple[RepeatedKey, ...]
    stamp: tuple[int, int]
    repeated_inside: tuple[RepeatedKey, ...] = ()

    def locate(self, keys: tuple[str | int, ...]) -> Position | None:
        """Return where a key path was written: the key of a mapping, the element of a list. None if it was not."""
        if len(keys) == 1 and keys[0] in self.marks:
            return Position(self.path, *self.marks[keys[0]])
        if _lacks(self.values, keys):
            return None  # without composing the file, for keys that few files have
        try:
            root = _composed(self.path, self.stamp)
        except (OSError, yaml.YAMLError, RecursionError):
            return None
        node = _find(root, keys)
        return None if node is None else position_of(self.path, node.start_mark)


_parsed: dict[Path, ParsedFile] = {}


def parse_file(path: Path, status: stat_result, data: bytes | None = None) -> ParsedFile:
    """Return the file at the resolved `path`, parsed once per process for each mtime and size.

    `data` is the content where the caller has read it already. Raises SourceError with line and column when the file
    is not a YAML mapping or exceeds a limit; OSError when it cannot be read.
    """
    gate.allowed(path)
    stamp = (status.st_mtime_ns, status.st_size)
    known = _parsed.get(path)
    if known is not None and known.stamp == stamp:
        return known
    if not stat.S_ISREG(status.st_mode):
        raise SourceError("not a regular file", position=Position(path))
    if status.st_size > MAX_BYTES:
        size = f"{status.st_size / 2**20:.0f} MiB"
        message = f"the file has {size}; a task file may have at most {MAX_BYTES // 2**20} MiB"
        raise SourceError(message, position=Position(path), hint=_SEPARATE_DOCS)
    parsed = _parse(path, gate.read_bytes(path, limit=MAX_BYTES) if data is None else data, stamp)
    _parsed[path] = parsed
    return parsed


class _Loader(LOADER):  # type: ignore[misc]  # the base is chosen at run time
    """The YAML 1.1 loader with `!function`, bounded merge keys and errors with a position."""

    path: Path
    root: yaml.Node | None = None

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.repeated_inside: list[RepeatedKey] = []
        self._flattened: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if node is not self.root and id(node) not in self._flattened:
            self._flattened.add(id(node))  # once flattened, its keys include those that a merge brings in
            self.repeated_inside += _repeated_in(self.path, node)
        merged = 0
        for key, value in node.value:
            if key.tag != _MERGE:
                continue
            for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(part, yaml.MappingNode):
                    self.flatten_mapping(part)
                    merged += len(part.value)
            if merged > MAX_MERGED:
                raise _unbuildable(f"'<<' merges more than {MAX_MERGED} keys", key)
        super().flatten_mapping(node)


def _unbuildable(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _construct_function(loader: _Loader, node: yaml.Node) -> FunctionRef:
    spec = loader.construct_scalar(node)
    module, _, name = spec.rpartition(".")
    if not module or not name:
        raise _unbuildable(f"!function must be followed by module.function, not by {spec!r}", node)
    return FunctionRef(module, name, loader.path.parent, position_of(loader.path, node.start_mark))


def _guarded(construct: Callable[[Any, Any], Any], what: str) -> Callable[[_Loader, yaml.Node], Any]:
    # PyYAML lets ValueError and its relatives through, which carry no position.
    def guarded(loader: _Loader, node: yaml.Node) -> Any:
        text = node.value if isinstance(node.value, str) else ""
        # int() refuses as many digits, and 1:1:1:… (base 60) would take quadratic time.
        problem = (
            f"a number with {len(text)} digits is too long" if len(text) > MAX_DIGITS and what == "number" else None
        )
        if problem is None:
            try:
                return construct(loader, node)
            except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError):
                problem = f"{quoted(text)} is not a valid {what}"
        raise _unbuildable(problem, node)

    return guarded


_Loader.add_constructor("!function", _construct_function)
_Loader.add_constructor("tag:yaml.org,2002:bool", _guarded(LOADER.construct_yaml_bool, "truth value"))
_Loader.add_constructor("tag:yaml.org,2002:int", _guarded(LOADER.construct_yaml_int, "number"))
_Loader.add_constructor("tag:yaml.org,2002:float", _guarded(LOADER.construct_yaml_float, "number"))
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _guarded(LOADER.construct_yaml_timestamp, "date"))
_Loader.add_constructor("tag:yaml.org,2002:binary", _guarded(LOADER.construct_yaml_binary, "binary value"))


def _parse(path: Path, data: bytes, stamp: tuple[int, int]) -> ParsedFile:
    try:
        data = _as_utf8(data)
        _check_size(path, data)
        loader = _Loader(data)
        loader.path = path
        try:
            node = loader.get_single_node()
            if not isinstance(node, yaml.MappingNode):
                raise no_mapping(path, node)
            places = ((key, key.start_mark) for key, _ in _keys_of(node))
            marks = {_key_of(key): (mark.line + 1, mark.column + 1) for key, mark in places}
            repeated = tuple(_repeated_in(path, node))
            loader.root = node
            values = loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.reader.ReaderError, UnicodeDecodeError) as error:
        raise unreadable(path, data) from error
    except yaml.MarkedYAMLError as error:
        raise in_plain_words(path, data, error) from error
    if not isinstance(values, dict):  # a mapping with the tag of something else, such as !!set
        raise no_mapping(path, node)
    # The few dozen key names are repeated in every file: sharing them saves a third of the memory.
    shared = {sys.intern(key) if type(key) is str else key: value for key, value in values.items()}
    return ParsedFile(path, shared, marks, repeated, stamp, tuple(loader.repeated_inside))


def _as_utf8(data: bytes) -> bytes:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16").encode()
    return data


def _check_size(path: Path, data: bytes) -> None:
    """Raise SourceError for too many values or levels, with all aliases written out, and for an alias of itself."""
    shallow = data.count(b"[") + data.count(b"{") <= MAX_DEPTH and not _DEEP_INDENT.search(data)
    # Every value needs its own line, comma or bracket, and a key.
    few = 2 * (data.count(b"\n") + data.count(b"\r") + data.count(b",")) < MAX_NODES - 3 * MAX_DEPTH
    if shallow and few and not (b"*" in data and b"&" in data):
        return
    sizes: dict[str | None, tuple[int, int] | None] = {}  # values and levels by anchor, None while it is open
    opened: list[tuple[str | None, Any]] = []
    counts = [(0, 0)]
    # libyaml keeps its own stack for events; only composing nodes from them recurses.
    for event in yaml.parse(io.BytesIO(data), Loader=LOADER):
        anchor, size, mark = getattr(event, "anchor", None), (1, 0), event.start_mark
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((anchor, mark))
            counts.append((1, 0))
            size = (0, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            (anchor, mark), (values, levels) = opened.pop(), counts.pop()
            size = values, levels + 1
        elif isinstance(event, yaml.AliasEvent):
            known = sizes.get(event.anchor, size)
            if known is None:
                mark = next(mark for anchor, mark in reversed(opened) if anchor == event.anchor)
                hint = "write the value instead of the alias"
                raise SourceError("this value contains an alias of itself", position=position_of(path, mark), hint=hint)
            size = known
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        if anchor is not None:
            sizes[anchor] = size if size[0] else None
        counts[-1] = counts[-1][0] + size[0], max(counts[-1][1], size[1])
        if len(opened) + size[1] > MAX_DEPTH:
            message = f"lists and mappings are nested more than {MAX_DEPTH} deep"
            raise SourceError(message, position=position_of(path, mark))
        if counts[-1][0] > MAX_NODES:
            message = f"the file has more than {MAX_NODES:,} values, its aliases written out"
            raise SourceError(message, position=position_of(path, mark), hint=_SEPARATE_DOCS)


def _keys_of(mapping: yaml.MappingNode) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    return ((key, value) for key, value in mapping.value if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE)


def _repeated_in(path: Path, mapping: yaml.MappingNode) -> Iterator[RepeatedKey]:
    written = [key.value for key, _ in _keys_of(mapping)]
    first: dict[Any, yaml.Node] = {}
    for key, value in _keys_of(mapping) if len(set(written)) < len(written) else ():
        name = _key_of(key)
        if name in first:
            is_same = yaml.serialize(first[name]) == yaml.serialize(value)
            yield RepeatedKey(name, position_of(path, key.start_mark), is_same)
        else:
            first[name] = value


def _key_of(node: yaml.Node) -> Any:
    if node.tag == _STR:
        return sys.intern(node.value)
    try:
        key = yaml.constructor.SafeConstructor().construct_object(node, deep=True)
        hash(key)
    except (yaml.YAMLError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError):
        return None
    return key


@lru_cache(maxsize=16)
def _composed(path: Path, stamp: tuple[int, int]) -> yaml.Node | None:
    status = gate.status_of(path)
    if (status.st_mtime_ns, status.st_size) != stamp:
        return None
    loader = _Loader(_as_utf8(gate.read_bytes(path, limit=MAX_BYTES)))
    try:
        node: yaml.Node | None = loader.get_single_node()
    finally:
        loader.dispose()
    return node


def _lacks(value: Any, keys: Sequence[str | int]) -> bool:
    """Return whether a key path leads to nothing."""
    for key in keys:
        if isinstance(value, dict):
            if key not in value:
                return True
        elif not isinstance(value, list):
            return False
        elif not isinstance(key, int) or not -len(value) <= key < len(value):
            return True
        value = value[key]
    return False


def _find(root: yaml.Node | None, keys: Sequence[str | int]) -> yaml.Node | None:
    node, place = root, root
    for key in keys:
        if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            if not -len(node.value) <= key < len(node.value):
                return None
            node = place = node.value[key]
        elif isinstance(node, yaml.MappingNode):
            pair = _pair(node, key)
            if pair is None:
                return None
            place, node = pair
        else:
            return None
    return place


def _pair(node: yaml.MappingNode, key: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    for written, value in reversed(node.value):
        if written.tag != _MERGE and _key_of(written) == key:
            return written, value
    for written, value in node.value:
        if written.tag == _MERGE:
            for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                found = _pair(part, key) if isinstance(part, yaml.MappingNode) else None
                if found is not None:
                    return found
    return None


# -- errors in plain words, with the place and a fix -------------------------------------------------------------------

_CONTROL: Final = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def position_of(path: Path, mark: Any) -> Position:
    """Return the place of a PyYAML mark, which counts from 0; without one, only the file."""
    return Position(path) if mark is None else Position(path, mark.line + 1, mark.column + 1)


def no_mapping(path: Path, node: yaml.Node | None) -> SourceError:
    """Return the error for a file whose top level is not a mapping."""
    kinds = {yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value", yaml.MappingNode: "a set or pairs"}
    found = kinds.get(type(node), "nothing")
    return SourceError(
        f"the file must be a mapping of keys to values, but there is {found} at its top level",
        position=Position(path) if node is None else position_of(path, node.start_mark),
    )


def unreadable(path: Path, data: bytes) -> SourceError:
    """Return the error for bytes that are not UTF-8, or hold characters that YAML does not allow."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return SourceError(
            f"the file is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}",
            position=Position.after(path, data[: error.start].decode("utf-8")),
            hint="save the file as UTF-8",
        )
    found = _CONTROL.search(text)
    if found is None:
        return SourceError("the file contains characters that YAML does not allow", position=Position(path))
    return SourceError(
        f"the control character U+{ord(found.group()):04X} is not allowed in YAML",
        position=Position.after(path, text[: found.start()]),
        hint=f'write "\\x{ord(found.group()):02x}", in double quotes' if ord(found.group()) < 256 else None,
    )


def in_plain_words(path: Path, data: bytes, error: yaml.MarkedYAMLError) -> SourceError:
    """Return the error for what PyYAML cannot parse or build."""
    problem = error.problem or str(error)
    mark = error.problem_mark or error.context_mark
    if error.problem and "end of stream" in problem and error.context_mark is not None:
        mark = error.context_mark  # where the quote opens is more useful than where the file ends
    position = position_of(path, mark)
    tag = re.search(r"could not determine a constructor for the tag '(?P<tag>[^']*)'", problem)
    if tag is not None:
        return SourceError(
            f"unknown tag {tag['tag']}; lm-eval 0.4.13 knows only !function",
            position=position,
            hint=did_you_mean(tag["tag"], ["!function"]) or "put quotes around text that starts with '!'",
        )
    known = data_table("yaml_errors")["plain_words"]
    entry = next((each for each in known if re.search(each["problem"], problem)), None)
    if entry is not None:
        message, hint = entry["message"], entry.get("hint")
    else:
        message, hint = f"{problem} ({error.context})" if error.context else problem, None
    lines = data.decode("utf-8", "replace").splitlines()[: mark.line + 1] if mark is not None else []
    if any(re.search(r":\s+\{[{%]", line) is not None for line in lines[-2:]):
        hint = "put quotes around a Jinja template that starts with '{{' or '{%', or write it after '|'"
    return SourceError(f"not valid YAML: {message}", position=position, hint=hint)
