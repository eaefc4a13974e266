"""Differences between two runs of one program, by how much and where; the verdict on them.

Pure functions of arrays. Rows of the two runs are matched by their nodes' ids, because the runs
have them in different orders, and each has rows that the other has not.

A difference is the largest |got - want| of the common rows, relative to the largest |want| of the
array. Sums over relations are taken in another order under RAF, so results differ by rounding: the
tolerances are far above that, and far below what leaving out or exchanging anything makes. Where
what is left after cancellation is compared (a gradient that should be zero), its own largest value
is rounding, too: then `floor` is the size of the numbers that it was made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
"""Relative, by the name of the dtype that a script computes in; 0 for all others."""
SMALL = 1e-2
"""The difference that one number on the other side of a step can make in single precision."""
PAGE = "docs/switching.md#the-proof"
_COMPUTING = ("code that works on a block itself (its edges, adjacency, degrees, or all rows of a "
              "layer together), a merge that depends on the order of relations, inputs that depend "
              "on the trainer's own seeds, state that a module keeps from call to call")
_UPDATING = ("gradients that are changed before they are averaged (hooks, clipping within the "
             "backward pass), a second backward pass, a loss that is divided by what depends on "
             "the trainer, a callable that merges relations and leaves some out")
CAUSES = {
    "input": "inputs that depend on the trainer's own seeds (labels that are masked, positions in "
             "the batch), or on what a script keeps from batch to batch",
    "layer": _COMPUTING, "output": _COMPUTING, "loss": _COMPUTING, "gradient": _UPDATING,
    "parameter": _UPDATING,
    "row": "an embedding that is read after another batch was drawn, or more than once",
}
CAUSES["state"] = CAUSES["row"]
"""By the kind of what differs first."""
KINDS = ("input", "layer", "output", "loss", "gradient", "parameter", "row", "state")
"""Kinds of arrays that are compared, in the order in which a step computes them. `layer` is what
modules within a model return, `row` an embedding's row after the step, `state` a sparse optimizer's
of that row."""
RESULTS = ("output", "loss", "gradient")
"""Without any of these nothing was proved."""


@dataclass(frozen=True)
class Place:
    """The name of an array, and where in a run it was.

    Attributes
    ----------
    kind : one of :data:`KINDS`.
    name : of the module, parameter or embedding.
    detail : layer and node type, as a message has them; may be empty.
    step : "training", "evaluation" (after a step) or "evaluation before training".
    trainer : its rank.
    order : position in the run's order of execution.
    """

    kind: str
    name: str
    detail: str = ""
    step: str = "training"
    trainer: int = 0
    order: int = 0

    def __str__(self) -> str:
        what = {"input": "rows read by", "row": "rows of embedding", "layer": "result of",
                "state": "the optimizer's state of embedding"}.get(self.kind, self.kind)
        named = f"{what} {self.name}".rstrip() + (f", {self.detail}" if self.detail else "")
        return named + ("" if self.step == "training" else f", in {self.step}")


@dataclass(frozen=True)
class Measure:
    """How far an array of two runs is apart.

    Attributes
    ----------
    largest : the relative difference; infinite where numbers cannot be compared.
    tolerance : what it may be at most.
    rows : how many rows (or numbers) were compared.
    where : the node or the element of the largest difference.
    reason : why the difference is infinite, in words; else empty.
    zeros, nan : whether both arrays are zeros, or have NaN, of which nothing follows.
    """

    place: Place
    largest: float
    tolerance: float
    rows: int
    where: str = ""
    reason: str = ""
    zeros: bool = False
    nan: bool = False

    @property
    def differs(self) -> bool:
        return not self.largest <= self.tolerance

    def amount(self) -> str:
        """The difference in words."""
        return self.reason or f"differs by {self.largest:.1e} of its largest value"


def compare(place: Place, got: np.ndarray | None, want: np.ndarray | None,
            got_ids: np.ndarray | None = None, want_ids: np.ndarray | None = None, *,
            tolerance: float, floor: float = 0.0, counts: np.ndarray | None = None,
            outliers: float = 0.0) -> Measure | None:
    """Compare an array of two runs; None if they have no row in common.

    Parameters
    ----------
    got, want : of the run to be proved and of the reference; None where there is no such array,
        which is not the same as zeros (a gradient that is None).
    got_ids, want_ids : (rows,) int64, the node of each row, of which the first counts where a node
        is a seed of several trainers; without them rows are in one order.
    tolerance : relative; 0 for numbers that must be equal.
    floor : the least size to take differences relative to.
    counts : bool, of the shape of `want`: which numbers count at all.
    outliers : share of the numbers that may differ at will, where a result is discontinuous.
    """
    if got is None or want is None:
        if got is None and want is None:
            return None
        there = want if got is None else got
        assert there is not None
        reason = ("is None, but the reference has " if got is None else
                  "is there, but None in the reference: it has ") + (
            "zeros" if not np.any(there) else "values")
        return Measure(place, np.inf, tolerance, 0, reason=reason)
    ids = None
    if got_ids is not None and want_ids is not None:
        ids, rows, other = np.intersect1d(got_ids, want_ids, return_indices=True)
        if not len(ids):
            return None
        got, want = got[rows], want[other]
        counts = None if counts is None else counts[other]
    if got.shape != want.shape:
        return Measure(place, np.inf, tolerance, len(want) if want.ndim else 1,
                       reason=f"has the shape {got.shape}, but {want.shape} in the reference")
    if not want.size:
        return None
    return _measure(place, got, want, ids, tolerance, floor, counts, outliers)


def _measure(place: Place, got: np.ndarray, want: np.ndarray, ids: np.ndarray | None,
             tolerance: float, floor: float, counts: np.ndarray | None, outliers: float) -> Measure:
    rows = len(want) if want.ndim else 1
    exact = got.dtype.kind not in "fc" or want.dtype.kind not in "fc"
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(got - want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))  # of infinities and NaN, too
    apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
    finite = np.abs(want[np.isfinite(want)])
    size = max(float(finite.max()) if finite.size else 0.0, floor)
    if counts is not None:
        apart = np.where(counts, apart, 0.0)
    if exact:
        tolerance = 0.0
    flat = apart.reshape(-1)
    left_out = int(outliers * flat.size)
    at = int(np.argpartition(flat, -1 - left_out)[-1 - left_out])
    largest = float(flat[at])
    relative = 0.0 if largest == 0 else largest / size if size else np.inf
    return Measure(place, relative, tolerance, rows, _where(ids, want.shape, at),
                   zeros=not want.any() and not got.any(),
                   nan=bool((np.isnan(got) & np.isnan(want)).any()))


def _where(ids: np.ndarray | None, shape: tuple[int, ...], at: int) -> str:
    index = np.unravel_index(at, shape)
    if ids is not None:
        return f"node {ids[index[0]]}"
    return f"element {list(map(int, index))}" if shape else ""


@dataclass(frozen=True)
class Verdict:
    """The verdict of a comparison.

    Attributes
    ----------
    status : "proved", "differs" or "not proved".
    message : one sentence or two.
    measures : of everything that was compared.
    notes : what is different by design or was not seen.
    """

    status: str
    message: str
    measures: tuple[Measure, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def proved(self) -> bool:
        return self.status == "proved"


def verdict(measures: Iterable[Measure], notes: Sequence[str] = (), *,
            random: Sequence[str] = ()) -> Verdict:
    """The verdict on measures of all trainers.

    Parameters
    ----------
    notes : passed on.
    random : modules that draw random numbers, so that what they return must differ.
    """
    compared = tuple(measures)
    results = [m for m in compared if m.place.kind in RESULTS]
    wrong = [m for m in compared if m.differs]
    if wrong:
        if random:
            return Verdict("not proved", f"not proved: {_names(random)} draws random numbers, "
                           f"which the two runs cannot draw alike, and {_difference(wrong)}",
                           compared, tuple(notes))
        causes = CAUSES[_first(wrong).place.kind]
        small = (" Differences this small can be rounding where a function has a step (relu, max); "
                 "--double tells." if max(m.largest for m in wrong) < SMALL and all(
                     m.tolerance >= TOLERANCES["float32"] for m in wrong) else "")
        return Verdict("differs", f"{_difference(wrong)}{small} Usual causes: {causes}; see {PAGE}",
                       compared, tuple(notes))
    if not results:
        return Verdict("not proved", "not proved: nothing was compared, because no output, loss or "
                       f"gradient was seen in both runs; see {PAGE}", compared, tuple(notes))
    nan = [m for m in results if m.nan]
    if nan:
        return Verdict("not proved", f"not proved: {_first(nan).place} has NaN in both runs, of "
                       f"which nothing follows; see {PAGE}", compared, tuple(notes))
    if all(m.zeros for m in results):
        return Verdict("not proved", "not proved: all that could be compared is zeros, of which "
                       f"nothing follows; see {PAGE}", compared, tuple(notes))
    worst = max(compared, key=lambda m: m.largest / m.tolerance if m.tolerance else 0.0)
    trainers = len({m.place.trainer for m in compared})
    return Verdict("proved", f"proved: {len(compared)} arrays of {trainers} "
                   f"{'trainer agrees' if trainers == 1 else 'trainers agree'} with plain DGL; the "
                   f"largest relative difference is {worst.largest:.1e} ({worst.place})", compared,
                   tuple(notes))


def _difference(wrong: Sequence[Measure]) -> str:
    """Which result, by how much, and the first place where the runs part."""
    order = [*dict.fromkeys((*RESULTS, *KINDS))]
    worst = min(wrong, key=lambda m: (order.index(m.place.kind), m.place.step != "training",
                                      -m.largest))
    first = _first(wrong)
    text = f"{worst.place} {worst.amount()}{_on(worst)}"
    if first.place == worst.place:
        return f"{text}; nothing before it differs."
    return (f"{text}; the first difference in the order of execution is at {first.place}, which "
            f"{first.amount()}{_on(first)}.")


def _first(wrong: Sequence[Measure]) -> Measure:
    return min(wrong, key=lambda m: (m.place.step != "training", m.place.order))


def _on(measure: Measure) -> str:
    where = f", {measure.where}" if measure.where else ""
    return f" (trainer {measure.place.trainer}{where})"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" (and {len(names) - 3} more)" if len(names) > 3 else "")
