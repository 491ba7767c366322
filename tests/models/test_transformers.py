"""Models of transformers: numbers equal to a plain forward pass, whatever the batch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import ModelError
from pytest_promptfmt.models import open_model
from pytest_promptfmt.models.model import Ask, Generation, Likelihood, ModelOptions
from pytest_promptfmt.models.transformers import TINY_FOLDER

torch = pytest.importorskip("torch", reason="running a model needs torch, of the extra `model`")

Make = Callable[[Any, list[Ask]], list[Ask]]


def plain_forward(model: Any, ask: Ask) -> Likelihood:
    """Return what one unbatched forward pass without a cache gives."""
    ids = [*ask.context_ids, *ask.continuation_ids]
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids[:-1]])).logits[0].float().log_softmax(-1)[len(ask.context_ids) - 1 :]
    return Likelihood(
        logprobs=tuple(float(row[token]) for row, token in zip(logprobs, ask.continuation_ids, strict=True)),
        is_greedy=all(int(row.argmax()) == token for row, token in zip(logprobs, ask.continuation_ids, strict=True)),
        sent=tuple(ids),
    )


@pytest.fixture(scope="module")
def asks(tiny: Any, asked: Make, pairs: list[tuple[str, str]]) -> list[Ask]:
    return asked(tiny.tokenizer, [Ask(context=context, continuation=text) for context, text in pairs])


@pytest.mark.parametrize("batch_size", [1, 3, 16, 64])
def test_log_likelihoods_are_those_of_a_plain_forward_pass(tiny: Any, asks: list[Ask], batch_size: int) -> None:
    model = open_model("tiny", ModelOptions(device="cpu", batch_size=batch_size))
    for ask, got in zip(asks, model.loglikelihood(asks), strict=True):
        wanted = plain_forward(tiny._model, ask)
        assert got.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
        assert (got.is_greedy, got.sent) == (wanted.is_greedy, wanted.sent)


@pytest.mark.parametrize("architecture", ["gpt2", "gpt_neox", "mistral"])
def test_other_architectures_give_the_same_in_a_batch_as_alone(
    tmp_path: Path, asked: Make, pairs: list[tuple[str, str]], architecture: str
) -> None:
    """Absolute and rotary positions, and attention that looks back a few tokens only."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 512},
        "gpt_neox": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
        "mistral": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 64,
            "sliding_window": 16,
        },
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, vocab_size=1300, **sizes[architecture])
    models: Any = AutoModelForCausalLM
    models.from_config(config).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((TINY_FOLDER / file).read_bytes())
    model: Any = open_model(f"hf:{tmp_path}", ModelOptions(device="cpu", batch_size=9))
    some = asked(model.tokenizer, [Ask(context=context, continuation=text) for context, text in pairs[:40]])
    for ask, got in zip(some, model.loglikelihood(some), strict=True):
        wanted = plain_forward(model._model, ask)
        assert got.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
        assert got.is_greedy == wanted.is_greedy


def test_each_log_likelihood_is_over_exactly_the_tokens_of_its_continuation(tiny: Any, asked: Make) -> None:
    [long, short] = asked(
        tiny.tokenizer,
        [Ask(context="Answer:", continuation=" river lamp"), Ask(context="Answer: river", continuation=" lamp")],
    )
    [whole, last] = tiny.loglikelihood([long, short])
    assert len(whole.logprobs) == len(long.continuation_ids)
    # The chain rule: the last token of a longer continuation has the same chance as alone after the rest.
    assert whole.logprobs[-len(last.logprobs) :] == pytest.approx(last.logprobs, abs=1e-4)


def test_generations_do_not_depend_on_the_batch(tiny: Any, asked: Make, pairs: list[tuple[str, str]]) -> None:
    contexts = list(dict.fromkeys(context for context, _ in pairs))[:24]
    asks = asked(tiny.tokenizer, [Ask(context=context, stop=("\n\n",), max_tokens=12) for context in contexts])
    alone = open_model("tiny", ModelOptions(device="cpu", batch_size=1))
    assert list(tiny.generate(asks)) == list(alone.generate(asks))


def test_a_generation_is_cut_at_the_first_stop_and_counts_only_what_was_written(tiny: Any, asked: Make) -> None:
    prompt = "Question: Which one is the river?\nA. river\nB. lamp\nAnswer:"
    [free] = tiny.generate(asked(tiny.tokenizer, [Ask(context=prompt, max_tokens=6)]))
    assert isinstance(free, Generation)
    stop = free.text.strip()[:1]
    [cut, longer] = tiny.generate(
        asked(
            tiny.tokenizer,
            [Ask(context=prompt, stop=(stop,), max_tokens=6), Ask(context=f"{prompt} ", stop=(stop,), max_tokens=6)],
        )
    )
    assert stop not in cut.text
    assert cut.finish == "stop"
    assert cut.tokens < free.tokens
    assert stop not in longer.text


def test_a_row_longer_than_the_model_loses_its_beginning_as_in_lm_eval(tiny: Any, asked: Make) -> None:
    context = "river " * (tiny._length + 50)
    [ask] = asked(tiny.tokenizer, [Ask(context=context.strip(), continuation=" lamp")])
    assert len(ask.context_ids) > tiny._length
    [got] = tiny.loglikelihood([ask])
    assert got.sent == (*ask.context_ids, *ask.continuation_ids)[-(tiny._length + 1) :]


def test_memory_that_runs_out_halves_the_batch_and_goes_on(
    tiny: Any, asks: list[Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = open_model("tiny", ModelOptions(device="cpu", batch_size=32))
    forward = model._model.forward
    rows: list[int] = []

    def small_device(*args: Any, **kwargs: Any) -> Any:
        rows.append(len(kwargs["input_ids"]))
        if rows[-1] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*args, **kwargs)

    monkeypatch.setattr(model._model, "forward", small_device)
    got = list(model.loglikelihood(asks[:60]))
    monkeypatch.undo()
    for one, wanted in zip(got, tiny.loglikelihood(asks[:60]), strict=True):
        assert one.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
    assert rows[0] > 4 >= max(rows[-5:])


def test_no_question_is_lost_where_the_batch_becomes_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = open_model("tiny", ModelOptions(device="cpu", batch_size=4))
    many = [
        Ask(context=str(number), context_ids=(number + 1,), continuation="x", continuation_ids=(5,))
        for number in range(100)
    ]
    score = model._score

    def small_device(batch: Any) -> Any:
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return score(batch)

    monkeypatch.setattr(model, "_score", small_device)
    assert len(list(model.loglikelihood(many))) == len(many)


@pytest.mark.skipif(sys.platform != "linux", reason="reads how much memory is used from /proc")
def test_memory_that_really_runs_out_halves_the_batch() -> None:
    """A separate process that may use little more memory: 512 rows at once do not fit."""
    program = """
import resource
import torch
from pytest_promptfmt.models import open_model
from pytest_promptfmt.models.model import Ask
from pytest_promptfmt.models.model import ModelOptions

torch.set_num_threads(1)
model = open_model("tiny", ModelOptions(device="cpu", batch_size=512))
contexts = [(9 + number % 99, number // 99 + 9) * 40 for number in range(512)]
asks = [Ask(context="", continuation="x", context_ids=context, continuation_ids=(10,)) for context in contexts]
list(model.loglikelihood(asks[:2]))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 150_000_000, resource.RLIM_INFINITY))
rows = []
forward = model._model.forward

def counted(*args, **kwargs):
    rows.append(len(kwargs["input_ids"]))
    return forward(*args, **kwargs)

model._model.forward = counted
print(len(list(model.loglikelihood(asks))), rows[0], rows[-1])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found, first, last = map(int, done.stdout.split()[-3:])
    assert (found, first) == (512, 512)
    assert last < 512


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        ("hf:nowhere/at-all", ModelOptions(device="cpu"), "nowhere/at-all"),
        ("hf:", ModelOptions(), "hf:PATH_OR_ID"),
        ("tinny", ModelOptions(), "did you mean 'tiny'"),
        ("tiny:big", ModelOptions(), "takes no path or name"),
        ("tiny", ModelOptions(device="abacus"), "unknown device 'abacus'"),
        ("tiny", ModelOptions(dtype="float8000"), "unknown dtype"),
        ("tiny", ModelOptions(dtype="float8_e4m3fn"), "unknown dtype 'float8_e4m3fn'"),
        ("tiny", ModelOptions(device="cpu:x"), "unknown device 'cpu:x'"),
        (f"hf:{Path(__file__).parent}", ModelOptions(device="cpu"), "tokenizer"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_reported_in_one_message(
    source: str, options: ModelOptions, says: str
) -> None:
    with pytest.raises(ModelError) as caught:
        open_model(source, options)
    assert says in str(caught.value)


def test_a_damaged_weights_file_is_reported(tmp_path: Path) -> None:
    for file in TINY_FOLDER.iterdir():
        if file.suffix in (".json", ".safetensors"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        open_model(f"hf:{tmp_path}", ModelOptions(device="cpu"))


@pytest.mark.parametrize(("key", "value"), [("num_hidden_layers", 3), ("intermediate_size", 64)])
def test_weights_that_do_not_fit_are_not_random(tmp_path: Path, key: str, value: int) -> None:
    source = folder_of_tiny(tmp_path, lambda _weights: None)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert config[key] != value
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}), "utf-8")
    with pytest.raises(ModelError, match=r"parameters are missing or have another size, such as model\.layers"):
        open_model(source, ModelOptions(device="cpu"))


def test_a_continuation_without_tokens_is_refused(tiny: Any, asks: list[Ask]) -> None:
    with pytest.raises(ModelError, match="has no tokens"):
        list(tiny.loglikelihood([replace(asks[0], continuation_ids=())]))


def folder_of_tiny(folder: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Return the bundled model in a separate folder, with other weights."""
    from safetensors.torch import load_file, save_file

    for file in TINY_FOLDER.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(TINY_FOLDER / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return f"hf:{folder}"


def test_a_model_that_gives_no_numbers_is_reported(tmp_path: Path, asks: list[Ask]) -> None:
    def spoil(weights: dict[str, Any]) -> None:
        weights[next(name for name in weights if name.endswith("down_proj.weight"))][0, 0] = float("nan")

    model = open_model(folder_of_tiny(tmp_path, spoil), ModelOptions(device="cpu"))
    for answers in (model.loglikelihood(asks[:3]), model.generate([replace(asks[0], continuation=None, max_tokens=2)])):
        with pytest.raises(ModelError, match="gives NaN for the next token"):
            list(answers)


def test_a_tokenizer_of_another_model_is_reported(tiny: Any, asks: list[Ask]) -> None:
    size = tiny._model.get_input_embeddings().num_embeddings
    strange = replace(asks[0], continuation_ids=(size,))
    with pytest.raises(ModelError, match=f"uses the id {size}, but the model tiny has only {size} embeddings"):
        list(tiny.loglikelihood([strange]))
    with pytest.raises(ModelError, match="use the tokenizer of the model"):
        list(tiny.generate([replace(asks[0], context_ids=(size,), continuation=None)]))


def test_what_a_model_cannot_compute_is_reported(tiny: Any, monkeypatch: pytest.MonkeyPatch, asks: list[Ask]) -> None:
    def not_implemented(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError('"addmm_impl_cpu_" not implemented for this\nand much more')

    monkeypatch.setattr(tiny._model, "forward", not_implemented)
    with pytest.raises(ModelError, match="fails on the device cpu in float32: RuntimeError") as caught:
        list(tiny.loglikelihood(asks[:1]))
    assert "and much more" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_says_nearly_the_same(tiny: Any, asks: list[Ask], dtype: str) -> None:
    half: Any = open_model("tiny", ModelOptions(device="cpu", dtype=dtype))
    assert half.facts["dtype"] == dtype
    for one, wanted in zip(half.loglikelihood(asks[:40]), tiny.loglikelihood(asks[:40]), strict=True):
        assert one.total == pytest.approx(wanted.total, abs=1.0, rel=0.1)


def test_a_context_is_written_on_once_however_often_it_is_asked(tiny: Any, asked: Make) -> None:
    texts = ["Question: one?\nAnswer:", "Question: a longer one?\nAnswer:", "Question: one?\nAnswer:"]
    asks = asked(tiny.tokenizer, [Ask(context=text, stop=("\n",), max_tokens=4) for text in texts])
    other = replace(asks[0], stop=("A",), max_tokens=2)
    got = list(tiny.generate([*asks, other]))
    assert got[0] is got[2]
    alone = [next(iter(tiny.generate([ask]))) for ask in (*asks, other)]
    assert got == alone
