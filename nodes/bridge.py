"""All that we know of ComfyUI's internals: its LoRA files, its models' weights, patches, progress."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import SaveError, StackError
from ..core.log import log
from ..core.wholefile import refuse_place
from ..lora.entries import Model
from ..lora.factors import Delta, LowRank
from ..lora.full import Kron
from ..lora.stack import BIAS
from ..lora.target import TEXT_ENCODERS, Part, Route, Target
from ..merging.deferred import Deferred
from ..merging.patch import Patch
from .lora_names import LORA_SUFFIXES, Match, match, nearest


def list_loras() -> list[str]:
    """The installed LoRAs as ComfyUI's own menus name them: relative paths, their folder included."""
    import folder_paths

    return list(folder_paths.get_filename_list("loras"))


def lora_path(listed: str) -> Path | None:
    """The file behind a name out of `list_loras`, or None where it has gone since."""
    import folder_paths

    path = folder_paths.get_full_path("loras", listed)
    return None if path is None else Path(path)


def find_lora(name: str) -> Path | None:
    """The file that an entry of a stack names, or None where there is none.

    Any spelling that `lora_names.match` reads, and an absolute path to a LoRA file, inside ComfyUI's folders
    or outside, since other packs put those into their stacks. What had to be assumed is logged as a warning.
    """
    name = name.strip()
    if not name or "\0" in name:
        return None
    absolute = Path(name)
    if absolute.is_absolute() and absolute.suffix.lower() in LORA_SUFFIXES and _is_file(absolute):
        return absolute
    found = match(name, list_loras())
    return None if found is None else lora_path(_said(found).name)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than the file system allows
        return False


def required_name(name: str, where: str) -> str:
    """The name under which ComfyUI lists the LoRA that a widget's `name` means.

    Raises:
        StackError: it is not installed; the message begins with `where` and offers the closest names.
    """
    listed = list_loras()
    found = match(name, listed)
    if found is not None and lora_path(found.name) is not None:
        return _said(found).name
    close = nearest(name, listed)
    if close:
        advice = f"Closest installed: {', '.join(repr(entry) for entry in close)}."
    else:
        advice = "Put the file into ComfyUI's `loras` folder and refresh, or pick another LoRA."
    raise StackError(f"{where}: no LoRA called {name!r:.200} is installed. {advice}")


def _said(found: Match) -> Match:
    if found.note:
        log.warning("%s", found.note)
    return found


def read_model(model: Any, clip: Any | None) -> Model:
    """What ComfyUI knows of a MODEL and a CLIP: which names it maps, to which weights, of which shapes.

    Its maps name some weights that a model does not have; those are left out (`spec/comfyui-contract.md`
    §2.2).
    """
    import comfy.lora

    known: dict[str, Route] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    # A fresh dict each: the default argument of these functions is shared and keeps the names of other
    # models.
    _add(comfy.lora.model_lora_keys_unet(model.model, {}), model.model.state_dict(), "", known, shapes)
    if clip is not None:
        inner = clip.cond_stage_model
        _add(comfy.lora.model_lora_keys_clip(inner, {}), inner.state_dict(), TEXT_ENCODERS, known, shapes)
    return Model(known, shapes, clip is not None, lambda weight: _base_weight(model, clip, weight))


def _base_weight(model: Any, clip: Any | None, weight: str) -> Tensor | None:
    """The unpatched weight of a target in float32, dequantised where it is stored packed (contract §2.7)."""
    import comfy.model_management
    import comfy.utils

    is_text = weight.startswith(TEXT_ENCODERS)
    patcher = clip.patcher if is_text and clip is not None else model
    key = weight.removeprefix(TEXT_ENCODERS)
    key = key if key.endswith(BIAS) else f"{key}.weight"
    path, _, parameter = key.rpartition(".")
    try:
        layer = comfy.utils.get_attr(patcher.model, path)
    except AttributeError:
        return None
    held = patcher.backup[key].weight if key in patcher.backup else getattr(layer, parameter, None)
    if held is None:
        return None
    cast = comfy.model_management.cast_to_device(held, torch.device("cpu"), torch.float32, copy=True)
    if parameter == "weight" and hasattr(layer, "convert_weight"):
        cast = layer.convert_weight(cast, inplace=True)
    return cast


def _add(
    names: Mapping[str, Any],
    weights: Mapping[str, Any],
    component: str,
    known: dict[str, Route],
    shapes: dict[str, tuple[int, ...]],
) -> None:
    for key, weight in weights.items():
        if key.endswith(BIAS) and weight.is_floating_point():
            shapes[component + key] = tuple(weight.shape)
    for name, led in names.items():
        key, offset, *function = led if isinstance(led, tuple) else (led, None)
        if key not in weights or not key.endswith(".weight"):
            continue
        target = component + key.removesuffix(".weight")
        weight = weights[key]
        if weight.is_floating_point():  # packed numbers of a quantised weight have another shape
            shapes[target] = tuple(weight.shape)
        part = Part(*offset) if offset is not None else None
        # The one function in ComfyUI's maps exchanges scale and shift of a last modulation.
        route = Route(Target(target, part), swap_halves=bool(function and function[0] is not None))
        known[name] = route
        known.setdefault(target, Route(Target(target)))


def patch_key(target: Target) -> Any:
    """A target as ComfyUI's `add_patches` takes it."""
    key = target.weight.removeprefix(TEXT_ENCODERS)
    if not key.endswith(BIAS):
        key += ".weight"
    part = target.part
    return key if part is None else (key, (part.axis, part.start, part.length))


def work_device(on_gpu: bool) -> torch.device:
    """Where element-wise work is done: ComfyUI's own device, or the CPU."""
    import comfy.model_management

    return comfy.model_management.get_torch_device() if on_gpu else torch.device("cpu")


def make_room(device: torch.device) -> Callable[[int], None]:
    """What has ComfyUI unload models until so many bytes of a device's memory are free, as far as it can."""
    import comfy.model_management

    def freed(size: int) -> None:
        comfy.model_management.free_memory(size, device)

    return freed


def adapters(patches: Sequence[Patch], wider: Collection[Target] = ()) -> dict[Any, Any]:
    """Patches in ComfyUI's form: its own adapters, `alpha` equal to the rank, or whole differences.

    Args:
        patches: of a merge.
        wider: the targets that ComfyUI is to fill up with zeros to the patch's shape.
    """
    return {patch_key(patch.target): _adapter(patch.delta, patch.target in wider) for patch in patches}


def _adapter(delta: Delta, is_wider: bool) -> Any:
    from comfy.weight_adapter import LoKrAdapter, LoRAAdapter

    kernel = delta.shape[2:]
    if isinstance(delta, Deferred):
        return _deferred_adapter()(delta, is_wider)
    if is_wider and not isinstance(delta, LowRank):
        return ("diff", (delta.dense(), {"pad_weight": True}))
    if isinstance(delta, LowRank):
        up, down = delta.up, delta.down
        if kernel:
            up = up.reshape(*up.shape, *(1 for _ in kernel))
            down = down.reshape(delta.rank, *delta.shape[1:])
        return LoRAAdapter(
            set(), (up, down, float(delta.rank), None, None, list(delta.shape) if is_wider else None)
        )
    if isinstance(delta, Kron):
        b = delta.b.reshape(delta.b.shape[0], -1, *kernel) if kernel else delta.b
        return LoKrAdapter(set(), (delta.a, b, None, None, None, None, None, None, None))
    return ("diff", (delta.matrix.reshape(delta.shape),))


@cache
def _deferred_adapter() -> Callable[[Deferred, bool], Any]:
    """ComfyUI's kind of adapter for a delta that is worked out whenever ComfyUI loads its weight."""
    from comfy.lora import calculate_weight
    from comfy.weight_adapter import WeightAdapterBase

    class DeferredAdapter(WeightAdapterBase):
        """Holds no tensor, so it costs no memory; what it makes is added by ComfyUI's own arithmetic."""

        name = "deferred"

        def __init__(self, delta: Deferred, is_wider: bool) -> None:
            self.loaded_keys: set[str] = set()
            self.weights: tuple[Tensor, ...] = ()
            self.delta, self.is_wider = delta, is_wider

        def calculate_shape(self, key: str) -> tuple[int, ...] | None:
            return self.delta.shape if self.is_wider else None

        def calculate_weight(
            self,
            weight: Tensor,
            key: str,
            strength: float,
            strength_model: float,
            offset: tuple[int, int, int] | None,
            function: Callable[[Tensor], Tensor],
            intermediate_dtype: torch.dtype = torch.float32,
            original_weight: object = None,
        ) -> Tensor:
            # The caller has taken the part that `offset` names, and multiplied by `strength_model`.
            made = (self.delta.matrix.reshape(self.delta.shape), {"pad_weight": self.is_wider})
            patch = (strength, ("diff", made), 1.0, None, function)
            return calculate_weight([patch], weight, key, intermediate_dtype)

    return DeferredAdapter


def patched(owner: Any, patches: Mapping[Any, Any], strength: float) -> tuple[Any, list[str]]:
    """A clone of a MODEL or CLIP with patches added, and the names of those that ComfyUI did not take."""
    clone = owner.clone()
    taken = set(clone.add_patches(dict(patches), strength))
    return clone, [key if isinstance(key, str) else key[0] for key in patches if key not in taken]


def progress_bar(steps: int) -> Callable[[str, int, int], None]:
    """ComfyUI's own progress for work of `steps` passes; it raises where the user cancels."""
    import comfy.model_management
    import comfy.utils

    bar = comfy.utils.ProgressBar(steps * 1000)
    passes: list[str] = []

    def tell(what: str, done: int, total: int) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        if what not in passes:
            passes.append(what)
        share = done / total if total else 1.0
        bar.update_absolute(int(1000 * (passes.index(what) + share)), steps * 1000)

    return tell


def lora_folders() -> list[str]:
    """The folders that ComfyUI reads LoRAs from."""
    import folder_paths

    return [str(folder) for folder in folder_paths.get_folder_paths("loras")]


def save_path(folder: str, filename: str) -> Path:
    """Where a LoRA called `filename` goes, inside `folder`; sub-folders are allowed, leaving it is not.

    A folder that this machine does not have, as of a workflow made elsewhere, gives way to the first one.

    Raises:
        SaveError: the name is empty, or none that a file can have, or leads out of the folder.
    """
    folders = lora_folders()
    root = Path(folder if folder in folders else folders[0])
    name = filename.strip().replace("\\", "/")
    if not name.rpartition("/")[2].removesuffix(".safetensors").strip(". ") or "\0" in name:
        raise SaveError(f"`{filename}` is no file name; write one such as `merged_lora`.")
    if not name.lower().endswith(".safetensors"):
        name += ".safetensors"
    path = root / name
    refuse_place(path)
    if not path.resolve().is_relative_to(root.resolve()):
        raise SaveError(
            f"`{filename}` leads out of the LoRA folder `{root}`; write a name, with sub-folders at most."
        )
    return path
