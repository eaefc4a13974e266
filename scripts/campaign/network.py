"""Strangers connect to the ports of a run: at random moments, and stay until it ends.

Runs: `train` on two workers, and `launch` of a DistDGL script with two trainers on this machine
(needs DGL). A stranger sends nothing, one byte, random bytes, bytes one by one, what looks like a
request of torch's store or a message of DGL, closes its half, or opens many connections. Or a
second launch begins on the same ports, at the same time or later.

Bad is: a socket that listens on every interface; any effect of a stranger at a port whose owner
asks for a proof (the meeting point of trainers, DGL's servers and trainers): the run has to end
well, as fast as alone; at gloo's ports, which ask nobody's name: no end within the time of a run
alone and run.timeout_s, or an end whose last line does not name who failed; of two launches: both
fail, or one ends without an error that names the port, the shared memory or a process; a process
that is left.

The runs have no limit of this script's own but one, which is bad: nothing else ends them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from common import (
    CLI,
    ROOT,
    Bad,
    Ended,
    Running,
    Trial,
    call,
    parser,
    run,
    undisturbed,
    work_dir,
)

GRAPH = "synthetic-mag:scale=0.002"
TIMEOUT_S = 20.0
SETTINGS = ["--set", f"run.timeout_s={TIMEOUT_S:g}"]
TRAIN = ["--set", "model.hidden=16", "--set", "train.epochs=3", "--set", "train.batch_size=128",
         "--set", "train.threads=1", *SETTINGS]
SCRIPT = ROOT / "scripts/campaign/systems/train.py"
SPARE_S = 20.0    # that a stranger may seem to cost, on a busy machine
TWO = "a second on the same ports"
TAKEN = re.compile(r"error: .*(port \d+ at|cannot listen at|(trainer|server) \d)")
NAMED = re.compile(r"error: .*\b(worker|trainer|server) \d")
LISTENS = "0A"
Behaviour = Callable[[socket.socket, random.Random, threading.Event], None]


def silent(place: socket.socket, generator: random.Random, over: threading.Event) -> None:
    over.wait()


def one_byte(place: socket.socket, generator: random.Random, over: threading.Event) -> None:
    place.send(b"x")
    over.wait()


def garbage(place: socket.socket, generator: random.Random, over: threading.Event) -> None:
    while not over.is_set():
        place.sendall(generator.randbytes(generator.randint(1, 1 << 16)))
        over.wait(0.05)


def slow(place: socket.socket, generator: random.Random, over: threading.Event) -> None:
    while not over.wait(0.2):
        place.send(generator.randbytes(1))


def store_request(place: socket.socket, generator: random.Random, over: threading.Event) -> None:
    """As torch's TCPStore: a magic number, then a key to set."""
    place.sendall(struct.pack("=BI", 9, 0x3C85F7CE) + struct.pack("=BQ", 0, 4) + b"rank")
    over.wait()


def message(place: socket.socket, generator: random.Random, over: threading.Event) -> None:
    """As DGL's: a length in 8 bytes, then so many; at times the sign that none follows."""
    data = generator.randbytes(generator.choice([0, 1, 100, 100_000]))
    place.sendall(struct.pack("=q", len(data)) + data)
    over.wait()


def half_open(place: socket.socket, generator: random.Random, over: threading.Event) -> None:
    place.shutdown(socket.SHUT_WR)
    over.wait()


def passing(place: socket.socket, generator: random.Random, over: threading.Event) -> None:
    place.close()


BEHAVIOURS: dict[str, tuple[Behaviour, int]] = {  # how, and how many at once
    "silent": (silent, 1), "one byte": (one_byte, 1), "garbage": (garbage, 2), "slow": (slow, 1),
    "request of a store": (store_request, 1), "message of DGL": (message, 1),
    "half open": (half_open, 3), "many": (silent, 200), "passing": (passing, 20)}


def listeners(pid: int) -> list[tuple[str, int]]:
    """Address and port of each TCP socket at which a process listens, the oldest first."""
    inodes, found = set(), []
    with contextlib.suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(fd)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
            for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = row.split()
                if words[3] == LISTENS and words[9] in inodes:
                    raw, _, port = words[1].partition(":")
                    packed = b"".join(struct.pack("=I", int(raw[i:i + 8], 16))
                                      for i in range(0, len(raw), 8))
                    found.append((int(words[9]), socket.inet_ntop(family, packed), int(port, 16)))
    return [(address, port) for _, address, port in sorted(found)]


def owned(pid: int) -> list[tuple[str, int, str]]:
    """Where a process listens, and who does: "ours", "DGL's" or "gloo's". Of a trainer's sockets
    DGL's is the first, but for the meeting point."""
    try:
        variables = dict(word.split("=", 1) for word in Path(f"/proc/{pid}/environ").read_text(
            errors="replace").split("\0") if "=" in word)
    except OSError:  # it has ended
        return []
    ours = variables.get("MASTER_PORT") if "DGL_HETA_MEETING" in variables else None
    found, dgl = [], "DGL's" if "DGL_ROLE" in variables else "gloo's"
    for address, port in listeners(pid):
        owner = "ours" if str(port) == ours else dgl
        if owner == "DGL's" and variables["DGL_ROLE"] != "server":
            dgl = "gloo's"
        found.append((address, port, owner))
    return found


class Strangers:
    """Connects to ports of one owner, as they appear, until the run is over."""

    def __init__(self, running: Running, target: str, how: str, generator: random.Random) -> None:
        self._running, self._target, self._generator = running, target, generator
        self._behaviour, self._number = BEHAVIOURS[how]
        self._over, self._met = threading.Event(), set[int]()
        self.everywhere: set[int] = set()
        self._from = time.monotonic() + generator.uniform(0, 8)

    def look(self) -> None:
        """Connect to what listens now."""
        for pid in self._running.processes():
            for address, port, owner in owned(pid):
                if address in ("0.0.0.0", "::"):
                    self.everywhere.add(port)
                if port in self._met or time.monotonic() < self._from or owner != self._target:
                    continue
                self._met.add(port)
                for _ in range(self._number):
                    threading.Thread(target=self._visit, args=(address, port), daemon=True).start()

    def _visit(self, address: str, port: int) -> None:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 5) as place:
            self._behaviour(place, random.Random(self._generator.random()), self._over)

    def leave(self) -> int:
        """End all visits; returns at how many ports there were some."""
        self._over.set()
        return len(self._met)


def trial(command: list[str], target: str, how: str, alone_s: float
          ) -> Callable[[Path, random.Random], str]:
    def do(place: Path, generator: random.Random) -> str:
        (place / "ip_config.txt").write_text("127.0.0.1\n")
        running = Running(command, place)
        strangers = Strangers(running, target, how, generator)
        until = time.monotonic() + 2 * alone_s + TIMEOUT_S + SPARE_S
        while running.process.poll() is None and time.monotonic() < until:
            strangers.look()
            time.sleep(0.02)
        ended = running.ended(max(until - time.monotonic(), 0.1))
        met = strangers.leave()
        running.none_left(10.0)
        if strangers.everywhere:
            raise Bad(f"listens on every interface: ports {sorted(strangers.everywhere)}")
        return _judged(ended, met, target, alone_s)

    return do


def _judged(ended: Ended, met: int, target: str, alone_s: float) -> str:
    if ended.status == 0:
        if target != "gloo's" and ended.seconds > 2 * alone_s + SPARE_S:
            raise Bad(f"took {ended.seconds:.0f} s; alone {alone_s:.0f} s")
        return "no effect" if met else "nobody listened"
    if target != "gloo's":
        raise Bad(f"status {ended.status}: {ended.last[:300]}")
    if not NAMED.match(ended.last):
        raise Bad(f"the last line names nobody: {ended.last[:300]}")
    return "ended, named"


def two(command: list[str], alone_s: float) -> Callable[[Path, random.Random], str]:
    """Two launches on the same ports, the second up to the time of one later."""
    def do(place: Path, generator: random.Random) -> str:
        runs = []
        for number in range(2):
            at = place / str(number)
            at.mkdir()
            (at / "ip_config.txt").write_text("127.0.0.1\n")
            runs.append(Running(command, at))
            if not number and generator.random() < 0.6:
                time.sleep(generator.uniform(0, alone_s))
        both = [each.ended(4 * alone_s + TIMEOUT_S + SPARE_S) for each in runs]
        for each in runs:
            each.none_left(10.0)
        failed = [ended for ended in both if ended.status]
        if len(failed) == 2:
            raise Bad(f"both failed: {failed[0].last[:200]}; {failed[1].last[:200]}")
        for ended in failed:
            if not TAKEN.match(ended.last):
                raise Bad(f"the last line does not say why: {ended.last[:300]}")
        return "one refused" if failed else "one after the other"

    return do


def main() -> int:
    args = parser(__doc__, "network", 200).parse_args()
    with work_dir(args) as root:
        for parts in (1, 2):
            undisturbed(call([*CLI, "partition", GRAPH, "--parts", str(parts), "--out",
                              f"part-{parts}"], root))
        commands = {"train": [*CLI, "train", str(root / "part-2"), "--run-dir", "run", *TRAIN]}
        targets = [("train", "gloo's")]
        if importlib.util.find_spec("dgl"):
            commands["launch"] = [
                *CLI, "launch", "--ip-config", "ip_config.txt", "--num-trainers", "2",
                "--part-config", str(root / "part-1/synthetic-mag.json"), *SETTINGS, "--",
                sys.executable, str(SCRIPT), "--graph-name", "synthetic-mag", "--ip-config",
                "{ip_config}", "--part-config", "{part_config}"]
            targets += [("launch", target) for target in ("ours", "DGL's", "DGL's", "gloo's", TWO)]
        alone: dict[str, float] = {}

        def draw(generator: random.Random) -> Trial:
            name, target = generator.choice(targets)
            how = generator.choice(sorted(BEHAVIOURS))
            if name not in alone:
                place = root / f"{name}-alone"
                place.mkdir()
                (place / "ip_config.txt").write_text("127.0.0.1\n")
                alone[name] = undisturbed(call(commands[name], place)).seconds
            if target == TWO:
                return Trial(f"{name}, {TWO}", two(commands[name], alone[name]))
            return Trial(f"{name}, {target}: {how}",
                         trial(commands[name], target, how, alone[name]))

        return run(args, root, draw)


if __name__ == "__main__":
    sys.exit(main())
