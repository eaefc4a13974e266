"""Differences between two ways of computing the same, and the sentences about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dgl_heta.proof.gather import Ids, Places
from dgl_heta.system.nested import Path

Trace = Sequence[tuple[str, Mapping[Path, Tensor]]]
"""The results of modules, by path, in order of execution, with their names."""
_ROUNDING = 1e-3
"""Rows smaller than this, relative to the largest, may be what rounding left of larger ones."""


@dataclass(frozen=True)
class Limits:
    """How much may differ, because sums have another order: rows relative to the largest value,
    gradients relative to their length."""

    rows: float
    gradients: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Limits:
        return cls(1e-7, 1e-6) if dtype == torch.float64 else cls(2e-3, 1e-3)


def relative(got: Tensor, want: Tensor) -> float:
    """The largest difference, relative to the largest wanted value; infinite for one NaN."""
    if got.shape != want.shape:
        return float("inf")
    if not want.numel():
        return 0.0
    size, scale = _sizes(got, want)
    value = size / max(scale, 1e-12)
    return float("inf") if np.isnan(value) else value


def _sizes(got: Tensor, want: Tensor) -> tuple[float, float]:
    """The largest difference, NaN in both being none, and the largest finite value that is wanted.
    """
    got, want = got.detach(), want.detach()
    same = (got == want) | (got.isnan() & want.isnan())
    finite = want[want.isfinite()].abs()
    return (float(torch.where(same, 0, (got - want).abs()).max()),
            float(finite.max()) if len(finite) else 0.0)


class Levels:
    """Rows of a batch with RAF and the plain way, by level.

    Attributes
    ----------
    ours, plain : ids of each level.
    whole : level → node type → which rows are complete with RAF; of others any values may be there.
    """

    def __init__(self, ours: Sequence[Ids], plain: Sequence[Ids],
                 whole: Mapping[int, Mapping[str, np.ndarray]]) -> None:
        self.ours, self.plain, self.whole = ours, plain, whole

    def has(self, path: Path, plain: Tensor) -> bool:
        """Return whether, with RAF, this worker has any of the nodes whose rows these are."""
        types = [p for p in path if p in self.ours[0]][-1:]
        if not types or not plain.dim():
            return True
        counts = [len(here[types[0]]) for here, there in zip(self.ours, self.plain)
                 if len(there[types[0]]) == len(plain)]
        return bool(len(plain)) and all(counts)

    def pair(self, path: Path, ours: Tensor, plain: Tensor) -> tuple[Tensor, Tensor] | None:
        """The same nodes' rows of both ways; None where it is not known of which nodes they are."""
        types = [p for p in path if p in self.ours[0]][-1:] or list(self.ours[0])
        if not (ours.dim() and plain.dim()):
            return (ours, plain) if ours.shape == plain.shape else None
        for level, t in self._levels_of(types, ours, plain):
            return self._rows(level, t, ours, plain)
        return (ours, plain) if ours.shape == plain.shape else None

    def _levels_of(self, types: Sequence[str], ours: Tensor, plain: Tensor
                   ) -> list[tuple[int, str]]:
        """Levels and types with as many nodes as there are rows, both ways; the last level first.
        """
        if not (ours.dim() and plain.dim()) or ours.shape[1:] != plain.shape[1:]:
            return []
        return [(level, t) for level in range(len(self.ours) - 1, -1, -1) for t in types
                if len(self.ours[level][t]) == len(ours)
                and len(self.plain[level][t]) == len(plain)]

    def _rows(self, level: int, ntype: str, ours: Tensor, plain: Tensor) -> tuple[Tensor, Tensor]:
        here, there = self.ours[level][ntype], self.plain[level][ntype]
        if len(here) == len(there) and np.array_equal(here, there):
            places = np.arange(len(here))
        else:
            places = Places(there).of(here)
        mask = places >= 0
        kept = self.whole.get(level, {}).get(ntype)
        if kept is not None:
            mask &= kept
        own = torch.from_numpy(np.flatnonzero(mask)).to(ours.device)
        return ours[own], plain[torch.from_numpy(places[mask]).to(plain.device)]

    def first_difference(self, ours: Trace, plain: Trace, limit: float) -> str | None:
        """Where, in order of execution, rows of a module differ first."""
        for name, path, got, want in _alike(ours, plain):
            pair = self.pair(path, got, want)
            if pair is not None and (size := relative(*pair)) > limit:
                ntype = next((f" of '{p}'" for p in path if p in self.ours[0]), "")
                return f"rows{ntype} from module '{name or 'itself'}' (by {size:.1e})"
        return None

    def hidden_difference(self, ours: Trace, plain: Trace, limit: float) -> str | None:
        """The same of rows by node type alone, of which it is sure whose they are.

        For outputs that agree because nothing comes through to them: an activation in saturation
        gives the same for all nodes.
        """
        pairs = []
        for name, path, got, want in _alike(ours, plain):
            types = [p for p in path if p in self.ours[0]]
            if types and name and len(self._levels_of(types[-1:], got, want)) == 1:
                pair = self.pair(path, got, want)
                if pair is not None and pair[1].numel():
                    pairs.append((name, types[-1], *pair))
        sizes = [_sizes(got, want) for _, _, got, want in pairs]
        largest = max((scale for _, scale in sizes), default=0.0)
        for (name, ntype, *_), (size, scale) in zip(pairs, sizes):
            # What is left of a cancellation, far below all others, is rounding.
            scale = max(scale, _ROUNDING * largest)
            if not size <= limit * scale:
                return f"rows of '{ntype}' from module '{name}' differ by {size / scale:.1e}"
        return None


def _alike(ours: Trace, plain: Trace) -> Iterator[tuple[str, Path, Tensor, Tensor]]:
    """Module's name, path, and both ways' rows, of modules that were called alike."""
    of: dict[str, list[Mapping[Path, Tensor]]] = {}
    for name, outputs in ours:
        of.setdefault(name, []).append(outputs)
    seen: dict[str, int] = {}
    calls = Counter(name for name, _ in plain)
    for name, outputs in plain:
        number = seen[name] = seen.get(name, -1) + 1
        if calls[name] != len(of.get(name, ())):  # one a relation, of which there are fewer
            continue
        for path, want in outputs.items():
            got = of[name][number].get(path)
            if got is not None:
                yield name, path, got, want


def worst_by_id(ours: tuple[np.ndarray, np.ndarray], plain: tuple[np.ndarray, np.ndarray]) -> float:
    """The largest difference of sums by node id, relative to the largest."""
    ids = np.union1d(ours[0], plain[0])
    both = np.zeros((2, len(ids), 3))
    for way, (known, values) in enumerate((ours, plain)):
        both[way, np.searchsorted(ids, known)] = values
    if not len(ids):
        return 0.0
    size = np.abs(both[0] - both[1])[:, :2].max()
    return float(size / max(both[1, :, 2].max(), 1e-12))
