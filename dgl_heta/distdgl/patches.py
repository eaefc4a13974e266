"""Every name of DGL and PyTorch that dgl-heta replaces while it is enabled, in one table.

Each replacement hands over to the original unless a meta-partitioned graph is meant, so with
nothing of dgl-heta selected everything is plain DGL. :func:`remove` puts the originals back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from dgl_heta.errors import HetaError, InputError
from dgl_heta.system.patching import Patch


def _session() -> Any:
    from dgl_heta.distdgl.session import current

    return current()


def _partition_graph(original: Any) -> Any:
    def partition_graph(*args: Any, **kwargs: Any) -> Any:
        from dgl_heta.distdgl.activate import selected
        from dgl_heta.distdgl.partitions import partition

        settings, explicit = selected()
        return partition(original, settings, explicit, *args, **kwargs)
    return partition_graph


def _load_partition(original: Any) -> Any:
    def load_partition(part_config: str, part_id: int, load_feats: bool = True,
                       *args: Any, **kwargs: Any) -> Any:
        from dgl_heta.distdgl import partitions

        if not partitions.is_ours(part_config):
            return original(part_config, part_id, load_feats, *args, **kwargs)
        return _loaded(part_config, part_id, partitions.load_graph(part_config, part_id),
                       partitions.load_features(part_config, part_id) if load_feats else {})
    return load_partition


def _load_partition_on_server(original: Any) -> Any:
    def load_partition(part_config: str, part_id: int, load_feats: bool = True,
                       *args: Any, **kwargs: Any) -> Any:
        from dgl_heta.distdgl import partitions

        if not partitions.is_ours(part_config):
            return original(part_config, part_id, load_feats, *args, **kwargs)
        _serving.append(part_config)
        return _loaded(part_config, part_id, partitions.load_nothing(part_config, part_id),
                       partitions.load_features(part_config, part_id) if load_feats else {})
    return load_partition


_serving: list[str] = []


def _loaded(part_config: str, part_id: int, graph: Any, features: dict[str, Any]) -> Any:
    import dgl

    book, name, ntypes, etypes = dgl.distributed.load_partition_book(part_config, part_id)
    return graph, features, {}, book, name, list(ntypes), list(etypes)


def _load_partition_feats(original: Any) -> Any:
    def load_partition_feats(part_config: str, part_id: int, load_nodes: bool = True,
                             load_edges: bool = True) -> Any:
        from dgl_heta.distdgl import partitions

        if not partitions.is_ours(part_config):
            return original(part_config, part_id, load_nodes, load_edges)
        return (partitions.load_features(part_config, part_id) if load_nodes else None,
                {} if load_edges else None)
    return load_partition_feats


def _empty_shared_mem(original: Any) -> Any:
    def empty_shared_mem(name: str, is_create: bool, shape: Any, dtype: Any = "float32") -> Any:
        """Shared memory cannot be empty, but a part may own no node of a type."""
        if 0 not in shape:
            return original(name, is_create, shape, dtype)
        from dgl import ndarray

        return ndarray.empty(tuple(shape), dtype)
    return empty_shared_mem


def _graph_init(original: Any) -> Any:
    def __init__(self: Any, graph_name: str, gpb: Any = None, part_config: Any = None) -> None:
        from dgl_heta.distdgl.activate import open_graph

        original(self, graph_name, gpb, part_config)
        open_graph(self, part_config)
    return __init__


def _local_partition(original: Any) -> Any:
    def local_partition(self: Any) -> Any:
        session = getattr(self, "heta", None)
        if session is None:
            return original.fget(self)
        from dgl_heta.distdgl.partitions import load_graph

        if session.whole is None:
            session.whole = load_graph(session.part_config, session.part)
        return session.whole
    return property(local_partition, doc=original.__doc__)


def _refused_access(original: Any) -> Any:
    def access(g: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(g, "heta", None) is not None:
            raise HetaError(
                f"{original.__name__.removeprefix('_distributed_')} by DistDGL's servers cannot "
                "be used on a meta-partitioned graph, whose servers hold no edges: sample with "
                "DistNodeDataLoader, or load the graph with dgl.distributed.load_partition")
        return original(g, *args, **kwargs)
    return access


def _refused_request(original: Any) -> Any:
    def process_request(self: Any, server_state: Any) -> Any:
        if _serving:
            raise HetaError(f"{type(self).__name__} reached the server of the meta-partitioned "
                            f"graph {_serving[-1]}, which holds no edges: a trainer runs without "
                            "dgl-heta; start all processes by `dgl-heta launch` or `dgl-heta run`")
        return original(self, server_state)
    return process_request


def _tensor_getitem(original: Any) -> Any:
    def __getitem__(self: Any, idx: Any) -> Any:
        if not self._attach:
            from dgl_heta.distdgl.tensors import read

            found = read(_session(), self, idx, original)
            if found is not None:
                return found
        return original(self, idx)
    return __getitem__


def _tensor_setitem(original: Any) -> Any:
    def __setitem__(self: Any, idx: Any, val: Any) -> None:
        if not self._attach:
            from dgl_heta.distdgl.tensors import refuse_write

            refuse_write(_session(), self)
        original(self, idx, val)
    return __setitem__


def _loader_init(original: Any) -> Any:
    def __init__(self: Any, g: Any, nids: Any, graph_sampler: Any, device: Any = None,
                 **kwargs: Any) -> None:
        session = getattr(g, "heta", None)
        if session is None:
            original(self, g, nids, graph_sampler, device, **kwargs)
            return
        from dgl_heta.distdgl.activate import open_loader

        self.heta = open_loader(session, g, nids, graph_sampler, device, kwargs)
        self.device = "cpu"
    return __init__


def _loader_iter(original: Any) -> Any:
    def __iter__(self: Any) -> Any:
        loader = getattr(self, "heta", None)
        if loader is None:
            return original(self)
        loader.start()
        return self
    return __iter__


def _loader_next(original: Any) -> Any:
    def __next__(self: Any) -> Any:
        loader = getattr(self, "heta", None)
        return original(self) if loader is None else loader.next()
    return __next__


def _loader_del(original: Any) -> Any:
    def __del__(self: Any) -> None:
        if getattr(self, "heta", None) is None:
            original(self)
    return __del__


def _edge_loader_init(original: Any) -> Any:
    def __init__(self: Any, g: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(g, "heta", None) is not None:
            raise InputError("DistEdgeDataLoader cannot be used on a meta-partitioned graph yet; "
                             "train on nodes (DistNodeDataLoader), or partition the graph by a "
                             "method of DGL")
        original(self, g, *args, **kwargs)
    return __init__


def _hetero_forward(original: Any) -> Any:
    def forward(self: Any, g: Any, inputs: Any, mod_args: Any = None,
                mod_kwargs: Any = None) -> Any:
        from dgl_heta.distdgl import hetero
        from dgl_heta.distdgl.blocks import RafBlock

        if not isinstance(g, RafBlock):
            return original(self, g, inputs, mod_args, mod_kwargs)
        return hetero.forward(self, g, inputs, mod_args, mod_kwargs)
    return forward


def _faster(name: str) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        from dgl_heta.distdgl import message_passing

        return getattr(message_passing, name)(original)
    return make


def _embedding_init(original: Any) -> Any:
    def __init__(self: Any, num_embeddings: int, embedding_dim: int, name: Any = None,
                 init_func: Any = None, part_policy: Any = None) -> None:
        original(self, num_embeddings, embedding_dim, name, init_func, part_policy)
        from dgl_heta.distdgl.activate import open_embedding

        open_embedding(self)
    return __init__


def _embedding_call(original: Any) -> Any:
    def __call__(self: Any, idx: Any, device: Any = None) -> Any:
        import torch

        device = torch.device("cpu") if device is None else device
        if getattr(self, "heta", None) is None:
            return original(self, idx, device)
        from dgl_heta.distdgl import embedding

        return embedding.call(self, idx, device)
    return __call__


def _sparse_step(original: Any) -> Any:
    def step(self: Any) -> None:
        ours = [e for e in self._params if getattr(e, "heta", None) is not None]
        if not ours:
            original(self)
            return
        from dgl_heta.distdgl import embedding

        clean, others = self._clean_grad, [e for e in self._params if e not in ours]
        embedding.step(self, ours)
        if others:
            everything, self._params, self._clean_grad = self._params, others, clean
            try:
                original(self)
            finally:
                self._params = everything
    return step


plain_modules: weakref.WeakSet[Any] = weakref.WeakSet()
"""Modules that were wrapped while no meta-partitioned graph was open."""


def _parallel_init(original: Any) -> Any:
    def __init__(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        session = _session()
        if session is None:
            original(self, module, *args, **kwargs)
            plain_modules.add(self)
            return
        import torch

        from dgl_heta.distdgl.parallel import Parallel

        torch.nn.Module.__init__(self)
        self.module = module
        object.__setattr__(self, "heta", Parallel(session, module))
    return __init__


def _parallel_forward(original: Any) -> Any:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        parallel = self.__dict__.get("heta")
        if parallel is None:
            return original(self, *inputs, **kwargs)
        return parallel.forward(*inputs, **kwargs)
    return forward


def _parallel_train(original: Any) -> Any:
    def train(self: Any, mode: bool = True) -> Any:
        if self.__dict__.get("heta") is None:
            return original(self, mode)
        import torch

        return torch.nn.Module.train(self, mode)
    return train


def _parallel_no_sync(original: Any) -> Any:
    def no_sync(self: Any) -> Any:
        parallel = self.__dict__.get("heta")
        return original(self) if parallel is None else parallel.no_sync()
    return no_sync


def _store_read(original: Any) -> Any:
    def read(self: Any, domain: str, type_name: str, feature_name: str, ids: Any = None) -> Any:
        from dgl_heta.distdgl.feature_stores import cached

        store = cached(self, original)
        if store is None or ids is None:
            return original(self, domain, type_name, feature_name, ids)
        return store.read(domain, type_name, feature_name, ids)
    return read


def _store_update(original: Any) -> Any:
    def update(self: Any, domain: str, type_name: str, feature_name: str, value: Any,
               ids: Any = None) -> None:
        from dgl_heta.distdgl.feature_stores import written

        original(self, domain, type_name, feature_name, value, ids)
        written(self, (domain, type_name, feature_name))
    return update


_DIST = "dgl.distributed"


_STORE = "dgl.graphbolt.impl.basic_feature_store:BasicFeatureStore"


_DDP = "torch.nn.parallel.distributed:DistributedDataParallel"


_SERVICES = "dgl.distributed.graph_services"


def _both(names: tuple[str, ...], make: Callable[[Any], Any], why: str) -> Iterator[Patch]:
    for target in names:
        yield Patch(target, make, why)


PATCHES: tuple[Patch, ...] = (
    *_both((f"{_DIST}:partition_graph", f"{_DIST}.partition:partition_graph"), _partition_graph,
           "partition by the selected method"),
    *_both((f"{_DIST}:load_partition", f"{_DIST}.partition:load_partition"), _load_partition,
           "load a part from the relation store"),
    Patch(f"{_DIST}.dist_graph:load_partition", _load_partition_on_server,
          "servers of a meta-partitioned graph hold no edges"),
    *_both((f"{_DIST}:load_partition_feats", f"{_DIST}.partition:load_partition_feats",
            f"{_DIST}.dist_graph:load_partition_feats"), _load_partition_feats,
           "node data of a part from the relation store"),
    *_both((f"{_DIST}.kvstore:empty_shared_mem", f"{_DIST}.shared_mem_utils:empty_shared_mem"),
           _empty_shared_mem, "a part may own no node of a type"),
    Patch(f"{_DIST}.dist_graph:DistGraph.__init__", _graph_init, "open the store and the plan"),
    Patch(f"{_DIST}.dist_graph:DistGraph.local_partition", _local_partition,
          "this machine's relations"),
    *_both((f"{_SERVICES}:_distributed_access", f"{_SERVICES}:_distributed_edge_access",
            f"{_SERVICES}:_distributed_get_node_property"), _refused_access,
           "refuse sampling and queries by servers, which hold no edges"),
    *_both(tuple(f"{_SERVICES}:{name}.process_request" for name in (
        "SamplingRequest", "SamplingRequestEtype", "EdgesRequest", "InDegreeRequest",
        "OutDegreeRequest", "InSubgraphRequest")), _refused_request,
           "refuse them on the servers too"),
    Patch(f"{_DIST}.dist_tensor:DistTensor.__getitem__", _tensor_getitem,
          "node data from this machine's store"),
    Patch(f"{_DIST}.dist_tensor:DistTensor.__setitem__", _tensor_setitem,
          "refuse to write node data of the graph"),
    Patch("dgl.dataloading.dist_dataloader:DistNodeDataLoader.__init__", _loader_init,
          "sample by plan"),
    Patch("dgl.dataloading.dist_dataloader:DistNodeDataLoader.__iter__", _loader_iter,
          "sample by plan"),
    Patch("dgl.dataloading.dist_dataloader:DistNodeDataLoader.__next__", _loader_next,
          "sample by plan"),
    Patch("dgl.dataloading.dist_dataloader:DistNodeDataLoader.__del__", _loader_del,
          "sample by plan"),
    Patch("dgl.dataloading.dist_dataloader:DistEdgeDataLoader.__init__", _edge_loader_init,
          "refuse it"),
    Patch("dgl.nn.pytorch.hetero:HeteroGraphConv.forward", _hetero_forward,
          "merge relations over the group"),
    Patch("dgl.ops.spmm:gspmm_internal", _faster("spmm"), "our kernels on relations of RAF blocks"),
    Patch("dgl.ops.sddmm:gsddmm_internal", _faster("sddmm"),
          "our kernels on relations of RAF blocks"),
    Patch("dgl.ops.edge_softmax:edge_softmax_internal", _faster("softmax"),
          "our kernels on relations of RAF blocks"),
    Patch("dgl.distributed.nn.pytorch.sparse_emb:DistEmbedding.__init__", _embedding_init,
          "learnable features"),
    Patch("dgl.distributed.nn.pytorch.sparse_emb:DistEmbedding.__call__", _embedding_call,
          "learnable features"),
    Patch("dgl.distributed.optim.pytorch.sparse_optim:DistSparseGradOptimizer.step", _sparse_step,
          "learnable features"),
    Patch(f"{_STORE}.read", _store_read, "the feature cache of GraphBolt scripts"),
    Patch(f"{_STORE}.update", _store_update, "what is written is not cached"),
    Patch(f"{_DDP}.__init__", _parallel_init, "average gradients after RAF's backward pass"),
    Patch(f"{_DDP}.forward", _parallel_forward, "check that all reductions were done"),
    Patch(f"{_DDP}.train", _parallel_train, "there is no reducer"),
    Patch(f"{_DDP}.no_sync", _parallel_no_sync, "there is no reducer"),
)
