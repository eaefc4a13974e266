"""Accuracy of every model on one worker and on several, over seeds (docs/models.md).

    python scripts/bench/models.py debian --models rgcn,rgat --seeds 3 --out models.json

The batch over all workers is the same, so that nothing differs but the partitioning. Prints a
Markdown table; runs that the output file has already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from common import CLI, markdown, progress, run_child

SETTINGS = {
    "rgcn": [], "rgat": ["model.layer_norm=true"], "hgt": ["model.layer_norm=true"],
    "han": ["model.layer_norm=true"], "sehgnn": ["model.layers=1"], "nars": [],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--models", default=",".join(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1024, help="over all workers")
    parser.add_argument("--out", type=Path, default=Path("models.json"))
    args = parser.parse_args()
    runs = json.loads(args.out.read_text()) if args.out.exists() else {}
    counts = [int(n) for n in args.workers.split(",")]
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "graph" / "store"
        run_child([*CLI, "partition", args.graph, "--out", str(store.parent), "--parts", "1",
                   "--json"], "writing the store")
        for seed in range(args.seeds):
            for model in args.models.split(","):
                for workers in counts:
                    key = f"{model} {workers} {seed}"
                    if key in runs:
                        continue
                    sets = [*SETTINGS[model], f"train.seed={seed}", f"train.epochs={args.epochs}",
                            f"train.batch_size={args.batch // workers}"]
                    summary = run_child([
                        *CLI, "train", str(store), "--model", model, "--parts", str(workers),
                        "--run-dir", f"{directory}/{model}-{workers}-{seed}", "--json",
                        *(part for text in sets for part in ("--set", text))], key).result
                    runs[key] = {name: summary[name] for name in (
                        "test_acc", "val_acc", "epoch_seconds", "bytes_sent_per_epoch")}
                    progress(f"{key}: {runs[key]}")
                    args.out.write_text(json.dumps(runs, indent=1) + "\n")
    rows = []
    for model in args.models.split(","):
        cells = []
        for workers in counts:
            scores = [100 * runs[f"{model} {workers} {s}"]["test_acc"] for s in range(args.seeds)]
            deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
            cells.append(f"{statistics.mean(scores):.2f} ± {deviation:.2f}")
        rows.append([model, *cells])
    print(markdown(["model", *(f"{n} worker{'s' * (n > 1)}" for n in counts)], rows))


if __name__ == "__main__":
    main()
