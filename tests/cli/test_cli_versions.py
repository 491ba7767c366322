"""`promptfmt diff` says which changed task kept its version, and raises versions without touching anything else."""

import json
from pathlib import Path

import pytest
from promptfmt_command import git, promptfmt, write_task

pytestmark = pytest.mark.slow

SHARED = """\
test_split: test
output_type: generate_until
doc_to_text: "{text}"
doc_to_target: answer
generation_kwargs: {{until: ["\\n"]}}   # stops
metadata:
  version: {version}  # raise me
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    _shared(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"tasks/{name}.yaml").write_text(f"include: _shared\ntask: {name}\ntag: pair\n", "utf-8")
    write_task(tmp_path, "own", metadata="{version: 0.1}")
    write_task(tmp_path, "bare")
    (tmp_path / "tasks/both.yaml").write_text("group: both\ntask: [pair]\nmetadata: {version: 3}\n", "utf-8")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def _shared(folder: Path, text: str = "Q: {{question}}\\nA:", version: str = "1.0") -> None:
    (folder / "tasks/_shared").write_text(SHARED.format(text=text, version=version), "utf-8")


def _found(folder: Path, *options: str) -> tuple[int, dict[str, dict[str, object]]]:
    done = promptfmt(folder, "diff", "HEAD", "--profile", "plain", "--json", *options)
    assert done.stderr == ""
    return done.returncode, {finding["kind"]: finding for finding in json.loads(done.stdout)["versions"]}


def test_a_changed_prompt_with_its_old_version_is_an_error_at_the_file_that_holds_it(repository: Path) -> None:
    _shared(repository, text="Question: {{question}}\\nA:")
    status, found = _found(repository, "--versions")
    assert (status, set(found)) == (1, {"kept", "members"})
    kept = found["kept"]
    assert (kept["tasks"], kept["parts"], kept["before"]) == (["a", "b"], ["text"], "1.0")
    assert kept["place"] == {"file": "tasks/_shared", "line": 7}
    assert found["members"]["tasks"] == ["both"], "the group keeps its version, which is said and no error"


def test_a_change_with_a_new_version_passes_and_gives_a_line_for_the_changelog(repository: Path) -> None:
    _shared(repository, text="Question: {{question}}\\nA:", version="2.0")
    assert _found(repository, "--versions")[0] == 0
    assert promptfmt(repository, "diff", "HEAD", "--profile", "plain").returncode == 1, "prompts changed all the same"
    page = promptfmt(repository, "diff", "HEAD", "--profile", "plain", "--markdown", "-", "--versions")
    assert "- version 2.0: text changed (a, b)" in page.stdout
    assert page.returncode == 0


def test_a_version_that_changed_alone_is_said_and_is_no_error(repository: Path) -> None:
    _shared(repository, version="2.0")
    status, found = _found(repository, "--versions")
    assert (status, set(found)) == (0, {"alone"})
    assert found["alone"]["tasks"] == ["a", "b"]
    done = promptfmt(repository, "diff", "HEAD", "--profile", "plain")
    assert (done.returncode, "2 header-only" in done.stdout) == (0, True), "nor a changed prompt"


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('until: ["\\n"]', 'until: ["\\n\\n"]', "stops"),
        ("doc_to_target: answer", 'doc_to_target: "{{answer}}!"', "target"),
        ("test_split: test", "test_split: test\nmetric_list: [{metric: bleu}]", "metric"),
    ],
)
def test_stops_targets_and_metrics_need_a_new_version_too_unless_they_do_not_count(
    repository: Path, old: str, new: str, part: str
) -> None:
    shared = repository / "tasks/_shared"
    text = shared.read_text("utf-8")
    assert old in text
    shared.write_text(text.replace(old, new), "utf-8")
    status, found = _found(repository, "--versions")
    assert (status, found["kept"]["parts"]) == (1, [part])
    (repository / "promptfmt.yaml").write_text("version_parts: [request]\n", "utf-8")
    git(repository, "add", "promptfmt.yaml")
    git(repository, "commit", "-qm", "settings")
    assert _found(repository, "--versions") == (0, {})


def test_bump_edits_the_number_in_the_shared_file_and_nothing_else(repository: Path) -> None:
    _shared(repository, text="Question: {{question}}\\nA:")
    write_task(repository, "own", "Question: {{question}}\\nA:", metadata="{version: 0.1}")
    write_task(repository, "bare", "Question: {{question}}\\nA:")
    before = (repository / "tasks/_shared").read_text("utf-8")
    done = promptfmt(repository, "diff", "HEAD", "--profile", "plain", "--bump")
    assert done.returncode == 0, done.stderr
    assert "-  version: 1.0  # raise me\n+  version: 2.0  # raise me" in done.stdout
    assert (repository / "tasks/_shared").read_text("utf-8") == before.replace("version: 1.0", "version: 2.0")
    assert "metadata: {version: 1.0}\n" in (repository / "tasks/own.yaml").read_text("utf-8")
    status, found = _found(repository, "--versions")
    assert (status, set(found)) == (0, {"raised", "missing", "members"})


def test_a_version_that_is_not_a_number_is_left_to_its_author(repository: Path) -> None:
    write_task(repository, "own", metadata="{version: spring}")
    git(repository, "commit", "-qam", "two")
    write_task(repository, "own", "Question: {{question}}\\nA:", metadata="{version: spring}")
    done = promptfmt(repository, "diff", "HEAD", "--profile", "plain", "--bump")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "tasks/own.yaml:6:12: this version is not a number, so it cannot be raised automatically\n"
    )


def test_docs_that_changed_are_not_taken_for_a_changed_task(repository: Path) -> None:
    docs = repository / "tasks/own.docs.jsonl"
    docs.write_text('{"question": "Who?", "answer": "Ada"}\n', "utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "docs")
    docs.write_text('{"question": "When?", "answer": "1843"}\n', "utf-8")
    status, found = _found(repository, "--versions")
    assert (status, set(found)) == (0, {"elsewhere"})


def test_bump_needs_the_work_tree(repository: Path) -> None:
    done = promptfmt(repository, "diff", "HEAD", "HEAD", "--bump")
    assert (done.returncode, done.stderr) == (
        2,
        "--bump changes the work tree, so only one revision can be given\n  hint: leave out the second revision\n",
    )
