"""Weights and tokenizer of a causal language model of transformers (5.23), put on a device."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import ModelError, TokenizerError
from pytest_promptfmt.core.limits import online
from pytest_promptfmt.models.model import ModelOptions
from pytest_promptfmt.profiles import Tokenizer, load_tokenizer

_DTYPES: Final = ("float32", "bfloat16", "float16", "float64")


def load_model(source: str, options: ModelOptions) -> tuple[Any, Tokenizer]:
    """Return the model of a folder or hub id in evaluation mode, on its device, and its tokenizer.

    Raises ModelError for what is missing or cannot be loaded.
    """
    torch = import_torch()
    import transformers

    device = _device(options.device)
    dtype = _dtype(options.dtype, device)
    try:
        tokenizer = load_tokenizer(source, download=options.download)
        with _quiet(transformers), online() if options.download else contextlib.nullcontext():
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype,
                local_files_only=not options.download,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, in one line
            )
    except TokenizerError as error:
        raise ModelError(f"the tokenizer of {source!r}: {error.message}", hint=error.hint) from error
    except Exception as error:
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        hint = None if Path(source).exists() or options.download else "to download the model, use --promptfmt-download"
        raise ModelError(f"the model {source!r} cannot be loaded: {first}", hint=hint) from error
    _refuse_missing_weights(source, report)
    try:
        model = model.to(torch.device(device)).eval()
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"the model {source!r} cannot be moved to the device {device!r}: {error}") from error
    return model, tokenizer


def import_torch() -> Any:
    """Return torch; raises ModelError saying how to install it."""
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            f"running a model needs torch: {error}", hint='run pip install "pytest-promptfmt[model]"'
        ) from error
    return torch


def _refuse_missing_weights(source: str, report: Mapping[str, Any]) -> None:
    """Raise ModelError for parameters that are not in the file, or of another size: they would be random."""
    mismatched = [str(one[0] if isinstance(one, tuple | list) else one) for one in report.get("mismatched_keys") or ()]
    missing = sorted({*map(str, report.get("missing_keys") or ()), *mismatched})
    if missing:
        raise ModelError(
            f"the weights of {source!r} do not match its config.json: {len(missing)} parameters are missing or have "
            f"another size, such as {missing[0]}",
            hint="use weights and config.json of the same model. Otherwise some weights would be random",
        )


def _device(written: str) -> str:
    torch = import_torch()
    if written == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(written)
    except RuntimeError as error:
        raise ModelError(f"unknown device {written!r}", hint="write auto, cpu, cuda or cuda:1") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {written!r}: torch finds no GPU", hint="write auto or cpu")
    return written


def _dtype(written: str, device: str) -> Any:
    torch = import_torch()
    if written == "auto":
        return torch.bfloat16 if device.startswith("cuda") and torch.cuda.is_bf16_supported() else torch.float32
    if written not in _DTYPES:
        raise ModelError(f"unknown dtype {written!r}", hint=f"write auto, {' or '.join(_DTYPES)}")
    return getattr(torch, written)


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep loading from printing progress bars and warnings between pytest's own lines."""
    level = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity(logging.ERROR)
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()
