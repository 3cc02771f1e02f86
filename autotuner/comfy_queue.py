"""One ComfyUI server's own queue, over its HTTP API: put a prompt into it, wait, read what its nodes showed.

POST /prompt {"prompt": …, "prompt_id": …}      GET /history/<id>      GET /queue
POST /queue {"delete": [<id>]}                  POST /interrupt {"prompt_id": <id>}
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from ..core.errors import RecipeError
from ..core.text import whole

LARGEST = 1 << 26  # bytes of an answer
SHOWN = 300


class ServerLostError(Exception):
    """A server does not answer any more."""


class PromptFailedError(Exception):
    """A server answers, but the prompt came to nothing there."""


class StoppedError(Exception):
    """Nobody waits for the prompt any more."""


class _UnreachableError(Exception):
    pass


class ComfyQueue:
    """A server.

    Args:
        address: `host:port`, or an http or https address.
        interval: seconds between two looks.
        patience: seconds that a server may stay away before it counts as lost.
        timeout: seconds that a prompt may take, with its time in the queue.
        answer_seconds: that one answer may take.

    Raises:
        RecipeError: the address is none.
    """

    def __init__(
        self,
        address: str,
        *,
        interval: float = 1.0,
        patience: float = 30.0,
        timeout: float = 900.0,
        answer_seconds: float = 10.0,
    ) -> None:
        self.url = _url(address)
        self.name = urlsplit(self.url).netloc
        self._interval, self._patience = interval, patience
        self._timeout, self._answer_seconds = timeout, answer_seconds
        # Workers stand in the same network; a proxy of the environment is for the world outside.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def run(self, prompt: Mapping[str, Any], stop: threading.Event) -> Mapping[str, Any]:
        """Run a prompt, and return what its output nodes showed, by node id.

        Args:
            prompt: in ComfyUI's API form.
            stop: set when nobody waits any more; the prompt is then taken back.

        Raises:
            ServerLostError: the server does not answer any more, or forgot the prompt twice.
            PromptFailedError: it was refused, failed, or took too long.
            StoppedError: `stop` was set.
        """
        until = time.monotonic() + self._timeout
        for _ in range(2):
            identity = self._submit(prompt, stop)
            entry = self._awaited(identity, until, stop)
            if entry is not None:
                return _outputs(entry)
        raise ServerLostError("it forgot the prompt twice; it may have been restarted")

    def _submit(self, prompt: Mapping[str, Any], stop: threading.Event) -> str:
        since = time.monotonic()
        while True:
            identity = str(uuid4())
            try:
                answer = self._ask(
                    "/prompt", {"prompt": prompt, "prompt_id": identity, "client_id": identity}
                )
                break
            except _UnreachableError as problem:
                self._wait_or_lose(since, problem, stop)
                self._withdraw(identity)  # the answer may have been lost, and not the prompt
        given = answer.get("prompt_id")
        if not isinstance(given, str) or not given:
            raise PromptFailedError("it took the prompt and gave it no number; is it a ComfyUI server?")
        if complaint := _complaint(answer):
            # It would run what is sound of the prompt, and show a score of something else.
            self._withdraw(given)
            raise PromptFailedError(f"it refused a part of the prompt: {complaint}")
        return given

    def _awaited(self, identity: str, until: float, stop: threading.Event) -> Mapping[str, Any] | None:
        """The entry of a prompt in the history; None if the server knows nothing of it."""
        missing, since = 0, None
        while True:
            try:
                entry = self._ask(f"/history/{identity}").get(identity)
                if isinstance(entry, Mapping):
                    return entry
                # Between the queue and the history it is in neither for a moment.
                missing = 0 if self._is_queued(identity) else missing + 1
                since = None
            except _UnreachableError as problem:
                since = time.monotonic() if since is None else since
                self._wait_or_lose(since, problem, stop)
                continue
            if missing > 2:
                return None
            if time.monotonic() > until:
                self._withdraw(identity)
                raise PromptFailedError(f"it took longer than {self._timeout:g} s and was cancelled")
            if stop.wait(self._interval):
                self._withdraw(identity)
                raise StoppedError

    def _wait_or_lose(self, since: float, problem: Exception, stop: threading.Event) -> None:
        if time.monotonic() - since >= self._patience:
            raise ServerLostError(str(problem)) from None
        if stop.wait(self._interval):
            raise StoppedError

    def _is_queued(self, identity: str) -> bool:
        return identity in {*self._ids("queue_running"), *self._ids("queue_pending")}

    def _ids(self, which: str) -> list[str]:
        found = self._ask("/queue").get(which)
        items = found if isinstance(found, list) else []
        return [
            item[1] for item in items if isinstance(item, list) and len(item) > 1 and isinstance(item[1], str)
        ]

    def _withdraw(self, identity: str) -> None:
        """Take a prompt back, and leave those of others alone."""
        try:
            self._ask("/queue", {"delete": [identity]})
            # Old servers interrupt whatever runs, so we look first.
            if identity in self._ids("queue_running"):
                self._ask("/interrupt", {"prompt_id": identity})
        except (_UnreachableError, PromptFailedError):
            pass

    def _ask(self, route: str, body: object = None) -> Mapping[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + route, data, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=self._answer_seconds) as answer:
                text = answer.read(LARGEST + 1)
        except urllib.error.HTTPError as problem:
            with problem:
                if problem.code in (502, 503, 504):
                    raise _UnreachableError(f"it answers {problem.code}") from None
                raise PromptFailedError(_refusal(problem)) from None
        except (OSError, HTTPException) as problem:
            reason = getattr(problem, "reason", None) or problem
            raise _UnreachableError(
                whole(f"it cannot be reached ({reason or type(problem).__name__})")
            ) from None
        if not text.strip():
            return {}
        try:
            decoded = json.loads(text) if len(text) <= LARGEST else None
        except (ValueError, RecursionError):
            decoded = None
        if not isinstance(decoded, Mapping):
            raise PromptFailedError("its answer is not what a ComfyUI server says")
        return decoded


def _url(address: str) -> str:
    given = address.strip() if "://" in address else f"http://{address.strip()}"
    try:
        parts = urlsplit(given)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
        parts = urlsplit("")
    if not is_good or parts.username or parts.query or parts.fragment:
        raise RecipeError(
            f"`{address}` is no address of a ComfyUI server; write `host:port` or `http://host:port`."
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _refusal(problem: urllib.error.HTTPError) -> str:
    """What ComfyUI says on a prompt that it does not take."""
    try:
        body = json.loads(problem.read(LARGEST))
    except (OSError, HTTPException, ValueError, RecursionError):
        body = None
    complaint = _complaint(body)
    return f"it refused the prompt with {problem.code}" + (f": {complaint}" if complaint else "")


def _complaint(body: object) -> str:
    """What ComfyUI says is wrong with a prompt; empty if nothing is."""
    found = _mapping(body)
    told = [_message(found.get("error"))]
    for node, errors in _mapping(found.get("node_errors")).items():
        reasons = _mapping(errors).get("errors")
        if not isinstance(reasons, list) or not reasons:
            told.append(f"node {node}")
            continue
        told += (
            f"node {node}: {_message(one)} {_mapping(one).get('details', '')}".strip() for one in reasons
        )
    return whole("; ".join(one for one in told if one)[:SHOWN])


def _outputs(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    status = _mapping(entry.get("status"))
    if status.get("status_str") == "error":
        raise PromptFailedError(whole(_failure(status.get("messages"))[:SHOWN]))
    outputs = entry.get("outputs")
    if not isinstance(outputs, Mapping):
        raise PromptFailedError("its history says nothing of what the nodes showed")
    return outputs


def _failure(messages: object) -> str:
    for one in messages if isinstance(messages, list) else []:
        if not (isinstance(one, list) and len(one) == 2):
            continue
        kind, data = one[0], _mapping(one[1])
        if kind == "execution_error":
            place = f"{data.get('node_type', 'a node')} (node {data.get('node_id', '?')})"
            return f"{place} failed: {str(data.get('exception_message', '')).strip()}"
        if kind == "execution_interrupted":
            return "somebody interrupted it there"
    return "it failed there"


def _message(value: object) -> str:
    return value if isinstance(value, str) else str(_mapping(value).get("message", ""))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
