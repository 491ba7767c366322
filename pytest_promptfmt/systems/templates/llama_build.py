"""Builds the template engine of llama.cpp (`common/jinja`) alone, as a program that `engines.py` asks.

`python -m pytest_promptfmt.systems.templates.llama_build [ARCHIVE]` downloads the source archive of `llama-cpp-python`
with pip, unless it is named, and compiles nine of its files: a minute of processor time. The program is put into the
user's cache. Nothing of llama.cpp (MIT License) is part of this package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.files import cache_directory
from pytest_promptfmt.systems.templates.engines import PROGRAM

SOURCE: Final = "llama-cpp-python==0.3.36"
"""The archive whose engine is built; the driver is written for its interface."""

_FILES: Final = (
    *(f"common/jinja/{name}.cpp" for name in ("lexer", "parser", "runtime", "string", "value", "caps")),
    "common/json.cpp",
    "common/unicode.cpp",
)
_NEEDED: Final = ("/vendor/llama.cpp/common/", "/vendor/llama.cpp/vendor/nlohmann/")
_GGML: Final = "#include <cstdlib>\n#define GGML_ASSERT(x) do { if (!(x)) std::abort(); } while (0)\n"
"""The only name of `ggml.h` that these files use."""


def build(archive: Path | None = None) -> Path:
    """Return the program, built from a source archive; raises SettingsError for what fails on the way."""
    caches, compiler = cache_directory(), os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if caches is None:
        raise SettingsError("there is no cache folder", hint="set PROMPTFMT_CACHE_DIR")
    if compiler is None:
        raise SettingsError("there is no C++ compiler", hint="install g++ or clang++, or set CXX")
    with TemporaryDirectory() as scratch:
        folder = _unpacked(archive or _downloaded(Path(scratch)), Path(scratch))
        (folder / "ggml.h").write_text(_GGML, "utf-8")
        driver = folder / "driver.cpp"
        driver.write_text(
            (resources.files("pytest_promptfmt") / "data/engines/llama_cpp.cpp").read_text("utf-8"), "utf-8"
        )
        program = Path(scratch, PROGRAM)
        places = [f"-I{each}" for each in (folder, folder / "common", folder / "vendor")]
        files = [str(folder / name) for name in _FILES]
        _run([compiler, "-std=c++17", "-O1", *places, str(driver), *files, "-o", str(program)])
        caches.mkdir(parents=True, exist_ok=True)
        shutil.copy(program, caches / PROGRAM)
    return caches / PROGRAM


def _downloaded(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python"]
    _run([*pip, "--dest", str(folder), SOURCE])
    return next(folder.glob("*.tar.gz"))


def _unpacked(archive: Path, folder: Path) -> Path:
    """Return the folder of llama.cpp with the files that are needed."""
    try:
        with tarfile.open(archive) as tar:
            needed = [each for each in tar if each.isfile() and any(place in each.name for place in _NEEDED)]
            tar.extractall(folder, needed, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise SettingsError(f"{archive.name} cannot be unpacked: {error}") from error
    found = next(folder.glob("*/vendor/llama.cpp"), None)
    if found is None or not all((found / name).is_file() for name in _FILES):
        raise SettingsError(f"{archive.name} lacks files of the engine", hint=f"expected the archive of {SOURCE}")
    return found


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        problem = next((line for line in done.stderr.splitlines() if "error" in line.casefold()), done.stderr[-300:])
        raise SettingsError(f"{Path(command[0]).name} fails: {problem}")


if __name__ == "__main__":
    try:
        print(build(Path(sys.argv[1]) if sys.argv[1:] else None))
    except SettingsError as error:
        sys.exit(str(error))
