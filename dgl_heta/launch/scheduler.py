"""The meaning of torchrun's and SLURM's variables: whether this process is a worker, and which one.

Workers read the variables of torch.distributed: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT. torchrun sets them. `srun` sets its own, from which :func:`adopt` makes
them.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, MutableMapping

from dgl_heta.errors import InputError, quoted

Environment = MutableMapping[str, str]
_PORTS = range(20000, 30000)  # below those that the system gives to whoever asks


def is_worker() -> bool:
    """Return whether a scheduler has started this process as one of the workers."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def workers() -> int:
    """Return how many workers a scheduler has started, of which this process is one; 1 for none."""
    return int(os.environ["WORLD_SIZE"]) if is_worker() else 1


def check_alone(command: str) -> None:
    """Refuse to run what is for one process in several of a scheduler, which would all do it.

    Raises
    ------
    InputError
        There are several, or their variables are wrong (:func:`adopt`).
    """
    adopt()
    if workers() > 1:
        raise InputError(f"{command} is for one process, but a scheduler has started "
                         f"{workers()}; start it without torchrun, or with one task (srun -n 1)")


def restarted() -> bool:
    """Return whether a scheduler has started this process again: torchrun because some worker
    failed (--max-restarts), SLURM because the job was requeued."""
    return any(os.environ.get(name, "0") not in ("", "0")
               for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))


def adopt(env: Environment = os.environ) -> None:
    """Give a task of SLURM the variables of torch.distributed; check those that are given.

    A step of one task is no worker: its process starts the workers. Where torchrun runs in tasks of
    SLURM, its variables count.

    Raises
    ------
    InputError
        A variable is missing or not what it must be, or two contradict each other.
    """
    if "TORCHELASTIC_RUN_ID" in env:
        return
    if "SLURM_PROCID" in env and _number(env, "SLURM_STEP_NUM_TASKS", "1") > 1:
        _adopt_task(env)
    given = [name for name in ("RANK", "WORLD_SIZE") if name in env]
    if len(given) == 1:
        raise InputError(f"{given[0]} is set, but RANK and WORLD_SIZE make a process a worker only "
                         f"together; set both, or unset {given[0]}")
    if not given:
        return
    rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    if rank >= size:
        raise InputError(f"RANK is {rank}, but WORLD_SIZE is {size}: the workers are 0 to "
                         f"{size - 1}")
    if size > 1 and "DGL_HETA_RENDEZVOUS" not in env:
        for name, meaning in (("MASTER_ADDR", "the host of worker 0"),
                              ("MASTER_PORT", "a port of it that is free")):
            if not env.get(name):
                raise InputError(f"{name} is not set, so the {size} workers cannot meet; set it to "
                                 f"{meaning}, or start them by torchrun or srun")


def hosts(nodelist: str) -> list[str]:
    """Return the hosts of a list as SLURM writes it: `n[01-02],m` → n01, n02, m.

    Raises
    ------
    InputError
        It is no such list.
    """
    if not re.fullmatch(r"(?:[\w.,-]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+", nodelist):
        raise InputError(f"SLURM_STEP_NODELIST is {quoted(nodelist)}, which is no list of hosts as "
                         "n[01-04]; set MASTER_ADDR to the host of task 0")
    return ["".join(parts) for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist)
            for parts in itertools.product(*map(_numbers, re.split(r"(\[[^\]]*\])", name)))]


def _numbers(part: str) -> Iterator[str]:
    """Yield what a part of a name stands for: `[01-02,7]` for 01, 02, 7, other text for itself."""
    if not part.startswith("["):
        yield part
        return
    for numbers in part[1:-1].split(","):
        low, _, high = numbers.partition("-")
        yield from (str(n).zfill(len(low)) for n in range(int(low), int(high or low) + 1))


def _adopt_task(env: Environment) -> None:
    """Make the variables of a task of a step with several."""
    for name, of_slurm in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
                           ("LOCAL_RANK", "SLURM_LOCALID")):
        value = str(_number(env, of_slurm))
        if env.setdefault(name, value) != value:
            raise InputError(f"{name} is {quoted(env[name])}, but {of_slurm} is {value}; unset "
                             f"{name}, or start the workers without srun")
    node, tasks = _number(env, "SLURM_NODEID"), env.get("SLURM_STEP_TASKS_PER_NODE", "")
    per_node = [count for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", tasks)
                for _ in range(int(times or 1))]
    if node >= len(per_node):
        raise InputError(f"SLURM_STEP_TASKS_PER_NODE is {quoted(tasks)}, which does not say how "
                         f"many tasks node {node} (SLURM_NODEID) has, as 2(x3),1")
    env.setdefault("LOCAL_WORLD_SIZE", per_node[node])
    nodes = hosts(env.get("SLURM_STEP_NODELIST", ""))
    master = env.setdefault("MASTER_ADDR", nodes[0])
    if master in nodes[1:]:
        raise InputError(f"MASTER_ADDR is {master}, but task 0 is on {nodes[0]}, the first host of "
                         "SLURM_STEP_NODELIST; unset MASTER_ADDR")
    number = 16 * _number(env, "SLURM_JOB_ID") + _number(env, "SLURM_STEP_ID")
    env.setdefault("MASTER_PORT", str(_PORTS[number % len(_PORTS)]))


def _number(env: Environment, name: str, default: str = "") -> int:
    text = env.get(name, default)
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"{name} is {quoted(text) if name in env else 'not set'}; it must be a "
                         "whole number from 0 on")
    return int(text)
