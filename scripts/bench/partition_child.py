"""What partition.py measures inside processes of its own: `partition_child.py NAME OPTIONS`.

OPTIONS is a JSON object with the function's arguments; the result is a line of JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import memory_mb, timed

REPEATS = 5


def dgl_partition(files: str, out: str, method: str, parts: int) -> dict[str, Any]:
    """Load the edge files into a DGLGraph and partition it with DGL."""
    import dgl
    import dgl.distributed
    import numpy as np
    import torch

    def load() -> tuple[Any, dict[str, Any]]:
        root = Path(files)
        meta = json.loads((root / "metadata.json").read_text(encoding="utf-8"))
        edges = {}
        for entry in meta["edges"]:
            ends = np.load(root / entry["files"][0])
            edges[entry["src"], entry["etype"], entry["dst"]] = tuple(
                torch.from_numpy(end).to(torch.int64) for end in ends)
        graph = dgl.heterograph(edges, {t: n["count"] for t, n in meta["nodes"].items()})
        for ntype, node in meta["nodes"].items():
            for name, file in node.get("arrays", {}).items():
                graph.nodes[ntype].data[name] = torch.from_numpy(np.load(root / file))
        return graph, meta

    load_seconds, (graph, meta) = timed(load)
    target = meta["task"]["target"]
    load_peak = memory_mb().get("VmHWM", 0.0)
    reset = True
    try:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from VmRSS
    except OSError:
        reset = False
    before_call = memory_mb().get("VmRSS", 0.0)
    call_seconds, _ = timed(lambda: dgl.distributed.partition_graph(
        graph, meta["name"], parts, out, num_hops=1, part_method=method,
        balance_ntypes={target: graph.nodes[target].data["train_mask"]}))
    return {"load_seconds": load_seconds, "load_peak_mb": load_peak,
            "before_call_mb": before_call, "call_seconds": call_seconds,
            "peak_rss_mb": memory_mb().get("VmHWM", 0.0), "peak_of_call_alone": reset}


def second_plan(store: str, out: str, parts: int) -> dict[str, Any]:
    """Make plans over a store; seconds of each, the first included."""
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.partition.request import PartitionRequest
    from dgl_heta.store import Store

    backend = plugins().get("partition backend", "meta")

    def plan(index: int) -> None:
        opened = Store(store)
        task = opened.manifest.task
        assert task is not None
        backend.partition(opened, PartitionRequest(parts, (task.target,), 2),
                          Path(out) / str(index))

    return {"seconds": [timed(lambda i=i: plan(i))[0] for i in range(REPEATS)],
            "peak_rss_mb": memory_mb().get("VmHWM", 0.0)}


def open_for_training(directory: str) -> dict[str, Any]:
    """Open a partition for training on each of its workers; seconds of each opening."""
    import numpy as np

    from dgl_heta.partition.directory import open_partition
    from dgl_heta.sampling.sampler import NeighborSampler
    from dgl_heta.sampling.sampling_scope import SamplingScope

    def ready(part: int) -> tuple[NeighborSampler, list[Any]]:
        store, plan = open_partition(Path(directory))
        partition = plan.partitions[part]
        mapped: list[Any] = [store.array(t, name) for t in partition.node_types
                             for name in store.manifest.arrays[t]]
        mapped += [store.relation(r) for r in partition.relations]
        return NeighborSampler(store, SamplingScope.of(alone, part), (25, 20)), mapped

    store, plan = open_partition(Path(directory))
    alone = plan.without_owners()  # a sample of one worker asks no other for rows
    seconds = [[timed(lambda p=part: ready(p))[0] for part in range(plan.num_parts)]
               for _ in range(REPEATS)]
    peak = memory_mb().get("VmHWM", 0.0)
    target = plan.targets[0]
    train = np.flatnonzero(store.array(target, "train_mask"))[:1024]
    sampler, _ = ready(0)
    samples = [timed(lambda: sampler.sample({target: train}))[0]
               for _ in range(REPEATS)]
    return {"seconds": [max(parts) for parts in seconds], "per_partition": seconds,
            "first_sample_seconds": samples[0], "sample_seconds": statistics.median(samples[1:]),
            "verify_seconds": timed(store.verify)[0], "peak_rss_mb": peak}


def read_ids(directory: str, edges: int, nodes: int, ending: str) -> dict[str, Any]:
    """Make a table of edges between text ids, where there is none yet, and read it."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from dgl_heta.graph.readers import read_edge_files

    place, rng = Path(directory), np.random.default_rng(0)
    if not place.exists():
        place.mkdir(parents=True)
        schema = pa.schema([("src", pa.string()), ("dst", pa.string())])
        writer = pa.csv.CSVWriter if ending == "csv" else pa.parquet.ParquetWriter
        with writer(str(place / f"e.{ending}"), schema) as file:
            for low in range(0, edges, 1 << 20):
                ends = rng.integers(0, nodes // 2, (2, min(1 << 20, edges - low))) * 2654435761
                file.write_table(pa.table([
                    pa.array(np.char.add(prefix, np.char.mod("%010d", end % 2**32)))
                    for prefix, end in zip(("https://ex.org/u/", "item-"), ends)], schema))
        (place / "metadata.json").write_text(json.dumps({
            "name": "ids", "nodes": {"user": {}, "item": {}}, "edges": [
                {"src": "user", "etype": "likes", "dst": "item", "files": [f"e.{ending}"]}]}))
        return {"made": str(place)}
    before, cpu = memory_mb()["VmHWM"], time.process_time()
    seconds, source = timed(lambda: read_edge_files(place))
    return {"seconds": seconds, "cpu_seconds": time.process_time() - cpu,
            "nodes": source.node_counts, "grown_mb": memory_mb()["VmHWM"] - before}


FUNCTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "dgl": dgl_partition, "plan": second_plan, "open": open_for_training, "ids": read_ids}

if __name__ == "__main__":
    print(json.dumps(FUNCTIONS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
