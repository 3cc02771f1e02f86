"""Values that are no numbers: one sentence that names the file and the module, whatever the recipe does first."""

import pytest
import torch

from lora_alloy.api import merge, plan
from lora_alloy.core.errors import FileError
from lora_alloy.lora.file import LoraFile, lora_in_memory
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import TOY, file_of, toy_lora

NAME = next(iter(TOY))
RECIPES = {
    "plain": Recipe(),
    "element-wise": Recipe(method="ties", enhance="full"),
    "cleaned by STAR": Recipe(star_eta=60.0),
    "a formula": Recipe(formula="(1+2):0.5+1"),
    "a formula of cleaned ones": Recipe(formula="(1+2):0.5+1", star_eta=60.0),
}


def broken(kind: str, value: float) -> LoraFile:
    chance = torch.Generator().manual_seed(1)
    drawn = lambda *sizes: torch.randn(*sizes, generator=chance)  # noqa: E731
    if kind == "low-rank":
        lora = toy_lora(1)
        lora[NAME].up[2, 1] = value
        return file_of(lora, "burnt")
    tensors = {
        "LoKr": {"lokr_w1": drawn(4, 4), "lokr_w2": drawn(6, 4)},
        "bias": {"diff": drawn(24, 16), "diff_b": drawn(24)},
        "difference": {"diff": drawn(24, 16)},
        "LoHa": {f"hada_w{n}_{ab}": drawn(*s) for n in "12" for ab, s in (("a", (24, 4)), ("b", (4, 16)))},
    }[kind]
    list(tensors.values())[-1].view(-1)[3] = value
    return lora_in_memory("burnt", {f"{NAME}.{name}": one for name, one in tensors.items()}, {})


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["low-rank", "LoKr", "bias", "difference", "LoHa"])
def test_the_file_and_the_module_are_named(kind, value, recipe):
    stack = [Entry(broken(kind, value)), Entry(file_of(toy_lora(3), "ink"), 0.5)]
    for work in (merge, plan):
        with pytest.raises(FileError) as told:
            work(stack, recipe)
        assert (
            "`burnt`" in str(told.value) and NAME in str(told.value) and "NaN or infinite" in str(told.value)
        )
