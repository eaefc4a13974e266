"""Large published graphs, in miniatures of the files that are downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dgl_heta.errors import InputError
from dgl_heta.features.static import StaticFeatures
from dgl_heta.graph.readers import torch_file
from dgl_heta.graph.schema import Relation
from dgl_heta.hooks.manager import plugins
from dgl_heta.partition.graph_input import open_input
from dgl_heta.store import Store, write_store

PAPERS, RNG = 10, np.random.default_rng(0)


def save(path: Path, array: np.ndarray, header: bool = True) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    if header:
        np.save(path, array)
    else:
        array.tofile(path)
    return array


def pairs(sources: int, destinations: int, count: int = 12) -> np.ndarray:
    return np.stack([RNG.integers(0, sources, count), RNG.integers(0, destinations, count)])


@pytest.fixture
def mag240m(tmp_path: Path) -> Path:
    root = tmp_path / "mag240m_kddcup2021"
    label = np.arange(PAPERS, dtype=np.float32) % 3
    label[6:] = np.nan
    save(root / "processed/paper/node_feat.npy", RNG.random((PAPERS, 8)).astype(np.float16))
    save(root / "processed/paper/node_label.npy", label)
    save(root / "processed/paper/node_year.npy", np.full(PAPERS, 2019))
    for name, src, dst in (("author___affiliated_with___institution", 5, 2),
                           ("author___writes___paper", 5, PAPERS),
                           ("paper___cites___paper", PAPERS, PAPERS)):
        save(root / f"processed/{name}/edge_index.npy", pairs(src, dst))
    torch.save({"paper": PAPERS, "author": 5, "institution": 2, "num_classes": 3},
               root / "meta.pt")
    torch.save({"train": np.arange(4), "valid": np.arange(4, 6), "test": np.arange(6, 8)},
               root / "split_dict.pt")
    return root


def test_mag240m_is_read_with_its_features_in_half_precision(mag240m: Path, tmp_path: Path
                                                             ) -> None:
    source = open_input(str(mag240m), plugins()).source
    assert source is not None
    assert source.node_counts == {"paper": PAPERS, "author": 5, "institution": 2}
    writes = np.load(mag240m / "processed/author___writes___paper/edge_index.npy")
    (src, dst), = source.edges[Relation("author", "writes", "paper")].chunks(100)
    np.testing.assert_array_equal((src, dst), writes)
    arrays = source.node_arrays["paper"]
    assert arrays["label"].tolist() == [0, 1, 2, 0, 1, 2, -1, -1, -1, -1]
    assert [int(arrays[f"{m}_mask"].sum()) for m in ("train", "val", "test")] == [4, 2, 0]
    write_store(source, tmp_path / "store")
    stored = Store(tmp_path / "store").array("paper", "feat")
    assert stored.dtype == np.float16
    np.testing.assert_array_equal(stored, np.load(mag240m / "processed/paper/node_feat.npy"))


def igb(root: Path, header: bool = True, full: bool = False) -> Path:
    """A miniature: of the sizes tiny to medium, or with the further types of large and full."""
    folder, width = root / "processed", 1024
    for ntype, count in (("paper", PAPERS), ("author", 4), ("institute", 2), ("fos", 3),
                         *((("journal", 2), ("conference", 2)) if full else ())):
        save(folder / ntype / "node_feat.npy", RNG.random((count, width), np.float32), header)
    for classes, name in ((19, "19"), (2983, "2K")):
        save(folder / f"paper/node_label_{name}.npy",
             (np.arange(PAPERS) % classes).astype(np.float32), header)
    for name, src, dst in (("paper__cites__paper", PAPERS, PAPERS),
                           ("paper__written_by__author", PAPERS, 4),
                           ("author__affiliated_to__institute", 4, 2),
                           ("paper__topic__fos", PAPERS, 3),
                           *((("paper__published__journal", PAPERS, 2),
                              ("paper__venue__conference", PAPERS, 2)) if full else ())):
        save(folder / name / "edge_index.npy", pairs(src, dst).T.copy())
    return root


@pytest.mark.parametrize("header", [True, False], ids=["npy", "raw, as of large and full"])
def test_igb_het_is_read_with_or_without_headers(tmp_path: Path, header: bool) -> None:
    root = igb(tmp_path, header)
    source = open_input(str(root), plugins()).source
    assert source is not None
    assert source.node_counts == {"author": 4, "fos": 3, "institute": 2, "paper": PAPERS}
    assert set(map(str, source.edges)) == {str(Relation(*r)) for r in (
        ("paper", "cites", "paper"), ("paper", "written_by", "author"),
        ("author", "affiliated_to", "institute"), ("paper", "topic", "fos"))}
    arrays = source.node_arrays["paper"]
    assert arrays["feat"].shape == (PAPERS, 1024)
    assert [np.flatnonzero(arrays[f"{m}_mask"]).tolist() for m in ("train", "val", "test")] == [
        [0, 1, 2, 3, 4, 5], [6, 7], [8, 9]]
    assert source.task is not None
    assert source.task.num_classes == 2983


def test_mlperfs_files_beside_it_give_half_precision_and_the_split(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`node_feat_fp16.pt` is read where it lies, however large."""
    monkeypatch.setattr(torch_file, "_MAPPED", 1)
    folder = igb(tmp_path) / "processed"
    half = torch.rand(PAPERS, 1024).half()
    torch.save(half, folder / "paper/node_feat_fp16.pt")
    torch.save(torch.tensor([9, 0, 3]), folder / "train_idx.pt")
    torch.save(torch.tensor([1]), folder / "val_idx.pt")
    source = open_input(str(folder), plugins()).source
    assert source is not None
    arrays = source.node_arrays["paper"]
    assert arrays["feat"].dtype == np.float16
    np.testing.assert_array_equal(arrays["feat"], half.numpy())
    assert np.flatnonzero(arrays["train_mask"]).tolist() == [0, 3, 9]
    assert np.flatnonzero(arrays["test_mask"]).tolist() == [2, 4, 5, 6, 7, 8]
    write_store(source, tmp_path / "store")
    assert Store(tmp_path / "store").array("paper", "feat").dtype == np.float16


def test_edges_can_be_those_of_mlperfs_reference(tmp_path: Path) -> None:
    source = open_input(f"{igb(tmp_path, full=True)}:mlperf=true", plugins()).source
    assert source is not None
    assert len(source.edges) == 11
    there = np.load(tmp_path / "processed/paper__cites__paper/edge_index.npy")
    there = there[there[:, 0] != there[:, 1]]
    own = np.repeat(np.arange(PAPERS), 2)
    wanted = sorted([*map(tuple, there), *map(tuple, there[:, ::-1]), *zip(own, own)])
    cites = source.edges[Relation("paper", "cites", "paper")]
    found = [pair for src, dst in cites.chunks(3) for pair in zip(src, dst)]
    assert sorted(found) == wanted
    assert cites.num_edges == len(wanted)
    (src, dst), = source.edges[Relation("journal", "rev-published", "paper")].chunks(99)
    np.testing.assert_array_equal(
        np.stack([dst, src], 1), np.load(tmp_path / "processed/paper__published__journal"
                                         "/edge_index.npy"))


def test_mlperfs_recipe_trains_on_a_miniature_from_half_precision(
        tmp_path: Path, heta: Callable[..., Any]) -> None:
    """docs/mlperf.md, with features that are float16 in the files, the store and in memory."""
    folder = igb(tmp_path / "igbh", header=False, full=True) / "processed"
    for file in folder.glob("*/node_feat.npy"):
        rows = np.fromfile(file, np.float32).reshape(-1, 1024)
        torch.save(torch.from_numpy(rows).half(), file.with_name("node_feat_fp16.pt"))
    torch.save(torch.arange(6), folder / "train_idx.pt")
    torch.save(torch.arange(6, 8), folder / "val_idx.pt")
    parts, recipe = tmp_path / "parts", Path(__file__).parents[3] / "docs/mlperf-rgat.toml"
    done = heta("partition", f"{folder.parent}:mlperf=true", "--parts", 2, "--hops", 3, "--out",
                parts)
    assert done.status == 0, done.err
    store = Store(parts / "store")
    assert {t: store.array(t, "feat").dtype for t in store.manifest.node_counts} == dict.fromkeys(
        ("author", "conference", "fos", "institute", "journal", "paper"), np.float16)
    features = StaticFeatures(store, ("paper",), torch.float32, torch.device("cpu"))
    assert features.sources["paper"].dtype == np.float16  # in memory; decoded when they are read
    assert features.read({"paper": np.arange(2)})["paper"].dtype == torch.float32
    done = heta("train", parts, "--config", recipe, "--set", "run.prove=off",
                "--run-dir", tmp_path / "run")
    assert done.status == 0, done.err
    epochs = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()
              if '"epoch"' in line]
    losses = [one["loss"] for one in epochs if one["event"] == "epoch"]
    assert len(losses) == 2
    assert losses[1] < losses[0]


def hgb(root: Path, several: bool = False) -> Path:
    root.mkdir()
    (root / "node.dat").write_text("".join(
        f"{i}\tbook {i}\t0\n" for i in range(6)) + "".join(
        f"{i}\tfilm {i}\t1\t{i},0.5\n" for i in range(6, 9)))
    (root / "link.dat").write_text("0\t6\t0\t1.0\n5\t8\t0\t1.0\n1\t2\t1\t1.0\n")
    (root / "info.dat").write_text('{"node.dat": {"node type": {"0": "BOOK", "1": "FILM"}}, '
                                   '"link.dat": {"link type": {"0": {"meaning": "about"}}}}')
    (root / "label.dat").write_text("0\ta\t0\t2\n1\tb\t0\t0" + ",1" * several + "\n3\tc\t0\t1\n"
                                    "5\td\t0\t1\n")
    (root / "label.dat.test").write_text("2\te\t0\t1\n")
    return root


def test_hgbs_text_files_are_a_graph(tmp_path: Path) -> None:
    source = open_input(str(hgb(tmp_path / "Freebase")), plugins()).source
    assert source is not None
    assert source.node_counts == {"BOOK": 6, "FILM": 3}
    found = {str(r): [x.tolist() for x in next(e.chunks(9))] for r, e in source.edges.items()}
    assert found == {str(Relation("BOOK", "about", "FILM")): [[0, 5], [0, 2]],
                     str(Relation("BOOK", "link-1", "BOOK")): [[1], [2]]}
    assert source.node_arrays["FILM"]["feat"].tolist() == [[6, 0.5], [7, 0.5], [8, 0.5]]
    arrays = source.node_arrays["BOOK"]
    assert arrays["label"].tolist() == [2, 0, 1, 1, -1, 1]
    assert int(arrays["val_mask"].sum()) == 1
    assert (arrays["train_mask"] | arrays["val_mask"]).tolist() == [
        True, True, False, True, False, True]
    assert np.flatnonzero(arrays["test_mask"]).tolist() == [2]


def test_nodes_with_several_classes_make_it_multilabel(tmp_path: Path) -> None:
    source = open_input(str(hgb(tmp_path / "IMDB", several=True)), plugins()).source
    assert source is not None
    assert source.task is not None
    assert source.task.kind == "multilabel"
    assert source.node_arrays["BOOK"]["label"][1].tolist() == [1, 1, 0]


def test_what_is_wrong_is_named(mag240m: Path, tmp_path: Path) -> None:
    save(mag240m / "processed/paper/node_feat.npy", np.zeros((3, 8), np.float16))
    with pytest.raises(InputError, match=r"node_feat.npy has shape \(3, 8\) for 10 papers"):
        open_input(str(mag240m), plugins())
    root = igb(tmp_path / "igb")
    (root / "processed/fos/node_feat.npy").unlink()
    with pytest.raises(InputError, match="edges of .*topic.* but no fos/node_feat.npy"):
        open_input(str(root), plugins())
    text = hgb(tmp_path / "hgb")
    (text / "link.dat").write_text("0\t6\t0\t1.0\n0\tx\t0\t1.0\n")
    with pytest.raises(InputError, match="link.dat, line 2: .*'x'"):
        open_input(str(text), plugins())
    (text / "link.dat").write_text("0\t99\t0\t1.0\n")
    with pytest.raises(InputError, match="name nodes that node.dat does not have"):
        open_input(str(text), plugins())
