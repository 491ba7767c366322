"""`promptfmt diff` compares real revisions of real repositories and leaves them as they are."""

import gzip
import json
import os
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from promptfmt_command import git, promptfmt, write_task


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for number in range(4):
        write_task(tmp_path, f"t{number}")
    write_task(tmp_path, "gone", "Gone: {{question}}")
    write_task(tmp_path, "old_error", "{{nosuch.x.y}}", process_docs="!function nowhere.f")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    for number in (0, 1):
        write_task(tmp_path, f"t{number}", "Q: {{question}}\\nAnswer:")
    write_task(tmp_path, "t2", "# {{question}}\\nA:")
    file = write_task(tmp_path, "t3")
    file.write_text("# a remark\n" + file.read_text("utf-8"), "utf-8")
    (tmp_path / "tasks/gone.yaml").unlink()
    write_task(tmp_path, "new", "New: {{question}}")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "two")
    return tmp_path


def test_each_kind_of_change_is_told_once_and_nothing_else(repository: Path) -> None:
    done = promptfmt(repository, "diff", "HEAD~1", "HEAD", "--json", "--profile", "plain")
    assert done.returncode == 1
    clusters = json.loads(done.stdout)["clusters"]
    told = {(cluster["category"], *sorted(member["task"] for member in cluster["members"])) for cluster in clusters}
    assert told == {("changed", "t0", "t1"), ("changed", "t2"), ("new", "new"), ("obsolete", "gone")}
    assert git(repository, "status", "--short") == ""


def test_several_processes_find_what_one_does(repository: Path) -> None:
    arguments = ("diff", "HEAD~1", "HEAD", "--json", "--profile", "plain")
    one, two = (promptfmt(repository, *arguments, *jobs) for jobs in ((), ("--jobs", "2")))
    assert (two.returncode, two.stderr, json.loads(two.stdout)) == (1, "", json.loads(one.stdout))


def test_a_revision_is_compared_with_the_work_tree_as_it_is(repository: Path) -> None:
    assert promptfmt(repository, "diff", "HEAD", "--profile", "plain").returncode == 0
    write_task(repository, "t0", "Q: {{question}}\\nAnswer: ")
    write_task(repository, "untracked", "X: {{question}}")
    commit = git(repository, "rev-parse", "HEAD").strip()
    done = promptfmt(repository, "diff", commit, "--profile", "plain", "--markdown", "comment.md")
    assert done.returncode == 1
    assert "-| Answer:⟨end⟩\n+| Answer: ⟨end⟩\n" in done.stdout
    assert "1 changed, 1 new" in done.stdout
    page = (repository / "comment.md").read_text("utf-8")
    assert page.startswith(f"## Prompts\n\n`{commit[:10]}` → `the work tree`: 1 changed, 1 new; ")
    assert commit not in page, "forty digits say no more than ten"
    assert "/tmp" not in page, "no place that only this run knew"
    assert not list(repository.rglob("__prompts__"))


def test_without_a_revision_the_first_line_says_what_is_compared(repository: Path) -> None:
    git(repository, "switch", "-qc", "topic")
    base = git(repository, "rev-parse", "HEAD").strip()
    same = promptfmt(repository, "diff", "--profile", "plain")
    assert same.stdout.startswith(f"comparing the work tree with {base[:10]}: every commit here is also in main\n")
    write_task(repository, "t0", "Q: {{question}}\nAnswer: ")
    dirty = promptfmt(repository, "diff", "--profile", "plain", "--json")
    assert dirty.stderr.splitlines()[0] == "comparing the work tree with HEAD: there are uncommitted changes"
    assert json.loads(dirty.stdout)["counts"]["changed"] == 1
    git(repository, "commit", "-qam", "three")
    clean = promptfmt(repository, "diff", "--profile", "plain")
    assert clean.stdout.splitlines()[0] == f"comparing the work tree with {base[:10]}: the last commit shared with main"
    assert "1 changed" in clean.stdout
    git(repository, "branch", "-qm", "main", "other")
    lost = promptfmt(repository, "diff")
    assert (lost.returncode, lost.stderr) == (
        2,
        "there is no default branch\n  hint: name a revision: promptfmt diff REV\n",
    )


def test_the_page_shows_each_change_and_opens_in_the_browser(repository: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\ncp "${1#file://}" page.html\n', "utf-8")
    browser.chmod(0o755)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BROWSER", f"{browser} %s")
        patched.setenv("TMPDIR", str(tmp_path))
        done = promptfmt(repository, "diff", "HEAD~1", "HEAD", "--profile", "plain", "--open")
    assert done.returncode == 1
    assert done.stdout.endswith(".html is open in the browser\n")
    page = (repository / "page.html").read_text("utf-8")
    assert "<title>Prompts: HEAD~1 → HEAD</title>" in page
    assert "HEAD~1 → HEAD: 3 changed, 1 new, 1 obsolete; " in page
    pieces = re.findall(r'<script type="text/plain" id="(?:index|chunk-0)">([^<]*)</script>', page)
    index, items = (json.loads(gzip.decompress(b64decode(piece))) for piece in pieces)
    assert index["sides"] == ["HEAD~1", "HEAD"]
    shown = {entry[0]: item for entry, item in zip(index["items"], items, strict=True)}
    part = shown["t0"]["comparison"][0]
    assert part["title"] == "doc 1, prompt, line 2"
    changed = [row for row in part["rows"] if row[0] != row[1]]
    assert [["".join(text for text, _ in side) for side in row] for row in changed] == [["| A:⟨end⟩", "| Answer:⟨end⟩"]]
    assert "the example is from t0 [plain]" in shown["t1"]["remarks"]
    assert shown.keys() == {"t0", "t1", "t2", "new", "gone"}
    both = promptfmt(repository, "diff", "HEAD", "--html", "-", "--json")
    assert (both.returncode, both.stdout) == (2, "")


def test_a_task_that_cannot_be_rendered_is_told_when_it_is_written_differently(repository: Path) -> None:
    # Made-up docs are not among the names that the function knows, and there are no others.
    module = repository / "tasks/names.py"
    module.write_text("def text(doc):\n    return dict([('A' + 'da', 'Lovelace')])[doc['question']]\n", "utf-8")
    file = write_task(repository, "named", "TEXT", description="Who?")
    file.write_text(file.read_text("utf-8").replace('"TEXT"', "!function names.text"), "utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "three")
    assert promptfmt(repository, "diff", "HEAD", "--task", "named").returncode == 0
    file.write_text(file.read_text("utf-8").replace("Who?", "Who is it?"), "utf-8")
    module.write_text(module.read_text("utf-8").replace("Lovelace", "L."), "utf-8")
    done = promptfmt(repository, "diff", "HEAD", "--task", "named", "--json")
    data = json.loads(done.stdout)
    assert (done.returncode, data["clusters"]) == (3, [])
    [unknown] = data["unknown"]
    assert (unknown["task"], unknown["file"]) == ("named", "tasks/named.yaml")
    assert unknown["reason"].startswith(
        "description, doc_to_text (tasks/names.py:1 text) changed, but the task could not be"
    )
    assert unknown["step"].startswith("run promptfmt freeze tasks/named.yaml")
    done = promptfmt(repository, "diff", "HEAD", "--task", "named", "--unknown", "warn")
    assert (done.returncode, "nothing changed" in done.stdout, "1 task unknown" in done.stdout) == (0, False, True)


def test_new_findings_count_when_they_are_asked_for(repository: Path) -> None:
    file = write_task(repository, "t3", "Q: {{question}}\\nA: ", doc_to_choice="[a, b]")
    file.write_text(file.read_text("utf-8").replace("generate_until", "multiple_choice"), "utf-8")
    found = json.loads(promptfmt(repository, "diff", "HEAD", "--task", "t3", "--findings", "--json").stdout)["findings"]
    assert "PF201" in {finding["code"] for finding in found}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nope"], "unknown revision 'nope'"),
        (["--", "--all"], "unknown revision '--all'"),
        (["tasks"], "this is a path, not a revision. Write --path tasks"),
        (["main", "--path", "taks"], "taks is in neither revision\n  hint: did you mean 'tasks'?"),
        (["main", "--path", "../elsewhere"], "../elsewhere is outside the repository"),
        (["main", "--path", "/"], "/ is outside the repository"),
        (["main", "--task", "neww"], "'neww' matches none of the 6 tasks; did you mean 'new'?"),
        (["main", "--profile", "plane"], "unknown profile 'plane'"),
        (["main", "--markdown", "no/folder/comment.md"], "no such folder: no/folder"),
    ],
)
def test_what_cannot_be_compared_is_told_in_a_line(repository: Path, arguments: list[str], told: str) -> None:
    done = promptfmt(repository, "diff", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_files_of_a_revision_are_named_as_git_names_them(tmp_path: Path) -> None:
    settings = tmp_path / "promptfmt.yaml"
    settings.write_text("profiles: [plain]\n", "utf-8")
    write_task(tmp_path, "arc")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    wrong = "promptfmt.yaml:1:1: profiles is ['plain'], expected a mapping of names to profiles\n"
    done = promptfmt(tmp_path, "diff", "HEAD")
    assert (done.returncode, done.stderr) == (2, f"HEAD:{wrong}")
    settings.write_text("profiles: {}\n", "utf-8")
    git(tmp_path, "commit", "-qam", "two")
    settings.write_text("profiles: [plain]\n", "utf-8")
    done = promptfmt(tmp_path, "diff", "HEAD")
    assert (done.returncode, done.stderr) == (2, wrong)


def test_outside_of_a_repository_git_says_so(tmp_path: Path) -> None:
    done = promptfmt(tmp_path, "diff", "HEAD")
    assert (done.returncode, "not in a git repository" in done.stderr) == (2, True)


def test_a_shallow_clone_says_what_it_lacks(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    clone = tmp_path_factory.mktemp("clone")
    git(clone, "clone", "-q", "--depth", "1", repository.as_uri(), ".")
    done = promptfmt(clone, "diff", "HEAD~1")
    assert (done.returncode, "git fetch --unshallow" in done.stderr) == (2, True)


def test_what_cannot_have_changed_is_counted_and_not_rendered(repository: Path) -> None:
    write_task(repository, "t1", "# {{question}}")
    data = json.loads(promptfmt(repository, "diff", "HEAD", "--profile", "plain", "--json").stdout)
    assert data["unaffected_files"] == 5
    assert [member["task"] for cluster in data["clusters"] for member in cluster["members"]] == ["t1"]


def test_a_moved_file_is_no_other_task_and_what_renders_at_last_is_no_new_one(repository: Path) -> None:
    write_task(repository, "broken", "{% for %}")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "three")
    (repository / "tasks/deep").mkdir()
    (repository / "tasks/t0.yaml").rename(repository / "tasks/deep/t0.yaml")
    (repository / "tasks/t1.yaml").rename(repository / "tasks/deep/first.yaml")
    moved = repository / "tasks/deep/first.yaml"
    moved.write_text(moved.read_text("utf-8").replace("Answer:", "A:"), "utf-8")
    (repository / "tasks/t2.yaml").unlink()
    write_task(repository, "t2_renamed", "# {{question}}\\nA:")
    write_task(repository, "broken", "Mended: {{question}}")
    done = promptfmt(repository, "diff", "HEAD", "--profile", "plain", "--json")
    told = {
        (
            cluster["category"],
            cluster["title"].partition(" → ")[0],
            *(member["task"] for member in cluster["members"]),
        )
        for cluster in json.loads(done.stdout)["clusters"]
    }
    assert told == {
        ("changed", "| Answer:⟨end⟩", "t1"),
        ("renamed", "the snapshot has another name, but the same prompts", "t2 → t2_renamed"),
        ("new", "tasks that could not be rendered in HEAD", "broken"),
    }


def test_a_path_that_only_one_side_has_is_new_or_gone(repository: Path) -> None:
    for revisions, told in ((["main~1", "main"], ("new", "new")), (["main", "main~1"], ("obsolete", "new"))):
        done = promptfmt(repository, "diff", *revisions, "--path", "tasks/new.yaml", "--profile", "plain", "--json")
        data = json.loads(done.stdout)
        assert (done.returncode, data["counts"]) == (1, {told[0]: 1})
        assert [(cluster["category"], cluster["members"][0]["task"]) for cluster in data["clusters"]] == [told]


def test_a_logger_that_gets_another_name_is_no_change(tmp_path: Path) -> None:
    file = write_task(tmp_path, "told")
    file.write_text(re.sub("doc_to_text: .*", "doc_to_text: !function wording.text", file.read_text("utf-8")), "utf-8")
    code = "import logging\n\nlogger = logging.getLogger('a')\n\n\ndef text(doc):\n    if doc['question'] == 7:\n"
    code += "        logger.warning('odd')\n    return doc['question']\n"
    (tmp_path / "tasks/wording.py").write_text(code, "utf-8")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    (tmp_path / "tasks/wording.py").write_text(code.replace("'a'", "__name__"), "utf-8")
    done = promptfmt(tmp_path, "diff", "HEAD", "--profile", "plain", "--json")
    assert (done.returncode, json.loads(done.stdout)["unknown"]) == (0, [])


def test_odd_things_in_a_repository_neither_change_nor_stop_anything(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write_task(outside, "elsewhere")
    repository = tmp_path / "repository"
    crlf = write_task(repository, "crlf")
    crlf.write_bytes(crlf.read_bytes().replace(b"\n", b"\r\n"))
    odd = write_task(repository, "odd_name")
    odd_name = os.fsdecode(b"caf\xe9.yaml")
    odd.rename(odd.with_name(odd_name))
    write_task(repository, "linked_to").rename(repository / "linked_to.yaml")
    (repository / "tasks/link.yaml").symlink_to("../linked_to.yaml")
    (repository / "tasks/away").symlink_to(outside / "tasks")
    (repository / "tasks/circle").symlink_to("circle")
    write_task(repository, "kept_from_archives")
    (repository / ".gitattributes").write_text("tasks/kept* export-ignore\n", "utf-8")
    (repository / ".gitignore").write_text("ignored\n", "utf-8")
    git(repository, "init", "-q", "-b", "main")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "one")
    git(tmp_path, "init", "-q", "-b", "main", "part")
    write_task(tmp_path / "part", "of_the_part")
    git(tmp_path / "part", "add", ".")
    git(tmp_path / "part", "commit", "-qm", "part")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "part"), "part")
    git(repository, "commit", "-qm", "two")
    (repository / "tasks/deeper").mkdir()
    write_task(repository / "tasks/deeper", "new", "New: {{question}}")
    state = git(repository, "status", "--short")
    done = promptfmt(repository / "tasks/deeper", "diff", "HEAD", "--profile", "plain", "--json")
    clusters = json.loads(done.stdout)["clusters"]
    assert [(cluster["category"], *(m["task"] for m in cluster["members"])) for cluster in clusters] == [("new", "new")]
    odd_file = repository / "tasks" / odd_name
    odd_file.write_text(odd_file.read_text("utf-8").replace("A:", "Answer:"), "utf-8")
    done = promptfmt(repository, "diff", "HEAD~1", "--profile", "plain", "--json")
    clusters = json.loads(done.stdout)["clusters"]
    told = [(cluster["category"], *(member["task"] for member in cluster["members"])) for cluster in clusters]
    assert told == [("changed", "odd_name"), ("new", "new")]
    assert not list(tmp_path.rglob("__prompts__")), "nothing is written beside what a link leads to"
    assert state.split() == ["??", "tasks/deeper/"]
    assert git(repository, "status", "--short", "--untracked-files=no").split()[0] == "M"


def test_of_a_group_only_the_members_that_may_have_changed_are_rendered(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_task(tmp_path, name)
    inner, outer = "group: inner\ntask: [first, second]\n", "group: outer\ntask: [{group: inner, description: D}]\n"
    for name, text in (("inner", inner), ("outer", outer)):
        (tmp_path / f"tasks/{name}.yaml").write_text(text, "utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    write_task(tmp_path, "first", "Changed {{question}}")
    done = promptfmt(tmp_path, "diff", "HEAD", "--profile", "plain")
    assert "HEAD → the work tree: 2 changed; 0 prompts unchanged, 1 file untouched" in done.stdout
    git(tmp_path, "checkout", "-q", ".")
    (tmp_path / "tasks/outer.yaml").write_text(outer.replace("D", "E"), "utf-8")
    done = promptfmt(tmp_path, "diff", "HEAD", "--profile", "plain")
    assert "HEAD → the work tree: 2 changed; 0 prompts unchanged, 2 files untouched" in done.stdout


# -- two files that define one name ------------------------------------------------------------------------------------


@pytest.fixture
def of_one_name(tmp_path: Path) -> Path:
    for folder in ("a", "b"):
        write_task(tmp_path / folder, "same", f"{folder}: {{{{question}}}}", metadata="{version: 1}")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def changed_places(data: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (cluster["category"], member["task"], member["file"])
        for cluster in data["clusters"]
        for member in cluster["members"]
    }


HIDDEN = "{% if question == 'a' and answer == 'b' %}Rarely {% endif %}"


@pytest.mark.parametrize(("first", "second"), ["ab", "ba"])
def test_a_change_in_one_file_hides_none_in_another_that_defines_its_name(
    of_one_name: Path, first: str, second: str
) -> None:
    write_task(of_one_name / first, "same", f"{first}, {{{{question}}}}", metadata="{version: 1}")
    write_task(of_one_name / second, "same", f"{second}: {{{{question.strip()}}}}", metadata="{version: 1}")
    data = json.loads(promptfmt(of_one_name, "diff", "HEAD", "--json", "--profile", "plain").stdout)
    assert changed_places(data) == {("changed", "same", f"{folder}/tasks/same.yaml") for folder in "ab"}
    titles = {cluster["members"][0]["file"][0]: cluster["title"] for cluster in data["clusters"]}
    assert titles[second].startswith("docs with spaces at the ends: ")
    assert f"from {first}/tasks/same.yaml:4:1 doc_to_text" in titles[first]
    assert [(each["kind"], each["place"]["file"][0]) for each in data["versions"]] == [
        ("kept", first),
        ("unsure", second),
    ]
    write_task(of_one_name / second, "same", f"{HIDDEN}{second}: {{{{question}}}}", metadata="{version: 1}")
    done = promptfmt(of_one_name, "diff", "HEAD", "--json", "--profile", "plain")
    data = json.loads(done.stdout)
    assert changed_places(data) == {("changed", "same", f"{first}/tasks/same.yaml")}
    [unknown] = data["unknown"]
    assert unknown["file"] == f"{second}/tasks/same.yaml"
    assert unknown["reason"] == '"Rarely " changed, but appears in no prompt'


@pytest.mark.parametrize(("edited", "kept"), ["ab", "ba"])
def test_of_two_files_with_one_name_only_the_edited_one_is_judged(of_one_name: Path, edited: str, kept: str) -> None:
    file = write_task(of_one_name / edited, "same", f"{HIDDEN}{edited}: {{{{question}}}}", metadata="{version: 1}")
    done = promptfmt(of_one_name, "diff", "HEAD", "--json", "--profile", "plain")
    data = json.loads(done.stdout)
    assert (done.returncode, data["clusters"]) == (3, [])
    assert [each["file"] for each in data["unknown"]] == [f"{edited}/tasks/same.yaml"]
    write_task(of_one_name / edited, "same", f"{edited}: {{{{ question }}}}", metadata="{version: 1}")
    assert promptfmt(of_one_name, "diff", "HEAD", "--profile", "plain").returncode == 0
    write_task(of_one_name / edited, "same", f"{edited}: {{{{ question|string }}}}", metadata="{version: 1}")
    done = promptfmt(of_one_name, "diff", "HEAD", "--profile", "plain", "--json")
    assert json.loads(done.stdout)["same"].keys() == {f"same ({edited}/tasks/same.yaml)"}
    file.write_text(file.read_text("utf-8").replace(f"{edited}: ", f"{edited}, "), "utf-8")
    done = promptfmt(of_one_name, "diff", "HEAD", "--json", "--profile", "plain")
    assert changed_places(json.loads(done.stdout)) == {("changed", "same", f"{edited}/tasks/same.yaml")}


@pytest.mark.parametrize(("raised", "kept"), ["ab", "ba"])
def test_a_raised_version_is_that_of_its_own_file(of_one_name: Path, raised: str, kept: str) -> None:
    write_task(of_one_name / raised, "same", f"{raised}, {{{{question}}}}", metadata="{version: 2}")
    assert promptfmt(of_one_name, "diff", "HEAD", "--versions", "--profile", "plain").returncode == 0
    write_task(of_one_name / kept, "same", f"{kept}, {{{{question}}}}", metadata="{version: 1}")
    done = promptfmt(of_one_name, "diff", "HEAD", "--versions", "--profile", "plain")
    assert done.returncode == 1
    assert f"{kept}/tasks/same.yaml:6:12: changed (text), but still has version 1; 1 task: same" in done.stdout
    assert f"{raised}/tasks/same.yaml:6:12: changed (text), version 1 → 2; 1 task: same" in done.stdout


@pytest.mark.parametrize(("removed", "other"), ["ab", "ba"])
def test_a_removed_task_is_told_where_another_file_has_its_name(of_one_name: Path, removed: str, other: str) -> None:
    (of_one_name / f"{removed}/tasks/same.yaml").unlink()
    gone = ("obsolete", "same", f"{removed}/tasks/same.yaml")
    done = promptfmt(of_one_name, "diff", "HEAD", "--json", "--profile", "plain")
    assert (done.returncode, changed_places(json.loads(done.stdout))) == (1, {gone})
    file = of_one_name / f"{other}/tasks/same.yaml"
    file.write_text(file.read_text("utf-8").replace("task: same", "task: renamed"), "utf-8")
    done = promptfmt(of_one_name, "diff", "HEAD", "--json", "--profile", "plain")
    renamed = ("renamed", "same → renamed", f"{other}/tasks/same.yaml")
    assert (done.returncode, changed_places(json.loads(done.stdout))) == (1, {gone, renamed})
