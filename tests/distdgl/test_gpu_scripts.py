"""Scripts for DistDGL and GraphBolt that compute on a GPU, on GPUs that are pretended.

Blocks, modules and rows are moved by `.to(device)`. DGL's own kernels are those of its CPU wheel,
given the same numbers (:mod:`tests.support.pretended.dgl_graphs`).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.dist_reference import compare_all, parts, whole_graph
from tests.support.programs import compare, run
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.needs("pretended"), pytest.mark.needs("dgl")]
SUPPORT = Path(__file__).parents[1] / "support"
HERE = "tests.distdgl.programs"
WHOLE = [f"{HERE}.{name}" for name in (
    "usual:keys_and_values", "children:batch_norm", "children:reads_destinations_below",
    "children:stack_in_order", 'multi_update:few "own, mean"', "slices:transformer",
    'edge_data:weighted {"conv": "right"}', 'loops:accumulated "no_sync"',
    'scopes:asked "contrast"', "scopes:drawn_again")]
CUT = [f"{HERE}.{name}" for name in (
    "usual:graph_conv", "children:gat", 'multi_update:kind "min of max and sum"')]


@pytest.mark.parametrize(("programs", "cut"), [(WHOLE, None), (CUT, "permuted")],
                         ids=["replicated", "cut"])
def test_programs_compute_on_gpus_what_they_do_on_cpus(programs: list[str], cut: str | None,
                                                       tmp_path: Path) -> None:
    """And nothing that a GPU refuses; by two trainers, in double precision."""
    plain = run(programs, 2, 1, tmp_path, raf=False)
    ours = run(programs, 2, 1, tmp_path, raf=True, pretended=True, cut=cut)
    assert {name: texts for name in programs
            if any(texts := [compare(*pair) for pair in zip(ours[name], plain[name])])} == {}


def test_programs_prove_themselves_on_gpus(tmp_path: Path) -> None:
    """And a proof changes nothing, not what dropout draws on the GPU."""
    names = [f"{HERE}.proofs:{name}" for name in ("with_dropout", "on_block_data")]
    proved, without = (run(names, 2, 1, tmp_path / prove, raf=True, pretended=True,
                           settings=[f"run.prove={prove}"]) for prove in ("auto", "off"))
    assert {name: texts for name in names
            if any(texts := [compare(*pair, 0.0) for pair in zip(proved[name], without[name])])
            } == {}


def test_a_script_with_embeddings(tmp_path: Path) -> None:
    graph, names = whole_graph(), ["gat-mean", "SparseAdam"]
    command = [warm.with_dgl(), "-m", "dgl_heta", "run", SUPPORT / "pretended/script.py",
               SUPPORT / "dist_script.py", "--part-config", parts(graph, 1, tmp_path / "parts"),
               "--out", tmp_path, "--cases", ",".join(names), "--device", "cuda"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run([*map(str, command)], env=environment, text=True, timeout=PATIENCE,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    assert compare_all(graph, names, tmp_path, 1) == []
