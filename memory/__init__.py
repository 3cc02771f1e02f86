"""What of a merge is remembered between runs: analysis, results, tuning; each by all that it depends on."""

from .memory import Memory as Memory
from .memory import Outcome as Outcome
