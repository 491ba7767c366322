"""`python -m pytest_promptfmt` is the command `promptfmt`."""

from __future__ import annotations

import sys

from pytest_promptfmt.cli import main

sys.exit(main())
