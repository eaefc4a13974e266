"""Data of edges, read by the ids of a block's edges and used in messages, as in plain DGL."""

from __future__ import annotations

from typing import Any

import dgl
import dgl.function as fn
import torch
from dgl.nn.pytorch import GraphConv, HeteroGraphConv, SAGEConv
from torch import Tensor, nn

from dgl_heta.distdgl.blocks.edge_rows import rows_by_ids
from dgl_heta.errors import HetaError
from tests.distdgl.programs.usual import Net, train
from tests.support.programs_worker import Trainer

Etype = tuple[str, str, str]
WIDTH = 2


class Table:
    """Rows of edges that all trainers have, where a script has a DistTensor."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, ids: Any) -> Tensor:
        if isinstance(ids, Tensor):
            return self.rows[ids]
        return rows_by_ids(ids, self, self.rows.__getitem__)


def tables(t: Trainer, width: int = 0) -> dict[Etype, Table]:
    """Positive numbers per edge, by relation; with a width rows of them."""
    found = {}
    for number, e in enumerate(t.facts.etypes):
        count = t.whole.num_edges(e)
        shape = (count, width) if width else (count,)
        places = torch.arange(count * max(width, 1), dtype=torch.float64).view(shape)
        found[e] = Table(1.5 + torch.sin(places * 1.7 + number))
    return found


def read(block: Any, every: dict[Etype, Table]) -> dict[Etype, Tensor]:
    return {e: table[block.edges[e].data[dgl.EID]].to(block.device) for e, table in every.items()}


class Weighted(nn.Module):
    """HeteroGraphConv whose convolutions are given weights of edges."""

    def __init__(self, every: dict[Etype, Table], make: Any, cross: str, learned: bool) -> None:
        super().__init__()
        self.every = every
        self.conv = HeteroGraphConv({e: make() for _, e, _ in every}, cross)
        self.edge = nn.Linear(WIDTH, 1) if learned else None

    def forward(self, block: Any, states: dict[str, Tensor]) -> Any:
        rows = read(block, self.every)
        if self.edge is not None:
            rows = {e: torch.sigmoid(self.edge(w * 2)).view(-1) for e, w in rows.items()}
        out = self.conv(block, states, mod_kwargs={
            e[1]: {"edge_weight": w} for e, w in rows.items()})
        return out


def weighted(t: Trainer, options: dict[str, Any]) -> None:
    """GraphConv's or SAGEConv's edge_weight by mod_kwargs; `learned`: made of rows of features."""
    learned, cross = options.get("learned", False), options.get("cross", "sum")
    every = tables(t, WIDTH if learned else 0)

    def make(size: int, out: int) -> nn.Module:
        if options["conv"] == "sage":
            return SAGEConv(size, out, "mean")
        return GraphConv(size, out, norm=options["conv"], bias=not options.get("narrow"))
    train(t, Net(t.facts, lambda a, b: Weighted(every, lambda: make(a, b), cross, learned)))


class Message(nn.Module):
    """Weights put on the block's edges, for message functions of multi_update_all."""

    def __init__(self, every: dict[Etype, Table], size: int, out: int, options: Any) -> None:
        super().__init__()
        self.every, self.options = every, options
        self.weights = nn.ModuleDict({e: nn.Linear(size, out) for _, e, _ in every})
        self.state = nn.Linear(size, out)

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        with block.local_scope():
            functions = {}
            for e, w in read(block, self.every).items():
                block.srcnodes[e[0]].data[e[1]] = self.weights[e[1]](states[e[0]])
                block.edges[e].data["w"] = w
                block.edges[e].data["v"] = block.edges[e].data["w"].unsqueeze(-1) / 2
                message = fn.u_mul_e(e[1], "v", "m")
                if self.options["own"]:
                    message = own_message(e[1])
                functions[e] = message, getattr(fn, self.options["reduce"])("m", "out")
            block.multi_update_all(functions, self.options["cross"])
            found = {t: self.state(states[t][:block.num_dst_nodes(t)])
                     + block.dstnodes[t].data["out"] for t in block.dsttypes}
        assert "w" not in block.edges["cites"].data  # put there in the local scope
        return found


def own_message(name: str) -> Any:
    return lambda edges: {"m": edges.src[name] * edges.data["w"].unsqueeze(1)}


def messages(t: Trainer, options: dict[str, Any]) -> None:
    train(t, Net(t.facts, lambda a, b: Message(tables(t), a, b, options)))


class ByItsGraph(nn.Module):
    """A relation's own module that reads what was put on the edges."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, out)

    def forward(self, graph: Any, rows: Any) -> Tensor:
        with graph.local_scope():
            graph.srcdata["h"] = self.linear(rows[0])
            graph.edata["a"] = dgl.nn.functional.edge_softmax(graph, graph.edata["w"])
            graph.update_all(fn.u_mul_e("h", "a", "m"), fn.sum("m", "out"))
            out: Tensor = graph.dstdata["out"]
            return out


class OnBlock(nn.Module):
    def __init__(self, every: dict[Etype, Table], size: int, out: int) -> None:
        super().__init__()
        self.every = every
        self.conv = HeteroGraphConv({e: ByItsGraph(size, out) for _, e, _ in every}, "mean")

    def forward(self, block: Any, states: dict[str, Tensor]) -> Any:
        with block.local_scope():
            for e, w in read(block, self.every).items():
                block.edges[e].data["w"] = w.view(-1, 1)
            return self.conv(block, states)


def on_block(t: Trainer) -> None:
    train(t, Net(t.facts, lambda a, b: OnBlock(tables(t), a, b)))


def refused(t: Trainer) -> None:
    """What looks at several edges, or is no data of these edges, is refused by name."""
    every = tables(t, WIDTH)
    cites, topic = ("paper", "cites", "paper"), ("paper", "topic", "field")
    _, _, blocks = next(iter(t.loader()))
    block = blocks[0].to("cpu")
    ids = block.edges["cites"].data[dgl.EID]
    rows, other = every[cites][ids], every[topic][block.edges[topic].data[dgl.EID]]
    upper = every[cites][blocks[1].edges[cites].data[dgl.EID]]

    def put(value: Any) -> None:
        block.edges[cites].data["w"] = value

    for name, call, text in [
            ("sum", lambda: rows.sum(), "'sum' of rows of edges of"),
            ("softmax", lambda: torch.softmax(rows, 0), "'softmax' of rows of edges of"),
            ("index", lambda: rows[:2], "'__getitem__' of rows of edges of"),
            ("numbers", lambda: rows.numpy(), "'numpy' of rows of edges of"),
            ("turned", lambda: rows.view(-1), "'view' of rows of edges of"),
            ("another relation's", lambda: rows + other, "'add' of rows of edges of"),
            ("another block's", lambda: rows * upper, "'mul' of rows of edges of"),
            ("as many", lambda: rows * torch.ones(rows.shape), "'mul' of rows of edges of"),
            ("ids", lambda: ids.sum(), "are good for reading data of these edges alone"),
            ("ids as an index", lambda: torch.ones(10**6)[ids], "are good for reading data of"),
            ("another table", lambda: Table(torch.ones(3))[ids], "of which there are"),
            ("put numbers", lambda: put(torch.ones(len(rows), 1)), "must be rows of these edges"),
            ("put another's", lambda: put(other), "must be rows of these edges"),
            ("put another block's", lambda: put(upper), "must be rows of these edges")]:
        message = ""
        try:
            call()
        except HetaError as error:
            message = str(error)
        assert text in message, (name, message)
    assert rows.shape == (*ids.shape, WIDTH)
