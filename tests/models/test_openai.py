"""Models behind a server: a real one on loopback, working and broken."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_promptfmt.core.errors import ModelError
from pytest_promptfmt.models import open_model
from pytest_promptfmt.models.model import Ask, ModelOptions

pytest.importorskip("torch", reason="running a model needs torch, of the extra `model`")
pytest.importorskip("openai", reason="a server is asked through openai, of the extra `server`")

TIMEOUT = {"429": 20.0, "malformed": 20.0, "slow": 0.3}

Make = Callable[[Any, list[Ask]], list[Ask]]


def test_a_server_answers_as_the_same_model_does_here(
    tiny: Any, server: str, asked: Make, pairs: list[tuple[str, str]]
) -> None:
    model = open_model(f"openai:{server}/v1")
    asks = asked(tiny.tokenizer, [Ask(context=context, continuation=text) for context, text in pairs[:48]])
    for theirs, ours in zip(model.loglikelihood(asks), tiny.loglikelihood(asks), strict=True):
        assert theirs.logprobs == pytest.approx(ours.logprobs, abs=1e-3)
        assert (theirs.is_greedy, theirs.sent) == (ours.is_greedy, ours.sent)
    contexts = list(dict.fromkeys(context for context, _ in pairs[:48]))
    writes = asked(tiny.tokenizer, [Ask(context=context, stop=("\n\n",), max_tokens=12) for context in contexts])
    assert [answer.text for answer in model.generate(writes)] == [answer.text for answer in tiny.generate(writes)]


def test_text_alone_is_enough_where_tokens_do_not_reach_over_the_seam(tiny: Any, server: str, asked: Make) -> None:
    model = open_model(f"openai:{server}/v1#tiny")
    text = Ask(context="Question: Which one is the river?\nA. river\nB. lamp\nAnswer:", continuation=" A")
    [theirs] = model.loglikelihood([text])
    [ours] = tiny.loglikelihood(asked(tiny.tokenizer, [text]))
    assert theirs.logprobs == pytest.approx(ours.logprobs, abs=1e-3)
    assert theirs.sent is None
    with pytest.raises(ModelError, match="merges the beginning of 'ver' with the prompt"):
        list(model.loglikelihood([replace(text, context="Answer: ri", continuation="ver")]))


def test_a_server_without_completions_is_asked_by_chat(tiny: Any, server: str, asked: Make) -> None:
    model = open_model(f"openai:{server}/no-completions/v1")
    prompt = "<|im_start|>user\nQuestion: Which one is the lamp?\nAnswer:<|im_end|>\n<|im_start|>assistant\n"
    messages = (("user", "Question: Which one is the lamp?\nAnswer:"),)
    ask = Ask(context=prompt, max_tokens=8, messages=messages)
    [theirs] = model.generate([ask])
    [ours] = tiny.generate(asked(tiny.tokenizer, [ask]))
    assert theirs.text == ours.text
    begun = replace(ask, context=f"{prompt}The best", messages=(*messages, ("assistant", "The best")))
    [theirs] = model.generate([begun])
    [ours] = tiny.generate(asked(tiny.tokenizer, [begun]))
    assert theirs.text == ours.text
    with pytest.raises(ModelError, match="does not support log-likelihoods"):
        list(model.loglikelihood([Ask(context="Answer:", continuation=" A")]))


def test_a_server_that_takes_text_alone_is_sent_text(tiny: Any, server: str, asked: Make) -> None:
    url = f"openai:{server}/text-only/v1"
    with pytest.raises(ModelError, match=r"status 500: Internal Server Error\n.*name of a model") as caught:
        open_model(url)
    assert f"{url}#MODEL" in str(caught.value)
    model = open_model(f"{url}#tiny")
    asks = asked(
        tiny.tokenizer, [Ask(context=f"Question: Which one is the {word}?\nAnswer:", max_tokens=6) for word in "ab"]
    )
    got = list(model.generate(asks))
    assert [answer.text for answer in got] == [answer.text for answer in tiny.generate(asks)]
    assert [answer.sent for answer in got] == [None, None]
    with pytest.raises(ModelError, match="returns no log-probabilities of the prompt"):
        list(model.loglikelihood(asked(tiny.tokenizer, [Ask(context="Answer:", continuation=" A")])))


def test_what_a_server_refuses_whatever_is_sent_is_reported_in_its_words(server: str) -> None:
    model = open_model(f"openai:{server}/refuses/v1#tiny")
    with pytest.raises(ModelError, match="responded with status 400: the context is too long"):
        list(model.generate([Ask(context="Answer:", context_ids=(1, 2), max_tokens=4)]))


@pytest.mark.parametrize(
    ("fail", "says"),
    [
        ("429", "received too many requests (429, after 2 retries)"),
        ("malformed", "not a list of completions"),
        ("slow", "did not answer in time"),
    ],
)
def test_a_server_that_fails_is_reported_in_one_message(server: str, fail: str, says: str) -> None:
    model = open_model(f"openai:{server}/{fail}/v1", ModelOptions(timeout=TIMEOUT[fail], concurrency=2))
    with pytest.raises(ModelError) as caught:
        list(model.generate([Ask(context="Answer:", max_tokens=4)] * 4))
    assert says in str(caught.value)


def test_no_server_and_no_url_are_reported() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ModelError, match="cannot be reached"):
        open_model(f"openai:http://127.0.0.1:{port}/v1")
    with pytest.raises(ModelError, match="is not a URL"):
        open_model("openai:localhost")


def test_a_server_of_several_models_asks_which() -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class TwoModels(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            body = json.dumps({"object": "list", "data": [{"id": "one"}, {"id": "two"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = HTTPServer(("127.0.0.1", 0), TwoModels)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(ModelError, match=r"2 models: one, two.*\n.*#one"):
            open_model(f"openai:http://127.0.0.1:{server.server_address[1]}/v1")
    finally:
        server.shutdown()
        server.server_close()
