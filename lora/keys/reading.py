"""From a spelling of a module's name to where it leads: known names first, then cheap rewritings of it."""

import re
from typing import NamedTuple

from ..target import TEXT_ENCODERS, Route
from .names import INDEX, MODEL, KeyMap, flat

# Groups are empty, not None, where a text encoder is named without a number.
_WRAPPERS = re.compile(
    r"(?:(?:base_model\.model|model\.diffusion_model|diffusion_model|unet|transformer|pipe\.dit|module)\."
    r"|(?:lora_unet|lora_prior_unet|lora_transformer|lycoris|oft_unet)_+"
    r"|lora_(?:prior_)?te(?P<kohya>\d?)_"
    r"|text_encoder_?(?P<diffusers>\d?)\."
    r"|text_encoders\.(?:transformer(?P<unnamed>)|(?P<child>\w+))\."
    r"|(?P<bare>clip_[lgh]|t5xxl|t5)\.)*"
)
_COMPILED = re.compile(r"(?<![^.])(?:_orig_mod|_(?:fsdp|checkpoint)_wrapped_module)\.")
# In CLIP-L, transformers 5 has dropped the outer module.
_CLIP_INSIDE = {"encoder.layers.": "text_model.", "encoder_layers_": "text_model_"}
_TRUNCATED = re.compile(r"^(?P<single>(?:sing|ing|ng|g)?le_transformer_blocks)|^(?:n|an|ran)?sformer_blocks")
_T5_INSIDE = ("encoder.block.", "encoder_block_", "encoder.final_", "encoder_final_", "shared")
# The language models among the text encoders; where a family has two, the one that files leave unnamed comes first.
_LANGUAGE = (
    *("llama", "qwen25_7b", "qwen25_3b", "qwen3_4b", "qwen3_8b", "qwen3_2b", "qwen3_06b"),
    *("gemma2_2b", "gemma3_12b", "mistral3_24b"),
)
_T5S = ("t5xxl", "umt5xxl", "umt5base", "pile_t5xl", "mt5xl", "byt5_small")
_LANGUAGE_INSIDE = ("model.", "visual.")
_BARE = re.compile(
    r"(?:^|[._])(?:(?:\w+_)?scale_shift_table|modulation|pos_bias_[uv]|positional_encoding|register_tokens"
    r"|pos_frequencies|image_index_embedding|(?:x|cap)_pad_token|null_condition_emb|special_tokens?)$"
)
_SAME_ENCODER = {"clip_l": "te1", "clip_h": "te1", "clip_g": "te2"}


class _Stripped(NamedTuple):
    """A module's path without its wrappers. `encoder` is "" for the model; `is_child` if a file named it.

    `number` is the one it came with, empty for the first or none.
    """

    path: str
    encoder: str
    is_child: bool
    number: str = ""


class _Prefixes(NamedTuple):
    """What may stand before a dotted path, and before a flattened one."""

    dotted: tuple[str, ...]
    flattened: tuple[str, ...]


_PREFIXES = {
    "": _Prefixes((MODEL, "unet.", "transformer.", ""), ("lora_unet_", "lora_transformer_", "lycoris_")),
    "te1": _Prefixes(
        ("text_encoder.", f"{TEXT_ENCODERS}clip_l.transformer.", f"{TEXT_ENCODERS}clip_h.transformer."),
        ("lora_te1_", "lora_te_"),
    ),
    "te2": _Prefixes(("text_encoder_2.", f"{TEXT_ENCODERS}clip_g.transformer."), ("lora_te2_",)),
    "t5xxl": _Prefixes(
        (f"{TEXT_ENCODERS}t5xxl.transformer.", "text_encoder_2.", "text_encoder_3.", "text_encoder."),
        ("lora_te3_", "lora_te2_"),
    ),
}


def resolve(name: str, known: KeyMap) -> Route | None:
    """Where the module `name` of a file leads, or None if `known` has none of its spellings.

    Wrappers are stripped in any order and number, adapter names and old attention processors taken out, and
    the prefixes under which `known` may have the rest are tried. Dots become underscores, never the reverse:
    a flattened name does not tell its dots. A translation counts only if `known` has it.

    Args:
        name: a module's name as in the file, without the ending that says which factor it is.
        known: a family's `key_map`, or a map of the model at hand.
    """
    route = known.get(name)
    if route is not None:
        return route
    path, encoder, is_child, number = _strip(name)
    if is_child:
        return known.get(f"{TEXT_ENCODERS}{encoder}.transformer.{path}")
    dotted, flattened = _PREFIXES.get(encoder) or _Prefixes((), (f"lora_{encoder}_",))
    children = [route for prefix in _children(path, encoder) if (route := known.get(prefix + path))]
    if children and "text_encoders.transformer." in name:
        return children[0]
    for prefix in dotted:
        route = known.get(prefix + path)
        if route is not None:
            return route
    if len(children) == 1:
        return children[0]
    path = flat(path)
    if encoder == "t5xxl":
        flattened = (f"lora_te{number}_", *flattened)
    for prefix in flattened:
        route = known.get(prefix + path)
        if route is not None:
            return route
    return None


def loose_name(name: str) -> str:
    """A name for a module of an unknown architecture, fit to be a `Target.weight`.

    Dotted, flattened and wrapped spellings of one module give one loose name: `diffusion_model.` or
    `text_encoders.te1.` (`te2`, `t5xxl` …) in front of the flattened path.
    """
    path, encoder, *_ = _strip(name)
    component = f"{TEXT_ENCODERS}{_SAME_ENCODER.get(encoder, encoder)}." if encoder else MODEL
    return component + flat(path)


def is_text(name: str) -> bool:
    """Whether a module's name, in any spelling, is of a text encoder."""
    return bool(_strip(name).encoder)


def is_bare_parameter(name: str) -> bool:
    """Whether a name is that of a parameter that a model holds outside of its layers, such as a modulation.

    They are in no list of modules, and ComfyUI's loader does not patch them (`spec/comfyui-contract.md` §2.5).
    """
    return bool(_BARE.search(name))


def stem_of(name: str) -> str:
    """The flattened path of a row of modules up to its first number; empty for a text encoder, or without one."""
    path, encoder, *_ = _strip(name)
    stem, mark, _ = flat(path).partition(INDEX)
    return stem if mark and not encoder else ""


def _children(path: str, encoder: str) -> tuple[str, ...]:
    """Where ComfyUI may have a dotted path of a text encoder that is no CLIP."""
    if not encoder:
        return ()
    several = _LANGUAGE if path.startswith(_LANGUAGE_INSIDE) else _T5S if path.startswith(_T5_INSIDE) else ()
    return tuple(f"{TEXT_ENCODERS}{child}.transformer." for child in several)


def _strip(name: str) -> _Stripped:
    """Take a name apart; an encoder that is not named goes by its number, or by the inner names of T5."""
    name = name.replace(".default.", ".").removesuffix(".default")
    if "_orig_mod" in name or "_wrapped_module" in name:  # compiled, checkpointed or spread out, at any depth
        name = _COMPILED.sub("", name)
    wrapped = _WRAPPERS.match(name)
    assert wrapped  # it matches the empty string
    path = name[wrapped.end() :]
    if "sformer_blocks" in path and (cut := _TRUNCATED.match(path)):
        # Some converter cut as many letters off every name as `transformer.` and more has.
        path = ("single_" if cut["single"] else "") + "transformer_blocks" + path[cut.end() :]
    if ".processor." in path:
        path = path.replace(".processor.", ".")
        if path.endswith(".to_out"):  # processors hold the map itself, attention a list of it and a dropout
            path += ".0"
    child = wrapped["child"] or wrapped["bare"]
    if child:
        return _Stripped(path, "t5xxl" if child == "t5" else child, True)
    numbers = (wrapped["kohya"], wrapped["diffusers"], wrapped["unnamed"])
    number = next((number for number in numbers if number is not None), None)
    if "lora_prior_te" in name:
        number = "2"  # Cascade's only encoder is CLIP-G
    if number is None and not path.startswith(("text_model.", "text_model_")):
        return _Stripped(path, "", False)
    if path.startswith(_T5_INSIDE):
        return _Stripped(path, "t5xxl", False, number or "")
    outer = next((outer for inside, outer in _CLIP_INSIDE.items() if path.startswith(inside)), "")
    return _Stripped(outer + path, f"te{number or 1}", False)
