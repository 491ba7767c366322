"""Mistakes of two collections in benchmarks/ are reported, and their corrections are not."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_rules_examples import findings_in

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from bench_bug_pairs import Dumper, Loader  # noqa: E402

PAIRS = [
    pair
    for name in ("contract_pairs.yaml", "field_pairs.yaml")
    for pair in yaml.load((BENCHMARKS / name).read_text("utf-8"), Loader)  # a SafeLoader with one more tag
]
MISSED = {
    "fence-glued-to-code",
    "unit-asked-gold-bare",
    "delimiter-doubled-between-shots",
    "f1-of-letters",
    "passage-after-question-cue-lost",
    "five-examples-announced-three-shown",
    "list-of-answers-as-text",
    "fewer-samples-than-shots",
    "ten-options-nine-letters",
    "answer-line-cut-by-newline",
    "boxed-asked-shots-without-box",
    "decimal-comma-gold-point-read",
    "gold-with-currency-number-read",
    "regex-wants-parentheses-shots-without",
    "shots-in-bare-letters-form-asked",
    "regex-anchored-at-start",
    "unit-in-gold-number-read",
    "regex-of-latin-letters-for-cyrillic-options",
    "target-letter-of-index-beyond-string",
    "fewshot-sample-lacks-field",
    "gold-index-as-text-in-choices-of-digits",
    "same-gold-for-all-in-code",
    "prompt-number-of-example-repeated",
    "swapped-entailment-order",
    "filter-picks-first-letter-of-word",
    "regex-misses-negative-numbers",
    "likert-text-scale-from-one",
    "every-answer-in-own-tag-one-read",
}
"""Mistakes that nothing reports (some likely ones), tasks that do not load, what the battery reports, and one whose
correction is reported as well."""


def reported(pair: dict[str, Any], side: str, folder: Path) -> set[tuple[str, str]]:
    """Return what is reported about one side of a pair, infos left out."""
    folder.mkdir()
    task: dict[str, Any] = {"task": "task", "dataset_path": "demo", "test_split": "test", "fewshot_split": "train"}
    task |= {"metadata": {"version": 1.0}} | pair["both"] | pair[side]
    files: dict[str, str] = task.pop("files", {})
    text = "# file: task.yaml\n" + yaml.dump(task, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    text += "".join(f"# file: {name}\n{content}" for name, content in files.items())
    return {(one.code, one.message) for one in findings_in(folder, text) if one.severity != "info"}


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair["id"] not in MISSED], ids=lambda pair: pair["id"])
def test_a_mistake_is_reported_and_its_correction_is_not(pair: dict[str, Any], tmp_path: Path) -> None:
    before, after = (reported(pair, side, tmp_path / side) for side in ("before", "after"))
    assert before - after
    assert not {code for code, _ in after} & {code for code, _ in before - after}
