"""Workers that write a partition together, without a scheduler that would end the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.support import warm
from tests.support.waiting import PATIENCE


def write_graph(path: Path) -> Path:
    """Edge files: one relation in four files, which is most of all edges, and a small one."""
    rng = np.random.default_rng(0)
    for part in range(4):
        np.save(path / f"cites-{part}.npy", rng.integers(0, 300, (2, 5000)))
    np.save(path / "writes.npy", np.stack([rng.integers(0, 40, 900), rng.integers(0, 300, 900)]))
    np.save(path / "feat.npy", rng.random((300, 8), np.float32))
    np.save(path / "label.npy", rng.integers(0, 3, 300))
    np.save(path / "train.npy", rng.random(300) < 0.5)
    (path / "metadata.json").write_text(json.dumps({
        "name": "small",
        "nodes": {"paper": {"count": 300, "arrays": {
            "feat": "feat.npy", "label": "label.npy", "train_mask": "train.npy"}},
            "author": {"count": 40}},
        "edges": [{"src": "paper", "etype": "cites", "dst": "paper", "files": ["cites-*.npy"]},
                  {"src": "author", "etype": "writes", "dst": "paper", "files": ["writes.npy"]}],
        "task": {"target": "paper"}}))
    return path


def command(graph: Path, out: Path, *words: str) -> list[str]:
    return ["-m", "dgl_heta", "partition", str(graph), "--out", str(out), "--target", "paper",
            "--parts", "2", *words]


def start(rank: int, of: int, meeting: Path, words: list[str], *before: str, cold: bool = False,
          **env: str) -> subprocess.Popen[str]:
    """One of several workers, without a scheduler that would end the others."""
    return subprocess.Popen(
        [*before, sys.executable if cold or before else warm.python(), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(of),
            "DGL_HETA_RENDEZVOUS": str(meeting), **env})


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Status and errors of workers, in time."""
    said = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    return [(process.returncode, err) for process, err in zip(processes, said)]
