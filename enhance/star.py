"""STAR: keep the leading singular values of a LoRA, and scale them up to the sum of all (arXiv:2502.10339).

Source: `spec/newer-features.md` §2.2. As published, the Frobenius norm grows, for the nuclear norm is what is restored.
"""

import torch
from torch import Tensor


def cleaned(up: Tensor, down: Tensor, *, eta: float) -> tuple[Tensor, Tensor]:
    """Factors of the cleaned delta.

    Args:
        up: `(o, r)` with the scale in it, float32.
        down: `(r, c)`.
        eta: the percentage of the sum of the singular values that stays; 100 and more change nothing.

    Returns:
        `(o, k)` and `(k, c)`, `k` the least that holds that share.
    """
    if eta >= 100.0:
        return up, down
    rows, up_core = torch.linalg.qr(up.double())
    columns, down_core = torch.linalg.qr(down.double().T)
    left, values, right = torch.linalg.svd(up_core @ down_core.T, full_matrices=False)
    total = float(values.sum())
    if total == 0.0:
        return up, down
    reached = values.cumsum(0) >= eta / 100.0 * total * (1 - 1e-12)
    keep = int(reached.to(torch.int8).argmax()) + 1
    root = (values[:keep] * (total / float(values[:keep].sum()))).sqrt()
    return ((rows @ left[:, :keep]) * root).float(), (root[:, None] * (right[:keep] @ columns.T)).float()
