"""Factors stored in fp8 or as whole numbers, with the scale that gives them their values beside them.

`.lora_up.scale_weight` (or `.lora_up.weight_scale`) is one number, or one a row, by which `.lora_up.weight` is to
be multiplied; the spelling is that of packed models (`spec/comfyui-contract.md` §2.7). ComfyUI's loader reads the
factors and leaves the scales out.
"""

from collections.abc import Iterator, Mapping
from math import prod

from torch import Tensor

from ..core.errors import FileError
from ..core.tensorfile import DTYPES, TensorFile, TensorInfo

_PACKED = ("F8_E4M3", "F8_E5M2", "I8")


def unpacked(tensors: TensorFile) -> tuple[TensorFile, Mapping[str, str]]:
    """The file as if its factors were stored plainly, in float32, and without their scales.

    Returns:
        The file itself if there are no scales; and by the name of a scale, the factor that it belongs to.
    """
    scales = dict(_scales(tensors.infos))
    if not scales:
        return tensors, {}
    of = {factor: scale for scale, factor in scales.items()}

    def fetch(info: TensorInfo) -> Tensor:
        values = tensors.read(info.name)
        if info.name not in of:
            return values
        scale = tensors.read(of[info.name])
        rows = values.shape[0] if values.dim() else 1
        if scale.numel() not in (1, rows) or not scale.is_floating_point():
            raise FileError(
                f"`{of[info.name]}` of `{tensors.path}` has the shape {tuple(scale.shape)}, and is to scale a factor of"
                f" {tuple(values.shape)}: neither one number nor one a row. The file is damaged, or packed in a way"
                " that is not read."
            )
        return values.float() * scale.float().reshape(-1, *(1 for _ in values.shape[1:]))

    infos = {name: info for name, info in tensors.infos.items() if name not in scales}
    plain = TensorFile(tensors.path, infos, tensors.metadata, tensors.size_bytes, fetch, tensors.release)
    return plain, scales


def _scales(infos: Mapping[str, TensorInfo]) -> Iterator[tuple[str, str]]:
    for name, info in infos.items():
        if info.dtype not in _PACKED or prod(info.shape) < 2:
            continue
        stem = name.removesuffix(".weight")
        for scale in (f"{stem}.scale_weight", f"{stem}.weight_scale", f"{name}_scale"):
            if scale in infos and DTYPES.get(infos[scale].dtype) is not None:
                yield scale, name
                break
