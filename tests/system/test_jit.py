"""Without numba what PyTorch can do runs, and what must be compiled says so."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.support.waiting import PATIENCE

PROGRAM = """
import sys
sys.modules["numba"] = None
import numpy as np
import torch
from dgl_heta.errors import HetaError
from dgl_heta.models import HGTLayer, RGATLayer, RGCNLayer
from dgl_heta.nn import FusedKernel, TorchKernel
from dgl_heta.sampling.blocks import InEdges
from dgl_heta.sampling.sampling_kernels import count_drawn
{plugin}

edges = [InEdges(torch.tensor([0, 2, 2, 3]), torch.tensor([1, 0, 1])),
         InEdges(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64))]
gradients = []
for kernel in ({kernels}):
    torch.manual_seed(3)
    x = torch.rand(2, 4, dtype=torch.float64, requires_grad=True)
    y = torch.rand(5, 4, dtype=torch.float64, requires_grad=True)
    scores = [torch.rand(n, 2, dtype=torch.float64) for n in (3, 0)]
    queries = [torch.rand(n, 2, 4, dtype=torch.float64) for n in (3, 1)]
    weights = kernel.edge_softmax(edges, scores)
    total = 0
    for out in (kernel.reduce(edges, [x, y], "mean"), kernel.reduce(edges, [x, y], "max"),
                kernel.u_dot_v(edges, [x, y], queries), kernel.u_mul_e_sum(edges, [x, y], weights),
                kernel.e_max(edges, scores), kernel.e_sum(edges, scores)):
        total += sum(rows.nan_to_num(neginf=0).square().sum() for rows in out)
    total.backward()
    gradients.append(x.grad)
for gradient in gradients:
    torch.testing.assert_close(gradient, gradients[0], rtol=1e-12, atol=0)
assert gradients[0].abs().sum() > 0
try:
    count_drawn(np.zeros(2), np.zeros(1), 1, np.zeros(2))
except HetaError as error:
    print(error)
"""


def without_numba(kernels: str, plugin: str = "") -> str:
    """What the program prints that runs these kernels where numba cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM.format(kernels=kernels, plugin=plugin))],
        capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernels_run_by_torch_alone_and_compiled_functions_name_numba() -> None:
    said = without_numba("TorchKernel(), FusedKernel()")
    assert "'dgl_heta.sampling.sampling_kernels.count_drawn' is compiled by numba" in said
    assert len(said.splitlines()) == 1
