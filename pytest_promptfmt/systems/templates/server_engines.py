"""Servers that render chat templates (llama.cpp, vLLM), asked over HTTP or recorded earlier."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import Position, SettingsError, raising
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.study import ProfileView
from pytest_promptfmt.systems.templates.template_subjects import trial_of_view

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
    """A server of one kind. Subclasses read the prompt from its answers."""

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
            message = f"the server {self.url} is not a {self.name} server"
            raise SettingsError(message, hint=f"start {self.name} at this URL, or use a recording") from error

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
            hint = f"start {self.name} at this URL, or use a recording"
            raise SettingsError(f"the server {self.url} cannot be reached: {why}", hint=hint) from error


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


SERVERS: Final[Mapping[str, type[ServerEngine]]] = {each.name: each for each in (LlamaServer, VllmServer)}


def server_at(written: str) -> ServerEngine | None:
    """Return the server of `llama.cpp:URL` or `vllm:URL`; None for what is not written like that."""
    name, _, url = written.partition(":")
    return SERVERS[name](url) if name in SERVERS and url.startswith(("http://", "https://")) else None


def _message(error: HTTPError) -> str:
    """Return the message of a server that refuses a request; empty without one."""
    try:
        answer = json.loads(error.read(_MOST_BYTES))
        answer = answer.get("error", answer)
        return str(answer.get("message") or "") if isinstance(answer, dict) else str(answer)
    except (OSError, ValueError, AttributeError):
        return ""


# -- recordings --------------------------------------------------------------------------------------------------------

Line = Mapping[str, Any]

NOT_RECORDED: Final = "the prompt is not recorded"
_RECORD: Final = "record the prompt with promptfmt record"


def key_of(request: Mapping[str, Any]) -> str:
    """Return the digest of a request: 32 hexadecimal digits. The order of keys counts, for templates print it."""
    return sha256(json.dumps(request).encode()).hexdigest()[:32]


def read_recording(path: Path) -> dict[str, Line]:
    """Return the lines by their key, a later one in place of an earlier; raises SettingsError for bad ones."""
    found: dict[str, Line] = {}
    try:
        text = gate.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the recording cannot be read: {error}", position=Position(path), hint=_RECORD) from error
    for number, written in enumerate(text.split("\n"), start=1):
        if written.strip():
            line = _line(written)
            if line is None:
                position = Position(path, number)
                raise SettingsError("not a line of recorded prompts", position=position, hint=_RECORD)
            found[line["key"]] = line
    return found


def _line(written: str) -> Line | None:
    try:
        line = json.loads(written)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("message", {}), dict):
        return None
    names = ("engine", "key", *(() if "message" in line else ("text" if "text" in line else "refused",)))
    return line if all(isinstance(line.get(name), str) for name in names) else None


def write_recording(path: Path, lines: Mapping[str, Line]) -> None:
    """Write a recording, sorted; raises SettingsError where that fails."""
    lines_in_order = sorted(lines.values(), key=lambda line: (line.get("from", ""), line["key"]))
    with raising(SettingsError, "the recording cannot be written", Position(path)):
        writing.write(path, "".join(json.dumps(line) + "\n" for line in lines_in_order), also=[path])


class RecordedEngine:
    """The recorded prompts of a server, for exactly the same requests."""

    is_server = True

    def __init__(self, path: Path) -> None:
        """Read a recording; raises SettingsError for a file that is not one, or of several engines."""
        self._lines = read_recording(path)
        names = sorted({line["engine"] for line in self._lines.values()})
        if len(names) != 1:
            what = f"holds prompts of several engines: {', '.join(names)}" if names else "is empty"
            raise SettingsError(f"the recording {what}", position=Position(path), hint="keep one file for each engine")
        [self.name] = names

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return the recorded prompt; raises RuntimeError for a refusal, and for what is not recorded."""
        line = self._lines.get(key_of(request_of(variables)), {"refused": NOT_RECORDED})
        if "text" not in line:
            raise RuntimeError(line["refused"])
        return str(line["text"])


class ServerRecorder:
    """A server whose answers are kept; `place` describes the next request for readers of the file."""

    is_server = True

    def __init__(self, server: ServerEngine) -> None:
        self.name = server.name
        self.place = ""
        self.lines: dict[str, Line] = {}
        self._server = server

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return what the server renders; raises as it does."""
        key = key_of(request_of(variables))
        head = {"engine": self.name, "from": self.place, "key": key}
        try:
            text = self._server.render(variables)
        except RuntimeError as error:
            self.lines[key] = {**head, "refused": str(error)}
            raise
        self.lines[key] = {**head, "text": text}
        return text

    def write(self, path: Path) -> int:
        """Write the recording with what it held before, sorted; return how many prompts are new or changed.

        Raises SettingsError where the file is not a recording, is one of another engine, or cannot be written.
        """
        before = read_recording(path) if gate.is_there(path) else {}
        if others := {line["engine"] for line in before.values()} - {self.name}:
            hint = "keep one file for each engine"
            raise SettingsError(
                f"this is a recording of another engine, {others.pop()}", position=Position(path), hint=hint
            )
        write_recording(path, {**before, **self.lines})
        return sum(before.get(key) != line for key, line in self.lines.items())


def recorded(views: Iterable[ProfileView], engine: str, file: Path) -> str:
    """Write what a server renders into a recording, and return what was done; raises SettingsError."""
    server = server_at(engine)
    if server is None:
        raise SettingsError(f"{engine!r} is not a server", hint="write --engine llama.cpp:URL or --engine vllm:URL")
    recorder = ServerRecorder(server)
    done: set[int] = set()
    for view in views:
        trial = trial_of_view(view)
        if trial is not None and id(trial) not in done:  # one for all conversations of a template
            done.add(id(trial))
            _ask(recorder, trial)
    if not recorder.lines:
        raise SettingsError(
            "there are no prompts of chat templates to record", hint="name a template, or --profile NAME"
        )
    changed = recorder.write(file)
    return f"{file.name}: {len(recorder.lines)} prompts of {recorder.name}; {changed} of them are new or changed"


def _ask(recorder: ServerRecorder, trial: TemplateTrial) -> None:
    for conversation in trial.given.values():
        for number, state in enumerate(conversation.states, start=1):
            recorder.place = f"{trial.profile.name} {conversation.name} {number}"
            trial.rendered_by(recorder, conversation, state)
