"""Judge merges by what they do to a small diffusion model, and write the table.

    python benchmarks/quality/run.py [--zoo hot gentle] [--models DIR] [--only NAME...] [--out FILE]

Models that the folder lacks are trained first, about twenty minutes on one core for everything. A whole run takes half
a CPU hour and writes docs/quality.md and the numbers in docs/methods.md; one of some zoos or recipes only prints. What
was judged once is remembered.
Needs scikit-learn, for its images of digits.
"""

import argparse
import sys
from pathlib import Path

from merges import DEFAULT, ROOT, recipes
from page import page, with_numbers
from rows import judged
from tables import Results
from training import train_missing
from zoo import RATES

HOME = Path("~/.cache/lora-alloy/quality").expanduser()


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
    found = {}
    for zoo in asked.zoo:
        print(f"judging {len(chosen)} recipes on the {zoo} zoo", file=sys.stderr, flush=True)
        found[zoo] = Results(judged(asked.models, zoo, chosen, asked.cache))
    text = page(found)
    print(text)
    is_whole = asked.only is None and set(asked.zoo) == set(RATES)
    out = asked.out or (ROOT / "docs" / "quality.md" if is_whole else None)
    if out:
        out.write_text(text, encoding="utf-8")
    if is_whole and not asked.out:
        methods = ROOT / "docs" / "methods.md"
        methods.write_text(with_numbers(methods.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
