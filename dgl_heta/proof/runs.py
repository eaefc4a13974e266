"""Two recorded runs of one script, compared: with RAF, and in reference mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dgl_heta.proof.comparison import (
    KINDS,
    TOLERANCES,
    Measure,
    Place,
    Verdict,
    compare,
    verdict,
)
from dgl_heta.proof.recorded_run import Record

FLOOR = 1e-3
"""Of the largest gradient of a step: gradients that are this much smaller are compared with it."""
NOISE = 10.0
"""A number of a gradient counts, for what an optimizer makes of it, from so many tolerances on."""
OUTLIERS = 1e-3
"""Share of the numbers of embeddings whose sign an optimizer may take from rounding."""


def compare_runs(got: Sequence[Record], want: Sequence[Record]) -> Verdict:
    """The verdict on the records of all trainers, by rank, of the run with RAF and the reference.

    What only one of the runs recorded (a layer's result on a machine that has not the relation) is
    not compared. Rows that several machines read of one node must be the same on all of them.
    """
    problem = _not_comparable(got, want)
    if problem:
        return Verdict("not proved", f"not proved: {problem}")
    replica = any(r.learnable == "replica" for r in got)
    measures: list[Measure] = []
    for own, other in zip(got, want):
        measures += _trainer(own, other, replica)
    measures += _between_machines(got)
    random = [*dict.fromkeys([*(name for r in (*got, *want) for name in r.random),
                              *_drawn_outside(got, want)])]
    return verdict(measures, _notes(got, replica, random), random=random)


def _not_comparable(got: Sequence[Record], want: Sequence[Record]) -> str:
    """Why two runs cannot be compared; empty if they can."""
    if not got and not want:
        return ("no trainer recorded anything: the script did not open a meta-partitioned graph "
                "with dgl-heta enabled")
    if len(got) != len(want):
        return f"{len(got)} trainers recorded the run with RAF, and {len(want)} the reference"
    if any(r.reference for r in got) or not all(r.reference for r in want):
        return ("the runs are not one with RAF and one in reference mode: the script changes the "
                "settings run.record or run.reference")
    for own, other in zip(got, want):
        for what, counts in (("optimizer steps", (own.steps, other.steps)),
                             ("evaluated batches", (own.evaluations, other.evaluations))):
            if counts[0] != counts[1]:
                return (f"trainer {own.rank} recorded {counts[0]} {what} in the run with RAF, and "
                        f"{counts[1]} in the reference")
        for kind in ("loss", "gradient", "parameter"):
            ours, theirs = (any(key.kind == kind for key in r.entries) for r in (own, other))
            if ours != theirs:
                return (f"trainer {own.rank} recorded a {kind} in the "
                        f"{'run with RAF' if ours else 'reference'} alone")
        for key, entry in own.entries.items():
            there = other.entries.get(key)
            if key.kind not in ("start", "seeds") or there is None:
                continue
            if not _same(entry.values, there.values):
                what = (f"the seeds of the first batches differ (trainer {own.rank})"
                        if key.kind == "seeds" else
                        f"parameter {key.name} differs before the first step (trainer {own.rank})")
                return (f"the two runs do not begin alike, {what}; let the script depend on no "
                        "clock, process number or file that it writes, and seed generators of its "
                        "own")
    return ""


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _drawn_outside(got: Sequence[Record], want: Sequence[Record]) -> Iterator[str]:
    """Where the runs had drawn other random numbers before a module was called."""
    for own, other in zip(got, want):
        for key, entry in own.entries.items():
            there = other.entries.get(key)
            if key.kind == "draws" and there is not None and not _same(
                    entry.values, there.values):
                yield f"the script before it calls {key.name}"
                break


def _notes(got: Sequence[Record], replica: bool, random: Sequence[str]) -> list[str]:
    notes = []
    norms = [*dict.fromkeys(name for r in got for name in r.norms)]
    if norms:
        notes.append(f"{', '.join(norms)}: compared with running statistics; in training a batch's "
                     "statistics differ by design, because they are over the rows of a machine")
    if replica:
        notes.append("train.learnable = replica: gradients of embeddings differ by design, and all "
                     "that follows from a step of theirs; evaluation after it is not compared")
    if random:
        notes.append(f"{', '.join(random)}: draws random numbers, which differ by design")
    if got and not all(r.steps for r in got):
        notes.append("no optimizer step seen")
    if got and not all(r.evaluations for r in got):
        notes.append("no evaluation seen")
    return notes


def _trainer(got: Record, want: Record, replica: bool) -> Iterator[Measure]:
    """Measures of one trainer."""
    coarsest = max((r.precision for r in (got, want)), key=lambda name: TOLERANCES[name])
    tolerance = TOLERANCES[coarsest]
    gradients = _gradients(want)
    tables = any(key.kind == "row" for key in want.entries)  # DGL keeps them in single precision
    largest: dict[str, float] = {}
    for key, entry in want.entries.items():
        if key.kind == "gradient" and entry.values is not None and entry.values.size:
            finite = np.abs(entry.values[np.isfinite(entry.values)])
            largest[key.detail] = max(largest.get(key.detail, 0.0),
                                      float(finite.max()) if finite.size else 0.0)
    for order, (key, entry) in enumerate(got.entries.items()):
        other = want.entries.get(key)
        if other is None or key.kind not in KINDS or (replica and (
                key.kind in ("row", "state") or key.step == "evaluation"
                or key.name in got.tables)):
            continue
        place = Place(key.kind, key.name, key.detail, key.step, got.rank, order)
        of_table = key.kind in ("row", "state") or (tables and key.step == "evaluation")
        allowed = max(tolerance, TOLERANCES["float32"]) if of_table else tolerance
        measure = compare(
            place, entry.values, other.values, entry.ids, other.ids, tolerance=allowed,
            floor=FLOOR * largest.get(key.detail, 0.0) if key.kind == "gradient" else 0.0,
            counts=_counted(key.name, gradients, _gradients(got), tolerance)
            if key.kind == "parameter" else None,
            outliers=OUTLIERS if key.kind == "row" or (of_table and key.kind == "input") else 0.0)
        if measure is not None:
            yield measure


def _gradients(record: Record) -> dict[str, np.ndarray]:
    """Parameter → the last gradient before an optimizer's step, where there is one."""
    gradients = {}
    for key, entry in record.entries.items():
        if key.kind == "gradient" and entry.values is not None:
            gradients[key.name] = entry.values
    return gradients


def _counted(name: str, gradients: dict[str, np.ndarray], others: dict[str, np.ndarray],
             tolerance: float) -> np.ndarray | None:
    """Which numbers of a parameter after a step count, by its gradient in both runs: Adam makes a
    whole step of one that is rounding, too."""
    gradient, other = gradients.get(name), others.get(name)
    if gradient is None or other is None or gradient.shape != other.shape:
        return None
    every = max((float(np.abs(g).max()) for g in gradients.values() if g.size), default=0.0)
    size = max(float(np.abs(gradient).max()) if gradient.size else 0.0, FLOOR * every)
    counted: np.ndarray = (np.abs(gradient) > NOISE * tolerance * size) | (
        (gradient == 0) & (other == 0))
    return counted


def _between_machines(records: Sequence[Record]) -> Iterator[Measure]:
    """Rows that trainers of one group read of the same nodes."""
    for one in records:
        for rank in one.group:
            other = next((r for r in records if r.rank == rank), None)
            if other is None or rank >= one.rank:
                continue
            for order, (key, entry) in enumerate(one.entries.items()):
                there = other.entries.get(key)
                if key.kind != "input" or there is None or entry.ids is None:
                    continue
                place = Place("input", key.name, f"{key.detail} (the same node on trainer {rank})",
                              key.step, one.rank, order)
                measure = compare(place, entry.values, there.values, entry.ids, there.ids,
                                  tolerance=TOLERANCES[one.precision])
                if measure is not None:
                    yield measure
