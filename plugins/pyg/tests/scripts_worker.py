"""Runs scripts one after the other on one worker of several; each prints a line for an epoch."""

from __future__ import annotations

import os
import runpy
import sys
import warnings

if os.environ.get("DGL_ROLE") == "server":  # dgl-heta launch starts servers, too; PyG has none
    sys.exit()
import torch

warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)
for script in sys.argv[1:]:
    torch.manual_seed(3)
    runpy.run_path(script)
sys.stdout.flush()
os._exit(0)  # as docs/own-loop.md says
