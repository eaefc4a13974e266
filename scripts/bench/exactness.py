"""The exactness table: RAF on P workers against one process, fp64, largest relative difference.

    python scripts/bench/exactness.py [--parts 2 3 4]

Runs the cases of tests/exactness.py (reducers × self-loop × bases, depths, sampling, kernels,
metapaths; full neighbourhoods unless a case says otherwise) on the graph of the tests, six steps
with Adam in two epochs, and prints a Markdown table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import exactness
from graphs import academic, with_tasks

from dgl_heta.store import write_store

KINDS = ("logits", "loss", "gradients", "parameters", "features")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 3, 4])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        store = Path(name) / "store"
        write_store(with_tasks(academic()), store)
        alone = exactness.run(exactness.job(store, Path(name), 1), Path(name))
        print(f"| workers | cases | {' | '.join(KINDS)} |")
        print("|---|---|" + "---|" * len(KINDS))
        for parts in chosen.parts:
            together = exactness.run(exactness.job(store, Path(name), parts), Path(name))
            found = [exactness.differences(alone[case][0], workers)
                     for case, workers in together.items()]
            worst = [max(one[kind] for one in found) for kind in KINDS]
            print(f"| {parts} | {len(found)} | {' | '.join(f'{w:.1e}' for w in worst)} |",
                  flush=True)


if __name__ == "__main__":
    main()
