"""Sign conflict: exact where the whole weight is looked at, within a statistical bound where it is sampled."""

from math import acos, pi, sqrt

import numpy as np
import pytest
import torch

from lora_alloy.analysis.conflict import COLUMNS, ROWS, baseline, sign_conflict
from lora_alloy.lora.factors import LowRank
from lora_alloy_testing.builders import Factors, file_of, noise

NAME = "lora_unet_blocks_0_attn_q"


def loaded(factors: Factors) -> LowRank:
    file = file_of({NAME: factors})
    return file.load(file.modules[NAME])


def dense_share(first: np.ndarray, second: np.ndarray) -> float:
    """Of the entries that both change, the share with opposite signs: counted one by one."""
    both = (first != 0) & (second != 0)
    return float((np.sign(first) != np.sign(second))[both].mean()) if both.any() else 0.0


@pytest.mark.parametrize("shape", [(24, 16), (64, 512), (12, 8, 3, 3), (1, 40), (40, 1)], ids=str)
def test_a_weight_no_larger_than_the_sample_is_counted_exactly(shape):
    factors = [noise(shape, 3, seed=n, alpha=a) for n, a in enumerate((3.0, -2.0, 1.0))]
    found = sign_conflict([loaded(one) for one in factors], NAME).numpy()
    for a in range(3):
        assert found[a, a] == 0
        for b in range(3):
            if a != b:
                assert found[a, b] == pytest.approx(
                    dense_share(factors[a].delta, factors[b].delta), abs=1e-12
                )


@pytest.mark.parametrize("mixture", [-0.9, -0.3, 0.0, 0.5, 0.95])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_sample_of_a_larger_weight_lies_within_its_statistical_bound(mixture, seed):
    """Rows of a low-rank delta are not independent entries: the bound is that of 64 rows, five deviations."""
    one, other = noise((700, 900), 16, seed=seed), noise((700, 900), 16, seed=seed + 50)
    mixed = Factors(
        torch.cat([mixture * one.up, sqrt(1 - mixture**2) * other.up], 1), torch.cat([one.down, other.down])
    )
    found = float(sign_conflict([loaded(one), loaded(mixed)], f"target {seed}")[0, 1])
    signs = np.sign(one.delta) != np.sign(mixed.delta)
    by_row, by_column = signs.mean(1).std() / sqrt(ROWS), signs.mean(0).std() / sqrt(COLUMNS)
    bound = 5 * sqrt(by_row**2 + by_column**2 + 0.25 / (ROWS * COLUMNS))
    assert abs(found - signs.mean()) < bound
    assert bound < 0.05


def test_entries_that_only_one_of_them_changes_do_not_count():
    left, right = noise((24, 16), 3, seed=1), noise((24, 16), 3, seed=2)
    left.up[:6] = 0
    right.up[12:] = 0
    found = float(sign_conflict([loaded(left), loaded(right)], NAME)[0, 1])
    assert found == pytest.approx(dense_share(left.delta[6:12], right.delta[6:12]))


def test_loras_that_share_no_entry_have_no_conflict():
    left, right = noise((24, 16), 3, seed=1), noise((24, 16), 3, seed=2)
    left.up[:12] = 0
    right.up[12:] = 0
    assert float(sign_conflict([loaded(left), loaded(right)], NAME)[0, 1]) == 0.0


def test_a_lora_never_conflicts_with_itself_and_always_with_its_opposite():
    one = noise((24, 16), 3, seed=1)
    found = sign_conflict([loaded(one), loaded(one), loaded(one.times(-0.5))], NAME)
    assert found.tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]


def test_strength_and_size_do_not_matter():
    one, other = noise((24, 16), 3, seed=1), noise((24, 16), 3, seed=2)
    plain = sign_conflict([loaded(one), loaded(other)], NAME)
    assert sign_conflict([loaded(one.times(100.0)), loaded(other.times(1e-3))], NAME).equal(plain)


@pytest.mark.parametrize(("cosine", "expected"), [(1.0, 0.0), (0.0, 0.5), (-1.0, 1.0), (0.5, 1 / 3)])
def test_the_baseline_is_the_angle_over_a_half_turn(cosine, expected):
    assert float(baseline(torch.tensor(cosine, dtype=torch.float64))) == pytest.approx(expected)


def test_gaussian_deltas_of_a_known_cosine_disagree_as_often_as_the_baseline_says():
    random = np.random.default_rng(1)
    for cosine in (-0.8, 0.0, 0.3, 0.9):
        first = random.normal(size=400_000)
        second = cosine * first + sqrt(1 - cosine**2) * random.normal(size=400_000)
        chance = float(baseline(torch.tensor(cosine, dtype=torch.float64)))
        assert dense_share(first, second) == pytest.approx(chance, abs=0.004)
        assert chance == pytest.approx(acos(cosine) / pi)
