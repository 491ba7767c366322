"""A Hugging Face hub on the loopback interface: as much of its interface as datasets 5 and huggingface_hub 2 ask for.

Repositories are folders `owner/name`; those of the owner `closed` are gated. Everything has one commit, the `head`; the
folders `earlier/COMMIT/owner/name` are those of earlier ones.
"""

from __future__ import annotations

import json
import re
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LoopbackHub(ThreadingHTTPServer):
    """The server; `root` holds the repositories."""

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.head = COMMIT

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackHub
    protocol_version = "HTTP/1.1"
    commit = COMMIT

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        if path == "/api/datasets":
            owner = parse_qs(url.query)["author"][0]
            self.answer([{"id": f"{owner}/{found.name}"} for found in sorted((self.server.root / owner).iterdir())])
        elif match := re.fullmatch(r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)/?(.*))?", path):
            self.tell(match[1], match[2] or "revision", match[3] or "main", match[4] or "")
        elif match := re.fullmatch(r"/(?:datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.hand_out(match[1], match[2], match[3])
        else:
            self.refuse(404, "EntryNotFound", "no such page")

    def do_HEAD(self) -> None:
        self.do_GET()

    def repository(self, name: str, revision: str) -> Path | None:
        folder = self.server.root / name
        earlier = self.server.root / "earlier" / revision / name
        if name.startswith("closed/"):
            self.refuse(401, "GatedRepo", "access is restricted")
        elif not folder.is_dir():
            self.refuse(404, "RepoNotFound", "repository not found")
        elif earlier.is_dir():
            self.commit = revision
            return earlier
        elif revision not in ("main", self.server.head):
            self.refuse(404, "RevisionNotFound", "invalid revision")
        else:
            self.commit = self.server.head
            return folder
        return None

    def tell(self, name: str, what: str, revision: str, below: str) -> None:
        folder = self.repository(name, revision)
        if folder is None:
            return
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if what == "revision":
            card = {"license": "cc-by-4.0"}
            names = [{"rfilename": path.relative_to(folder).as_posix()} for path in files]
            self.answer({"id": name, "sha": self.commit, "tags": [], "cardData": card, "siblings": names})
        elif not (folder / below).is_dir():
            self.refuse(404, "EntryNotFound", "no such folder")
        else:
            shown = (folder / below).rglob("*") if "recursive=true" in self.path else (folder / below).iterdir()
            self.answer([self.entry(folder, path) for path in sorted(shown)])

    @staticmethod
    def entry(folder: Path, path: Path) -> dict[str, Any]:
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": COMMIT, "size": 0}
        return {"type": "file", "path": name, "oid": sha1(path.read_bytes()).hexdigest(), "size": path.stat().st_size}

    def hand_out(self, name: str, revision: str, file: str) -> None:
        folder = self.repository(name, revision)
        if folder is None:
            return
        if not (folder / file).is_file():
            self.refuse(404, "EntryNotFound", "no such file")
            return
        content = (folder / file).read_bytes()
        tag = sha1(content).hexdigest()
        self.send(200, content, {"ETag": f'"{tag}"', "Content-Type": "application/octet-stream"})

    def answer(self, value: Any) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str, message: str) -> None:
        self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message})

    def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "X-Repo-Commit": self.commit, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
