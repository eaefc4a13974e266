"""Neighbour averages: what they are, what they cost, when they are computed again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dgl_heta_precomputed.averages import (
    path_averages,
    paths_into,
    relation_subsets,
    subset_averages,
)

from dgl_heta.errors import InputError
from dgl_heta.features import initial_rows
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic
from tests.support.waiting import PATIENCE

WIDTH = 6


@pytest.fixture
def store(tmp_path: Path) -> Store:
    write_store(academic(), tmp_path / "store")
    return Store(tmp_path / "store")


def dense(store: Store, relation: Relation) -> np.ndarray:
    """The number of edges between each destination and source."""
    csc, counts = store.relation(relation), store.schema.node_counts
    matrix = np.zeros((counts[relation.dst], counts[relation.src]))
    rows = np.repeat(np.arange(counts[relation.dst]), np.diff(csc.indptr))
    np.add.at(matrix, (rows, csc.indices), 1)
    return matrix


def mean(matrix: np.ndarray) -> np.ndarray:
    return matrix / np.maximum(matrix.sum(1, keepdims=True), 1)


def features(store: Store, ntype: str) -> np.ndarray:
    if store.has_array(ntype, "feat"):
        return np.asarray(store.array(ntype, "feat"), np.float64)
    import torch

    return initial_rows(0, ntype, 0, store.schema.node_counts[ntype], WIDTH,
                        torch.float64).numpy()


def test_averages_are_products_of_mean_matrices(store: Store, tmp_path: Path) -> None:
    paths = paths_into(store.schema, "paper", 3)
    assert len(paths) == 4 + len([r for p in paths if len(p) == 1
                                  for r in store.schema.into[p[0].src]]) + len(
        [p for p in paths if len(p) == 3])
    assert all(p[-1].dst == "paper" for p in paths)
    averages = path_averages(store, paths, tmp_path / "out", width=WIDTH, double=True)
    everyone = np.arange(store.schema.node_counts["paper"])
    for i, path in enumerate(paths):
        want = features(store, path[0].src)
        for relation in path:
            want = mean(dense(store, relation)) @ want
        np.testing.assert_allclose(averages.read(i, everyone).numpy(), want, rtol=1e-12, atol=1e-13)
    files = {f.name for f in (tmp_path / "out").iterdir()}
    assert files == {f"path-{i:05d}.npy" for i in range(len(paths))} | {"precomputed.json"}


def test_what_partitions_compute_for_subsets_adds_up(store: Store, tmp_path: Path) -> None:
    source = academic()
    del source.node_arrays["field"]["feat"]
    write_store(source, tmp_path / "even")
    store = Store(tmp_path / "even")
    subsets = relation_subsets(store.schema, "paper", 3, seed=1)
    plan = make_plan(store.schema, "paper", 2, 3)
    everyone = np.arange(store.schema.node_counts["paper"])
    parts = [subset_averages(store, "paper", subsets, 2, plan.roots(p), tmp_path / str(p),
                             width=99, double=True) for p in range(3)]
    inputs = {t: np.asarray(store.array(t, "feat"), np.float64) if store.has_array(t, "feat")
              else None for t in store.schema.node_types}
    import torch

    states = {t: x if x is not None else initial_rows(
        0, t, 0, store.schema.node_counts[t], 7, torch.float64).numpy()
        for t, x in inputs.items()}
    for k, subset in enumerate(subsets):
        before = states
        for hop in range(2):
            after = {}
            for t in store.schema.node_types:
                counts = [(dense(store, r), before[r.src])
                          for r in store.schema.into[t] if r in subset]
                degree = sum(m.sum(1) for m, _ in counts) if counts else np.zeros(1)
                total = sum((m @ x for m, x in counts),
                            np.zeros((store.schema.node_counts[t], 7)))
                after[t] = total / np.maximum(degree, 1)[:, None]
            before = after
            got = sum(part.read(2 * k + hop, everyone).numpy() for part in parts)
            np.testing.assert_allclose(got, before["paper"], rtol=1e-12, atol=1e-13)


def test_types_of_different_width_are_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="field 3, paper 7"):
        subset_averages(store, "paper", [frozenset(store.schema.relations)], 1,
                        store.schema.into["paper"], tmp_path / "x", width=4)


def test_averages_are_reused_while_nothing_changed(store: Store, tmp_path: Path) -> None:
    paths = paths_into(store.schema, "paper", 2)
    out = tmp_path / "out"

    def computed(**changes: int) -> int:
        path_averages(store, paths, out, width=changes.get("width", WIDTH),
                      seed=changes.get("seed", 0))
        return (out / "precomputed.json").stat().st_ino

    first = computed()
    assert computed() == first
    assert computed(seed=1) != first
    (out / "precomputed.json").unlink()
    with pytest.raises(InputError, match="not written by dgl-heta"):
        computed(seed=1)


def test_too_many_metapaths_are_refused_with_what_helps() -> None:
    schema = academic().schema()
    with pytest.raises(InputError, match=r"more than 10,000 metapaths .* fewer layers"):
        paths_into(schema, "paper", 14)


def test_an_interrupted_run_leaves_nothing_that_looks_complete(
        store: Store, tmp_path: Path) -> None:
    def stop(what: str, share: float) -> None:
        raise KeyboardInterrupt

    paths = paths_into(store.schema, "paper", 2)
    with pytest.raises(KeyboardInterrupt):
        path_averages(store, paths, tmp_path / "out", width=WIDTH, progress=stop)
    assert [f.name for f in tmp_path.iterdir()] == ["store"]


CITES = Relation("paper", "cites", "paper")


@pytest.mark.parametrize(("name", "value"), [
    ("indices", -1), ("indices", 2**31 - 1), ("indices", 60), ("indptr", -5), ("indptr", 2**62),
    ("indptr", 181)])
def test_numbers_in_files_that_lead_out_of_the_graph_are_noticed(
        store: Store, tmp_path: Path, name: str, value: int) -> None:
    entry = next(each for each in store.manifest.relations if each.relation == CITES)
    path = store.directory / getattr(entry, name).file
    array = np.lib.format.open_memmap(path, "r+")
    array[len(array) // 4:] = value
    array.flush()
    with pytest.raises(InputError, match=str(path)):
        path_averages(store, [(CITES,)], tmp_path / "out", width=4)
    assert not (tmp_path / "out").exists()


def test_memory_stays_bounded_where_features_are_larger(tmp_path: Path) -> None:
    """120 MB of features, 4 MB of buffers: the process's own memory stays far below."""
    nodes, width = 60_000, 500
    rng = np.random.default_rng(0)
    edges = EdgeArrays(rng.integers(0, nodes, nodes), np.arange(nodes))
    feat = np.lib.format.open_memmap(tmp_path / "feat.npy", "w+", np.float32, (nodes, width))
    source = GraphSource("wide", {"a": nodes}, {Relation("a", "to", "a"): edges},
                         {"a": {"feat": feat}})
    write_store(source, tmp_path / "store")
    script = """
import json, sys
from pathlib import Path
from dgl_heta_precomputed.averages import path_averages, paths_into
from dgl_heta.store import Store
def own():  # anonymous memory, in kB: what is mapped does not count
    return sum(int(line.split()[1]) for line in open("/proc/self/status")
               if line.startswith("RssAnon"))
store = Store(sys.argv[1])
small = Path(sys.argv[2] + "-0")
path_averages(store, paths_into(store.schema, "a", 1)[:0], small, width=4, memory_mb=4)
before, most = own(), [0]
path_averages(store, paths_into(store.schema, "a", 2), Path(sys.argv[2]), width=4, memory_mb=4,
              progress=lambda *_: most.append(own()))
print(json.dumps((max(most) - before) / 1000))
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc to measure memory")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "store"),
                           str(tmp_path / "out")], capture_output=True, text=True, timeout=PATIENCE,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) < 60
