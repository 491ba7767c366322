"""A server that speaks OpenAI's completions over a model of transformers: run as a separate process by the tests.

    python server.py FOLDER

Prints its port. `/v1` works; `/429/v1`, `/malformed/v1`, `/slow/v1` and `/no-completions/v1` fail in these ways;
`/text-only/v1` is as sparing as `transformers serve`: no list of models, no ids, no log-probabilities. It computes
everything with transformers alone, nothing of ours.
"""

from __future__ import annotations

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Served:
    """The model and its tokenizer, one request at a time."""

    def __init__(self, folder: str) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder)
        self.model = model.eval()
        self.lock = Lock()

    def ids(self, prompt: Any) -> list[int]:
        return prompt if isinstance(prompt, list) else self.tokenizer(prompt)["input_ids"]

    def echo(self, prompt: Any) -> dict[str, Any]:
        ids = self.ids(prompt)
        with self.lock, torch.inference_mode():
            logprobs = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        logprobs_of: list[float | None] = [None]
        best: list[dict[str, float] | None] = [None]
        for at in range(1, len(ids)):
            logprobs_of.append(float(logprobs[at - 1, ids[at]]))
            top = int(logprobs[at - 1].argmax())
            best.append({self.tokenizer.decode([top]): float(logprobs[at - 1, top])})
        texts = [self.tokenizer.decode([token]) for token in ids]
        offsets = [sum(map(len, texts[:at])) for at in range(len(texts))]
        return {"tokens": texts, "token_logprobs": logprobs_of, "top_logprobs": best, "text_offset": offsets}

    def write(self, ids: list[int], most: int, stops: list[str]) -> tuple[str, str, int]:
        new: list[int] = []
        with self.lock, torch.inference_mode():
            while len(new) < most:
                token = int(self.model(torch.tensor([ids + new])).logits[0, -1].argmax())
                if token == self.model.config.eos_token_id:
                    break
                new.append(token)
                text = self.tokenizer.decode(new, skip_special_tokens=True)
                for stop in stops:
                    if stop in text:
                        return text.split(stop)[0], "stop", len(new)
        text = self.tokenizer.decode(new, skip_special_tokens=True)
        return text, "length" if len(new) == most else "stop", len(new)


class Handler(BaseHTTPRequestHandler):
    """Answers, or fails as the path says."""

    served: Served

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path.startswith("/text-only/"):
            return self._send("Internal Server Error", 500)
        return self._send({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fail = self.path.split("/")[1]
        if fail == "429":
            return self._send({"error": {"message": "too many requests"}}, 429)
        if fail == "refuses":
            return self._send({"error": {"message": "the context is too long"}}, 400)
        if fail == "malformed":
            return self._send({"choices": "none"})
        if fail == "slow":
            time.sleep(5)
        if fail == "text-only":
            if not isinstance(asked["prompt"], str):
                return self._send({"detail": "prompt must be a string."}, 400)
            asked["echo"] = False
        stops = asked.get("stop") or []
        if self.path.endswith("/chat/completions"):
            text = self.served.tokenizer.apply_chat_template(
                asked["messages"],
                tokenize=False,
                add_generation_prompt=asked.get("add_generation_prompt", True),
                continue_final_message=asked.get("continue_final_message", False),
                chat_template=CHATML,
            )
            ids = self.served.tokenizer(text)["input_ids"]
            written, finish, count = self.served.write(ids, asked["max_tokens"], stops)
            choice = {"index": 0, "message": {"role": "assistant", "content": written}, "finish_reason": finish}
        elif fail == "no-completions":
            return self._send({"error": {"message": "no such route"}}, 404)
        elif asked.get("echo"):
            choice = {"index": 0, "text": "", "logprobs": self.served.echo(asked["prompt"]), "finish_reason": "length"}
            count = 1
        else:
            written, finish, count = self.served.write(self.served.ids(asked["prompt"]), asked["max_tokens"], stops)
            choice = {"index": 0, "text": written, "finish_reason": finish}
        usage = {"completion_tokens": count, "prompt_tokens": 0, "total_tokens": count}
        return self._send(
            {"id": "1", "object": "x", "created": 0, "model": "tiny", "choices": [choice], "usage": usage}
        )

    def _send(self, answer: Any, status: int = 200) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    options = parser.parse_args()
    Handler.served = Served(options.folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
