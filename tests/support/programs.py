"""Programs: models and training loops written once, run by plain DGL and under RAF, in fp64.

A program is a function of a :class:`tests.support.programs_worker.Trainer`, which it takes its
graph's facts, loaders, features and module wrapper from, and which it tells what it has found:

    def two_layers(t: Trainer) -> None:
        net = t.parallel(Net(t.facts))
        for ids, seeds, blocks in t.loader(batch_size=12):
            out = net(blocks, t.features(ids))
            cross_entropy(out, t.labels(seeds)).backward()
            t.record("out", out, seeds["paper"])
            t.gradients(net)

It is named "module:function", or "module:function JSON": then what is in the JSON is its second
argument. `differences` runs programs twice, each time in as many processes as
there are trainers: by plain DGL on the whole graph, with torch's DistributedDataParallel, each
trainer with its own seeds and all their neighbours; and with dgl-heta on meta-partitions, without
DistDGL's servers (so without DistEmbedding and DistTensor). It says what differs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch.distributed import TCPStore

from tests.support.copies import copies
from tests.support.cuts import cut_partition
from tests.support.dist_reference import parts as make_parts
from tests.support.dist_reference import whole_graph
from tests.support.waiting import PATIENCE

LIMIT = 1e-9  # of fp64, relative to the largest value of an array
SHAPES = [(2, 1), (3, 1), (2, 2)]
"""Machines and trainers per machine."""
EXCHANGE_S = 30
"""How long an exchange waits (run.timeout_s); what ends earlier was not waited out."""


def dealt(programs: Sequence[str], machines: int, trainers: int, times: int = 1) -> list[str]:
    """The programs for one of `SHAPES`: each has so many `times` a shape, in turn, so that every
    kind of program meets every shape, and none is left out."""
    place = SHAPES.index((machines, trainers))
    return [program for number, program in enumerate(programs)
            if (place - number) % len(SHAPES) < times]


@dataclass(frozen=True)
class Found:
    """What one trainer found in one program."""

    arrays: dict[str, np.ndarray]
    error: str | None
    """What it raised: "Class: message"."""
    seconds: float = 0.0


def run(programs: Sequence[str], machines: int, trainers: int, directory: Path, *, raf: bool,
        settings: Sequence[str] = (), sabotage: Sequence[str] = (), patience: float = PATIENCE,
        rare: bool = False, cut: str | None = None, pretended: bool = False
        ) -> dict[str, list[Found]]:
    """What the trainers found in each program.

    Parameters
    ----------
    programs : "module:function", or with an argument.
    raf : with dgl-heta, or by plain DGL.
    settings : of dgl-heta, as `--set`.
    sabotage : functions of :mod:`tests.support.sabotage` to call first.
    rare : on the graph in which small batches reach not every node type.
    cut : without replication, as of :func:`cut_partition`.
    pretended : on a pretended GPU for each trainer.
    """
    found, text = run_some(programs, machines, trainers, directory, raf=raf, settings=settings,
                           sabotage=sabotage, patience=patience, rare=rare, cut=cut,
                           pretended=pretended)
    assert len(found) == len(programs), text
    return dict(zip(programs, found))


def run_some(programs: Sequence[str], machines: int, trainers: int, directory: Path, *, raf: bool,
             settings: Sequence[str] = (), sabotage: Sequence[str] = (),
             patience: float = PATIENCE, timeout_s: int = 120, trace: bool = False,
             nudge: float = 0.0, rare: bool = False, cut: str | None = None,
             pretended: bool = False) -> tuple[list[list[Found]], str]:
    """The same, of the first programs up to one that ends a trainer or the patience; and what the
    trainers printed.

    `patience` is for a program; `timeout_s` of the trainers' process groups. With `nudge` first
    values of parameters are other ones by about so much, relative.
    """
    out = directory / ("raf" if raf else "plain")
    out.mkdir(parents=True, exist_ok=True)
    config = out / "parts" / "academic.json" if raf else Path()
    if raf and not config.exists():
        shared = {"shared": "delegate"} if "partition.shared=delegate" in settings else {}
        made = make_parts(whole_graph(rare), machines, out / ("whole" if cut else "parts"),
                          **shared)
        if cut:
            cut_partition(made, cut, out / "parts")
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    world = machines * trainers
    job = {"programs": list(programs), "trainers": trainers, "world": world, "raf": raf,
           "part_config": str(config), "out": str(out), "port": meeting.port, "trace": trace,
           "nudge": nudge, "rare": rare, "pretended": pretended, "timeout_s": timeout_s,
           "settings": [f"run.timeout_s={EXCHANGE_S}", "run.prove=off", *settings],
           "sabotage": list(sabotage)}
    for old in out.glob("*-*.json"):
        old.unlink()
    file = out / "job.json"
    file.write_text(json.dumps(job))
    logs = [out / f"log-{rank}" for rank in range(world)]
    _, text = copies("tests.support.programs_worker").run(file, _Idle(out, patience))
    text = "\n".join([text, *(log.read_text() for log in logs if log.exists())])
    found = []
    for number in range(len(programs)):
        if not all((out / f"{number}-{rank}.json").exists() for rank in range(world)):
            break
        found.append([_read(out, number, rank) for rank in range(world)])
    return found, text


class _Idle:
    """Whether the trainers have finished no program for too long."""

    def __init__(self, out: Path, patience: float) -> None:
        self._out, self._patience = out, patience
        self._finished, self._since = 0, time.monotonic()

    def __call__(self) -> bool:
        now = sum(1 for _ in self._out.glob("*-*.json"))
        if now > self._finished:
            self._finished, self._since = now, time.monotonic()
        return time.monotonic() - self._since > self._patience


def _read(out: Path, number: int, rank: int) -> Found:
    stem = out / f"{number}-{rank}"
    told = json.loads(Path(f"{stem}.json").read_text())
    with np.load(f"{stem}.npz", allow_pickle=False) as arrays:
        return Found({name: arrays[f"{i}"] for i, name in enumerate(told["names"])},
                     told["error"], told["seconds"])


def differences(programs: Sequence[str], machines: int, trainers: int, directory: Path,
                *, limit: float = LIMIT, rare: bool = False, **options: object
                ) -> dict[str, list[str]]:
    """Per program what differs between plain DGL and RAF; programs without a difference are left
    out. `options` as of :func:`run`."""
    plain = run(programs, machines, trainers, directory, raf=False, rare=rare)
    ours = run(programs, machines, trainers, directory, raf=True, rare=rare, **options)  # type: ignore[arg-type]
    found = {}
    for name in programs:
        texts = [f"trainer {rank}: {text}" for rank, pair in enumerate(zip(ours[name], plain[name]))
                 for text in compare(*pair, limit)]
        if texts:
            found[name] = texts
    return found


def compare(got: Found, want: Found, limit: float = LIMIT) -> list[str]:
    """What differs between the findings of one trainer."""
    if want.error is not None:
        return [f"plain DGL raised {want.error}"]
    if got.error is not None:
        return [f"raised {got.error}"]
    keys = {k for k in want.arrays if not k.endswith("#ids")}
    others = {k for k in got.arrays if not k.endswith("#ids")}
    texts = [f"{k} is missing" for k in sorted(keys - others)]
    texts += [f"{k} is there, and plain DGL has none" for k in sorted(others - keys)]
    if not keys:
        texts.append("nothing was recorded")
    for key in sorted(keys & others):
        worst = size(key, got, want)
        if worst is None:
            texts.append(f"{key} has another shape, or is of other nodes")
        elif not worst <= limit:
            texts.append(f"{key} differs by {worst:.1e}")
    return texts


def size(key: str, got: Found, want: Found) -> float | None:
    """How much an array differs, relative to its largest value; None for one of another shape."""
    a, b = got.arrays[key], want.arrays[key]
    if f"{key}#ids" in want.arrays:
        a, b = _by_id(a, got.arrays[f"{key}#ids"]), _by_id(b, want.arrays[f"{key}#ids"])
    if a.shape != b.shape:
        return None
    return float(np.abs(a - b).max()) / max(float(np.abs(b).max()), 1e-3) if b.size else 0.0


def _by_id(rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return np.column_stack([np.sort(ids), rows.reshape(len(ids), -1)[np.argsort(ids)]])
