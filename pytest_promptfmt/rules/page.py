"""A rendered question as a page of elements, and rules that are one query on a page, a written text or a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from itertools import islice
from typing import Any, Final

from pytest_promptfmt.core.prompt import Instance, Message
from pytest_promptfmt.rules import Family, Finding, Severity, Study
from pytest_promptfmt.rules.fixes import FixRule
from pytest_promptfmt.rules.rule_registry import Scope, also, rule
from pytest_promptfmt.rules.rule_views import (
    COLUMN,
    Shot,
    Where,
    around,
    choices_of,
    finding,
    has_given_shots,
    question_message,
    scores_exact_match,
    shots_of,
    written_texts,
)
from pytest_promptfmt.study.configuration import Keys
from pytest_promptfmt.study.layout import LabelLine, Layout, Listing, layout_of, listing_of

_SHOWN: Final = 24
Query = Callable[[Any], Iterable[str | Finding]]


@dataclass(frozen=True)
class Page:
    """The message of a rendered doc that asks its question, and the elements of that."""

    study: Study
    instance: Instance
    message: Message

    @cached_property
    def text(self) -> str:
        """Return the whole question."""
        return self.message.text

    @cached_property
    def constant(self) -> str:
        """Return the question with a null character for each piece that a column gives."""
        return "".join(span.text if span.origin.field is None else COLUMN for span in self.message.content)

    @property
    def tail(self) -> str:
        """Return the constant text after the last column, with the character of that column before it."""
        return self.constant[max(0, self.constant.rfind(COLUMN)) :]

    @property
    def shots(self) -> Sequence[Shot]:
        """Return the few-shot examples before it."""
        return shots_of(self.instance)

    @property
    def layout(self) -> Layout:
        """Return the labels and options at the start of its lines."""
        return layout_of(self.text)

    @property
    def cue(self) -> LabelLine | None:
        """Return the label at the end, where the answer begins."""
        return self.layout.cue

    @cached_property
    def listing(self) -> Listing | None:
        """Return how it lists a list of the doc with a label each; None if it does not."""
        return listing_of(self.message, self.instance.doc)

    @cached_property
    def scored(self) -> list[str]:
        """Return the texts that are scored, without outer whitespace."""
        return [choice.strip() for choice in choices_of(self.study, self.instance)]

    @cached_property
    def labelled(self) -> list[tuple[str, str]]:
        """Return the columns that are printed, each after the label directly before it ("" at the start of a line)."""
        found, constant = [], ""
        for span in self.message.content:
            if span.origin.field is None:
                constant += span.text
                continue
            label = layout_of(constant).cue
            if label is not None or constant[-1:] in ("", "\n"):
                found.append((label.name if label is not None else "", span.origin.field))
            constant = span.text.rpartition("\n")[2]
        return found


@dataclass(frozen=True, slots=True)
class Text:
    """A template whose text is in the prompt: its keys, and what is written, with U+0000 and U+0001 for the markup."""

    keys: Keys
    text: str


def drawn(study: Study) -> Sequence[Page]:
    """Return a page for each rendered doc."""
    return study.once("pages", lambda: pages_of(study, study.instances))


def pages_of(study: Study, instances: Iterable[Instance]) -> tuple[Page, ...]:
    """Return a page for each of these docs that has a question."""
    asked = ((instance, question_message(instance)) for instance in instances)
    return tuple(Page(study, instance, message) for instance, message in asked if message is not None)


def asked_first(study: Study) -> Sequence[Page]:
    """Return the page of the first doc, also if code makes its text of synthetic docs."""
    return drawn(study)[:1]


def known(study: Study) -> Sequence[Page]:
    """Return the pages whose text is known: not those that Python code makes of synthetic docs."""
    return () if study.has_guessed_text else drawn(study)


def first(study: Study) -> Sequence[Page]:
    """Return the page of the first doc, if its text is known."""
    return known(study)[:1]


def own(study: Study) -> Sequence[Page]:
    """Return the pages of docs that are the user's own."""
    return drawn(study) if study.has_real_docs else ()


def shown(study: Study) -> Sequence[Page]:
    """Return the page of the first doc with few-shot examples, if its text is known."""
    return () if study.has_guessed_text else with_shots(study)


def with_shots(study: Study) -> Sequence[Page]:
    """Return the page of the first doc with few-shot examples, also if code makes it of synthetic docs."""
    return pages_of(study, study.with_shots[:1])


def demonstrated(study: Study) -> Sequence[Page]:
    """Return the page of the first doc with few-shot examples, if those are not synthetic."""
    return pages_of(study, study.demonstrated[:1])


def given_shots(study: Study) -> Sequence[Page]:
    """Return the page of the first doc with few-shot examples, if those are the user's own docs."""
    return demonstrated(study) if has_given_shots(study) else ()


def texts(study: Study) -> Iterator[Text]:
    """Yield the texts of templates."""
    return (Text(template.keys, text) for template, text in written_texts(study))


def task(study: Study) -> tuple[Study]:
    """Return the task itself."""
    return (study,)


def generating(study: Study) -> Sequence[Study]:
    """Return a task that generates."""
    return (study,) if study.generates else ()


def comparing(study: Study) -> Sequence[Study]:
    """Return a task that compares what is generated, or what filters read, with the gold answer as text."""
    return (study,) if study.generates and not study.has_own_scorer and scores_exact_match(study) else ()


def part_of(text: str, place: object, before: int = _SHOWN, after: int | None = None) -> str:
    """Return the characters around a match or an index, with dots for columns."""
    return around(text, place, before, after).replace(COLUMN, "…")  # type: ignore[arg-type]


def query(
    code: str,
    message: str,
    of: Callable[[Any], Iterable[Any]] = first,
    *,
    at: Where = "doc_to_text",
    name: str = "",
    severity: Severity = Severity.WARNING,
    family: Family = Family.PROMPT,
    scope: Scope = "task",
    scores: bool = False,
    fix: FixRule | None = None,
    every: bool = False,
) -> Callable[[Query], Callable[[Study], Iterator[Finding]]]:
    """Register a function as a rule, if it has a `name`, or as a further part of one.

    The function is given a page, a text, a task or what else `of` returns, and yields what is wrong there: what
    was seen, or a finding that lacks only what all have in common: the message, the place and the doc. The first one is
    reported, or `every` one, and for each text. A further part that has no docstring is documented by its message.
    """

    def register(ask: Query) -> Callable[[Study], Iterator[Finding]]:
        @wraps(ask)
        def part(study: Study) -> Iterator[Finding]:
            for subject in of(study):
                found = [*islice(ask(subject), None if every else 1)]
                yield from (_placed(finding("", one) if isinstance(one, str) else one, subject) for one in found)
                if found and not isinstance(subject, Text):
                    break

        def _placed(found: Finding, subject: object) -> Finding:
            keys = subject.keys if isinstance(subject, Text) else finding("", at=at).keys
            doc = getattr(subject, "instance", None)
            return replace(
                found,
                message=found.message or message,
                keys=found.keys or (() if found.position is not None else keys),
                doc=doc.index if found.doc is None and isinstance(doc, Instance) else found.doc,
            )

        part.__name__ = ask.__name__.lstrip("_")
        part.__qualname__ = f"{ask.__module__}.{part.__name__}"
        part.__doc__ = ask.__doc__ or f"Report that {message}."
        if name:
            rule(code, name, severity=severity, family=family, scope=scope, scores=scores, fix=fix)(part)
        else:
            also(code, severity=severity, scope=scope, scores=scores, fix=fix)(part)
        return part

    return register


error_query: Final = partial(query, severity=Severity.ERROR)
"""`query` for mistakes that break a prompt or score."""
