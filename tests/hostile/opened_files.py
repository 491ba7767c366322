"""A plugin of pytest that writes down every file that a run opens; `-p opened_files` with OPENED_FILES set loads it."""

import os
import sys

LOG = os.open(os.environ["OPENED_FILES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
SEEN: set[str] = set()


def note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes):
        name = os.path.abspath(os.fsdecode(arguments[0]))
        if name not in SEEN:
            SEEN.add(name)
            os.write(LOG, name.encode("utf-8", "surrogateescape") + b"\n")


sys.addaudithook(note)
