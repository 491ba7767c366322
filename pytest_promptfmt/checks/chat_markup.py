"""Rules about how a chat template is written: what it prints that is no text of anybody. Said once per profile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.chat.profile_loading import LoadedProfile
from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.core.finding import Family, Finding, Severity

_SAID: Final = 80


@check("PF406", "html-escaped", severity=Severity.ERROR, family=Family.CHAT, scope="template")
def html_escaped(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes `<`, `&` and quotes as HTML entities.

    Why: the model reads `&lt;` where the task says `<`. In Jinja one `|safe` makes all text that is joined to it
    escaped. Tools and their arguments count only where the profile gives tools.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.content | e }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: take `|safe` and `|e` out of the template; its environment escapes nothing by itself.

    Real: mistral-common #311, llama.cpp PR #19553, sglang PR #12123.
    """
    facts = loaded.facts
    if facts is None:
        return
    for where in facts.escapes_html:
        if where == "content" or _has_tools(loaded):
            yield Finding(
                message=f"the chat template writes HTML entities into {where}",
                position=loaded.place_of("|safe", "| safe", "|e", "| e", "escape"),
            )


@check("PF407", "undefined-in-template", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def undefined_in_template(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a name that a chat template prints or walks and that has no value: it is printed as nothing.

    Why: chat templates are rendered leniently, so a mistyped name leaves no trace. Names that are only asked for
    (`is defined`, `if tools`) are fine; special tokens that a tokenizer lacks are told apart.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.contents }}{{ m.content }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: mend the name, or give it in the profile's `template_args`.

    Real: pallets/jinja #1849, mini-swe-agent #497, chat_templates #25.
    """
    facts = loaded.facts
    if facts is None:
        return
    for undefined in facts.undefined:
        is_token = undefined.name.endswith("_token")
        yield Finding(
            message=f"the chat template prints {undefined.name!r}, which has no value",
            saw=loaded.line(undefined.line),
            do="give the profile the tokenizer of the model"
            if is_token
            else "mend the name, or give it in template_args",
            position=loaded.place(undefined.line),
            severity=Severity.INFO if is_token else None,
        )


@check("PF408", "indented-markers", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def indented_markers(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes the indentation of its own file into the prompt.

    Why: a template that was made readable by hand prints the blanks before its markers. The model sees tokens between
    the turns that it never saw in training.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}
            {{ '<|' + m.role + '|>' }}{{ m.content }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}
            {{- '<|' + m.role + '|>' }}{{ m.content }}
        {% endfor %}

    Fix: write `{{-` and `{%-`, or join the lines of the file, as its authors may have meant it.

    Real: the files of chat_templates (chujiezheng), whose README joins their lines before use.
    """
    facts = loaded.facts
    if facts is not None and facts.indentation:
        yield Finding(
            message="the chat template prints the indentation of its own file",
            saw=facts.indentation,
            position=loaded.place_of("\n    {{ ", "\n    <"),
        )


@check("PF409", "carriage-return-in-template", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def carriage_return_in_template(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template with the line ends of Windows.

    Why: Jinja turns `\r\n` in a template into `\n`, other engines that render the same file do not: they send other
    tokens between the turns.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.content }}␍
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: save the file with line feeds only.

    Real: two of 204 public templates; betalgo/openai #145 counts the tokens it costs.
    """
    facts = loaded.facts
    if facts is not None and facts.has_carriage_return:
        yield Finding(
            message="the chat template has the line ends of Windows, which not every engine reads alike",
            position=loaded.place(1),
        )


@check("PF411", "tools-not-shown", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def tools_not_shown(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a profile that gives tools to a chat template that does not show them, or shows calls wrongly.

    Why: the model is to call tools that it was never told of. Arguments of a call that are a JSON text are encoded a
    second time by many templates (`"{\"city\"…`); as info, for tasks have no calls of their own.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml, template_args: {tools: [{type: function, function: {name: look_up}}]}}}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: choose the template that is made for tools (`chat_template: tool_use`), or leave the tools out.

    Real: llama.cpp PR #19553, oumi PR #2599, flama #258.
    """
    facts = loaded.facts
    if facts is None or not _has_tools(loaded):
        return
    if facts.tools in ("missing", "refused"):
        yield Finding(
            message="the chat template does not show the tools that the profile gives",
            saw=facts.errors.get("tools", ""),
            do="choose the template that is made for tools, or leave the tools out",
            position=loaded.place(),
        )
    elif facts.tool_arguments == "encoded twice" or facts.tool_arguments_text == "encoded twice":
        yield Finding(
            message="the chat template encodes tool arguments twice when they are a JSON text already",
            do="give the arguments of tool calls as a mapping",
            position=loaded.place(),
            severity=Severity.INFO,
        )


@check("PF412", "none-and-parts", severity=Severity.INFO, family=Family.CHAT, scope="template")
def none_and_parts(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that prints Python's own notation for contents that are no text.

    Why: some interfaces send `content: null` or a list of parts. transformers drops null before it renders, other
    engines print the word None; a list of parts may come out as `[{'type': …`.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}<|{{ m.role }}|>{{ '' + m.content }}<|end|>{% endfor %}

    Fix: send contents as text, or use a template that checks what it is given.

    Real: transformers PR #45422, vllm PR #54368, minijinja #911.
    """
    facts = loaded.facts
    if facts is None:
        return
    for what, shown in (("a list of parts", facts.parts), ("content without value", facts.none)):
        if shown == "as Python":
            yield Finding(
                message=f"the chat template prints {what} in Python's notation",
                position=loaded.place(),
            )


def _has_tools(loaded: LoadedProfile) -> bool:
    return bool(loaded.profile.template_args.get("tools"))
