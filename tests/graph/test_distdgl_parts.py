"""DistDGL's parts as a graph again: the graph that was partitioned, whoever partitioned it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgl_heta.cli import main
from dgl_heta.errors import InputError
from dgl_heta.graph.readers import detect, dgl_parts, open_source, read_parts
from dgl_heta.partition.backends.dgl_methods import to_dgl_graph
from dgl_heta.partition.directory import open_partition
from tests.support.graphs import academic

os.environ.setdefault("DGLBACKEND", "pytorch")
dgl = pytest.importorskip("dgl")
torch = pytest.importorskip("torch")

PARTS = 3


def graph() -> Any:
    """Several relations, parallel ones among them; edge data; ids that a part cannot keep."""
    made = to_dgl_graph(academic(papers=240))
    for etype in made.canonical_etypes:
        made.edges[etype].data["weight"] = torch.rand(made.num_edges(etype))
    return made


def homogeneous() -> Any:
    made = dgl.rand_graph(60, 300)
    made.ndata["feat"], made.ndata["label"] = torch.rand(60, 4), torch.arange(60) % 3
    made.ndata["train_mask"] = torch.arange(60) < 20
    return made


def partitioned(made: Any, out: Path, method: str = "random", parts: int = PARTS) -> Any:
    dgl.seed(1)
    return dgl.distributed.partition_graph(made, "g", parts, str(out), num_hops=1,
                                           part_method=method, return_mapping=True)


def keep(mapping: Any, out: Path) -> None:
    """As GraphStorm keeps what `return_mapping` returned."""
    for name, ids in zip(("node_mapping.pt", "edge_mapping.pt"), mapping):
        torch.save(ids, out / name)


def keep_by_part(mapping: Any, out: Path) -> None:
    """As ParMETIS's pipeline keeps original ids: a file in each part, and its own name."""
    config = json.loads((out / "g.json").read_text())
    for name, key, ids in (("orig_nids.dgl", "node_map", mapping[0]),
                           ("orig_eids.dgl", "edge_map", mapping[1])):
        labels = {k: k if isinstance(k, str) else ":".join(k) for k in ids}
        sizes = {k: [high - low for low, high in config[key][label]]
                 for k, label in labels.items()}
        for part in range(config["num_parts"]):
            dgl.data.utils.save_tensors(str(out / f"part{part}" / name), {
                labels[k]: ids[k].split(sizes[k])[part].contiguous() for k in ids})
    (out / "g.json").rename(out / "metadata.json")


def check_same(source: Any, made: Any) -> None:
    """All nodes and edges with their ids, and the data of both."""
    assert source.node_counts == {t: made.num_nodes(t) for t in made.ntypes}
    assert [tuple(r) for r in source.edges] == list(made.canonical_etypes)
    for relation, edges in source.edges.items():
        (src, dst), = edges.chunks(1 << 20)
        wanted = made.edges(etype=tuple(relation), order="eid")
        np.testing.assert_array_equal(src, wanted[0].numpy())
        np.testing.assert_array_equal(dst, wanted[1].numpy())
        for name, data in made.edges[tuple(relation)].data.items():
            np.testing.assert_array_equal(source.edge_arrays[relation][name], data.numpy())
    for ntype in made.ntypes:
        for name, data in made.nodes[ntype].data.items():
            np.testing.assert_array_equal(source.node_arrays[ntype][name], data.numpy())


@pytest.mark.parametrize(("method", "parts", "kept"), [
    ("random", PARTS, keep), ("metis", 2, keep_by_part), ("metis", 1, keep)])
def test_parts_are_the_graph_with_its_original_ids(tmp_path, method, parts, kept):
    made = graph()
    kept(partitioned(made, tmp_path, method, parts), tmp_path)
    assert detect(tmp_path) == "distdgl"
    source = open_source(tmp_path)
    check_same(source, made)
    assert (source.name, source.task.target) == ("g", "paper")
    assert sum("the original ones" in note for note in source.info["notes"]) == 2


def test_parts_of_a_homogeneous_graph(tmp_path):
    made = homogeneous()
    keep(partitioned(made, tmp_path), tmp_path)
    check_same(read_parts(tmp_path / "g.json"), made)


@pytest.mark.parametrize("ids", ["auto", "parts"])
def test_without_original_ids_the_parts_number_nodes_and_edges(tmp_path, ids):
    made = graph()
    for ntype in made.ntypes:
        made.nodes[ntype].data["orig"] = made.nodes(ntype)
    mapping = partitioned(made, tmp_path)
    if ids == "parts":
        keep(mapping, tmp_path)
    source = open_source(tmp_path / "g.json", ids=ids)
    for ntype, original in mapping[0].items():
        np.testing.assert_array_equal(source.node_arrays[ntype]["orig"], original.numpy())
    for relation, edges in source.edges.items():
        (src, dst), = edges.chunks(1 << 20)
        wanted = made.find_edges(mapping[1][tuple(relation)], etype=tuple(relation))
        for side, ntype, end in ((src, relation.src, 0), (dst, relation.dst, 1)):
            np.testing.assert_array_equal(source.node_arrays[ntype]["orig"][side],
                                          wanted[end].numpy())
    assert any("those of the parts" in note for note in source.info["notes"])


def test_a_part_config_is_partitioned_by_the_command(tmp_path, monkeypatch, capsys):
    made = graph()
    keep(partitioned(made, tmp_path / "parts"), tmp_path / "parts")
    monkeypatch.setattr(sys, "argv", [
        "dgl-heta", "partition", str(tmp_path / "parts/g.json"), "--out", str(tmp_path / "out"),
        "--parts", "2"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0, capsys.readouterr().err
    store, plan = open_partition(tmp_path / "out", verify=True)
    assert (plan.num_parts, plan.targets, store.manifest.name) == (2, ("paper",), "g")
    np.testing.assert_array_equal(store.array("paper", "feat"),
                                  made.nodes["paper"].data["feat"].numpy())


# --- what is wrong ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("parts")
    keep(partitioned(graph(), out), out)
    return out


def edited(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def edit(out: Path) -> None:
        config = json.loads((out / "g.json").read_text())
        change(config)
        (out / "g.json").write_text(json.dumps(config))
    return edit


def graph_of(out: Path, change: Callable[[Any], None]) -> None:
    file = str(out / "part1/graph.dgl")
    (made,), _ = dgl.load_graphs(file)
    change(made)
    dgl.save_graphs(file, [made])


def tensors(out: Path, change: Callable[[Any], None]) -> None:
    file = str(out / "part1/node_feat.dgl")
    loaded = dgl.data.utils.load_tensors(file)
    change(loaded)
    dgl.data.utils.save_tensors(file, loaded)


def twice(made: Any) -> None:
    """Two owned edges get one number."""
    inner = made.edata["inner_edge"].nonzero()[:, 0]
    made.edata[dgl.EID][inner[0]] = made.edata[dgl.EID][inner[1]]


def mapping(out: Path) -> None:
    ids = torch.load(out / "node_mapping.pt")
    ids["paper"][0] = ids["paper"][1]
    torch.save(ids, out / "node_mapping.pt")


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "short graph": (lambda o: (o / "part1/graph.dgl").write_bytes(
        (o / "part1/graph.dgl").read_bytes()[:900]), "part1/graph.dgl cannot be read"),
    "no graph": (lambda o: (o / "part1/graph.dgl").unlink(), "there is no file .*part1/graph.dgl"),
    "text for arrays": (lambda o: (o / "part0/node_feat.dgl").write_text("text"),
                        "part0/node_feat.dgl cannot be read"),
    "ranges": (edited(lambda c: c["node_map"]["paper"][1].__setitem__(0, 3)),
               "ranges of nodes do not follow"),
    "no ranges": (edited(lambda c: c["node_map"].__setitem__("paper", ["a.npy"])), "must have a r"),
    "parts": (edited(lambda c: c.__setitem__("num_parts", 2)), "must have a range of ids"),
    "endless parts": (edited(lambda c: c.__setitem__("num_parts", float("inf"))),
                      "not as DGL writes it: TypeError.'num_parts is"),
    "half a part": (edited(lambda c: c.__setitem__("num_parts", 3.5)), "num_parts is"),
    "numbered types": (edited(lambda c: c.__setitem__("ntypes", [7])), "not as DGL writes it: Ind"),
    "types": (edited(lambda c: c["etypes"].__setitem__("a:b", 9)), "not as DGL writes it"),
    "no type": (edited(lambda c: c.pop("ntypes")), "not as DGL writes it: KeyError"),
    "graphbolt": (edited(lambda c: [c[f"part-{i}"].__setitem__(
        "part_graph_graphbolt", c[f"part-{i}"].pop("part_graph")) for i in range(PARTS)]),
        "GraphBolt's form alone, which is a pickle"),
    "another part": (lambda o: shutil.copy(o / "part0/graph.dgl", o / "part1/graph.dgl"),
                     r"part 1 of .* is damaged: the nodes that it owns are not those"),
    "numbers": (lambda o: graph_of(o, twice), "the edges that it owns are not those"),
    "fields": (lambda o: graph_of(o, lambda g: g.edata.pop("inner_edge")), "no inner_edge"),
    "ends": (lambda o: graph_of(o, lambda g: g.ndata[dgl.NID].__setitem__(
        slice(None), g.ndata[dgl.NID].flip(0))), "joins other node types|that it owns are not"),
    "rows": (lambda o: tensors(o, lambda t: t.__setitem__("paper/feat", t["paper/feat"][1:].clone()
                                                          )), "rows 'paper/feat'; the part has"),
    "array": (lambda o: tensors(o, lambda t: t.pop("paper/feat")), "'paper/feat' is not in all"),
    "mapping": (mapping, "node_mapping.pt has no original ids of 'paper' that are each of 0"),
    "pickle": (lambda o: torch.save({"paper": os.getcwd}, o / "node_mapping.pt"),
               "node_mapping.pt")}


@pytest.mark.parametrize("name", WRONG)
def test_damaged_parts_are_one_error(parts, tmp_path, name, monkeypatch):
    if name not in ("short graph", "no graph", "text for arrays"):
        # DGL can read these files; that another process reads them first takes seconds each.
        monkeypatch.setattr(dgl_parts, "try_files", lambda *files, **more: None)
    shutil.copytree(parts, tmp_path / "p")
    damage, message = WRONG[name]
    damage(tmp_path / "p")
    with pytest.raises(InputError, match=message) as found:
        read_parts(tmp_path / "p/g.json")
    assert "\n" not in str(found.value)


def test_original_ids_that_are_asked_for_must_be_there(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(dgl_parts, "try_files", lambda *files, **more: None)
    shutil.copytree(parts, tmp_path / "p")
    (tmp_path / "p/edge_mapping.pt").unlink()
    with pytest.raises(InputError, match=r"ids of edges: neither edge_mapping\.pt.*orig_e"):
        read_parts(tmp_path / "p", ids="original")
    with pytest.raises(InputError, match="ids is 'all'"):
        read_parts(tmp_path / "p", ids="all")
