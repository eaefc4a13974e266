"""HeteroData of PyG: in memory, as its dict, and saved, of which nothing is run.

torch_geometric is not installed here. What stands for it pickles as version 2.8.1 of it does, whose
files were read by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from dgl_heta import read_hetero_data
from dgl_heta.errors import InputError
from dgl_heta.graph.readers import detect, open_source
from dgl_heta.graph.schema import Relation
from tests.support.hetero_data import HeteroData, hetero_data, saved_classes

WRITES = Relation("author", "writes", "paper")


@pytest.mark.parametrize("form", ["memory", "dict", "saved", "saved dict", "data set"])
def test_all_forms_give_the_same_graph(tmp_path: Path, form: str) -> None:
    data, file = hetero_data(), tmp_path / "mag.pt"
    if form in ("memory", "dict"):
        source = read_hetero_data(data if form == "memory" else data.to_dict(), "mag")
    else:
        with saved_classes():
            torch.save({"saved": data, "saved dict": data.to_dict(),
                        "data set": (data.to_dict(), None, HeteroData)}[form], file)
        assert detect(file) == "pyg"
        source = open_source(file)
    assert source.name == "mag"
    assert source.node_counts == {"paper": 60, "author": 20}
    paper = source.node_arrays["paper"]
    assert np.array_equal(paper["feat"], data["paper"]["x"].numpy())
    assert np.array_equal(paper["label"], data["paper"]["y"].numpy())
    assert paper["train_mask"].dtype == np.bool_
    src, dst = next(source.edges[WRITES].chunks(1000))
    assert np.array_equal(np.stack([src, dst]), data[tuple(WRITES)]["edge_index"].numpy())
    assert source.edge_arrays[WRITES]["edge_attr"].shape == (200, 2)
    assert source.task is not None
    assert (source.task.target, source.task.num_classes) == ("paper", 3)
    assert source.info["not kept"] == ["title of paper"]


class Runs:
    """What would write a file if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def test_a_file_that_would_run_code_does_not(tmp_path: Path) -> None:
    data = hetero_data().to_dict()
    data["paper"]["evil"] = Runs(tmp_path / "ran")
    torch.save(data, tmp_path / "mag.pt")
    assert "evil of paper" in open_source(tmp_path / "mag.pt").info["not kept"]
    torch.save(Runs(tmp_path / "ran"), tmp_path / "other.pt")
    with pytest.raises(InputError, match=r"holds '.*open', no HeteroData; save one by torch\.save"):
        open_source(tmp_path / "other.pt")
    assert not (tmp_path / "ran").exists()


def without(store: Any, key: str) -> None:
    del store[key]


@pytest.mark.parametrize(("change", "message"), [
    (lambda d: without(d["author"], "num_nodes"), r"'author' has no num_nodes, x or y"),
    (lambda d: without(d[tuple(WRITES)], "edge_index"), "no edge_index, but edge_attr"),
    (lambda d: d[tuple(WRITES)].update(edge_index=torch.zeros(3, 2)), r"shape \(3, 2\)"),
    (lambda d: d["paper"].update(x=torch.zeros(60, 2).to_sparse()), "x of 'paper' is no dense"),
    (lambda d: d["paper"].update(train_mask=torch.ones(7, dtype=torch.bool)), "train_mask.*paper"),
    (lambda d: d["paper"].update(label=torch.ones(60)), "y and label; leave one out"),
    (lambda d: d.update({3: {}}), "3 is neither a node type nor an edge type"),
    (lambda d: without(d, tuple(WRITES)), "no edge types"),
])
def test_what_does_not_fit_is_named(change: Any, message: str) -> None:
    data = hetero_data().to_dict()
    change(data)
    with pytest.raises(InputError, match=message):
        read_hetero_data(data, "mag")


def test_what_is_no_hetero_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no HeteroData of torch_geometric"):
        read_hetero_data(ModuleType("x"), "mag")
    torch.save(({"a": {}}, {"a": {"x": torch.arange(3)}}), tmp_path / "two.pt")
    with pytest.raises(InputError, match="several graphs"):
        open_source(tmp_path / "two.pt")
    assert "torch_geometric" not in sys.modules
