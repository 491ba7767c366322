"""Python's and numpy's global random state, put in place around the code of a task."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final


class OwnRandomness:
    """Python's and numpy's global random state as a task's functions see it: seeded, and separate from all others."""

    _PYTHON_SEED: Final = 0
    _NUMPY_SEED: Final = 1234

    def __init__(self) -> None:
        self._python: Any = None
        self._numpy: Any = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Put the task's own state in place for the block, and the earlier one back after it."""
        numpy = sys.modules.get("numpy.random")
        earlier = random.getstate()
        earlier_numpy = numpy.get_state() if numpy is not None else None
        if self._python is None:
            random.seed(self._PYTHON_SEED)
        else:
            random.setstate(self._python)
        if numpy is not None:
            if self._numpy is None:
                numpy.seed(self._NUMPY_SEED)
            else:
                numpy.set_state(self._numpy)
        try:
            yield
        finally:
            self._python = random.getstate()
            random.setstate(earlier)
            if numpy is not None:
                self._numpy = numpy.get_state()
                numpy.set_state(earlier_numpy)
