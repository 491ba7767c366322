"""The task model, which all systems share: docs, prompts, filters and metrics as lm-eval 0.4.13 has them.

This is the public face: nothing else of the package is imported from outside. A name is loaded when it is first used,
from the module that the imports for type checkers name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_promptfmt.core.lazy_names import loaded

if TYPE_CHECKING:
    from pytest_promptfmt.tasks.deferred_imports import functions_reached as functions_reached
    from pytest_promptfmt.tasks.docs.data_files import MAX_DOCS as MAX_DOCS, read_data_file as read_data_file
    from pytest_promptfmt.tasks.docs.doc_sources import (
        DEFAULT_COUNT as DEFAULT_COUNT,
        load_docs as load_docs,
        shot_split as shot_split,
        with_pool as with_pool,
    )
    from pytest_promptfmt.tasks.docs.frozen_docs import (
        LOOKED_AT as LOOKED_AT,
        Redaction as Redaction,
        Rows as Rows,
        as_lines as as_lines,
        covering_rows as covering_rows,
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
    from pytest_promptfmt.tasks.harness import (
        Harness as Harness,
        found_release as found_release,
        harness_around as harness_around,
        harness_of as harness_of,
        installed_harness as installed_harness,
    )
    from pytest_promptfmt.tasks.harness_renderer import (
        Arguments as Arguments,
        HarnessTask as HarnessTask,
        rendered_by_harness as rendered_by_harness,
    )
    from pytest_promptfmt.tasks.recognition import (
        kind_of as kind_of,
        looks_like_task as looks_like_task,
        names_its_sets as names_its_sets,
        read_if_task as read_if_task,
    )
    from pytest_promptfmt.tasks.renderer import (
        LmEvalAssembler as LmEvalAssembler,
        TaskRenderer as TaskRenderer,
        render_task as render_task,
        renderer_with_shots as renderer_with_shots,
    )
    from pytest_promptfmt.tasks.rendering.field_mappings import refuse_mistyped_columns as refuse_mistyped_columns
    from pytest_promptfmt.tasks.rendering.sampling import leaves_evaluated_doc_out as leaves_evaluated_doc_out
    from pytest_promptfmt.tasks.scoring.budget import (
        BUDGET_SECONDS as BUDGET_SECONDS,
        ValueCache as ValueCache,
        plain_key as plain_key,
        require_speed as require_speed,
        within_budget as within_budget,
    )
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
        OF_NUMBERS as OF_NUMBERS,
        Metric as Metric,
        TaskMetric as TaskMetric,
        gives_the_same as gives_the_same,
        key_of_metrics as key_of_metrics,
        metrics_of as metrics_of,
        takes_arguments as takes_arguments,
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
    from pytest_promptfmt.tasks.synthetic.code_shapes import row_facts as row_facts
    from pytest_promptfmt.tasks.synthetic.synthetic_docs import (
        columns_read as columns_read,
        synthetic_docs as synthetic_docs,
    )
    from pytest_promptfmt.tasks.synthetic.template_shapes import template_shapes as template_shapes
    from pytest_promptfmt.tasks.task_classes import is_of_lm_eval as is_of_lm_eval, task_of_class as task_of_class
    from pytest_promptfmt.tasks.task_config import (
        check_name as check_name,
        task_schema as task_schema,
        unknown_keys as unknown_keys,
        value_kinds as value_kinds,
    )
    from pytest_promptfmt.tasks.task_file import (
        TaskFile as TaskFile,
        read_task_yaml as read_task_yaml,
        tasks_of_mapping as tasks_of_mapping,
    )
    from pytest_promptfmt.tasks.task_index import (
        IndexEntry as IndexEntry,
        TaskIndex as TaskIndex,
        tags_of as tags_of,
        yaml_files as yaml_files,
    )
    from pytest_promptfmt.tasks.yaml_file import YamlFile as YamlFile, read_yaml as read_yaml, resolved as resolved


def __getattr__(name: str) -> Any:
    return loaded(globals(), name)
