"""The tests name the checkout themselves: no install needed, no stale copy tested by mistake."""

import importlib.util
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if "lora_alloy" not in sys.modules:
    spec = importlib.util.spec_from_file_location("lora_alloy", ROOT / "__init__.py")
    assert spec and spec.loader
    sys.modules["lora_alloy"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["lora_alloy"])

# Whoever starts the tests in the background, or with `nohup`, has them ignore signals, and their children would, too.
for name in ("SIGINT", "SIGHUP", "SIGTERM"):
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
