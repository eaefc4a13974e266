"""A GraphBolt script as a user would write it; nothing in it knows of dgl-heta.

usage: gb_script.py DATASET OUT
"""

import sys

import numpy as np
import torch
from dgl import graphbolt as gb

directory, out = sys.argv[1:]
torch.manual_seed(0)
dataset = gb.OnDiskDataset(directory).load()
features = dataset.feature
pipe = gb.ItemSampler(dataset.tasks[0].train_set, batch_size=16, shuffle=False)
pipe = pipe.sample_neighbor(dataset.graph, [torch.tensor([-1]), torch.tensor([-1])])
pipe = pipe.fetch_feature(features, node_feature_keys={"paper": ["feat"], "author": ["feat"]})
loader = gb.DataLoader(pipe, num_workers=0)
net = torch.nn.Linear(24, 2).double()
optimizer = torch.optim.SGD(net.parameters(), 0.01)
seen = []
for _ in range(4):
    for batch in loader:
        rows = torch.cat([batch.node_features["paper", "feat"].double().mean(0),
                          batch.node_features["author", "feat"].double().mean(0)])
        loss = net(rows).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(rows.numpy())
np.save(out, np.concatenate([*seen, net.weight.detach().numpy().ravel()]))
