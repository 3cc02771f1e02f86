"""Judges every recipe on every stack of a zoo, in two processes, and remembers what was judged.

What is remembered goes by the merged numbers themselves, not by the recipe's name: after a change of the engine, only
what came out differently is judged again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from merges import alone, merged
from network import load_base
from training import BASE, lora_path
from truth import Bench, DeltaMap, Truth
from zoo import STACKS, ZOO

if TYPE_CHECKING:
    from lora_alloy import Recipe

PROCESSES = 2
EDITION = 1  # raise it when a judgement of the same merge would come out differently


@dataclass(frozen=True)
class Row:
    """One recipe's worth on one stack; `key` is of the merged numbers."""

    zoo: str
    kind: str
    stack: tuple[str, ...]
    recipe: str
    key: str
    truth: Truth


@dataclass(frozen=True)
class Judge:
    """What judges one zoo, in one process."""

    bench: Bench
    files: Mapping[str, Path]
    digest: str

    @staticmethod
    def of(models: Path, zoo: str) -> "Judge":
        """From the folder of the trained models."""
        files = {name: lora_path(models, zoo, name) for name in ZOO}
        digest = sha256(f"{EDITION}".encode())
        for path in (models / BASE, *files.values()):
            digest.update(path.read_bytes())
        return Judge(Bench(load_base(models / BASE), alone(files)), files, digest.hexdigest())

    def key(self, stack: Sequence[str], merge: DeltaMap) -> str:
        """Of everything that the judgement depends on."""
        digest = sha256(f"{self.digest} {' '.join(stack)}".encode())
        for name in sorted(merge):
            digest.update(name.encode())
            digest.update(merge[name].contiguous().numpy().tobytes())
        return digest.hexdigest()

    def rows(
        self,
        zoo: str,
        kind: str,
        stack: Sequence[str],
        recipes: Mapping[str, "Recipe"],
        known: dict[str, Truth],
    ) -> list[Row]:
        """Every recipe on one stack; what is new is added to `known`."""
        found = []
        for name, recipe in recipes.items():
            merge = merged([self.files[one] for one in stack], recipe)
            key = self.key(stack, merge)
            if key not in known:
                known[key] = self.bench.judge(stack, merge)
            found.append(Row(zoo, kind, tuple(stack), name, key, known[key]))
        return found


def judged(
    models: Path, zoo: str, recipes: Mapping[str, "Recipe"], cache: Path, processes: int = PROCESSES
) -> list[Row]:
    """Every recipe on every stack of a zoo, stacks in their order."""
    known = _remembered(cache)
    tasks = [(kind, stack.split()) for kind, stacks in STACKS.items() for stack in stacks]
    shares = [tasks[place::processes] for place in range(processes)]
    found: list[Row] = []
    with get_context("spawn").Pool(processes) as pool:
        for rows in pool.imap(_work, [(models, zoo, recipes, known, share) for share in shares]):
            found += rows
            _remember(cache, rows)
    order = {tuple(stack): place for place, (_, stack) in enumerate(tasks)}
    return sorted(found, key=lambda row: order[row.stack])


def _work(
    given: tuple[Path, str, Mapping[str, "Recipe"], dict[str, Truth], list[tuple[str, list[str]]]],
) -> list[Row]:
    models, zoo, recipes, known, tasks = given
    torch.set_num_threads(1)
    judge = Judge.of(models, zoo)
    return [row for kind, stack in tasks for row in judge.rows(zoo, kind, stack, recipes, known)]


def _remembered(cache: Path) -> dict[str, Truth]:
    if not cache.exists():
        return {}
    lines = map(json.loads, cache.read_text(encoding="utf-8").splitlines())
    return {
        line["key"]: Truth(
            tuple(line["retention"]),
            tuple(line["likeness"]),
            line["composition"],
            line["damage"],
            line["damage_alone"],
        )
        for line in lines
    }


def _remember(cache: Path, rows: Iterable[Row]) -> None:
    known = _remembered(cache) | {row.key: row.truth for row in rows}
    cache.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps({"key": key, **asdict(truth)}) + "\n" for key, truth in known.items())
    beside = cache.with_suffix(".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(cache)
