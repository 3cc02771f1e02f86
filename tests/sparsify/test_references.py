"""Every sparsifier against its formula in slow float64 NumPy, against numbers by hand, and against PEFT."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.core.quantile import kept_count, magnitude_thresholds
from lora_alloy.core.rng import uniform
from lora_alloy.sparsify import dare, dare_conflict, della, della_conflict, trim

Array = np.ndarray


def trimmed(delta: Array, density: float) -> Array:
    """TIES: the largest share stays, and what is as large as the last of it."""
    kept = max(1, round(density * delta.size))
    threshold = sorted(abs(delta).flatten(), reverse=True)[kept - 1]
    return np.where(abs(delta) >= threshold, delta, 0.0)


def dropped(delta: Array, density: float, dampening: float, numbers: Array) -> Array:
    """DARE with the seed's factor."""
    mask = numbers < density
    return delta * mask / density ** (1 - dampening)


def drop_chances(row: Array, density: float) -> Array:
    """DELLA: `p = 1 − d − ε/2 + ε (rank + ½) / c`, rank 0 the largest; of equals the later one is larger."""
    count = len(row)
    epsilon = min(0.3, 2 * min(density, 1 - density))
    falling = sorted(range(count), key=lambda place: (-abs(row[place]), -place))
    chances = np.empty(count)
    for rank, place in enumerate(falling):
        chances[place] = 1 - density - epsilon / 2 + epsilon * (rank + 0.5) / count
    return chances


def pruned(delta: Array, density: float, numbers: Array) -> Array:
    """DELLA, row by row."""
    result = np.zeros_like(delta)
    for row, entries in enumerate(delta):
        chances = drop_chances(entries, density)
        stays = numbers[row] < 1 - chances
        result[row, stays] = entries[stays] / (1 - chances[stays])
    return result


def deltas() -> dict[str, Array]:
    """`(t, c)` float64 that float32 holds exactly."""
    random = np.random.default_rng(2)
    plain = random.normal(size=(40, 60)).astype(np.float32).astype(np.float64)
    huge = plain.copy()
    huge[0, 3] = 2.0**100
    return {
        "plain": plain,
        "one huge entry": huge,
        "many equal": np.round(plain),
        "all equal": np.full((5, 7), -0.5),
        "half zero": np.where(plain > 0, plain, 0.0),
        "zero": np.zeros((5, 7)),
        "one row": plain[:1],
        "one column": plain[:, :1],
    }


every_delta = pytest.mark.parametrize("delta", deltas().values(), ids=deltas())
every_density = pytest.mark.parametrize("density", [0.03, 0.1, 0.5, 0.7, 0.85, 0.97, 1.0])


def numbers_for(delta: Array) -> Tensor:
    return uniform(delta.shape, seed=4, content="file", target="target", start=0)


def trim_of(values: Tensor, density: float) -> Tensor:
    kept = kept_count(values.numel(), density)
    (threshold,) = magnitude_thresholds(lambda: iter([values[None]]), values.numel(), kept)
    return trim.sparsify(values, density=density, threshold=threshold)


@pytest.fixture(scope="module")
def peft() -> ModuleType:
    """PEFT's merge functions, from their file alone: the package itself takes ten seconds to import."""
    package = importlib.util.find_spec("peft")
    if package is None or package.origin is None:
        pytest.skip("needs peft")
    path = Path(package.origin).parent / "utils" / "merge_utils.py"
    spec = importlib.util.spec_from_file_location("peft_merge_utils", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@every_delta
@every_density
def test_trim_equals_its_formula(delta, density):
    found = trim_of(torch.from_numpy(delta).float(), density)
    np.testing.assert_array_equal(found.double().numpy(), trimmed(delta, density))


@every_delta
@every_density
@pytest.mark.parametrize("dampening", [0.0, 0.4, 1.0])
def test_dare_equals_its_formula(delta, density, dampening):
    numbers = numbers_for(delta)
    found = dare.sparsify(
        torch.from_numpy(delta).float(), density=density, dampening=dampening, uniform=numbers
    )
    expected = dropped(delta, density, dampening, numbers.double().numpy())
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=2e-7)


@every_delta
@every_density
def test_della_equals_its_formula(delta, density):
    numbers = numbers_for(delta)
    found = della.sparsify(torch.from_numpy(delta).float(), density=density, uniform=numbers)
    expected = pruned(delta, density, numbers.double().numpy())
    # Odds are multiples of 2⁻²⁴: at 0.03 the last ones of 60 are near 0.0005.
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=1e-4)


@every_delta
def test_conflict_variants_equal_the_plain_ones_where_contested_and_the_input_elsewhere(delta):
    values, numbers = torch.from_numpy(delta).float(), numbers_for(delta)
    contested = torch.rand(values.shape, generator=torch.Generator().manual_seed(1)) < 0.9
    pairs = [
        (dare.sparsify, dare_conflict.sparsify, {"density": 0.4, "dampening": 0.2}),
        (della.sparsify, della_conflict.sparsify, {"density": 0.4}),
    ]
    for plain, conflict, given in pairs:
        found = conflict(values, uniform=numbers, contested=contested, **given)
        everywhere = plain(values, uniform=numbers, **given)
        assert torch.equal(found[contested], everywhere[contested])
        assert torch.equal(found[~contested], values[~contested])


@pytest.mark.parametrize("count", [1, 2, 3, 10, 768, 12288])
@pytest.mark.parametrize("density", [0.01, 0.1, 0.149, 0.5, 0.85, 0.9, 0.99, 1.0])
def test_dellas_odds_average_to_the_density_and_favour_the_large(count, density):
    odds = della.chances(count, density).double()
    assert abs(float(odds.mean()) - density) < 2**-24
    assert float(odds.min()) > 0 and float(odds.max()) <= 1
    assert bool((odds.diff() >= 0).all())
    width = min(0.3, 2 * min(density, 1 - density)) * (count - 1) / count
    assert abs(float(odds[-1] - odds[0]) - width) < 1e-6


def test_dellas_odds_of_a_row_of_four_worked_out_by_hand():
    # d = 0.5, ε = 0.3: from 0.35 to 0.65 in four equal parts, and their middles.
    torch.testing.assert_close(della.chances(4, 0.5), torch.tensor([0.3875, 0.4625, 0.5375, 0.6125]))
    row = torch.tensor([[0.1, -4.0, 2.0, -2.0]])  # from the smallest: places 0, 2, 3, 1
    just = torch.tensor([[0.38, 0.61, 0.46, 0.54]])
    found = della.sparsify(row, density=0.5, uniform=just)
    torch.testing.assert_close(found, torch.tensor([[0.1 / 0.3875, -4 / 0.6125, 2 / 0.4625, 0.0]]))


def test_trim_of_six_worked_out_by_hand():
    values = torch.tensor([[3.0, -7.0, 0.5], [0.0, -0.5, 2.0]])
    assert trim_of(values, 0.5).tolist() == [[3.0, -7.0, 0.0], [0.0, 0.0, 2.0]]
    # Four of six would stay, but the fifth is as large as the fourth.
    assert trim_of(values, 0.66).tolist() == [[3.0, -7.0, 0.5], [0.0, -0.5, 2.0]]
    assert trim_of(values, 0.01).tolist() == [[0.0, -7.0, 0.0], [0.0, 0.0, 0.0]]


def test_trim_is_pefts_where_the_count_is_whole_and_no_two_magnitudes_are_equal(peft):
    values = torch.from_numpy(deltas()["plain"]).float()
    for density in (0.1, 0.25, 0.5, 0.75):
        assert torch.equal(trim_of(values, density), peft.prune(values, density, "magnitude"))


def test_trim_rounds_and_keeps_equals_where_peft_rounds_down_and_picks_one(peft):
    five = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]])
    assert int((trim_of(five, 0.55) != 0).sum()) == 3  # 2.75
    assert int((peft.prune(five, 0.55, "magnitude") != 0).sum()) == 2
    assert int((peft.prune(five, 0.1, "magnitude") != 0).sum()) == 0  # ours: never nothing
    assert int((trim_of(five, 0.1) != 0).sum()) == 1
    equal = torch.full((1, 4), 2.0)
    assert int((trim_of(equal, 0.5) != 0).sum()) == 4
    assert int((peft.prune(equal, 0.5, "magnitude") != 0).sum()) == 2


@pytest.mark.parametrize("density", [0.1, 0.5, 0.7])
def test_dare_is_pefts_on_the_same_draw(peft, density):
    values = torch.from_numpy(deltas()["plain"]).float()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = peft.prune(values, density, "random", rescale=True)
    same = torch.where(theirs != 0, 0.0, 0.999)
    torch.testing.assert_close(dare.sparsify(values, density=density, uniform=same), theirs)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        unscaled = peft.prune(values, density, "random", rescale=False)
    # Their DARE without rescaling is ours with full dampening.
    assert torch.equal(dare.sparsify(values, density=density, dampening=1.0, uniform=same), unscaled)
