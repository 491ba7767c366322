"""Edit a project at random, and compare each time what a run that remembers finds with what a fresh one finds.

    python benchmarks/stale_outcomes.py --edits 10000 [--seed 1] [--seconds 3600]

The project has tasks of every kind: plain, with an include, by functions that import modules and an installed package,
with docs, with a chat template and a tokenizer, in a group, with a format, a recording and rules of its own. An edit
changes, breaks, empties, removes or adds one of its files, restores one, changes one without changing its size and
times, writes the snapshots, or installs another version of the package. Both runs are pytest, with workers and store,
in processes that are forked from one that has imported it. A difference of their results is a stale outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

import pytest_promptfmt.engine.contents
import pytest_promptfmt.plugin.session  # what every run imports

LOG: Final = "output.txt"
vars(pytest_promptfmt.engine.contents)["_SETTLED_NS"] = 0  # as if two seconds lay between an edit and the next run

PACKAGE: Final = Path(pytest_promptfmt.__file__).parent
REMEMBERING: Final = ("--promptfmt-workers=2",)
FRESH: Final = ("--promptfmt-no-cache", "--promptfmt-workers=0")
SHOWING: Final[tuple[tuple[str, ...], ...]] = ((), (), (), ("-v",), ("-k", "arc or wic or cola"), ("tasks/code",))


def _task(name: str, **keys: Any) -> str:
    config = {
        "task": name,
        "dataset_path": "nowhere/docs",
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "Q: {{question}}\nA:",
        "doc_to_target": "answer",
    }
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in (config | keys).items() if value is not None)


_NUMBER = [{"name": "n", "filter": [{"function": "regex", "regex_pattern": "([0-9]+)"}, {"function": "take_first"}]}]
_RULE = """
from pytest_promptfmt.checks import Family, Finding, Severity, check

@check("XX101", "long", severity=Severity.WARNING, family=Family.PROMPT)
def long(task):
    yield Finding(message="long prompts")
"""
FILES: Final[dict[str, str]] = {
    "pytest.ini": "[pytest]\n",
    "conftest.py": "",
    "promptfmt.yaml": "checks: [rules.py]\n",
    "rules.py": _RULE,
    "tasks/plain/arc.yaml": _task("arc"),
    "tasks/shared/_base.yaml": "target_delimiter: ' '\nfewshot_delimiter: \"\\n\\n\"\n",
    "tasks/shared/boolq.yaml": _task("boolq", include="_base.yaml"),
    "tasks/code/cola.yaml": _task("cola", doc_to_text=None) + "doc_to_text: !function utils.text\n",
    "tasks/code/utils.py": "import dep\nfrom tasks.code.helpers import mark\n\n\ndef text(doc):\n"
    "    return f\"Q: {doc['question']}{mark()}{dep.END}\\nA:\"\n",
    "tasks/code/helpers.py": "def mark():\n    return '?'\n",
    "tasks/docs/wic.yaml": _task("wic"),
    "tasks/docs/wic.docs.jsonl": '{"question": "why", "answer": "so"}\n',
    "tasks/group.yaml": "group: all\ntask: [arc, wic]\n",
    "tasks/formats/sciq.yaml": _task("sciq", doc_to_text=None, doc_to_target=None, formats="own")
    + "metadata: {promptfmt: {fields: {question: question, choices: choices, answer: answer},"
    + " docs: [{question: x, choices: [a, b], answer: 0}]}}\n",
    "formats/own.yaml": 'type: mcqa\nlabel_suffix: ") "\n',
    "tasks/answers/gsm.yaml": _task("gsm", filter_list=_NUMBER),
    "tasks/answers/gsm.docs.jsonl": '{"question": "1+1", "answer": "2"}\n',
    "tasks/answers/gsm.recording.jsonl": '{"doc": 0, "completion": "2", "expected": "2", "correct": true}\n',
    "tasks/chat/promptfmt.yaml": "profiles: {own: {chat_template: chat.jinja, tokenizer: tok}}\n"
    "default_profiles: [own]\n",
    "tasks/chat/piqa.yaml": _task("piqa"),
    "tasks/chat/chat.jinja": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>",
    "tasks/chat/tok/tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}',
    "lib/site-packages/dep.py": "END = '.'\n",
    "lib/site-packages/dep-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: dep\nVersion: 1.0\n",
}
APPEARING: Final[dict[str, str]] = {
    "tasks/plain/arc.docs.jsonl": '{"question": "x", "answer": "y"}\n',
    "tasks/shared/boolq.docs.jsonl": '{"question": "is it", "answer": "yes"}\n',
    "tasks/plain/arc2.yaml": _task("arc"),
    "tasks/plain/new.yaml": _task("new"),
    "tasks/group2.yaml": "group: more\ntask: [boolq, {task: arc, num_fewshot: 1}]\n",
    "tasks/shared/promptfmt.yaml": "docs: 1\n",
    "tasks/plain/promptfmt.yaml": "ignore: [PF2]\n",
    "tasks/code/helpers/__init__.py": "def mark():\n    return '!!'\n",
    "tasks/code/dep.py": "END = ' here'\n",
    "dep.py": "END = ' root'\n",
    "tasks/answers/gsm.completions.jsonl": '{"completion": "3", "expected": "3"}\n',
    "tasks/plain/arc.recording.jsonl": '{"doc": 0, "completion": "2", "expected": "2", "correct": true}\n',
    "tasks/docs/wic.docs.train.jsonl": '{"question": "how", "answer": "well"}\n',
    "tasks/formats/own.yaml": "task: [1]\n",
    "tasks/chat/tok/special_tokens_map.json": '{"bos_token": "<s>"}',
    "tasks/chat/tok/chat_template.jinja": "{{ messages }}",
}
SWAPS: Final = (
    ("Q: ", "Question: "), ("Question: ", "Q: "), ("A:", "B:"), ("B:", "A:"), ("?", "!"), ("!", "?"), ("why", "who"),
    ("' '", "'  '"), ("1", "2"), ("2", "1"), (") ", "] "), ("'.'", "';'"), ("<", "["), ("[", "<"),
    ("docs: 1", "docs: 2"), ("task", "tasq"), ("answer", "question"), ("checks: [rules.py]", "ignore: [PF]"),
    ("Severity.WARNING", "Severity.INFO"), ("[pytest]", "[pytest]\npromptfmt_docs = 1"),
    ("[pytest]", "[pytest]\npromptfmt_profiles = plain chat-chatml"), ("arc", "wic"), ("long prompts", "prompts"),
    ("true", "false"), ("</s>", "<s>"), ("plain", "blank"), ("text", "txet"),
)  # fmt: skip


@dataclass
class Project:
    """The files, and what has been done to them."""

    root: Path
    chance: random.Random
    edits: Counter[str] = field(default_factory=Counter)

    def write(self, name: str, content: bytes) -> None:
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def begin(self) -> None:
        for name, text in FILES.items():
            self.write(name, text.encode())
        self.write("tasks/chat/tok/tokenizer.json", small_tokenizer())

    def files(self) -> list[str]:
        found = (path for path in sorted(self.root.rglob("*")) if path.is_file())
        names = [path.relative_to(self.root).as_posix() for path in found]
        others = (".", "found", LOG, "lib/")  # installed packages change with their version, by `install`
        return [name for name in names if not name.startswith(others) and "__pycache__" not in name]

    def pristine(self) -> dict[str, bytes]:
        own = {name: text.encode() for name, text in FILES.items() if not name.startswith("lib/")}
        return own | {"tasks/chat/tok/tokenizer.json": small_tokenizer()}

    # -- edits ---------------------------------------------------------------------------------------------------------

    def edit(self) -> str:
        """Do one thing, and return what it was."""
        kinds: list[Callable[[], str]] = [self.swap] * 8 + [self.restore] * 6 + [self.appear] * 3
        kinds += [self.vanish, self.empty, self.disguise, self.disguise, self.install, self.accept, self.cut]
        while True:
            kind = self.chance.choice(kinds)
            done = kind()
            if done:
                self.edits[kind.__name__] += 1
                return f"{kind.__name__} {done}"

    def swap(self) -> str:
        name = self.chance.choice(self.files())
        content = (self.root / name).read_bytes()
        fitting = [(old.encode(), new.encode()) for old, new in SWAPS if old.encode() in content]
        if not fitting:
            return ""
        old, new = self.chance.choice(fitting)
        self.write(name, content.replace(old, new, self.chance.choice((1, -1))))
        return f"{name}: {old!r} -> {new!r}"

    def disguise(self) -> str:
        """Change a file without changing its size and times."""
        name = self.chance.choice(self.files())
        path = self.root / name
        before, content = path.stat(), path.read_bytes()
        places = [match.start() for match in re.finditer(rb"[a-zA-Z?.:]", content)]
        if not places:
            return ""
        at = self.chance.choice(places)
        path.write_bytes(content[:at] + self.chance.choice((b"x", b"y", b"!")) + content[at + 1 :])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return f"{name} at {at}"

    def restore(self) -> str:
        now, before = set(self.files()), self.pristine()
        changed = [name for name in before if name not in now or (self.root / name).read_bytes() != before[name]]
        added = sorted(now & APPEARING.keys())
        name = self.chance.choice([*changed, *added] or [""])
        if name in before:
            self.write(name, before[name])
        elif name:
            (self.root / name).unlink()
        return name

    def appear(self) -> str:
        name = self.chance.choice(sorted(APPEARING))
        if (self.root / name).exists():
            return ""
        self.write(name, APPEARING[name].encode())
        return name

    def vanish(self) -> str:
        name = self.chance.choice(self.files())
        (self.root / name).unlink()
        return name

    def empty(self) -> str:
        name = self.chance.choice(self.files())
        self.write(name, b"")
        return name

    def cut(self) -> str:
        name = self.chance.choice(self.files())
        content = (self.root / name).read_bytes()
        self.write(name, content[: self.chance.randrange(len(content) + 1)])
        return name

    def install(self) -> str:
        """Install another version of the package that a task's code imports."""
        place = self.root / "lib/site-packages"
        version = f"1.{self.chance.randrange(1000)}"
        for folder in place.glob("dep-*.dist-info"):
            shutil.rmtree(folder)
        self.write(
            f"lib/site-packages/dep-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: dep\nVersion: {version}\n".encode(),
        )
        self.write("lib/site-packages/dep.py", f"END = {self.chance.choice(['.', '..', ' ?'])!r}\n".encode())
        return version

    def accept(self) -> str:
        return f"exit {run(self.root, '--snapshot-update', *REMEMBERING)}"


def small_tokenizer() -> bytes:
    """Return a tokenizer of few tokens."""
    path = min((PACKAGE / "data/tokenizers").glob("*/tokenizer.json"), key=lambda path: path.stat().st_size)
    return path.read_bytes()


# -- runs --------------------------------------------------------------------------------------------------------------


def run(root: Path, *options: str) -> int:
    """Return the exit status of pytest in a process that is forked from this one."""
    process = os.fork()
    if process == 0:
        code = 99
        try:
            os.chdir(root)
            output = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            for number in (1, 2):
                os.dup2(output, number)
            sys.path[:0] = [str(root), str(root / "lib/site-packages")]
            sys.dont_write_bytecode = True
            places = [] if any(each.startswith("tasks/") for each in options) else ["tasks"]
            quiet = ("-p", "no:hypothesispytest", "-p", "no:xdist", "-q")
            code = int(pytest.main(["--promptfmt", *places, *quiet, *options]))
        finally:
            os._exit(code)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def found(root: Path, *options: str) -> tuple[Any, str]:
    """Return all that a run found, and what it printed."""
    file = root / "found.json"
    file.unlink(missing_ok=True)
    code = run(root, f"--promptfmt-json={file}", *options)
    what = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for name in ("command", "next_steps"):  # they quote the options
        what.pop(name, None)
    return [code, what], (root / LOG).read_text("utf-8", "replace")


def remembered(said: str) -> int:
    """Return how many files a run showed from memory."""
    match = re.search(r"(\d+) unchanged", said)
    return int(match[1]) if match else 0


def main() -> None:
    """Edit and compare; print what was found, and exit with 1 where an outcome was stale."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--edits", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop at the latest")
    given = parser.parse_args()
    os.environ["PYTEST_ADDOPTS"] = ""
    stale: list[str] = []
    shown = done = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROMPTFMT_CACHE_DIR"] = str(Path(folder) / "cache")
        root = Path(folder) / "project"
        project = Project(root, random.Random(given.seed))
        project.begin()
        run(root, "--snapshot-update", *REMEMBERING)
        history: list[str] = []
        while done < given.edits and time.monotonic() - began < given.seconds:
            history.append(project.edit())
            done += 1
            options = project.chance.choice(SHOWING)
            remembering, said = found(root, *options, *REMEMBERING)
            fresh, _ = found(root, *options, *FRESH)
            shown += remembered(said)
            if remembering != fresh:
                stale.append(f"edit {done}, {' '.join(options)}: {'; '.join(history[-3:])}")
                print(f"STALE: {stale[-1]}\n{_difference(remembering, fresh)}", flush=True)
    kinds = ", ".join(f"{count:,} {name}" for name, count in project.edits.most_common())
    print(f"{done:,} edits ({kinds}); {shown:,} files shown from memory; {len(stale):,} stale outcomes")
    sys.exit(bool(stale))


def _difference(first: Any, second: Any, place: str = "") -> str:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *second]:
            if first.get(key) != second.get(key):
                return _difference(first.get(key), second.get(key), f"{place}.{key}")
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            if one != other:
                return _difference(one, other, f"{place}[{number}]")
    return f"  {place}: {str(first)[:300]} instead of {str(second)[:300]}"


if __name__ == "__main__":
    main()
