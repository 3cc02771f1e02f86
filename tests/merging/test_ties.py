"""TIES against numbers worked out by hand, against its formula entry by entry, and against PEFT."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.merging.methods import METHODS, ties
from lora_alloy.sparsify import dare
from lora_alloy_testing import dense_formulas, reference
from lora_alloy_testing.whole_or_tiled import merged

FORMS = [
    (vote, divisor, unit)
    for vote in ("auto", "frequency", "total")
    for divisor in ("mass", "count")
    for unit in ("entry", "row")
]


def by_hand(rows: list[list[float]], strengths: list[float], **settings: str) -> list[float]:
    """TIES on deltas of one row."""
    made = merged(ties, torch.tensor(rows)[:, None], torch.tensor(strengths), **settings)
    return [round(value, 6) for value in made[0].tolist()]


def scattered(seed: int, share: float, size: float = 1.0) -> Tensor:
    """`(4, 6, 7)`, of which about `share` of the entries are not 0, on a coarse grid so that votes tie."""
    chance = np.random.default_rng(seed)
    values = np.round(chance.normal(size=(4, 6, 7)) * 4) / 4
    return torch.from_numpy(values * (chance.random((4, 6, 7)) < share) * size).float()


def test_the_average_is_of_those_that_agree():
    # 3 of plus against 1 of minus; 1 against 2; alone; nobody.
    rows = [[1.0, 2.0, 0.0, 0.0], [2.0, -1.0, 0.0, 0.0], [3.0, -3.0, 5.0, 0.0], [-9.0, 0.0, 0.0, 0.0]]
    assert by_hand(rows, [1.0] * 4, vote="frequency") == [2.0, -2.0, 5.0, 0.0]


def test_total_votes_go_by_what_they_change():
    rows = [[1.0, 0.5], [2.0, 0.5], [-9.0, -0.75]]
    assert by_hand(rows, [1.0] * 3, vote="total") == [-9.0, 0.5]
    assert by_hand(rows, [1.0] * 3, vote="frequency") == [1.5, 0.5]


def test_total_votes_count_strengths():
    """Unlike the seed's: at a tenth of its strength, -9 is -0.9, and no longer outweighs 1 + 2."""
    assert by_hand([[1.0], [2.0], [-9.0]], [1.0, 1.0, 0.1], vote="total") == [1.5]


def test_mass_divides_by_the_strengths_of_those_that_agree_and_count_by_their_number():
    rows = [[4.0], [1.0], [-9.0]]
    # (1·4 + 0.5·1) / 1.5, and / 2.
    assert by_hand(rows, [1.0, 0.5, 0.25], vote="frequency", divisor="mass") == [3.0]
    assert by_hand(rows, [1.0, 0.5, 0.25], vote="frequency", divisor="count") == [2.25]


def test_a_lora_of_negative_strength_votes_against_what_it_has():
    assert by_hand([[3.0], [2.0], [-4.0]], [1.0, -1.0, 1.0], vote="frequency") == [-3.0]


def test_a_tied_vote_goes_to_the_majority_of_the_target():
    # Two entries are won by minus, one by plus; the last is tied.
    assert by_hand([[-1.0, -2.0, 5.0, 4.0], [-3.0, -2.0, 1.0, -4.0]], [1.0, 1.0], vote="frequency") == [
        -2.0,
        -2.0,
        3.0,
        -4.0,
    ]
    assert by_hand([[1.0, 2.0, -5.0, 4.0], [3.0, 2.0, -1.0, -4.0]], [1.0, 1.0], vote="frequency")[3] == 4.0


def test_a_tied_vote_goes_to_plus_where_the_target_is_tied_too():
    assert by_hand([[-1.0, 2.0, 4.0], [-3.0, 2.0, -4.0]], [1.0, 1.0], vote="frequency") == [-2.0, 2.0, 4.0]


def test_three_tenths_against_a_tenth_and_two_tenths_is_a_tie_in_any_order():
    for rows in ([[1.0], [2.0], [-3.0]], [[-3.0], [1.0], [2.0]], [[2.0], [-3.0], [1.0]]):
        given = torch.tensor(rows)[:, None] * 0.125
        assert float(ties.partial(given, torch.ones(3), vote="total")) == 0.0


def test_a_row_is_elected_as_one():
    # Sums of the rows: 3 and -2 against 1 and 4: the first LoRA wins row 0 with 3 + 1, row 1 goes to the second.
    first, second = [[4.0, -1.0], [-3.0, 1.0]], [[2.0, -1.0], [5.0, -1.0]]
    made = merged(ties, torch.tensor([first, second]), torch.ones(2), vote="total", unit="row")
    assert made.tolist() == [[3.0, -1.0], [5.0, -1.0]]


@pytest.mark.parametrize(
    ("norms", "strengths", "expected"),
    [
        ([1.0, 2.0], [1.0, 1.0], "frequency"),
        ([1.0, 2.1], [1.0, 1.0], "total"),
        ([1.0, 2.1], [1.0, 0.5], "frequency"),
        ([1.0, 1.0], [1.0, -0.4], "total"),
        ([3.0, 3.0, 1.0], [1.0, 1.0, 1.0], "total"),
        ([3.0, 0.0, 2.0], [1.0, 1.0, 1.0], "frequency"),
        ([0.0, 0.0], [1.0, 1.0], "frequency"),
    ],
)
def test_auto_goes_by_the_norms_at_strength(norms, strengths, expected):
    gram = torch.tensor(norms, dtype=torch.float64).square().diag()
    given = torch.tensor(strengths, dtype=torch.float64)
    assert ties.settled_vote("auto", gram, given) == expected
    assert ties.settled_vote("total", gram, given) == "total"


@pytest.mark.parametrize(("vote", "divisor", "unit"), FORMS)
@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("strengths", [[1.0] * 4, [0.75, -0.5, 1.25, 0.25], [-1.0, -1.0, 1.0, 0.5]])
def test_ties_equals_its_formula_entry_by_entry(vote, divisor, unit, share, strengths):
    given = scattered(1, share)
    expected = dense_formulas.ties(list(given.double().numpy()), strengths, vote, divisor, unit)
    found = merged(ties, given, torch.tensor(strengths), vote=vote, divisor=divisor, unit=unit)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("vote", "divisor", "unit"), FORMS)
def test_ties_in_the_shared_basis_is_ties_on_its_blocks(vote, divisor, unit):
    chance = np.random.default_rng(5)
    given = [chance.normal(size=(20, 3)) @ chance.normal(size=(3, 15)) for _ in range(3)]
    basis, blocks = dense_formulas.knots_blocks(given)
    strengths = [0.75, -0.5, 1.25]
    settled = reference.vote_of(given, strengths) if vote == "auto" else vote
    # A decomposition leaves the signs of its directions open, and a tie would go by them; three LoRAs tie nowhere.
    expected = basis @ dense_formulas.ties(blocks, strengths, settled, divisor, unit)
    found = merged(
        METHODS["knots_ties"],
        torch.from_numpy(np.stack(given)).float(),
        torch.tensor(strengths),
        vote=vote,
        divisor=divisor,
        unit=unit,
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=2e-5 * abs(expected).max())


class TestAgainstPeft:
    """PEFT trims, votes with the deltas alone, takes a tie as plus, and divides by the count.

    Its names and ours, and where they part:

    - `dare_linear` and `magnitude_prune` are a `weighted_sum` behind `dare` and behind `trim`: one formula, but for
      what is drawn. Our draw goes by file and target, PEFT's by its generator.
    - `ties` and `dare_ties` with the divisor `count` are ours where no vote is tied and all strengths are of one sign:
      a tie goes to the target's majority here and to plus there, `total` counts strengths here and none there, and a
      negative strength turns a LoRA round before the vote here and after it there. Our default divisor, `mass`, is the
      seed's and not PEFT's.
    - PEFT rounds the number of entries that stay down and picks one of equal ones; we round to the nearest and keep all
      of them.
    """

    @pytest.fixture
    def peft(self) -> ModuleType:
        """The one file that has its merges: the whole package takes seconds to import."""
        found = importlib.util.find_spec("peft")
        if found is None or found.origin is None:
            pytest.skip("PEFT is the reference")
        path = Path(found.origin).parent / "utils" / "merge_utils.py"
        spec = importlib.util.spec_from_file_location("peft_merge_utils", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    @pytest.mark.parametrize("vote", ["frequency", "total"])
    @pytest.mark.parametrize("strengths", [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5], [0.5, 1.0, 0.75]])
    def test_they_agree_where_the_definitions_do(self, peft, vote, strengths):
        given = torch.randn(3, 20, 30, generator=torch.Generator().manual_seed(1))
        trimmed = [reference.trim(delta, 0.5) for delta in given.double().numpy()]
        trimmed = torch.from_numpy(np.stack(trimmed)).float()
        expected = peft.ties(list(given), torch.tensor(strengths), 0.5, majority_sign_method=vote)
        found = merged(ties, trimmed, torch.tensor(strengths), vote=vote, divisor="count")
        ballots = torch.sign(trimmed) if vote == "frequency" else trimmed
        weights = torch.tensor(strengths if vote == "total" else [1.0] * 3)[:, None, None]
        # Not where a vote is tied, and not where the strengths turn one: those are our departures.
        same = torch.sign(ballots.sum(0)) * torch.sign((ballots * weights).sum(0)) > 0
        torch.testing.assert_close(found[same], expected[same], rtol=1e-6, atol=1e-6)
        assert float(same.float().mean()) > 0.6

    def test_they_agree_about_ties_where_plus_has_the_majority(self, peft):
        given = torch.tensor([[[4.0, 3.0, 0.0]], [[-4.0, 1.0, 0.0]]])
        expected = peft.ties(list(given), torch.ones(2), 0.7, majority_sign_method="frequency")
        assert expected.tolist() == [[4.0, 2.0, 0.0]]
        assert merged(ties, given, torch.ones(2), vote="frequency", divisor="count").equal(expected)
        # Where minus has it, they part.
        assert merged(ties, -given, torch.ones(2), vote="frequency").tolist() == [[-4.0, -2.0, 0.0]]
        assert peft.ties(list(-given), torch.ones(2), 0.7, "frequency").tolist() == [[4.0, -2.0, 0.0]]

    def test_a_negative_strength_turns_a_lora_round_before_the_vote_and_in_peft_after_it(self, peft):
        given, strengths = torch.tensor([[[3.0, 0.0]], [[-2.0, 0.0]]]), torch.tensor([1.0, -1.0])
        # Turned round, both push to plus: (3 + 2) / 2. PEFT elects plus by 3 - 2, and leaves the second out.
        assert merged(ties, given, strengths, divisor="count").tolist() == [[2.5, 0.0]]
        assert peft.ties(list(given), strengths, 0.5, "total").tolist() == [[3.0, 0.0]]

    def test_dare_ties_is_ties_on_the_same_draw(self, peft):
        given = torch.randn(3, 20, 30, generator=torch.Generator().manual_seed(2))
        strengths = torch.full((3,), 0.75)
        torch.manual_seed(0)
        expected = peft.dare_ties(list(given), strengths, 0.6, "total")
        torch.manual_seed(0)
        thinned = torch.stack([torch.bernoulli(torch.full_like(delta, 0.6)) * delta / 0.6 for delta in given])
        found = merged(ties, thinned, strengths, vote="total", divisor="count")
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)

    def test_dare_linear_is_a_sum_on_the_same_draw(self, peft):
        given, strengths = scattered(3, 1.0), torch.tensor([0.5, 1.0, -0.75, 0.25])
        torch.manual_seed(0)
        expected = peft.dare_linear(list(given), strengths, 0.6)
        torch.manual_seed(0)
        kept = [torch.bernoulli(torch.full_like(delta, 0.6)) for delta in given]
        draws = [torch.where(one > 0, 0.0, 0.9) for one in kept]
        thinned = [
            dare.sparsify(delta, density=0.6, uniform=drawn)
            for delta, drawn in zip(given, draws, strict=True)
        ]
        found = merged(METHODS["weighted_sum"], torch.stack(thinned), strengths)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)

    def test_magnitude_prune_is_a_sum_of_trimmed_deltas(self, peft):
        given, strengths = scattered(3, 1.0) + 0.01, torch.tensor([0.5, 1.0, -0.75, 0.25])
        given += 1e-4 * torch.arange(given[0].numel()).reshape(given[0].shape)  # no two magnitudes alike
        trimmed = np.stack([reference.trim(delta, 0.5) for delta in given.double().numpy()])
        found = merged(METHODS["weighted_sum"], torch.from_numpy(trimmed).float(), strengths)
        torch.testing.assert_close(found, peft.magnitude_prune(list(given), strengths, 0.5))
