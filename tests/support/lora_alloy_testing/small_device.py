"""A device that there is not: worked out on the CPU, with as little memory as a test wants.

It refuses what devices refuse: operands that lie elsewhere, more memory than it has and, as Apple's GPUs do, double
precision.
"""

import weakref
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = torch.device("privateuseone:0")


@cache
def _registered() -> None:
    backend_registration._setup_privateuseone_for_python_backend()


class OnDevice(Tensor):
    """A tensor that says it lies on the device; its values are `held`, on the CPU."""

    held: Tensor
    mode: "SmallDevice"

    @staticmethod
    def of(held: Tensor, mode: "SmallDevice") -> "OnDevice":
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            OnDevice,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=NAME,
        )
        made.held, made.mode = held, mode
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, OnDevice)]
        return tensors[0].mode.run(function, args, kwargs or {})


class SmallDevice(TorchDispatchMode):
    """While it is on, `privateuseone:0` is a device.

    Attributes:
        limit: bytes that may be held at a time; what would be more is refused as torch does it.
        peak: the most bytes that were held.
        refusals: how often memory was refused.
        missing: operations that the device does not have.
    """

    def __init__(self, limit: float = float("inf"), missing: tuple[str, ...] = ()) -> None:
        super().__init__()
        _registered()
        self.limit, self.missing = limit, missing
        self.held = self.peak = self.refusals = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(function, args, kwargs or {})

    def run(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """One operation, where it is to be done."""
        flat = tree_flatten((args, kwargs))[0]
        asked = kwargs.get("device")
        asked = None if asked is None else torch.device(asked)
        tensors = [one for one in flat if isinstance(one, Tensor)]
        is_here = any(isinstance(one, OnDevice) for one in tensors)
        if not is_here and (asked is None or asked.type != NAME.type):
            return function(*args, **kwargs)
        name = function.overloadpacket.__name__
        if name in self.missing:
            raise NotImplementedError(f"The operator 'aten::{name}' is not implemented for this device.")
        is_move = name in ("_to_copy", "copy_", "_copy_from")
        elsewhere = [one for one in tensors if not isinstance(one, OnDevice) and one.dim()]
        if is_here and elsewhere and not is_move:
            raise RuntimeError(f"{name}: expected all tensors on one device, but found {NAME} and cpu")
        inner = {**kwargs, **({"device": torch.device("cpu")} if asked else {})}
        inner.pop("pin_memory", None)
        made = function(*tree_map(self._unwrapped, args), **tree_map(self._unwrapped, inner))
        if name == "copy_":
            self._refuse_double(args[0], args[0].dtype)
            return args[0]
        if name == "_local_scalar_dense" or (asked is not None and asked.type == "cpu"):
            return made
        for place, given in enumerate(args):  # what was written into stays the same tensor
            if isinstance(given, OnDevice) and isinstance(made, Tensor) and made is given.held:
                return args[place]
        if isinstance(kwargs.get("out"), OnDevice):
            return kwargs["out"]
        return tree_map(self._wrapped, made)

    @staticmethod
    def _unwrapped(one: Any) -> Any:
        return one.held if isinstance(one, OnDevice) else one

    @staticmethod
    def _refuse_double(one: Any, dtype: torch.dtype) -> None:
        if isinstance(one, OnDevice) and dtype == torch.float64:
            raise TypeError("there is no float64 on this device")

    def _wrapped(self, one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        made = OnDevice.of(one, self)
        self._refuse_double(made, one.dtype)
        self._count(one)
        return made

    def _count(self, one: Tensor) -> None:
        """Count a tensor's memory once, until nothing holds it any more."""
        storage = one.untyped_storage()
        key = storage.data_ptr()
        if key in self._known or not storage.nbytes():
            return
        if self.held + storage.nbytes() > self.limit:
            self.refusals += 1
            raise torch.OutOfMemoryError(f"out of memory: {storage.nbytes()} bytes do not fit")
        self._known[key] = storage.nbytes()
        self.held += storage.nbytes()
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.held -= self._known.pop(key, 0)
