"""Every setting, once: its option, ini value and key of `promptfmt.yaml`, what it takes, and what it is for.

Options, ini values, keys, their JSON Schema, how they are read, and the tables of the docs are made from this.
pytest imports this module at every start of every project: it imports nothing heavy.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from pytest_promptfmt.settings.values import (
    ARGUMENTS,
    CLOCK,
    CODES,
    FILE,
    FLAG,
    MAPPING,
    NAME,
    NAME_OR_NONE,
    NAMES,
    PATHS,
    PER_FILE,
    SECONDS,
    TEXT,
    Kind,
    one_of,
    whole,
)


class Setting(NamedTuple):
    """One setting and where it can be written: as an option, an ini value, a key of `promptfmt.yaml`.

    `help` is Markdown; `ini_help` and `key_help` take its place where more or something else is to be said, and `page`
    is the page of the docs that says more. `const` is the value of an option that takes none, `default` that of an ini
    value that is not written. `at_rootdir` says that only the file in the rootdir may have the key: it lets code run
    or the network be used, or is read before any folder is entered. `is_repeated` says that another run needs the
    option to render the same. (A named tuple, which is made faster than a dataclass.)
    """

    name: str
    kind: Kind
    help: str
    option: str | None = None
    metavar: str | None = None
    const: Any = None
    ini: str | None = None
    ini_help: str | None = None
    key: str | None = None
    key_help: str | None = None
    at_rootdir: bool = False
    default: Any = None
    page: str | None = None
    is_repeated: bool = False
    is_hidden: bool = False

    @property
    def is_repeatable(self) -> bool:
        """Return whether the option can be given several times."""
        return self.kind.ini_type in ("args", "paths")

    @property
    def takes_value(self) -> bool:
        """Return whether a value is written after the option."""
        return self.kind is not FLAG and self.const is None


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        name="promptfmt",
        kind=FLAG,
        option="--promptfmt",
        ini="promptfmt",
        help="Collect task files and test their prompts. With paths, only those; without, the ini value "
        "`promptfmt_paths`, else the rootdir.",
        ini_help="`true`: always act as with `--promptfmt`, beside the ordinary tests.",
    ),
    Setting(
        name="task_globs",
        kind=NAMES,
        option="--promptfmt-task",
        metavar="GLOB",
        help="Run only tasks whose name or `name@format` matches, such as `'arc_*'` or `'arc_*@mcqa'`. The rest is "
        "deselected: their snapshots are left alone.",
    ),
    Setting(
        name="profiles",
        kind=NAMES,
        option="--promptfmt-profile",
        metavar="NAME",
        ini="promptfmt_profiles",
        key="default_profiles",
        help="Render for this profile: `plain`, `chat-chatml`, `chat-gemma`, `chat-llama2`, `chat-llama3`, "
        "`chat-mistral`, `chat` for all of these, or one of `promptfmt.yaml`; `NAME:key=value,key=value` gives "
        "arguments to its chat template.",
        ini_help="Profiles rendered by default. Default: `plain chat-chatml chat-llama2`.",
        key_help="What is rendered where the command line names no profile. Without it: plain and all of profiles.",
        page="profiles.md",
        is_repeated=True,
    ),
    Setting(
        name="defined",
        kind=MAPPING,
        key="profiles",
        help="Profiles by name.",
    ),
    Setting(
        name="tokenizers",
        kind=NAMES,
        option="--promptfmt-tokenizer",
        metavar="PATH_OR_ID",
        ini="promptfmt_tokenizer",
        help="Render for a profile with this tokenizer: a folder, a file, `archetype:NAME`, or the id of a model on "
        "the hub that is in the local cache. With `--promptfmt-profile`, in place of that profile's own.",
        ini_help="Tokenizers, each a profile of its own, rendered besides `promptfmt_profiles`; without that, alone.",
        is_repeated=True,
    ),
    Setting(
        name="chat_templates",
        kind=NAMES,
        option="--promptfmt-chat-template",
        metavar="FILE_OR_NAME",
        ini="promptfmt_chat_template",
        help="The chat template of that profile: a Jinja file, `own` for the tokenizer's default, another of its "
        "names, a built-in one (`chatml`, `gemma`, `llama2`, `llama3`, `mistral`), or `none`.",
        ini_help="The chat templates of these tokenizers.",
        is_repeated=True,
    ),
    Setting(
        name="formats",
        kind=NAMES,
        option="--promptfmt-format",
        metavar="NAME",
        help="Try this format on tasks that name none, and choose it on tasks that declare it.",
        page="formats.md",
        is_repeated=True,
    ),
    Setting(
        name="variants",
        kind=NAMES,
        option="--promptfmt-variants",
        metavar="AXIS",
        help="Also render variants of every format that differ in one thing: an axis (`enumerator`), one value "
        "(`enumerator-roman`) or `all`. They are items `variant[…]`, without snapshots.",
        page="formats.md",
        is_repeated=True,
    ),
    Setting(
        name="docs",
        kind=whole(1),
        option="--promptfmt-docs",
        metavar="N",
        ini="promptfmt_docs",
        key="docs",
        help="Docs in each snapshot. Default: 2 synthetic ones, 3 otherwise.",
        is_repeated=True,
    ),
    Setting(
        name="num_fewshot",
        kind=whole(0),
        option="--promptfmt-num-fewshot",
        metavar="N",
        ini="promptfmt_num_fewshot",
        key="num_fewshot",
        help="Shots for every task that does not fix them to 0. Such runs have snapshots of their own, "
        "`plain-5shot.txt`.",
        is_repeated=True,
    ),
    Setting(
        name="allow_code",
        kind=PATHS,
        option="--promptfmt-allow-code",
        metavar="PATH",
        ini="promptfmt_allow_code",
        key="allow_code",
        at_rootdir=True,
        help="Let `!function` code below this path run, besides that below the rootdir.",
        ini_help="Paths whose `!function` code may run.",
        key_help="Paths whose `!function` code may run.",
        is_repeated=True,
    ),
    Setting(
        name="no_code",
        kind=FLAG,
        option="--promptfmt-no-code",
        help="Run no `!function` code at all; tasks that need it are skipped with that reason.",
    ),
    Setting(
        name="download",
        kind=FLAG,
        option="--promptfmt-download",
        ini="promptfmt_download",
        key="download",
        at_rootdir=True,
        help="Download tokenizers that are not in the local cache; never code of a model.",
        key_help="Whether tokenizers that are not in the local cache may be downloaded.",
        is_repeated=True,
    ),
    Setting(
        name="lint",
        kind=FLAG,
        ini="promptfmt_lint",
        key="lint",
        default=True,
        help="Whether the rules run.",
        ini_help="`false`: no items `lint`, so no rules run. Default: `true`.",
        page="checks.md",
    ),
    Setting(
        name="select",
        kind=CODES,
        option="--promptfmt-select",
        metavar="CODES",
        ini="promptfmt_select",
        key="select",
        help="Run only the rules with these codes or prefixes, such as `PF2` or `PF101,PF203`.",
        key_help="Codes and prefixes of the rules to run.",
        page="checks.md",
    ),
    Setting(
        name="ignore",
        kind=CODES,
        option="--promptfmt-ignore",
        metavar="CODES",
        ini="promptfmt_ignore",
        key="ignore",
        help="Leave out the rules with these codes or prefixes. Where `--promptfmt-select` names a rule as well, the "
        "longer prefix wins.",
        key_help="Codes and prefixes of rules to leave out.",
    ),
    Setting(
        name="per_file_ignores",
        kind=PER_FILE,
        ini="promptfmt_per_file_ignores",
        key="per_file_ignores",
        help="Codes of rules to leave out, by glob of the path below this file's folder or of the file name.",
        ini_help="Rules to leave out in some files: lines `glob: codes`.",
    ),
    Setting(
        name="checks",
        kind=PATHS,
        ini="promptfmt_checks",
        key="checks",
        at_rootdir=True,
        help="Python files with rules of your own. They are run.",
    ),
    Setting(
        name="answers",
        kind=one_of("auto", "all", "none", spellings={"true": "all", "false": "none"}),
        option="--promptfmt-scoring",
        const="all",
        ini="promptfmt_scoring",
        key="scoring",
        help="Try how every task reads and scores answers, not only those with a filter that looks for one, and fail "
        "also what snapshots have accepted.",
        ini_help="Of which tasks it is tried how answers are read and scored: `auto` (default: those with a filter "
        "that looks for an answer), `all` (as `--promptfmt-scoring`) or `none`.",
        key_help="Of which tasks it is tried how answers are read and scored: of those with a filter that looks for "
        "one (auto), of all, and then more strictly, or of none.",
        page="scoring.md",
        is_repeated=True,
    ),
    Setting(
        name="time_limit",
        kind=SECONDS,
        ini="promptfmt_time_limit",
        key="time_limit",
        help="Seconds for making the docs of one task, for rendering them with one profile, and for importing one "
        "module of functions. Default: 10, and 60 for the import.",
    ),
    Setting(
        name="paths",
        kind=PATHS,
        ini="promptfmt_paths",
        key="paths",
        at_rootdir=True,
        help="Where task files are looked for when the command line names no path.",
    ),
    Setting(
        name="task_modules",
        kind=PATHS,
        ini="promptfmt_task_modules",
        key="task_modules",
        at_rootdir=True,
        help="Python files (globs, folders) with task classes; they are imported to find them.",
        page="task-classes.md",
    ),
    Setting(
        name="model",
        kind=TEXT,
        option="--promptfmt-model",
        metavar="MODEL",
        help="Also put every task to a model: `tiny` (bundled), `hf:PATH_OR_ID`, `openai:URL[#NAME]` or `replay:FILE`.",
        page="models.md",
    ),
    Setting(
        name="record",
        kind=FILE,
        option="--promptfmt-record",
        metavar="FILE",
        help="Write what the model answers to this file, to be replayed later; resumes an interrupted run.",
        page="models.md",
    ),
    Setting(
        name="model_device",
        kind=TEXT,
        option="--promptfmt-model-device",
        metavar="DEVICE",
        help="Where the model runs: `auto` (the default: a GPU where there is one), `cpu`, `cuda`, `cuda:1`.",
    ),
    Setting(
        name="model_dtype",
        kind=TEXT,
        option="--promptfmt-model-dtype",
        metavar="DTYPE",
        help="Its numbers: `auto` (the default: float32 on a CPU, bfloat16 on a GPU), `float32`, `bfloat16`, "
        "`float16`.",
    ),
    Setting(
        name="model_batch_size",
        kind=whole(1),
        option="--promptfmt-model-batch-size",
        metavar="N",
        help="The most rows at once; halved when memory runs out. Default: 16.",
    ),
    Setting(
        name="model_timeout",
        kind=SECONDS,
        option="--promptfmt-model-timeout",
        metavar="SECONDS",
        help="How long a server may take for one answer. Default: 60.",
    ),
    Setting(
        name="model_concurrency",
        kind=whole(1),
        option="--promptfmt-model-concurrency",
        metavar="N",
        help="The most questions that a server is asked at once. Default: 8.",
    ),
    Setting(
        name="baseline",
        kind=FILE,
        option="--promptfmt-baseline",
        metavar="FILE",
        ini="promptfmt_baseline",
        help="Accept the findings and errors that the file lists; new ones fail.",
        ini_help="As `--promptfmt-baseline`; below the rootdir.",
        page="baseline.md",
    ),
    Setting(
        name="baseline_update",
        kind=one_of("write", "prune"),
        option="--promptfmt-baseline-update",
        metavar="MODE",
        help="`write`: put what is found now into the baseline. `prune`: remove what is no longer found.",
    ),
    Setting(
        name="shard",
        kind=TEXT,
        option="--promptfmt-shard",
        metavar="I/N",
        help="Read only the I-th of N parts of the task files, such as 1/4.",
        page="ci.md",
    ),
    Setting(  # a file of absolute paths with NUL between them: what `promptfmt diff` knows to be the same
        name="left_out",
        kind=FILE,
        option="--promptfmt-leave-out",
        metavar="FILE",
        help="Task files that are not read.",
        is_hidden=True,
    ),
    Setting(
        name="patch",
        kind=FILE,
        option="--promptfmt-patch",
        metavar="FILE",
        help="Write what `--snapshot-update` would do as a patch for `git apply`.",
    ),
    Setting(
        name="pending",
        kind=FILE,
        option="--promptfmt-pending",
        metavar="FILE",
        help="Write what `--snapshot-update` would do as JSON lines, for `promptfmt review`.",
    ),
    Setting(
        name="json",
        kind=FILE,
        option="--promptfmt-json",
        metavar="FILE",
        help="Write the result of the run as one JSON object.",
    ),
    Setting(
        name="markdown",
        kind=FILE,
        option="--promptfmt-markdown",
        metavar="FILE",
        help="Write the result of the run as Markdown, at most 1 MiB.",
    ),
    Setting(
        name="html",
        kind=FILE,
        option="--promptfmt-html",
        metavar="FILE",
        help="Write all prompts, changes and findings as one HTML page.",
        page="report.md",
    ),
    Setting(
        name="write",
        kind=NAMES,
        option="--promptfmt-write",
        metavar="WRITER=FILE",
        help="Write the result of the run with a writer: `json`, `markdown`, `html`, `patch`, `pending`, or one of "
        "another package.",
        page="ci.md",
    ),
    Setting(
        name="step_summary",
        kind=FLAG,
        option="--promptfmt-step-summary",
        ini="promptfmt_step_summary",
        help="Append the Markdown to the file that `GITHUB_STEP_SUMMARY` names, where it is set.",
    ),
)
"""Every setting, in the order of the docs."""

BY_NAME: Final = {setting.name: setting for setting in SETTINGS}

REPORTS: Final = ("patch", "pending", "json", "markdown", "html")
"""The settings that name a file which the run writes."""

KEYS: Final = {setting.key: setting for setting in SETTINGS if setting.key is not None}
"""The settings that are keys of `promptfmt.yaml`, by key."""


def _of_profile(key: str, kind: Kind, text: str) -> Setting:
    return Setting(name=key, kind=kind, key=key, help=text)


_PROFILE: Final = (
    _of_profile(
        "extends", NAME, "The profile whose keys this one takes over; template_args are merged, all else is replaced."
    ),
    _of_profile(
        "tokenizer",
        NAME_OR_NONE,
        "A folder or file relative to this file, `archetype:NAME`, or the id of a model on the hub.",
    ),
    _of_profile(
        "chat_template",
        NAME_OR_NONE,
        "`own` for the tokenizer's default, the name of another one of its templates, the path of a Jinja file "
        "relative to this file, a built-in template, or `none` (the default).",
    ),
    _of_profile(
        "template_args", ARGUMENTS, "Variables of the chat template: enable_thinking, date_string, tools, documents …"
    ),
    _of_profile(
        "formatter",
        one_of("concat", "no-strip-concat", "llama3", "identity"),
        "A formatter of eval-framework that joins the messages; without chat_template.",
    ),
    _of_profile("system_instruction", TEXT, "Text before the task's description, as lm-eval's option."),
    _of_profile(
        "fewshot_as_turns", FLAG, "true: shots are turns of user and assistant; false: text inside one user turn."
    ),
    _of_profile(
        "mode",
        one_of("loglikelihood", "generate"),
        "What the model is asked for: how likely each continuation is, or a text of its own.",
    ),
    _of_profile(
        "split",
        one_of("lm-eval", "pairwise"),
        "How context and continuation become tokens: encoded together and cut, or each by itself.",
    ),
    _of_profile("clock", CLOCK, "The date that strftime_now of a chat template sees."),
)
PROFILE_KEYS: Final = {setting.name: setting for setting in _PROFILE}
"""The keys of one profile in `promptfmt.yaml`."""


def plain(text: str) -> str:
    """Return Markdown as the help of a command shows it."""
    return re.sub(r"`([^`]*)`", r"\1", text)
