"""A task that differs from its siblings in one key is named, whichever key, task and size of the family it is."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st

from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.rules.linter import check_file
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex

VALUES = {
    "doc_to_text": ('"Q: {{question}}\\nA:"', '"Q: {{query}}\\nA:"'),
    "doc_to_target": ("answer", "gold"),
    "doc_to_choice": ("[A, B, C]", "[A, B, D]"),
    "generation_kwargs": ('{until: ["\\n"]}', '{until: ["Q:"]}'),
    "fewshot_split": ("train", "test"),
    "target_delimiter": ('" "', '""'),
}
ONE = Selection(rules={"PF136": known_rules()["PF136"]}, select=("PF136",))


def unlike(folder: Path) -> list[Reported]:
    """Return what is said about the group of a folder."""
    index = TaskIndex([folder])
    file = read_task_file(folder / "group.yaml", index)
    assert file is not None
    assert file.yaml is not None
    view = FileView(path=folder / "group.yaml", yaml=file.yaml, file=file, index=index)
    return [*check_file(view, ONE).findings]


@given(
    keys=st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=2, unique=True),
    odd=st.sets(st.integers(0, 3), max_size=2),
    count=st.integers(4, 8),
)
@settings(max_examples=40, deadline=None)
def test_the_only_task_with_another_value_of_one_key_is_named_with_both_places(
    keys: list[str], odd: set[int], count: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shared = "".join(f"{key}: {usual}\n" for key, (usual, _) in VALUES.items())
        (folder / "_base").write_text(f"output_type: multiple_choice\n{shared}", "utf-8")
        for number in range(count):
            own = "".join(f"{key}: {VALUES[key][1]}\n" for key in keys if number in odd)
            (folder / f"{number}.yaml").write_text(f"include: _base\ntask: t{number}\n{own}", "utf-8")
        members = ", ".join(f"t{number}" for number in range(count))
        (folder / "group.yaml").write_text(f"group: family\ntask: [{members}]\n", "utf-8")
        found = unlike(folder)
    if len(keys) > 1 or len(odd) != 1 or count < 5:
        assert not found
        return
    (one,), (number,) = found, odd
    assert one.severity is Severity.INFO
    assert one.position is not None
    assert (one.position.path.name, one.position.line) == (f"{number}.yaml", 3)
    assert keys[0] in one.message
    assert "_base:" in one.saw
