"""The text format of snapshots: one `Document` to one text, for a reviewer's eyes, and back without loss.

    pytest-promptfmt snapshot 1
    task: arc_easy@mcqa
    profile: plain

    task
      scoring
        filter none: take_first()

    doc 1
      prompt
      | Question: «question»
      | Answer:⟨end⟩
      continuations
        " A"
      * " B"

    end: 1 doc, digest 0123456789abcdef

Every line of a text is behind a bar, `⟨end⟩` shows where it ends, and invisible characters have names (core/text.py).
Facts about the whole task are shown once, before the docs, in the snapshot of one profile. No line ends
with a space and there are no tabs, so tools that tidy files have nothing to change. How prompts become a
document is in content.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from pytest_promptfmt.core.errors import Position, SnapshotError, UnavailableError
from pytest_promptfmt.core.text import END, BadEscapeError, needs_no_names, show, show_inner, unshow

MAGIC = "pytest-promptfmt snapshot "
VERSION = "1"
_FIRST_LINE = MAGIC + VERSION
_KEY = re.compile(r"[a-z][a-z ]*")
_TITLE = re.compile(r"[a-z0-9](?:[ -~]*[!-~])?")
_DOC = re.compile(r"doc ([1-9][0-9]{0,17})")
_TASK = "task"
_END = re.compile(r"end: (\d{1,18}) docs?, digest ([0-9a-f]{16})")
_CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7}|\|{7})(?: .*)?$", re.MULTILINE)
_REWRITE = "find the cause with `git log` and `git diff`, then rewrite the file with --snapshot-update"


class UnknownVersionError(SnapshotError):
    """A snapshot of another version of the format: not damaged, but not to be rewritten by this version."""


@dataclass(frozen=True, slots=True)
class SectionEntry:
    """One short line of a section; `marked` puts a star before it (the gold continuation)."""

    text: str
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of a doc: a text, or short entries, or both. The title is printable ASCII."""

    title: str
    text: str | None = None
    entries: tuple[SectionEntry, ...] = ()

    def __post_init__(self) -> None:
        if not _TITLE.fullmatch(self.title):
            raise ValueError(f"{self.title!r} cannot be the title of a section")


@dataclass(frozen=True, slots=True)
class DocRecord:
    """One doc in a snapshot; `number` counts from 1."""

    number: int
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Document:
    """A whole snapshot: stable facts, then the docs in ascending order of their numbers.

    `task` are the sections about the task itself, shown once; empty without any. `unknown` is why its scores are not
    among them, None if they are known.
    """

    header: Mapping[str, str]
    docs: tuple[DocRecord, ...]
    task: tuple[Section, ...] = ()
    unknown: UnavailableError | None = field(default=None, compare=False)

    @property
    def records(self) -> tuple[DocRecord, ...]:
        """Return the docs, after what is about the task, which has the number 0."""
        return (DocRecord(0, self.task), *self.docs) if self.task else self.docs


def write_document(document: Document) -> str:
    """Return the text of the snapshot: LF line ends, one at the end, no trailing spaces, encodable as UTF-8."""
    head = [_FIRST_LINE, *(_header_line(key, value) for key, value in document.header.items())]
    body = body_lines(document.records)
    end = _end_line(len(document.docs), _digest(body))
    return "\n".join([*head, *body, "", end, ""])


def body_lines(docs: Iterable[DocRecord]) -> list[str]:
    """Return the lines of docs as in the file, each doc after an empty line."""
    lines: list[str] = []
    for doc in docs:
        lines += ("", record_name(doc.number))
        for section in doc.sections:
            lines.append(f"  {section.title}")
            lines += section_lines(section)
    return lines


def record_name(number: int) -> str:
    """Return how a doc is called by its number; 0 is the task itself."""
    return f"doc {number}" if number else _TASK


def section_lines(section: Section) -> list[str]:
    """Return the lines below the title of a section."""
    lines: list[str] = []
    if section.text is not None:
        lines += _text_lines(section.text)
    lines += [f"  {'* ' if entry.marked else '  '}{show(entry.text) or '⟨empty⟩'}" for entry in section.entries]
    return lines


def _text_lines(text: str) -> list[str]:
    if needs_no_names(text):
        # The only space before a line end is that of the bar before an empty line.
        shown = ("  | " + text.replace("\n", "\n  | ")).replace(" \n", "\n") + END
        return shown.split("\n")
    *inner, last = text.split("\n")
    return [*(f"  | {show(line)}" if line else "  |" for line in inner), f"  | {show_inner(last)}{END}"]


def body_of(text: str) -> str | None:
    """Return the part of a written snapshot that its digest covers, digest included; None without one."""
    start = text.find("\n\n")
    return None if start < 0 else text[start:]


def read_document(text: str, path: Path) -> Document:
    """Return the document that was written as `text`.

    Raises SnapshotError, naming the line, for merge conflicts, converted line ends, a byte order mark, lines that no
    snapshot has, a cut-off file and a digest that does not fit; UnknownVersionError for another format version.
    """
    return _Reader(text, path).document()


def _end_line(count: int, digest: str) -> str:
    return f"end: {count} {'doc' if count == 1 else 'docs'}, digest {digest}"


def _header_line(key: str, value: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} cannot be the key of a header line")
    return f"{key}: {show(value)}" if value else f"{key}:"


def _digest(body: Sequence[str]) -> str:
    return sha256("\n".join(body).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class _Reader:
    def __init__(self, text: str, path: Path) -> None:
        self.text = text
        self.path = path
        self.lines = text.split("\n")
        self.number = 1

    def document(self) -> Document:
        self._check_integrity()
        header = self._header()
        body_start = self.number - 1
        docs: list[DocRecord] = []
        task: tuple[Section, ...] = ()
        while self._line() == "":
            self.number += 1
            line = self._line()
            if line == _TASK and not docs and not task:
                task = self._sections()
                continue
            if line.startswith("end:"):
                self._check_end(line, self.lines[body_start : self.number - 2], len(docs))
                return Document(header, tuple(docs), task)
            docs.append(self._doc(docs[-1].number if docs else 0))
        raise self._error("expected an empty line")

    def _check_integrity(self) -> None:
        if self.text.startswith("\ufeff"):
            raise self._error("the file begins with a byte order mark")
        if "\r" in self.text:
            self.number = self.text.count("\n", 0, self.text.index("\r")) + 1
            raise self._error(
                "the line endings were converted (there is a carriage return)",
                hint="add the line '**/__prompts__/** text eol=lf' to .gitattributes, then check out the file again",
            )
        conflict = _CONFLICT.search(self.text)
        if conflict is not None:
            self.number = self.text.count("\n", 0, conflict.start()) + 1
            raise self._error(
                f"a merge conflict is not resolved ({conflict[0][:7]})",
                hint="resolve the conflict in the task's files, then rewrite the snapshot with --snapshot-update",
            )
        if self.lines[0] != _FIRST_LINE:
            if re.fullmatch(re.escape(MAGIC) + r"\d+", self.lines[0]):
                raise UnknownVersionError(
                    f"the snapshot has version {self.lines[0].removeprefix(MAGIC)}, but this plugin reads {VERSION}",
                    position=Position(self.path, 1),
                    hint="install the version of pytest-promptfmt that wrote the snapshot",
                )
            raise self._error(f"not a snapshot: expected the first line {_FIRST_LINE!r}")

    def _header(self) -> dict[str, str]:
        header: dict[str, str] = {}
        self.number = 2
        while line := self._line():
            key, colon, value = line.partition(":")
            if not colon or not _KEY.fullmatch(key) or key in header or (value and not value.startswith(" ")):
                raise self._error("not a header line: expected 'key: value', each key once")
            header[key] = self._unshow(value[1:])
            self.number += 1
        return header

    def _doc(self, previous: int) -> DocRecord:
        match = _DOC.fullmatch(self._line())
        if match is None:
            raise self._error("expected 'doc' and its number, or the 'end:' line")
        doc_number = int(match[1])
        if doc_number <= previous:
            raise self._error(f"numbers of docs must increase: doc {doc_number} is after doc {previous}")
        return DocRecord(doc_number, self._sections())

    def _sections(self) -> tuple[Section, ...]:
        self.number += 1
        sections: list[Section] = []
        while self._line():
            sections.append(self._section())
        return tuple(sections)

    def _section(self) -> Section:
        line = self._line()
        if not line.startswith("  ") or not _TITLE.fullmatch(line[2:]):
            raise self._error("expected the title of a section")
        self.number += 1
        text = self._text() if self._line().startswith("  |") else None
        entries: list[SectionEntry] = []
        while (entry := self._line()).startswith(("    ", "  * ")):
            entries.append(SectionEntry(self._unshow(entry[4:]), entry[2] == "*"))
            self.number += 1
        return Section(line[2:], text, tuple(entries))

    def _text(self) -> str:
        parts: list[str] = []
        while (line := self._line()).startswith("  | ") or line == "  |":
            self.number += 1
            if line.endswith(END):
                parts.append(self._unshow(line[4:].removesuffix(END), self.number - 1))
                return "\n".join(parts)
            parts.append(self._unshow(line[4:], self.number - 1))
        raise self._error(f"the text above does not end with {END}")

    def _check_end(self, line: str, body: Sequence[str], count: int) -> None:
        match = _END.fullmatch(line)
        if match is None:
            raise self._error("the end line is incomplete")
        if self.lines[self.number :] != [""]:
            raise self._error("expected only a line break after the last line, `end`")
        if line != _end_line(count, match[2]):
            raise self._error(f"the end line counts {match[1]} docs, but the file has {count}")
        if match[2] != _digest(body):
            raise self._error("the digest does not match: the file was edited by hand, merged or damaged")

    def _line(self) -> str:
        if self.number > len(self.lines) or (self.number == len(self.lines) and not self.lines[-1]):
            self.number = max(1, len(self.lines) - 1)
            raise self._error("the file is truncated: its 'end:' line is missing")
        return self.lines[self.number - 1]

    def _unshow(self, shown: str, number: int | None = None) -> str:
        try:
            return unshow(shown)
        except BadEscapeError as error:
            self.number = number or self.number
            raise self._error(error.message, hint=error.hint) from None

    def _error(self, message: str, *, hint: str | None = None) -> SnapshotError:
        return SnapshotError(message, position=Position(self.path, self.number), hint=hint or _REWRITE)
