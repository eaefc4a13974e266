"""Counts in, plan out: meta-partitioning from a schema alone, without torch or a graph.

In the order in which a plan comes about (Heta §5, https://doi.org/10.14778/3746405.3746408):

- `metatree`: what a model aggregates, by hops or metapaths; `balance`: weights dealt evenly;
- `assignment`, `ownership`: who is given what, and what each partition runs because of it; `hubs`:
  nodes whose in-edges are cut;
- `plan`, `making`: the plan, its file, how it is made; `sharing`, `limit`: for equal work, and
  within a limit of memory.

What a plan would cost, each counted in one place:

- `workload`: the training; `reach`: rows and edges of a step; `compute`: its operations;
  `traffic`: its bytes by cause; `footprint`: bytes that a partition holds;
- `cost`: these per partition of a plan; `cluster_estimate`: seconds on machines that are not there;
  `gpu`: of a step on a GPU.
"""
