"""Structural LoRAs: those that change how a model samples, and not what it shows.

LCM, Lightning, Turbo, Hyper and their like make a model need few steps; DPO makes it follow a taste; edit and control
LoRAs give it another input. Blended with others they lose what they are for, so a merge holds them out. What speaks
for one is a name, the header, and an input layer of another width; the factors' values are looked at by
`analysis/extraction.py`, in a merge alone.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from .file import LoraFile
from .headers import cut, parsed
from .structural_words import TITLES, Confidence, Told, is_plain, told_by_name

QUOTED = 80
PROSE = 4000  # so much of a description is looked at
_TITLES = ("ss_output_name", "modelspec.title", "name")
_WORDS = ("modelspec.description", "modelspec.usage_hint", "modelspec.tags", "ss_training_comment")
_PHRASES = (
    ("lcm", "(?:latent )?consistency (?:distill|model)"),
    ("distilled", "(?:step|guidance|cfg|adversarial|progressive|trajectory)[ -](?:diffusion )?distill"),
    ("distilled", "distribution matching|score distillation"),
    ("dpo", "direct preference optimi|preference optimi|reward feedback"),
    ("edit", "instruct-?pix2pix"),
)
# The columns of a model's first layer; more of them take a second picture in.
_INPUTS = {
    "sd15": (4, ("input_blocks_0_0", "conv_in")),
    "sd2": (4, ("input_blocks_0_0", "conv_in")),
    "sdxl": (4, ("input_blocks_0_0", "conv_in")),
    "flux": (64, ("img_in", "x_embedder")),
}
_SPEED = {"lcm", "lightning", "turbo", "hyper", "distilled"}
_RAISED: dict[Confidence, Confidence] = {"low": "medium", "medium": "high", "high": "high"}
_LOWERED: dict[Confidence, Confidence] = {"low": "low", "medium": "low", "high": "medium"}
_ORDER: tuple[Confidence, ...] = ("low", "medium", "high")


@dataclass(frozen=True)
class Structural:
    """What a LoRA is for, if not for what a picture shows.

    Attributes:
        kind: `lcm`, `lightning`, `turbo`, `hyper`, `distilled`, `dpo` or `edit`.
        confidence: `high`, `medium` or `low`; a merge holds out what is not low.
        evidence: what speaks for it and against it, in words.
        is_plain: whether its name says nothing else, so that the factors may still decide.
    """

    kind: str
    confidence: Confidence
    evidence: tuple[str, ...]
    is_plain: bool = False

    @property
    def title(self) -> str:
        """The kind in words."""
        return TITLES[self.kind]

    @property
    def is_held(self) -> bool:
        """Whether a merge holds it out of the blend."""
        return self.confidence != "low"

    def surer(self, evidence: str) -> "Structural":
        """The same with more evidence for it."""
        return replace(self, confidence=_RAISED[self.confidence], evidence=(*self.evidence, evidence))

    def less_sure(self, evidence: str) -> "Structural":
        """The same with evidence against it."""
        return replace(self, confidence=_LOWERED[self.confidence], evidence=(*self.evidence, evidence))


def structural_type(file: LoraFile) -> Structural | None:
    """What kind of structural LoRA a file is, by its name, its header and its shapes; None if nothing says so."""
    widened = _widened(file)
    told = _named(file)
    if told is None:
        return Structural("edit", "high", (widened,)) if widened else None
    found, is_own = told
    metadata = file.tensors.metadata
    if widened:
        found = found.surer(widened) if found.kind == "edit" else found
    if phrase := _phrase(metadata, found.kind):
        found = found.surer(phrase)
    if _has_captions(metadata):
        found = found.less_sure("against it: the header lists captions of the pictures it was trained on")
    elif not is_own and metadata.get("modelspec.trigger_phrase", "").strip():
        found = found.less_sure("against it: the header has a trigger phrase, which such LoRAs do without")
    if not is_own and (title := _other_title(metadata)):
        found = found.less_sure(f"against it: the header calls it `{cut(title, QUOTED)}`")
    return found


def _named(file: LoraFile) -> tuple[Structural, bool] | None:
    """What the surest of its names says, and whether by a word of its own."""
    best: tuple[Structural, bool] | None = None
    for where, name in _names(file):
        told = told_by_name(name)
        if told is None:
            continue
        made = Structural(told.kind, told.confidence, (_evidence(where, told),), is_plain(name))
        if best is None or _ORDER.index(made.confidence) > _ORDER.index(best[0].confidence):
            best = made, told.is_own
    return best


def _evidence(where: str, told: Told) -> str:
    return f"`{cut(told.word, QUOTED)}` in {where} {told.why}"


def _names(file: LoraFile) -> Iterator[tuple[str, str]]:
    """Where a name stands, and the name: the file's, its folder's if the file's says nothing, its titles."""
    label = file.path.name if file.path else re.split(r"[\\/]", file.label)[-1]
    yield "its name", label
    if file.path is not None and told_by_name(label) is None and is_plain(label):
        yield "its folder's name", file.path.absolute().parent.name
    for key in _TITLES:
        if title := file.tensors.metadata.get(key, "").strip():
            yield f"`{key}` of the header", title[: 2 * QUOTED]


def _other_title(metadata: Mapping[str, str]) -> str:
    """A title in the header that says what the file shows; empty if there is none."""
    titles = (metadata.get(key, "").strip()[: 2 * QUOTED] for key in _TITLES)
    return next((title for title in titles if title and not is_plain(title)), "")


def _phrase(metadata: Mapping[str, str], kind: str) -> str:
    """What the header's prose says for a kind; prose alone may speak of other files."""
    for key in _WORDS:
        for told, pattern in _PHRASES:
            found = re.search(pattern, metadata.get(key, "")[:PROSE], re.IGNORECASE)
            if found and (told == kind or {told, kind} <= _SPEED):
                return f"`{key}` of the header speaks of `{cut(found[0], QUOTED)}`"
    return ""


def _has_captions(metadata: Mapping[str, str]) -> bool:
    told = parsed(metadata.get("ss_tag_frequency", ""))
    return isinstance(told, dict) and any(isinstance(tags, dict) and tags for tags in told.values())


def _widened(file: LoraFile) -> str:
    """Where the first layer of the model takes more in than the model has; empty if it does not."""
    expected, names = _INPUTS.get(file.families[0].key if file.families else "", (0, ()))
    for module in file.modules.values():
        flat = f"_{module.name.replace('.', '_')}"
        inputs = (module.shape or (0, 0))[1:2]
        if inputs and inputs[0] > expected > 0 and flat.endswith(tuple(f"_{name}" for name in names)):
            first = cut(module.name, QUOTED)
            return f"it widens the model's first layer, `{first}`, from {expected} inputs to {inputs[0]}"
    return ""
