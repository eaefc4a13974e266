"""Parts in DistDGL's format: what DGL loads is the graph, every list of neighbours whole."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from dgl_heta_catgnn import NodePartitioner, Spring, built_in

from dgl_heta import EdgeArrays, GraphSource, InputError, Relation, partition_graph
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.request import make_request
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic, with_times

pytestmark = pytest.mark.needs("dgl")


def with_edge_data(source: GraphSource) -> GraphSource:
    for number, (relation, edges) in enumerate(source.edges.items()):
        source.edge_arrays[relation] = {
            "weight": np.arange(edges.num_edges, dtype=np.float32) + 1000 * number}
    return source


def written(source, out, parts, partitioner=None, **script):
    partitioner = partitioner or Spring()
    schema = source.schema if isinstance(source, Store) else source.schema()
    request = make_request(partitioner, schema, parts, script=script)
    return partitioner.partition(source, request, out)


def loaded(result, part):
    """A part as DGL loads it, after its own check of it."""
    from dgl.distributed.partition import _verify_dgl_partition, load_partition

    graph, node_feats, edge_feats, book, _, ntypes, etypes = load_partition(
        str(result.part_config), part)
    _verify_dgl_partition(graph, part, book, {t: i for i, t in enumerate(ntypes)},
                          {e: i for i, e in enumerate(etypes)})
    return graph, node_feats, edge_feats, book


def whole_edges(source):
    """Relation → its edges as the source has them, (2, edges)."""
    return {r: np.concatenate(list(e.chunks(10**6)), axis=1) for r, e in source.edges.items()}


def check_parts(source, result, hops=1):
    """All that must hold of parts; returns how often each node is there, halo included."""
    import dgl

    wanted = whole_edges(source)
    there: Counter[tuple[int, int]] = Counter()
    types, relations = list(source.node_counts), list(source.edges)
    for kind, counts in ((result.nodes, source.node_counts),
                         (result.edges, {r: e.num_edges for r, e in source.edges.items()})):
        for name, count in counts.items():
            np.testing.assert_array_equal(np.sort(kind[name]), np.arange(count))
    for part in range(result.parts):
        graph, node_feats, edge_feats, book = loaded(result, part)
        kinds, ids = (x.numpy() for x in book.map_to_per_ntype(graph.ndata[dgl.NID]))
        orig = np.array([result.nodes[types[t]][i] for t, i in zip(kinds, ids)])
        inner = graph.ndata["inner_node"].numpy() == 1
        owners = book.nid2partid(graph.ndata[dgl.NID]).numpy()
        np.testing.assert_array_equal(graph.ndata["part_id"].numpy(), owners)
        np.testing.assert_array_equal(owners == part, inner)
        there.update(zip(kinds.tolist(), orig.tolist()))
        kinds_e, ids_e = (x.numpy() for x in book.map_to_per_etype(graph.edata[dgl.EID]))
        src, dst = (x.numpy() for x in graph.edges())
        if dgl.ETYPE in graph.edata:
            np.testing.assert_array_equal(graph.edata[dgl.ETYPE].numpy(), kinds_e)
            np.testing.assert_array_equal(graph.ndata[dgl.NTYPE].numpy(), kinds)
        positions = np.array([result.edges[relations[r]][i] for r, i in zip(kinds_e, ids_e)], int)
        for r, relation in enumerate(relations):
            own = kinds_e == r
            assert set(kinds[src[own]]) <= {types.index(relation.src)}
            np.testing.assert_array_equal(
                np.stack([orig[src[own]], orig[dst[own]]]), wanted[relation][:, positions[own]])
            # The in-edges of each node within `hops` - 1 hops are here, each once.
            assert len(set(positions[own])) == own.sum()
        inner_edge = graph.edata["inner_edge"].numpy() == 1
        np.testing.assert_array_equal(inner_edge, inner[dst])
        expected, reached = near(source, wanted, types, {
            (kinds[i], orig[i]) for i in np.flatnonzero(inner)}, hops)
        assert set(zip(kinds_e.tolist(), positions.tolist())) == expected
        assert set(zip(kinds.tolist(), orig.tolist())) == reached
        for t, ntype in enumerate(types):
            owned = orig[inner & (kinds == t)]
            for name, array in source.node_arrays.get(ntype, {}).items():
                np.testing.assert_array_equal(node_feats[f"{ntype}/{name}"].numpy(), array[owned])
        for relation, arrays in source.edge_arrays.items():
            own = inner_edge & (kinds_e == relations.index(relation))
            for name, array in arrays.items():
                np.testing.assert_array_equal(edge_feats[f"{':'.join(relation)}/{name}"].numpy(),
                                              array[positions[own]])
    return there


def near(source, wanted, types, inner, hops):
    """Edges into nodes within `hops` - 1 hops of a part's own, and all nodes of these."""
    nodes, edges = set(inner), set()
    for _ in range(hops):
        for r, (relation, ends) in enumerate(wanted.items()):
            d = types.index(relation.dst)
            edges |= {(r, e) for e, v in enumerate(ends[1].tolist()) if (d, v) in nodes}
        ends = {(types.index(r.src), int(wanted[r][0, e])) for i, r in enumerate(wanted)
                for j, e in edges if i == j}
        nodes |= ends
    return edges, nodes


@pytest.mark.parametrize("name", [p.name for p in built_in()])
def test_what_dgl_loads_is_the_graph(name, tmp_path):
    (partitioner,) = [p for p in built_in() if p.name == name]
    source = with_edge_data(academic(papers=40))
    result = written(source, tmp_path / "out", 3, partitioner)
    there = check_parts(source, result)
    nodes = sum(source.node_counts.values())
    assert result.statistics["replication_factor"] == there.total() / nodes
    assert sum(result.statistics["nodes"]) == nodes
    assert sum(result.statistics["edges"]) == sum(e.num_edges for e in source.edges.values())
    assert not (tmp_path / "out/spool").exists()


@pytest.mark.parametrize("hops", [2, 3])
def test_further_hops_of_neighbours(hops, tmp_path):
    source = with_edge_data(academic(papers=30, dense=1))
    partitioner = Spring()
    partitioner.settings = partitioner.settings.model_copy(update={"chunk": 7})
    result = written(source, tmp_path / "out", 3, partitioner, num_hops=hops)
    check_parts(source, result, hops)
    assert json.loads(result.part_config.read_text())["halo_hops"] == hops


def store_of(source, out):
    write_store(source, out, edge_ids=True)
    return Store(out)


def method(name):
    return Plugins(guests=False).get("partition backend", name) if name == "metis" else Spring()


@pytest.mark.parametrize("name", ["spring", "metis"])
@pytest.mark.parametrize("stored", [False, True])
def test_edge_data_go_into_parts_also_out_of_a_store(name, stored, tmp_path):
    source = with_edge_data(academic(papers=240))  # DGL needs a node of each type in each part
    graph = store_of(source, tmp_path / "store") if stored else source
    result = written(graph, tmp_path / "out", 2, method(name))
    whole, seen = whole_edges(source), 0
    for part in range(2):
        local, _, edge_feats, book = loaded(result, part)
        ends = []
        for side in local.edges(order="eid"):
            kinds, ids = book.map_to_per_ntype(local.ndata["_ID"][side])
            ends.append([result.nodes[book.ntypes[t]][i]
                         for t, i in zip(kinds.tolist(), ids.tolist())])
        kinds, ids = (x.numpy() for x in book.map_to_per_etype(local.edata["_ID"]))
        own = local.edata["inner_edge"].numpy() == 1
        for r, relation in enumerate(source.edges):
            chosen = np.flatnonzero(own & (kinds == book.canonical_etypes.index(relation)))
            chosen = chosen[np.argsort(ids[chosen])]
            # The weight of an edge is its place in the source.
            places = edge_feats[f"{':'.join(relation)}/weight"].numpy().astype(int) - 1000 * r
            np.testing.assert_array_equal(np.array(ends)[:, chosen], whole[relation][:, places])
            seen += len(places)
    assert seen == sum(edges.num_edges for edges in source.edges.values())


@pytest.mark.parametrize("name", ["spring", "metis"])
def test_a_graph_with_times_is_refused(name, tmp_path):
    source = with_times(academic())
    for graph in (source, store_of(source, tmp_path / "store")):
        with pytest.raises(InputError, match=f"method '{name}' goes by no times, but .* train"):
            written(graph, tmp_path / "out", 2, method(name))


def test_more_parts_than_nodes_of_a_type_and_self_loops(tmp_path):
    a, b = Relation("a", "r", "b"), Relation("a", "s", "a")
    source = GraphSource("tiny", {"a": 3, "b": 1}, {
        a: EdgeArrays(np.array([0, 0, 2]), np.array([0, 0, 0])),
        b: EdgeArrays(np.array([1, 1]), np.array([1, 1]))})
    check_parts(source, written(source, tmp_path / "out", 6))


def test_one_part_is_the_whole_graph(tmp_path):
    source = with_edge_data(academic(papers=20))
    there = check_parts(source, written(source, tmp_path / "out", 1))
    assert set(there.values()) == {1}


def test_a_homogeneous_graph_in_a_script_gets_original_ids(tmp_path):
    """As `dgl.distributed.partition_graph` answers; the script's node data stay as they are."""
    import dgl
    import torch
    from dgl.distributed.partition import load_partition

    graph = dgl.rand_graph(50, 300)
    graph.ndata["features"] = torch.rand(50, 3)
    graph.ndata["labels"] = torch.arange(50) % 4
    graph.ndata["train_mask"] = torch.arange(50) < 30
    graph.ndata["feat"], graph.ndata["x"] = torch.arange(50), torch.rand(50, 2, 2).bfloat16()
    graph.edata["w"] = torch.rand(300, dtype=torch.complex64)
    nodes, edges = partition_graph(graph, "homo", 2, str(tmp_path / "out"), part_method="hdrf",
                                   return_mapping=True, graph_formats=["csc", "coo"])
    seen = 0
    for part in range(2):
        local, node_feats, edge_feats, book, *_ = load_partition(
            str(tmp_path / "out/homo.json"), part)
        assert dgl.NTYPE not in local.ndata
        own = nodes[book.partid2nids(part)]
        for name in ("features", "labels", "feat", "x"):
            assert node_feats[f"_N/{name}"].dtype == graph.ndata[name].dtype
            assert torch.equal(node_feats[f"_N/{name}"], graph.ndata[name][own])
        assert torch.equal(node_feats["_N/train_mask"].bool(), graph.ndata["train_mask"][own])
        of_part = edges[book.partid2eids(part)]
        assert torch.equal(edge_feats["_N:_E:_N/w"], graph.edata["w"][of_part])
        src, dst = local.edges()
        new = local.ndata[dgl.NID]
        assert torch.equal(torch.stack([nodes[new[src]], nodes[new[dst]]]),
                           torch.stack(graph.find_edges(edges[local.edata[dgl.EID]])))
        seen += len(of_part)
    assert seen == 300


class Interleaved(NodePartitioner):
    """Nodes round and round, so that every part has some of everything."""

    name = "interleaved"

    def nodes(self, stream, parts, seed):
        return np.arange(stream.num_nodes) % parts


def test_features_are_cut_from_memory_maps(tmp_path):
    source = academic(papers=40)
    for ntype, arrays in source.node_arrays.items():
        for name, array in arrays.items():
            np.save(tmp_path / f"{ntype}-{name}.npy", array)
            arrays[name] = np.load(tmp_path / f"{ntype}-{name}.npy", mmap_mode="r")
    check_parts(source, written(source, tmp_path / "out", 4, Interleaved()))


def test_same_graph_same_parts(tmp_path):
    source = academic(papers=40)
    one, other = (written(source, tmp_path / name, 3) for name in ("a", "b"))
    for ntype in source.node_counts:
        np.testing.assert_array_equal(one.nodes[ntype], other.nodes[ntype])
    assert one.part_config.read_text() == other.part_config.read_text()


class EndsEarly:
    """Edges that are fewer in the third pass."""

    num_edges = 4

    def __init__(self):
        self.passes = 0

    def chunks(self, size):
        self.passes += 1
        ids = np.arange(4 if self.passes < 3 else 3)
        yield ids, (ids + 1) % 4


def test_a_stream_that_ends_early_leaves_no_output(tmp_path):
    source = GraphSource("g", {"n": 4}, {Relation("n", "r", "n"): EndsEarly()})
    with pytest.raises(InputError, match="ends after 3 edges"):
        written(source, tmp_path / "out", 2)
    assert list(tmp_path.iterdir()) == []


def test_earlier_parts_are_replaced_and_nothing_else(tmp_path):
    source, partitioner, out = academic(papers=20), Spring(), tmp_path / "out"
    written(source, out, 3)
    request = make_request(partitioner, source.schema(), 2)
    with pytest.raises(InputError, match="exists"):
        partitioner.partition(source, request, out)
    check_parts(source, partitioner.partition(source, request, out, overwrite=True))
    assert not (out / "part2").exists()
    for name in ("notes.txt", "notes.json", "part0/notes.txt", "orig_ids/notes.txt"):
        users_file = out / name
        users_file.write_text('{"of": "the user"}')
        with pytest.raises(InputError, match=r"notes\.(txt|json), which dgl-heta did not write"):
            partitioner.partition(source, request, out, overwrite=True)
        users_file.unlink()


@pytest.mark.parametrize(("arguments", "message"), [
    ({"replication": "none"}, "method 'spring' knows no replication"),
    ({"memory_mb": 5}, "knows no memory limit"),
])
def test_what_only_meta_partitioning_has_is_refused(arguments, message, tmp_path):
    source = academic(papers=20)
    request = make_request(Spring(), source.schema(), 2, **arguments)
    with pytest.raises(InputError, match=message):
        Spring().partition(source, request, tmp_path / "out")
