"""Runs one merge method on dense deltas, whole or in row tiles, the way the engine does: the smallest that can."""

from collections.abc import Callable
from inspect import signature
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lora_alloy.core.params import settable
from lora_alloy.enhance import knots
from lora_alloy.merging.methods import is_linear, shares_basis, ties, verb


def merged(
    method: ModuleType, deltas: Tensor, strengths: Tensor, *, height: int | None = None, **settings: Any
) -> Tensor:
    """What a method makes of deltas `(n, o, c)`: `(o, c)`.

    Args:
        method: its module.
        deltas: float32.
        strengths: `(n,)` float32.
        height: rows of a tile; None for all of them at once.
        settings: the method's own.
    """
    flat = deltas.flatten(1).double()
    gram = flat @ flat.T
    if is_linear(method):
        coefficients = method.coefficients(gram, strengths.double(), **settings)
        return torch.einsum("n,noc->oc", coefficients.float(), deltas)
    if "vote" in settable(verb(method)):
        settings["vote"] = ties.settled_vote(settings.get("vote", "auto"), gram, strengths)
    if shares_basis(method):
        basis, blocks, _ = knots.shared(list(deltas))
        return basis @ _on_tiles(method, blocks, strengths, height, settings, gram)
    return _on_tiles(method, deltas, strengths, height, settings, gram)


def _on_tiles(
    method: ModuleType,
    deltas: Tensor,
    strengths: Tensor,
    height: int | None,
    settings: dict[str, Any],
    gram: Tensor,
) -> Tensor:
    rows = deltas.shape[1]
    tiles = [deltas[:, start : start + (height or rows)] for start in range(0, rows, height or rows)]
    given = _asked(method.merge, settings)
    if hasattr(method, "partial"):
        parts = [method.partial(tile, strengths, **_asked(method.partial, settings)) for tile in tiles]
        given["statistics"] = torch.stack(parts).sum(0)
    whole = torch.cat([method.merge(tile, strengths, **given) for tile in tiles])
    if not hasattr(method, "finish"):
        return whole
    made = method.finish(whole, strengths, norms=gram.diagonal().sqrt())
    return made if isinstance(made, Tensor) else made[0] @ made[1]


def _asked(function: Callable[..., Any], settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in signature(function).parameters}
