"""The task model, which all systems share: docs, prompts, filters and metrics as lm-eval 0.4.13 has them.

This is the public face: nothing else of the package is imported from outside. A name is loaded when it is first used,
from the module that the imports for type checkers name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_promptfmt.core.lazy_names import loaded

if TYPE_CHECKING:
    from pytest_promptfmt.tasks.code_loading import (
        SourceLoader,
        import_from_source,
        imports_from_source,
        package_in,
        use_package,
    )
    from pytest_promptfmt.tasks.deferred_imports import functions_reached, import_shared
    from pytest_promptfmt.tasks.docs.data_files import MAX_DOCS, read_data_file
    from pytest_promptfmt.tasks.docs.doc_sources import (
        DEFAULT_COUNT,
        has_docs_for_shots,
        load_docs,
        shot_split,
        with_pool,
    )
    from pytest_promptfmt.tasks.docs.frozen_docs import (
        LOOKED_AT,
        Redaction,
        Rows,
        as_lines,
        covering_rows,
        freeze,
        redacted,
    )
    from pytest_promptfmt.tasks.functions import (
        IMPORT_SECONDS,
        CodeImporter,
        bind_functions,
        bind_scoring,
        functions_of,
        missing_for,
    )
    from pytest_promptfmt.tasks.harness import (
        Harness,
        found_release,
        harness_around,
        harness_of,
        installed_harness,
        is_copied_harness,
        names_in,
    )
    from pytest_promptfmt.tasks.harness_renderer import (
        Arguments,
        HarnessTask,
        TriedAnswer,
        needs_harness,
        rendered_by_harness,
    )
    from pytest_promptfmt.tasks.recognition import kind_of, looks_like_task, names_its_sets, read_if_task
    from pytest_promptfmt.tasks.renderer import LmEvalAssembler, TaskRenderer, render_task, renderer_with_shots
    from pytest_promptfmt.tasks.rendering.field_mappings import refuse_mistyped_columns
    from pytest_promptfmt.tasks.rendering.media import (
        LMMS_EVAL_KEYS,
        MEDIA_KEYS,
        PLACEHOLDERS,
        sent_media,
        with_media_columns,
    )
    from pytest_promptfmt.tasks.rendering.sampling import leaves_evaluated_doc_out
    from pytest_promptfmt.tasks.scoring.budget import (
        BUDGET_SECONDS,
        ValueCache,
        plain_key,
        require_speed,
        within_budget,
    )
    from pytest_promptfmt.tasks.scoring.filters import (
        FILTERS,
        FilterPipeline,
        buildable_pipelines_of,
        known_filter,
        looks_for_answers,
        pipelines_of,
    )
    from pytest_promptfmt.tasks.scoring.metrics import (
        METRICS,
        OF_NUMBERS,
        Metric,
        TaskMetric,
        gives_the_same,
        key_of_metrics,
        metrics_of,
        takes_arguments,
    )
    from pytest_promptfmt.tasks.scoring.registered import registering_files
    from pytest_promptfmt.tasks.scoring.results import (
        OUTSIDE,
        LogLikelihood,
        Question,
        aggregated,
        gold_of,
        key_of_question,
        process_results,
        questions_of,
        reading_of,
        score_doc,
        score_texts,
        task_reading,
    )
    from pytest_promptfmt.tasks.synthetic.synthetic_docs import columns_read, synthetic_docs
    from pytest_promptfmt.tasks.synthetic.template_shapes import template_shapes
    from pytest_promptfmt.tasks.task_classes import OF_LM_EVAL, class_mentions, task_of_class
    from pytest_promptfmt.tasks.task_config import check_name, task_schema, unknown_keys, value_kinds
    from pytest_promptfmt.tasks.task_file import GROUP_KEYS, TaskFile, read_task_yaml, tasks_of_mapping
    from pytest_promptfmt.tasks.task_index import IndexEntry, TaskIndex, tags_of, yaml_files
    from pytest_promptfmt.tasks.yaml_file import YamlFile, read_yaml, resolved


def __getattr__(name: str) -> Any:
    return loaded(globals(), name)
