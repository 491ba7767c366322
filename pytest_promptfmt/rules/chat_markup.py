"""Rules about unintended output of a chat template: escapes, indentation, undefined names. Run once per profile."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.profiles.profile_loading import LoadedProfile
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding


@rule("PF406", "html-escaped", severity=Severity.ERROR, family=Family.CHAT, scope="template")
def html_escaped(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes `<`, `&` and quotes as HTML entities.

    Why: the model reads `&lt;` where the task says `<`. In Jinja, one `|safe` escapes all text that is joined to
    it. Tools and their arguments count only if the profile has tools.

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

    Real: mistral-common #311, llama.cpp PR #19553, sglang PR #12123.
    """
    facts = loaded.facts
    if facts is None:
        return
    for where in facts.escapes_html:
        if where == "content" or _has_tools(loaded):
            yield finding(
                f"the chat template escapes {where} as HTML",
                at=loaded.place_of("|safe", "| safe", "|e", "| e", "escape"),
            )


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
        yield finding(
            f"the chat template prints the undefined name {undefined.name!r}",
            loaded.line(undefined.line),
            loaded.place(undefined.line),
            severity=Severity.INFO if is_token else None,
            do="set the model's tokenizer in the profile" if is_token else "",
        )


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


def _has_tools(loaded: LoadedProfile) -> bool:
    return bool(loaded.profile.template_args.get("tools"))
