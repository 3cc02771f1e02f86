"""What a tuning result says of its stack (`spec/nodes.md` §2.3): a few means, which readers show."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import fsum
from typing import Any

import torch

from ..analysis.pairs import pairs
from ..analysis.similarity import Measured, gram_matrix, norms
from ..analysis.subspace import overlap, spectrum
from ..core.rng import spread
from ..core.threads import one_thread
from ..lora.factors import LowRank
from ..lora.stack import Stack

SAMPLED = 16  # targets that the overlap of subspaces is looked at on
ORTHOGONAL_COSINE, ORTHOGONAL_OVERLAP = 0.25, 0.35


@dataclass(frozen=True)
class Summary:
    """Of a stack, over its pairs.

    Attributes:
        n_loras: how many LoRAs there are.
        prefix_count: how many targets.
        avg_conflict_ratio: the mean share of entries with opposite signs.
        avg_excess_conflict: the same beyond what chance gives.
        avg_subspace_overlap: the mean share of a LoRA's energy in another's leading directions, on some targets.
        avg_cosine_sim: the mean cosine.
        magnitude_ratio: the largest norm over the smallest; 1 where one is zero.
        decision_smoothing: the recipe's.
    """

    n_loras: int
    prefix_count: int
    avg_conflict_ratio: float
    avg_excess_conflict: float
    avg_subspace_overlap: float
    avg_cosine_sim: float
    magnitude_ratio: float
    decision_smoothing: float

    @property
    def is_orthogonal(self) -> bool:
        """Whether the LoRAs have little to do with each other (`spec/engine.md` §11.3)."""
        is_alike = abs(self.avg_cosine_sim) >= ORTHOGONAL_COSINE
        return not is_alike and self.avg_subspace_overlap < ORTHOGONAL_OVERLAP

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def summary(stack: Stack, measured: Sequence[Measured], smoothing: float = 0.25) -> Summary:
    """Sum a stack up.

    Raises:
        FileError: a file cannot be read.
    """
    shared = [pair for pair in pairs(stack, measured) if pair.shared_count]
    sizes = [norm for norm in norms(stack, measured).tolist() if norm > 0]
    return Summary(
        len(stack.entries),
        len(stack.groups),
        _mean([pair.conflict for pair in shared]),
        _mean([pair.excess for pair in shared]),
        _overlap(stack),
        _mean([pair.cosine for pair in shared]),
        max(sizes) / min(sizes) if len(sizes) == len(stack.entries) > 0 else 1.0,
        smoothing,
    )


def _overlap(stack: Stack) -> float:
    groups = [group for group in stack.groups if len(group.contributions) > 1]
    found = []
    with torch.no_grad(), one_thread():
        for place in spread(SAMPLED, len(groups), "overlap").tolist():
            deltas = stack.load(groups[place])
            if not all(isinstance(delta, LowRank) for delta in deltas):
                continue
            shares = overlap(deltas, [spectrum(delta) for delta in deltas], gram_matrix(deltas))
            found += shares[~torch.eye(len(deltas), dtype=torch.bool)].tolist()
    return _mean(found)


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values) if values else 0.0
