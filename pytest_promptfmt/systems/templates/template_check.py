"""A chat template checked without pytest: for notebooks, and for the test suites of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.profiles.profile_loading import LoadedProfile
from pytest_promptfmt.rules.linter import check_subjects
from pytest_promptfmt.rules.rule_registry import Scope, known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.systems.templates import SYSTEM
from pytest_promptfmt.systems.templates.conversations import Conversation, conversations_beside
from pytest_promptfmt.systems.templates.engines import compiled_by
from pytest_promptfmt.systems.templates.template_files import WrittenChatTemplate, templates_of
from pytest_promptfmt.systems.templates.trial import PLACEHOLDERS, TemplateTrial


def checked_template(
    template: str | Path,
    tokenizer: str | Path | None = None,
    conversations: Mapping[str, Conversation] | None = None,
    engines: Sequence[str] = (),
) -> list[Reported]:
    """Return what the rules find in a template, as `check_template` says; raises as it does."""
    written = written_template(template)
    special_tokens = written.special_tokens
    loaded = None
    if tokenizer is not None:
        from pytest_promptfmt.profiles import load_tokenizer

        loaded = load_tokenizer(str(tokenizer))
        special_tokens = loaded.special_tokens
    for engine in engines:
        with suppress(RuntimeError):
            compiled_by(engine, "{{ messages }}")  # a mistake of the caller, not a finding
    is_file = written.path.name != ""
    profile = Profile(
        name=written.name,
        chat_template=written.source,
        template_file=written.path if is_file else None,
        special_tokens=special_tokens,
    )
    if conversations is None and is_file:
        conversations = conversations_beside(written.path.parent)
    trial = TemplateTrial(profile, conversations, tokenizer=loaded, engines=engines)
    return sorted(
        findings_of(trial, written.name), key=lambda finding: (list(Severity).index(finding.severity), finding.code)
    )


def findings_of(trial: TemplateTrial, name: str) -> Iterable[Reported]:
    """Return what the rules of this system find in a trial, and the general ones where it compiles.

    Each message of a rule is returned once, with the first conversation that shows it.
    """
    subjects: dict[Scope, object] = {"task": trial}
    if trial.syntax_error is None:
        subjects["template"] = LoadedProfile(profile=trial.profile, tokenizer=trial.tokenizer)
    selection = Selection(rules=known_rules())
    path = trial.profile.template_file or Path()
    checked = check_subjects(subjects, selection, name=name, path=path, system=SYSTEM.name)
    first: dict[tuple[str, str], Reported] = {}
    for finding in checked.findings:
        first.setdefault((finding.code, finding.message), finding)
    return first.values()


def written_template(template: str | Path) -> WrittenChatTemplate:
    """Return the first template of Jinja source, a file or a folder; raises SourceError where there is none."""
    if isinstance(template, str) and ("{" in template or "\n" in template):
        tokens = PLACEHOLDERS
        return WrittenChatTemplate(name="template", source=template, path=Path(), tokenizer=None, special_tokens=tokens)
    path = Path(template)
    files = list(SYSTEM.files(path)) if path.is_dir() else [path]
    found = [each for file in files for each in templates_of(file)]
    if not found:
        raise SourceError(f"there is no chat template in {path}")
    return found[0]
