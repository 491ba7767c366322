"""Fixes: each is proved by rendering, changes nothing else, and changes nothing when it is made again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from rule_examples import write_example

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.rules.documentation import documentation_of
from pytest_promptfmt.rules.fixes import certain_name
from pytest_promptfmt.rules.fixing import Fixed, find_fixes, write_fixes
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.tasks.task_index import TaskIndex

RULES = {code: rule for code, rule in known_rules().items() if rule.is_builtin}
FIXABLE = [code for code, rule in RULES.items() if rule.fix is not None]

DOCS = """\
metadata: {promptfmt: {docs: [{question: "Which metal rusts?", choices: [iron, gold], answer: 0}]}}
"""
SHARED = """\
# what all share
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer: "   # a space too many
doc_to_choice: "{{choices}}"
doc_to_target: answer
"""


class Here:
    """The settings of one folder."""

    def __init__(self, folder: Path) -> None:
        self.index = TaskIndex([folder])
        self._settings = Settings(rootdir=folder, profiles=(PLAIN,))
        self._selection = Selection(rules=RULES, rootdir=folder)

    def settings_for(self, _file: Path) -> Settings:
        return self._settings

    def rules_for(self, _file: Path) -> Selection:
        return self._selection


def fixes_in(folder: Path, *below: Path) -> Fixed:
    return find_fixes(sorted(folder.glob("*.yaml")), Here(folder), below=below or (folder,))


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("_yaml", ".yaml")).write_bytes(text.encode())


@pytest.mark.parity
@pytest.mark.parametrize("code", FIXABLE)
def test_example_of_each_fixable_rule_is_fixed_once_and_for_all(code: str, tmp_path: Path) -> None:
    write_example(documentation_of(RULES[code]).example, tmp_path)
    fixed = fixes_in(tmp_path)
    if code not in ("PF908", "PF109", "PF107"):  # their examples are not spelling mistakes
        assert code in {finding.code for file in fixed.files for finding in file.findings}, fixed.refused
    write_fixes(fixed)
    again = fixes_in(tmp_path)
    assert again.files == ()
    if fixed.files and fixed.files[0].path.suffix == ".yaml":
        lm_eval_yaml = pytest.importorskip("lm_eval.tasks._yaml_loader")
        assert lm_eval_yaml.load_yaml(fixed.files[0].path)["task"] == "example"


def test_the_file_that_holds_the_key_is_edited_and_nothing_else_in_it(tmp_path: Path) -> None:
    write(tmp_path, _shared=SHARED.replace("\n", "\r\n"), a_yaml=f"include: _shared\ntask: a\n{DOCS}")
    write(tmp_path, b_yaml=f"include: _shared\ntask: b\n{DOCS}")
    [file] = fixes_in(tmp_path).files
    assert file.path == tmp_path / "_shared"
    assert file.after == file.before.replace(b'Answer: "', b'Answer:"')
    assert {finding.code for finding in file.findings} == {"PF201"}
    assert {finding.task for finding in file.findings} == {"a", "b"}
    assert dict(file.changed) == {"a": 2, "b": 2}  # the prompt, and the one with few-shot examples
    assert (tmp_path / "_shared").read_bytes() == file.before, "nothing is written before it is requested"


def test_a_fix_that_is_wrong_for_another_task_is_refused(tmp_path: Path) -> None:
    glued = f'include: _shared\ntask: b\ntarget_delimiter: ""\n{DOCS}'
    write(tmp_path, _shared=SHARED, a_yaml=f"include: _shared\ntask: a\n{DOCS}", b_yaml=glued)
    fixed = fixes_in(tmp_path)
    assert fixed.files == ()
    [(finding, reason)] = fixed.refused
    assert (finding.code, finding.task) == ("PF201", "a")
    assert reason == "the fix would cause a new finding in b: PF203 no delimiter between the question and the choices"


def test_files_outside_of_the_given_paths_are_not_edited(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    write(tmp_path, _shared=SHARED, **{"tasks/a_yaml": f"include: ../_shared\ntask: a\n{DOCS}"})
    fixed = find_fixes([tmp_path / "tasks" / "a.yaml"], Here(tmp_path), below=[tmp_path / "tasks"])
    assert fixed.files == ()
    assert [reason for _, reason in fixed.refused] == [
        "the key is in an included file outside the given paths: name a folder with both files"
    ]


def test_files_are_not_edited_through_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.yaml").write_text(f"task: a\n{SHARED}{DOCS}", "utf-8")
    (tmp_path / "a.yaml").symlink_to(tmp_path / "real" / "a.yaml")
    fixed = fixes_in(tmp_path)
    assert fixed.files == ()
    assert [reason for _, reason in fixed.refused] == ["the given path is a link: give the path of the real file"]


def test_a_file_that_changed_in_the_meantime_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, a_yaml=f"task: a\n{SHARED}{DOCS}")
    fixed = fixes_in(tmp_path)
    (tmp_path / "a.yaml").write_text("task: other\n", "utf-8")
    with pytest.raises(SourceError, match="changed in the meantime"):
        write_fixes(fixed)
    assert (tmp_path / "a.yaml").read_text() == "task: other\n"


def test_what_a_fix_uncovers_is_fixed_as_well(tmp_path: Path) -> None:
    task = (
        "task: a\ntest_split: test\noutput_type: generate_until\n"
        'doc_to_text: "Question: {{question}}\\nAnswer:"\ndoc_to_target: "{{choices[answer]}}"\n'
        "generation_kwargs:\n  untill: ['\\n']  # one line\n  max_gen_toks: 12\n"
    )
    write(tmp_path, a_yaml=task + DOCS)
    fixed = fixes_in(tmp_path)
    write_fixes(fixed)
    config = yaml.safe_load((tmp_path / "a.yaml").read_text())
    assert config["generation_kwargs"] == {"until": ["\n"], "max_gen_toks": 12}
    assert "  # one line\n" in (tmp_path / "a.yaml").read_text()
    assert [finding.code for file in fixed.files for finding in file.findings] == ["PF908", "PF902"]
    assert dict(fixed.files[0].changed) == {}


def test_a_literal_newline_before_the_answer_is_removed_with_its_fix(tmp_path: Path) -> None:
    text = "task: a\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{question}} Labels only\\n'\n"
    write(tmp_path, a_yaml=f'{text}doc_to_choice: "{{{{choices}}}}"\ndoc_to_target: answer\n{DOCS}')
    fixed = fixes_in(tmp_path)
    assert fixed.refused == ()
    assert b'doc_to_text: "{{question}} Labels only"' in fixed.files[0].after or b"Labels only'" in fixed.files[0].after


def test_a_misspelt_filter_gets_the_name_that_is_certain(tmp_path: Path) -> None:
    task = (
        "task: a\ntest_split: test\noutput_type: generate_until\n"
        'doc_to_text: "Question: {{question}}\\nAnswer:"\ndoc_to_target: "{{choices[answer]}}"\n'
        'metric_list: [{metric: exact_match}]\ngeneration_kwargs: {until: ["\\n"]}\n'
        "filter_list:\n- name: x\n  filter:\n  - function: take_frist  # the first\n"
    )
    write(tmp_path, a_yaml=task + DOCS)
    fixed = fixes_in(tmp_path)
    assert fixed.refused == ()
    [file] = fixed.files
    assert file.after == file.before.replace(b"take_frist", b"take_first")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("untill", "until"), ("temprature", "temperature"), ("top_q", None), ("until", None), ("x", None)],
)
def test_only_one_name_that_is_certain_is_meant(name: str, meant: str | None) -> None:
    assert certain_name(name, ("until", "temperature", "top_k", "top_p")) == meant


def test_a_run_reads_the_real_files_again_after_it_tried_an_edit(tmp_path: Path) -> None:
    write(tmp_path, a_yaml=f"task: a\n{SHARED}{DOCS}")
    first, second = fixes_in(tmp_path), fixes_in(tmp_path)
    assert first == second
    assert gate.read_bytes(tmp_path / "a.yaml") == first.files[0].before
