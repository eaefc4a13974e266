"""Scripts of one machine run on several workers with three lines changed, and print the same.

They are written as PyG's users write them, in the manner of its examples/hetero: a HeteroData,
NeighborLoader or LinkNeighborLoader, a model that finds its sizes by itself, a loss of the leading
rows or of links.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support import warm
from tests.support.graphs import academic

pytestmark = pytest.mark.slow
HEAD = """
import torch
import torch.nn.functional as F
from torch_geometric.datasets import OGB_MAG
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import HANConv, HGTConv, HeteroConv, Linear, SAGEConv, to_hetero
from torch_geometric.utils import trim_to_layer

device = torch.device("cpu")
data = OGB_MAG("data")[0]
loader = NeighborLoader(data, num_neighbors=[4, 3], shuffle=False, batch_size=BATCH, num_workers=2,
                        input_nodes=("paper", data["paper"].train_mask))
"""
TO_HETERO = """
class Sage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 16), SAGEConv((-1, -1), 16)
        self.relu, self.out = torch.nn.ReLU(inplace=True), Linear(-1, 4)

    def forward(self, x, edge_index):
        x = self.relu(self.first(x, edge_index))
        x = self.relu(self.second(x, edge_index))
        return self.out(x)

model = to_hetero(Sage(), data.metadata(), aggr="sum")

def scores(batch):
    return model(batch.x_dict, batch.edge_index_dict)["paper"]
"""
HGT = """
class HGT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ins = torch.nn.ModuleDict({t: Linear(-1, 16) for t in data.node_types})
        self.convs = torch.nn.ModuleList(HGTConv(16, 16, data.metadata(), 2) for _ in range(2))
        self.out = Linear(16, 4)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {t: self.ins[t](x).relu_() for t, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.out(x_dict["paper"])

model = HGT()

def scores(batch):
    return model(batch.x_dict, batch.edge_index_dict)
"""
HIERARCHICAL = """
class Hierarchical(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList(
            HeteroConv({r: SAGEConv((-1, -1), 16) for r in data.edge_types}) for _ in range(2))
        self.out = Linear(-1, 4)

    def forward(self, x_dict, edge_index_dict, nodes=None, edges=None):
        for i, conv in enumerate(self.convs):
            if nodes is not None:
                x_dict, edge_index_dict, _ = trim_to_layer(i, nodes, edges, x_dict,
                                                           edge_index_dict)
            x_dict = {t: x.relu() for t, x in conv(x_dict, edge_index_dict).items()}
        return self.out(x_dict["paper"])

model = Hierarchical()

def scores(batch):
    return model(batch.x_dict, batch.edge_index_dict, batch.num_sampled_nodes_dict,
                 batch.num_sampled_edges_dict)
"""
HAN = """
class HAN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = HANConv(-1, 16, data.metadata(), heads=4)
        self.lin = torch.nn.Linear(16, 4)

    def forward(self, x_dict, edge_index_dict):
        return self.lin(self.conv(x_dict, edge_index_dict)["paper"])

model = HAN()

def scores(batch):
    return model(batch.x_dict, batch.edge_index_dict)
"""
LINK_HEAD = """
import torch
import torch.nn.functional as F
from torch_geometric.datasets import OGB_MAG
from torch_geometric.loader import LinkNeighborLoader
from torch_geometric.nn import Linear, SAGEConv, to_hetero

device = torch.device("cpu")
WRITES = ("author", "writes", "paper")
data = OGB_MAG("data")[0]
links = torch.stack([torch.arange(48) % 37, torch.arange(48) * 7 % 120])
"""
LINK_PRED = """
loader = LinkNeighborLoader(data, num_neighbors={t: [4, 3] for t in data.edge_types},
                            edge_label_index=(WRITES, links), edge_label=torch.arange(48.) / 48,
                            batch_size=BATCH, shuffle=False)

class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 16), SAGEConv((-1, -1), 16)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = to_hetero(Encoder(), data.metadata(), aggr="sum")
        self.first, self.second = torch.nn.Linear(32, 16), torch.nn.Linear(16, 1)

    def forward(self, x_dict, edge_index_dict, links=None):
        z = self.encoder(x_dict, edge_index_dict)
        links = torch.zeros(2, 1, dtype=torch.long) if links is None else links
        z = torch.cat([z["author"][links[0]], z["paper"][links[1]]], 1)
        return self.second(self.first(z).relu()).flatten()

model = Model()
loss_of = F.mse_loss
"""
BIPARTITE = """
loader = LinkNeighborLoader(data, num_neighbors=[4, 3], edge_label_index=(WRITES, links),
                            neg_sampling_ratio=1.0, batch_size=BATCH, shuffle=False)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.papers = torch.nn.ModuleList([SAGEConv(-1, 16), SAGEConv(-1, 16)])
        self.of_papers, self.of_authors = SAGEConv((-1, -1), 16), SAGEConv((-1, -1), 16)
        self.author, self.out = Linear(16, 16), Linear(32, 1)

    def forward(self, x_dict, edge_index_dict, links=None):
        paper = x_dict["paper"]
        for conv in self.papers:
            paper = conv(paper, edge_index_dict["paper", "cites", "paper"]).relu()
        of = edge_index_dict["paper", "rev-writes", "author"]
        author = self.of_papers((x_dict["paper"], x_dict["author"]), of).relu()
        author = self.author(self.of_authors((paper, author), of).relu())
        links = torch.zeros(2, 1, dtype=torch.long) if links is None else links
        return self.out(torch.cat([author[links[0]], paper[links[1]]], 1)).flatten()

model = Model()
loss_of = F.binary_cross_entropy_with_logits
"""
LINK_LOOP = """
model = model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    total = examples = 0
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x_dict, batch.edge_index_dict, batch[WRITES].edge_label_index)
        loss = loss_of(out, batch[WRITES].edge_label)
        loss.backward()
        optimizer.step()
        total, examples = total + float(loss) * len(out), examples + len(out)
    with torch.no_grad():
        right = sum(float(model(batch.x_dict, batch.edge_index_dict,
                                batch[WRITES].edge_label_index).sum()) for batch in loader)
    print(NUMBER * 2 + epoch, repr(total / examples), right / examples, flush=True)
"""
SCRIPTS = {"paper": [HEAD + model for model in (TO_HETERO, HGT, HIERARCHICAL, HAN)],
           "links": [LINK_HEAD + model for model in (LINK_PRED, BIPARTITE)]}
LOOP = """
model = model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    total = examples = 0
    for batch in loader:
        batch = batch.to(device, "edge_index")
        optimizer.zero_grad()
        size = batch["paper"].batch_size
        loss = F.cross_entropy(scores(batch)[:size], batch["paper"].y[:size])
        loss.backward()
        optimizer.step()
        total, examples = total + float(loss) * size, examples + size
    model.eval()
    right = 0
    with torch.no_grad():
        for batch in loader:
            size = batch["paper"].batch_size
            right += int((scores(batch)[:size].argmax(1) == batch["paper"].y[:size]).sum())
    print(NUMBER * 2 + epoch, repr(total / examples), right / examples, flush=True)
"""
CHANGED = {
    "from torch_geometric.loader import": "from dgl_heta_pyg import distribute, open_partition,",
    'data = OGB_MAG("data")[0]': 'data = open_partition("{part}", SETTINGS)',
    "model = model.to(device)": "model = distribute(model, data)",
}
SETTINGS = ["train.dtype=float64", "train.threads=1"]


def changed(number: int, script: str, part: Path, batch_size: int) -> str:
    """A script of one machine as it is for a partition."""
    for before, after in CHANGED.items():
        assert script.count(before) == 1
        script = script.replace(before, after.format(part=part))
    script = script.replace("NUMBER", str(number)).replace("BATCH", str(batch_size))
    targets = ['task.targets=["paper", "author"]'] * ("LinkN" in script)
    return script.replace("SETTINGS", repr(SETTINGS + targets))


def losses(command: list[str], files: list[Path]) -> list[list[float]]:
    """Of scripts and epochs in order: their number, losses and scores, over the workers."""
    done = subprocess.run([*command, str(Path(__file__).with_name("scripts_worker.py")),
                           *map(str, files)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert not done.returncode, done.stderr[:6000]
    printed = [line.rpartition("] ")[2] for line in done.stdout.splitlines()]
    lines = np.array([[*map(float, line.split())] for line in printed])
    # Each worker prints what it has of its own seeds, of which all have as many.
    return [of.mean(0).tolist() for name in sorted({*lines[:, 0]})
            for of in [lines[lines[:, 0] == name]]]


def of_torchrun(workers: int) -> list[str]:
    return [warm.python("torch_geometric.nn", "torch_geometric.datasets"), "-m",
            "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Path]]:
    """The changed scripts, by the number of workers."""
    place = tmp_path_factory.mktemp("scripts")
    source = academic(papers=120)
    for ntype, width in (("author", 3), ("institution", 2)):
        rows = np.random.default_rng(7).standard_normal((source.node_counts[ntype], width))
        source.node_arrays[ntype] = {"feat": rows}
    write_store(source, place / "store")
    store, files = Store(place / "store"), dict[int, list[Path]]()
    for workers in (1, 2):
        files[workers] = []
        for kind, targets, loop in (("paper", ["paper"], LOOP),
                                    ("links", ["paper", "author"], LINK_LOOP)):
            part = place / f"{kind} {workers}"
            write_partition(store, make_plan(store.schema, targets, 2, workers), part)
            for model in SCRIPTS[kind]:
                number = len(files[workers])
                files[workers].append(place / f"{workers}-{number}.py")
                files[workers][-1].write_text(changed(number, model + loop, part, 24 // workers))
    return files


@pytest.fixture(scope="module")
def expected(scripts: dict[int, list[Path]]) -> list[list[float]]:
    """What they print on one worker."""
    return losses(of_torchrun(1), scripts[1])


def test_scripts_print_the_same(scripts: dict[int, list[Path]], expected: list[list[float]]
                                ) -> None:
    assert len(expected) == 12
    assert np.abs(np.subtract(expected, losses(of_torchrun(2), scripts[2]))).max() < 1e-10


@pytest.mark.needs("hosts")
@pytest.mark.parametrize("chosen", [
    (0, 2, 5), pytest.param((1, 3, 4), marks=pytest.mark.thorough)], ids=["quick", "thorough"])
def test_scripts_print_the_same_on_two_hosts(
        scripts: dict[int, list[Path]], expected: list[list[float]], chosen: tuple[int, ...],
        tmp_path: Path) -> None:
    (tmp_path / "parts.json").write_text('{"num_parts": 2}')
    got = losses([sys.executable, "-m", "dgl_heta", "launch", "--hosts", "2", "--part-config",
                  str(tmp_path / "parts.json"), "--", "python"],
                 [scripts[2][number] for number in chosen])
    wanted = [of for of in expected if of[0] // 2 in chosen]
    assert len(wanted) == 6
    assert np.abs(np.subtract(wanted, got)).max() < 1e-10
