"""What plain DGL computes on the whole graph in memory, for the seeds that trainers had."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dgl_heta.partition.backends.dgl_methods import to_dgl_graph
from dgl_heta.partition.dgl import partition_graph
from tests.support.dist_script import (
    Case,
    Facts,
    Net,
    apart,
    cases,
    delegated_cases,
    drawn_pairs,
    first_rows,
    gradients,
    learnable_case,
    make_net,
)
from tests.support.graphs import academic

LIMIT = 1e-5  # of float32, relative to the largest value of an array
Found = dict[str, np.ndarray]


def whole_graph(rare: bool = False) -> Any:
    """The graph, with the labels under the name that DistDGL's scripts use; or one in which small
    batches reach not every node type, and many nodes have no in-edge of a relation."""
    graph = to_dgl_graph(academic(papers=120, dense=0.2) if rare else academic(papers=240))
    data = graph.nodes["paper"].data
    data["labels"] = data.pop("label")
    return graph


def parts(graph: Any, count: int, out: Path, method: str = "meta", **options: Any) -> Path:
    """Partition the graph; returns the part_config."""
    if method == "meta":
        options["target_ntype"] = "paper"
    partition_graph(graph, "academic", count, str(out), 2, method, **options)
    return out / "academic.json"


def read(out: Path, name: str, rank: int) -> Found:
    with np.load(out / f"{name}-{rank}.npz") as arrays:
        return dict(arrays)


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, relative to the largest wanted value; infinite for NaN."""
    if got.shape != want.shape:
        return np.inf
    if not want.size:
        return 0.0
    value = float(np.abs(got - want).max()) / max(float(np.abs(want).max()), 1e-3)
    return np.inf if np.isnan(value) else value


def blocks_of(graph: Any, seeds: np.ndarray, layers: int) -> tuple[dict[str, Tensor], list[Any]]:
    """All neighbours within so many layers: input nodes and blocks."""
    sampler = dgl.dataloading.MultiLayerFullNeighborSampler(layers)
    ids, _, blocks = sampler.sample_blocks(graph, {"paper": torch.from_numpy(seeds)})
    return ids, blocks


def features(graph: Any, ids: dict[str, Tensor]) -> dict[str, Tensor]:
    return {t: graph.nodes[t].data["feat"][i].float() for t, i in ids.items()
            if "feat" in graph.nodes[t].data}


def step(graph: Any, net: Net, seeds: np.ndarray) -> tuple[np.ndarray, Found]:
    """Logits and gradients of one trainer's batch."""
    ids, blocks = blocks_of(graph, seeds, net.case.layers)
    logits = net(blocks, ids, features(graph, ids))
    net.zero_grad()
    cross_entropy(logits, graph.nodes["paper"].data["labels"][seeds]).backward()
    return logits.detach().numpy(), gradients(net)


def compare(graph: Any, name: str, case: Case, trainers: Sequence[Found]) -> list[str]:
    """What differs: logits of each trainer's seeds, gradients averaged over all."""
    net = make_net(name, Facts.of(graph), case)
    limit = LIMIT if case.layers < 3 else 10 * LIMIT  # rounding of a layer goes through the others
    wrong = []
    numbers = sorted({k.rpartition("/own")[0] for k in trainers[0] if k.endswith("/own")})
    assert numbers
    for number in numbers:
        total: Found = {}
        for rank, found in enumerate(trainers):
            logits, grads = step(graph, net, found[f"{number}/own"])
            worst = difference(found[f"{number}/logits"], logits)
            if worst > limit:
                wrong.append(f"{name} step {number} trainer {rank}: logits differ by {worst:.1e}")
            for key, grad in grads.items():
                total[key] = total.get(key, 0) + grad / len(trainers)
        for rank, found in enumerate(trainers):
            for key, want in total.items():
                got = found.get(f"{number}/{key}")
                worst = np.inf if got is None else difference(got, want)
                if worst > limit:
                    wrong.append(f"{name} step {number} trainer {rank}: {key} differs by "
                                 f"{worst:.1e}")
            extra = {k.removeprefix(f"{number}/") for k in found
                     if k.startswith(f"{number}/grad/")} - set(total)
            wrong += [f"{name} trainer {rank}: {k} has a gradient" for k in sorted(extra)
                      if found[f"{number}/{k}"].any()]
    return wrong


class Rows:
    """A learnable feature with the arithmetic of DGL 2.1's sparse optimizers, in float32."""

    def __init__(self, name: str, count: int, lr: float = 0.05) -> None:
        self.kind, self.lr, self.value = name.partition(" ")[0], np.float32(lr), first_rows(count)
        self.steps = np.zeros(count, np.float32)
        self.first, self.second = np.zeros_like(self.value), np.zeros_like(self.value)

    def update(self, pieces: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        """One step by (ids, gradients) of each trainer: rows move by the mean over those."""
        f = np.float32
        ids, place, counts = np.unique(np.concatenate([i for i, _ in pieces]),
                                       return_inverse=True, return_counts=True)
        grad = np.zeros((len(ids), self.value.shape[1]), f)
        np.add.at(grad, place, np.concatenate([g for _, g in pieces]))
        grad /= counts[:, None].astype(f)
        if self.kind == "SparseAdagrad":  # on CPU it keeps the root as the next step's sum
            self.second[ids] = np.sqrt(self.second[ids] + grad * grad) + f(1e-10)
            self.value[ids] -= self.lr * grad / self.second[ids]
            return
        self.steps[ids] += 1
        self.first[ids] = f(0.9) * self.first[ids] + f(0.1) * grad
        self.second[ids] = f(0.999) * self.second[ids] + f(0.001) * grad * grad
        first = self.first[ids] / (1 - f(0.9) ** self.steps[ids])[:, None]
        second = self.second[ids] / (1 - f(0.999) ** self.steps[ids])[:, None]
        self.value[ids] -= self.lr * first / (np.sqrt(second) + f(1e-8))


def compare_learnable(graph: Any, name: str, trainers: Sequence[Found]) -> list[str]:
    """Five steps; the rows at the end, and each trainer's logits on the way."""
    facts, wrong = Facts.of(graph), []
    case = learnable_case(name)
    net = make_net(name, facts, case, learnable=False)
    dense = torch.optim.SGD(net.parameters(), 0.1)
    tables = {t: Rows(name, n) for t, n in facts.counts.items() if t not in facts.widths}
    for number in range(5):
        pieces: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {t: [] for t in tables}
        dense.zero_grad()
        for rank, found in enumerate(trainers):
            seeds = found[f"{number}/own"]
            ids, blocks = blocks_of(graph, seeds, case.layers)
            rows = {t: torch.from_numpy(table.value[ids[t]]).requires_grad_()
                    for t, table in tables.items()}
            logits = net(blocks, ids, features(graph, ids) | rows)
            loss = cross_entropy(logits, graph.nodes["paper"].data["labels"][seeds])
            read = [(t, ids[t], leaf) for t, leaf in rows.items()]
            for t, table in tables.items() if "negatives" in name else ():
                drawn = drawn_pairs(rank, number, facts.counts[t])
                leaves = [torch.from_numpy(table.value[i]).requires_grad_() for i in drawn]
                loss = loss + apart(leaves)
                read += [(t, *each) for each in zip(drawn, leaves)]
            (loss / len(trainers)).backward()
            for t, index, leaf in read:
                assert leaf.grad is not None
                pieces[t].append((index.numpy(), leaf.grad.numpy() * len(trainers)))
            worst = difference(found[f"{number}/logits"], logits.detach().numpy())
            if worst > 10 * LIMIT:
                wrong.append(f"{name} step {number} trainer {rank}: logits differ by {worst:.1e}")
        dense.step()
        for t, table in tables.items():
            table.update(pieces[t])
    for t, table in tables.items():
        # Adam divides by the root of a gradient's square: where that is rounding, so is the step.
        worst = difference(trainers[0][f"rows/{t}"], table.value)
        if worst > 100 * LIMIT:
            wrong.append(f"{name}: rows of {t} differ by {worst:.1e}")
    return wrong


def compare_uneven(name: str, trainers: Sequence[Found]) -> list[str]:
    """How many seeds every trainer has in each of two epochs, and which."""
    wrong, world = [], len(trainers)
    for rank, found in enumerate(trainers):
        mine, orders = found["mine"], []
        sizes = [12] * ((26 - world) // 12) if name == "drop last" else [12, 12 - rank, 1]
        for epoch in range(2):
            steps = [found[k] for k in (f"{epoch}/{i}/own" for i in range(4)) if k in found]
            if [len(own) for own in steps] != sizes:
                wrong.append(f"{name} trainer {rank}: {[len(own) for own in steps]} seeds")
            orders.append(np.concatenate(steps))
        if name == "drop last":  # not shuffled
            good = all(np.array_equal(order, mine[:sum(sizes)]) for order in orders)
        else:
            good = all(np.array_equal(np.sort(order), np.sort(mine)) for order in orders)
            good &= not np.array_equal(*orders)
        if not good:
            wrong.append(f"{name} trainer {rank}: not its seeds, or not their order")
    return wrong


def compare_results(graph: Any, results: np.ndarray) -> list[str]:
    """What rank 0 read of all trainers' results of the case "evaluate"."""
    net = make_net("evaluate", Facts.of(graph), Case("gat", "mean"))
    data = graph.nodes["paper"].data
    chosen = (data["val_mask"] | data["test_mask"]).nonzero()[:, 0].numpy()
    ids, blocks = blocks_of(graph, chosen, 2)
    want = np.zeros_like(results)
    with torch.no_grad():
        want[chosen] = net(blocks, ids, features(graph, ids)).numpy()
    worst = difference(results, want)
    return [f"evaluate: results differ by {worst:.1e}"] if worst > LIMIT else []


def compare_all(graph: Any, names: Sequence[str], out: Path, world: int) -> list[str]:
    """What differs in the cases that trainers have run."""
    torch.set_num_threads(1)  # the graph is small, and threads wait for each other on few cores
    wrong: list[str] = []
    for name in names:
        found = [read(out, name, rank) for rank in range(1 if name == "evaluate" else world)]
        if case := (cases() | delegated_cases()).get(name):
            wrong += compare(graph, name, case, found)
        elif name in ("uneven", "drop last"):
            wrong += compare_uneven(name, found) + compare(graph, name, Case("sage"), found)
        elif name == "evaluate":
            wrong += compare_results(graph, found[0]["results"])
        else:
            wrong += compare_learnable(graph, name, found)
    return wrong
