"""Options, and the test whether they ask for anything; the plugin that does the work is registered only then.

pytest imports this module at every start of every project it is installed in: it imports nothing heavy.
"""

from __future__ import annotations

import pytest

from pytest_promptfmt.plugin.options.models import add_model_options
from pytest_promptfmt.plugin.options.reports import add_report_options


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options and ini values; all of them begin with promptfmt."""
    group = parser.getgroup("promptfmt", "prompt-format regression tests")
    option = group.addoption
    option("--promptfmt", action="store_true", dest="promptfmt", help="Collect task files and test their prompts.")
    option(
        "--promptfmt-task",
        action="append",
        default=[],
        dest="promptfmt_task",
        metavar="GLOB",
        help="Run only tasks whose name (or name@format) matches, such as 'arc_*' or 'arc_*@mcqa'. Repeatable.",
    )
    option(
        "--promptfmt-profile",
        action="append",
        default=[],
        dest="promptfmt_profile",
        metavar="NAME",
        help="Render for this profile: plain, chat-chatml, chat-gemma, chat-llama2, chat-llama3, chat-mistral, "
        "chat for all of these, or one of promptfmt.yaml; NAME:key=value gives arguments to its chat template. "
        "Repeatable.",
    )
    option(
        "--promptfmt-tokenizer",
        action="append",
        default=[],
        dest="promptfmt_tokenizer",
        metavar="PATH_OR_ID",
        help="Render for a profile with this tokenizer: a folder, a file, archetype:NAME or a hub id that is at hand. "
        "With --promptfmt-profile, in place of that profile's own. Repeatable.",
    )
    option(
        "--promptfmt-chat-template",
        action="append",
        default=[],
        dest="promptfmt_chat_template",
        metavar="FILE_OR_NAME",
        help="The chat template of that profile: a Jinja file, own for the tokenizer's default, another of its names, "
        "chatml, gemma, llama2, llama3, mistral, or none. Repeatable.",
    )
    option(
        "--promptfmt-download",
        action="store_true",
        dest="promptfmt_download",
        help="Download tokenizers that are not at hand; never their code.",
    )
    option(
        "--promptfmt-format",
        action="append",
        default=[],
        dest="promptfmt_format",
        metavar="NAME",
        help="Try this format on tasks that name none; choose it on tasks that declare it. Repeatable.",
    )
    option(
        "--promptfmt-variants",
        action="append",
        default=[],
        dest="promptfmt_variants",
        metavar="AXIS",
        help="Also render variants of every format that differ in one thing: an axis such as 'enumerator', one value "
        "such as 'enumerator-roman', or 'all'. No snapshots are kept of them. Repeatable.",
    )
    option(
        "--promptfmt-docs",
        default=None,
        dest="promptfmt_docs",
        metavar="N",
        help="Docs in each snapshot (default: 2 synthetic ones, 3 otherwise).",
    )
    option(
        "--promptfmt-num-fewshot",
        default=None,
        dest="promptfmt_num_fewshot",
        metavar="N",
        help="Shots for every task that does not fix them to 0, with snapshots of their own.",
    )
    option(
        "--promptfmt-allow-code",
        action="append",
        default=[],
        dest="promptfmt_allow_code_path",
        metavar="PATH",
        help="Let !function code below this path run, besides that below the rootdir. Repeatable.",
    )
    option(
        "--promptfmt-no-code",
        action="store_true",
        dest="promptfmt_no_code",
        help="Run no !function code at all; tasks that need it are skipped.",
    )
    option(
        "--promptfmt-select",
        action="append",
        default=[],
        dest="promptfmt_select",
        metavar="CODES",
        help="Run only the checks with these codes or prefixes, such as PF2 or PF101,PF203. Repeatable.",
    )
    option(
        "--promptfmt-ignore",
        action="append",
        default=[],
        dest="promptfmt_ignore",
        metavar="CODES",
        help="Leave the checks with these codes or prefixes out. Repeatable.",
    )
    option(
        "--promptfmt-scoring",
        action="store_true",
        dest="promptfmt_scoring",
        help="Try how every task reads and scores answers, not only those with a filter that looks for one, and fail "
        "also what snapshots have accepted.",
    )
    add_model_options(group)
    add_report_options(parser, group)
    parser.addini("promptfmt", "Always act as with --promptfmt.", type="bool", default=False)
    parser.addini("promptfmt_scoring", "Of which tasks the reading of answers is tried: auto, all, none.", default="")
    parser.addini("promptfmt_paths", "Where task files are looked for by default.", type="paths", default=[])
    parser.addini("promptfmt_profiles", "Profiles rendered by default.", type="args", default=[])
    parser.addini("promptfmt_tokenizer", "Tokenizers, each a profile of its own.", type="args", default=[])
    parser.addini("promptfmt_chat_template", "Their chat templates.", type="args", default=[])
    parser.addini("promptfmt_download", "Always act as with --promptfmt-download.", type="bool", default=False)
    parser.addini("promptfmt_docs", "Docs in each snapshot.", default="")
    parser.addini("promptfmt_num_fewshot", "Shots for every task that does not fix them to 0.", default="")
    parser.addini("promptfmt_allow_code", "Paths whose !function code may run.", type="paths", default=[])
    parser.addini("promptfmt_lint", "Look at every task and group with the checks.", type="bool", default=True)
    parser.addini("promptfmt_select", "Codes and prefixes of the checks to run.", type="args", default=[])
    parser.addini("promptfmt_ignore", "Codes and prefixes of checks to leave out.", type="args", default=[])
    parser.addini(
        "promptfmt_per_file_ignores", "Lines `glob: codes` of checks to leave out.", type="linelist", default=[]
    )
    parser.addini("promptfmt_checks", "Python files that define checks of your own.", type="paths", default=[])
    parser.addini("promptfmt_task_modules", "Python files (globs) with task classes.", type="paths", default=[])
    parser.addini("promptfmt_time_limit", "Seconds for rendering one task with one profile.", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers always, and the working plugin when this run asks for it."""
    config.addinivalue_line("markers", "promptfmt_snapshot: the prompts of a task compared with their snapshot")
    config.addinivalue_line("markers", "promptfmt_lint: a task or group looked at by the checks")
    config.addinivalue_line("markers", "promptfmt_variant: a variant of a format, rendered without a snapshot")
    config.addinivalue_line("markers", "promptfmt_extraction: whether a task's filters read answers as they should")
    config.addinivalue_line("markers", "promptfmt_scoring: whether a task's metrics tell right from wrong answers")
    config.addinivalue_line("markers", "promptfmt_recorded: prompts and completions of a recorded run, made again")
    config.addinivalue_line("markers", "promptfmt_recording: recorded completions, replayed")
    config.addinivalue_line("markers", "promptfmt_model: a task put to a model")
    if not (config.getoption("promptfmt") or config.getini("promptfmt")):
        return
    _load_as_compiled(config)
    from pytest_promptfmt.core.errors import SettingsError
    from pytest_promptfmt.plugin.session import activate

    try:
        activate(config)
    except SettingsError as error:
        raise pytest.UsageError(f"promptfmt: {error}") from None


def _load_as_compiled(config: pytest.Config) -> None:
    """Let our modules be loaded as they were compiled when they were installed.

    pytest 9.2 writes the asserts of all plugins anew for the sake of their messages, which costs more than the rest of
    a first start: ours has a hundred modules, and none of them asserts anything about the code of others.
    """
    names = getattr(getattr(config.pluginmanager, "rewrite_hook", None), "_must_rewrite", None)
    if isinstance(names, set):
        names -= {name for name in names if name.partition(".")[0] == "pytest_promptfmt"}
