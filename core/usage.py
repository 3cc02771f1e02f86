"""What this process has used: its largest memory so far."""

import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
PEAK = "VmHWM:"


def peak_bytes() -> int:
    """The most memory this process has held at once; 0 where the system does not tell."""
    if STATUS.exists():
        for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(PEAK):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return 0
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
