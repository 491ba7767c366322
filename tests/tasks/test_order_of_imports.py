"""What becomes of a task does not depend on the tasks before it in the same process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_promptfmt.tasks import deferred_imports

PROGRAM = """\
import json, os, sys
from pathlib import Path
from pytest_promptfmt.core.errors import FunctionError
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.functions import bind_functions, missing_for, functions_of

def facts(name):
    task = read_task_file(Path(f"lm_eval/tasks/{name}.yaml")).tasks[0]
    try:
        seen = bind_functions(task, trusted=lambda _path: True).doc_to_text({"q": "Why?"})
    except (FunctionError, ImportError) as error:
        seen = f"{type(error).__name__}: {error}"
    lack = next(filter(None, map(missing_for, functions_of(task))), None)
    return [name, str(seen), str(lack)]

for order in sys.argv[1:]:
    if (child := os.fork()) == 0:
        print(json.dumps([facts(name) for name in order.split()]), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

ASKS: Mapping[str, str] = {
    "package": "import nobodys\ndef text(doc):\n    return 'package ' + doc['q']\n",
    "user": "import nobodys\ndef text(doc):\n    return nobodys.title(doc['q'])\n",
    "shared": "from lm_eval.shared.helpers import title\ndef text(doc):\n    return title(doc['q'])\n",
    "other": "from lm_eval.shared.helpers import other\ndef text(doc):\n    return other(doc['q'])\n",
    "failing": "from lm_eval.shared.failing import title\ndef text(doc):\n    return title(doc['q'])\n",
    "below_failing": "import lm_eval.shared.failing.below as b\ndef text(doc):\n    return b.title(doc['q'])\n",
    "later": "def text(doc):\n    from lm_eval.shared.helpers import title\n    return title(doc['q'])\n",
    "later_failing": "def text(doc):\n    from lm_eval.shared.failing import title\n    return title(doc['q'])\n",
    "falls_back": "try:\n    import nobodys\nexcept ImportError:\n    nobodys = None\n"
    "def text(doc):\n    return str(nobodys)\n",
    "falls_back_on_shared": "try:\n    from lm_eval.shared.failing import title\nexcept ImportError:\n    title = str\n"
    "def text(doc):\n    return title(doc['q'])\n",
    "optional": "import optional_users\ndef text(doc):\n    return str(optional_users.found)\n",
    "broken_library": "import broken_library\ndef text(doc):\n    return broken_library.title(doc['q'])\n",
    "star": "from nobodys import *\ndef text(doc):\n    return title(doc['q'])\n",
    "misspelt": "from lm_eval.shared.helpers import titel\ndef text(doc):\n    return titel(doc['q'])\n",
}
SHARED: Mapping[str, str] = {
    "lm_eval/__init__.py": "from .evaluator import evaluate\n",
    "lm_eval/evaluator.py": "import nobodys\nfrom . import shared\ndef evaluate():\n    pass\n",
    "lm_eval/tasks/__init__.py": "",
    "lm_eval/shared/__init__.py": "",
    "lm_eval/shared/helpers.py": "import nobodys\nfrom nobodys.parts import Base\nclass Mine(Base):\n    pass\n"
    "def title(text):\n    return text.title()\ndef other(text):\n    return nobodys.other(text)\n",
    "lm_eval/shared/failing/__init__.py": "from lm_eval.shared.failing.below import title\nimport nobodys\n"
    "LIMIT = 2 if nobodys.LIMIT > 3 else 4\n",
    "lm_eval/shared/failing/below.py": "def title(text):\n    return 'below ' + text\n",
    "site-packages/optional_users.py": "try:\n    import nobodys\n    found = nobodys\nexcept ImportError:\n"
    "    found = None\n",
    "site-packages/broken_library/__init__.py": "from broken_library.part import title\nimport nobodys\n",
    "site-packages/broken_library/part.py": "def title(text):\n    return text\n",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fork whose tasks import a package that is not installed, alone and by modules that they share."""
    root = tmp_path_factory.mktemp("fork")
    modules = {f"lm_eval/tasks/{name}_utils.py": source for name, source in ASKS.items()}
    task = "task: {0}\ndataset_path: x\ntest_split: test\ndoc_to_target: q\ndoc_to_text: !function {0}_utils.text\n"
    tasks = {f"lm_eval/tasks/{name}.yaml": task.format(name) for name in ASKS}
    for path, text in {**SHARED, **modules, **tasks}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
    return root


def seen(repository: Path, orders: Sequence[Sequence[str]]) -> list[dict[str, list[str]]]:
    """Return what becomes of the tasks of each order in a process of its own."""
    path = f"{repository / 'site-packages'}:{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(" ".join, orders)],
        cwd=repository,
        env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [{name: facts for name, *facts in json.loads(line)} for line in done.stdout.splitlines()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are copies")
def test_each_task_is_the_same_alone_and_after_each_other(repository: Path) -> None:
    names = [*ASKS]
    mixed = random.Random(33).sample(names, len(names))
    *alone, forwards, backwards, shuffled = seen(repository, [*([name] for name in names), names, names[::-1], mixed])
    expected = {name: facts for each in alone for name, facts in each.items()}
    assert forwards == backwards == shuffled == expected
    texts = {name: facts[0] for name, facts in expected.items()}
    works = {name: text for name, text in texts.items() if "Error" not in text}
    assert works == {
        "package": "package Why?",
        "shared": "Why?",
        "later": "Why?",
        "falls_back": "None",
        "falls_back_on_shared": "Why?",
        "optional": "None",
    }
    assert "cannot import name 'titel'" in texts.pop("misspelt")
    assert all("no module named 'nobodys'" in texts[name].lower() for name in texts.keys() - works.keys())


def test_shared_modules_are_those_of_installed_packages_that_code_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metals.py").write_text("raise SystemExit", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(deferred_imports, "_SHARED", ("metals", "jinja2.ext", "pluggy.nowhere", "syrupy.nothing"))
    sys.modules.pop("jinja2.ext", None)
    deferred_imports.import_shared({"metals", "pluggy"})  # a module of the project is not imported here
    assert "jinja2.ext" not in sys.modules
    deferred_imports.import_shared({"jinja2"})
    assert "jinja2.ext" in sys.modules
