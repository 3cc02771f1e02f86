"""What the command line says, and where: results on stdout, all else on stderr."""

import os
import re
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

from ..core.errors import SaveError

LINE_LIMIT = 4000
WORD_LIMIT = 400
KEPT = 120
REFRESH = 0.1


def program() -> str:
    """What the user typed to get here, for messages that say what to type next."""
    started = Path(sys.argv[0]).resolve()
    ours = {"alloy.py": "python alloy.py", "__main__.py": "python -m lora_alloy"}
    is_ours = started.parent == Path(__file__).resolve().parent.parent
    return ours.get(started.name, "lora-alloy") if is_ours else "lora-alloy"


def printable(text: str) -> str:
    """`text` without what could steer a terminal: it may come from a stranger's file."""
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    # A name may be as long as a stranger likes; the words around it must stay.
    line = re.sub(rf"\S{{{WORD_LIMIT},}}", lambda word: f"{word[0][:KEPT]}…{word[0][-KEPT:]}", line)
    line = line if len(line) <= LINE_LIMIT else f"{line[:LINE_LIMIT]}…"
    return "".join(character if character.isprintable() else f"\\u{ord(character):04x}" for character in line)


class Console:
    """The two streams of one command, and its progress line.

    Nothing but JSON is written to stdout when that is where JSON goes; a quiet console writes no results.
    """

    def __init__(self, *, is_quiet: bool = False, has_json_on_stdout: bool = False) -> None:
        self._says = not is_quiet and not has_json_on_stdout
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shows = not is_quiet and is_terminal and os.environ.get("TERM") != "dumb"
        self._shown_at = 0.0
        self._began = ("", 0.0)
        self._width = 0

    def __enter__(self) -> "Console":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()

    def say(self, text: str = "") -> None:
        """Write a result for a reader, if there is one: windowless programs have no streams at all."""
        if self._says and sys.stdout is not None:
            self.write(f"{printable(text)}\n")

    def warn(self, text: str) -> None:
        """Write a sentence about a problem to stderr, however quiet we are."""
        self._clear()
        put(sys.stderr, f"{printable(text)}\n")

    def write(self, text: str) -> None:
        """Write to stdout as it is.

        Raises:
            SaveError: it is closed, or full.
        """
        self._clear()
        if sys.stdout is None:
            raise SaveError("The output is closed; nothing could be written there.")
        put(sys.stdout, text)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how far the work is, on a terminal only: one line, rewritten at most ten times a second."""
        if not self._shows:
            return
        now = time.monotonic()
        if self._began[0] != what or done == 0:
            self._began = (what, now)
        if now - self._shown_at < REFRESH and 0 < done < total:
            return
        self._shown_at = now
        left = ""
        if 0 < done < total:
            left = f", {_duration((now - self._began[1]) / done * (total - done))} left"
        self._show(f"{what} {done} of {total} targets{left}")

    def _show(self, line: str) -> None:
        # Spaces and not an escape sequence: old Windows consoles print those.
        width = shutil.get_terminal_size().columns - 1
        put(sys.stderr, f"\r{line[:width].ljust(width)}")
        self._width = width

    def _clear(self) -> None:
        if self._width:
            put(sys.stderr, f"\r{' ' * self._width}\r")
            self._width = 0


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def put(stream: TextIO | None, text: str) -> None:
    """Write text to a stream, if there is one.

    Raises:
        SaveError: nobody takes it.
    """
    if stream is None:
        return
    try:
        # What the stream's encoding lacks is spelled out: a Windows console need not know every sign.
        known = stream.encoding or "utf-8"
        stream.write(text.encode(known, "backslashreplace").decode(known))
        stream.flush()
    except BrokenPipeError:
        # Whoever read has left, as `head` does; Python must not complain about it when it ends either.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise SaveError("The output was closed before all was written.") from None
    except OSError as problem:
        raise SaveError(f"The output cannot be written ({problem.strerror}).") from None
