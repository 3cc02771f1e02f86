"""Which module of a saved file is which piece of a merge."""

from collections.abc import Callable, Sequence

import torch

from ..core.errors import ProofError
from ..lora.file import LoraFile
from ..lora.formats import Module
from ..lora.target import Target
from .saving import Named

AGAIN = "Give the LoRAs, strengths and recipe that it was made with, or merge them again."


def counterparts(
    saved: LoraFile, lead: Callable[[str], Target | None], pieces: Sequence[Named]
) -> list[Module]:
    """The module of a saved file for each piece of a merge.

    Args:
        saved: the file.
        lead: where a module's name leads in the merge.
        pieces: of the merge.

    Raises:
        ProofError: a module or a tensor is missing, or too many.
    """
    path = saved.tensors.path
    # A host's model has names of its own for what merges here by module name alone.
    by_target = {lead(name): name for name in saved.modules}
    names = [
        piece.name if piece.name in saved.modules else by_target.get(piece.patch.target, "")
        for piece in pieces
    ]
    missing = [piece.name for piece, name in zip(pieces, names, strict=True) if not name]
    extra = sorted(saved.modules.keys() - set(names))
    if missing or extra:
        first = f"`{missing[0]}` is missing" if missing else f"`{extra[0][:200]}` is not of the merge"
        raise ProofError(
            f"`{path}` has {len(saved.modules)} modules, the merge has {len(pieces)}; {first}. {AGAIN}"
        )
    strange = [account.tensor for account in saved.accounts if account.state != "used"]
    if strange:
        raise ProofError(
            f"`{path}` has {len(strange)} tensors that are not of the merge, the first `{strange[0][:200]}`."
            f" {AGAIN}"
        )
    return [saved.modules[name] for name in names]


def allowed_difference(dtype: torch.dtype) -> float:
    """How far a file may be from the same merge done again: its dtype's rounding, which machines do apart.

    On the machine that saved it, the difference is 0.
    """
    return max(1e-6, torch.finfo(dtype).eps / 2)
