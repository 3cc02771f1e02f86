"""What a name says of a LoRA's purpose: distillation and the like have names of their own.

Most of these names are ordinary words too: lightning is weather, a turbo sits in a car, and hyper stands before
realism. Such a word counts only where nothing but technical words stand beside it, on the side where these files
have the model's name; what is called by words of its own, such as `lightx2v`, needs less.
"""

import re
from dataclasses import dataclass
from typing import Literal

Confidence = Literal["high", "medium", "low"]

TITLES = {
    "lcm": "LCM",
    "lightning": "Lightning",
    "turbo": "Turbo",
    "hyper": "Hyper",
    "distilled": "distilled",
    "dpo": "DPO",
    "edit": "edit or control",
}

# Nobody calls a style or a person so.
_OWN = (
    ("lcm", "lcm|animatelcm|latent consistency"),
    ("hyper", r"hyper ?(?:sd|sdxl|sd1|sd15|sd3|sd35|flux)\d*(?= |$)"),
    ("turbo", "turbo ?alpha|turbo distill"),
    ("distilled", "lightx2v|light x ?2 ?v|causvid|caus vid|accvid|acc vid|accvideo|dmd ?2|fusion ?x(?= |$)"),
    (
        "distilled",
        "fast ?wan|fast ?hunyuan|fast ?video|nitro ?sd|nitro ?fusion|perflow|instaflow|self ?forcing",
    ),
    (
        "distilled",
        r"(?:step|cfg|guidance) distill\w*|distill\w* (?:lora|patch|cfg|step)|de ?distill\w*|training adapter",
    ),
    ("dpo", "dpo|direct preference"),
    ("edit", "instruct ?pix ?2 ?pix|ip2p|ic ?edit|ic lora"),
)
# Ordinary words and mere initials. What must stand beside them: the model's name before, after, or a step count.
_SHARED = (
    ("lightning", "lightning", "before"),
    ("turbo", "turbo", "before"),
    ("hyper", "hyper", "after"),
    ("distilled", "distill|distilled|distillation|dmd|accelerator|acceleration", "before"),
    ("distilled", "schnell|flash|fast", "steps"),
    ("lcm", "tcd|pcm|rcm", "anywhere"),
    ("dpo", "spo|srpo|mapo|hps|mps|grpo", "anywhere"),
    ("edit", "edit|canny|depth|inpaint|inpainting|outpaint|control", "before"),
)
# Where the word is part of a base model's name, and its every LoRA has it.
_NAMES_A_BASE = {
    "turbo": re.compile(r"\b(?:z ?image|zit)\b"),
    "edit": re.compile(r"\b(?:qwen|z ?image|kontext|hidream|longcat|omnigen|firered)\b"),
}
_BASE = re.compile(
    r"\b(?:sd|sdxl|sdv|xl|ssd|stable diffusion|flux|wan|qwen|hunyuan|hunyuanvideo|hunyuanimage|hyvideo|hyvid|ltx|ltxv"
    r"|chroma|kolors|pixart|auraflow|cascade|mochi|cosmos|lumina|z ?image|kandinsky|animatediff|krea|hidream)\d*\b"
)
_STEPS = re.compile(r"\b(\d{1,2}) ?steps?\b(?! ?\d{3})")
MOST_STEPS = 16
_TECHNICAL = frozenset(
    """
    a and for no of only the to with without by
    lora loras locon lycoris loha lokr dora adapter weight weights model models checkpoint safetensors file net
    comfy comfyui kohya webui forge diffusers pytorch official original orig converted convert conversion extracted
    extract resized resize average avg dynamic dyno adaptive compat compatible pruned
    kijai bytedance alimama stabilityai modeltc ostris seko tianweiy jasperai
    unet dit transformer clip te encoder final beta alpha preview test new fix fixed
    tiny small medium large huge base dev pro full lite mini plus max turbo lightning hyper lcm flash fast schnell
    scaled high low noise hn ln highnoise lownoise cfg nocfg normalcfg smallcfg normal free
    rank ranks dim dims r e ep epoch epochs step steps k m b v ver version
    sampler scheduler euler ddim dpm sgm trailing uniform lcmlike
    video image img text txt motion module i v t2v i2v ti2v t2i i2i r2v vace fun inp
    distill distilled distillation distil dedistill patch speed accelerate accelerated accelerator acceleration
    mix mixed merge merged universal general stable diffusion data reward training trained train adapters
    pony illustrious noob noobai animagine playground anima x z q gguf
    edit control lightx2v causvid accvid accvideo dmd dmd2 animatelcm fusionx fusion fastwan fasthunyuan fastvideo
    nitro sd sdxs perflow instaflow self forcing guidance light vid caus acc tcd pcm rcm dpo spo srpo mapo hps mps grpo
    bidirect direct preference latent consistency instruct pix pix2pix instructpix2pix ip2p icedit ic canny depth
    inpaint inpainting outpaint de
    """.split()
)
_NUMBERED = re.compile(
    r"\d+[a-z]?|[a-z]?\d+[bkmpx]?|(?:rank|dim|ver|v|ep|epoch|step|steps|sd|fp|bf|int|w|lora|bidirect)\d+\w?|e\dm\d(?:fn)?|\d+(?:step|steps|ep|dim)"
)
_PIECES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")


@dataclass(frozen=True)
class Told:
    """What a name says.

    Attributes:
        kind: a key of `TITLES`.
        confidence: how sure that is from the name alone.
        word: what says so, as it stands in the name.
        why: in words that go on after the word.
        is_own: whether the word has no ordinary meaning.
    """

    kind: str
    confidence: Confidence
    word: str
    why: str
    is_own: bool


def told_by_name(name: str) -> Told | None:
    """What the name of a file, or a title, says of its purpose; None for nothing.

    Args:
        name: without a folder; an ending is ignored.
    """
    words = _words(name)
    text = " ".join(words)
    found = _STEPS.search(text)
    steps = _counted(int(found[1])) if found and 1 <= int(found[1]) <= MOST_STEPS else ""
    base = _BASE.search(text)
    plain = all(map(_is_technical, words))
    for kind, pattern in _OWN:
        if word := re.search(rf"\b(?:{pattern})\b", text):
            return _own(kind, word[0], plain, steps, base is not None)
    for kind, pattern, place in _SHARED:
        for word in re.finditer(rf"\b(?:{pattern})\b", text):
            if kind in _NAMES_A_BASE and _NAMES_A_BASE[kind].search(text):
                continue
            return _shared(kind, word, text, plain, steps, place)
    if steps and base and is_plain:
        return Told(
            "distilled",
            "medium",
            steps,
            f"stands beside {base[0]}, and no other word but technical ones",
            True,
        )
    return None


def is_plain(name: str) -> bool:
    """Whether a name says nothing of a file's content: nothing but technical words stand in it."""
    return all(map(_is_technical, _words(name)))


def _counted(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _own(kind: str, word: str, plain: bool, steps: str, has_base: bool) -> Told:
    if not plain:
        if steps:
            return Told(kind, "medium", word, f"stands with {steps}, though other words do too", True)
        return Told(kind, "low", word, "stands among other words, which may be what it is about", True)
    if steps or has_base:
        return Told(
            kind, "high", word, f"stands with {steps or 'the model'} and nothing but technical words", True
        )
    return Told(kind, "medium", word, "stands with nothing but technical words", True)


def _shared(kind: str, word: re.Match[str], text: str, plain: bool, steps: str, place: str) -> Told | None:
    if not plain:
        if not steps:
            return None
        return Told(
            kind, "low", word[0], f"stands with {steps}, among words that may be what it is about", False
        )
    before, after = _BASE.search(text[: word.start()]), _BASE.match(text[word.end() + 1 :])
    if steps and (before or after or place == "steps"):
        return Told(kind, "high", word[0], f"stands with {steps} and nothing but technical words", False)
    is_placed = {"before": before, "after": after, "anywhere": before or _BASE.search(text), "steps": None}[
        place
    ]
    if steps or is_placed:
        beside = steps or "the model"
        return Told(kind, "medium", word[0], f"stands with {beside} and nothing but technical words", False)
    return Told(
        kind,
        "low",
        word[0],
        "is an ordinary word, and neither a model nor a step count stands with it",
        False,
    )


def _words(name: str) -> list[str]:
    """Its words in lower case; `LCMTurboMix` is three, and `8steps` two."""
    stem = re.sub(r"\.(?:safetensors|pt|pth|ckpt|bin)$", "", name, flags=re.IGNORECASE)[:400]
    found: list[str] = []
    for chunk in re.split(r"[\W_]+", stem):
        lower = chunk.lower()
        steps = re.fullmatch(r"(\d{1,2})(steps?)", lower)
        if steps:
            found += steps.groups()
        elif chunk and (_is_technical(lower) or lower == chunk):
            found.append(lower)
        else:
            found += (piece.lower() for piece in _PIECES.findall(chunk))
    return found


def _is_technical(word: str) -> bool:
    return word in _TECHNICAL or bool(_NUMBERED.fullmatch(word) or _BASE.fullmatch(word))
