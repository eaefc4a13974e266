"""`dgl-heta manifest`: a job for a scheduler, as a file to edit and to submit."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from dgl_heta.cli.options import SettingsOptions, at_least_one, grouped, refuse
from dgl_heta.errors import InputError, several

app = typer.Typer()


class Kind(str, Enum):
    """The kinds of jobs and files that are printed."""

    slurm = "slurm"
    kubernetes = "kubernetes"
    dockerfile = "dockerfile"


SLURM = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={per_node}
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
srun {command}
status=$?
# Ended by SIGTERM before the time limit, all workers have saved: go on in another turn.
if [ $status -eq {preempted} ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $status
"""

KUBERNETES = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {name}
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
    image: {image}
    numNodes: {nodes}
    numProcPerNode: {per_node}
    command: {command}
  runtimePatches:
    - manager: dgl-heta
      trainingRuntimeSpec:
        template:
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec:
                        terminationGracePeriodSeconds: 60
                        volumes:
                          - name: partition
                            hostPath: {{path: {partition}, type: Directory}}
                          - name: run
                            hostPath: {{path: {run_dir}, type: DirectoryOrCreate}}
                        containers:
                          - name: node
                            volumeMounts:
                              - {{name: partition, mountPath: {partition}, readOnly: true}}
                              - {{name: run, mountPath: {run_dir}}}
"""

DOCKERFILE = """# Build in the root of dgl-heta's tree: docker build -t dgl-heta -f Dockerfile .
FROM debian:bookworm-slim
RUN apt-get update \\
    && apt-get install --yes --no-install-recommends python3 python3-venv \\
    && rm -rf /var/lib/apt/lists/*
COPY . /dgl-heta
RUN python3 -m venv /opt/heta && /opt/heta/bin/pip install --no-cache-dir /dgl-heta
ENV PATH=/opt/heta/bin:$PATH
"""


@app.command(epilog="Example: dgl-heta manifest slurm /nvme/mag --run-dir /scratch/mag > job.sh")
@grouped
def manifest(
    kind: Annotated[Kind, typer.Argument(
        help="A script for sbatch, a TrainJob of Kubeflow Trainer, or a Dockerfile.")],
    source: SettingsOptions,
    partition: Annotated[Path | None, typer.Argument(
        help="Partition, at the path that it has on every machine.")] = None,
    run_dir: Annotated[Path | None, typer.Option(
        help="Run directory, at its path on every machine.")] = None,
    parts: Annotated[int | None, typer.Option(
        help="Number of partitions. Default: as in the partition, if it is on this machine.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(
        help="Number of machines. Default: one for each partition.")] = None,
    image: Annotated[str | None, typer.Option(
        help="kubernetes: image that has dgl-heta (see `dgl-heta manifest dockerfile`).")] = None,
) -> None:
    """Print a job for a scheduler; it is started again where it is preempted, and goes on."""
    if kind is Kind.dockerfile:
        refuse({"PARTITION": partition, "--run-dir": run_dir, "--parts": parts, "--nodes": nodes,
                "-c": source.config, "--set": source.overrides or None, "--image": image},
               "no effect on a Dockerfile")
        print(DOCKERFILE, end="")
        return
    from dgl_heta.settings import ENV_PREFIX, setting_variables

    if partition is None or run_dir is None:
        raise InputError(f"a job for {kind.value} needs PARTITION and --run-dir, at their paths on "
                         "every machine")
    workers, count = _workers(partition, parts, source)
    nodes = at_least_one(count if nodes is None else nodes, "--nodes")
    if workers % nodes:
        raise InputError(f"--nodes is {nodes}, which does not divide the "
                         f"{several(workers, 'worker')} of {several(count, 'partition')}")
    common = {"name": _name(partition), "nodes": nodes, "per_node": workers // nodes}
    # What the environment says here, it does not say there.
    config = source.config or os.environ.get("DGL_HETA_CONFIG")
    overrides = [*(f"{name.removeprefix(ENV_PREFIX).lower().replace('__', '.')}={os.environ[name]}"
                   for name in setting_variables(os.environ)), *source.overrides]
    words = ["train", str(partition), "--run-dir", str(run_dir), "--auto-resume",
             *(["-c", str(config)] if config else []),
             *(word for value in overrides for word in ("--set", value))]
    if kind is Kind.slurm:
        refuse({"--image": image}, "no effect on a job of SLURM")
        print(SLURM.format(**common, command=shlex.join(["dgl-heta", *words]),
                           preempted=128 + signal.SIGTERM), end="")
        return
    if image is None:
        raise InputError("a job for kubernetes needs --image, an image that has dgl-heta (see "
                         "`dgl-heta manifest dockerfile`)")
    for path in (partition, run_dir):
        if not path.is_absolute():
            raise InputError(f"{path} is mounted in pods, so it must be an absolute path")
    print(KUBERNETES.format(
        **common, image=json.dumps(image), partition=json.dumps(str(partition)),
        run_dir=json.dumps(str(run_dir)),
        # Kubernetes restarts what fails; workers that torchrun restarted could not meet those.
        command=json.dumps(["torchrun", "-m", "dgl_heta", *words])), end="")


def _workers(partition: Path, parts: int | None, source: SettingsOptions) -> tuple[int, int]:
    """Return the number of workers, and that of partitions."""
    from dgl_heta.partition.directory import is_partition, open_partition
    from dgl_heta.settings import load_settings

    trainers = load_settings(source.config, source.overrides).train.trainers
    if is_partition(partition):
        planned = open_partition(partition)[1].num_parts
        if parts not in (None, planned):
            raise InputError(f"--parts is {parts}, but {partition} has "
                             f"{several(planned, 'partition')}; leave --parts out")
        parts = planned
    if parts is None:
        raise InputError(f"{partition} is no partition on this machine; give --parts, the number "
                         "of its partitions")
    return at_least_one(parts, "--parts") * trainers, parts


def _name(partition: Path) -> str:
    """Return the name of the job: that of the partition, in characters that Kubernetes takes."""
    name = re.sub(r"[^a-z0-9]+", "-", partition.absolute().name.lower())[:30].strip("-")
    return f"heta-{name}".rstrip("-")
