"""What a file is, from its header alone: format, family, trainer, ranks, alpha, targets, problems.

Of the values, only alphas are read, one number a module. What stands in the header's metadata is hostile
text: it is cut to a readable length, and whoever shows it must escape it (`spec/comfyui-contract.md`
§3.2, §3.5).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from . import keys
from .alphas import Alphas, find_alphas
from .coverage import Coverage, coverage_of
from .entries import Model
from .file import LoraFile, open_lora
from .formats import others
from .formats import title as format_title
from .headers import cut, parsed
from .leading import target_of
from .stretches import Stretch, stretches
from .structural import Structural, structural_type
from .trainers import Trainer, guess_trainer

SHOWN = 5
_FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
_WHOLE = ("alpha", "scalar", "reshape")  # may be whole numbers
_BASE_MODEL = ("ss_base_model_version", "modelspec.architecture", "ss_sd_model_name")


@dataclass(frozen=True)
class Inspection:
    """One file, as its header describes it.

    Attributes:
        path: where it lies.
        size_bytes: of the whole file.
        formats: format → its modules; formats that are recognised but not read are among them.
        family: the key of the likeliest model family, or None.
        title: that family in words.
        candidates: all families that it may belong to, in words, the likeliest first.
        trainer: a guess at the program that wrote it.
        ranks: rank → modules of that rank, ascending.
        alphas: where the scale comes from.
        dtypes: storage dtype → factors stored so.
        model_count: modules of the model.
        clip_count: modules of text encoders.
        convolution_count: modules with a kernel.
        used_count: tensors that a merge uses.
        skipped: reason → tensors that are known and left out.
        unknown: tensors that nobody here knows.
        base_model: what the header says of the base model.
        trigger: the header's trigger phrase.
        tags: the most frequent training tags, at most `SHOWN`.
        structural: what kind of structural LoRA it is, with the evidence; None if nothing says so.
        stretches: the rows of blocks that it changes, and which it leaves out.
        coverage: what of it a given model has; None without one.
        problems: what the user should know, in sentences.
    """

    path: Path
    size_bytes: int
    formats: dict[str, int]
    family: str | None
    title: str
    candidates: tuple[str, ...]
    trainer: Trainer | None
    ranks: dict[int, int]
    alphas: Alphas
    dtypes: dict[str, int]
    model_count: int
    clip_count: int
    convolution_count: int
    used_count: int
    skipped: dict[str, int]
    unknown: tuple[str, ...]
    base_model: dict[str, str]
    trigger: str
    tags: tuple[str, ...]
    structural: Structural | None
    stretches: tuple[Stretch, ...]
    coverage: Coverage | None
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The inspection as JSON values; ranks and scales are keys, and so strings."""
        told: dict[str, Any] = asdict(self)
        told["path"] = str(self.path)
        if self.structural is not None:
            told["structural"] |= {"title": self.structural.title, "is_held": self.structural.is_held}
        for row, given in zip(told["stretches"], self.stretches, strict=True):
            row["counts"] = {str(block): count for block, count in given.counts.items()}
            row["missing"] = given.missing
        told["ranks"] = {str(rank): count for rank, count in self.ranks.items()}
        told["alphas"]["scales"] = {f"{scale:g}": count for scale, count in self.alphas.scales.items()}
        return told


def inspect_file(path: Path | str, *, read_alphas: bool = True, model: Model | None = None) -> Inspection:
    """Inspect one LoRA file.

    Args:
        path: the file.
        read_alphas: also read the alphas' values: one number a module, spread over the file.
        model: say what of the file this model has; that reads the factors.

    Raises:
        FileError: the file is missing, damaged, or not a LoRA.
    """
    return inspect_opened(open_lora(path), read_alphas=read_alphas, model=model)


def inspect_opened(file: LoraFile, *, read_alphas: bool = True, model: Model | None = None) -> Inspection:
    """Inspect an opened LoRA; the arguments are those of `inspect_file`."""
    metadata = file.tensors.metadata
    family = file.families[0] if file.families else None
    targets = [target_of(name, family) for name in file.modules]
    alphas, alpha_problems = find_alphas(file, read_values=read_alphas)
    skipped = Counter(cut(one.reason) for one in file.accounts if one.state == "skipped")
    unknown = tuple(cut(one.tensor) for one in file.accounts if one.state == "unknown")
    return Inspection(
        path=file.path or Path(file.label),
        size_bytes=file.tensors.size_bytes,
        formats=_formats(file),
        family=family.key if family else None,
        title=family.title if family else "unknown architecture",
        candidates=tuple(one.title for one in file.families),
        trainer=guess_trainer(metadata, file.modules),
        ranks=dict(sorted(Counter(module.rank for module in file.modules.values()).items())),
        alphas=alphas,
        dtypes=dict(Counter(module.dtype for module in file.modules.values()).most_common()),
        model_count=sum(not target.is_clip for target in targets),
        clip_count=sum(target.is_clip for target in targets),
        convolution_count=sum(len(module.shape or ()) > 2 for module in file.modules.values()),
        used_count=sum(one.state == "used" for one in file.accounts),
        skipped=dict(skipped.most_common()),
        unknown=unknown,
        base_model={key: cut(metadata[key]) for key in _BASE_MODEL if metadata.get(key)},
        trigger=cut(metadata.get("modelspec.trigger_phrase", "")),
        tags=_tags(metadata.get("ss_tag_frequency", "")),
        structural=structural_type(file),
        stretches=stretches(targets, family),
        coverage=coverage_of(file, model) if model else None,
        problems=(
            *_unread(file),
            *_unreadable(file),
            *_base_needed(file),
            *alpha_problems,
            *_beyond_comfyui(file),
            *_family_problems(metadata, file),
            *_unknown_tensors(unknown),
        ),
    )


def _formats(file: LoraFile) -> dict[str, int]:
    counts = Counter(format_title(module) for module in file.modules.values())
    foreign: dict[str, set[str]] = {}
    for account in file.accounts:
        known = others.known_as(account.tensor) if account.state == "skipped" else None
        if known is not None:
            module, what = known
            foreign.setdefault(what, set()).add(module)
    counts.update({what: len(modules) for what, modules in foreign.items()})
    named = {module for modules in foreign.values() for module in modules}
    if rest := sum(problem.name not in named for problem in file.unread):
        counts["LoRA with more than factors"] = rest
    return dict(counts)


def _beyond_comfyui(file: LoraFile) -> list[str]:
    """Where ComfyUI's loader renders the file otherwise than a merge at the same strength."""
    modules = file.modules.values()
    told = (
        (
            sum("scalar" in module.roles for module in modules),
            "come with a scalar, as old LyCORIS files do: it was part of the training and is applied; ComfyUI's"
            " loader leaves it out",
        ),
        (
            sum("bias" in module.roles for module in modules),
            "are biases of an up factor, as PEFT trains them: they are added to the layers' own; ComfyUI's loader"
            " leaves most of them out",
        ),
        (
            sum("set" in module.roles for module in modules),
            "replace a weight: a merge needs the base weight for them and scales the change by the strength, where"
            " ComfyUI's loader replaces at any strength",
        ),
    )
    sentences = [f"{count} of {len(file.modules)} modules {what}." for count, what in told if count]
    if file.scales:
        sentences.append(
            f"{len(file.scales)} factors are packed, with scales beside them by which a merge multiplies; ComfyUI's"
            " loader leaves the scales out, and so renders noise or nothing."
        )
    if bare := sum(map(keys.is_bare_parameter, (module.name for module in modules))):
        sentences.append(
            f"{bare} of {len(file.modules)} modules change parameters outside of layers, such as modulations, which"
            " ComfyUI's loader never patches: a merge keeps them in its file, and they have no effect in ComfyUI."
        )
    return sentences


def _family_problems(metadata: Mapping[str, str], file: LoraFile) -> list[str]:
    if not file.modules:
        return []
    if not file.families:
        return [
            "Its names and shapes are of no model family known here. It still merges, by module name, with"
            " LoRAs that spell their modules alike."
        ]
    problems = []
    titles = [family.title for family in file.families]
    if len(titles) > 1:
        problems.append(
            f"It may be for {' or '.join(titles)}: what it changes is alike in them. Beside other LoRAs it"
            " takes their family."
        )
    claims = {
        family.title: cut(value)
        for family in keys.FAMILIES
        for value in (metadata.get("ss_base_model_version", ""), metadata.get("modelspec.architecture", ""))
        if value and value in (family.ss_base_model_version, family.modelspec)
    }
    for title, value in claims.items():
        if title not in titles:
            problems.append(
                f"Its header says `{value}`, {title}, but its names and shapes are those of {titles[0]}; they"
                " decide."
            )
    return problems


def _unread(file: LoraFile) -> list[str]:
    by_text: dict[str, list[str]] = {}
    for problem in file.unread:
        by_text.setdefault(problem.text, []).append(problem.name)
    total = len(file.unread) + len(file.modules)
    return [
        f"{len(names)} of {total} modules are not read: `{cut(names[0])}` {text}. A merge refuses the file"
        " unless it is told to go on without them (`--partial`)."
        for text, names in by_text.items()
    ]


def _unreadable(file: LoraFile) -> list[str]:
    """Factors that are no numbers to multiply by, as their dtypes tell."""
    plain = set(file.scales.values())
    found = [
        info
        for module in file.modules.values()
        for role, info in module.roles.items()
        if role not in _WHOLE
        and info.dtype not in _FLOATS
        and info.name not in plain
        and prod(info.shape) > 1
    ]
    if not found:
        return []
    dtypes = ", ".join(dict.fromkeys(info.dtype for info in found))
    return [
        f"{len(found)} tensors, the first `{cut(found[0].name)}`, are stored as {cut(dtypes)}, without a scale beside"
        " them that would make them readable: a merge refuses the file. Get it in another precision."
    ]


def _base_needed(file: LoraFile) -> list[str]:
    """What depends on base weights, and where a convention was chosen."""
    reasons = Counter(module.base_reason for module in file.modules.values() if module.base_reason)
    notes = Counter(module.note for module in file.modules.values() if module.note)
    told = [
        f"{count} of {len(file.modules)} modules come with {reason}: what they do depends on the base model. A"
        " merge on the command line needs it (`--base`); in ComfyUI the connected model is it."
        for reason, count in reasons.items()
    ]
    return [*told, *(f"{note} ({count} of {len(file.modules)} modules)." for note, count in notes.items())]


def _unknown_tensors(unknown: Sequence[str]) -> list[str]:
    if not unknown:
        return []
    return [f"{len(unknown)} tensors are known to nobody here and left out, the first `{unknown[0]}`."]


def _tags(text: str) -> tuple[str, ...]:
    """The most frequent tags of kohya's `ss_tag_frequency`: `{folder: {tag: count}}`."""
    told = parsed(text)
    counts: Counter[str] = Counter()
    for tags in told.values() if isinstance(told, dict) else ():
        for tag, count in tags.items() if isinstance(tags, dict) else ():
            if isinstance(count, int):
                counts[cut(tag.strip())] += count
    return tuple(tag for tag, _ in counts.most_common(SHOWN))
