"""Run a script with PyTorch's and DGL's generators seeded: python seeded.py SEED SCRIPT ARGS."""

from __future__ import annotations

import os
import runpy
import sys

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import torch

if __name__ == "__main__":
    seed, *sys.argv = sys.argv[1:]
    torch.manual_seed(int(seed))
    dgl.seed(int(seed))
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
