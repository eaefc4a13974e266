"""What training steps of a partition ask of a GPU that is not there.

    python -m tests.support.pretended.step_counts PARTITION [--device cpu] [SECTION.KEY=VALUE …]

Trains some steps on one worker and prints means of a step: rows that were read; kernels, waits of
the host, bytes up and down, the last three by line. Times say nothing there: with `--device cpu` it
prints milliseconds of this machine's processor instead, by what they were spent on.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from dgl_heta.partition.directory import open_partition
from dgl_heta.sampling.blocks import MiniBatch
from tests.support.pretended import pretend
from tests.support.pretended.counts import COUNTS
from tests.support.pretended.engines import engine_of


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("partition", type=Path)
    options.add_argument("settings", nargs="*")
    options.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options.add_argument("--steps", type=int, default=5)
    args = options.parse_intermixed_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    with (pretend() if args.device == "cuda" else nullcontext(),
          tempfile.TemporaryDirectory() as scratch):
        _train(args, Path(scratch))


def _train(args: argparse.Namespace, scratch: Path) -> None:
    store, plan = open_partition(args.partition)
    engine = engine_of(store, f"train.device={args.device}", *args.settings, plan=plan,
                       scratch=scratch)
    read: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    rows = engine.loading.rows

    def counted(batch: MiniBatch, train: bool) -> dict[str, Tensor]:
        read.update({t: len(ids) for t, ids in batch.input_nodes.items()})
        return rows(batch, train)

    engine.loading.rows = counted  # type: ignore[method-assign]
    for of, name in ((engine.static, "read"), (engine.learnable, "read"),
                     (engine.learnable, "update"), (engine.loading, "sampled"),
                     (engine, "train_step")):
        setattr(of, name, _timed(getattr(of, name), f"{type(of).__name__}.{name}", spent))
    for first in (True, False):  # the first step compiles
        engine.start_epoch(1)
        for counter in (COUNTS, read, spent):
            counter.clear()
        steps = engine.steps("train", 1)[:1 if first else args.steps]
        for _ in engine.train(steps, int(not first)):
            pass
    per_step = {"rows": read, "processor ms": spent}
    if args.device == "cuda":
        del per_step["processor ms"]
        per_step |= {"up": COUNTS.up, "down": COUNTS.down,
                     "waits": Counter({" ".join(key): n for key, n in COUNTS.syncs.items()})}
        print(f"kernels: {COUNTS.kernels.total() / args.steps:,.0f}")
    for what, counts in per_step.items():
        digits = 1 if what == "processor ms" else 0
        print(what if digits else f"{what}: {counts.total() / args.steps:,.0f}")
        for name, count in counts.most_common():
            print(f"    {count / args.steps:13,.{digits}f}  {name}")


def _timed(run: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    """The same function, whose milliseconds of the processor are added up."""
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        made = run(*args, **kwargs)
        spent[name] += 1000 * (time.process_time() - start)  # type: ignore[assignment]
        return made
    return timed


if __name__ == "__main__":
    main()
