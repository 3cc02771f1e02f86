"""How well the AutoTuner's scores rank merges, against what those merges do to a small diffusion model.

    python benchmarks/quality/prediction.py [--zoo hot gentle] [--models DIR] [--cache FILE] [--out FILE]

Every recipe of the bench is judged on every stack (`run.py`; what it has judged is remembered), and scored as phase 1
of the tuner does, without a merge. Printed are, by zoo: Spearman's rank correlation of the score with Q within a stack,
mean over the stacks, with a bootstrap interval; the regret of the recipe with the best score; and beside them always
the same recipe. The tuner itself then tunes every stack, and what it picks is judged, too.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from merges import DEFAULT, recipes
from rows import Row, judged
from run import HOME
from tables import Results, interval
from training import lora_path, train_missing
from zoo import RATES


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values sharing their mean rank."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values))
    found[order] = np.arange(len(values))
    for value in np.unique(values):
        same = values == value
        found[same] = found[same].mean()
    return found


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    """The correlation of the ranks; 0 where one of them is constant."""
    a, b = ranks(one), ranks(other)
    a, b = a - a.mean(), b - b.mean()
    bottom = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / bottom if bottom else 0.0


def scored(
    models: Path, zoo: str, stacks: Sequence[tuple[str, ...]], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Every score of these recipes on these stacks: by score, `(stacks, recipes)`."""
    from lora_alloy.analysis.measure import measure
    from lora_alloy.api import stack_of
    from lora_alloy.autotuner.predict import Predictor
    from lora_alloy.autotuner.pulls import pulls_of
    from lora_alloy.autotuner.scores import SCORES

    known = recipes()
    found = {score: np.zeros((len(stacks), len(names))) for score in SCORES}
    for row, names_in in enumerate(stacks):
        stack = stack_of([lora_path(models, zoo, name) for name in names_in])
        predictor = Predictor(stack, measure(stack), pulls_of(stack))
        for column, name in enumerate(names):
            errors = predictor.of(known[name]).errors
            for score, judge in SCORES.items():
                found[score][row, column] = judge(errors)
    return found


def report(models: Path, zoo: str, rows: Sequence[Row]) -> str:
    """The table of one zoo."""
    results = Results(rows)
    names = list(results.names)
    quality = np.stack([results.quality[name] for name in names], 1)
    best = quality.max(1)
    lines = ["| what picks | Spearman with Q | its Q | regret |", "| --- | ---: | ---: | ---: |"]
    for score, values in scored(models, zoo, results.stacks, names).items():
        each = np.array([spearman(a, b) for a, b in zip(values, quality, strict=True)])
        picked = quality[np.arange(len(quality)), values.argmax(1)]
        lines.append(
            "| `{}` | {:.2f} [{:.2f}, {:.2f}] | {} | {:.3f} |".format(
                score, *interval(each), _mean(picked), (best - picked).mean()
            )
        )
    for name in sorted(names, key=lambda one: -results.quality[one].mean())[:8]:
        regret = (best - results.quality[name]).mean()
        lines.append(f"| always {name} | – | {_mean(results.quality[name])} | {regret:.3f} |")
    return (
        f"## The {zoo} zoo: {len(results.stacks)} stacks, {len(names)} recipes\n\n" + "\n".join(lines) + "\n"
    )


def _mean(values: np.ndarray) -> str:
    return "{:.3f} [{:.2f}, {:.2f}]".format(*interval(values))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zoo", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--models", type=Path, default=HOME)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="recipes whose name begins so, and the default"
    )
    parser.add_argument("--cache", type=Path, default=HOME / "judged.jsonl", help="what was judged before")
    parser.add_argument("--out", type=Path, help="the Markdown file")
    asked = parser.parse_args()
    train_missing(asked.models, asked.zoo)
    chosen = {
        name: recipe
        for name, recipe in recipes().items()
        if name == DEFAULT or asked.only is None or name.startswith(tuple(asked.only))
    }
    parts = []
    for zoo in asked.zoo:
        print(f"judging the {zoo} zoo", file=sys.stderr, flush=True)
        parts.append(report(asked.models, zoo, judged(asked.models, zoo, chosen, asked.cache)))
    text = "\n".join(parts)
    print(text)
    if asked.out:
        asked.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
