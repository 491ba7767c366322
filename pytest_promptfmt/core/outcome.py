"""The outcome of one test: a typed value, which becomes a mapping only where it leaves the process or enters a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

from pytest_promptfmt.core.errors import PromptfmtError, TokenizerError, UnavailableError, without_task
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.json_values import data_of, value_of

Category = Literal["error", "damaged", "misread", "changed", "new", "renamed", "obsolete", "header-only"]
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
"""Problems with a snapshot or with the way to it, the most urgent first."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class BaselineEntry:
    """One accepted finding, or error; `file` is below the rootdir, with slashes.

    `key` is the same in another run. `profile` is that of a rule about profiles, empty for the others.
    """

    file: str
    task: str
    code: str
    message: str
    key: str
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A finding or error that the baseline accepts, as a new baseline would list it.

    `met` is the key of the entry that accepts it, "" while a baseline is written that has none yet.
    """

    entry: BaselineEntry
    met: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class UsedTokenizer:
    """The tokenizer that an item used: how it was loaded, with versions, and a digest of its files.

    `origin` is the repository on the hub that it was fetched from, with the commit: `owner/name@0123…`; else empty.
    """

    name: str
    loader: str
    content: str
    origin: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One item's result. `key` is equal for results to be shown once; `title` is the line that shows them.

    `findings` are those to be reported; `globs` the per-file ignores for the item's file, `used_globs` those that took
    a finding away. `detail` shows the first of a cluster in full, or what makes a skipped item run. `snapshot` is the
    snapshot file, and `new_text` what --snapshot-update would write to it, where that is needed. `sections` are the
    titles of the sections of a snapshot that changed. `figures` are a row of the table about a model, by column.
    `tokens` is the line about the tokens that followed the text.
    `view` is what the HTML report shows of the item, where one is wanted: JSON, compressed, as text. `accepted` is what
    the baseline accepts; it may call an entry fixed where the item was `rendered`, where the task was linted
    (`linted` has "") or its prompts for a profile (its name), where those about scoring did (`scored`), and in the
    profiles in which a model was `asked`. `is_synthetic`: its docs were made from the templates,
    `unseen` names the keys that give pictures or sound, which are not rendered. `remedy` makes a skipped item run.
    `is_unloaded`: its tokenizer could not be loaded.
    """

    task: str
    file: str
    profile: str = ""
    category: Category | Literal["passed", "skipped", "finding", "accepted"] = "passed"
    key: str = ""
    title: str = ""
    docs: int = 0
    findings: tuple[Reported, ...] = ()
    globs: tuple[str, ...] = ()
    used_globs: tuple[str, ...] = ()
    detail: str = ""
    tokens: str = ""
    snapshot: str = ""
    new_text: str | None = None
    sections: tuple[str, ...] = ()
    view: str = ""
    accepted: tuple[Accepted, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    rendered: bool = False
    linted: tuple[str, ...] = ()
    scored: bool = False
    asked: tuple[str, ...] = ()
    tokenizer: UsedTokenizer | None = None
    is_synthetic: bool = False
    unseen: str = ""
    remedy: str = ""
    is_unloaded: bool = False

    @property
    def errors(self) -> tuple[Reported, ...]:
        """Return the findings that fail."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def is_remarkable(self) -> bool:
        """Return whether there is more to report than that a test passed."""
        said = self.findings or self.globs or self.figures or self.view or self.unseen or self.new_text is not None
        return self.category != "passed" or bool(said)

    def failed(self, error: PromptfmtError) -> Outcome:
        """Return the outcome of the same item when it could not be read or rendered; equal causes are shown once."""
        where = f"{error.position}: " if error.position else ""
        title = f"{where}{error.message}"
        key = without_task(error.cause, self.task)
        is_unloaded = isinstance(error, TokenizerError)
        return replace(self, category="error", key=key, title=title, detail=str(error), is_unloaded=is_unloaded)

    def skipped(self, reason: str) -> Outcome:
        """Return the outcome of the same item when it was skipped."""
        return replace(self, category="skipped", title=reason)

    def unavailable(self, error: UnavailableError) -> Outcome:
        """Return the outcome of the same item when it was skipped for want of something, which `detail` names."""
        message, key = without_task(error.message, self.task), without_task(error.cause, self.task)
        cause = f"{error.position}: {message}" if error.position else message
        return replace(self.skipped(error.reason), key=key, detail=cause, remedy=error.remedy)

    def misread(self, key: str, title: str) -> Outcome:
        """Return the outcome of the same item when answers are not read or scored as they should be."""
        return replace(self, category="misread", key=key, title=title)

    def to_json(self) -> dict[str, Any]:
        """Return a mapping that JSON knows, without what is as usual: it travels with every report."""
        return {name: data_of(value) for name in _USUAL if (value := getattr(self, name)) != _USUAL[name]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Return the outcome that `to_json` wrote; raises KeyError, TypeError or ValueError for other data."""
        return value_of(cls, data)


_USUAL: Final = {each.name: each.default for each in fields(Outcome)}
