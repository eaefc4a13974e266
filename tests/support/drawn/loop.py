"""Training loops of a description."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tests.support.drawn.description import Program, from_json
from tests.support.drawn.model import Model
from tests.support.programs_worker import Batch, Trainer

OPTIMIZERS: dict[str, Any] = {
    "Adam": partial(torch.optim.Adam, eps=1e-3), "AdamW": partial(torch.optim.AdamW, eps=1e-3),
    "SGD": torch.optim.SGD, "momentum": partial(torch.optim.SGD, momentum=0.9),
    "Adagrad": partial(torch.optim.Adagrad, eps=1e-3)}
"""With more in the denominator than usual: a gradient that is rounding stays small."""
EXTRAS = ("clip", "clip value", "zeros", "scheduler", "eval before", "eval between", "module eval",
          "inference", "unequal nodes", "part of the seeds", "scaled by rank", "skip a batch",
          "unused batch", "hook", "squared hook", "freeze inputs", "freeze later", "norms",
          "static graph", "no buffers", "hidden hook", "sum loss", "fanouts")


class Run:
    """One run of a program by one trainer."""

    def __init__(self, t: Trainer, program: Program) -> None:
        self.t, self.program, self.loop = t, program, program.loop
        self.extras = set(program.loop.extras)
        options: dict[str, Any] = {}
        if "static graph" in self.extras:
            options = {"static_graph": True, "find_unused_parameters": False}
        if "no buffers" in self.extras:
            options["broadcast_buffers"] = False
        model = Model(program, t.facts)
        if "freeze inputs" in self.extras:
            model.inputs.requires_grad_(False)
        self.net = t.parallel(model, **options)
        self.modules: list[nn.Module] = [self.net]
        self.head: nn.Module | None = None
        if program.head == "outside":
            self.head = t.parallel(nn.Linear(program.layers[-1].width, t.facts.classes))
            self.modules.append(self.head)
        self._hooks()
        self.optimizer = self.make_optimizer(self.modules)
        self.number = 0

    def make_optimizer(self, modules: list[nn.Module]) -> Any:
        """Of the loop's kind; of sparse tables' rows SGD, which has it."""
        parameters = [p for m in modules for p in m.parameters() if p.requires_grad]
        kind = self.loop.optimizer
        if "sparse tables" in self.program.inputs and kind != "Adagrad":
            return torch.optim.SGD(parameters, 0.05)
        return OPTIMIZERS[kind](parameters, 0.02, weight_decay=self.loop.weight_decay)

    def _hooks(self) -> None:
        for parameter in self.net.parameters():
            if not parameter.requires_grad:
                continue
            if "hook" in self.extras:
                parameter.register_hook(lambda gradient: gradient * 0.5)
            if "squared hook" in self.extras:
                parameter.register_hook(
                    lambda gradient: gradient if gradient.is_sparse else gradient.tanh())
        if "hidden hook" in self.extras:
            def double(module: Any, inputs: Any, out: Any) -> Any:
                return {t: x * 2 for t, x in out.items()}
            for module in self.net.modules():
                if type(module).__name__ == "HeteroGraphConv":
                    module.register_forward_hook(double)

    def batches(self, **options: Any) -> Any:
        nodes = self.t.nodes
        if "unequal nodes" in self.extras and self.t.rank == 0:
            nodes = nodes[:len(nodes) * 3 // 4]
        return self.loader(nodes, **options)

    def loader(self, nodes: Tensor, **options: Any) -> Any:
        layers, fanouts = len(self.program.layers), None
        if "fanouts" in self.extras:
            fanouts = [{e: -((place + layer) % 3 > 0) for place, (_, e, _) in enumerate(
                self.t.facts.etypes)} for layer in range(layers)]
        return self.t.loader(batch_size=self.loop.batch, layers=layers, nodes=nodes,
                             fanouts=fanouts, **options)

    def logits(self, batch: Batch, net: nn.Module | None = None) -> Tensor:
        ids, _, blocks = batch
        out = (net or self.net)(blocks, ids, self.t.features(ids))
        return out if self.head is None else self.head(out)

    def loss(self, out: Tensor, batch: Batch) -> Tensor:
        labels = self.t.labels(batch[1])
        if "part of the seeds" in self.extras:
            out, labels = out[labels > 0], labels[labels > 0]
        loss = cross_entropy(out, labels, reduction="sum" if "sum loss" in self.extras else "mean")
        return loss * (1 + self.t.rank) if "scaled by rank" in self.extras else loss

    def note(self, out: Tensor, batch: Batch, name: str = "out") -> None:
        self.t.record(name, out, batch[1]["paper"])

    def step(self) -> None:
        """What follows the backward pass."""
        dense = [p for m in self.modules for p in m.parameters()
                 if p.grad is not None and not p.grad.is_sparse]
        if "clip" in self.extras:
            self.t.record("norm", nn.utils.clip_grad_norm_(dense, 0.1))
        if "clip value" in self.extras:
            nn.utils.clip_grad_value_(dense, 0.01)
        for module in self.modules:
            self.t.gradients(module)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none="zeros" not in self.extras)

    def evaluate(self, net: nn.Module | None = None) -> None:
        net = net or self.net
        with torch.inference_mode() if "inference" in self.extras else torch.no_grad():
            net.eval()
            nodes = torch.arange(self.t.rank, self.t.facts.counts["paper"], 7 * self.t.world)
            for batch in self.loader(nodes):
                self.note(self.logits(batch, net), batch, "evaluated")
            net.train()

    def run(self) -> None:
        if "eval before" in self.extras:
            self.evaluate()
        loader = self.batches()
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        for epoch in range(self.loop.epochs):
            if epoch and "freeze later" in self.extras:
                inputs: Any = getattr(self.net, "module", self.net)
                inputs.inputs.linear.requires_grad_(False)
            STYLES[self.loop.style](self, loader)
            if "scheduler" in self.extras:
                schedule.step()
            if "eval between" in self.extras:
                self.evaluate()
            if "module eval" in self.extras:
                self.evaluate(getattr(self.net, "module", self.net))
        for module in self.modules:
            self.t.parameters(module)

    def few(self, loader: Any) -> Any:
        """As many batches as there are steps, fewer those that are skipped."""
        taken = itertools.islice(loader, self.loop.steps) if self.loop.steps else loader
        for number, batch in enumerate(taken):
            if number == 1 and "skip a batch" in self.extras:
                continue
            if number == 1 and "unused batch" in self.extras:
                self.logits(batch)
                continue
            yield batch


def usual(run: Run, loader: Any) -> None:
    for batch in run.few(loader):
        out = run.logits(batch)
        run.loss(out, batch).backward()
        run.note(out, batch)
        run.step()


def accumulate(run: Run, loader: Any) -> None:
    for number, batch in enumerate(run.few(loader)):
        out = run.logits(batch)
        (run.loss(out, batch) / 2).backward()
        run.note(out, batch)
        if number % 2:
            run.step()
    run.step()


def no_sync(run: Run, loader: Any) -> None:
    for number, batch in enumerate(run.few(loader)):
        with nullcontext() if number % 2 else run.net.no_sync():  # type: ignore[operator]
            out = run.logits(batch)
            run.loss(out, batch).backward()
        run.note(out, batch)
        if number % 2:
            run.step()


def retain_graph(run: Run, loader: Any) -> None:
    for batch in run.few(loader):
        out = run.logits(batch)
        run.loss(out, batch).backward(retain_graph=True)
        out.pow(2).mean().backward()
        run.note(out, batch)
        run.step()


def two_forwards(run: Run, loader: Any) -> None:
    for batch in run.few(loader):
        first, second = run.logits(batch), run.logits(batch)
        (run.loss(first, batch) + second.pow(2).mean()).backward()
        run.note(first, batch)
        run.step()


def two_backwards(run: Run, loader: Any) -> None:
    for batch in run.few(loader):
        first, second = run.logits(batch), run.logits(batch)
        run.loss(first, batch).backward()
        second.pow(2).mean().backward()
        run.note(first, batch)
        run.step()


def two_models(run: Run, loader: Any) -> None:
    other = run.t.parallel(Model(run.program, run.t.facts))
    optimizer = run.make_optimizer([other])
    for batch in run.few(loader):
        first, second = run.logits(batch), run.logits(batch, other)
        run.loss(first, batch).backward()
        run.loss(second, batch).backward()
        run.note(first, batch)
        run.note(second, batch, "other")
        run.step()
        run.t.gradients(other)
        optimizer.step()
        optimizer.zero_grad()


def adversary(run: Run, loader: Any) -> None:
    """Two models in turn, the one's output the other's teacher."""
    other = run.t.parallel(Model(run.program, run.t.facts))
    optimizer = run.make_optimizer([other])
    for batch in run.few(loader):
        first, second = run.logits(batch), run.logits(batch, other)
        (first.detach() - second).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        (run.loss(first, batch) + (first - second.detach()).pow(2).mean()).backward()
        run.note(first, batch)
        run.step()


def two_loaders(run: Run, loader: Any) -> None:
    nodes = run.t.nodes.flip(0)
    second = run.t.loader(batch_size=run.loop.batch, layers=len(run.program.layers), nodes=nodes)
    for a, b in zip(run.few(loader), second):
        first = run.logits(a)
        out = run.logits(b)
        (run.loss(first, a) + 0.5 * run.loss(out, b)).backward()
        run.note(first, a)
        run.note(out, b, "second")
        run.step()


def prefetched(run: Run, loader: Any) -> None:
    batches = list(run.few(loader))
    for batch in batches:
        out = run.logits(batch)
        run.loss(out, batch).backward()
        run.note(out, batch)
        run.step()


def last_batch_again(run: Run, loader: Any) -> None:
    """The batch before once more, after the next one has been drawn."""
    before = None
    for batch in run.few(loader):
        for one in (batch, before):
            if one is not None:
                out = run.logits(one)
                run.loss(out, one).backward()
                run.note(out, one)
                run.step()
        before = batch


def checkpointed(run: Run, loader: Any, reentrant: bool = False) -> None:
    for batch in run.few(loader):
        ids, _, blocks = batch
        features = run.t.features(ids)
        out = checkpoint(run.net, blocks, ids, features, use_reentrant=reentrant)
        out = out if run.head is None else run.head(out)
        run.loss(out, batch).backward()
        run.note(out, batch)
        run.step()


def penalty(run: Run, loader: Any) -> None:
    for batch in run.few(loader):
        out = run.logits(batch)
        loss = run.loss(out, batch)
        parameters = [p for p in run.net.parameters() if p.requires_grad]
        slopes = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
        (loss + sum(g.pow(2).sum() for g in slopes if g is not None)).backward()
        run.note(out, batch)
        run.step()


def asked_gradients(run: Run, loader: Any) -> None:
    """Gradients by autograd.grad, averaged and put in their place by hand."""
    for batch in run.few(loader):
        out = run.logits(batch)
        parameters = [p for m in run.modules for p in m.parameters() if p.requires_grad]
        slopes = torch.autograd.grad(run.loss(out, batch), parameters, allow_unused=True)
        for parameter, slope in zip(parameters, slopes):
            total = torch.zeros_like(parameter) if slope is None else slope.to_dense()
            if run.t.world > 1:
                torch.distributed.all_reduce(total)
            parameter.grad = total / run.t.world
        run.note(out, batch)
        run.step()


def saliency(run: Run, loader: Any) -> None:
    """How the loss depends on the features of the seeds themselves."""
    for batch in run.few(loader):
        ids, seeds, blocks = batch
        features = {t: x.clone().requires_grad_() for t, x in run.t.features(ids).items()}
        out = run.net(blocks, ids, features)
        out = out if run.head is None else run.head(out)
        run.loss(out, batch).backward()
        slopes = features["paper"].grad
        if slopes is not None:
            run.t.record("slopes", slopes[:len(seeds["paper"])], seeds["paper"])
        run.note(out, batch)
        run.step()


def perturbed(run: Run, loader: Any) -> None:
    """Adversarial training: features moved along their gradients."""
    for batch in run.few(loader):
        ids, _, blocks = batch
        features = {t: x.clone().requires_grad_() for t, x in run.t.features(ids).items()}
        out = run.net(blocks, ids, features)
        out = out if run.head is None else run.head(out)
        slopes = torch.autograd.grad(run.loss(out, batch), list(features.values()),
                                     allow_unused=True)
        moved = {t: x.detach() if g is None else x.detach() + 0.1 * g.tanh()
                 for (t, x), g in zip(features.items(), slopes)}
        out = run.net(blocks, ids, moved)
        out = out if run.head is None else run.head(out)
        run.loss(out, batch).backward()
        run.note(out, batch)
        run.step()


def neighbours_labels(run: Run, loader: Any) -> None:
    """Labels as features, those of the own seeds masked."""
    for batch in run.few(loader):
        ids, seeds, blocks = batch
        features = dict(run.t.features(ids))
        labels = run.t.labels({"paper": ids["paper"]}).double()
        labels[:len(seeds["paper"])] = 0
        features["paper"] = features["paper"] + labels[:, None]
        out = run.net(blocks, ids, features)
        out = out if run.head is None else run.head(out)
        run.loss(out, batch).backward()
        run.note(out, batch)
        run.step()


STYLES: dict[str, Callable[[Run, Any], None]] = {f.__name__: f for f in (
    usual, accumulate, no_sync, retain_graph, two_forwards, two_backwards, two_models, adversary,
    two_loaders, prefetched, last_batch_again, checkpointed, penalty, asked_gradients, saliency,
    perturbed, neighbours_labels)}


def run(t: Trainer, description: dict[str, Any]) -> None:
    """Run a drawn program: the function that :mod:`tests.support.programs` is given."""
    Run(t, from_json(description)).run()
