"""Runs as files, without training; what two runs have in common; and what is in a page of HTML."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from dgl_heta.planning.making import make_plan
from dgl_heta.report.metrics_log import log_line
from dgl_heta.system.checksums import write_signed
from tests.support.plans import MAG

ENDED_IN_STEP_3 = """
import os, signal, sys
import dgl_heta

graph, run_dir, *settings = sys.argv[1:]

def report(event):
    if [event["event"], event.get("epoch"), event.get("step")] == ["step", 2, 3]:
        os.kill(os.getpid(), signal.SIGTERM)

try:
    dgl_heta.train(graph, run_dir, settings=settings, report=report)
except dgl_heta.HetaError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_status)
"""
"""A program that trains and gets SIGTERM in the third step of the second epoch."""


def epoch(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "event": "epoch", "epoch": number, "loss": 3 / number, "train_acc": 0.5, "val_acc": 0.4,
        "seconds": {"sample": 1.5, "fetch": 0.5, "forward": 1.0, "backward": 2.0, "update": 2.5,
                    "total": 8.0},
        "bytes_sent": {"partials": 40_000_000, "gradients": 8_000_000, "learnable": 0,
                       "total": 48_000_000},
        "peak_rss_mb": 1234.5, **changes,
    }


def summary(**changes: Any) -> dict[str, Any]:
    return {
        "dataset": "ogbn-mag", "model": "rgcn", "test_acc": 0.4691, "val_acc": 0.4815,
        "epoch_seconds": 8.25, "bytes_sent_per_epoch": 48_000_000, "peak_rss_mb": 1234.5,
        "stages": {"sample": 1.5, "fetch": 0.5, "forward": 1.0, "backward": 2.0, "update": 2.5},
        "bytes": {"partials": 40_000_000, "gradients": 8_000_000, "learnable": 0},
        "settings": {"train": {"batch_size": 512, "fanouts": [25, 10], "epochs": 10}},
        "versions": {"dgl": "2.1.0"}, "plan": make_plan(MAG, "paper", 2, 2).to_json(),
        "workers": [{"rank": 0, "peak_rss_mb": 1234.5, "bytes_sent": 24_000_000, "seconds": 80.5},
                    {"rank": 1, "peak_rss_mb": 1111.0, "bytes_sent": 24_000_000, "seconds": 80.5}],
        **changes,
    }


def write_run(folder: Path, events: list[Any], result: dict[str, Any] | None) -> Path:
    (folder / "metrics.jsonl").write_text("".join(
        event + "\n" if isinstance(event, str) else log_line(event) for event in events))
    if result is not None:
        write_signed(folder / "summary.json", result)
    return folder


def assert_same_training(run: Path, other: Path) -> None:
    """Two runs have the same losses, scores and models, to the last bit."""
    def numbers(directory: Path) -> list[tuple[Any, ...]]:
        lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
        return [(line["epoch"], line["loss"], line["train_acc"], line["val_acc"])
                for line in lines if line["event"] == "epoch"]

    assert numbers(run) == numbers(other)
    ours, theirs = (load_file(path / "model.safetensors") for path in (run, other))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


class Page(HTMLParser):
    """Text, references and tags of a page; fails on tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append(data.strip())
