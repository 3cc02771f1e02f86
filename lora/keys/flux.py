"""Flux.1: its native weights fuse q, k, v (and the MLP's first map), diffusers' names address the parts.

Sizes stand in units of the hidden width, which a file shows: 3072 in the released models, less in small ones.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..target import Part, Target
from .names import INDEX, MODEL, Architecture, Candidate, Family, Module, Names, flat
from .text import CLIP_L, clip, fits, t5

FAMILY = Family("flux", "Flux.1", "flux1", "flux-1-dev/lora", hidden=3072)

_DOUBLE_BLOCKS, _SINGLE_BLOCKS = 19, 38
_AGREEING = 0.9  # of a file's modules must show one and the same hidden width


@dataclass(frozen=True)
class _Unit:
    """A module of a block: its native name, its size in hidden widths, diffusers' name for it.

    For a whole weight `diffusers` holds one name. For a fused one it holds those of the parts, and `heights`
    their rows. A norm has size 0 by 0: it has no factors.
    """

    native: str
    outputs: int
    inputs: int
    diffusers: tuple[str, ...]
    heights: tuple[int, ...] = ()


def _stream(native: str, ff: str, norm: str, qkv: tuple[str, ...], out: str, added: str) -> tuple[_Unit, ...]:
    return (
        _Unit(f"{native}_attn.qkv", 3, 1, qkv, (1, 1, 1)),
        _Unit(f"{native}_attn.proj", 1, 1, (f"attn.{out}",)),
        _Unit(f"{native}_mlp.0", 4, 1, (f"{ff}.net.0.proj",)),
        _Unit(f"{native}_mlp.2", 1, 4, (f"{ff}.net.2",)),
        _Unit(f"{native}_mod.lin", 6, 1, (f"{norm}.linear",)),
        _Unit(f"{native}_attn.norm.query_norm", 0, 0, (f"attn.norm_{added}q",)),
        _Unit(f"{native}_attn.norm.key_norm", 0, 0, (f"attn.norm_{added}k",)),
    )


_QKV = ("attn.to_q", "attn.to_k", "attn.to_v")
_ADDED_QKV = ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
_DOUBLE = (
    *_stream("img", "ff", "norm1", _QKV, "to_out.0", ""),
    *_stream("txt", "ff_context", "norm1_context", _ADDED_QKV, "to_add_out", "added_"),
)
_SINGLE = (
    _Unit("linear1", 7, 1, (*_QKV, "proj_mlp"), (1, 1, 1, 4)),
    _Unit("linear2", 1, 5, ("proj_out",)),
    _Unit("modulation.lin", 3, 1, ("norm.linear",)),
    _Unit("norm.query_norm", 0, 0, ("attn.norm_q",)),
    _Unit("norm.key_norm", 0, 0, ("attn.norm_k",)),
)
_FRAME = (
    ("img_in", "x_embedder"),
    ("txt_in", "context_embedder"),
    *(
        (f"{here}_in.{end}_layer", f"time_text_embed.{there}_embedder.linear_{number}")
        for here, there in (("time", "timestep"), ("vector", "text"), ("guidance", "guidance"))
        for end, number in (("in", 1), ("out", 2))
    ),
    ("final_layer.linear", "proj_out"),
)
_UNITS = {unit.native: unit for unit in (*_DOUBLE, *_SINGLE)}


def names(family: Family) -> Iterator[Names]:
    """Every target of the family, parts of fused weights included."""
    assert family.hidden, "Flux's parts need its hidden width"
    for native, diffusers in _FRAME:
        yield _whole(native, diffusers)
    # diffusers keeps scale above shift in the last modulation, Flux shift above scale.
    yield replace(_whole("final_layer.adaLN_modulation.1", "norm_out.linear"), swapped=True)
    double, single = range(_DOUBLE_BLOCKS), range(_SINGLE_BLOCKS)
    for unit in _DOUBLE:
        for names in _unit(unit, f"double_blocks.{INDEX}", f"transformer_blocks.{INDEX}", family.hidden):
            yield replace(names, blocks=double)
    here = f"single_blocks.{INDEX}"
    for unit in _SINGLE:
        for names in _unit(unit, here, f"single_transformer_blocks.{INDEX}", family.hidden):
            yield replace(names, blocks=single)
    attention = Target(f"{MODEL}{here}.linear1", Part(0, 0, 3 * family.hidden))
    yield Names(attention, f"{MODEL}{here}.linear1_qkv", blocks=single)
    yield from clip(CLIP_L, 12, kohya=("lora_te1_", "lora_te_"), diffusers="text_encoder")
    yield from t5(kohya=("lora_te3_", "lora_te2_"), diffusers="text_encoder_2")


def judge(modules: Sequence[Module]) -> Candidate | None:
    """Nearly all modules in blocks have sizes that are the right multiples of one number, the hidden width.

    A file of text encoders or of the frame alone says nothing about the width.
    """
    if not fits(modules):
        return None
    seen: Counter[int | None] = Counter()
    for module in modules:
        if "_blocks." in module.target.weight:
            seen[_hidden(module)] += module.count
    del seen[None]
    if not seen:
        return Candidate(FAMILY, is_likely=False)
    hidden, votes = seen.most_common(1)[0]
    if not hidden or votes < _AGREEING * seen.total():
        return None
    share = seen[FAMILY.hidden] / seen.total()
    return Candidate(replace(FAMILY, hidden=hidden), True, hidden == FAMILY.hidden, preference=share)


def parts(weight: str, rows: int, family: Family) -> tuple[Part, ...] | None:
    """The parts q, k, v (and mlp) of `weight`, from its `rows`; None if not fused, or not divisible so."""
    unit = _unit_of(weight)
    if unit is None or not unit.heights or rows % unit.outputs:
        return None
    return _parts(unit, rows // unit.outputs)


def _whole(native: str, diffusers: str, *, is_norm: bool = False) -> Names:
    weight, spelled = MODEL + native, "transformer." + diffusers
    # ComfyUI has renamed the norms' parameter; only the diffusers name leads there in all its versions.
    comfyui = spelled if is_norm else weight
    others = ("lora_transformer_" + flat(diffusers),)
    return Names(Target(weight), comfyui, "lora_unet_" + flat(native), spelled, others)


def _unit(unit: _Unit, here: str, there: str, hidden: int) -> Iterator[Names]:
    native = f"{here}.{unit.native}"
    if not unit.heights:
        yield _whole(native, f"{there}.{unit.diffusers[0]}", is_norm=not unit.outputs)
        return
    weight = MODEL + native
    yield Names(Target(weight), weight, "lora_unet_" + flat(native))
    for name, part in zip(unit.diffusers, _parts(unit, hidden), strict=True):
        spelled = f"transformer.{there}.{name}"
        others = ("lora_transformer_" + flat(f"{there}.{name}"),)
        yield Names(Target(weight, part), spelled, None, spelled, others)


def _parts(unit: _Unit, hidden: int) -> tuple[Part, ...]:
    return tuple(
        Part(0, sum(unit.heights[:place]) * hidden, height * hidden)
        for place, height in enumerate(unit.heights)
    )


def _unit_of(weight: str) -> _Unit | None:
    _, _, rest = weight.removeprefix(MODEL).partition("_blocks.")
    return _UNITS.get(rest.partition(".")[2])


def _hidden(module: Module) -> int | None:
    """The hidden width that a module shows: 0 if its sizes contradict each other, None if it has none."""
    unit = _unit_of(module.target.weight)
    if unit is None or not unit.outputs or not module.outputs or not module.inputs:
        return None
    assert FAMILY.hidden
    height = module.target.part.length // FAMILY.hidden if module.target.part else unit.outputs
    width, rest = divmod(module.inputs, unit.inputs)
    return width if not rest and module.outputs == height * width else 0


def stems() -> str:
    """The beginnings of all names of blocks up to their number."""
    return (
        "double_blocks_ single_blocks_ single_transformer_blocks_"  # the last ends in that of the double ones
    )


ARCHITECTURE = Architecture(FAMILY, names, judge, parts, stems)
