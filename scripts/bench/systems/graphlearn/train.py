"""R-GCN of ../distdgl/train.py with GraphLearn-for-PyTorch on CPU, on parts that parts.py made.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who meets where; `dgl-heta launch` sets them on
emulated hosts (compare.py starts it so). Prints a line of JSON per epoch, as that script does; as
"features" counts the wait for a batch, which GraphLearn samples and collects in one. It also prints
a line per step: `launch` ends trainers that say nothing while a server is gone, and there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

if os.environ.get("DGL_ROLE") == "server":  # GraphLearn has none
    sys.exit(0)
os.environ.update(GLOO_SOCKET_IFNAME="eth0", TP_SOCKET_IFNAME="eth0")
sys.path.append(str(Path(__file__).parents[1] / "distdgl"))

import graphlearn_torch as glt
import sent
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

CPU = torch.device("cpu")


class Model(nn.Module):
    """A projection per node type; layers of a mean and a weight per relation, their sum, the node's
    own state; a linear layer for logits."""

    def __init__(self, manifest: dict[str, Any], hidden: int, fanouts: list[int]) -> None:
        super().__init__()
        self.target = manifest["target"]
        self.etypes = [tuple(e) for e in manifest["edges"]]
        self.widths, self.layers = manifest["widths"], len(fanouts)
        self.project = nn.ModuleDict({t: nn.Linear(w, hidden) for t, w in self.widths.items()})
        self.convs = nn.ModuleList(HeteroConv(
            {e: SAGEConv((hidden, hidden), hidden, root_weight=False, bias=False)
             for e in self.etypes}, aggr="sum") for _ in fanouts)
        self.own = nn.ModuleList(nn.Linear(hidden, hidden) for _ in fanouts)
        self.logits = nn.Linear(hidden, manifest["classes"])

    def forward(self, batch: Any) -> Tensor:
        nodes = {t: _counts(batch.num_sampled_nodes.get(t), self.layers + 1) for t in self.widths}
        edges = {e: _counts(batch.num_sampled_edges.get(e), self.layers) for e in self.etypes}
        given, index = batch.x_dict, dict(batch.edge_index_dict)
        states = {t: self.project[t](given[t]) if t in given else torch.zeros(
            0, self.logits.in_features) for t in self.widths}
        for e in self.etypes:
            index.setdefault(e, torch.zeros(2, 0, dtype=torch.long))
        for layer, (conv, own) in enumerate(zip(self.convs, self.own)):
            states, index, _ = trim_to_layer(layer, nodes, edges, states, index)
            merged = conv(states, index)
            states = {t: F.relu(own(x) + merged[t] if t in merged else own(x))
                      for t, x in states.items()}
        return self.logits(states[self.target][:batch[self.target].batch_size])


def _counts(given: Any, length: int) -> list[int]:
    return [int(n) for n in given] if given is not None else [0] * length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", required=True)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--fanouts", default="25,20", help="input layer first")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    fanouts = [int(f) for f in args.fanouts.split(",")]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    manifest = json.loads(Path(args.partitions, "manifest.json").read_text())
    target = manifest["target"]
    data = glt.distributed.DistDataset(edge_dir="in")
    data.load(root_dir=args.partitions, partition_idx=rank, graph_mode="CPU",
              feature_with_gpu=False,
              whole_node_label_file={target: f"{args.partitions}/labels.pt"})
    print(f"rank {rank} has its part", flush=True)
    glt.distributed.init_worker_group(world_size=world, rank=rank, group_name="train")
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank,
                            world_size=world)
    ids = torch.load(f"{args.partitions}/train_{rank}.pt")
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))]
    ids = ids[:args.steps * args.batch_size] if args.steps else ids
    loader = glt.distributed.DistNeighborLoader(
        data=data, num_neighbors=fanouts[::-1], input_nodes=(target, ids), shuffle=True,
        batch_size=args.batch_size, drop_last=False, edge_dir="in", collect_features=True,
        to_device=CPU, worker_options=glt.distributed.CollocatedDistSamplingWorkerOptions(
            master_addr=address, master_port=port + 1, num_rpc_threads=1))
    model = nn.parallel.DistributedDataParallel(Model(manifest, args.hidden, fanouts),
                                                find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        dist.barrier()
        on_link = sent.link()
        seconds = dict.fromkeys(("sample", "features", "forward", "backward", "update"), 0.0)
        losses, steps, begin = [], [], time.perf_counter()
        last = begin
        for batch in loader:
            started = last
            marks = [("features", time.perf_counter())]
            answers = batch[target].y[:batch[target].batch_size]
            loss = F.cross_entropy(model(batch), answers)
            marks.append(("forward", time.perf_counter()))
            optimizer.zero_grad()
            loss.backward()
            marks.append(("backward", time.perf_counter()))
            optimizer.step()
            losses.append(loss.item())
            marks.append(("update", time.perf_counter()))
            for name, now in marks:
                seconds[name] += now - last
                last = now
            steps.append(last - started)
            print(f"rank {rank}: step {len(steps)}", flush=True)
        whole = time.perf_counter() - begin
        dist.barrier()
        print(json.dumps({"seconds": whole, "stages": seconds, "steps": steps, "loss": losses,
                          "epoch": epoch, "rank": rank, "link": sent.link() - on_link, "causes": {},
                          "memory": sent.host_memory()}), flush=True)
    loader.shutdown()
    glt.distributed.shutdown_rpc()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
