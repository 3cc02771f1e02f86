"""A tuning result in words, whoever wrote it: the stack, and every candidate with its scores."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..merging.retention import percent
from .tuner_data import candidates_of, score_of

MARK, BLANK = ">", " "


def ranking_lines(data: Mapping[str, Any], applied: int = 0) -> list[str]:
    """The report of a sweep.

    Args:
        data: TUNER_DATA.
        applied: the rank that is applied, marked; 0 for none.
    """
    ranked = candidates_of(data)
    lines = [_title(data, len(ranked)), *_stack_lines(data), ""]
    for rank, one in enumerate(ranked, 1):
        lines += candidate_lines(one, rank, MARK if rank == applied else BLANK)
    return lines


def candidate_lines(one: object, rank: int, mark: str = BLANK) -> list[str]:
    """A candidate in two or three lines."""
    if not isinstance(one, Mapping):
        return [f"{mark} {rank}. unreadable"]
    config = one["config"] if isinstance(one.get("config"), Mapping) else {}
    lines = [f"{mark} {rank}. {_scores(one)}  {one.get('name') or _mode(config)}"]
    lines.append(f"       {_told(config)}{_metrics(one.get('metrics'))}")
    if left := _left(one.get("retention")):
        lines.append(f"       left: {left}")
    if details := one.get("external_details"):
        lines.append(f"       evaluator: {str(details)[:200]}")
    return lines


def _title(data: Mapping[str, Any], count: int) -> str:
    tried = f" of {data['tried']} ways of merging" if isinstance(data.get("tried"), int) else ""
    name = data.get("score_name")
    by = f", ranked by {name}" if isinstance(name, str) else ""
    return f"LoRA AutoTuner: the best {count}{tried}, merged and measured{by}"


def _stack_lines(data: Mapping[str, Any]) -> list[str]:
    told = data.get("analysis_summary")
    if not isinstance(told, Mapping):
        return []
    numbers = {name: value for name, value in told.items() if isinstance(value, int | float)}
    parts = [
        f"{numbers[name]:{form}} {words}"
        for name, form, words in (
            ("n_loras", "d", "LoRAs"),
            ("prefix_count", "d", "targets"),
            ("avg_cosine_sim", "+.2f", "mean cosine"),
            ("avg_conflict_ratio", ".0%", "of signs disagree"),
            ("avg_excess_conflict", "+.0%", "beyond chance"),
            ("avg_subspace_overlap", ".0%", "overlap"),
            ("magnitude_ratio", ".1f", "times between the largest norm and the smallest"),
        )
        if name in numbers and (form != "d" or isinstance(numbers[name], int))
    ]
    return [", ".join(parts)] if parts else []


def _scores(one: Mapping[str, Any]) -> str:
    score = score_of(one)
    if score is None:
        return "score unknown"
    told = f"{score:.3f}"
    external, measured = one.get("score_external"), one.get("score_measured")
    if isinstance(external, int | float) and isinstance(measured, int | float):
        told += f" (own {measured:.3f}, evaluator {external:.3f})"
    return told


def _mode(config: Mapping[str, Any]) -> str:
    return str(config.get("merge_mode", "unknown"))[:60]


def _told(config: Mapping[str, Any]) -> str:
    parts = [_mode(config), str(config.get("optimization_mode", ""))[:60]]
    for name, idle in (
        ("sparsification", "disabled"),
        ("merge_refinement", "none"),
        ("strategy_set", "full"),
    ):
        value = config.get(name, idle)
        if value != idle:
            parts.append(f"{name} {str(value)[:60]}")
    parts.append(f"auto-strength {str(config.get('auto_strength', '?'))[:60]}")
    return ", ".join(part for part in parts if part)


def _metrics(told: object) -> str:
    if not isinstance(told, Mapping):
        return ""
    parts = [
        f"{words} {told[name]:{form}}"
        for name, form, words in (
            ("effective_rank_mean", ".1f", "effective rank"),
            ("sparsity_mean", ".0%", "near zero"),
            ("energy_ratio", ".2f", "norm over the average's"),
        )
        if isinstance(told.get(name), int | float) and told[name]
    ]
    return "; " + ", ".join(parts) if parts else ""


def _left(told: object) -> str:
    if not isinstance(told, Sequence) or isinstance(told, str):
        return ""
    pairs = [one for one in told if isinstance(one, Mapping) and isinstance(one.get("left"), int | float)]
    return ", ".join(f"{str(one.get('name'))[:60]} {percent(one['left'])}" for one in pairs)
