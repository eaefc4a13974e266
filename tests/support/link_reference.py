"""What plain DGL computes on the whole graph in memory, for edges that trainers had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
from torch import Tensor

from dgl_heta.partition.dgl import partition_graph
from tests.support.dist_reference import Found, Rows, difference, whole_graph
from tests.support.link_script import (
    CHANCES,
    EXCLUDE,
    STEPS,
    WRITES,
    WRITTEN,
    Ends,
    Net,
    Replayed,
    Triple,
    loss_of,
    make_net,
    mirrored,
)

EXCLUDES = not dgl.__version__.startswith("2.1.")  # whose DistGraph takes no notice of exclude
LIMIT = 1e-9  # of fp64, relative to the largest value of an array


def edge_graph() -> Any:
    """The graph with masks and labels of its edges."""
    graph, generator = whole_graph(), torch.Generator().manual_seed(3)
    for etype in graph.canonical_etypes:
        count = graph.num_edges(etype)
        part = torch.rand(count, generator=generator)
        graph.edges[etype].data["train_mask"] = part < 0.5
        graph.edges[etype].data["val_mask"] = (part >= 0.5) & (part < 0.6)
        graph.edges[etype].data["label"] = torch.randint(0, 3, (count,), generator=generator)
    return graph


def weighted(graph: Any) -> Any:
    """The same graph with a chance for each edge of all relations but one; some are 0."""
    generator = torch.Generator().manual_seed(4)
    for etype in graph.canonical_etypes[1:]:
        chance = torch.rand(graph.num_edges(etype), generator=generator)
        graph.edges[etype].data["chance"] = (chance - 0.3).clamp(min=0) * 5
    return graph


def parts(graph: Any, count: int, out: Path, method: str = "meta", **options: Any) -> Path:
    """Partition the graph for both ends of its edges; returns the part_config."""
    if method == "meta":
        options.setdefault("target_ntype", ["author", "paper"])
    partition_graph(graph, "academic", count, str(out), 2, method, **options)
    return out / "academic.json"


def scores_of(graph: Any, net: Net, pairs: list[dict[Triple, Ends]], classes: bool,
              tables: Mapping[str, Tensor] | None = None, mask: str | None = None,
              excluded: dict[Triple, Tensor] | None = None
              ) -> tuple[list[dict[Triple, Tensor]], dict[str, Tensor]]:
    """The net's scores of pairs of nodes, with all their neighbours on the whole graph (by edges
    whose chance is not 0, without those that are excluded); and the nodes whose inputs these are
    made of."""
    ends: dict[str, list[Tensor]] = {}
    for each in pairs:
        for (src, _, dst), (left, right) in each.items():
            ends.setdefault(src, []).append(left)
            ends.setdefault(dst, []).append(right)
    seeds = {t: torch.cat(ids).unique() for t, ids in ends.items()}
    ids, _, blocks = dgl.dataloading.MultiLayerFullNeighborSampler(2, prob=mask).sample_blocks(
        graph, seeds, excluded)
    kind = next(net.parameters()).dtype
    features = {t: graph.nodes[t].data["feat"][ids[t]].to(kind) for t in net.linear}
    features |= {t: table[ids[t]] for t, table in (tables or {}).items()}
    places = [{e: (torch.searchsorted(seeds[e[0]], left), torch.searchsorted(seeds[e[2]], right))
               for e, (left, right) in each.items()} for each in pairs]
    return net(blocks, ids, features, places, classes), ids


def excluded_by(graph: Any, name: str, found: Found, number: int) -> dict[Triple, Tensor]:
    """The edges that DGL leaves out of a trainer's batch."""
    prefix, left_out = f"{number}/eids/", {}
    for key in [key for key in found if key.startswith(prefix) and name in EXCLUDE]:
        src, etype, dst = key.removeprefix(prefix).split("/")
        left_out[src, etype, dst] = ids = torch.from_numpy(found[key])
        if name == "reverse types":
            left_out[WRITTEN] = ids
        elif name == "reverse ids":
            left_out[src, etype, dst] = torch.cat([ids, mirrored(graph.num_edges(etype))[ids]])
    return left_out


def together(trainers: Sequence[Found]) -> list[list[Found]]:
    """For each trainer those that step with it: one of each part, in the order of ranks."""
    parts: dict[int, list[int]] = {}
    for rank, found in enumerate(trainers):
        parts.setdefault(int(found["part"]), []).append(rank)
    return [[trainers[ranks[next(own.index(rank) for own in parts.values() if rank in own)]]
             for ranks in parts.values()] for rank in range(len(trainers))]


def step(graph: Any, net: Net, found: Found, number: int, mask: str | None = None,
         excluded: dict[Triple, Tensor] | None = None) -> tuple[Tensor, list[str]]:
    """The loss of one trainer's batch, and which of its scores differ."""
    prefix = f"{number}/scores/"
    named = [key.removeprefix(prefix).split("/") for key in found if key.startswith(prefix)]
    pairs: list[dict[Triple, Ends]] = [{} for _ in range(len({place for place, *_ in named}))]
    labels = {}
    for place, src, etype, dst in named:
        triple = (src, etype, dst)
        left, right = torch.from_numpy(found[f"{number}/{place}/{src}/{etype}/{dst}"])
        pairs[int(place)][triple] = left, right
        if place == "0":
            eids = torch.from_numpy(found[f"{number}/eids/{src}/{etype}/{dst}"])
            for got, want in zip((left, right), graph.find_edges(eids, etype=triple)):
                assert torch.equal(got, want), triple
            labels[triple] = graph.edges[triple].data["label"][eids]
    classes = len(pairs) == 1
    scores, _ = scores_of(graph, net, pairs, classes, mask=mask, excluded=excluded)
    wrong = [f"scores of {'/'.join(e)} differ by {worst:.1e}" for place, each in enumerate(scores)
             for e, x in each.items() if not (worst := difference(
                 found[f"{prefix}{place}/{'/'.join(e)}"], x.detach().numpy())) <= LIMIT]
    return loss_of(scores, labels if classes else {}), wrong


def compare(graph: Any, name: str, trainers: Sequence[Found]) -> list[str]:
    """What differs: scores and losses of each trainer, gradients averaged over all."""
    net, wrong = make_net(name, graph), []
    numbers = sorted({int(key.partition("/")[0]) for key in trainers[0] if "/" in key})
    groups = together(trainers)
    assert numbers == [0, 1]
    for number in numbers:
        net.zero_grad()
        for rank, found in enumerate(trainers):
            excluded: dict[Triple, Tensor] = {}
            for each in groups[rank] if EXCLUDES else ():
                for etype, ids in excluded_by(graph, name, each, number).items():
                    excluded[etype] = torch.cat([excluded.get(etype, ids), ids]).unique()
            loss, texts = step(graph, net, found, number, CHANCES.get(name), excluded or None)
            (loss / len(trainers)).backward()
            wrong += [f"{name} step {number} trainer {rank}: {text}" for text in texts]
            worst = difference(found[f"{number}/loss"], loss.detach().numpy())
            if not worst <= LIMIT:
                wrong.append(f"{name} step {number} trainer {rank}: loss differs by {worst:.1e}")
        for rank, found in enumerate(trainers):
            grads = {key for key in found if key.startswith(f"{number}/grad/")}
            assert len(grads) > 10, grads
            for key, parameter in net.named_parameters():
                place = f"{number}/grad/{key}"
                if parameter.grad is None:
                    if place in grads and found[place].any():
                        wrong.append(f"{name} trainer {rank}: {place} is there")
                    continue
                worst = difference(found[place], parameter.grad.numpy())
                if not worst <= LIMIT:
                    wrong.append(f"{name} trainer {rank}: {place} differs by {worst:.1e}")
    return wrong


def compare_embedded(graph: Any, name: str, trainers: Sequence[Found]) -> list[str]:
    """Steps in float32; the tables' rows at the end, and each trainer's loss on the way."""
    net, wrong = make_net(name, graph), []
    dense = torch.optim.SGD(net.parameters(), 0.1)
    tables = {t: Rows(name, graph.num_nodes(t)) for t in graph.ntypes if t not in net.linear}
    for number in range(STEPS):
        pieces: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {t: [] for t in tables}
        dense.zero_grad()
        for rank, found in enumerate(trainers):
            eids = torch.from_numpy(found[f"{number}/eids"])
            pairs = [{WRITES: graph.find_edges(eids, etype=WRITES)},
                     Replayed()(graph, {WRITES: eids})]
            leaves = {t: torch.from_numpy(table.value.copy()).requires_grad_()
                      for t, table in tables.items()}
            scores, ids = scores_of(graph, net, pairs, False, leaves)
            loss = loss_of(scores, {})
            (loss / len(trainers)).backward()
            for t, leaf in leaves.items():
                assert leaf.grad is not None
                pieces[t].append((ids[t].numpy(), leaf.grad[ids[t]].numpy() * len(trainers)))
            worst = difference(found[f"{number}/loss"], loss.detach().numpy())
            if not worst <= 1e-4:
                wrong.append(f"{name} step {number} trainer {rank}: loss differs by {worst:.1e}")
        dense.step()
        for t, table in tables.items():
            table.update(pieces[t])
    for t, table in tables.items():
        worst = difference(trainers[0][f"rows/{t}"], table.value)
        if not worst <= 1e-3:
            wrong.append(f"{name}: rows of {t} differ by {worst:.1e}")
    return wrong


def compare_validated(graph: Any, trainers: Sequence[Found]) -> list[str]:
    """Scores of edges in validation, of all trainers."""
    net, etype, wrong = make_net("validated", graph), ("paper", "cites", "paper"), []
    with torch.no_grad():
        for rank, found in enumerate(trainers):
            ends = graph.find_edges(torch.from_numpy(found["eids"]), etype=etype)
            scores, _ = scores_of(graph, net, [{etype: ends}], False)
            worst = difference(found["scores"], scores[0][etype].numpy())
            if not worst <= LIMIT:
                wrong.append(f"validated trainer {rank}: scores differ by {worst:.1e}")
    eids = np.concatenate([found["eids"] for found in trainers])
    mask = graph.edges[etype].data["val_mask"].numpy()
    if not np.array_equal(np.sort(eids), np.flatnonzero(mask)):
        wrong.append("validated: not the edges of the mask")
    return wrong
