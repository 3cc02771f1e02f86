"""DO-merging: LoRAs get orthogonal directions and keep their norms.

Source: seed, Quality Enhancements: DO-Merging: modified Gram-Schmidt by descending norm. (The paper moves the factors
by gradient descent on a loss of the same intent.) It recombines the LoRAs, so the Gram matrix is enough. Departures, by
`design.md` §3 or for the reasons given:

- LoRAs whose cosine is beyond 0.9, and chains of such, leave each other alone: what an orthogonalisation leaves of a
  duplicate is noise. So does a LoRA that lies all but within the span of the others.
- LoRAs of one norm have no first: they are made orthogonal symmetrically, whatever their order in the stack.
- `symmetric` does that with all of them (Löwdin, 1950): together they turn as little as possible.
"""

import torch
from torch import Tensor

PAPER = "DO-merging: arXiv:2505.15875"
ALIKE = 0.9
SAME_NORM = 1e-6
SPARE = 0.1  # of a direction's length outside the span of others; with less it has no room to turn in
DUPLICATE = 1e-6  # eigenvalues of cosines below are those of duplicates


def matrix(gram: Tensor, *, symmetric: bool = False) -> Tensor:
    """Row `j` has the coefficients of the new delta of LoRA `j`.

    Args:
        gram: `(n, n)` float64, dot products of the deltas.
        symmetric: turn all LoRAs alike, and not the smaller ones out of the way of the larger.

    Returns:
        `(n, n)`; every new delta has its old norm. A delta of zeros stays one.
    """
    norms = gram.diagonal().clamp(min=0).sqrt()
    divisors = torch.where(norms > 0, norms, 1.0)
    cosines = gram / divisors[:, None] / divisors
    cosines = torch.where(torch.eye(len(gram), dtype=torch.bool, device=gram.device), 1.0, cosines)
    are_alike = _alike(cosines)
    if symmetric:
        made = _symmetric(cosines, are_alike)
    else:
        made = _one_by_one(cosines, are_alike, _groups(norms))
    return made * norms[:, None] / divisors


def _alike(cosines: Tensor) -> Tensor:
    """Which LoRAs leave each other alone, `(n, n)` bool: those beyond the limit, and chains of such."""
    reached = (cosines.abs() > ALIKE).double()
    for _ in range(len(cosines).bit_length()):
        reached = (reached @ reached > 0).double()
    return reached > 0


def _groups(norms: Tensor) -> list[list[int]]:
    """The LoRAs by descending norm, those of one norm together."""
    sizes = norms.tolist()
    groups: list[list[int]] = []
    last = float("inf")
    for index in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        if not groups or sizes[index] < last * (1 - SAME_NORM):
            groups.append([])
        groups[-1].append(index)
        last = sizes[index]
    return groups


def _one_by_one(cosines: Tensor, are_alike: Tensor, groups: list[list[int]]) -> Tensor:
    """Gram-Schmidt on directions: each group clears the span of those before it, then its own members."""
    made = torch.eye(len(cosines), dtype=cosines.dtype, device=cosines.device)
    before: list[int] = []
    for group in groups:
        rows = torch.stack([_cleared(made, cosines, index, before, are_alike) for index in group])
        before += group
        if len(group) == 1:
            made[group] = rows
            continue
        inner = _symmetric(rows @ cosines @ rows.T, are_alike[group][:, group])
        made[group] = inner @ rows
    return made


def _cleared(made: Tensor, cosines: Tensor, index: int, before: list[int], are_alike: Tensor) -> Tensor:
    """A direction without what it has in the span of those before it that are not like it, at length 1."""
    unlike = [k for k in before if not are_alike[index, k]]
    if not unlike:
        return made[index]
    others = made[unlike]
    rest = made[index] - _shadow(others @ cosines @ others.T, others @ cosines @ made[index]) @ others
    length = float((rest @ cosines @ rest).clamp(min=0).sqrt())
    return rest / length if length >= SPARE else made[index]


def _shadow(inner: Tensor, across: Tensor) -> Tensor:
    """Coefficients of a direction's projection onto others, from their cosines and its own with them."""
    # Two of the others may be duplicates; what they differ in is not a direction to keep clear of.
    return torch.linalg.pinv(inner, rtol=DUPLICATE, hermitian=True) @ across


def _symmetric(cosines: Tensor, are_alike: Tensor) -> Tensor:
    """The nearest directions that are orthogonal where they are not alike, and keep their cosines where they are.

    With `T` for the cosines to be, those are `T½ (T½ C T½)^-½ T½`; where nobody is alike, Löwdin's `C^-½`.
    """
    made = torch.eye(len(cosines), dtype=cosines.dtype, device=cosines.device)
    free = [k for k in range(len(cosines)) if _has_room(cosines, k, ~are_alike[k])]
    inner = cosines[free][:, free]
    half = _power(torch.where(are_alike[free][:, free], inner, 0.0), 0.5)
    turned = half @ _power(half @ inner @ half, -0.5) @ half
    lengths = (turned @ inner * turned).sum(1).clamp(min=0).sqrt()
    for place, index in enumerate(free):
        made[index, free] = turned[place] / lengths[place]
    return made


def _has_room(cosines: Tensor, index: int, is_other: Tensor) -> bool:
    """Whether a direction lies clear enough of the span of others to be turned out of it."""
    across = cosines[index, is_other]
    return float(across @ _shadow(cosines[is_other][:, is_other], across)) <= 1 - SPARE**2


def _power(form: Tensor, exponent: float) -> Tensor:
    """A power of a symmetric matrix without negative eigenvalues; of those that are rounding, 0."""
    values, vectors = torch.linalg.eigh((form + form.T) / 2)
    powers = torch.where(values > DUPLICATE**2, values.clamp(min=DUPLICATE**2) ** exponent, 0.0)
    return (vectors * powers) @ vectors.T
