"""Layers of batches that are sampled on a device.

What is sampled is a hash, so batches are those of the CPU bit for bit. All relations of a layer are
sampled together: their in-edges lie one after the other in two arrays on the device, nodes of all
types are numbered one after the other, and each operator runs once for a layer, however many
relations it has. The host waits twice in a layer, for the numbers of edges and of new rows, and
once in a batch, for the input nodes, whose features it finds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgl_heta import HetaError, Relation
from dgl_heta.tools import RelationBlock, changed
from dgl_heta_hifuse.device_draws import choose, signed

NEW = 1 << 30
"""Entries of `row_of` from here on are places of edges to nodes that have no row yet."""
NO_ROW = 2**31 - 1
PIECE = 1 << 24
"""Numbers that are copied to the device, or drawn there, at a time."""


class _Place(NamedTuple):
    """Where a relation's pointers begin on the device, and its largest in-degree."""

    pointers: int
    largest: int


class DeviceLayers:
    """Samples layers on a device; see `dgl_heta.sampling.relation_samples.LayerSampling`.

    Parameters
    ----------
    sampler : a `NeighborSampler`; the layers of others of the same scope are sampled, too. It
        samples what :func:`dgl_heta_hifuse.gpu_source.check` lets through.

    Attributes
    ----------
    bytes : of the graph, and of the rows of a batch, on the device.
    """

    def __init__(self, sampler: Any, device: torch.device) -> None:
        self._graph, self._counts, self._device = sampler.graph, sampler.counts, device
        self._types = {t: i for i, t in enumerate(self._counts)}
        self._starts = dict(zip(self._counts, itertools.accumulate(
            self._counts.values(), initial=0)))
        pointers = sum(len(csc.indptr) for csc in self._graph.values())
        edges = sum(len(csc.indices) for csc in self._graph.values())
        nodes = sum(self._counts.values())
        self._sizes = pointers, edges, nodes
        self.bytes = 8 * pointers + 4 * edges + 4 * nodes
        self._stream: torch.cuda.Stream | None = None
        self._idle: list[Tensor] = []

    def load(self) -> None:
        """Copy the graph to the device.

        Raises
        ------
        InputError
            A number in the relation's files leads out of the graph.
        """
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)
        with self._on_device():
            self._indptr = torch.empty(self._sizes[0], dtype=torch.int64, device=self._device)
            self._indices = torch.empty(self._sizes[1], dtype=torch.int32, device=self._device)
            self._places: dict[Relation, _Place] = {}
            pointers = edges = 0
            for relation, csc in self._graph.items():
                indptr = np.array(csc.indptr, np.int64)
                degrees = np.diff(indptr)
                if indptr[0] or indptr[-1] != len(csc.indices) or (degrees < 0).any():
                    raise changed(relation, csc)
                self._indptr[pointers:pointers + len(indptr)] = torch.from_numpy(
                    indptr + edges).to(self._device)
                for low in range(0, len(csc.indices), PIECE):
                    piece = np.array(csc.indices[low:low + PIECE])
                    if piece.min() < 0 or piece.max() >= self._counts[relation.src]:
                        raise changed(relation, csc)
                    self._indices[edges + low:edges + low + len(piece)] = torch.from_numpy(
                        piece).to(self._device)
                self._places[relation] = _Place(pointers, int(degrees.max(initial=0)))
                pointers, edges = pointers + len(indptr), edges + len(csc.indices)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    @contextmanager
    def borrow(self) -> Iterator[dict[str, DeviceRows]]:
        """Empty rows per node type for the body. After an error there they are not used again."""
        with self._on_device():
            try:
                row_of = self._idle.pop()
            except IndexError:
                row_of = torch.full((self._sizes[2],), NO_ROW, dtype=torch.int32,
                                    device=self._device)
            rows = {t: DeviceRows(self, row_of, start) for t, start in self._starts.items()}
            yield rows
            row_of.index_fill_(0, torch.cat([table.ids() + table.start for table in rows.values()]),
                               NO_ROW)
            self._idle.append(row_of)

    def nodes(self, rows: Mapping[str, DeviceRows]) -> dict[str, np.ndarray]:
        """The node of each row, int64, per node type; the host waits for them."""
        sizes = [len(table) for table in rows.values()]
        every = torch.cat([table.ids() for table in rows.values()]).cpu().numpy()
        return dict(zip(rows, np.split(every, np.cumsum(sizes)[:-1])))

    def up(self, values: np.ndarray) -> Tensor:
        """Numbers on the device; nobody waits for the copy."""
        tensor = torch.from_numpy(values)
        if self._stream is None:
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def sample(self, wanted: Sequence[Any], rows: Mapping[str, DeviceRows]
               ) -> list[RelationBlock]:
        """The blocks of a layer's samples; new neighbours become `rows`."""
        if not wanted:
            return []
        if any(each.hubs is not None or each.left_out is not None or each.excluded is not None
               for each in wanted):
            raise HetaError("cut or left out edges were to be sampled on a device")
        # By source types, so that new rows of a type are numbered from edges that follow each
        # other; within a type in the order of relations, as on the CPU.
        order = sorted(range(len(wanted)), key=lambda i: self._types[wanted[i].relation.src])
        layer = _Layer(self, [wanted[i] for i in order], rows)
        edges = layer.draw(self._indptr, self._indices)
        indices = layer.give_rows(edges, next(iter(rows.values())).row_of)
        made = dict(zip(order, layer.blocks(indices)))
        return [made[i] for i in range(len(wanted))]

    def constants(self, wanted: Sequence[Any], rows: Mapping[str, DeviceRows]) -> np.ndarray:
        """What operators are told of each sample, int64 (samples, columns of :class:`_Layer`)."""
        stops = np.cumsum([len(each.nodes) for each in wanted])
        first = 0
        table = np.empty((len(wanted), len(_COLUMNS)), np.int64)
        for i, each in enumerate(wanted):
            src = each.relation.src
            if i and src != wanted[i - 1].relation.src:
                first = stops[i - 1]
            table[i] = (len(each.nodes), stops[i], first, self._places[each.relation].pointers,
                        each.fanout if each.fanout >= 0 else 2**62, signed(int(each.key)),
                        self._starts[src], len(rows[src]), each.start)
        return table

    def most(self, wanted: Sequence[Any]) -> int:
        """The largest fanout that chooses among a node's edges; 0 if all edges are taken."""
        return max((each.fanout for each in wanted
                    if 0 <= each.fanout < self._places[each.relation].largest), default=0)


_COLUMNS = ("rows", "stop", "first", "pointers", "fanout", "key", "source", "size", "start")
_ROWS, _STOP, _FIRST, _POINTERS, _FANOUT, _KEY, _SOURCE, _SIZE, _START = range(len(_COLUMNS))


class DeviceRows:
    """Rows of one node type in order of first appearance, on the device.

    Attributes
    ----------
    row_of : int32, per node of all types its row among those of its type, or :data:`NO_ROW`; in it
        the nodes of this type begin at `start`.
    """

    def __init__(self, layers: DeviceLayers, row_of: Tensor, start: int) -> None:
        self._layers, self.row_of, self.start = layers, row_of, start
        self._ids = row_of.new_empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> Tensor:
        """The node of each row, int64."""
        return self._ids

    def add(self, ids: np.ndarray, findable: bool = True) -> None:
        """Append ids, unique, that are not yet rows; unless `findable`, their neighbours get new
        rows."""
        new = self._layers.up(ids)
        if findable:
            self.row_of.index_copy_(0, new + self.start, torch.arange(
                len(self), len(self) + len(ids), dtype=torch.int32, device=new.device))
        self.append(new)

    def append(self, ids: Tensor) -> None:
        """Append ids that :attr:`row_of` has rows of already."""
        self._ids = torch.cat([self._ids, ids]) if len(self._ids) else ids


class _Layer:
    """One layer of a batch: R destination rows of S samples, which have E edges.

    Columns of `_sample` are per sample: its rows, the row after its last, the first row of its
    source type, where its pointers begin, fanout, key, where its source type begins, how many rows
    the type has, and the block's start.
    """

    def __init__(self, layers: DeviceLayers, wanted: Sequence[Any],
                 rows: Mapping[str, DeviceRows]) -> None:
        self._layers, self._wanted, self._tables = layers, wanted, rows
        constants = layers.constants(wanted, rows)
        self._most = layers.most(wanted)
        self._stops = [0, *constants[:, _STOP].tolist()]
        self._sample = layers.up(constants)
        self._number = torch.arange(len(wanted), device=self._sample.device)
        self._of = torch.repeat_interleave(self._number, self._sample[:, _ROWS],
                                           output_size=self._stops[-1])
        self._own = self._sample[self._of]
        self._nodes = self._every_node()

    def _every_node(self) -> Tensor:
        """The destination nodes of all samples, one after the other."""
        parts = [each.nodes for each in self._wanted]
        if all(isinstance(part, np.ndarray) for part in parts):
            return self._layers.up(np.concatenate(parts))
        return torch.cat([part if isinstance(part, Tensor) else self._layers.up(part)
                          for part in parts])

    def draw(self, indptr: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The source node of each edge (E,), int64, and the row that it ends at."""
        own, nodes = self._own, self._nodes
        at = own[:, _POINTERS] + nodes
        begins = indptr[at]
        degrees = indptr[at + 1] - begins
        drawn = torch.minimum(degrees, own[:, _FANOUT])
        self._drawn, self._ends = drawn, _from_zero(drawn.cumsum(0))
        self._filled = _from_zero((drawn > 0).cumsum(0))
        part = (degrees > drawn) & (drawn > 0)  # rows that choose among their edges
        chooses = _from_zero(part.cumsum(0))
        stops = self._sample[:, _STOP]
        counts = torch.stack([self._ends[stops], self._filled[stops], chooses[stops]]).tolist()
        self._edge_stops, self._filled_stops = [0, *counts[0]], [0, *counts[1]]
        total, rows = self._edge_stops[-1], torch.arange(len(nodes), device=nodes.device)
        if total >= NEW:
            raise HetaError(f"a layer of {total:,} sampled edges is too large for a device; use a "
                            "smaller batch or fanout")
        row = torch.repeat_interleave(rows, drawn, output_size=total)
        place = torch.arange(total, device=nodes.device) - self._ends[row]
        if count := counts[2][-1]:
            at = rows.new_empty(count + 1).scatter_(
                0, torch.where(part, chooses[:-1], count), rows)[:count]
            chosen = self._chosen(at, degrees[at])
            place = torch.where(part[row], chosen.flatten()[
                (chooses[row] * self._most + place).clamp(max=chosen.numel() - 1)], place)
        return indices[begins[row] + place].long(), row

    def _chosen(self, rows: Tensor, degrees: Tensor) -> Tensor:
        """As :func:`choose`, for rows, some at a time."""
        keys, fanouts, nodes = self._own[rows, _KEY], self._own[rows, _FANOUT], self._nodes[rows]
        step = max(PIECE // self._most, 1)
        return torch.cat([choose(keys[low:low + step], nodes[low:low + step],
                                 degrees[low:low + step], fanouts[low:low + step], self._most)
                          for low in range(0, len(rows), step)])

    def give_rows(self, edges: tuple[Tensor, Tensor], row_of: Tensor) -> Tensor:
        """The row of each edge's source (E,), int32; nodes without one get the next ones, in the
        order in which edges lead to them."""
        sources, row = edges
        nodes = sources + self._own[:, _SOURCE][row]
        mark = torch.arange(NEW, NEW + len(nodes), dtype=torch.int32, device=nodes.device)
        row_of.scatter_reduce_(0, nodes, mark, "amin")
        first = row_of[nodes] == mark
        news = _from_zero(first.cumsum(0))
        # Numbers go on where those of the sample's source type end.
        shift = self._sample[:, _SIZE] - news[self._ends[self._sample[:, _FIRST]]]
        given = news[:-1] + shift[self._of][row]
        row_of.scatter_reduce_(0, nodes, torch.where(first, given, NO_ROW).int(), "amin")
        ids = sources.new_empty(len(sources) + 1).scatter_(
            0, torch.where(first, news[:-1], len(sources)), sources)
        low = 0
        last = dict(zip((each.relation.src for each in self._wanted),
                        news[self._ends[self._sample[:, _STOP]]].tolist()))
        for ntype, high in last.items():
            if high > low:
                self._tables[ntype].append(ids[low:high])
            low = high
        return row_of[nodes]

    def blocks(self, indices: Tensor) -> list[RelationBlock]:
        """The samples as blocks; those with few rows that have edges know them
        (:meth:`RelationBlock.with_edges`), which need not be waited for then."""
        of, drawn = self._of, self._drawn
        bases = self._ends[self._sample[:, _STOP] - self._sample[:, _ROWS]]
        ends = self._ends[1:] - bases[of]
        places = torch.arange(len(of), device=of.device) + of
        indptr = ends.new_zeros(len(of) + len(self._wanted)).scatter_(0, places + 1, ends)
        some, rows = self._with_edges(ends - drawn, bases)
        blocks = []
        for i, each in enumerate(self._wanted):
            low, high = self._stops[i:i + 2]
            first, last = self._filled_stops[i:i + 2]
            own = indices[self._edge_stops[i]:self._edge_stops[i + 1]]
            block = RelationBlock(each.relation, each.start, indptr[low + i:high + i + 1], own,
                                  each.place)
            block.full = 4 * (last - first) > 3 * (high - low)
            if not block.full:
                block.filled = RelationBlock(each.relation, 0, some[first + i:last + i + 1], own,
                                             each.place, rows[first:last])
            blocks.append(block)
        return blocks

    def _with_edges(self, begins: Tensor, bases: Tensor) -> tuple[Tensor, Tensor]:
        """CSC pointers over the rows that have edges, and these rows, of all samples."""
        sample, filled, total = self._sample, self._filled, self._filled_stops[-1]
        size = total + len(self._wanted)
        places = torch.where(self._drawn > 0, filled[:-1], size)
        indptr = begins.new_empty(size + 1)
        indptr.scatter_(0, torch.where(self._drawn > 0, places + self._of, size), begins)
        stops = sample[:, _STOP]
        indptr.scatter_(0, filled[stops] + self._number, self._ends[stops] - bases)
        firsts = sample[:, _STOP] - sample[:, _ROWS] - sample[:, _START]
        own = torch.arange(len(places), device=places.device) - firsts[self._of]
        return indptr, begins.new_empty(size + 1).scatter_(0, places, own)


def _from_zero(sums: Tensor) -> Tensor:
    """Sums with a 0 before them."""
    return torch.cat([sums.new_zeros(1), sums])
