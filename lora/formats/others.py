"""Tensors of formats that are recognised by name but not read, so that it can be said which they are."""

import re

_KNOWN: tuple[tuple[tuple[str, ...], str], ...] = (
    ((".oft_r", ".oft_s", ".boft_R", ".boft_s"), "OFT or BOFT of PEFT's old kind"),
    ((".ia3_l",), "(IA)³ of PEFT's kind"),
    ((".vera_lambda_b", ".vera_lambda_d", ".vera_A", ".vera_B"), "VeRA"),
    ((".lora_embedding_A", ".lora_embedding_B"), "a LoRA of an embedding, of PEFT's kind"),
    ((".fourierft_spectrum",), "FourierFT"),
    ((".hra_u",), "HRA"),
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
    return is_noted(what) or what in {*(words for _, words in _PREFIXES), *_MARKS.values(), _BASE_WEIGHT}


def is_noted(what: str) -> bool:
    """Whether a merge that goes on without such tensors says so."""
    return what in _NOTED.values()


def looks_like_checkpoint(names: list[str]) -> bool:
    """Whether these are the weights of a model."""
    whole = sum(name.startswith(_CHECKPOINT) for name in names)
    plain = sum(name.endswith((".weight", ".bias")) for name in names)
    return whole > 0.2 * len(names) or (len(names) >= 20 and plain > 0.9 * len(names))
