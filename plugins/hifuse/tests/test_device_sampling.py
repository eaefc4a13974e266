"""Sampling on a device: the CPU's batches, bit for bit; what is not sampled there is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dgl_heta_hifuse
import numpy as np
import pytest
import torch
from dgl_heta_hifuse import device_sampling
from dgl_heta_hifuse.device_draws import choose, remainder, signed
from dgl_heta_hifuse.device_sampling import DeviceLayers
from dgl_heta_hifuse.gpu_source import GpuSampling
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgl_heta import InputError, Relation, Stage
from dgl_heta.graph.source import EdgeArrays, GraphSource
from dgl_heta.hooks.manager import Plugins
from dgl_heta.planning.making import make_plan, plan_without_replication
from dgl_heta.planning.metatree import parse_metapaths
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.held_out import HeldOut, SameLinks
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_kernels import sample_positions
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.setup import build_engine
from tests.support.drawn_graphs import bits, graphs
from tests.support.exact_worker import deal_pieces
from tests.support.graphs import academic
from tests.support.plugins import ROOT

CPU = torch.device("cpu")
WRITES = Relation("author", "writes", "paper")


def on_device(sampler: NeighborSampler) -> NeighborSampler:
    layers = DeviceLayers(sampler, CPU)
    layers.load()
    return sampler.on(layers)


def filled(batch: MiniBatch) -> list[Any]:
    """The blocks of rows that have edges."""
    some = [edges.with_edges() for block in batch.blocks for edges in block.edges]
    return [(e.relation, e.start, e.place, *(None if x is None else (x.dtype, x.tolist())
                                             for x in (e.indptr, e.indices, e.rows)))
            for e in some]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.data())
def test_batches_are_those_of_the_cpu_bit_for_bit(graph: GraphSource, data) -> None:
    """All or some in-edges, fanouts per relation, nodes with many edges and with none, shares."""
    target = data.draw(st.sampled_from(sorted({r.dst for r in graph.edges})))
    into = [r for r in graph.edges if r.dst == target]
    parts = data.draw(st.integers(1, min(len(into), 2)))
    number = st.sampled_from([-1, 1, 2, 3, 7, 40])
    fanouts = [data.draw(st.one_of(number, st.dictionaries(st.sampled_from(list(graph.edges)),
                                                           number))) for _ in range(2)]
    seeds = np.array(data.draw(st.lists(st.integers(0, graph.node_counts[target] - 1),
                                        unique=True, max_size=12)), np.int64)
    own = data.draw(st.integers(0, len(seeds)))
    with TemporaryDirectory() as directory:
        write_store(graph, Path(directory) / "store")
        store = Store(Path(directory) / "store")
        paths = data.draw(st.sampled_from([None, [[r.etype for r in into[:1]]]]))
        plan = make_plan(store.schema, target, 2, parts) if paths is None else make_plan(
            store.schema, target, 1, 1, parse_metapaths(paths, store.schema))
        scope = SamplingScope.of(plan, data.draw(st.integers(0, plan.num_parts - 1)))
        sampler = NeighborSampler(store, scope, fanouts[:scope.hops], 5,
                                  seed_states=data.draw(st.booleans()))
        device = on_device(sampler)
        for step in (0, 1):  # the second one with what the first one has left
            shares = {target: SeedShares((own, len(seeds) - own), data.draw(st.integers(0, 1)))}
            want = sampler.sample({target: seeds}, shares, step)
            got = device.sample({target: seeds}, shares, step)
            assert bits(got) == bits(want)
            assert filled(got) == filled(want)
            assert all((edges.filled is None) == edges.full
                       for block in got.blocks for edges in block.edges)


def test_callers_may_sample_at_once(tmp_path: Path) -> None:
    write_store(academic(papers=200), tmp_path / "store")
    store = Store(tmp_path / "store")
    sampler = NeighborSampler(
        store, SamplingScope.of(make_plan(store.schema, "paper", 2, 1), 0), [3, 4])
    device, seeds = on_device(sampler), {"paper": np.arange(100)}
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda step: device.sample(seeds, None, step), range(12)))
    assert [bits(batch) for batch in found] == [
        bits(sampler.sample(seeds, None, step)) for step in range(12)]


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**62 - 1))
def test_remainders_are_of_unsigned_numbers(number: int, by: int) -> None:
    given = torch.tensor([signed(number)]), torch.tensor([by])
    assert remainder(*given).tolist() == [number % by]


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 20), st.integers(1, 70), st.integers(1, 5))
def test_draws_are_those_of_the_compiled_kernel(key: int, node: int, fanout: int, more: int
                                                ) -> None:
    """Where nearly all edges are drawn, too, so that the same ones come up again and again."""
    degree = fanout + more
    found = choose(torch.tensor([signed(key)]), torch.tensor([node]), torch.tensor([degree]),
                   torch.tensor([fanout]), fanout)[0]
    out = np.empty(fanout, np.int64)
    sample_positions(np.array([0] * (node + 1) + [degree]), np.array([node]), None, None, fanout,
                     np.uint64(key), None, degree, out, None)
    assert found.tolist() == out.tolist()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(academic(), path)
    return Store(path)


def test_many_draws_are_made_piece_by_piece(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = NeighborSampler(
        store, SamplingScope.of(make_plan(store.schema, "paper", 2, 1), 0), [2, 3])
    monkeypatch.setattr(device_sampling, "PIECE", 7)
    seeds = {"paper": np.arange(40)}
    assert bits(on_device(sampler).sample(seeds)) == bits(sampler.sample(seeds))


def test_training_takes_and_evaluates_batches_of_the_device(
        store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the device is the CPU, which the source leaves alone otherwise."""
    sampled: list[int] = []

    class Noted(DeviceLayers):
        def sample(self, wanted: Any, rows: Any) -> Any:
            sampled.append(len(wanted))
            return super().sample(wanted, rows)

    def layers(self: GpuSampling, sampler: NeighborSampler, device: torch.device) -> DeviceLayers:
        made = Noted(sampler, device)
        made.load()
        return made

    monkeypatch.setattr(GpuSampling, "layers", layers)
    plan = make_plan(store.schema, ["paper"], 2, 1)
    found: list[Any] = []
    for source in ("on-demand", "gpu"):
        chosen = load_settings(None, [
            f"train.batches={source}", "train.device=cpu", "train.threads=1", "model.hidden=8",
            "train.batch_size=16", "train.fanouts=3,3", "train.eval_fanouts=-1,2"], {})
        engine = build_engine(store, plan, chosen, _plugins().configured(chosen))
        before = len(sampled)
        losses = [step.tolist() for step in engine.train(engine.steps("train"), 0)]
        trained = len(sampled)
        found.append((losses, engine.evaluate("val")))
        assert (trained > before, len(sampled) > trained) == (source == "gpu", source == "gpu")
    assert found[0] == found[1]


def _plugins() -> Plugins:
    registry = Plugins()
    if not registry.manager.is_registered(dgl_heta_hifuse):
        registry._register(dgl_heta_hifuse, "dgl-heta-hifuse:tree", "dgl-heta-hifuse", "0.1.0")
    return registry


class Weighted(Store):
    def weights(self, relation: Relation) -> np.ndarray | None:
        return np.ones(3) if relation == WRITES else None


def sampler_of(case: str, store: Store) -> Any:
    whole = make_plan(store.schema, ["paper"], 2, 2)
    if case == "nothing replicated":
        plan = plan_without_replication(store.schema, ["paper"], 2, 2, deal_pieces(True), "test")
        return NeighborSampler(store, SamplingScope.of(plan, 0), [3, 3])
    if case == "delegated":
        plan = whole.with_owners({t: 0 for t in whole.shared_learnable()})
        return NeighborSampler(store, SamplingScope.of(plan, 0), [3, 3])
    if case == "links":
        held_out = HeldOut([SameLinks((WRITES,), 60)], 0.1)
        return NeighborSampler(store, SamplingScope.of(whole, 0), [3, 3], held_out=held_out)
    if case == "weights":
        store = Weighted(store.directory)
    return object() if case == "nothing sampled" else NeighborSampler(
        store, SamplingScope.of(make_plan(store.schema, ["paper"], 2, 1), 0), [3, 3])


@pytest.mark.parametrize(("case", "message"), [
    ("nothing replicated", "nothing is replicated; use partition.replication = full, or"),
    ("delegated", "delegates relations, .*; use partition.shared = rows, or"),
    ("links", "links that are predicted are left out .*; use train.batches = pipeline"),
    ("weights", "edges of 'author writes paper' have weights; use train.batches = pipeline"),
    ("nothing sampled", "samples nothing; use train.batches = pipeline"),
    ("memory", r"7 relations take [0-9,]+ bytes there, and 100 may be used \(plugins.gpu.graph_mb"),
])
def test_what_is_not_sampled_on_a_gpu_is_refused_by_name(
        store: Store, monkeypatch: pytest.MonkeyPatch, case: str, message: str) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (200, 1 << 30))
    with pytest.raises(InputError, match=f"train.batches = gpu samples .*{message}"):
        GpuSampling().layers(sampler_of(case, store), torch.device("cuda", 0))


def test_workers_on_cpus_sample_there_and_say_so(store: Store, caplog: pytest.LogCaptureFixture
                                                 ) -> None:
    source, before = GpuSampling(), threading.active_count()
    assert source.layers(sampler_of("", store), CPU) is None
    assert "workers compute on CPUs, and sample there" in caplog.text
    stages = [Stage("sample", lambda step: (step, threading.active_count()))]
    assert [*source.staged(2, stages, False)] == [(0, before), (1, before)]


@pytest.mark.parametrize("name", ["indptr", "indices"])
def test_files_that_were_changed_are_not_loaded(tmp_path: Path, name: str) -> None:
    write_store(academic(), tmp_path / "store")
    store = Store(tmp_path / "store")
    entry = next(each for each in store.manifest.relations if each.relation == WRITES)
    sampler = NeighborSampler(
        store, SamplingScope.of(make_plan(store.schema, "paper", 2, 1), 0), [3, 3])
    path = store.directory / getattr(entry, name).file
    np.lib.format.open_memmap(path, "r+")[5] = 2**30
    with pytest.raises(InputError, match=f"'author writes paper': .*{path}.* lead out of the"):
        on_device(sampler)


def test_scripts_refuse_it() -> None:
    import dgl_heta

    with pytest.raises(InputError, match="train.batches = gpu is for `dgl-heta train`; scripts"):
        dgl_heta.enable(settings=["train.batches=gpu"])


@pytest.mark.needs("pretended")
def test_launches_and_waits_follow_from_layers_not_from_relations(tmp_path: Path, hifuse_path: str
                                                                  ) -> None:
    """On a pretended GPU: 2 waits in a layer and 1 in a batch; blocks are those of the CPU."""
    for relations in (2, 12):
        rng = np.random.default_rng(0)
        edges: dict[Relation, Any] = {
            Relation(a, f"r{i}", b): EdgeArrays(*rng.integers(0, 200, (2, 1500)))
            for i in range(relations // 2) for a, b in (("p", "q"), ("q", "p"))}
        write_store(GraphSource("drawn", {"p": 200, "q": 200}, edges, {}),
                    tmp_path / str(relations))
    run = subprocess.run([sys.executable, Path(__file__).with_name("device_counts.py"),
                          tmp_path / "2", tmp_path / "12"],
                         env={**os.environ, "PYTHONPATH": hifuse_path, "CUDA_VISIBLE_DEVICES": "0"},
                         capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    few, many = json.loads(run.stdout)
    assert few["equal"]
    assert many["equal"]
    assert not few["problems"]
    assert not many["problems"]
    assert many["syncs"] == few["syncs"] == 2 * 2 + 1
    assert many["kernels"] <= few["kernels"] <= MOST_KERNELS, few["of kernels"]


MOST_KERNELS = 345
"""Of a batch of two layers, as measured with torch 2.2."""
