"""The version of a task class is read from its file, also from a class above it, and raised in place."""

from pathlib import Path

from pytest_promptfmt.revisions.source_changes import differences
from pytest_promptfmt.revisions.versions import PARTS, bumps, version_gate

MODULE = """\
raise SystemExit("this file is read, never run")


class Base:
    VERSION = 1


class Capitals(Base):
    cue = "Q: "
"""


def test_a_changed_class_that_kept_its_version_is_an_error_and_is_raised(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    changed = MODULE.replace("Q: ", "Question: ")
    for side, text in ((before, MODULE), (after, changed)):
        side.mkdir()
        (side / "classes.py").write_text(text, "utf-8")
    files = {"classes.py": "classes.py"}
    found_by = differences(before, after, files)
    [found] = version_gate(
        before, after, {("classes.py", "Capitals"): {"text"}}, files=files, counts=PARTS, differences=found_by
    )
    assert (found.kind, found.tasks, str(found.place)) == ("kept", ("Capitals",), "classes.py:5:15")
    [bump], refused = bumps([found], after, tmp_path)
    assert (bump.after.decode(), refused) == (changed.replace("VERSION = 1", "VERSION = 2"), [])


def test_the_version_of_a_base_class_in_another_file_counts_for_a_class_that_yaml_names(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    module = "from package.base import Base\n\n\nclass Capitals(Base):\n    cue = 'Q: '\n"
    for side, text in ((before, module), (after, module.replace("Q: ", "Question: "))):
        (side / "package").mkdir(parents=True)
        (side / "package/base.py").write_text("class Base:\n    VERSION = 1\n", "utf-8")
        (side / "capitals.py").write_text(text, "utf-8")
        (side / "capitals.yaml").write_text("class: capitals:Capitals\ndocs: rows.jsonl\n", "utf-8")
    files = {"capitals.yaml": "capitals.yaml"}
    found_by = differences(before, after, files)
    [found] = version_gate(
        before, after, {("capitals.yaml", "Capitals"): {"text"}}, files=files, counts=PARTS, differences=found_by
    )
    assert (found.kind, found.tasks, str(found.place)) == ("kept", ("Capitals",), "package/base.py:2:15")
