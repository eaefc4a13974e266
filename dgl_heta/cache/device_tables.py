"""Learnable features that are on a GPU as a whole, with their optimizer state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dgl_heta.cache.cached_table import CachedTable
from dgl_heta.errors import HetaError
from dgl_heta.features.learnable import RowGradients
from dgl_heta.features.row_files import move
from dgl_heta.features.row_optimizers import AdamSettings, step_by_operators
from dgl_heta.features.row_table import RowTable


class DeviceTables:
    """Complete tables, one after the other on a device: one gather reads a batch, and one step
    updates it, however many tables there are. Nothing but the numbers of rows is copied there.

    Parameters
    ----------
    tables : by name, of one width and dtype.

    Attributes
    ----------
    tables : the same, by whose other methods each can be read as a whole and loaded.
    """

    def __init__(self, tables: Mapping[str, RowTable], device: torch.device) -> None:
        like = next(iter(tables.values()))
        ends = np.cumsum([table.shape[0] for table in tables.values()]).tolist()
        self._width, self._device = like.shape[1], device
        self._starts = dict(zip(tables, [0, *ends]))
        self._state = torch.empty((ends[-1], 3 * self._width), dtype=like.dtype, device=device)
        self.tables = {
            name: CachedTable(table, np.arange(table.shape[0]), [device],
                              copies=[self._state[self._starts[name]:end]])
            for (name, table), end in zip(tables.items(), ends)}

    def read(self, ids: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Values of rows of some tables, by name, on the device."""
        if not ids:
            return {}
        for name, rows in ids.items():
            self.tables[name].rows += len(rows)
            self.tables[name].hits += len(rows)
        self._ids, self._at = ids, self._places(ids)
        values = self._state[:, :self._width].index_select(0, self._at)
        return dict(zip(ids, values.split([len(rows) for rows in ids.values()])))

    def update(self, rows: Mapping[str, RowGradients], scale: float, adam: AdamSettings) -> None:
        """One step of all tables, on rows of some, with `scale` times their gradients.

        Raises
        ------
        HetaError
            Not all tables have taken as many steps.
        """
        for table in self.tables.values():
            table.step += 1
        step, *others = {table.step for table in self.tables.values()}
        if others:
            raise HetaError(f"learnable features took {step} and {others[0]} steps")
        rows = {name: of for name, of in rows.items() if len(of[0])}
        if rows:
            ids = {name: ids for name, (ids, _) in rows.items()}  # mostly those read last
            is_read = ids.keys() == self._ids.keys() and all(ids[n] is self._ids[n] for n in ids)
            places = self._at if is_read else self._places(ids)
            grads = torch.cat([grads for _, grads in rows.values()])
            self._state.index_copy_(0, places, step_by_operators(
                self._state.index_select(0, places), grads,
                adam.constants(step, scale, self._state.dtype)))

    def _places(self, ids: Mapping[str, np.ndarray]) -> Tensor:
        """Where rows are in the state, on the device."""
        return move(torch.from_numpy(np.concatenate(
            [rows + self._starts[name] for name, rows in ids.items()])), self._device)
