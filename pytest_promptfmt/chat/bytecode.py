"""Compiled chat templates kept between runs: Jinja takes 1 to 50 ms for each, reading one back a tenth of one.

A file is used only when it is whole and was made by this Python, this Jinja and this compiler for this very source.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from types import CodeType
from typing import Final

import jinja2
from jinja2.bccache import Bucket, BytecodeCache, bc_magic
from jinja2.environment import Environment

_DIGEST_BYTES: Final = 32
_MOST_BYTES: Final = 16_000_000


class TemplateCache(BytecodeCache):
    """Jinja's cache of compiled templates in one folder, which must be the user's own (`private_directory`).

    Code objects are read with `marshal`, which trusts what it reads: that is why the folder must be private, and why
    each file begins with a digest of the rest. A file that is cut off or changed is made again; one that cannot be
    written is not missed.
    """

    def __init__(self, folder: Path, compiler: Iterable[Path]) -> None:
        """Keep what is compiled in `folder`; `compiler` are the modules that decide to what code a source is compiled.

        Raises OSError where they cannot be read.
        """
        self._folder = folder
        self._compiler = _digest_of(compiler)

    def code_of(self, environment: Environment, source: str) -> CodeType:
        """Return the code of a template; raises what compiling it raises."""
        # Surrogates, which UTF-8 refuses, can stand in a template.
        key = sha256(self._compiler + source.encode("utf-8", "surrogatepass")).hexdigest()
        bucket = Bucket(environment, key, key)
        self.load_bytecode(bucket)
        if bucket.code is None:
            bucket.code = environment.compile(source)
            self.dump_bytecode(bucket)
        return bucket.code

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill the bucket when there is a file for it that is whole."""
        try:
            with open(self._folder / f"{bucket.key}.jinja-code", "rb") as file:
                data = file.read(_MOST_BYTES)
        except OSError:
            return
        digest, code = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if sha256(code).digest() != digest:
            return
        try:
            bucket.load_bytecode(BytesIO(code))
        except Exception:  # another Python's idea of code; Jinja looks for it, and marshal may still refuse
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the file of the bucket; readers see all of it or nothing."""
        code = bucket.bytecode_to_string()
        if len(code) > _MOST_BYTES - _DIGEST_BYTES:
            return
        temporary = self._folder / f".{bucket.key}.{os.getpid()}"
        try:
            temporary.write_bytes(sha256(code).digest() + code)
            temporary.replace(self._folder / f"{bucket.key}.jinja-code")
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _digest_of(compiler: Iterable[Path]) -> bytes:
    """Return what must change whenever the same source may be compiled to other code."""
    digest = sha256(f"{jinja2.__version__}\0".encode() + bc_magic)
    for module in compiler:
        digest.update(module.read_bytes())
    return digest.digest()
