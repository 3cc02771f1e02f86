"""Pairs of LoRAs over all targets they share, against counts on the dense deltas."""

from itertools import combinations
from math import acos, pi
from pathlib import Path

import numpy as np
import pytest

from lora_alloy.analysis.measure import measure
from lora_alloy.analysis.pairs import Pair, pairs
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy_testing.builders import TOY, Factors, entry_of, noise, on_targets, toy_lora, write_lora
from lora_alloy_testing.reference import Voice, dot, norm

FIRST = next(iter(TOY))


def dense_pair(one: Voice, other: Voice) -> tuple[int, float, float, float]:
    """Shared targets, cosine, conflict and expected conflict, at the LoRAs' strengths."""
    shared = [
        target
        for target in one.deltas
        if target in other.deltas and one.on(target) != 0 and other.on(target) != 0
    ]
    left = {target: one.on(target) * one.deltas[target] for target in shared}
    right = {target: other.on(target) * other.deltas[target] for target in shared}
    together = sum(dot(left[t], right[t]) for t in shared)
    bottom = np.sqrt(sum(norm(left[t]) ** 2 for t in shared) * sum(norm(right[t]) ** 2 for t in shared))
    size = sum(left[t].size for t in shared)
    conflict = sum((left[t] * right[t] < 0).sum() for t in shared) / size
    expected = sum(
        left[t].size * acos(dot(left[t], right[t]) / (norm(left[t]) * norm(right[t]))) / pi for t in shared
    )
    return len(shared), together / bottom, conflict, expected / size


def found_pairs(entries: list[Entry]) -> list[Pair]:
    stack = build_stack(entries)
    return pairs(stack, measure(stack))


def test_every_pair_is_what_the_dense_deltas_say(tmp_path: Path):
    loras = [toy_lora(1, alpha=2.0), toy_lora(2, rank=8, names=list(TOY)[1:]), toy_lora(3), toy_lora(4)]
    loras[3][FIRST] = loras[0][FIRST].times(0.5)
    strengths = [(1.0, 0.5), (-0.7, None), (0.4, 0.0), (1.2, -1.0)]
    entries = [
        entry_of(write_lora(tmp_path / f"{n}.safetensors", lora), *strengths[n])
        for n, lora in enumerate(loras)
    ]
    voices = [Voice(on_targets(lora), *strengths[n]) for n, lora in enumerate(loras)]
    found = found_pairs(entries)
    assert [(pair.first, pair.second) for pair in found] == [
        (f"{a}.safetensors", f"{b}.safetensors") for a, b in combinations(range(4), 2)
    ]
    for pair, (one, other) in zip(found, combinations(voices, 2), strict=True):
        count, cosine, conflict, expected = dense_pair(one, other)
        assert pair.shared_count == count
        assert pair.cosine == pytest.approx(cosine, abs=1e-6)
        assert pair.conflict == pytest.approx(conflict, abs=1e-9)
        assert pair.expected == pytest.approx(expected, abs=1e-5)
        assert pair.excess == pytest.approx(conflict - expected, abs=1e-5)


def two(tmp_path: Path, first: Factors, second: Factors, *strengths: float) -> Pair:
    paths = [
        write_lora(tmp_path / f"{n}.safetensors", {FIRST: one}) for n, one in (("a", first), ("b", second))
    ]
    return found_pairs([entry_of(path, w) for path, w in zip(paths, strengths, strict=True)])[0]


def test_opposed_loras_are_called_so(tmp_path):
    one = noise((24, 16), 4, seed=1)
    pair = two(tmp_path, one, one.times(-0.5), 1.0, 1.0)
    assert pair.is_opposed
    assert pair.conflict == 1.0
    assert "they undo each other" in pair.sentence()


def test_a_negative_strength_turns_opposition_into_likeness(tmp_path):
    one = noise((24, 16), 4, seed=1)
    pair = two(tmp_path, one, one.times(-0.5), 1.0, -1.0)
    assert not pair.is_opposed
    assert pair.conflict == 0.0
    assert "alike" in pair.sentence()


@pytest.mark.parametrize("strength", [1.0, -1.0])
def test_a_target_on_which_one_lora_is_zero_is_not_one_they_share(strength, tmp_path):
    one = noise((24, 16), 4, seed=1)
    pair = two(tmp_path, one, one.times(0.0), 1.0, strength)
    assert (pair.shared_count, pair.conflict, pair.cosine) == (0, 0.0, 0.0)
    assert pair.sentence() == "no target in common"


@pytest.mark.parametrize("strength", [1.0, -1.0])
def test_loras_on_different_rows_of_one_weight_do_not_conflict(strength, tmp_path):
    one, other = noise((24, 16), 4, seed=1), noise((24, 16), 4, seed=2)
    one.up[12:] = 0
    other.up[:12] = 0
    pair = two(tmp_path, one, other, 1.0, strength)
    assert pair.conflict == 0.0
    assert not pair.is_opposed


def test_loras_without_a_target_in_common_are_said_to_have_none(tmp_path):
    paths = [
        write_lora(tmp_path / f"{place}.safetensors", toy_lora(place, names=[name]))
        for place, name in enumerate(list(TOY)[:2])
    ]
    pair = found_pairs([entry_of(path) for path in paths])[0]
    assert (pair.shared_count, pair.sentence()) == (0, "no target in common")
