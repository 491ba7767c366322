"""What lies beside a chat template is somebody else's, too: a link to a file outside is named, and never shown."""

from __future__ import annotations

import pytest
from plugin_project import Project

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
SECRET = "TOKEN_OF_THE_JOB={{ messages }}"


@pytest.mark.parametrize(
    "name",
    [
        "chat_template.jinja",
        "chat_template_training.jinja",
        "chat_template.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "own.conversations.yaml",
    ],
)
def test_a_link_to_a_file_outside_is_said_and_its_content_never_shown(project: Project, name: str) -> None:
    project.write("model.jinja" if name == "chat_template.jinja" else "chat_template.jinja", TEMPLATE)
    outside = project.root.parent / "outside.txt"
    outside.write_text(SECRET, "utf-8")
    (project.root / name).symlink_to(outside)
    found = project.run("-o", "promptfmt_lint=true", "-vv")
    said = found.stdout.str() + found.stderr.str()
    assert "TOKEN_OF_THE_JOB" not in said
    assert "outside the rootdir" in said
    project.run("-o", "promptfmt_lint=true", "--snapshot-update")
    written = [path.read_bytes() for path in project.root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not any(b"TOKEN_OF_THE_JOB" in content for content in written)
