"""One thread at a time: sums come in one order, so the same input gives the same bytes on any machine's count.

A product or a decomposition that several threads share adds up in an order that depends on their number. The
tensors of one target are small besides: waking threads for them costs more than they save.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run tensor operations on the calling thread alone, and give the others back afterwards."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
