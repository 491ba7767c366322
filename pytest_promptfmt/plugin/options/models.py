"""The options about models, and what they say; pytest imports this at every start: nothing heavy here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from pytest_promptfmt.models.running import ModelSettings


def add_model_options(group: pytest.OptionGroup) -> None:
    """Add the command-line options; all of them begin with --promptfmt-model or -record."""
    option = group.addoption
    option(
        "--promptfmt-model",
        default=None,
        dest="promptfmt_model",
        metavar="MODEL",
        help="Also ask a model: tiny (bundled), hf:PATH_OR_ID, openai:URL[#NAME] or replay:FILE.",
    )
    option(
        "--promptfmt-record",
        default=None,
        dest="promptfmt_record",
        metavar="FILE",
        help="Write what the model answers to this file, to be replayed later; goes on where a run was broken off.",
    )
    option(
        "--promptfmt-model-device",
        default="auto",
        dest="promptfmt_model_device",
        metavar="DEVICE",
        help="Where the model runs: auto (a GPU where there is one), cpu, cuda, cuda:1.",
    )
    option(
        "--promptfmt-model-dtype",
        default="auto",
        dest="promptfmt_model_dtype",
        metavar="DTYPE",
        help="Its numbers: auto (float32 on a CPU, bfloat16 on a GPU), float32, bfloat16, float16.",
    )
    option(
        "--promptfmt-model-batch-size",
        default=None,
        dest="promptfmt_model_batch_size",
        metavar="N",
        help="The most rows at once (default 16); halved when memory runs out.",
    )
    option(
        "--promptfmt-model-timeout",
        default=None,
        dest="promptfmt_model_timeout",
        metavar="SECONDS",
        help="How long a server may take for one answer (default 60).",
    )
    option(
        "--promptfmt-model-concurrency",
        default=None,
        dest="promptfmt_model_concurrency",
        metavar="N",
        help="The most questions that a server is asked at once (default 8).",
    )


def read_model_settings(config: pytest.Config) -> ModelSettings | None:
    """Return which model this run asks, None for none; raises SettingsError for values that make no sense."""
    from pytest_promptfmt.core.errors import SettingsError

    model = config.getoption("promptfmt_model")
    record = config.getoption("promptfmt_record")
    if model is None:
        if record is not None:
            raise SettingsError("--promptfmt-record needs a model to record", hint="add --promptfmt-model hf:PATH")
        return None
    if record is not None and model.startswith("replay:"):
        raise SettingsError("a recording cannot be recorded again", hint="copy the file")
    from pytest_promptfmt.models.base import ModelOptions
    from pytest_promptfmt.models.running import ModelSettings

    options = ModelOptions(
        device=config.getoption("promptfmt_model_device"),
        dtype=config.getoption("promptfmt_model_dtype"),
        download=bool(config.getoption("promptfmt_download")),
    )
    for name, kind in (("batch_size", int), ("concurrency", int), ("timeout", float)):
        given = config.getoption(f"promptfmt_model_{name}")
        if given is not None:
            options = replace(options, **{name: _number(f"--promptfmt-model-{name.replace('_', '-')}", given, kind)})
    return ModelSettings(
        model=model,
        options=options,
        record=Path(record).absolute() if record is not None else None,
        worker=getattr(config, "workerinput", {}).get("workerid", ""),
    )


def _number(option: str, given: str, kind: type[int] | type[float]) -> Any:
    try:
        number = kind(given)
    except ValueError:
        number = kind(0)
    if not 0 < number < float("inf"):
        from pytest_promptfmt.core.errors import SettingsError

        raise SettingsError(f"{option} is {given!r}", hint="give a number greater than 0")
    return number
