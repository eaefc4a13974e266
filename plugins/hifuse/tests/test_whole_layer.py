"""Layers that `merged` takes as a whole, beside the reference kernel."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from dgl_heta_hifuse import kernel as merged_kernel
from dgl_heta_hifuse.kernel import MergedKernel
from dgl_heta_hifuse.layer import States, WholeLayer
from dgl_heta_hifuse.layer_edges import TILE
from torch import Tensor

from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.models import HGNN, HANLayer, HGNNLayer, HGTLayer, ModelSpec, RGATLayer, RGCNLayer
from dgl_heta.nn import TorchKernel, use_kernel
from dgl_heta.nn.precision import mixed_precision
from dgl_heta.sampling.blocks import Block, MiniBatch, RelationBlock
from dgl_heta.sampling.seeds import SeedShares

WIDTH = 8
CPU = torch.device("cpu")
RELATIONS = tuple(Relation(*ends) for ends in (
    ("a", "cites", "a"), ("b", "writes", "a"), ("a", "written", "b"), ("c", "at", "b"),
    ("b", "at", "c"), ("c", "of", "a"), ("d", "in", "a")))
COUNTS = {"a": 200, "b": 150, "c": 90, "d": 10}
AT_ONCE: dict[str, tuple[type[HGNNLayer], dict[str, Any]]] = {
    "rgcn": (RGCNLayer, {}),
    "rgcn, sums": (RGCNLayer, {"aggregate": "sum", "reduce": "mean", "layer_norm": True}),
    "rgcn, bases": (RGCNLayer, {"bases": 2, "self_loop": False}),
    "rgcn, dropout": (RGCNLayer, {"dropout": 0.5}),
    "rgat": (RGATLayer, {}),
    "rgat, one head": (RGATLayer, {"heads": 1, "reduce": "mean", "self_loop": False}),
    "hgt": (HGTLayer, {"layer_norm": True}),
    "hgt, one head": (HGTLayer, {"heads": 1, "dropout": 0.3}),
}


class OtherUpdate(RGCNLayer):
    """Its rows depend on their type."""

    def update(self, ntype: str, aggregated: Tensor, state: Tensor | None) -> Tensor:
        return super().update(ntype, aggregated, state) * len(self._spec.schema.node_types[
            :1 + self._spec.schema.node_types.index(ntype)])


class OneByOne(RGCNLayer):
    """Its relations are aggregated one by one."""

    def aggregate(self, edges: Any) -> Tensor:
        out: Tensor = edges.reduce("sum") @ self.weight(edges.relation)
        return out


class OwnAttention(HGTLayer):
    """Its sums are taken in another way than HGT's."""

    def attend_across(self, relations: Any) -> tuple[Tensor, Tensor]:
        sums, top = super().attend_across(relations)
        return torch.cat([2 * sums[:, :self.width], sums[:, self.width:]], 1), top


AT_ONCE["rgcn, of types"] = (OtherUpdate, {})
APART: dict[str, tuple[type[HGNNLayer], dict[str, Any]]] = {
    "maxima": (RGCNLayer, {"aggregate": "max"}), "largest relation": (RGCNLayer, {"reduce": "max"}),
    "han": (HANLayer, {}), "one by one": (OneByOne, {}),
    "own attention": (OwnAttention, {})}


@pytest.fixture(autouse=True)
def merged(monkeypatch: pytest.MonkeyPatch) -> Iterator[MergedKernel]:
    """The kernel in use, as elsewhere than on CPU."""
    monkeypatch.setattr(merged_kernel, "COMPILES", False)
    kernel = MergedKernel()
    before = use_kernel(kernel)
    yield kernel
    use_kernel(before)


def batch(seed: int = 0, **given: Any) -> MiniBatch:
    """Two layers of random edges; of some relations there are none, of others more than a tile, one
    has chosen rows."""
    generator = np.random.default_rng(seed)
    layers = [{"a": 120, "b": 70, "c": 30}, {"a": 40}]
    blocks, sources = [], COUNTS
    for number, rows in enumerate(layers, 1):
        parts = []
        for place, relation in enumerate(RELATIONS):
            if relation.dst not in rows or relation.src not in sources:
                continue
            count, chosen = rows[relation.dst], None
            if place == 1:
                chosen = torch.from_numpy(np.sort(generator.choice(count, count // 2, False)))
                count = len(chosen)
            degrees = generator.integers(0, (4, 3, 2, 9, 2, 3, 1)[place], count)
            indptr = np.concatenate([[0], np.cumsum(degrees)])
            indices = generator.integers(0, sources[relation.src], indptr[-1])
            parts.append(RelationBlock(relation, 0, torch.from_numpy(indptr),
                                       torch.from_numpy(indices.astype(np.int32)), place, chosen))
        into = {t: tuple(r for r in RELATIONS if r.dst == t) for t in rows}
        blocks.append(Block(number, dict(sources), dict(rows), parts,
                            {"a": SeedShares((40,))}, number == 2, into, into, **given))
        sources = rows
    blocks[0].above = blocks[1]
    ids = {t: np.arange(n) for t, n in COUNTS.items()}
    return MiniBatch(blocks, ids, {"a": ids["a"][:40]}, {"a": ids["a"][:40]})


def model(layer: type[HGNNLayer], changes: dict[str, Any]) -> HGNN:
    torch.manual_seed(1)
    spec = ModelSpec(Schema(COUNTS, dict.fromkeys(RELATIONS, 9)), dict.fromkeys(COUNTS, WIDTH),
                     frozenset(), {"a": 3}, 2, WIDTH, **{"heads": 2, **changes})
    made = HGNN(spec, layer).double()
    with torch.no_grad():
        for parameter in made.parameters():  # none are zeros
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def outcome(made: HGNN, of: MiniBatch) -> dict[str, Tensor | None]:
    """Results and all gradients, None where there is none."""
    generator = torch.Generator().manual_seed(3)
    inputs = {t: torch.randn(n, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()
              for t, n in COUNTS.items()}
    made.zero_grad(set_to_none=True)
    torch.manual_seed(5)
    out = made(of, inputs)["a"]
    (out * torch.randn(out.shape, dtype=out.dtype, generator=generator)).sum().backward()
    return {"out": out.detach(), "next drawn": torch.rand(1),
            **{f"input {t}": x.grad for t, x in inputs.items()},
            **{name: p.grad for name, p in made.named_parameters()}}


def compare(layer: type[HGNNLayer], changes: dict[str, Any], prepared: MiniBatch, plain: MiniBatch
            ) -> None:
    made = model(layer, changes)
    got = outcome(made, prepared)
    merged = use_kernel(TorchKernel())
    want = outcome(made, plain)
    use_kernel(merged)
    for name, value in want.items():
        if value is None and not name.startswith("input"):  # (a type that nobody reads)
            assert got[name] is None, name
        elif value is not None:
            torch.testing.assert_close(got[name], value, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_whole_layer_is_what_its_relations_are(name: str, monkeypatch: pytest.MonkeyPatch
                                                 ) -> None:
    taken, plain = [], WholeLayer.forward

    def forward(self: WholeLayer, *args: Any) -> Any:
        taken.append(plain(self, *args))
        return taken[-1]

    monkeypatch.setattr(WholeLayer, "forward", forward)
    for seed in range(3):
        compare(*AT_ONCE[name], batch(seed).to(CPU), batch(seed))
    assert all(found is not None for found in taken)
    assert len(taken) == 6
    if name in ("rgcn", "rgat"):
        assert isinstance(taken[0], States)  # which the next layer takes as they are


@pytest.mark.parametrize("layer", [RGCNLayer, RGATLayer])
def test_parameters_of_a_type_that_nobody_reads_have_no_gradient(layer: type[HGNNLayer]) -> None:
    """As with any kernel: zeros would let an optimizer's momentum move them."""
    def unread() -> MiniBatch:
        made = batch()
        last = made.blocks[1]
        last = replace(last, edges=[e for e in last.edges if e.relation.src != "c"])
        made.blocks = [replace(made.blocks[0], above=last), last]
        return made

    compare(layer, {"self_loop": False}, unread().to(CPU), unread())
    compare(layer, {}, unread().to(CPU), unread())


@pytest.mark.parametrize("name", APART)
def test_what_is_no_such_layer_takes_relations_one_by_one(name: str) -> None:
    prepared = batch().to(CPU)
    assert prepared.blocks[0].prepared is not None
    compare(*APART[name], prepared, batch())


def test_another_kernel_does_not_use_what_this_one_prepared() -> None:
    prepared = batch().to(CPU)
    use_kernel(TorchKernel())
    made = model(RGCNLayer, {})
    torch.testing.assert_close(outcome(made, prepared)["out"], outcome(made, batch())["out"],
                               rtol=0, atol=0)


def test_mixed_precision_takes_relations_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, taken = batch().to(CPU), []
    plain = WholeLayer.forward
    monkeypatch.setattr(WholeLayer, "forward", lambda *args: taken.append(plain(*args)))
    made = model(RGCNLayer, {}).float()
    inputs = {t: torch.ones(n, WIDTH) for t, n in COUNTS.items()}
    with mixed_precision(CPU):
        assert made(prepared, inputs)["a"].isfinite().all()
    assert taken == [None, None]


def test_states_of_several_widths_or_other_rows_are_not_joined() -> None:
    sizes = [("a", 2), ("b", 3)]
    assert States.joined({"a": torch.zeros(2, 4), "b": torch.zeros(3, 5)}, sizes, "ab") is None
    assert States.joined({"a": torch.zeros(2, 4), "b": torch.zeros(4, 4)}, sizes, "ab") is None
    whole = States(torch.arange(12.0).view(6, 2), sizes)
    assert States.joined(whole, sizes, "ab") is whole.whole
    assert whole["b"].tolist() == [[4, 5], [6, 7], [8, 9]]


@pytest.mark.parametrize("case", ["edges for others", "no edges", "compiled"])
def test_what_is_not_prepared(case: str, merged: MergedKernel, monkeypatch: pytest.MonkeyPatch
                              ) -> None:
    made = batch(offloads=case == "edges for others")
    if case == "compiled":
        monkeypatch.setattr(merged_kernel, "COMPILES", True)
    block = made.blocks[0]
    if case == "no edges":
        block = Block(1, dict(COUNTS), {"a": 1}, [
            RelationBlock(RELATIONS[0], 0, torch.zeros(2, dtype=torch.int64),
                          torch.zeros(0, dtype=torch.int32))], {}, False, {}, {})
    assert merged.prepare(block, CPU) is None


def test_tiles_are_full_and_what_fills_them_counts_for_no_result() -> None:
    block = batch().to(CPU).blocks[0]
    edges = block.prepared
    assert isinstance(edges, WholeLayer)
    assert not any(count % TILE for count in (*edges.row_counts, *edges.edge_counts))
    real = edges.target[edges.row.long()] < edges.number
    assert int(real.sum()) == sum(len(e.indices) for e in block.edges)


def doubled(made: HGNN) -> HGNN:
    """Somebody's states in place of a layer's."""
    made.layers[0].register_forward_hook(
        lambda layer, given, states: states.__setitem__("a", 2 * states["a"]))
    return made


def updated(made: HGNN) -> HGNN:
    """A method of one layer alone."""
    made.layers[0].update = lambda ntype, aggregated, state: aggregated.tanh()
    return made


def hooked(made: HGNN) -> HGNN:
    """A linear layer that does more than its weights."""
    for linear in made.layers[0].queries.values():
        linear.register_forward_hook(lambda linear, given, rows: 2 * rows)
    return made


def keyed(made: HGNN) -> HGNN:
    """The same of source rows."""
    for linear in made.layers[0].keys.values():
        linear.register_forward_hook(lambda linear, given, rows: 2 * rows)
    return made


def called(made: HGNN) -> HGNN:
    """Keys whose forward is exchanged on the object."""
    for linear in made.layers[0].keys.values():
        linear.forward = lambda rows, linear=linear: 2 * type(linear).forward(linear, rows)
    return made


@pytest.mark.parametrize(("layer", "change"), [
    (RGCNLayer, doubled), (RGATLayer, updated), (HGTLayer, hooked), (HGTLayer, keyed),
    (HGTLayer, called)])
def test_what_somebody_has_changed_in_a_model_counts(layer: type[HGNNLayer], change: Any) -> None:
    got = outcome(change(model(layer, {})), batch().to(CPU))["out"]
    use_kernel(TorchKernel())
    want = outcome(change(model(layer, {})), batch())["out"]
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_a_batch_that_is_dropped_is_freed_at_once(name: str) -> None:
    """It takes memory of the GPU, of which the garbage collector knows nothing."""
    layer, changes = AT_ONCE[name]
    of = batch().to(CPU)
    assert all(isinstance(block.prepared, WholeLayer) for block in of.blocks)
    outcome(model(layer, changes), of)
    seen = [weakref.ref(thing) for block in of.blocks for thing in (
        block, *block.edges, block.prepared)]
    gc.disable()
    try:
        del of
        assert not [thing for thing in (ref() for ref in seen) if thing is not None]
    finally:
        gc.enable()
