"""The error a merge states, against the error measured on dense float64 arrays."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lora_alloy.api import Merged, load, merge
from lora_alloy.core.errors import ProofError, SaveError
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import (
    Factors,
    dense,
    difference,
    entry_of,
    file_of,
    noise,
    toy_lora,
    write_lora,
)

FLOAT32 = 5e-7  # of the products and sums themselves, which no error states
NAME = "lora_unet_blocks_0_q"


def planned(result: Merged, factor: float = 1.0) -> dict[str, np.ndarray]:
    """`Σ coefficient · delta` of the plan, on dense float64 deltas of the stored factors."""
    exact: dict[str, np.ndarray] = {}
    for group, target in zip(result.stack.groups, result.plan.targets, strict=True):
        deltas = []
        for delta in result.stack.load(group):
            up, down = delta.up.double().numpy(), delta.down.double().numpy()
            deltas.append(delta.scale * up @ down)
        total = sum(c * delta for c, delta in zip(target.coefficients, deltas, strict=True))
        exact[str(target.target)] = factor * total
    return exact


def compared(result: Merged) -> list[tuple[str, float, float]]:
    """Per target: its name, the error that is stated, the error that is measured."""
    exact, found = planned(result), dense(result)
    return [
        (
            str(patch.target),
            patch.error,
            difference(
                found[str(patch.target)].reshape(exact[str(patch.target)].shape), exact[str(patch.target)]
            ),
        )
        for patch in result
    ]


def stacks() -> dict[str, list[dict[str, Factors]]]:
    return {
        "plain": [toy_lora(n, rank=4, alpha=2.0) for n in range(3)],
        "of powers of ten": [toy_lora(0, size=1e-3), toy_lora(1, size=1.0), toy_lora(2, size=10.0)],
        "of 1e-4": [toy_lora(n, size=1e-4) for n in range(2)],
        "lopsided": [{NAME: Factors(*(1e-4 * noise((24, 16), 4).up, 1e3 * noise((24, 16), 4).down))}],
        "of falling values": [
            {
                NAME: Factors(
                    noise((40, 30), 12, seed=n).up * 0.5 ** torch.arange(12), noise((40, 30), 12, seed=n).down
                )
            }
            for n in range(2)
        ],
        "with one huge entry": [{NAME: spiked(n)} for n in range(2)],
        "above both sizes": [{NAME: noise((6, 5), 8, seed=n)} for n in range(3)],
    }


def spiked(seed: int) -> Factors:
    factors = noise((24, 16), 4, seed=seed)
    factors.up[3, 1] = 300.0
    return factors


@pytest.mark.parametrize("case", stacks())
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "shrink", [{}, {"rank": 2}, {"tolerance": 0.1}, {"rank": 5, "tolerance": 0.01}], ids=str
)
def test_the_stated_error_is_the_measured_one(case, dtype, shrink):
    """Never less, and at most a twentieth more; the two parts of it are counted as independent."""
    stack = [Entry(file_of(lora), 0.9 - 0.3 * n) for n, lora in enumerate(stacks()[case])]
    for name, stated, measured in compared(merge(stack, Recipe(dtype=dtype, **shrink))):
        assert measured <= 1.03 * stated + FLOAT32, name
        assert stated <= 1.1 * measured + FLOAT32, name


@pytest.mark.parametrize("tolerance", [0.3, 0.1, 0.01])
def test_a_tolerance_is_kept_and_no_rank_is_wasted(tolerance):
    stack = [Entry(file_of(lora)) for lora in stacks()["of falling values"]]
    (patch,) = merge(stack, Recipe(tolerance=tolerance))
    (exact,) = planned(merge(stack)).values()
    values = np.linalg.svd(exact, compute_uv=False)
    tails = np.sqrt((values[::-1] ** 2).cumsum()[::-1]) / np.linalg.norm(values)
    assert patch.rank == int((tails > tolerance).sum())


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_a_rank_gives_the_best_approximation_there_is(rank):
    stack = [Entry(file_of(lora)) for lora in stacks()["plain"]]
    result = merge(stack, Recipe(rank=rank))
    exact = planned(result)
    for patch, found in zip(result, dense(result).values(), strict=True):
        flat = exact[str(patch.target)]
        left, values, right = np.linalg.svd(flat, full_matrices=False)
        best = left[:, :rank] * values[:rank] @ right[:rank]
        assert np.linalg.norm(found.reshape(flat.shape) - best) < 1e-5 * np.linalg.norm(flat)
        assert patch.rank == min(rank, *flat.shape)


def test_the_rank_of_a_result_is_that_of_its_parts_or_of_its_weight():
    for patch in merge([Entry(file_of(lora)) for lora in stacks()["plain"]]):
        assert patch.rank == min(12, patch.up.shape[0], patch.down.shape[1])
    (patch,) = merge([Entry(file_of(lora)) for lora in stacks()["above both sizes"]])
    assert patch.rank == 5


def test_factors_of_1e_minus_4_survive_half_precision():
    """Their delta is of 1e-8, below what half precision holds; factors balanced by powers of two hold it."""
    stack = [Entry(file_of(toy_lora(n, size=1e-4, dtype=torch.float16))) for n in range(2)]
    result = merge(stack)
    assert all(patch.up.dtype == torch.float16 for patch in result)
    assert max(measured for _, _, measured in compared(result)) < 2e-3


def test_what_half_precision_cannot_hold_is_refused_and_float32_offered():
    huge = {NAME: Factors(noise((24, 16), 4).up * 1e6, noise((24, 16), 4).down * 1e6)}
    with pytest.raises(
        ProofError, match="too large for float16; merge in float32 .`--dtype float32`., or lower"
    ):
        merge([Entry(file_of(huge))], Recipe(dtype="float16"))
    merge([Entry(file_of(huge))], Recipe(dtype="bfloat16"))


@pytest.mark.parametrize(
    ("inputs", "output"),
    [
        (["float16"], "float16"),
        (["bfloat16"], "bfloat16"),
        (["float32"], "float32"),
        (["float64"], "float32"),
        (["float8_e4m3fn"], "float16"),
        (["float16", "bfloat16"], "float16"),
        (["bfloat16", "float32"], "float32"),
    ],
    ids=str,
)
def test_the_result_has_the_widest_dtype_of_its_inputs(inputs, output):
    stack = []
    for n, dtype in enumerate(inputs):
        lora = toy_lora(n, size=1.0)
        narrow = {
            name: Factors(*(one.to(getattr(torch, dtype)) for one in (f.up, f.down)))
            for name, f in lora.items()
        }
        stack.append(Entry(file_of(narrow)))
    assert {patch.up.dtype for patch in merge(stack)} == {getattr(torch, output)}


def test_opposite_loras_leave_nothing_and_say_no_nonsense():
    lora = toy_lora(1, dtype=torch.float16)
    turned = {name: factors.times(-1.0) for name, factors in lora.items()}
    for recipe in (Recipe(), Recipe(method="weighted_sum"), Recipe(method="karcher"), Recipe(method="slerp")):
        result = merge([Entry(file_of(lora)), Entry(file_of(turned))], recipe)
        for patch, delta in zip(result, dense(result).values(), strict=True):
            assert np.abs(delta).max() < 1e-6
            assert np.isfinite(patch.error)


class TestASavedFile:
    """What is baked in on saving counts too."""

    @pytest.fixture
    def result(self, tmp_path: Path) -> Merged:
        paths = [
            write_lora(tmp_path / f"{n}.safetensors", toy_lora(n, rank=4, dtype=torch.float16))
            for n in range(2)
        ]
        return merge([entry_of(path, 0.9) for path in paths])

    def measured(self, result: Merged, path: Path, gain: float, clip_gain: float) -> float:
        """The largest error of the file against the exact merge times its gains."""
        file, worst = load(path), 0.0
        for name, exact in planned(result).items():
            factor = clip_gain if name.startswith("text_encoders.") else gain
            delta = file.load(file.modules[name])
            found = delta.scale * delta.up.double().numpy() @ delta.down.double().numpy()
            worst = max(worst, difference(found, factor * exact))
        return worst

    @pytest.mark.parametrize("gain", [1.0, 0.7, -1.3, 3.0, 0.0001])
    @pytest.mark.parametrize("rank", [0, 3])
    def test_states_an_error_that_is_the_measured_one(self, gain, rank, result, tmp_path):
        proof = result.save(tmp_path / "out.safetensors", gain=gain, clip_gain=1.7, rank=rank)
        worst = self.measured(result, tmp_path / "out.safetensors", gain, 1.7)
        assert worst <= 1.05 * proof.merge_error + FLOAT32
        assert proof.merge_error <= 2 * worst + FLOAT32

    def test_is_not_written_if_a_gain_makes_it_too_large(self, result, tmp_path):
        with pytest.raises(ProofError, match="too large"):
            result.save(tmp_path / "out.safetensors", gain=1e42)
        assert not (tmp_path / "out.safetensors").exists()

    @pytest.mark.parametrize("gain", [float("nan"), float("inf")])
    def test_is_not_written_with_a_gain_that_is_no_number(self, gain, result, tmp_path):
        with pytest.raises(SaveError, match="The gain is"):
            result.save(tmp_path / "out.safetensors", gain=gain)
        assert not (tmp_path / "out.safetensors").exists()
