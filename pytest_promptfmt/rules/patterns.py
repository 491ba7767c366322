"""Rules about regular expressions, in filters and code, and about how much of a completion a filter takes."""

from __future__ import annotations

import ast
import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import string
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from pytest_promptfmt.answers.completions import is_nothing
from pytest_promptfmt.answers.trials import AnswerTrial
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import LimitExceededError, Position, PromptfmtError
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.extraction import Filters, Misread, filters_of, scored_answers
from pytest_promptfmt.rules.fixes import nothing, rewritten
from pytest_promptfmt.rules.page import Text, error_query, query, task
from pytest_promptfmt.rules.rule_registry import also, reads_names
from pytest_promptfmt.rules.rule_views import finding, mapped
from pytest_promptfmt.rules.task_code import parsed
from pytest_promptfmt.tasks import FilterPipeline, functions_of, looks_for_answers, pipelines_of

_DOUBLED: Final = re.compile(r"\\\\(?:[dwsDWS](?=[+*?{\]])|[.,](?=[)?*+\]\\]|\Z))")
_WITH_SINGLE_ESCAPES: Final = partial(
    rewritten, change=lambda text: _DOUBLED.sub(lambda match: match[0][1:], text), keeps=nothing
)

_BARS: Final = re.compile(r"(?<!\\)<\|[\w ]+\|>|(?<!\\)\[/?(?:INST|SEP|CLS|PAD|MASK|BOS|EOS|ANSWER)\](?![*+?{])")
_TRIMS: Final = ("strip", "lstrip", "rstrip")
_WITHOUT_ORDER: Final = ("sorted", "set", "frozenset", "len", "sum", "min", "max", "any", "all")
_LAST_DOT: Final = re.compile(r"(?<!\\)\)\.\)*\$?$|\(\?=\.\)")
_NUMBER_DOT: Final = re.compile(r"(?:\\d|[0-9,]\])[+*]?(?:\((?:\?:)?)?(?<!\\)\.(?:\\d|\[0-9)")
_OF_RE: Final = re.compile(r"re\.(?:compile|sub|search|match|fullmatch|findall|finditer|split)")
_FLAGS: Final = re.compile(r"\bflags\b|\bre\.[A-Z]")
_REASONING: Final = re.compile(r"</(think|thinking|thoughts?|reasoning|scratchpad)>")
_PROBES: Final = data_table("rules")
_WHOLE: Final = re.compile(r"[^\W\d_]{2,}")
_LONG: Final = 2000
_SHORT: Final = 8
_OF_CHARACTERS: Final = (codes.LITERAL, codes.RANGE)
_OF_CLASS: Final = {codes.CATEGORY_SPACE: " ", codes.CATEGORY_DIGIT: "1"}


@rule("PF502", "pattern-mistake", severity=Severity.WARNING, family=Family.EXTRACTION)
def unescaped_dot(study: Study) -> Iterator[Finding]:
    r"""Report a regular expression that does not match what its author meant, for example because of an unescaped dot.

    Why: in a regular expression, `.` matches any character. At the end of a pattern, a dot takes the last digit of `The
    answer is 18`. Between digits, it makes a pattern match `3 5` as one number.

    Fix: remove the dot, or write `\.` instead.

    Real: lm-evaluation-harness #2013 (bbh), gsm8k_cot; stanford-crfm/helm #4289.
    """
    for keys, text in study.strings:
        if "regex_pattern" not in keys:
            continue
        found = _LAST_DOT.search(text) or _NUMBER_DOT.search(text)
        if found is not None:
            saw = text[-60:] if found.end() >= len(text) - 2 else text[found.start() : found.start() + 60]
            yield finding("a dot in a pattern is not escaped, so it matches any character", saw, keys)


def _written(study: Study) -> Iterator[Text]:
    """Yield the patterns of filters and metrics as they are written."""
    return (Text(keys, text) for keys, text in study.strings if any("regex" in str(key) for key in keys[-3:]))


@error_query("PF502", "a special token in a pattern is not escaped", _written)
def _special_token_as_pattern(pattern: Text) -> Iterator[str]:
    yield from (found[0] for found in _BARS.finditer(pattern.text))


@error_query("PF502", "the pattern matches only texts with a backslash", _written, fix=_WITH_SINGLE_ESCAPES)
def _escape_doubled(pattern: Text) -> Iterator[str]:
    r"""Report a pattern with `\\d+`, which looks for a backslash and the letter d."""
    yield from [pattern.text] if _DOUBLED.search(pattern.text) else ()


@query("PF502", "a part of the pattern never matches, because ^ comes after text", _written)
def _caret_after_text(pattern: Text) -> Iterator[str]:
    yield from [pattern.text] if _is_impossible(pattern.text) else ()


@reads_names
@also("PF502")
def pattern_in_code(study: Study) -> Iterator[Finding]:
    """Report a pattern in Python code that never matches, or that removes only reasoning of a single line."""
    modules = {function.file: parsed(function) for function in functions_of(study.given)}
    for file, tree in modules.items():
        for call, text in _patterns_in(tree) if tree is not None else ():
            position, saw = Position(file, call.lineno, call.col_offset + 1), ast.unparse(call)[:80]
            if _is_impossible(text):
                yield finding("a part of the pattern never matches, because ^ comes after text", saw, position)
            elif ".sub(" in saw and _keeps_lines(text):
                do = "add flags=re.DOTALL"
                yield finding("the pattern does not remove reasoning of several lines", saw, position, do=do)


@lru_cache(maxsize=64)
def _patterns_in(tree: ast.Module) -> tuple[tuple[ast.Call, str], ...]:
    """Return the calls of a module with a pattern that is written there without flags, and the pattern."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    of_re = [one for one in calls if _OF_RE.fullmatch(ast.unparse(one.func)) and not _FLAGS.search(ast.unparse(one))]
    texts = [(one, one.args[0].value) for one in of_re if isinstance(one.args[0], ast.Constant)]
    return tuple((call, text) for call, text in texts if isinstance(text, str))


def _keeps_lines(text: str) -> bool:
    """Return whether a pattern finds reasoning between tags, or up to one, only if it is a single line."""
    tag = _REASONING.search(text)
    try:
        left = (
            [re.sub(text, "", f"<{tag[1]}>red{mark}blue</{tag[1]}> iron") for mark in " \n"] if tag is not None else []
        )
    except re.error:
        return False  # which fails when it is run
    return bool(left) and "red" not in left[0] and "red" in left[1]


@lru_cache(maxsize=1024)
def _is_impossible(text: str) -> bool:
    """Return whether a part of a pattern needs the beginning of the text after some of it."""
    try:
        tree = parser.parse(text) if len(text) <= _LONG and "^" in text else None
    except (re.error, OverflowError, RecursionError, MemoryError):
        return False  # which other rules report
    return tree is not None and not tree.state.flags & re.MULTILINE and _begins_late(tree, tree, is_after=False)


def _begins_late(items: Any, tree: Any, *, is_after: bool) -> bool:
    for op, value in items:
        if op is codes.AT and value in (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING) and is_after:
            return True
        inner = value[1] if op is codes.BRANCH else [value[-1]] if op is codes.SUBPATTERN else []
        if any(_begins_late(one, tree, is_after=is_after) for one in inner):
            return True
        is_after = is_after or parser.SubPattern(tree.state, [(op, value)]).getwidth()[0] > 0
    return False


@reads_names
@also("PF502")
def word_stripped(study: Study) -> Iterator[Finding]:
    """Report `strip` with a word in the Python code of a task: it removes single letters, not the word."""
    modules = {function.file: parsed(function) for function in functions_of(study.given)}
    for file, tree in modules.items():
        for call, word in _stripped_words(tree) if tree is not None else ():
            if any(map(_is_word, re.findall(r"[^\W\d_]{3,}", word))) and len(set(word)) > 2:
                position = Position(file, call.lineno, call.col_offset + 1)
                yield finding("strip removes single characters, not a word", ast.unparse(call)[-60:], position)


def _is_word(letters: str) -> bool:
    """Return whether letters are neither the beginning of the alphabet nor the vowels, which mean single ones."""
    folded = letters.casefold()
    return not (string.ascii_lowercase * 2).startswith(folded) and not set(folded) <= set("aeiouy")


@lru_cache(maxsize=64)
def _stripped_words(tree: ast.Module) -> tuple[tuple[ast.Call, str], ...]:
    """Return the calls of `strip` with a text in a module, and that text."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 1]
    trims = [one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr in _TRIMS]
    texts = [(one, one.args[0].value) for one in trims if isinstance(one.args[0], ast.Constant)]
    return tuple((call, text) for call, text in texts if isinstance(text, str))


@reads_names
@also("PF608")
def order_of_a_set(study: Study) -> Iterator[Finding]:
    """Report code of the prompt, choices or target that turns a set of texts into a list."""
    fields = [getattr(study.written, key) for key in ("doc_to_text", "doc_to_choice", "doc_to_target")]
    for function in (one for one in (*fields, study.written.dataset.process_docs) if isinstance(one, FunctionRef)):
        tree = parsed(function)
        for node in _made_of_sets(tree, function.name) if tree is not None else ():
            position = Position(function.file, node.lineno, node.col_offset + 1)
            message = "a list takes its order from a set, whose order differs in every run"
            yield finding(message, ast.unparse(node)[:60], position)


@lru_cache(maxsize=64)
def _made_of_sets(tree: ast.Module, name: str) -> tuple[ast.expr, ...]:
    """Return the lists made of sets in a function and those of its module that it names, if their order is used."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    own = " ".join(ast.unparse(one) for one in functions if one.name == name)
    nodes = [node for one in functions if re.search(rf"\b{one.name}\b", own) for node in ast.walk(one)]
    given = [node for node in (*tree.body, *nodes) if isinstance(node, ast.Assign)]
    named = {target.id: node.value for node in given for target in node.targets if isinstance(target, ast.Name)}
    sets = {each for each, value in named.items() if _is_set(value, ())}
    calls = [(node.func.id, node) for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    free = {id(one) for called, node in calls for one in node.args if called in _WITHOUT_ORDER}
    free |= {id(one) for node in nodes if isinstance(node, ast.Compare) for one in node.comparators}
    loads = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    free |= {id(value) for each, value in named.items() if all(id(one) in free for one in loads if one.id == each)}
    lists = [node for called, node in calls if called in ("list", "tuple", "enumerate") and node.args]
    made = [node for node in lists if _is_set(node.args[0], sets)]
    listed = [node for node in nodes if isinstance(node, ast.ListComp) and _is_set(node.generators[0].iter, sets)]
    return tuple(node for node in (*made, *listed) if id(node) not in free)


def _is_set(node: ast.expr, names: Collection[str]) -> bool:
    """Return whether an expression is a set, but not one of numbers, whose order is always the same."""
    text = ast.unparse(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        return False  # what two sets have in common is often only one
    is_made = isinstance(node, ast.SetComp) or re.match(r"(?:frozen)?set\((?!range\()", text) is not None
    return is_made or text in names or (isinstance(node, ast.Set) and "'" in text)


@also("PF512", severity=Severity.ERROR, scores=True)
def filters_change_gold(study: Study) -> Iterator[Finding]:
    """Report filters that only clean completions, and so change a completion that equals the gold answer."""
    if not study.generates or not study.real_docs or not study.renders_fields or not study.task.filter_list:
        return
    if study.has_own_scorer or set(study.metrics) != {"exact_match"}:
        return
    trials = scored_answers(study)
    for number, pipeline in enumerate(trials[0].chain.pipelines if trials else ()):
        for trial in trials if not pipeline.looks else ():
            doc, gold = trial.instance.doc, trial.gold
            if not trial.beats_nonsense or not gold.strip():
                continue
            stages = trial.chain.read(pipeline, gold, doc, "the gold answer")
            if stages.problem is None and not trial.chain.is_right(trial.question, doc, stages.extracted):
                if stages.stopped != gold or gold in mapped(study).values():
                    continue  # a stop sequence cuts it, which PF903 reports, or filters make it of other words
                saw = f"{gold!r} becomes {stages.extracted!r}"
                message = "the filters change the gold answer so that it counts as wrong"
                yield finding(message, saw, ("filter_list", number), trial.instance)
                return


@rule("PF512", "gold-cut-by-filter", severity=Severity.ERROR, family=Family.EXTRACTION, scope="scoring")
def gold_cut(study: Study) -> Iterator[Finding]:
    r"""Report a filter that extracts short answers completely, but longer answers only in part.

    Why: for example, the pattern `\\boxed\{(.+?)\}` ends at the first closing brace of `\frac{1}{6}`. The pattern
    `answer is (\w+)` extracts one word of two. And `.` does not match a newline, so code of several lines is not found.
    In all three cases, a right answer scores 0.

    Fix: change the pattern so that it matches whole answers, including those with nested braces, several words or
    several lines (`[\s\S]*?`).

    Real: several harnesses, with boxed answers that have fractions; patterns for code blocks without DOTALL.
    """
    if not study.generates or not looks_for_answers(study.task) or not study.has_real_docs or study.has_own_scorer:
        return
    trials = scored_answers(study)
    found = []
    for number, pipeline in enumerate(trials[0].chain.pipelines if trials else ()):
        if not pipeline.patterns:
            continue
        cut = next(filter(None, (_cut(pipeline, trial, trials) for trial in trials)), None)
        if cut is None:
            return  # one of the pipelines reads all answers
        found.append((number, *cut))
    for number, text, read, doc in found[:1]:
        saw = f"the filter extracts {read!r} from {text!r}"
        message, do = "a filter extracts only a part of the gold answer, or nothing", ""
        if read not in text and read.casefold() in text.casefold():
            message, do = (
                "the filters change the letter case of the gold answer",
                "keep the letter case, or set ignore_case: true",
            )
        yield finding(message, saw, ("filter_list", number), doc, do=do)


def _cut(
    pipeline: FilterPipeline, trial: AnswerTrial, all_trials: Sequence[AnswerTrial]
) -> tuple[str, str, int] | None:
    """Return a sentence with the gold answer that is not read, where the same with a simple answer is."""
    gold, doc, chain = trial.gold, trial.instance.doc, trial.chain
    filters = Filters(chain, doc)
    if not trial.beats_nonsense or not 0 < len(gold) < _LONG:
        return None
    around = [form for form in map(written_around, pipeline.patterns) if form is not None]
    is_plain = re.fullmatch(r"\w+|-?[\d.,]+", gold) or any(gold in form for form in _PROBES["gold_forms"])
    forms = around if is_plain else [*around, *_PROBES["gold_forms"]]
    alone = chain.read(pipeline, gold, doc, "the gold answer itself")
    if alone.problem is not None or not is_nothing(alone.extracted, pipeline):
        return None  # a worked solution, which has the cue itself
    wrong, simple = None, (*_PROBES["simple_answers"], *(one.gold for one in all_trials))
    for form in forms:
        if not any(filters.read(pipeline, form.format(one)).casefold() == one.casefold() for one in simple):
            continue
        text = form.format(gold)
        stages = chain.read(pipeline, text, doc, "the gold answer")
        if stages.problem is not None or stages.stopped != text:
            continue
        if (right := chain.judges(stages, trial.question, doc)) is None:
            continue
        if right:
            return None
        wrong = wrong or (text, str(stages.extracted), trial.instance.index)
    return wrong


@query("PF504", "a filter finds an answer inside another word", task, scope="scoring")
def _part_of_a_word(study: Study) -> Iterator[Finding]:
    for filters in filters_of(study):
        found = []
        if any(each.patterns for each in filters.chain.pipelines):
            filters.chain.expect([(text, filters.doc) for text in _PROBES["without_answer"]])
        for number, pipeline in enumerate(filters.chain.pipelines):
            texts = _PROBES["without_answer"] if pipeline.patterns else ()  # code may read anything
            readings = ((text, filters.read(pipeline, text)) for text in texts)
            found += [Misread(number, text, read) for text, read in readings if _is_inside(read, text)][:1]
        yield from (wrong.finding() for wrong in found[:1] if len(found) == len(filters.chain.pipelines))


def _is_inside(read: str, text: str) -> bool:
    word, text = read.casefold(), text.casefold()
    return bool(_WHOLE.fullmatch(word)) and word in text and re.search(rf"\b{word}\b", text) is None


@also("PF509", scores=True)
def answers_stay_a_list(study: Study) -> Iterator[Finding]:
    """Report filters that return a list with one answer, not the answer itself.

    Since lm-eval 0.4.8, `exact_match` gives such a list the right score, but only by accident: numpy compares the
    text inside the list with the gold answer.
    """
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
            yield finding("after all filters, the answer is still a list", saw, ("filter_list", number))


@lru_cache(maxsize=1024)
def written_around(pattern: str) -> str | None:
    """Return the shortest text that a pattern with one group matches, with `{}` for that; None for other patterns."""
    try:
        tree = parser.parse(pattern) if len(pattern) <= _LONG else None
    except (re.error, OverflowError, RecursionError, MemoryError):
        return None  # which other rules report
    text = _shortest(tree).replace("{", "{{").replace("}", "}}") if tree is not None else ""
    return text.replace("\0", "{}") if text.count("\0") == 1 and len(text) > 1 else None


def _shortest(items: Iterable[Any]) -> str:
    """Return a short text that the items of a parsed pattern match, with U+0000 for the first group."""
    text = ""
    for op, value in items:
        if op is codes.LITERAL:
            text += chr(value)
        elif op is codes.IN:
            kind, first = value[0]
            is_class = kind not in _OF_CHARACTERS
            text += _OF_CLASS.get(first, "x") if is_class else chr(first if kind is codes.LITERAL else first[0])
        elif op in (codes.ANY, codes.NOT_LITERAL):
            text += "x"
        elif op is codes.BRANCH:
            text += _shortest(value[1][0])
        elif op is codes.SUBPATTERN:
            text += "\0" if value[0] == 1 else _shortest(value[-1])
        elif op is codes.ASSERT:
            text += _shortest(value[1])
        elif op in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            text += _shortest(value[2]) * min(value[0], _SHORT)
        text = text[:_LONG]  # repeats of repeats grow without end
    return text
