import json
from dataclasses import replace
from pathlib import Path

from pytest_promptfmt.core.errors import RenderError, TokenizerError
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.outcome import Category, Outcome
from pytest_promptfmt.results.clusters import Cluster, clusters_of
from pytest_promptfmt.results.run_result import RunResult, Tally
from pytest_promptfmt.results.terminal import finding_lines
from pytest_promptfmt.results.text_changes import change_key
from pytest_promptfmt.snapshots.changes import changes
from pytest_promptfmt.snapshots.document import DocRecord, Document, Section


def document(*prompts: str) -> Document:
    return Document({}, tuple(DocRecord(n, (Section("prompt", prompt),)) for n, prompt in enumerate(prompts, 1)))


def key(old: Document, new: Document, origin: str = "") -> str:
    return change_key(changes(old, new), origin)


def test_the_same_change_in_different_docs_is_one_cluster() -> None:
    one = key(document("Q: sky?\nAnswer:"), document("Q: sky?\nAnswer: "))
    other = key(document("Q: 1+1\n\nAnswer:", "Q: sea\nAnswer:"), document("Q: 1+1\n\nAnswer: ", "Q: sea\nAnswer: "))
    assert one == other


def test_a_change_in_the_line_of_the_docs_own_text_is_one_cluster() -> None:
    assert key(document("Q: sky?"), document("Question: sky?")) == key(document("Q: x"), document("Question: x"))


def test_the_same_change_inside_chat_markup_is_one_cluster_when_its_origin_is_known() -> None:
    plain = key(document("Answer:"), document("Answer: "), origin="doc_to_text")
    chat = key(document("Answer:<|im_end|>"), document("Answer: <|im_end|>"), origin="doc_to_text")
    assert plain == chat


def test_different_changes_are_different_clusters() -> None:
    old = document("Q: x\nAnswer:")
    keys = {
        key(old, document("Q: x\nAnswer: ")),
        key(old, document("Q: x\nAnswer")),
        key(old, document(" Q: x\nAnswer:")),
        key(old, document("Q:  x\nAnswer:")),
        key(old, document("Q: x\nAnswer: "), origin="doc_to_text"),
    }
    assert len(keys) == 5


def outcome(task: str, category: Category, key: str, *, title: str = "", profile: str = "plain") -> Outcome:
    return Outcome(task=task, profile=profile, file=f"{task}.yaml", category=category, key=key, title=title, docs=2)


def test_one_error_of_many_tasks_is_one_cluster_whose_title_names_none_of_them() -> None:
    outcomes = [
        Outcome(task=task, profile="chat", file=f"{task}.yaml").failed(
            RenderError(f"fails of {task!r}, doc 1: refused")
        )
        for task in ("arc", "boolq@mcqa")
    ]
    (cluster,) = clusters_of(outcomes)
    assert (cluster.title, cluster.tasks) == ("fails: refused", ("arc", "boolq@mcqa"))
    (single,) = clusters_of(outcomes[:1])
    assert single.title == "fails of 'arc', doc 1: refused"


def test_a_failure_that_an_error_of_a_rule_explains_comes_below_it() -> None:
    known = {
        "name": "answer-in-user-turn",
        "severity": Severity.ERROR,
        "message": "few-shot answers are in the user's turn",
        "do": "move them",
        "stable_keys": ("k",),
    }
    error = RenderError("the template fails: must take turns")
    outcomes = [Outcome(task=task, profile="chat", file=f"{task}.yaml").failed(error) for task in ("arc", "boolq")]
    outcomes += [
        Outcome(
            task=task,
            file=f"{task}.yaml",
            category="finding",
            key=task,
            findings=(Reported(code="PF806", task=task, file=f"{task}.yaml", **known),),  # type: ignore[arg-type]
        )
        for task in ("arc", "boolq", "copa")
    ]
    whole = RunResult(rootdir=Path(), outcomes=tuple(outcomes))
    assert whole.unexplained == []
    lines = [*finding_lines(whole.findings, result=whole)]
    assert lines[-2] == "  explains: error, 2 tests of 2 tasks: the template fails: must take turns"
    other = RunResult(rootdir=Path(), outcomes=tuple(each for each in outcomes if each.category == "error"))
    assert len(other.unexplained) == 1
    missing = TokenizerError("loading it needs the package transformers, which is not installed")
    unloaded = (Outcome(task="arc", profile="chat", file="arc.yaml").failed(missing), *outcomes[2:])
    assert len(RunResult(rootdir=Path(), outcomes=unloaded).unexplained) == 1


def test_a_problem_is_shown_in_full_for_the_first_file_in_whichever_order_files_run() -> None:
    tally, same = Tally(), outcome("boolq", "new", "k")
    assert tally.first_item(same, "t/b.yaml::b") is None
    tally.add(same, "t/b.yaml::b")
    assert tally.first_item(same, "t/c.yaml::c") == tally.first_item(same, "u/a.yaml::a") == "t/b.yaml::b"
    assert tally.first_item(same, "t/a.yaml::a") is None
    assert tally.first_item(same, "a/z.yaml::z") is None


def test_a_cluster_keeps_its_first_title_and_all_members() -> None:
    outcomes = [
        outcome("arc", "changed", "k", title="first"),
        outcome("boolq", "changed", "k", title="second"),
        outcome("arc", "changed", "k", title="third", profile="chat"),
    ]
    (cluster,) = clusters_of(outcomes)
    assert (cluster.title, cluster.tasks, cluster.docs) == ("first", ("arc", "boolq"), 6)


def test_a_cluster_of_changes_shows_the_text_of_its_first_member() -> None:
    members = [("a", "once", "text of a"), ("b", "twice", "text of b"), ("c", "twice", "")]
    outcomes = [replace(outcome(name, "changed", "k", title=title), detail=text) for name, title, text in members]
    (cluster,) = clusters_of(outcomes)
    assert (cluster.title, cluster.detail) == ("twice", "text of a")


def test_a_cluster_has_the_title_that_most_members_have() -> None:
    titles = ("hazard negated: CRASH(IndexError)", "hazard negated: WRONG(B)", "hazard negated: WRONG(B)")
    outcomes = [outcome(f"t{number}", "misread", "negated", title=title) for number, title in enumerate(titles)]
    (cluster,) = clusters_of(outcomes)
    assert (cluster.title, cluster.members[0].task) == ("hazard negated: WRONG(B)", "t0")


def test_clusters_come_by_urgency_then_size() -> None:
    outcomes = [
        outcome("a", "header-only", "h"),
        outcome("b", "changed", "small"),
        outcome("c", "changed", "large"),
        outcome("d", "changed", "large"),
        outcome("e", "error", "e"),
        Outcome(task="f", file="f.yaml"),
    ]
    assert [cluster.key for cluster in clusters_of(outcomes)] == ["e", "large", "small", "h"]


def test_a_cluster_is_read_back_from_json_as_it_was(tmp_path: Path) -> None:
    (cluster,) = clusters_of([outcome("arc", "changed", "", title="first")])
    assert Cluster.from_json(json.loads(json.dumps(cluster.to_json(tmp_path)))) == cluster
