# ruff: noqa: E402
"""Compares our prompts with those of lmms-eval on the search path: texts, content parts and requests of its own tasks.

`python lmms_comparison.py 60 1`, with the number of tasks and a seed. Prints JSON. lmms-eval loads each task file and
builds the task and its messages itself; only the dataset is replaced, by docs with images, sound and videos. torch and
accelerate, which it imports to run models, may be missing: the code of prompts does not use them.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import resource
import sys
from collections import Counter
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import transformers  # noqa: F401  # before torch is replaced, which it looks for
from loguru import logger
from PIL import Image

ABSENT = frozenset(name for name in ("torch", "accelerate") if find_spec(name) is None)


class Placeholders(Loader, MetaPathFinder):
    """Finds modules of absent packages, in which each name is `object`."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = self.member

    @staticmethod
    def member(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


sys.meta_path.append(Placeholders())

from lmms_eval import utils
from lmms_eval.api import metrics  # noqa: F401  # registers them
from lmms_eval.api.task import ConfigurableMessagesTask, ConfigurableTask
from lmms_eval.protocol import ChatMessages

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.prompt import Request
from pytest_promptfmt.core.release import release_of
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.profiles.conversation import render_messages
from pytest_promptfmt.tasks import bind_functions, found_release, read_task_yaml, render_task, synthetic_docs

TEMPLATE = """\
{%- for message in messages -%}
<|{{ message.role }}|>
{%- if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{% if part.type == 'text' %}{{ part.text }}{% elif part.type in ('image', 'audio', 'video') %}<|{{ part.type }}|>
{%- endif %}{% endfor %}{% endif %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
CHAT = Profile(name="chat", chat_template=TEMPLATE)
PICTURE = Image.new("RGB", (3, 2))
MEDIA: tuple[Any, ...] = (
    PICTURE,
    [PICTURE, PICTURE],
    "images/picture.png",
    "clip.mp4",
    {"array": [0.0, 0.5], "sampling_rate": 16000, "path": "sound.wav"},
    "sound.wav",
)
"""What columns of images, sound and videos hold, tried in this order until lmms-eval itself takes it."""

MEDIA_NAME = re.compile("image|img|visual|video|audio|picture|figure|bytes|sound|clip")
MARKER = re.compile(r"<\|(?:image|audio|video)\|>")
MEMORY, SECONDS = 4 << 30, 20
TEXT_NAME = re.compile("path|name|id$|caption|text|type|num|url")


class Docs(list[Any]):
    """The docs of a split, with the names of their columns."""

    @property
    def features(self) -> dict[str, Any]:
        return dict(self[0])


def given(base: type[Any], path: Path, docs: list[Any]) -> Any:
    """Return a task of lmms-eval made of its file, with these docs in each split."""

    class Given(base):  # type: ignore[misc]
        def download(self, dataset_kwargs: Any = None) -> None:
            config = self.config
            names = {config.training_split, config.validation_split, config.test_split, config.fewshot_split}
            self.dataset = self.dataset_no_image = {name: Docs(copy.deepcopy(docs)) for name in names}

    return Given(config=utils.load_yaml_config(str(path), mode="full"), model_name="own_model")


def theirs(path: Path, docs: list[Any]) -> dict[str, Any]:
    """Return the context, requests and rendered messages of each doc."""
    made: dict[str, Any] = {}
    task = given(ConfigurableTask, path, docs)
    split = task.config.test_split or task.config.validation_split
    contexts, arguments = [], []
    for number, doc in enumerate(docs):
        context = task.fewshot_context(copy.deepcopy(doc), 0)
        facts = {"task": task.config.task, "doc_id": number, "repeats": 1, "split": split}
        asked = task.construct_requests(doc_id=number, ctx=context, metadata=facts)
        requests = asked if isinstance(asked, list) else [asked]
        contexts.append([each.arguments[0] for each in requests])
        arguments.append([each.arguments[1] for each in requests])
    made["plain"] = contexts
    if task.OUTPUT_TYPE in ("generate_until", "multiple_choice"):
        made["requests"] = arguments
    if task.OUTPUT_TYPE == "generate_until":
        chat = given(ConfigurableMessagesTask, path, docs)
        messages = [ChatMessages(messages=chat.doc_to_messages(copy.deepcopy(doc))).to_hf_messages() for doc in docs]
        made["chat"] = [render_messages(CHAT, each) for each in messages]
    return made


def asked(request: Request) -> Any:
    """Return what is asked of the model besides the context."""
    return request.continuation if request.kind == "loglikelihood" else dict(request.generation_kwargs or {})


def ours(task: Task, docs: list[Any], kinds: set[str]) -> dict[str, Any]:
    """Return the same of ours."""
    own = TaskDocs.in_memory(docs)
    plain = list(render_task(task, own, PLAIN, num_fewshot=0))
    made: dict[str, Any] = {
        "plain": [[one.context for one in each.requests] or [each.prompts[0].text] for each in plain]
    }
    if "requests" in kinds:
        made["requests"] = [[asked(one) for one in each.requests] for each in plain]
    if "chat" in kinds:
        made["chat"] = [each.prompts[0].text for each in render_task(task, own, CHAT, num_fewshot=0)]
    return made


def answered(path: Path, docs: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return docs that lmms-eval takes, and what it makes of them: columns that it misses are added, one kind of media.

    Raises the error of the last kind.
    """
    added: dict[str, str | None] = {}
    last: BaseException = ValueError()
    for value in MEDIA:
        while True:
            made = [{**doc, **{name: value if text is None else text for name, text in added.items()}} for doc in docs]
            try:
                return made, theirs(path, made)
            except (Exception, SystemExit) as error:
                last = error
            name = last.args[0] if isinstance(last, KeyError) else None
            if not isinstance(name, str) or name in made[0]:
                break
            added[name] = None if MEDIA_NAME.search(name) and not TEXT_NAME.search(name) else f"a {name}"
        if None not in added.values():
            break
    raise last


def compared(path: Path) -> dict[str, Any]:
    """Return how many texts of a task are equal, the differences, and why it cannot be compared; none if it is none."""
    try:
        file = read_task_yaml(path)
        tasks = file.tasks if file is not None else ()
        if len(tasks) != 1:
            return {}
        release, _ = found_release(path.parent) or ("", "")
        task = bind_functions(tasks[0], trusted=lambda _: True).following(release_of(release))
        rows = [dict(doc) for doc in synthetic_docs(task, count=2)]
        visual = task.config.get("doc_to_visual")
        docs, made = answered(path, [{**doc, visual: PICTURE} for doc in rows] if isinstance(visual, str) else rows)
    except (Exception, SystemExit) as error:
        return {"left": f"{path.stem}: {type(error).__name__}: {error}"[:200]}
    try:
        mine = ours(task, docs, set(made))
    except PromptfmtError as error:
        return {"wrong": [f"{path.stem}: {error.message}"[:400]]}
    differing = [kind for kind, each in made.items() if mine[kind] != each]
    wrong = [f"{path.stem}, {kind}: {mine[kind]!r} != {made[kind]!r}"[:1500] for kind in differing]
    texts = {kind: len(each) for kind, each in made.items()}
    return {"texts": texts, "media": len(MARKER.findall(str(made.get("chat")))), "wrong": wrong}


def apart(path: Path) -> dict[str, Any]:
    """Return the same of a process with limits, because code of tasks may take all memory."""
    read, write = os.pipe()
    if not os.fork():
        os.close(read)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        with os.fdopen(write, "w") as out:
            json.dump(compared(path), out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as given:
        made = given.read()
    os.wait()
    found: dict[str, Any] = json.loads(made) if made else {"left": f"{path.stem}: it did not end within the limits"}
    return found


def main(count: int, seed: int) -> None:
    logger.remove()
    files = sorted((Path(utils.__file__).parent / "tasks").rglob("*.yaml"))
    random.Random(seed).shuffle(files)
    totals: Counter[str] = Counter()
    seen: Counter[Path] = Counter()
    wrong, left = [], []
    for path in files:
        if totals["tasks"] == count:
            break
        if seen[path.parent] == 2:
            continue
        found = apart(path)
        if "left" in found:
            left.append(found["left"])
        elif found:
            seen[path.parent] += 1
            totals.update(found.get("texts", {}))
            totals.update(tasks=1, differ=bool(found["wrong"]), media=found.get("media", 0))
            wrong += found["wrong"]
    print(json.dumps({**totals, "wrong": wrong, "left": left}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
