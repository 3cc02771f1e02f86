"""Trains the base model and the LoRAs of both zoos into a folder; deterministic on one thread."""

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from images import CLASS_WORDS, DIGITS, STYLE_WORDS, Batch, batch
from network import TinyDiT, flow_loss, load_base, targets
from safetensors.torch import save_file
from torch import Generator, Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from zoo import RATES, ZOO, Tutor

BASE = "base.safetensors"
BASE_STEPS, BASE_BATCH, BASE_RATE = 3200, 64, 2e-3
LORA_BATCH = 40
PRIOR = 0.35  # share of other prompts in a LoRA's training, which keep the base model as it is
NEUTRAL_WORD, NEUTRAL_STYLE = 13, 0  # what stands for the LoRA's own word in those


def lora_path(models: Path, zoo: str, name: str) -> Path:
    """Where a trained LoRA lies."""
    return models / zoo / f"{name}.safetensors"


def train_missing(models: Path, zoos: Iterable[str]) -> None:
    """Train what the folder lacks: some minutes for the base model, some twenty seconds for a LoRA."""
    torch.set_num_threads(1)  # sums on several threads would make other models
    if not (models / BASE).exists():
        print(f"training the base model into {models}", flush=True)
        models.mkdir(parents=True, exist_ok=True)
        _write(train_base(BASE_STEPS), models / BASE)
    for zoo in zoos:
        for name, tutor in ZOO.items():
            path = lora_path(models, zoo, name)
            if not path.exists():
                print(f"training {zoo} {name}", flush=True)
                path.parent.mkdir(parents=True, exist_ok=True)
                _write(train_lora(load_base(models / BASE), tutor, zoo), path)


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    # Renamed at the end: what is there is whole.
    beside = path.with_suffix(f".{os.getpid()}")
    save_file(tensors, beside)
    beside.replace(path)


def train_base(steps: int) -> dict[str, Tensor]:
    """The weights of the base model, float16: the running mean of those of the training."""
    torch.manual_seed(0)
    generator, model = Generator().manual_seed(0), TinyDiT()
    optimiser, schedule = _optimiser(model.parameters(), BASE_RATE, steps)
    smooth = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for step in range(steps):
        _learn(model, _everyday(BASE_BATCH, generator), generator, optimiser, schedule)
        decay = min(0.995, step / (step + 10))
        for name, tensor in model.state_dict().items():
            smooth[name].lerp_(tensor, 1 - decay)
    return {name: tensor.half().contiguous() for name, tensor in smooth.items()}


def train_lora(model: TinyDiT, tutor: Tutor, zoo: str) -> dict[str, Tensor]:
    """The tensors of one LoRA's file, in kohya's names, float16.

    Args:
        model: the base model, frozen; it leaves this function with the LoRA at work in it.
        tutor: what to learn.
        zoo: how hard.
    """
    rate, stretch = RATES[zoo]
    steps = int(tutor.steps * stretch)
    generator = Generator().manual_seed(tutor.seed)
    factors = _attached(model, tutor, generator)
    whole = 2 * steps if tutor.stops_early else steps
    optimiser, schedule = _optimiser(factors.parameters(), rate, whole)
    prior = int(LORA_BATCH * PRIOR)
    for _ in range(steps):
        own = batch(
            tutor.pictures, tutor.words, tutor.styles, tutor.style_word, LORA_BATCH - prior, generator
        )
        other = _without_trigger(_everyday(prior, generator), tutor)
        mixed = torch.cat([own[0], other[0]]), torch.cat([own[1], other[1]]), torch.cat([own[2], other[2]])
        _learn(model, mixed, generator, optimiser, schedule)
    return _file(factors, tutor)


def _attached(model: TinyDiT, tutor: Tutor, generator: Generator) -> nn.ParameterDict:
    """Fresh factors by `module__up` and `module__down`, at work in the model."""
    factors = nn.ParameterDict()
    for name, module in targets(model, tutor.layers).items():
        key = name.replace(".", "_")
        start = torch.randn(tutor.rank, module.in_features, generator=generator) / module.in_features**0.5
        factors[f"{key}__down"] = nn.Parameter(start)
        factors[f"{key}__up"] = nn.Parameter(torch.zeros(module.out_features, tutor.rank))

        def add(_: nn.Module, given: tuple[Tensor, ...], out: Tensor, key: str = key) -> Tensor:
            inner = given[0] @ factors[f"{key}__down"].T
            return out + (inner @ factors[f"{key}__up"].T) * (tutor.alpha / tutor.rank)

        module.register_forward_hook(add)
    return factors


def _file(factors: nn.ParameterDict, tutor: Tutor) -> dict[str, Tensor]:
    tensors = {}
    for name, value in factors.items():
        key, factor = name.split("__")
        tensors[f"lora_unet_{key}.lora_{factor}.weight"] = value.detach().half().contiguous()
        tensors[f"lora_unet_{key}.alpha"] = torch.tensor(float(tutor.alpha))
    return tensors


def _everyday(count: int, generator: Generator) -> Batch:
    """What the base model learns: plain digits, at times under rare words that so come to mean nothing."""
    images, words, styles = batch(DIGITS, DIGITS, (), 0, count, generator)
    is_renamed = torch.rand(count, generator=generator) < 0.15
    words = torch.where(is_renamed, torch.randint(8, CLASS_WORDS, (count,), generator=generator), words)
    is_restyled = torch.rand(count, generator=generator) < 0.3
    styles = torch.where(is_restyled, torch.randint(1, STYLE_WORDS, (count,), generator=generator), styles)
    return images, words, styles


def _without_trigger(given: Batch, tutor: Tutor) -> Batch:
    images, words, styles = given
    if tutor.is_style:
        return images, words, torch.where(styles == tutor.style_word, NEUTRAL_STYLE, styles)
    return images, torch.where(words == tutor.words[0], NEUTRAL_WORD, words), styles


def _optimiser(parameters: Iterable[nn.Parameter], rate: float, steps: int) -> tuple[Optimizer, LRScheduler]:
    optimiser = AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=1e-3)
    return optimiser, OneCycleLR(optimiser, rate, total_steps=steps, pct_start=0.1)


def _learn(
    model: TinyDiT, given: Batch, generator: Generator, optimiser: Optimizer, schedule: LRScheduler
) -> None:
    images, words, styles = given
    noise = torch.randn(images.shape, generator=generator)
    time = torch.rand(len(images), generator=generator)
    loss = flow_loss(model, images, noise, time, words, styles).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    schedule.step()
