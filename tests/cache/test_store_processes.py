"""Several processes on one folder: killed at any moment, writing the same, making room at the same time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lora_alloy.cache import store
from lora_alloy.cache.lock import locked
from lora_alloy.cache.store import Store

ROOT = Path(__file__).resolve().parents[2]
START = """
import importlib.util, os, sys
root, folder, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
spec = importlib.util.spec_from_file_location("lora_alloy", os.path.join(root, "__init__.py"))
sys.modules["lora_alloy"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["lora_alloy"])
import torch
from lora_alloy.cache.store import Store
def value(n): return torch.full((60_000 + n,), float(n))
print("ready", flush=True)
"""
KILLED = (
    START
    + """
import random, signal, time
chance, left = random.Random(4), 0

def work(seed):
    order = random.Random(seed)
    while True:
        kept = Store(folder, limit_bytes=2_000_000)
        n = order.randrange(40)
        if kept.get_tensors("result", {"n": n}) is None:
            kept.put_tensors("result", {"n": n}, n, {"x": value(n)})
        kept.put_json("tuning", {"n": n}, [n] * 1000)

for turn in range(60):
    child = os.fork()
    if not child:
        try:
            work(turn)
        finally:
            os._exit(1)
    time.sleep(chance.uniform(0.0, 0.08))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    unfinished = [name for _, _, names in os.walk(folder) for name in names if name.endswith(".tmp")]
    left += len(unfinished)
    kept = Store(folder, limit_bytes=2_000_000)
    for n in range(40):
        found = kept.get_tensors("result", {"n": n})
        assert found is None or torch.equal(found[1]["x"], value(n))
        assert kept.get_json("tuning", {"n": n}) in (None, [n] * 1000)
    unfinished = [name for _, _, names in os.walk(folder) for name in names if name.endswith(".tmp")]
    assert kept.notes == [] and not unfinished, (kept.notes, unfinished)
    assert sum(size for _, size in kept.sizes().values()) <= 2_000_000
print(left, kept.sizes()["result"][0], flush=True)
"""
)
COUNTED = (
    START
    + """
kept, wrong, other = Store(folder, limit_bytes=2_000_000), 0, None
for n in [n for _ in range(4) for n in range(25)]:
    kept.put_tensors("result", {"n": n}, n, {"x": value(n)})
    kept.put_json("tuning", {"n": n}, [number] * 500)
    found = kept.get_tensors("result", {"n": n})
    wrong += found is not None and not (found[0] == n and torch.equal(found[1]["x"], value(n)))
    other = kept.get_json("tuning", {"n": n})
    wrong += other is not None and other not in ([0] * 500, [1] * 500)
print(wrong, len(kept.notes), kept.notes, flush=True)
"""
)


def started(script: str, folder: Path, number: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(ROOT), str(folder), str(number)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def unfinished(folder: Path) -> list[Path]:
    return list(folder.rglob("*.tmp"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL and fork")
def test_killed_at_any_moment_everything_is_whole_and_nothing_is_left(tmp_path):
    child = started(KILLED, tmp_path)
    told = child.communicate(timeout=300)[0].split()
    assert child.returncode == 0
    left, kept = map(int, told)
    # Some were killed while they wrote, and others had written.
    assert left > 3 and kept > 3


def test_two_processes_that_write_the_same_are_both_right(tmp_path):
    children = [started(COUNTED, tmp_path, number) for number in (0, 1)]
    told = [child.communicate(timeout=300)[0].strip() for child in children]
    assert told == ["0 0 []"] * 2
    assert not unfinished(tmp_path)
    assert sum(size for _, size in Store(tmp_path).sizes().values()) <= 2_000_000


def test_what_another_process_is_writing_is_not_taken_for_a_leftover(tmp_path, monkeypatch):
    kept = Store(tmp_path)
    write, seen = store._write, []

    def look(stream, piece):
        other = Store(tmp_path)
        other.get_json("tuning", {"n": 1})
        other.clear()
        seen.extend(unfinished(tmp_path))
        write(stream, piece)

    monkeypatch.setattr(store, "_write", look)
    assert kept.put_json("tuning", {"n": 1}, 1)
    assert len(seen) == 1 and not unfinished(tmp_path)
    assert kept.get_json("tuning", {"n": 1}) == 1


def test_a_lock_that_somebody_keeps_costs_a_note(tmp_path, monkeypatch):
    kept = Store(tmp_path)
    kept.put_json("tuning", {"n": 1}, 1)
    monkeypatch.setattr(store, "locked", lambda path: locked(path, patience=0.05))
    with locked(tmp_path / "v1" / "lock"):
        assert kept.get_json("tuning", {"n": 1}) == 1
        assert not kept.put_json("tuning", {"n": 2}, 2)
    assert "another process" in kept.notes[0] and not unfinished(tmp_path)


def test_two_of_one_process_exclude_each_other(tmp_path):
    with locked(tmp_path / "lock"), pytest.raises(TimeoutError), locked(tmp_path / "lock", patience=0.02):
        pass
    with locked(tmp_path / "lock", patience=0.0):
        pass
