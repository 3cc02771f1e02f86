"""Relatives of Flux.1 under its names: Flux.2 and its Kleins, with gated MLPs, and Chroma, without modulation."""

from collections.abc import Sequence
from dataclasses import replace

from .flux_blocks import BLOCKS, DOUBLE, MLPS, QKV
from .names import MODEL, Architecture, Candidate, Family, Module
from .text import T5, Encoder
from .transformer import Fused, Renames, Transformer

_BLOCKS: Renames = (
    *BLOCKS,
    ("img_in", "x_embedder"),
    ("txt_in", "context_embedder"),
    ("final_layer.linear", "proj_out"),
)
# ComfyUI takes what diffusers calls these in Flux.1, too.
_FLUX_TIME: Renames = tuple(
    (f"{here}_in.{end}_layer", f"time_text_embed.{there}_embedder.linear_{number}")
    for here, there in (("time", "timestep"), ("guidance", "guidance"))
    for end, number in (("in", 1), ("out", 2))
)
_NORMS = ("query_norm", "key_norm")


def _flux2(key: str, title: str, width: int, encoder: str, ss_base_model_version: str) -> Transformer:
    return Transformer(
        Family(key, title, ss_base_model_version, f"{title}/lora", hidden=width),
        width,
        renames=(
            *_BLOCKS,
            ("img_mlp.0", "ff.linear_in"),
            ("img_mlp.2", "ff.linear_out"),
            ("txt_mlp.0", "ff_context.linear_in"),
            ("txt_mlp.2", "ff_context.linear_out"),
            ("linear1", "attn.to_qkv_mlp_proj"),
            ("linear2", "attn.to_out"),
            ("lin", "linear"),
            ("time_in.in_layer", "time_guidance_embed.timestep_embedder.linear_1"),
            ("time_in.out_layer", "time_guidance_embed.timestep_embedder.linear_2"),
            ("guidance_in.in_layer", "time_guidance_embed.guidance_embedder.linear_1"),
            ("guidance_in.out_layer", "time_guidance_embed.guidance_embedder.linear_2"),
            ("final_layer.adaLN_modulation.1", "norm_out.linear"),
        ),
        # A gated MLP takes two maps of three widths each; nobody names them apart from q, k and v.
        fused=(*DOUBLE, Fused("linear1", (*QKV, ""), (1, 1, 1, 6), together="linear1_qkv", has_whole=True)),
        aliases=(_FLUX_TIME,),
        swapped=("final_layer.adaLN_modulation.1",),
        comfyui_parts=True,
        renamed_in_comfyui=_NORMS,
        encoders=(Encoder(encoder),),
    )


CHROMA = Transformer(
    Family("chroma", "Chroma", "chroma", "chroma/lora", hidden=3072),
    width=3072,
    renames=(
        *_BLOCKS,
        *MLPS,
        ("in_layer", "linear_1"),
        ("out_layer", "linear_2"),
    ),
    fused=(*DOUBLE, Fused("linear1", (*QKV, "proj_mlp"), (1, 1, 1, 4), together="linear1_qkv")),
    comfyui_parts=True,
    renamed_in_comfyui=_NORMS,
    encoders=(Encoder(T5, ("lora_te1_", "lora_te_", "lora_te2_", "lora_te3_"), "text_encoder"),),
)


def _judge_chroma(modules: Sequence[Module]) -> Candidate | None:
    """As all others; Flux.1 has the same names and sizes, but whoever trains its MLPs trains its modulation too."""
    judged = CHROMA.judge(modules)
    whole = {module.target.weight.rpartition(".")[2] for module in modules if module.target.part is None}
    has_mlp = any("_mlp." in module.target.weight for module in modules)
    is_own = any(module.target.weight.startswith(f"{MODEL}distilled") for module in modules)
    if judged is None or is_own or not (has_mlp and "linear1" in whole):
        return judged
    return replace(judged, preference=judged.preference + 1)


ARCHITECTURES = (
    Architecture(CHROMA.family, CHROMA.names, _judge_chroma, CHROMA.parts, CHROMA.stems),
    *(
        _flux2(key, title, width, encoder, version).architecture()
        for key, title, width, encoder, version in (
            ("flux2", "Flux.2-dev", 6144, "mistral3_24b", "flux_2_dev"),
            ("klein_4b", "Flux.2-klein-4b", 3072, "qwen3_4b", "flux_2_klein_4b"),
            ("klein_9b", "Flux.2-klein-9b", 4096, "qwen3_8b", "flux_2_klein_9b"),
        )
    ),
)
