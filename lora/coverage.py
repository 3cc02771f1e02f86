"""What of a file a given model has: in modules, and in the share of its effect."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, prod

import torch

from ..core.errors import StackError
from ..core.threads import one_thread
from .choosing import family_of
from .entries import Contribution, Entry, Model
from .factors import Delta, LowRank
from .file import LoraFile
from .formats import Module
from .full import Kron
from .grouping import led
from .keys import Family
from .target import TEXT_ENCODERS, Route

SHOWN = 3


@dataclass(frozen=True)
class Coverage:
    """How much of a file has a place in a model.

    Attributes:
        model: what the model is called.
        module_count: modules of the file.
        found_count: those that have a place in the model.
        missing: names of those that the model does not have, or whose text encoder its file does not hold.
        encoder_count: how many of the missing ones are for text encoders that are not there at all.
        misfits: names of those whose weight has another size in the model.
        share: of the file's effect, the sum of all ‖Δ‖², that the found ones carry; None if it is not measured.
        unmeasured_count: modules whose effect depends on base weights that are not there; in no share.
    """

    model: str
    module_count: int
    found_count: int
    missing: tuple[str, ...]
    encoder_count: int
    misfits: tuple[str, ...]
    share: float | None
    unmeasured_count: int = 0

    def sentences(self) -> list[str]:
        """What is found and what is not, for people."""
        share = "" if self.share is None else f", {_percent(self.share)} of its effect"
        told = [f"{self.found_count:,} of {self.module_count:,} modules are in {self.model}{share}"]
        encoders = f"; {self.encoder_count:,} for text encoders that it lacks" if self.encoder_count else ""
        if self.missing:
            told.append(f"{len(self.missing):,} not there{encoders}: {_some(self.missing)}")
        if self.misfits:
            told.append(f"{len(self.misfits):,} of another size there: {_some(self.misfits)}")
        if self.unmeasured_count:
            told.append(f"{self.unmeasured_count:,} whose effect depends on weights that are not there")
        return told


def coverage_of(file: LoraFile, model: Model) -> Coverage:
    """Lead every module of a file to the model's weights, and weigh those that arrive. Reads all factors.

    Raises:
        FileError: the tensors cannot be read.
    """
    try:
        family = family_of([Entry(file)], model)
    except StackError:  # of another family: what its names mean in this model alone counts
        family = None
    encoders = {_component(weight) for weight in model.shapes}
    missing, misfits = [], []
    energies: dict[bool, list[float]] = {True: [], False: []}
    encoder_count = unmeasured = 0
    for module in file.modules.values():
        route = led(module.name, family, model)
        place = _placed(module, route, family, model)
        if place is None:
            missing.append(module.key)
            lost = route and route.target.is_clip and _component(route.target.weight) not in encoders
            encoder_count += bool(lost)
        elif not place:
            misfits.append(module.key)
        energy = _energy(file, module, route if place else None, model)
        if energy is None:
            unmeasured += 1
        else:
            energies[bool(place)].append(energy)
    file.tensors.release()
    found, total = fsum(energies[True]), fsum([*energies[True], *energies[False]])
    return Coverage(
        model.label or "the model",
        len(file.modules),
        len(file.modules) - len(missing) - len(misfits),
        tuple(missing),
        encoder_count,
        tuple(misfits),
        found / total if total > 0 else None,
        unmeasured,
    )


def _placed(module: Module, route: Route | None, family: Family | None, model: Model) -> bool | None:
    """Whether a module has the size of its place in the model; None if it has no place."""
    if route is None:
        return None
    weight = route.target.weight
    if module.parameter != "weight":
        return weight in model.shapes and f"{weight}.{module.parameter}" in model.shapes or None
    if weight not in model.shapes:
        # A packed weight shows no shape; one of an encoder that is not in the file is not there.
        return True if weight in model.known and not route.target.is_clip else None
    sizes = list(model.shapes[weight])
    if part := route.target.part:
        if part.start + part.length > sizes[part.axis]:
            return False
        sizes[part.axis] = part.length
    shown = (module.shape[0], prod(module.shape[1:])) if module.shape else (module.outputs, module.inputs)
    return all(one in (0, size) for one, size in zip(shown, (sizes[0], prod(sizes[1:])), strict=True))


def _energy(file: LoraFile, module: Module, route: Route | None, model: Model) -> float | None:
    """`‖Δ‖²` at strength 1; None where it depends on a base weight that is not there."""
    with torch.no_grad(), one_thread():
        if not module.base_reason:
            return squared_norm(file.load(module))
        if route is None or route.target.weight not in model.shapes:
            return None
        sizes = list(model.shapes[route.target.weight])
        if part := route.target.part:
            sizes[part.axis] = part.length
        shaped = module if module.shape else replace(module, shape=tuple(sizes))
        try:
            return squared_norm(Contribution(0, shaped, route.target, route.swap_halves).load(file, model))
        except StackError:
            return None


def squared_norm(delta: Delta) -> float:
    """`‖Δ‖²`, from the factors where it has some."""
    if isinstance(delta, LowRank):
        up, down = delta.up.float(), delta.down.float()
        return max(float(((up.T @ up).double() * (down @ down.T)).sum()) * delta.scale**2, 0.0)
    if isinstance(delta, Kron):
        return (
            float(delta.a.double().square().sum()) * float(delta.b.double().square().sum()) * delta.scale**2
        )
    return float(delta.flat().double().square().sum())


def _component(weight: str) -> str:
    return weight.split(".")[1] if weight.startswith(TEXT_ENCODERS) else ""


def _percent(share: float) -> str:
    text = f"{share:.1%}"
    return f"{'more' if share < 1 else 'less'} than {text}" if (share < 1) and text == "100.0%" else text


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:SHOWN]) + more
