"""Results go to stdout, all else to stderr; progress is one line, on a terminal only."""

import io
from types import SimpleNamespace

import pytest

from lora_alloy.cli import console
from lora_alloy.cli.console import Console, printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def streams(monkeypatch):
    made = SimpleNamespace(stdout=io.StringIO(), stderr=Terminal())
    monkeypatch.setattr(console, "sys", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    return made


@pytest.fixture
def clock(monkeypatch):
    times = iter((10.0, 12.0, 12.01, 20.0))
    monkeypatch.setattr(console.time, "monotonic", lambda: next(times))


def test_progress_tells_how_long_it_takes_and_rewrites_its_line(streams, clock):
    with Console() as shown:
        shown.progress("merge", 0, 100)
        shown.progress("merge", 20, 100)
        shown.progress("merge", 21, 100)  # too soon after the last
        shown.progress("merge", 100, 100)
    lines = [line.rstrip() for line in streams.stderr.getvalue().split("\r")]
    expected = ["merge 0 of 100 targets", "merge 20 of 100 targets, 8 s left", "merge 100 of 100 targets"]
    assert [line for line in lines if line] == expected
    assert streams.stderr.getvalue().endswith(" \r") and "\n" not in streams.stderr.getvalue()
    assert all(len(line) <= 59 for line in streams.stderr.getvalue().split("\r"))
    assert streams.stdout.getvalue() == ""


def test_the_line_is_cleared_before_anything_else_is_written(streams, clock):
    with Console() as shown:
        shown.progress("merge", 0, 9)
        shown.say("done")
        before = streams.stderr.getvalue()
        shown.warn("careful")
    assert before.endswith(" \r") and streams.stderr.getvalue().endswith("careful\n")
    assert streams.stdout.getvalue() == "done\n"


def test_quiet_or_dumb_terminals_see_no_progress(streams, monkeypatch):
    with Console(is_quiet=True) as shown:
        shown.progress("merge", 0, 9)
    monkeypatch.setenv("TERM", "dumb")
    with Console() as shown:
        shown.progress("merge", 0, 9)
    assert streams.stderr.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (9000, "2 h 30 min")],
)
def test_durations_are_told_in_the_units_people_use(seconds, words):
    assert console._duration(seconds) == words


def test_what_an_encoding_lacks_is_spelled_out(streams):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    streams.stdout = narrow
    Console().say("墨 ink")
    assert narrow.buffer.getvalue() == b"\\u58a8 ink\n"


def test_only_printable_signs_pass():
    assert printable("a\x1b[2Jb\nc\u202ed\r") == "a\\u001b[2Jb\nc\\u202ed\\u000d"
    assert len(printable("x" * 9999)) < 300
