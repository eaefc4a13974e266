"""What a script cannot do on a block is refused by a sentence that says what to do instead.

Those refusals that need no group of trainers; the others are met by launched programs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dgl
import pytest
import torch
from dgl.base import DGLError
from dgl.nn.pytorch import GraphConv

from dgl_heta.distdgl.blocks import edge_ids
from dgl_heta.distdgl.blocks.edge_view import EdgeData
from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules import (
    destination_states,
    group_merge,
    hetero_graph_conv,
    multi_update,
)
from dgl_heta.distdgl.modules.absent_relations import Presence, presence
from dgl_heta.distdgl.modules.exchange_before_weights import _aggregated_seeds
from dgl_heta.distdgl.modules.message_functions import Functions, Outputs, functions_of
from dgl_heta.distdgl.refusals import BLOCKS, MODULES
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import RelationBlock, RemoteDestinations
from dgl_heta.system.nested import of_type

CITES = Relation("paper", "cites", "paper")
TABLE = {**BLOCKS, **MODULES}


def edges(rows: int = 2) -> RelationBlock:
    return RelationBlock(CITES, 0, torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0).int())


def refused(name: str, use: Callable[[], Any]) -> None:
    """Check that a use is refused by that entry, and by nothing else."""
    with pytest.raises(TABLE[name].kind) as caught:
        use()
    before, told, after = TABLE[name].message.partition("{remedy}")
    text, remedy = str(caught.value), TABLE[name].remedy.partition("{")[0]
    assert text.startswith(before.partition("{")[0])
    assert text.endswith(after)
    assert remedy in text or not told


def test_a_slice_in_place_of_a_block() -> None:
    refused("a slice in place of a block",
            lambda: group_merge.layer_to_merge(SimpleNamespace(layer=None)))  # type: ignore[arg-type]


def test_an_unknown_aggregation() -> None:
    session = SimpleNamespace(group=SimpleNamespace(size=1))
    merge = group_merge._Merge(SimpleNamespace(session=session), SimpleNamespace(remote={}),  # type: ignore[arg-type]
                           "paper", [], torch.empty(0), {}, torch.Size([2]))
    refused("an unknown aggregation", lambda: merge.by("median"))


def test_states_that_trainers_cannot_send() -> None:
    layer: Any = SimpleNamespace(block=SimpleNamespace(num_own=lambda ntype: 1))
    refused("states that are no tensors",
            lambda: destination_states._structure(layer, "paper", {"x": "no tensor"}))
    assert destination_states._structure(layer, "paper", None) == "left out"
    assert destination_states._one([None, "tree", "tree"], "paper") == "tree"
    refused("states left out by some",
            lambda: destination_states._one(["left out", "tree"], "paper"))
    refused("states of other tensors",
            lambda: destination_states._one(["tree", "another"], "paper"))


def test_own_functions_in_a_large_group() -> None:
    layer: Any = SimpleNamespace(presence=None, block=None,
                                 session=SimpleNamespace(group=SimpleNamespace(size=63)))
    refused("own functions in a large group", lambda: presence(layer))


def test_edge_ids_that_are_written_or_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    block: Any = SimpleNamespace(to_canonical_etype=lambda etype: tuple(CITES))
    data = EdgeData(block, "cites", None, None)  # type: ignore[arg-type]
    refused("writing edge ids", lambda: data.__setitem__(dgl.EID, torch.zeros(1)))

    def none(*_: object) -> None:
        raise InputError("no ids")
    monkeypatch.setattr(edge_ids, "sampled_edge_ids", none)
    piece = RelationBlock(CITES, 0, torch.tensor([0, 1]), torch.zeros(1).int(),
                          sample=SimpleNamespace(csc=None))  # type: ignore[arg-type]
    layer: Any = SimpleNamespace(session=SimpleNamespace(store=None), pieces=lambda _: [piece])
    refused("edge ids that are not stored", lambda: edge_ids.ids_of(layer, CITES))


def test_rows_of_edges_for_dgls_convolutions() -> None:
    conv = SimpleNamespace(_get_module=lambda etype: GraphConv(2, 2))
    refused("rows of edges for DGL's convolutions", lambda: hetero_graph_conv._rows_of_edges(
        conv, ({}, {}, {tuple(CITES): torch.zeros(1)})))


@pytest.mark.parametrize(("change", "name"), [
    ("data of edges", "data of edges in some batches"),
    ("left out", "a node type left out of some batches"),
    ("hook", "a hook registered inside an epoch")])
def test_what_changes_inside_an_epoch(change: str, name: str, monkeypatch: pytest.MonkeyPatch
                                      ) -> None:
    """The other trainers have agreed before that no GraphConv reads destinations."""
    module = GraphConv(2, 2, norm="right")
    if change == "hook":
        module.register_forward_hook(lambda *_: None)
    if change == "data of edges":
        monkeypatch.setattr(hetero_graph_conv, "of_type", lambda kind, value: (
            iter([1]) if kind is hetero_graph_conv.EdgeRows else of_type(kind, value)))
    block = SimpleNamespace(last=True, offloads=False, layer=2, edges=[edges()],
                            num_src={"paper": 3})
    layer = SimpleNamespace(block=block, session=SimpleNamespace(
        group=SimpleNamespace(size=2),
        groups=SimpleNamespace(all_agree=lambda what, holds: True)))
    call: Any = SimpleNamespace(conv=None, layer=layer, modules={CITES: module}, mod_args=None,
                                sources={} if change == "left out" else {"paper": 1},
                                mod_kwargs=None)
    refused(name, lambda: hetero_graph_conv._read_no_destinations(call, {CITES: module}))


def test_functions_of_multi_update_all_that_tell_batches_apart() -> None:
    there = Presence({"paper": torch.tensor([1, 3])}, {CITES: 1})  # one row is of two batches
    layer = SimpleNamespace(asked=set(), block=SimpleNamespace(layer=1))
    call: Any = SimpleNamespace(there=there, layer=layer, outputs=Outputs(),
                                plan=SimpleNamespace(reducer="mean"))
    own = Functions(dgl.function.copy_u("x", "m"), lambda nodes: {})
    refused("a row of several batches with other relations",
            lambda: multi_update._note_absent(call, edges(), own))


def test_a_relation_that_is_named_twice() -> None:
    schema = SimpleNamespace(relations=[CITES])
    layer: Any = SimpleNamespace(session=SimpleNamespace(store=SimpleNamespace(schema=schema)))
    given = dgl.function.copy_u("x", "m"), dgl.function.sum("m", "y")
    assert [*functions_of(layer, {"cites": given})] == [CITES]
    refused("a relation named twice",
            lambda: functions_of(layer, {"cites": given, tuple(CITES): given}))


@pytest.mark.parametrize("rows", [2, 4])
def test_states_of_other_rows_than_the_sources_are_refused_as_by_dgl(rows: int) -> None:
    """By what computes relations together, also where it merges before weights."""
    module = GraphConv(2, 3, norm="right", bias=False, allow_zero_in_degree=True)
    block = SimpleNamespace(edges=[edges()], num_src={"paper": 3}, into=lambda _: [edges()],
                            seeds={"paper": SimpleNamespace(total=2)})
    states, layer = {"paper": torch.zeros(rows, 2)}, SimpleNamespace(block=block)
    call: Any = SimpleNamespace(layer=layer, sources=states, destinations=states, merged={},
                                aggregate="sum", of=lambda _: (module, (), {}))
    message = f"is given {rows} rows of 'paper' for a block with 3 source nodes"
    with pytest.raises(DGLError, match=message):
        hetero_graph_conv._run_relations(call)
    with pytest.raises(DGLError, match=message):
        _aggregated_seeds(call.layer, CITES, 2, states, module, torch.empty(0))


def test_own_reduce_and_apply_functions_for_rows_without_edges() -> None:
    graph = dgl.create_block({tuple(CITES): ([], [])}, {"paper": 1}, {"paper": 1})
    own = Functions(lambda e: {"m": e.src["x"]}, lambda nodes: {"y": nodes.mailbox["m"].sum(1)},
                    lambda nodes: {"y": nodes.data["y"]})
    frame = SimpleNamespace(data={"x": torch.zeros(1, 2)})
    call: Any = SimpleNamespace(g=SimpleNamespace(srcnodes={"paper": frame}))
    refused("own reduce and apply functions for rows without edges",
            lambda: multi_update._columns(call, graph, None, own, {}))


@pytest.mark.parametrize(("last", "name"), [
    (True, "a seed's data in a module"), (False, "a destination's data in a module")])
def test_data_of_destinations_that_other_trainers_have(last: bool, name: str) -> None:
    ids = torch.arange(3)
    block: Any = SimpleNamespace(
        last=last, wanted=lambda ntype: 1, num_dst={"paper": 3}, num_own=lambda ntype: 1,
        remote={} if last else {"paper": RemoteDestinations((0, 2), (0, 0), ids[:2].numpy())})
    layer = Layer(SimpleNamespace(), block, {"paper": ids}, [])  # type: ignore[arg-type]
    g = dgl.create_block({tuple(CITES): ([0], [0])}, {"paper": 3}, {"paper": 1})
    g.dstdata["own"] = torch.ones(1)
    frame = layer._destinations(edges(3), g)
    assert len(frame._columns["own"]) == 3
    refused(name, lambda: frame["own"])


def test_every_refusal_of_blocks_and_modules_names_a_test() -> None:
    root = Path(__file__).resolve().parents[1]
    for entry in TABLE.values():
        file, _, function = entry.test.partition("::")
        assert f"def {function}(" in (root / file).read_text(encoding="utf-8"), entry.test
