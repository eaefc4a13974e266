"""What checks of everything that is read cost: checksums, structure, and sums of checkpoints.

    python scripts/bench/checks_cost.py        # train debian and a DistDGL script, 10 minutes

Each command runs in turns with `run.verify` true and false, and all its processes' seconds of the
processor are added up, which other work on the machine changes least. `run.verify` is the pass over
the store and the plan. What remains without it are the sums of checkpoints and models, which are
made and compared in any case: the seconds that all files of the run directory take, as often as
they are written, are added to what the check costs.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from common import (
    CLI,
    SYSTEMS_DIR,
    TIMEOUT_S,
    finish,
    machine,
    markdown,
    output_of,
    parser,
    progress,
    work_dir,
)


def processor_s(command: list[str]) -> float:
    """Seconds of the processor of a command and of all that it starts."""
    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    output_of(command, TIMEOUT_S)
    return used() - before


def sums_s(directory: Path, times: int) -> float:
    """Seconds for the checksums of all files there, so many times: written and compared."""
    from dgl_heta.system.checksums import file_sum

    started = time.process_time()
    for path in directory.rglob("*"):
        if path.is_file():
            file_sum(path)
    return (time.process_time() - started) * times


def main() -> None:
    options = parser(__doc__, "scripts/bench/checks_cost.py")
    options.add_argument("--pairs", type=int, help="default: 5, quick: 1")
    options.add_argument("--epochs", type=int, help="of train; default: its own, quick: 1")
    args = options.parse_args()
    pairs = args.pairs or (1 if args.quick else 5)
    graph = "synthetic-mag:scale=0.002" if args.quick else "debian"
    epochs = ["--set", f"train.epochs={args.epochs or 1}"] if args.epochs or args.quick else []
    before, rows, runs = machine(), [], []
    with work_dir(args) as work:
        parts = work / "parts"
        processor_s([*CLI, "run", str(SYSTEMS_DIR / "distdgl/parts.py"), "--dataset",
                     f"synthetic-mag:scale={0.002 if args.quick else 0.02}", "--num_parts", "2",
                     "--part_method", "meta", "--output", str(parts)])

        def train(verify: str, number: int) -> list[str]:
            return [*CLI, "train", graph, "--run-dir", str(work / f"run-{verify}-{number}"),
                    "--set", f"run.verify={verify}", *epochs]

        def script(verify: str, number: int) -> list[str]:
            return [*CLI, "launch", "--hosts", "2", "--cores", "1", "--part-config",
                    str(parts / "mag.json"), "--set", f"run.verify={verify}", "--", sys.executable,
                    str(SYSTEMS_DIR / "distdgl/train.py"), "--graph-name", "mag", "--ip-config",
                    "{ip_config}", "--part-config", "{part_config}", "--target", "paper",
                    "--classes", "349", "--model", "rgcn", "--epochs", "1", "--steps", "10"]

        commands: dict[str, Callable[[str, int], list[str]]] = {
            f"train {graph}": train, "a script of 10 steps, two hosts": script}
        for name, command in commands.items():
            found: dict[str, list[float]] = {"true": [], "false": []}
            for number in range(pairs):
                for verify in ("true", "false") if number % 2 else ("false", "true"):
                    found[verify].append(processor_s(command(verify, number)))
                    progress(f"{name}, run.verify={verify}: {found[verify][-1]:.1f} s")
            ours = work / "run-true-0"
            kept = 2 * len(list(ours.rglob("checkpoint*"))) or 2
            more = sums_s(ours, kept) if command is train else 0.0
            without = statistics.median(found["false"])
            check = statistics.median(a - b for a, b in zip(found["true"], found["false"]))
            runs.append({"command": name, **found, "sums": more})
            rows.append([name, f"{without:.1f}", f"{check:.2f}", f"{more:.2f}",
                         f"{(check + more) / without:.1%}"])
    finish(args, "What checks cost, seconds of the processor",
           [markdown(["command", "without run.verify", "run.verify (median of pairs)",
                      "sums of checkpoints", "share"], rows)], {"runs": runs}, before)


if __name__ == "__main__":
    main()
