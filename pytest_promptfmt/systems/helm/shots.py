"""Which shots HELM's adapters show (0.5.16): drawn once per trial, balanced over the right answers."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle

from pytest_promptfmt.core.errors import RenderError
from pytest_promptfmt.systems.helm.instances import HelmInstance


def draw_rows(rows: Sequence[HelmInstance], count: int, *, trial: int, sample: bool = True) -> list[HelmInstance]:
    """Return the shots of a trial, in the order they are shown: `count`, or all where there are fewer.

    The trial's number is the seed of Python's generator. Rows are grouped by the text of their first right
    reference; groups take turns, the largest first and equal ones shuffled; rows without a right reference come last.
    With `sample` off it is a slice of the rows. Raises RenderError where HELM loops for ever or fails.
    """
    wanted = min(len(rows), count)
    if not sample:
        return list(rows[wanted * trial : wanted * (trial + 1)])
    generator = random.Random(trial)
    groups: dict[str, list[HelmInstance]] = defaultdict(list)
    unlabelled: list[HelmInstance] = []
    for row in rows:
        if row.correct:
            groups[row.references[row.correct[0]]].append(row)
        else:
            unlabelled.append(row)
    labels = _in_turn(groups, generator)
    labelled = len(rows) - len(unlabelled)
    drawn: list[HelmInstance] = []
    for label in cycle(labels):
        # HELM stops at an empty text as it would at the end of the labels.
        if len(drawn) == wanted or not label:
            break
        if len(drawn) == labelled:
            raise RenderError(
                f"HELM 0.5.16 loops for ever here: {wanted} shots are wanted, only {labelled} of"
                f" {len(rows)} training instances have a right reference, and it never gets to the others",
                hint="tag a reference of each training instance as correct, or lower max_train_instances",
            )
        if groups[label]:
            drawn.append(groups[label].pop(generator.randrange(len(groups[label]))))
    missing = wanted - len(drawn)
    if missing > len(unlabelled):
        raise RenderError(
            f"HELM 0.5.16 fails here: an empty right reference ends the draw after {len(drawn)} of {wanted} shots",
            hint="give each right reference of the training instances a text",
        )
    return drawn + generator.sample(unlabelled, missing)


def _in_turn(groups: dict[str, list[HelmInstance]], generator: random.Random) -> list[str]:
    by_size: dict[int, list[str]] = defaultdict(list)
    for label in sorted(groups):
        by_size[len(groups[label])].append(label)
    ordered: list[str] = []
    for size in sorted(by_size, reverse=True):
        generator.shuffle(by_size[size])
        ordered += by_size[size]
    return ordered
