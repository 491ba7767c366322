"""The images and sound of a doc as a snapshot names them: what a column holds, files with a digest of their content."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError
from pytest_promptfmt.core.randomness import OwnRandomness
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.profiles.chat_prompt import IMAGE
from pytest_promptfmt.tasks.rendering.field_mappings import MODEL_ARGUMENTS, call_function

MEDIA_KEYS: Final = ("doc_to_image", "doc_to_audio", "doc_to_visual", "doc_to_messages")
"""Keys of lm-eval and lmms-eval that give images or sound."""

PLACEHOLDERS: Final[Mapping[str, str]] = {"doc_to_image": IMAGE, "doc_to_audio": "<audio>"}
"""The text that models of lm-eval replace by an image or sound; lmms-eval puts both before the question."""

_VISUAL: Final = "doc_to_visual"
_MESSAGES: Final = "doc_to_messages"

LMMS_EVAL_KEYS: Final = (*MODEL_ARGUMENTS, _VISUAL, _MESSAGES)
"""Keys that tasks of lmms-eval have, and those of lm-eval have not."""

_LONGEST_NAME: Final = 200


class _Picture(str):
    """The name of an image file in a doc, for code that gets the image itself from a dataset, and converts it."""

    __slots__ = ()

    def convert(self, *_modes: object, **_more: object) -> _Picture:
        """Return the same picture: what counts is which one is sent."""
        return self


def media_notes(task: Task, docs: TaskDocs, doc: Doc, text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the notes of an instance about its media, one for each key; none of synthetic docs.

    Each part of the prompt is named with its place: the placeholders in the `text` of all turns take images in their
    order. Functions are called, under the limits of all code of a task; one that fails, as it may where the doc holds
    the name of a file and not what is in it, is named.
    """
    if docs.kind != "given":
        return ()
    written = ((key, task.media.get(key, task.config.get(key))) for key in MEDIA_KEYS)
    return tuple(
        (key, tuple(_placed(PLACEHOLDERS.get(key), text, [*_lines(key, value, task, doc)])))
        for key, value in written
        if value is not None
    )


def own_messages(task: Task, docs: TaskDocs, doc: Doc) -> Sequence[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Return the roles and content parts that `doc_to_messages` gives for a given doc; none where it fails."""
    written = task.media.get(_MESSAGES)
    made = _called(_MESSAGES, written, task, doc) if docs.kind == "given" and callable(written) else None
    if not made or not all(isinstance(each, Mapping) and {"role", "content"} <= {*each} for each in made):
        return ()
    return [(str(each["role"]), [*map(_part, _listed(each["content"]))]) for each in made]


def _part(content: Any) -> Mapping[str, Any]:
    kind = content.get("type", "text") if isinstance(content, Mapping) else "text"
    text = content.get("text", "") if isinstance(content, Mapping) else content
    return {"type": kind, "text": str(text)} if kind == "text" else {"type": str(kind)}


def leading_media(task: Task, docs: TaskDocs, doc: Doc) -> tuple[str, ...]:
    """Return the kinds of what lmms-eval puts before the question of a given doc: image, audio and video."""
    written = task.media.get(_VISUAL, task.config.get(_VISUAL))
    if docs.kind != "given" or written is None or task.config.get(_MESSAGES) is not None:
        return ()
    if callable(written):
        return tuple(map(_kind, _called(_VISUAL, written, task, doc) or ()))
    return (_kind(doc[written]),) if isinstance(written, str) and written in doc else ()


def _kind(value: Any) -> str:
    """Return the kind that lmms-eval takes something for: a file by the end of its name."""
    if isinstance(value, Mapping) and "bytes" not in value:
        return str(value.get("type", "video"))
    if isinstance(value, str | PurePath):
        ending = PurePath(value).suffix.lower()
        return next((kind for kind, endings in data_table("data_files")["media"].items() if ending in endings), "video")
    return "image"


def _placed(placeholder: str | None, text: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield each part with its place in the text, and the places that no part is for."""
    if placeholder is None or not all(": " in part for part in parts):  # a function that failed
        yield from parts
        return
    count = text.count(placeholder)
    for number in range(max(count, len(parts))):
        place = f"{placeholder} {number + 1}" if number < count else f"no {placeholder} in the prompt"
        yield f"{place}: {parts[number] if number < len(parts) else 'nothing'}"


def _lines(key: str, written: Any, task: Task, doc: Doc) -> Iterator[str]:
    for name in written if isinstance(written, list | tuple) else (written,):
        if isinstance(name, str):
            values = _listed(doc[name]) if name in doc else []
            yield from (f"{name}: {_shown(value, task)}" for value in values if value is not None)
            if name not in doc:
                yield f"{name}: not a column"
        elif callable(name):
            given = _called(key, name, task, doc)
            made = [""] if given is None else [f": {_shown(value, task)}" for value in given]
            yield from (f"!function {task.config[key]}{each}" for each in made)
        else:
            yield f"!function {name}" if isinstance(name, FunctionRef) else type(name).__name__


def _called(key: str, function: Any, task: Task, doc: Doc) -> Sequence[Any] | None:
    """Return what a function gives for a doc, None where it fails."""
    try:
        with OwnRandomness(task).used():
            own = {name: _as_picture(value) for name, value in copy.deepcopy(dict(doc)).items()}
            given = call_function(function, own, key=key, where=f"of {task.id!r}", position=task.position(key))
            return [] if given is None else _listed(given)
    except LimitExceededError:
        raise
    except PromptfmtError:
        return None


def _as_picture(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_as_picture, value)]
    return _Picture(value) if isinstance(value, str) and _kind(value) == "image" else value


def with_media_columns(task: Task, docs: TaskDocs) -> TaskDocs:
    """Return synthetic docs with the columns of images and sound, which no template names; others as they are."""
    written = [task.config.get(key) for key in PLACEHOLDERS]
    names = [name for one in written for name in _listed(one) if isinstance(name, str) and name not in docs.columns]
    if docs.kind != "synthetic" or not names:
        return docs
    more = dict.fromkeys(names, "media")
    filled = [tuple({**doc, **more} for doc in given) for given in (docs.evaluated, docs.fewshot)]
    return replace(docs, evaluated=filled[0], fewshot=filled[1], columns=(*docs.columns, *more))


def sent_media(task: Task, doc: Doc) -> tuple[str, ...]:
    """Return the images and sound that requests of lm-eval hold besides texts, as `shown_media` shows them.

    Raises RenderError for a function that fails.
    """
    made: list[Any] = []
    for key in PLACEHOLDERS:
        written = task.media.get(key, task.config.get(key))
        for name in written if isinstance(written, list | tuple) else (written,):
            if callable(name):
                with OwnRandomness(task).used():
                    own = copy.deepcopy(dict(doc))
                    made.append(call_function(name, own, key=key, where=f"of {task.id!r}", position=task.position(key)))
            elif isinstance(name, str):
                made.append(doc.get(name))
    return shown_media(made, task)


def shown_media(values: Any, task: Task) -> tuple[str, ...]:
    """Return each image or sound in nested lists as a file with the digest of its content, or as a digest."""
    if isinstance(values, list | tuple):
        return tuple(shown for value in values for shown in shown_media(value, task))
    return () if values is None else (_shown(values, task),)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _shown(value: Any, task: Task) -> str:
    """Return a file with the digest of its content, a short text, or the digest of anything else."""
    if isinstance(value, Mapping) and ("bytes" in value or "path" in value):  # as Hugging Face datasets stores both
        path, value = value.get("path"), value.get("bytes") or value.get("path")
        return _shown(value, task) if path in (None, value) else f"{path}, {_shown(value, task)}"
    if hasattr(value, "tobytes"):  # of PIL or numpy
        size = getattr(value, "shape", None) or getattr(value, "size", "")
        return f"{type(value).__name__} {size}, sha256 {sha256(value.tobytes()).hexdigest()[:12]}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes, sha256 {sha256(value).hexdigest()[:12]}"
    value = str(value) if isinstance(value, PurePath) else value
    if isinstance(value, str) and len(value) <= _LONGEST_NAME:
        if task.path is None or "://" in value:
            return value
        name = Path(value).name if Path(value).is_absolute() else value
        try:
            content = gate.read_bytes(gate.named(task.path.parent, value))
        except (OSError, ValueError):
            return f"{name}, no file here"
        return f"{name}, sha256 {sha256(content).hexdigest()[:12]}"
    text = (
        value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=lambda each: _shown(each, task))
    )
    return f"{type(value).__name__}, sha256 {sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
