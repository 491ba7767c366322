"""A server on the loopback interface that renders one chat template as llama.cpp and vLLM are asked to: with Jinja.

`/apply-template`, and `/tokenize` with `/detokenize`, in which each character is a token. Below `/planted` it renders
`tojson` without spaces, as engines of other languages do. `/moved` leads elsewhere. Every path
that was asked is in `asked`.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


class LoopbackRenderer(ThreadingHTTPServer):
    """The server; `bos` is its begin token, which llama.cpp's answers lack."""

    def __init__(self, source: str, bos: str = "<s>") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.source = source
        self.bos = bos
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def render(self, body: dict[str, Any], *, is_planted: bool) -> str:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        separators = (",", ":") if is_planted else None
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False, separators=separators)
        environment.globals["raise_exception"] = refuse
        names = ("messages", "tools", "add_generation_prompt")
        given = {name: body.get(name) for name in names}
        arguments = body.get("chat_template_kwargs", {})
        template = environment.from_string(self.source)
        return template.render(bos_token=self.bos, eos_token="</s>", **given, **arguments)


def refuse(message: str) -> None:
    raise TemplateError(message)


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackRenderer

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass

    def do_GET(self) -> None:  # what a client makes of a POST that is redirected
        self.server.asked.append(self.path)
        self.answer({"prompt": "elsewhere"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(self.path)
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", f"{self.server.url}/{self.path.removeprefix('/moved/')}")
            self.end_headers()
            return
        is_planted = self.path.startswith("/planted/")
        path = self.path.removeprefix("/planted")
        try:
            if path == "/apply-template":
                text = self.server.render(body, is_planted=is_planted)
                self.answer({"prompt": text.removeprefix(self.server.bos)})
            elif path == "/tokenize":
                tokens = [ord(each) for each in self.server.render(body, is_planted=is_planted)]
                self.answer({"tokens": tokens, "count": len(tokens), "max_model_len": 4096})
            elif path == "/detokenize":
                self.answer({"prompt": "".join(map(chr, body["tokens"]))})
            else:
                self.answer({"error": {"message": "File Not Found"}}, 404)
        except Exception as error:
            self.answer({"error": {"code": 500, "message": str(error)}}, 500)

    def answer(self, value: Any, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
