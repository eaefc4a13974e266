"""RAF against one process, in fp64: the cases, how they are run, how they are compared.

    python -m tests.support.exactness [--parts 2 3 4]

runs all cases (full neighbourhoods unless a case says otherwise) on the graph of the tests, six
steps with Adam in two epochs, and prints the largest relative differences as a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from dgl_heta.store import write_store
from tests.support.copies import copies, within
from tests.support.graphs import academic, with_tasks
from tests.support.waiting import PATIENCE

BATCH = 24  # seeds of a step over all workers; divides by 1, 2, 3, 4 and 8
STEPS = 2  # of an epoch: one of full size and the uneven last
LIMIT = 1e-9
KINDS = ("logits", "loss", "gradients", "parameters", "features")


def cases() -> dict[str, dict[str, Any]]:
    """Case name → settings that differ from the base, as `section.key`."""
    found: dict[str, dict[str, Any]] = {}
    for reduce, loop, bases in product(("sum", "mean", "max", "min"), (True, False), (0, 2)):
        name = f"{reduce}{'-self_loop' if loop else ''}{'-bases' if bases else ''}"
        found[name] = {"model.reduce": reduce, "model.self_loop": loop, "model.bases": bases}
    found["one layer"] = {"model.layers": 1, "train.fanouts": [-1]}
    found["three layers"] = {"model.layers": 3, "train.fanouts": [-1, -1, -1],
                             "model.reduce": "mean"}
    found["sampled"] = {"train.fanouts": [2, 3], "model.layer_norm": True}
    found["without seed states"] = {"train.seed_states": False, "model.self_loop": False}
    found["max over neighbours"] = {"model.aggregate": "max", "model.reduce": "mean"}
    found["min over neighbours"] = {"model.aggregate": "min", "model.reduce": "max"}
    found["torch kernel"] = {"train.kernel": "torch"}
    for model, loop in product(("rgat", "hgt", "han"), (True, False)):
        found[f"{model}{'-self_loop' if loop else ''}"] = {
            "model.name": model, "model.self_loop": loop, "model.heads": 2,
            "model.layer_norm": loop}
        found[f"{model} sampled, three layers"] = {
            "model.name": model, "model.heads": 3, "train.fanouts": [2, 3, 2], "model.layers": 3}
    found["rgat-mean"] = {"model.name": "rgat", "model.reduce": "mean", "model.heads": 2}
    found["multi-label"] = {"task.kind": "multilabel", "task.label": "keywords"}
    found["regression"] = {"task.kind": "regression", "task.label": "citations"}
    found["multi-label, some unknown"] = {"task.kind": "multilabel", "task.label": "some_keywords",
                                          "task.unlabelled": -1}
    found["regression, some unknown"] = {"task.kind": "regression", "task.label": "some_citations"}
    found["classes, some unknown"] = {"task.unlabelled": 2}
    both = {"task.targets": ["paper", "author"]}
    found["two targets"] = both
    found["two targets, hgt"] = {**both, "model.name": "hgt", "model.heads": 2}
    found["two targets, han, sampled"] = {**both, "model.name": "han", "model.heads": 2,
                                          "train.fanouts": [2, 3]}
    for name, relation, reverse in (("links", "writes", "rev-writes"),
                                    ("links inside a type", "cites", "rev-cites")):
        found[name] = {"task.relation": relation, "task.reverse": reverse, "task.negatives": 2,
                       "model.reduce": "mean"}
    found["links, sampled, hgt"] = {**found["links"], "model.name": "hgt", "model.heads": 2,
                                    "train.fanouts": [2, 3]}
    found["links, without seed states"] = {
        **found["links"], "train.seed_states": False, "model.self_loop": False}
    found["metapaths"] = {"metapaths": [
        ["rev-writes", "writes"], ["rev-at", "writes"], ["cites"], ["topic", "rev-topic"],
        ["writes", "rev-cites"]]}
    return found


def job(store: Path, out: Path, parts: int, names: list[str] | None = None,
        cut: bool | str | None = None, shared: bool = False, guests: bool = False,
        delegate: int | None = None, others: dict[str, dict[str, Any]] | None = None,
        **extra: Any) -> dict[str, Any]:
    """What the workers are told: cases of these names, all by default, with a plugin's `others`
    beside those of :func:`cases`. `cut` is not None for a plan without replication (a text: cut by
    an array, see the worker's cut_by_array), with `shared` workers share the first sub-metatree,
    with `guests` they load plugins that are installed; with `delegate` learnable types that several
    partitions use are aggregated by one, counted from that partition on."""
    chosen = {}
    for name, changes in {**cases(), **(others or {})}.items():
        if names is not None and name not in names:
            continue
        settings: dict[str, dict[str, Any]] = {
            "model": {"hidden": 6},
            "train": {"batch_size": BATCH // parts, "fanouts": [-1, -1], "dtype": "float64",
                      "threads": 1},
            "run": {"timeout_s": PATIENCE}}
        for key, value in {**changes, **extra}.items():
            if key != "metapaths":
                section, name_of = key.split(".")
                settings.setdefault(section, {})[name_of] = value
        chosen[name] = {"settings": settings, "metapaths": changes.get("metapaths"), "cut": cut,
                        "shared": shared and parts > 1,
                        "delegate": delegate}
    return {"store": str(store), "out": str(out), "parts": parts, "cases": chosen,
            "guests": guests, "steps": STEPS}


def run(description: dict[str, Any], out: Path, worker: str = "exact_worker"
        ) -> dict[str, list[dict[str, np.ndarray]]]:
    """Run a job on its workers; returns for each case what every worker computed."""
    parts = description["parts"]
    file, meeting = out / f"job-{parts}.json", out / f"meeting-{parts}"
    meeting.unlink(missing_ok=True)
    file.write_text(json.dumps({**description, "meeting": str(meeting)}))
    status, text = copies(f"tests.support.{worker}").run(file, within(PATIENCE))
    assert status == 0, text
    return {name: [_read(out / f"{name}-{parts}-{rank}") for rank in range(parts)]
            for name in description["cases"]}


def _read(file: Path) -> dict[str, np.ndarray]:
    """What a worker has written."""
    return load_file(file) if file.exists() else dict(np.load(f"{file}.npz"))


def differences(one: dict[str, np.ndarray], many: list[dict[str, np.ndarray]]
                ) -> dict[str, float]:
    """Largest relative difference of logits, loss, gradients, parameters and features."""
    worst = dict.fromkeys(KINDS, 0.0)

    def compare(kind: str, got: np.ndarray, want: np.ndarray) -> None:
        assert got.shape == want.shape, (kind, got.shape, want.shape)
        if want.size:
            # Some gradients are zero but for rounding: a softmax does not see what is added to all.
            scale = max(float(np.abs(want).max()), 1e-6)
            difference = float(np.abs(got - want).max()) / scale
            if not difference <= worst[kind]:  # NaN counts as a difference
                worst[kind] = difference

    for key, want in one.items():
        if key.endswith("/logits"):
            # A node can be the seed of several workers, and then all computed it.
            own = key.replace("logits", "own")
            place = {node: row for row, node in enumerate(one[own].tolist())}
            order = [place[node] for m in many for node in m[own].tolist()]
            assert set(order) == set(range(len(want))), (key, "seeds")
            compare("logits", np.concatenate([m[key] for m in many]), want[order])
        elif key.endswith("/loss"):
            compare("loss", np.mean([m[key] for m in many]), want)
        elif "/grad/" in key:
            for m in many:
                compare("gradients", m[key], want)
        elif key.startswith("parameter/"):
            for m in many:
                compare("parameters", m[key], want)
        elif key.startswith("rows/"):
            whole = np.full_like(want, np.nan)
            for m in many:
                for name, rows in m.items():
                    kind, _, rest = name.partition("/")
                    ntype, _, low = rest.rpartition("/")
                    if kind == "rows" and ntype == key.split("/")[1]:
                        whole[int(low):int(low) + len(rows)] = rows
            compare("features", whole, want)
        elif key == "val":
            for m in many:
                compare("loss", m[key], want)
    extra = {k for m in many for k in m if "/grad/" in k} - set(one)
    assert not extra, f"gradients that one process does not have: {sorted(extra)}"
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 3, 4])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        store = Path(name) / "store"
        write_store(with_tasks(academic()), store)
        alone = run({**job(store, Path(name), 1), "steps": 3}, Path(name))
        print(f"| workers | cases | {' | '.join(KINDS)} |")
        print("|---|---|" + "---|" * len(KINDS))
        for parts in chosen.parts:
            together = run({**job(store, Path(name), parts), "steps": 3}, Path(name))
            each = [differences(alone[case][0], workers) for case, workers in together.items()]
            worst = [max(one[kind] for one in each) for kind in KINDS]
            print(f"| {parts} | {len(each)} | {' | '.join(f'{w:.1e}' for w in worst)} |",
                  flush=True)


if __name__ == "__main__":
    main()
