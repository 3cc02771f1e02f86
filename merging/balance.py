"""The automatic blend: the sum at the LoRAs' mean norm, in which loud LoRAs give way to quiet ones.

`c_k = w_k · min(1, s / √n_k)`, `n_k` the norm of the k-th LoRA at its strength over a whole branch, and `s` so that the
blend has the norm it should. In a plain sum the loudest LoRA drowns the others; a spherical mean gives all the same
energy on every target, whatever they had; the square root is half of the way. No LoRA becomes louder than was asked.

Source: measured on two zoos of trained LoRAs (`docs/quality.md`): better there than a sum to the mean norm, SLERP, the
Karcher mean, and one norm for each target; any exponent between a half and three quarters does as well.
"""

import torch
from torch import Tensor


def balanced(gram: Tensor, wanted: float) -> Tensor:
    """The factors on the strengths.

    Args:
        gram: `(n, n)` float64, dot products over a whole branch, with the strengths in them; none of the LoRAs zero.
        wanted: the norm of the blend; never more than that of the plain sum is given.

    Returns:
        `(n,)` float64, each in (0, 1]; all 1 where the plain sum is no louder than `wanted`.
    """
    slopes = gram.diagonal().sqrt().rsqrt()
    if float(gram.sum()) <= wanted**2:
        return torch.ones_like(slopes)
    # Between two places where a LoRA reaches its strength, the energy is a quadratic in s. LoRAs that oppose each
    # other may make it fall again: the last crossing is next to the plain sum where that is hardly too loud.
    last, low = torch.ones_like(slopes), 0.0
    for high in sorted((1.0 / slopes).tolist()):
        free = slopes * low < 1.0
        free &= slopes * high <= 1.0 + 1e-12
        fixed, moving = torch.where(free, 0.0, 1.0).to(gram), torch.where(free, slopes, 0.0)
        found = _crossing(gram, fixed, moving, wanted, low, high)
        if found is not None:
            last = (slopes * found).clamp(max=1.0)
        low = high
    return last


def _crossing(
    gram: Tensor, fixed: Tensor, moving: Tensor, wanted: float, low: float, high: float
) -> float | None:
    """The last `s` from `low` to `high` at which `fixed + s · moving` has the wanted norm; None if none has."""
    a = float(moving @ gram @ moving)
    b = float(fixed @ gram @ moving)
    c = float(fixed @ gram @ fixed) - wanted**2
    root = b * b - a * c
    if a <= 0.0 or root < 0.0:
        return None
    # The sum of two numbers of one sign; their difference would lose digits.
    q = -(b + (1.0 if b >= 0 else -1.0) * root**0.5)
    found = sorted(one for one in ((q / a), (c / q if q else 0.0)) if low <= one <= high * (1 + 1e-12))
    return found[-1] if found else None
