"""Judges every recipe on every stack of a zoo, in two processes, and remembers what was judged.

What is remembered goes by the merged numbers themselves, not by the recipe's name: after a change of the engine, only
what came out differently is judged again.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
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
    """Every recipe on every stack of a zoo, stacks in their order; each is remembered as soon as it is done."""
    tasks = [(kind, stack.split()) for kind, stacks in STACKS.items() for stack in stacks]
    found: list[Row] = []
    given = (models, zoo, recipes, _remembered(cache))
    with get_context("spawn").Pool(processes, _begin, given) as pool:
        for rows in pool.imap(_judged, tasks):
            found += rows
            _remember(cache, rows)
            print(f"{zoo}: {len(found) // len(recipes)} of {len(tasks)} stacks", file=sys.stderr, flush=True)
    return found


_worker: Callable[[str, Sequence[str]], list[Row]]  # one a process


def _begin(models: Path, zoo: str, recipes: Mapping[str, "Recipe"], known: dict[str, Truth]) -> None:
    global _worker
    torch.set_num_threads(1)
    judge = Judge.of(models, zoo)
    _worker = partial(judge.rows, zoo, recipes=recipes, known=known)


def _judged(task: tuple[str, Sequence[str]]) -> list[Row]:
    return _worker(*task)


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
