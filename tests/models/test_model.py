"""The models and kernels, against DGL's own modules and dense references."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError, RelationError
from dgl_heta.models import (
    HGNN,
    HANLayer,
    HGTLayer,
    ModelSpec,
    RGATLayer,
    RGCNLayer,
    hgt,
    relations,
)
from dgl_heta.models.spec import slot
from dgl_heta.nn import FusedKernel, TorchKernel, use_kernel
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.blocks import InEdges
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("bases", [0, 2])
def test_rgcn_computes_what_dgl_heterographconv_computes(
        tmp_path: Path, reduce: str, bases: int) -> None:
    """Same weights, full neighbourhoods: HeteroGraphConv of GraphConv(norm='right')."""
    dgl = pytest.importorskip("dgl")
    from dgl.nn.pytorch import GraphConv, HeteroGraphConv

    from dgl_heta.partition.backends.dgl_methods import to_dgl_graph

    source = academic()
    write_store(source, tmp_path / "store")
    store = Store(tmp_path / "store")
    dims = {"author": 5, "institution": 5, "paper": 7, "field": 3}
    spec = ModelSpec(store.schema, dims, frozenset(["paper", "field"]), {"paper": 4}, layers=2,
                     hidden=5, bases=bases, reduce=reduce)
    torch.manual_seed(0)
    model = HGNN(spec, RGCNLayer).double()
    inputs = {t: torch.randn(n, dims[t], dtype=torch.float64)
              for t, n in source.node_counts.items()}

    seeds = np.arange(source.node_counts["paper"])
    sampler = NeighborSampler(store, SamplingScope.of(make_plan(store.schema, "paper", 2, 1), 0),
                              [-1, -1])
    batch = sampler.sample({"paper": seeds})
    got = model(batch, {t: inputs[t][ids] for t, ids in batch.input_nodes.items()})["paper"]

    graph = to_dgl_graph(source)
    assert isinstance(graph, dgl.DGLGraph)
    states = {t: model.project[f"of {t}"](x) if f"of {t}" in model.project else x
              for t, x in inputs.items()}
    for layer in model.layers:
        conv = HeteroGraphConv(
            {r.etype: GraphConv(5, 5, norm="right", weight=False, bias=False,
                                allow_zero_in_degree=True)
             for r in store.schema.relations}, aggregate=reduce)
        sums = conv(graph, states, mod_kwargs={
            r.etype: {"weight": layer.weight(r)} for r in store.schema.relations})
        states = {t: torch.relu(x + states[t] @ layer.loop + layer.bias)
                  for t, x in sums.items()}
    want = model.heads["of paper"](states["paper"])
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@st.composite
def csc(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, int]:
    sources = draw(st.integers(1, 6))
    degrees = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = draw(st.lists(st.integers(0, sources - 1), min_size=int(indptr[-1]),
                            max_size=int(indptr[-1])))
    return (torch.from_numpy(indptr), torch.tensor(indices, dtype=torch.int32), sources)


@settings(max_examples=60, deadline=None)
@given(csc(), st.sampled_from(["sum", "mean", "max", "min"]), st.integers(0, 1000))
def test_kernels_agree_with_a_loop_and_have_right_gradients(
        graph: tuple[torch.Tensor, torch.Tensor, int], op: str, seed: int) -> None:
    indptr, indices, sources = graph
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(sources, 3, dtype=torch.float64, generator=generator).requires_grad_()
    rows = []
    for low, high in itertools.pairwise(indptr):
        chosen = states[indices[low:high].long()]
        rows.append({"sum": lambda x: x.sum(0), "mean": lambda x: x.mean(0),
                     "max": lambda x: x.amax(0), "min": lambda x: x.amin(0)}[op](chosen)
                    if len(chosen) else torch.zeros(3, dtype=torch.float64))
    want = torch.stack(rows)
    upstream = torch.randn(want.shape, dtype=torch.float64, generator=generator)
    unique = len(set(indices.tolist())) == len(indices) or op in ("sum", "mean")
    (slope,) = torch.autograd.grad(want, states, upstream, allow_unused=True) if (
        want.requires_grad) else (None,)
    for kernel in (FusedKernel(), TorchKernel()):
        (got,) = kernel.reduce([InEdges(indptr, indices)], [states], op)
        torch.testing.assert_close(got, want)
        (grad,) = torch.autograd.grad(got, states, upstream)
        if unique:  # parallel edges tie; the kernels share or pick, both are subgradients
            torch.testing.assert_close(
                grad, torch.zeros_like(states) if slope is None else slope)


def test_kernel_takes_features_that_are_not_contiguous() -> None:
    states = torch.randn(3, 4, dtype=torch.float64).t()
    indptr, indices = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    (got,) = FusedKernel().reduce([InEdges(indptr, indices)], [states], "sum")
    torch.testing.assert_close(got, torch.stack([states[:2].sum(0), states[2:].sum(0)]))


@pytest.mark.parametrize("layer", [RGCNLayer, RGATLayer, HANLayer, HGTLayer])
def test_a_layer_derived_from_a_built_in_one_calls_its_methods_for_one_relation(
        tmp_path: Path, layer: type) -> None:
    class Same(layer):
        def aggregate(self, edges):
            return super().aggregate(edges)

        def score(self, edges):
            return super().score(edges)

        def attend(self, edges, weights):
            return super().attend(edges, weights)

    want, got = (output_of(tmp_path / name, kind)
                 for name, kind in (("built-in", layer), ("derived", Same)))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("layer", [RGCNLayer, RGATLayer, HANLayer, HGTLayer])
def test_a_kernel_is_never_called_for_no_relation(tmp_path: Path, layer: type) -> None:
    """One that puts relations together has nothing to put together then."""
    class Counting(TorchKernel):
        def __getattribute__(self, name):
            method = super().__getattribute__(name)
            if not callable(method) or name.startswith("_"):
                return method

            def counted(edges, *args):
                calls.append(len(edges))
                return method(edges, *args)
            return counted

    calls: list[int] = []
    use_kernel(Counting())
    try:
        output_of(tmp_path / "store", layer)
    finally:
        use_kernel(FusedKernel())
    assert calls
    assert min(calls) > 0


def one_for_all_types(model: HGNN) -> None:
    for layer in model.layers:
        for linears in (layer.keys, layer.values):
            for name in linears:
                linears[name] = next(iter(linears.values()))


@pytest.mark.parametrize(("layer", "change"), [
    (RGCNLayer, None), (RGATLayer, None), (HGTLayer, None), (HGTLayer, one_for_all_types)])
def test_products_before_sums_are_those_after(
        tmp_path: Path, layer: type, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    for name, before in (("after", False), ("before", True)):
        for module, name_of in ((relations, "attended_before"), (hgt, "keys_first")):
            monkeypatch.setattr(module, name_of, lambda *_, is_so=before: is_so)
        monkeypatch.setattr(relations, "MARGIN", 1e9 if before else 0)
        out = output_of(tmp_path / name, layer, found, change)
        found[-1] = [out, *torch.autograd.grad(out.square().sum(), found[-1], allow_unused=True)]
    for after, before in zip(*found):
        torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-12)


def test_a_projection_that_was_exchanged_is_called(tmp_path: Path) -> None:
    """As it is where it is normalised, watched or another module."""
    called = []

    def exchange(model: HGNN) -> None:
        first, second, third = list(model.project)[:3]
        torch.nn.utils.spectral_norm(model.project[first])
        model.project[second].register_forward_hook(lambda *_: called.append(second))
        model.project[third] = torch.nn.Sequential(model.project[third], torch.nn.ReLU())

    parameters: list[Any] = []
    output_of(tmp_path / "store", RGCNLayer, parameters, exchange).sum().backward()
    assert called
    assert all(p.grad is not None for p in parameters[0][:6])


@pytest.mark.parametrize("way", ["hook", "class"])
@pytest.mark.parametrize("kernel", [FusedKernel, TorchKernel])
def test_keys_and_values_of_hgt_that_were_exchanged_are_called(
        tmp_path: Path, kernel: type, way: str) -> None:
    """Thrice the keys are the keys of thrice the weights."""
    class Thrice(torch.nn.Linear):
        def forward(self, x):
            return 3 * super().forward(x)

    def weights(model: HGNN) -> None:
        with torch.no_grad():
            for layer in model.layers:
                for x in [*layer.keys.parameters(), *layer.values.parameters()]:
                    x *= 3

    def exchange(model: HGNN) -> None:
        for layer in model.layers:
            for linear in [*layer.keys.values(), *layer.values.values()]:
                if way == "hook":
                    linear.register_forward_hook(lambda _, given, out: 3 * out)
                else:
                    linear.__class__ = Thrice

    use_kernel(kernel())
    try:
        want, got = (output_of(tmp_path / change.__name__, HGTLayer, [], change)
                     for change in (weights, exchange))
    finally:
        use_kernel(FusedKernel())
    torch.testing.assert_close(got, want)


def test_keys_of_hgt_that_a_layer_of_ones_own_would_not_call_are_refused(tmp_path: Path) -> None:
    class Own(HGTLayer):
        def score(self, edges):
            return 2 * super().score(edges)

    def exchange(model: HGNN) -> None:
        model.layers[0].values[slot("paper")].register_forward_hook(lambda _, given, out: 3 * out)

    with pytest.raises(InputError, match="'paper' are no plain nn.Linear"):
        output_of(tmp_path / "store", Own, [], exchange)


def test_methods_that_are_mixed_in_are_called(tmp_path: Path) -> None:
    class Twice:
        def score(self, edges):
            return 2 * super().score(edges)

    class MixedIn(Twice, HGTLayer):
        pass

    class Own(HGTLayer):
        def score(self, edges):
            return 2 * super().score(edges)

    got, want = (output_of(tmp_path / kind.__name__, kind, []) for kind in (MixedIn, Own))
    torch.testing.assert_close(got, want)
    assert not torch.allclose(got, output_of(tmp_path / "hgt", HGTLayer, []))


def test_what_does_not_fit_a_kernel_is_named_by_its_relation(tmp_path: Path) -> None:
    class Narrow(TorchKernel):
        def reduce(self, edges, states, op):
            raise RelationError(len(edges) - 1, len(edges), "it is too wide")

    relations = []

    class Layer(RGCNLayer):
        def aggregate_all(self, of_layer):
            relations.append(of_layer[-1].relation)
            return super().aggregate_all(of_layer)

    before = use_kernel(Narrow())
    try:
        with pytest.raises(InputError, match="it is too wide") as raised:
            output_of(tmp_path / "store", Layer, [])
    finally:
        use_kernel(before)
    assert str(raised.value) == f"relation '{relations[0]}': it is too wide"



def test_a_method_of_one_layer_object_cannot_be_exchanged(tmp_path: Path) -> None:
    def exchange(model: HGNN) -> None:
        model.layers[0].score = lambda edges: torch.zeros(edges.num_edges, 2)

    with pytest.raises(InputError, match=r"class Mine\(HGTLayer\): def score\(self"):
        output_of(tmp_path / "store", HGTLayer, [], exchange)


def output_of(path: Path, layer: type, parameters: list[Any] | None = None,
              change: Callable[[HGNN], None] | None = None) -> torch.Tensor:
    """What two layers give for some papers; not every node type has in-edges in every layer.

    `parameters` takes those of the model, which then is in double precision.
    """
    source = academic()
    write_store(source, path)
    store = Store(path)
    spec = ModelSpec(store.schema, dict.fromkeys(source.node_counts, 4),
                     frozenset(source.node_counts), {"paper": 3}, layers=2, hidden=4, heads=2)
    torch.manual_seed(0)
    model = HGNN(spec, layer)
    if change is not None:
        change(model)
    sampler = NeighborSampler(store, SamplingScope.of(make_plan(store.schema, "paper", 2, 1), 0),
                              [3, 3])
    batch = sampler.sample({"paper": np.arange(5)})
    if parameters is not None:
        model.double()
        parameters.append(list(model.parameters()))
    out: torch.Tensor = model(batch, {t: torch.randn(len(ids), 4).to(next(model.parameters()))
                                      for t, ids in batch.input_nodes.items()})["paper"]
    return out
