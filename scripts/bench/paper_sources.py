"""What an entry of figures.py is made of: commands, how their rows are read, columns."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Column

Rows = list[dict[str, Any]]
ACCURACY = Column("test accuracy", "test_acc", digits=4)
GPU_SCRIPT = "scripts/gpu.sh"  # whose results are brought from a machine with a GPU


def rows_of(name: str) -> Callable[[Any], Rows]:
    """The rows of that name in what a command wrote, with the numbers that stand beside them."""
    def read(data: Any) -> Rows:
        beside = {k: v for k, v in data.items() if isinstance(v, int | float)}
        return [{**beside, **row} for row in data[name]]
    return read


def printed(text: str) -> Rows:
    """The rows of all Markdown tables in a text, by the cells of their headers."""
    found: Rows = []
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells
        elif not re.fullmatch(r"[|:\- ]+", line):
            found.append(dict(zip(header, cells)))
    return found


def of_gpu(directory: Path) -> dict[str, Any]:
    """What scripts/gpu.sh left in a directory, as one measurement.

    Raises
    ------
    SystemExit
        Nothing did, or not all of it ended well.
    """
    try:
        summary = json.loads((directory / "summary.json").read_text())
        layers = (directory / "layers.log").read_text()
    except (OSError, ValueError) as error:
        sys.exit(f"error: --gpu: these are no results of scripts/gpu.sh: {error}")
    at = summary["environment"]
    if at["pretended"] or not summary["passed"]:
        sys.exit(f"error: --gpu: {directory} is of " + (
            "a pretended GPU" if at["pretended"] else "a run that did not pass"))
    return {"seconds": sum(s["seconds"] for s in summary["stages"].values()),
            "load_before": at["load"], "data": {"steps": summary["steps"], "layers": layers},
            "machine": {"cpu": f"{at['gpus'][0]['name']} beside {at['cpu']}", "cores": at["cores"],
                        "load": at["load"], "versions": {"commit": at["commit"]}}}


def gpu_steps(data: Any) -> Rows:
    """Steps on a GPU, and how many times as fast they are as those of the kernel `fused`."""
    fused = {(case["graph"], case["model"]): case["ms"] for case in data["steps"]
             if case["variant"] == "fused"}
    return [{**case, "faster": fused[case["graph"], case["model"]] / case["ms"],
             "host": case["ms"] / case["busy_ms"] if case.get("busy_ms") else None}
            for case in sorted(data["steps"], key=lambda case: (case["graph"], case["model"]))
            if (case["graph"], case["model"]) in fused and "ms" in case]


def gpu_layers(data: Any) -> Rows:
    """Layers on a GPU, PyTorch Geometric's and ours."""
    table = [line for line in data["layers"].splitlines() if line.startswith("|")]
    return printed("\n".join(table))  # without warnings, which stand between its lines


@dataclass(frozen=True)
class Call:
    """A measurement.

    Attributes
    ----------
    program : a script beside this one, a module, or dgl-heta.
    options, full, quick : options of all runs, of full ones and of quick ones.
    read : rows of the JSON that it writes, or of its text if it prints a `table`.
    labels : what its rows have besides.
    get : how to get what may not be there.
    made : makes the data without a program.
    full_only : whether a quick run leaves it out.
    """

    program: str
    options: str = ""
    full: str = ""
    quick: str = ""
    read: Callable[[Any], Rows] = field(default=rows_of("rows"))
    labels: tuple[tuple[str, str], ...] = ()
    table: bool = False
    get: str = ""
    made: Callable[[], Any] | None = None
    full_only: bool = False


@dataclass(frozen=True)
class Figure:
    """A table or figure: `by` are the labels of its rows, `only` the rows that it takes.

    `paper` has, for values of `paper_by` (default: `by`), the paper's number of each column;
    `says` what it says in words; `missing` what cannot be made here, and why.
    """

    name: str
    title: str
    calls: tuple[Call, ...] = ()
    by: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()
    paper: Mapping[tuple[str, ...], Mapping[str, float | str]] = field(default_factory=dict)
    paper_by: tuple[str, ...] = ()
    says: str = ""
    note: str = ""
    missing: tuple[str, ...] = ()
    stacked: bool = False
    curve: Callable[[dict[str, Any]], Rows] | None = None
    axes: tuple[str, str] = ("seconds of training", "accuracy")


def counts() -> dict[str, Rows]:
    """Of the shapes that synthetic graphs have at scale 1."""
    from dgl_heta.graph.datasets.synthetic import SHAPES, shape_schema

    rows = []
    for name, shape in SHAPES.items():
        schema = shape_schema(name, 1)
        rows.append({"graph": name, "nodes": sum(schema.node_counts.values()),
                     "types": len(schema.node_counts), "classes": shape.num_classes,
                     "edges": sum(schema.edge_counts.values()),
                     "relations": len(schema.edge_counts),
                     "with features": len([w for w in schema.feature_bytes.values() if w])})
    return {"rows": rows}


def relational_counts() -> dict[str, Rows]:
    """Of the shapes of plugins/hifuse at scale 1."""
    from dgl_heta_hifuse.shapes import SHAPES

    from dgl_heta.tools import generate

    rows = []
    for name, shape in SHAPES.items():
        schema = generate(shape, 0.1 if name == "am" else 1.0).schema()
        times = 10 if name == "am" else 1  # written at a tenth
        rows.append({"graph": name, "nodes": times * sum(schema.node_counts.values()),
                     "edges": times * sum(schema.edge_counts.values()),
                     "types": len(schema.node_counts), "relations": len(schema.edge_counts)})
    return {"rows": rows}


def weights() -> dict[str, Rows]:
    """Sub-metatrees of ogbn-mag at scale 1: all vertices and links, as here, and leaves alone."""
    from dgl_heta.graph.datasets.synthetic import shape_schema
    from dgl_heta.planning.metatree import sub_metatrees

    schema = shape_schema("mag", 1)
    return {"rows": [{
        "sub-metatree": f"{tree.root.src} {tree.root.etype} {tree.root.dst}",
        "all": tree.weight, "leaves": sum(
            schema.edge_counts[r] for r in tree.levels[-1]) + sum(
                schema.node_counts[t] for t in {r.src for r in tree.levels[-1]})}
        for tree in sub_metatrees(schema, ["paper"], 2)]}


def stored() -> dict[str, Rows]:
    """What machines hold at scale 1 with two and three hops, as plans predict it."""
    from dgl_heta.graph.datasets.synthetic import SHAPES, shape_schema
    from dgl_heta.partition.backends.meta import MetaWhole
    from dgl_heta.partition.request import PartitionRequest
    from dgl_heta.planning.footprint import topology_bytes, type_bytes
    from dgl_heta.planning.workload import Workload

    rows = []
    for name, shape in SHAPES.items():
        for hops in (2, 3):
            schema = shape_schema(name, 1)
            plan = MetaWhole().plan(schema, PartitionRequest(2, (shape.target,), hops))
            static, learnable = (sum(each) for each in zip(*(
                type_bytes(schema, p.node_types, Workload()) for p in plan.partitions)))
            topology = sum(topology_bytes(schema, p) for p in plan.partitions)
            rows.append({"shape": name, "strategy": f"MP ({hops}-hop)", "topology": topology,
                         "features": static, "learnable": learnable, "total": topology + static})
    return {"rows": rows}


def on_disk(data: Any) -> Rows:
    """Bytes of parts that compare.py made."""
    return [{"shape": row["shape"], "strategy": f"{row['parts']}, on disk", "total": row["bytes"]}
            for row in data["parts"]]


def learned(row: dict[str, Any]) -> Rows:
    """Validation accuracy against seconds of a run of training.py."""
    return [{"name": " ".join(str(row[k]) for k in ("graph", "model", "workers", "way")),
             "x": [x for x, _, _ in row["curve"]], "y": [y for _, y, _ in row["curve"]]}
            ] if row.get("curve") and row["seed"] == 0 else []
