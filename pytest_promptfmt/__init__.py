"""pytest-promptfmt: prompt-format regression testing, as a pytest plugin and as a library.

Everything a notebook needs is here under one import path. Names are loaded when first used, so importing the package
(as pytest does at every start) costs next to nothing. pytest need not rewrite its asserts: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_promptfmt.core.lazy_names import loaded, modules_of

if TYPE_CHECKING:
    from pytest_promptfmt.core.docs import TaskDocs as TaskDocs
    from pytest_promptfmt.core.errors import (
        CodeNotAllowedError as CodeNotAllowedError,
        DocsError as DocsError,
        FormatError as FormatError,
        FunctionError as FunctionError,
        LimitExceededError as LimitExceededError,
        Position as Position,
        PromptfmtError as PromptfmtError,
        RenderError as RenderError,
        SettingsError as SettingsError,
        SnapshotError as SnapshotError,
        SourceError as SourceError,
        TokenizerError as TokenizerError,
    )
    from pytest_promptfmt.core.finding import Reported as Reported, Severity as Severity
    from pytest_promptfmt.core.profile import PLAIN as PLAIN, Profile as Profile, builtin_profile as builtin_profile
    from pytest_promptfmt.core.prompt import (
        Instance as Instance,
        Message as Message,
        Origin as Origin,
        Prompt as Prompt,
        Request as Request,
        Span as Span,
    )
    from pytest_promptfmt.core.task import Dataset as Dataset, FewShot as FewShot, Task as Task
    from pytest_promptfmt.formats import (
        Format as Format,
        LaidOutTask as LaidOutTask,
        apply_format as apply_format,
        known_formats as known_formats,
        laid_out as laid_out,
        register_format as register_format,
    )
    from pytest_promptfmt.formats.template import (
        ClassificationTemplateConfig as ClassificationTemplateConfig,
        ClozeTemplateConfig as ClozeTemplateConfig,
        GenerationTemplateConfig as GenerationTemplateConfig,
        MCQTemplateConfig as MCQTemplateConfig,
        RankingTemplateConfig as RankingTemplateConfig,
        TemplateConfig as TemplateConfig,
        TemplateFactory as TemplateFactory,
        cloze_template as cloze_template,
        mmlu_template as mmlu_template,
    )
    from pytest_promptfmt.profiles import (
        ARCHETYPES as ARCHETYPES,
        Encoding as Encoding,
        Tokenizer as Tokenizer,
        load_tokenizer as load_tokenizer,
    )
    from pytest_promptfmt.profiles.encoding import EncodedPair as EncodedPair, encode_pairs as encode_pairs
    from pytest_promptfmt.results.library import (
        check as check,
        compare as compare,
        render as render,
        study_of as study_of,
    )
    from pytest_promptfmt.snapshots.changes import Change as Change
    from pytest_promptfmt.study import Study as Study
    from pytest_promptfmt.systems import (
        ReadContext as ReadContext,
        System as System,
        check_template as check_template,
        register_system as register_system,
    )
    from pytest_promptfmt.systems.task_files import load_tasks as load_tasks
    from pytest_promptfmt.tasks import TaskFile as TaskFile, render_task as render_task


def __getattr__(name: str) -> Any:
    return sorted(modules_of(__file__)) if name == "__all__" else loaded(globals(), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *modules_of(__file__)})
