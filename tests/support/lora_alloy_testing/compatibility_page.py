"""`docs/compatibility.md` from the findings: one table for families of which the same can be said."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .compatibility import OURS, Findings
from .namings import NamedFile, files_of
from lora_alloy.lora.keys import FAMILIES, Family

_HEAD = """\
# What is read

A LoRA file can be told apart by three things that vary independently: how it stores a delta (its **format**), what it
calls the weights (its **naming**), and the model it is for (its **family**). This page says for all of them what LoRA
Alloy reads, and what others do:
{readers}.
It is written by a script, from counts that the tests repeat. Where ComfyUI takes a module that LoRA Alloy takes, both
add the same delta, to a relative error below 1e-5; in no row does ComfyUI take a module that LoRA Alloy does not.

✔ all modules take effect · *n of m* only so many of them do, the rest is dropped in silence · ✗ none does ·
– this version does not have the model

A file is counted with every matrix and convolution of the released model that its naming has a name for. Where blocks
are alike, the first and the last speak for all of them. For ComfyUI, *takes effect* means that its own loader, with its
own key map of that model, makes a patch for the right weight and the right rows of it. For diffusers it means that the
pipeline's own conversion gives the module a name that the model has. PEFT's own loader reads what it wrote: the naming
*PEFT, raw*, for the very model it wrote it of.

## Formats

✔ the delta that the format's paper or trainer means · ≠ another one, as if a part of the file were not there ·
✗ nothing happens

"""
_AFTER_FORMATS = """
LoRA Alloy takes the numbers of LoHa, LoKr, OFT, BOFT, GLoRA and (IA)³ to mean what LyCORIS' own `get_diff_weight` makes
of them, and those of DoRA and OFT in PEFT's spelling what PEFT merges; the tests compare with both libraries. Where
ComfyUI and a trainer disagree about DoRA by outputs, it follows ComfyUI.

## The model

Which program writes which naming:

- *ComfyUI*: ComfyUI, ai-toolkit, diffusion-pipe, OneTrainer's format for ComfyUI. *kohya*: sd-scripts, musubi-tuner,
  LyCORIS. *kohya, diffusers' names*: the same where they train diffusers' model, musubi-tuner's own output, OneTrainer.
- *diffusers*: diffusers, SimpleTuner, ai-toolkit, finetrainers; *adapter named* with `.default.` in the names of
  tensors; *attention processors*: diffusers before PEFT.
- *LyCORIS*: LyCORIS outside kohya's trainer, SimpleTuner. *OneTrainer*: its older format. *PEFT, raw*: PEFT's
  `adapter_model.safetensors`, fal. *bare*: DiffSynth, ModelScope, OneTrainer's original format.
- *original code*: trainers that use the model's own repository. *XLabs*, *BFL control*, *VideoX-Fun*: their namesakes.
- *mis-prefixed* and *truncated* come from conversions that went wrong.
"""
_TEXT = """
## Text encoders

A file of a text encoder alone does not always say which model it is for; beside modules of the model, or with the model
at hand, it does. *linear layers* is how diffusers named the factors of text encoders before PEFT, *inner* leaves the
outer module's name out.
"""
_TITLES = {
    "lora": "LoRA",
    "loha": "LoHa",
    "lokr": "LoKr",
    "full difference": "full difference",
    "dora": "DoRA",
    "oft": "OFT",
    "boft": "BOFT",
    "glora": "GLoRA",
    "ia3": "(IA)³",
}
_SIGNS = {"same": "✔", "other": "≠", "nothing": "✗"}


@dataclass(frozen=True)
class _Cell:
    """What one reader takes of a file: `read` of `total` modules, None if it does not have the model."""

    read: int | None
    total: int
    strayed: int = 0

    @property
    def kind(self) -> str:
        """What it looks like, numbers apart."""
        if self.read is None:
            return "–"
        return "✗" if not self.read else "✔" if self.read == self.total else "part"


@dataclass(frozen=True)
class _Line:
    """A file's row: what it is called, a name of it, and a cell a reader."""

    naming: str
    example: str
    cells: tuple[_Cell, ...]


def page(findings: Findings) -> str:
    """The whole document."""
    readers = list(findings["read"])
    others = [reader for reader in readers if reader != OURS]
    said = f"{', '.join(others[:-1])} and {others[-1]}"
    parts = [_HEAD.format(readers=said), *_formats(findings), _AFTER_FORMATS, *_models(findings, readers)]
    return "".join([*parts, _TEXT, *_encoders(findings, readers)]).rstrip("\n") + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _formats(findings: Findings) -> Iterator[str]:
    """One row for the variants of a format of which the same can be said."""
    found = findings["formats"]
    rows: dict[tuple[str, ...], list[str]] = {}
    for title in found[OURS]:
        name = next(name for name in _TITLES if title.startswith(name))
        variant = title.removeprefix(name).strip(", ").replace(" on lora", "")
        look = _TITLES[name], *(_SIGNS[found[reader][title]] for reader in found)
        rows.setdefault(look, []).append(variant or "plain")
    order = list(_TITLES.values())
    looks = sorted(rows, key=lambda look: order.index(look[0]))
    table = [[look[0], "; ".join(rows[look]), *look[1:]] for look in looks]
    yield _table(["format", "variants", *found], table)


def _lines(family: Family, findings: Findings, readers: Sequence[str]) -> list[_Line]:
    return [_line(file, findings, readers) for file in files_of(family) if not file.encoder]


def _line(file: NamedFile, findings: Findings, readers: Sequence[str]) -> _Line:
    total = findings["modules"][file.family][file.label]
    cells = []
    for reader in readers:
        absent = None if reader.startswith("ComfyUI") else {file.label: 0}
        counts = findings["read"][reader].get(file.family, absent)
        strayed = findings["strayed"].get(reader, {}).get(file.family, {}).get(file.label, 0)
        cells.append(_Cell(counts and counts[file.label], total, strayed))
    return _Line(file.naming, f"`{file.example}`", tuple(cells))


def _models(findings: Findings, readers: Sequence[str]) -> Iterator[str]:
    alike: dict[object, list[tuple[Family, list[_Line]]]] = {}
    for family in FAMILIES:
        lines = _lines(family, findings, readers)
        look = tuple((line.naming, line.example, *(cell.kind for cell in line.cells)) for line in lines)
        alike.setdefault(look, []).append((family, lines))
    for several in alike.values():
        yield f"\n### {', '.join(family.title for family, _ in several)}\n\n"
        notes: list[str] = []
        rows = [_row(lines, notes) for lines in zip(*(lines for _, lines in several), strict=True)]
        yield _table(["naming", "such as", "modules", *readers], rows)
        yield "".join(f"\n{note}\n" for note in notes)


def _row(lines: Sequence[_Line], notes: list[str]) -> list[str]:
    totals = dict.fromkeys(str(line.cells[0].total) for line in lines)
    cells = [_written([line.cells[place] for line in lines], notes) for place in range(len(lines[0].cells))]
    return [lines[0].naming, lines[0].example, " / ".join(totals), *cells]


def _written(cells: Sequence[_Cell], notes: list[str]) -> str:
    kind = cells[0].kind
    if kind == "part":
        kind = " / ".join(dict.fromkeys(f"{cell.read} of {cell.total}" for cell in cells))
    if not any(cell.strayed for cell in cells):
        return kind
    sign = "\\*" * (len(notes) + 1)
    what = " / ".join(str(cell.strayed) for cell in cells)
    notes.append(
        f"{sign} It also sends {what} of the modules looked at to rows or weights that are not theirs."
    )
    return f"{kind} {sign}"


def _encoders(findings: Findings, readers: Sequence[str]) -> Iterator[str]:
    """One table an encoder; families of which the same can be said share a row."""
    by_encoder: dict[str, dict[object, tuple[_Line, list[str]]]] = {}
    for family in FAMILIES:
        for line, encoder in _encoder_lines(family, findings, readers):
            look = line.naming, line.example, line.cells
            rows = by_encoder.setdefault(encoder, {})
            rows.setdefault(look, (line, []))[1].append(family.title)
    for encoder, rows in by_encoder.items():
        everywhere = list(dict.fromkeys(title for _, titles in rows.values() for title in titles))
        yield f"\n### `{encoder}`\n\nOf {', '.join(everywhere)}.\n\n"
        notes: list[str] = []
        table = []
        for line, titles in rows.values():
            place = "all" if titles == everywhere else ", ".join(titles)
            naming, example, _, *cells = _row([line], notes)
            table.append([naming, example, place, *cells])
        yield _table(["naming", "such as", "in", *readers], table)
        yield "".join(f"\n{note}\n" for note in notes)


def _encoder_lines(family: Family, findings: Findings, readers: Sequence[str]) -> Iterator[tuple[_Line, str]]:
    for file in files_of(family):
        if file.encoder:
            yield _line(file, findings, readers), file.encoder
