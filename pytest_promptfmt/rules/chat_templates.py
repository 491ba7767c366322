"""Rules about what a chat template does to any conversation. Run once per profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.profiles.trial_evidence import excerpt
from pytest_promptfmt.rules import Family, Finding, LoadedProfile, Severity, rule
from pytest_promptfmt.rules.rule_views import finding

_SHOWN: Final = 80


@rule("PF401", "default-system-text", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def default_system_text(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that adds a default system text if there is no system message.

    Why: every task without a description then gets instructions that are in no task file, and a task with a description
    does not. This changes answers: one model followed the requested format in 1 of 18 answers with its default text,
    and in 10 of 18 without it.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% if messages[0].role != 'system' %}<|im_start|>system
        You are a patient and friendly helper.<|im_end|>
        {% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
        {{ m.content }}<|im_end|>
        {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: give the profile a `system_instruction`.

    Real: aprender #3990, lmdeploy PR #3475, LlamaFactory PR #10772.
    """
    facts = loaded.facts
    if facts is not None and facts.default_system and not loaded.profile.system_instruction:
        yield finding(
            "the chat template adds a default system text",
            facts.default_system[:_SHOWN],
            loaded.place_of(re.split(r"[.!?,]", facts.default_system)[0][:30]),
        )


@rule("PF402", "date-in-prompt", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def date_in_prompt(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes today's date; as info one that writes a fixed date.

    Why: this plugin fixes the clock, a real run does not. Its prompts change every day, and with them its
    results and everything that is cached by prompt.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        Today is {{ strftime_now('%d %B %Y') }}.
        {% for m in messages %}{{ m.role }}: {{ m.content }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja, template_args: {date_string: 26 July 2024}}}
        # file: mine.jinja
        Today is {{ date_string or strftime_now('%d %B %Y') }}.
        {% for m in messages %}{{ m.role }}: {{ m.content }}
        {% endfor %}

    Fix: set the date with a template argument if the template has one (`date_string` in Llama's), both in the profile
    and in the real run.

    Real: sglang #3296, text-generation-webui PR #6692, llama.cpp #12729.
    """
    facts = loaded.facts
    if facts is None:
        return
    if facts.follows_clock:
        yield finding(
            "the chat template writes today's date, so prompts change every day",
            ", ".join(facts.dates),
            loaded.place_of("strftime_now"),
            severity=Severity.INFO if loaded.tested is not None else None,  # a model may be trained so
        )
    elif facts.dates and not loaded.profile.template_args:
        yield finding(
            "the chat template writes a fixed date",
            ", ".join(facts.dates),
            loaded.place_of(facts.dates[0]),
            severity=Severity.INFO,
            do="set the date with a template argument or `clock`, or remove it from the template",
        )


@rule("PF403", "reasoning-cut-from-history", severity=Severity.INFO, family=Family.CHAT, scope="template")
def reasoning_cut_from_history(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that removes `<think>…</think>` from earlier answers.

    Why: templates of reasoning models drop earlier reasoning. Few-shot examples with reasoning in these tags
    lose it, and the text of an earlier turn differs from what the model wrote.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: write reasoning that the model must see without these tags.

    Real: ollama #10448, verl #6854, prime-rl #1334.
    """
    facts = loaded.facts
    if facts is not None and not facts.keeps_think:
        yield finding("the chat template removes <think>…</think> from earlier answers", at=loaded.place_of("</think>"))


@rule("PF404", "answer-begins-elsewhere", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def answer_begins_elsewhere(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template whose finished answers do not begin as the generation prompt ends.

    Why: few-shot examples are rendered as finished answers. If the generation prompt ends differently (`<think>`), the
    model must continue from text that no example shows. Reported as info if only whitespace differs.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.content }}
        {% endfor %}{% if add_generation_prompt %}assistant: <think>
        {% endif %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: use the template's own switch (`enable_thinking: false`) in `template_args`, or put the few-shot examples into
    one turn with `fewshot_as_turns: false`.

    Real: tinker-cookbook PR #142, TRL PR #3522 and most templates of reasoning models.
    """
    facts = loaded.facts
    if facts is None or facts.answer in ("fits", "refused"):
        return
    if facts.answer == "gap":
        is_blank = not facts.answer_gap.strip()
        what = "whitespace" if is_blank else "text"
        message = f"finished answers begin with {what} that the generation prompt lacks"
        severity = Severity.INFO if is_blank else None
        yield finding(message, facts.answer_gap, loaded.place(), severity=severity, do=_against(facts.answer_gap))
        return
    yield finding(
        "finished answers do not begin as the generation prompt ends",
        (facts.generation_prompt or "")[-_SHOWN:],
        loaded.place_of("add_generation_prompt"),
        do=_against(facts.generation_prompt or ""),
    )


def _against(text: str) -> str:
    if "think" in text.casefold():
        return "turn it off with a template argument, such as enable_thinking: false"
    return "use the model's own template, or put few-shot examples into one turn (fewshot_as_turns: false)"


@rule("PF405", "history-rewritten", severity=Severity.INFO, family=Family.CHAT, scope="template")
def history_rewritten(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that changes earlier turns when the conversation continues.

    Why: a longer conversation should begin with the text of the shorter one. Otherwise an engine cannot
    reuse its cache, and the last turn has a different layout than the turns before it.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}{{ '!' if loop.last else ':' }} {{ m.content }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: remove from the template what it does only to the last turn (`loop.last`).

    Real: verifiers PR #476, ART #726.
    """
    facts = loaded.facts
    if facts is not None and not facts.keeps_prefix:
        yield finding(
            "the chat template changes earlier turns when the conversation continues", at=loaded.place_of("loop.last")
        )


@rule("PF406", "html-escaped", severity=Severity.ERROR, family=Family.CHAT, scope="template")
def html_escaped(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes `<`, `&` and quotes as HTML entities.

    Why: the model reads `&lt;` where the task has `<`, and `&#34;` around each key of a call. In Jinja, one `|safe`
    escapes all text that is joined to it. Tools and calls count for templates under test, and if the profile has tools.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.content | e }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: remove `|safe` and `|e` from the template; its environment escapes nothing by itself.

    Real: mistral-common #311 (`[{&#34;name&#34;: …`), functionary v3.1, llama.cpp PR #19553, sglang PR #12123.
    """
    trial = loaded.trial
    if trial is None or loaded.facts is None:
        return
    for name, (base, what) in _ESCAPED.items():
        text, usual = trial.text(name), trial.text(base)
        if text is not None and (what == "content" or loaded.tested is not None or _has_tools(loaded)):
            conversation = trial.conversations[name]
            given = f"{conversation.messages} {conversation.tools} {trial.source}"
            entities = [each for each in _ENTITY.findall(text) if each not in given]
            if len(entities) > sum(each not in given for each in _ENTITY.findall(usual or "")):
                yield finding(
                    f"the chat template escapes {what} as HTML",
                    excerpt(text, text.rfind(entities[-1])),
                    loaded.place_of("|safe", "| safe", "|e", "| e", "escape"),
                )


_ENTITY: Final = re.compile(r"&(?:#34|#39|quot|lt|gt|amp);")
_ESCAPED: Final = {
    "markup": ("second-question", "content"),
    "tools": ("second-question", "tools"),
    "call-finished": ("tools", "tool calls"),
}
"""Conversations that show where a template escapes text, each with a simpler one and what it shows."""


def _has_tools(loaded: LoadedProfile) -> bool:
    return bool(loaded.profile.template_args.get("tools"))


@rule("PF407", "undefined-in-template", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def undefined_in_template(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report an undefined name that a chat template prints or iterates over.

    Why: undefined names render as nothing, so a misspelled name leaves no trace. Names that are only tested
    (`is defined`, `if tools`) are fine. Special tokens that the tokenizer lacks are reported as info.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.contents }}{{ m.content }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: correct the name, or define it in the profile's `template_args`.

    Real: pallets/jinja #1849, mini-swe-agent #497, chat_templates #25.
    """
    facts = loaded.facts
    if facts is None:
        return
    for undefined in facts.undefined:
        is_token = undefined.name.endswith("_token")
        message = f"the chat template prints the undefined name {undefined.name!r}"
        saw = loaded.line(undefined.line)
        do = "set the model's tokenizer in the profile" if is_token else ""
        yield finding(message, saw, loaded.place(undefined.line), severity=Severity.INFO if is_token else None, do=do)


@rule("PF408", "indented-markers", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def indented_markers(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes the indentation of its own file into the prompt.

    Why: a template that was indented by hand prints the spaces before its markers. The model gets tokens between
    the turns that it never saw in training.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}
            {{ '<|' + m.role + '|>' }}{{ m.content }}
        {% endfor %}

    Silent with:
        # file: mine.jinja
        {% for m in messages %}
            {{- '<|' + m.role + '|>' }}{{ m.content }}
        {% endfor %}

    Fix: write `{{-` and `{%-`, or join the lines of the file, as its authors may have intended.

    Real: the files of chat_templates (chujiezheng), whose README joins their lines before use.
    """
    facts = loaded.facts
    if facts is not None and facts.indentation:
        yield finding(
            "the chat template prints the indentation of its own file",
            facts.indentation,
            loaded.place_of("\n    {{ ", "\n    <"),
        )


@rule("PF409", "carriage-return-in-template", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def carriage_return_in_template(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template with Windows line endings.

    Why: Jinja turns `\r\n` in a template into `\n`. Other engines that render the same file do not, so they send
    different tokens between the turns.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.content }}␍
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: save the file with Unix line endings (LF).

    Real: two of 204 public templates; betalgo/openai #145 counts the tokens it costs.
    """
    facts = loaded.facts
    if facts is not None and facts.has_carriage_return:
        yield finding("the chat template has Windows line endings", at=loaded.place(1))


@rule("PF410", "answer-not-closed", severity=Severity.INFO, family=Family.CHAT, scope="template")
def answer_not_closed(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes no end token after a finished answer.

    Why: a model trained on such text does not learn to stop. In few-shot examples, only the marker of the next turn
    ends an answer. In an evaluation this matters if stop sequences rely on an end token.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: end answers with the end token in the template.

    Real: axolotl PR #2710, #1608; TRL PR #6044.
    """
    facts = loaded.facts
    if facts is not None and facts.answer != "refused" and not facts.closes_answer:
        yield finding("no end token after a finished answer", facts.answer_end, loaded.place())


@rule("PF411", "tools-not-shown", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def tools_not_shown(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a profile that gives tools to a chat template that does not show them, or shows calls incorrectly.

    Why: the model cannot call tools that are not in its prompt. Many templates encode the arguments of a call a
    second time if they are already JSON text (`"{\"city\"…`); this is info, because tasks have no calls.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml, template_args: {tools: [{type: function, function: {name: look_up}}]}}}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: use a template with tool support (`chat_template: tool_use`), or remove the tools.

    Real: llama.cpp PR #19553, oumi PR #2599, flama #258.
    """
    facts = loaded.facts
    if facts is None or not _has_tools(loaded):
        return
    if facts.tools in ("missing", "refused"):
        yield finding(
            "the chat template does not show the profile's tools", facts.errors.get("tools", ""), loaded.place()
        )
    elif facts.tool_arguments == "encoded twice" or facts.tool_arguments_text == "encoded twice":
        yield finding(
            "the chat template encodes tool arguments twice if they are JSON text",
            at=loaded.place(),
            severity=Severity.INFO,
            do="pass the arguments of tool calls as a mapping",
        )


@rule("PF412", "none-and-parts", severity=Severity.INFO, family=Family.CHAT, scope="template")
def none_and_parts(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that prints contents that are not text as Python values.

    Why: some APIs send `content: null` or a list of parts. transformers drops null before rendering, other
    engines print the word None. A list of parts may be printed as `[{'type': …`.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}

    Silent with:
        # file: mine.jinja
        {% for m in messages %}<|{{ m.role }}|>{{ '' + m.content }}<|end|>{% endfor %}

    Fix: send contents as text, or use a template that handles other types.

    Real: transformers PR #45422, vllm PR #54368, minijinja #911.
    """
    facts = loaded.facts
    if facts is None:
        return
    for what, shown in (("a list of parts", facts.parts), ("null content", facts.none)):
        if shown == "as Python":
            yield finding(f"the chat template prints {what} as a Python value", at=loaded.place())
