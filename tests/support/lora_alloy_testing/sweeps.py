"""Short sweeps, for tests of what surrounds a sweep: the first few of the real candidates."""

import sys
from itertools import islice

import pytest

from lora_alloy.autotuner.search import Tuned

COUNT = 12


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the sweep its first candidates only, which differ among each other."""
    search = sys.modules[Tuned.__module__]
    every = search.candidates
    monkeypatch.setattr(search, "candidates", lambda recipe: dict(islice(every(recipe).items(), COUNT)))
