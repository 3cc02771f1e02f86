"""A script: what ComfyUI's own loader makes of the files of `namings`, for every family that it has.

Run as `python read_names_in_comfyui.py TREE OUT` with `TREE` a ComfyUI checkout. `OUT` gets, as JSON, what becomes of
each of `format_cases`; and by family and the file's label how many of its modules reach the weight and the rows they
are for, how many come to others, and the largest relative difference between the delta that `calculate_weight` adds and
that of the textbook. The models stand on the `meta` device, so that they are the released ones and yet take no memory;
the key maps, the loader and the arithmetic are ComfyUI's. It is a process of its own because two versions of ComfyUI do
not fit in one.
"""

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass
class Model:
    """A build of a family: the names ComfyUI knows its weights by, and the shapes of those it has."""

    names: dict[str, Any]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Landed:
    """Where one patch goes: the weight by our name, the rows or None for all, and whether a function turns it."""

    weight: str
    part: tuple[int, int, int] | None
    is_swapped: bool


def main(tree: Path, out: Path) -> None:
    """Import ComfyUI from `tree`, load every file into every model it is of, and write what came of it."""
    _name_the_checkout()
    sys.path.insert(0, str(tree))
    sys.argv = ["main.py", "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    lora: Any = importlib.import_module("comfy.lora")
    keys: Any = importlib.import_module("lora_alloy.lora.keys")
    namings: Any = importlib.import_module("lora_alloy_testing.namings")
    cases: Any = importlib.import_module("lora_alloy_testing.format_cases")
    found: dict[str, dict[str, list[float]]] = {}
    formats = {case.title: _judge(case, {case.module: cases.WEIGHT}, lora) for case in cases.FORMAT_CASES}
    with torch.inference_mode():
        for family in keys.FAMILIES:
            models = list(_models(family.key, lora))
            if models:
                files = namings.files_of(family)
                found[family.key] = {file.label: _read(file, models, lora) for file in files}
            for case in cases.FORMAT_CASES:
                if case.family == family.key:
                    formats[case.title] = _judge(case, models[0].names, lora)
    out.write_text(json.dumps({"families": found, "formats": formats}), encoding="utf-8")


def _judge(case: Any, names: Mapping[str, Any], lora: Any) -> str:
    """What becomes of a format's case: its delta, another one, or nothing."""
    cases: Any = importlib.import_module("lora_alloy_testing.format_cases")
    # the made-up names stand for any that ComfyUI maps; of kohya's OFT it maps none
    is_mapped = case.module in names and not case.module.startswith("oft_unet_")
    known = {case.module: names[case.module]} if is_mapped else {}
    for key, patch in lora.load_lora(dict(case.tensors), known, log_missing=False).items():
        weight, part, function = ((key, None, None) if isinstance(key, str) else (*key, None))[:3]
        rows = part[1] + part[2] if part else len(case.base)
        base = torch.cat([case.base.new_zeros(rows - len(case.base), *case.base.shape[1:]), case.base])
        patched = lora.calculate_weight([(1.0, patch, 1.0, part, function)], base.clone(), weight)
        gained = (patched.double() - base.double())[rows - len(case.base) :]
        return cases.verdict(gained.numpy(), case.expected)
    return cases.verdict(None, case.expected)


def _name_the_checkout() -> None:
    place = Path(__file__).resolve().parents[2] / "conftest.py"
    spec = importlib.util.spec_from_file_location("conftest", place)
    assert spec and spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _models(family: str, lora: Any) -> Iterator[Model]:
    comfy_models: Any = importlib.import_module("lora_alloy_testing.comfy_models")
    encoders = None
    for made in comfy_models.built(family):
        encoders = encoders or made.encoders
        model = Model(lora.model_lora_keys_unet(made.model, {}))
        for state, prefix in ((made.model.state_dict(), ""), (encoders and encoders.state_dict(), "clip ")):
            model.shapes |= {prefix + key: tuple(value.shape) for key, value in (state or {}).items()}
        if encoders is not None:
            for name, key in lora.model_lora_keys_clip(encoders, {}).items():
                model.names[name] = f"clip {key}" if isinstance(key, str) else (f"clip {key[0]}", *key[1:])
        yield model


def _read(file: Any, models: list[Model], lora: Any) -> list[float]:
    """Modules that reach their weight, modules that reach another, and the largest relative difference."""
    tensors: Any = importlib.import_module("lora_alloy_testing.named_tensors")
    namings: Any = importlib.import_module("lora_alloy_testing.namings")
    whole: Any = importlib.import_module("lora_alloy.lora.target").Target
    names = {
        Landed(route.target.weight, _of(route.target.part), route.swap_halves): name
        for name, route in file.routes.items()
    }
    telling = {*tensors.telling(file)}
    reached: set[str] = set()
    strayed: set[Landed] = set()
    worst = 0.0
    for model in models:
        for key, patch in _load(tensors.tensors_of(file, tensors.COLUMNS), model, lora).items():
            landed = _landed(key, model)
            if landed is None or isinstance(patch, tuple):
                continue  # no LoRA: a norm that is replaced
            name = names.get(landed)
            if name is None:
                strayed.add(landed)
                continue
            if name in telling and name not in reached:
                height, _, *kernel = namings.shape_of(file.family, whole(landed.weight))
                expected = tensors.first_columns(file, name)
                worst = max(worst, _difference(lora, key, patch, expected, height, kernel))
            reached.add(name)
    return [file.count(reached), len(strayed), worst]


def _of(part: Any) -> tuple[int, int, int] | None:
    return part and (part.axis, part.start, part.length)


def _load(tensors: Mapping[str, Any], model: Model, lora: Any) -> dict[Any, Any]:
    """ComfyUI's own way from a file to patches, given only those names that begin one of the file's."""
    convert: Any = importlib.import_module("comfy.lora_convert")
    converted = convert.convert_lora(dict(tensors))
    begun: dict[str, None] = {}
    for name in converted:
        steps = name.split(".")
        begun |= dict.fromkeys(".".join(steps[:count]) for count in range(1, len(steps)))
        begun[name.rpartition("_lora.")[0]] = None
    known = {name: model.names[name] for name in begun if name in model.names}
    return lora.load_lora(converted, known, log_missing=False)


def _landed(key: Any, model: Model) -> Landed | None:
    """Where a patch goes; None for what the model does not have, or what is no weight."""
    weight, part, function = ((key, None, None) if isinstance(key, str) else (*key, None))[:3]
    shape = model.shapes.get(weight)
    if shape is None or not weight.endswith(".weight"):
        return None
    if part and part[1] + part[2] > shape[part[0]]:
        return Landed("rows that the weight does not have", tuple(part), False)
    path = weight.removesuffix(".weight")
    path = f"text_encoders.{path.removeprefix('clip ')}" if path.startswith("clip ") else path
    return Landed(path, tuple(part) if part else None, function is not None)


def _difference(lora: Any, key: Any, patch: Any, expected: np.ndarray, height: int, kernel: Any) -> float:
    weight, part, function = ((key, None, None) if isinstance(key, str) else (*key, None))[:3]
    base = torch.zeros(height, expected.shape[1] // prod(kernel), *kernel)
    patched = lora.calculate_weight([(1.0, patch, 1.0, part, function)], base, weight).flatten(1)
    gained = patched.narrow(*part) if part else patched
    off = float(np.linalg.norm(gained.double().numpy() - expected))
    return off / float(np.linalg.norm(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
