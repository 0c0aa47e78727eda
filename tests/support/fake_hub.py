"""Fake of the Hugging Face hub's HTTP API, with repositories in memory."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_fake"  # noqa: S105
Files = dict[str, bytes]


@dataclass
class Repository:
    """Repository as a list of commits, newest last."""

    private: bool = False
    commits: list[Files] = field(default_factory=lambda: [{".gitattributes": b"*.safetensors filter=lfs"}])
    messages: list[str] = field(default_factory=list)
    listing_overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changed fields of the file listing, by file name."""
    tags: dict[str, int] = field(default_factory=dict)
    """Commit index by tag."""

    @property
    def files(self) -> Files:
        return self.commits[-1]

    def find_commit(self, revision: str) -> int | None:
        """Return the index of the commit that a SHA, a tag or `main` names."""
        names = {format_sha(index): index for index in range(len(self.commits))}
        return {**names, **self.tags, "main": len(self.commits) - 1}.get(revision)


def format_sha(index: int) -> str:
    """Return the SHA of the commit at `index`."""
    return hashlib.sha1(str(index).encode(), usedforsecurity=False).hexdigest()


@dataclass
class FakeHub:
    """State of the fake hub."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Uploaded LFS files by SHA-256."""
    requests: list[str] = field(default_factory=list)
    """Log lines of the received requests."""
    endpoint: str = ""

    def add_repository(self, name: str, folder: Path) -> Repository:
        """Add a repository with the files of a folder."""
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        repository = self.repositories[name] = Repository()
        repository.commits.append({**repository.files, **files})
        return repository

    def add_commit(self, repository: Repository, operations: list[dict[str, Any]]) -> None:
        """Apply the operations of a commit request."""
        files = dict(repository.files)
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "header":
                repository.messages.append(value["summary"])
            elif operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        repository.commits.append(files)


@contextmanager
def serve_hub() -> Iterator[FakeHub]:
    """Serve an empty hub on a free port of 127.0.0.1."""
    hub = FakeHub()

    class BoundHandler(HubRequestHandler):
        pass

    BoundHandler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), BoundHandler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class HubRequestHandler(BaseHTTPRequestHandler):
    """Handler of the API requests that `huggingface_hub` sends."""

    hub: FakeHub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        self.hub.requests.append(format % args)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?/?", path):
            name, kind, revision = match.groups()
            if (commit := self._find_commit(name, revision or "main")) is not None:
                repository, index = commit
                if kind == "tree":
                    self._send_json(list(_list_tree(repository, index)))
                else:
                    self._send_json(
                        {"id": name, "sha": format_sha(index), "private": repository.private, "siblings": []}
                    )
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)", path):
            if (commit := self._find_commit(match[1], match[2])) is not None:
                self._send(commit[0].commits[commit[1]][match[3]], "application/octet-stream")
        else:
            self._send_error(404, "EntryNotFound")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = urlsplit(self.path).path
        if path == "/api/validate-yaml":
            self._send_json({"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send_error(401, "RepoNotFound")
        elif path == "/api/repos/create":
            self._create_repository(json.loads(body))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": _choose_mode(name), "shouldIgnore": False} for name in names]
            self._send_json({"files": modes})
        elif match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            objects = json.loads(body)["objects"]
            self._send_json({"transfer": "basic", "objects": [self._make_upload_plan(item) for item in objects]})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            repository = self.hub.repositories[match[1]]
            self.hub.add_commit(repository, [json.loads(line) for line in body.splitlines()])
            oid = format_sha(len(repository.commits) - 1)
            url = f"{self.hub.endpoint}/{match[1]}/commit/{oid}"
            self._send_json({"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""})
        else:
            self._send_error(404, "EntryNotFound")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.objects[hashlib.sha256(body).hexdigest()] = body
        self._send_json({})

    def _create_repository(self, request: dict[str, Any]) -> None:
        name = f"{request.get('organization') or 'user'}/{request['name']}"
        url = {"url": f"{self.hub.endpoint}/{name}"}
        if name in self.hub.repositories:
            self._send_json(url, status=409)
            return
        private = request.get("private") is True or request.get("visibility") == "private"
        self.hub.repositories[name] = Repository(private=private)
        self._send_json(url)

    def _make_upload_plan(self, item: dict[str, Any]) -> dict[str, Any]:
        upload = {"href": f"{self.hub.endpoint}/objects/{item['oid']}", "header": {}}
        return {"oid": item["oid"], "size": item["size"], "actions": {"upload": upload}}

    def _find_commit(self, name: str, revision: str) -> tuple[Repository, int] | None:
        """Return a repository and a commit index, or send an error and return None.

        Without a token, a private repository gets the error of a missing one, as on the hub.
        """
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            self._send_error(401, "RepoNotFound")
            return None
        index = repository.find_commit(revision)
        if index is None:
            self._send_error(404, "RevisionNotFound")
            return None
        return repository, index

    def _send_json(self, value: Any, *, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _send_error(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, content: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _choose_mode(name: str) -> str:
    return "lfs" if name.endswith((".safetensors", ".onnx", ".mp4")) else "regular"


def _list_tree(repository: Repository, index: int) -> Iterator[dict[str, Any]]:
    files = repository.commits[index]
    for folder in sorted({str(Path(name).parent) for name in files} - {"."}):
        yield {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
    for name, content in files.items():
        yield {
            "type": "file",
            "path": name,
            "oid": "0" * 40,
            "size": len(content),
            **repository.listing_overrides.get(name, {}),
        }


@contextmanager
def use_fake_hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[FakeHub]:
    """Serve a hub and point `huggingface_hub` in this process to it, with a token."""
    constants = pytest.importorskip("huggingface_hub.constants")
    with serve_hub() as hub:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # Xet needs another server
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub
