"""A synthetic graph as a directory of files, for graphs that do not fit into memory."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import dtype_to_descr, write_array_header_1_0

from dgl_heta.errors import InputError
from dgl_heta.graph.datasets.synthetic.maker import Maker
from dgl_heta.graph.datasets.synthetic.published import scaled_shape
from dgl_heta.system.atomic_files import new_directory


def write_files(shape: str, scale: float, seed: int, out: str | Path) -> Path:
    """Write the graph of :func:`generate` as a directory of `.npy` files; return its path.

    The directory holds `metadata.json`, `nodes/TYPE/ARRAY.npy` and
    `edges/SRC__ETYPE__DST.npy` of shape (2, edges). Files are filled block by block: apart
    from the hidden communities (8 bytes per node) memory does not grow with the graph. The
    directory appears under its name only when it is complete.

    Raises
    ------
    InputError
        As :func:`generate`, or `out` exists.
    HetaError
        `out` cannot be written.
    """
    maker = Maker(scaled_shape(shape, scale), seed)
    out = Path(out)
    if out.exists() or out.is_symlink():
        raise InputError(f"{out} exists; name a directory that does not exist yet")
    with new_directory(out, overwrite=False, kind="metadata.json") as partial:
        metadata = {
            "name": f"synthetic-{shape}",
            "nodes": _write_nodes(maker, partial),
            "edges": _write_edges(maker, partial),
            "task": {"target": maker.shape.target, "num_classes": maker.shape.num_classes,
                     "label": "label"},
        }
        (partial / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n",
                                               encoding="utf-8")
    return out


def _write_nodes(maker: Maker, root: Path) -> dict[str, Any]:
    nodes: dict[str, Any] = {}
    for ntype, node in maker.shape.nodes.items():
        folder = f"nodes/{ntype}"
        files: dict[str, str] = {}
        if node.dim or ntype == maker.shape.target:
            (root / folder).mkdir(parents=True)
        if node.dim:
            files["feat"] = f"{folder}/feat.npy"
            with _NpyFile(root / files["feat"], (node.count, node.dim),
                          maker.shape.dtype) as feat:
                for start, block in maker.features(ntype):
                    feat.put(start * node.dim, block)
        if ntype == maker.shape.target:
            for name, array in maker.target_arrays().items():
                files[name] = f"{folder}/{name}.npy"
                np.save(root / files[name], array)
        nodes[ntype] = {"count": node.count, "arrays": files}
    return nodes


def _write_edges(maker: Maker, root: Path) -> list[dict[str, Any]]:
    (root / "edges").mkdir()
    entries = []
    for relation in maker.shape.relations:
        with ExitStack() as stack:
            tables = []
            for name in relation.relations():
                file = f"edges/{name.src}__{name.etype}__{name.dst}.npy"
                entries.append({"src": name.src, "etype": name.etype, "dst": name.dst,
                                "files": [file]})
                tables.append(stack.enter_context(_NpyFile(
                    root / file, (2, relation.edges), maker.id_dtype(relation))))
            for start, src, dst in maker.edges(relation):
                for table, (first, second) in zip(tables, ((src, dst), (dst, src))):
                    table.put(start, first)
                    table.put(relation.edges + start, second)
    return entries


class _NpyFile:
    """A `.npy` file that is written piece by piece, so that no page of it stays mapped."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.file = path.open("wb")
        write_array_header_1_0(self.file, {"descr": dtype_to_descr(self.dtype),
                                           "fortran_order": False, "shape": shape})
        self.start = self.file.tell()

    def put(self, position: int, values: np.ndarray) -> None:
        """Write `values` from flat element `position` on."""
        self.file.seek(self.start + position * self.dtype.itemsize)
        self.file.write(np.ascontiguousarray(values, self.dtype).data)

    def __enter__(self) -> _NpyFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
