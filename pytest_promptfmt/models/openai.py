"""A model behind a server that speaks OpenAI's HTTP interface: vLLM, llama.cpp, `transformers serve` and others.

Log-likelihoods are read from completions with `echo` and `logprobs`, as lm-eval 0.4.13's `local-completions` does;
generations from completions, or from chat completions where a server has no others. Requests, retries with growing
pauses and time limits are those of the `openai` client.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pytest_promptfmt.core.errors import ModelError
from pytest_promptfmt.models.model import Ask, Finish, Generation, Likelihood, ModelOptions, cut
from pytest_promptfmt.profiles import Tokenizer

if TYPE_CHECKING:
    import openai

RETRIES: Final = 2
_MOST_STOPS: Final = 4
"""Stop sequences that OpenAI's own interface takes; text is cut here at the others."""

Made = TypeVar("Made")


class ServerModel:
    """One model of a server. Before the first question only the list of models is requested."""

    tokenizer: Tokenizer | None = None

    def __init__(self, client: Any, model: str, url: str, *, concurrency: int) -> None:
        """Take an `openai.OpenAI` client and the model's name at the server."""
        self.name = f"openai:{url}#{model}"
        self._client = client
        self._model = model
        self._url = url
        self._concurrency = concurrency
        self._chats = False
        self._takes_ids = True

    @classmethod
    def connect(cls, written: str, options: ModelOptions) -> ServerModel:
        """Return the model of `URL` or `URL#model`; without a name the server must offer exactly one.

        The key of the environment variable OPENAI_API_KEY is sent where there is one. Raises ModelError when the
        server does not answer or offers another number of models.
        """
        try:
            import openai
        except ImportError as error:
            raise ModelError(
                f"to use a server, install the package openai: {error}",
                hint='run pip install "pytest-promptfmt[server]"',
            ) from error
        url, _, model = written.partition("#")
        if not url.startswith(("http://", "https://")):
            raise ModelError(f"{written!r} is not a URL", hint="write openai:http://localhost:8000/v1")
        client = openai.OpenAI(
            base_url=url,
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
            timeout=options.timeout,
            max_retries=RETRIES,
        )
        if not model:
            try:
                offered = _asked(url, lambda: [one.id for one in client.models.list().data])
            except _AnsweredError as error:
                hint = f"the server does not list its models. Add the name of a model: openai:{url}#MODEL"
                raise ModelError(error.message, hint=hint) from error
            if len(offered) != 1:
                raise ModelError(
                    f"the server {url} offers {len(offered)} models: {', '.join(offered[:10])}",
                    hint=f"add the name of one model: openai:{url}#{offered[0] if offered else 'MODEL'}",
                )
            [model] = offered
        return cls(client, model, url, concurrency=options.concurrency)

    @property
    def facts(self) -> Mapping[str, str]:
        """Return the model's name at the server: its versions are unknown."""
        return {"model": self._model}

    def loglikelihood(self, asks: Sequence[Ask]) -> Iterator[Likelihood]:
        """Yield the log-likelihood of each continuation; raises ModelError when the server does not offer it."""
        yield from self._side_by_side(lambda ask: self._with_ids(ask, self._likelihood), asks)

    def generate(self, asks: Sequence[Ask]) -> Iterator[Generation]:
        """Yield what the model writes; raises ModelError when the server does not answer, or wrongly."""
        yield from self._side_by_side(self._generation, asks)

    def _side_by_side(self, ask_one: Callable[[Ask], Made], asks: Sequence[Ask]) -> Iterator[Made]:
        pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="promptfmt-server")
        try:
            yield from pool.map(ask_one, asks)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    # -- log-likelihood ------------------------------------------------------------------------------------------------

    def _with_ids(self, ask: Ask, answer: Callable[[Ask], Made]) -> Made:
        """Return the answer to a question by ids, by text where the server takes no ids."""
        if not (ask.context_ids or ask.continuation_ids):
            return answer(ask)
        text = replace(ask, context_ids=(), continuation_ids=())
        if not self._takes_ids:
            return answer(text)
        try:
            return answer(ask)
        except _RefusedError as refused:
            try:
                answered = answer(text)
            except _RefusedError:
                raise refused from None  # the ids are not the reason
            self._takes_ids = False
            return answered

    def _likelihood(self, ask: Ask) -> Likelihood:
        assert ask.continuation is not None
        ids = [*ask.context_ids, *ask.continuation_ids]
        prompt: Any = ids or f"{ask.context}{ask.continuation}"
        wanted = {"prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 1}
        answer = self._ask(self._client.completions, "log-likelihoods", **wanted)
        given = getattr(answer.choices[0], "logprobs", None) if answer.choices else None
        if given is None or not given.token_logprobs or not given.top_logprobs:
            raise ModelError(
                f"the server {self._url} returns no log-probabilities of the prompt",
                hint="use a server whose completions support `echo` and `logprobs`, such as vLLM",
            )
        start, end = self._span(ask, given)
        logprobs = given.token_logprobs[start:end]
        best = [max(top.values(), default=None) if top else None for top in given.top_logprobs[start:end]]
        if not logprobs or any(value is None for value in logprobs) or len(best) != len(logprobs):
            raise ModelError(f"the server {self._url} returned no log-probability for a token of {ask.continuation!r}")
        greedy = all(most is None or value >= most for value, most in zip(logprobs, best, strict=True))
        return Likelihood(logprobs=tuple(map(float, logprobs)), is_greedy=greedy, sent=tuple(ids) if ids else None)

    def _span(self, ask: Ask, given: Any) -> tuple[int, int]:
        """Return which tokens of the echo are the continuation's."""
        if ask.continuation_ids:
            return len(ask.context_ids), len(ask.context_ids) + len(ask.continuation_ids)
        if not given.text_offset or len(given.text_offset) != len(given.token_logprobs):
            raise ModelError(
                f"the server {self._url} does not return where its tokens begin in the text",
                hint="set the tokenizer of the model in the profile. Then token ids are sent instead of text",
            )
        seam = len(ask.context)
        end = seam + len(ask.continuation or "")
        if seam not in given.text_offset:
            raise ModelError(
                f"the server's tokenizer merges the beginning of {ask.continuation!r} with the prompt",
                hint="set the tokenizer of the model in the profile. Then token ids are sent instead of text",
            )
        start = given.text_offset.index(seam)
        return start, start + sum(1 for offset in given.text_offset[start:] if offset < end)

    # -- generation ----------------------------------------------------------------------------------------------------

    def _generation(self, ask: Ask) -> Generation:
        if not self._chats:
            try:
                return self._with_ids(ask, self._completion)
            except _NotOfferedError:
                self._chats = True
        return self._chat(ask)

    def _completion(self, ask: Ask) -> Generation:
        prompt: Any = list(ask.context_ids) or ask.context
        answer = self._ask(self._client.completions, "completions", prompt=prompt, **_limits(ask))
        text = answer.choices[0].text if answer.choices else None
        return self._written(ask, answer, text, sent=ask.context_ids or None)

    def _chat(self, ask: Ask) -> Generation:
        messages = [{"role": role, "content": content} for role, content in ask.messages]
        if not messages:
            messages = [{"role": "user", "content": ask.context}]
        # Both are of vLLM and transformers: the model continues the last message instead of starting a new one.
        continues = messages[-1]["role"] == "assistant"
        extra = {"continue_final_message": True, "add_generation_prompt": False} if continues else {}
        wanted = {"messages": messages, "extra_body": extra, **_limits(ask)}
        answer = self._ask(self._client.chat.completions, "chat completions", **wanted)
        message = getattr(answer.choices[0], "message", None) if answer.choices else None
        return self._written(ask, answer, getattr(message, "content", None), sent=None)

    def _written(self, ask: Ask, answer: Any, text: Any, *, sent: tuple[int, ...] | None) -> Generation:
        if not isinstance(text, str):
            raise ModelError(f"the response of the server {self._url} has no text")
        text, cut_here = cut(text, ask.stop)
        ended: Finish = "length" if answer.choices[0].finish_reason == "length" else "stop" if ask.stop else "end"
        tokens = getattr(answer.usage, "completion_tokens", None) if answer.usage else None
        return Generation(text=text, finish="stop" if cut_here else ended, tokens=tokens or 0, sent=sent)

    def _ask(self, interface: Any, what: str, **wanted: Any) -> Any:
        answer = _asked(self._url, lambda: interface.create(model=self._model, temperature=0, **wanted), what)
        if not isinstance(getattr(answer, "choices", None), list):
            raise ModelError(f"the response of the server {self._url} is not a list of {what}")
        return answer


def _limits(ask: Ask) -> dict[str, Any]:
    return {"max_tokens": ask.max_tokens, "stop": list(ask.stop[:_MOST_STOPS]) or None, "seed": 0}


class _AnsweredError(ModelError):
    """The server answered with a status that is an error."""


class _NotOfferedError(_AnsweredError):
    """The server has no such interface."""


class _RefusedError(_AnsweredError):
    """The server does not take what it was sent."""


def _asked(url: str, request: Callable[[], Made], what: str = "models") -> Made:
    """Return the answer to a request; raises ModelError for everything that can go wrong on the way."""
    import openai

    try:
        return request()
    except openai.APITimeoutError as error:
        hint = "to wait longer, use --promptfmt-model-timeout"
        raise ModelError(f"the server {url} did not answer in time", hint=hint) from error
    except openai.APIConnectionError as error:
        raise ModelError(
            f"the server {url} cannot be reached: {error.__cause__ or error}", hint="check that the server is running"
        ) from error
    except openai.NotFoundError as error:
        raise _NotOfferedError(f"the server {url} does not support {what}: {_said(error)}") from error
    except openai.RateLimitError as error:
        hint = "to send one request at a time, use --promptfmt-model-concurrency 1"
        raise ModelError(
            f"the server {url} received too many requests (429, after {RETRIES} retries)", hint=hint
        ) from error
    except openai.APIStatusError as error:
        kind = _RefusedError if error.status_code in (400, 422) else _AnsweredError
        raise kind(f"the server {url} responded with status {error.status_code}: {_said(error)}") from error
    except (openai.OpenAIError, ValueError, TypeError, AttributeError) as error:
        first = str(error).partition("\n")[0][:200]
        raise ModelError(f"the response of the server {url} cannot be read: {first}") from error


def _said(error: openai.APIStatusError) -> str:
    """Return the message of a server's error, in any of the usual forms."""
    body = error.body
    for key in ("error", "message", "detail"):
        if isinstance(body, dict) and key in body:
            body = body[key]
    return " ".join(str(body or error.response.text or error).split())[:200]
