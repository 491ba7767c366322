"""HELM 0.5.16: JSON files with `adapter_spec`, their instances, prompts, windows, metrics and recorded runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_promptfmt.systems import ReadContext, System
from pytest_promptfmt.tasks import TaskFile

if TYPE_CHECKING:
    from pytest_promptfmt.core.recorded import BadRecord, Recorded

_SIGN: Final = re.compile(rb"""[{,\s]["']?adapter_spec["']?\s*:""")
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")


class Helm(System):
    """Adapters, with or without the request states of a run."""

    name = "helm"
    suffixes = (".json", ".json5")
    shape = "`adapter_spec` (HELM file)"
    rules = ("pytest_promptfmt.systems.helm.helm_rules",)
    recordings = ("scenario_state.json",)
    metadata_keys = ("task", "metrics", "trials", "window")
    packages = ("helm",)
    distribution = "crfm-helm"
    sends_whole = True
    harness = "pytest_promptfmt.systems.helm.harness_side"

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Return whether the beginning names an adapter.

        A recording of a YAML task (`arc.<any>.scenario_state.json` next to `arc.yaml`) is not a task.
        """
        if head.startswith(_UTF16):
            head = head.decode("utf-16", "replace").encode()
        rest = path.name.removesuffix(self.recordings[0])
        stems = [rest[: dot.start()] for dot in re.finditer(r"\.", rest)] if rest != path.name else []
        names = (f"{stem}{suffix}" for stem in stems for suffix in (".yaml", ".yml"))
        return _SIGN.search(head) is not None and not any(path.with_name(name).is_file() for name in names)

    def read(self, path: Path, context: ReadContext) -> TaskFile | None:
        """Return the task of an adapter file, with the request states that cannot be used; raises SourceError."""
        from pytest_promptfmt.systems.helm.adapter_tasks import read_adapter_task

        return read_adapter_task(path, self.name)

    def inputs_of(self, path: Path) -> Collection[str]:
        """Return the file with the metrics of a run, next to its request states."""
        from pytest_promptfmt.systems.helm.adapter_files import RUN_SPEC

        return [str(path.with_name(RUN_SPEC))]

    def recording(self, path: Path, head: bytes) -> Iterator[Recorded | BadRecord] | None:
        """Return the most likely completion of each request state."""
        start = head[:4096]
        if b'"request_states"' not in start and not (start.lstrip()[:1] == b"{" and b'"adapter_spec"' in start):
            return None
        from pytest_promptfmt.systems.helm.instances import read_recorded

        return read_recorded(path)


SYSTEM: Final = Helm()
