"""One edit of a shared file is one cluster: over tasks, profiles, tokenizers and processes."""

from __future__ import annotations

import json

import pytest
from plugin_project import Project

pytestmark = pytest.mark.slow

PROFILES = "plain chat-chatml chat-llama2 tokens-only"
DEFINED = (
    "profiles:\n  tokens-only: {tokenizer: archetype:wordpiece-bert}\n"
    f"default_profiles: [{', '.join(PROFILES.split())}]\n"
)
TEXT = "Question: {{question}}\\nChoices: {{choices|join(', ')}}\\nAnswer:"


def shared_project(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_lint = false\n")
    project.write("promptfmt.yaml", DEFINED)
    project.write(
        "tasks/_shared_yaml",
        f'output_type: multiple_choice\ntest_split: test\ndoc_to_text: "{TEXT}"\ndoc_to_choice: choices\n'
        "doc_to_target: answer\ndataset_path: nowhere/x\n",
    )
    for number, shots in enumerate((0, 1, 2)):
        docs = [
            {"question": f"Is {word} the answer, then?", "choices": [word, "no", "yes"][: 2 + number % 2], "answer": 0}
            for word in ("red", "blue", "Answer", "Choices")[number % 2 :]
        ]
        told = json.dumps({"promptfmt": {"docs": docs}})
        project.write(
            f"tasks/t{number}.yaml",
            f"include: _shared_yaml\ntask: t{number}\nnum_fewshot: {shots}\nmetadata: {told}\n",
        )
    project.accept("tasks")


def changed(project: Project, *options: str) -> list[tuple[int, set[str]]]:
    """Return of each cluster how many items and which profiles it has."""
    project.run("tasks", "--promptfmt-json=result.json", "--promptfmt-write=markdown=result.md", *options)
    result = json.loads((project.root / "result.json").read_text("utf-8"))
    assert {cluster["category"] for cluster in result["clusters"]} == {"changed"}
    return [(cluster["items"], {member["profile"] for member in cluster["members"]}) for cluster in result["clusters"]]


def test_one_edit_is_one_cluster_whatever_tokenizer_and_template_a_profile_has(project: Project) -> None:
    shared_project(project)
    project.edit("tasks/_shared_yaml", "join(', ')", "join('; ')")
    alike = [(12, set(PROFILES.split()))]
    assert changed(project) == alike
    assert changed(project, "-n", "2") == alike
    # What follows in tokens stands under it, once for each profile that has some.
    told = json.loads((project.root / "result.json").read_text("utf-8"))["clusters"][0]["tokens"]
    assert set(told) == set(PROFILES.split()) - {"plain"}
    assert told["chat-chatml"].startswith("context ")
    assert " → " in told["tokens-only"]
    assert "digest" not in str(told)
    assert all(f"- `{profile}`: " in (project.root / "result.md").read_text("utf-8") for profile in told)
    # What `plain` shows is looked up where it is not tested.
    assert changed(project, "-k", "llama2 or only") == [(6, {"chat-llama2", "tokens-only"})]


def test_what_stops_many_tasks_is_one_line_with_their_number_also_where_it_names_them(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_lint = false\npromptfmt_profiles = plain\n")
    project.write("tasks/own/own.py", "import json as n\n\nclass Own(n.Base):\n    pass\n\ntext = str\n")
    for name in ("af", "de", "fr"):
        lines = f"task: in_{name}\ntest_split: test\noutput_type: generate_until\ndoc_to_target: answer\n"
        docs = "metadata: {promptfmt: {docs: [{question: Why?, answer: x, number: 3}]}}\n"
        project.write(f"tasks/{name}/in.yaml", f'{lines}doc_to_text: "{{{{ number.upper() }}}}"\n{docs}')
        function = "doc_to_text: !function own.text\n"
        project.write(f"tasks/own/{name}.yaml", f"{lines.replace('in_', 'own_')}{function}{docs}")
    for workers in ((), ("-n", "2")):
        result = project.run("tasks", "--promptfmt-json=result.json", *workers)
        clusters = json.loads((project.root / "result.json").read_text("utf-8"))["clusters"]
        assert {(cluster["category"], cluster["tasks"]) for cluster in clusters} == {("error", 3)}
        assert len(clusters) == 2
        result.stdout.fnmatch_lines_random(
            [
                "error, 3 tests of 3 tasks: *in.yaml*'int object' has no attribute 'upper'*",
                "error, 3 tests of 3 tasks: *module 'json' has no attribute 'Base'*",
            ]
        )


def test_a_second_cause_in_some_tasks_is_a_second_cluster(project: Project) -> None:
    shared_project(project)
    project.edit("tasks/_shared_yaml", "join(', ')", "join('; ')")
    project.write("tasks/t1.yaml", (project.root / "tasks/t1.yaml").read_text("utf-8") + 'description: "Mind: "\n')
    clusters = changed(project)
    assert clusters[0] == (8, set(PROFILES.split()))
    assert sum(items for items, _ in clusters) == 12
    assert len(clusters) > 1
