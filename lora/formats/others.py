"""Tensors of formats that are recognised by name but not read, so that it can be said which they are."""

_KNOWN: tuple[tuple[tuple[str, ...], str], ...] = (
    ((".oft_r", ".oft_s", ".boft_R", ".boft_s"), "OFT or BOFT of PEFT's old kind"),
    ((".ia3_l",), "(IA)³ of PEFT's kind"),
)
_PREFIXES = (("bundle_emb.", "a bundled embedding"), ("_aux.", "slider bookkeeping"))
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
    for suffixes, what in _KNOWN:
        for suffix in suffixes:
            if tensor_name.endswith(suffix):
                return tensor_name.removesuffix(suffix), what
    return None


def is_harmless(what: str) -> bool:
    """Whether a merge may go on without such tensors: they change no weight."""
    return what in {words for _, words in _PREFIXES}


def looks_like_checkpoint(names: list[str]) -> bool:
    """Whether these are the weights of a model."""
    whole = sum(name.startswith(_CHECKPOINT) for name in names)
    plain = sum(name.endswith((".weight", ".bias")) for name in names)
    return whole > 0.2 * len(names) or (len(names) >= 20 and plain > 0.9 * len(names))
