"""What is counted on the pretended device, and what was wrong, each by the line of dgl-heta."""

from __future__ import annotations

import functools
import sys
from collections import Counter

OURS = ("/dgl_heta/", "/dgl_heta_hifuse/")


class Counts:
    """Since :meth:`clear`.

    Attributes
    ----------
    kernels : by "operator line"; one for each operator of ATen that is no view.
    syncs : by (what waits, line): the host waits there until the device has caught up.
    up, down : bytes from memory to the device and back, by line.
    collectives : of groups by NCCL, by name.
    problems : by (kind, line, text): what a GPU would refuse, or do in another order. Those stay.
    """

    def __init__(self) -> None:
        self.problems: Counter[tuple[str, str, str]] = Counter()
        self.clear()

    def clear(self) -> None:
        self.kernels: Counter[str] = Counter()
        self.syncs: Counter[tuple[str, str]] = Counter()
        self.up: Counter[str] = Counter()
        self.down: Counter[str] = Counter()
        self.collectives: Counter[str] = Counter()

    def kernel(self, name: str) -> None:
        self.kernels[f"{name} {line()}"] += 1

    def sync(self, what: str) -> None:
        self.syncs[what, line()] += 1

    def problem(self, kind: str, text: str, where: str | None = None) -> None:
        self.problems[kind, where or line(), text] += 1

    def to_json(self) -> dict[str, object]:
        """Totals, and lists of (what, where, times)."""
        return {"kernels": self.kernels.total(), "syncs": self.syncs.total(),
                "up": self.up.total(), "down": self.down.total(),
                "collectives": dict(self.collectives),
                "of kernels": self.kernels.most_common(),
                "of syncs": [(*key, n) for key, n in self.syncs.most_common()],
                "problems": [" | ".join(key) for key in self.problems]}


COUNTS = Counts()


def line() -> str:
    """The innermost line of dgl-heta that is running, as `file:number`."""
    frame = sys._getframe(1)
    while frame is not None:
        if (name := _of_ours(frame.f_code.co_filename)) is not None:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "(autograd)"


@functools.cache
def _of_ours(file: str) -> str | None:
    """The name of a file in dgl-heta; None for others."""
    at = max(file.rfind(root) for root in OURS)
    return file[at + 1:] if at >= 0 else None
