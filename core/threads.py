"""One thread inside an operation: faster for thin factors, and the result depends on no thread count."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations on one thread, and restore the host's setting afterwards.

    A matrix product that is split among threads adds up in another order, so its last bits depend on their
    number; and thin products are over before a second thread has begun.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
