"""A script's own operations over a block: what would be partial is refused, the rest is DGL's."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import dgl
import torch
from dgl.nn.functional import edge_softmax
from dgl.nn.pytorch import GraphConv, HeteroGraphConv

from dgl_heta.distdgl.blocks.block_names import REFUSED, SLICED
from dgl_heta.errors import HetaError
from tests.distdgl.programs.usual import Net, train
from tests.support.programs_worker import Trainer

CITES = ("paper", "cites", "paper")


def last_block(t: Trainer) -> Any:
    for _, _, blocks in t.loader():
        return blocks[-1]


def of_the_graph(block: Any) -> dict[str, Callable[[], Any]]:
    """Functions over graphs, that take a whole block."""
    rows = {t: torch.ones(block.num_src_nodes(t), 2) for t in block.srctypes}
    by_type = [*rows.values(), *[torch.ones(block.num_dst_nodes(t), 2) for t in block.dsttypes]]
    return {
        "block_to_graph": lambda: dgl.block_to_graph(block),
        "to_homogeneous": lambda: dgl.to_homogeneous(block),
        "edge_type_subgraph": lambda: dgl.edge_type_subgraph(block, [CITES]),
        "edge_subgraph": lambda: dgl.edge_subgraph(block, {CITES: torch.tensor([0])}),
        "node_subgraph": lambda: dgl.node_subgraph(block, {"paper": torch.tensor([0])}),
        "in_subgraph": lambda: dgl.in_subgraph(block, {"paper": torch.tensor([0])}),
        "out_subgraph": lambda: dgl.out_subgraph(block, {"paper": torch.tensor([0])}),
        "reverse": lambda: dgl.reverse(block),
        "to_simple": lambda: dgl.to_simple(block),
        "to_block": lambda: dgl.to_block(block),
        "batch": lambda: dgl.batch([block, block]),
        "merge": lambda: dgl.merge([block, block]),
        "compact_graphs": lambda: dgl.compact_graphs(block),
        "metapath": lambda: dgl.metapath_reachable_graph(block, ["cites", "cites"]),
        "add_self_loop": lambda: dgl.add_self_loop(block, etype=CITES),
        "sum_edges": lambda: dgl.sum_edges(block, "w", etype=CITES),
        "save": lambda: dgl.save_graphs("/dev/null", [block]),
        "copy_u_sum": lambda: dgl.ops.copy_u_sum(block, by_type),
        "u_add_v": lambda: dgl.ops.u_add_v(block, by_type, by_type),
        "pickle": lambda: pickle.dumps(block),
        "deepcopy": lambda: copy.deepcopy(block),
        "several relations": lambda: block["paper", :, "paper"],
        "the graph's index": lambda: block._graph.edges(0, "eid"),
        "the index's graph": lambda: block._graph.get_unitgraph(0, 0),
    }


def of_a_relation(block: Any) -> dict[str, Callable[[], Any]]:
    """Functions over graphs, that take a block of one relation: what sees edges from their
    sources, or is given data of edges that are no rows of these."""
    sources = torch.ones(block.num_src_nodes(), 2)
    edges, known = torch.ones(block.num_edges(), 1), dgl.ops.copy_u(block, sources)
    conv = GraphConv(2, 2, allow_zero_in_degree=True)
    return {
        "copy_e_max": lambda: dgl.ops.copy_e_max(block, edges),
        "u_mul_e_sum": lambda: dgl.ops.u_mul_e_sum(block, sources, edges),
        "u_add_e": lambda: dgl.ops.u_add_e(block, sources, edges),
        "edge_softmax": lambda: edge_softmax(block, edges),
        "edge_softmax by source": lambda: edge_softmax(block, known, norm_by="src"),
        "edge_softmax of some": lambda: edge_softmax(block, known, torch.arange(1)),
        "put on edges": lambda: block.edata.update(w=edges),
        "some edges": lambda: block.apply_edges(dgl.function.copy_u("_ID", "m"), [0]),
        "both ends' degrees": lambda: conv(block, sources),
        "HeteroGraphConv": lambda: HeteroGraphConv({"cites": conv})(block, {"paper": sources}),
        "multi_update_all": lambda: block.multi_update_all(
            {"cites": (dgl.function.copy_u("x", "m"), dgl.function.sum("m", "y"))}, "sum"),
        "pickle": lambda: pickle.dumps(block),
    }


def named(block: Any) -> dict[str, Callable[[], Any]]:
    """Every public name of a block that is in the table of those refused."""
    def use(name: str) -> Any:
        found = getattr(block, name)
        arguments = {"update_all": 2, "apply_edges": 1}.get(name, 0)
        return found(*[None] * arguments) if callable(found) else found
    return {name: functools.partial(use, name) for name in REFUSED
            if name not in SLICED or len(block.etypes) > 1}


def allowed(attempts: dict[str, Callable[[], Any]]) -> list[str]:
    """Those that are not refused by name."""
    wrong = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except HetaError as error:
            if "a meta-partitioned graph" not in str(error):
                wrong.append(f"{name}: {error}")
        except dgl.DGLError as error:  # DGL's own, of any block
            if not any(word in str(error) for word in ("block graph", "MFG", "g_list")):
                wrong.append(f"{name}: {error}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
        else:
            wrong.append(name)
    return wrong


def refused(t: Trainer) -> None:
    """What reads edges, of the block and of what is made from it, is refused."""
    block = last_block(t)
    wrong = allowed(of_the_graph(block))
    with block.local_scope(), torch.no_grad():
        made = {"block": block, "local_var": block.local_var(),
                "int": block.int(), "clone": block.clone(), "formats": block.formats("csc"),
                "slice": block["cites"], "slice of int": block.int()[CITES],
                "local_var of slice": block["cites"].local_var(),
                "int of slice": block["cites"].int()}
        for name, graph in made.items():
            wrong += [f"{name}: {text}" for text in allowed(named(graph))]
    wrong += [f"slice: {text}" for text in allowed(of_a_relation(block["cites"]))]
    assert not wrong, wrong


def seen(t: Trainer) -> None:
    """What is not refused is as in plain DGL, or what dgl-heta says it is."""
    for ids, seeds, blocks in t.loader():
        for number, block in enumerate(blocks):
            assert block.canonical_etypes == t.whole.canonical_etypes
            assert block.srctypes == block.dsttypes == t.whole.ntypes
            assert block.ntypes == t.whole.ntypes * 2
            assert [block.get_etype_id(e) for e in block.canonical_etypes] == [*range(8)]
            assert block.metagraph().number_of_edges() == 8
            last = number + 1 == len(blocks)
            if last:
                assert block.num_dst_nodes("paper") == len(seeds["paper"])
                t.record("seeds", block.dstnodes["paper"].data[dgl.NID])
                for e in block.canonical_etypes:
                    assert block.num_edges(e) >= 0
                    assert block[e].num_edges() == block.num_edges(e)
                    if e[2] != "paper":
                        assert block.num_edges(e) == 0
            for e in block.canonical_etypes:
                one = block[e]
                assert one.canonical_etypes == [e]
                assert one.num_src_nodes() == block.num_src_nodes(e[0])
                assert one.num_dst_nodes() == block.num_dst_nodes(e[2])
                one.edata["x"] = dgl.ops.copy_u(one, torch.ones(one.num_src_nodes()))
                assert [*block.edges[e].data] == [*one.edata] == ["x"]
                assert block.edges[e].data["x"].shape[0] == one.num_edges()
                assert one.int().in_degrees().shape == (block.num_dst_nodes(e[2]),)
                one.srcdata["x"] = torch.ones(one.num_src_nodes(), 1)
                assert torch.equal(one.dstdata[dgl.NID], block.dstnodes[e[2]].data[dgl.NID])
            assert len(ids["paper"]) >= block.num_src_nodes("paper")
            assert block.num_nodes() == sum(block.num_src_nodes(n) + block.num_dst_nodes(n)
                                            for n in block.srctypes)
            assert block.num_edges() == sum(block.num_edges(e) for e in block.canonical_etypes)
            assert (block.is_block, block.is_unibipartite, block.is_homogeneous) == (
                True, True, False)
            assert block.to(block.device) is block
            assert block.to("cpu").device.type == "cpu"
            assert (block.int().idtype, block.idtype) == (torch.int32, torch.int64)
            assert "num_edges" in repr(block)
            with block.local_scope():
                block.srcnodes["paper"].data["x"] = torch.ones(block.num_src_nodes("paper"), 1)
                block.apply_nodes(lambda nodes: {"y": nodes.data["x"] * 2}, ntype="paper")
                assert bool((block.srcnodes["paper"].data["y"] == 2).all())
            assert "y" not in block.srcnodes["paper"].data
            assert bool(block.has_nodes(0, block.srctypes[0])) == (
                block.num_src_nodes(block.srctypes[0]) > 0)


def alone(t: Trainer) -> None:
    """In a group of one worker everything is allowed, and right."""
    for _, seeds, blocks in t.loader():
        block = blocks[-1]
        t.record("in-degrees", block.in_degrees(etype=CITES), seeds["paper"])
        for name, value in (("slice", block["cites"]), ("local", block.local_var()["cites"])):
            x = value.srcdata[dgl.NID].double()[:, None]
            t.record(name, dgl.ops.copy_u_sum(value, x), seeds["paper"])
        block.edges["cites"].data["w"] = torch.ones(block.num_edges("cites"), 1)
        with block.local_scope():
            for src in block.srctypes:
                block.srcnodes[src].data["x"] = block.srcnodes[src].data[dgl.NID][:, None].double()
            block.apply_edges(lambda edges: {"v": edges.data["w"] * 2}, etype="cites")
            block.update_all(dgl.function.copy_e("v", "m"), dgl.function.sum("m", "y"),
                             etype="cites")
            t.record("update_all", block.dstnodes["paper"].data["y"], seeds["paper"])
            block.multi_update_all(
                {e: (dgl.function.copy_u("x", "m"), lambda nodes: {
                    "z": nodes.mailbox["m"].tanh().sum(1)})
                 for e in block.canonical_etypes if e[2] == "paper"}, "stack")
            t.record("multi_update_all", block.dstnodes["paper"].data["z"], seeds["paper"])
        t.record("edges", torch.tensor([block.num_edges(e) for e in block.canonical_etypes]))
        again = pickle.loads(pickle.dumps(block))  # noqa: S301
        assert again.num_edges("cites") == block.num_edges("cites")
        assert copy.deepcopy(block).num_edges() == block.num_edges()
        assert dgl.block_to_graph(block).num_edges() == block.num_edges()
        assert block.int()["cites"].edges()[0].dtype == torch.int32
    train(t, Net(t.facts, lambda a, b: HeteroGraphConv(
        {e: GraphConv(a, b, norm="right") for _, e, _ in t.facts.etypes}, "mean")))



def silent(t: Trainer) -> None:
    """A layer of a script's own, for a sabotage: wrong without a word if nothing is refused."""
    for ids, seeds, blocks in t.loader():
        block = blocks[-1]
        x = {n: block.srcnodes[n].data[dgl.NID].double()[:, None] for n in block.srctypes}
        found = sum(dgl.ops.copy_u_sum(block[e], x[e[0]]) for e in block.canonical_etypes
                    if e[2] == "paper")
        t.record("out", found, seeds["paper"])
        assert len(ids)
