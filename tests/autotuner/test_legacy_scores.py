"""The scores of old, against their formulas done the slow way in NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lora_alloy import Recipe, merge
from lora_alloy.analysis.measure import measure
from lora_alloy.autotuner.legacy_scores import Metrics, expected_norm, legacy_score, metrics
from lora_alloy.autotuner.looking import Look
from lora_alloy.core.errors import RecipeError
from lora_alloy.lora.factors import LowRank
from lora_alloy.lora.full import Dense
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy.lora.target import Target
from lora_alloy.merging.patch import Patch
from lora_alloy_testing.builders import dense, file_of, toy_lora


def entries() -> list[Entry]:
    strengths = ((1.0, 0.5), (-0.6, 0.8), (0.3, 0.3))
    return [
        Entry(file_of(toy_lora(seed, rank=2 + seed), f"lora {seed}"), *strengths[seed]) for seed in range(3)
    ]


def thin(rows: int, columns: int, rank: int, seed: int) -> Patch:
    generator = torch.Generator().manual_seed(seed)
    up, down = torch.randn(rows, rank, generator=generator), torch.randn(rank, columns, generator=generator)
    delta = LowRank(up, down, 1.0, (rows, columns))
    return Patch(Target(f"a.{seed}"), delta, 0.0, norm=float((up @ down).norm()))


def whole(matrix: np.ndarray, name: str = "b") -> Patch:
    made = torch.from_numpy(matrix).float()
    return Patch(Target(name), Dense(made, 1.0, tuple(made.shape)), 0.0, norm=float(made.norm()))


def entropy_rank(values: np.ndarray) -> float:
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def test_norms_sparsity_and_energy_are_those_of_the_formulas():
    generator = np.random.default_rng(0)
    sparse = generator.normal(size=(40, 30)) * (generator.random((40, 30)) < 0.3)
    patches = [thin(20, 16, 3, 1), whole(sparse)]
    found = metrics(patches, expected=2.0)
    norms = np.array([np.linalg.norm(dense([one])[str(one.target)]) for one in patches])
    assert found.norm == pytest.approx(norms.mean())
    assert found.norm_cv == pytest.approx(norms.std() / norms.mean())
    shares = [(np.abs(m) < 0.01 * np.abs(m).max()).mean() for m in (dense(patches[:1])["a.1"], sparse)]
    assert found.sparsity == pytest.approx(np.mean(shares))
    assert found.energy_ratio == pytest.approx(np.sqrt((norms**2).sum()) / 2.0)
    assert found.energy_preservation == 1.0 and found.effective_rank is None


def test_effective_ranks_are_looked_at_where_it_is_asked_and_nowhere_else():
    generator = np.random.default_rng(1)
    matrix = generator.normal(size=(12, 20))
    patches = [thin(20, 16, 3, 1), whole(matrix)]
    of_whole = entropy_rank(np.linalg.svd(matrix, compute_uv=False))
    up = patches[0].up.double().numpy()
    of_factor = entropy_rank(np.linalg.svd(up, compute_uv=False))
    for spectra, expected in (
        ("merge_quality", of_whole),
        ("lora_rank", of_factor),
        ("full", (of_whole + of_factor) / 2),
    ):
        assert metrics(patches, 1.0, spectra).effective_rank == pytest.approx(expected, rel=1e-5)


def test_the_expected_norm_is_that_of_the_average_of_what_blends():
    given = entries()
    given[2] = replace(given[2], preserve=True)
    stack = build_stack(given)
    measured = measure(stack)
    plain = [dense(merge([replace(one, strength=1.0, clip_strength=1.0)])) for one in given[:2]]
    total = {True: 0.0, False: 0.0}
    for is_clip in (False, True):
        strengths = [one.strength_on_clip if is_clip else one.strength for one in given[:2]]
        names = [name for name in plain[0] if name.startswith("text_encoders") is is_clip]
        flat = [np.concatenate([one[name].ravel() for name in names]) for one in plain]
        summed = sum(weight * delta for weight, delta in zip(strengths, flat, strict=True))
        weight = np.abs(strengths).sum() ** 2
        total[False] += (summed**2).sum() / weight
        total[True] += (
            sum((w * delta) @ (w * delta) for w, delta in zip(strengths, flat, strict=True)) / weight
        )
    for is_orthogonal, energy in total.items():
        found = expected_norm(stack, measured, is_orthogonal=is_orthogonal)
        assert found == pytest.approx(np.sqrt(energy), rel=1e-5)


def test_scores_are_those_of_the_formulas():
    plain, sparse = Recipe(), Recipe(sparsify="dare")
    seen = Metrics(1.0, 0.2, 0.3, None, 0.9)
    # v2 wants the density of the preset: 0.3 of sd_unet is met, 0.2 of dit missed by 0.1; v1 wants 0.4.
    assert legacy_score("v2", seen, plain, "sd_unet") == pytest.approx(0.5 * 0.8 + 0.5 * 1.0)
    assert legacy_score("v2", seen, plain, "dit") == pytest.approx(0.5 * 0.8 + 0.5 * 0.8)
    assert legacy_score("v1", seen, plain, "dit") == pytest.approx(0.5 * 0.8 + 0.5 * 0.8)
    assert legacy_score("v2", seen, sparse, "sd_unet") == pytest.approx(0.5 * 0.8 + 0.5 * 0.5)
    ranked = replace(seen, effective_rank=10.0)
    expected = 0.30 * 0.25 + 0.25 * 0.8 + 0.20 * 0.9 + 0.25 * 1.0
    assert legacy_score("v2", ranked, plain, "sd_unet") == pytest.approx(expected)
    assert legacy_score("v1", ranked, plain, "llm") == pytest.approx(0.4 * 0.25 + 0.3 * 0.8 + 0.3 * 0.8)
    unknown = replace(seen, sparsity=None, norm_cv=3.0)
    assert legacy_score("v2", unknown, plain, "llm") == pytest.approx(0.25)


def test_a_look_sees_what_is_left_of_every_lora():
    given = entries()
    done = merge(given, Recipe(method="weighted_average"))
    seen = Look("full")(done.stack, done.measured, done.plan, done.patches)
    assert seen.retention == tuple(one.retention for one in done.report.sources)
    assert set(seen.legacy) == {"v1", "v2"} and all(0 <= score <= 1 for score in seen.legacy.values())
    assert seen.summary.n_loras == 3 and seen.summary.prefix_count == len(done.stack.groups)
    with pytest.raises(RecipeError, match="spectra"):
        Look("all")
