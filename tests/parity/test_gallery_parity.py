"""The gallery in lm-eval itself: every task of `fixtures/tasks` loads there, and asks the model for the same."""

from pathlib import Path

import pytest

from pytest_promptfmt import Task, load_tasks
from pytest_promptfmt.tasks.docs.doc_sources import load_docs

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.parity

GALLERY = Path(__file__).parents[2] / "fixtures" / "tasks"
FILES = sorted(
    path for path in GALLERY.rglob("*.yaml") if path.parent.name != "formats" and not path.name.startswith("harbour.")
)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))


def requests_of_lm_eval(task: Task) -> list[tuple[object, ...]]:
    """Return the arguments of the requests that lm-eval builds; docs that lie elsewhere are handed over as ours."""
    import datasets
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(str(task.path), resolve_func=True)
    config.pop("tag", None)
    if config["dataset_path"] not in ("json", "csv", "parquet"):
        ours = load_docs(task)
        splits = {task.dataset.evaluation_split: ours.evaluated}
        if task.dataset.training_split is not None:
            splits[task.dataset.training_split] = ours.fewshot
        data = {name: datasets.Dataset.from_list([dict(doc) for doc in docs]) for name, docs in splits.items() if docs}
        config |= {"custom_dataset": lambda **_metadata: data}
    theirs = ConfigurableTask(config=config)
    theirs.set_fewshot_seed(1234)
    theirs.build_all_requests(limit=3, rank=0, world_size=1)
    return [instance.args for instance in theirs.instances]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_task_of_the_gallery_asks_the_same_as_in_lm_eval(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    [task] = load_tasks(path, allow_code=True)
    ours = [request.arguments for instance in task.render() for request in instance.requests]
    assert ours == requests_of_lm_eval(task)
    assert ours


def test_the_group_of_the_gallery_has_the_same_members_in_lm_eval() -> None:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(GALLERY), include_defaults=False)
    assert set(manager.all_tasks) >= {"harbour", "harbour_boats", "harbour_boats_careful", "harbour_questions"}
    [*members] = load_tasks(GALLERY / "harbour" / "harbour.yaml")
    assert [member.target_delimiter for member in members] == ["\n"] * 3
