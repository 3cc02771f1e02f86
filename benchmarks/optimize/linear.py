"""A linear merge that is saved, ours beside PEFT's `svd` combination; print both, the ratio and both errors.

    python benchmarks/optimize/linear.py [--every 13] [--repeat 2] [--folder DIR]

Ours is the whole command on all targets, from process start to the proven file. PEFT's `add_weighted_adapter` with
`combination_type="svd"`, at the sum of the ranks and with thin decompositions, which is its fastest, does every
EVERY-th target and saves it; its time without start-up, model and reading is scaled up. Both save single precision.
Errors are relative to the sum of the deltas in double precision, the largest of those targets. Needs `peft`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from costs import START, best, command, cost, load_average
from files import RANKS, TARGETS, write_stack


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=13)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "lora-alloy-benchmark")
    parser.add_argument("--side", choices=("peft", "errors"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    files = write_stack(asked.folder)
    ours, theirs = asked.folder / "linear.safetensors", asked.folder / "linear-peft"
    if asked.side:
        side = run_peft if asked.side == "peft" else errors
        print(json.dumps(side(asked.every, files, ours, theirs)))
        return
    words = ["merge", *map(str, files), "-o", str(ours), "--method", "weighted_sum", "--no-auto-strength"]
    words += ["--dtype", "float32", "--naming", "kohya", "--quiet", "--force"]
    mine = best([cost(*command(*words)) for _ in range(asked.repeat)])
    peft = min(child(asked, "peft") for _ in range(asked.repeat))
    start = best([cost("-c", START) for _ in range(asked.repeat)]).cpu_seconds
    whole = start + peft * asked.every
    own, other = child(asked, "errors")
    print(f"linear merge and save, {TARGETS} targets, 3 LoRAs, best of {asked.repeat}, {load_average()}")
    print(f"    ours, whole command       {mine.cpu_seconds:8.2f} CPU s, error {own:.1e}")
    print(f"    PEFT svd, scaled up       {whole:8.2f} CPU s, error {other:.1e}")
    print(f"ratio of CPU time, PEFT to ours: {whole / mine.cpu_seconds:.1f}")


def child(asked: argparse.Namespace, side: str) -> Any:
    words = [sys.executable, __file__, f"--every={asked.every}", f"--folder={asked.folder}", f"--side={side}"]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def factors(file: Any, name: str) -> tuple[Any, Any, float]:
    up, down = file.get_tensor(f"{name}.lora_up.weight"), file.get_tensor(f"{name}.lora_down.weight")
    return up, down, float(file.get_tensor(f"{name}.alpha")) / down.shape[0]


def bare(name: str) -> str:
    return name.removeprefix("lora_unet_")


def opened(files: list[Path], every: int) -> tuple[list[Any], list[str]]:
    from safetensors import safe_open

    found = [safe_open(file, "pt") for file in files]
    return found, [name.removesuffix(".alpha") for name in found[0].keys() if name.endswith(".alpha")][
        ::every
    ]


def run_peft(every: int, files: list[Path], _: Path, out: Path) -> float:
    """CPU seconds of the combination and of saving it."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.set_num_threads(1)
    sources, names = opened(files, every)
    shapes = {
        name: (factors(sources[0], name)[0].shape[0], factors(sources[0], name)[1].shape[1]) for name in names
    }
    base = torch.nn.ModuleDict({name: torch.nn.Linear(i, o, bias=False) for name, (o, i) in shapes.items()})
    # PEFT passes over every module that is called after a LoRA.
    base = torch.nn.ModuleDict({bare(name): layer for name, layer in base.items()})
    adapters = [str(number) for number in range(len(files))]
    configs = [LoraConfig(r=rank, lora_alpha=rank // 2, target_modules=[*base]) for rank in RANKS]
    model: Any = get_peft_model(base, configs[0], adapters[0])  # type: ignore[arg-type]
    for adapter, config in zip(adapters[1:], configs[1:], strict=True):
        model.add_adapter(adapter, config)
    with torch.no_grad():
        for adapter, source in zip(adapters, sources, strict=True):
            for name in names:
                up, down, _scale = factors(source, name)
                layer = model.base_model.model[bare(name)]
                layer.lora_B[adapter].weight.copy_(up)
                layer.lora_A[adapter].weight.copy_(down)
    start = time.process_time()
    model.add_weighted_adapter(
        adapters, [1.0] * len(files), "merged", "svd", svd_rank=sum(RANKS), svd_full_matrices=False
    )
    model.save_pretrained(out, selected_adapters=["merged"])
    return time.process_time() - start


def errors(every: int, files: list[Path], ours: Path, theirs: Path) -> tuple[float, float]:
    """The largest relative error of either result."""
    from safetensors import safe_open

    sources, names = opened(files, every)
    mine, peft = safe_open(ours, "pt"), safe_open(theirs / "merged" / "adapter_model.safetensors", "pt")
    config = json.loads((theirs / "merged" / "adapter_config.json").read_text(encoding="utf-8"))
    worst = [0.0, 0.0]
    for name in names:
        exact = 0
        for up, down, scale in (factors(source, name) for source in sources):
            exact = exact + scale * (up.double() @ down.double())
        up, down, scale = factors(mine, name)
        kept = [scale * (up.double() @ down.double())]
        halves = [
            peft.get_tensor(f"base_model.model.{bare(name)}.lora_{end}.weight").double() for end in "BA"
        ]
        kept.append(config["lora_alpha"] / config["r"] * (halves[0] @ halves[1]))
        worst = [
            max(old, float((one - exact).norm() / exact.norm())) for old, one in zip(worst, kept, strict=True)
        ]
    return worst[0], worst[1]


if __name__ == "__main__":
    main()
