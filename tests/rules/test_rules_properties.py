"""Whatever a task looks like: no rule raises, and the findings are the same each time, in the same order."""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings, strategies as st
from linting import linted, study_of

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.profile import PLAIN, Profile, builtin_profile
from pytest_promptfmt.core.task import locate_nowhere
from pytest_promptfmt.rules.linter import LintResult, check_file
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_config import task_from_config
from pytest_promptfmt.tasks.task_index import TaskIndex

pytestmark = pytest.mark.slow

SELECTION = Selection(rules=known_rules())
CHAT = builtin_profile("chat-llama3")

PIECES = (
    "Question: {{question}}\nAnswer:",
    "{{question}}",
    "{{choices[0]}}",
    "{question}",
    "{{'question'}}",
    "{{",
    "{% if question %}x{% endif %}",
    "\\n",
    "\b",
    " ",
    "\n\n\n",
    "```",
    "None",
    "Answer：",
    "Think step by step.",
    "A. x\nB. y",
    "about abstract_algebra.",
    'answer "no"',
    "label",
    "",
    "«»",
    "\x00",
    "\ud800",
)
texts = st.one_of(st.lists(st.sampled_from(PIECES), max_size=4).map("".join), st.text(max_size=20))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 30), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
fields = st.one_of(texts, texts, texts, texts, texts, texts, st.lists(texts, max_size=3), values)
docs = st.lists(
    st.fixed_dictionaries(
        {"question": st.one_of(texts, values)},
        optional={"choices": st.one_of(st.lists(texts, max_size=5), values), "label": values, "passage": texts},
    ),
    max_size=4,
)
fewshot = st.fixed_dictionaries(
    {},
    optional={
        "samples": docs,
        "split": st.one_of(st.none(), st.just("train")),
        "doc_to_text": fields,
        "doc_to_target": fields,
        "doc_to_choice": fields,
        "gen_prefix": texts,
        "fewshot_indices": values,
    },
)
generation = st.one_of(
    st.none(),
    st.fixed_dictionaries({}, optional={"until": values, "max_gen_toks": values, "max_length": values, "junk": values}),
)
configs = st.fixed_dictionaries(
    {"task": st.just("made_up"), "doc_to_text": fields, "doc_to_target": fields},
    optional={
        "output_type": st.sampled_from(("multiple_choice", "generate_until", "loglikelihood", "loglikelihood_rolling")),
        "doc_to_choice": fields,
        "description": texts,
        "gen_prefix": texts,
        "target_delimiter": texts,
        "fewshot_delimiter": texts,
        "num_fewshot": st.integers(0, 3),
        "test_split": st.one_of(st.none(), st.just("test")),
        "training_split": st.one_of(st.none(), st.just("train")),
        "fewshot_split": st.one_of(st.none(), st.just("train")),
        "fewshot_config": fewshot,
        "generation_kwargs": generation,
        "metric_list": st.one_of(st.none(), st.just([{"metric": "exact_match"}])),
        "filter_list": st.one_of(st.none(), st.just([{"name": "a", "filter": [{"function": "take_first"}]}])),
        "should_decontaminate": st.booleans(),
        "doc_to_decontamination_query": fields,
        "tag": texts,
        "metadata": st.one_of(
            values,
            st.fixed_dictionaries({"promptfmt": st.fixed_dictionaries({}, optional={"docs": docs, "ignore": values})}),
            st.fixed_dictionaries({"promptfmt": st.fixed_dictionaries({"docs": docs})}),
        ),
    },
)


whole_docs = st.lists(
    st.fixed_dictionaries(
        {
            "question": texts,
            "choices": st.lists(texts, min_size=1, max_size=5),
            "answer": st.one_of(st.integers(-2, 6), texts, st.lists(st.integers(0, 3), max_size=2)),
        },
        optional={"passage": st.one_of(st.none(), texts), "label": values},
    ),
    min_size=1,
    max_size=4,
)
whole_configs = st.fixed_dictionaries(
    {
        "task": st.just("made_up"),
        "test_split": st.just("test"),
        "output_type": st.sampled_from(("multiple_choice", "generate_until", "loglikelihood")),
        "doc_to_text": st.sampled_from(
            ("question", "Q: {{question}}\nA:", "{{question}} ", "{{passage}}\n{{question}}\nA. {{choices[0]}}\nB. x")
        ),
        "doc_to_choice": st.sampled_from(("choices", "{{choices}}", ["A", "B"], ["Y", "Z", "["])),
        "doc_to_target": st.sampled_from(("answer", "{{answer}}", " {{answer}}", "{{choices[0]}}", 0)),
        "metadata": st.fixed_dictionaries(
            {
                "promptfmt": st.fixed_dictionaries(
                    {"docs": st.fixed_dictionaries({"test": whole_docs, "fewshot": whole_docs})}
                )
            }
        ),
    },
    optional={
        "description": texts,
        "num_fewshot": st.integers(0, 4),
        "target_delimiter": st.sampled_from(("", " ", "\n")),
        "gen_prefix": texts,
        "fewshot_config": fewshot,
        "generation_kwargs": generation,
    },
)


names = st.sampled_from(("made_up", "others", "missing", "with blank", "a,b", "*", ""))
members = st.one_of(
    names,
    names,
    names,
    values,
    st.fixed_dictionaries({"task": st.one_of(names, st.lists(names, max_size=2), values)}, optional={"include": names}),
    st.fixed_dictionaries({"group": names, "task": st.lists(names, max_size=2)}),
)
metrics = st.one_of(
    values,
    st.lists(
        st.one_of(
            values,
            st.fixed_dictionaries(
                {"metric": st.sampled_from(("acc", "exact_match", "exact_mach", "bleu"))},
                optional={
                    "aggregation": st.sampled_from(("mean", "maen")),
                    "ignore_case": values,
                    "filter_list": values,
                },
            ),
        ),
        max_size=2,
    ),
)
groups = st.fixed_dictionaries(
    {
        "group": st.one_of(names, names, names, values),
        "task": st.one_of(*[st.lists(members, max_size=4)] * 4, values),
    },
    optional={"aggregate_metric_list": metrics, "tag": st.one_of(names, values), "metadata": values},
)
SHOTS_WITH_TEXT_FOR_CHOICES = {
    "task": "a",
    "output_type": "multiple_choice",
    "doc_to_text": "question",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "fewshot_config": {"doc_to_choice": "Question: {{question}}"},
    "metadata": {"promptfmt": {"docs": [{"question": "", "choices": ["0"], "answer": 0}]}},
}
NOISE = (*[""] * 8, "task: others\n", "doc_to_text: [\n", "a: {b: 1, b: 2}\n", "include: missing\n", "\x0c")


def checked(config: dict[str, Any], profile: Profile = PLAIN) -> LintResult | None:
    try:
        task = task_from_config(config, path=None, locate=locate_nowhere)
    except PromptfmtError:
        return None
    try:
        return linted(study_of(task), SELECTION, profile)
    except PromptfmtError:
        return None


def assert_sound(first: LintResult, second: LintResult) -> None:
    """Assert that no rule raised, that findings are the same each time and in order, and that each can be read."""
    assert not [str(finding) for finding in first.findings if finding.code == "PF003"]
    assert first.findings == second.findings
    assert [finding.code for finding in first.findings] == sorted(finding.code for finding in first.findings)
    assert all(finding.message and finding.do and "\n" not in finding.saw for finding in first.findings)
    keys = [key for finding in first.findings for key in finding.stable_keys]
    assert len(keys) == len(set(keys))


@settings(max_examples=200)
@given(st.one_of(configs, whole_configs, whole_configs), st.sampled_from((PLAIN, CHAT)))
@example({"task": "a", "doc_to_text": "", "doc_to_target": "", "generation_kwargs": {"until": 1}}, PLAIN)
@example(SHOTS_WITH_TEXT_FOR_CHOICES, PLAIN)
def test_no_rule_raises_and_findings_are_stable(config: dict[str, Any], profile: Profile) -> None:
    first, second = checked(config, profile), checked(config, profile)
    if first is None or second is None:
        assert first is second
        return
    assert_sound(first, second)


@settings(max_examples=100)
@given(st.one_of(groups, groups, whole_configs), st.sampled_from(NOISE))
def test_no_rule_raises_on_a_file_whatever_is_written_in_it(config: dict[str, Any], more: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = yaml.safe_dump(config, allow_unicode=False, sort_keys=False)
        # As escapes, half characters are not even YAML; the test of tasks has them.
        written = re.sub(r"\\u[dD][89a-fA-F]", r"\\u00a", written)
        (folder / "made_up.yaml").write_text(written + more, "utf-8")
        (folder / "others.yaml").write_text("task: others\ntag: made_up\ndoc_to_text: q\n", "utf-8")
        first, second = (file_findings(folder / "made_up.yaml") for _ in range(2))
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            assert_sound(first, second)


def file_findings(path: Path) -> LintResult | None:
    index = TaskIndex([path.parent])
    try:
        file = read_task_file(path, index)
    except PromptfmtError:
        return None
    if file is None or file.yaml is None:
        return None
    view = FileView(path=path, yaml=file.yaml, file=file, index=index)
    return check_file(view, SELECTION)


def test_most_tasks_that_are_made_up_here_are_rendered_and_many_have_findings() -> None:
    seen: list[LintResult | None] = []

    @settings(max_examples=60, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(whole_configs)
    def collect(config: dict[str, Any]) -> None:
        seen.append(checked(config))

    collect()
    rendered = [each for each in seen if each is not None and each.failure is None]
    assert len(rendered) > len(seen) / 4
    assert len({finding.code for each in rendered for finding in each.findings}) > 8
