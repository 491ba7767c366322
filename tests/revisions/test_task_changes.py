"""`promptfmt diff` says what it could not see: never "nothing changed" of what did not run or was not rendered."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from promptfmt_command import git, promptfmt, write_task

pytestmark = pytest.mark.slow

UTILS = '''
import functools


def shout(text):
    """Return the text."""
    return text + "!"


def text(doc):
    return "Q: " + doc["question"] + "\\nA:"


def shouting(doc):
    return shout(doc["question"])


def branching(doc):
    return doc["question"] + " " + doc["kind"]


def clean(dataset):
    return dataset.map(lambda doc: {**doc, "question": doc["question"].strip()})


def score(doc, results):
    return {"exact_match": results[0] == doc["answer"]}
'''
NEW_UTILS = (
    UTILS.replace('"Q: " + doc["question"] + "\\nA:"', "f\"Q: {doc['question']}\\nA:\"")
    .replace('    """Return the text."""\n', "")
    .replace(
        '    return doc["question"] + " " + doc["kind"]',
        '    if doc["kind"] == "secret":\n        return "?"\n    return doc["question"] + " " + doc["kind"]',
    )
    .replace(".strip()", '.replace("  ", " ")')
    .replace("results[0] ==", "results[0].strip() ==")
)


def with_function(file: Path, key: str, name: str) -> None:
    lines = [line for line in file.read_text("utf-8").splitlines() if not line.startswith(f"{key}:")]
    file.write_text("\n".join([*lines, f"{key}: !function {name}", ""]), "utf-8")


def write_all(folder: Path, *, is_new: bool) -> None:
    tasks = folder / "tasks"
    tasks.mkdir(exist_ok=True)
    (tasks / "utils.py").write_text(NEW_UTILS if is_new else UTILS, "utf-8")
    with_function(write_task(folder, "refactored"), "doc_to_text", "utils.text")
    with_function(write_task(folder, "branching"), "doc_to_text", "utils.branching")
    with_function(write_task(folder, "cleaned"), "process_docs", "utils.clean")
    with_function(write_task(folder, "scored"), "process_results", "utils.score")
    with_function(write_task(folder, "documented"), "doc_to_text", "utils.shouting")
    write_task(folder, "spaced", "{{ question }}" if is_new else "{{question}}")
    write_task(folder, "stripped", "{{question.strip()}}" if is_new else "{{question}}")
    until = "{until: [X]}"
    delimiters = ("''" if is_new else '" "'), ("{version: 2}" if is_new else "{version: 1}")
    raised = dict(zip(("target_delimiter", "metadata"), delimiters, strict=True))
    write_task(folder, "raised_too", generation_kwargs=until, **raised)
    write_task(folder, "in_shots", generation_kwargs=until, fewshot_delimiter='"\\n"' if is_new else '"\\n\\n"')
    pattern = "(\\\\d+)" if is_new else "(\\\\w+)"
    steps = f'[{{function: regex, regex_pattern: "{pattern}"}}, {{function: take_first}}]'
    write_task(folder, "filtered", filter_list=f"[{{name: first, filter: {steps}}}]")
    write_task(folder, "written_out", **({"metric_list": "[{metric: exact_match}]"} if is_new else {}))
    write_task(folder, "too_few", "Q {{question}}" if is_new else "Q: {{question}}", num_fewshot="3")
    (tasks / "too_few.docs.jsonl").write_text('{"question": "Who?", "answer": "Ada"}\n', "utf-8")
    (tasks / "too_few.docs.fewshot.jsonl").write_text('{"question": "What?", "answer": "It"}\n', "utf-8")
    write_task(folder, "broken", "Q {{question | nosuch}}" if is_new else "Q: {{question | nosuch}}")
    (tasks / "own.py").write_text(f"class Own:\n    PROMPT = {'B' if is_new else 'A'!r}\n", "utf-8")
    (tasks / "own.yaml").write_text("task: own\nclass: !function own.Own\n", "utf-8")
    (tasks / "lacking.py").write_text(
        f"import no_such_package_here as n\n\nclass Own(n.Base):\n    pass\n\n"
        f"def text(doc):\n    return {'B' if is_new else 'A'!r}\n",
        "utf-8",
    )
    with_function(write_task(folder, "lacking"), "doc_to_text", "lacking.text")
    (tasks / "full.py").write_text(f"def text(doc):\n    return {'B' if is_new else 'A'!r}\n", "utf-8")
    with_function(write_task(folder, "by_full_name"), "doc_to_text", "tasks.full.text")
    write_task(folder, "other_column", "{{query}}" if is_new else "{{question}}")
    write_task(folder, "other_role", "{{premise}}" if is_new else "{{question}}")
    write_task(folder, "label_too", "Q {{frage}}" if is_new else "Q: {{question}}")
    write_task(folder, "swapped", "{{bar}} {{foo}}" if is_new else "{{foo}} {{bar}}")
    with_function(write_task(folder, "in_code"), "doc_to_text", "code.text")
    name = "query" if is_new else "question"
    (tasks / "code.py").write_text(f"def text(doc):\n    return doc[{name!r}]\n", "utf-8")
    other = write_task(folder, "other_target", metadata="{version: 1}")
    if is_new:
        other.write_text(other.read_text("utf-8").replace("doc_to_target: answer", "doc_to_target: reply"), "utf-8")
    moved = write_task(folder, "renamed_column", "{{query}}" if is_new else "{{question}}")
    with_function(moved, "process_docs", "utils.clean")
    write_task(folder, "not_read", include="nowhere", description="New" if is_new else "Old")
    write_task(folder, "of_a_group", "New" if is_new else "Old", group="some")
    write_task(folder, "elsewhere", dataset_path="there" if is_new else "here")
    target = "{{answer}}" if is_new else "{{['A', 'B'].index(answer)}}"
    lettered = write_task(folder, "lettered", doc_to_choice="[A, B]")
    text = lettered.read_text("utf-8").replace("doc_to_target: answer", f'doc_to_target: "{target}"')
    lettered.write_text(text.replace("generate_until", "multiple_choice"), "utf-8")
    branch = "{% if question == 'a' and answer == 'b' %}Rarely {% endif %}"
    write_task(folder, "hidden", f"{branch if is_new else ''}{{{{question}}}}")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("repository")
    write_all(folder, is_new=False)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    write_all(folder, is_new=True)
    done = promptfmt(folder, "diff", "HEAD", "--profile", "plain", "--json")
    assert done.returncode == 1, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def unknown(found: dict[str, Any]) -> dict[str, str]:
    return {each["task"]: each["reason"] for each in found["unknown"]}


def changed(found: dict[str, Any]) -> dict[str, str]:
    clusters = [cluster for cluster in found["clusters"] if cluster["category"] != "header-only"]
    return {member["task"]: cluster["title"] for cluster in clusters for member in cluster["members"]}


def test_code_that_ran_and_gave_the_same_text_is_the_same_on_so_many_docs(found: dict[str, Any]) -> None:
    assert set(found["same"]) == {"refactored", "lettered", "elsewhere"}, "a letter says what its number said"
    assert found["same"]["refactored"].startswith("doc_to_text (tasks/utils.py:9 text): the same text for ")


def test_fewer_docs_than_shots_are_compared_with_the_shots_there_are(found: dict[str, Any]) -> None:
    assert "too_few" in changed(found)
    assert "too_few" not in found["same"].keys() | unknown(found).keys()


def test_layout_docstrings_and_defaults_are_no_change(found: dict[str, Any]) -> None:
    assert not {"spaced", "documented", "written_out"} & (unknown(found).keys() | changed(found).keys())


def test_a_difference_that_only_some_docs_show_is_a_change_of_these(found: dict[str, Any]) -> None:
    assert changed(found)["stripped"].startswith("docs with spaces at the ends: ")
    assert changed(found)["branching"].startswith("docs with 'secret' in 'kind': ")
    assert [each["kind"] for each in found["versions"] if "stripped" in each["tasks"]] != ["kept"]


def test_code_that_makes_docs_of_rows_runs_on_the_same_rows(found: dict[str, Any]) -> None:
    assert changed(found)["cleaned"].startswith("docs with spaces at the ends: ")


def test_docs_from_elsewhere_are_named_and_the_text_is_compared(found: dict[str, Any]) -> None:
    assert found["other_docs"] == {"elsewhere": 'dataset_path: "here" → "there"'}
    assert "elsewhere" not in unknown(found).keys() | changed(found).keys()


def test_what_neither_side_renders_is_unknown_with_its_keys(found: dict[str, Any]) -> None:
    reasons = unknown(found)
    assert reasons["broken"].startswith("doc_to_text changed, but the task could not be rendered: ")
    assert reasons["own"].startswith("class (tasks/own.py:1 Own) changed, but the task could not be rendered")
    assert "lacking" in changed(found), "it is imported without its package, and both sides render"
    assert reasons["not_read"].startswith("the file changed, but it cannot be read in either revision: ")
    assert "of_a_group" in changed(found), "a task that names its sets under `group` is a task"


def test_code_that_is_named_by_the_full_name_of_its_module_is_followed(found: dict[str, Any]) -> None:
    assert "by_full_name" in changed(found).keys() | unknown(found).keys()


def test_what_only_shots_show_is_changed(found: dict[str, Any]) -> None:
    assert changed(found)["in_shots"].startswith("with 2 shots: ")
    assert changed(found)["raised_too"].startswith("with 2 shots: "), "the version in the header is not all there is"
    assert [each["kind"] for each in found["versions"] if "raised_too" in each["tasks"]] == ["raised"]


def test_how_answers_are_read_is_compared(found: dict[str, Any]) -> None:
    assert changed(found)["filtered"].startswith("filter first: ")
    assert changed(found)["scored"].startswith("process_results: ' «answer 1» \\n' by 'none', doc 0: ")


def test_another_column_is_a_change(found: dict[str, Any]) -> None:
    said = changed(found)
    for name in ("other_column", "in_code"):
        assert said[name] == "the task now uses other columns (doc_to_text: question → doc_to_text: query)"
    assert said["other_role"] == "the task now uses other columns (doc_to_text: question → doc_to_text: premise)"
    assert said["other_target"] == "the task now uses other columns (doc_to_target: answer → doc_to_target: reply)"
    assert said["renamed_column"] == "the task now uses other columns (doc_to_text: question → doc_to_text: query)"


def test_another_column_is_no_changed_text_and_may_need_no_new_version(found: dict[str, Any]) -> None:
    titles = ("other_column", "in_code", "other_role", "other_target")
    sections = {
        member["task"]: member["sections"]
        for cluster in found["clusters"]
        for member in cluster["members"]
        if member["task"] in titles
    }
    assert sections == {name: ["columns"] for name in titles}
    assert [each["kind"] for each in found["versions"] if "other_target" in each["tasks"]] == ["unsure"]


def test_columns_that_are_swapped_or_read_beside_another_change_are_a_changed_text(found: dict[str, Any]) -> None:
    assert changed(found)["swapped"] == '"«question 1» «text 1»" → "«text 1» «question 1»"'
    assert changed(found)["label_too"].startswith("| Q: «question 1»⟨end⟩ → | Q «question 1»⟨end⟩")


def test_a_part_of_a_template_that_is_never_printed_is_unknown(found: dict[str, Any]) -> None:
    assert unknown(found)["hidden"] == '"Rarely " changed, but appears in no prompt'


def test_every_unknown_task_has_a_step(found: dict[str, Any]) -> None:
    assert all(each["step"] and each["file"].startswith("tasks/") for each in found["unknown"])


def test_docs_that_come_with_a_change_show_what_it_does_on_both_sides(tmp_path: Path) -> None:
    file = write_task(tmp_path, "cleaned")
    with_function(file, "process_docs", "utils.clean")
    (tmp_path / "tasks" / "utils.py").write_text(UTILS, "utf-8")
    for command in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "one")):
        git(tmp_path, *command)
    (tmp_path / "tasks" / "utils.py").write_text(UTILS.replace(".strip()", ".strip(' ')"), "utf-8")
    compare = ("diff", "HEAD", "--profile", "plain", "--json")
    assert changed(json.loads(promptfmt(tmp_path, *compare).stdout))["cleaned"].startswith("docs with spaces at the")
    docs = tmp_path / "tasks" / "cleaned.docs.jsonl"
    docs.write_text('{"question": " Who? ", "answer": "Ada"}\n', "utf-8")
    done = promptfmt(tmp_path, *compare)
    assert (done.returncode, json.loads(done.stdout)["clusters"]) == (0, []), "the docs alone are no change"
    same = {"cleaned": "process_docs (tasks/utils.py:22 clean): the same text for 2 docs"}
    assert json.loads(done.stdout)["same"] == same
    docs.write_text('{"question": "Who?\\n", "answer": "Ada"}\n', "utf-8")
    done = promptfmt(tmp_path, *compare)
    assert (done.returncode, [*changed(json.loads(done.stdout))]) == (1, ["cleaned"])


def test_renamed_tasks_are_compared_under_both_names(tmp_path: Path) -> None:
    for number in range(4):
        write_task(tmp_path, f"old_{number}")
    write_task(tmp_path, "kept")
    for command in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "one")):
        git(tmp_path, *command)
    for number in range(4):
        path = tmp_path / f"tasks/old_{number}.yaml"
        text = path.read_text("utf-8").replace(f"old_{number}", f"new_{number}")
        path.write_text(text.replace("A:", "Answer:") if number == 3 else text, "utf-8")
        if number < 2:
            path.rename(path.with_name(f"new_{number}.yaml"))
    done = promptfmt(tmp_path, "diff", "HEAD", "--profile", "plain", "--profile", "chat-chatml", "--json")
    data = json.loads(done.stdout)
    said = {(each["category"], member["task"]) for each in data["clusters"] for member in each["members"]}
    same = {("renamed", f"old_{number} → new_{number}") for number in range(3)}
    assert said == same | {("changed", "old_3 → new_3")}
    assert data["counts"] == {"changed": 2, "renamed": 6}


def test_the_next_steps_are_commands_of_the_user(found: dict[str, Any]) -> None:
    assert found["command"] == "promptfmt diff HEAD --profile plain"
    steps = "\n".join(found["next_steps"])
    assert "`promptfmt diff HEAD --profile plain -v`" in steps
    assert "/tmp" not in steps
    assert "baseline" not in steps


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"


def test_files_of_git_lfs_are_filled_in_where_the_clone_has_them(tmp_path: Path) -> None:
    write_task(tmp_path, "large")
    docs = tmp_path / "tasks/large.docs.jsonl"
    contents = [json.dumps({"question": word, "answer": "a"}) + "\n" for word in ("Who?", "What?", "Where?")]
    ids = [hashlib.sha256(each.encode()).hexdigest() for each in contents]
    git(tmp_path, "init", "-q", "-b", "main")
    for number in range(3):
        docs.write_text(POINTER.format(ids[number], len(contents[number])), "utf-8")
        if number < 2:  # the clone lacks the newest
            stored = tmp_path / ".git/lfs/objects" / ids[number][:2] / ids[number][2:4] / ids[number]
            stored.parent.mkdir(parents=True)
            stored.write_text(contents[number], "utf-8")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-qm", str(number))
    data = json.loads(promptfmt(tmp_path, "diff", "HEAD~2", "HEAD~1", "--profile", "plain", "--json").stdout)
    assert ([*changed(data)], data["pointers"]) == (["large"], [])
    done = promptfmt(tmp_path, "diff", "HEAD~1", "HEAD", "--profile", "plain")
    assert (
        "this clone has only the Git LFS pointers of 1 file, so only the pointers were compared: tasks/large.docs"
        in done.stdout
    )
