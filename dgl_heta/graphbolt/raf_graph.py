"""The graph of a GraphBolt data set, with a meta-partition in its place (`partition.graphbolt`).

Every rank of torchrun opens the partition and samples its part's relations from the store; of the
data set's own graph its numbers stay. It was loaded to be compared with the partition.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch.distributed as dist
from dgl import graphbolt as gb

from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import Session, current, use_session
from dgl_heta.distdgl.state import selected
from dgl_heta.distdgl.training.parallel import check_no_plain_module
from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.hooks.manager import Plugins, plugins
from dgl_heta.partition.directory import is_part_config, is_partition, open_partition
from dgl_heta.settings import Settings
from dgl_heta.store.structure import copied

_RELEASE = "2.1.0"
_OTHER_WAY = ("leave partition.graphbolt out of the settings to sample the whole graph, by plain "
              "GraphBolt")


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process, and how many there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class GraphBoltSession(Session):
    """A meta-partitioned graph in one rank of torchrun; consecutive ranks have a part.

    Raises
    ------
    InputError
        The processes cannot be shared out over the parts, or as :class:`Session`.
    """

    def __init__(self, part_config: str, parts: int, settings: Settings, loaded: Plugins) -> None:
        self.ranked = rank, world = rank_and_size()
        if world % parts:
            raise InputError(
                f"the partition {part_config} has {parts} parts, but there are {world} processes; "
                f"start a multiple of {parts} (torchrun --nproc_per_node={parts}); processes that "
                "a script starts itself must load the data set after init_process_group")
        self._each = world // parts
        super().__init__(part_config, rank // self._each, settings, loaded)
        self.order.wrapped_only = True

    def _verifies(self) -> bool:
        # On one host several ranks have different parts: the first rank of each part reads it.
        local = int(os.environ.get("LOCAL_RANK", "0"))
        return local == 0 or self.ranked[0] % self._each == 0

    def _count_trainers(self) -> int:
        (rank, size), (now, count) = self.ranked, rank_and_size()
        if (rank, size) != (now, count):
            raise InputError(f"the data set was loaded as rank {rank} of {size}, and now this is "
                             f"rank {now} of {count}; start with torchrun, or load the data set "
                             "after init_process_group")
        return size


class RafGraph(gb.SamplingGraph):  # type: ignore[misc]
    """Stands for a data set's graph: its numbers, and a partition to sample from.

    It has the types, ids and numbers of nodes and edges that the data set's graph has. What reads
    edges is refused by name. `to` and `pin_memory_` do nothing: sampling is on the CPU.

    Attributes
    ----------
    session : of the partition.
    relations : relations by the numbers that the data set's graph gives them.
    """

    def __init__(self, session: GraphBoltSession, graph: Any) -> None:
        super().__init__()
        self.session = session
        self.node_type_to_id, self.edge_type_to_id = graph.node_type_to_id, graph.edge_type_to_id
        self.node_type_offset = graph.node_type_offset
        self._nodes, self._edges = dict(graph.num_nodes), dict(graph.num_edges)
        names = sorted(self.edge_type_to_id, key=self.edge_type_to_id.__getitem__)
        self.relations = [_relation(name) for name in names]

    def __repr__(self) -> str:
        return (f"RafGraph(part {self.session.part} of {self.session.plan.num_parts}, "
                f"num_nodes={self._nodes}, num_edges={self._edges})")

    @property
    def num_nodes(self) -> dict[str, int]:
        return dict(self._nodes)

    @property
    def num_edges(self) -> dict[str, int]:
        return dict(self._edges)

    @property
    def total_num_nodes(self) -> int:
        return sum(self._nodes.values())

    @property
    def total_num_edges(self) -> int:
        return sum(self._edges.values())

    def sample_neighbors(self, *args: Any, **kwargs: Any) -> Any:
        """Raise InputError: a part samples all layers at once, by `datapipe.sample_neighbor`."""
        refuse("edges of the data set's graph", reads="sample_neighbors")

    def to(self, device: Any) -> RafGraph:
        return self

    def pin_memory_(self) -> RafGraph:
        return self

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(gb.FusedCSCSamplingGraph, name):
            refuse("edges of the data set's graph", reads=name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise HetaError("the graph of a meta-partition cannot be copied or pickled; load the data "
                        "set in each process (torchrun)")


def _relation(name: str) -> Relation:
    return Relation(*gb.etype_str_to_tuple(name))


def open_graph(directory: str, graph: Any) -> RafGraph:
    """Return what stands for a data set's graph, once it was compared with the partition.

    Raises
    ------
    InputError
        There is no partition, it is of another graph, the graph is homogeneous, or it was loaded
        with another DGL.
    """
    if dgl.__version__.partition("+")[0] != _RELEASE:
        raise InputError(f"partition.graphbolt works with dgl {_RELEASE}, whose names its "
                         f"pipelines are made of, and dgl {dgl.__version__} is installed; "
                         f"{_OTHER_WAY}")
    config = _part_config(Path(directory))
    settings = selected()
    for name, wrong in (("record", settings.run.record is not None),
                        ("reference", settings.run.reference)):
        if wrong:
            raise InputError(f"run.{name} (dgl-heta prove) is for DistDGL scripts; a GraphBolt "
                             "script's steps are proved by run.prove")
    if getattr(graph, "node_type_to_id", None) is None or graph.edge_type_to_id is None:
        refuse("homogeneous data set")
    session = current()
    if not isinstance(session, GraphBoltSession) or session.part_config != str(config):
        check_no_plain_module("data set", "was loaded", "load the data set")
        parts = open_partition(config.parent)[1].num_parts
        session = GraphBoltSession(str(config), parts, settings, plugins())
    compare(session, graph)
    use_session(session)
    return RafGraph(session, graph)


def _part_config(path: Path) -> Path:
    directory = path if path.is_dir() else path.parent
    configs = [c for c in sorted(directory.glob("*.json")) if is_part_config(c)]
    if not is_partition(directory) or not configs:
        raise InputError(f"partition.graphbolt = {path} is no partition; make one of the data set "
                         "by `dgl-heta partition DATASET --out DIRECTORY --target TYPE`")
    return configs[0]


def compare(session: Session, graph: Any) -> None:
    """Compare a data set's graph with the partition: numbers of nodes and edges, and for this
    part's relations the degrees of all nodes (unless run.verify = false).

    Raises
    ------
    InputError
        They are of different graphs.
    """
    schema, where = session.store.schema, session.part_config
    nodes = {t: int(n) for t, n in graph.num_nodes.items()}
    edges = {_relation(name): int(n) for name, n in graph.num_edges.items()}
    stored = {r: schema.edge_counts[r] for r in schema.relations}
    for what, given, known in (("nodes", nodes, dict(schema.node_counts)),
                               ("edges", edges, stored)):
        for key in sorted({*given, *known}):  # type: ignore[type-var]
            if given.get(key) != known.get(key):
                raise InputError(
                    f"the partition {where} is of another graph than the data set: it has "
                    f"{known.get(key, 'no')} {what} '{key}', the data set "
                    f"{given.get(key, 'none')}; make it of the data set (`dgl-heta partition`)")
    if not session.settings.run.verify:
        return
    for relation in session.partition.relations:
        for theirs, ours in zip(_degrees(graph, relation, schema), _stored(session, relation)):
            # Degrees both ways, not edges: they tell graphs apart and cost one pass over the edges.
            if not np.array_equal(theirs, ours):
                raise InputError(
                    f"the partition {where} is of another graph than the data set: nodes have "
                    f"other degrees by '{relation}'; make it of the data set (`dgl-heta "
                    "partition`)")


def _degrees(graph: Any, relation: Relation, schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """Return in-degrees and out-degrees of all nodes by a relation, in the data set's graph."""
    offsets, kinds = graph.node_type_offset.tolist(), graph.node_type_to_id
    low, high = (offsets[kinds[relation.dst] + i] for i in (0, 1))
    indptr = graph.csc_indptr[low:high + 1].numpy()
    first, last = int(indptr[0]), int(indptr[-1])
    its = graph.type_per_edge[first:last].numpy() == graph.edge_type_to_id[":".join(relation)]
    before = np.concatenate([[0], np.cumsum(its)])
    sources = graph.indices[first:last].numpy()[its] - offsets[kinds[relation.src]]
    return (np.diff(before[indptr - first]),
            np.bincount(sources, minlength=schema.node_counts[relation.src]))


def _stored(session: Session, relation: Relation) -> tuple[np.ndarray, np.ndarray]:
    """Return the same in the store."""
    count = session.store.schema.node_counts[relation.src]
    csc = copied(relation, session.store.relation(relation), count)
    return np.diff(csc.indptr), np.bincount(csc.indices, minlength=count)


def check_targets(session: Session, types: Any) -> None:
    """Check that seeds are of target types.

    Raises
    ------
    InputError
        A seed's type is no target of the plan.
    """
    targets = session.plan.targets
    if other := sorted({*types} - {*targets}):
        refuse("seeds of no target in a pipeline", other=listing(other), targets=listing(targets),
               wanted=",".join([*targets, *other]))
