"""ACE-Step, music: 1.0 with diffusers-like blocks, 1.5 with a decoder whose name its own trainers leave out."""

from .names import Family
from .text import Encoder
from .transformer import Transformer

ACE_STEP = Transformer(
    Family("ace_step", "ACE-Step", "ace-step", "ace-step/lora"),
    width=2560,
    encoders=(Encoder("umt5base"),),
)
ACE_STEP_15 = Transformer(
    Family("ace_step_15", "ACE-Step 1.5", "ace-step-1.5", "ace-step-1.5/lora"),
    width=2048,
    renames=(
        ("decoder.proj_in.1", "proj_in_conv"),
        ("decoder.proj_out.1", "proj_out_conv"),
        ("decoder", ""),
        ("q_proj", "to_q"),
        ("k_proj", "to_k"),
        ("v_proj", "to_v"),
        ("o_proj", "to_out.0"),
        ("q_norm", "norm_q"),
        ("k_norm", "norm_k"),
    ),
    aliases=((("decoder", ""),),),
    encoders=(Encoder("qwen3_06b"), Encoder("qwen3_2b", ("lora_te2_",), "text_encoder_2")),
)
ARCHITECTURES = (ACE_STEP.architecture(), ACE_STEP_15.architecture())
