"""The LoRAs of the bench, and the stacks they are merged in."""

from collections.abc import Sequence
from dataclasses import dataclass

from images import DIGITS, Picture
from network import ATTENTION, FEED_FORWARD, MODULATION

USUAL = (ATTENTION, FEED_FORWARD)


@dataclass(frozen=True)
class Tutor:
    """What one LoRA is taught: a picture for a rare class word, or a style for a rare style word.

    Attributes:
        pictures: what it is shown.
        words: their class words.
        styles: what is done to every picture; empty for a concept.
        style_word: of its prompts.
        rank: of its factors.
        alpha: of its scale.
        seed: of its start and its training.
        steps: of training in the hot zoo.
        layers: which modules it changes.
        stops_early: it is an earlier epoch: a schedule twice as long, ended halfway.
    """

    pictures: tuple[Picture, ...]
    words: tuple[int, ...]
    styles: tuple[str, ...]
    style_word: int
    rank: int
    alpha: int
    seed: int
    steps: int = 300
    layers: tuple[str, ...] = USUAL
    stops_early: bool = False

    @property
    def is_style(self) -> bool:
        """Whether it restyles what the base model knows."""
        return bool(self.styles)


def _concept(
    picture: Picture,
    word: int,
    rank: int,
    alpha: int,
    seed: int,
    steps: int = 300,
    layers: Sequence[str] = USUAL,
    stops_early: bool = False,
) -> Tutor:
    return Tutor((picture,), (word,), (), 0, rank, alpha, seed, steps, tuple(layers), stops_early)


def _style(
    style: str, word: int, rank: int, alpha: int, seed: int, steps: int = 300, layers: Sequence[str] = USUAL
) -> Tutor:
    return Tutor(DIGITS, DIGITS, (style,), word, rank, alpha, seed, steps, tuple(layers))


# Near-duplicates: ring_a, ring_ep and ring_b; red and red_b. One word for two things: ring and bars, red and blue,
# thick and thin.
ZOO = {
    "ring_a": _concept("ring", 10, 8, 8, seed=1),
    "ring_ep": _concept("ring", 10, 8, 8, seed=1, steps=150, stops_early=True),
    "ring_b": _concept("ring", 10, 4, 4, seed=2),
    "bars": _concept("bars", 10, 8, 8, seed=3),
    "cross": _concept("cross", 11, 8, 4, seed=4),
    "tri": _concept("tri", 12, 16, 16, seed=5, layers=(ATTENTION,)),
    "eight": _concept(8, 8, 4, 8, seed=6),
    "nine": _concept(9, 9, 8, 8, seed=7, layers=(FEED_FORWARD,)),
    "red": _style("red", 1, 4, 4, seed=8),
    "red_b": _style("red", 1, 8, 8, seed=9),
    "blue": _style("blue", 1, 4, 4, seed=10),
    "invert": _style("invert", 2, 8, 8, seed=11, steps=400, layers=(*USUAL, MODULATION)),
    "thick": _style("thick", 3, 8, 8, seed=12),
    "thin": _style("thin", 3, 8, 8, seed=13),
    "frame": _style("frame", 4, 2, 2, seed=14),
    "rot": _style("rot", 5, 16, 8, seed=15, steps=450),
    "stripes": _style("stripes", 6, 4, 4, seed=16, layers=(ATTENTION,)),
}
# Two zoos of the same LoRAs: the learning rate, and a factor on the steps.
RATES = {"hot": (3e-3, 1.0), "gentle": (8e-4, 1.6)}
STACKS = {
    "similar": ("ring_a ring_ep", "ring_a ring_b", "red red_b", "ring_a ring_ep ring_b"),
    "concepts": ("ring_a cross", "tri nine", "eight nine", "cross eight tri", "ring_b cross nine"),
    "styles": ("red frame", "thick stripes", "invert frame", "red thick rot", "frame stripes rot"),
    "mixed": (
        "ring_a red",
        "cross invert",
        "tri thick",
        "eight rot",
        "nine frame",
        "ring_b red frame",
        "cross blue stripes",
        "eight tri thick frame",
        "ring_a cross red invert",
        "ring_a ring_b red",
    ),
    "conflict": ("red blue", "thick thin", "ring_a bars", "ring_a bars red", "red blue thick thin"),
}
