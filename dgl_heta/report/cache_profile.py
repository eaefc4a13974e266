"""The profile of a feature cache: tables for the terminal, a picture of what policies save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from dgl_heta.report.charts import as_svg, new_figure
from dgl_heta.report.console import table
from dgl_heta.report.text import PALETTE, human_bytes, printable
from dgl_heta.system.atomic_files import write_atomic


def show_profile(result: Mapping[str, Any], out: Console) -> None:
    """Print what was measured, two tables per worker."""
    for worker in result["workers"]:
        seconds = worker["seconds"]
        numbers = ("nodes", "bytes per row", "visited", "rows per batch", "a miss costs")
        rows = table("node type", "features", *numbers, right=numbers, title=(
            f"Worker {worker['rank']}: {worker['batches']} batches sampled in "
            f"{seconds['visits']:.1f} s, misses timed in {seconds['penalties']:.1f} s"))
        for ntype, one in worker["types"].items():
            cost = one["penalty"] * one["row_bytes"]
            rows.add_row(escape(printable(ntype)), one["kind"], f"{one['nodes']:,}",
                         f"{one['row_bytes']:,}", f"{one['visited'] / max(one['nodes'], 1):.1%}",
                         f"{one['per_batch']:,.0f}", f"{cost * 1e6:.2f} µs" if cost else "nothing")
        out.print(rows)
        shares = [f"{share:.0%}" for share in worker["shares"]]
        curves = table("policy", *shares, right=shares, title=(
            "Share of the misses' time that a cache saves (all rows: "
            f"{human_bytes(worker['bytes'])})"))
        for name, curve in worker["policies"].items():
            if name != "none":
                curves.add_row(escape(printable(name)), *(f"{x:.0%}" for x in curve["time_saved"]))
        out.print(curves)
        for text in worker["notes"]:
            out.print(f"note: {escape(text)}", highlight=False)
    out.print(f"Profile: {escape(result['directory'])}", highlight=False, soft_wrap=True)


def save_picture(workers: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw what each policy would save against the capacity, a panel per worker."""
    figure, panels = new_figure(5.2 * len(workers), 3.4, len(workers))
    for worker, ax in zip(workers, panels):
        for colour, (name, curve) in zip(PALETTE, worker["policies"].items()):
            if name != "none":
                ax.plot(curve["capacity_mb"], curve["time_saved"], marker="o", markersize=3.5,
                        color=colour, label=name)
        ax.set_title(f"worker {worker['rank']}", loc="left", fontsize=10.5)
        ax.set_xlabel("capacity, MB")
        ax.set_ylabel("misses' time saved")
        ax.set_ylim(0, 1.02)
        ax.legend(frameon=False, fontsize=9)
    return write_atomic(path, as_svg(figure))
