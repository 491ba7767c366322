"""pytest-promptfmt: prompt-format regression testing, as a pytest plugin and as a library.

Everything a notebook needs is here under one import path. Names are loaded when first used, so importing the package
(as pytest does at every start) costs next to nothing. pytest need not rewrite its asserts: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_promptfmt.core.lazy_names import loaded

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
        mmlu_template,
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
    "known_formats",
    "laid_out",
    "load_tasks",
    "load_tokenizer",
    "mmlu_template",
    "register_format",
    "register_system",
    "render",
    "render_task",
    "study_of",
]


def __getattr__(name: str) -> Any:
    return loaded(globals(), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
