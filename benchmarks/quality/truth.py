"""What a merge is worth: how much of each LoRA's own effect survives, and what it costs elsewhere.

Images, noise and times are fixed, so a judgement is a number, not a sample. With L the loss of the model on held-out
images, and "alone" the model with one LoRA:

    retention    (L base - L merged) / (L base - L alone), on a LoRA's own prompts: 0 the base model, 1 the LoRA alone
    likeness     1 - |merged - alone|² / |base - alone|², on images generated from the same noise
    composition  as retention, on prompts with the words of a concept and of a style, beside the better of the two
    damage       the relative rise of the loss on what no LoRA is about; its excess is over that of the worst alone

    Q = (mean retention + least retention) / 2 - excess damage, a retention below -1 counting as -1
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from images import DIGITS, Batch, Picture, batch
from network import TinyDiT, flow_loss, generate, targets
from torch import Tensor
from zoo import ZOO, Tutor

DeltaMap: TypeAlias = "Mapping[str, Tensor]"  # `(o, i)` by the target's name, underscores for dots
Prompts: TypeAlias = "tuple[str, ...]"  # ("own", LoRA), ("pair", concept, style) or ("plain",)
TIMES = torch.tensor([0.15, 0.35, 0.55, 0.7, 0.85, 0.97])
IMAGES, GENERATED = 20, 8
FLOOR = -1.0
PLAIN: Prompts = ("plain",)


@dataclass(frozen=True)
class Truth:
    """The worth of one merge of one stack.

    Attributes:
        retention: of each LoRA.
        likeness: of each LoRA.
        composition: mean over the pairs of a concept and a style; None without one.
        damage: on plain prompts.
        damage_alone: of the worst LoRA alone.
    """

    retention: tuple[float, ...]
    likeness: tuple[float, ...]
    composition: float | None
    damage: float
    damage_alone: float

    @property
    def mean_retention(self) -> float:
        """Over the LoRAs, none below -1."""
        return sum(max(FLOOR, one) for one in self.retention) / len(self.retention)

    @property
    def least_retention(self) -> float:
        """Of the LoRA that suffers most, not below -1."""
        return max(FLOOR, min(self.retention))

    @property
    def least_likeness(self) -> float:
        """Of the LoRA that suffers most, not below -1."""
        return max(FLOOR, min(self.likeness))

    @property
    def excess(self) -> float:
        """Damage beyond that of the worst LoRA alone."""
        return max(0.0, self.damage - self.damage_alone)

    @property
    def quality(self) -> float:
        """Q."""
        return (self.mean_retention + self.least_retention) / 2 - self.excess


@dataclass(frozen=True)
class Exam:
    """What a model is judged on: held-out images with noise, times and prompts, and noise to draw from.

    Every image stands there once for each time; `start` is for the first of them.
    """

    images: Tensor
    noise: Tensor
    times: Tensor
    words: Tensor
    styles: Tensor
    start: Tensor


class Bench:
    """Judges merges of LoRAs for one base model.

    Args:
        model: the base model.
        alone: the deltas of every LoRA.
        tutors: what each was taught.
        images: how many each judgement sees.
        everyday: the pictures, under the class words from 0, that no LoRA is about.
    """

    def __init__(
        self,
        model: TinyDiT,
        alone: Mapping[str, DeltaMap],
        tutors: Mapping[str, Tutor] = ZOO,
        images: int = IMAGES,
        everyday: Sequence[Picture] = DIGITS,
    ) -> None:
        self.model, self.alone, self.tutors, self.images = model, alone, tutors, images
        self.everyday = everyday
        self._modules = {name.replace(".", "_"): module for name, module in targets(model).items()}
        self._weights = {name: module.weight.data.clone() for name, module in self._modules.items()}
        self._exams: dict[Prompts, Exam] = {}
        self._losses: dict[tuple[str, Prompts], float] = {}
        self._pictures: dict[tuple[str, Prompts], Tensor] = {}

    def judge(self, stack: Sequence[str], merged: DeltaMap) -> Truth:
        """The worth of a merge of the LoRAs named in `stack`."""
        styles = [name for name in stack if self.tutors[name].is_style]
        concepts = [name for name in stack if name not in styles]
        pairs: list[Prompts] = [("pair", concept, style) for concept in concepts for style in styles]
        # Before the merge is put in: what is compared with changes the model too.
        own: list[Prompts] = [("own", name) for name in stack]
        kept = [(self._loss("", prompts), self._loss(prompts[1], prompts)) for prompts in own]
        looks = [(self._picture("", prompts), self._picture(prompts[1], prompts)) for prompts in own]
        both = [
            (self._loss("", pair), min(self._loss(pair[1], pair), self._loss(pair[2], pair)))
            for pair in pairs
        ]
        base, worst = self._loss("", PLAIN), max(self._loss(name, PLAIN) for name in stack)
        self._put(merged)
        retention = [
            (before - self._measured(prompts)) / (before - alone)
            for prompts, (before, alone) in zip(own, kept, strict=True)
        ]
        likeness = [
            1 - float((self._drawn(prompts) - alone).square().mean() / (before - alone).square().mean())
            for prompts, (before, alone) in zip(own, looks, strict=True)
        ]
        composition = [
            (before - self._measured(pair)) / (before - alone)
            for pair, (before, alone) in zip(pairs, both, strict=True)
        ]
        return Truth(
            tuple(retention),
            tuple(likeness),
            sum(composition) / len(composition) if composition else None,
            self._measured(PLAIN) / base - 1,
            worst / base - 1,
        )

    def _loss(self, who: str, prompts: Prompts) -> float:
        """Of one LoRA alone, or of the base model if `who` is empty."""
        if (who, prompts) not in self._losses:
            self._put(self.alone[who] if who else {})
            self._losses[who, prompts] = self._measured(prompts)
        return self._losses[who, prompts]

    def _picture(self, who: str, prompts: Prompts) -> Tensor:
        if (who, prompts) not in self._pictures:
            self._put(self.alone[who] if who else {})
            self._pictures[who, prompts] = self._drawn(prompts)
        return self._pictures[who, prompts]

    def _put(self, delta: DeltaMap) -> None:
        unknown = delta.keys() - self._modules.keys()
        if unknown:
            raise ValueError(f"the model has no target {min(unknown)!r}")
        for name, module in self._modules.items():
            weight = self._weights[name]
            module.weight.data = weight + delta[name] if name in delta else weight

    @torch.no_grad()
    def _measured(self, prompts: Prompts) -> float:
        exam = self._exam(prompts)
        return float(
            flow_loss(self.model, exam.images, exam.noise, exam.times, exam.words, exam.styles).mean()
        )

    def _drawn(self, prompts: Prompts) -> Tensor:
        exam = self._exam(prompts)
        each = slice(None, len(exam.start) * len(TIMES), len(TIMES))
        return generate(self.model, exam.start, exam.words[each], exam.styles[each])

    def _exam(self, prompts: Prompts) -> Exam:
        if prompts not in self._exams:
            generator = torch.Generator().manual_seed(_seed(prompts))
            images, words, styles = self._held_out(prompts, generator)
            each = [tensor.repeat_interleave(len(TIMES), 0) for tensor in (images, words, styles)]
            noise = torch.randn(each[0].shape, generator=generator)
            start = torch.randn((GENERATED, *images.shape[1:]), generator=generator)[: len(images)]
            self._exams[prompts] = Exam(each[0], noise, TIMES.repeat(len(images)), each[1], each[2], start)
        return self._exams[prompts]

    def _held_out(self, prompts: Prompts, generator: torch.Generator) -> Batch:
        if prompts == PLAIN:
            words = range(len(self.everyday))
            return batch(self.everyday, words, (), 0, 2 * self.images, generator, is_held_out=True)
        shown, styled = self.tutors[prompts[1]], self.tutors[prompts[-1]]
        return batch(
            shown.pictures,
            shown.words,
            styled.styles,
            styled.style_word,
            self.images,
            generator,
            is_held_out=True,
        )


def _seed(prompts: Prompts) -> int:
    seed = 17
    for letter in "|".join(prompts):
        seed = (seed * 131 + ord(letter)) % 2147483647
    return seed
