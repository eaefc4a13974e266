"""Data that a script reads of a graph, compared with those of the graph that was partitioned.

Two runs of a script that read the same store agree on whatever is in it. So `dgl-heta prove` has
each of them read all data as the script does, and compares their checksums with those that
`partition_graph` took of the tensors on the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from dgl_heta.errors import HetaError
from dgl_heta.features.deferred import peek
from dgl_heta.graph.source import Given, as_numpy, part_tensor
from dgl_heta.store import Manifest
from dgl_heta.system.checksums import npy_sum
from dgl_heta.system.disk import row_starts


def check_as_given(graph: Any, manifest: Manifest, trainers: int) -> None:
    """Read a trainer's share of a DistGraph's arrays, and compare them with the graph's.

    Raises
    ------
    HetaError
        One has another dtype, shape or value than plain DGL's partitions would have, or is not
        there.
    """
    every = [(kind, name) for kind, known in manifest.given.items() for name in known]
    for kind, name in every[graph.rank()::trainers]:
        known, dtype = manifest.given[kind][name], np.dtype(manifest.held(kind)[name].dtype)
        data = (graph.nodes[kind] if isinstance(kind, str) else graph.edges[tuple(kind)]).data
        if fault := _unlike(data, known, dtype):
            raise HetaError(f"data '{known.name}' of '{kind}' {fault} in plain DGL's partitions of "
                            "the graph")


def _unlike(data: Any, known: Given, dtype: np.dtype) -> str:
    """Return how data that a script reads are unlike a tensor of the graph; "" if they are not.

    `dtype` is that of the array in the store.
    """
    if known.name not in data:
        return "are not there, but"
    tensor = data[known.name]
    wanted = part_tensor(np.empty(0, dtype), known).dtype
    if (tensor.dtype, tuple(tensor.shape)) != (wanted, known.shape):
        return (f"are read as {tensor.dtype} {list(tensor.shape)}, but are {wanted} "
                f"{list(known.shape)}")
    if npy_sum(dtype, known.shape, _pieces(tensor)) != known.sha256:
        return "are read with other values than they have"
    return ""


def _pieces(tensor: Any) -> Iterator[np.ndarray]:
    """Yield all rows of a DistTensor, some at a time: they need not fit in memory."""
    starts = row_starts(len(tensor), math.prod(tensor.shape[1:]) * tensor.dtype.itemsize)
    for low in starts:
        rows = peek(tensor[torch.arange(low, min(low + starts.step, len(tensor)))])
        yield as_numpy(rows.to(tensor.dtype))  # `dgl-heta prove --double` reads them in double
