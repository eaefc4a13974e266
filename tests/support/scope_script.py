"""A DistDGL script whose losses are of rows and numbers of the group's batch, and of own ones.

    --mode tables   rows of a DistEmbedding, and states in a DistTensor; what was refused is written
                    to OUT/RANK.json
    --mode kinds    one model for each loss of tests.distdgl.programs.scopes, for `dgl-heta prove`
    --mode own      the same of own rows and numbers, with rows of a DistEmbedding
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.distdgl.programs.scopes import GROUPS, OWN, SHORT, Open, Step
from tests.distdgl.programs.usual import HIDDEN
from tests.support.programs_worker import Facts


class Fed(Open):
    """The model is given rows of DistEmbeddings, too: of papers beside their features, of types
    without features in place of its tables."""

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        del self.inputs.tables
        self.inputs.tables = nn.ModuleDict()

    def forward(self, blocks: Any, ids: Any, features: Any, rows: Any = None) -> Any:
        projected = self.inputs(ids, features)
        return super().forward(blocks, ids, features, {
            **rows, "paper": projected["paper"] + rows["paper"]})


def halves(shape: Any, dtype: Any) -> Tensor:
    return torch.full(shape, 0.5, dtype=dtype)


class Script:
    def __init__(self, options: argparse.Namespace) -> None:
        self.out = Path(options.out)
        torch.set_num_threads(1)
        dgl.distributed.initialize(options.ip_config)
        torch.distributed.init_process_group("gloo")
        self.g = g = dgl.distributed.DistGraph("academic", part_config=options.part_config)
        widths = {t: g.nodes[t].data["feat"].shape[1] for t in g.ntypes
                  if "feat" in g.nodes[t].data}
        self.facts = Facts({t: g.num_nodes(t) for t in g.ntypes}, widths,
                           list(g.canonical_etypes))
        self.mine = dgl.distributed.node_split(
            g.nodes["paper"].data["train_mask"], g.get_partition_book(), ntype="paper",
            force_even=True)
        self.tables = {t: dgl.distributed.DistEmbedding(
            n, HIDDEN, f"table-{t}", init_func=halves, part_policy=g.get_node_partition_policy(t))
            for t, n in self.facts.counts.items() if t not in widths or t == "paper"}

    def batch(self) -> tuple[dict[str, Tensor], dict[str, Tensor], list[Any]]:
        sampler = dgl.dataloading.MultiLayerFullNeighborSampler(2)
        batch: Any = next(iter(dgl.dataloading.DistNodeDataLoader(
            self.g, {"paper": self.mine}, sampler, batch_size=12)))
        return batch

    def features(self, ids: dict[str, Tensor]) -> dict[str, Tensor]:
        return {t: self.g.nodes[t].data["feat"][ids[t]].float() for t in self.facts.widths}

    def rows(self, ids: dict[str, Tensor]) -> dict[str, Tensor]:
        return {t: table(ids[t]) for t, table in self.tables.items()}

    def labels(self, seeds: Tensor) -> Tensor:
        return self.g.nodes["paper"].data["labels"][seeds].long()

    def of_tables(self) -> None:
        """Each attempt has a loader of its own, whose first step is one to prove."""
        states = dgl.distributed.DistTensor(
            (self.facts.counts["paper"], HIDDEN), torch.float32, "states",
            part_policy=self.g.get_node_partition_policy("paper"))
        net = nn.parallel.DistributedDataParallel(Fed(self.facts))

        def own(s: Step, loss: Tensor, rows: dict[str, Tensor]) -> Tensor:
            states[s.seeds] = s.levels[1]["paper"][:s.n].detach()
            return loss + rows["paper"][:s.n].square().mean()

        def shuffled(s: Step, loss: Tensor, rows: dict[str, Tensor]) -> Tensor:
            ids = s.ids["author"]
            return loss + self.tables["author"](ids[torch.randperm(len(ids))]).square().mean()

        def selected(s: Step, loss: Tensor, rows: dict[str, Tensor]) -> Tensor:
            ids = torch.unique(torch.cat([s.ids["author"][::2], torch.tensor([0, 1])]))
            return loss + self.tables["author"](ids).square().mean()

        def sort(s: Step, loss: Tensor, rows: dict[str, Tensor]) -> Tensor:
            return loss + self.tables["author"](s.ids["author"].sort()[0]).square().mean()

        def computed(s: Step, loss: Tensor, rows: dict[str, Tensor]) -> Tensor:
            """Rows of another type, as of each paper's first author; of own seeds' without harm."""
            first = torch.arange(self.facts.counts["paper"]) % self.facts.counts["author"]
            self.tables["author"](torch.unique(first[s.ids["paper"][:s.n]]))
            self.tables["author"](torch.unique(first[s.ids["paper"]]))
            return loss

        def copied(s: Step, loss: Tensor, rows: dict[str, Tensor]) -> Tensor:
            self.tables["author"](torch.tensor(s.ids["author"]))
            return loss

        def drawn(s: Step, loss: Tensor, rows: dict[str, Tensor]) -> Tensor:
            """Negatives that a trainer reads for itself, and rows of its own seeds."""
            ids = torch.randint(self.facts.counts["author"], (2 * s.n,))
            read = [self.tables["author"](ids), self.tables["paper"](s.seeds),
                    self.tables["paper"](s.ids["paper"][:s.n])]
            sum(x.square().mean() for x in read).backward()  # type: ignore[union-attr]
            torch.nn.utils.clip_grad_norm_(read, 1.0)
            return loss

        def remembered(s: Step, loss: Tensor, rows: dict[str, Tensor]) -> Tensor:
            states[s.blocks[1].srcnodes["paper"].data[dgl.NID]] = s.levels[1]["paper"].detach()
            return loss

        def clipped(s: Step, loss: Tensor, rows: dict[str, Tensor]) -> Tensor:
            loss.backward(retain_graph=True)
            torch.nn.utils.clip_grad_norm_([rows["author"]], 1.0)
            return loss

        attempts: dict[str, Callable[[Step, Tensor, dict[str, Tensor]], Tensor]] = {
            "own": own, "rows": lambda s, loss, rows: loss + rows["author"].square().mean(),
            "all": lambda s, loss, rows: loss + rows["paper"].square().mean(),
            "shuffled": shuffled, "selected": selected, "sort": sort, "computed": computed,
            "copied": copied, "drawn": drawn,
            "remembered": remembered, "clipped": clipped}
        found = {}
        for name, attempt in attempts.items():
            ids, seeds, blocks = self.batch()
            features, rows = self.features(ids), self.rows(ids)
            try:
                out, levels = net(blocks, ids, features, rows)
                loss = cross_entropy(out, self.labels(seeds["paper"]))
                attempt(self.step(net.module, ids, seeds, blocks, features, out, levels, loss),
                        loss, rows).backward()
                found[name] = ""
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
            torch.distributed.barrier()
        rank = self.g.rank()
        (self.out / f"{rank}.json").write_text(json.dumps(found))
        self.g.barrier()

    def step(self, net: Any, ids: Any, seeds: Any, blocks: Any, features: Any, out: Tensor,
             levels: Any, loss: Tensor) -> Step:
        torch.manual_seed(1)
        heads = [nn.Linear(HIDDEN, n) for n in (1, 4)]
        return Step(1, net, *heads, nn.BatchNorm1d(HIDDEN).eval(), blocks, ids, seeds["paper"],
                    features, out, levels, loss)

    def losses(self, table: dict[str, Any], learned: bool) -> None:
        """A model for each loss; they step together, and are evaluated."""
        nets = {name: nn.parallel.DistributedDataParallel(
            (Fed if learned else Open)(self.facts), find_unused_parameters=True)
            for name in table}
        dense = torch.optim.SGD([p for net in nets.values() for p in net.parameters()], 0.1)
        sparse = dgl.distributed.optim.SparseAdagrad([*self.tables.values()], lr=0.1)
        ids, seeds, blocks = self.batch()
        rows = [self.rows(ids)] if learned else []
        for name, net in nets.items():
            features = self.features(ids)
            out, levels = net(blocks, ids, features, *rows)
            loss = cross_entropy(out, self.labels(seeds["paper"]))
            loss = table[name](self.step(net.module, ids, seeds, blocks, features, out, levels,
                                         loss), loss)
            if learned:
                loss = loss + rows[0]["paper"][:len(seeds["paper"])].square().mean()
            loss.backward()
        dense.step()
        if learned:
            sparse.step()
        with torch.no_grad():
            ids, seeds, blocks = self.batch()
            rows = [self.rows(ids)] if learned else []
            for net in nets.values():
                net.eval()(blocks, ids, self.features(ids), *rows)
        self.batch()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ip-config", required=True)
    parser.add_argument("--part-config", required=True)
    parser.add_argument("--mode", required=True, choices=["tables", "kinds", "own"])
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    script = Script(options)
    if options.mode == "tables":
        script.of_tables()
    elif options.mode == "kinds":
        script.losses({name: GROUPS[name] for name in SHORT}, False)
    else:
        script.losses({name: OWN[name] for name in (
            "seeds", "jumping", "masked", "contrast", "own numbers")}, True)


if __name__ == "__main__":
    main()
