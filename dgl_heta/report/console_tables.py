"""Tables of the command line: predictions, comparisons of partitionings, what a store holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from dgl_heta.errors import several
from dgl_heta.report.console import PlainConsole, table
from dgl_heta.report.text import human_bytes, printable

if TYPE_CHECKING:
    from dgl_heta.partition.method_comparison import Comparison
    from dgl_heta.planning.cluster_estimate import Coefficients, Estimate
    from dgl_heta.planning.workload import Workload
    from dgl_heta.store.manifest import Manifest


def show_estimates(systems: Sequence[Estimate], coefficients: Coefficients, what: str,
                   counted: bool, out: Console) -> None:
    """Predictions for a cluster, with the error of the model; `what` says what they are for, and
    `counted` whether rows were counted on the graph, or expected from its schema."""
    numbers = ("s/step", "s/epoch", "GB/epoch", "memory")
    rows = table("system", *numbers, "measured", title="Predicted", right=numbers)
    for one in systems:
        rows.add_row(one.system, f"{one.seconds_per_step:.3f}",
                     f"{one.seconds_per_step * one.steps:,.1f}",
                     f"{one.bytes_per_step * one.steps / 1e9:,.2f}",
                     human_bytes(round(one.memory)) + (" (too much)" if one.fits is False else ""),
                     "outside" if one.beyond else "inside")
    out.print(rows)
    out.print(f"{what}; memory: topology and features of the machine that holds most; replica: "
              "without the first values, which are fetched once; measured: whether the work of a "
              "step is inside or outside what was measured", style="dim", highlight=False)
    beyond: dict[str, list[str]] = {}
    for one in systems:
        beyond.setdefault("; ".join(one.beyond), []).append(one.system)
    for outside, of in beyond.items():
        if outside:
            out.print(f"outside for {' and '.join(of)}: {outside}", style="dim", highlight=False)
    off = coefficients.errors.get("counted" if counted else "expected", {})
    out.print(f"error on graphs that the fit had not seen, rows "
              f"{'counted' if counted else 'expected'}: " + (
        ", ".join(f"{name} {off[f'{figure}_median']:.0%} (largest {off[f'{figure}_max']:.0%})"
                  for figure, name in (("seconds", "processor seconds"), ("clock", "clock"),
                                       ("bytes", "bytes"))
                  if {f"{figure}_median", f"{figure}_max"} <= set(off)) + " in "
        f"{off['measurements']:.0f} measurements on {escape(coefficients.measured_on)}"
        if {"seconds_max", "seconds_median", "bytes_max", "bytes_median", "measurements"}
        <= set(off) else "not known"),
        style="dim", highlight=False)


def show_on_gpus(systems: Sequence[Estimate], gpu: Mapping[str, Any], out: Console) -> None:
    """Steps on GPUs; `gpu` says what they were forecast with."""
    found = {one.system: one.gpu for one in systems if one.gpu}
    rows = table(f"a step on a GPU of {gpu['memory_gb']:g} GB for each trainer", *found,
                 title="Forecast, not measured", right=[*found])
    times = [{**one["stages"], "together": one["seconds_per_step"],
              "together, sampled ahead": one["pipelined"]} for one in found.values()]
    for stage in times[0]:
        rows.add_row(stage, *(f"{1e3 * one[stage]:,.1f} ms" for one in times))
    for key in ("batch", "cached", "cacheable"):
        rows.add_row(key, *(human_bytes(round(one[key])) + (
            " (too much)" if key == "batch" and not one["fits"] else "") for one in found.values()))
    out.print(rows)
    out.print("from a data sheet, from kernels and bytes counted on a pretended GPU (train.kernel "
              f"= {gpu['kernel']}, cache.policy = {escape(gpu['cache'])}) and from what fits steps "
              "of one worker on an H200 to 25 % (--json); no other GPU was measured. Sample, "
              "exchange and half of down are of CPUs, as all of the table above. DistDGL's kernels "
              "were not counted", style="dim", highlight=False)


def show_comparison(comparison: Comparison, work: Workload, out: Console) -> None:
    """Methods of partitioning side by side."""
    causes = ("partials", "features", "learnable", "sampling", "gradients")
    numbers = ("total", *causes, "memory", "balance", "replication", "boundary", "cut edges")
    rows = table("method", *numbers, title="Predicted: MB per epoch on the network, by cause",
                 right=numbers)
    for method in comparison.methods:
        if method.missing is not None:
            rows.add_row(method.name, "–")
            continue
        rows.add_row(
            method.name, f"{method.total / 1e6:,.1f}",
            *(f"{method.bytes_per_epoch.get(c, 0) / 1e6:,.1f}" for c in causes),
            human_bytes(method.memory_bytes),
            f"{method.memory_balance:.2f}, {method.edge_balance:.2f}",
            "–" if method.replication_factor is None else f"{method.replication_factor:.2f}",
            f"{method.boundary_nodes:,}",
            "–" if method.cut_edges is None else f"{method.cut_edges:,}")
    PlainConsole(width=max(out.width, 140)).print(rows)  # a long line beats a folded number
    out.print("memory: of the partition that holds most; balance: most over mean of memory and of "
              "sampled edges; boundary: nodes with neighbours in other partitions, of the one that "
              "has most", style="dim", highlight=False)
    for method in comparison.methods:
        if method.missing is not None:
            out.print(f"{method.name}: {escape(method.missing)}", style="dim", highlight=False)
    out.print(f"{several(comparison.parts, 'partition')}, {comparison.sampled_steps} of "
              f"{several(comparison.steps_per_epoch, 'step')} sampled, batch "
              f"{work.batch_size} per worker, hidden {work.hidden}; "
              "meta: as `dgl-heta train` sends by default",
              style="dim", highlight=False)
    for warning in comparison.warnings:
        out.print(f"warning: {escape(warning)}", style="yellow", highlight=False)


def show_store(manifest: Manifest, out: Console) -> None:
    """Print a store's node types and relations, and where it comes from."""
    import numpy as np

    task = manifest.task
    out.print(f"[bold]{escape(printable(manifest.name))}[/]: "
              f"{sum(manifest.node_counts.values()):,} nodes, "
              f"{sum(r.edges for r in manifest.relations):,} edges, "
              f"{human_bytes(manifest.bytes)}"
              + (f"; task: {escape(printable(str(task)))}" if task else ""), highlight=False)
    nodes = table("node type", "nodes", "arrays", title="Node types", right=("nodes",))
    for ntype, count in manifest.node_counts.items():
        unfit = {k for k, given in manifest.given.get(ntype, {}).items() if given.unfit}
        arrays = ", ".join(f"{k} {np.dtype(a.dtype).name}{list(a.shape[1:]) or ''}"
                           + (" (not for training)" if k in unfit else "")
                           for k, a in manifest.arrays.get(ntype, {}).items())
        arrays = escape(arrays) or "none: learnable features"
        nodes.add_row(escape(printable(ntype)), f"{count:,}",
                      arrays + "; own ids" * (ntype in manifest.ids)
                      + "; times" * (ntype in manifest.times))
    edges = table("relation", "edges", "bytes", title="Relations", right=("edges", "bytes"))
    for entry in manifest.relations:
        edges.add_row(escape(printable(entry.relation)), f"{entry.edges:,}",
                      human_bytes(sum(e.bytes for e in manifest.entries((), (entry.relation,)))))
    for part in (nodes, edges):
        out.print()
        out.print(part)
    out.print()
    for key, value in manifest.info.items():
        out.print(f"{escape(key)}: {escape(_brief(value))}", highlight=False)


def _brief(value: Any, length: int = 250) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= length else text[:length] + " …"
