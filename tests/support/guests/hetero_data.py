"""A reader of PyG's HeteroData: `torch.save(data, "graph.saved")`, read without unpickling."""

from __future__ import annotations

import zipfile

from dgl_heta import (
    EdgeArrays,
    GraphSource,
    InputError,
    Reader,
    Relation,
    Task,
    hookimpl,
    read_saved,
)

NAMES = {"x": "feat", "y": "label"}


class HeteroData(Reader):
    name = "hetero-data"
    description = "a HeteroData of PyTorch Geometric, saved by torch.save"
    options = {"target": "", "title": "hetero-data"}

    def matches(self, path):
        return path.suffix == ".saved" and zipfile.is_zipfile(path)

    def read(self, path, target, title):
        saved = read_saved(path)
        if getattr(saved, "kind", "") != "torch_geometric.data.hetero_data.HeteroData":
            raise InputError(f"{path} holds no HeteroData")
        nodes = {t: s.state["_mapping"] for t, s in saved.state["_node_store_dict"].items()}
        edges = {r: s.state["_mapping"] for r, s in saved.state["_edge_store_dict"].items()}
        arrays = {t: {NAMES.get(k, k): v for k, v in values.items() if k != "num_nodes"}
                  for t, values in nodes.items()}
        counts = {t: values["num_nodes"] if "num_nodes" in values else len(values["x"])
                  for t, values in nodes.items()}
        target = target or next((t for t in arrays if "train_mask" in arrays[t]), "")
        task = Task(target, int(arrays[target]["label"].max()) + 1) if target else None
        return GraphSource(
            title, counts,
            {Relation(*r): EdgeArrays(*values["edge_index"]) for r, values in edges.items()},
            arrays, task, {"format": "HeteroData", "path": str(path)},
            {Relation(*r): {"weight": values["edge_attr"]} for r, values in edges.items()
             if "edge_attr" in values})


@hookimpl
def dgl_heta_readers():
    return [HeteroData()]
