"""pytest-promptfmt: prompt-format regression testing, as a pytest plugin and as a library.

Everything a notebook needs is here under one import path. Names are loaded when first used, so importing the package
(as pytest does at every start) costs next to nothing. pytest need not rewrite its asserts: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_promptfmt.core.docs import TaskDocs
    from pytest_promptfmt.core.errors import (
        CodeNotAllowedError,
        DocsError,
        FormatError,
        FunctionError,
        LimitExceededError,
        Position,
        PromptfmtError,
        RenderError,
        SettingsError,
        SnapshotError,
        SourceError,
        TokenizerError,
    )
    from pytest_promptfmt.core.finding import Reported, Severity
    from pytest_promptfmt.core.profile import PLAIN, Profile, builtin_profile
    from pytest_promptfmt.core.prompt import Instance, Message, Origin, Prompt, Request, Span
    from pytest_promptfmt.core.task import Dataset, FewShot, Task
    from pytest_promptfmt.formats import (
        Format,
        LaidOutTask,
        apply_format,
        known_formats,
        laid_out,
        register_format,
    )
    from pytest_promptfmt.formats.template import (
        ClassificationTemplateConfig,
        ClozeTemplateConfig,
        GenerationTemplateConfig,
        MCQTemplateConfig,
        RankingTemplateConfig,
        TemplateConfig,
        TemplateFactory,
        cloze_template,
        gpqa_template,
        mmlu_template,
        numbered_template,
    )
    from pytest_promptfmt.profiles import ARCHETYPES, Encoding, Tokenizer, load_tokenizer
    from pytest_promptfmt.profiles.encoding import EncodedPair, encode_pairs
    from pytest_promptfmt.results.library import check, compare, render, study_of
    from pytest_promptfmt.snapshots.changes import Change
    from pytest_promptfmt.study import Study
    from pytest_promptfmt.systems import ReadContext, System, check_template, register_system
    from pytest_promptfmt.systems.task_files import load_tasks
    from pytest_promptfmt.tasks import TaskFile, render_task

__all__ = [
    "ARCHETYPES",
    "PLAIN",
    "Change",
    "ClassificationTemplateConfig",
    "ClozeTemplateConfig",
    "CodeNotAllowedError",
    "Dataset",
    "DocsError",
    "EncodedPair",
    "Encoding",
    "FewShot",
    "Format",
    "FormatError",
    "FunctionError",
    "GenerationTemplateConfig",
    "Instance",
    "LaidOutTask",
    "LimitExceededError",
    "MCQTemplateConfig",
    "Message",
    "Origin",
    "Position",
    "Profile",
    "Prompt",
    "PromptfmtError",
    "RankingTemplateConfig",
    "ReadContext",
    "RenderError",
    "Reported",
    "Request",
    "SettingsError",
    "Severity",
    "SnapshotError",
    "SourceError",
    "Span",
    "Study",
    "System",
    "Task",
    "TaskDocs",
    "TaskFile",
    "TemplateConfig",
    "TemplateFactory",
    "Tokenizer",
    "TokenizerError",
    "apply_format",
    "builtin_profile",
    "check",
    "check_template",
    "cloze_template",
    "compare",
    "encode_pairs",
    "gpqa_template",
    "known_formats",
    "laid_out",
    "load_tasks",
    "load_tokenizer",
    "mmlu_template",
    "numbered_template",
    "register_format",
    "register_system",
    "render",
    "render_task",
    "study_of",
]

# One line per room: a new public name is added here, to __all__ and to the imports for type checkers.
_ROOMS: dict[str, tuple[str, ...]] = {
    "core.errors": (
        "CodeNotAllowedError",
        "DocsError",
        "FormatError",
        "FunctionError",
        "LimitExceededError",
        "Position",
        "PromptfmtError",
        "RenderError",
        "SettingsError",
        "SnapshotError",
        "SourceError",
        "TokenizerError",
    ),
    "formats": (
        "Format",
        "LaidOutTask",
        "apply_format",
        "known_formats",
        "laid_out",
        "register_format",
    ),
    "formats.template": (
        "ClassificationTemplateConfig",
        "ClozeTemplateConfig",
        "GenerationTemplateConfig",
        "MCQTemplateConfig",
        "RankingTemplateConfig",
        "TemplateConfig",
        "TemplateFactory",
        "cloze_template",
        "gpqa_template",
        "mmlu_template",
        "numbered_template",
    ),
    "core.finding": ("Reported", "Severity"),
    "results.library": ("check", "compare", "render", "study_of"),
    "snapshots.changes": ("Change",),
    "study": ("Study",),
    "core.profile": ("PLAIN", "Profile", "builtin_profile"),
    "systems": ("ReadContext", "System", "check_template", "register_system"),
    "tasks": ("TaskFile", "render_task"),
    "core.prompt": ("Instance", "Message", "Origin", "Prompt", "Request", "Span"),
    "systems.task_files": ("load_tasks",),
    "core.docs": ("TaskDocs",),
    "core.task": ("Dataset", "FewShot", "Task"),
    "profiles": ("ARCHETYPES", "Encoding", "Tokenizer", "load_tokenizer"),
    "profiles.encoding": ("EncodedPair", "encode_pairs"),
}
_ROOM_OF = {name: f"{__name__}.{room}" for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_ROOM_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
