"""Programs that prove themselves: right ones, which the proof lets pass, and wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from dgl.dataloading import DistNodeDataLoader, MultiLayerFullNeighborSampler
from dgl.heterograph import DGLBlock
from dgl.nn.pytorch import GraphConv, HeteroGraphConv, SAGEConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from tests.distdgl.programs.usual import HIDDEN, Inputs, Net
from tests.support.dist_script import Case, cases, make_net
from tests.support.programs_worker import Graph, Trainer

Program = Callable[[Trainer], None]


def watched(t: Trainer, calls: int | None = None) -> None:
    """Require that the proof compared something, and gave nothing up."""
    assert t.session is not None
    watch = t.session.watch
    if t.session.settings.run.prove == "off":
        assert watch is None
        return
    assert watch.told is None, watch.told
    assert watch.proved >= (1 if calls is None else calls), watch.proved


def train(t: Trainer, net: nn.Module, call: Any = None, steps: int = 2) -> None:
    net = t.parallel(net)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _, (ids, seeds, blocks) in zip(range(steps), t.loader()):
        out = call(net, blocks, ids, seeds) if call else net(blocks, ids, t.features(ids))
        optimizer.zero_grad()
        cross_entropy(out, t.labels(seeds)).backward()
        optimizer.step()
    t.parameters(net)
    watched(t)


def of_case(name: str, case: Case) -> Program:
    return lambda t: in_single(t, make_net(name, t.facts, case), case.layers)  # type: ignore[arg-type]


def in_single(t: Trainer, net: nn.Module, layers: int = 2) -> None:
    net = t.parallel(net).float()
    for _, (ids, seeds, blocks) in zip(range(2), t.loader(layers=layers)):
        out = net(blocks, ids, {k: x.float() for k, x in t.features(ids).items()})
        net.zero_grad()
        cross_entropy(out, t.labels(seeds)).backward()
    t.parameters(net)
    watched(t)


CASES = {"case_" + name.replace(" ", "_").replace("-", "_"): of_case(name, case)
         for name, case in cases().items()}
globals().update(CASES)


def conv(t: Trainer, kind: Callable[[int, int], nn.Module], merge: Any = "sum") -> Any:
    return lambda a, b: HeteroGraphConv({e: kind(a, b) for _, e, _ in t.facts.etypes}, merge)


def sage(a: int, b: int) -> nn.Module:
    return SAGEConv(a, b, "mean")


# --- right -------------------------------------------------------------------------------------

def with_dropout(t: Trainer) -> None:
    class Dropped(Net):
        def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
            states = {k: dropout(x, 0.5, self.training) for k, x in self.inputs(
                ids, features).items()}
            states = self.layers[0](blocks[0], states)
            return self.drop(self.layers[1](blocks[1], states)["paper"])

    net = Dropped(t.facts, conv(t, sage))
    net.drop = nn.Dropout(0.5)
    train(t, net)


def with_autocast(t: Trainer) -> None:
    """In single precision, so that autocast has something to do."""
    net = Net(t.facts, conv(t, sage))

    def call(module: Any, blocks: Any, ids: Any, seeds: Any) -> Tensor:
        module.float()
        with torch.autocast("cpu", torch.bfloat16):
            return module(blocks, ids, {k: x.float() for k, x in t.features(ids).items()})
    train(t, net, call)


def layer_by_layer(t: Trainer) -> None:
    """The script calls the layers; inputs and a head are outside."""
    inputs, layers = Inputs(t.facts), Net(t.facts, conv(t, sage)).layers
    head = nn.Linear(t.facts.classes, t.facts.classes)
    parts = [t.parallel(inputs), *map(t.parallel, layers), t.parallel(head)]
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        states = parts[0](ids, t.features(ids))
        for layer, block in zip(parts[1:3], blocks):
            states = {k: torch.tanh(x) for k, x in layer(block, states).items()}
        cross_entropy(parts[3](states["paper"]), t.labels(seeds)).backward()
    t.parameters(nn.ModuleList(parts))
    watched(t, 2)


def on_block_data(t: Trainer) -> None:
    """Features are put on the block, and the model gets blocks alone, by keyword."""
    class OnData(Net):
        def forward(self, *, blocks: Any) -> Tensor:
            rows = {k: blocks[0].srcnodes[k].data["x"] for k in t.facts.widths}
            ids = {k: blocks[0].srcnodes[k].data["_ID"] for k in blocks[0].srctypes}
            return super().forward(blocks, ids, rows)

    def call(module: Any, blocks: Any, ids: Any, seeds: Any) -> Tensor:
        for k, x in t.features(ids).items():
            blocks[0].srcnodes[k].data["x"] = x
        return module(blocks=blocks)
    train(t, OnData(t.facts, conv(t, sage)), call)


def loss_inside(t: Trainer) -> None:
    class WithLoss(Net):
        def forward(self, blocks: Any, ids: Any, features: Any, labels: Any = None) -> Tensor:
            return cross_entropy(super().forward(blocks, ids, features), labels)

    net = t.parallel(WithLoss(t.facts, conv(t, sage)))
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        net(blocks, ids, t.features(ids), labels=t.labels(seeds)).backward()
    watched(t)


def inference(t: Trainer) -> None:
    net = t.parallel(Net(t.facts, conv(t, sage))).eval()
    with torch.no_grad():
        for ids, _seeds, blocks in t.loader():
            net(blocks, ids, t.features(ids))
    watched(t)


def over_the_graph(t: Trainer, layer: nn.Module) -> None:
    """A layer's states of all nodes of all types, by batches for one layer."""
    mine = {k: torch.arange(t.rank, count, t.world) for k, count in t.facts.counts.items()}
    batches = DistNodeDataLoader(Graph(t.session), mine, MultiLayerFullNeighborSampler(1),
                                 batch_size=40)
    inputs, layer = Inputs(t.facts).double(), t.parallel(layer).eval()
    with torch.no_grad():
        for ids, _seeds, (block,) in batches:
            layer(block, inputs(ids, t.features(ids)))
    watched(t)


def inference_over_the_graph(t: Trainer) -> None:
    over_the_graph(t, conv(t, sage)(HIDDEN, HIDDEN))


def parted_copies(t: Trainer) -> None:
    """Inference on rows of which every machine has its own copy, read outside of the module."""
    net = t.parallel(Net(t.facts, conv(t, sage))).eval()
    with torch.no_grad():
        for ids, _seeds, blocks in t.loader():
            net(blocks, ids, {k: x + t.rank for k, x in t.features(ids).items()})
    assert t.session is not None
    assert "each trains its own copy" in t.session.watch.told


def recording_hooks(t: Trainer) -> None:
    """Hooks that keep what they see are not called once more for the proof."""
    kept: list[Any] = []
    net = Net(t.facts, conv(t, sage))
    net.layers[0].register_forward_hook(lambda module, args, out: kept.append(sorted(out)))
    train(t, net)
    assert len(kept) == 2, len(kept)


def small_batches_of_large_ones(t: Trainer) -> None:
    """More seeds per trainer than are replayed."""
    from dgl_heta.proof import proving

    before, proving.SEEDS = proving.SEEDS, 5
    try:
        train(t, Net(t.facts, conv(t, sage)))
        layer_by_layer(t)
    finally:
        proving.SEEDS = before


STEPS, NUMBERS, SEEN = 0, np.random.default_rng(5), []  # type: ignore[var-annotated]


def steps_so_far() -> int:
    global STEPS
    STEPS += 1
    SEEN.append(STEPS)
    return STEPS


class Outer(Net):
    """Scales what comes out by what is kept in many places outside of it."""

    calls, numbers = 0, torch.Generator().manual_seed(3)

    def __init__(self, t: Trainer, factor: Callable[[], Any]) -> None:
        super().__init__(t.facts, conv(t, sage))
        self.factor, self.own = factor, torch.Generator().manual_seed(4)

    def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
        type(self).calls += 1
        numbers = [torch.rand((), generator=g, dtype=torch.float64) for g in (
            self.numbers, self.own)]
        return super().forward(blocks, ids, features) * (
            self.factor() + self.calls + steps_so_far() + NUMBERS.random() + sum(numbers))


def state_outside(t: Trainer) -> None:
    """Counters and generators that a copy has in common with the run go on as if it were none."""
    global STEPS, NUMBERS
    STEPS, NUMBERS, Outer.calls = 0, np.random.default_rng(5), 0
    Outer.numbers.manual_seed(3)
    SEEN.clear()
    calls = 0

    def factor() -> int:
        nonlocal calls
        calls += 1
        return calls
    train(t, Outer(t, factor))
    assert (calls, STEPS, Outer.calls, SEEN) == (2, 2, 2, [1, 2])


def told(t: Trainer, net: nn.Module, text: str) -> None:
    """Train a net that cannot be proved, for this reason."""
    net = t.parallel(net)
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        cross_entropy(net(blocks, ids, t.features(ids)), t.labels(seeds)).backward()
    assert t.session is not None
    if t.session.settings.run.prove != "off":
        assert text in str(t.session.watch.told), t.session.watch.told


def noise_for_each_row(t: Trainer) -> None:
    generator = torch.Generator().manual_seed(t.rank)

    class Noisy(Net):
        def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
            out = super().forward(blocks, ids, features)
            return out + 0.1 * torch.randn(out.shape, generator=generator, dtype=out.dtype)
    told(t, Noisy(t.facts, conv(t, sage)), "draws random numbers other than for dropout, and not "
         "the same on all trainers")


def state_elsewhere(t: Trainer) -> None:
    """What nobody can put back."""
    steps = iter(range(1, 100))

    class Counting(Net):
        def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
            return super().forward(blocks, ids, features) * next(steps)
    told(t, Counting(t.facts, conv(t, sage)), "output is another one when Counting is called again")


def head_on_a_fixed_encoder(t: Trainer) -> None:
    """No gradient comes to the encoder, though the chain of its exchanges is run."""
    class Probe(Net):
        def __init__(self, facts: Any, layer: Any) -> None:
            super().__init__(facts, layer)
            self.head = nn.Linear(facts.classes, facts.classes)

        def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
            return self.head(super().forward(blocks, ids, features).detach())
    train(t, Probe(t.facts, conv(t, sage)))


def nothing_but_nan(t: Trainer) -> None:
    class Diverged(Net):
        def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
            return super().forward(blocks, ids, features) * np.nan
    told(t, Diverged(t.facts, conv(t, sage)), "all outputs are NaN or infinite")


def fails_in_double(t: Trainer) -> None:
    """And in single precision for another reason, which comes of trying that at all."""
    class Failing(Net):
        def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
            out = super().forward(blocks, ids, features)
            if type(blocks[0]) is DGLBlock:
                raise ValueError(f"the first reason, in {out.dtype}")
            return out
    told(t, Failing(t.facts, conv(t, sage)),
         "in a replay on DGL's own blocks: ValueError: the first reason, in torch.float64")


# --- wrong -------------------------------------------------------------------------------------

def seeds_masked(t: Trainer) -> None:
    """Labels are an input, those of the own seeds alone are masked."""
    class Labelled(Net):
        def forward(self, blocks: Any, ids: Any, features: Any, labels: Tensor) -> Tensor:
            states = self.inputs(ids, features)
            states["paper"] = states["paper"] + labels.unsqueeze(1)
            for layer, block in zip(self.layers, blocks):
                states = layer(block, states)
            return states["paper"]

    def call(module: Any, blocks: Any, ids: Any, seeds: Any) -> Tensor:
        labels = t.labels({"paper": ids["paper"]}).double() + 1
        labels[:len(seeds["paper"])] = 0
        return module(blocks, ids, t.features(ids), labels)
    train(t, Labelled(t.facts, conv(t, sage)), call)


def rows_mixed(t: Trainer) -> None:
    """What PairNorm does: the mean over all rows of a batch is taken away."""
    class Mixed(Net):
        def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
            states = self.layers[0](blocks[0], self.inputs(ids, features))
            states = {k: x - x.mean(0) for k, x in states.items()}
            return self.layers[1](blocks[1], states)["paper"]
    train(t, Mixed(t.facts, conv(t, sage)))


def rows_mixed_unseen(t: Trainer) -> None:
    """The same, and nothing of it reaches the outputs: an activation is 0 for all nodes."""
    class Mixed(Net):
        def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
            states = self.layers[0](blocks[0], self.inputs(ids, features))
            states = {k: x - x.mean(0) for k, x in states.items()}
            return self.head(torch.relu(-self.layers[1](blocks[1], states)["paper"].abs()))
    net = Mixed(t.facts, conv(t, sage))
    net.head = nn.Linear(t.facts.classes, t.facts.classes)
    train(t, net)


class _Inner(nn.Module):
    """Divides by what it is told to, of the relation's graph."""

    def __init__(self, a: int, b: int, degrees: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.linear, self.degrees = GraphConv(a, b, norm="none", allow_zero_in_degree=True), degrees

    def forward(self, graph: Any, rows: Any) -> Tensor:
        source = rows[0] / self.degrees(graph).clamp(min=1).unsqueeze(1)
        return self.linear(graph, (source, rows[1]))


def by_sources(t: Trainer) -> None:
    """Divides by the number of a source's edges in the batch, which others' seeds have, too."""
    def degrees(graph: Any) -> Tensor:
        index = graph._graph.edges(0, "eid")[0] if hasattr(graph, "_graph") else None
        return torch.bincount(index, minlength=graph.num_src_nodes())
    train(t, Net(t.facts, conv(t, lambda a, b: _Inner(a, b, degrees))))


class Skipped(nn.Module):
    """A layer's rows are those of this machine's relations, behind everybody's back."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.conv = layer

    def forward(self, block: Any, states: Any) -> Any:
        found = self.conv(block, states)
        held = [e.relation for e in block.layer.block.edges] if hasattr(block, "layer") else (
            block.canonical_etypes)
        return {k: x * (1 + sum(r[2] == k for r in held)) for k, x in found.items()}


def reduction_skipped(t: Trainer) -> None:
    train(t, Net(t.facts, lambda a, b: Skipped(conv(t, sage)(a, b))))


def skipped_over_the_graph(t: Trainer) -> None:
    over_the_graph(t, Skipped(conv(t, sage)(HIDDEN, HIDDEN)))


class Divided(torch.autograd.Function):
    """Its gradient depends on how many rows a trainer has."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / len(grad)


def mixed_between_layers(t: Trainer) -> None:
    """A little of the mean over a batch's rows is taken away where the script calls the layers."""
    net = Net(t.facts, conv(t, sage)).double()
    parts = [t.parallel(net.inputs), *map(t.parallel, net.layers)]
    for ids, seeds, blocks in t.loader():
        states = {k: x - 0.02 * x.mean(0) for k, x in parts[0](ids, t.features(ids)).items()}
        states = parts[2](blocks[1], parts[1](blocks[0], states))
        cross_entropy(states["paper"], t.labels(seeds)).backward()


def gradient_in_single(t: Trainer) -> None:
    """What forces single precision does not hide a gradient of many numbers that is wrong."""
    ones = torch.eye(64, dtype=torch.float32)

    class Odd(Net):
        def __init__(self, facts: Any, layer: Any) -> None:
            super().__init__(facts, layer)
            self.wide = nn.Sequential(nn.Linear(HIDDEN, 64), nn.Linear(64, 64))
            self.back = nn.Linear(64, HIDDEN)

        def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
            states = {k: self.back(Divided.apply(self.wide(x) @ ones))
                      for k, x in self.inputs(ids, features).items()}
            return self.layers[1](blocks[1], self.layers[0](blocks[0], states))["paper"]
    in_single(t, Odd(t.facts, conv(t, sage)))


def gradient_of_a_trainer(t: Trainer) -> None:
    """The same outputs, but a gradient that other trainers' rows have a part in."""
    class Odd(Net):
        def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
            states = {k: Divided.apply(x) for k, x in self.inputs(ids, features).items()}
            return self.layers[1](blocks[1], self.layers[0](blocks[0], states))["paper"]
    train(t, Odd(t.facts, conv(t, sage)))


def not_proved(t: Trainer) -> None:
    """An argument of which nobody knows what it is."""
    class Options:
        factor = 2.0

    class Given(Net):
        def forward(self, blocks: Any, ids: Any, features: Any, options: Options) -> Tensor:
            return super().forward(blocks, ids, features) * options.factor

    net = t.parallel(Given(t.facts, conv(t, sage)))
    for ids, seeds, blocks in t.loader():
        cross_entropy(net(blocks, ids, t.features(ids), Options()), t.labels(seeds)).backward()
    assert t.session is not None
    if t.session.settings.run.prove != "off":
        assert "argument of type Options" in t.session.watch.told


def few_edges(t: Trainer) -> None:
    """Some relation has no edge for a few seeds, which the model takes for granted."""
    from dgl_heta.proof import proving

    class Granted(Net):
        def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
            if blocks[-1].num_dst_nodes("paper") == 1:
                raise KeyError("h")
            return super().forward(blocks, ids, features)

    net = t.parallel(Granted(t.facts, conv(t, sage)))
    before, proving.SEEDS = proving.SEEDS, 1
    try:
        for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
            cross_entropy(net(blocks, ids, t.features(ids)), t.labels(seeds)).backward()
    finally:
        proving.SEEDS = before
    assert t.session is not None
    if t.session.settings.run.prove != "off":
        assert t.session.watch.told.startswith(
            "the model fails in a replay on DGL's own blocks of at most 1 seeds per trainer, where")
        assert t.session.watch.told.endswith("they have in the whole batch: KeyError: 'h'")
    t.parameters(net)
