"""Causal language models of transformers (5.23), on a CPU or a GPU.

Questions that differ only in their last token, such as labels, share one row. Rows of a batch are padded on the left,
with positions that do not count the padding. torch is imported when a model is loaded.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pytest_promptfmt.core.errors import ModelError, TokenizerError
from pytest_promptfmt.core.limits import online
from pytest_promptfmt.models.model import Ask, Finish, Generation, Likelihood, ModelOptions, cut

if TYPE_CHECKING:
    import torch

    from pytest_promptfmt.profiles import Tokenizer

TINY_FOLDER: Final = Path(__file__).parent / "tiny"
"""The bundled model, a Llama of some 360,000 weights (see its MODEL_CARD.md); transformers reads it like any other."""

_CHUNKS: Final = 8
"""Batches that are sorted by length together; answers are yielded, and can be recorded, after each such part."""
_DEFAULT_LENGTH: Final = 2048
"""The length of a model whose configuration gives none, in tokens, as in lm-eval 0.4.13's HFLM."""

_DTYPES: Final = ("float32", "bfloat16", "float16", "float64")

Made = TypeVar("Made")
Row = tuple[tuple[int, ...], list[tuple[int, Ask]]]
"""Ids that the model gets, and the questions that they are for, each with its place in the list of questions."""


def _longest_first(asks: Iterable[tuple[int, Ask]], row_of: Callable[[Ask], tuple[int, ...]]) -> list[Row]:
    """Return the different rows of questions, the longest first: so memory runs out at once, and little is padded."""
    rows: dict[tuple[int, ...], list[tuple[int, Ask]]] = {}
    for at, ask in asks:
        rows.setdefault(row_of(ask), []).append((at, ask))
    return sorted(rows.items(), key=lambda row: len(row[0]), reverse=True)


class TransformersModel:
    """A causal language model and its tokenizer; one question or a thousand, the numbers are the same."""

    def __init__(self, model: Any, tokenizer: Tokenizer, *, name: str, batch_size: int = 16) -> None:
        """Take a loaded `PreTrainedModel` in evaluation mode."""
        self.name = name
        self.tokenizer = tokenizer
        self._model = model
        self._batch = batch_size
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._length = _length_of(model.config)
        embeddings = model.get_input_embeddings()
        self._size: int | None = getattr(embeddings, "num_embeddings", None)

    @classmethod
    def load(cls, source: str, options: ModelOptions, *, name: str = "") -> TransformersModel:
        """Return the model of a folder or hub id; raises ModelError for what is missing or cannot be loaded."""
        model, tokenizer = load_model(source, options)
        return cls(model, tokenizer, name=name or f"hf:{source}", batch_size=options.batch_size)

    @classmethod
    def load_tiny(cls, _source: str, options: ModelOptions) -> TransformersModel:
        """Return the bundled model; raises ModelError without torch."""
        import_torch().set_num_threads(1)  # more of them wait for each other longer than so small a model takes
        dtype = "float32" if options.dtype == "auto" else options.dtype
        return cls.load(str(TINY_FOLDER), replace(options, dtype=dtype), name="tiny")

    @property
    def facts(self) -> Mapping[str, str]:
        """Return the versions of torch and transformers, the device and the dtype."""
        import torch
        import transformers

        return MappingProxyType(
            {
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "device": self._model.device.type,
                "dtype": str(self._model.dtype).removeprefix("torch."),
            }
        )

    def loglikelihood(self, asks: Sequence[Ask]) -> Iterator[Likelihood]:
        """Yield the log-likelihood of each continuation given its context, over exactly its own tokens.

        A row longer than the model takes loses its beginning, as in lm-eval 0.4.13. Raises ModelError for a
        continuation without tokens or longer than the model, for a single row that does not fit the memory, and for a
        model that fails or gives NaN.
        """
        yield from self._in_parts(asks, self._likelihoods)

    def generate(self, asks: Sequence[Ask]) -> Iterator[Generation]:
        """Yield the greedy continuation of each context until a stop sequence, the end token or the budget.

        A context longer than the model has room for loses its beginning. Raises ModelError as `loglikelihood`, and for
        a context without tokens.
        """
        yield from self._in_parts(asks, self._generations)

    def _in_parts(self, asks: Sequence[Ask], answer: Callable[[Sequence[Ask]], Mapping[int, Made]]) -> Iterator[Made]:
        size = self._batch * _CHUNKS  # the batch may become smaller on the way
        for first in range(0, len(asks), size):
            part = asks[first : first + size]
            self._refuse_bad_ids(part)
            answers = answer(part)
            yield from (answers[at] for at in range(len(part)))

    # -- log-likelihood ------------------------------------------------------------------------------------------------

    def _likelihoods(self, asks: Sequence[Ask]) -> Mapping[int, Likelihood]:
        for ask in asks:
            if not ask.continuation_ids:
                raise ModelError(f"the continuation {ask.continuation!r} has no tokens")
            if len(ask.continuation_ids) > self._length:
                raise ModelError(
                    f"a continuation of {len(ask.continuation_ids)} tokens is longer than the model's {self._length}"
                )

        def row_of(ask: Ask) -> tuple[int, ...]:
            return (*ask.context_ids, *ask.continuation_ids[:-1])[-self._length :]

        return self._answered(_longest_first(enumerate(asks), row_of), self._score)

    def _score(self, batch: Sequence[Row]) -> Mapping[int, Likelihood]:
        import torch

        longest = max(len(ask.continuation_ids) for _, asked in batch for _, ask in asked)
        with torch.inference_mode():
            ids, mask = self._padded([row for row, _ in batch])
            positions = {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)} if self._takes_positions else {}
            logits = self._model(input_ids=ids, attention_mask=mask, use_cache=False, **positions).logits[:, -longest:]
            logprobs = torch.log_softmax(logits.float(), dim=-1)
        answers = {}
        for own, (row, asked) in zip(logprobs, batch, strict=True):
            for at, ask in asked:
                wanted = torch.tensor(ask.continuation_ids, device=own.device)
                seen = own[-len(wanted) :]
                answers[at] = Likelihood(
                    logprobs=tuple(self._checked(seen.gather(1, wanted.unsqueeze(1)).squeeze(1)).tolist()),
                    is_greedy=bool((seen.argmax(dim=-1) == wanted).all()),
                    sent=(*row, ask.continuation_ids[-1]),
                )
        return answers

    # -- generation ----------------------------------------------------------------------------------------------------

    def _generations(self, asks: Sequence[Ask]) -> Mapping[int, Generation]:
        groups: dict[tuple[tuple[str, ...], int], list[tuple[int, Ask]]] = {}
        for at, ask in enumerate(asks):
            groups.setdefault((ask.stop, ask.max_tokens), []).append((at, ask))
        answers: dict[int, Generation] = {}
        for group in groups.values():
            answers |= self._answered(_longest_first(group, lambda ask: ask.context_ids), self._write)
        return answers

    def _write(self, batch: Sequence[Row]) -> Mapping[int, Generation]:
        import torch
        from transformers import LogitsProcessorList, StoppingCriteriaList

        first = batch[0][1][0][1]  # the others have its stops and budget
        budget, stops = min(first.max_tokens, self._length // 2), first.stop
        ids, mask = self._padded([row[-(self._length - budget) :] for row, _ in batch])
        width = ids.shape[1]
        criteria = StoppingCriteriaList([_stop_on_text(self.tokenizer, stops, width)] if stops else [])

        def checked(seen: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return self._checked(scores) if seen.shape[1] == width else scores  # what is NaN is so from the beginning

        with torch.inference_mode():
            out = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                num_beams=1,
                max_new_tokens=budget,
                stopping_criteria=criteria,
                logits_processor=LogitsProcessorList([checked]),
                pad_token_id=self._pad,
            )
        ends = _end_ids(self._model)
        answers: dict[int, Generation] = {}
        for (_, asked), row, sent, kept in zip(batch, out, ids, mask, strict=True):
            answer = self._generation(row[width:].tolist(), ends, stops, tuple(sent[kept.bool()].tolist()))
            answers |= dict.fromkeys((at for at, _ in asked), answer)
        return answers

    def _generation(
        self, new: list[int], ends: frozenset[int], stops: Sequence[str], sent: tuple[int, ...]
    ) -> Generation:
        ended = next((at for at, token in enumerate(new) if token in ends), None)
        written = new if ended is None else new[:ended]
        text, stopped = cut(self._text(written), stops)
        if stopped:  # what follows pads the row until the last of the batch is done
            first = bisect_left(range(len(written)), True, key=lambda at: cut(self._text(written[: at + 1]), stops)[1])
            written = written[: first + 1]
        finish: Finish = "stop" if stopped else "end" if ended is not None else "length"
        return Generation(text=text, finish=finish, tokens=len(written), sent=sent)

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    # -- batches -------------------------------------------------------------------------------------------------------

    @property
    def _pad(self) -> int:
        """Return any id that the model knows: padding is masked."""
        known = self.tokenizer.id_of_named("pad_token")
        return 0 if known is None or (self._size is not None and known >= self._size) else known

    def _refuse_bad_ids(self, asks: Sequence[Ask]) -> None:
        if not all(ask.context_ids for ask in asks):
            raise ModelError("a context has no tokens, and the tokenizer has no BOS or EOS token to use instead")
        largest = max(max(*ask.context_ids, *ask.continuation_ids, 0) for ask in asks)
        if self._size is not None and largest >= self._size:
            raise ModelError(
                f"the tokenizer gives the id {largest}, but the model {self.name} has only {self._size} embeddings",
                hint="use the model's own tokenizer. If tokens were added to it, resize the embeddings",
            )

    def _padded(self, rows: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        width = max(len(ids) for ids in rows)
        device = self._model.device
        ids = torch.tensor([[self._pad] * (width - len(row)) + list(row) for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        return ids, mask

    def _answered(self, waiting: Sequence[Row], run: Callable[[Sequence[Row]], Mapping[int, Made]]) -> dict[int, Made]:
        """Return what `run` makes of the rows, in batches that are halved where memory runs out."""
        import torch

        answers: dict[int, Made] = {}
        while waiting:
            batch = waiting[: self._batch]
            try:
                answers |= run(batch)
            except ModelError:
                raise
            except Exception as error:
                if not _is_out_of_memory(error):
                    raise self._failure(error) from error
                if len(batch) == 1:
                    raise ModelError(
                        "a single row does not fit into the memory of the device",
                        hint="use a smaller dtype (--promptfmt-model-dtype bfloat16) or a smaller model",
                    ) from error
                self._batch = (len(batch) + 1) // 2
            else:
                waiting = waiting[len(batch) :]
                continue
            if self._model.device.type == "cuda":
                torch.cuda.empty_cache()
        return answers

    def _failure(self, error: Exception) -> ModelError:
        device, dtype = self._model.device.type, str(self._model.dtype).removeprefix("torch.")
        first = str(error).strip().partition("\n")[0][:300] or "no reason given"
        return ModelError(
            f"the model {self.name} fails on the device {device} in {dtype}: {type(error).__name__}: {first}",
            hint="try --promptfmt-model-dtype float32. Not every device supports every dtype",
        )

    def _checked(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return logits or log-probabilities; raises ModelError for NaN."""
        if bool(numbers.isnan().any()):
            dtype = str(self._model.dtype).removeprefix("torch.")
            raise ModelError(
                f"the model {self.name} gives NaN for the next token",
                hint=f"instead of {dtype} try --promptfmt-model-dtype float32; if that gives NaN, the weights are bad",
            )
        return numbers


def _length_of(config: Any) -> int:
    for name in ("n_positions", "max_position_embeddings", "n_ctx"):  # the order of lm-eval 0.4.13's HFLM
        length = getattr(config, name, None)
        if isinstance(length, int):
            return length
    return _DEFAULT_LENGTH


def _end_ids(model: Any) -> frozenset[int]:
    ends = model.generation_config.eos_token_id
    if ends is None:
        ends = model.config.eos_token_id
    return frozenset([ends] if isinstance(ends, int) else ends or ())


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    messages = ("can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(one in str(error) for one in messages)


def _stop_on_text(tokenizer: Tokenizer, stops: Sequence[str], width: int) -> Any:
    """Return a stopping criterion that ends each row once a stop sequence is in what it wrote."""
    import torch
    from transformers import StoppingCriteria

    # Enough tokens to hold the longest stop sequence, however few characters each of them has.
    tail = max(len(stop.encode()) for stop in stops) + 8

    class StopOnText(StoppingCriteria):
        def __init__(self) -> None:
            self._done: list[bool] = []

        def __call__(self, input_ids: torch.Tensor, _scores: Any, **_kwargs: Any) -> torch.Tensor:
            self._done = self._done or [False] * len(input_ids)
            for row, ids in enumerate(input_ids[:, width:][:, -tail:].tolist()):
                if not self._done[row]:
                    text = tokenizer.decode(ids, skip_special_tokens=True)
                    self._done[row] = any(stop in text for stop in stops)
            return torch.tensor(self._done, device=input_ids.device)

    return StopOnText()


# -- loading -----------------------------------------------------------------------------------------------------------


def load_model(source: str, options: ModelOptions) -> tuple[Any, Tokenizer]:
    """Return the model of a folder or hub id in evaluation mode, on its device, and its tokenizer.

    Raises ModelError for what is missing or cannot be loaded.
    """
    from pytest_promptfmt.profiles import load_tokenizer

    torch = import_torch()
    import transformers

    device = _device(torch, options.device)
    dtype = _dtype(torch, options.dtype, device)
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
        hint = None if Path(source).exists() or options.download else "--promptfmt-download downloads the model"
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
            f"the weights of {source!r} do not fit its config.json: {len(missing)} parameters are missing or of "
            f"another size, such as {missing[0]}",
            hint="take the weights and config.json from the same model. Missing weights would be random",
        )


def _device(torch: Any, written: str) -> str:
    if written == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(written)
    except RuntimeError as error:
        raise ModelError(f"unknown device {written!r}", hint="write auto, cpu, cuda or cuda:1") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {written!r}: torch finds no GPU", hint="write auto or cpu")
    return written


def _dtype(torch: Any, written: str, device: str) -> Any:
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
