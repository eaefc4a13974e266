"""What the proof inside a run costs (`run.prove`), in a DistDGL script on emulated hosts.

Every tenth step is proved, and its seconds are compared with the median of the four steps around
it, so that other work on the machine touches both alike. `auto` proves three steps of the first
epoch and one of every further one: of 100 steps, that is so many per cent. Bytes are those of a
proof on the links of all hosts, by cause.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import CLI, SYSTEMS_DIR, finish, machine, markdown, parser, progress, work_dir

EVERY = 10


def run(command: list[str], timeout: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} ended with status {done.returncode}:\n"
                 + "\n".join((done.stdout + done.stderr).splitlines()[-40:]))
    return done.stdout + done.stderr


def train(args: Any, model: str, config: Path) -> list[dict[str, Any]]:
    """The record of the epoch of each trainer."""
    text = run([*CLI, "launch", "--hosts", str(args.hosts), "--rate", args.rate, "--cores", "1",
                "--part-config", str(config), "--set", f"run.prove=every {EVERY}", "--",
                sys.executable, str(SYSTEMS_DIR / "distdgl/train.py"), "--graph-name", "mag",
                "--ip-config", "{ip_config}", "--part-config", "{part_config}", "--target",
                "paper", "--classes", "349", "--model", model, "--epochs", "1", "--steps",
                str(args.steps), "--batch-size", str(args.batch)], args.timeout)
    if "not proved" in text:
        sys.exit("error: " + next(x for x in text.splitlines() if "not proved" in x))
    return [json.loads(line) for line in re.findall(r"\{\"seconds\".*\}", text)]


def cost(record: dict[str, Any]) -> list[float]:
    """Steps that each proof but the first took, in steps of its neighbours."""
    steps = record["steps"]
    found = []
    for place in range(EVERY, len(steps) - 2, EVERY):
        around = statistics.median([*steps[place - 2:place], *steps[place + 1:place + 3]])
        found.append((steps[place] - around) / around)
    return found


def main() -> None:
    options = parser(__doc__, "scripts/bench/prove_cost.py")
    options.add_argument("--scale", type=float, default=0.05)
    options.add_argument("--hosts", type=int, default=2)
    options.add_argument("--rate", default="1gbit")
    options.add_argument("--steps", type=int, default=43)
    options.add_argument("--batch", type=int, default=1024)
    options.add_argument("--models", nargs="+", default=["rgcn", "rgat", "hgt"])
    options.add_argument("--timeout", type=float, default=1800.0)
    args = options.parse_args()
    if args.quick:
        args.scale, args.models = 0.01, ["rgcn"]
    before, rows, runs = machine(), [], []
    with work_dir(args) as work:
        run([*CLI, "run", str(SYSTEMS_DIR / "distdgl/parts.py"), "--dataset",
             f"synthetic-mag:scale={args.scale:g}", "--num_parts", str(args.hosts),
             "--part_method", "meta", "--output", str(work / "parts")], args.timeout)
        for model in args.models:
            records = train(args, model, work / "parts/mag.json")
            proofs = [max(each) for each in zip(*map(cost, records))]
            once = statistics.median(proofs)
            step = statistics.median(records[0]["steps"])
            sent = sum(record["causes"].get("proof", 0) for record in records)
            count = len(range(0, len(records[0]["steps"]), EVERY))
            progress(f"{model}: a step {step:.3f} s, proofs {[round(p, 2) for p in proofs]} steps")
            runs.append({"model": model, "step": step, "proofs": proofs, "bytes": sent})
            rows.append([model, f"{step:.3f}", f"{once:.2f} ({min(proofs):.2f}–{max(proofs):.2f})",
                         f"{3 * once:.1f} %", f"{once:.1f} %", f"{sent / count / 1e6:.1f}"])
    finish(args, f"The proof inside a run, {args.hosts} hosts at {args.rate}, ogbn-mag × "
           f"{args.scale:g}, batch {args.batch}",
           [markdown(["model", "s/step", "a proof, in steps", "first epoch of 100 steps",
                      "further ones", "MB a proof"], rows)], {"runs": runs}, before)


if __name__ == "__main__":
    main()
