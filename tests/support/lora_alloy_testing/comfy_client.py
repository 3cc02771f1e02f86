"""Speak to a running ComfyUI: queue a prompt, follow it over its WebSocket, read what came of it."""

import asyncio
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ComfyClient", "Event", "PromptError", "Run"]

_ENDINGS = {
    "execution_success": "success",
    "execution_error": "error",
    "execution_interrupted": "interrupted",
}


class PromptError(AssertionError):
    """ComfyUI's validation refused a prompt; `body` is its answer, with `error` and `node_errors`."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(json.dumps(body, indent=1))
        self.body = body


@dataclass(frozen=True)
class Event:
    """A message of the server's: `progress`, `executed`, …; a binary one is `binary`, `data` its bytes."""

    type: str
    data: Any


@dataclass
class Run:
    """What came of one prompt. `status` is `success`, `error` or `interrupted`."""

    prompt_id: str
    events: list[Event] = field(default_factory=list)
    status: str = "unfinished"
    history: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    def of(self, event_type: str) -> list[Any]:
        """The data of all events of that type, in order."""
        return [event.data for event in self.events if event.type == event_type]

    @property
    def outputs(self) -> dict[str, Any]:
        """What output nodes showed, by node id."""
        return self.history.get("outputs", {})

    @property
    def error(self) -> str:
        """Node, message and traceback of a failed run; empty otherwise."""
        for data in self.of("execution_error"):
            place = f"{data['node_type']} (node {data['node_id']})"
            what = f"{data['exception_type']}: {data['exception_message']}"
            return f"{place}: {what}\n{''.join(data['traceback'])}"
        return ""


class ComfyClient:
    """The HTTP and WebSocket routes of a ComfyUI at `address`, such as `127.0.0.1:8188`."""

    def __init__(self, address: str) -> None:
        self.address = address

    def request(self, route: str, body: object = None, timeout: float = 30) -> Any:
        """GET a route, or POST `body` to it as JSON; the decoded answer, `None` if empty."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.address}{route}", data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # always loopback
            text = answer.read()
        return json.loads(text) if text else None

    def object_info(self) -> dict[str, Any]:
        """What the server knows of its nodes, by id."""
        return self.request("/object_info")

    def interrupt(self) -> None:
        """Cancel the running prompt, as the interface's button does."""
        self.request("/interrupt", {})

    def queue(self, prompt: dict[str, Any], client_id: str = "") -> str:
        """Queue a prompt and return its id. Raises `PromptError`."""
        try:
            return self.request("/prompt", {"prompt": prompt, "client_id": client_id})["prompt_id"]
        except urllib.error.HTTPError as error:
            if error.code != 400:
                raise
            raise PromptError(json.loads(error.read())) from error

    def follow(self, prompt: dict[str, Any], on_event: Callable[[Event], None] | None, timeout: float) -> Run:
        """Queue a prompt, hand every event to `on_event` as it comes, return once the history has the prompt.

        Raises `PromptError`, and `TimeoutError` (the prompt is interrupted before).
        """
        try:
            return asyncio.run(asyncio.wait_for(self._follow(prompt, on_event), timeout))
        except (TimeoutError, asyncio.TimeoutError) as error:  # two classes before Python 3.11
            self.interrupt()
            raise TimeoutError(f"The prompt did not end within {timeout} s.") from error

    async def _follow(self, prompt: dict[str, Any], on_event: Callable[[Event], None] | None) -> Run:
        import aiohttp  # not installed where there is no ComfyUI

        client_id = uuid.uuid4().hex
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"http://{self.address}/ws?clientId={client_id}", max_msg_size=0) as socket,
        ):
            run = Run(await asyncio.to_thread(self.queue, prompt, client_id))
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    decoded = json.loads(message.data)
                    event = Event(decoded["type"], decoded.get("data"))
                else:
                    event = Event("binary", message.data)
                run.events.append(event)
                if on_event is not None:
                    await asyncio.to_thread(on_event, event)
                run.status = _ENDINGS.get(event.type, run.status)
                # the last message of all, sent once the prompt is in the history
                is_over = event.type == "executing" and event.data["node"] is None
                if is_over and event.data["prompt_id"] == run.prompt_id:
                    break
            else:
                raise ConnectionError("ComfyUI closed the connection before the prompt ended.")
        run.history = (await asyncio.to_thread(self.request, f"/history/{run.prompt_id}"))[run.prompt_id]
        return run
