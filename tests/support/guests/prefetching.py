"""A guest: batches are sampled ahead of time, on threads of their own.

Each epoch adds a line to $USED/RANK.txt: steps, whether in order, the threads that sampled.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel, Field

from dgl_heta import hookimpl
from dgl_heta.hooks.batch_protocol import Batch, BatchSource


class PrefetchingSettings(BaseModel):
    ahead: int = Field(2, ge=1, description="batches to sample ahead of time")


class Prefetching(BatchSource):
    name = "prefetching"
    settings = PrefetchingSettings()

    def batches(self, steps: int, sample: Callable[[int], Batch], in_order: bool
                ) -> Iterator[Batch]:
        threads: set[str] = set()

        def one(step: int) -> Batch:
            threads.add(threading.current_thread().name.rpartition("_")[0])
            return sample(step)

        waiting: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(1 if in_order else 2, "prefetching") as pool:
            try:
                for step in range(steps):
                    waiting.append(pool.submit(one, step))
                    if len(waiting) > self.settings.ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
                used = Path(os.environ["USED"]) / f"{os.environ.get('RANK', '0')}.txt"
                with used.open("a") as out:
                    out.write(f"{steps} {in_order} {','.join(sorted(threads))}\n")


@hookimpl
def dgl_heta_batch_sources() -> list[Prefetching]:
    return [Prefetching()]
