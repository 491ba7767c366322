"""Content parts of messages, as lm-eval's models of images and text make them."""

from __future__ import annotations

import ast
import random
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_promptfmt.profiles.chat_prompt import IMAGE, with_parts

pytestmark = pytest.mark.parity

PIECES = (IMAGE, "<image", "x>", "A chart", " ", "\n")


def upstream() -> Any:
    """Return `HFMultimodalLM.apply_chat_template`, from its source: the module needs torch."""
    spec = find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs lm-evaluation-harness")
    source = Path(spec.submodule_search_locations[0], "models/hf_vlms.py").read_text("utf-8")
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    (function,) = [node for node in nodes if node.name == "apply_chat_template"]
    function.returns, function.args.kwarg = None, None
    for argument in function.args.args:
        argument.annotation = None
    scope: dict[str, Any] = {"DEFAULT_IMAGE_PLACEHOLDER": IMAGE}
    exec(compile(ast.fix_missing_locations(ast.Module([function], [])), "hf_vlms", "exec"), scope)
    return scope["apply_chat_template"]


def test_content_parts_are_those_of_lm_eval() -> None:
    theirs, draw = upstream(), random.Random(1)
    processor = SimpleNamespace(apply_chat_template=lambda history, **_: history)
    model = SimpleNamespace(interleave=True, max_images=999, chat_applied=False, processor=processor)
    for _ in range(2000):
        texts = ["".join(draw.choices(PIECES, k=draw.randint(0, 8))) for _ in range(draw.randint(1, 4))]
        messages = [{"role": draw.choice(["system", "user", "assistant"]), "content": text} for text in texts]
        assert with_parts(messages) == theirs(model, [dict(message) for message in messages])
