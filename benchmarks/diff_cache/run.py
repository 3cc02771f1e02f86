"""Time a sweep's exact merges with every mode of the diff cache, and print where keeping beats making anew.

    python benchmarks/diff_cache/run.py [--targets 3] [--repeat 1] [--shapes sd15 sdxl flux] [--ranks 32 256]

Stacks are three LoRAs of random values, on one thread. Of a model's attention and feed-forward weights, `--targets` are
taken, evenly spread over the sizes that it has; times and bytes are theirs, and the bytes of the whole model stand
beside them. A sweep merges three candidates, TIES at three densities: the quickest work there is, so that a cache can
help most. Beside the time that passed stands the processor's, which other programs disturb less. Results are compared
bit for bit with those of no cache.
"""

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
LORAS = 3


def attention(width: int, context: int) -> list[tuple[int, int]]:
    """The eight attention weights and two feed-forward weights of a transformer block of a UNet."""
    own, cross = [(width, width)] * 4, [(width, width), (width, context), (width, context), (width, width)]
    return [*own, *cross, (8 * width, width), (width, 4 * width)]


SHAPES: dict[str, list[tuple[list[tuple[int, int]], int]]] = {
    "sd15": [(attention(320, 768), 5), (attention(640, 768), 5), (attention(1280, 768), 6)],
    "sdxl": [(attention(640, 2048), 10), (attention(1280, 2048), 60)],
    "flux": [
        ([(9216, 3072), (3072, 3072), (12288, 3072), (3072, 12288)] * 2, 19),
        ([(21504, 3072), (3072, 15360)], 38),
    ],
}


def targets(model: str, count: int) -> dict[str, tuple[int, int]]:
    """Names and shapes of the part that is merged."""
    weights = sorted(
        (size for block, number in SHAPES[model] for size in block * number),
        key=lambda size: size[0] * size[1],
    )
    picked = [weights[(2 * at + 1) * len(weights) // (2 * count)] for at in range(count)]
    return {f"blocks.{place}.weight": size for place, size in enumerate(picked)}


def whole_bytes(model: str) -> int:
    """What all deltas of all LoRAs take, multiplied out in float32."""
    values = sum(count * sum(rows * columns for rows, columns in block) for block, count in SHAPES[model])
    return 4 * LORAS * values


def load_package() -> None:
    spec = importlib.util.spec_from_file_location("lora_alloy", ROOT / "__init__.py")
    assert spec is not None and spec.loader is not None
    sys.modules["lora_alloy"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def write(folder: Path, model: str, rank: int, count: int) -> list[Path]:
    from safetensors.torch import save_file

    paths = []
    for number in range(LORAS):
        chance = torch.Generator().manual_seed(number)
        tensors = {}
        for name, (rows, columns) in targets(model, count).items():
            tensors[f"{name}.lora_B.weight"] = (torch.randn(rows, rank, generator=chance) * 0.02).half()
            tensors[f"{name}.lora_A.weight"] = (torch.randn(rank, columns, generator=chance) * 0.02).half()
        paths.append(folder / f"{model}-{rank}-{number}.safetensors")
        save_file(tensors, paths[-1])
    return paths


def rates_page(folder: Path) -> Iterator[str]:
    """What making costs at every rank, beside what keeping costs."""
    from lora_alloy.cache.diffs import READINGS
    from lora_alloy.cache.rates import Clock, disk_rates, memory_rates
    from lora_alloy.lora.factors import LowRank
    from lora_alloy.merging.tiles import Tiles

    memory, disk = memory_rates(), disk_rates(folder)
    for name, rates in (("memory", memory), ("disk", disk)):
        yield f"{name}: {rates.write * 1e9:.2f} s to write a GB, {rates.read * 1e9:.2f} s to read it"
    for rank in (4, 16, 32, 64, 128, 256, 512):
        delta = LowRank(torch.randn(3072, rank), torch.randn(rank, 3072), 1.0, (3072, 3072))
        clock = Clock()
        for _ in range(5):
            for _ in clock.timed(tile[0] for tile in Tiles([delta]).walk()):
                pass
        row = [f"rank {rank:3}: {clock.rate * 1e9:5.2f} s to make a GB"]
        for name, rates in (("memory", memory), ("disk", disk)):
            gain = clock.rate - rates.read
            needed = rates.write / gain if gain > 0 else float("inf")
            word = "never pays" if needed == float("inf") else f"pays from {max(2, int(needed) + 2)} readings"
            row.append(f"{name} {word}")
        yield ", ".join(row) + f" (auto expects {READINGS})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--ranks", nargs="+", type=int, default=[32, 256])
    parser.add_argument("--folder", type=Path, default=None)
    asked = parser.parse_args()
    load_package()
    from lora_alloy.api import plan, stack_of
    from lora_alloy.cache.diffs import MODES, DiffCache
    from lora_alloy.merging.engine import execute
    from lora_alloy.merging.recipe import Recipe

    torch.set_num_threads(1)
    recipes = [Recipe(method="ties", density=density, compress="disabled") for density in (0.3, 0.5, 0.7)]
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        for line in rates_page(folder):
            print(line, flush=True)
        for model in asked.shapes:
            for rank in asked.ranks:
                stack = stack_of(write(folder, model, rank, asked.targets))
                plans = [plan(stack, recipe) for recipe in recipes]
                size = sum(rows * columns for rows, columns in targets(model, asked.targets).values())
                print(
                    f"\n{model}, {LORAS} LoRAs of rank {rank}: {len(stack.groups)} targets,"
                    f" {4 * LORAS * size / 1e9:.2f} GB multiplied out"
                    f" (the whole model: {whole_bytes(model) / 1e9:.1f} GB)"
                )
                expected, taken, told = "", {mode: [float("inf")] * 2 for mode in MODES}, {}
                # Turn by turn, so that a machine that slows down slows all of them.
                for _ in range(asked.repeat):
                    for mode in MODES:
                        digest, spent = sha256(), [-time.perf_counter(), -time.process_time()]
                        with DiffCache(mode, folder=folder) as cache:
                            for one in plans:
                                for patch in execute(stack, one, remember=cache):
                                    since = time.perf_counter(), time.process_time()
                                    for tensor in patch.delta.tensors.values():
                                        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
                                    spent[0] -= time.perf_counter() - since[0]
                                    spent[1] -= time.process_time() - since[1]
                        spent = [spent[0] + time.perf_counter(), spent[1] + time.process_time()]
                        taken[mode] = [min(pair) for pair in zip(taken[mode], spent, strict=True)]
                        told[mode] = cache
                        expected = expected or digest.hexdigest()
                        assert digest.hexdigest() == expected, mode
                for mode, cache in told.items():
                    ratio = taken[mode][1] / taken["disabled"][1]
                    print(
                        f"    {mode:8} {taken[mode][0]:6.2f} s, of the processor {taken[mode][1]:6.2f} s"
                        f" ({ratio:.2f} of disabled), {cache.stats.ram_bytes / 1e9:.2f} GB in memory,"
                        f" {cache.stats.disk_bytes / 1e9:.2f} GB on the disk",
                        flush=True,
                    )
                print(f"    {told['auto'].told()}", flush=True)
    print("\nevery mode gave the same bits")


if __name__ == "__main__":
    main()
