"""A real ComfyUI server for tests: on a CPU, on loopback, in its own folder, with this checkout as a pack.

    with ComfyServer(find_trees()[0], tmp_path, pack_path=ROOT) as server:
        write_lora(server.loras_path / "ink.safetensors", ...)
        run = server.run(flow.prompt)                   # raises where the run does not succeed
        run = server.run(flow.prompt, expect="error")   # or "interrupted"; see Run.error
        server.latent("plain"), server.weights("plain")     # what AlloyTestLatent and AlloyTestWeights wrote

Tests take the fixture `comfy_server` of `comfy_fixtures.py` instead. `pack_path=None` starts without a pack.
"""

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from .comfy_client import ComfyClient, Event, Run
from .comfy_tree import ComfyTree

__all__ = ["PACK_NAME", "ComfyServer", "ServerError", "WeightsDump"]

PACK_NAME = "comfyui-lora-alloy"
TEST_PACK_NAME = "alloy-test-pack"
_TEST_PACK = Path(__file__).parent / "test_pack"
_START_SECONDS, _STOP_SECONDS, _TAIL_CHARACTERS = 120, 10, 6000


class ServerError(AssertionError):
    """ComfyUI did not start, died, or a run ended otherwise than expected; the message ends with its log."""


@dataclass(frozen=True)
class WeightsDump:
    """Every patched weight, by `Target.weight` with its `.weight` or `.bias`.

    `base` is the unpatched one, `patched` what ComfyUI computes from base and patches, `loaded` what the
    model in memory ran with.
    """

    base: dict[str, np.ndarray]
    patched: dict[str, np.ndarray]
    loaded: dict[str, np.ndarray]

    def deltas(self) -> dict[str, np.ndarray]:
        """What each loaded weight gained, float64, by `Target.weight`: the names end without `.weight`."""
        return {
            name.removesuffix(".weight"): self.loaded[name].astype(np.float64) - self.base[name]
            for name in self.base
        }


def _ignored(folder: str, names: list[str]) -> set[str]:
    """What of a checkout is not the pack: hidden files, tests, virtual environments, build results."""
    dropped = {"__pycache__", "tests", "benchmarks", "build", "dist", "shared"}
    return {
        name
        for name in names
        if name.startswith(".")
        or name in dropped
        or name.endswith(".egg-info")
        or (Path(folder) / name / "pyvenv.cfg").exists()
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ComfyServer(ComfyClient):
    """A server process, started on entry and stopped by its own id on exit.

    Args:
        tree: the ComfyUI to run.
        base_path: a folder for models, inputs, outputs and the log; made if need be.
        pack_path: this checkout, copied into `custom_nodes` under a name with hyphens; `None` for no pack.
        arguments: further ones for ComfyUI's `main.py`.
    """

    def __init__(
        self,
        tree: ComfyTree,
        base_path: Path,
        pack_path: Path | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        super().__init__("")
        self.tree = tree
        self.base_path = base_path
        self.loras_path = base_path / "models" / "loras"
        self.output_path = base_path / "output"
        self.log_path = base_path / "comfyui.log"
        self._pack_path = pack_path
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ComfyServer":
        self._lay_out()
        port = _free_port()
        self.address = f"127.0.0.1:{port}"
        command = [sys.executable, str(self.tree.path / "main.py"), "--cpu", "--listen", "127.0.0.1"]
        command += ["--port", str(port), "--base-directory", str(self.base_path), "--disable-auto-launch"]
        command += ["--disable-api-nodes", "--database-url", "sqlite:///:memory:", *self._arguments]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self.tree.path, env=self.tree.environment(), stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _lay_out(self) -> None:
        packs_path = self.base_path / "custom_nodes"
        for folder in (packs_path, self.loras_path, self.output_path, self.base_path / "input"):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(_TEST_PACK, packs_path / TEST_PACK_NAME, ignore=_ignored)
        if self._pack_path is not None:
            shutil.copytree(self._pack_path, packs_path / PACK_NAME, ignore=_ignored)

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerError(
                    f"ComfyUI {self.tree} ended with {self._process.returncode}.\n{self.log_tail()}"
                )
            try:
                known = self.object_info()
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
                continue
            self._check_packs({info["python_module"] for info in known.values()})
            return
        raise ServerError(f"ComfyUI {self.tree} did not answer in {_START_SECONDS} s.\n{self.log_tail()}")

    def _check_packs(self, modules: set[str]) -> None:
        wanted = [TEST_PACK_NAME] if self._pack_path is None else [TEST_PACK_NAME, PACK_NAME]
        for name in wanted:
            if f"custom_nodes.{name}" not in modules:
                raise ServerError(f"ComfyUI {self.tree} loaded no node of {name}.\n{self.log_tail(20_000)}")

    def stop(self) -> None:
        """End the process, politely first."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    @property
    def process_id(self) -> int:
        """The server's process id, to measure its memory."""
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """All that ComfyUI printed so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def log_tail(self, characters: int = _TAIL_CHARACTERS) -> str:
        """The end of the log, for a failure message."""
        return f"--- {self.log_path}\n{self.log()[-characters:]}"

    def run(
        self,
        prompt: Mapping[str, Any],
        *,
        expect: str | None = "success",
        on_event: Callable[[Event], None] | None = None,
        timeout: float = 120,
    ) -> Run:
        """Run a prompt to its end.

        Args:
            prompt: in API format; see `workflow.py`.
            expect: how it must end: `success`, `error`, `interrupted`; `None` for any way.
            on_event: called with every event as it comes; may call `interrupt()`.
            timeout: seconds.

        Raises:
            PromptError: validation refused it.
            ServerError: it ended otherwise than expected, or not in time.
        """
        before = self.log_path.stat().st_size
        try:
            run = self.follow(dict(prompt), on_event, timeout)
        except (TimeoutError, OSError) as error:
            raise ServerError(f"ComfyUI {self.tree}: {error}\n{self.log_tail()}") from error
        with self.log_path.open("rb") as log:
            log.seek(before)
            run.log = log.read().decode("utf-8", errors="replace")
        if expect is not None and run.status != expect:
            raise ServerError(
                f"ComfyUI {self.tree}: {run.status} instead of {expect}. {run.error}\n{run.log}"
            )
        return run

    def latent(self, name: str) -> np.ndarray:
        """What `AlloyTestLatent` wrote as `name`: `(n, channels, h, w)`."""
        return load_file(self.output_path / f"{name}.safetensors")["samples"]

    def weights(self, name: str) -> WeightsDump:
        """What `AlloyTestWeights` wrote as `name`."""
        groups: dict[str, dict[str, np.ndarray]] = {"base": {}, "patched": {}, "loaded": {}}
        for key, tensor in load_file(self.output_path / f"{name}.safetensors").items():
            group, _, weight = key.partition("/")
            groups[group][weight] = tensor
        return WeightsDump(**groups)
