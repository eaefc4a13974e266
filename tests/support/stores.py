"""What the tests of stores share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings

from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
LIKES = Relation("user", "likes", "item")
CITES = Relation("paper", "cites", "paper")
RELAXED = settings(max_examples=25, deadline=None,
                   suppress_health_check=[HealthCheck.function_scoped_fixture])


def one(src, dst, num_src: int = 10, num_dst: int = 10, **kwargs) -> GraphSource:
    return GraphSource("one", {"user": num_src, "item": num_dst},
                       {LIKES: EdgeArrays(np.asarray(src), np.asarray(dst))}, **kwargs)


def small(**arrays) -> GraphSource:
    """Three papers that cite each other, with the arrays given."""
    return GraphSource("small", {"paper": 3},
                       {CITES: EdgeArrays(np.array([0, 1, 2]), np.array([1, 2, 0]))},
                       {"paper": arrays} if arrays else {})


def labelled(**changes) -> GraphSource:
    arrays = {"label": np.array([0, 1, -1]), "train_mask": np.array([True, True, False])}
    arrays.update(changes)
    source = small(**{k: v for k, v in arrays.items() if v is not None})
    source.task = Task("paper", 2)
    return source


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
                          cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done
