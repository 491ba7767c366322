"""The task model, which all systems share: docs, prompts, filters and metrics as lm-eval 0.4.13 has them.

This is the public face: nothing else of the package is imported from outside. Names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pytest_promptfmt.tasks.docs.covering import LOOKED_AT as LOOKED_AT, covering_rows as covering_rows
    from pytest_promptfmt.tasks.docs.data_files import MAX_DOCS as MAX_DOCS, read_data_file as read_data_file
    from pytest_promptfmt.tasks.docs.doc_sources import (
        DEFAULT_COUNT as DEFAULT_COUNT,
        load_docs as load_docs,
        shot_split as shot_split,
        with_pool as with_pool,
    )
    from pytest_promptfmt.tasks.docs.frozen_docs import (
        Redaction as Redaction,
        Rows as Rows,
        as_lines as as_lines,
        freeze as freeze,
        redacted as redacted,
    )
    from pytest_promptfmt.tasks.functions import (
        IMPORT_SECONDS as IMPORT_SECONDS,
        bind_functions as bind_functions,
        bind_scoring as bind_scoring,
        functions_of as functions_of,
        load_function as load_function,
        load_module as load_module,
        load_object as load_object,
        missing_for as missing_for,
    )
    from pytest_promptfmt.tasks.json_schema import task_schema as task_schema
    from pytest_promptfmt.tasks.reach import functions_reached as functions_reached
    from pytest_promptfmt.tasks.recognition import (
        kind_of as kind_of,
        looks_like_task as looks_like_task,
        read_if_task as read_if_task,
    )
    from pytest_promptfmt.tasks.renderer import (
        TaskRenderer as TaskRenderer,
        render_task as render_task,
        renderer_with_shots as renderer_with_shots,
    )
    from pytest_promptfmt.tasks.rendering.assembly import LmEvalAssembler as LmEvalAssembler
    from pytest_promptfmt.tasks.rendering.field_mappings import refuse_mistyped_columns as refuse_mistyped_columns
    from pytest_promptfmt.tasks.rendering.sampling import leaves_evaluated_doc_out as leaves_evaluated_doc_out
    from pytest_promptfmt.tasks.scoring.aggregations import OF_NUMBERS as OF_NUMBERS
    from pytest_promptfmt.tasks.scoring.filters import (
        FILTERS as FILTERS,
        FilterPipeline as FilterPipeline,
        buildable_pipelines_of as buildable_pipelines_of,
        known_filter as known_filter,
        looks_for_answers as looks_for_answers,
        pipelines_of as pipelines_of,
    )
    from pytest_promptfmt.tasks.scoring.metrics import (
        METRICS as METRICS,
        TaskMetric as TaskMetric,
        gives_the_same as gives_the_same,
        key_of_metrics as key_of_metrics,
        metrics_of as metrics_of,
        takes_arguments as takes_arguments,
    )
    from pytest_promptfmt.tasks.scoring.regexes import (
        BUDGET_SECONDS as BUDGET_SECONDS,
        require_speed as require_speed,
        within_budget as within_budget,
    )
    from pytest_promptfmt.tasks.scoring.results import (
        OUTSIDE as OUTSIDE,
        LogLikelihood as LogLikelihood,
        Question as Question,
        aggregated as aggregated,
        gold_of as gold_of,
        key_of_question as key_of_question,
        process_results as process_results,
        questions_of as questions_of,
        score_doc as score_doc,
    )
    from pytest_promptfmt.tasks.scoring.scoring_lines import reading_of as reading_of, task_reading as task_reading
    from pytest_promptfmt.tasks.scoring.value_cache import ValueCache as ValueCache, plain_key as plain_key
    from pytest_promptfmt.tasks.synthetic.code_shapes import row_facts as row_facts
    from pytest_promptfmt.tasks.synthetic.columns_read import columns_read as columns_read
    from pytest_promptfmt.tasks.synthetic.synthetic_docs import synthetic_docs as synthetic_docs
    from pytest_promptfmt.tasks.synthetic.template_shapes import template_shapes as template_shapes
    from pytest_promptfmt.tasks.task_classes import is_of_lm_eval as is_of_lm_eval, task_of_class as task_of_class
    from pytest_promptfmt.tasks.task_config import check_name as check_name
    from pytest_promptfmt.tasks.task_file import FileKind as FileKind, TaskFile as TaskFile
    from pytest_promptfmt.tasks.task_index import (
        IndexEntry as IndexEntry,
        TaskIndex as TaskIndex,
        tags_of as tags_of,
        yaml_files as yaml_files,
    )
    from pytest_promptfmt.tasks.yaml_file import YamlFile as YamlFile, read_yaml as read_yaml, resolved as resolved
    from pytest_promptfmt.tasks.yaml_tasks import read_task_yaml as read_task_yaml, tasks_of_mapping as tasks_of_mapping

_NAMES: Final = {
    "docs.covering": ("LOOKED_AT", "covering_rows"),
    "docs.data_files": ("MAX_DOCS", "read_data_file"),
    "docs.doc_sources": ("DEFAULT_COUNT", "load_docs", "shot_split", "with_pool"),
    "docs.frozen_docs": ("Redaction", "Rows", "as_lines", "freeze", "redacted"),
    "functions": (
        "IMPORT_SECONDS",
        "bind_functions",
        "bind_scoring",
        "functions_of",
        "load_function",
        "load_module",
        "load_object",
        "missing_for",
    ),
    "reach": ("functions_reached",),
    "recognition": ("kind_of", "looks_like_task", "read_if_task"),
    "renderer": ("TaskRenderer", "render_task", "renderer_with_shots"),
    "rendering.assembly": ("LmEvalAssembler",),
    "rendering.field_mappings": ("refuse_mistyped_columns",),
    "rendering.sampling": ("leaves_evaluated_doc_out",),
    "scoring.aggregations": ("OF_NUMBERS",),
    "scoring.filters": (
        "FILTERS",
        "FilterPipeline",
        "buildable_pipelines_of",
        "known_filter",
        "looks_for_answers",
        "pipelines_of",
    ),
    "scoring.metrics": ("METRICS", "TaskMetric", "gives_the_same", "key_of_metrics", "metrics_of", "takes_arguments"),
    "scoring.regexes": ("BUDGET_SECONDS", "require_speed", "within_budget"),
    "scoring.results": (
        "LogLikelihood",
        "OUTSIDE",
        "Question",
        "aggregated",
        "gold_of",
        "key_of_question",
        "process_results",
        "questions_of",
        "score_doc",
    ),
    "scoring.scoring_lines": ("reading_of", "task_reading"),
    "scoring.value_cache": ("ValueCache", "plain_key"),
    "synthetic.code_shapes": ("row_facts",),
    "synthetic.columns_read": ("columns_read",),
    "synthetic.synthetic_docs": ("synthetic_docs",),
    "synthetic.template_shapes": ("template_shapes",),
    "task_classes": ("is_of_lm_eval", "task_of_class"),
    "task_config": ("check_name",),
    "task_file": ("FileKind", "TaskFile"),
    "task_index": ("IndexEntry", "TaskIndex", "tags_of", "yaml_files"),
    "json_schema": ("task_schema",),
    "yaml_file": ("YamlFile", "read_yaml", "resolved"),
    "yaml_tasks": ("read_task_yaml", "tasks_of_mapping"),
}
_MODULE_OF: Final = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
