"""Which row is cached where: a slot per node, and the replacement rules `fifo` and `clock`."""

from __future__ import annotations

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.features.row_kernels import check_ids
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import prefetch

REPLACEMENTS = ("fifo", "clock")


class Slots:
    """The slots of the cached rows of one array.

    Parameters
    ----------
    count : rows of the array.
    ids : rows that are cached at first, int64, each once; slot i of a device is the i-th of its
        rows.
    devices : row `n` has its slot on device `n mod devices`, and on no other (Heta §6).
    replacement : None, "fifo" or "clock".

    Attributes
    ----------
    of : int32 (count,), the slot of each row on its device, -1 where it is not cached.
    rows : per device the rows in its slots, int64.
    """

    def __init__(self, count: int, ids: np.ndarray, devices: int = 1,
                 replacement: str | None = None) -> None:
        if replacement not in (None, *REPLACEMENTS):
            raise InputError(f"a cache cannot replace rows by '{replacement}'; known are "
                             f"{', '.join(REPLACEMENTS)}")
        if replacement and devices > 1:
            raise InputError(f"a cache that replaces rows ({replacement}) has one device")
        check_ids(ids, count)
        self.replacement, self.devices = replacement, devices
        self.of = np.full(count, -1, np.int32)
        self.rows = [np.sort(ids[ids % devices == d]) for d in range(devices)]
        for rows in self.rows:
            self.of[rows] = np.arange(len(rows), dtype=np.int32)
        self._hand = 0
        self._used = np.zeros(len(self.rows[0]) if replacement == "clock" else 0, np.bool_)

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.rows)

    @property
    def complete(self) -> bool:
        """Return whether all rows are cached, each in the slot of its own number."""
        return self.devices == 1 and len(self.rows[0]) == len(self.of)

    def split(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`(places of hits in ids, their slots, places of misses)`; ids are in range."""
        hits, slots = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        misses = np.empty(len(ids), np.int64)
        n = _split(self.of, ids, hits, slots, misses)
        return hits[:n], slots[:n], misses[:len(ids) - n]

    def admit(self, slots: np.ndarray, missed: np.ndarray
              ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Make room for rows that were missed, after the hits in `slots` were used.

        Returns `(places in missed, their new slots, the rows that were there)`. The caller copies
        rows out and in; at most as many as there are slots.
        """
        if not self.replacement or not len(self.rows[0]):
            nothing = np.empty(0, np.int64)
            return nothing, nothing, nothing
        places, taken, left = (np.empty(min(len(missed), len(self.rows[0])), np.int64)
                               for _ in range(3))
        clock = self.replacement == "clock"
        if clock:
            self._used[slots] = True
        n, self._hand = _admit(self.of, self.rows[0], self._used, clock, self._hand, missed, places,
                               taken, left)
        return places[:n], taken[:n], left[:n]


@kernel
def _split(of, ids, hits, slots, misses):  # type: ignore[no-untyped-def]
    n = m = 0
    for i in range(len(ids)):
        prefetch(of, ids, i)
        slot = of[ids[i]]
        if slot >= 0:
            hits[n], slots[n] = i, slot
            n += 1
        else:
            misses[m] = i
            m += 1
    return n


@kernel
def _admit(of, ids, used, clock, hand, missed, places, taken, left):  # type: ignore[no-untyped-def]
    n = 0
    for i in range(len(missed)):
        if n == len(places):
            break
        if of[missed[i]] >= 0:
            continue  # twice among the missed
        if clock:
            while used[hand]:
                used[hand] = False
                hand = (hand + 1) % len(ids)
        places[n], taken[n], left[n] = i, hand, ids[hand]
        of[ids[hand]] = -1
        ids[hand] = missed[i]
        of[missed[i]] = hand
        if clock:
            used[hand] = True  # so that no slot is taken twice at once
        hand = (hand + 1) % len(ids)
        n += 1
    return n, hand
