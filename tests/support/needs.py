"""What some tests need: DGL, its METIS, GraphStorm, hosts that can be emulated, sshd, SLURM,
PostgreSQL, MariaDB, a compiler for the pretended CUDA device, one GPU or two.

Where it is missing, those tests are skipped, and the reason is shown. Where HETA_TESTS_NEED
names it (`dgl,hosts`), they fail instead: scripts/test.sh says so of DGL and GraphStorm
for the environment that has them, .ci/run of hosts, sshd and SLURM, so that nothing stops being
tested unseen.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from functools import cache

import pytest

from dgl_heta.launch.emulated import NAMESPACES, emulation_refused
from tests.support import mariadb, postgres, slurm
from tests.support.ssh_hosts import SSHD

GPU = os.environ.get("HETA_TESTS_GPU")
"""Which GPU tests marked `gpu` see: "1" the machine's, "pretended" one that is not there, None none
(scripts/gpu.sh sets it)."""
if GPU is None:
    # Tests compare numbers of CPUs, and start workers that would share one GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
REQUIRED = frozenset(filter(None, os.environ.get("HETA_TESTS_NEED", "").split(",")))


@cache
def lacking(what: str) -> str | None:
    """Why `dgl`, `gpu`, `gpus`, `graphstorm`, `hosts`, `mariadb`, `metis`, `postgres`, `pretended`,
    `sshd` or `slurm` cannot be used here, or None."""
    if what == "dgl":
        return None if importlib.util.find_spec("dgl") else "DGL is not installed"
    if what == "gpu":
        return _lacks_gpu()
    if what == "gpus":
        return lacking("gpu") or _lacks_second_gpu()
    if what == "graphstorm":
        return None if importlib.util.find_spec("graphstorm") else (
            "GraphStorm is not installed (scripts/setup.sh does it, without its own torch)")
    if what == "hosts":
        refused = emulation_refused()
        return None if refused is None else f"hosts cannot be emulated: {refused}"
    if what == "metis":
        return lacking("dgl") or _metis_fails()
    if what == "pretended":
        from tests.support.pretended import driver  # torch, which other tests do without

        return driver.lacking()
    if what == "sshd":
        if SSHD is None or shutil.which("ssh") is None or shutil.which("rsync") is None:
            return "sshd, ssh or rsync is not installed (on Debian, openssh-server and rsync)"
        made = subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True, check=False)
        return lacking("hosts") or (
            None if os.geteuid() == made.returncode == 0 else "sshd on hosts of its own needs root")
    if what == "slurm":
        return slurm.lacks()
    if what == "postgres":
        return postgres.lacks()
    if what == "mariadb":
        return mariadb.lacks()
    raise ValueError(f"'{what}' is not what a test can need: dgl, gpu, gpus, graphstorm, hosts, "
                     "mariadb, metis, postgres, pretended, sshd, slurm")


def _lacks_gpu() -> str | None:
    """Why there is no GPU; a pretended one is there for this process from now on."""
    if GPU is None:
        return "no GPU is asked for (scripts/gpu.sh does so)"
    if GPU == "pretended":
        if (reason := lacking("pretended")) is None:
            from tests.support.pretended import pretend

            os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
            device = pretend()
            device.__enter__()
            atexit.register(device.__exit__, None, None, None)
        return reason
    import torch

    return None if torch.cuda.is_available() else "PyTorch sees no CUDA device"


def _lacks_second_gpu() -> str | None:
    import torch

    return None if torch.cuda.device_count() > 1 else "there is one GPU"


def _metis_fails() -> str | None:
    """A wheel of DGL can hold a METIS that was built for another processor's instructions."""
    code = ("import dgl; graph = dgl.to_bidirected(dgl.rand_graph(20, 60)); "
            "dgl.metis_partition_assignment(graph, 2)")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                           timeout=120)
    if ended.returncode == -signal.SIGILL:
        return "DGL's METIS was built for instructions that this processor does not have"
    assert ended.returncode == 0, ended.stderr  # anything else is a failure
    return None


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item: pytest.Item) -> None:
    """For tests marked `gpu` or `needs(what)`; a conftest.py imports it."""
    needed = [what for marker in item.iter_markers("needs") for what in marker.args]
    for what in [*(["gpu"] if item.get_closest_marker("gpu") else []), *needed]:
        if reason := lacking(what):
            (pytest.fail if what in REQUIRED else pytest.skip)(reason)
