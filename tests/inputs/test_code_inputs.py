"""The inputs of Python code, found by reading: files that it may import, facts that it names, and what is neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_promptfmt.inputs.code_inputs import CodeInputs, asks_for, reached_from
from pytest_promptfmt.inputs.facts import HUB, PLATFORM, PROCESSORS, named_fact


def reached(folder: Path, text: str, *folders: Path) -> CodeInputs:
    file = folder / "code.py"
    file.write_text(text, "utf-8")
    return reached_from([str(file)], [*map(str, folders)], lambda name: "site-packages" in name)


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("import math, re, json\nprint(math.pi)", ""),
        ("import time\ntime.time()", "time"),
        ("from random import random\nfrom time import time", "time"),
        ("from datetime import datetime\ndatetime.now()", "now"),
        ("import os\nos.environ", "os.environ"),
        ("import os\nos.path.exists('x')", "os.path.exists"),
        ("import os\nos.path.join('a', 'b')\nos.getcwd()", ""),
        ("from os import path\npath.join('a')", "os.path"),
        ("import os as o", "os"),
        ("import os\nprint(os)", "os"),
        ("import sys\nsys.argv", "sys.argv"),
        ("import sys\nsys.version_info\nsys.exit()", ""),
        ("import sys\nsys.modules['x'] = None", ""),
        ("import importlib.util\nimportlib.util.find_spec('x')", ""),
        ("import importlib\nimportlib.import_module('x')", "importlib.import_module"),
        ("from uuid import uuid4", "uuid.uuid4"),
        ("__import__('x')", "__import__"),
        ("from pathlib import Path\nPath('x').read_text()", ""),
        ("from pathlib import Path\nPath('x').exists()", "pathlib's exists"),
        ("from pathlib import Path\nPath('x').group()", "pathlib's group"),
        ("import re\nfrom pathlib import Path\nre.match('a', Path('x').name).group()", ""),
        ("class Own:\n    def exists(self):\n        return self.stat()", ""),
        ("import pandas\npandas.read_csv('x')", "read_csv"),
        ("if __name__ == '__main__':\n    import time\nelse:\n    import re", ""),
        ("def broken(:", "a module that cannot be read"),
    ],
)
def test_code_asks_for_what_is_not_an_input(tmp_path: Path, text: str, asks: str) -> None:
    assert reached(tmp_path, text).asks == asks


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (
            "import os\nos.getenv('A')\nos.environ['B']\nos.environ.get('C', '')",
            {named_fact("variable", name) for name in "ABC"},
        ),
        ("import os\nos.environ['A'] = '1'", {named_fact("variable", "A")}),
        ("import shutil\nshutil.which('git')", {named_fact("program", "git")}),
        ("import platform\nplatform.system()", {PLATFORM}),
        ("import os\nos.cpu_count()", {PROCESSORS}),
        ("import re", set()),
    ],
)
def test_code_names_facts(tmp_path: Path, text: str, facts: set[str]) -> None:
    found = reached(tmp_path, text)
    assert found.asks == ""
    assert found.facts == facts


def test_a_loader_reads_the_caches_of_a_hub(tmp_path: Path) -> None:
    found = reached(tmp_path, "from datasets import load_dataset\nload_dataset('x')")
    assert found.loads
    assert found.facts == {HUB}


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("TEXT = open('x').read()", True),
        ("def read():\n    return open('x').read()", False),
        ("def read():\n    return open('x').read()\n\nTEXT = read()", True),
        ("class Own:\n    def read(self):\n        return open('x').read()", False),
    ],
)
def test_a_module_reads_a_file_while_it_is_imported(tmp_path: Path, text: str, reads: bool) -> None:
    assert reached(tmp_path, text).reads is reads


def test_imports_are_followed_below_all_folders_that_code_may_come_from(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own / "package/inner", other / "site-packages"):
        folder.mkdir(parents=True)
    files = {
        own / "near.py": "import far",
        own / "package/__init__.py": "",
        own / "package/inner/deep.py": "from .. import sibling\nfrom ..up import name",
        own / "package/sibling.py": "import time",
        own / "package/up.py": "",
        other / "far.py": "import near",
        other / "site-packages/library.py": "import time",
    }
    for path, text in files.items():
        path.write_text(text, "utf-8")
    imports = "import near\nfrom package.inner import deep\nimport library"
    found = reached(own, imports, own, other, other / "site-packages")
    names = {name for name in found.files if not name.endswith("/")}
    assert {*map(str, files)} - names == {str(other / "site-packages/library.py")}, "its version is the input"
    assert f"{own}/package/inner/__init__.py" in names, "a file that would make the folder a package"
    assert f"{own}/package/" in found.files, "a folder in which another file may come first"
    assert found.asks == "time"


def test_a_module_that_is_missing_asks_for_nothing(tmp_path: Path) -> None:
    found = reached_from([str(tmp_path / "missing.py")], [], lambda _: False)
    assert found.asks == ""
    assert found.files == {str(tmp_path / "missing.py")}


@pytest.mark.parametrize(
    ("text", "asked"), [("1 + 1", ""), ("len('x')", ""), ("open.now()", "now"), ("lambda: (lambda: os)()", "os")]
)
def test_evaluated_code_asks_by_the_names_in_it(text: str, asked: str) -> None:
    assert asks_for(compile(text, "<text>", "eval")) == asked


@pytest.mark.filterwarnings("error")
def test_code_that_python_warns_about_is_read(tmp_path: Path) -> None:
    found = reached(tmp_path, "import helper\n\nPATTERN = '\\$'\n")
    assert not found.asks
    assert found.names == {"helper"}


def test_a_copy_of_a_large_package_is_not_read_to_its_end(tmp_path: Path) -> None:
    package = tmp_path / "large"
    package.mkdir()
    for number in range(300):
        (package / f"part{number}.py").write_text(f"from large import part{number + 1}\n", "utf-8")
    file = tmp_path / "utils.py"
    file.write_text("import time\nimport large.part0\n", "utf-8")
    found = reached_from([str(file)], [str(tmp_path)], lambda _: False, may_ask=False)
    assert (found.asks, found.reads, len(found.files)) == ("time", True, 201)
    whole = reached_from([str(file)], [str(tmp_path)], lambda _: False)
    assert whole.asks == "time"
    assert not whole.reads
    assert len(whole.files) > 300
