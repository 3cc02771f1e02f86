"""`--base`: what depends on base weights is merged, saved and proven on the command line."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lora_alloy_testing.base_formats import noise
from lora_alloy_testing.small_loras import write_small

QUERY = "input_blocks_4_1_transformer_blocks_0_attn2_to_k"
KEY = "input_blocks_4_1_transformer_blocks_1_attn2_to_k"
TEXT = "lora_te1_text_model_encoder_layers_0_self_attn_q_proj"
SHAPE = (40, 2048)
PATHS = {
    QUERY: "input_blocks.4.1.transformer_blocks.0.attn2.to_k",
    KEY: "input_blocks.4.1.transformer_blocks.1.attn2.to_k",
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A checkpoint with two weights, one of them fp8 with a scale."""
    model = "model.diffusion_model."
    stored = noise(*SHAPE, size=1.0, seed=1).to(torch.float8_e4m3fn)
    tensors = {
        f"{model}{PATHS[QUERY]}.weight": noise(*SHAPE),
        f"{model}{PATHS[KEY]}.weight": stored,
        f"{model}{PATHS[KEY]}.scale_weight": torch.tensor(0.25),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def weights(base: Path) -> dict[str, torch.Tensor]:
    found = load_file(base)
    query, key = (found[f"model.diffusion_model.{PATHS[name]}.weight"].float() for name in (QUERY, KEY))
    return {QUERY: query, KEY: key * 0.25}


@pytest.fixture
def stack(tmp_path: Path) -> list[Path]:
    """A DoRA on two weights, and a plain LoRA on one of them and on a text encoder."""
    dora = {}
    for name in (QUERY, KEY):
        dora |= {
            f"lora_unet_{name}.lora_up.weight": noise(40, 4, seed=1),
            f"lora_unet_{name}.lora_down.weight": noise(4, 2048, seed=2),
            f"lora_unet_{name}.alpha": torch.tensor(2.0),
            f"lora_unet_{name}.dora_scale": noise(40, 1).abs() + 5,
        }
    save_file(dora, tmp_path / "dora.safetensors")
    plain = {f"lora_unet_{QUERY}": SHAPE, TEXT: (768, 768)}
    return [
        tmp_path / "dora.safetensors",
        write_small(tmp_path / "plain.safetensors", plain, dtype=torch.float32),
    ]


def expected(base: Path, stack: list[Path], name: str) -> torch.Tensor:
    """0.7 times what ComfyUI's DoRA changes, and -0.4 times the plain LoRA, in float64."""
    weight = weights(base)[name].double()
    file, plain = load_file(stack[0]), load_file(stack[1])
    up, down, scale = (
        file[f"lora_unet_{name}.{end}"].double()
        for end in ("lora_up.weight", "lora_down.weight", "dora_scale")
    )
    patched = weight + 0.5 * up @ down
    delta = 0.7 * (patched * scale / weight.norm(dim=1, keepdim=True) - weight)
    if name == QUERY:
        ends = (f"lora_unet_{QUERY}.lora_{side}.weight" for side in ("up", "down"))
        delta -= 0.4 * 0.5 * torch.linalg.multi_dot([plain[end].double() for end in ends])
    return delta


def test_a_dora_and_a_plain_lora_are_merged_saved_and_verified(run, base, stack, tmp_path):
    output = tmp_path / "merged.safetensors"
    words = [f"{stack[0]}:0.7", f"{stack[1]}:-0.4", "--preserve", "1", "--preserve", "2", "--base", base]
    ran = run("merge", *words, "-o", output, "--method", "weighted_sum", "--dtype", "float32")
    assert ran.code == 0, ran.err
    saved = load_file(output)
    assert len(saved) == 2 + 3, "two differences, and the text encoder's factors"
    for name in (QUERY, KEY):
        found = saved[f"diffusion_model.{PATHS[name]}.diff"].double()
        wanted = expected(base, stack, name)
        assert float((found - wanted).norm()) < 1e-5 * float(wanted.norm())
    with safe_open(output, "pt") as file:
        assert file.metadata()["lora_alloy.base"] == "model.safetensors"
    proven = run("verify", output, "--base", base)
    assert proven.code == 0 and "bit for bit" in proven.out
    refused = run("verify", output)
    assert refused.code == 1 and "--base" in refused.err and "DoRA magnitudes" in refused.err


def test_with_a_rank_the_result_is_low_rank_and_says_its_error(run, base, stack, tmp_path):
    output = tmp_path / "merged.safetensors"
    words = [*stack, "--base", base, "--rank", "12", "-o", output]
    ran = run("merge", *words)
    assert ran.code == 0, ran.err
    assert not any(name.endswith(".diff") for name in load_file(output))
    assert run("verify", output, *stack, "--base", base).code == 0


@pytest.mark.parametrize(
    "words", [("convert", "--to", "comfyui", "--rank", "40"), ("resize", "--rank", "40")], ids=str
)
def test_a_dora_becomes_plain_lora_on_its_base(run, base, stack, tmp_path, words):
    output = tmp_path / "plain-now.safetensors"
    refused = run(words[0], stack[0], *words[1:], "-o", output)
    assert refused.code == 1 and "--base" in refused.err and not output.exists()
    ran = run(words[0], stack[0], *words[1:], "--base", base, "-o", output)
    assert ran.code == 0, ran.err
    saved, file = load_file(output), load_file(stack[0])
    stem = f"diffusion_model.{PATHS[KEY]}"
    up, down, scale = (
        file[f"lora_unet_{KEY}.{end}"].double()
        for end in ("lora_up.weight", "lora_down.weight", "dora_scale")
    )
    weight = weights(base)[KEY].double()
    wanted = (weight + 0.5 * up @ down) * scale / weight.norm(dim=1, keepdim=True) - weight
    up, down, alpha = (
        saved[f"{stem}.{end}"].double() for end in ("lora_up.weight", "lora_down.weight", "alpha")
    )
    found = alpha / len(down) * up @ down
    assert float((found - wanted).norm()) < 1e-5 * float(wanted.norm())


def test_a_base_is_not_replaced_by_a_conversion(run, base, stack):
    before = base.read_bytes()
    ran = run("convert", stack[0], "--to", "comfyui", "--rank", "4", "--base", base, "-o", base, "--force")
    assert ran.code == 1 and "is the base model" in ran.err and base.read_bytes() == before


def test_a_conversion_may_go_on_without_what_needs_a_base(run, stack, tmp_path):
    file = load_file(stack[0]) | load_file(stack[1])
    file = {name: value for name, value in file.items() if QUERY not in name or "dora" not in name}
    save_file(file, tmp_path / "both.safetensors")
    words = ["convert", tmp_path / "both.safetensors", "--to", "kohya", "-o", tmp_path / "rest.safetensors"]
    assert run(*words).code == 1
    ran = run(*words, "--partial")
    assert ran.code == 0 and "a partial merge was asked for" in ran.out, ran.err
    assert len(load_file(tmp_path / "rest.safetensors")) == 6


def test_another_base_model_is_told_apart(run, base, stack, tmp_path):
    output = tmp_path / "merged.safetensors"
    assert run("merge", *stack, "--base", base, "-o", output).code == 0
    other = tmp_path / "other.safetensors"
    save_file(
        {
            name: value.clone() if value.dtype == torch.float8_e4m3fn else value * 1.1
            for name, value in load_file(base).items()
        },
        other,
    )
    ran = run("verify", output, "--base", other)
    assert ran.code == 1 and "is not what these inputs give" in ran.err


def test_without_a_base_a_merge_says_which_module_needs_it(run, stack, tmp_path):
    ran = run("merge", *stack, "-o", tmp_path / "merged.safetensors")
    assert ran.code == 1
    assert (
        f"`dora.safetensors`: 2 of 2 modules are not read; `lora_unet_{QUERY}` comes with DoRA magnitudes"
        in ran.err
    )
    assert "--base" in ran.err


def test_a_plan_reads_the_base_too(run, base, stack):
    ran = run("merge", *stack, "--base", base, "--plan-only")
    assert ran.code == 0 and "A plan for 2 LoRAs and 3 targets" in ran.out


def test_inspect_says_that_a_base_is_needed_and_which_convention_is_taken(run, stack):
    ran = run("inspect", stack[0])
    assert ran.code == 0
    assert "LoRA with DoRA" in ran.out and "--base" in ran.out and "as ComfyUI does" in ran.out


def test_a_base_that_is_gone_or_no_model_is_refused(run, base, stack, tmp_path):
    output = tmp_path / "merged.safetensors"
    gone = run("merge", *stack, "--base", tmp_path / "gone.safetensors", "-o", output)
    assert gone.code == 1 and "does not exist" in gone.err
    lora = run("merge", *stack, "--base", stack[1], "-o", output)
    assert lora.code == 1 and "is a LoRA, not a base model" in lora.err
    assert not output.exists()


def test_the_base_is_never_replaced_by_the_result(run, base, stack):
    before = base.read_bytes()
    ran = run("merge", *stack, "--base", base, "-o", base, "--force")
    assert ran.code == 1 and "is the base model" in ran.err
    assert base.read_bytes() == before
