"""Save patches as a LoRA file, and prove that the file is what was merged.

The file is written beside its place, re-opened through the ordinary reader, every target is led back through
its name and compared with the patch, and only then does it take its place: a file that fails its proof
replaces nothing (`design.md` §1.3). `alpha = rank` always, so that every loader scales by 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ProofError, RecipeError, SaveError
from ..core.params import unknown
from ..core.progress import Progress, silent, told
from ..core.tensorfile import write_tensors
from ..lora import keys
from ..lora.factors import Delta, LowRank, distance
from ..lora.file import LoraFile, open_lora
from ..lora.full import Kron
from ..lora.keys import Family
from ..lora.stack import BIAS
from ..lora.target import Target
from .patch import Patch, joined, part_of


@dataclass(frozen=True)
class Proof:
    """What re-reading a saved file showed.

    Attributes:
        path: the file.
        target_count: how many targets were compared.
        read_error: largest relative difference between a patch and what the file gives back.
        merge_error: largest relative error of a patch against the exact merge.
        worst: the target of the merge error.
        size_bytes: of the file.
    """

    path: Path
    target_count: int
    read_error: float
    merge_error: float
    worst: str
    size_bytes: int


@dataclass(frozen=True)
class Named:
    """A patch with its name in the file.

    Attributes:
        name: of the module.
        patch: the patch.
        swap_halves: whether its row halves are exchanged in the file.
        is_wider: whether the file says that the base weight is to be filled up with zeros to the patch's shape.
    """

    name: str
    patch: Patch
    swap_halves: bool = False
    is_wider: bool = False


def named(
    patches: Sequence[Patch],
    naming: str,
    family: Family | None,
    spellings: Mapping[Target, str],
    height: Callable[[str], int],
) -> list[Named]:
    """Patches under their names in a naming; fused weights are split, or parts joined, where it asks for
    that.

    Args:
        patches: all of a merge.
        naming: `comfyui`, `kohya` or `diffusers`.
        family: of the stack, or None.
        spellings: names for targets that no family names.
        height: the rows of a whole weight, 0 if they are not known.

    Raises:
        RecipeError: there is no such naming.
        SaveError: the naming has no name for a target.
    """
    if naming not in keys.NAMINGS:
        raise RecipeError(unknown("naming", naming, dict.fromkeys(keys.NAMINGS)))
    by_weight: dict[str, list[Patch]] = {}
    for patch in patches:
        by_weight.setdefault(patch.target.weight, []).append(patch)
    made: list[Named] = []
    for found in by_weight.values():
        made += _named_weight(found, naming, family, spellings, height)
    _refuse_twins(made)
    if family is None:
        return made
    known = keys.key_map(family)
    routes = (keys.resolve(one.name, known) for one in made)
    return [
        replace(one, swap_halves=route is not None and route.swap_halves)
        for one, route in zip(made, routes, strict=True)
    ]


def _named_weight(
    found: Sequence[Patch],
    naming: str,
    family: Family | None,
    spellings: Mapping[Target, str],
    height: Callable[[str], int],
) -> list[Named]:
    names = [_spell(patch.target, naming, family, spellings) for patch in found]
    if all(names):
        return [Named(name, patch) for name, patch in zip(names, found, strict=True) if name]
    weight = found[0].target.weight
    if len(found) == 1 and found[0].target.part is None:
        parts = keys.parts(weight, found[0].shape[0], family) if family else None
        pieces = [part_of(found[0], Target(weight, part)) for part in parts or ()]
        names = [_spell(piece.target, naming, family, spellings) for piece in pieces]
        if pieces and all(names):
            return [Named(name, piece) for name, piece in zip(names, pieces, strict=True) if name]
    elif (whole := _spell(Target(weight), naming, family, spellings)) and (rows := height(weight)):
        return [Named(whole, joined(weight, rows, list(found)))]
    if naming == "comfyui":
        raise SaveError(f"The parts of {weight} have no names of their own, and its height is not known.")
    raise SaveError(
        f"{weight} has no name in {naming} naming. Save with `comfyui` naming, which names every target."
    )


def _spell(target: Target, naming: str, family: Family | None, spellings: Mapping[Target, str]) -> str | None:
    if target in spellings:
        return spellings[target]
    return keys.spell(target, naming, family)


def _refuse_twins(made: Sequence[Named]) -> None:
    seen: set[str] = set()
    for one in made:
        if one.name in seen:
            raise SaveError(f"Two targets would be saved as `{one.name}`; choose another naming.")
        seen.add(one.name)


def save_patches(
    path: Path,
    pieces: Sequence[Named],
    naming: str,
    metadata: Mapping[str, str],
    lead: Callable[[str], Target | None],
    progress: Progress = silent,
) -> Proof:
    """Write a LoRA file and prove it.

    Args:
        path: where it will stand.
        pieces: patches with their names.
        naming: decides the spelling of the factors: `lora_up`, or PEFT's `lora_B` for `diffusers`.
        metadata: strings for the header.
        lead: the ordinary way from a name in a file to its target.
        progress: told after every tensor written, and every target compared; what it raises ends the work, and
            nothing was replaced.

    Raises:
        SaveError: the place cannot be written.
        ProofError: the file does not give back what was merged; nothing was replaced.
    """
    tensors: dict[str, Tensor] = {}
    for piece in pieces:
        tensors.update(_tensors(piece, naming))
    worst = max(pieces, key=lambda piece: piece.patch.error)
    proofs: list[Proof] = []

    def check(written: Path) -> None:
        read_error = _read_back(open_lora(written), pieces, lead, progress)
        if read_error > 0.0:
            raise ProofError(
                f"`{path}` was not saved: read back, it differs from the merge by {read_error:.2e} of the norm,"
                " where not a bit should. The disk or the memory of this machine may be faulty; try another"
                " place."
            )
        proofs.append(
            Proof(
                path,
                len(pieces),
                read_error,
                worst.patch.error,
                str(worst.patch.target),
                written.stat().st_size,
            )
        )

    write_tensors(path, tensors, metadata, check, progress)
    return proofs[0]


def _tensors(piece: Named, naming: str) -> dict[str, Tensor]:
    delta = piece.patch.delta
    if piece.swap_halves:
        delta = delta.halves_swapped()
    name, kernel = piece.name, delta.shape[2:]
    if piece.is_wider and (naming == "diffusers" or not isinstance(delta, LowRank)):
        raise SaveError(
            f"The merge on {piece.patch.target} is for a wider weight than the model's, which only a low-rank LoRA in"
            " `comfyui` or `kohya` naming can say. Choose one of them, and merge with a rank."
        )
    if isinstance(delta, LowRank):
        up, down = delta.up, delta.down
        if kernel:
            up = up.reshape(*up.shape, *(1 for _ in kernel))
            down = down.reshape(delta.rank, *delta.shape[1:])
        if naming == "diffusers":
            return {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
        alpha = torch.tensor(float(delta.rank))
        made = {f"{name}.lora_up.weight": up, f"{name}.lora_down.weight": down, f"{name}.alpha": alpha}
        return made | ({f"{name}.reshape_weight": torch.tensor(delta.shape)} if piece.is_wider else {})
    if naming == "diffusers":
        raise SaveError(
            f"The merge is of full rank on {piece.patch.target}, and diffusers reads low-rank factors only. Merge"
            " with a rank or a tolerance, or save with `comfyui` naming."
        )
    if isinstance(delta, Kron):
        # No alpha: with both factors whole, readers take the product as it is.
        b = delta.b.reshape(delta.b.shape[0], -1, *kernel) if kernel else delta.b
        return {f"{name}.lokr_w1": delta.a, f"{name}.lokr_w2": b}
    if name.endswith(BIAS):
        return {f"{name.removesuffix(BIAS)}.diff_b": delta.matrix.reshape(delta.shape)}
    return {f"{name}.diff": delta.matrix.reshape(delta.shape)}


def _read_back(
    file: LoraFile,
    pieces: Sequence[Named],
    lead: Callable[[str], Target | None],
    progress: Progress,
) -> float:
    if len(file.modules) != len(pieces):
        raise ProofError(f"The saved file has {len(file.modules)} modules where {len(pieces)} were written.")
    strange = next((account.tensor for account in file.accounts if account.state != "used"), None)
    if strange is not None:
        raise ProofError(f"`{strange}` of the saved file is of no use, and none such was written.")
    largest = 0.0
    for piece in told(pieces, len(pieces), "compare", progress):
        module = file.modules.get(piece.name)
        if module is None or lead(piece.name) != piece.patch.target:
            raise ProofError(f"`{piece.name}` of the saved file does not lead back to {piece.patch.target}.")
        largest = max(largest, difference(file.load(module), piece))
    return largest


def difference(delta: Delta, piece: Named) -> float:
    """`‖delta − patch‖ / ‖patch‖`, from factors; 0 for the same bits, infinite for another shape or NaN."""
    if piece.swap_halves:
        delta = delta.halves_swapped()
    wanted = piece.patch.delta
    if _are_same(delta, wanted):
        return 0.0
    if delta.shape[0] != wanted.shape[0] or prod(delta.shape[1:]) != prod(wanted.shape[1:]):
        return inf
    off, size = distance(delta, wanted)
    if not isfinite(off):
        return inf
    return off / size if size > 0 else off


def _are_same(delta: Delta, wanted: Delta) -> bool:
    if type(delta) is not type(wanted) or delta.scale != wanted.scale:
        return False
    pairs = zip(delta.tensors.values(), wanted.tensors.values(), strict=True)
    return all(_same_bits(one, other) for one, other in pairs)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # Bytes, through NumPy: torch compares half-precision numbers one by one, eight times slower.
    left, right = (tensor.contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in (one, other))
    return np.array_equal(left, right)
