"""Where formats are found: built in, registered, installed by other packages, and in files beside the tasks."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats import Format, find_format, format_registry, known_formats, laid_out, register_format
from pytest_promptfmt.formats.format_registry import published_format, published_names
from pytest_promptfmt.systems.task_files import load_tasks

TASK = "task: t\ndoc_to_text: question\ndoc_to_target: answer\ndoc_to_choice: choices\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "formats").mkdir()
    (tmp_path / "t.yaml").write_text(TASK, "utf-8")
    return tmp_path


def write(folder: Path, name: str, source: str) -> None:
    (folder / "formats" / f"{name}.yaml").write_text(source, "utf-8")


def read(folder: Path) -> Task:
    return load_tasks(folder / "t.yaml")[0]


@pytest.fixture
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(format_registry, "_registered", {})
    format_registry._entry_point_formats.cache_clear()
    yield
    format_registry._entry_point_formats.cache_clear()


def test_built_in_formats_come_first() -> None:
    assert list(known_formats())[:4] == ["mcqa", "cloze", "generate", "cot"]


def test_published_formats_are_the_files_of_the_package() -> None:
    files = {path.stem for path in (Path(format_registry.__file__).parents[1] / "data" / "formats").iterdir()}
    listed = [name for names in published_names().values() for name in names]
    assert sorted(listed) == sorted(files)
    assert [published_format(name).name for name in listed] == listed
    with pytest.raises(KeyError):
        published_format("mine")


def test_published_formats_are_read_when_they_are_asked_for() -> None:
    code = (
        "from pytest_promptfmt.formats import find_format\n"
        "from pytest_promptfmt.formats.format_registry import published_format\n"
        "assert published_format.cache_info().currsize == 0\n"
        "find_format('mmlu_pro')  # which starts from mmlu\n"
        "assert published_format.cache_info().currsize == 2"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=900)


def test_format_of_a_user_does_not_change_published_formats_of_other_names(folder: Path) -> None:
    write(folder, "mmlu", 'question_prefix: "Q: "')
    assert find_format("mmlu", folder).question_prefix == "Q: "
    assert find_format("mmlu_pro", folder).question_prefix is None


def test_every_format_says_what_it_is() -> None:
    assert all(layout.summary.endswith(".") for layout in known_formats().values())


def test_yaml_file_beside_the_tasks_is_a_format(folder: Path) -> None:
    write(folder, "short", 'type: cloze\nsummary: Short cues.\nquestion_prefix: "Q: "\nanswer_prompt: "A:"\n')
    layout = known_formats(folder)["short"]
    assert (layout.name, layout.summary, layout.choice_labels) == ("short", "Short cues.", None)
    _, made = laid_out(read(folder), ["short"])
    text = next(iter(made.render([{"question": "x", "choices": ["a"], "answer": 0}]))).prompts[0].text
    assert (made.id, text) == ("t@short", "Q: x\nA:")


def test_format_file_may_start_from_another_one(folder: Path) -> None:
    write(folder, "short", 'question_prefix: "Q: "')
    write(folder, "shorter", 'type: short\nanswer_prompt: "A:"')
    layout = find_format("shorter", folder)
    assert (layout.question_prefix, layout.answer_prompt) == ("Q: ", "A:")


def test_format_file_may_change_the_built_in_format_of_its_name(folder: Path) -> None:
    write(folder, "mcqa", 'question_prefix: "Q: "')
    assert find_format("mcqa", folder).question_prefix == "Q: "
    assert find_format("mcqa").question_prefix == "Question: "


def test_formats_that_start_from_each_other_end_at_the_installed_ones(folder: Path) -> None:
    write(folder, "a", "type: b")
    write(folder, "b", "type: a")
    with pytest.raises(FormatError, match="unknown format 'a'") as caught:
        find_format("a", folder)
    assert str(caught.value.position).endswith("formats/b.yaml:1:1")


def test_tasks_in_a_folder_called_formats_are_no_formats(folder: Path) -> None:
    write(folder, "one", TASK + "process_docs: !function here.there\n")
    assert "one" not in known_formats(folder)
    with pytest.raises(FormatError, match="unknown format 'one'"):
        find_format("one", folder)


def test_broken_file_does_not_hide_other_formats(folder: Path) -> None:
    write(folder, "broken", "a: [")
    assert find_format("mcqa", folder).name == "mcqa"
    with pytest.raises(FormatError, match="not valid YAML") as caught:
        known_formats(folder)
    assert caught.value.position is not None
    assert caught.value.position.path.name == "broken.yaml"


@pytest.mark.parametrize(
    ("source", "line", "says", "hint"),
    [
        ("type: mcqaa\n", 1, "unknown format 'mcqaa'", "mcqa"),
        ("type: 3\n", 1, "must be the name of a format, not 3", "mcqa"),
        ("type: mcqa\nanswer_promt: x\n", 2, "no field 'answer_promt'", "answer_prompt"),
        ("type: mcqa\nchoice_labels: leters\n", 2, "'leters'", "letters"),
        ("- a\n", 1, "a list at its top level", ""),
        ("", None, "nothing at its top level", ""),
    ],
)
def test_mistake_in_a_format_file_is_told_with_its_line(
    folder: Path, source: str, line: int | None, says: str, hint: str
) -> None:
    write(folder, "mine", source)
    with pytest.raises(FormatError) as caught:
        find_format("mine", folder)
    assert says in caught.value.message
    assert caught.value.position is not None
    assert (caught.value.position.path.name, caught.value.position.line) == ("mine.yaml", line)
    assert hint in (caught.value.hint or "")


@pytest.mark.usefixtures("fresh_registry")
def test_format_registered_by_code_is_known() -> None:
    register_format(Format(name="mine", question_prefix="Q: "))
    assert known_formats()["mine"].question_prefix == "Q: "


@pytest.mark.usefixtures("fresh_registry")
def test_installed_package_offers_formats_and_dataclasses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_formats.py").write_text(
        "from dataclasses import dataclass\nfrom pytest_promptfmt import Format\n"
        "ONE = Format(name='one', question_prefix='1: ')\nSEVERAL = [Format(name='two'), Format(name='three')]\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(Format):\n    question_prefix: str = 'Mine: '\n"
    )
    info = tmp_path / "their_formats-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-formats\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[pytest_promptfmt.formats]\none = their_formats:ONE\nseveral = their_formats:SEVERAL\n"
        "mine = their_formats:Mine\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_formats", raising=False)
    importlib.invalidate_caches()
    formats = known_formats()
    assert {"one", "two", "three", "mine"} <= formats.keys()
    assert formats["mine"].question_prefix == "Mine: "
    assert formats["mine"].changed({"answer_prompt": "A:"}).question_prefix == "Mine: "


@pytest.mark.usefixtures("fresh_registry")
def test_entry_point_that_does_not_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "broken_formats-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-formats\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pytest_promptfmt.formats]\nbad = no_such_module_here:X\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    with pytest.raises(FormatError, match=r"entry point 'bad'.*cannot be loaded"):
        known_formats()
