"""The parts of the merge page on methods and forms: a strategy map, block by block, and why."""

from ..merging.report import Report
from ..merging.report_text import cost_line
from .charts import block_map, cell, facts, section, sentences, table, tint
from .described import size
from .html import Html, tag


def methods_section(report: Report) -> Html:
    """Which method took which block, why, and what was done element by element."""
    heads = [("Method", ""), ("Why", ""), ("Targets", "number")]
    rows = [
        [cell(choice.method, "name"), cell(choice.rule, "why"), cell(f"{choice.target_count:,}")]
        for choice in report.choices
    ]
    body = [table(heads, rows)]
    if report.work:
        told = [f"{work.sentence()}." for work in report.work]
        body.append(tag("div", tag("h3", "Element by element"), sentences(told)))
    body += [tag("h3", "Strategy map"), _strategy_map(report)]
    return section(
        "Methods",
        "The method is chosen target by target. In the map, a cell is the share of a block's targets that a method"
        " took, with their number.",
        *body,
    )


def _strategy_map(report: Report) -> Html:
    methods = list(report.methods)
    heads = [tag("th", method, class_="head", title=method) for method in methods]
    rows = []
    for name, counts in report.blocks.items():
        total = sum(counts.values())
        cells = []
        for method in methods:
            share = counts[method] / total if method in counts else None
            cells.append(
                tint(share, 1.0, lambda part, whole=total: f"{part * whole:.0f}", f"{method} in {name}")
            )
        rows.append((name, cells))
    return block_map(heads, rows, len(methods), is_wide=False)


def result_section(report: Report) -> Html:
    """The forms of the results, and what the merge took."""
    heads = [("Form", ""), ("Targets", "number"), ("Size", "number"), ("Largest error", "number")]
    rows = [
        [
            cell(form.name, "name"),
            cell(f"{form.target_count:,}"),
            cell(size(form.size_bytes)),
            cell(f"{form.error:.1e}" if form.error else "0"),
        ]
        for form in report.forms
    ]
    cost = [facts([("What it took", cost_line(report.cost))])] if report.cost else []
    return section(
        "What came out",
        "Combinations of low-rank LoRAs are low-rank, and exact but for the rounding. Results of"
        " element-wise methods are of full rank: they are kept dense, or as factors with the error stated.",
        table(heads, rows),
        *cost,
    )
