"""The document that a snapshot stores, made of a study as one profile sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.snapshots.content import header_facts, make_document
from pytest_promptfmt.snapshots.document import Document, Section
from pytest_promptfmt.snapshots.token_sections import profile_facts, token_sections
from pytest_promptfmt.study import ProfileView

_TOO_MUCH_TEXT: Final = "the docs are very long: show fewer of them, or raise time_limit"


def snapshot_document(seen: ProfileView) -> Document:
    """Return the document of a task in one profile.

    Raises the PromptfmtError that stopped it: code not allowed, docs not found, a template that fails, a text that the
    tokenizer cannot encode, a time limit.
    """
    instances = seen.render()
    study, profile, tokenizer = seen.study, seen.profile, seen.tokenizer
    task, docs, shots = study.material.task, study.material.docs, study.material.shots
    facts = dict(task.assembly.facts) if task.assembly is not None else {}
    more: Callable[[Instance], Iterable[Section]] = lambda _instance: ()  # noqa: E731
    if tokenizer is not None and seen.pairs is not None:
        facts |= profile_facts(profile, tokenizer)
        what = f"encoding the prompts of {task.id} with {tokenizer.name}"
        with time_limit(study.settings.time_limit, what, task.position("doc_to_text"), hint=_TOO_MUCH_TEXT):
            more = token_sections(tokenizer, profile, instances, seen.pairs)
    header = header_facts(
        task=task.id,
        profile=seen.name,
        template_args=profile.template_args if profile.is_chat else {},
        output=task.output_type,
        docs=docs.origin,
        shots=shots,
        fewshot_docs=docs.fewshot_origin,
        more=facts,
    )
    return make_document(header, instances, more, shows_text=profile.shows_text)
