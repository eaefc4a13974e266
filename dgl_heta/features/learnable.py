"""Learnable features of node types without static ones, with their sparse optimizer.

A type that one worker uses is that worker's alone: nothing moves. For a type that several
use there are two modes (Heta §4 keeps learnable features as part of a worker's parameters):

- `exact`: every row has one owner; rows and gradients move, and training equals that of one
  process.
- `replica`: every user keeps a copy and trains it on its own gradients; nothing moves.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.row_routing import RowRoute
from dgl_heta.errors import InputError
from dgl_heta.features.disk_tables import memory_tables
from dgl_heta.features.row_files import move, to_memory
from dgl_heta.features.row_kernels import sum_rows
from dgl_heta.features.row_optimizers import AdamSettings
from dgl_heta.features.row_table import RowTable
from dgl_heta.system.hashing import hash_key

MODES = ("exact", "replica")
_CHUNK = 2**16
_CPU = torch.device("cpu")


def initial_rows(seed: int, ntype: str, low: int, high: int, width: int,
                 dtype: torch.dtype) -> Tensor:
    """Initial values of rows `low … high - 1`, uniform with variance 1 / width.

    A row's value depends on the seed, the type and the row alone, so any worker can make any
    part of a table.
    """
    pieces = []
    bound = (3.0 / width) ** 0.5
    for chunk in range(low // _CHUNK, -(-high // _CHUNK)):
        key = hash_key(seed, zlib.crc32(ntype.encode()), chunk)
        generator = torch.Generator().manual_seed(key % 2**63)
        rows = torch.empty((_CHUNK, width), dtype=torch.float64 if dtype == torch.float64
                           else torch.float32).uniform_(-bound, bound, generator=generator)
        start = chunk * _CHUNK
        pieces.append(rows[max(low - start, 0):high - start].to(dtype))
    return torch.cat(pieces) if pieces else torch.empty((0, width), dtype=dtype)


class Table(Protocol):
    """Rows with optimizer state: a :class:`RowTable`, or one whose rows are partly cached."""

    step: int

    @property
    def shape(self) -> torch.Size: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def bytes(self) -> int: ...
    @property
    def value(self) -> Tensor: ...
    def read(self, ids: np.ndarray, device: torch.device) -> Tensor: ...
    def update(self, rows: np.ndarray, grads: Tensor, scale: float, adam: AdamSettings) -> None: ...
    def blocks(self) -> Iterator[Mapping[str, Tensor]]: ...
    def load(self, blocks: Iterable[Mapping[str, Tensor]], step: int) -> None: ...


RowGradients = tuple[np.ndarray, Tensor]
"""Rows of a table, each once, and their gradients."""


class NearTables(Protocol):
    """Tables on a GPU, which are read together and stepped together."""

    @property
    def tables(self) -> Mapping[str, Table]: ...
    def read(self, ids: Mapping[str, np.ndarray]) -> dict[str, Tensor]: ...
    def update(self, rows: Mapping[str, RowGradients], scale: float,
               adam: AdamSettings) -> None: ...


class Place(NamedTuple):
    """Rows `low … high - 1` of a type, in a table from its row `start` on."""

    table: str
    ntype: str
    low: int
    high: int
    start: int


class LearnableFeatures:
    """The learnable features that this worker uses or owns.

    Parameters
    ----------
    counts : node type → number of nodes, for every type with learnable features that any
        worker uses, the same on all workers.
    users : node type → ranks that use it.
    width, dtype : of a row.
    world : all workers.
    mode : `exact` or `replica`.
    repeated : node types of which a batch can name a node twice.
    keepers : node type → ranks among which the rows of a shared type are spread; default: `users`.
    make : makes a table of zeros from name, rows, width and dtype; default: in memory.

    Attributes
    ----------
    local : node type → table of those types that this worker has for itself.
    owned : table of the rows of shared types that this worker owns, type after type.
    reads, updated : how often rows were read to train, and the read that was updated last.
    near : those tables of `local` that are on a GPU, if there are some.
    """

    def __init__(self, counts: Mapping[str, int], users: Mapping[str, Sequence[int]], width: int,
                 dtype: torch.dtype, world: Comm, mode: str = "exact",
                 adam: AdamSettings | None = None, seed: int = 0,
                 repeated: Sequence[str] = (),
                 make: Callable[[str, int, int, torch.dtype], RowTable] = memory_tables,
                 keepers: Mapping[str, Sequence[int]] | None = None) -> None:
        if mode not in MODES:
            raise InputError(f"learnable mode '{mode}' is unknown; known are {', '.join(MODES)}")
        self._world, self.adam = world, adam or AdamSettings()
        self.width, self.dtype, self.mode = width, dtype, mode
        self.counts = dict(counts)
        self.local: dict[str, Table] = {}
        self.near: NearTables | None = None
        self._shared: dict[str, _Shared] = {}
        for ntype, count in counts.items():
            ranks = tuple(users[ntype])
            # A type that one worker alone uses needs no owner: its rows are read and stepped where
            # they are, and nothing is sent.
            if mode == "exact" and len(ranks) > 1:
                self._shared[ntype] = _Shared(count, tuple((keepers or users)[ntype]))
            elif world.rank in ranks:
                table = make(ntype, count, width, dtype)
                _start(table.value, seed, ntype, 0)
                self.local[ntype] = table
        offset = base = 0
        for shared in self._shared.values():
            low, high = shared.range_of(world.rank)
            shared.offset, shared.base = offset, base
            offset, base = offset + shared.count, base + high - low
        self.owned: Table | None = None
        if self._shared:
            self.owned = owned = make("owned", base, width, dtype)
            for ntype, (low, start, rows) in self.owned_ranges().items():
                _start(owned.value[start:start + rows], seed, ntype, low)
        # Scratch of `sum_rows`, -1 between steps: filling it for each step would touch every row.
        self._slots = np.full(base, -1, np.int32)
        self._repeated = {t: np.full(counts[t], -1, np.int32) for t in repeated
                          if t in self.local}
        self._leaves: dict[str, Tensor] = {}
        self.reads = self.updated = 0
        self._nodes: Mapping[str, np.ndarray] = {}
        self._step: _Step | None = None

    def read(self, nodes: Mapping[str, np.ndarray], device: torch.device, train: bool = True
             ) -> dict[str, Tensor]:
        """Rows of the nodes of learnable types; with `train`, leaves that collect gradients.

        In `exact` mode every worker must call it in every step, also without such nodes.
        """
        rows: dict[str, Tensor] = {}
        if self.near is not None:
            rows = self.near.read({t: nodes[t] for t in self.near.tables if t in nodes})
        for ntype, table in self.local.items():
            if ntype in nodes and ntype not in rows:
                rows[ntype] = table.read(nodes[ntype], device)
        if self._shared:
            assert self.owned is not None
            # By the shared types, in their order, not by the batch's: routing is a collective, and
            # all workers concatenate alike.
            sizes = {t: len(nodes[t]) for t in self._shared if t in nodes}
            route = self._route_to_owners({t: nodes[t] for t in sizes})
            asked = self._rows_of(route.asked)
            answered = route.answer(self.owned.read(asked, _CPU))
            rows.update(zip(sizes, answered.split(list(sizes.values()))))
            if train:
                self._step = _Step(route, asked, tuple(sizes))
        # Leaves, so that autograd stops here: gradients of rows leave the graph and go to the
        # owners, and no table is ever a parameter of the model.
        leaves = {t: move(x, device).requires_grad_(train) for t, x in rows.items()}
        if train:  # what is read to evaluate leaves the gradients of a step that is not over alone
            self._nodes, self._leaves = nodes, leaves
            self.reads += 1
        return leaves

    @property
    def pending(self) -> bool:
        """Whether rows that were read to train have a gradient that no :meth:`update` took."""
        return any(leaf.grad is not None for leaf in self._leaves.values())

    def forget(self) -> None:
        """Drop the gradients of what was read, as of a step that failed."""
        self._leaves, self._step = {}, None

    def update(self) -> None:
        """One optimizer step from the gradients of the rows read last.

        Gradients are averaged over all workers, like those of dense parameters.
        """
        # The one place where gradients of rows are divided, by all workers, as those of dense
        # parameters are: what arrives are sums.
        scale = 1.0 / self._world.size
        steps = {t: self._gradients(t) for t in self.local}
        if self.near is not None:
            self.near.update({t: steps.pop(t) for t in self.near.tables}, scale, self.adam)
        for ntype, step in steps.items():
            # A step without rows counts all the same: Adam's bias correction is of the table's
            # steps, and on one process every batch is one.
            self.local[ntype].update(*step, scale, self.adam)
        if self._step is not None and self.owned is not None:
            # In the order of `read`, whose route is used again backwards; a type whose rows got no
            # gradient sends zeros, as the owner waits for its rows.
            grads = torch.cat([self._no_rows(), *(self._grad(t) for t in self._step.ntypes)])
            arrived = self._step.route.deliver(grads)
            unique, sums = sum_rows(self._step.asked, arrived.numpy(), self._slots)
            self.owned.update(unique, torch.from_numpy(sums), scale, self.adam)
        self.forget()
        self.updated = self.reads

    def _gradients(self, ntype: str) -> RowGradients:
        """The rows of a type that were read last, if they got gradients."""
        leaf = self._leaves.get(ntype)
        if leaf is None or leaf.grad is None:
            return np.empty(0, np.int64), self._no_rows()
        rows, grads = self._nodes[ntype], leaf.grad
        if ntype not in self._repeated:
            return rows, grads
        if grads.device.type == "cuda":
            rows, places = np.unique(rows, return_inverse=True)
            return rows, grads.new_zeros((len(rows), self.width)).index_add_(
                0, move(torch.from_numpy(places), grads.device), grads)
        rows, sums = sum_rows(rows, grads.numpy(), self._repeated[ntype])
        return rows, torch.from_numpy(sums)

    def _no_rows(self) -> Tensor:
        return torch.empty((0, self.width), dtype=self.dtype)

    def _grad(self, ntype: str) -> Tensor:
        leaf = self._leaves[ntype]
        return (to_memory(leaf.grad) if leaf.grad is not None
                else torch.zeros(leaf.shape, dtype=leaf.dtype))

    def _route_to_owners(self, nodes: Mapping[str, np.ndarray]) -> RowRoute:
        """Ask the owners for rows of shared types; keys are ids, types one after the other."""
        none = [np.empty(0, np.int64)]
        owners = [self._shared[t].owner(ids) for t, ids in nodes.items()]
        keys = [ids + self._shared[t].offset for t, ids in nodes.items()]
        return RowRoute(self._world, np.concatenate(owners or none), np.concatenate(keys or none))

    def _rows_of(self, keys: np.ndarray) -> np.ndarray:
        """Where the table `owned` has the rows of keys that this worker owns."""
        rows = np.empty(len(keys), np.int64)
        for shared in self._shared.values():
            # Keys number the rows of all shared types one after the other; a table numbers those
            # that this worker owns.
            these = (keys >= shared.offset) & (keys < shared.offset + shared.count)
            low, _ = shared.range_of(self._world.rank)
            rows[these] = keys[these] - shared.offset - low + shared.base
        return rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, without its moments."""
        return self.width * self.dtype.itemsize

    def owned_ranges(self) -> dict[str, tuple[int, int, int]]:
        """Shared type → `(its first row here, where that is in the table `owned`, rows)`."""
        ranges = {}
        for ntype, shared in self._shared.items():
            low, high = shared.range_of(self._world.rank)
            ranges[ntype] = (low, shared.base, high - low)
        return ranges

    def shards(self) -> dict[str, tuple[int, Tensor]]:
        """The rows that this worker owns of each type: `(first row, values)`."""
        shards = {t: (0, table.value) for t, table in self.local.items()}
        value = self.owned.value if self.owned is not None else None
        for ntype, (low, start, rows) in self.owned_ranges().items():
            if rows and value is not None:
                shards[ntype] = (low, value[start:start + rows])
        return shards

    def places(self) -> list[Place]:
        """Where the rows are that this worker has, in the order of its tables."""
        return [*(Place(f"local.{t}", t, 0, table.shape[0], 0) for t, table in self.local.items()),
                *(Place("owned", t, low, low + rows, start)
                  for t, (low, start, rows) in self.owned_ranges().items())]

    def tables(self) -> dict[str, Table]:
        """The tables with optimizer state, by a name that is stable for a checkpoint."""
        named = {f"local.{t}": table for t, table in self.local.items()}
        return {**named, "owned": self.owned} if self.owned is not None else named

    @property
    def bytes(self) -> int:
        return sum(table.bytes for table in self.tables().values())


def _start(value: Tensor, seed: int, ntype: str, low: int) -> None:
    """Write the initial values of the rows from `low` on, a block at a time."""
    start = 0
    while start < len(value):
        stop = min(start + _CHUNK - (low + start) % _CHUNK, len(value))  # draws each block once
        value[start:stop].copy_(initial_rows(seed, ntype, low + start, low + stop, value.shape[1],
                                             value.dtype))
        start = stop


class _Shared:
    """A type whose rows are spread over ranks in even contiguous ranges."""

    def __init__(self, count: int, ranks: tuple[int, ...]) -> None:
        self.count, self._ranks = count, np.asarray(ranks)
        self._bounds = np.asarray([count * i // len(ranks) for i in range(len(ranks) + 1)])
        self.offset = self.base = 0

    def owner(self, ids: np.ndarray) -> np.ndarray:
        return self._ranks[np.searchsorted(self._bounds, ids, side="right") - 1]

    def range_of(self, rank: int) -> tuple[int, int]:
        places = np.flatnonzero(self._ranks == rank)
        if not len(places):
            return 0, 0
        return int(self._bounds[places[0]]), int(self._bounds[places[0] + 1])


@dataclass(frozen=True)
class _Step:
    """The requests of a step to the owners: the way there, rows of `owned` that are asked of this
    worker, and the types whose rows it asked for itself, in order."""

    route: RowRoute
    asked: np.ndarray
    ntypes: tuple[str, ...]
