"""The Gram matrix in factor space against dense float64 arrays, for every kind of delta and every hard case."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from lora_alloy.analysis.measure import measure
from lora_alloy.analysis.similarity import cosines, gram_matrix
from lora_alloy.core.errors import FileError
from lora_alloy.lora.factors import LowRank
from lora_alloy.lora.target import Part
from lora_alloy_testing.builders import Factors, entry_of, file_of, noise, stack_of, write_lora

NAME = "lora_unet_blocks_0_attn_q"


def loaded(*given: Factors) -> list[LowRank]:
    """Deltas as the engine reads them from files."""
    files = [file_of({NAME: factors}) for factors in given]
    return [file.load(file.modules[NAME]) for file in files]


def off_from_dense(deltas: Sequence[LowRank], expected: Sequence[np.ndarray]) -> float:
    """The largest error of a Gram entry, relative to the norms of its two deltas."""
    rows = np.stack([np.ravel(delta) for delta in expected])
    exact = rows @ rows.T
    norms = np.sqrt(exact.diagonal())
    off = abs(gram_matrix(deltas).numpy() - exact) / np.maximum(norms[:, None] * norms, 1e-300)
    return float(off.max())


KINDS = {
    "linear": [noise((24, 16), 4, seed=n) for n in range(3)],
    "of different ranks": [noise((24, 16), rank, seed=rank) for rank in (1, 3, 16, 40)],
    "with alphas": [noise((24, 16), 4, seed=n, alpha=a) for n, a in enumerate((1.0, 4.0, 0.5, 16.0, -2.0))],
    "one without alpha": [noise((24, 16), 4, seed=1), noise((24, 16), 4, seed=2, alpha=1.0)],
    "convolution 3x3": [noise((12, 8, 3, 3), 4, seed=n) for n in range(3)],
    "convolution 1x1": [noise((12, 8, 1, 1), 4, seed=n) for n in range(3)],
    "three-dimensional convolution": [noise((6, 5, 2, 3, 3), 4, seed=n) for n in range(2)],
    "with a Tucker mid": [
        noise((12, 8, 3, 3), 4, seed=n, has_mid=True, size=0.5, alpha=2.0) for n in range(3)
    ],
    "with and without a mid": [
        noise((12, 8, 3, 3), 4, seed=1),
        noise((12, 8, 3, 3), 2, seed=2, has_mid=True),
    ],
    "in half precision": [noise((24, 16), 4, seed=n, dtype=torch.float16) for n in range(3)],
    "in bfloat16": [noise((24, 16), 4, seed=n, dtype=torch.bfloat16) for n in range(3)],
    "in float64": [noise((24, 16), 4, seed=n, dtype=torch.float64) for n in range(3)],
    "of many rows": [noise((4096, 64), 8, seed=n) for n in range(2)],
}


@pytest.mark.parametrize("factors", KINDS.values(), ids=KINDS)
def test_gram_matrices_equal_dense_dot_products(factors):
    assert off_from_dense(loaded(*factors), [one.delta for one in factors]) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_gram_matrices_of_eight_bit_factors_are_exact_too(dtype):
    factors = [noise((24, 16), 4, seed=n, size=1.0, dtype=dtype) for n in range(3)]
    wide = [Factors(one.up.float(), one.down.float()) for one in factors]
    assert off_from_dense(loaded(*factors), [one.delta for one in wide]) < 1e-6


def adversarial() -> dict[str, list[Factors]]:
    one, other, rest = (noise((24, 16), 4, seed=n) for n in range(3))
    huge = noise((24, 16), 4, seed=3)
    huge.up[5, 2] = 3e4
    deficient = noise((24, 16), 6, seed=4)
    deficient.up[:, 3:] = deficient.up[:, :3]
    return {
        "identical": [one, one],
        "opposite": [one, one.times(-1.0)],
        "near-parallel": [one, Factors(one.up + 1e-5 * other.up, one.down)],
        "near-antipodal": [one, Factors(-one.up + 1e-5 * other.up, one.down)],
        "rank deficient": [deficient, one],
        "one huge entry": [huge, one],
        "tiny factors in half precision": [
            noise((24, 16), 4, seed=n, size=1e-4, dtype=torch.float16) for n in range(2)
        ],
        "tiny and large": [noise((24, 16), 4, seed=1, size=1e-4), noise((24, 16), 4, seed=2, size=1e3)],
        "rank above both sizes": [noise((6, 5), 12, seed=n) for n in range(2)],
        "one row": [noise((1, 16), 2, seed=n) for n in range(2)],
        "one column": [noise((24, 1), 2, seed=n) for n in range(2)],
        "zeros": [one.times(0.0), other, rest],
        "alpha of zero": [Factors(one.up, one.down, 0.0), other],
    }


@pytest.mark.parametrize("case", adversarial())
def test_gram_matrices_hold_in_hard_cases(case):
    factors = adversarial()[case]
    assert off_from_dense(loaded(*factors), [one.delta for one in factors]) < 1e-6


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        ((24, 16), Part(0, 0, 8)),
        ((24, 16), Part(0, 8, 16)),
        ((24, 16), Part(1, 4, 8)),
        ((12, 8, 3, 3), Part(0, 4, 4)),
        ((12, 8, 3, 3), Part(1, 2, 5)),
    ],
    ids=str,
)
def test_parts_of_fused_weights_are_rows_and_columns_of_the_dense_delta(shape, part):
    factors = [noise(shape, 4, seed=n, alpha=2.0) for n in range(3)]
    along = slice(part.start, part.start + part.length)
    expected = [one.delta[along] if part.axis == 0 else one.delta[:, along] for one in factors]
    parts = [delta.part(part) for delta in loaded(*factors)]
    assert off_from_dense(parts, expected) < 1e-6
    for found, wanted in zip(parts, expected, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found.dense().numpy(), wanted, rtol=0, atol=1e-6)


def test_swapped_halves_are_the_two_row_halves_exchanged():
    factors = noise((24, 16), 4, seed=1, alpha=2.0)
    swapped = loaded(factors)[0].halves_swapped()
    expected = np.concatenate([factors.delta[12:], factors.delta[:12]])
    np.testing.assert_allclose(swapped.dense().numpy(), expected, rtol=0, atol=1e-7)
    assert off_from_dense([swapped, *loaded(factors)], [expected, factors.delta]) < 1e-6


def test_cosines_are_those_of_the_dense_deltas_and_zero_beside_a_zero():
    first, second = noise((24, 16), 4, seed=1), noise((24, 16), 4, seed=2)
    found = cosines(gram_matrix(loaded(first, second, first.times(-2.0), second.times(0.0)))).numpy()
    expected = float((first.delta * second.delta).sum()) / (
        np.linalg.norm(first.delta) * np.linalg.norm(second.delta)
    )
    assert found[0, 1] == pytest.approx(expected, abs=1e-6)
    assert found[0, 2] == pytest.approx(-1.0, abs=1e-6)
    assert (found[3] == 0).all()


def test_the_matrix_is_symmetric_to_the_last_bit():
    gram = gram_matrix(loaded(*(noise((40, 30), rank, seed=rank) for rank in (3, 5, 8))))
    assert gram.equal(gram.T)
    assert gram.dtype == torch.float64


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("role", ["up", "down"])
def test_values_that_are_not_finite_are_refused_with_file_module_and_count(value, role, tmp_path):
    broken = noise((24, 16), 4, seed=1)
    getattr(broken, role)[2, 1] = value
    path = write_lora(tmp_path / "broken.safetensors", {NAME: broken})
    stack = stack_of(entry_of(path), {NAME: noise((24, 16), 4, seed=2)})
    with pytest.raises(
        FileError, match=rf"`{NAME}` of `broken.safetensors` has 1 values in its {role} factor"
    ):
        measure(stack)
