"""Whether this process may use the network: a run is offline, except for what the user asked to download.

Hugging Face's libraries take this from environment variables, which they read when they are imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_HUB: Final = "HF_HUB_OFFLINE"
_VARIABLES: Final = (_HUB, "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE")

_set_here: set[str] = set()
"""The variables that the user had not set."""


def go_offline() -> None:
    """Make Hugging Face's libraries fail at once, without retries, where they would ask the hub; keeps what is set."""
    for name in _VARIABLES:
        if name not in os.environ:
            os.environ[name] = "1"
            _set_here.add(name)


def is_offline() -> bool:
    """Return whether neither the user nor this run lets Hugging Face's libraries ask the hub."""
    return os.environ.get(_HUB, "").upper() in ("1", "ON", "YES", "TRUE")


@contextmanager
def online() -> Iterator[None]:
    """Undo `go_offline` inside the block; the user's own variables still apply."""
    taken = {name: os.environ.pop(name) for name in _set_here if name in os.environ}
    _update_loaded_hub(taken, offline=False)
    try:
        yield
    finally:
        os.environ.update(taken)
        _update_loaded_hub(taken, offline=True)


def _update_loaded_hub(taken: dict[str, str], *, offline: bool) -> None:
    # huggingface_hub reads the variable once, and this constant before each request.
    constants: Any = sys.modules.get("huggingface_hub.constants")
    if constants is not None and _HUB in taken:
        constants.HF_HUB_OFFLINE = offline
