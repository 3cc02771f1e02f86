"""Being told to end is like Ctrl-C: what is half-done is put away first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Of the system or a supervisor, and of a terminal that is closed; Windows has the first only.
_SIGNALS = ("SIGTERM", "SIGHUP")


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn a request to end into `KeyboardInterrupt`, where nobody has asked for something else."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:  # `nohup` has it ignored
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
