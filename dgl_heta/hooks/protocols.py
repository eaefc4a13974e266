"""What providers are: one protocol for each kind, with members, defaults and shapes.

A provider derives from its protocol and overrides what differs: members that are not abstract
have a default here. It may as well only look like the protocol, but then it must have all
members. `name` is what settings and options select a provider by.

Nothing is imported here when the module is loaded: the protocols lie below all that they speak of.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dgl_heta.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from pydantic import BaseModel
    from torch import Tensor, nn

    from dgl_heta.comm.collectives import Comm
    from dgl_heta.graph.schema import Schema
    from dgl_heta.graph.source import GraphSource
    from dgl_heta.models.spec import ModelSpec
    from dgl_heta.partition.request import PartitionRequest, PartitionResult
    from dgl_heta.planning.plan import Plan
    from dgl_heta.sampling.blocks import InEdges, MiniBatch
    from dgl_heta.store import Store
    from dgl_heta.store.writer import Progress


class Provider(Protocol):
    """What all providers have in common."""

    name: str
    settings: BaseModel | None = None
    """The provider's own settings: an instance of a pydantic model, with the defaults. They are the
    section `[plugins.NAME]`; the provider that is called has the user's values here."""


class PartitionBackend(Provider, Protocol):
    """A way to partition a graph; hook `dgl_heta_partition_backends`."""

    description: str
    needs_target: bool = True
    """Whether a request must name the node types to train for."""
    decides_parts: bool = False
    """Whether it takes `parts = "auto"`: a request whose `parts` is 0 (`dgl_heta.AUTO`)."""
    honours: frozenset[str] = frozenset()
    """Arguments of a script's `partition_graph` that it has a use for, by their names there:
    `num_hops`, `num_trainers_per_machine`, `objtype`, `balance_ntypes`, `balance_edges`,
    `graph_formats`, `use_graphbolt`, or any further one. They are in `request.script`."""

    def plan(self, schema: Schema, request: PartitionRequest) -> Plan:
        """Plan from the schema alone, or raise an :class:`InputError` that it cannot.

        Without it, a graph can be partitioned, but `dgl-heta plan` and `dgl-heta train`, given a
        graph that is not, have no plan.
        """
        raise InputError(f"method '{self.name}' does not partition by relations, so there is no "
                         "plan to show; use meta, or `dgl-heta partition` without --dry-run")

    @abstractmethod
    def partition(self, source: GraphSource | Store, request: PartitionRequest, out: Path, *,
                  overwrite: bool = False, progress: Progress | None = None) -> PartitionResult:
        """Write a partition directory; says where, and which ids have changed.

        `dgl_heta.as_source(source)` is a `GraphSource` whatever the graph came from: a store, a
        DGLGraph, files. `edges[relation].chunks(size)` reads the edges once more at each call;
        node arrays and edge arrays may be memory maps. `out` is written whole or not at all.
        """


class Reader(Provider, Protocol):
    """A format of graphs on disk; hook `dgl_heta_readers`."""

    description: str

    @abstractmethod
    def matches(self, path: Path) -> bool:
        """Whether `path` holds this format, judged by names and a few first bytes."""

    @abstractmethod
    def read(self, path: Path, **options: Any) -> GraphSource:
        """Read the graph, edges in chunks; nothing that the files hold is run."""


class Dataset(Provider, Protocol):
    """A graph by name, for the command line; hook `dgl_heta_datasets`."""

    description: str
    options: Mapping[str, Any]
    """Names and defaults of the options that `load` takes."""

    @abstractmethod
    def load(self, **options: Any) -> GraphSource:
        """Make or read the graph."""


class ModelProvider(Provider, Protocol):
    """A model, written for one process; hook `dgl_heta_models`."""

    precomputed: str | None = None
    """"paths" or "subsets" for models over neighbour averages, see
    :mod:`dgl_heta.training.average_inputs`."""

    @abstractmethod
    def build(self, spec: ModelSpec) -> nn.Module:
        """A model that maps `(MiniBatch, inputs per type)` to outputs per target type."""


class WrappedModule(Protocol):
    """A model as the training loop sees it."""

    module: nn.Module

    def __call__(self, batch: MiniBatch, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Logits of the trainer's own seeds per target type."""

    def synchronize_gradients(self) -> None:
        """Called after backward and before the optimizer's step."""

    def end_epoch(self, epoch: int) -> None:
        """Called after the last step of an epoch (model averaging, for one)."""


class ModuleWrapper(Provider, Protocol):
    """A way to run a single-process model on several workers; hook `dgl_heta_module_wrappers`."""

    @abstractmethod
    def plan(self, plan: Plan) -> Plan:
        """The plan that the workers follow, given the partition backend's."""

    @abstractmethod
    def wrap(self, module: nn.Module, world: Comm, group: Comm) -> WrappedModule:
        """Wrap a model; `group` is this worker's model-parallel group.

        In DistDGL scripts, whose models are wrapped by DistributedDataParallel, `plan` alone is
        called, and after each backward pass `average_gradients(parameters, world)` if the
        provider has it, instead of :class:`dgl_heta.comm.gradients.GradientAverage`.
        """


class Kernel(Provider, Protocol):
    """How relations are aggregated (AGG_r) and attended to; hook `dgl_heta_kernels`.

    The same kernel serves dgl-heta's models and, in DistDGL scripts, HeteroGraphConv. Derive from
    `dgl_heta.nn.BaseKernel`, which has every operator in PyTorch, and override what the kernel does
    better. Each takes the in-edges of several relations, with an entry for each of them in every
    other list, and returns a list; tensors may be on any device and need not be contiguous.

    R destination rows, E edges, S source rows, H heads, D width. All operators but `e_max` are
    differentiable in every tensor of floating-point numbers. A row without edges gives 0, where
    nothing else is said.
    """

    defers: bool = True
    """Whether feature rows that wait for their values are aggregated before their product with a
    weight where that is shorter, without the kernel. False: it is given all rows."""

    @abstractmethod
    def reduce(self, edges: Sequence[InEdges], states: Sequence[Tensor], op: str) -> list[Tensor]:
        """Sum, mean, max or min (`op`) over each row's edges: (S, D) to (R, D)."""

    @abstractmethod
    def u_dot_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> list[Tensor]:
        """Products of both ends: sources (S, D) or (S, H, D), destinations (R, H, D), to (E, H)."""

    @abstractmethod
    def u_add_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> list[Tensor]:
        """Sums of both ends: (S, H) and (R, H) to (E, H)."""

    @abstractmethod
    def copy_v(self, edges: Sequence[InEdges], rows: Sequence[Tensor]) -> list[Tensor]:
        """Each edge gets its destination's values: (R, H) to (E, H)."""

    @abstractmethod
    def edge_softmax(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> list[Tensor]:
        """Softmax over each row's edges by one relation: (E, H) to (E, H)."""

    @abstractmethod
    def e_max(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> list[Tensor]:
        """Maxima over each row's edges: (E, H) to (R, H); -inf for a row without edges."""

    @abstractmethod
    def e_sum(self, edges: Sequence[InEdges], values: Sequence[Tensor]) -> list[Tensor]:
        """Sums over each row's edges: (E, H) to (R, H)."""

    @abstractmethod
    def u_mul_e_sum(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                    weights: Sequence[Tensor]) -> list[Tensor]:
        """Weighted sums of sources, (S, D) or (S, H, D), with weights (E, H), to (R, H, D)."""


class BatchSource(Provider, Protocol):
    """Where a worker's mini-batches come from: when they are sampled, and in which form."""

    @abstractmethod
    def batches(self, sampled: Iterator[MiniBatch]) -> Iterator[MiniBatch]:
        """The batches of an epoch, in the order of `sampled`, which samples one when asked."""


class CachePolicy(Provider, Protocol):
    """Which feature rows to keep close to the processor; hook `dgl_heta_cache_policies`."""

    counts: str = "visits"
    """What it is told of the nodes: "visits", from pre-sampling, or "degree", the number of edges
    that leave a node."""
    replacement: str | None = None
    """None for a cache whose rows stay, "fifo" or "clock" for one that replaces rows when others
    are read. `select` then says what it starts with."""

    @abstractmethod
    def select(self, counts: Mapping[str, np.ndarray], row_bytes: Mapping[str, int],
               penalties: Mapping[str, float], capacity: int) -> dict[str, np.ndarray]:
        """Choose the rows to cache.

        Parameters
        ----------
        counts : node type → visits (or edges) per node, int64 (nodes,).
        row_bytes : node type → bytes of a row, optimizer state included where it has one.
        penalties : node type → miss penalty, seconds per byte.
        capacity : bytes of the cache.

        Returns
        -------
        Node type → ids of the cached nodes, int64, each once; together at most `capacity` bytes.
        """
