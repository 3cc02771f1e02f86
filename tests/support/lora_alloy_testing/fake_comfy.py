"""The part of ComfyUI's HTTP API that a worker needs, on a loopback thread, with the troubles of real servers.

with FakeComfy(score=lambda prompt: "0.5") as server:
    server.address      # host:port
    server.prompts      # what was queued, by id
"""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from uuid import uuid4

__all__ = ["FakeComfy"]


class FakeComfy:
    """A server that "runs" prompts by asking `score` what the node `9` shows.

    Args:
        score: what the prompt's score node shows; an exception is an execution error.
        seconds: that a prompt takes.
        dies_at: how many prompts it takes before it closes every connection without an answer.
        hangs: whether it takes prompts and then never ends them.
        is_busy: whether our prompts wait behind those of others for ever.
        forgets: how many prompts it drops without a trace.
        refuses: the error that it answers to a prompt with, 400.
        drops: the error of a node that it leaves out, with those behind it, while it runs the others.
        knows_ids: whether it takes the caller's number for a prompt; old ones give their own.
        answers: raw bytes for a route instead of an answer.
    """

    def __init__(
        self,
        score: Callable[[dict[str, Any]], object] = lambda prompt: "0.5",
        *,
        seconds: float = 0.0,
        dies_at: int = 10**9,
        hangs: bool = False,
        is_busy: bool = False,
        forgets: int = 0,
        refuses: str = "",
        drops: str = "",
        knows_ids: bool = True,
        answers: dict[str, bytes] | None = None,
    ) -> None:
        self.score, self.seconds, self.dies_at = score, seconds, dies_at
        self.hangs, self.is_busy = hangs or is_busy, is_busy
        self.forgets, self.refuses, self.knows_ids = forgets, refuses, knows_ids
        self.answers, self.drops = answers or {}, drops
        self.prompts: dict[str, dict[str, Any]] = {}
        self.began: dict[str, float] = {}
        self.deleted: list[str] = []
        self.interrupted: list[str] = []
        self.others = ["somebody-else"]
        self.is_dead = False
        self.lock = threading.Lock()

    def __enter__(self) -> "FakeComfy":
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.answer(self, None)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                fake.answer(self, json.loads(self.rfile.read(length)))

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        """Answer one request."""
        route = handler.path.split("?")[0]
        with self.lock:
            if route == "/prompt" and len(self.prompts) >= self.dies_at:
                self.is_dead = True
            if self.is_dead:
                handler.close_connection = True
                return
            status, value = self._answer(route, body)
        known = next((text for start, text in self.answers.items() if route.startswith(start)), None)
        text = json.dumps(value).encode() if known is None else known
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def _answer(self, route: str, body: Any) -> tuple[int, Any]:
        if route == "/prompt":
            if self.refuses:
                error = {"message": self.refuses, "details": "lora_name: 'x' not in []"}
                return 400, {
                    "error": {"message": "Prompt outputs failed validation"},
                    "node_errors": {"1": {"errors": [error]}},
                }
            identity = body["prompt_id"] if self.knows_ids else str(uuid4())
            if self.forgets:
                self.forgets -= 1
            else:
                self.prompts[identity] = body["prompt"]
                self.began[identity] = time.monotonic()
            return 200, {"prompt_id": identity, "number": 1, "node_errors": self._dropped()}
        if route == "/queue" and body is None:
            ours = [one for one in self.prompts if self._is_running(one) and one not in self.deleted]
            running, pending = (self.others, ours) if self.is_busy else ([*self.others, *ours], [])
            queues = {"queue_running": running, "queue_pending": pending}
            return 200, {name: [[0, one, {}, {}, []] for one in ids] for name, ids in queues.items()}
        if route == "/queue":
            if self.is_busy:  # what runs cannot be deleted
                self.deleted += body["delete"]
            return 200, {}
        if route == "/interrupt":
            self.interrupted.append(body.get("prompt_id", "everything"))
            return 200, {}
        identity = route.rpartition("/")[2]
        if identity not in self.prompts or self._is_running(identity):
            return 200, {}
        return 200, {identity: self._entry(identity)}

    def _dropped(self) -> dict[str, Any]:
        return {"1": {"errors": [{"message": self.drops}]}} if self.drops else {}

    def _is_running(self, identity: str) -> bool:
        return self.hangs or time.monotonic() - self.began[identity] < self.seconds

    def _entry(self, identity: str) -> dict[str, Any]:
        try:
            shown = self.score(self.prompts[identity])
        except ValueError as problem:
            data = {"node_id": "5", "node_type": "KSampler", "exception_message": f"{problem}\n"}
            messages = [["execution_start", {}], ["execution_error", data]]
            return {
                "outputs": {},
                "status": {"status_str": "error", "completed": False, "messages": messages},
            }
        outputs = {"9": shown if isinstance(shown, dict) else {"text": [shown]}}
        return {"outputs": outputs, "status": {"status_str": "success", "completed": True, "messages": []}}
