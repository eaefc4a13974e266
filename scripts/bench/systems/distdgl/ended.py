"""Run a script as it is, and keep its models' parameters when it has ended:

    python ended.py SEED DIRECTORY SCRIPT ARGS

Each trainer writes DIRECTORY/RANK.npy: the parameters of all modules that the script wrapped in
DistributedDataParallel, one after the other.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

wrapped: list[Any] = []


def keep(directory: Path) -> None:
    if wrapped:
        flat = [p.detach().reshape(-1) for module in wrapped for p in module.parameters()]
        np.save(directory / f"{os.environ.get('RANK', '0')}.npy", torch.cat(flat).numpy())


def noted(module: Any, *args: Any) -> None:
    if isinstance(module, DistributedDataParallel) and module not in wrapped:
        wrapped.append(module)


if __name__ == "__main__":
    seed, directory, *sys.argv = sys.argv[1:]
    torch.manual_seed(int(seed))
    dgl.seed(int(seed))
    torch.nn.modules.module.register_module_forward_pre_hook(noted)
    atexit.register(keep, Path(directory))
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
