"""Rules about odd or misleading text in prompts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.prompt import join
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import around, continuations, finding, question_message
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.study import constant_spans

_WIDE_PUNCTUATION: Final = re.compile(r"[A-Za-z]{2,}([：；，？！（）])")
_CJK: Final = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\u3040-\u30ff]")
_COLON_LABEL: Final = re.compile(r"([^\s:：]{2,20})([:：])")
_RAW_KEY: Final = re.compile(r"\b(?:about|in|of|on) ([a-z]{3,}(?:_[a-z]{2,})+)[.?!:]")
_KEY_VALUE: Final = re.compile(r"[a-z]{3,}(?:_[a-z]{2,})+")
_QUOTED: Final = re.compile(
    r"(?:answer|respond|reply|say|output|write|return)\b[^.\n]{0,40}?[\"'`‘“]([^\"'`’”\n]{1,40})[\"'`’”]", re.I
)
_CUE: Final = re.compile(r"\n\s*(?:final )?answer\s*:\s*\Z", re.I)
_OPTION: Final = re.compile(r"\s*\(?[A-Z][.):]\s")
_SAYS_HOW: Final = re.compile(r"answer|respond|reply|choose|select|option|letter|choice|[^\x00-\x7f]", re.I)


@rule("PF224", "repeated-block", severity=Severity.WARNING, family=Family.PROMPT)
def repeated_block(study: Study) -> Iterator[Finding]:
    r"""Report two identical paragraphs in a row.

    Why: the same instruction is in the description and in the template, or a few-shot example is drawn twice.

    Example:
        description: "Answer the following question about metals.\n\n"
        doc_to_text: "Answer the following question about metals.\n\n{{question}}\nAnswer:"

    Silent with:
        doc_to_text: "{{question}}\nAnswer:"

    Fix: keep one of them.

    Real: instructions that are both in a template and in its include.
    """
    for instance in study.instances[:1]:
        for prompt in instance.prompts[:1]:
            blocks = [block.strip() for block in prompt.text.split("\n\n")]
            for before, after in pairwise(blocks):
                if before == after and len(before) >= 30:
                    yield finding("the same paragraph appears twice in a row", before, "doc_to_text", instance)
                    return


@rule("PF225", "full-width-punctuation", severity=Severity.WARNING, family=Family.PROMPT)
def full_width_punctuation(study: Study) -> Iterator[Finding]:
    r"""Report full-width punctuation after a Latin word in a template without Chinese or Japanese text.

    Why: `Answer：` with U+FF1A looks like `Answer:` but is a different token. It is usually left over from a template
    copied from a Chinese task.

    Example:
        doc_to_text: "Question: {{question}}\nAnswer："

    Silent example:
        doc_to_text: "Question: {{question}}\nAnswer:"

    Fix: replace it with the ASCII character.

    Real: lm-evaluation-harness #2111 (122 belebele languages).
    """
    for template in study.templates:
        text = "".join(template.text.constants)
        found = _WIDE_PUNCTUATION.search(text)
        if found is not None and not _CJK.search(text):
            name = unicodedata.name(found[1]).lower()
            yield finding(f"a {name} after a Latin word", around(text, found, 10), template.keys)


@rule("PF226", "mixed-colons", severity=Severity.WARNING, family=Family.PROMPT)
def mixed_colons(study: Study) -> Iterator[Finding]:
    r"""Report one label with two kinds of colon in the same prompt.

    Why: few-shot examples with `问题：` and a question with `问题:` are two layouts, and a stop sequence matches only
    one of them.

    Example:
        num_fewshot: 1
        doc_to_text: "{% if shown %}Question：{% else %}Question: {% endif %}{{question}}\nAnswer:"
        metadata:
          promptfmt:
            docs:
              test: [{question: Which metal rusts?, choices: [iron, gold], answer: 0, shown: false}]
              fewshot: [{question: Which metal melts?, choices: [tin, ice], answer: 0, shown: true}]

    Silent example:
        doc_to_text: "Question: {{question}}\nAnswer:"

    Fix: use the same colon everywhere.

    Real: lm-evaluation-harness #2587 (mgsm_zh, mgsm_ja).
    """
    for instance in study.demonstrated[:1]:
        for prompt in instance.prompts[:1]:
            kinds: dict[str, set[str]] = {}
            for line in prompt.text.splitlines():
                found = _COLON_LABEL.match(line.strip())
                if found is not None:
                    kinds.setdefault(found[1], set()).add(found[2])
            for label, colons in kinds.items():
                if len(colons) > 1:
                    yield finding(
                        "the same label appears with two kinds of colon",
                        f"{label}: and {label}：",
                        "doc_to_text",
                        instance,
                    )


@rule("PF227", "open-fence", severity=Severity.WARNING, family=Family.PROMPT)
def open_fence(study: Study) -> Iterator[Finding]:
    r"""Report a code fence that is opened before a column and never closed.

    Why: an opening fence before `{{code}}` without a closing fence leaves the model inside the code, so its answer is
    part of the question's block. A prompt that ends right after the opening fence is not reported.

    Example:
        output_type: generate_until
        doc_to_text: "Solve this problem:\n```\n{{question}}\nAnswer in words:"

    Silent with:
        doc_to_text: "Solve this problem:\n```\n{{question}}\n```\nAnswer in words:"

    Fix: close the fence after the column.

    Real: lm-evaluation-harness #3092 (humaneval_instruct).
    """
    for instance in study.instances[:1]:
        message = question_message(instance)
        if message is None or "```" not in message.text:
            return
        constant = "".join(span.text if span.origin.field is None else "\0" for span in message.content)
        last = constant.rfind("```")
        if constant.count("```") % 2 and "\0" in constant[last:] and constant[: constant.find("```")].strip():
            yield finding(
                "a code fence is opened but never closed",
                message.text[message.text.rfind("```") :][:60],
                "doc_to_text",
                instance,
            )


@rule("PF228", "raw-key", severity=Severity.WARNING, family=Family.PROMPT)
def raw_key(study: Study) -> Iterator[Finding]:
    r"""Report a key with underscores in running text.

    Why: `questions about abstract_algebra.` shows the name of a subset instead of words. Other harnesses that
    run the same benchmark write `abstract algebra`, and scores differ.

    Example:
        description: "The following are questions about abstract_algebra.\n\n"

    Silent example:
        description: "The following are questions about abstract algebra.\n\n"

    Fix: replace the underscores with spaces: `{{subject | replace('_', ' ')}}`.

    Real: MMLU_IDK of eval-framework 0.15.4.
    """
    for instance in study.instances[:1]:
        text = join(constant_spans(instance))
        found = _RAW_KEY.search(text)
        if found is not None:
            yield _raw_key(found[1], instance.index, None)
            return
    for instance in study.real_instances[:1]:
        for prompt in instance.prompts[:1]:
            for before, span in pairwise(prompt.spans):
                if span.origin.field and _KEY_VALUE.fullmatch(span.text) and re.search(r"[a-z] \Z", before.text):
                    yield _raw_key(span.text, instance.index, span.origin.field)
                    return


def _raw_key(key: str, doc: int, field: str | None) -> Finding:
    return finding(
        "a key with underscores in running text",
        key,
        "description" if field is None else "doc_to_text",
        doc,
        field=field,
    )


@rule("PF229", "reasoning-then-cue", severity=Severity.INFO, family=Family.PROMPT)
def reasoning_then_cue(study: Study) -> Iterator[Finding]:
    r"""Report a prompt that asks for reasoning and ends with `Answer:`.

    Why: the cue asks for the answer immediately, and models that follow it skip the reasoning.

    Example:
        output_type: generate_until
        doc_to_text: "{{question}}\nThink step by step.\nAnswer:"

    Silent with:
        doc_to_text: "{{question}}\nAnswer: Let's think step by step."

    Fix: end the prompt with the start of the reasoning, or without a cue.

    Real: eval-framework's chain-of-thought tasks that keep the cue of the tasks without reasoning.
    """
    if not study.asks_for_reasoning:
        return
    for instance in study.instances[:1]:
        text = instance.prompts[0].text if instance.prompts else ""
        if _CUE.search(text):
            yield finding(
                "the prompt asks for reasoning but ends with an answer cue", text[-40:], "doc_to_text", instance
            )


@rule("PF230", "abstention-not-a-choice", severity=Severity.WARNING, family=Family.PROMPT)
def abstention(study: Study) -> Iterator[Finding]:
    r"""Report an answer quoted in the prompt that is almost, but not exactly, one of the choices.

    Why: the prompt asks the model to answer "I do not know", but the scored choice is "I do not know.". A model that
    obeys is not scored as abstaining.

    Example:
        doc_to_text: "Answer yes, or \"I do not know\".\n{{question}}\nAnswer:"
        doc_to_choice: ["yes", "I do not know."]
        doc_to_target: "{{answer % 2}}"

    Silent with:
        doc_to_text: "Answer yes, or \"I do not know.\"\n{{question}}\nAnswer:"

    Fix: quote the choice exactly as it is scored.

    Real: the IDK tasks of eval-framework 0.15.4.
    """
    for instance in study.instances[:1]:
        choices = [text.strip() for text in continuations(instance)]
        if not study.has_choices or not choices:
            return
        for quoted in _QUOTED.findall(join(constant_spans(instance))):
            near = [choice for choice in choices if _bare(choice) == _bare(quoted) and _bare(quoted)]
            if near and quoted not in choices:
                yield finding(
                    "the prompt quotes an answer that differs slightly from the choice",
                    f"{quoted!r} is quoted, {near[0]!r} is scored",
                    "doc_to_text",
                    instance,
                )
                return


@rule("PF231", "label-without-colon", severity=Severity.WARNING, family=Family.PROMPT)
def label_without_colon(study: Study) -> Iterator[Finding]:
    r"""Report a label without a colon beside a label with one, if both are named like their columns.

    Why: `question: … passage …` was meant to read `question: … passage: …`.

    Example:
        doc_to_text: "question: {{question}} passage {{passage}}\nanswer:"
        metadata: {promptfmt: {docs: [{question: Who?, passage: Some, choices: ["no", "yes"], answer: 0}]}}

    Silent with:
        doc_to_text: "question: {{question}} passage: {{passage}}\nanswer:"

    Fix: add the colon.

    Real: lm-evaluation-harness #769 (boolq for T5).
    """
    for instance in study.instances[:1]:
        message = question_message(instance)
        if message is None:
            return
        labels = [
            (before.text, span.origin.field)
            for before, span in pairwise(message.content)
            if before.origin.field is None and span.origin.field
        ]
        with_colon = any(re.search(rf"\b{re.escape(name)}: ?\Z", text, re.I) for text, name in labels)
        for text, name in labels:
            if with_colon and re.search(rf"(?:^|[\n ]){re.escape(name)} \Z", text):
                yield finding(
                    "a label has no colon, but another label has one",
                    f"{text[-20:]}…",
                    "doc_to_text",
                    instance,
                    field=name,
                )


@rule("PF232", "no-cue-after-options", severity=Severity.WARNING, family=Family.PROMPT)
def no_cue(study: Study) -> Iterator[Finding]:
    r"""Report a prompt that lists options and ends with the last of them, without a cue for the answer.

    Why: a base model continues with the next option, not with an answer. An instruction before the options that says
    how to answer counts as a cue.

    Example:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}"
        doc_to_choice: ["A", "B", "C"]

    Silent with:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nAnswer:"

    Fix: end the prompt with a cue such as `Answer:`.

    Real: HELM #3790 (InfiniteBench).
    """
    if study.task.gen_prefix is not None or not study.task.has_question:
        return
    for instance in study.instances[:1]:
        message = question_message(instance)
        if message is None or len(instance.prompts) != 1:
            return
        lines = message.text.rstrip().splitlines()
        options = [_OPTION.match(line) is not None for line in lines[-3:]]
        letters = [line.lstrip(" (")[:1] for line in lines[-2:]]
        in_order = len(letters) == 2 and ord(letters[1] or "\0") == ord(letters[0] or "\0") + 1
        if len(lines) >= 3 and all(options[-2:]) and in_order and not _SAYS_HOW.search(join(constant_spans(instance))):
            yield finding(
                "the prompt ends with the last option, without an answer cue",
                message.text[-40:],
                "doc_to_text",
                instance,
            )


def _bare(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text).strip().casefold()
