"""LoHa and LoKr against LyCORIS's own modules: what they save, we read as what they compute."""

import pytest
import torch

from lora_alloy.lora.file import lora_in_memory
from lora_alloy_testing.builders import difference

with pytest.MonkeyPatch.context() as patch:
    patch.setenv("LYCORIS_BACKEND", "torch")
    pytest.importorskip("lycoris", reason="LyCORIS computes the deltas")
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule

LINEAR, CONVOLUTION = (torch.nn.Linear(48, 64), (64, 48)), (torch.nn.Conv2d(16, 32, 3), (32, 16, 3, 3))
MODULES = {
    "loha": (LohaModule, LINEAR, {}),
    "loha, a convolution": (LohaModule, CONVOLUTION, {}),
    "loha, a Tucker convolution": (LohaModule, CONVOLUTION, {"use_tucker": True}),
    "loha with a scalar": (LohaModule, LINEAR, {"use_scalar": True}),
    "loha, rank-stabilised": (LohaModule, LINEAR, {"rs_lora": True}),
    "lokr": (LokrModule, LINEAR, {"factor": 4}),
    "lokr, both in factors": (LokrModule, LINEAR, {"factor": 8, "decompose_both": True, "lora_dim": 3}),
    "lokr, both whole": (LokrModule, LINEAR, {"factor": 4, "full_matrix": True}),
    "lokr, unbalanced": (LokrModule, LINEAR, {"factor": 4, "unbalanced_factorization": True}),
    "lokr, a convolution": (LokrModule, CONVOLUTION, {"factor": 4, "lora_dim": 1}),
    "lokr, a Tucker convolution": (LokrModule, CONVOLUTION, {"factor": 4, "use_tucker": True, "lora_dim": 1}),
    "lokr, rank-stabilised": (LokrModule, LINEAR, {"factor": 4, "rs_lora": True}),
}


def drawn(kind, layer, settings, alpha):
    """A module of LyCORIS whose every parameter is noise, the scalar with them."""
    module = kind("m", layer, 1.0, **{"lora_dim": 4, "alpha": alpha, **settings})
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module


def ours(module):
    tensors = {f"m.{end}": value.detach().clone() for end, value in module.custom_state_dict().items()}
    file = lora_in_memory("m", tensors, {})
    return file.load(file.modules["m"]).flat().double().numpy()


@pytest.mark.parametrize("made", MODULES.values(), ids=MODULES)
@torch.no_grad()
def test_what_lycoris_saves_is_read_as_the_weight_it_trained(made):
    kind, (layer, shape), settings = made
    module = drawn(kind, layer, settings, alpha=2.0)
    trained = module.get_weight(shape) * module.scalar
    assert difference(ours(module), trained.double().numpy().reshape(shape[0], -1)) < 1e-5


@pytest.mark.parametrize("made", MODULES.values(), ids=MODULES)
@torch.no_grad()
def test_what_lycoris_merges_is_what_we_read_where_its_scale_is_1(made):
    """`get_diff_weight` of LyCORIS 4.1 applies a scale other than 1 twice, so only that of 1 is compared."""
    kind, (layer, shape), settings = made
    settings = {key: value for key, value in settings.items() if key not in ("rs_lora", "use_scalar")}
    module = drawn(kind, layer, settings, alpha=settings.get("lora_dim", 4))
    assert module.scale == 1
    merged, _ = module.get_diff_weight(1.0, shape)
    assert difference(ours(module), merged.double().numpy().reshape(shape[0], -1)) < 1e-5
