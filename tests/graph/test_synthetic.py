"""The synthetic graphs have the shapes of Table 1 of the Heta paper, and can be learned."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from scipy import sparse

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.datasets.synthetic import (
    SHAPES,
    files,
    generate,
    maker,
    shape_schema,
    write_files,
)
from dgl_heta.graph.datasets.synthetic.shapes import MIN_NODES
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import GraphSource

# name: nodes, node types, edges, relations, types with features, feature dims, classes
TABLE_1 = {
    "mag": (1.9e6, 4, 4.2e7, 7, 1, (128, 128), 349),
    "freebase": (1.2e7, 8, 1.3e8, 64, 0, None, 8),
    "donor": (9.7e6, 7, 2.5e7, 14, 7, (7, 789), 2),
    "igb-het": (2.6e7, 4, 4.9e8, 7, 4, (1024, 1024), 2983),
    "mag240m": (2.4e8, 3, 3.4e9, 5, 1, (768, 768), 153),
}
SMALL = {"mag": 0.003, "freebase": 0.0005, "donor": 0.001, "igb-het": 0.0002,
         "mag240m": 0.00003}


@cache
def small(name: str) -> GraphSource:
    return generate(name, SMALL[name], seed=7)


def same(one: GraphSource, two: GraphSource) -> bool:
    return (
        one.schema() == two.schema()
        and all(np.array_equal(e.src, two.edges[r].src) and np.array_equal(e.dst, two.edges[r].dst)
                for r, e in one.edges.items())
        and all(np.array_equal(array, two.node_arrays[t][name])
                for t, arrays in one.node_arrays.items() for name, array in arrays.items()))


@pytest.mark.parametrize("name", TABLE_1)
def test_shape_agrees_with_table_1(name):
    nodes, ntypes, edges, relations, with_feat, dims, classes = TABLE_1[name]
    schema, shape = shape_schema(name), SHAPES[name]
    assert sum(schema.node_counts.values()) == pytest.approx(nodes, rel=0.03)
    assert len(schema.node_types) == ntypes
    assert sum(schema.edge_counts.values()) == pytest.approx(edges, rel=0.035)
    assert len(schema.relations) == relations
    widths = [n.dim for n in shape.nodes.values() if n.dim]
    assert len(widths) == with_feat == len(schema.feature_bytes)
    assert (min(widths), max(widths)) == dims if widths else dims is None
    assert shape.num_classes == classes


def test_mag_has_the_exact_counts_of_ogbn_mag():
    schema = shape_schema("mag")
    assert schema.node_counts == {"author": 1_134_649, "field": 59_965, "institution": 8_740,
                                  "paper": 736_389}
    assert {r.etype: n for r, n in schema.edge_counts.items()} == {
        "affiliated": 1_043_998, "rev-affiliated": 1_043_998, "writes": 7_145_660,
        "rev-writes": 7_145_660, "has_topic": 7_505_078, "rev-has_topic": 7_505_078,
        "cites": 10_832_542}


def test_bytes_of_features_fit_the_storage_of_table_1():
    for name, gib in {"donor": 22, "igb-het": 104, "mag240m": 202}.items():
        schema = shape_schema(name)
        feats = sum(n * schema.node_counts[t] for t, n in schema.feature_bytes.items())
        ids = 8 * sum(schema.edge_counts.values())
        assert (feats + ids) / 2 ** 30 == pytest.approx(gib, rel=0.05)


@pytest.mark.parametrize("name", SHAPES)
def test_generated_graph_has_the_planned_schema(name):
    graph = small(name)
    assert graph.schema() == shape_schema(name, SMALL[name])
    assert graph.task.target == SHAPES[name].target
    for ntype, node in SHAPES[name].nodes.items():
        feat = graph.node_arrays.get(ntype, {}).get("feat")
        assert (feat is None) == (node.dim == 0)
        if feat is not None:
            assert feat.shape == (graph.node_counts[ntype], node.dim)
            assert feat.dtype == SHAPES[name].dtype
            assert np.isfinite(feat).all()
            assert feat.astype(np.float32).std() == pytest.approx(1.2, abs=0.35)


@pytest.mark.parametrize("name", SHAPES)
def test_edges_are_distinct_in_range_and_reverses_are_exact_transposes(name):
    graph = small(name)
    for relation, edges in graph.edges.items():
        n_src, n_dst = graph.node_counts[relation.src], graph.node_counts[relation.dst]
        assert edges.src.min() >= 0
        assert edges.src.max() < n_src
        assert edges.dst.min() >= 0
        assert edges.dst.max() < n_dst
        keys = edges.src.astype(np.int64) * n_dst + edges.dst
        assert len(np.unique(keys)) == edges.num_edges, f"{relation} has parallel edges"
        if relation.src == relation.dst:
            assert (edges.src != edges.dst).all(), f"{relation} has self-loops"
            back = edges.dst.astype(np.int64) * n_dst + edges.src
            assert np.array_equal(np.sort(keys), np.sort(back)), f"{relation} is not symmetric"
        elif not relation.etype.startswith("rev-"):
            reverse = graph.edges[Relation(relation.dst, f"rev-{relation.etype}", relation.src)]
            assert np.array_equal(reverse.src, edges.dst)
            assert np.array_equal(reverse.dst, edges.src)


@pytest.mark.parametrize("name", SHAPES)
def test_labels_and_masks(name):
    graph = small(name)
    arrays = graph.node_arrays[graph.task.target]
    label = arrays["label"]
    assert label.dtype == np.int64
    assert label.min() >= 0
    assert label.max() < graph.task.num_classes
    masks = [arrays[f"{part}_mask"] for part in ("train", "val", "test")]
    assert all(m.dtype == bool and m.any() for m in masks)
    assert sum(m.astype(int) for m in masks).max() == 1
    labelled = sum(int(m.sum()) for m in masks)
    for mask, share in zip(masks, SHAPES[name].split):
        assert mask.sum() == pytest.approx(share * labelled, abs=1)
    sizes = np.bincount(label, minlength=graph.task.num_classes)
    assert sizes.max() < 0.6 * len(label)


def test_only_a_small_share_of_mag240m_is_labelled():
    shape = SHAPES["mag240m"].scaled(0.1)
    assert shape.labelled / shape.nodes["paper"].count == pytest.approx(0.0115, rel=0.01)


def test_classes_shrink_with_the_labelled_nodes():
    assert generate("mag", 0.001).task.num_classes == 14
    assert SHAPES["mag"].scaled(0.01).num_classes == 147
    assert SHAPES["mag"].scaled(0.1).num_classes == 349
    assert SHAPES["mag"].scaled(1e-7).num_classes == 2


@pytest.mark.parametrize("name", SHAPES)
def test_equal_seeds_give_equal_graphs(name):
    assert same(small(name), generate(name, SMALL[name], seed=7))


def test_other_seeds_give_other_graphs():
    one, two = small("mag"), generate("mag", SMALL["mag"], seed=8)
    for relation, edges in one.edges.items():
        assert not np.array_equal(edges.src, two.edges[relation].src)
    for name, array in one.node_arrays["paper"].items():
        assert not np.array_equal(array, two.node_arrays["paper"][name])


def test_the_smallest_graph_is_complete():
    for name in SHAPES:
        graph = generate(name, 1e-12)
        assert set(graph.node_counts.values()) == {MIN_NODES}
        assert len(graph.edges) == len(shape_schema(name).relations)


@pytest.mark.parametrize("block", [1, 300, 1 << 20])
def test_blocks_do_not_repeat_each_others_edges(block, monkeypatch):
    monkeypatch.setattr(maker, "BLOCK_EDGES", block)
    graph = generate("mag", 0.0003)
    for relation, edges in graph.edges.items():
        pairs = edges.src.astype(np.int64) * graph.node_counts[relation.dst] + edges.dst
        assert len(np.unique(pairs)) == len(pairs)


def test_degrees_are_skewed():
    graph = generate("mag", 0.02)
    for relation in (("paper", "rev-writes", "author"), ("paper", "cites", "paper"),
                     ("paper", "has_topic", "field")):
        degrees = np.bincount(graph.edges[Relation(*relation)].dst,
                              minlength=graph.node_counts[relation[2]])
        # With uniform choice the largest degree is within a few standard deviations.
        assert degrees.max() > degrees.mean() + 9 * np.sqrt(degrees.mean()), relation
        top = np.sort(degrees)[::-1][:len(degrees) // 10].sum() / degrees.sum()
        assert top > 0.2, relation


def mean_of(matrix):
    return sparse.diags(1 / np.maximum(np.asarray(matrix.sum(1)).ravel(), 1)) @ matrix


def neighbourhoods(graph):
    """Per relation into the target: mean features of neighbours, and mean training labels of
    the target nodes that share a neighbour (or, of target nodes, are the neighbours)."""
    target, arrays = graph.task.target, graph.node_arrays[graph.task.target]
    known = np.eye(graph.task.num_classes)[arrays["label"]] * arrays["train_mask"][:, None]
    for relation, edges in graph.edges.items():
        if relation.dst != target:
            continue
        shape = graph.node_counts[target], graph.node_counts[relation.src]
        adjacency = sparse.csr_matrix((np.ones(edges.num_edges), (edges.dst, edges.src)), shape)
        weights = mean_of(adjacency)
        if relation.src == target:
            parts = [weights @ known]
        else:
            # A node must not see its own label through a neighbour.
            back = sparse.diags(1 / np.maximum(
                np.asarray(adjacency.sum(0)).ravel() - 1, 1)) @ adjacency.T
            own = np.asarray(weights.multiply(back.T).sum(1))
            parts = [weights @ (back @ known) - own * known]
        feat = graph.node_arrays.get(relation.src, {}).get("feat")
        if feat is not None:
            parts.append(weights @ feat.astype(np.float64))
        yield relation, np.hstack(parts)


def accuracy(graph, inputs):
    """Test accuracy of a ridge classifier."""
    arrays = graph.node_arrays[graph.task.target]
    train, test, label = arrays["train_mask"], arrays["test_mask"], arrays["label"]
    x = np.hstack(inputs)
    x = (x - x[train].mean(0)) / (x[train].std(0) + 1e-6)
    gram = x[train].T @ x[train] + 0.3 * train.sum() * np.eye(x.shape[1])
    wanted = np.eye(graph.task.num_classes)[label[train]]
    scores = x[test] @ np.linalg.solve(gram, x[train].T @ (wanted - wanted.mean(0)))
    return float(np.mean((scores + wanted.mean(0)).argmax(1) == label[test]))


@pytest.mark.parametrize(("name", "scale", "one", "gains"), [
    ("mag", 0.01, "field rev-has_topic paper", (0.15, 0.08, 0.1)),
    ("donor", 0.02, "teacher rev-posted_by project", (0.1, 0.03, 0.03)),
    ("igb-het", 0.0006, "paper cites paper", (0.1, 0.08, 0.02)),
])
def test_accuracy_grows_with_features_then_one_relation_then_several(name, scale, one, gains):
    graph = generate(name, scale, seed=1)
    label = graph.node_arrays[graph.task.target]["label"]
    own = graph.node_arrays[graph.task.target]["feat"].astype(np.float64)
    around = {str(relation): x for relation, x in neighbourhoods(graph)}
    chance = np.bincount(label).max() / len(label)
    alone = accuracy(graph, [own])
    with_one = accuracy(graph, [own, around[one]])
    with_all = accuracy(graph, [own, *around.values()])
    assert alone > chance + gains[0]
    assert with_one > alone + gains[1]
    assert with_all > with_one + gains[2]
    assert with_all < 0.96


def test_freebase_can_be_learned_from_its_relations_alone():
    graph = generate("freebase", 0.003, seed=1)
    label = graph.node_arrays["book"]["label"]
    around = dict(neighbourhoods(graph))
    one = accuracy(graph, [around[Relation("book", "book-and-book", "book")]])
    assert one > np.bincount(label).max() / len(label) + 0.1
    assert accuracy(graph, list(around.values())) > one + 0.02


@pytest.mark.parametrize("name", ["mag", "donor", "mag240m"])
def test_files_hold_the_generated_graph(name, tmp_path):
    graph = small(name)
    root = write_files(name, SMALL[name], 7, tmp_path / "deep" / "graph")
    metadata = json.loads((root / "metadata.json").read_text())
    assert set(metadata) == {"name", "nodes", "edges", "task"}
    assert metadata["name"] == graph.name
    assert metadata["task"] == {"target": graph.task.target, "label": "label",
                                "num_classes": graph.task.num_classes}
    assert [(e["src"], e["etype"], e["dst"]) for e in metadata["edges"]] == list(graph.edges)
    for entry, edges in zip(metadata["edges"], graph.edges.values()):
        table = np.load(root / entry["files"][0])
        assert table.dtype in (np.int32, np.int64)
        assert np.array_equal(table, np.stack([edges.src, edges.dst]))
    assert {t: n["count"] for t, n in metadata["nodes"].items()} == graph.node_counts
    for ntype, node in metadata["nodes"].items():
        arrays = graph.node_arrays.get(ntype, {})
        assert set(node["arrays"]) == set(arrays)
        for array, file in node["arrays"].items():
            stored = np.load(root / file)
            assert stored.dtype == arrays[array].dtype
            assert np.array_equal(stored, arrays[array])
    assert [p.name for p in root.parent.iterdir()] == ["graph"]


def test_existing_output_is_left_alone(tmp_path):
    (tmp_path / "here").mkdir()
    with pytest.raises(InputError, match="here exists"):
        write_files("mag", 0.001, 0, tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


def test_nothing_is_left_of_a_failed_write(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write_edges", full)
    with pytest.raises(HetaError, match="no space left on the disk while writing"):
        write_files("mag", 0.001, 0, tmp_path / "graph")
    assert list(tmp_path.iterdir()) == []


def test_unknown_shape_names_the_shapes_and_the_nearest():
    with pytest.raises(InputError, match=r"'freebse' is unknown; shapes: mag, freebase, donor, "
                                         r"igb-het, mag240m; did you mean 'freebase'\?"):
        generate("freebse")
    with pytest.raises(InputError, match="shapes: mag"):
        shape_schema("zzz")


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), "1", True])
def test_wrong_scale(scale, tmp_path):
    for call in (lambda: generate("mag", scale), lambda: shape_schema("mag", scale),
                 lambda: write_files("mag", scale, 0, tmp_path / "out")):
        with pytest.raises(InputError, match="scale is .*; it must be a number above 0"):
            call()


def test_cohesion_keeps_edges_within_communities():
    """A class is a group of communities; small graphs have too few pairs for all edges."""
    def within(cohesion: float) -> float:
        graph = generate("mag", 0.002, 0, cohesion)
        assert graph.schema() == shape_schema("mag", 0.002)
        edges = graph.edges[Relation("paper", "cites", "paper")]
        label = graph.node_arrays["paper"]["label"]
        return float((label[edges.src] == label[edges.dst]).mean())

    assert within(0.0) < 0.25 < 0.5 < within(0.95)
    assert SHAPES["mag"].cohesive(0) == SHAPES["mag"]


def test_correlated_nodes_have_many_edges_in_all_their_relations():
    def alike(correlation: float) -> float:
        graph = generate("mag", 0.01, 0, 0, correlation)
        assert graph.schema() == shape_schema("mag", 0.01)
        degrees = [np.bincount(graph.edges[Relation("paper", name, to)].src,
                               minlength=graph.node_counts["paper"])
                   for name, to in (("has_topic", "field"), ("rev-writes", "author"))]
        return float(np.corrcoef(np.log1p(degrees))[0, 1])

    assert abs(alike(0)) < 0.05 < 0.6 < alike(0.9)
    assert same(generate("mag", 0.002, 0, 0, 0), generate("mag", 0.002))


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), "1", True])
@pytest.mark.parametrize("name", ["cohesion", "correlation"])
def test_wrong_shares(name, value):
    with pytest.raises(InputError, match=f"{name} is .*; it must be a number from 0 to 1"):
        generate("mag", 0.001, 0, **{name: value})


@pytest.mark.parametrize("seed", [-1, 0.5, "0"])
def test_wrong_seed(seed):
    with pytest.raises(InputError, match="seed is .*; it must be a whole number"):
        generate("mag", 0.001, seed)
