"""Losses of a trainer's own rows and numbers, which are exact, and of the group's, which are not.

A program is drawn from two tables: `OWN` has what may go on, `GROUPS` what is refused. Each entry
makes a loss of a :class:`Step` and of the loss over its seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import dgl
import torch
from dgl.nn.pytorch import HeteroGraphConv, SAGEConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, normalize
from torch.utils._pytree import tree_flatten

from dgl_heta.distdgl.autograd import trace as tracing
from tests.distdgl.programs.usual import HIDDEN, Net
from tests.support.programs_worker import Facts, Trainer

CLASSES = 4


class OnSlices(nn.Module):
    """A convolution for each relation, on its slice of the block, and their sum."""

    def __init__(self, mods: dict[str, nn.Module]) -> None:
        super().__init__()
        self.mods = nn.ModuleDict(mods)

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for s, e, d in block.canonical_etypes:
            own = states[d][:block.num_dst_nodes(d)]
            value = self.mods[e](block[s, e, d], (states[s], own))
            out[d] = out[d] + value if d in out else value
        return out


class Open(Net):
    """Logits, and the states of every level: inputs first."""

    def __init__(self, facts: Facts, sliced: bool = False) -> None:
        def merge(a: int, b: int) -> nn.Module:
            mods = {e: SAGEConv(a, b, "mean") for _, e, _ in facts.etypes}
            return OnSlices(mods) if sliced else HeteroGraphConv(mods, "sum")
        super().__init__(facts, merge)
        self.kept: Tensor | None = None

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor],
                rows: Mapping[str, Tensor] = MappingProxyType({})
                ) -> tuple[Tensor, list[dict[str, Tensor]]]:
        levels = [{**self.inputs(ids, features), **rows}]
        for layer, block in zip(self.layers, blocks):
            below = levels[-1] if len(levels) == 1 else {
                k: x.tanh() for k, x in levels[-1].items()}
            levels.append(layer(block, below))
        self.kept = levels[1]["author"].square().mean()
        return levels[-1]["paper"], levels


@dataclass
class Step:
    """What a script has of a batch when it makes a loss."""

    number: int
    net: Open
    judge: nn.Module
    head: nn.Module
    norm: nn.Module
    blocks: list[Any]
    ids: dict[str, Tensor]
    seeds: Tensor
    features: dict[str, Tensor]
    out: Tensor
    levels: list[dict[str, Tensor]]
    own_loss: Tensor

    @property
    def n(self) -> int:
        return len(self.seeds)


Loss = Callable[[Step, Tensor], Tensor]


class Reverse(torch.autograd.Function):
    """Gradient reversal, of domain-adversarial training."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


def drawn(step: Step, count: int, low: int = 0) -> Tensor:
    """Numbers that every run draws alike for a trainer's step."""
    generator = torch.Generator().manual_seed(step.number)
    return torch.randint(low, count, (step.n,), generator=generator)


def smooth(s: Step, loss: Tensor) -> Tensor:
    h = s.levels[1]["author"]
    return loss + (h[1:] - h[:-1]).square().mean()


def negatives_by_ids(s: Step, loss: Tensor) -> Tensor:
    count = len(s.ids["institution"])
    drawn_ids = s.ids["institution"][drawn(s, count) if count else []]
    return loss + s.net.inputs.tables["institution"](drawn_ids).square().mean()


def negatives_by_rows(s: Step, loss: Tensor) -> Tensor:
    rows = s.levels[0]["author"]
    return loss + (s.out[:, :4] * rows[drawn(s, len(rows)), :4]).sum(1).sigmoid().log().mean()


def of_module(s: Step, loss: Tensor) -> Tensor:
    assert s.net.kept is not None
    return loss + s.net.kept


def masked_share(s: Step, loss: Tensor) -> Tensor:
    return loss * (s.features["field"][:, 0] > 0).double().mean()


def norm_as_number(s: Step, loss: Tensor) -> Tensor:
    return loss * s.levels[1]["author"].norm().item()


def in_memory(s: Step, loss: Tensor) -> Tensor:
    weights = torch.zeros(500, dtype=torch.float64)
    weights[s.ids["author"]] = 1.0
    return loss * weights.mean()


GROUPS: dict[str, Loss] = {
    "input rows": lambda s, loss: loss + 0.1 * sum(
        x.square().mean() for x in s.levels[0].values()),
    "summed input rows": lambda s, loss: loss + 0.01 * s.levels[0]["author"].square().sum(),
    "rows of a table": lambda s, loss: loss + s.levels[0]["institution"].norm(dim=1).mean(),
    "a table again": lambda s, loss: loss + s.net.inputs.tables["institution"](
        s.ids["institution"]).square().mean(),
    "projected features": lambda s, loss: loss + s.net.inputs.linear["field"](
        s.features["field"]).square().mean(),
    "projected features, normalised": lambda s, loss: loss + s.net.inputs.linear["field"](
        normalize(s.features["field"])).square().mean(),
    "another type": lambda s, loss: loss + 0.1 * s.judge(s.levels[1]["author"]).exp().mean(),
    "all rows of the target": lambda s, loss: loss + s.levels[1]["paper"].square().mean(),
    "smooth": smooth,
    "in the module": of_module,
    "reversed": lambda s, loss: loss + s.judge(
        Reverse.apply(s.levels[1]["author"])).sigmoid().log().mean(),
    "later": lambda s, loss: loss + (s.levels[1]["paper"].square().mean() if s.number else 0),
    "warmed up": lambda s, loss: loss + s.number * s.levels[1]["paper"].square().mean(),
    "centred": lambda s, loss: loss + (
        s.levels[1]["paper"] - s.levels[1]["paper"].mean(0))[:s.n].square().mean(),
    "prototype": lambda s, loss: loss + (
        s.levels[1]["paper"][:s.n] - s.levels[1]["author"].detach().mean(0)).square().mean(),
    "negatives by ids": negatives_by_ids,
    "negatives by rows": negatives_by_rows,
    "masked share": masked_share,
    "a number of rows": norm_as_number,
    "ids in a table": in_memory,
    "edges": lambda s, loss: 10 * loss / s.blocks[0].num_edges(),
    "edges of a relation": lambda s, loss: loss * s.blocks[1].num_edges("writes") / 10,
    "nodes": lambda s, loss: loss * s.blocks[0].num_nodes() * 1e-3,
    "nodes of a type": lambda s, loss: loss / s.blocks[0].num_src_nodes("author"),
    "length": lambda s, loss: loss * (s.n / len(s.ids["author"])),
    "one more": lambda s, loss: loss / (len(s.ids["author"]) + 1),
    "logarithm of one more": lambda s, loss: loss * math.log1p(len(s.ids["author"])),
    "root of a shape": lambda s, loss: loss / math.sqrt(s.levels[1]["author"].shape[0]),
    "total length": lambda s, loss: loss / sum(len(x) for x in s.ids.values()),
    "a tensor of lengths": lambda s, loss: loss * torch.tensor(
        [len(s.ids["author"])], dtype=torch.float64).log().mean(),
    "elements": lambda s, loss: loss / s.levels[0]["author"].numel(),
}


SHORT = ["input rows", "a table again", "another type", "prototype", "negatives by ids",
         "masked share", "edges", "length"]
"""One of each kind."""


def jumping(s: Step, loss: Tensor) -> Tensor:
    """Jumping knowledge: own seeds' rows of every level, past batch norm and dropout."""
    normed = s.norm(s.levels[1]["paper"])
    rows = [s.levels[0]["paper"][:s.n], normed.relu()[:s.blocks[1].num_dst_nodes("paper")],
            dropout(s.levels[1]["paper"], 0.0)[:s.n]]
    return loss + s.head(sum(rows)).square().mean()  # type: ignore[arg-type]


def masked(s: Step, loss: Tensor) -> Tensor:
    """Rows of all nodes, those of other trainers' seeds weighted by zero."""
    ids = s.blocks[0].srcnodes["paper"].data[dgl.NID]
    own = torch.isin(ids, s.seeds).double()
    rows = s.levels[0]["paper"].square().mean(1)
    return loss + (rows * own).sum() / own.sum()


def looked_at(s: Step, loss: Tensor) -> Tensor:
    """Numbers of the group in what is printed, not in the loss."""
    h = s.levels[1]["author"]
    print(len(s.ids["author"]), s.blocks[0].num_edges(), h.shape, h.norm().item(), h.mean())
    rate = len(s.ids["paper"]) / 1.5
    assert rate >= 0
    assert h.detach().cpu().numpy().shape[0] == len(h)
    return loss


def indexed(s: Step, loss: Tensor) -> Tensor:
    """Counts as places and shapes."""
    ids = s.ids["paper"]
    places = torch.arange(len(ids))
    rows = s.levels[0]["paper"][places].view(len(places), -1)
    table = torch.zeros(rows.shape[0], rows.size(1), dtype=rows.dtype)
    return loss + (rows + table).narrow(0, 0, s.n).square().mean()


def contrast(s: Step, loss: Tensor) -> Tensor:
    """Own seeds against each other, and weights by their own features."""
    z = normalize(s.out)
    weights = s.features["paper"][:s.n, 0].sigmoid()
    return loss + cross_entropy(z @ z.T / 0.1, torch.arange(s.n, device=z.device)) * weights.mean()


def overwritten(s: Step, loss: Tensor) -> Tensor:
    ids = s.ids["paper"].clone()
    ids[:] = 3
    return loss + s.net.inputs.tables["institution"](ids).square().mean()


OWN: dict[str, Loss] = {
    "seeds": lambda s, loss: loss,
    "jumping": jumping,
    "masked": masked,
    "looked at": looked_at,
    "indexed": indexed,
    "contrast": contrast,
    "own numbers": lambda s, loss: (loss * s.n / 8 + s.out.square().sum() / len(s.seeds)
                                    / s.blocks[1].num_dst_nodes("paper")),
    "parameters": lambda s, loss: loss + 0.1 * sum(
        p.square().sum() for p in s.net.layers[1].mods["writes"].parameters()),
    "overwritten": overwritten,
    "drawn from all": lambda s, loss: loss + s.net.inputs.tables["institution"](
        drawn(s, s.net.inputs.tables["institution"].num_embeddings)).square().mean(),
    "own input rows": lambda s, loss: loss + s.net.inputs.linear["paper"](
        s.features["paper"][:s.n]).square().mean(),
    "own loss as a number": lambda s, loss: loss * loss.item(),
    "own counts": lambda s, loss: loss / int((s.out[:, 0] > 0).sum() + 1),
}


def run(t: Trainer, make: Loss, ahead: bool = False, training_norm: bool = False,
        sliced: bool = False) -> None:
    net = t.parallel(Open(t.facts, sliced))
    inner: Open = net.module
    judge, head = t.parallel(nn.Linear(HIDDEN, 1)), t.parallel(nn.Linear(HIDDEN, CLASSES))
    norm = nn.BatchNorm1d(HIDDEN).double().to(t.device).train(training_norm)
    batches = zip(range(2), t.loader(batch_size=12))
    for number, (ids, seeds, blocks) in [*batches] if ahead else batches:
        features = t.features(ids)
        if number:  # whose rows do not wait
            features = {k: x.clone() for k, x in features.items()}
        out, levels = net(blocks, ids, features)
        loss = cross_entropy(out, t.labels(seeds))
        loss = make(Step(number, inner, judge, head, norm, blocks, ids, seeds["paper"], features,
                         out, levels, loss), loss)
        net.zero_grad()
        loss.backward()
        t.record("out", out, seeds["paper"])
        gradients(t, inner)
        t.record("step", torch.tensor(number))


def gradients(t: Trainer, net: nn.Module) -> None:
    """With zeros for none: DistributedDataParallel by plain DGL gives zeros to parameters of states
    that are returned and no loss depends on."""
    for name, p in net.named_parameters():
        t.record(name, torch.zeros_like(p) if p.grad is None else p.grad)


def own(t: Trainer, name: str) -> None:
    run(t, OWN[name])


def all_own(t: Trainer, sliced: bool) -> None:
    """All of them, one after the other."""
    def make(s: Step, loss: Tensor) -> Tensor:
        for each in OWN.values():
            loss = each(s, loss)
        return loss
    run(t, make, sliced=sliced)


def groups(t: Trainer, name: str) -> None:
    run(t, GROUPS[name])


def in_turn(t: Trainer) -> None:
    """Own states in the first step, states of another type by the same functions in the second."""
    run(t, lambda s, loss: loss + s.levels[1][
        "author" if s.number else "paper"][:s.n].square().mean())


def sliced(t: Trainer, name: str) -> None:
    """Relations are convolved on slices of the block."""
    run(t, GROUPS[name], sliced=True)


def asked(t: Trainer, name: str) -> None:
    """Gradients of parameters by autograd.grad, of a model that is not wrapped."""
    net = Open(t.facts).double().to(t.device)
    parameters = [*net.parameters()]
    ids, seeds, blocks = next(iter(t.loader(batch_size=12)))
    features = t.features(ids)
    out, levels = net(blocks, ids, features)
    loss = cross_entropy(out, t.labels(seeds))
    judge, head = (nn.Linear(HIDDEN, n).double().to(t.device) for n in (1, CLASSES))
    step = Step(0, net, judge, head, nn.Identity(), blocks, ids, seeds["paper"], features, out,
                levels, loss)
    grads = torch.autograd.grad({**OWN, **GROUPS}[name](step, loss), parameters, allow_unused=True)
    for grad, parameter in zip(grads, parameters):
        t.record("gradient", torch.zeros_like(parameter) if grad is None else grad)
        t.record("norm", torch.zeros(1) if grad is None else grad.norm())


def ahead(t: Trainer, name: str) -> None:
    """Batches are drawn before the first of them is used."""
    run(t, {**OWN, **GROUPS}[name], ahead=True)


def normed(t: Trainer) -> None:
    """Jumping knowledge past a batch norm, whose statistics are of the rows of a machine."""
    run(t, jumping, training_norm=True)


def drawn_again(t: Trainer) -> None:
    """What was drawn for an operation is drawn again, and the script goes on with other numbers."""
    func = torch.ops.aten.bernoulli.p
    items, spec = tree_flatten(((torch.ones(40, device=t.device), 0.5), {}))
    drawn = tracing._random_state(func, items)
    once, again = func(*items), tracing._runner(func, spec, *drawn)(items)[0]
    assert torch.equal(once, again)
    assert not torch.equal(once, func(*items))
    t.record("drawn", torch.zeros(1))


def hooked(t: Trainer) -> None:
    """A hook on what the model returns is called once in each backward pass."""
    calls: list[Tensor] = []

    def hooked(s: Step, loss: Tensor) -> Tensor:
        s.out.register_hook(calls.append)
        return jumping(s, loss)
    run(t, hooked)
    assert len(calls) == 2
