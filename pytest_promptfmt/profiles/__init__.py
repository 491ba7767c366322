"""Text to tokens as AutoTokenizer does it: where a tokenizer comes from, how it is loaded, what it does to a pair.

Importing this package imports neither `tokenizers` nor `transformers`; loading a tokenizer imports what it needs.
"""

from __future__ import annotations

from pytest_promptfmt.core.errors import TokenizerError
from pytest_promptfmt.profiles.tokenizer import Encoding, Tokenizer
from pytest_promptfmt.profiles.tokenizer_loader import load_tokenizer
from pytest_promptfmt.profiles.tokenizer_sources import ARCHETYPES

__all__ = ["ARCHETYPES", "Encoding", "Tokenizer", "TokenizerError", "load_tokenizer"]
