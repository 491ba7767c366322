"""Rules about texts written for somebody else than the model, and about slips in them: letters, colons, names."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from jinja2 import Environment, TemplateError, nodes

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import around, finding, skeleton
from pytest_promptfmt.study import Study

_FOR_READERS: Final = re.compile(
    r"\b(?:benchmark|dataset|leaderboard|test suite)\b[^.\n]{0,120}\b(?:measur|evaluat|assess|test)\w*\b[^.\n]{0,80}"
    r"\b(?:language )?models?\b|\bLLMs?\b|@(?:inproceedings|article|misc)\{|https?://(?:arxiv\.org|github\.com)/|arXiv:\d"
)
_LETTER: Final = re.compile(r"(?<![A-Za-z])[a-z](?![A-Za-z])")
_ALPHABETS: Final = re.compile(
    r"(?:ARABIC|ARMENIAN|BENGALI|DEVANAGARI|ETHIOPIC|GEORGIAN|GUJARATI|GURMUKHI|HEBREW|KANNADA|KHMER|LAO|MALAYALAM|MYANMAR|ORIYA|SINHALA|TAMIL|TELUGU|THAI)\b"
)
_LABEL: Final = re.compile(r"^((?:[A-Z]{3,}|[A-Z]\w+)(?: [A-Za-z]\w*){1,2})(:?)(?= +[\"“A-Z\d])", re.MULTILINE)


@rule("PF280", "description-for-readers", severity=Severity.WARNING, family=Family.PROMPT)
def description_for_readers(study: Study) -> Iterator[Finding]:
    r"""Report a `description` that describes the benchmark to people.

    Why: lm-eval prints the description before the first few-shot example of every prompt. What the task measures and
    where its paper is belongs into `metadata` or a README.

    Example:
        description: "A benchmark of 1,200 questions that measures how well models know metals.\n\n"

    Silent example:
        description: "Answer the following questions about metals.\n\n"

    Fix: move the text into a comment, and describe to the model what it is to do.

    Real: lm-evaluation-harness #3442 (uncheatable_eval, in review).
    """
    text = study.written.description
    found = _FOR_READERS.search(text) if isinstance(text, str) else None
    if found is not None:
        yield finding("the description is about the benchmark, and part of every prompt", found[0][:80], "description")


@rule("PF282", "letter-of-another-script", severity=Severity.WARNING, family=Family.PROMPT)
def letter_of_another_script(study: Study) -> Iterator[Finding]:
    r"""Report a single Latin letter that is glued to a word of another script.

    Why: a key that was hit by accident, in a text that the reviewer cannot read. Chinese, Japanese, Korean, Cyrillic
    and Greek are left out, where such words exist.

    Example:
        description: "নিচের প্রশ্নের উত্তর একটিc শব্দে দাও। "

    Silent example:
        description: "নিচের প্রশ্নের উত্তর একটি শব্দে দাও। "

    Fix: remove the letter.

    Real: facebookresearch/multiloko #14 (Arabic, Bengali and three others).
    """
    for template in study.templates:
        text = skeleton(template.source)
        for found in _LETTER.finditer(text):
            if any(_is_of_alphabet(char) for char in around(text, found, 1)):
                yield finding(
                    "a Latin letter is glued to a word of another script",
                    around(text, found, 15).replace("\0", "…"),
                    template.keys,
                )
                return


def _is_of_alphabet(char: str) -> bool:
    return unicodedata.category(char)[0] in "LM" and _ALPHABETS.match(unicodedata.name(char, "")) is not None


@rule("PF283", "label-lost-its-colon", severity=Severity.WARNING, family=Family.FEWSHOT)
def label_lost_colon(study: Study) -> Iterator[Finding]:
    r"""Report a label of written examples that has a colon everywhere but once.

    Why: models imitate the examples. Only labels of several words are looked at: `Answer the question` is a sentence.

    Example:
        description: "Old English: Hwæt.\nModern English: What.\nOld English: Hus.\nModern English House.\n"
        doc_to_text: "Old English: {{question}}\nModern English:"

    Silent with:
        description: "Old English: Hwæt.\nModern English: What.\nOld English: Hus.\nModern English: House.\n"

    Fix: add the colon.

    Real: google/BIG-bench #590 (conlang_translation).
    """
    texts = [(template, skeleton(template.source)) for template in study.templates]
    labels = [(template, text, found) for template, text in texts for found in _LABEL.finditer(text)]
    with_colon = Counter(found[1] for _, _, found in labels if found[2])
    with_colon += Counter(line[:-1] for _, text in texts for line in text.splitlines() if line.endswith(":"))
    for template, text, found in labels:
        name = next((one for one in with_colon if f"{found[1]} ".startswith(f"{one} ")), None)
        if not found[2] and name is not None and " " in name and with_colon[name] > 1:
            yield finding("a label of the examples has no colon", text[found.start() : found.end() + 20], template.keys)
            return


@rule("PF284", "outer-name-in-loop", severity=Severity.WARNING, family=Family.PROMPT)
def outer_name_in_loop(study: Study) -> Iterator[Finding]:
    r"""Report a loop over examples that prints a column of the doc, where each example has one of the same name.

    Why: `{% for x in examples %}{{x.question}} ({{kind}})` prints the kind of the doc after every example, so that a
    name is asked for as a date.

    Example:
        doc_to_text: "{% for x in examples %}{{x.question}} ({{kind}})\n{% endfor %}{{question}} ({{kind}})\nAnswer:"
        doc_to_choice: ["1918", "Ito"]
        doc_to_target: 0
        metadata:
          promptfmt:
            docs: [{question: When was it?, kind: date, examples: [{question: Who was it?, kind: name}]}]

    Silent with:
        doc_to_text: "{% for x in examples %}{{x.question}} ({{x.kind}})\n{% endfor %}{{question}} ({{kind}})\nAnswer:"

    Fix: print the column of the example: `x.kind`.

    Real: facebookresearch/multiloko #12 (Italian and Spanish).
    """
    for template in study.templates:
        for name, looped in _loops(template.source):
            for doc in study.real_docs:
                items = doc.get(looped)
                items = items if isinstance(items, Sequence) else ()
                own = [one[name] for one in items if isinstance(one, Mapping) and name in one]
                if name in doc and any(value != doc[name] for value in own):
                    yield finding(
                        "a loop prints a column of the doc, not of the example",
                        f"{{{{{name}}}}} in the loop over {looped}",
                        template.keys,
                        field=name,
                    )
                    return


def _loops(source: str) -> Iterator[tuple[str, str]]:
    """Yield each name that a loop over a column prints, with the column, where it prints parts of the item as well."""
    if "for" not in source:
        return
    try:
        tree = Environment().parse(source)  # parsed, never rendered
    except TemplateError:
        return
    for loop in tree.find_all(nodes.For):
        if not isinstance(loop.target, nodes.Name) or not isinstance(loop.iter, nodes.Name):
            continue
        item = loop.target.name
        parts: list[nodes.Getattr | nodes.Getitem] = []
        for body in loop.body:
            parts.extend(body.find_all(nodes.Getattr))
            parts.extend(body.find_all(nodes.Getitem))
        if not any(isinstance(one.node, nodes.Name) and one.node.name == item for one in parts):
            continue
        for name in dict.fromkeys(one.name for body in loop.body for one in body.find_all(nodes.Name)):
            if name not in (item, "loop", loop.iter.name):
                yield name, loop.iter.name


@rule("PF286", "options-not-shown", severity=Severity.ERROR, family=Family.ANSWERS)
def options_not_shown(study: Study) -> Iterator[Finding]:
    r"""Report a prompt that asks for the letter of an option and lists no options.

    Why: the options are in another column than the one that is printed. The model can only guess a letter. Synthetic
    docs are not looked at, because a real question may hold its options.

    Example:
        doc_to_text: "{{question}}\nAnswer with the letter of the option.\nAnswer:"
        doc_to_choice: ["A", "B", "C"]

    Silent with:
        doc_to_text: "Choose a letter.\n{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nAnswer:"

    Fix: list the options, each with its letter.

    Real: NVIDIA-NeMo/Skills #1523 (mmlu-prox), meridianlabs-ai/inspect_scout #77.
    """
    if study.is_multimodal or study.has_guessed_text:
        return
    for instance in study.real_instances[:1]:
        text = instance.prompts[0].text if instance.prompts else ""
        if study.generates:
            scored = {str(one.target).strip() for one in study.real_instances}
        else:
            scored = {str(request.continuation).strip() for request in instance.requests}
        if not scored or not all(one in _LETTERS for one in scored) or not _ASKS_LETTER.search(text):
            return
        if not any(re.search(rf"(?<!\w)[(\[]?{one}[)\].:,=-]*[ \t]+\w", text) for one in sorted(scored)):
            yield finding("the prompt asks for a letter, but lists no options", text[-80:], "doc_to_text", instance)


_LETTERS: Final = tuple("ABCDEFGHIJ")
_ASKS_LETTER: Final = re.compile(
    r"\bletter\b|\b(?:option|choice)s?\b|multiple[- ]choice|\bA, B(?:,| or| and)|\bA or B\b", re.IGNORECASE
)
