"""Images and sound of a doc as snapshots name them, and what lmms-eval puts before a question."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.profiles.chat_prompt import IMAGE
from pytest_promptfmt.tasks.rendering.media import (
    leading_media,
    media_notes,
    own_messages,
    sent_media,
    shown_media,
    with_media_columns,
)

BYTES = b"\x89PNG"
SHOWN = f"4 bytes, sha256 {sha256(BYTES).hexdigest()[:12]}"
DOC = {"image": BYTES, "many": [BYTES, None, "b.png"], "clip": "a.MP4", "sound": "a.wav", "none": None}
GIVEN = TaskDocs.in_memory([DOC])
SYNTHETIC = replace(GIVEN, kind="synthetic")


def task(media: dict[str, Any] | None = None, **config: Any) -> Task:
    return Task(name="see", doc_to_text="{{ image }}", doc_to_target="", config=config, media=media or {})


@pytest.mark.parametrize(
    ("config", "text", "notes"),
    [
        ({}, "", []),
        ({"doc_to_image": ["image"]}, f"a {IMAGE} b", [f"{IMAGE} 1: image: {SHOWN}"]),
        ({"doc_to_image": "image"}, "a", [f"no {IMAGE} in the prompt: image: {SHOWN}"]),
        ({"doc_to_image": ["many"]}, IMAGE, [f"{IMAGE} 1: many: {SHOWN}", f"no {IMAGE} in the prompt: many: b.png"]),
        ({"doc_to_image": ["image"]}, IMAGE * 2, [f"{IMAGE} 1: image: {SHOWN}", f"{IMAGE} 2: nothing"]),
        ({"doc_to_image": ["nothing"]}, IMAGE, [f"{IMAGE} 1: nothing: not a column"]),
        ({"doc_to_image": [3]}, IMAGE, ["int"]),
        ({"doc_to_audio": ["none"]}, "", []),
        ({"doc_to_visual": "image"}, "", [f"image: {SHOWN}"]),
    ],
)
def test_each_part_of_the_prompt_is_named_with_its_place(config: dict[str, Any], text: str, notes: list[str]) -> None:
    assert media_notes(task(**config), GIVEN, DOC, text) == tuple((key, tuple(notes)) for key in config)
    assert media_notes(task(**config), SYNTHETIC, DOC, text) == ()


def failing(doc: dict[str, Any]) -> Any:
    raise ValueError("no such file")


def test_a_function_is_called_and_one_that_fails_is_named_without_places() -> None:
    made = task({"doc_to_image": lambda doc: [doc["image"], "b"]}, doc_to_image="utils.images")
    assert media_notes(made, GIVEN, DOC, IMAGE * 2) == (
        ("doc_to_image", (f"{IMAGE} 1: !function utils.images: {SHOWN}", f"{IMAGE} 2: !function utils.images: b")),
    )
    broken = task({"doc_to_image": failing}, doc_to_image="utils.images")
    assert media_notes(broken, GIVEN, DOC, IMAGE) == (("doc_to_image", ("!function utils.images",)),)
    nothing = task({"doc_to_image": lambda doc: None}, doc_to_image="utils.images")
    assert media_notes(nothing, GIVEN, DOC, "") == (("doc_to_image", ()),)


@pytest.mark.parametrize(
    ("written", "kinds"),
    [
        (None, ()),
        ("image", ("image",)),
        ("clip", ("video",)),
        ("sound", ("audio",)),
        ("nothing", ()),
        (3, ()),
        (lambda doc: ["a.png", PurePosixPath("b.WAV"), "c.x", BYTES], ("image", "audio", "video", "image")),
        (lambda doc: [{"bytes": BYTES}], ("image",)),
        (lambda doc: [{"type": "audio"}, {"path": "a"}], ("audio", "video")),
        (lambda doc: None, ()),
        (failing, ()),
    ],
)  # fmt: skip
def test_what_is_before_a_question_has_the_kind_of_its_file(written: Any, kinds: tuple[str, ...]) -> None:
    made = task({"doc_to_visual": written} if callable(written) else None, doc_to_visual=written)
    assert leading_media(made, GIVEN, DOC) == kinds
    assert leading_media(made, SYNTHETIC, DOC) == ()
    assert leading_media(task({"doc_to_visual": written}, doc_to_messages="m"), GIVEN, DOC) == ()


@pytest.mark.parametrize(
    ("made", "messages"),
    [
        (None, []),
        ([], []),
        ("text", []),
        ([{"role": "user"}], []),
        ([{"role": "user", "content": "a"}], [("user", [{"type": "text", "text": "a"}])]),
        (
            [{"role": "user", "content": [{"type": "image", "url": BYTES}, {"type": "text", "text": "a"}, {}]}],
            [("user", [{"type": "image"}, {"type": "text", "text": "a"}, {"type": "text", "text": ""}])],
        ),
    ],
)
def test_own_messages_are_roles_and_parts_without_the_media(made: Any, messages: list[Any]) -> None:
    own = task({"doc_to_messages": lambda doc: made}, doc_to_messages="utils.messages")
    assert [*own_messages(own, GIVEN, DOC)] == messages
    assert [*own_messages(own, SYNTHETIC, DOC)] == []
    assert [*own_messages(task(doc_to_messages="utils.messages"), GIVEN, DOC)] == []


def test_synthetic_docs_get_the_columns_of_media_that_no_template_names() -> None:
    docs = replace(SYNTHETIC, evaluated=({"image": 1},), fewshot=({"image": 2},), columns=("image",))
    made = with_media_columns(task(doc_to_image=["image", "extra"], doc_to_audio="sound", doc_to_visual="other"), docs)
    assert made.columns == ("image", "extra", "sound")
    assert made.evaluated == ({"image": 1, "extra": "media", "sound": "media"},)
    assert made.fewshot == ({"image": 2, "extra": "media", "sound": "media"},)
    assert with_media_columns(task(doc_to_image="image"), docs) is docs
    assert with_media_columns(task(doc_to_image="extra"), GIVEN) is GIVEN


def test_a_file_has_its_name_or_the_digest_of_its_content(tmp_path: Path) -> None:
    stored = [{"path": "a.png", "bytes": BYTES}, {"path": None, "bytes": BYTES}, {"path": "a.png", "bytes": None}]
    assert shown_media(stored, task()) == (f"a.png, {SHOWN}", SHOWN, "a.png")
    assert shown_media([[None, ["a.png"]]], task()) == ("a.png",)
    assert sent_media(task({"doc_to_audio": lambda doc: "a.wav"}, doc_to_image=["image", "none"]), DOC) == (
        SHOWN,
        "a.wav",
    )
