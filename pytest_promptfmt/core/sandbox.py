"""A Jinja sandbox that also refuses to repeat a text until it is too large to be a prompt.

Jinja's own sandbox keeps templates away from Python's internals. Both template dialects, that of tasks and that of chat
templates, are built on the environment below. Time and memory are limited where templates run: in a worker, by the
operating system. Here only the usual mistakes are refused, with a message that names them: a factor that is too large,
and a text that has no end.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from types import BuiltinMethodType
from typing import Any, Final

from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from pytest_promptfmt.core.errors import LimitExceededError

MAX_CHARACTERS: Final = 10_000_000
"""The longest text that a template may make."""

_MAX_BITS: Final = 100_000
_PIECES_AT_ONCE: Final = 1000
_SEQUENCES: Final = (str, bytes, list, tuple)

_TEXT_METHODS: Final = frozenset(name for name in dir(str) if name[0] != "_") - {"format", "format_map"}
_MAPPING_NAMES: Final = frozenset(dir(dict))
_READING_METHODS: Final = frozenset(("get", "items", "keys", "values"))
_LOOP_NUMBERS: Final = frozenset(("first", "index", "index0", "last", "length", "revindex", "revindex0"))


def require(size: int) -> None:
    """Refuse a text or list of more than `MAX_CHARACTERS` characters or elements with LimitExceededError."""
    if size > MAX_CHARACTERS:
        raise LimitExceededError(
            f"the template makes a text or list of more than {MAX_CHARACTERS:,} characters or elements",
            hint="shorten the loop, or a product such as `text * number`",
        )


class LimitedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox; making a text longer than `MAX_CHARACTERS` raises LimitExceededError."""

    intercepted_binops = frozenset({"*", "**"})

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Return the joined pieces of a macro, block or template; an endless iterable is read only up to the limit."""
        endless, kept, size = iter(pieces), list[str](), 0
        while some := list(islice(endless, _PIECES_AT_ONCE)):
            size += sum(map(len, some))
            require(size)
            kept += some
        return "".join(kept)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of a product or power, unless it would be too large."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise LimitExceededError("the template computes with a number of more than 30,000 digits")
        for sequence, count in ((left, right), (right, left)):
            if isinstance(count, int) and isinstance(sequence, _SEQUENCES):
                require(len(sequence) * max(count, 0))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Return the result of a call; what cannot do harm is called without the checks of Jinja, which take long.

        Those are macros, namespaces, and methods of texts and mappings: others than reading ones are refused when
        looked up.
        """
        is_macro = __obj.__class__ is Macro
        is_method = __obj.__class__ is BuiltinMethodType and __obj.__self__.__class__ in (str, dict)
        if is_macro or is_method or (__obj.__class__ is type and issubclass(__obj, Namespace)):
            for name in ("_loop_vars", "_block_vars"):  # Jinja's own arguments inside loops and blocks
                kwargs.pop(name, None)
            return __obj(__context.eval_ctx, *args, **kwargs) if is_macro else __obj(*args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute or item of a value; what cannot do harm of texts, mappings and loops without checks."""
        kind = type(obj)
        if kind is dict:
            if attribute not in _MAPPING_NAMES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            if attribute in _READING_METHODS:
                return getattr(obj, attribute)
        elif (kind is str and attribute in _TEXT_METHODS) or (kind is LoopContext and attribute in _LOOP_NUMBERS):
            return getattr(obj, attribute)
        elif issubclass(kind, Namespace) and attribute[:1] != "_":
            # All of it is the template's own; Jinja asks a namespace for its class a dozen times, which is slow.
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)
