"""Backends of other packages, which need no torch."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from plugin_project import Project

from pytest_promptfmt.core.errors import UnavailableError
from pytest_promptfmt.core.profile import builtin_profile
from pytest_promptfmt.models.model_run import _tokenizer_for
from pytest_promptfmt.profiles import load_tokenizer

BACKEND = """
from pytest_promptfmt.models import Generation, Likelihood

class Says:
    tokenizer = None
    facts = {"version": "1"}

    def __init__(self, text):
        self.name = f"says:{text}"
        self.text = text

    def loglikelihood(self, asks):
        for ask in asks:
            yield Likelihood(logprobs=(0.0 if ask.continuation == f" {self.text}" else -9.0,), is_greedy=True)

    def generate(self, asks):
        for ask in asks:
            yield Generation(text=self.text, finish="stop", tokens=1)

def open_says(text, options):
    return Says(text)
"""


@pytest.fixture
def installed(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project beside a package that offers a backend."""
    project.write("site/acme_models.py", BACKEND)
    project.write("site/acme_models-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme-models\nVersion: 1\n")
    project.write(
        "site/acme_models-1.dist-info/entry_points.txt", "[pytest_promptfmt.models]\nsays = acme_models:open_says\n"
    )
    path = [str(project.root / "site"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    docs = {"promptfmt": {"docs": [{"question": "Which falls?", "choices": ["stone", "smoke"], "answer": 0}]}}
    keys: dict[str, Any] = {"output_type": "multiple_choice", "doc_to_text": "{{question}}", "metadata": docs}
    project.task("tasks/arc.yaml", **keys, doc_to_choice="choices")
    return project


def test_a_package_offers_a_backend_through_its_entry_point(installed: Project) -> None:
    asked = ("tasks", "--promptfmt-profile", "plain", "-m", "promptfmt_model")
    right = installed.run(*asked, "--promptfmt-model", "says:stone", "--promptfmt-record", "answers.jsonl")
    right.assert_outcomes(passed=1)
    right.stdout.fnmatch_lines(["task*profile*mass*", "arc*plain*1.00*1.00*"])
    replayed = installed.run(*asked, "--promptfmt-model", "replay:answers.jsonl")
    replayed.assert_outcomes(passed=1)
    wrong = installed.run(*asked, "--promptfmt-model", "says:water")
    wrong.assert_outcomes(failed=1)
    wrong.stdout.fnmatch_lines(["*PF655 the model gives the candidates little probability*"])


def test_a_backend_that_does_not_import_fails_with_one_message(installed: Project) -> None:
    installed.write("site/acme_models.py", "import no_such_module_here\n")
    done = installed.run(
        "tasks", "--promptfmt-profile", "plain", "-m", "promptfmt_model", "--promptfmt-model", "says:x"
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*backend acme_models:open_says cannot be imported: ModuleNotFoundError*"])
    done.stdout.no_fnmatch_line("*Traceback*")


def test_a_profile_with_the_tokenizer_of_another_model_is_skipped() -> None:
    own, other = builtin_profile("chat-chatml"), builtin_profile("chat-llama2")
    assert own.tokenizer is not None
    model: Any = SimpleNamespace(name="says", tokenizer=load_tokenizer(own.tokenizer))
    assert _tokenizer_for(model, own) is model.tokenizer
    with pytest.raises(UnavailableError, match="says has another tokenizer") as caught:
        _tokenizer_for(model, other)
    assert caught.value.reason == "profiles whose tokenizer is not the model's"
