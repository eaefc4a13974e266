"""Commands on a machine that is busy: they take longer, and compute the same.

While `partition`, `train` (two or three workers), `predict` or `launch` (on two emulated hosts)
runs, more processes compute than there are cores, some write to the disk, and now and then one of
the command's own processes is stopped for up to a second, as on a machine that swaps.

Bad is: it fails; it takes more than 60 s longer than its work explains; a process is left; another
result, to the last bit, than on a machine that is not busy.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common import Bad, Running, Trial, parser, run, work_dir
from kill import WEIGHTS, Reference, References, command, digest, launches

SLOWER = 8.0   # how many times longer a command may take
SPARE_S = 60.0
BUSY = "while True: sum(range(100000))"
WRITES = ("import os, sys\nwhile True:\n    with open(sys.argv[1], 'wb') as file:\n"
          "        file.write(bytes(1 << 24)); os.fsync(file.fileno())")


@contextmanager
def load(place: Path, generator: random.Random) -> Iterator[None]:
    """Busy processes, twice as many as there are cores at most, and one that writes."""
    number = generator.randint(1, 2 * (os.cpu_count() or 1))
    commands = [["-c", BUSY]] * number + [["-c", WRITES, str(place / "load")]]
    busy = [subprocess.Popen([sys.executable, *words]) for words in commands]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def trial(kind: str, workers: int, root: Path, reference: Reference
          ) -> Callable[[Path, random.Random], str]:
    def do(place: Path, generator: random.Random) -> str:
        limit = SLOWER * reference.seconds + SPARE_S
        with load(place, generator):
            running = Running(command(kind, place, workers, root), place)
            until = time.monotonic() + limit
            while running.process.poll() is None and time.monotonic() < until:
                time.sleep(generator.uniform(0.2, 2.0))
                _pause(running, generator)
            ended = running.ended(max(until - time.monotonic(), 0.1))
        ended.clean()
        running.none_left(10.0)
        if ended.status:
            raise Bad(f"status {ended.status}: {ended.last[:300]}")
        if digest(kind, place) != reference.digest:
            raise Bad("another result than on a machine that is not busy")
        return "same"

    return do


def _pause(running: Running, generator: random.Random) -> None:
    """Stop one of its processes for a while."""
    pids = sorted(running.processes())
    if not pids:
        return
    pid = generator.choice(pids)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(generator.uniform(0.05, 1.0))
        os.kill(pid, signal.SIGCONT)


def main() -> int:
    args = parser(__doc__, "load", 50).parse_args()
    kinds = [kind for kind in WEIGHTS if kind != "launch" or launches()]
    with work_dir(args) as root:
        references = References(root)

        def draw(generator: random.Random) -> Trial:
            kind = generator.choices(kinds, [WEIGHTS[k] for k in kinds])[0]
            workers = generator.choice([2, 3]) if kind == "train" else 2
            return Trial(f"{kind}, {workers} workers",
                         trial(kind, workers, root, references.of(kind, workers)))

        return run(args, root, draw)


if __name__ == "__main__":
    sys.exit(main())
