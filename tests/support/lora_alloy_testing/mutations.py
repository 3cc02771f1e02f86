"""One small module of every format, and ways to spoil its tensors: names, shapes, dtypes, values, base weights.

`mutated(seed)` is the same file for the same seed, everywhere.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from .base_formats import CASES, NAME, noise
from .exact_modules import CASES as EXACT
from lora_alloy.lora.entries import Model
from lora_alloy.lora.target import Route, Target

PLACE = Target("diffusion_model.block.proj")
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)
_SIZES = (0, 1, 2, 3, 4, 5, 8, 16, 24, 48, 300)
_MOST = 100_000
_LETTERS = "._aA0-# \n\té層\x1b"
_WRAPPERS = ("transformer.", "base_model.model.", "lora_unet_", "diffusion_model.", "text_encoder.", "unet_")


@dataclass(frozen=True)
class Made:
    """Tensors of one module called `NAME`, by name, and a base weight that they are for."""

    title: str
    tensors: Mapping[str, Tensor]
    base: Tensor


def _pool() -> list[Made]:
    made = [
        Made(
            title,
            {f"{NAME}.{end}": value for end, value in case.tensors.items()},
            noise(*case.delta.shape, seed=3),
        )
        for title, case in EXACT.items()
    ]
    for case in CASES:
        renamed = {NAME + name.removeprefix(case.module): value for name, value in case.tensors.items()}
        made.append(Made(case.title, renamed, case.base))
    weight = noise(24, 16)
    up, down = noise(24, 4, seed=1), noise(4, 32, seed=2)
    others: dict[str, dict[str, Tensor]] = {
        "diff": {"diff": weight, "diff_b": noise(24)},
        "set": {"set_weight": weight},
        "norm": {"w_norm": noise(24), "b_norm": noise(24)},
        "wider": {"lora_up.weight": up, "lora_down.weight": down, "reshape_weight": torch.tensor([24, 32])},
        "packed": {
            "lora_up.weight": up.to(torch.float8_e4m3fn),
            "lora_down.weight": down[:, :16].to(torch.float8_e4m3fn),
            "lora_up.scale_weight": torch.tensor(0.5),
        },
    }
    for title, tensors in others.items():
        base = noise(24) if title == "norm" else weight
        made.append(Made(title, {f"{NAME}.{end}": value for end, value in tensors.items()}, base))
    return made


POOL = _pool()


def mutated(seed: int) -> tuple[Made, dict[str, Tensor], random.Random]:
    """One of the pool, its tensors spoilt by at most three mutations, and the chance for what is spoilt next."""
    chance = random.Random(seed)
    made = chance.choice(POOL)
    tensors = dict(made.tensors)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        if tensors:
            tensors = chance.choice(_MUTATIONS)(tensors, chance)
    return made, {name: value.clone().contiguous() for name, value in tensors.items()}, chance


def spoilt_model(base: Tensor, chance: random.Random) -> Model | None:
    """A model whose one weight is the right one, or of another shape or dtype, or missing, or not to be had."""
    kind = chance.choice(("none", "right", "shape", "dtype", "values", "unreadable", "missing"))
    if kind == "none":
        return None
    if kind == "shape":
        base = _reshaped(base, chance)
    elif kind == "dtype":
        base = base.to(chance.choice(DTYPES[:6]))
    elif kind == "values":
        base = _with_odd_value(base, chance)
    known = {} if kind == "missing" else {NAME: Route(PLACE), PLACE.weight: Route(PLACE)}
    shapes = {PLACE.weight: tuple(base.shape)}
    if base.dim():
        shapes[f"{PLACE.weight}.bias"] = tuple(base.shape[:1])
    return Model(known, shapes, True, lambda weight: None if kind == "unreadable" else base.float())


def _reshaped(value: Tensor, chance: random.Random) -> Tensor:
    sizes = list(value.shape)
    kind = chance.choice(("size", "drop", "add", "turn", "none", "ones"))
    if kind == "size" and sizes:
        sizes[chance.randrange(len(sizes))] = chance.choice(_SIZES)
    elif kind == "drop" and sizes:
        sizes.pop(chance.randrange(len(sizes)))
    elif kind == "add":
        sizes.insert(chance.randrange(len(sizes) + 1), chance.choice((1, 2, 3)))
    elif kind == "turn":
        sizes.reverse()
    elif kind == "none":
        sizes = []
    else:
        sizes = [1] * chance.randrange(4)
    return noise(*sizes) if sizes and prod(sizes) <= _MOST else torch.tensor(0.5)


def _with_odd_value(value: Tensor, chance: random.Random) -> Tensor:
    made = value.float().clone()
    if made.numel():
        odd = chance.choice((float("nan"), float("inf"), -float("inf"), 1e38, 1e-45))
        made.view(-1)[chance.randrange(made.numel())] = odd
    return made * 0 if chance.random() < 0.2 else made


def _one(change: Callable[[Tensor, random.Random], Tensor]) -> "_Mutation":
    def mutate(tensors: dict[str, Tensor], chance: random.Random) -> dict[str, Tensor]:
        name = chance.choice(list(tensors))
        return tensors | {name: change(tensors[name], chance)}

    return mutate


def _all_cast(tensors: dict[str, Tensor], chance: random.Random) -> dict[str, Tensor]:
    dtype = chance.choice(DTYPES)
    return {name: value.to(dtype) for name, value in tensors.items()}


def _dropped(tensors: dict[str, Tensor], chance: random.Random) -> dict[str, Tensor]:
    gone = chance.choice(list(tensors))
    return {name: value for name, value in tensors.items() if name != gone}


def _with_others(tensors: dict[str, Tensor], chance: random.Random) -> dict[str, Tensor]:
    other = chance.choice(POOL).tensors
    name = chance.choice(list(other))
    return tensors | {name: other[name]}


def _renamed(tensors: dict[str, Tensor], chance: random.Random) -> dict[str, Tensor]:
    """Drop or insert a letter, change case, wrap, swap the ending, cut, or keep it under both names."""
    name = chance.choice(list(tensors))
    at = chance.randrange(len(name) + 1)
    ending = "." + chance.choice(list(chance.choice(POOL).tensors)).partition(".")[2]
    other = chance.choice(
        (
            name[:at] + name[at + 1 :],
            name[:at] + chance.choice(_LETTERS) + name[at:],
            name.upper(),
            chance.choice(_WRAPPERS) + name,
            name.partition(".")[0] + ending,
            name + ".weight",
            name[:at],
        )
    )
    kept = tensors if chance.random() < 0.5 else {key: v for key, v in tensors.items() if key != name}
    return kept | {other: tensors[name]}


_Mutation = Callable[[dict[str, Tensor], random.Random], dict[str, Tensor]]
_MUTATIONS: tuple[_Mutation, ...] = (
    _one(_reshaped),
    _one(_reshaped),
    _one(lambda value, chance: value.to(chance.choice(DTYPES))),
    _one(_with_odd_value),
    _all_cast,
    _dropped,
    _with_others,
    _renamed,
    _renamed,
)
