"""Whether a YAML file is a task file at all, and what it defines: a Python task class, a group or a task."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.yaml_parser import LOADER, MAX_BYTES
from pytest_promptfmt.tasks.yaml_file import YamlFile, read_yaml

FileKind = Literal["task", "group", "class"]


_HEAD_BYTES: Final = 65_536
"""How much of a file too large to be a task is read, to report it only where it looks like one."""
_MAX_INDENT: Final = 100
_DEFINES: Final = frozenset({"class", "group", "task"})
_SIGN: Final = re.compile(
    r"doc_to_\w+|dataset_\w+|(?:training|validation|test|fewshot)_split|fewshot_\w+|num_fewshot|output_type|metric_list"
    r"|filter_list|generation_kwargs|include|use_prompt|custom_dataset|process_docs|process_results|target_delimiter"
    r"|gen_prefix|task_alias|group_alias|aggregate_metric_list|should_decontaminate|formats|template|tag"
)
_OF_A_TASK: Final = ("doc_to_text", "doc_to_target", "dataset_path", "use_prompt", "output_type")
"""Keys that no group has."""
_PREAMBLE: Final = re.compile(rb"(?:[ \t]*+(?:[#%][^\n]*+|---[ \t]*+(?:#[^\n]*+)?)?+\n)*+(?:---[ \t]++)?+")
_NAMED_CLASS: Final = re.compile(
    rb"""(?m)^class[ \t]*:[ \t]*["']?[A-Za-z_][\w.]*:[A-Za-z_]\w*["']?[ \t]*(?:#[^\n]*)?$"""
)
"""A class as `package.module:Name`, a form that nothing else has."""
_ESCAPED_KEY: Final = re.compile(rb'"[^"\n]*\\[xuU][^"\n]*"[ \t]*:')
_UNUSUAL: Final = re.compile(
    rb"(?m)^(?:---[ \t]+)?[ \t]*(?:[&!?*]|<<[ \t]*:|\"[^\"\n]*\\[^\"\n]*\"[ \t]*:)"
    rb"|[{,][ \t\r\n]*(?:[&!?*]|<<|\"[^\"\n]*\\)"
)
"""Signs of keys with a tag, an anchor, `?` or an escape, of aliases, or merged in: such a file is parsed."""
_LINE_ENDS: Final = re.compile(rb"\r\n?|\xc2\x85|\xe2\x80[\xa8\xa9]")
"""Line ends of YAML other than a line feed."""
_FLOW_KEY: Final = re.compile(rb"""[{,]\s*["']?([A-Za-z_]\w*)["']?\s*:""")


def kind_of(config: Mapping[Any, Any]) -> FileKind | None:
    """Return what a config defines, in lm-eval 0.4.13's order: class before group before task. None for neither.

    A task that names its sets under `group` is a task, as it was up to lm-eval 0.4.11; what such tasks include is
    neither.
    """
    if names_its_sets(config):
        return "task"
    if isinstance(config.get("group"), list) and config.keys().isdisjoint(("class", "task")):
        return None
    for kind in ("class", "group", "task"):
        if kind in config:
            return kind
    return None


def names_its_sets(config: Mapping[Any, Any]) -> bool:
    """Return whether a task has the key `group` for the sets that it is in, which lm-eval 0.4.13 takes for a group."""
    if "group" not in config or "class" in config or not isinstance(config.get("task"), str):
        return False
    return any(key in config for key in _OF_A_TASK)


def looks_like_task(data: bytes) -> bool:
    """Return whether the bytes of a YAML file, well-formed or broken, look like a task or group of lm-eval.

    Only the names of top-level keys count: one of `task`, `group` and `class`, and with it a key that only
    evaluation tasks have; and a class named by its module. So workflows, compose files and settings are skipped
    without being parsed, and a task whose YAML is broken is still recognized.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        data = data.decode("utf-16", "replace").encode()
    if not any(word in data for word in (b"task", b"group", b"class", b"include")) and not _ESCAPED_KEY.search(data):
        return False
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in data or not data.isascii():
        data = _LINE_ENDS.sub(b"\n", data)
    preamble = _PREAMBLE.match(data)
    start = preamble.end() if preamble else 0
    indent = data[start : len(data) - len(data[start:].lstrip(b" \t"))]
    if len(indent) > _MAX_INDENT:
        return False
    if data[start + len(indent) : start + len(indent) + 1] == b"{":
        names = _FLOW_KEY.findall(data, start)
    else:
        key = rb"""(?m)^%s(?:\?[ ]+)?["']?([A-Za-z_]\w*)["']?[ \t]*:""" % re.escape(indent)
        names = re.compile(key).findall(data, start)
    if is_task_config({name.decode() for name in names}) or _NAMED_CLASS.search(data) is not None:
        return True
    return len(data) <= MAX_BYTES and _UNUSUAL.search(data) is not None and is_task_config(_spelt_names(data))


def _spelt_names(data: bytes) -> set[str]:
    """Return the top-level keys in any spelling, and those that `<<` brings in; none of a file that does not parse."""
    try:
        waiting = [yaml.compose(data, Loader=LOADER)]
    except (yaml.YAMLError, ValueError, RecursionError):
        return set()
    names: set[str] = set()
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        for part in node.value:
            if not isinstance(node, yaml.MappingNode):  # a list of mappings that are merged
                waiting += [part] if len(seen) > 1 else []
            elif part[0].value == "<<":
                waiting.append(part[1])
            elif isinstance(part[0], yaml.ScalarNode):
                names.add(part[0].value)
    return names


def read_if_task(path: Path) -> YamlFile | None:
    """Return the file with its includes when it defines a task, group or class; None for any other YAML.

    Raises what `read_candidate` raises.
    """
    file, is_task = read_candidate(path)
    return file if is_task else None


def read_candidate(path: Path) -> tuple[YamlFile | None, bool]:
    """Return a file that looks like a task, with its includes, and whether it defines a task, group or class.

    None for any other YAML. Raises SourceError for a file that looks like a task and cannot be read, OSError when it
    cannot be opened.
    """
    with gate.open_file(path) as stream:
        whole = os.fstat(stream.fileno()).st_size <= MAX_BYTES
        data = stream.read() if whole else stream.read(_HEAD_BYTES)
    if not looks_like_task(data):
        return None, False
    file = read_yaml(path, data if whole else None)
    is_ours = is_task_config(file.config) or _NAMED_CLASS.search(data) is not None
    return file, is_ours and kind_of(file.config) is not None


def is_task_config(keys: Collection[Any]) -> bool:
    """Return whether these top-level keys are those of a task or group, not of some other YAML with a `task` key."""
    defines = _DEFINES.intersection(keys)
    if len(defines) > 1 or ("class" in defines and "docs" in keys):
        return True
    signs = [key for key in keys if isinstance(key, str) and _SIGN.fullmatch(key)]
    if defines:
        return bool(signs)
    return "include" in keys and len(signs) > 1
