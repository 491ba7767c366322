"""Views and helpers of the built-in rules: a file of tasks, the parts of a prompt, and how a finding is made."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.core.prompt import Instance, Message, Span
from pytest_promptfmt.profiles import Tokenizer
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.configuration import WrittenTemplate
from pytest_promptfmt.study.layout import Layout, layout_of
from pytest_promptfmt.tasks import TaskFile, TaskIndex, YamlFile, looks_for_answers

COLUMN: Final = "\0"
"""The character for a value in the `skeleton` of a template."""

BRANCH: Final = "\1"
"""The character for a tag in the `skeleton` of a template."""

SHOWN: Final = 60
"""Characters that are shown of a long text."""

_VALUE: Final = re.compile(r"[ \t\n]*\{\{-.*?\}\}|\{\{.*?\}\}", re.DOTALL)
_TAG: Final = re.compile(r"(\s*\{%-|\{%[+]?).*?(-%\}\s*|%\})|\{#.*?#\}", re.DOTALL)
_TEXTS: Final = ("description", "doc_to_text", "gen_prefix")
_BRACKETS: Final = str.maketrans("\u27e8\u27e9", "\u2039\u203a")
Where = str | tuple[str | int, ...] | Span | Position | None


@dataclass(frozen=True, kw_only=True)
class FileView:
    """One YAML file: its parts and positions (`yaml`), what it defines (`file`), and every name of the folder tree."""

    path: Path
    yaml: YamlFile
    file: TaskFile
    index: TaskIndex

    @property
    def config(self) -> Mapping[Any, Any]:
        """Return the merged mapping."""
        return self.yaml.config

    @property
    def name(self) -> str:
        """Return the name of the first task or group that the file defines, else that of the file."""
        return self.file.names[0] if self.file.names else self.path.name


@dataclass(frozen=True, slots=True)
class Shot:
    """One few-shot example of a rendered prompt: the text of its question and of its answer (None without one)."""

    question: str
    answer: str | None
    messages: tuple[Message, ...]


def finding(
    message: str,
    saw: str = "",
    at: Where = (),
    doc: Instance | int | None = None,
    *,
    do: str = "",
    field: str | None = None,
    span: tuple[int, int] | None = None,
    severity: Severity | None = None,
    position: Position | None = None,
) -> Finding:
    """Return a finding: what is wrong, the text that was seen, and where.

    `at` is a key of the configuration, a path of keys, a position in a file, or a span of the prompt, of which the
    finding has the key (`doc_to_text` if it has none) and the column. `doc` is the rendered doc, or its number from 0.
    """
    if isinstance(at, Span):
        origin = at.origin
        at, field = origin.keys or ("doc_to_text",), field or origin.field
    return Finding(
        message=message,
        saw=saw,
        keys=(at,) if isinstance(at, str) else at if isinstance(at, tuple) else (),
        position=at if isinstance(at, Position) else position,
        doc=doc.index if isinstance(doc, Instance) else doc,
        field=field,
        span=span,
        do=do,
        severity=severity,
    )


warning: Final = partial(finding, severity=Severity.WARNING)
"""`finding` where the same rule reports errors as well."""

info: Final = partial(finding, severity=Severity.INFO)
"""`finding` of what may be intended."""


def literal_of(text: str) -> object:
    """Return the value of a text that is a literal of Python, None for any other text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


_SHORTEST_STEM: Final = 4
_WITHOUT_SPACES: Final = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_JOINED_PREPOSITIONS: Final = re.compile("[\u0590-\u06ff]")


def has_word(text: str, word: str) -> bool:
    """Return whether a text has a word, in any letter case.

    A word of another script may have an ending, as in Korean, except a short one with letter case: `да` is not in
    `дата`. In Arabic and Hebrew, it may begin with a preposition or article. Chinese and Japanese have no spaces.
    """
    if _WITHOUT_SPACES.match(word):
        return word in text
    is_whole = word.isascii() or (len(word) < _SHORTEST_STEM and word.upper() != word.lower())
    end, begin = r"(?!\w)" if is_whole else "", r"\w{0,2}" if _JOINED_PREPOSITIONS.match(word) else ""
    return re.search(rf"(?<!\w){begin}{re.escape(word)}{end}", text, re.IGNORECASE) is not None


def has_english(text: str) -> bool:
    """Return whether a text has one of the words that are in nearly every English instruction."""
    return not set(re.findall(r"[^\W\d_]+", text.casefold())).isdisjoint(data_table("contract")["english"].split())


def words(name: str) -> frozenset[str]:
    """Return a list of words of `data/rules.yaml`."""
    return frozenset(str(data_table("rules")[name]).split())


def pattern(module: str, name: str) -> re.Pattern[str]:
    """Return a pattern of `data/patterns.yaml`, by the module that uses it."""
    return re.compile(data_table("patterns")[module][name])


def around(text: str, place: re.Match[str] | int, before: int = 20, after: int | None = None) -> str:
    """Return so many characters of a text before and after a match or index; as many after as before by default."""
    start, end = (place, place) if isinstance(place, int) else place.span()
    begin = max(0, start - before)
    inside = re.compile(r"(?<=\w)\w+\s").match(text, begin, start)  # the end of a word
    return text[inside.end() if inside is not None else begin : end + (before if after is None else after)]


def shots_of(instance: Instance) -> tuple[Shot, ...]:
    """Return the few-shot examples of a rendered doc, in order."""
    if not instance.prompts:
        return ()
    shots: dict[int, list[Message]] = {}
    for message in instance.prompts[0].messages:
        spans = message.content or message.delimiter
        number = next((span.origin.shot for span in spans if span.origin.shot is not None), None)
        if number is not None:
            shots.setdefault(number, []).append(message)
    found = []
    for messages in shots.values():
        answers = [message.text for message in messages if message.role == "assistant"]
        question = "".join(message.text for message in messages if message.role == "user")
        found.append(Shot(question, answers[0] if answers else None, tuple(messages)))
    return tuple(found)


def question_message(instance: Instance) -> Message | None:
    """Return the message that asks about the evaluated doc."""
    if not instance.prompts:
        return None
    users = [message for message in instance.prompts[0].messages if message.role == "user"]
    last = users[-1] if users else None
    if last is None or any(span.origin.shot is not None for span in last.content):
        return None
    return last


def question_layout(instance: Instance) -> Layout:
    """Return the layout of the message that asks about the evaluated doc; that of "" without one."""
    message = question_message(instance)
    return layout_of(message.text if message is not None else "")


def first_text(instance: Instance) -> str:
    """Return the text of the first prompt of a doc, "" without one."""
    return instance.prompts[0].text if instance.prompts else ""


def instruction_key(study: Study) -> str:
    """Return the key in which a task instructs the model."""
    return "description" if study.task.description else "doc_to_text"


def comparing_key(study: Study) -> str:
    """Return the key of what compares a completion with the gold answer: filters if there are any, or metrics."""
    return "filter_list" if study.task.filter_list else "metric_list"


def mapped(study: Study) -> dict[str, str]:
    """Return what filters of the function `map` turn into what, as texts."""
    steps = [step for one in study.task.filter_list or () for step in one.get("filter") or ()]
    mappings = [step["mapping_dict"] for step in steps if isinstance(step.get("mapping_dict"), Mapping)]
    return {str(key).strip(): str(value) for mapping in mappings for key, value in mapping.items()}


def scores_exact_match(study: Study) -> bool:
    """Return whether exact_match is the only metric, written or by default."""
    return set(study.metrics or ("exact_match",)) == {"exact_match"}


def compares_whole(study: Study) -> bool:
    """Return whether exact_match compares whole completions with gold answers: no code judges, no filter looks."""
    is_judged = study.has_own_scorer or looks_for_answers(study.task)
    return study.generates and scores_exact_match(study) and not is_judged


def severity_of_shots(study: Study) -> Severity | None:
    """Return how bad a mistake of few-shot examples is at most: None where the run shows them.

    It is a warning where only `--num_fewshot` shows them, and an info where the task sets 0, which lm-eval 0.4.13 does
    not let the command line change.
    """
    if study.shots > 0:
        return None
    return Severity.INFO if study.task.num_fewshot == 0 else Severity.WARNING


def has_given_shots(study: Study) -> bool:
    """Return whether few-shot examples come from the user's own docs."""
    return study.docs is not None and study.docs.fewshot_kind == "given"


def continuations(instance: Instance) -> list[str]:
    """Return the continuations that are text; a target may be anything."""
    return [request.continuation for request in instance.requests if isinstance(request.continuation, str)]


def shown_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return tokens for a reader, with spaces between them and brackets that no finding takes for its own."""
    return " ".join(tokenizer.visible(token) for token in ids).translate(_BRACKETS)


def skeleton(source: str) -> str:
    """Return a template with a null character for each value it prints, and U+0001 for each tag."""
    text = _VALUE.sub(COLUMN, source)
    return _TAG.sub(lambda found: BRANCH if not found[0].startswith("{#") else "", text)


def written_texts(study: Study) -> Iterator[tuple[WrittenTemplate, str]]:
    """Yield the templates whose text is in the prompt, each with its skeleton; not those that are Python lists."""
    for template in study.templates:
        if template.keys[-1] in _TEXTS and not template.source.lstrip().startswith("["):
            yield template, skeleton(template.source)


def question_template(study: Study) -> str:
    """Return the template of the question, "" where it is something else."""
    spec = study.written.doc_to_text
    return spec if isinstance(spec, str) and "{{" in spec else ""


def own_spans(study: Study, instance: Instance) -> Iterator[Span]:
    """Yield the pieces of the prompt that the task's author wrote or made, for the evaluated doc."""
    for prompt in instance.prompts[:1]:
        for span in prompt.spans:
            if span.origin.shot is None and span.text and not study.has_guessed_text:
                yield span


def choices_of(study: Study, instance: Instance) -> Sequence[str]:
    """Return the texts that are scored for the one prompt of a doc, without their delimiter."""
    if not study.has_choices or len(instance.prompts) != 1:
        return ()
    return [
        without_delimiter(study, request.continuation)
        for request in instance.requests
        if request.prompt is not None and isinstance(request.continuation, str)
    ]


def without_delimiter(study: Study, continuation: Any) -> str:
    """Return the choice in a continuation."""
    return str(continuation).removeprefix(study.task.target_delimiter)
