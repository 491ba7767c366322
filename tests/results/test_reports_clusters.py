import json

from pytest_promptfmt.results.clusters import Clusters, Member, cluster_key
from pytest_promptfmt.snapshots.changes import changes
from pytest_promptfmt.snapshots.document import DocRecord, Document, Section


def document(*prompts: str) -> Document:
    return Document({}, tuple(DocRecord(n, (Section("prompt", prompt),)) for n, prompt in enumerate(prompts, 1)))


def key(old: Document, new: Document, origin: str = "") -> str:
    return cluster_key(changes(old, new), origin)


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


def member(task: str, profile: str = "plain") -> Member:
    return Member(task=task, profile=profile, file=f"{task}.txt", docs=2)


def test_a_cluster_keeps_its_first_example_and_all_members() -> None:
    clusters = Clusters()
    assert clusters.add("changed", "k", "first", member("arc"))
    assert not clusters.add("changed", "k", "second", member("boolq"))
    assert not clusters.add("changed", "k", "third", member("arc", "chat"))
    (cluster,) = clusters
    assert (cluster.example, cluster.tasks, cluster.docs) == ("first", ("arc", "boolq"), 6)


def test_clusters_come_by_urgency_then_size() -> None:
    clusters = Clusters()
    clusters.add("header-only", "h", "", member("a"))
    clusters.add("changed", "small", "", member("b"))
    for task in "cd":
        clusters.add("changed", "large", "", member(task))
    clusters.add("error", "e", "", member("e"))
    assert [cluster.key for cluster in clusters] == ["e", "large", "small", "h"]
    assert clusters.counts() == {"error": 1, "changed": 3, "header-only": 1}


def test_clusters_of_workers_are_joined_from_json() -> None:
    workers = [Clusters(), Clusters()]
    for worker, task in zip(workers, ("arc", "boolq"), strict=True):
        worker.add("changed", "k", f"example of {task}", member(task))
    joined = Clusters()
    for worker in workers:
        joined.merge(json.loads(json.dumps(worker.to_json())))
    assert len(joined) == 1
    assert next(iter(joined)).tasks == ("arc", "boolq")
    assert Clusters.from_json(joined.to_json()).to_json() == joined.to_json()
