"""How many seeded bugs in real chat templates the rules report: recall by the way in which a bug arises.

    python benchmarks/bench_template_mutations.py [FOLDER] [--each 12] [--seed N] [--missed 40]

Each operator changes one place of a template as people do by mistake. A mutant counts if it compiles and some
conversation renders another text; it is found if a finding (rule and message, infos left out) is there that the
template itself does not have. `--each` is how many mutants are drawn per operator, `--seed` draws others, `--missed`
prints so many of those that were not found, with the first prompt that differs.

Not all of them can be found without knowing the model: a marker or role renamed in every turn alike is another model's
format, not a bug. The table says so by operator, and nothing is left out of it.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import Final

from pytest_promptfmt.core.finding import Severity
from pytest_promptfmt.profiles.template_trial import TemplateTrial, lone_profile
from pytest_promptfmt.profiles.trial_evidence import excerpt, first_difference
from pytest_promptfmt.systems.templates.template_check import findings_of

TEMPLATES: Final = Path(__file__).parents[2] / "shared" / "data" / "chat_templates"
SEED: Final = 20261122
MARKER: Final = r"<\|[^|<>]+\|>|</?[a-z_]+>|\[/?[A-Z_]+\]|<｜[^<>]+｜>"
OUTPUT: Final = r"\{\{-?.*?-?\}\}"
CONTENT: Final = r"\bmessage(?:\.content\b|\[['\"]content['\"]\])"

Change = Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class Operator:
    """One way in which a bug arises: where it can, and what stands there afterwards.

    With `within`, the pattern is looked for inside the matches of that one only.
    """

    about: str
    pattern: str
    change: Change
    within: str | None = None

    def mutants(self, source: str) -> Iterator[str]:
        """Yield the source with each place changed, one at a time."""
        outer = (
            [(0, source)]
            if self.within is None
            else [(m.start(), m[0]) for m in re.finditer(self.within, source, re.S)]
        )
        for start, text in outer:
            for found in re.finditer(self.pattern, text, re.S):
                yield source[: start + found.start()] + self.change(found) + source[start + found.end() :]


def to(text: str) -> Change:
    """Return a change that writes a text; `\\1` is the first group."""
    return lambda found: found.expand(text)


OPERATORS: Final = {
    "marker-dropped": Operator("a marker missing in one branch", MARKER, to(""), OUTPUT),
    "marker-doubled": Operator("a marker twice in one branch", MARKER, to(r"\g<0>\g<0>"), OUTPUT),
    "end-token-dropped": Operator("no end token in one branch", r"\beos_token\b", to("''"), OUTPUT),
    "bos-doubled": Operator("BOS twice", r"\bbos_token\b", to("bos_token + bos_token"), OUTPUT),
    "bos-each-turn": Operator("BOS before every turn", r"\{%-? *for message in [^%]*%\}", to(r"\g<0>{{- bos_token }}")),
    "output-dropped": Operator("an output forgotten", OUTPUT, to("")),
    "output-doubled": Operator("an output twice", OUTPUT, to(r"\g<0>\g<0>")),
    "first-for-last": Operator(
        "loop.first for loop.last",
        r"\bloop\.(first|last)\b",
        lambda m: "loop.last" if m[1] == "first" else "loop.first",
    ),
    "index-off": Operator("loop.index for loop.index0", r"\bloop\.index0\b", to("loop.index")),
    "slice-off": Operator("messages cut one too far", r"\bmessages\[1:\]", to("messages[2:]")),
    "slice-lost": Operator("messages not cut", r"\bmessages\[1:\]", to("messages")),
    "other-message": Operator("another message looked at", r"\bmessages\[0\]", to("messages[-1]")),
    "scope-lost": Operator("a namespace left out", r"(\{%-? *set )(?:ns\w*|\w*state|\w*namespace)\.(\w+)", to(r"\1\2")),
    "dash-left-dropped": Operator("a dash missing at the left", r"\{([%{])-", to(r"{\1")),
    "dash-right-dropped": Operator("a dash missing at the right", r"-([%}])\}", to(r"\1}")),
    "strip-dropped": Operator("whitespace not stripped", r" *\| *trim\b|\.strip\(\)", to("")),
    "strip-added": Operator("whitespace stripped in one branch", CONTENT, to(r"(\g<0> | trim)"), OUTPUT),
    "tojson-dropped": Operator("tojson forgotten", r" *\| *tojson\b(?:\([^)]*\))?", to("")),
    "tojson-twice": Operator("encoded twice", r"\| *tojson\b(?:\([^)]*\))?", to(r"\g<0> | tojson")),
    "string-test-lost": Operator("JSON text encoded again", r"arguments(?:'\]|\"\])? is (?:not )?string", to("false")),
    "generation-prompt-lost": Operator("no generation prompt", r"\badd_generation_prompt\b", to("false")),
    "generation-prompt-always": Operator("generation prompt always", r"\badd_generation_prompt\b", to("true")),
    "generation-prompt-role": Operator(
        "another header before the answer",
        r"(?<=[^\w'\"=])assistant(?=[^\w'\"])",
        to("user"),
        r"if (?:\(| )*add_generation_prompt.*\Z",
    ),
    "role-misspelt": Operator("a branch for no role", r"(role(?:'\]|\"\])? *[=!]= *['\"]\w+)", to(r"\1s")),
    "role-swapped": Operator(
        "the branch of another role",
        r"(role(?:'\]|\"\])? *== *['\"])(user|tool|system)(['\"])",
        lambda m: m[1] + {"user": "tool", "tool": "user", "system": "user"}[m[2]] + m[3],
    ),
    "condition-negated": Operator(
        "a condition the wrong way round", r"(\{%-? *(?:el)?if )(.*?)( *-?%\})", to(r"\1not (\2)\3")
    ),
    "and-or": Operator("and for or", r" (and|or) ", lambda m: " or " if m[1] == "and" else " and "),
    "null-printed": Operator(
        "no test for null", r" or (?:''|\"\")| is not none\b", lambda m: "" if " or" in m[0] else " is defined"
    ),
    "key-misspelt": Operator(
        "a key that is not there", r"(\.|\[['\"])(content|name|arguments|parameters|description|text)\b", to(r"\1\2s")
    ),
    "first-call-only": Operator("parallel calls lost", r"(\{%-? *for \w+ in [\w.\[\]'\"]*tool_calls)", to(r"\1[:1]")),
    "call-separator": Operator("no separator between items", r"not loop\.last|loop\.first", to("false")),
    "newline-dropped": Operator("a line break missing in one branch", r"\\n", to(""), OUTPUT),
    "newline-escaped": Operator("a line break escaped twice", r"\\n", lambda _: r"\\n", OUTPUT),
    "space-added": Operator("a space after a marker in one branch", MARKER, to(r"\g<0> "), OUTPUT),
    "brace-dropped": Operator(
        "a brace of hand-written JSON missing", r"(?<=['\"])[}\]]+|[}\]]+(?=['\"])", to(""), OUTPUT
    ),
    "reasoning-end": Operator(
        "the wrong side of the reasoning",
        r"(split\(['\"]</think>['\"]\)\[)(-1|0)",
        lambda m: m[1] + ("0" if m[2] == "-1" else "-1"),
    ),
    "reasoning-tag": Operator("a tag of reasoning missing", r"</?think(?:ing)?>", to(""), OUTPUT),
    "previous-role": Operator("the wrong neighbour looked at", r"loop\.index0 *- *1", to("loop.index0 + 1")),
    "else-lost": Operator("no else branch", r"(\{%-? *)else( *-?%\})", to(r"\1elif false\2")),
}


@dataclass(frozen=True)
class Mutant:
    """What became of one mutant: None for `found` where no prompt changed."""

    operator: str
    template: str
    found: bool | None
    is_seen: bool = False
    change: str = ""


def _renderings(trial: TemplateTrial) -> dict[tuple[str, int], str | None]:
    return {
        (each.name, number): trial.render(each, state).text
        for each in trial.conversations.values()
        for number, state in enumerate(each.states)
    }


def _findings(trial: TemplateTrial) -> set[tuple[str, str, Severity]]:
    return {(each.code, each.message, each.severity) for each in findings_of(trial, "template")}


def mutants_of(path: Path, seed: int) -> Iterator[tuple[str, str]]:
    """Yield one place of each operator in a template, drawn with a seed of both names."""
    source = path.read_text("utf-8")
    for name, operator in OPERATORS.items():
        made = list(operator.mutants(source))
        if made:
            yield name, random.Random(f"{seed} {name} {path.name}").choice(made)


def judged(work: tuple[Path, list[tuple[str, str]]]) -> list[Mutant]:
    """Return what became of the mutants of one template."""
    path, mutants = work
    usual = TemplateTrial(lone_profile(path.read_text("utf-8")))
    texts, findings = _renderings(usual), _findings(usual)
    outcomes = []
    for operator, source in mutants:
        trial = TemplateTrial(lone_profile(source))
        if trial.syntax_error is not None:
            continue
        changed = _renderings(trial)
        different = [key for key, text in texts.items() if text is not None and changed[key] != text]
        if not different:
            outcomes.append(Mutant(operator, path.stem, None))
            continue
        new = _findings(trial) - findings
        name, number = different[0]
        one, other = texts[name, number] or "", changed[name, number] or "nothing"
        at = first_difference(one, other)
        change = f"{len(different)} prompts, {name}: {excerpt(one, at)!r} -> {excerpt(other, at)!r}"
        outcomes.append(
            Mutant(operator, path.stem, any(severity is not Severity.INFO for *_, severity in new), bool(new), change)
        )
    return outcomes


def _print_row(name: str, mutants: list[Mutant], about: str) -> None:
    found, seen = sum(bool(each.found) for each in mutants), sum(each.is_seen for each in mutants)
    print(f"  {name:26} {found:3}/{len(mutants):<3} with infos {seen:3}   {about}")


def main() -> None:
    """Print recall by operator, and some of what was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=TEMPLATES)
    parser.add_argument("--each", type=int, default=12)
    parser.add_argument("--missed", type=int, default=0)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    drawn: dict[str, list[tuple[Path, str]]] = defaultdict(list)
    for path in sorted(arguments.folder.glob("*.jinja")):
        for name, source in mutants_of(path, arguments.seed):
            drawn[name].append((path, source))
    work: dict[Path, list[tuple[str, str]]] = defaultdict(list)
    for name, found in drawn.items():
        random.Random(f"{arguments.seed} {name}").shuffle(found)
        for path, source in found[: arguments.each]:
            work[path].append((name, source))
    with Pool(2) as pool:
        outcomes = [each for some in pool.imap_unordered(judged, work.items()) for each in some]
    outcomes.sort(key=lambda each: (each.operator, each.template))
    total = [each for each in outcomes if each.found is not None]
    print(f"{len(total)} mutants change a prompt, of {len(outcomes)} that compile")
    for name, operator in OPERATORS.items():
        _print_row(name, [each for each in total if each.operator == name], operator.about)
    _print_row("all", total, f"{sum(each.is_seen for each in total) / len(total):.0%} with infos")
    missed = [each for each in total if not each.is_seen]
    random.Random(arguments.seed).shuffle(missed)
    for each in missed[: arguments.missed]:
        print(f"  {each.operator} in {each.template}: {each.change}")


if __name__ == "__main__":
    main()
