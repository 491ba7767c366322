"""README and docs are run as they stand: files they show are written, commands started, Python examples tried.

A fenced block after `<!-- file: NAME -->` is written to that file. A `console` block holds commands after `$ ` and the
output a reader should expect: its lines must come in that order, a line `...` stands for any lines, and times may
differ; a command with no output below it must succeed. A `sh` block is not run here, so the comment above it says
where it is run (`command: NAME`) or why nowhere (`not run: REASON`). `python` blocks hold doctests. Every page starts
in a folder with the gallery in `fixtures/tasks`, its commands in an empty one where the page has the comment
`<!-- empty folder -->`.
"""

import doctest
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import forked_runs
import pytest
import yaml
from slices import needs

from pytest_promptfmt.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
)
FIRST_READ = ("README.md", "CONTRIBUTING.md", "docs/tutorial.md")
OF_SLICES = {
    "docs/chat-templates.md": "templates",
    "docs/helm.md": "helm",
    "docs/task-classes.md": "eval_framework",
}
SCRIPTS = {"pytest": "pytest", "promptfmt": "pytest_promptfmt"}
SHELL_CHARACTERS = frozenset("|&;<>()$`*?~#\n")
BLOCK = re.compile(
    r"(?:<!-- (?P<note>[^>]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, text, the comment above it, and its first line's number."""

    language: str
    text: str
    note: str
    line: int


def blocks_of(page: str) -> list[Block]:
    source = (ROOT / page).read_text("utf-8")
    return [
        Block(match["language"], match["text"], match["note"] or "", source.count("\n", 0, match.start("text")) + 1)
        for match in BLOCK.finditer(source)
    ]


def commands_of(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a console block with the output lines below it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *expected = part.replace("\\\n", "").rstrip("\n").split("\n")
        yield command, expected


def without_times(line: str) -> str:
    return re.sub(r"=+", "=", re.sub(r"\b\d+(\.\d+)?m?s\b", "0s", line)).strip()


def assert_shows(expected: list[str], output: str, where: str) -> None:
    """Assert that the expected lines come in the output, next to each other except where `...` stands."""
    shown = [without_times(line) for line in output.splitlines() if line.strip()]
    position, may_skip = 0, True
    for line in (without_times(line) for line in expected if line.strip()):
        if line == "...":
            may_skip = True
            continue
        try:
            found = shown.index(line, position)
        except ValueError:
            pytest.fail(f"{where}: the output lacks {line!r} from line {position + 1}\n{output}")
        if found != position and not may_skip:
            pytest.fail(f"{where}: {shown[position]!r} stands where the page says {line!r}\n{output}")
        position, may_skip = found + 1, False


def marks_of(page: str) -> list[pytest.MarkDecorator]:
    """Return the mark of a page about a slice, which may have been deleted."""
    return [needs(OF_SLICES[page])] if page in OF_SLICES else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "fixtures" / "tasks", tmp_path / "fixtures" / "tasks")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    return tmp_path


def run_in(folder: Path, command: str, *, must_succeed: bool = False) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"COLUMNS": "100", "GIT_CONFIG_GLOBAL": os.devnull, "PYTEST_ADDOPTS": "", "NO_COLOR": "1"}
    for name in ("CI", "BUILD_NUMBER", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    words = [] if set(command) & SHELL_CHARACTERS else shlex.split(command)
    is_script = bool(words) and words[0] in SCRIPTS
    if is_script or words[:2] == ["python", "-m"]:
        module, *words = [SCRIPTS[words[0]], *words[1:]] if is_script else words[2:]
        done = forked_runs.run(
            module, *words, folder=folder, environment=environment, is_script=is_script, is_merged=True
        )
    else:
        shell, pipe = ["bash", "-c", command], subprocess.PIPE
        done = subprocess.run(
            shell, cwd=folder, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True, timeout=900
        )
    assert done.returncode == 0 or not must_succeed, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=(*marks_of(page), *(() if page in FIRST_READ else (pytest.mark.slow,))))
        for page in PAGES
        if any(b.language == "console" for b in blocks_of(page))
    ],
)
def test_a_reader_who_types_the_commands_of_a_page_sees_what_it_shows(page: str, folder: Path) -> None:
    if "<!-- empty folder -->" in (ROOT / page).read_text("utf-8"):
        shutil.rmtree(folder / "fixtures")
    for block in blocks_of(page):
        if block.note.startswith("file: "):
            file = folder / block.note.removeprefix("file: ").strip()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, "utf-8")
        elif block.language == "console":
            for command, expected in commands_of(block):
                output = run_in(folder, command, must_succeed=not expected)
                assert_shows(expected, output, f"{page}:{block.line} $ {command}")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=marks_of(page))
        for page in PAGES
        if any(b.language == "python" for b in blocks_of(page))
    ],
)
def test_the_python_examples_of_a_page_do_what_it_shows(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    examples: list[doctest.Example] = []
    for block in blocks_of(page):
        if block.language == "python":
            for example in doctest.DocTestParser().get_examples(block.text):
                example.lineno += block.line - 1
                examples.append(example)
    assert examples, "a python block without >>> is not tried by anyone"
    test = doctest.DocTest(examples, {"__name__": "__main__"}, page, str(ROOT / page), 0, None)
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("page", PAGES)
def test_no_command_of_a_page_is_left_unrun_without_a_reason(page: str) -> None:
    for block in blocks_of(page):
        assert block.language != "bash", f"{page}:{block.line}: commands are console or sh blocks"
        if block.language == "sh":
            assert re.fullmatch(r"command: \w+|not run: \S.*", block.note), f"{page}:{block.line}: run by whom?"
            if block.note.startswith("command: "):
                run = f"readme_command {block.note.removeprefix('command: ')}"
                assert page == "README.md", f"{page}:{block.line}: commands that CI runs stand in the README"
                assert run in (ROOT / ".ci" / "run").read_text("utf-8")
        elif block.language == "console":
            assert list(commands_of(block)), f"{page}:{block.line}: no command after `$ `"
        else:
            typed = block.language in ("", "text") and re.search(
                r"^(\$ )?(python3? -m|pip|pytest|promptfmt|git) ", block.text, re.MULTILINE
            )
            assert not typed, f"{page}:{block.line}: a command in a block that nobody runs: {typed}"


def parse_json(text: str) -> None:
    """Parse JSON values that follow each other: one of several lines, or one for each line."""
    while text := text.lstrip():
        text = text[json.JSONDecoder().raw_decode(text)[1] :]


PARSERS: Mapping[str, Callable[[str], object]] = {
    # As lm-eval parses, without constructors, because tags such as `!function` have none here.
    "yaml": lambda text: list(yaml.compose_all(text, yaml.CSafeLoader)),
    "toml": tomllib.loads,
    "json": parse_json,
}


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("docs/rules/")])
def test_data_that_a_page_shows_can_be_parsed(page: str) -> None:
    """Also fenced blocks in lists, which are indented. Pages of rules show mistakes, also in YAML."""
    source = (ROOT / page).read_text("utf-8")
    for match in re.finditer(r"^( *)```(yaml|toml|json)\n(.*?)^\1```$", source, re.MULTILINE | re.DOTALL):
        try:
            PARSERS[match[2]](textwrap.dedent(match[3]))
        except (ValueError, yaml.YAMLError) as error:
            pytest.fail(f"{page}:{source.count(chr(10), 0, match.start()) + 1}: {error}")


def test_the_hooks_that_a_page_shows_are_those_of_the_project() -> None:
    [shown] = (yaml.safe_load(block.text) for block in blocks_of("docs/ci.md") if "hooks:" in block.text)
    known = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert [hook["id"] for hook in shown[0]["hooks"]] == [hook["id"] for hook in known]


def test_every_subcommand_that_a_page_names_is_there() -> None:
    for page in PAGES:
        named = set(re.findall(r"`promptfmt ([a-z]+)", (ROOT / page).read_text("utf-8")))
        assert named <= {*COMMANDS}, page


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_links_of_the_docs_work_in_the_site_as_well(page: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text("utf-8"))
    targets = [(ROOT / page).parent / link for link in links]
    outside = [str(target) for target in targets if not target.resolve().is_relative_to(ROOT / "docs")]
    assert not outside, "name files outside docs/ in code spans: the site does not have them"
    assert not [str(target) for target in targets if target.suffix != ".md"]


def test_the_docs_build_as_a_site_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="the site needs the dependency group docs")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    built = run_in(tmp_path, f"{sys.executable} -m zensical build -f mkdocs.yml --strict", must_succeed=True)
    assert "No issues found" in built
    pages = {path.relative_to(tmp_path / "docs") for path in (tmp_path / "docs").rglob("*.md")}
    site = tmp_path / "build" / "site"
    missing = [
        page
        for page in pages
        if not (site / page.parent / page.name.replace("README", "index")).with_suffix(".html").exists()
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_of_the_project_leads_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text("utf-8"))
    assert not [link for link in links if not ((ROOT / page).parent / link).exists()]


def test_the_options_ini_values_and_markers_of_the_settings_page_are_those_of_the_plugin(folder: Path) -> None:
    shown = run_in(folder, "pytest --promptfmt --help")
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    options = set(re.findall(r"--promptfmt[a-z-]*", shown))
    for each in PAGES:
        text = (ROOT / each).read_text("utf-8")
        unknown = set(re.findall(r"(?<![\w`.-])`?(--promptfmt(?:-[a-z]+)*)", text)) - options
        assert not unknown, f"{each} tells of options that there are not"
    inis = set(re.findall(r"^\s+(promptfmt[a-z_]*) \(", shown, re.MULTILINE))
    assert sorted(options) == sorted(re.findall(r"^\| `(--promptfmt[a-z-]*)", page, re.MULTILINE))
    assert sorted(inis) == sorted(re.findall(r"^\| (?:`--[^`]+`<br>)?`(promptfmt[a-z_]*)`", page, re.MULTILINE))
    markers = re.findall(r"^@pytest\.mark\.(promptfmt\w*)", run_in(folder, "pytest --markers"), re.MULTILINE)
    kinds = page.partition("| kind | marker |")[2].partition("\n\n")[0]
    assert set(markers) == set(re.findall(r"`(promptfmt_\w+)`", kinds))


@needs("models")
def test_the_docs_list_every_group_of_entry_points() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "pytest_promptfmt").rglob("*.py"))
    groups = re.findall(r'^\w+(?:: Final)? = "(pytest_promptfmt\.[a-z]+)"$', sources, re.MULTILINE)
    page = (ROOT / "docs" / "python-api.md").read_text("utf-8")
    assert sorted(groups) == sorted(re.findall(r"^\| `(pytest_promptfmt\.[a-z]+)`", page, re.MULTILINE))


@pytest.mark.parametrize("name", ["main", "tests"])
def test_the_readme_names_its_two_commands_once_as_ci_looks_for_them(name: str) -> None:
    found = [block for block in blocks_of("README.md") if block.note == f"command: {name}"]
    assert [block.language for block in found] == ["sh"]
    assert len(found[0].text.splitlines()) == 1
    assert f"readme_command {name}" in (ROOT / ".ci" / "run").read_text("utf-8")
