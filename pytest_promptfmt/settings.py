"""One `Settings` object from the command line and the ini file; everything else asks it and never the options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pytest_promptfmt.errors import SettingsError

DEFAULT_TIME_LIMIT = 10.0
DEFAULT_IMPORT_LIMIT = 60.0
"""More than for rendering: modules import large libraries, once."""


class Options(Protocol):
    """What `Settings` needs of a pytest config."""

    @property
    def rootpath(self) -> Path:
        """Return the rootdir."""

    def getoption(self, name: str, default: Any = ...) -> Any:
        """Return a command-line option by its dest."""

    def getini(self, name: str) -> Any:
        """Return an ini value."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What this run is to do.

    `docs` is how many docs a snapshot shows (None: 2 synthetic, 3 otherwise), `num_fewshot` overrides the shots of
    every task that does not fix them to 0, `time_limit` is in seconds for rendering one task with one profile,
    `import_limit` for importing one module of functions.
    `is_narrowed` says that the command line asked for a number of docs: stored docs beyond it are kept.
    `has_chosen_profiles` says that the command line named the profiles: those that tasks add are then left out.
    `tries_scoring` asks for the phrasing battery and the scorer checks of every task.
    `repeat` are the command-line options that another run needs to render the same.
    `lint` says whether the checks run, `select` and `ignore` are codes and prefixes of rules, `per_file_ignores` lines
    `glob: codes`, `checks` Python files that define rules.
    """

    rootdir: Path
    profiles: tuple[str, ...]
    task_globs: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    docs: int | None = None
    num_fewshot: int | None = None
    allow_code: tuple[Path, ...] = ()
    no_code: bool = False
    time_limit: float = DEFAULT_TIME_LIMIT
    import_limit: float = DEFAULT_IMPORT_LIMIT
    is_narrowed: bool = False
    has_chosen_profiles: bool = False
    tries_scoring: bool = False
    repeat: tuple[str, ...] = ()
    lint: bool = True
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[str, ...] = ()
    checks: tuple[Path, ...] = ()

    def trusts(self, file: Path) -> bool:
        """Return whether Python code in `file` may run: below the rootdir or an allowed path, unless switched off."""
        if self.no_code:
            return False
        resolved = file.resolve()
        return any(resolved.is_relative_to(root.resolve()) for root in (self.rootdir, *self.allow_code))


def read_settings(config: Options, default_profiles: Sequence[str]) -> Settings:
    """Return the settings of this run, the command line winning over the ini file.

    Raises SettingsError for numbers that are none or out of range.
    """
    return Settings(
        rootdir=config.rootpath,
        profiles=tuple(
            config.getoption("promptfmt_profile") or config.getini("promptfmt_profiles") or default_profiles
        ),
        task_globs=tuple(config.getoption("promptfmt_task")),
        formats=tuple(config.getoption("promptfmt_format")),
        variants=tuple(config.getoption("promptfmt_variants")),
        docs=_count(config, "promptfmt_docs", least=1),
        num_fewshot=_count(config, "promptfmt_num_fewshot", least=0),
        allow_code=(
            *(Path(path) for path in config.getini("promptfmt_allow_code")),
            *(Path(path).absolute() for path in config.getoption("promptfmt_allow_code_path")),
        ),
        no_code=config.getoption("promptfmt_no_code"),
        time_limit=_seconds(config.getini("promptfmt_time_limit"), DEFAULT_TIME_LIMIT),
        import_limit=_seconds(config.getini("promptfmt_time_limit"), DEFAULT_IMPORT_LIMIT),
        has_chosen_profiles=bool(config.getoption("promptfmt_profile")),
        is_narrowed=config.getoption("promptfmt_docs") is not None,
        tries_scoring=bool(config.getoption("promptfmt_scoring") or config.getini("promptfmt_scoring")),
        repeat=tuple(_given(config)),
        lint=bool(config.getini("promptfmt_lint")),
        select=_codes(config, "promptfmt_select"),
        ignore=_codes(config, "promptfmt_ignore"),
        per_file_ignores=tuple(config.getini("promptfmt_per_file_ignores")),
        checks=tuple(Path(path) for path in config.getini("promptfmt_checks")),
    )


def _given(config: Options) -> Iterator[str]:
    """Yield the command-line options that change what is rendered, as they were given."""
    for name in ("profile", "format", "variants", "docs", "num_fewshot", "allow_code_path"):
        given = config.getoption(f"promptfmt_{name}")
        for value in given if isinstance(given, list) else [given]:
            if value is not None:
                yield from (f"--promptfmt-{name.removesuffix('_path').replace('_', '-')}", str(value))
    if config.getoption("promptfmt_scoring"):
        yield "--promptfmt-scoring"


def _codes(config: Options, name: str) -> tuple[str, ...]:
    """Return the codes of an option, else of the ini value of the same name; commas and blanks separate them."""
    written = config.getoption(name) or config.getini(name)
    return tuple(code for text in written for code in text.replace(",", " ").split())


def _count(config: Options, name: str, *, least: int) -> int | None:
    """Return a whole number from the option, else from the ini value of the same name, else None."""
    given = config.getoption(name)
    where = f"--{name.replace('_', '-')}"
    if given is None:
        given = config.getini(name) or None
        where = f"the ini value {name}"
    if given is None:
        return None
    try:
        number = int(given)
    except ValueError:
        number = least - 1
    if number < least:
        raise SettingsError(f"{where} is {str(given)!r}", hint=f"give a whole number from {least}")
    return number


def _seconds(written: str, default: float) -> float:
    try:
        seconds = float(written or default)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise SettingsError(f"the ini value promptfmt_time_limit is {written!r}", hint="give seconds, such as 10")
    return seconds
