"""Protocols of providers, one for each kind: members, defaults and shapes.

A provider derives from its protocol and overrides what differs: members that are not abstract
have a default here. It may as well only look like the protocol, but then it must have all
members. `name` is what settings and options select a provider by.

Nothing is imported here when the module is loaded: the protocols lie below all that they speak of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dgl_heta.errors import InputError
from dgl_heta.hooks.batch_protocol import BatchSource as BatchSource
from dgl_heta.hooks.cutter_protocol import Cutter as Cutter
from dgl_heta.hooks.provider import Provider as Provider

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    import numpy as np
    import torch
    from pydantic import BaseModel
    from torch import Tensor, nn

    from dgl_heta.comm.collectives import Comm
    from dgl_heta.graph.schema import Relation, Schema
    from dgl_heta.graph.source import GraphSource
    from dgl_heta.models.spec import ModelSpec
    from dgl_heta.partition.request import PartitionRequest, PartitionResult
    from dgl_heta.planning.partition_shares import Share
    from dgl_heta.planning.plan import Plan
    from dgl_heta.sampling.blocks import MiniBatch
    from dgl_heta.settings import Settings
    from dgl_heta.store import Store
    from dgl_heta.store.writer import Progress
    from dgl_heta.system.patching import Patch

Adapt = Callable[["ModuleType"], None]


class PartitionBackend(Provider, Protocol):
    """A way to partition a graph; hook `dgl_heta_partition_backends`."""

    description: str
    needs_target: bool = True
    """True if a request must name the node types to train for."""
    decides_parts: bool = False
    """True if it takes `parts = "auto"`: a request whose `parts` is 0 (`dgl_heta.AUTO`)."""
    honours: frozenset[str] = frozenset()
    """Arguments of a script's `partition_graph` that it has a use for, by their names there:
    `num_hops`, `num_trainers_per_machine`, `objtype`, `balance_ntypes`, `balance_edges`,
    `graph_formats`, `use_graphbolt`, or any further one. They are in `request.script`, those that
    DGL names with values that are right by DGL's rules. The user is told of those that have no
    effect; `use_graphbolt` and unknown ones are refused."""

    def plan(self, schema: Schema, request: PartitionRequest) -> Plan:
        """Plan from the schema alone, or raise an :class:`InputError` that it cannot.

        Without it, a graph can be partitioned, but `dgl-heta plan` and `dgl-heta train`, given a
        graph that is not, have no plan.
        """
        raise InputError(f"method '{self.name}' does not partition by relations, so there is no "
                         "plan to show or to train with; use meta, or write its parts with "
                         "`dgl-heta partition`")

    @abstractmethod
    def partition(self, source: GraphSource | Store, request: PartitionRequest, out: Path, *,
                  overwrite: bool = False, progress: Progress | None = None) -> PartitionResult:
        """Write a partition directory; says where, and which ids have changed.

        `dgl_heta.as_source(source)` is a `GraphSource` whatever the graph came from: a store, a
        DGLGraph, files. `edges[relation].chunks(size)` reads the edges once more at each call;
        node arrays and edge arrays may be memory maps. `out` is written whole or not at all;
        with `overwrite` what an earlier call wrote there is replaced, and nothing else.
        """


class Reader(Provider, Protocol):
    """A format of graphs on disk; hook `dgl_heta_readers`."""

    description: str
    options: Mapping[str, Any] | BaseModel = {}
    """The options that `read` takes, as those of a :class:`Dataset`."""
    remote: bool = False
    """Whether `path` may be in object storage: a :class:`~dgl_heta.system.remote_files.RemotePath`,
    which has no name on this machine's disk."""
    schemes: Sequence[str] = ()
    """Schemes of URLs that it reads, such as "sqlite" for sqlite:///shop.db. The path is the URL
    then, a text, and `matches` is not asked."""

    @abstractmethod
    def matches(self, path: Path) -> bool:
        """Return whether `path` has its format, judged by names and a few first bytes.

        `path` is what the user wrote: a file, a directory, or a name that is neither.
        """

    def schema(self, path: Path, **options: Any) -> Schema | None:
        """The schema, if it is known before the graph is read: what `dgl-heta plan` needs."""
        return None

    @abstractmethod
    def read(self, path: Path, **options: Any) -> GraphSource:
        """Read the graph; every declared option is given. Nothing that the files hold is run.

        Edges are best left in the files, to be read in chunks (:class:`GraphSource`).
        """


class RunLog(Protocol):
    """The log of one run, opened by a :class:`Logger` on worker 0 alone."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch has ended and is in the run's records; `record` is its line of metrics.jsonl."""

    def close(self, summary: dict[str, Any] | None) -> None:
        """Training has ended; `summary` is summary.json, None after an error or a signal."""


class Logger(Provider, Protocol):
    """Where the figures of a run of `dgl-heta train` go, too; hook `dgl_heta_loggers`.

    The run directory has them in any case. What a logger raises is one warning that names it; it is
    not called again, and training goes on. An :class:`InputError` of `open` ends the run.
    """

    description: str

    def check(self) -> None:
        """Called before anything is read; raises an :class:`InputError` if it cannot work here."""

    @abstractmethod
    def open(self, run_dir: Path, settings: dict[str, Any], done: int) -> RunLog:
        """Before the first epoch, on worker 0.

        Parameters
        ----------
        settings : all settings, by section.
        done : epochs that the run has from before it was interrupted; what a log has of later ones
            is not in the run, whose next epoch is `done + 1`.
        """


class Dataset(Provider, Protocol):
    """A graph by name, for the command line; hook `dgl_heta_datasets`."""

    description: str
    options: Mapping[str, Any] | BaseModel = {}
    """The options that `load` takes: names and defaults, whose types say how text is read (numbers,
    true or false, texts, paths), or an instance of a pydantic model with the defaults. Of a first
    option that is a text or a path, the value can be given without the name."""

    @abstractmethod
    def load(self, **options: Any) -> GraphSource:
        """Make or read the graph; every declared option is given."""


class Patches(Provider, Protocol):
    """Changes in other packages while dgl-heta is enabled; hook `dgl_heta_patches`.

    The patches of all plugins that are installed are used. Each hands over to the original unless
    a meta-partitioned graph or a selected provider is meant; `dgl_heta.disable` undoes them.
    """

    def patches(self) -> Sequence[Patch]:
        """Return the names that are replaced; the original of one that dgl-heta replaces itself is
        what dgl-heta has there."""
        ...


class Command(Provider, Protocol):
    """A command `dgl-heta NAME …`; hook `dgl_heta_commands`."""

    description: str

    @abstractmethod
    def command(self) -> Any:
        """The command, a `typer.Typer` or a `click.Command`; what it does is its own.

        It is called when the user names the command, so that nothing is imported before. What
        it raises is told as for the built-in ones: an :class:`InputError` in a line, with exit
        status 2, any other `HetaError` with 1.
        """


class Program(Provider, Protocol):
    """A program that runs as a DistDGL script, adapted when it is imported; hook
    `dgl_heta_programs`.

    `name` is that of its top-level package.
    """

    modules: Mapping[str, Adapt]
    """Modules of the program and what is called with each, once, after it was imported while
    dgl-heta is enabled (or when it is enabled, if that is later). What it does stays after
    `disable()`: on graphs that are not meta-partitioned it must change nothing."""


class ModelProvider(Provider, Protocol):
    """A model, written for one process; hook `dgl_heta_models`."""

    precomputed: str | None = None
    """The name of the :class:`ModelInputs` that it reads; None for a model over sampled blocks."""
    reads: Collection[str] | None = None
    """Settings of `model` that it reads beside `layers`, `hidden`; others warn. None: unknown."""

    @abstractmethod
    def build(self, spec: ModelSpec) -> nn.Module:
        """A model that maps `(MiniBatch, inputs per type)` to outputs per target type."""


@dataclass(frozen=True)
class InputsContext:
    """The run whose model reads inputs that are computed before.

    Attributes
    ----------
    plan : the one that the workers follow, each its partition of its rank.
    spec : what the model is built from.
    directory : for what is computed, in that of the run: the same for all workers, and still there
        when the run goes on or predicts.
    world, rank : all workers, and this one's number.
    """

    store: Store
    plan: Plan
    settings: Settings
    spec: ModelSpec
    directory: Path
    world: Comm
    rank: int


class InputReader(ABC):
    """Inputs that were computed, as one worker reads them.

    The model is given a block of the seeds, in which the worker's parts stand as relations without
    edges do, so that it merges parts as it merges relations.
    """

    @abstractmethod
    def parts(self, target: str) -> Sequence[tuple[int, Relation, Share]]:
        """Return this worker's parts of the inputs of a target: a number that tells them apart in
        the model, the relation into the target, and the share of the seeds (`plan.roots(rank)`
        has both)."""

    @abstractmethod
    def read(self, batch: MiniBatch, device: torch.device) -> dict[str, Tensor]:
        """Return what the model is given as `inputs`, by names that it knows: rows of the batch's
        `own_seeds`, and of its parts (`batch.blocks[0].edges`). No step changes them."""


class ModelInputs(Provider, Protocol):
    """Inputs that are computed before training, for models that sample nothing; hook
    `dgl_heta_model_inputs`. Models name them (:attr:`ModelProvider.precomputed`)."""

    def complete(self, spec: ModelSpec, store: Store, plan: Plan) -> ModelSpec:
        """Return what the model is built from, given what all models are built from: other widths
        of inputs, metapaths. It raises an :class:`InputError` where they do not fit the graph."""
        return spec

    @abstractmethod
    def open(self, context: InputsContext) -> InputReader:
        """Compute the inputs, or find them in the directory; all workers call it together."""


@dataclass(frozen=True)
class WrapContext:
    """The worker on which a module wrapper runs.

    Attributes
    ----------
    world : all workers.
    group : this worker's model-parallel group, over which the module that is wrapped merges its
        relations; a group of one where every worker has all edges that it needs.
    owned : returns the number of training nodes that this worker owns: the seeds of its steps in
        an epoch. In a script they are known when its training loader is.
    tables : parameters of which rows move alone, because a step touches few of them
        (`nn.Embedding` in scripts).
    replicas : those of which each worker trains a copy (`train.learnable = replica`).
    in_place : whether to write averages into gradients that are there: a script may have views.
    """

    world: Comm
    group: Comm
    owned: Callable[[], int]
    tables: tuple[nn.Parameter, ...] = ()
    replicas: tuple[nn.Parameter, ...] = ()
    in_place: bool = False


class WrappedModule:
    """A module on one worker, as the training loop or the script's loop sees it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module."""
        return self.module(*inputs, **kwargs)

    def after_backward(self) -> None:
        """Called after each backward pass, before the optimizers' step.

        Workers may wait for each other here, unless their numbers of steps may differ.
        """

    def epoch_ended(self, epoch: int) -> None:
        """Called on all workers after the last step of an epoch (from 1 on), before it is
        validated; they may wait for each other here."""

    def equal(self) -> bool:
        """Return whether all workers have equal parameters now. All must give the same answer, and
        may wait for each other here. Called in own training after an epoch was validated: only an
        epoch after which they are equal may be the best one, or the last one of a run that stops
        early."""
        return True

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that this worker keeps beside the parameters, for its checkpoint: a
        run that goes on computes, to the last bit, what one without a break does."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take over what :meth:`state` gave."""

    def finish(self) -> None:
        """Called once when training is over, on all workers, which may wait for each other here: in
        own training before the last test and the saving; in a script when it destroys the process
        group, or else when it has ended. Not called in a script that fails."""


class ModuleWrapper(Provider, Protocol):
    """A way to run a single-process model on several workers; hook `dgl_heta_module_wrappers`.

    It serves `dgl-heta train` and, where a script calls DistributedDataParallel, DistDGL scripts.
    What it wraps merges relations over its group already; a wrapper keeps parameters equal.
    """

    any_graph: bool = False
    """True if it is used in scripts on parts that DGL made, too (METIS, random), when
    `train.wrapper` names it. DGL's own DistributedDataParallel is used there otherwise."""
    uneven_steps: bool = False
    """True if workers may take different numbers of steps in an epoch. Then each steps through the
    training nodes that it owns, and nobody waits for another but at the end of an epoch."""

    def plan(self, plan: Plan) -> Plan:
        """The plan that the workers follow, given the partition backend's."""
        return plan

    def own_part(self) -> bool:
        """With `any_graph`, whether trainers of a script stay within their machine's part of a
        graph that DGL's format holds: `node_split` gives them its nodes, they sample its edges
        alone, and node data of the halo nodes around it are copied once. Then no step asks another
        machine for neighbours or features."""
        return False

    @abstractmethod
    def wrap(self, module: nn.Module, context: WrapContext) -> WrappedModule:
        """Wrap a module, whose parameters are equal on all workers."""

    def owned(self, nodes: np.ndarray, worker: int, workers: int) -> np.ndarray:
        """With `uneven_steps`, which of a type's training nodes (ascending ids) a worker owns in
        own training; together the workers own each of them once. Default: even ranges."""
        count = len(nodes)
        return nodes[count * worker // workers:count * (worker + 1) // workers]


class CachePolicy(Provider, Protocol):
    """Which feature rows to keep close to the processor; hook `dgl_heta_cache_policies`."""

    counts: str = "visits"
    """The counts of nodes that it gets: "visits", from pre-sampling, or "degree", the number of
    edges that leave a node."""
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
