"""A DistDGL script of the tests that learns from edges; it writes what every trainer computed.

It knows nothing of dgl-heta. The tests import its model for the reference.
"""

from __future__ import annotations

import argparse
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import numpy as np
import torch
import torch.distributed as dist
from dgl.dataloading import negative_sampler
from dgl.nn.pytorch import GraphConv, HeteroGraphConv
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

HIDDEN, CLASSES, STEPS = 6, 3, 2
CHANCES = {"masked": "train_mask", "weighted": "chance", "reverse types": "chance",
           "own chances": "chance"}
"""Edge data that samplers draw by."""
EXCLUDE = {"exclude": "self", "reverse ids": "reverse_id", "reverse types": "reverse_types"}
Triple = tuple[str, str, str]
Ends = tuple[Tensor, Tensor]
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
WRITTEN = ("paper", "rev-writes", "author")


class Net(nn.Module):
    """Features or tables per node type, two layers, and a score or classes for pairs of nodes."""

    def __init__(self, counts: Mapping[str, int], widths: Mapping[str, int], etypes: list[Triple],
                 learnable: bool = True) -> None:
        super().__init__()
        self.linear = nn.ModuleDict({t: nn.Linear(w, HIDDEN) for t, w in widths.items()})
        self.tables = nn.ModuleDict({t: nn.Embedding(n, HIDDEN) for t, n in counts.items()
                                     if t not in widths and learnable})
        self.layers = nn.ModuleList(HeteroGraphConv(
            {e: GraphConv(HIDDEN, HIDDEN, norm="right") for _, e, _ in etypes}, "sum")
            for _ in range(2))
        self.loops = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(2))
        self.classes = nn.Linear(2 * HIDDEN, CLASSES)
        self.pairs = False  # whether a layer is given rows of destinations, too

    def forward(self, blocks: list[Any], ids: Mapping[str, Tensor], features: Mapping[str, Tensor],
                pairs: list[dict[Triple, Ends]], classes: bool) -> list[dict[Triple, Tensor]]:
        """Per graph of pairs and edge type the scores of its edges."""
        states = {t: self.linear[t](x) if t in self.linear else x for t, x in features.items()}
        states |= {t: table(ids[t]) for t, table in self.tables.items()}
        states = self.convolve(blocks, states)
        return [{e: self.score(states[e[0]][src], states[e[2]][dst], classes)
                 for e, (src, dst) in each.items()} for each in pairs]

    def convolve(self, blocks: list[Any], states: dict[str, Tensor]) -> dict[str, Tensor]:
        for layer, loop, block in zip(self.layers, self.loops, blocks):
            own = {t: x[:block.num_dst_nodes(t)] for t, x in states.items()}
            found = layer(block, (states, own) if self.pairs else states)
            states = {t: torch.tanh(x + loop(states[t][:block.num_dst_nodes(t)]))
                      for t, x in found.items()}
        return states

    def score(self, left: Tensor, right: Tensor, classes: bool) -> Tensor:
        return self.classes(torch.cat([left, right], 1)) if classes else (left * right).sum(1)


class Encoder(nn.Module):
    """The net's states of a batch's seeds."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, blocks: list[Any], ids: Mapping[str, Tensor],
                features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        states = {t: self.net.linear[t](x) for t, x in features.items()}
        states |= {t: table(ids[t]) for t, table in self.net.tables.items()}
        return self.net.convolve(blocks, states)


class OnGraphs(nn.Module):
    """The net as DGL's guide calls it: with the graphs of pairs."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.encoder = Encoder(net)

    def forward(self, graphs: list[Any], *rest: Any) -> list[dict[Triple, Tensor]]:
        states = self.encoder(*rest)
        return [dots(graph, states) for graph in graphs]


def dots(graph: Any, states: Mapping[str, Tensor]) -> dict[Triple, Tensor]:
    """Scores of a graph's edges by DGL's message passing."""
    found = {}
    with graph.local_scope():
        for t, rows in states.items():
            graph.nodes[t].data["h"] = rows
        for etype in pairs_of(graph):
            graph.apply_edges(dgl.function.u_dot_v("h", "h", "score"), etype=etype)
            found[etype] = graph.edges[etype].data["score"][:, 0]
    return found


def make_net(name: str, graph: Any) -> Net:
    torch.manual_seed(zlib.crc32(name.encode()))
    widths = {t: graph.nodes[t].data["feat"].shape[1] for t in graph.ntypes
              if "feat" in graph.nodes[t].data}
    net = Net({t: graph.num_nodes(t) for t in graph.ntypes}, widths, list(graph.canonical_etypes),
              not name.startswith("Sparse"))
    net.pairs = name in ("one type", "replayed")  # in the first no trainer has a seed of a target
    return net if name.startswith("Sparse") else net.double()


def mirrored(count: int) -> Tensor:
    """An edge for each edge that stands for its reverse."""
    return torch.arange(count).flip(0)


def first_rows(count: int) -> np.ndarray:
    """Initial values of a table."""
    return np.sin(np.arange(count * HIDDEN, dtype=np.float32)).reshape(count, HIDDEN)


def loss_of(scores: list[dict[Triple, Tensor]], labels: Mapping[Triple, Tensor]) -> Tensor:
    """Of classes where there are labels, else of pairs that are edges, and of those that are not.
    """
    if labels:
        return cross_entropy(torch.cat([*scores[0].values()]),
                             torch.cat([labels[e] for e in scores[0]]))
    known = torch.cat([*scores[0].values()])
    every = torch.cat([known, *scores[1].values()])
    return binary_cross_entropy_with_logits(every, (torch.arange(len(every)) < len(known)).to(
        every.dtype))


def pairs_of(graph: Any) -> dict[Triple, Ends]:
    return {e: graph.edges(etype=e) for e in graph.canonical_etypes if graph.num_edges(e)}


class Replayed:
    """Negatives from one list that all runs have: two destinations for each edge."""

    def __call__(self, g: Any, eids: Mapping[Any, Tensor]) -> dict[Triple, Ends]:
        found = {}
        for etype, ids in eids.items():
            etype = g.to_canonical_etype(etype)
            source, _ = g.find_edges(ids, etype=etype)
            wanted = (ids.repeat_interleave(2) * 7 + torch.arange(2 * len(ids)) % 2 * 13)
            found[etype] = source.repeat_interleave(2), wanted % g.num_nodes(etype[2])
        return found


class Trainer:
    """One trainer: its graph and its edges."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out = Path(options.out)
        dgl.distributed.initialize(options.ip_config)
        self.rank, self.world = 0, 1
        if os.environ.get("DGL_DIST_MODE") == "distributed":
            dist.init_process_group("gloo")
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.g = dgl.distributed.DistGraph("academic", part_config=options.part_config)

    def split(self, etype: Triple, name: str = "train_mask") -> Tensor:
        return dgl.distributed.edge_split(self.g.edges[etype].data[name],
                                          self.g.get_partition_book(), etype=etype)

    def loader(self, eids: Mapping[Any, Tensor], **options: Any) -> Any:
        sampler = dgl.dataloading.MultiLayerFullNeighborSampler(2, **{
            key: options.pop(key) for key in ("mask", "prob") if key in options})
        return dgl.dataloading.DistEdgeDataLoader(self.g, eids, sampler, **{
            "batch_size": 20, "shuffle": True, **options})

    def train(self, name: str, loader: Any, classes: bool = False) -> None:
        """Forward and backward passes, recorded."""
        g, found = self.g, {"part": np.asarray(self.g.get_partition_book().partid)}
        net = make_net(name, g)
        module = OnGraphs(net) if name == "graphs" else Encoder(net) if name == "encoder" else net
        if self.world > 1:
            module = nn.parallel.DistributedDataParallel(module)
        torch.manual_seed(100 + self.rank)
        for step, (ids, *graphs, blocks) in enumerate(loader):
            if step == STEPS:
                break
            for t in graphs[0].ntypes:
                assert torch.equal(graphs[0].nodes[t].data[dgl.NID],
                                   blocks[-1].dstnodes[t].data[dgl.NID])
            for number, graph in enumerate(graphs):
                for (src, etype, dst), (left, right) in pairs_of(graph).items():
                    found[f"{step}/{number}/{src}/{etype}/{dst}"] = np.stack([
                        graphs[0].nodes[src].data[dgl.NID][left].numpy(),
                        graphs[0].nodes[dst].data[dgl.NID][right].numpy()])
            labels = {e: g.edges[e].data["label"][graphs[0].edges[e].data[dgl.EID]].long()
                      for e in pairs_of(graphs[0])} if classes else {}
            if name in CHANCES and self.world == 1:
                self.check_ids(blocks[0], CHANCES[name])
            features = {t: g.nodes[t].data["feat"][ids[t]].double() for t in net.linear}
            if name == "graphs":
                scores = module(graphs, blocks, ids, features)
            elif name == "encoder":
                states = module(blocks, ids, features)
                scores = [dots(graph, states) for graph in graphs]
            else:
                scores = module(blocks, ids, features, [pairs_of(graph) for graph in graphs],
                                classes)
            loss = loss_of(scores, labels)
            net.zero_grad()
            loss.backward()
            found |= {f"{step}/eids/{'/'.join(e)}": graphs[0].edges[e].data[dgl.EID].numpy()
                      for e in pairs_of(graphs[0])}
            found |= {f"{step}/scores/{number}/{'/'.join(e)}": x.detach().numpy()
                      for number, each in enumerate(scores) for e, x in each.items()}
            found[f"{step}/loss"] = loss.detach().numpy()
            found |= {f"{step}/grad/{key}": p.grad.numpy().copy()
                      for key, p in net.named_parameters() if p.grad is not None}
        np.savez(self.out / f"{name}-{self.rank}.npz", **found)

    def check_ids(self, block: Any, chances: str) -> None:
        """A block's edges are by their ids the edges that they are, all with a chance where they
        have one."""
        for src, etype, dst in block.canonical_etypes:
            ids = block.edges[src, etype, dst].data[dgl.EID]
            left, right = block.edges(etype=(src, etype, dst))
            ends = self.g.find_edges(ids, etype=(src, etype, dst))
            assert torch.equal(block.srcnodes[src].data[dgl.NID][left], ends[0])
            assert torch.equal(block.dstnodes[dst].data[dgl.NID][right], ends[1])
            data = self.g.edges[src, etype, dst].data
            assert chances not in data or data[chances][ids].bool().all()

    def copy_chances(self) -> None:
        """Edge data of the script's own, with the values of those that were partitioned."""
        g = self.g
        for etype in g.canonical_etypes:
            data = g.edges[etype].data
            if "chance" in data:
                data["own"] = dgl.distributed.DistTensor(
                    (g.num_edges(etype),), torch.float32, f"own-{etype[1]}",
                    part_policy=g.get_edge_partition_policy(etype))
                if self.rank == 0:
                    every = torch.arange(g.num_edges(etype))
                    data["own"][every] = data["chance"][every]
        g.barrier()

    def embedded(self, name: str) -> None:
        """Steps in which tables in the key-value store are trained."""
        g, found = self.g, {}
        net = make_net(name, g)
        module = nn.parallel.DistributedDataParallel(net) if self.world > 1 else net
        dense = torch.optim.SGD(net.parameters(), 0.1)
        tables = {t: dgl.distributed.DistEmbedding(
            g.num_nodes(t), HIDDEN, f"{name}-{t}", part_policy=g.get_node_partition_policy(t))
            for t in g.ntypes if t not in net.linear}
        if self.rank == 0:
            for table in tables.values():
                table.weight[torch.arange(len(table.weight))] = torch.from_numpy(
                    first_rows(len(table.weight)))
        g.barrier()
        optimizer = getattr(dgl.distributed.optim, name)(list(tables.values()), lr=0.05)
        loader = self.loader({WRITES: self.split(WRITES)}, negative_sampler=Replayed())
        for step, (ids, *graphs, blocks) in enumerate(loader):
            if step == STEPS:
                break
            features = {t: g.nodes[t].data["feat"][ids[t]].float() for t in net.linear}
            rows = {t: table(ids[t]) for t, table in tables.items()}
            scores = module(blocks, ids, features | rows, [pairs_of(x) for x in graphs], False)
            loss = loss_of(scores, {})
            dense.zero_grad()
            optimizer.zero_grad()
            loss.backward()
            dense.step()
            optimizer.step()
            found |= {f"{step}/eids": graphs[0].edges[WRITES].data[dgl.EID].numpy(),
                      f"{step}/loss": loss.detach().numpy()}
        g.barrier()
        if self.rank == 0:
            found |= {f"rows/{t}": table.weight[torch.arange(len(table.weight))].numpy()
                      for t, table in tables.items()}
        g.barrier()
        np.savez(self.out / f"{name}-{self.rank}.npz", **found)

    def run(self, name: str) -> None:
        writes, cites = self.split(WRITES), self.split(CITES)
        uniform = negative_sampler.Uniform(3)
        torch.manual_seed(7)
        if name in ("uniform", "graphs", "encoder"):
            self.train(name, self.loader({WRITES: writes}, negative_sampler=uniform))
        elif name == "one type":
            self.train(name, self.loader({"cites": cites}, negative_sampler=uniform))
        elif name == "replayed":
            self.train(name, self.loader({WRITES: writes, CITES: cites},
                                         negative_sampler=Replayed(), drop_last=True))
        elif name == "classes":
            self.train(name, self.loader({WRITES: writes}), classes=True)
        elif name == "masked":
            self.train(name, self.loader({WRITES: writes}, negative_sampler=Replayed(),
                                         mask=CHANCES[name]))
        elif name == "weighted":
            self.train(name, self.loader({WRITES: writes}, negative_sampler=Replayed(),
                                         prob=CHANCES[name]))
        elif name == "own chances":
            self.copy_chances()
            self.train(name, self.loader({WRITES: writes}, negative_sampler=Replayed(),
                                         prob="own"))
        elif name == "exclude":
            self.train(name, self.loader(
                {CITES: cites}, negative_sampler=uniform, exclude="self"))
        elif name == "reverse ids":
            self.train(name, self.loader({CITES: cites}, exclude="reverse_id", reverse_eids={
                CITES: mirrored(self.g.num_edges(CITES))}), classes=True)
        elif name == "reverse types":
            self.train(name, self.loader(
                {WRITES: writes}, negative_sampler=uniform, exclude="reverse_types",
                reverse_etypes={WRITES: WRITTEN}, prob=CHANCES[name]))
        elif name.startswith("Sparse"):
            self.embedded(name)
        else:
            {"refused": self.refused, "validated": self.validated}[name]()

    def validated(self) -> None:
        """Edges of the validation set, without gradients, in their order."""
        net, found = make_net("validated", self.g).eval(), []
        eids = self.split(CITES, "val_mask")
        with torch.no_grad():
            for ids, pair, blocks in self.loader({CITES: eids}, shuffle=False, batch_size=7):
                features = {t: self.g.nodes[t].data["feat"][ids[t]].double() for t in net.linear}
                scores, = net(blocks, ids, features, [pairs_of(pair)], False)
                found.append(scores[CITES])
        np.savez(self.out / f"validated-{self.rank}.npz", eids=eids.numpy(),
                 scores=torch.cat(found).numpy())

    def refused(self) -> None:
        """What is said of what cannot be used."""
        said = {name: message(make) for name, make in self.wrong()}
        np.savez(self.out / f"refused-{self.rank}.npz",
                 **{name: np.asarray(text) for name, text in said.items()})

    def wrong(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        g, cites = self.g, {CITES: torch.arange(4)}
        yield "global", lambda: self.loader(
            cites, negative_sampler=negative_sampler.GlobalUniform(2))
        yield "target", lambda: self.loader({("paper", "topic", "field"): torch.arange(4)})
        yield "sampling", lambda: self.loader(cites, g_sampling="another")
        yield "argument", lambda: self.loader(cites, nonsense=1)
        yield "plain ids", lambda: self.loader(torch.arange(4))
        yield "device", lambda: self.loader(cites, device="cuda")
        yield "range", lambda: g.find_edges(torch.tensor([10**6]), etype=CITES)


def message(make: Callable[[], Any]) -> str:
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ip-config", default="")
    parser.add_argument("--part-config", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--cases", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trainer = Trainer(options)
    for name in options.cases.split(","):
        trainer.run(name)


if __name__ == "__main__":
    main()
