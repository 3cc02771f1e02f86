"""Kills, leftovers, and several caches at once: the next run is right, and nothing outlives it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lora_alloy.cache.diffs import MODES, DiffCache
from lora_alloy.cache.folder import PREFIX

TESTS = Path(__file__).resolve().parents[1]


KILLED = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[1])
import conftest, torch
from pathlib import Path
from lora_alloy.cache.diffs import DiffCache
torch.set_num_threads(1)
folder = Path(sys.argv[2])
whole = torch.randn(512, 1024)

def sweep():
    with DiffCache("disk", folder=folder, spare_disk=0) as cache:
        for _ in range(2):
            for key in range(20):
                found = cache(f"key {key}", "form", (512, 1024), lambda: iter(whole.split(64)))
                assert found.equal(whole)
    return cache.stats.misses, cache.stats.hits

sweep()
draw = random.Random(0)
for _ in range(40):
    child = os.fork()
    if child == 0:
        while True:
            sweep()
    time.sleep(draw.uniform(0.0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert sweep() == (20, 20)
    assert not list(folder.iterdir()), list(folder.iterdir())
print("40 kills")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork")
def test_after_a_kill_at_any_moment_the_next_run_is_right_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", KILLED, str(TESTS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "40 kills", done.stderr


def test_the_next_start_in_any_mode_removes_what_was_left(tmp_path):
    for mode in MODES:
        (tmp_path / f"{PREFIX}dead").mkdir()
        (tmp_path / f"{PREFIX}dead" / "lock").write_bytes(b"")
        (tmp_path / f"{PREFIX}dead" / "values").write_bytes(b"left")
        with DiffCache(mode, folder=tmp_path):
            assert not list(tmp_path.iterdir())


def test_two_at_once_do_not_disturb_each_other(tmp_path):
    whole = torch.arange(12.0).view(4, 3)
    with DiffCache("disk", folder=tmp_path, spare_disk=0) as one:
        for _ in range(2):
            found = one("key", "form", (4, 3), lambda: iter(whole.split(2)))
            with DiffCache("disk", folder=tmp_path, spare_disk=0) as other:
                theirs = other("key", "form", (4, 3), lambda: iter((-whole).split(2)))
            assert found is not None and found.equal(whole)
            assert theirs is not None and theirs.equal(-whole)
        assert one.stats.hits == 1
    assert not list(tmp_path.iterdir())


TWO = """
import sys
sys.path.insert(0, sys.argv[1])
import conftest, torch
from pathlib import Path
from lora_alloy.cache.diffs import DiffCache
whole = torch.full((512, 1024), float(sys.argv[3]))
for _ in range(30):
    with DiffCache("disk", folder=Path(sys.argv[2]), spare_disk=0) as cache:
        for _ in range(2):
            for key in range(5):
                assert cache(f"key {key}", "form", (512, 1024), lambda: iter(whole.split(64))).equal(whole)
    assert (cache.stats.misses, cache.stats.hits, cache.stats.why) == (5, 5, []), cache.told()
print("done")
"""


def test_two_processes_at_once_do_not_disturb_each_other(tmp_path):
    commands = [[sys.executable, "-c", TWO, str(TESTS), str(tmp_path), str(number)] for number in (1, 2)]
    running = [
        subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for one in commands
    ]
    for one in running:
        out, err = one.communicate()
        assert out.strip() == "done", err
    assert not list(tmp_path.iterdir())
