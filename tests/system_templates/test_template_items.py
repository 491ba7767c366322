"""Chat templates in pytest: which files are collected, their snapshots, and their lint."""

from __future__ import annotations

import json
import re
import shutil
import struct
import zlib
from base64 import b64decode
from pathlib import Path

import pytest
from plugin_project import Project

from pytest_promptfmt.core.profile import builtin_template
from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder

LINT = ("-o", "promptfmt_lint=true")  # which the tests of the plugin switch off
CHATML = builtin_template("chatml")


def snapshot_ids(project: Project, *arguments: str) -> set[str]:
    collected = project.collected("--promptfmt", "-m", "promptfmt_snapshot", *arguments)
    return {node.partition("::snapshot[")[0] for node in collected}


SNAPSHOT = "__prompts__/chat_template/chat_template/conversations.txt"


def test_a_template_in_the_rootdir_has_one_snapshot_with_all_conversations_and_a_lint(project: Project) -> None:
    project.write("chat_template.jinja", CHATML)
    assert project.collected("--promptfmt", *LINT) == [
        "chat_template.jinja::chat_template::snapshot[conversations]",
        "chat_template.jinja::chat_template::lint",
    ]
    project.accept()
    (name,) = project.snapshots()
    assert name == SNAPSHOT
    written = project.snapshots()[SNAPSHOT].decode()
    assert "profile: conversations\noutput: conversation\n" in written
    assert "\ndoc 1\n  conversation question\n  prompt\n" in written
    assert "  | <|im_start|>assistant\n  | ⟨end⟩\n" in written
    assert written.count("\n  conversation ") > 90
    assert project.run().ret == 0


def test_a_change_of_a_template_names_the_line_that_wrote_it(project: Project) -> None:
    project.write("chat_template.jinja", CHATML)
    project.accept()
    project.edit("chat_template.jinja", "<|im_start|>assistant", "<|im_start|>model")
    line = (project.root / "chat_template.jinja").read_text("utf-8").partition("<|im_start|>model")[0].count("\n") + 1
    changed = project.run("-q")
    assert changed.ret == 1
    changed.stdout.fnmatch_lines(
        ["*doc 1 (conversation question), prompt*", f"*cause: chat_template.jinja:{line} chat template*"]
    )


def test_a_clone_under_another_name_is_the_same(project: Project) -> None:
    for name in ("one", "two"):
        folder = Path(shutil.copytree(archetype_folder("bytelevel-qwen"), project.root / name))
        (folder / "chat_template.jinja").write_text(CHATML, "utf-8")
    project.accept("one")
    shutil.copytree(project.root / "one" / "__prompts__", project.root / "two" / "__prompts__")
    lock = (project.root / "promptfmt.lock").read_text("utf-8")
    assert project.run("two").ret == 0
    project.accept("two")
    assert project.run("one", "two").ret == 0
    assert (project.root / "promptfmt.lock").read_text("utf-8") == lock
    assert "one" not in lock
    snapshots = project.snapshots()
    assert len(snapshots) == 2
    assert len(set(snapshots.values())) == 1


def test_templates_below_the_rootdir_are_collected_only_where_they_are_asked_for(project: Project) -> None:
    project.write("models/one/chat_template.jinja", CHATML)
    project.write("models/two/chat_template.jinja", CHATML)
    project.write("models/notes.jinja", "Dear {{ name }}")
    project.task("arc.yaml")
    one = "models/one/chat_template.jinja::chat_template"
    assert snapshot_ids(project) == {"arc.yaml::arc"}
    assert snapshot_ids(project, "models/one") == {one}
    assert snapshot_ids(project, "models") == {one, one.replace("one", "two")}
    assert snapshot_ids(project, "models/one/chat_template.jinja") == {one}
    assert snapshot_ids(project, "-o", "promptfmt_templates=models/one") == {"arc.yaml::arc", one}
    project.write("promptfmt.yaml", "templates: models/*/*.jinja\n")
    assert len(snapshot_ids(project)) == 3
    project.accept("-m", "promptfmt_snapshot")
    assert f"models/two/{SNAPSHOT}" in project.snapshots()


def test_snapshots_of_a_template_that_a_run_does_not_collect_are_not_obsolete(project: Project) -> None:
    project.write("models/one/chat_template.jinja", CHATML)
    project.task("arc.yaml")
    project.accept("arc.yaml")
    project.accept("models/one")
    written = set(project.snapshots())
    assert "unused" not in project.run().stdout.str()
    project.accept()
    assert set(project.snapshots()) == written
    (project.root / "models/one/chat_template.jinja").unlink()
    assert "unused" in project.run().stdout.str()


def test_json_files_of_transformers_give_their_templates_by_name(project: Project) -> None:
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": CHATML}]
    project.write("tokenizer_config.json", json.dumps({"chat_template": named, "eos_token": {"content": "<|im_end|>"}}))
    project.write("chat_template.json", json.dumps({"chat_template": CHATML}))
    project.write("package.json", json.dumps({"name": "x", "messages": 1}))
    assert snapshot_ids(project) == {
        "chat_template.json::chat_template",
        "tokenizer_config.json::default",
        "tokenizer_config.json::tool_use",
    }
    project.write("chat_template.jinja", CHATML)  # which transformers reads alone
    assert snapshot_ids(project) == {"chat_template.jinja::chat_template"}


def test_a_tokenizer_beside_the_template_adds_tokens_to_the_snapshots(project: Project) -> None:
    folder = Path(shutil.copytree(archetype_folder("bytelevel-qwen"), project.root / "qwen"))
    (folder / "chat_template.jinja").write_text(CHATML, "utf-8")
    project.run("-q", "--snapshot-update", "qwen/chat_template.jinja").assert_outcomes(passed=1)
    (written,) = project.snapshots().values()
    assert re.search(r"\ntokenizer: [0-9a-f]{16}\n", written.decode())
    assert "⟦<|im_start|>⟧" in written.decode()


def test_a_snapshot_holds_which_answers_a_response_template_reads_back(project: Project) -> None:
    pytest.importorskip("transformers.utils.chat_parsing.response_parser")
    reading = {"start_anchor": "<|im_start|>assistant\n", "fields": {"content": {"close_pattern": r"<\|im_end\|>\n?"}}}
    config = {"eos_token": "<|im_end|>", "chat_template": CHATML, "response_template": reading}
    project.write("tokenizer_config.json", json.dumps(config))
    project.accept()
    (written,) = project.snapshots().values()
    assert '  answers read back\n    "message 2: comes back"\n    "message 4: comes back"\n' in written.decode()
    project.write(
        "tokenizer_config.json", json.dumps({**config, "chat_template": CHATML.replace("content", "content | upper")})
    )
    assert project.run("-q").ret == 1


def test_the_report_shows_which_answers_come_back(project: Project) -> None:
    pytest.importorskip("transformers.utils.chat_parsing.response_parser")
    reading = {"start_anchor": "<|im_start|>assistant\n", "fields": {"content": {"close": " "}}}
    config = {"eos_token": "<|im_end|>", "chat_template": CHATML, "response_template": reading}
    project.write("tokenizer_config.json", json.dumps(config))
    project.run("-q", "--snapshot-update", "--promptfmt-html", "report.html")
    found = re.findall(r'id="chunk-\d+">(.*?)</script>', (project.root / "report.html").read_text("utf-8"))
    views = [view for each in found for view in json.loads(zlib.decompress(b64decode(each), wbits=31))]
    (verdicts,) = (view["verdicts"] for view in views if "verdicts" in view)
    lost = next(cells for name, message, cells, _ in verdicts["rows"] if (name, message) == ("answer", "message 2"))
    assert (verdicts["pipelines"][0], lost[0]) == (
        "read whole",
        "miss: the parser changes the content of the message",
    )


def test_the_metadata_of_a_gguf_file_is_read_without_its_weights(project: Project) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 2) + struct.pack("<ff", 0.0, 1.0),
        text("llama.block_count") + struct.pack("<II", 4, 1),
        text("tokenizer.chat_template") + struct.pack("<I", 8) + text(CHATML),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))
    (project.root / "tiny.gguf").write_bytes(head + b"".join(pairs))
    assert snapshot_ids(project) == {"tiny.gguf::tiny"}
    (project.root / "cut.gguf").write_bytes(head + pairs[0][:30])
    project.run("-q", "cut.gguf").stdout.fnmatch_lines(["*the metadata of this GGUF file cannot be read*"])


def test_a_refusal_is_a_line_of_the_snapshot_and_no_failure(project: Project) -> None:
    project.write(
        "chat_template.jinja", "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}" + CHATML
    )
    project.accept("-m", "promptfmt_snapshot")
    written = project.snapshots()[SNAPSHOT].decode()
    assert '  prompt 2 refused\n    "one only"\n' in written
    assert project.run("-m", "promptfmt_snapshot").ret == 0


def test_lint_fails_on_errors_and_names_conversation_and_line(project: Project) -> None:
    project.write(
        "chat_template.jinja",
        "{%- for message in messages if message.role != 'system' %}{{ message.content }}{% endfor %}",
    )
    result = project.run("-q", "-m", "promptfmt_lint", *LINT)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*PF433 the system text is lost in a conversation with a system message*",
            "*saw: conversation 'system': *",
        ]
    )
    ignored = project.run("-q", "-m", "promptfmt_lint", *LINT, "-o", "promptfmt_ignore=PF43")
    assert ignored.ret == 0


def test_own_conversations_are_read_beside_a_template(project: Project) -> None:
    project.write("chat_template.jinja", CHATML)
    project.write(
        "our.conversations.yaml",
        "conversations:\n"
        "  weather:\n"
        "    about: our weather tool\n"
        "    base: question\n"
        "    tools: assay\n"
        "    messages:\n"
        "      - {role: user, content: Will it rain tomorrow}\n",
    )
    project.accept()
    assert re.search(r"\ndoc 1\d\d\d\n  conversation weather\n", project.snapshots()[SNAPSHOT].decode())
    project.edit("our.conversations.yaml", "base: question", "base: questoin")
    broken = project.run("-q")
    broken.stdout.fnmatch_lines(["*conversation 'weather' refers to the unknown conversation 'questoin'*"])


def test_formats_and_profiles_of_a_run_are_for_tasks_alone(project: Project) -> None:
    project.write("chat_template.jinja", CHATML)
    usual = project.collected("--promptfmt", "chat_template.jinja")
    assert project.collected("--promptfmt", "chat_template.jinja", "--promptfmt-profile", "chat-gemma") == usual
    assert project.collected("--promptfmt", "chat_template.jinja", "--promptfmt-variants", "enumerator") == usual
    assert not project.collected("--promptfmt", "chat_template.jinja", "--promptfmt-format", "mcqa")


def test_a_training_template_must_write_what_the_template_that_it_trains_for_writes(project: Project) -> None:
    project.write("vendor/chat_template.jinja", CHATML)
    project.write("sft.jinja", CHATML.replace("<|im_end|>", "<|im_end|>\\n"))
    project.write("promptfmt.yaml", "training_of: vendor/chat_template.jinja\n")
    lint = ("-m", "promptfmt_lint", *LINT, "-q")
    project.run(*lint).stdout.fnmatch_lines(["*sft.jinja*the prompts for training and inference differ*"])
    project.write("sft.jinja", CHATML)
    project.run(*lint).stdout.no_fnmatch_line("*PF454*")
    project.write("promptfmt.yaml", "training_of: {sft.jinja: vendor/chat_templat.jinja}\n")
    wrong = project.run(*lint)
    assert wrong.ret != 0
    said = wrong.stdout.str() + wrong.stderr.str()
    assert "promptfmt.yaml:1:1" in said
    assert "did you mean 'chat_template.jinja'" in said
