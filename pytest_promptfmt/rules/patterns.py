"""Rules about regular expressions, in filters and code, and about how much of a completion a filter takes."""

from __future__ import annotations

import ast
import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, cast

from pytest_promptfmt.answers.completions import Chain, is_nothing
from pytest_promptfmt.answers.trials import AnswerTrial
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import LimitExceededError, Position, PromptfmtError
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.extraction import (
    Filters,
    Misread,
    Reader,
    filters_of,
    misread_by_all,
    readers,
    readers_of_numbers,
    scored_answers,
)
from pytest_promptfmt.rules.fixes import nothing, rewritten
from pytest_promptfmt.rules.page import Text, error_query, query, task
from pytest_promptfmt.rules.pattern_texts import written_around
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import finding, literal_of, mapped
from pytest_promptfmt.rules.task_code import parsed
from pytest_promptfmt.tasks import FilterPipeline, functions_of, looks_for_answers, pipelines_of

_BARS: Final = re.compile(r"(?<!\\)<\|[\w ]+\|>|(?<!\\)\[/?(?:INST|SEP|CLS|PAD|MASK|BOS|EOS|ANSWER)\](?![*+?{])")
_MODULES: Final = ("re", "regex")
_TRIMS: Final = ("strip", "lstrip", "rstrip")
_FORMS: Final = {codes.AT_BEGINNING, codes.AT_BEGINNING_STRING}
_ENDS: Final = {codes.AT_END, codes.AT_END_STRING}
_LONGEST: Final = 2000
_DEAD: Final = "a part of a pattern can never match"
_LAST_DOT: Final = re.compile(r"(?<!\\)\)\.\)*\$?$|\(\?=\.\)")
_NUMBER_DOT: Final = re.compile(r"(?:\\d|[0-9,]\])[+*]?(?:\((?:\?:)?)?(?<!\\)\.(?:\\d|\[0-9)")
_DOUBLED: Final = re.compile(r"\\\\(?:[dwsDWS](?=[+*?{\]])|[.,](?=[)?*+\]\\]|\Z))")
_WITH_SINGLE_ESCAPES: Final = partial(
    rewritten, change=lambda text: _DOUBLED.sub(lambda match: match[0][1:], text), keeps=nothing
)

_PROBES: Final = data_table("rules")
_WHOLE: Final = re.compile(r"[^\W\d_]{2,}")
_LONG: Final = 2000


@rule("PF502", "pattern-mistake", severity=Severity.WARNING, family=Family.EXTRACTION)
def unescaped_dot(study: Study) -> Iterator[Finding]:
    r"""Report a pattern with another meaning than it seems to have, such as an unescaped dot for a full stop.

    Why: `.` matches any character. At the end of a pattern it cuts off the last digit of `The answer is 18`. Between
    digits it reads `3 5` as one number.

    Fix: write `\.`, or remove the dot.

    Real: lm-evaluation-harness #2013 (bbh), gsm8k_cot; stanford-crfm/helm #4289.
    """
    for keys, text in study.strings:
        if "regex_pattern" not in keys:
            continue
        found = _LAST_DOT.search(text) or _NUMBER_DOT.search(text)
        if found is not None:
            saw = text[-60:] if found.end() >= len(text) - 2 else text[found.start() : found.start() + 60]
            yield finding("an unescaped dot in a pattern matches any character", saw, keys)


def _written(study: Study) -> Iterator[Text]:
    """Yield the patterns of filters and metrics as they are written."""
    return (Text(keys, text) for keys, text in study.strings if any("regex" in str(key) for key in keys[-3:]))


@error_query("PF502", "a special token in a pattern is not escaped", _written)
def _special_token_as_pattern(pattern: Text) -> Iterator[str]:
    yield from (found[0] for found in _BARS.finditer(pattern.text))


@error_query("PF502", "the pattern requires a literal backslash", _written, fix=_WITH_SINGLE_ESCAPES)
def _escape_doubled(pattern: Text) -> Iterator[str]:
    r"""Report a pattern with `\\d+`, which looks for a backslash and the letter d."""
    yield from [pattern.text] if _DOUBLED.search(pattern.text) else ()


@also("PF502")
def pattern_never_matches(study: Study) -> Iterator[Finding]:
    """Report a part of a pattern that can never match: text before the beginning, or after the end."""
    for keys, text in study.strings:
        if keys[-1:] == ("regex_pattern",) and _is_dead(text, 0):
            yield finding(_DEAD, text[:60], keys)
    for call, position in _calls_of(study):
        pattern = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
        if _of_re(call) and isinstance(pattern, str) and _is_dead(pattern, _flags(call)):
            yield finding(_DEAD, pattern[:60], position)


@also("PF502")
def nothing_ignored(study: Study) -> Iterator[Finding]:
    """Report a pattern of `regexes_to_ignore` that matches no character, such as `$` for a dollar sign."""
    for keys, text in study.strings:
        with suppress(re.error, OverflowError, RecursionError):  # which other rules report
            if "regexes_to_ignore" in keys and len(text) < _LONG and parser.parse(text).getwidth()[1] == 0:
                yield finding("the pattern matches no character, so regexes_to_ignore ignores nothing", text, keys)


@lru_cache(maxsize=4096)
def _is_dead(pattern: str, flags: int) -> bool:
    if len(pattern) > _LONGEST or not ("^" in pattern or "$" in pattern or "\\A" in pattern or "\\Z" in pattern):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parser.parse(pattern, flags)
    except (re.error, OverflowError, RecursionError, MemoryError):
        return False  # which other rules report
    return not tree.state.flags & re.MULTILINE and _dies(tree, tree.state, before=0)


def _dies(items: Iterable[Any], state: Any, *, before: int) -> bool:
    """Return whether a part of a parsed sequence, before which are so many characters at least, cannot match."""
    ended = False
    for op, value in items:
        if ended and op is codes.LITERAL and value != ord("\n"):
            return True
        ended = op is codes.AT and value in _ENDS
        if op is codes.AT and value in _FORMS and before > 0:
            return True
        branches = value[1] if op is codes.BRANCH else [value[-1]] if op is codes.SUBPATTERN else []
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT) and value[0] > 0:
            branches = [value[2]]
        if any(_dies(branch, state, before=before) for branch in branches):
            return True
        if op not in (codes.ASSERT, codes.ASSERT_NOT):
            before += cast(int, parser.SubPattern(state, [(op, value)]).getwidth()[0])
    return False


def _flags(call: ast.Call) -> int:
    words = " ".join(ast.unparse(one) for one in [*call.args[1:], *(each.value for each in call.keywords)])
    flags = re.MULTILINE if re.search(r"\bre\.M(?:ULTILINE)?\b", words) else 0
    return int(flags | (re.VERBOSE if re.search(r"\bre\.(?:X|VERBOSE)\b", words) else 0))


def _of_re(call: ast.Call) -> str:
    """Return the name of the function of `re` that a call is of, "" for other calls."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_re = isinstance(owner, ast.Name) and owner.id in _MODULES
    return call.func.attr if is_re and isinstance(call.func, ast.Attribute) else ""


def _calls_of(study: Study) -> tuple[tuple[ast.Call, Position], ...]:
    """Return the calls in the code that the task's functions come to within their own files, and where they are."""
    return study.once("calls of code", lambda: tuple(_calls_reached(study)))


def _calls_reached(study: Study) -> Iterator[tuple[ast.Call, Position]]:
    named: dict[Path, list[FunctionRef]] = {}
    for function in functions_of(study.given):
        named.setdefault(function.file, []).append(function)
    for file, found in named.items():
        tree = parsed(found[0])
        if tree is not None:
            for call in _calls_within(tree, tuple(function.name for function in found)):
                yield call, Position(file, call.lineno, call.col_offset + 1)


@lru_cache(maxsize=64)
def _calls_within(tree: ast.Module, names: tuple[str, ...]) -> tuple[ast.Call, ...]:
    """Return the calls that functions of a module come to within it."""
    parts: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for name in _defined(node):
            parts.setdefault(name, []).append(node)
    calls: dict[ast.Call, None] = {}
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for inner in (each for part in parts.get(name, ()) for each in ast.walk(part)):
            if isinstance(inner, ast.Name):
                waiting.append(inner.id)
            elif isinstance(inner, ast.Call):
                calls[inner] = None
    return tuple(calls)


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                yield target.id


@also("PF502")
def word_stripped(study: Study) -> Iterator[Finding]:
    """Report `strip` with a word in the Python code of a task: it removes each of its letters, not the word."""
    for call, position in _calls_of(study):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _TRIMS and len(call.args) == 1:
            word = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
            if isinstance(word, str) and re.search(r"[^\W\d_]{3}", word) and len(set(word)) > 2:
                yield finding("strip removes single characters, not a word", ast.unparse(call)[-60:], position)


@also("PF525", severity=Severity.ERROR)
def prefix_in_pattern(study: Study) -> Iterator[Finding]:
    """Report code that looks in a completion for the beginning that `gen_prefix` has, which is not generated."""
    prefix = str(study.task.gen_prefix or "").strip()
    for call, position in _calls_of(study) if prefix else ():
        pattern = call.args[0] if _of_re(call) and len(call.args) > 1 else None
        form = written_around(str(pattern.value)) if isinstance(pattern, ast.Constant) else None
        lead = form.partition("{}")[0].strip() if form is not None else ""
        if len(lead) > 1 and lead in prefix and ast.unparse(call.args[1]) == "results[0]":
            yield finding("code searches for words of gen_prefix, which are not in the completion", lead, position)
            return


@also("PF502", severity=Severity.ERROR)
def alternatives_unescaped(study: Study) -> Iterator[Finding]:
    """Report a list of texts that code joins by `|` to a pattern, if one of them has a `|` itself."""
    for call, position in _calls_of(study):
        joined = call.args[0] if _of_re(call) and call.args else None
        if not isinstance(joined, ast.Call) or ast.unparse(joined.func) != "'|'.join" or not joined.args:
            continue
        name = ast.unparse(joined.args[0])
        trees = (parsed(one) for one in functions_of(study.given) if one.file == position.path)
        nodes = (node for tree in trees if tree is not None for node in ast.walk(tree))
        lists = [one.value for one in nodes if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == name]
        for text in (literal_of(ast.unparse(value)) for value in lists):
            strange = [one for one in text if "|" in str(one)] if isinstance(text, list | tuple) else []
            if strange:
                yield finding("code puts a text with | into a pattern without re.escape", str(strange[0]), position)
                return


@also("PF512", severity=Severity.ERROR, scores=True)
def filters_change_gold(study: Study) -> Iterator[Finding]:
    """Report filters that pick nothing out of a completion, and turn the gold answer into a wrong one."""
    if not study.generates or not study.real_docs or not study.renders_fields or not study.task.filter_list:
        return
    if study.has_own_scorer or set(study.metrics) != {"exact_match"}:
        return
    scored = scored_answers(study)
    if scored is None:
        return
    chain, answers = scored
    for number, pipeline in enumerate(chain.pipelines):
        for trial in answers if not pipeline.looks else ():
            doc, gold = trial.instance.doc, trial.gold
            if trial.best is None or trial.nonsense is None or trial.best <= trial.nonsense or not gold.strip():
                continue
            stages = chain.read(pipeline, gold, doc, "the gold answer")
            if stages.problem is None and not chain.is_right(trial.question, doc, stages.extracted):
                if stages.stopped != gold or gold in mapped(study).values():
                    continue  # a stop sequence cuts it, which PF903 reports, or filters make it of other words
                saw = f"{gold!r} becomes {stages.extracted!r}"
                message = "the filters change the gold answer so that it counts as wrong"
                yield finding(message, saw, ("filter_list", number), trial.instance)
                return


@rule("PF512", "gold-cut-by-filter", severity=Severity.ERROR, family=Family.EXTRACTION, scope="scoring")
def gold_cut(study: Study) -> Iterator[Finding]:
    r"""Report a filter that reads short answers completely, but longer answers only in part.

    Why: `\\boxed\{(.+?)\}` ends at the first brace of `\frac{1}{6}`. `answer is (\w+)` reads one word of two. `.`
    matches no newline, so code of several lines is not found. In all three cases a right answer scores 0.

    Fix: match as much as an answer may have: nested braces, several words, several lines (`[\s\S]*?`).

    Real: boxed answers with fractions in the extraction of several harnesses; code blocks read without DOTALL.
    """
    if not study.generates or not looks_for_answers(study.task) or not study.has_real_docs or study.has_own_scorer:
        return
    chain, answers = scored_answers(study) or (None, ())
    found = []
    for number, pipeline in enumerate(chain.pipelines if chain is not None else ()):
        if chain is None or not pipeline.patterns:
            continue
        cut = next(filter(None, (_cut(chain, pipeline, trial, answers) for trial in answers)), None)
        if cut is None:
            return  # one of the pipelines reads all answers
        found.append((number, *cut))
    for number, text, read, doc in found[:1]:
        saw = f"{text!r} is read as {read!r}"
        yield finding("a filter reads the gold answer only in part, or not at all", saw, ("filter_list", number), doc)


def _cut(
    chain: Chain, pipeline: FilterPipeline, trial: AnswerTrial, all_trials: Sequence[AnswerTrial]
) -> tuple[str, str, int] | None:
    """Return a sentence with the gold answer that is not read, where the same with a simple answer is."""
    gold, doc = trial.gold, trial.instance.doc
    filters = Filters(chain, doc)
    if trial.best is None or trial.nonsense is None or trial.best <= trial.nonsense or not 0 < len(gold) < _LONG:
        return None
    around = [form for form in map(written_around, pipeline.patterns) if form is not None]
    is_plain = re.fullmatch(r"\w+|-?[\d.,]+", gold) or any(gold in form for form in _PROBES["gold_forms"])
    forms = around if is_plain else [*around, *_PROBES["gold_forms"]]
    alone = chain.read(pipeline, gold, doc, "the gold answer itself")
    if alone.problem is not None or not is_nothing(alone.extracted, pipeline):
        return None  # a worked solution, which has the cue itself
    wrong, simple = None, (*_PROBES["simple_answers"], *(one.gold for one in all_trials))
    for form in forms:
        if not any(filters.read(pipeline, form.format(one)) == one for one in simple):
            continue
        text = form.format(gold)
        stages = chain.read(pipeline, text, doc, "the gold answer")
        if stages.problem is not None or stages.stopped != text:
            continue
        try:
            right = chain.is_right(trial.question, doc, stages.extracted)
        except PromptfmtError:
            raise
        except Exception:
            continue
        if right:
            return None
        wrong = wrong or (text, str(stages.extracted), trial.instance.index)
    return wrong


@query("PF504", "a filter reads past the mark that closes the answer, such as a brace", task, scope="scoring")
def _capture_runs_on(study: Study) -> Iterator[Finding]:
    for reader in readers(study):
        for wrong in misread_by_all(reader, _read_on):
            yield wrong.finding(None if study.asks_for_reasoning else Severity.INFO)


def _read_on(reader: Reader, pipeline: FilterPipeline) -> tuple[str, str] | None:
    """Return a sentence with an answer between marks that is read beyond the closing mark, and what is read."""
    answer = reader.examples[-1]
    for form in _PROBES["marked_forms"]:
        sentence = f"The answer is {form.format(answer)}."
        text = f"{sentence}{_PROBES['after_marks']}"
        if reader.is_read(pipeline, sentence, answer) and not reader.is_read(pipeline, text, answer):
            read = reader.read(pipeline, text)
            if read.startswith(answer) and "Check" in read:
                return text, read
    return None


@query("PF504", "a filter finds an answer inside another word", task, scope="scoring")
def _part_of_a_word(study: Study) -> Iterator[Finding]:
    filters, found = filters_of(study), []
    for number, pipeline in enumerate(filters.chain.pipelines if filters is not None else ()):
        texts = _PROBES["without_answer"] if filters is not None and pipeline.patterns else ()  # code may read anything
        readings = ((text, filters.read(pipeline, text)) for text in texts) if filters is not None else ()
        wrong = next(((text, read) for text, read in readings if _is_inside(read, text)), None)
        if wrong is None:
            return
        found.append(Misread(number, *wrong))
    yield from (wrong.finding() for wrong in found[:1])


def _is_inside(read: str, text: str) -> bool:
    word, text = read.casefold(), text.casefold()
    return bool(_WHOLE.fullmatch(word)) and word in text and re.search(rf"\b{word}\b", text) is None


@error_query("PF504", "a filter loses the minus sign of a number", task, scope="scoring")
def _sign_not_read(study: Study) -> Iterator[Finding]:
    is_negative = any(str(instance.target).strip().startswith("-") for instance in study.real_instances)
    for reader in readers_of_numbers(study):
        for wrong in misread_by_all(reader, _without_sign):
            yield wrong.finding(None if is_negative else Severity.INFO)


def _without_sign(reader: Reader, pipeline: FilterPipeline) -> tuple[str, str] | None:
    forms = (form for form in _PROBES["number_forms"] if reader.is_read(pipeline, form.format("42"), "42"))
    lost = (form.format("-42") for form in forms if not reader.is_read(pipeline, form.format("-42"), "-42"))
    text = next(lost, None)
    return None if text is None else (text, reader.read(pipeline, text))


@also("PF509", severity=Severity.ERROR, scores=True)
def answers_stay_a_list(study: Study) -> Iterator[Finding]:
    """Report filters that return a list with one answer instead of the answer."""
    task = study.written
    is_plain = study.generates and task.process_results is None and task.repeats in (None, 1)
    compares = all(name == "exact_match" for name in study.metrics)
    if not is_plain or not compares or task.filter_list is None or not study.renders_fields:
        return
    try:
        pipelines = pipelines_of(task)
    except PromptfmtError:
        return  # PF109 reports it
    for number, pipeline in enumerate(pipelines):
        if pipeline.fingerprint is None:
            continue
        try:
            left = pipeline.extract("The answer is (A). It is 1.", {})
        except LimitExceededError:
            raise
        except Exception:
            continue  # PF109 reports it
        if isinstance(left, list | tuple):
            saw = ", ".join(str(step.get("function")) for step in task.filter_list[number]["filter"])
            yield finding("after the filters, the answer is still a list", saw, ("filter_list", number))
