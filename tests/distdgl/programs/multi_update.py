"""multi_update_all: fields, widths, dictionaries and functions of all kinds, as in plain DGL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl.function as fn
import torch
from torch import Tensor, nn

from tests.distdgl.programs.usual import HIDDEN, Net, train
from tests.support.programs_worker import Facts, Trainer

Etype = tuple[str, str, str]
Make = Callable[[Any, Etype, int], Any]
"""Of a block, a relation and its place the functions for it; None leaves it out."""


class Layer(nn.Module):
    """A weight per relation, functions that `make` gives, and the sum of their output fields."""

    def __init__(self, facts: Facts, size: int, out: int, make: Make, cross: Any,
                 order: Callable[[list[Etype]], list[Etype]] = list) -> None:
        super().__init__()
        self.make, self.cross, self.order = make, cross, order
        self.weights = nn.ModuleDict({e: nn.Linear(size, out) for _, e, _ in facts.etypes})
        self.state = nn.Linear(size, out)

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        with block.local_scope():
            functions = {}
            for t in block.dsttypes:
                block.dstnodes[t].data["state"] = self.state(
                    states[t][:block.num_dst_nodes(t)])
            for etype in block.canonical_etypes:
                block.srcnodes[etype[0]].data[etype[1]] = self.weights[etype[1]](states[etype[0]])
            for etype in self.order(block.canonical_etypes):
                given = self.make(block, etype, block.canonical_etypes.index(etype))
                if given is not None:
                    functions[etype] = given
            block.multi_update_all(functions, self.cross)
            outputs = {}
            for t in block.dsttypes:
                found = [block.dstnodes[t].data[name] for name in ("x", "y", "z")
                         if name in block.dstnodes[t].data]
                outputs[t] = block.dstnodes[t].data["state"] + sum(
                    (number + 1) * in_turn(f) for number, f in enumerate(found))
            return outputs


def run(t: Trainer, make: Make, cross: Any, **options: Any) -> None:
    train(t, Net(t.facts, lambda a, b: Layer(t.facts, a, b, make, cross, **options)))


def in_turn(rows: Tensor) -> Tensor:
    """What tells stacked relations from each other."""
    if rows.dim() == 2:
        return rows
    return torch.einsum("nrw,r->nw", rows, torch.arange(1., rows.shape[1] + 1).double())


def builtin(name: str, out: str = "x", reduce: str = "sum") -> Any:
    return fn.copy_u(name, "m"), getattr(fn, reduce)("m", out)


def own_sum(name: str, out: str = "x") -> Any:
    return (lambda edges: {"m": edges.src[name]},
            lambda nodes: {out: nodes.mailbox["m"].sum(1) + 1})


def in_order(values: list[Tensor]) -> Tensor:
    return sum((i + 1) * v for i, v in enumerate(values))  # type: ignore[return-value]


FUNCTIONS: dict[str, tuple[Make, Any]] = {
    # fields: different ones, several, in other orders
    "two fields": (lambda b, e, i: builtin(e[1], "yx"[i % 2]), "sum"),
    "two fields, mean": (lambda b, e, i: builtin(e[1], "zxy"[i % 3], "mean"), "mean"),
    "two fields, stack": (lambda b, e, i: builtin(e[1], "yx"[i % 2]), "stack"),
    "several fields": (lambda b, e, i: (
        lambda edges: {"m": edges.src[e[1]], "n": edges.dst["state"]},
        lambda nodes: dict([("y", nodes.mailbox["m"].sum(1)), ("x", nodes.mailbox["n"].mean(1))]
                           [::1 if i % 2 else -1])), "sum"),
    # reducers
    "max of max": (lambda b, e, i: builtin(e[1], "x", "max"), "max"),
    "min of max and sum": (lambda b, e, i: builtin(e[1], "x", "max" if i % 2 else "sum"), "min"),
    "mean of max": (lambda b, e, i: builtin(e[1], "x", "max"), "mean"),
    "sum of max": (lambda b, e, i: builtin(e[1], "x", "max"), "sum"),
    "stack of min": (lambda b, e, i: builtin(e[1], "x", "min"), "stack"),
    "dictionary's order": (lambda b, e, i: builtin(e[1]), in_order),
    # functions of the script's own
    "own, sum": (lambda b, e, i: own_sum(e[1]), "sum"),
    "own, mean": (lambda b, e, i: own_sum(e[1]), "mean"),
    "own, max": (lambda b, e, i: own_sum(e[1]), "max"),
    "own, stack": (lambda b, e, i: own_sum(e[1]), "stack"),
    "own, in order": (lambda b, e, i: own_sum(e[1]), in_order),
    "own message": (lambda b, e, i: (lambda edges: {"m": edges.src[e[1]] * edges.dst["state"]},
                                     fn.mean("m", "x")), "mean"),
    "applied": (lambda b, e, i: (*builtin(e[1]), lambda nodes: {
        "x": nodes.data["x"] + nodes.data["state"]}), "mean"),
    # dictionaries that differ
    "with edges": (lambda b, e, i: builtin(e[1]) if b.num_edges(e) else None, "sum"),
    "with sources": (lambda b, e, i: builtin(e[1], "x", "mean")
                     if b.num_src_nodes(e[0]) and b.num_dst_nodes(e[2]) else None, "sum"),
    "with edges, max": (lambda b, e, i: builtin(e[1], "x", "max")
                        if b.num_edges(e) else None, "sum"),
    "three relations": (lambda b, e, i: builtin(e[1]) if i in (0, 2, 7) else None, "mean"),
    "one relation": (lambda b, e, i: builtin(e[1]) if e[1] == "cites" else None, "max"),
}


def kind(t: Trainer, name: str) -> None:
    """One of FUNCTIONS."""
    make, cross = FUNCTIONS[name]
    run(t, make, cross, order=(lambda etypes: etypes[::-1]) if cross is in_order else list)


def few(t: Trainer, name: str) -> None:
    """The same with two seeds a trainer, so that relations lack edges in some batches; with one
    layer, where every row is in one trainer's batch."""
    make, cross = FUNCTIONS[name]
    for ids, seeds, blocks in t.loader(batch_size=2, layers=1):
        torch.manual_seed(1)
        layer = Layer(t.facts, HIDDEN, 4, make, cross).double().to(t.device)
        columns = torch.arange(1., HIDDEN + 1, device=t.device).double()
        states = {n: torch.sin(i.double()[:, None] * columns) for n, i in ids.items()}
        out = layer(blocks[0], states)["paper"]
        if "max" not in name and "min" not in name:  # DGL's fails for want of source rows
            out.square().sum().backward()
        t.record("out", out, seeds["paper"])


def widths(t: Trainer) -> None:
    """A field used again: with another width in one call, in another layer, in later batches."""
    weights = nn.ModuleDict({str(w): nn.Linear(HIDDEN, w) for w in (2, 3, 5)}).double()
    for number, (ids, seeds, blocks) in zip(range(3), t.loader(layers=1)):
        states = {n: torch.sin(i.double()[:, None] * torch.arange(1., HIDDEN + 1).double())
                  for n, i in ids.items()}
        for w in (2, 3, 5)[number:]:
            for n, x in states.items():
                blocks[0].srcnodes[n].data["h"] = weights[str(w)](x)
            blocks[0].multi_update_all({e: builtin("h") for e in t.facts.etypes}, "sum")
            t.record(f"out {w}", blocks[0].dstnodes["paper"].data["x"], seeds["paper"])


def every_field_is_set(t: Trainer) -> None:
    """Types without rows here have their field, too; rows of all types at the lower layer."""
    for ids, seeds, blocks in t.loader():
        for block in blocks:
            for n in block.srctypes:
                block.srcnodes[n].data["h"] = block.srcnodes[n].data["_ID"].double()[:, None]
            block.multi_update_all({e: builtin("h") for e in block.canonical_etypes}, "stack")
            shapes = [tuple(block.dstnodes[n].data["x"].shape[1:]) for n in block.dsttypes]
            t.record("shapes", torch.tensor(shapes))
        t.record("out", blocks[-1].dstnodes["paper"].data["x"], seeds["paper"])
        assert len(ids)


def wrong(t: Trainer, name: str) -> None:
    """What trainers do differently, or wrongly; ends with an error on all."""
    for ids, _, blocks in t.loader(layers=1):
        block, cross = blocks[0], "sum"
        for n in block.srctypes:
            block.srcnodes[n].data["h"] = ids[n].double()[:, None] * torch.ones(3).double()
        functions: dict[Any, Any] = {e: builtin("h") for e in t.facts.etypes if e[2] == "paper"}
        etypes, first = [*functions], t.session is not None and t.session.part == 0

        def fails(edges: Any) -> Any:
            raise ValueError("of the script's own")
        if name == "other relations, mean":
            cross, functions = "mean", {e: f for e, f in functions.items()
                                         if int(block.num_edges(e))}
        elif name == "without its holder":
            functions = {e: f for e, f in functions.items() if not int(block.num_edges(e))}
        elif name == "other fields":
            functions[etypes[0]] = builtin("h", "x" if first else "y")
        elif name == "other reducers":
            cross = "max" if first else "sum"
        elif name == "other orders":
            cross = in_order  # type: ignore[assignment]
            functions = {e: functions[e] for e in etypes[::1 if first else -1]}
        elif name == "no data":
            functions[etypes[-1]] = builtin("nowhere")
        elif name == "one fails":
            functions[etypes[-1]] = fails, fn.sum("m", "x")
        elif name == "two shapes":
            block.srcnodes["author"].data["h"] = ids["author"].double()[:, None]
        block.multi_update_all(functions, cross)
