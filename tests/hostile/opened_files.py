"""A plugin of pytest that writes down every file that a run opens; `-p opened_files` with OPENED_FILES set loads it."""

import os
import sys

LOG = os.open(os.environ["OPENED_FILES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
SEEN: set[str] = set()
NAMES_ONLY = getattr(os, "O_PATH", 0)  # what is opened so can be neither read nor written


def note(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open" or not isinstance(arguments[0], str | bytes):
        return
    flags = arguments[2]
    if not (isinstance(flags, int) and flags & NAMES_ONLY):
        name = os.path.abspath(os.fsdecode(arguments[0]))
        if name not in SEEN:
            SEEN.add(name)
            os.write(LOG, name.encode("utf-8", "surrogateescape") + b"\n")


sys.addaudithook(note)
