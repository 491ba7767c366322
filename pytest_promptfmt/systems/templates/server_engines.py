"""Servers that render chat templates themselves, asked by HTTP: llama.cpp's `/apply-template`, vLLM's `/tokenize`.

They render the template that they serve with their own engine. No model is run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, ClassVar, Final
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pytest_promptfmt.core.errors import SettingsError

SECONDS: Final = 60.0
_MOST_BYTES: Final = 64_000_000
_IN_BODY: Final = ("messages", "tools", "add_generation_prompt")


class _Stay(HTTPRedirectHandler):
    """Follows no redirection: the key is for the server that was named, and for no other."""

    def redirect_request(self, *_given: Any) -> None:
        """Return nothing, so that the answer is an error."""


_OPENER: Final = build_opener(_Stay)


def request_of(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client sends to have these variables rendered; special tokens are known to the server."""
    plain = {key: value for key, value in variables.items() if not callable(value) and not key.endswith("_token")}
    arguments = {key: value for key, value in plain.items() if key not in _IN_BODY and value is not None}
    request = {key: plain[key] for key in _IN_BODY if plain.get(key) is not None}
    return {**request, "chat_template_kwargs": arguments} if arguments else request


class ServerEngine:
    """A server of one kind. Subclasses say which of its answers is the prompt."""

    name: ClassVar[str]
    is_server: ClassVar[bool] = True

    def __init__(self, url: str) -> None:
        """Ask the server at a URL without `/v1`, which some clients write behind it."""
        self.url = url.rstrip("/").removesuffix("/v1")

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return the prompt; raises RuntimeError for a refusal, SettingsError where no such server answers."""
        try:
            return self.prompt(request_of(variables))
        except (KeyError, TypeError) as error:
            raise SettingsError(f"the server {self.url} does not answer as {self.name} does") from error

    def prompt(self, request: Mapping[str, Any]) -> str:
        """Return the prompt for a request; raises as `render`, KeyError and TypeError for another answer."""
        raise NotImplementedError

    def answer(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the server answers to a POST; raises as `render`.

        The key of the environment variable OPENAI_API_KEY is sent where there is one.
        """
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        asked = Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with _OPENER.open(asked, timeout=SECONDS) as response:
                answer: Mapping[str, Any] = json.loads(response.read(_MOST_BYTES))
                return answer
        except HTTPError as error:
            why = _message(error)
            if error.code in (400, 422, 500) and why:
                raise RuntimeError(why) from error
            raise SettingsError(f"the server {self.url} refuses {path}: {error.code} {error.reason}") from error
        except (URLError, HTTPException, OSError, ValueError) as error:
            why = str(getattr(error, "reason", error))
            hint = f"start {self.name} there, or use a recording"
            raise SettingsError(f"the server {self.url} cannot be asked: {why}", hint=hint) from error


class LlamaServer(ServerEngine):
    """llama.cpp, whose `/apply-template` renders a conversation."""

    name = "llama.cpp"

    def prompt(self, request: Mapping[str, Any]) -> str:
        """Return the prompt, without the begin token where llama.cpp leaves that to the tokenizer."""
        return str(self.answer("/apply-template", request)["prompt"])


class VllmServer(ServerEngine):
    """vLLM, whose `/tokenize` renders a conversation to tokens and whose `/detokenize` shows them."""

    name = "vllm"

    def prompt(self, request: Mapping[str, Any]) -> str:
        """Return the text of the tokens that the model would get."""
        tokens = self.answer("/tokenize", {**request, "add_special_tokens": False})["tokens"]
        return str(self.answer("/detokenize", {"tokens": tokens})["prompt"])


def _message(error: HTTPError) -> str:
    """Return what a server says of a request that it refuses; empty where it says nothing."""
    try:
        answer = json.loads(error.read(_MOST_BYTES))
        answer = answer.get("error", answer)
        return str(answer.get("message") or "") if isinstance(answer, dict) else str(answer)
    except (OSError, ValueError, AttributeError):
        return ""
