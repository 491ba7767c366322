"""A chat template checked without pytest: for notebooks, and for the test suites of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.finding import Finding, Reported, Severity, identity, shown, stable_key
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.profiles.profile_loading import LoadedProfile
from pytest_promptfmt.rules.documentation import remedy_of
from pytest_promptfmt.rules.effects import effect_of
from pytest_promptfmt.rules.rule_registry import known_rules
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
    found = findings_of(TemplateTrial(profile, conversations, tokenizer=loaded, engines=engines), written.name)
    return sorted(found, key=lambda finding: (list(Severity).index(finding.severity), finding.code))


def findings_of(trial: TemplateTrial, name: str) -> Iterable[Reported]:
    """Yield what the rules of this system find in a trial, and the general ones, each message of a rule once."""
    file = trial.profile.template_file
    loaded = LoadedProfile(profile=trial.profile, tokenizer=trial.tokenizer)
    for rule in known_rules().values():
        is_own = rule.function.__module__ in SYSTEM.rules
        if not is_own and (rule.code not in SYSTEM.general_rules or trial.syntax_error is not None):
            continue
        found: dict[str, Finding] = {}
        for finding in rule.function(trial if is_own else loaded):
            found.setdefault(finding.message, finding)
        count: Counter[str] = Counter()
        for finding in found.values():
            same = identity(rule.code, file.name if file is not None else "", name, "", finding)
            yield Reported(
                code=rule.code,
                name=rule.name,
                severity=finding.severity or rule.severity,
                effect=effect_of(rule, finding.severity or rule.severity),
                task=name,
                file=str(file or ""),
                position=finding.position,
                conversation=finding.conversation,
                message=finding.message,
                saw=shown(finding.saw),
                do=remedy_of(rule),
                stable_keys=(stable_key(same, count[same]),),
            )
            count[same] += 1


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
