"""The names that trainers give the modules of each family: one file a naming, with the weight each name is of.

    for file in files_of(family("flux")):
        file.naming                # "diffusers"
        file.routes                # {"transformer.transformer_blocks.0.attn.to_q": Route(Target(…, Part(…)))}
        file.up, file.down         # ".lora_B.weight", ".lora_A.weight"

A file has the matrices and convolutions of the released model, or of one text encoder, that its naming has a name
for: of blocks that are alike, the first and the last, which count for all of them. Which weights there are, and their
shapes, comes from ComfyUI's models; what diffusers calls them, from our own table, which `tests/lora/keys` holds
against diffusers' models.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from .released import Shape, shapes_of
from lora_alloy.lora.keys import Family, key_map
from lora_alloy.lora.keys.names import MODEL, Names, flat
from lora_alloy.lora.target import TEXT_ENCODERS, Part, Route, Target

PEFT = (".lora_B.weight", ".lora_A.weight")
KOHYA = (".lora_up.weight", ".lora_down.weight")
RAW = (".lora_B.default.weight", ".lora_A.default.weight")
PROCESSOR = ("_lora.up.weight", "_lora.down.weight")
LINEAR_LAYER = (".lora_linear_layer.up.weight", ".lora_linear_layer.down.weight")
XLABS = (".up.weight", ".down.weight")

UNETS = ("sd15", "sd2", "sdxl", "cascade")
# Not trained with LoRA's factors: tables of tokens and positions, towers of text encoders that read images.
_UNTRAINED = re.compile(
    r"embedding$|_bias$|embed_tokens$|\.shared$|pos_embed|(^|\.)visual\.|embeddings?\.\w+$|lm_head"
)
_LAYER = re.compile(r"\.(layers?|blocks?)\.\d+\.")


@dataclass(frozen=True)
class NamedFile:
    """A file's names. `encoder` is that of the text encoder it is of, empty for the model.

    Attributes:
        family: key of the family.
        naming: what the naming is called.
        routes: name → the weight it is of, the parts of fused ones apart.
        counts: name → how many modules of the whole model it stands for; halves of an odd number add up.
        up: the ending of an up's name.
        down: of a down's.
        extras: further tensors by which loaders know such a file, with their shapes.
    """

    family: str
    naming: str
    routes: dict[str, Route]
    counts: dict[str, float]
    up: str
    down: str
    encoder: str = ""
    extras: dict[str, Shape] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What tells it from the family's others."""
        return f"{self.encoder}: {self.naming}" if self.encoder else self.naming

    @property
    def total(self) -> int:
        """How many modules the whole file would have."""
        return self.count(self.routes)

    def count(self, names: Iterable[str]) -> int:
        """How many modules these names stand for."""
        return round(sum(self.counts[name] for name in names))

    @property
    def example(self) -> str:
        """A name that shows the naming: of attention, if there is one."""
        liked = [name for name in self.routes if re.search(r"attn|attention|SelfAttention", name)]
        return next((name for name in liked if "refiner" not in name), [*liked, *self.routes][0])

    def shapes(self, name: str) -> tuple[Shape, Shape]:
        """The shapes of a module's up and down, of rank 2."""
        target = self.routes[name].target
        rows, *rest = shape_of(self.family, target)
        kernel = (1,) * (len(rest) - 1)
        return (rows, 2, *kernel), (2, *rest)


def shape_of(family: str, target: Target) -> Shape:
    """The shape of a target in the released model."""
    if target.is_clip:
        path = target.weight.removeprefix(TEXT_ENCODERS)
        shape = shapes_of(path.partition(".")[0])[path]
    else:
        shape = shapes_of(family)[target.weight.removeprefix(MODEL)]
    return shape if target.part is None else (target.part.length, *shape[1:])


Namer = Callable[[str, str], str | None]
"""From a weight's native path and its path in diffusers, empty where it has none, to its name."""

_ROWS: tuple[tuple[str, Namer, tuple[str, str]], ...] = (
    ("ComfyUI", lambda native, there: native and MODEL + native, PEFT),
    ("kohya", lambda native, there: native and f"lora_unet_{flat(native)}", KOHYA),
    ("kohya, diffusers' names", lambda native, there: there and f"lora_unet_{flat(there)}", KOHYA),
    ("diffusers", lambda native, there: there and f"transformer.{there}", PEFT),
    ("diffusers, adapter named", lambda native, there: there and f"transformer.{there}", RAW),
    ("LyCORIS", lambda native, there: there and f"lycoris_{flat(there)}", KOHYA),
    ("LyCORIS, native names", lambda native, there: native and f"lycoris_{flat(native)}", KOHYA),
    ("OneTrainer", lambda native, there: there and f"lora_transformer_{flat(there)}", KOHYA),
    ("PEFT, raw", lambda native, there: there and f"base_model.model.{there}", PEFT),
    ("PEFT, raw, native names", lambda native, there: native and f"base_model.model.{native}", PEFT),
    ("bare", lambda native, there: there or None, PEFT),
    ("bare, native names", lambda native, there: native or None, PEFT),
    ("DiffSynth, pipe.dit", lambda native, there: native and f"pipe.dit.{native}", PEFT),
    ("mis-prefixed, transformer.", lambda native, there: native and f"transformer.{native}", PEFT),
    ("mis-prefixed, diffusion_model.", lambda native, there: there and MODEL + there, PEFT),
)
_UNET_ROWS: tuple[tuple[str, Namer, tuple[str, str]], ...] = (
    ("ComfyUI", lambda native, there: native and MODEL + native, PEFT),
    ("kohya, LDM names", lambda native, there: native and f"lora_unet_{flat(native)}", KOHYA),
    ("kohya, diffusers' names", lambda native, there: there and f"lora_unet_{flat(there)}", KOHYA),
    ("LyCORIS", lambda native, there: there and f"lycoris_{flat(there)}", KOHYA),
    ("diffusers", lambda native, there: there and f"unet.{there}", PEFT),
    (
        "diffusers, attention processors",
        lambda native, there: _processor(there),
        PROCESSOR,
    ),
    ("PEFT, raw", lambda native, there: there and f"base_model.model.{there}", PEFT),
    ("PEFT, raw, in unet.", lambda native, there: there and f"unet.base_model.model.{there}", PEFT),
    ("bare", lambda native, there: there or None, PEFT),
)


_ORIGINAL_ROWS: tuple[tuple[str, Callable[[str], str], tuple[str, str]], ...] = (
    ("diffusion_model.", lambda path: MODEL + path, PEFT),
    ("transformer.", lambda path: f"transformer.{path}", PEFT),
    ("PEFT, raw", lambda path: f"base_model.model.{path}", PEFT),
    ("kohya", lambda path: f"lora_unet_{flat(path)}", KOHYA),
    ("LyCORIS", lambda path: f"lycoris_{flat(path)}", KOHYA),
)


def _processor(there: str) -> str | None:
    found = re.fullmatch(r"(.+\.attn[12])\.(to_[qkv]|to_out)(?:\.0)?", there)
    return found and f"unet.{found[1]}.processor.{found[2]}"


@lru_cache(maxsize=64)
def files_of(family: Family, has_all_blocks: bool = False) -> tuple[NamedFile, ...]:
    """Every naming of a family's model and of its text encoders; namings with the same names once.

    `has_all_blocks` writes those between the first and the last out, for readers that count them.
    """
    trained = _trained(family, has_all_blocks)
    found = [*_model_files(family, trained), *_encoder_files(family, trained)]
    seen: set[tuple[frozenset[str], str]] = set()
    kept = []
    for file in found:
        names = frozenset(file.routes), file.up
        if file.routes and (names not in seen or file.extras):
            kept.append(file)
        seen.add(names)
    return tuple(kept)


@dataclass(frozen=True)
class _Trained:
    """A target that LoRA has factors for, and how many of the model's it stands for.

    `is_named_whole` says whether its whole weight has a name in diffusers.
    """

    names: Names
    count: float
    is_named_whole: bool = False

    @property
    def path(self) -> str:
        """Its native path below its component."""
        weight = self.names.target.weight
        return weight.removeprefix(TEXT_ENCODERS if self.names.target.is_clip else MODEL)

    @property
    def whole(self) -> str:
        """Its native path, empty for a part."""
        return "" if self.names.target.part else self.path

    @property
    def there(self) -> str:
        """Its path in diffusers, empty if it has none: of a part of a weight that is whole there, too."""
        if self.names.target.part and self.is_named_whole:
            return ""
        return re.sub(r"^(unet|transformer)\.", "", self.names.diffusers or "")

    @property
    def aliases(self) -> list[str]:
        """What the models' own code calls it."""
        return [one.removeprefix(MODEL) for one in self.names.others if one.startswith(MODEL)]


def _trained(family: Family, has_all_blocks: bool) -> tuple[_Trained, ...]:
    found = []
    rows = [*key_map(family).rows()]
    wholes = {row.target.weight for row in rows if row.diffusers and row.target.part is None}
    for row in rows:
        ends = [row]
        if row.blocks is not None:
            taken = row.blocks if has_all_blocks else sorted({row.blocks[0], row.blocks[-1]})
            ends = [row.at(index) for index in taken]
        alike = len(row.blocks) if row.blocks is not None else 1
        for names in ends:
            one = _Trained(names, alike / len(ends), row.target.weight in wholes)
            sizes = shapes_of(one.path.partition(".")[0] if names.target.is_clip else family.key)
            if len(sizes.get(one.path, ())) > 1 and not _UNTRAINED.search(one.path):
                found.append(one)
    return tuple(found)


def _made(
    family: Family,
    naming: str,
    several: Iterable[tuple[str | None, _Trained]],
    ends: tuple[str, str],
    encoder: str = "",
) -> NamedFile:
    routes, counts = {}, {}
    for spelled, one in several:
        if spelled:
            is_swapped = one.names.swapped and spelled.endswith((one.there, flat(one.there)))
            routes[spelled] = Route(one.names.target, is_swapped)
            counts[spelled] = one.count
    return NamedFile(family.key, naming, routes, counts, *ends, encoder)


def _model_files(family: Family, trained: Iterable[_Trained]) -> Iterator[NamedFile]:
    trained = [one for one in trained if not one.names.target.is_clip]
    common = {file.naming: file for file in _by_rule(family, trained)}
    yield from common.values()
    yield from _original(family, trained)
    for naming, of, *how in _OWN.get(family.key, ()):
        yield _changed(common[of], naming, *how)
    if family.key == "flux":
        yield _xlabs(family)
        bare = common["bare, native names"]
        # Black Forest Labs' control LoRAs: bare names, and norms to replace
        norms: dict[str, Shape] = {"single_blocks.0.norm.key_norm.scale": (128,)}
        yield replace(bare, naming="BFL control", extras=norms)


def _by_rule(family: Family, trained: list[_Trained]) -> tuple[NamedFile, ...]:
    """The namings that every family has in common."""
    rows = _UNET_ROWS if family.key in UNETS else _ROWS
    return tuple(
        _made(family, naming, ((name(one.whole, one.there), one) for one in trained), ends)
        for naming, name, ends in rows
    )


def _original(family: Family, trained: list[_Trained]) -> Iterator[NamedFile]:
    """What the models' own code calls the modules, where ComfyUI's names are not those."""
    fused = {one.path for one in trained if one.names.target.part}
    for title, is_apart in (("original code", False), ("original code, q k v apart", True)):
        taken = [
            one
            for one in trained
            if (one.names.target.part is not None) is (is_apart and one.path in fused)
            and (one.aliases or one.whole)
        ]
        if not any(one.aliases and (not fused or one.path in fused) for one in taken):
            continue
        paths = [((one.aliases or [one.path])[0], one) for one in taken]
        for naming, name, ends in _ORIGINAL_ROWS:
            yield _made(family, f"{title}, {naming}", ((name(path), one) for path, one in paths), ends)


def _changed(file: NamedFile, naming: str, old: str, new: str, ends: tuple[str, str]) -> NamedFile:
    """A naming that is another with a different beginning; names that begin otherwise are left out."""
    changed = {name: re.sub(old, new, name) for name in file.routes if re.search(old, name)}
    return NamedFile(
        file.family,
        naming,
        {there: file.routes[here] for here, there in changed.items()},
        {there: file.counts[here] for here, there in changed.items()},
        *ends,
    )


def _xlabs(family: Family) -> NamedFile:
    assert family.hidden
    routes, counts = {}, {}
    for block in (0, 18):
        for end in ("qkv", "proj"):
            for number, stream in ((1, "img"), (2, "txt")):
                name = f"double_blocks.{block}.processor.{end}_lora{number}"
                routes[name] = Route(Target(f"{MODEL}double_blocks.{block}.{stream}_attn.{end}"))
                counts[name] = 19 / 2
    for block in (0, 37):
        here = f"single_blocks.{block}"
        fused = Target(f"{MODEL}{here}.linear1", Part(0, 0, 3 * family.hidden))
        routes[f"{here}.processor.qkv_lora"] = Route(fused)
        routes[f"{here}.processor.proj_lora"] = Route(Target(f"{MODEL}{here}.linear2"))
        counts |= dict.fromkeys([f"{here}.processor.{end}_lora" for end in ("qkv", "proj")], 38 / 2)
    return NamedFile(family.key, "XLabs", routes, counts, *XLABS)


_WAN_FUN = ("VideoX-Fun", "kohya", "^lora_unet_", "lora_unet__", KOHYA)
_TRUNCATED = ("truncated", "diffusers", r"^transformer\.(tran(?=sformer_)|sing(?=le_transformer_))", "", PEFT)
_OWN: dict[str, tuple[tuple[str, str, str, str, tuple[str, str]], ...]] = {
    **dict.fromkeys(("wan_1_3b", "wan_5b", "wan_14b"), (_WAN_FUN,)),
    **dict.fromkeys(("qwen_image", "flux2", "klein_4b", "klein_9b"), (_TRUNCATED,)),
    "pixart": (("PEFT, raw, in unet.", "PEFT, raw", "^", "unet.", PEFT),),
    "mochi": (("official", "bare, native names", "^", "", (".lora_B", ".lora_A")),),
    "cascade": (("kohya, prior", "kohya, LDM names", "^lora_unet_", "lora_prior_unet_", KOHYA),),
}


def _encoder_files(family: Family, trained: Iterable[_Trained]) -> Iterator[NamedFile]:
    by_child: dict[str, list[_Trained]] = {}
    for one in trained:
        if one.names.target.is_clip and _LAYER.search(f".{one.path}"):
            by_child.setdefault(one.path.partition(".")[0], []).append(one)
    for child, several in by_child.items():
        for naming, name, ends in _encoder_rows(child, several):
            yield _made(family, naming, ((name(one.names), one) for one in several), ends, child)


def _encoder_rows(
    child: str, several: list[_Trained]
) -> Iterator[tuple[str, Callable[[Names], str | None], tuple[str, str]]]:
    yield "ComfyUI", lambda names: names.target.weight, PEFT
    if not child.startswith("clip_"):
        yield (
            "ComfyUI, encoder left out",
            lambda names: names.target.weight.replace(f".{child}.", ".", 1),
            PEFT,
        )
    spelled = {one for trained in several for one in (trained.names.kohya, *trained.names.others) if one}
    prefixes = {found[0] for one in spelled if (found := re.match(r"lora_(?:prior_)?te\d?_", one))}
    for prefix in sorted(prefixes):
        yield f"kohya, {prefix}", lambda names, prefix=prefix: _starting(names, prefix)[0], KOHYA
        yield f"kohya, {prefix}, inner", lambda names, prefix=prefix: _starting(names, prefix)[-1], KOHYA
    yield "diffusers", lambda names: names.diffusers, PEFT
    yield "diffusers, linear layers", lambda names: names.diffusers, LINEAR_LAYER


def _starting(names: Names, prefix: str) -> list[str]:
    """The flattened names with a prefix; one that leaves the outer module out comes last."""
    found = [one for one in (names.kohya, *names.others) if one and one.startswith(prefix)]
    return sorted(found, key=len, reverse=True)
