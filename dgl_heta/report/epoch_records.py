"""The record of a run: what training writes to `metrics.jsonl`, and what of it reports read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from pydantic import TypeAdapter

STAGES = ("sample", "fetch", "forward", "backward", "update")
"""The stages of a step, for its seconds."""
CAUSES = ("partials", "gradients", "learnable", "machine", "sampling")
"""The causes of bytes; `machine`: learnable rows on their way within a machine."""


@dataclass(frozen=True)
class EpochRecord:
    """One epoch; a line of `metrics.jsonl`.

    Attributes
    ----------
    loss, train_acc : over the epoch's steps, of all workers.
    val_acc : None if the epoch was not validated, or nothing is to be.
    metrics : of validation, by name (`train.metrics`); None without any, or without validation.
    seconds : of worker 0, by stage (:data:`STAGES`), `waiting` for others and `total`. `sample` and
        `fetch` are what training waited for where batches are made ahead of time.
    bytes_sent : by all workers, by cause (:data:`CAUSES`), and `total`.
    peak_rss_mb : of worker 0, in 10^6 bytes.
    cache : node type → what the caches did, see
        :meth:`dgl_heta.training.caches.FeatureCaches.counted`; None without caches.
    ahead : where batches are made ahead of time, stage → `worked`, the seconds that it took on
        other threads, and `waited`, those that training waited for it; of worker 0.
    """

    epoch: int
    loss: float
    train_acc: float
    val_acc: float | None
    seconds: dict[str, float]
    bytes_sent: dict[str, int]
    peak_rss_mb: float
    metrics: dict[str, float | None] | None = None
    cache: dict[str, dict[str, int]] | None = None
    ahead: dict[str, dict[str, float]] | None = None

    def to_json(self) -> dict[str, Any]:
        """The line, with `"event": "epoch"`."""
        line = {"event": "epoch", **asdict(self)}
        for name in ("metrics", "cache", "ahead"):
            if line[name] is None:
                del line[name]
        return line

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> EpochRecord:
        """Return the record of which :meth:`to_json` made a line.

        Raises
        ------
        ValueError
            It made no such line: a field is missing or of another type.
        """
        names = {field.name for field in fields(cls)}
        return TypeAdapter(cls).validate_python(
            {key: value for key, value in line.items() if key in names})
