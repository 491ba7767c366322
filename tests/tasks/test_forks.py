"""Folders and forks as users have them: built-in members of groups, keys, types and filters of another harness."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
from linting import study_of
from plugin_project import Project

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import (
    DocsError,
    FunctionError,
    Position,
    RenderError,
    ScoringError,
    SourceError,
    SyntheticDocsError,
    UnavailableError,
    UnavailableScoringError,
)
from pytest_promptfmt.core.finding import Severity
from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.release import release_of
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.results.terminal import release_note
from pytest_promptfmt.rules import config, names
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.rules.smoke import scoring_failure
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.systems.task_files import load_tasks, read_task_file
from pytest_promptfmt.tasks import bind_functions, load_docs, render_task, unknown_keys
from pytest_promptfmt.tasks.harness import forget_places, found_release, harness_around, installed_harness
from pytest_promptfmt.tasks.rendering.sampling import make_sampler
from pytest_promptfmt.tasks.scoring.filters import pipelines_of
from pytest_promptfmt.tasks.scoring.registered import with_registered
from pytest_promptfmt.tasks.task_file import TaskFile
from pytest_promptfmt.tasks.task_index import TaskIndex

TASK = "doc_to_text: 'Q: {{q}}'\ndoc_to_target: '{{a}}'\n"
CONFIG = "class TaskConfig(dict):\n    task: str | None = None\n    doc_to_visual: object = None\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path = path if path.suffix else path.with_suffix(".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def fork(folder: Path, version: str = "0.4.9") -> Path:
    """Write a checkout of a harness with two tasks, a group, and a tag that an included file gives; return its path."""
    (folder / "lm_eval/api").mkdir(parents=True)
    (folder / "lm_eval/api/task.py").write_text(CONFIG, "utf-8")
    (folder / "lm_eval/__init__.py").touch()
    (folder / "pyproject.toml").write_text(f'[project]\nname = "lm_eval"\nversion = "{version}"\n', "utf-8")
    tasks = folder / "lm_eval/tasks"
    (tasks / "sums").mkdir(parents=True)
    (tasks / "sums/_base_yaml").write_text(f"tag: counting\ndataset_path: nowhere/sums\n{TASK}", "utf-8")
    (tasks / "sums/all.yaml").write_text('"include": _base_yaml\n"task": \'sums_all\'  # every one\n', "utf-8")
    return write(tasks, metals=f"task: metals\n{TASK}", pair="group: pair\ntask: [metals, sums_all]\n")


def read(path: Path, *folders: Path) -> TaskFile:
    file = read_task_file(path, TaskIndex(folders or [path.parent]))
    assert file is not None
    return file


def severities(path: Path) -> dict[str, Severity]:
    """Return what the rules about names and keys say of a file, by code."""
    index = TaskIndex([path.parent])
    file = read_task_file(path, index)
    assert file is not None
    assert file.yaml is not None
    view = FileView(path=path, yaml=file.yaml, file=file, index=index)
    rules = {"PF131": names.unresolved_member, "PF137": config.group_of_a_task, "PF117": config.unknown_key}
    default = {"PF131": Severity.ERROR}
    found = {code: next(iter(rule(view)), None) for code, rule in rules.items()}
    return {code: each.severity or default.get(code, Severity.WARNING) for code, each in found.items() if each}


def test_a_checkout_is_found_around_its_files_and_read_without_being_imported(tmp_path: Path) -> None:
    tasks = fork(tmp_path, "0.4.3")
    harness = harness_around(tasks / "sums")
    assert harness is not None
    assert (harness.title, harness.reads_early_yaml) == ("lm-eval 0.4.3", True)
    assert harness.task_keys == {"task", "doc_to_visual"}
    assert harness_around(tmp_path.parent) is None


def test_an_index_of_all_tasks_of_a_checkout_does_not_depend_on_their_snapshots(tmp_path: Path) -> None:
    tasks = fork(tmp_path)
    (tasks / "sums/__prompts__/metals").mkdir(parents=True)
    index = TaskIndex([tasks])
    assert index.outer is None
    assert not [place for place in index.places() if "__prompts__" in place]


def test_members_of_a_group_are_looked_up_in_the_checkout_around_it(tmp_path: Path) -> None:
    fork(tmp_path)
    write(tmp_path / "own", g="group: g\ntask: [metals, pair, counting, sums_all, no_such_task]\n")
    assert read(tmp_path / "own/g.yaml").unresolved == ("no_such_task",)


def test_files_that_include_each_other_end_the_search_for_a_tag(tmp_path: Path) -> None:
    tasks = fork(tmp_path)
    (tasks / "sums/_a_yaml").write_text("include: _b_yaml\ntag: circling\n", "utf-8")
    (tasks / "sums/_b_yaml").write_text("include: _a_yaml\n", "utf-8")
    (tasks / "sums/c.yaml").write_text("include: _b_yaml\ntask: c\n", "utf-8")
    harness = harness_around(tasks / "sums")
    assert harness is not None
    assert harness.defining("circling") == ("tag", (tasks / "sums/c.yaml",))


REGISTERED = """
from lm_eval.api.registry import register_task
@register_task("quality")
class Quality: ...
raise SystemExit("this file is never run")
"""


def test_classes_that_an_old_release_registers_in_python_are_known_and_not_tested(project: Project) -> None:
    tasks = fork(project.root, "0.4.1")
    write(tasks, reading__all="group: reading\ntask: [quality, metals, qualty]\n")
    (tasks / "reading/task.py").write_text(REGISTERED, "utf-8")
    group = tasks / "reading/all.yaml"
    for folders in ((), (tasks,)):
        file = read(group, *folders)
        assert file.unresolved == ("qualty",)
        (error,) = file.untested.values()
        assert fnmatchcase(
            error.message, "quality is a Python task class (*reading/task.py), which makes its prompts in its own code"
        )
    arguments = ("lm_eval/tasks/reading", "-o", "promptfmt_lint=true")
    for _ in range(2):  # the second run reads the cache
        shown = project.run(*arguments).stdout.str()
        assert "quality is a Python task class" in shown
        assert ("saw: qualty" in shown, "saw: quality" in shown) == (True, False)
    (tasks / "reading/task.py").write_text(REGISTERED.replace('"quality"', '"quantity"'), "utf-8")
    assert "saw: quality" in project.run(*arguments).stdout.str()

    (tasks / "__init__.py").write_text("class TaskManager: ...\n", "utf-8")
    (tasks / "reading/task.py").write_text(REGISTERED, "utf-8")
    assert read(group).unresolved == ("quality", "qualty")


def test_a_wildcard_for_prompts_is_an_error_only_since_lm_eval_refuses_it(tmp_path: Path) -> None:
    tasks = fork(tmp_path, "0.4.1")
    (tasks / "__init__.py").touch()
    member = {"dataset_path": "glue", "dataset_name": "rte", "use_prompt": "promptsource:*"}
    write(tasks, flan=json.dumps({"group": "flan", "task": [member, "metals"]}))
    file = read(tasks / "flan.yaml")
    assert [(name, str(error)) for name, error in file.untested.items()] == [
        (
            "glue_rte",
            f"{tasks}/flan.yaml:1:28: glue_rte stands for several tasks, one for each prompt of promptsource:*",
        )
    ]
    write(tasks, both=json.dumps({"group": "both", "task": [member, {**member, "use_prompt": "own.yaml:*"}]}))
    assert [*read(tasks / "both.yaml").untested] == ["glue_rte", "glue_rte (own.yaml:*)"]
    write(tasks, unnamed=json.dumps({"group": "unnamed", "task": [{"use_prompt": "promptsource:*"}]}))
    with pytest.raises(SourceError, match="this member has only `use_prompt`"):
        read(tasks / "unnamed.yaml")
    (tasks / "__init__.py").write_text("class TaskManager: ...\n", "utf-8")
    with pytest.raises(SourceError, match="needs the key `task` or `group`"):
        read(tasks / "flan.yaml")


def test_a_member_with_a_class_is_not_tested_but_known(tmp_path: Path) -> None:
    text = "group: readings\ntask:\n  - {task: quality, class: !function task.Quality}\n  - qualty\n"
    (tmp_path / "readings.yaml").write_text(text, "utf-8")
    file = read(tmp_path / "readings.yaml")
    assert ([*file.untested], [*file.unresolved]) == (["quality"], ["qualty"])
    assert "quality is a Python task class (task.Quality)" in str(file.untested["quality"])


def test_a_list_of_groups_without_a_task_is_a_template(tmp_path: Path) -> None:
    write(tmp_path, base="group: [a, b]\ntest_split: test\noutput_type: generate_until\ndoc_to_text: Q")
    assert read_task_file(tmp_path / "base.yaml", TaskIndex([tmp_path])) is None
    write(tmp_path, one="group: [a, b]\ntask: [first]")
    with pytest.raises(SourceError, match="the name of a group must be text"):
        read(tmp_path / "one.yaml")


def test_members_that_a_group_changes_are_tasks_of_the_group(tmp_path: Path) -> None:
    fork(tmp_path)
    write(tmp_path / "own", g="group: g\ntask: [{task: metals, num_fewshot: 3}, {group: pair, description: D}]\n")
    found = {task.name: (task.num_fewshot, task.description) for task in read(tmp_path / "own/g.yaml").tasks}
    assert found == {"g.metals": (3, ""), "g.pair.metals": (None, "D"), "g.pair.sums_all": (None, "D")}


def test_own_names_come_before_those_of_the_harness(tmp_path: Path) -> None:
    fork(tmp_path)
    write(tmp_path / "own", metals=f"task: metals\nnum_fewshot: 1\n{TASK}", g="group: g\nrepeats: 2\ntask: [metals]\n")
    (task,) = read(tmp_path / "own/g.yaml").tasks
    assert task.num_fewshot == 1


def test_a_checkout_of_another_folder_is_not_looked_into(tmp_path: Path) -> None:
    fork(tmp_path)
    write(tmp_path / "own", g="group: g\ntask: [metals_of_nobody]\n")
    with gate.limited_to([tmp_path / "own"]):
        assert harness_around(tmp_path / "own") is None


def test_an_unknown_member_is_an_error_only_where_a_harness_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_promptfmt.tasks.task_index.installed_harness", lambda: None)
    own = write(
        tmp_path / "own", g="group: g\ntask: [gsm8k]\n", h="group: h\ntask: [metal]\n", m=f"task: metals\n{TASK}"
    )
    assert severities(own / "g.yaml") == {"PF131": Severity.INFO}
    assert severities(own / "h.yaml") == {"PF131": Severity.WARNING}
    fork(tmp_path)
    assert severities(own / "g.yaml") == {"PF131": Severity.ERROR}


def test_an_answer_about_a_member_changes_with_its_file(tmp_path: Path) -> None:
    tasks = fork(tmp_path)
    own = write(tmp_path / "own", g="group: g\ntask: [metals]\n")
    index = TaskIndex([own])
    read_task_file(own / "g.yaml", index)
    assert ("member", "metals") in index.asked
    before = TaskIndex([own]).answer("member", "metals")
    write(tasks, metals=f"task: metals\nrepeats: 2\n{TASK}")
    assert TaskIndex([own]).answer("member", "metals") != before
    assert str(tasks / "metals.yaml") in TaskIndex([own]).places()


def test_a_key_of_the_harness_that_looks_like_a_misspelt_one_stops_no_task(tmp_path: Path) -> None:
    tasks = fork(tmp_path)
    write(tasks, shown=f"task: shown\ndoc_to_image_id: x\n{TASK}")
    with pytest.raises(SourceError, match="unknown task key 'doc_to_image_id'"):
        read(tasks / "shown.yaml")
    (tmp_path / "lm_eval/api/task.py").write_text(f"{CONFIG}    doc_to_image_id: object = None\n", "utf-8")
    assert severities(tasks / "shown.yaml") == {"PF117": Severity.INFO}


def test_data_in_a_folder_of_another_machine_are_as_those_of_a_hub(tmp_path: Path) -> None:
    data = "dataset_path: json\ndataset_kwargs: {data_files: {test: /home/of_nobody/docs.jsonl}}\ntest_split: test\n"
    write(tmp_path, a=f"task: a\n{data}{TASK}", b=f"task: b\n{data.replace('/home/of_nobody', str(tmp_path))}{TASK}")
    (elsewhere,), (missing,) = (read(tmp_path / name).tasks for name in ("a.yaml", "b.yaml"))
    with gate.limited_to([tmp_path]):
        assert load_docs(elsewhere).kind == "synthetic"
        with pytest.raises(DocsError, match="missing docs file"):
            load_docs(missing)


def test_code_that_knows_the_kinds_of_its_docs_is_not_judged_by_synthetic_ones(tmp_path: Path) -> None:
    text = "def text(doc):\n    if doc['kind'] == 'sum':\n        return doc['q']\n\n"
    write(tmp_path, **{"utils.py": f"{text}def nothing(doc):\n    doc['q'] + 'x'\n"})
    for name, error in (("text", SyntheticDocsError), ("nothing", RenderError)):
        write(tmp_path, a=f"task: a\ndoc_to_text: !function utils.{name}\ndoc_to_target: '{{{{a}}}}'\n")
        (task,) = read(tmp_path / "a.yaml").tasks
        bound = bind_functions(task, trusted=lambda _path: True)
        with pytest.raises(error, match="expected text, got None") as caught:
            list(render_task(bound, load_docs(bound)))
        assert isinstance(caught.value, UnavailableError) == (name == "text")


def test_a_group_may_have_an_aggregation_that_its_harness_has(tmp_path: Path) -> None:
    tasks = fork(tmp_path)
    write(tasks, g="group: g\ntask: [metals]\naggregate_metric_list: [{metric: acc, aggregation: weighted}]\n")
    with pytest.raises(SourceError, match="aggregation must be mean"):
        read(tasks / "g.yaml")
    before = TaskIndex([tasks]).answer("harness", "")
    averaging = 'if config["aggregation"] == "mean":\n    pass\nelif config["aggregation"] == "weighted":\n    pass\n'
    (tmp_path / "lm_eval/evaluator_utils.py").write_text(averaging, "utf-8")
    assert read(tasks / "g.yaml").unresolved == ()
    assert TaskIndex([tasks]).answer("harness", "") != before


@pytest.mark.parity
def test_built_in_tasks_of_the_installed_harness_are_members(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="looks into the installed one")
    harness = installed_harness()
    assert harness is not None
    assert "doc_to_text" in harness.task_keys
    write(tmp_path, g="group: g\ntask: [gsm8k, hellaswag, mmlu, multiple_choice_of_nobody, {task: piqa, repeats: 2}]\n")
    with gate.limited_to([tmp_path]):
        file = read(tmp_path / "g.yaml")
    assert file.unresolved == ("multiple_choice_of_nobody",)
    assert [task.name for task in file.tasks] == ["g.piqa"]


# -- keys, output types, filters --------------------------------------------------------------------------------------


def test_keys_of_a_fork_stop_neither_a_task_nor_a_group(tmp_path: Path) -> None:
    keys = "doc_to_visual: image\nfewshot_config: {sampler: first_n, doc_to_text_without_instruction: q}\n"
    write(tmp_path, a=f"task: a\n{TASK}{keys}", g="group: g\ntask: [a, {task: a, num_fewshot: 2}]\n")
    assert list(unknown_keys(read(tmp_path / "a.yaml").tasks[0].config)) == [
        ("doc_to_visual",),
        ("fewshot_config", "doc_to_text_without_instruction"),
    ]
    assert list(severities(tmp_path / "a.yaml")) == ["PF117"]
    assert [task.name for task in read(tmp_path / "g.yaml").tasks] == ["g.a"]


def test_a_key_is_an_info_where_the_checkout_has_it(tmp_path: Path) -> None:
    tasks = fork(tmp_path)
    write(tasks, seen=f"task: seen\n{TASK}doc_to_visual: image\n", odd=f"task: odd\n{TASK}few_shots: 2\n")
    assert severities(tasks / "seen.yaml") == {"PF117": Severity.INFO}
    assert severities(tasks / "odd.yaml") == {"PF117": Severity.WARNING}
    shots = "fewshot_config: {query: q, sampler: !function samplers.Own}\n"
    write(tasks, read=f"task: read\n{TASK}{shots}", unread=f"task: unread\n{TASK}fewshot_config: {{query: q}}\n")
    assert severities(tasks / "read.yaml") == {"PF117": Severity.INFO}
    assert severities(tasks / "unread.yaml") == {"PF117": Severity.WARNING}
    write(tasks, shown=f"task: shown\n{TASK}lmms_eval_specific_kwargs: {{default: {{post_prompt: x}}}}\n")
    assert severities(tasks / "shown.yaml") == {"PF117": Severity.INFO}


def test_a_task_in_old_sets_is_a_task_with_tags(tmp_path: Path) -> None:
    tasks = fork(tmp_path, "0.4.3")
    old = f"group: [old_set]\ntask: old\n{TASK}"
    write(tasks, old=old, g="group: g\nnum_fewshot: 2\ntask: [old_set]\n")
    write(tmp_path / "elsewhere", g="group: other\ntask: [old_set]\n")
    assert read(tmp_path / "elsewhere/g.yaml").unresolved == ()
    assert [task.name for task in read(tasks / "old.yaml").tasks] == ["old"]
    assert [task.name for task in read(tasks / "g.yaml").tasks] == ["g.old"]
    assert severities(tasks / "old.yaml") == {"PF137": Severity.INFO}
    (tmp_path / "pyproject.toml").write_text('version = "0.4.13"\n', "utf-8")
    assert severities(tasks / "old.yaml") == {"PF137": Severity.WARNING}


def task_of(folder: Path, text: str) -> Task:
    write(folder, t=f"task: t\ntest_split: test\n{TASK}{text}")
    return read(folder / "t.yaml").tasks[0]


def test_prompts_of_an_unknown_output_type_are_rendered_without_requests(tmp_path: Path) -> None:
    task = task_of(tmp_path, "output_type: generate_until_multi_round\n")
    (first, *_) = task.render()
    assert first.prompts[0].text.startswith("Q: ")
    assert first.requests == ()


def test_a_filter_of_a_fork_is_unavailable_and_a_misspelt_one_a_mistake(tmp_path: Path) -> None:
    def named(name: str) -> Task:
        return task_of(tmp_path, f"filter_list: [{{name: a, filter: [{{function: {name}}}]}}]\n")

    with pytest.raises(UnavailableScoringError, match="ordered_regex"):
        pipelines_of(named("ordered_regex"))
    with pytest.raises(ScoringError) as caught:
        pipelines_of(named("take_frist"))
    assert not isinstance(caught.value, UnavailableScoringError)
    assert scoring_failure(study_of(named("ordered_regex"), tmp_path)) is None
    assert scoring_failure(study_of(named("take_frist"), tmp_path)) is not None


@pytest.mark.parametrize("is_importable", [False, True])
@pytest.mark.parametrize("output_type", ["generate_until", "multiple_choice"])
def test_a_metric_that_a_fork_computes_for_generated_answers_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output_type: str, is_importable: bool
) -> None:
    tasks = fork(tmp_path)
    if is_importable:  # as by `python -m pytest`, an editable install and a conftest
        monkeypatch.syspath_prepend(tmp_path)
        found = installed_harness()
        assert found is not None
        assert found.folder == tasks.parent
    (tmp_path / "lm_eval/api/task.py").write_text(
        f"{CONFIG}\ndef score(metric):\n    return metric == 'acc'\n", "utf-8"
    )
    made = write(tasks, scored=f"task: scored\noutput_type: {output_type}\n{TASK}metric_list: [{{metric: acc}}]\n")
    [task] = read(made / "scored.yaml").tasks
    is_own = output_type == "generate_until"
    with pytest.raises(UnavailableScoringError, match="computes 'acc'") if is_own else nullcontext():
        with_registered(task, lambda *_: sys)


# -- code of forks ----------------------------------------------------------------------------------------------------

NAMED_BY_CODE = "dataset_path: json\ndataset_kwargs: {data_files: !function data.files}\n"


@pytest.mark.parametrize("made", ["{'test': 'docs.jsonl'}", "'docs.jsonl'"])
def test_functions_that_name_data_files_run(tmp_path: Path, made: str) -> None:
    (tmp_path / "docs.jsonl").write_text('{"q": "two and two?", "a": "four"}\n', "utf-8")
    (tmp_path / "data.py").write_text(f"def files():\n    return {made}\n", "utf-8")
    split = "test" if "{" in made else "train"
    task = task_of(tmp_path, NAMED_BY_CODE.replace("dataset_path", f"test_split: {split}\ndataset_path"))
    bound = bind_functions(task, trusted=lambda _path: True)
    assert load_docs(bound).evaluated == ({"q": "two and two?", "a": "four"},)


def test_a_function_that_looks_for_files_of_another_machine_leaves_synthetic_docs(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("import os\ndef files():\n    return os.environ['NO_SUCH_PLACE']\n", "utf-8")
    bound = bind_functions(task_of(tmp_path, NAMED_BY_CODE), trusted=lambda _path: True)
    assert load_docs(bound).kind == "synthetic"


def test_a_text_of_a_module_is_used_as_if_it_were_written(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"q": "two and two?", "a": "four"}\n', "utf-8")
    (tmp_path / "data.py").write_text("files = {'test': 'docs.jsonl'}\nasked = 'Count {{q}}'\n", "utf-8")
    fields = "doc_to_text: !function data.asked\ndoc_to_target: a\n"
    write(tmp_path, t=f"task: t\ntest_split: test\n{fields}{NAMED_BY_CODE}")
    (first,) = bind_functions(read(tmp_path / "t.yaml").tasks[0], trusted=lambda _path: True).render()
    assert first.prompts[0].text == "Count two and two?"


def test_other_functions_in_dataset_kwargs_are_left_to_the_hub(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("features = {'q': 'string'}\n", "utf-8")
    task = task_of(tmp_path, "dataset_path: some/hub\ndataset_kwargs: {features: !function data.features}\n")
    assert load_docs(bind_functions(task, trusted=lambda _path: True)).kind == "synthetic"


def test_names_that_lm_eval_removed_are_there_for_code_of_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, utils = ModuleType("lm_eval"), ModuleType("lm_eval.utils")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "lm_eval", package)
    monkeypatch.setitem(sys.modules, "lm_eval.utils", utils)
    code = "from lm_eval.utils import eval_logger\ndef text(doc):\n    eval_logger.debug('seen')\n    return doc['q']\n"
    (tmp_path / "code.py").write_text(code, "utf-8")
    write(tmp_path, t="task: t\ntest_split: test\ndoc_to_text: !function code.text\ndoc_to_target: a\n")
    assert list(bind_functions(read(tmp_path / "t.yaml").tasks[0], trusted=lambda _path: True).render())


def test_data_in_a_folder_that_is_made_elsewhere_leaves_synthetic_docs(tmp_path: Path) -> None:
    made = "dataset_path: parquet\ndataset_kwargs: {data_files: {test: ./work_dir/joined.parquet}}\n"
    assert load_docs(task_of(tmp_path, made)).kind == "synthetic"
    (tmp_path / "work_dir").mkdir()
    with pytest.raises(DocsError, match="missing docs file"):
        load_docs(task_of(tmp_path, made))


def test_the_release_of_a_checkout_is_followed_and_named_where_its_prompts_differ(tmp_path: Path) -> None:
    def note(version: str) -> str:
        (tmp_path / "pyproject.toml").write_text(f'version = "{version}"\n', "utf-8")
        forget_places()
        found = found_release(tmp_path)
        assert found == (version, "in this checkout")
        return release_note(Settings(rootdir=tmp_path, profiles=(), lm_eval=found[0], lm_eval_found=found[1]))

    fork(tmp_path)
    assert note("0.4.9") == "prompts are made as in lm-eval 0.4.9, in this checkout"
    assert note("0.4.11.dev0") == "prompts are made as in lm-eval 0.4.11.dev0, in this checkout"
    assert "lm-eval 0.4.13; the prompts of lm-eval 0.5.0 (in this checkout) may differ" in note("0.5.0")
    assert "lm-eval 0.4.3; the prompts of lm-eval 0.4.2 (in this checkout) may differ" in note("0.4.2")
    assert note("0.4.13") == ""


@pytest.mark.parametrize(
    ("stated", "files", "expected"),
    [
        ("0.4.3", {}, "0.4.3"),
        ("0.4.3", {"utils.py": "Environment(keep_trailing_newline=True)"}, "0.4.4"),
        ("0.4.3", {"api/task.py": 'kwargs.pop("apply_chat_template", False)'}, "0.4.3+0.4.7"),
        ("0.4.8", {"api/task.py": "def build_qa_turn(): ..."}, "0.4.8+0.4.10"),
        ("0.4.10", {"api/task.py": "def build_qa_turn(): ..."}, "0.4.10"),
        ("0.4.13", {"api/task.py": "def build_qa_turn(): ..."}, "0.4.13"),
        ("0.4.13.dev0", {"api/task.py": "def build_qa_turn(): ..."}, "0.4.12"),
        ("0.4.13.dev0", {"api/samplers.py": "pool = self.rm_eval_doc(doc)"}, "0.4.13.dev0"),
    ],
)
def test_a_checkout_is_followed_as_its_code_is(
    tmp_path: Path, stated: str, files: dict[str, str], expected: str
) -> None:
    fork(tmp_path, stated)
    for path, code in files.items():
        (tmp_path / "lm_eval" / path).write_text(code, "utf-8")
    place = (
        "in this checkout"
        if stated == expected
        else f"in this checkout (according to its code; its metadata states {stated})"
    )
    assert found_release(tmp_path) == (expected, place)


def test_a_sampler_of_a_fork_is_not_available_and_any_other_unknown_one_is_an_error(tmp_path: Path) -> None:
    tasks = fork(tmp_path)
    (tmp_path / "lm_eval/api/samplers.py").write_text('REGISTRY = {"nearest": Nearest}\n', "utf-8")
    for name in ("nearest", "farthest"):
        write(tasks, **{name: f"task: {name}\nfewshot_config: {{sampler: {name}}}\nnum_fewshot: 1\n{TASK}"})
    (task,) = read(tasks / "nearest.yaml").tasks
    with pytest.raises(UnavailableError, match="unknown sampler 'nearest' of 'nearest'"):
        make_sampler(task, [])
    with pytest.raises(SourceError, match="unknown sampler 'farthest'"):
        read(tasks / "farthest.yaml")


def test_a_checkout_that_code_has_imported_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork(tmp_path)
    module = ModuleType("lm_eval")
    module.__spec__ = ModuleSpec("lm_eval", None, is_package=True)
    module.__spec__.submodule_search_locations = [str(tmp_path / "lm_eval")]
    monkeypatch.setitem(sys.modules, "lm_eval", module)
    forget_places()
    found = installed_harness()
    forget_places()
    assert found is None or found.folder != (tmp_path / "lm_eval").resolve()


def test_before_0_4_2_a_description_is_no_template_and_keeps_its_newline() -> None:
    (task,) = load_tasks({"task": "t", "description": "Add.\n", "doc_to_text": "{{q}}\n", "doc_to_target": "{{a}}"})
    read_as = {version: task.following(release_of(version)) for version in ("0.4.1", "0.4.2", "0.4.4")}
    assert {version: (each.description, each.doc_to_text) for version, each in read_as.items()} == {
        "0.4.1": ("Add.\n", "{{q}}"),
        "0.4.2": ("Add.", "{{q}}"),
        "0.4.4": ("Add.\n", "{{q}}\n"),
    }


def test_a_release_with_what_later_ones_changed_renders_as_both() -> None:
    both, base, later = map(release_of, ("0.4.3+0.4.7", "0.4.3", "0.4.7"))
    assert both.keeps_newline == base.keeps_newline != later.keeps_newline
    assert both.chat_delimiter == later.chat_delimiter != base.chat_delimiter
    assert not release_of("0.4.3+0.4.4").differs_from(release_of("0.4.4"))
    assert not release_of("0.4.8+local").differs_from(release_of("0.4.8"))


def test_a_release_that_is_set_is_named_with_that_of_the_built_in_files(tmp_path: Path) -> None:
    fork(tmp_path, "0.4.11")
    note = release_note(Settings(rootdir=tmp_path, profiles=(), lm_eval="0.4.9"))
    assert note == (
        "prompts are made as in lm-eval 0.4.9; the built-in tasks come from lm-eval 0.4.11, in this checkout"
    )
    assert "0.4.13; the built-in tasks" in release_note(Settings(rootdir=tmp_path, profiles=(), lm_eval="0.4.13"))
    assert release_note(Settings(rootdir=tmp_path, profiles=(), lm_eval="0.4.11")) == (
        "prompts are made as in lm-eval 0.4.11"
    )


UTILS = "def text(doc):\n    return f'Q: {doc[\"q\"]}'\n"


@pytest.mark.parametrize(("release", "severity"), [("0.4.9", Severity.INFO), ("", Severity.WARNING)])
def test_a_function_may_have_a_path_before_0_4_12(tmp_path: Path, release: str, severity: Severity) -> None:
    folder = fork(tmp_path, release) / "own" if release else tmp_path / "own"
    if not release:  # a submodule of an unknown release, not checked out
        (tmp_path / ".gitmodules").write_text('[submodule "lm-evaluation-harness"]\n', "utf-8")
    write(folder, t="task: t\ndoc_to_text: !function ../utils.text\ndoc_to_target: '{{a}}'\n")
    (folder.parent / "utils.py").write_text(UTILS, "utf-8")
    file = read(folder / "t.yaml")
    bound = bind_functions(file.tasks[0], trusted=lambda _path: True)
    assert bound.doc_to_text({"q": "Why?"}) == "Q: Why?"
    assert file.yaml is not None
    view = FileView(path=file.path, yaml=file.yaml, file=file, index=TaskIndex([folder]))
    assert [each.severity or Severity.WARNING for each in config.early_yaml(view)] == [severity]


def test_a_checkout_that_is_not_installed_may_ask_for_its_own_version(tmp_path: Path) -> None:
    package = tmp_path / "lmms_eval"
    (package / "tasks/own").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from importlib.metadata import version\n\nV = version('lmms_eval')\n", "utf-8"
    )
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "lmms_eval"\nversion = "0.5.0"\n', "utf-8")
    (package / "tasks/own/utils.py").write_text("from lmms_eval import V\n\ndef text(doc):\n    return V\n", "utf-8")
    folder = write(package / "tasks/own", t="task: t\ndoc_to_target: a\ndoc_to_text: !function utils.text\n")
    try:
        bound = bind_functions(read(folder / "t.yaml").tasks[0], trusted=lambda _path: True)
        assert bound.doc_to_text({}) == "0.5.0"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "lmms_eval"]:
            del sys.modules[name]
    with pytest.raises(PackageNotFoundError):
        version("lmms_eval")


def test_code_of_tasks_needs_no_package_that_a_checkout_imports_for_models(tmp_path: Path) -> None:
    package, code = tmp_path / "lmms_eval", "from lmms_eval.api.instance import SIGN\ndef text(doc): return SIGN\n"
    write(package, **{"evaluator.py": "import of_gpus\nif of_gpus.count(): ...\n", "api/instance.py": "SIGN = '?'\n"})
    (package / "__init__.py").write_text("from lmms_eval import evaluator\n", "utf-8")
    folder = write(package / "tasks/own", t="task: t\ndoc_to_target: a\ndoc_to_text: !function utils.text\n")
    (folder / "utils.py").write_text(code, "utf-8")
    try:
        bound = bind_functions(read(folder / "t.yaml").tasks[0], trusted=lambda _path: True)
        assert bound.doc_to_text({}) == "?"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "lmms_eval"]:
            del sys.modules[name]


@pytest.mark.parametrize(("release", "is_read"), [("0.4.11", True), ("0.4.12", False)])
def test_a_file_may_be_included_twice_before_0_4_12(tmp_path: Path, release: str, *, is_read: bool) -> None:
    side = "include: _base\n{}"
    parts = {"_left": side.format("doc_to_text: q\n"), "_right": side.format("doc_to_target: a\n")}
    folder = write(fork(tmp_path, release) / "own", t="task: t\ninclude: [_left, _right]\n")
    for name, text in {**parts, "_base": "output_type: generate_until\n"}.items():
        (folder / name).write_text(text, "utf-8")
    if is_read:
        assert read(folder / "t.yaml").tasks[0].output_type == "generate_until"
    else:
        with pytest.raises(SourceError, match="_base"):
            read(folder / "t.yaml")


def test_a_function_with_a_path_fails_since_0_4_12(tmp_path: Path) -> None:
    folder = write(fork(tmp_path, "0.4.13") / "own", t=f"task: t\n{TASK}process_docs: !function ../utils.text\n")
    (folder.parent / "utils.py").write_text(UTILS, "utf-8")
    task = replace(
        read(folder / "t.yaml").tasks[0], doc_to_text=FunctionRef("../utils", "text", folder, Position(folder))
    )
    with pytest.raises(FunctionError, match=r"lm-eval 0\.4\.13 cannot load a function from a path"):
        bind_functions(task, trusted=lambda _path: True)


SAMPLER = """
class Sampler:
    def __init__(self, docs, rnd=None):
        self.docs = docs
    def set_rnd(self, rnd):
        pass
    def sample(self, n):
        return self.docs[:n]
"""


@pytest.mark.parametrize(("release", "kind"), [("0.4.9", UnavailableError), ("0.4.13", RenderError)])
def test_a_sampler_of_an_earlier_release_is_skipped_only_there(
    tmp_path: Path, release: str, kind: type[Exception]
) -> None:
    folder = write(fork(tmp_path, release) / "own", t=f"task: t\nnum_fewshot: 1\n{TASK}")
    (folder / "t.yaml").open("a").write("fewshot_config: {sampler: !function samplers.Sampler}\n")
    (folder / "samplers.py").write_text(SAMPLER, "utf-8")
    task = bind_functions(read(folder / "t.yaml").tasks[0], trusted=lambda _path: True)
    docs = TaskDocs.in_memory([{"q": "Why?", "a": "So."}] * 2)
    with pytest.raises(kind):
        tuple(render_task(task, docs))


@pytest.mark.parametrize(("release", "kind"), [("0.4.0", UnavailableError), ("0.4.3", RenderError)])
def test_a_chat_of_nothing_is_skipped_for_releases_without_chat_templates(
    tmp_path: Path, release: str, kind: type[Exception]
) -> None:
    text = "task: t\noutput_type: multiple_choice\ndoc_to_text: !function utils.gold\ndoc_to_target: end\n"
    (tmp_path / "t.yaml").write_text(text + "doc_to_choice: [one, two]\n", "utf-8")
    (tmp_path / "utils.py").write_text("def gold(doc):\n    return 1\n", "utf-8")
    task = bind_functions(read(tmp_path / "t.yaml").tasks[0], trusted=lambda _path: True)
    task = replace(task, release=release_of(release))
    docs = TaskDocs.in_memory([{"end": "of it"}, {"end": "of all"}])
    chat = replace(PLAIN, name="chat", chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(kind, match="chat"):
        tuple(render_task(task, docs, chat))
    for made in (render_task(task, docs), render_task(task, docs, chat, num_fewshot=1)):
        assert len([*made]) == 2


TASK_CLASS = """
from types import SimpleNamespace
class Quiz:  # instead of one of lm_eval.api.task
    def doc_to_text(self, doc):
        return doc["q"]
    def doc_to_target(self, doc):
        return doc["a"]
    def construct_requests(self, doc, ctx, metadata, **about):
        return [SimpleNamespace(request_type="generate_until", arguments=(ctx, {"until": [*about]}))]
"""


@pytest.mark.parametrize(
    ("release", "about"),
    [("0.4.5", []), ("0.4.7", ["apply_chat_template"]), ("0.4.8", ["apply_chat_template", "chat_template"])],
)
def test_a_class_gets_the_arguments_that_its_release_gives(tmp_path: Path, release: str, about: list[str]) -> None:
    (tmp_path / "quiz.py").write_text(TASK_CLASS, "utf-8")
    write(tmp_path, t="task: t\nclass: !function quiz.Quiz\n")
    followed = read(tmp_path / "t.yaml").tasks[0].following(release_of(release))
    task = bind_functions(followed, trusted=lambda _path: True)
    [made] = render_task(task, TaskDocs.in_memory([{"q": "Why?", "a": "So."}]))
    assert task.generation_kwargs == made.requests[0].generation_kwargs == {"until": about}


@pytest.mark.parametrize("kind", ["synthetic", "given"])
def test_a_target_that_is_no_choice_is_a_mistake_only_with_real_docs(
    tmp_path: Path, kind: Literal["synthetic", "given"]
) -> None:
    write(tmp_path, t="task: t\noutput_type: multiple_choice\ndoc_to_text: q\ndoc_to_target: !function utils.gold\n")
    (tmp_path / "t.yaml").open("a").write("doc_to_choice: ['1', '2']\n")
    (tmp_path / "utils.py").write_text("def gold(doc):\n    return int(doc['a']) - 1\n", "utf-8")
    task = bind_functions(read(tmp_path / "t.yaml").tasks[0], trusted=lambda _path: True)
    docs = replace(TaskDocs.in_memory([{"q": "Why?", "a": "13"}]), kind=kind)
    with pytest.raises(
        SyntheticDocsError if kind == "synthetic" else RenderError, match="but there are only the choices"
    ):
        tuple(render_task(task, docs))


def test_lmms_eval_passes_the_arguments_for_models_to_the_text(tmp_path: Path) -> None:
    text = "def text(doc, lmms_eval_specific_kwargs=None):\n"
    text += "    return doc['q'] + lmms_eval_specific_kwargs['post_prompt']\n"
    (tmp_path / "utils.py").write_text(text, "utf-8")
    keys = "lmms_eval_specific_kwargs: {default: {post_prompt: ' Yes or no?'}, qwen: {post_prompt: ' Y/N'}}\n"
    write(tmp_path, t=f"task: t\ndoc_to_text: !function utils.text\ndoc_to_target: '{{{{a}}}}'\n{keys}")
    task = bind_functions(read(tmp_path / "t.yaml").tasks[0], trusted=lambda _path: True)
    assert task.doc_to_text({"q": "Is it?"}) == "Is it? Yes or no?"
    docs = load_docs(task)
    assert (docs.kind, set(docs.evaluated[0])) == ("synthetic", {"q", "a"})


@pytest.mark.parametrize(
    ("package", "plain", "chat"),
    [
        ("lmms_eval", "Look.\nWhy?\n", "<|user|>Why?\n"),
        ("lm_eval", "Look.\n\nWhy?\n\n", "<|system|>Look.\n\n<|user|>Why?\n\n"),
    ],
)
def test_tasks_of_lmms_eval_are_rendered_as_it_does(tmp_path: Path, package: str, plain: str, chat: str) -> None:
    tasks = tmp_path / package / "tasks"
    tasks.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.7.2"\n', "utf-8")
    release, _ = found_release(tasks) or ("", "")
    keys = {"description": "Look.\n\n", "doc_to_text": "{{q}}\n\n", "doc_to_target": "{{a}}"}
    (tasks / "t.yaml").write_text(json.dumps({"task": "t", "test_split": "test", **keys}), "utf-8")
    task = read(tasks / "t.yaml").tasks[0].following(release_of(release))
    template = "{% for each in messages %}<|{{ each.role }}|>{{ each.content }}{% endfor %}"
    docs = TaskDocs.in_memory([{"q": "Why?", "a": "13"}])
    profiles = (PLAIN, Profile(name="chat", chat_template=template))
    assert [next(render_task(task, docs, each)).prompts[0].text for each in profiles] == [plain, chat]


def test_images_of_lmms_eval_are_named_as_not_rendered(tmp_path: Path) -> None:
    write(tmp_path, t=f"task: t\n{TASK}doc_to_visual: !function utils.images\n")
    study = study_of(read(tmp_path / "t.yaml").tasks[0], tmp_path)
    assert (study.media_keys, study.is_multimodal) == (("doc_to_visual",), True)


@pytest.mark.parametrize(("release", "is_reported"), [("0.4.11", False), ("0.4.12", True)])
def test_a_group_replaces_a_tag_of_its_name_before_0_4_12(tmp_path: Path, release: str, *, is_reported: bool) -> None:
    tasks = fork(tmp_path, release)
    write(tasks, a_sum=f"task: a_sum\ntag: b_sums\n{TASK}", b_sums="group: b_sums\ntask: [a_sum]\n")
    index = TaskIndex([tasks])
    file = read_task_file(tasks / "b_sums.yaml", index)
    assert file is not None
    assert file.yaml is not None
    view = FileView(path=tasks / "b_sums.yaml", yaml=file.yaml, file=file, index=index)
    assert bool(list(names.hidden_name(view))) is is_reported


def test_modules_of_a_fork_that_import_each_other_are_imported_as_in_a_run(project: Project) -> None:
    circle = {
        "__init__": "",
        "evaluator": "from lm_eval.tasks import TaskManager\n",
        "tasks/__init__": "from lm_eval.tasks.manager import TaskManager\n",
        "tasks/manager": "import lm_eval.api.task\nclass TaskManager: pass\n",
        "api/__init__": "",
        "api/task": "from lm_eval import evaluator\n",
        "tasks/own/shared": "def text(doc):\n    return f'Q: {doc[\"q\"]}'\n",
        "tasks/own/utils": "from lm_eval.tasks.own.shared import *\n",
    }
    for name, code in circle.items():
        project.write(f"lm_eval/{name}.py", code)
    docs = "metadata: {promptfmt: {docs: [{q: one}]}}\n"
    code = "task: own\ntest_split: test\ndoc_to_text: !function utils.text\ndoc_to_target: x\n"
    project.write("lm_eval/tasks/own/own.yaml", code + docs)
    result = project.run("-o", "pythonpath=.", "-m", "promptfmt_snapshot", "--snapshot-update")
    assert "failed" not in result.parseoutcomes(), result.outlines
    assert any(b"Q: one" in content for content in project.snapshots().values())
