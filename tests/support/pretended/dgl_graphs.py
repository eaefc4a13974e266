"""DGL's graphs on the pretended device, and its kernels on their edges.

DGL's C++ knows the CPU alone here. So the index of a graph that is moved to the device is a copy
that says so, its kernels are given the numbers in memory, and what they return is on the device
again. As on a GPU, a graph on one device and rows on another are refused.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from dgl import DGLError, _sparse_ops, backend
from dgl import ndarray as nd
from dgl.heterograph_index import HeteroGraphIndex
from torch import Tensor

from tests.support.pretended import streams
from tests.support.pretended.counts import COUNTS
from tests.support.pretended.device import OnDevice, _host, _on_device

QUESTIONS = ("get_relation_graph", "asbits", "reverse", "formats", "edges", "in_edges", "out_edges",
             "find_edges", "in_degrees", "out_degrees", "edge_ids_all", "edge_ids_one",
             "predecessors", "successors", "has_nodes", "has_edges_between")
"""Methods of an index that give another one, or tensors of nodes and edges."""


def pretend() -> None:
    """Let graphs of this process move to the pretended device, and compute there."""
    of_index: Any = HeteroGraphIndex
    context, copy = of_index.ctx.fget, of_index.copy_to

    def copy_to(self: Any, to: Any) -> Any:
        copied = copy(self, nd.cpu())
        copied.pretended = to if to.device_type == nd.gpu(0).device_type else None
        return copied

    of_index.copy_to = copy_to
    of_index.ctx = property(lambda self: getattr(self, "pretended", None) or context(self))
    for name in QUESTIONS:
        setattr(of_index, name, _answered(getattr(of_index, name)))
    of_torch: Any = sys.modules["dgl.backend.pytorch.tensor"]  # its package has a function `tensor`
    to_array, from_array = of_torch.zerocopy_to_dgl_ndarray, of_torch.zerocopy_from_dgl_ndarray

    def to_dgl(tensor: Tensor) -> Any:
        if not isinstance(tensor, OnDevice):
            return to_array(tensor)
        tensor = tensor.contiguous()
        array = to_array(tensor.host)
        array.pretended = tensor
        return array

    def from_dgl(array: Any) -> Tensor:
        tensor: Tensor | None = getattr(array, "pretended", None)
        return from_array(array) if tensor is None else tensor

    of_torch.check_is_view = lambda tensor: None  # what the device's are of has no address
    for module in (backend, of_torch):
        module.zerocopy_to_dgl_ndarray, module.zerocopy_from_dgl_ndarray = to_dgl, from_dgl
    for name in [name for name in vars(_sparse_ops) if name.startswith("_CAPI_DGLKernel")]:
        setattr(_sparse_ops, name, _kernel(name, getattr(_sparse_ops, name)))


def _answered(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an index; of one on the device, its answers are there."""
    @functools.wraps(method)
    def answer(self: Any, *args: Any) -> Any:
        here = getattr(self, "pretended", None)
        if here is None:
            return method(self, *args)
        for given in args:
            if isinstance(given, Tensor) and not isinstance(given, OnDevice):
                COUNTS.problem("two devices", f"{method.__name__} of a graph on the device")
                raise DGLError("Expect argument to be on the device of the graph")
        found = method(self, *map(_host, args))
        if isinstance(found, HeteroGraphIndex):
            found.pretended = here
        return _on_device(found)
    return answer


def _kernel(name: str, call: Callable[..., None]) -> Callable[..., None]:
    """A kernel; those of two devices are refused."""
    def launch(graph: Any, *args: Any) -> None:
        tensors = [x.pretended for x in args if hasattr(x, "pretended")]
        others = [x for x in args if isinstance(x, nd.NDArray) and not hasattr(x, "pretended")
                  and any(x.shape)]
        on_device = getattr(graph, "pretended", None) is not None
        if (tensors and (others or not on_device)) or (others and on_device):
            COUNTS.problem("two devices", name)
            raise DGLError(f"Check failed: {name} of a graph and rows on two devices")
        call(graph, *args)
        if tensors:
            COUNTS.kernels[name] += 1
            hosts = [x.host for x in tensors]
            streams.use([], hosts, name)
    return launch
