"""What `promptfmt show` shows is what the tests compare."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from promptfmt_command import promptfmt, write_task
from slices import needs

GALLERY = Path(__file__).parents[2] / "fixtures" / "tasks"
TWO_ENDINGS = """
from pytest_promptfmt import Dataset, System, Task, TaskDocs, TaskFile, register_system

class Decks(System):
    name = "decks"
    suffixes = (".deck.txt",)

    def recognizes(self, path, head):
        return True

    def read(self, path, context):
        docs = TaskDocs.in_memory([{"question": path.read_text("utf-8")}])
        task = Task(name=path.name.partition(".")[0], path=path, system=self.name, output_type="none",
                    doc_to_text="{{question}}", doc_to_target="", dataset=Dataset(given=lambda count, shots: docs))
        return TaskFile(path=path, tasks=(task,), names=(task.name,))

register_system(Decks())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option-of-another-plugin\n", "utf-8")
    return tmp_path


def test_the_spans_of_the_data_make_up_the_prompt_and_say_where_they_come_from() -> None:
    done = promptfmt(GALLERY.parent, "show", "planets", "tasks", "--profile", "plain", "--json")
    [shown] = json.loads(done.stdout)
    assert (shown["task"], shown["profile"], done.returncode) == ("planets", "plain", 0)
    for doc in shown["docs"]:
        for prompt in doc["prompts"]:
            assert "".join(span["text"] for span in prompt["spans"]) == prompt["text"]
    spans = shown["docs"][0]["prompts"][0]["spans"]
    assert [span["column"] for span in spans] == ["ask", None]
    assert spans[1]["position"] == "tasks/planets.yaml:9:1"
    assert [request["gold"] for request in shown["docs"][0]["requests"]] == [False, True, False]


def test_text_shows_blanks_line_ends_requests_and_findings(folder: Path) -> None:
    write_task(folder, "arc", "Q: {{question}}\\nA: ", doc_to_choice="[a, b]", gen_prefix="")
    file = folder / "tasks/arc.yaml"
    file.write_text(file.read_text("utf-8").replace("generate_until", "multiple_choice"), "utf-8")
    done = promptfmt(folder, "show", "arc", "--profile", "plain", "--doc", "2")
    assert done.returncode == 0
    assert "Q:·«question·2»↵\nA:·⟨end⟩\n" in done.stdout
    assert "question·1" not in done.stdout
    assert '" a"' in done.stdout
    assert "PF201" in done.stdout


def test_answers_shows_the_forms_in_which_the_prompt_asks_for_its_answer(folder: Path) -> None:
    write_task(folder, "arc", "{{question}}\\nEnd with 'ANSWER: LETTER', where LETTER is A or B.")
    done = promptfmt(folder, "show", "arc", "--profile", "plain", "--doc", "1", "--answers")
    assert "requests a sentence, such as 'ANSWER: B', by 'ANSWER: LETTER'" in done.stdout
    write_task(folder, "arc", "{{question}}")
    done = promptfmt(folder, "show", "arc", "--profile", "plain", "--doc", "1", "--answers")
    assert "promptfmt recognizes no form of answer that the prompt requests" in done.stdout


def test_control_characters_of_a_prompt_do_not_reach_the_terminal(folder: Path) -> None:
    write_task(folder, "arc", "\\e[31m{{question}}\\u202e")
    done = promptfmt(folder, "show", "arc", "--profile", "plain")
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
    assert "⟨U+001B⟩[31m" in done.stdout


def test_no_line_of_a_prompt_is_a_command_for_a_ci_server(folder: Path) -> None:
    write_task(folder, "arc", "Q\\n::error::x\\n ::warning::y ##[error]z {{question}}")
    shown = promptfmt(folder, "show", "arc", "--profile", "plain").stdout
    assert "\\::error::x" in shown
    assert not [line for line in shown.splitlines() if line.lstrip().startswith("::") or "##[" in line]


def test_continuations_are_shown_in_the_tokens_that_are_scored_and_findings_at_their_doc(folder: Path) -> None:
    file = write_task(folder, "arc", "Q: {{question}}\\nA: ", doc_to_choice="[apple, pear]")
    file.write_text(file.read_text("utf-8").replace("generate_until", "multiple_choice"), "utf-8")
    (folder / "promptfmt.yaml").write_text("profiles: {gpt2: {tokenizer: 'archetype:bytelevel-gpt2'}}\n", "utf-8")
    shown = promptfmt(folder, "show", "arc", "--profile", "gpt2", "--tokens").stdout
    lines = shown.splitlines()
    for name in ("apple", "pear"):
        [*_, tokens] = next(line for line in lines if f'" {name}"' in line).split("  ")
        assert tokens.replace("│", "").replace("␣", " ").endswith(name)
    first = shown.partition("doc 2")[0]
    assert "PF201" in first, "the check speaks of the first doc"
    assert shown.count("PF201") == 1


def test_tokens_are_shown_where_the_profile_has_a_tokenizer(folder: Path) -> None:
    write_task(folder, "arc")
    (folder / "promptfmt.yaml").write_text("profiles: {gpt2: {tokenizer: 'archetype:bytelevel-gpt2'}}\n", "utf-8")
    done = promptfmt(folder, "show", "arc", "--profile", "gpt2", "--doc", "1", "--ids")
    assert done.returncode == 0
    assert " tokens\n" in done.stdout
    assert "│" in done.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["nosuch"], "no task matches 'nosuch'"),
        (["arc", "--profile", "plane"], "unknown profile 'plane'"),
        (["arc", "--doc", "9"], "no doc 9"),
        (["broken"], "tasks/broken.yaml:2:1: unknown task key 'test_splitt'"),
    ],
)
def test_what_cannot_be_shown_is_one_message_and_an_exit_code(folder: Path, args: list[str], told: str) -> None:
    file = write_task(folder, "arc")
    file.write_text(
        file.read_text("utf-8") + 'metadata: {promptfmt: {docs: [{question: "1+1", answer: "2"}]}}\n', "utf-8"
    )
    broken = write_task(folder, "broken")
    broken.write_text(broken.read_text("utf-8").replace("test_split", "test_splitt"), "utf-8")
    done = promptfmt(folder, "show", *args)
    assert done.returncode in (1, 2)
    assert told in done.stderr


@pytest.mark.parametrize(
    ("formats", "asked", "hint"),
    [
        ("{mcqa: null, cloze: null}", "mcqq", "did you mean 'mcqa'?"),
        ("{mcqa: null, cloze: null}", "nope", "its formats are mcqa, cloze"),
        ("null", "mcqa", "to show this format anyway: `promptfmt show arc --format mcqa`"),
        ("null", "mcqq", "did you mean 'mcqa'?"),
    ],
)
def test_a_format_that_a_task_does_not_name_is_told_with_those_it_names(
    folder: Path, formats: str, asked: str, hint: str
) -> None:
    write_task(folder, "arc", formats=formats, doc_to_choice="choices")
    done = promptfmt(folder, "show", f"arc@{asked}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"task 'arc' has no format {asked!r}\n  hint: {hint}\n"


def test_a_name_that_no_file_has_is_told_without_collecting_anything(folder: Path) -> None:
    write_task(folder, "arc_easy")
    (folder / "conftest.py").write_text("raise SystemExit('collected')\n", "utf-8")
    done = promptfmt(folder, "show", "arc_esy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "no task matches 'arc_esy'\n  hint: did you mean 'arc_easy'?\n"


def test_an_unknown_name_is_an_error_before_what_collects_is_imported(folder: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "pytest_promptfmt", "show", "nobody"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 2
    assert "no task matches 'nobody'" in done.stderr
    assert "pytest_promptfmt.cli.options" in done.stderr
    assert "pytest_promptfmt.plugin.collected" not in done.stderr


@pytest.mark.parametrize(
    ("loop", "seconds", "message"),
    [
        (
            "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
            60,
            "needs more memory",
        ),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            2,
            "did not finish within 2 s",
        ),
    ],
)
def test_a_template_has_the_memory_and_time_of_a_test(folder: Path, loop: str, seconds: int, message: str) -> None:
    (folder / "promptfmt.yaml").write_text(f"time_limit: {seconds}\n", "utf-8")
    write_task(folder, "arc", doc_to_text=f"Q {loop}")
    done = promptfmt(folder, "show", "arc", "--profile", "plain")
    assert (done.returncode, message in done.stderr) == (1, True), done


def test_python_files_that_name_a_task_are_not_run(folder: Path) -> None:
    write_task(folder, "arc")
    (folder / "tasks/utils.py").write_text("open('run', 'w').write('arc')\n", "utf-8")
    done = promptfmt(folder, "show", "arc", "--profile", "plain", "--no-spaces")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Q: " in done.stdout
    promptfmt(folder, "check", "tasks/arc.yaml", "tasks/utils.py")
    assert not (folder / "run").exists()


def test_a_task_is_found_from_a_folder_below_the_root(folder: Path) -> None:
    write_task(folder, "arc")
    (folder / "docs").mkdir()
    assert "Q: " in promptfmt(folder / "docs", "show", "arc", "--profile", "plain", "--no-spaces").stdout


def test_a_reader_who_stops_early_gets_no_traceback() -> None:
    command = f"{shlex.quote(sys.executable)} -m pytest_promptfmt show '*' tasks | head -n 2"
    environment = {**os.environ, "PYTHONPATH": str(GALLERY.parents[1])}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        ["bash", "-c", command], cwd=GALLERY.parent, env=environment, capture_output=True, text=True, timeout=900
    )
    assert len(done.stdout.splitlines()) == 2
    assert "INTERNALERROR" not in done.stderr
    assert "SystemExit" not in done.stderr


@needs("templates")
def test_a_template_is_found_by_the_name_of_its_file_and_any_file_by_its_path(folder: Path) -> None:
    write_task(folder, "arc", "Q: {{question}}")
    (folder / "chats").mkdir()
    (folder / "chats/brief.jinja").write_text(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", "utf-8"
    )
    by_name = promptfmt(folder, "show", "brief", "chats")
    assert by_name.stdout.startswith("brief [conversations]")
    assert promptfmt(folder, "show", "chats/brief.jinja").stdout == by_name.stdout
    assert promptfmt(folder, "show", "tasks/arc.yaml").stdout.startswith("arc [plain]")
    assert promptfmt(folder, "show", "tasks/").stdout.startswith("arc [plain]")
    assert "did you mean 'brief'?" in promptfmt(folder, "show", "brie", "chats").stderr


def test_a_task_named_after_a_file_with_two_endings_is_found(folder: Path) -> None:
    (folder / "conftest.py").write_text(TWO_ENDINGS, "utf-8")
    (folder / "metals.deck.txt").write_text("Which metal rusts?", "utf-8")
    assert promptfmt(folder, "show", "metals").stdout.startswith("metals [plain]\nmetals.deck.txt\n")
