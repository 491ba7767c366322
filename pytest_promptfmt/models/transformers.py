"""Causal language models of transformers (5.23), on a CPU or a GPU.

Contexts that several continuations share run once: their keys and values are kept for the continuations. Rows of a
batch are padded on the left, with positions that do not count the padding. torch is imported when a model is loaded.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pytest_promptfmt.core.errors import ModelError
from pytest_promptfmt.models.loading import import_torch, load_model
from pytest_promptfmt.models.model import Ask, Finish, Generation, Likelihood, ModelOptions, cut
from pytest_promptfmt.profiles import Tokenizer

if TYPE_CHECKING:
    import torch

TINY_FOLDER: Final = Path(__file__).parent / "tiny"
"""The bundled model, a Llama of some 360,000 weights (see its MODEL_CARD.md); transformers reads it like any other."""

_CHUNKS: Final = 8
"""Batches that are sorted by length together; answers are yielded, and can be recorded, after each such part."""
_DEFAULT_LENGTH: Final = 2048
"""The length of a model whose configuration gives none, in tokens, as in lm-eval 0.4.13's HFLM."""

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class _Branching:
    """A context and its continuations, with their places in the list of questions."""

    context: tuple[int, ...]
    continuations: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def longest(self) -> int:
        return max(len(ids) for _, ids in self.continuations)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A context to continue, and its places in the list of questions."""

    ask: Ask
    places: tuple[int, ...]


def _by_stops(asks: Sequence[Ask]) -> Iterator[Sequence[_Begun]]:
    """Yield the different contexts with the same stops and budget, the longest first: so little is padded."""
    groups: dict[tuple[tuple[str, ...], int], dict[tuple[int, ...], list[int]]] = {}
    for at, ask in enumerate(asks):
        groups.setdefault((ask.stop, ask.max_tokens), {}).setdefault(ask.context_ids, []).append(at)
    for found in groups.values():
        begun = [_Begun(asks[places[0]], tuple(places)) for places in found.values()]
        yield sorted(begun, key=lambda one: len(one.ask.context_ids), reverse=True)


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

        return {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": self._model.device.type,
            "dtype": str(self._model.dtype).removeprefix("torch."),
        }

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
            self._refuse_unknown_ids(part)
            answers = answer(part)
            yield from (answers[at] for at in range(len(part)))

    # -- log-likelihood ------------------------------------------------------------------------------------------------

    def _likelihoods(self, asks: Sequence[Ask]) -> Mapping[int, Likelihood]:
        answers: dict[int, Likelihood] = {}
        for batch in self._likelihood_batches(self._branchings(asks)):
            answers |= self._halving(batch, self._score)
        return answers

    def _branchings(self, asks: Sequence[Ask]) -> Sequence[_Branching]:
        """Return the questions by context, the longest contexts first so that memory runs out at once or never."""
        by_context: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        for at, ask in enumerate(asks):
            if not ask.continuation_ids:
                raise ModelError(f"the continuation {ask.continuation!r} has no tokens")
            room = self._length + 1 - len(ask.continuation_ids)
            if room < 1:
                raise ModelError(
                    f"a continuation has {len(ask.continuation_ids)} tokens, but the model takes at most {self._length}"
                )
            by_context.setdefault(ask.context_ids[-room:], []).append((at, ask.continuation_ids))
        found = [_Branching(context, tuple(rows)) for context, rows in by_context.items()]
        return sorted(found, key=lambda one: len(one.context), reverse=True)

    def _likelihood_batches(self, found: Sequence[_Branching]) -> Iterator[Sequence[_Branching]]:
        batch: list[_Branching] = []
        rows = 0
        for one in found:
            if batch and rows + len(one.continuations) > self._batch:
                yield batch
                batch, rows = [], 0
            batch.append(one)
            rows += len(one.continuations)
        if batch:
            yield batch

    def _score(self, batch: Sequence[_Branching]) -> Mapping[int, Likelihood]:
        import torch

        with torch.inference_mode():
            ids, mask = self._padded([one.context for one in batch])
            out = self._forward(ids, mask, use_cache=any(one.longest > 1 for one in batch))
            first = self._checked(torch.log_softmax(out.logits[:, -1].float(), dim=-1))
            rows = [(row, at, ids) for row, one in enumerate(batch) for at, ids in one.continuations]
            later = self._later_tokens(out, mask, [(row, ids) for row, _, ids in rows])
        sent = [tuple(row[kept.bool()].tolist()) for row, kept in zip(ids, mask, strict=True)]
        answers = {}
        for (row, at, continuation), (logprobs, greedy) in zip(rows, later, strict=True):
            likeliest = int(first[row].argmax()) == continuation[0]
            answers[at] = Likelihood(
                logprobs=(float(first[row, continuation[0]]), *logprobs),
                is_greedy=likeliest and greedy,
                sent=(*sent[row], *continuation),
            )
        return answers

    def _later_tokens(
        self, out: Any, mask: torch.Tensor, rows: Sequence[tuple[int, tuple[int, ...]]]
    ) -> Sequence[tuple[tuple[float, ...], bool]]:
        """Return, for each row, the log-probabilities of all but its first token, and whether each is the likeliest."""
        import torch

        long = [(row, ids) for row, ids in rows if len(ids) > 1]
        if not long:
            return [((), True)] * len(rows)
        kept = torch.tensor([row for row, _ in long], device=mask.device)
        cache = out.past_key_values
        cache.batch_select_indices(kept)
        width = max(len(ids) for _, ids in long) - 1
        fed = torch.tensor([[*ids[:-1], *[0] * (width + 1 - len(ids))] for _, ids in long], device=mask.device)
        fed_mask = torch.tensor([[1] * (len(ids) - 1) + [0] * (width + 1 - len(ids)) for _, ids in long])
        whole_mask = torch.cat([mask[kept], fed_mask.to(mask)], dim=1)
        more = self._forward(fed, whole_mask, past_key_values=cache, use_cache=True)
        logprobs = torch.log_softmax(more.logits.float(), dim=-1)
        found = iter(range(len(long)))
        result: list[tuple[tuple[float, ...], bool]] = []
        for _, ids in rows:
            if len(ids) == 1:
                result.append(((), True))
                continue
            own = logprobs[next(found), : len(ids) - 1]
            wanted = torch.tensor(ids[1:], device=own.device)
            picked = self._checked(own.gather(1, wanted.unsqueeze(1)).squeeze(1))
            result.append((tuple(picked.tolist()), bool((own.argmax(dim=-1) == wanted).all())))
        return result

    # -- generation ----------------------------------------------------------------------------------------------------

    def _generations(self, asks: Sequence[Ask]) -> Mapping[int, Generation]:
        answers: dict[int, Generation] = {}
        for begun in _by_stops(asks):
            while begun:
                batch, begun = begun[: self._batch], begun[self._batch :]
                answers |= self._halving(batch, self._write)
        return answers

    def _write(self, batch: Sequence[_Begun]) -> Mapping[int, Generation]:
        import torch
        from transformers import LogitsProcessorList, StoppingCriteriaList

        budget = min(batch[0].ask.max_tokens, self._length // 2)
        ids, mask = self._padded([one.ask.context_ids[-(self._length - budget) :] for one in batch])
        width = ids.shape[1]
        stops = batch[0].ask.stop
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
        for one, row, sent, kept in zip(batch, out, ids, mask, strict=True):
            answer = self._generation(row[width:].tolist(), ends, stops, tuple(sent[kept.bool()].tolist()))
            answers |= dict.fromkeys(one.places, answer)
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

    def _refuse_unknown_ids(self, asks: Sequence[Ask]) -> None:
        largest = max((max(ids) for ask in asks for ids in (ask.context_ids, ask.continuation_ids) if ids), default=0)
        if self._size is not None and largest >= self._size:
            raise ModelError(
                f"the tokenizer uses the id {largest}, but the model {self.name} has only {self._size} embeddings",
                hint="use the tokenizer of the model. If you added tokens to the tokenizer, resize the embeddings",
            )

    def _padded(self, rows: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        if not all(rows):
            raise ModelError("the prompt is empty, and the tokenizer has no BOS or EOS token that could begin it")
        width = max(len(ids) for ids in rows)
        device = self._model.device
        ids = torch.tensor([[self._pad] * (width - len(row)) + list(row) for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        return ids, mask

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, **kwargs: Any) -> Any:
        """Run the model over `ids`, the last columns of `mask`."""
        if self._takes_positions:
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
            kwargs["position_ids"] = positions[:, -ids.shape[1] :]
        return self._model(input_ids=ids, attention_mask=mask, **kwargs)

    def _halving(self, batch: Sequence[Any], run: Callable[[Sequence[Any]], Mapping[int, Made]]) -> Mapping[int, Made]:
        """Return what `run` makes of the batch, in halves where memory runs out; later batches stay small."""
        try:
            return run(batch)
        except ModelError:
            raise
        except Exception as error:
            if not _is_out_of_memory(error):
                raise self._failure(error) from error
            if len(batch) == 1:
                raise ModelError(
                    "the device has too little memory, even for one prompt at a time",
                    hint="use a smaller dtype (--promptfmt-model-dtype bfloat16) or a smaller model",
                ) from error
        self._free_memory()
        half = (len(batch) + 1) // 2
        self._batch = max(1, min(self._batch, half))
        return {**self._halving(batch[:half], run), **self._halving(batch[half:], run)}

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
                hint=(
                    f"try --promptfmt-model-dtype float32 instead of {dtype}. If the "
                    "result is still NaN, the weights are bad"
                ),
            )
        return numbers

    def _free_memory(self) -> None:
        import torch

        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()


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
