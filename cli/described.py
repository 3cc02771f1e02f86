"""What a file is, in words for a terminal and a page alike."""

from collections.abc import Mapping

from ..lora.inspection import Inspection


def described(one: Inspection) -> list[tuple[str, str]]:
    """What a file is, as pairs of a name and a text."""
    told = {
        "format": _counts(one.formats),
        "purpose": _purpose(one),
        "family": one.title,
        "written by": f"{one.trainer.name}: {one.trainer.evidence}" if one.trainer else "",
        "rank": _counts(one.ranks) if len(one.ranks) != 1 else str(next(iter(one.ranks))),
        "scale": _scale(one) if one.ranks else "",
        "dtype": ", ".join(one.dtypes) if len(one.dtypes) == 1 else _counts(one.dtypes),
        "targets": _targets(one),
        "blocks": "; ".join(stretch.text() for stretch in one.stretches),
        "tensors": _tensors(one),
        "base model": ", ".join(one.base_model.values()),
        "trigger": one.trigger,
        "tags": ", ".join(one.tags),
        "in the model": "; ".join(one.coverage.sentences()) if one.coverage else "",
    }
    return [(name, text) for name, text in told.items() if text]


def _purpose(one: Inspection) -> str:
    found = one.structural
    if found is None:
        return ""
    held = "a merge holds it out of the blend" if found.is_held else "too little to hold it out of a blend"
    return f"{found.title} (confidence {found.confidence}; {held}): {'; '.join(found.evidence)}"


def size(count: int) -> str:
    """A number of bytes, for people."""
    if count < 1_000_000:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e6:.1f} MB" if count < 1_000_000_000 else f"{count / 1e9:.2f} GB"


def _counts(counts: Mapping[str, int] | Mapping[int, int] | Mapping[float, int]) -> str:
    return ", ".join(f"{name} ({_modules(count)})" for name, count in counts.items())


def _modules(count: int) -> str:
    return "1 module" if count == 1 else f"{count:,} modules"


def _scale(one: Inspection) -> str:
    alphas = one.alphas
    if not alphas.stored_count:
        return "1: no alpha is stored"
    scales = ", ".join(map(str, alphas.scales)) if len(alphas.scales) == 1 else _counts(alphas.scales)
    broken = alphas.stored_count - alphas.limit_count - sum(alphas.scales.values())
    parts = [
        f"alpha / rank = {scales}" if scales else "",
        f"{_modules(broken)} with an alpha that is no number" if broken else "",
        f"{_modules(alphas.limit_count)} with an alpha that limits a rotation" if alphas.limit_count else "",
        f"{_modules(alphas.missing_count)} without alpha: 1" if alphas.missing_count else "",
    ]
    return "; ".join(part for part in parts if part)


def _targets(one: Inspection) -> str:
    convolutions = f", {one.convolution_count} of them convolutions" if one.convolution_count else ""
    return f"{one.model_count} in the model, {one.clip_count} in text encoders{convolutions}"


def _tensors(one: Inspection) -> str:
    parts = [f"{one.used_count} used"]
    parts += (f"{count} skipped ({reason})" for reason, count in one.skipped.items())
    if one.unknown:
        parts.append(f"{len(one.unknown)} unknown")
    return ", ".join(parts)
