"""Images and sound of docs are in snapshots by name and digest, next to the text around them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.systems.task_files import load_tasks
from pytest_promptfmt.tasks import render_task

KEYS: dict[str, Any] = {
    "doc_to_text": "<image>{{question}}",
    "doc_to_target": "{{answer}}",
    "doc_to_image": ["chart", "gone"],
    "metric_list": [{"metric": "exact_match"}],
}
DOC = {"question": "How high?", "answer": "3", "chart": "images/chart.png", "gone": "images/gone.png"}


def with_docs(project: Project, **columns: object) -> None:
    project.task("seen.yaml", **KEYS, metadata={"promptfmt": {"docs": [{**DOC, **columns}]}})


def shown(project: Project) -> str:
    project.run("--snapshot-update", "-k", "snapshot")
    (text,) = [content.decode() for path, content in project.snapshots().items() if "plain" in path]
    return text


@pytest.fixture
def seen(project: Project) -> Project:
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\n")
    (project.root / "images").mkdir()
    (project.root / "images/chart.png").write_bytes(b"first")
    return project


def test_a_file_is_named_with_its_digest_and_another_content_changes_the_snapshot(seen: Project) -> None:
    with_docs(seen)
    text = shown(seen)
    assert '"<image> 1: chart: images/chart.png, sha256 a7937b64b8ca"' in text
    assert '"no <image> in the prompt: gone: images/gone.png, no file here"' in text
    seen.run("-k", "snapshot").assert_outcomes(passed=1)
    (seen.root / "images/chart.png").write_bytes(b"second")
    changed = seen.run("-k", "snapshot")
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(["*chart: images/chart.png, sha256*"])


def test_other_values_are_shown_by_their_digest(seen: Project) -> None:
    coded = base64.b64encode(b"x" * 300).decode()
    with_docs(seen, chart=[{"path": "a.png", "bytes": coded}, "https://example.org/a.png"], gone=[[1, 2]])
    text = shown(seen)
    assert '"<image> 1: chart: a.png, str, sha256 ' in text
    assert ': chart: https://example.org/a.png"' in text
    assert ": gone: list, sha256 " in text


VISION = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part.text }}
{%- endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.mark.parametrize(
    ("template", "user", "texts"),
    [
        (VISION, "At <|vision_start|><|image_pad|><|vision_end|> see: How high?", ["At ", " see: ", "How high?"]),
        (VISION.replace("'image'", "'video' or 'image' == 1"), "At <image> see: How high?", None),
        ("{% for each in messages %}{{ each.content }}{% endfor %}, image", "At <image> see: How high?", None),
    ],
)
def test_a_chat_template_that_takes_images_gets_content_parts(
    template: str, user: str, texts: list[str] | None
) -> None:
    (task,) = load_tasks({"task": "seen", "test_split": "test", **KEYS, "doc_to_text": "At <image> see: {{question}}"})
    (made,) = render_task(task, TaskDocs.in_memory([DOC]), Profile(name="p", chat_template=template))
    (prompt,) = made.prompts
    assert user in prompt.text
    assert [span.text for span in prompt.spans if span.origin.part == "question"] == (
        texts or ["At <image> see: ", "How high?"]
    )


@pytest.mark.parametrize(
    ("column", "count"), [("images/chart.png", 1), ("sound.wav", 0), ("clip.mp4", 0), ("images/chart.svg", 0)]
)
def test_what_lmms_eval_puts_before_the_question_are_content_parts(column: str, count: int) -> None:
    written = {**KEYS, "doc_to_text": "{{question}}", "doc_to_image": None, "doc_to_visual": "chart"}
    (task,) = load_tasks({"task": "seen", "test_split": "test", **written})
    doc = {**DOC, "chart": column}
    (made,) = render_task(task, TaskDocs.in_memory([doc]), Profile(name="p", chat_template=VISION))
    text = "<|im_start|>user\n" + "<|vision_start|><|image_pad|><|vision_end|>" * count + "How high?<|im_end|>\n"
    assert made.prompts[0].text.startswith(text)


PICTURES = """
import pathlib
FOLDER = pathlib.Path(__file__).parent

class Picture:
    size = (3, 2)
    def tobytes(self):
        return b"pixels"

def files(doc):
    return [FOLDER / doc["chart"], Picture()]

def converted(doc):
    return [doc["chart"].convert("RGB")]

def fails(doc):
    return doc["chart"].convert("RGB").size
"""


MESSAGES = """
def messages(doc, lmms_eval_specific_kwargs=None):
    text = doc["question"] + lmms_eval_specific_kwargs["post_prompt"]
    image = {"type": "image", "url": doc["chart"]}
    return [
        {"role": "system", "content": "Think."},
        {"role": "user", "content": [{"type": "text", "text": "First: "}, image, {"type": "text", "text": text}]},
    ]


def visual(doc, lmms_eval_specific_kwargs):
    return [doc["chart"] + lmms_eval_specific_kwargs["suffix"]]
"""


@pytest.mark.parametrize(
    ("template", "user"),
    [
        (VISION, "First: <|vision_start|><|image_pad|><|vision_end|>How high? Be short."),
        (VISION.replace("'image'", "'picture'"), "First: How high? Be short."),
    ],
)
def test_messages_of_lmms_eval_are_the_prompt_of_a_chat(tmp_path: Path, template: str, user: str) -> None:
    (tmp_path / "making.py").write_text(MESSAGES, "utf-8")
    keys = "task: seen\ntest_split: test\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\n"
    keys += "output_type: generate_until\ndescription: Unused.\ndoc_to_messages: !function making.messages\n"
    keys += "doc_to_visual: !function making.visual\n"
    keys += "lmms_eval_specific_kwargs: {default: {post_prompt: ' Be short.', suffix: .txt}}\n"
    (tmp_path / "seen.yaml").write_text(keys, "utf-8")
    (task,) = load_tasks(tmp_path / "seen.yaml", allow_code=True)
    docs = TaskDocs.in_memory([DOC])
    (made,) = render_task(task, docs, Profile(name="p", chat_template=template))
    opening = "<|im_start|>system\nThink.<|im_end|>\n<|im_start|>user\n"
    assert made.prompts[0].text == f"{opening}{user}<|im_end|>\n<|im_start|>assistant\n"
    assert {span.origin.key for span in made.prompts[0].spans if span.origin.part == "question"} == {"doc_to_messages"}
    assert ("doc_to_visual", ("!function making.visual: images/chart.png.txt, no file here",)) in made.notes
    (plain,) = render_task(task, docs)
    assert plain.prompts[0].text == "Unused.How high?"


def test_functions_that_give_images_are_called_for_given_docs(seen: Project) -> None:
    seen.write("pictures.py", PICTURES)
    with_docs(seen)
    task = (seen.root / "seen.yaml").read_text("utf-8").replace("doc_to_image:", "columns:")
    functions = "doc_to_image: !function pictures.files\ndoc_to_visual: !function pictures.fails\n"
    seen.write("seen.yaml", f"{task}\n{functions}")
    text = shown(seen)
    assert '"<image> 1: !function pictures.files: chart.png, sha256 a7937b64b8ca"' in text
    assert ": !function pictures.files: Picture (3, 2), sha256 " in text
    assert '"!function pictures.fails"' in text
    seen.edit("seen.yaml", "pictures.fails", "pictures.converted")
    assert '"!function pictures.converted: images/chart.png, sha256 a7937b64b8ca"' in shown(seen)


def test_synthetic_docs_have_no_media(seen: Project) -> None:
    seen.task("seen.yaml", **KEYS)
    assert "sha256" not in shown(seen)


def test_a_file_is_an_input_of_cached_outcomes(cached_project: Project) -> None:
    project = cached_project
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\n")
    project.write("images/chart.png", "first")
    with_docs(project)
    project.accept()
    project.settle()
    project.run()
    assert project.run().parseoutcomes()["unchanged"] == 2
    project.write("images/chart.png", "other")
    assert project.run().parseoutcomes()["failed"] == 1
