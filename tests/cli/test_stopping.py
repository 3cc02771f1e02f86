"""What stops half-way leaves what was there, and nothing beside it."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lora_alloy_testing.small_loras import write_small

ROOT = Path(__file__).resolve().parent.parent.parent
_BOOT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("lora_alloy", {root!r} + "/__init__.py")
sys.modules["lora_alloy"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["lora_alloy"])
{before}
from lora_alloy.cli import main
sys.exit(main(sys.argv[1:]))
"""

needs_posix = pytest.mark.skipif(os.name == "nt", reason="needs terminals and limits of POSIX")


def _command(*words: str | Path, before: str = "") -> list[str]:
    return [sys.executable, "-c", _BOOT.format(root=str(ROOT), before=before), *map(str, words)]


@pytest.fixture
def large(tmp_path: Path) -> list[Path]:
    """Two LoRAs whose compression takes long enough to be interrupted."""
    modules = {
        f"lora_unet_{part}_blocks_{block}_1_transformer_blocks_0_attn{attention}_to_{end}": (1280, 1280)
        for part, blocks in (("input", (7, 8)), ("output", (0, 1, 2)))
        for block in blocks
        for attention, end in ((1, "q"), (1, "k"), (1, "v"), (2, "q"))
    }
    return [
        write_small(tmp_path / f"{name}.safetensors", modules, seed=seed, rank=96)
        for seed, name in enumerate(("one", "two"))
    ]


@needs_posix
@pytest.mark.parametrize("phase", ["analyse", "merge"])
def test_ctrl_c_during_a_merge_ends_with_130_and_leaves_what_was_there(tmp_path, large, phase):
    import pty

    output = tmp_path / "out.safetensors"
    output.write_text("precious")
    before = sorted(tmp_path.iterdir())
    terminal, line = pty.openpty()
    command = _command("merge", *large, "-o", output, "--force", "--tolerance", "0.01")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=line, cwd=tmp_path) as child:
        os.close(line)
        seen = _read_until(terminal, f"{phase} 0 of 20 targets".encode())
        child.send_signal(signal.SIGINT)
        seen += _read_until(terminal, None)
        os.close(terminal)
        said = child.stdout.read() if child.stdout else b"?"
    assert child.returncode == 130 and said == b""
    assert b"Stopped." in seen and b"Traceback" not in seen
    assert sorted(tmp_path.iterdir()) == before
    assert output.read_text() == "precious"


def _read_until(terminal: int, wanted: bytes | None) -> bytes:
    """What the terminal shows until `wanted` is in it, or until nobody writes any more."""
    seen, end = b"", time.monotonic() + 60
    while time.monotonic() < end and (wanted is None or wanted not in seen):
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    assert wanted is None or wanted in seen, seen
    return seen


def test_ctrl_c_while_the_file_is_written_leaves_what_was_there(run, loras, tmp_path, monkeypatch):
    output = tmp_path / "out.safetensors"
    output.write_text("precious")

    def interrupted(handle: int) -> None:
        assert len(list(tmp_path.iterdir())) == 3  # the file beside is there
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    ran = run("merge", *loras, "-o", output, "--force")
    assert ran.code == 130 and ran.err == "Stopped. Nothing was left half-written.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loras", "out.safetensors"]
    assert output.read_text() == "precious"


@needs_posix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_request_to_end_while_the_file_is_written_leaves_what_was_there(loras, tmp_path, name):
    output = tmp_path / "out.safetensors"
    output.write_text("precious")
    before = f"import os, signal; os.fsync = lambda handle: os.kill(os.getpid(), signal.{name})"
    ran = subprocess.run(
        _command("merge", *loras, "-o", output, "--force", before=before),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 130 and ran.stderr == "Stopped. Nothing was left half-written.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loras", "out.safetensors"]
    assert output.read_text() == "precious"


@needs_posix
def test_nohup_keeps_its_word(loras, tmp_path):
    before = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        " os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGHUP)"
    )
    command = _command("merge", *loras, "-o", tmp_path / "out", before=before)
    assert subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0


def test_the_callers_handlers_are_given_back(run):
    before = signal.getsignal(signal.SIGTERM)
    assert run("methods").code == 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_full_disk_is_a_sentence_and_leaves_what_was_there(run, loras, tmp_path, monkeypatch):
    output = tmp_path / "out.safetensors"
    output.write_text("precious")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    ran = run("merge", *loras, "-o", output, "--force")
    assert ran.code == 1 and "No space left on device" in ran.err and "free some space" in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loras", "out.safetensors"]
    assert output.read_text() == "precious"


@needs_posix
def test_a_limit_of_the_system_in_mid_write_leaves_nothing(loras, tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    command = _command("merge", *loras, "-o", tmp_path / "out", before=limit)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert "out.safetensors` cannot be written (File too large)" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["loras"]


@needs_posix
def test_a_reader_that_leaves_is_no_crash():
    with subprocess.Popen(_command("methods"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout and child.stderr
        child.stdout.close()
        problems = child.stderr.read().decode()
    assert child.returncode == 1
    assert problems == "The output was closed before all was written.\n"


@needs_posix
def test_a_full_stdout_is_a_sentence():
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            _command("methods"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert ran.returncode == 1
    assert ran.stderr == "The output cannot be written (No space left on device).\n"


def test_without_a_terminal_there_is_no_progress(run, loras, tmp_path):
    assert run("merge", *loras, "-o", tmp_path / "out").err == ""


@needs_posix
@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&-"])
def test_a_program_without_streams_does_its_work(loras, tmp_path, closed):
    words = _command("merge", *loras, "-o", tmp_path / "out")
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *words]
    assert subprocess.run(shell, capture_output=True, timeout=120, check=False).returncode == 0
    assert (tmp_path / "out.safetensors").exists()
    again = subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 1 and "Traceback" not in again.stderr


@needs_posix
@pytest.mark.parametrize("words", [["methods", "--json", "-"], ["--version"], ["--help"]], ids=" ".join)
@pytest.mark.parametrize("into", [">&-", ">/dev/full"])
def test_results_that_nobody_takes_are_no_traceback(words, into):
    shell = ["sh", "-c", f'exec "$@" {into}', "sh", *_command(*words)]
    ran = subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in ran.stderr
    if into != ">&-" or "-" in words:
        assert ran.returncode == 1 and ran.stderr.startswith("The output ")
