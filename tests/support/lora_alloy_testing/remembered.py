"""Stacks that are merged twice, and what must be the same about them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lora_alloy.analysis import measure as measuring
from lora_alloy.api import Merged
from lora_alloy.lora.entries import Entry
from lora_alloy_testing.builders import TOY, entry_of, toy_lora, write_lora


def write_three(folder: Path) -> list[Path]:
    """Three toy LoRAs, one of them on fewer targets, one in another spelling."""
    names = list(TOY)
    return [
        write_lora(folder / "ink.safetensors", toy_lora(1, rank=4, alpha=2.0)),
        write_lora(folder / "oil.safetensors", toy_lora(2, rank=8, names=names[1:])),
        write_lora(folder / "wax.safetensors", toy_lora(3, rank=2), "peft"),
    ]


def stack(paths: list[Path], strengths: tuple[float, ...] = (1.0, 0.8, -0.5)) -> list[Entry]:
    """Their entries, the third preserved."""
    return [
        entry_of(path, strength, 0.7 * strength, preserve=place == 2)
        for place, (path, strength) in enumerate(zip(paths, strengths, strict=False))
    ]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same, signs of zeros included."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.contiguous()
        .reshape(-1)
        .view(torch.uint8)
        .equal(other.contiguous().reshape(-1).view(torch.uint8))
    )


def assert_same(found: Merged, expected: Merged) -> None:
    """Assert that plans, patches, measurements and reports are the same, to the bit."""
    assert found.plan == expected.plan
    for one, other in zip(found.patches, expected.patches, strict=True):
        assert replace(one, delta=other.delta) == other
        assert type(one.delta) is type(other.delta)
        assert (one.delta.scale, one.delta.shape) == (other.delta.scale, other.delta.shape)
        assert one.delta.tensors.keys() == other.delta.tensors.keys()
        assert all(same_bits(one.delta.tensors[role], value) for role, value in other.delta.tensors.items())
    for one, other in zip(found.measured, expected.measured, strict=True):
        assert (one.target, one.entries, one.size) == (other.target, other.entries, other.size)
        assert same_bits(one.gram, other.gram)
        assert (one.conflict is None) == (other.conflict is None)
        assert one.conflict is None or other.conflict is None or same_bits(one.conflict, other.conflict)
    # Time and memory are those of each run.
    assert replace(found.report, cost=None).text() == replace(expected.report, cost=None).text()


def saved(merged: Merged, path: Path) -> bytes:
    """The bytes of a merge's file."""
    merged.save(path)
    return path.read_bytes()


class Counted:
    """Counts the targets that are measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.targets, inner = [], measuring._measure_group

        def counting(stack, group, is_deep):
            self.targets.append(str(group.target))
            return inner(stack, group, is_deep)

        monkeypatch.setattr(measuring, "_measure_group", counting)
