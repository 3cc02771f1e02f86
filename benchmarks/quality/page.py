"""The pages of the documentation that the bench writes: all of one, and the numbers in another."""

import re
from collections.abc import Mapping

from tables import Results, default_lines, kinds_table, overall_table, promises_table

INTRODUCTION = """# How good a merge is

Numbers about weights do not tell whether a merge still draws what its LoRAs drew. So there is a small model for which
that can be measured: a diffusion transformer of 0.7 million parameters that draws digits and shapes of 16 × 16, 17
LoRAs trained on it, concepts and styles, near-duplicates and pairs that want the same word to mean two things, and 29
stacks of two to four of them. All of it exists twice: in the *hot* zoo the LoRAs were trained at a high learning rate,
so their deltas are large; in the *gentle* zoo at a low one. Every strength is 1.

- **mean**, **least**: retention, the share of a LoRA's own gain on held-out images that the merge keeps: 0 is the base
  model, 1 the LoRA alone; over the LoRAs of a stack, and of the one that suffers most. Less than -1 counts as -1.
- **likeness**: the same for images generated from the same noise, of the LoRA that suffers most.
- **composition**: the same for prompts with the words of a concept and of a style, beside the better of the two alone.
- **excess**: how much worse than under the worst LoRA alone the model became at what no LoRA is about.
- **Q** = (mean + least) / 2 - excess. In brackets: the 95 % bootstrap interval over the stacks.
- **regret**: how far Q is, on average, from that of the best recipe for each stack; **worst regret**: how far from the
  best fixed recipe on the kind of stack where that distance is largest. The best of each kind is bold.

The default is the sum of the LoRAs, brought to the mean of their norms, in which loud LoRAs are turned down for quiet
ones: by a factor that goes with one over the root of the norm, and none becomes louder than was asked. Where LoRAs
push each other's entries to other sides far more than chance does, TIES takes its place. (The default used to be SLERP
for two LoRAs and the Karcher mean for more.)

It is one toy model, and the stacks share its LoRAs: trust orderings, not constants. Recipes that came to the same
numbers share a line. `python benchmarks/quality/run.py` trains the models and writes this page; it needs scikit-learn.
"""


MEASURED = re.compile(r"`([^`\n]+)`: Q [-–.0-9]+ hot, [-–.0-9]+ gentle")


def page(found: Mapping[str, Results]) -> str:
    """The page, for the zoos that were judged."""
    parts = [INTRODUCTION, f"## What the default promises\n\n{promises_table(found)}"]
    for zoo, results in found.items():
        count = len(results.stacks)
        parts.append(f"## The {zoo} zoo: {count} stacks\n\n{overall_table(results)}")
        parts.append(f"### By kind of stack\n\n{kinds_table(results)}")
        parts.append(f"### The default\n\n{default_lines(results)}")
    return "\n".join(parts)


def with_numbers(text: str, found: Mapping[str, Results]) -> str:
    """A page in which every "`recipe`: Q 0.512 hot, 0.498 gentle" has the numbers that were found; "–" if none were."""

    def numbers(match: re.Match[str]) -> str:
        told = []
        for zoo in ("hot", "gentle"):
            names = [name for same in found[zoo].names.values() for name in same]
            told.append(f"{found[zoo].quality_of(match[1]):.3f} {zoo}" if match[1] in names else f"– {zoo}")
        return f"`{match[1]}`: Q {', '.join(told)}"

    return MEASURED.sub(numbers, text)
