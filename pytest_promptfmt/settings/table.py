"""Every setting, once: its option, ini value and key of `promptfmt.yaml`, what it takes, and what it is for.

Options, ini values, keys, their JSON Schema, how they are read, and the tables of the docs are made from this.
pytest imports this module at every start of every project: it imports nothing heavy.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pytest_promptfmt.settings.setting_values import (
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
    RELEASE,
    SECONDS,
    TEXT,
    TRAINED,
    ValueType,
    one_of,
    several_of,
    whole,
)


class Setting(NamedTuple):
    """One setting and where it can be written: as an option, an ini value, a key of `promptfmt.yaml`.

    `written` is the option with the name of its value, `const` the value of an option that takes none, `default` that
    of an ini value that is not written. `at_rootdir`: only the file in the rootdir may have the key, since it lets
    code run or the network be used, or is read before any folder is entered. `is_repeated`: another run needs the
    option to render the same. (A named tuple, which is made faster than a dataclass.)
    """

    name: str
    kind: ValueType
    written: str = ""
    const: Any = None
    ini: str | None = None
    key: str | None = None
    at_rootdir: bool = False
    default: Any = None
    is_repeated: bool = False
    is_hidden: bool = False
    help: str = ""
    ini_help: str = ""
    key_help: str = ""
    page: str = ""

    def about(self, text: str, *, ini: str = "", key: str = "", page: str = "") -> Setting:
        """Return the setting with its description, in Markdown, and the page of the docs about it.

        `ini` and `key` take the place of the text for the ini value or key.
        """
        return self._replace(help=text, ini_help=ini, key_help=key, page=page)

    @property
    def option(self) -> str:
        """Return the option, "" if it has none."""
        return self.written.partition(" ")[0]

    @property
    def metavar(self) -> str | None:
        """Return what help calls the value of the option, None where it takes none."""
        return self.written.partition(" ")[2] or None

    @property
    def is_repeatable(self) -> bool:
        """Return whether the option can be given several times."""
        return self.kind.ini_type in ("args", "paths")


def _everywhere(name: str, kind: ValueType, value: str = "", **more: Any) -> Setting:
    """Return a setting whose option, ini value and key have its name; `value` is what help calls the option's value."""
    option = f"--promptfmt-{name.replace('_', '-')}"
    return Setting(name, kind, f"{option} {value}".rstrip(), ini=f"promptfmt_{name}", key=name, **more)


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("promptfmt", FLAG, "--promptfmt", ini="promptfmt").about(
        "Collect task files and test their prompts. With paths, only those; without, in the rootdir the ini value "
        "`promptfmt_paths`, else the whole rootdir, and in another folder that folder.",
        ini="`true`: always act as with `--promptfmt`, in addition to the ordinary tests.",
    ),
    Setting("task_globs", NAMES, "--promptfmt-task GLOB").about(
        "Run only tasks whose name or `name@format` matches, such as `'arc_*'` or `'arc_*@mcqa'`. The rest is "
        "deselected: their snapshots are kept."
    ),
    Setting(
        "profiles",
        NAMES,
        "--promptfmt-profile NAME",
        ini="promptfmt_profiles",
        key="default_profiles",
        is_repeated=True,
    ).about(
        "Render for this profile: `plain`, `chat-chatml`, `chat-gemma`, `chat-llama2`, `chat-llama3`, "
        "`chat-mistral`, `chat` for all of these, or one of `promptfmt.yaml`; `NAME:key=value,key=value` gives "
        "arguments to its chat template.",
        ini="Profiles rendered by default. Default: `plain chat-chatml chat-llama2`.",
        key="What is rendered where the command line names no profile. Without it: plain and all of profiles.",
        page="profiles.md",
    ),
    Setting("defined", MAPPING, key="profiles").about("Profiles by name."),
    Setting("tokenizers", NAMES, "--promptfmt-tokenizer PATH_OR_ID", ini="promptfmt_tokenizer", is_repeated=True).about(
        "Render for a profile with this tokenizer: a folder, a file, `archetype:NAME`, or the id of a model on "
        "the hub that is in the local cache. With `--promptfmt-profile`, in place of that profile's own.",
        ini="Tokenizers, each a separate profile, rendered in addition to `promptfmt_profiles`, or only these.",
    ),
    Setting(
        "chat_templates",
        NAMES,
        "--promptfmt-chat-template FILE_OR_NAME",
        ini="promptfmt_chat_template",
        is_repeated=True,
    ).about(
        "The chat template of that profile: a Jinja file, `own` for the tokenizer's default, another of its "
        "names, a built-in one (`chatml`, `gemma`, `llama2`, `llama3`, `mistral`), or `none`.",
        ini="The chat templates of these tokenizers.",
    ),
    Setting("formats", NAMES, "--promptfmt-format NAME", is_repeated=True).about(
        "Try this format on tasks that name none, and choose it on tasks that declare it.",
        page="formats.md",
    ),
    Setting("variants", NAMES, "--promptfmt-variants AXIS", is_repeated=True).about(
        "Also render variants of every format that differ in one thing: an axis (`enumerator`), one value "
        "(`enumerator-roman`) or `all`. They are items `variant[…]`, without snapshots.",
        page="formats.md",
    ),
    _everywhere("docs", whole(1), "N", is_repeated=True).about(
        "Docs in each snapshot. Default: 2 synthetic ones, 3 otherwise."
    ),
    _everywhere("num_fewshot", whole(0), "N", is_repeated=True).about(
        "Shots for every task that does not fix them to 0. Such runs have separate snapshots, `plain-5shot.txt`."
    ),
    _everywhere("lm_eval", RELEASE, "RELEASE", is_repeated=True).about(
        "The release of lm-eval whose prompts and requests are made, from `0.4.3` to `0.4.13`. Default: that of the "
        "checkout around the rootdir, else the one that is installed, else 0.4.13.",
        ini="The release of lm-eval.",
        page="lm-eval.md",
    ),
    _everywhere("renderer", one_of("fast", "installed"), "WHICH", is_repeated=True).about(
        "What makes the prompts and requests of lm-eval's tasks: `fast` (the default: this package) or `installed`: "
        "the lm-eval that is installed, a release or a fork. Such tests are slower and run each time.",
        page="lm-eval.md",
    ),
    _everywhere("allow_code", PATHS, "PATH", at_rootdir=True, is_repeated=True).about(
        "Let `!function` code below this path run, besides that below the rootdir.",
        ini="Paths whose `!function` code may run.",
        key="Paths whose `!function` code may run.",
    ),
    Setting("no_code", FLAG, "--promptfmt-no-code").about(
        "Run no Python code that a file names: no `!function`, class, rule or metric of the repository, nor its test "
        "modules and doctests. Tasks that need code are skipped with that reason, and `promptfmt.yaml` and the ini "
        "cannot allow downloads.",
        page="security.md",
    ),
    Setting("allow_path", PATHS, "--promptfmt-allow-path PATH", is_repeated=True).about(
        "Open files below this path as well. Files of the repository may only name files below the rootdir, and below "
        "the paths of the command line.",
        page="security.md",
    ),
    # Of `promptfmt diff`: what may run or be downloaded is not up to the revision that is compared with the base.
    Setting("trust", FILE, "--promptfmt-trust FOLDER", is_hidden=True).about(
        "The working directory in the base revision, whose settings decide what may run and be downloaded."
    ),
    _everywhere("download", FLAG, at_rootdir=True, is_repeated=True).about(
        "Download tokenizers that are not in the local cache; never code of a model.",
        key="Whether tokenizers that are not in the local cache may be downloaded.",
    ),
    Setting("lint", FLAG, ini="promptfmt_lint", key="lint", default=True).about(
        "Whether the rules run.",
        ini="`false`: no items `lint`, so no rules run. Default: `true`.",
        page="rules.md",
    ),
    _everywhere("select", CODES, "CODES").about(
        "Run only the rules with these codes or prefixes, such as `PF2` or `PF101,PF203`.",
        key="Codes and prefixes of the rules to run.",
        page="rules.md",
    ),
    _everywhere("ignore", CODES, "CODES").about(
        "Leave out the rules with these codes or prefixes. Where `--promptfmt-select` names a rule as well, the "
        "longer prefix wins.",
        key="Codes and prefixes of rules to leave out.",
    ),
    Setting("per_file_ignores", PER_FILE, ini="promptfmt_per_file_ignores", key="per_file_ignores").about(
        "Codes of rules to leave out, by glob of the path below this file's folder or of the file name.",
        ini="Rules to leave out in some files: lines `glob: codes`.",
    ),
    Setting("rules", PATHS, ini="promptfmt_rules", key="rules", at_rootdir=True).about(
        "Python files with rules of your own. They are run."
    ),
    Setting(
        "answers",
        one_of("auto", "all", "none", spellings={"true": "all", "false": "none"}),
        "--promptfmt-scoring",
        const="all",
        ini="promptfmt_scoring",
        key="scoring",
        is_repeated=True,
    ).about(
        "Try how every task reads and scores answers, not only those with a filter that looks for one, and fail "
        "also what snapshots have accepted.",
        ini="Of which tasks it is tried how answers are read and scored: `auto` (default: those with a filter "
        "that looks for an answer), `all` (as `--promptfmt-scoring`) or `none`.",
        key="Of which tasks it is tried how answers are read and scored: of those with a filter that looks for "
        "one (auto), of all, and then more strictly, or of none.",
        page="scoring.md",
    ),
    _everywhere("snapshots", one_of("all", "adopted"), "WHICH").about(
        "What becomes of a task without a snapshot. `all` (the default): it fails. `adopted`: where no task of its "
        "file has one, it is skipped as not adopted yet.",
        page="baseline.md",
    ),
    _everywhere("strict", FLAG, is_repeated=True).about(
        "Fail what would be skipped because something is not available: a package that is not installed, code that may "
        "not run, synthetic docs that the code of a task cannot read.",
        page="ci.md",
    ),
    Setting("time_limit", SECONDS, ini="promptfmt_time_limit", key="time_limit").about(
        "Seconds for making the docs of one task, for rendering them with one profile, and for importing one "
        "module of functions. Default: 10, and 60 for the import."
    ),
    Setting("paths", PATHS, ini="promptfmt_paths", key="paths", at_rootdir=True).about(
        "Where task files are searched when pytest is started in the rootdir without a path."
    ),
    Setting("task_modules", PATHS, ini="promptfmt_task_modules", key="task_modules", at_rootdir=True).about(
        "Python files (globs, folders) with task classes; they are imported to find them.",
        page="task-classes.md",
    ),
    Setting("workers", whole(0), "--promptfmt-workers N", ini="promptfmt_workers").about(
        "Worker processes that tasks are tested in, each under limits of memory and processor time. Default: one for "
        "each core. 0: test in pytest's own process, without limits, as with `--pdb`."
    ),
    Setting("memory", whole(64), "--promptfmt-memory MB", ini="promptfmt_memory").about(
        "The most that one worker process may hold besides what pytest itself holds, in megabytes. Default: 1024."
    ),
    Setting("no_cache", FLAG, "--promptfmt-no-cache").about(
        "Run every test, also of files that are unchanged since an earlier run, and cache no outcome."
    ),
    Setting("templates", PATHS, ini="promptfmt_templates", key="templates", at_rootdir=True).about(
        "Chat templates and tokenizer folders (globs, folders) that are tested besides those in the rootdir itself and "
        "those that the command line names.",
        page="chat-templates.md",
    ),
    Setting("template_engines", NAMES, ini="promptfmt_template_engines", key="template_engines").about(
        "Engines that also render the chat templates under test, to be compared: `minijinja` and `@huggingface/jinja` "
        "(with node), where they are installed, `llama.cpp`, where it is built, and recordings of servers "
        "(`promptfmt record`), as `FILE.jsonl`.",
        page="chat-templates.md",
    ),
    Setting("hosts", NAMES, ini="promptfmt_hosts", key="hosts").about(
        "The programs that give conversations to your chat templates: `vllm`, `sglang`, `llama.cpp`, `transformers`, "
        "`trl`, `lm-eval` (default: all). What breaks or is lost in a shape that one of them sends is an error.",
        page="chat-templates.md",
    ),
    Setting("training_of", TRAINED, key="training_of").about(
        "The template that the other templates of this folder train for, or a mapping of training templates (globs) to "
        "such templates: they must write the same prompts, but for `{% generation %}`.",
        page="chat-templates.md",
    ),
    Setting("snapshot_dir", FILE, ini="promptfmt_snapshot_dir", key="snapshot_dir", at_rootdir=True).about(
        "The folder of all snapshots, a tree that mirrors the rootdir; by default they are next to the task files. For "
        "packages that ship every file next to their tasks.",
        page="snapshots.md",
    ),
    Setting("docs_dir", FILE, ini="promptfmt_docs_dir", key="docs_dir", at_rootdir=True).about(
        "A folder of frozen docs, a tree that mirrors the rootdir: `promptfmt freeze` writes docs there, and tasks "
        "without docs next to their files read them.",
        page="docs-sources.md",
    ),
    # Of `promptfmt diff`, which hands the snapshots of one revision to the other, independent of their settings.
    Setting("beside", FLAG, "--promptfmt-snapshots-beside", is_hidden=True).about(
        "Keep snapshots next to the task files, also where settings put them elsewhere."
    ),
    Setting(
        "version_parts",
        several_of("text", "request", "target", "stops", "metric"),
        key="version_parts",
        at_rootdir=True,
    ).about(
        "What `promptfmt diff` counts as a change that needs a new version: the `text` of prompts, the `request` "
        "(continuations), the `target`, `stops` and other generation arguments, the `metric` with its filters. "
        "Default: all.",
        page="versions.md",
    ),
    Setting("model", TEXT, "--promptfmt-model MODEL").about(
        "Also put every task to a model: `tiny` (bundled), `hf:PATH_OR_ID`, `openai:URL[#NAME]` or `replay:FILE`.",
        page="models.md",
    ),
    Setting("record", FILE, "--promptfmt-record FILE").about(
        "Write what the model answers to this file, to be replayed later; resumes an interrupted run.",
        page="models.md",
    ),
    Setting("model_device", TEXT, "--promptfmt-model-device DEVICE").about(
        "Where the model runs: `auto` (the default: a GPU where there is one), `cpu`, `cuda`, `cuda:1`."
    ),
    Setting("model_dtype", TEXT, "--promptfmt-model-dtype DTYPE").about(
        "Its numbers: `auto` (the default: float32 on a CPU, bfloat16 on a GPU), `float32`, `bfloat16`, `float16`."
    ),
    Setting("model_batch_size", whole(1), "--promptfmt-model-batch-size N").about(
        "The most rows at once; halved when memory runs out. Default: 16."
    ),
    Setting("model_timeout", SECONDS, "--promptfmt-model-timeout SECONDS").about(
        "How long a server may take for one answer. Default: 60."
    ),
    Setting("model_concurrency", whole(1), "--promptfmt-model-concurrency N").about(
        "The most questions that a server is asked at once. Default: 8."
    ),
    Setting("baseline", FILE, "--promptfmt-baseline FILE", ini="promptfmt_baseline").about(
        "Accept the findings and errors that the file lists; new ones fail.",
        ini="As `--promptfmt-baseline`; below the rootdir.",
        page="baseline.md",
    ),
    Setting("baseline_update", one_of("write", "prune"), "--promptfmt-baseline-update MODE").about(
        "`write`: put what is found now into the baseline. `prune`: remove what is no longer found."
    ),
    Setting("shard", TEXT, "--promptfmt-shard I/N").about(
        "Read only the I-th of N parts of the task files, such as 1/4.",
        page="ci.md",
    ),
    # A file of absolute paths with NUL between them: what `promptfmt diff` knows to be the same in both revisions.
    Setting("left_out", FILE, "--promptfmt-leave-out FILE", is_hidden=True).about("Task files that are not read."),
    Setting("patch", FILE, "--promptfmt-patch FILE").about(
        "Write what `--snapshot-update` would do as a patch for `git apply`."
    ),
    Setting("pending", FILE, "--promptfmt-pending FILE").about(
        "Write what `--snapshot-update` would do as JSON lines, for `promptfmt review`."
    ),
    Setting("json", FILE, "--promptfmt-json FILE").about("Write the result of the run as one JSON object."),
    Setting("markdown", FILE, "--promptfmt-markdown FILE").about(
        "Write the result of the run as Markdown, at most 1 MiB."
    ),
    Setting("html", FILE, "--promptfmt-html FILE").about(
        "Write all prompts, changes and findings as one HTML page.",
        page="report.md",
    ),
    Setting("since", FILE, "--promptfmt-since FILE").about(
        "Report what is new and gone since an earlier run, of which FILE is the JSON.",
        page="report.md",
    ),
    Setting("write", NAMES, "--promptfmt-write WRITER=FILE").about(
        "Write the result of the run with a writer: `json`, `markdown`, `html`, `sarif`, `patch`, `pending`, "
        "or one of another package.",
        page="ci.md",
    ),
    Setting("step_summary", FLAG, "--promptfmt-step-summary", ini="promptfmt_step_summary").about(
        "Append the Markdown to the file that `GITHUB_STEP_SUMMARY` names, where it is set."
    ),
)
"""Every setting, in the order of the docs."""

BY_NAME: Final = {setting.name: setting for setting in SETTINGS}

REPORTS: Final = ("patch", "pending", "json", "markdown", "html")
"""The settings that name a file which the run writes."""

KEYS: Final = {setting.key: setting for setting in SETTINGS if setting.key is not None}
"""The settings that are keys of `promptfmt.yaml`, by key."""

_PROFILE: Final = (
    Setting("extends", NAME, key="extends").about(
        "The profile whose keys this one takes over; template_args are merged, all else is replaced."
    ),
    Setting("tokenizer", NAME_OR_NONE, key="tokenizer").about(
        "A folder or file relative to this file, `archetype:NAME`, or the id of a model on the hub.",
    ),
    Setting("chat_template", NAME_OR_NONE, key="chat_template").about(
        "`own` for the tokenizer's default, the name of another one of its templates, the path of a Jinja file "
        "relative to this file, a built-in template, or `none` (the default).",
    ),
    Setting("template_args", ARGUMENTS, key="template_args").about(
        "Variables of the chat template: enable_thinking, date_string, tools, documents …"
    ),
    Setting("formatter", one_of("concat", "no-strip-concat", "llama3", "identity"), key="formatter").about(
        "A formatter of eval-framework that joins the messages; without chat_template.",
    ),
    Setting("engine", NAME, key="engine").about(
        "Another renderer of the chat template, compared with Jinja byte by byte: `minijinja`, `@huggingface/jinja`, "
        "`llama.cpp`, or a recording of a server (`promptfmt record`), as `FILE.jsonl` relative to this file.",
    ),
    Setting("system_instruction", TEXT, key="system_instruction").about(
        "Text before the task's description, as lm-eval's option."
    ),
    Setting("fewshot_as_turns", FLAG, key="fewshot_as_turns").about(
        "true: shots are turns of user and assistant; false: text inside one user turn."
    ),
    Setting("mode", one_of("loglikelihood", "generate"), key="mode").about(
        "The request to the model: how likely each continuation is, or a text.",
    ),
    Setting("split", one_of("lm-eval", "pairwise"), key="split").about(
        "How context and continuation become tokens: encoded together and cut, or each by itself.",
    ),
    Setting("clock", CLOCK, key="clock").about("The date that strftime_now of a chat template sees."),
)
PROFILE_KEYS: Final = {setting.name: setting for setting in _PROFILE}
"""The keys of one profile in `promptfmt.yaml`."""
