"""What a notebook shows of prompts and findings: HTML in which nothing of a prompt is markup."""

from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given, strategies as st

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.finding import Finding, Reported, Severity
from pytest_promptfmt.core.prompt import Origin, Prompt, Span
from pytest_promptfmt.core.text import unshow


class Reader(HTMLParser):
    """Reads HTML as a browser does: the tags there are, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.lists(st.text(st.characters(exclude_characters="·↵"), max_size=12), max_size=4))
def test_a_prompt_reads_back_as_it_is_whatever_it_holds(texts: list[str]) -> None:
    prompt = Prompt(tuple(Span(text, Origin("question", "doc_to_text")) for text in texts))
    shown = Reader(prompt._repr_html_())
    assert shown.tags <= {"pre", "span"}
    lines = shown.text.removesuffix("⟨end⟩").replace("·", " ").split("↵\n")
    assert "\n".join(map(unshow, lines)) == prompt.text


def test_findings_say_what_where_and_what_now() -> None:
    finding = Finding(message="<b>glued</b>", do="end it", saw="a \t", keys=("description",), doc=0)
    reported = Reported(
        code="PF203",
        name="x",
        severity=Severity.ERROR,
        task="t",
        file="f",
        position=Position(Path("f"), 1),
        message="m",
        do="d",
        stable_keys=("k",),
    )
    shown = Reader(finding._repr_html_())
    assert shown.text == "<b>glued</b>description, doc 1saw: a ⟨TAB⟩do: end it"
    assert Reader(reported._repr_html_()).text == "PF203 mf:1do: d"
    assert shown.tags <= {"div", "strong", "small", "br", "code"}
