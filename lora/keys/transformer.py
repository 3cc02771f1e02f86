"""Families whose modules are listed: what a family adds to its list is how others spell it, and what is fused."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..target import Part, Target
from .listing import Listed, listed, read
from .names import MODEL, Architecture, Candidate, Family, Module, Names, flat, row_of
from .text import Encoder, encoder_names, fits

_AGREEING = 0.9  # of a file's modules must show one and the same width

Renames = tuple[tuple[str, str], ...]
"""Whole steps of a path and what stands in their place, in order."""


@dataclass(frozen=True)
class Fused:
    """A weight made of parts, by the end of its path.

    Attributes:
        native: the last steps of the path.
        parts: what diffusers has in their place, one name a part; empty for one that it does not name.
        shares: the parts' heights relative to each other. Empty where k and v have fewer heads than q: then they
            are the family's `hidden` and twice its `kv_width`.
        others: further spellings of the parts.
        together: ComfyUI's name for q, k and v of a weight with more parts.
        has_whole: whether the fused weight has a name of its own in diffusers too, by `renames`.
    """

    native: str
    parts: tuple[str, ...]
    shares: tuple[int, ...] = (1, 1, 1)
    others: tuple[tuple[str, ...], ...] = ()
    together: str = ""
    has_whole: bool = False


@dataclass(frozen=True)
class Transformer:
    """A family by its list.

    Attributes:
        family: with `hidden` where weights are fused.
        width: of the released model; sizes that are its multiples show that of a smaller one.
        renames: from native paths to diffusers'; None where diffusers does not have the model.
        unnamed: ends of native paths that have no name in diffusers.
        fused: the weights made of parts.
        aliases: other dotted spellings of native paths.
        swapped: native paths whose row halves stand in the other order in diffusers.
        comfyui_parts: whether every version of ComfyUI reads diffusers' names of the parts.
        renamed_in_comfyui: ends of paths that ComfyUI has renamed, so that only diffusers' name leads there in all its
            versions.
        encoders: the text encoders.
    """

    family: Family
    width: int
    renames: Renames | None = ()
    unnamed: tuple[str, ...] = ()
    fused: tuple[Fused, ...] = ()
    aliases: tuple[Renames, ...] = ()
    swapped: tuple[str, ...] = ()
    comfyui_parts: bool = False
    renamed_in_comfyui: tuple[str, ...] = ()
    encoders: tuple[Encoder, ...] = ()

    def architecture(self) -> Architecture:
        """The row for the table of families."""
        return Architecture(self.family, self.names, self.judge, self.parts, self.stems)

    def stems(self) -> str:
        """The beginnings of all its names: its list, and what the renamings put in."""
        renames = (self.renames or ()) + tuple(pair for alias in self.aliases for pair in alias)
        return flat(" ".join([read(self.family.key), *(f"{new}." for _, new in renames)]))

    def names(self, family: Family) -> Iterator[Names]:
        """Every target of the family, parts of fused weights included."""
        for one in listed(self.family.key):
            fused = self._fused(one.path)
            yield replace(self._whole(one.path, fused), blocks=one.blocks)
            if fused is not None:
                for names in self._parts(one.path, fused, one.shape[0], family):
                    yield replace(names, blocks=one.blocks)
        for encoder in self.encoders:
            yield from encoder_names(encoder)

    def judge(self, modules: Sequence[Module]) -> Candidate | None:
        """Sizes that are multiples of the released width nearly all show one and the same width."""
        if not fits(modules):
            return None
        seen: Counter[int] = Counter()
        total = exact = 0
        for module in modules:
            sizes = self._sizes(module.target)
            if sizes is None or not module.outputs or not module.inputs:
                continue
            total += module.count
            exact += module.count * (sizes == (module.outputs, module.inputs))
            if (width := self._width(module, sizes)) is not None:
                seen[width] += module.count
        if not total:
            return Candidate(self.family, is_likely=False)
        width, votes = seen.most_common(1)[0] if seen else (self.width, 0)
        if not width or votes < _AGREEING * seen.total():
            return None
        family = self.family
        if family.hidden is not None and width != self.width:
            family = replace(family, hidden=width)
        if family.kv_width is not None and (kv := self._kv_width(modules, width)) is not None:
            if kv <= 0:
                return None
            family = replace(family, kv_width=kv)
        share = exact / total
        return Candidate(family, is_likely=True, is_released=share >= _AGREEING, preference=share)

    def parts(self, weight: str, rows: int, family: Family) -> tuple[Part, ...] | None:
        """The parts of `weight`, from its `rows`; None if not fused, or not divisible so."""
        fused = self._fused(weight.removeprefix(MODEL))
        if fused is None or self._sizes(Target(weight)) is None:
            return None
        heights = self._heights(fused, rows, family)
        return None if heights is None else _in_a_row(heights)

    def _fused(self, path: str) -> Fused | None:
        return next((one for one in self.fused if f".{path}".endswith(f".{one.native}")), None)

    def _whole(self, path: str, fused: Fused | None) -> Names:
        weight = MODEL + path
        there = self._diffusers(path) if fused is None or fused.has_whole else None
        others = [name for alias in self.aliases if (name := _renamed(path, alias)) != path]
        is_swapped = path in self.swapped
        assert not (is_swapped and others), "halves are never exchanged under a native name"
        spelled = there and f"transformer.{there}"
        comfyui = spelled if spelled and path.endswith(self.renamed_in_comfyui) else weight
        return Names(
            Target(weight),
            comfyui,
            "lora_unet_" + flat(path),
            spelled,
            (*_flat([there] if there else []), *(MODEL + one for one in others), *_flat(others)),
            swapped=is_swapped,
        )

    def _parts(self, path: str, fused: Fused, rows: int, family: Family) -> Iterator[Names]:
        assert family.hidden, "parts need the hidden width"
        head = path[: len(path) - len(fused.native)]
        if fused.shares:
            rows = rows * family.hidden // self.width
        else:
            rows = family.hidden + 2 * (family.kv_width or 0)
        heights = self._heights(fused, rows, family) or ()
        for place, part in enumerate(_in_a_row(heights)):
            there = self._diffusers(head)
            spelled = there + fused.parts[place] if there is not None and fused.parts[place] else None
            natives = [head + names[place] for names in fused.others]
            comfyui = f"transformer.{spelled}" if spelled and self.comfyui_parts else None
            yield Names(
                Target(MODEL + path, part),
                comfyui,
                None,
                spelled and f"transformer.{spelled}",
                (*_flat([spelled] if spelled else []), *(MODEL + one for one in natives), *_flat(natives)),
            )
        if fused.together:
            part = Part(0, 0, sum(heights[:3]))
            yield Names(Target(MODEL + path, part), MODEL + head + fused.together)

    def _diffusers(self, path: str) -> str | None:
        if self.renames is None or path.endswith(self.unnamed):
            return None
        return _renamed(path, self.renames)

    def _heights(self, fused: Fused, rows: int, family: Family) -> tuple[int, ...] | None:
        if not fused.shares:
            hidden, kv = family.hidden or 0, family.kv_width or 0
            unit, rest = divmod(rows, hidden + 2 * kv)
            return None if rest else (unit * hidden, unit * kv, unit * kv)
        unit, rest = divmod(rows, sum(fused.shares))
        return None if rest else tuple(share * unit for share in fused.shares)

    def _sizes(self, target: Target) -> tuple[int, int] | None:
        """Rows and columns that a target has in the released model; 0 columns for what has no factors."""
        if target.is_clip:
            return None
        shape = _shape(self.family.key, target.weight.removeprefix(MODEL))
        if shape is None:
            return None
        return target.part.length if target.part else shape[0], shape[1] if len(shape) > 1 else 0

    def _width(self, module: Module, sizes: tuple[int, int]) -> int | None:
        """The width that a module shows: 0 if its sides contradict each other, None if it has none."""
        shown: set[int] = set()
        for size, released in zip((module.outputs, module.inputs), sizes, strict=True):
            times, rest = divmod(released, self.width)
            if times and not rest:
                width, rest = divmod(size, times)
                shown.add(0 if rest else width)
        return None if not shown else shown.pop() if len(shown) == 1 else 0

    def _kv_width(self, modules: Sequence[Module], hidden: int) -> int | None:
        """The width of k and v that a file shows, None if it has neither."""
        for module in modules:
            if self._fused(module.target.weight) is not None and module.outputs:
                if module.target.part is None:
                    return (module.outputs - hidden) // 2
                if module.target.part.start:
                    return module.outputs
        return None


def _shape(key: str, path: str) -> tuple[int, ...] | None:
    by_path = _by_path(key)
    for one in by_path.get(path, ()):
        return one.shape
    row = row_of(f".{path}")
    for one in by_path.get(row.pattern[1:], ()) if row else ():
        if row is not None and one.blocks is not None and row.number in one.blocks:
            return one.shape
    return None


@lru_cache(maxsize=128)
def _by_path(key: str) -> dict[str, list[Listed]]:
    found: dict[str, list[Listed]] = {}
    for one in listed(key):
        found.setdefault(one.path, []).append(one)
    return found


def _renamed(path: str, renames: Renames) -> str:
    steps = f".{path.strip('.')}."
    for old, new in renames:
        steps = steps.replace(f".{old}.", f".{new}." if new else ".")
    return steps[1:] if path.endswith(".") else steps.strip(".")


def _flat(paths: Sequence[str]) -> list[str]:
    return ["lora_unet_" + flat(path) for path in paths]


def _in_a_row(heights: Sequence[int]) -> tuple[Part, ...]:
    return tuple(Part(0, sum(heights[:place]), height) for place, height in enumerate(heights))
