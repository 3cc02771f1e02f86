"""Save patches as a LoRA file, and prove that the file is what was merged.

The file is written beside its place, re-opened through the ordinary reader, every target is led back through
its name and compared with the patch, and only then does it take its place: a file that fails its proof
replaces nothing (`design.md` §1.3). `alpha = rank` always, so that every loader scales by 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ProofError, RecipeError, SaveError
from ..core.linalg import product_norm
from ..core.params import unknown
from ..core.tensorfile import write_tensors
from ..lora import keys
from ..lora.factors import LowRank
from ..lora.file import LoraFile, open_lora
from ..lora.keys import Family
from ..lora.target import Part, Target
from .patch import Patch


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
    """A patch with its name in the file; its row halves are exchanged there if `swap_halves`."""

    name: str
    patch: Patch
    swap_halves: bool = False


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
        parts = keys.parts(weight, found[0].up.shape[0], family) if family else None
        pieces = [_row_part(found[0], part) for part in parts or ()]
        names = [_spell(piece.target, naming, family, spellings) for piece in pieces]
        if pieces and all(names):
            return [Named(name, piece) for name, piece in zip(names, pieces, strict=True) if name]
    elif (whole := _spell(Target(weight), naming, family, spellings)) and (rows := height(weight)):
        return [Named(whole, _joined(weight, found, rows))]
    if naming == "comfyui":
        raise SaveError(f"The parts of {weight} have no names of their own, and its height is not known.")
    raise SaveError(
        f"{weight} has no name in {naming} naming. Save with `comfyui` naming, which names every target."
    )


def _spell(target: Target, naming: str, family: Family | None, spellings: Mapping[Target, str]) -> str | None:
    if target in spellings:
        return spellings[target]
    return keys.spell(target, naming, family)


def _row_part(patch: Patch, part: Part) -> Patch:
    shape = (part.length, *patch.shape[1:])
    up = patch.up.narrow(0, part.start, part.length)
    return Patch(Target(patch.target.weight, part), shape, up, patch.down, patch.error)


def _joined(weight: str, found: Sequence[Patch], rows: int) -> Patch:
    """Parts of one weight as one patch: ups in blocks, downs one below the other; exact, ranks add up."""
    parts = [patch.target.part for patch in found]
    rank = sum(patch.rank for patch in found)
    up = found[0].up.new_zeros(rows, rank)
    at = 0
    for patch, part in zip(found, parts, strict=True):
        assert part is not None and part.axis == 0
        up[part.start : part.start + part.length, at : at + patch.rank] = patch.up
        at += patch.rank
    down = torch.cat([patch.down for patch in found])
    error = max(patch.error for patch in found)
    return Patch(Target(weight), (rows, *found[0].shape[1:]), up, down, error)


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
    tolerance: float = 1e-6,
) -> Proof:
    """Write a LoRA file and prove it.

    Args:
        path: where it will stand.
        pieces: patches with their names.
        naming: decides the spelling of the factors: `lora_up`, or PEFT's `lora_B` for `diffusers`.
        metadata: strings for the header.
        lead: the ordinary way from a name in a file to its target.
        tolerance: the largest relative difference that re-reading may show.

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
        read_error = _read_back(open_lora(written), pieces, lead)
        if read_error > tolerance:
            raise ProofError(
                f"`{path}` was not saved: read back, it differs from the merge by {read_error:.2e}, more than"
                f" {tolerance:.0e}. The disk or the memory of this machine may be faulty; try another place."
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

    write_tensors(path, tensors, metadata, check)
    return proofs[0]


def _tensors(piece: Named, naming: str) -> dict[str, Tensor]:
    patch = piece.patch
    kernel = patch.shape[2:]
    up, down = patch.up, patch.down
    if piece.swap_halves:
        up = torch.cat(up.chunk(2)[::-1])
    if kernel:
        up = up.reshape(*up.shape, *(1 for _ in kernel))
        down = down.reshape(patch.rank, *patch.shape[1:])
    if naming == "diffusers":
        return {f"{piece.name}.lora_A.weight": down, f"{piece.name}.lora_B.weight": up}
    return {
        f"{piece.name}.lora_up.weight": up,
        f"{piece.name}.lora_down.weight": down,
        f"{piece.name}.alpha": torch.tensor(float(patch.rank)),
    }


def _read_back(file: LoraFile, pieces: Sequence[Named], lead: Callable[[str], Target | None]) -> float:
    if len(file.modules) != len(pieces):
        raise ProofError(f"The saved file has {len(file.modules)} modules where {len(pieces)} were written.")
    largest = 0.0
    for piece in pieces:
        module = file.modules.get(piece.name)
        if module is None or lead(piece.name) != piece.patch.target:
            raise ProofError(f"`{piece.name}` of the saved file does not lead back to {piece.patch.target}.")
        largest = max(largest, difference(file.load(module), piece))
    return largest


def difference(delta: LowRank, piece: Named) -> float:
    """`‖delta − patch‖ / ‖patch‖`, from factors; 0 for the same bits, infinite for NaN."""
    if piece.swap_halves:
        delta = delta.halves_swapped()
    up, down, scale, patch = delta.up, delta.down, delta.scale, piece.patch
    if scale == 1.0 and _same_bits(up, patch.up) and _same_bits(down, patch.down):
        return 0.0
    left = torch.cat([up.double() * scale, patch.up.double()], 1)
    right = torch.cat([down.double(), -patch.down.double()])
    size = product_norm(patch.up.double(), patch.down.double())
    off = product_norm(left, right)
    if not isfinite(off):
        return inf
    return off / size if size > 0 else off


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # Bytes, through NumPy: torch compares half-precision numbers one by one, eight times slower.
    left, right = (tensor.contiguous().view(torch.uint8).numpy() for tensor in (one, other))
    return np.array_equal(left, right)
