"""The rules about tokens and chat templates on lm-eval's tasks with real models: findings per code, and what they cost.

    python benchmarks/bench_model_rules.py [--every 40] [--shots 2] [--json findings.json]

Every 40th task file of the installed lm_eval, with made-up docs or those beside the file, for every tokenizer of
`../shared/data` and the chat templates that belong to it, in one process. The functions of the tasks run. Seconds are
processor time.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Reported
from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.profiles import load_tokenizer
from pytest_promptfmt.rules.linter import Linter
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.study import Studies, seen_by
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex, yaml_files

DATA: Final = Path(__file__).parents[2] / "shared" / "data"
MODELS: Final = MappingProxyType(
    {
        "llama2": ("chujie-llama-2-chat", "mistralrs-default", "axolotl-llava"),
        "mistral-v1": ("axolotl-mistral_v1", "mistralrs-mistral", "chujie-zephyr"),
        "mistral-tekken": ("mistralcommon-v15", "unsloth-mistral-Devstral-Small-2507"),
        "phi3-mini": ("axolotl-phi_3", "cfg-phi-3-medium", "chujie-phi-3"),
        "qwen3": ("Qwen-Qwen3-0.6B", "Qwen-Qwen2.5-7B-Instruct", "trl-qwen3_instruct_2507"),
        "gpt2": ("axolotl-chatml",),  # which does not belong to it
        "gpt-neox-20b": (),
        "roberta-base": (),
        "t5-small": (),
        "bert-base-uncased": (),
    }
)
ENCODERS: Final = ("roberta-base", "t5-small", "bert-base-uncased")


def main() -> None:
    """Check, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=40, help="one task file of so many")
    parser.add_argument("--shots", type=int, help="demonstrations, for tasks that do not fix them to 0")
    parser.add_argument("--json", type=Path, help="write every finding to this file")
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or spec.origin is None or not DATA.is_dir():
        sys.exit("lm_eval or ../shared/data is not there")
    root = Path(spec.origin).parent / "tasks"
    profiles = (PLAIN, *real_profiles())
    settings = Settings(rootdir=root, profiles=(PLAIN,), num_fewshot=arguments.shots)
    studies, linter = Studies(lambda _task: settings), Linter()
    rules = {code: rule for code, rule in known_rules().items() if code[:3] in ("PF3", "PF4")}
    selection = Selection(rules=rules, rootdir=root)
    index = TaskIndex([root])
    findings: list[Reported] = []
    tasks, began = 0, time.process_time()
    for task in (task for path in list(yaml_files(root))[:: arguments.every] for task in tasks_of(path, index)):
        try:
            study = studies.of(task)
            findings += linter.check(study, selection, [seen_by(study, profile) for profile in profiles]).findings
            tasks += 1
        except PromptfmtError as error:
            print(f"{task.id}: {error.message}")
    print(f"{tasks} tasks x {len(profiles)} profiles, {time.process_time() - began:.1f} s with rendering and loading")
    told = Counter((one.code, one.name, str(one.severity)) for one in findings)
    for (code, name, severity), count in sorted(told.items()):
        of_code = [one for one in findings if one.code == code and one.severity == severity]
        profiles_told = len({profile for one in of_code for profile in one.profiles})
        tasks_told = len({one.task for one in of_code if one.task})
        print(f"{code} {name:30} {severity:8} {count:5} findings {tasks_told:4} tasks {profiles_told:3} profiles")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([one.to_json() for one in findings]), "utf-8")


def real_profiles() -> list[Profile]:
    """Return one profile for each tokenizer by itself, and one for each of its chat templates."""
    profiles = []
    for name, templates in MODELS.items():
        source = str(DATA / "tokenizers" / name)
        split = "pairwise" if name in ENCODERS else "lm-eval"
        plain = Profile(name=name, tokenizer=source, tokenizer_name=name, split=split)  # type: ignore[arg-type]
        profiles.append(plain)
        for template in templates:
            file = DATA / "chat_templates" / f"{template}.jinja"
            profiles.append(
                Profile(
                    name=f"{name}+{template}",
                    tokenizer=source,
                    tokenizer_name=name,
                    chat_template=file.read_bytes().decode(),
                    template_file=file,
                    special_tokens=load_tokenizer(source).special_tokens,
                )
            )
    return profiles


def tasks_of(path: Path, index: TaskIndex) -> tuple[Task, ...]:
    """Return the tasks of a file; none of one that cannot be read."""
    try:
        file = read_task_file(path, index)
    except PromptfmtError:
        return ()
    return tuple(file.tasks) if file is not None else ()


if __name__ == "__main__":
    main()
