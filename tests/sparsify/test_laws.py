"""Laws that hold for every sparsifier of the registry."""

from inspect import signature
from types import ModuleType

import pytest
import torch
from torch import Tensor

from lora_alloy.core.errors import RecipeError
from lora_alloy.core.params import checked, explained, settable
from lora_alloy.core.quantile import kept_count, magnitude_thresholds
from lora_alloy.core.rng import uniform
from lora_alloy.sparsify import SPARSIFIERS

every = pytest.mark.parametrize("sparsifier", SPARSIFIERS.values(), ids=SPARSIFIERS)
random = pytest.mark.parametrize("name", ["dare", "della", "dare_conflict", "della_conflict"])
ENGINE = {"threshold", "uniform", "contested"}


def hostile() -> dict[str, Tensor]:
    """Deltas `(t, c)` of every awkward kind."""
    chance = torch.Generator().manual_seed(3)
    plain = torch.randn(24, 40, generator=chance)
    huge = plain.clone()
    huge[5, 6] = 3e37
    return {
        "plain": plain,
        "one huge entry": huge,
        "zero": torch.zeros(24, 40),
        "equal": torch.full((24, 40), 0.2),
        "of rank 1": plain[:, :1] @ plain[:1],
        "one row": plain[:1],
        "one column": plain[:, :1],
        "one entry": plain[:1, :1],
        "subnormal": plain * 1e-41,
    }


def sparse(sparsifier: ModuleType, delta: Tensor, rows: slice = slice(None), **given: float) -> Tensor:
    """Some rows of a delta, sparsified as an engine does it; every other column is contested."""
    density = given.get("density", settable(sparsifier.sparsify)["density"].default)
    start, stop, _ = rows.indices(len(delta))
    tile = delta[rows]
    offered = {
        "threshold": magnitude_thresholds(
            lambda: iter([delta[None]]), delta.numel(), kept_count(delta.numel(), density)
        )[0],
        "uniform": uniform((stop - start, delta.shape[1]), seed=1, content="a", target="b", start=start),
        "contested": (torch.arange(delta.shape[1]) % 2 == 0).expand_as(tile),
    }
    asked = signature(sparsifier.sparsify).parameters
    return sparsifier.sparsify(
        tile, **given, **{name: value for name, value in offered.items() if name in asked}
    )


def test_the_names_that_workflows_store_are_there():
    assert list(SPARSIFIERS) == ["trim", "dare", "della", "dare_conflict", "della_conflict"]
    assert SPARSIFIERS["dare-conflict"] is SPARSIFIERS["dare_conflict"]
    with pytest.raises(RecipeError, match=r"No sparsifier is called 'dela'. Did you mean 'della'\?"):
        SPARSIFIERS["dela"]


@every
def test_a_user_sets_what_has_a_default_and_the_engine_gives_the_rest(sparsifier):
    known = settable(sparsifier.sparsify)
    assert known["density"].span is not None
    assert set(explained(sparsifier.sparsify)) == set(known)
    assert set(signature(sparsifier.sparsify).parameters) - set(known) - {"delta"} <= ENGINE
    assert checked(sparsifier.sparsify, {"density": 0.3}, "x")["density"] == 0.3
    for density in (0.0, 1.01):
        with pytest.raises(RecipeError, match="density"):
            checked(sparsifier.sparsify, {"density": density}, "x")


@every
@pytest.mark.parametrize("kind", hostile())
def test_a_density_of_one_changes_not_a_bit(sparsifier, kind):
    delta = hostile()[kind]
    found = sparse(sparsifier, delta, density=1.0)
    assert torch.equal(found.view(torch.int32), delta.view(torch.int32))


@every
@pytest.mark.parametrize("kind", hostile())
@pytest.mark.parametrize("density", [0.01, 0.3, 0.7, 0.99])
def test_what_stays_is_finite_and_keeps_its_sign(sparsifier, kind, density):
    delta = hostile()[kind]
    before = delta.clone()
    found = sparse(sparsifier, delta, density=density)
    assert torch.equal(delta, before), "the input was changed"
    assert found.dtype == torch.float32 and found.shape == delta.shape
    assert bool(found.isfinite().all())
    assert bool(((found == 0) | (found.sign() == delta.sign())).all())
    assert bool((found[delta == 0] == 0).all())


@every
@pytest.mark.parametrize("height", [1, 5, 23])
def test_no_tiling_changes_a_bit(sparsifier, height):
    delta = hostile()["plain"]
    tiles = [sparse(sparsifier, delta, slice(row, row + height)) for row in range(0, 24, height)]
    assert torch.equal(torch.cat(tiles), sparse(sparsifier, delta))


@every
def test_the_sign_of_a_delta_does_not_matter_to_what_stays(sparsifier):
    delta = hostile()["plain"]
    assert torch.equal(sparse(sparsifier, -delta), -sparse(sparsifier, delta))


@every
def test_a_lower_density_never_brings_an_entry_back(sparsifier):
    delta = hostile()["plain"]
    gone = torch.zeros_like(delta, dtype=torch.bool)
    for density in (0.99, 0.8, 0.5, 0.2, 0.05):
        now = sparse(sparsifier, delta, density=density) == 0
        # DELLA's odds of one entry may rise while their range narrows, near the ends only.
        assert sparsifier.__name__.endswith(("della", "della_conflict")) or bool((now | ~gone).all())
        assert int(now.sum()) > int(gone.sum())
        gone = now


@random
@pytest.mark.parametrize("density", [0.02, 0.25, 0.5, 0.7, 0.95])
def test_the_share_that_stays_is_the_density(name, density):
    chance = torch.Generator().manual_seed(5)
    delta = torch.randn(400, 500, generator=chance)
    found = sparse(SPARSIFIERS[name], delta, density=density)
    # Every other column is contested; there the magnitudes are as everywhere.
    considered = found[:, ::2] if "conflict" in name else found
    spread = (density * (1 - density) / considered.numel()) ** 0.5
    assert abs(float((considered != 0).double().mean()) - density) < 4 * spread
    if "conflict" in name:
        assert torch.equal(found[:, 1::2], delta[:, 1::2])


@random
@pytest.mark.parametrize("density", [0.1, 0.5, 0.8])
def test_the_expectation_is_the_delta_itself(name, density):
    """Mean and variance over 600 seeds, of each entry by itself."""
    module, draws = SPARSIFIERS[name], 600
    delta = torch.randn(6, 50, generator=torch.Generator().manual_seed(9))
    delta[1] = delta[1].round()  # equal magnitudes
    contested = torch.ones_like(delta, dtype=torch.bool)
    extra = {"contested": contested} if "conflict" in name else {}
    total, squares = torch.zeros(2, 6, 50, dtype=torch.float64)
    for seed in range(draws):
        numbers = uniform((6, 50), seed=seed, content="a", target="b", start=0)
        found = module.sparsify(delta, density=density, uniform=numbers, **extra).double()
        total += found
        squares += found.square()
    present = delta != 0
    error = (total / draws - delta)[present]
    spread = ((squares / draws - (total / draws).square()).clamp(min=0)[present] / draws).sqrt()
    strayed = error[spread > 0] / spread[spread > 0]
    if density >= 0.5:  # below, the odds of the smallest entries are too low for 600 draws to show a spread
        assert float(strayed.abs().max()) < 4.5
        assert abs(float(strayed.square().mean()) - 1) < 0.35
    # And as a whole: the part of the delta that is left along itself is 1.
    along = float((total / draws * delta).sum() / delta.double().square().sum())
    assert abs(along - 1) < 0.02


def test_dampening_takes_from_making_up_for_it_to_leaving_it():
    delta = hostile()["plain"]
    factors = []
    for dampening in (0.0, 0.5, 1.0):
        found = sparse(SPARSIFIERS["dare"], delta, density=0.25, dampening=dampening)
        stays = found != 0
        factors.append((found[stays] / delta[stays]).unique())
    torch.testing.assert_close(
        torch.cat([factor.mean()[None] for factor in factors]), torch.tensor([4.0, 2, 1])
    )
