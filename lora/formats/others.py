"""Tensors of formats that are recognised by name but not read, so that it can be said which they are."""

import re

_KNOWN: tuple[tuple[tuple[str, ...], str], ...] = (
    ((".oft_r", ".oft_s", ".boft_R", ".boft_s"), "OFT or BOFT of PEFT's old kind"),
    ((".ia3_l",), "(IA)³ of PEFT's kind"),
    ((".vera_lambda_b", ".vera_lambda_d", ".vera_A", ".vera_B"), "VeRA"),
    ((".lora_embedding_A", ".lora_embedding_B"), "a LoRA of an embedding, of PEFT's kind"),
    ((".fourierft_spectrum",), "FourierFT"),
    ((".hra_u",), "HRA"),
    ((".lora_E",), "AdaLoRA"),
    (
        (".modules_to_save.weight", ".modules_to_save.bias"),
        "a whole module, which PEFT trained beside the LoRA",
    ),
)
# Several adapters in one layer, of which a control image or a reference picks: `….to_q_loras.0.up.weight`.
_PLURAL = re.compile(r"^(?P<module>.+)_loras\.\d+\.(?:up|down|mid)\.weight$")
_SEVERAL = "several adapters in one layer"
_PREFIXES = (("bundle_emb.", "a bundled embedding"), ("_aux.", "slider bookkeeping"))
_MARKS = {"scaled_fp8": "a mark of fp8 storage"}
_BASE = re.compile(r"^(?P<module>.+)\.base_layer\.(?:weight|bias)$")
_BASE_WEIGHT = "a base weight, which PEFT keeps beside the LoRA"
_NOTED = {".diff_m": "a change of a modulation, which ComfyUI's loader does not apply"}
# What belongs to a checkpoint, not to a LoRA.
_CHECKPOINT = (
    "model.diffusion_model.",
    "first_stage_model.",
    "cond_stage_model.",
    "conditioner.embedders.",
    "vae.",
    "alphas_cumprod",
)


def known_as(tensor_name: str) -> tuple[str, str] | None:
    """The module and what its tensor is, if the name is of a format that is not read here; else None."""
    for prefix, what in _PREFIXES:
        if tensor_name.startswith(prefix):
            return tensor_name, what
    if tensor_name in _MARKS:
        return tensor_name, _MARKS[tensor_name]
    for ending, what in _NOTED.items():
        if tensor_name.endswith(ending):
            return tensor_name, what
    for pattern, what in ((_PLURAL, _SEVERAL), (_BASE, _BASE_WEIGHT)):
        if found := pattern.match(tensor_name):
            return found["module"], what
    tensor_name = tensor_name.replace(".default.", ".").removesuffix(".default")
    for suffixes, what in _KNOWN:
        for suffix in suffixes:
            if tensor_name.endswith(suffix):
                return tensor_name.removesuffix(suffix), what
    return None


def is_harmless(what: str) -> bool:
    """Whether a merge may go on without such tensors: they change no weight, or none that ComfyUI changes."""
    carried = {*(words for _, words in _PREFIXES), *_MARKS.values(), _BASE_WEIGHT}
    return what in {*carried, *_NOTED.values()}


def is_mark(tensor_name: str) -> bool:
    """Whether a tensor says only how others are stored, or repeats the base model's: nothing is lost without it."""
    known = known_as(tensor_name)
    return known is not None and known[1] in {*_MARKS.values(), _BASE_WEIGHT}


# What lies among LoRAs and is none, by how all names begin; and what to do with it.
_NO_LORA: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("emb_params", "string_to_param.", "<"),
        "an embedding (a textual inversion), not a LoRA. Put it among the embeddings, and its name into the prompt.",
    ),
    (
        ("control_model.", "controlnet_", "zero_convs.", "input_hint_block."),
        "a ControlNet, not a LoRA. Load it as a ControlNet.",
    ),
    (("image_proj.", "ip_adapter."), "an IP-Adapter, not a LoRA. Load it as an IP-Adapter."),
    (
        ("encoder.conv", "encoder.down", "encoder.mid", "decoder.", "quant_conv.", "post_quant_conv."),
        "a VAE, not a LoRA. Load it as a VAE.",
    ),
    (
        ("text_model.", "encoder.block.", "shared.", "text_projection.", "logit_scale"),
        "a text encoder, not a LoRA. Load it as a text encoder.",
    ),
)
_BY_ENCODER = {
    "clip_l",
    "clip_g",
    "clip_h",
    "t5xxl",
}  # an embedding for several text encoders is one tensor each
_CONTROL_MARK = "lora_controlnet"  # Stability's control LoRAs carry it


def no_lora(names: list[str]) -> str:
    """What a file without LoRA factors is, and what to do with it; empty if its names do not tell."""
    if _CONTROL_MARK in names:
        return "a control LoRA of Stability AI's kind, which loaders take as a ControlNet. Load it as a ControlNet."
    for starts, what in _NO_LORA:
        marked = sum(
            name.startswith(starts) or (starts[0] == "emb_params" and name in _BY_ENCODER) for name in names
        )
        # A ControlNet repeats the model's own names beside its marks.
        if marked == len(names) or (marked and "ControlNet" in what):
            return what
    return ""


def looks_like_checkpoint(names: list[str]) -> bool:
    """Whether these are the weights of a model."""
    whole = sum(name.startswith(_CHECKPOINT) for name in names)
    plain = sum(name.endswith((".weight", ".bias")) for name in names)
    return whole > 0.2 * len(names) or (len(names) >= 20 and plain > 0.9 * len(names))
