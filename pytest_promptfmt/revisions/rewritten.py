"""Tasks that could not be rendered: whether their files define the same prompts.

Functions are compared by their code, with what it uses of its module and of the modules beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.systems.task_files import load_tasks

_PROMPT_KEYS: Final = (
    "doc_to_text",
    "doc_to_choice",
    "doc_to_target",
    "description",
    "gen_prefix",
    "target_delimiter",
    "fewshot_delimiter",
    "fewshot_config",
    "num_fewshot",
    "generation_kwargs",
    "output_type",
    "process_docs",
    "use_prompt",
)


def rewritten(before: Path, after: Path, files: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the tasks that both trees define, with the keys about prompts that differ.

    `files` maps those of the second tree to those of the first.
    """
    for new_file, old_file in files.items():
        old, new = _written(before / old_file), _written(after / new_file)
        for task in old.keys() & new.keys():
            keys = [key for key in _PROMPT_KEYS if old[task].get(key) != new[task].get(key)]
            if keys:
                yield task, keys


def _written(file: Path) -> dict[str, dict[str, str]]:
    """Return the keys about prompts of each task of a file."""
    try:
        tasks = load_tasks(file)
    except PromptfmtError:
        return {}  # reported by the comparison of errors
    return {task.name: {key: _comparable(task.config.get(key)) for key in _PROMPT_KEYS} for task in tasks}


def _comparable(value: Any) -> str:
    if isinstance(value, FunctionRef):
        return f"{value} {_code(value.file, value.name)}"
    if isinstance(value, Mapping):
        return repr({str(key): _comparable(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return repr([_comparable(item) for item in value])
    return repr(value)


@lru_cache(maxsize=4096)
def _code(file: Path, name: str) -> str:
    """Return the code of a function and of everything at the top level of its module that it uses, as one text.

    Of modules beside it that are imported for it, the whole text; of a module that cannot be read that way, too.
    """
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    try:
        defined = _definitions(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return text
    if name not in defined:
        return text
    reached: dict[str, str] = {}
    waiting = [name]
    while waiting:
        used = waiting.pop()
        if used in reached or used not in defined:
            continue
        reached[used] = "".join(ast.dump(node) + _beside(node, file) for node in defined[used])
        waiting += [part.id for node in defined[used] for part in ast.walk(node) if isinstance(part, ast.Name)]
    return "\n".join(reached[used] for used in sorted(reached))


def _definitions(module: ast.Module) -> dict[str, list[ast.stmt]]:
    """Return the statements at the top level of a module, also within `if` and `try`, by the names that they bind."""
    found: dict[str, list[ast.stmt]] = {}
    waiting: list[ast.stmt] = [*module.body]
    while waiting:
        node = waiting.pop(0)
        for name in _bound(node):
            found.setdefault(name, []).append(node)
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                waiting += getattr(node, block, [])
        waiting += [inner for handler in getattr(node, "handlers", []) for inner in handler.body]
    return found


def _bound(node: ast.stmt) -> Sequence[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]


def _beside(node: ast.stmt, file: Path) -> str:
    """Return the text of the module that a statement imports, where it lies in the folder of the importing one."""
    if isinstance(node, ast.ImportFrom):
        names = [(node.module or "").rpartition(".")[2], *(alias.name for alias in node.names)]
    elif isinstance(node, ast.Import):
        names = [alias.name.rpartition(".")[2] for alias in node.names]
    else:
        return ""
    paths = [file.with_name(f"{name}.py") for name in names if name]
    return "".join(path.read_text("utf-8", "replace") for path in paths if path.is_file())
