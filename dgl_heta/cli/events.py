"""The progress bar and the line per epoch, from what the workers of a job report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dgl_heta.report.console import Advance, err, note, progress


@contextmanager
def drawn_events(show: bool, epochs: int = 0) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A receiver of workers' events, which draws them on standard error.

    Parameters
    ----------
    show : whether to draw anything.
    epochs : of a training.
    """
    with progress(show) as advance:
        def receive(event: dict[str, Any]) -> None:
            if show:
                _draw(event, epochs, advance)

        yield receive


def _draw(event: dict[str, Any], epochs: int, advance: Advance) -> None:
    kind = event["event"]
    if kind == "step":
        advance(f"epoch {event['epoch']}/{epochs}", event["step"], event["steps"],
                f"loss {event['loss']:.3f}")
    elif kind == "profile":
        advance("pre-sampling", event["done"], event["total"])
    elif kind == "progress":
        advance(f"layer {event['layer']}, {event['ntype']}", event["done"], event["total"])
    elif kind == "note":
        note(event["text"])
    elif kind == "epoch":
        err.print(_epoch(event, epochs), markup=False, highlight=False)


def _epoch(event: dict[str, Any], epochs: int) -> str:
    score = "-" if event["val_acc"] is None else f"{event['val_acc']:.4f}"
    cached = (event.get("cache") or {}).values()
    reads, hits = sum(c["reads"] for c in cached), sum(c["hits"] for c in cached)
    more = "".join(f", {name} {'-' if value is None else f'{value:.4f}'}"
                   for name, value in (event.get("metrics") or {}).items())
    return (f"epoch {event['epoch']}/{epochs}: loss {event['loss']:.4f}, train "
            f"{event['train_acc']:.4f}, val {score}{more}, {event['seconds']['total']:.1f} s, "
            f"{event['bytes_sent']['total'] / 1e6:.1f} MB sent"
            + (f", {hits / reads:.1%} of rows in the cache" if reads else ""))
