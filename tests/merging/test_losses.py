"""What a merge has lost: told by its cause, avoided where nobody asked for it, and refused beyond a limit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lora_alloy.api import Merged, load, merge, verify
from lora_alloy.core.errors import SaveError
from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.losses import losses
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import TOY, Factors, dense, difference, file_of, noise, toy_lora

NAME, (TARGET, _) = next(iter(TOY.items()))
SHAPE = (160, 120)
STACK = [Entry(file_of({NAME: noise(SHAPE, 24, seed=n)}, f"ink {n}"), 1.0 - 0.2 * n) for n in range(4)]
TIES = Recipe(method="ties", density=0.5, auto_strength=False)


def distance(result: Merged, exact: Recipe) -> float:
    """How far a result is from that of another recipe, relative to it."""
    (found,), (wanted,) = (dense(one).values() for one in (result, merge(STACK, exact)))
    return difference(found, wanted)


def tiny(dtype: torch.dtype = torch.float16) -> list[Entry]:
    """A full difference whose entries lie below what half precision tells apart."""
    tensors = {f"{NAME}.diff": torch.randn(24, 16, generator=torch.Generator().manual_seed(1)).to(dtype)}
    return [Entry(lora_in_memory("faint", tensors, {}), 1e-9)]


def test_a_rank_that_costs_is_told_as_that_and_not_as_rounding():
    for recipe, remedy in (
        (replace(TIES, compress="aggressive"), "`compress`"),
        (replace(TIES, rank=40), "a larger `rank`"),
    ):
        result = merge(STACK, recipe)
        (note,) = result.report.notes
        off = distance(result, replace(TIES, compress="disabled"))
        assert off > 0.05
        assert f"leaves out {off:.0%} of the result" in note and remedy in note and "ounding" not in note
        lost = losses(result.patches)
        assert lost.cut == pytest.approx(off, rel=1e-3) and lost.rounding < 1e-3 and lost.unshared == 0.0


def test_a_tolerance_that_was_asked_for_is_not_complained_of():
    assert merge(STACK, replace(TIES, tolerance=0.2)).report.notes == ()
    assert merge(STACK, TIES).report.notes == ()


@pytest.mark.parametrize("limit", [80, 40])
@pytest.mark.parametrize("method", ["ties", "knots_ties"])
def test_what_the_basis_of_knots_lacks_is_told_as_that(method, limit):
    recipe = replace(TIES, method=method, enhance="knots", compress="disabled", rank_limit=limit)
    result = merge(STACK, recipe)
    (note,) = result.report.notes
    together = np.concatenate(
        [entry.file.load(entry.file.modules[NAME]).flat().numpy() for entry in STACK], 1
    )
    values = np.linalg.svd(together.astype(np.float64), compute_uv=False)
    lacking = float(np.sqrt((values[limit:] ** 2).sum() / (values**2).sum()))
    assert f"lacks {lacking:.0%} of the LoRAs" in note and f"of rank {limit} at most" in note
    assert "`rank_limit`" in note and "ounding" not in note
    assert distance(result, replace(recipe, rank_limit=4096)) == pytest.approx(lacking, rel=0.1)


def test_auto_keeps_a_target_in_float32_that_half_precision_would_lose():
    result = merge(tiny())
    (patch,) = result
    assert patch.dtype == torch.float32 and patch.error == 0.0
    assert result.report.notes == ()
    (narrow,) = merge(tiny(), Recipe(dtype="float16"))
    assert narrow.dtype == torch.float16 and narrow.error == pytest.approx(1.0)


def test_auto_keeps_a_target_in_float32_that_half_precision_cannot_hold():
    loud = file_of(toy_lora(1, size=50.0, dtype=torch.float16))
    for strength, dtype in ((1.0, torch.float16), (1e6, torch.float32)):
        result = merge([Entry(loud, strength)])
        assert {patch.dtype for patch in result} == {dtype}
        assert max(patch.error for patch in result) < 1e-3


def test_only_the_targets_that_need_it_are_wider_and_the_file_verifies(tmp_path):
    lora = toy_lora(1, dtype=torch.bfloat16)
    other = toy_lora(2, dtype=torch.bfloat16)
    # On the first target the second all but undoes the first: what is left is less than the rounding.
    other[NAME] = Factors((-lora[NAME].up * (1 + 2**-7)).bfloat16(), lora[NAME].down)
    entries = [Entry(file_of(one, f"ink {n}")) for n, one in enumerate((lora, other))]
    result = merge(entries, Recipe(method="weighted_sum"))
    wide = {str(patch.target) for patch in result if patch.dtype == torch.float32}
    assert wide == {TARGET}
    assert max(patch.error for patch in result) < 0.01
    result.save(tmp_path / "out")
    assert verify(tmp_path / "out.safetensors", entries).read_error == 0.0


def test_a_gain_that_half_precision_loses_is_saved_in_float32(tmp_path):
    faint = merge(tiny()).patches[0]
    entries = [replace(tiny()[0], strength=1.0)]
    result = merge(entries)
    assert {patch.dtype for patch in result} == {torch.float16}
    proof = result.save(tmp_path / "out", gain=1e-9)
    saved = load(tmp_path / "out.safetensors")
    (module,) = saved.modules.values()
    assert difference(saved.load(module).flat().numpy(), faint.delta.flat().numpy()) < 1e-3
    assert proof.merge_error < 1e-2


def test_a_file_that_has_lost_most_of_the_merge_is_not_written_unless_that_is_allowed(tmp_path):
    path = tmp_path / "out.safetensors"
    result = merge(tiny(), Recipe(dtype="float16"))
    with pytest.raises(SaveError, match=r"Rounding to float16 takes 100% .* float32 .*max_loss"):
        result.save(path)
    assert not path.exists()
    assert result.save(path, max_loss=1.0).merge_error == pytest.approx(1.0)
    recipe = replace(TIES, method="knots_ties", rank_limit=16)
    with pytest.raises(SaveError, match="KnOTS' shared basis, of rank 16 at most, lacks 7"):
        merge(STACK, recipe).save(tmp_path / "basis")
    with pytest.raises(SaveError, match="max_loss"):
        merge(STACK, TIES).save(path, max_loss=float("nan"))


@pytest.mark.parametrize("asked", [{"rank": 1}, {"tolerance": 0.9}], ids=str)
def test_what_was_asked_for_never_stops_a_merge(asked, tmp_path):
    result = merge(STACK, replace(TIES, **asked))
    assert losses(result.patches).cut > 0.5
    assert result.save(tmp_path / "out").merge_error > 0.5
    assert merge(STACK, TIES).save(tmp_path / "small", rank=1).merge_error > 0.5
    assert merge(STACK, TIES).save(tmp_path / "fit", size_bytes=20_000).merge_error > 0.3
