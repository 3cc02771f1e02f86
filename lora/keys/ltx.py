"""LTX-Video and LTX-2: diffusers' blocks are the native ones; it calls what surrounds them otherwise."""

from .names import Family
from .text import T5, Encoder
from .transformer import Renames, Transformer

_RENAMES: Renames = (
    ("q_norm", "norm_q"),
    ("k_norm", "norm_k"),
    ("patchify_proj", "proj_in"),
    ("adaln_single", "time_embed"),
)
_AUDIO: Renames = (
    ("audio_patchify_proj", "audio_proj_in"),
    ("audio_adaln_single", "audio_time_embed"),
    ("av_ca_video_scale_shift_adaln_single", "av_cross_attn_video_scale_shift"),
    ("av_ca_audio_scale_shift_adaln_single", "av_cross_attn_audio_scale_shift"),
    ("av_ca_a2v_gate_adaln_single", "av_cross_attn_video_a2v_gate"),
    ("av_ca_v2a_gate_adaln_single", "av_cross_attn_audio_v2a_gate"),
)
_T5 = (Encoder(T5, ("lora_te1_", "lora_te_", "lora_te2_", "lora_te3_"), "text_encoder"),)
_GEMMA = (Encoder("gemma3_12b"), Encoder("text_embedding_projection"))

ARCHITECTURES = tuple(
    Transformer(
        Family(key, title, version, f"{version}/lora"), width, renames, encoders=encoders
    ).architecture()
    for key, title, version, width, renames, encoders in (
        ("ltx", "LTX-Video 2B", "ltx-video", 2048, _RENAMES, _T5),
        ("ltx_13b", "LTX-Video 13B", "ltx-video-13b", 4096, _RENAMES, _T5),
        ("ltx2", "LTX-2", "ltx2", 4096, (*_RENAMES, *_AUDIO), _GEMMA),
    )
)
