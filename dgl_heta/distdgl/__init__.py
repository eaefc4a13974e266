"""The drop-in: DistDGL scripts train with meta-partitioning and RAF, unchanged.

The main path: `activate` puts the names of `patches` into DGL, where `versions` knows them;
`graph/partitions` makes and loads partitions; a DistGraph (`graph/dist_graph`) opens a `session`;
data loaders (`loading`) sample `blocks`; `modules/hetero_graph_conv` merges over the group what
HeteroGraphConv and multi_update_all aggregate; `training/parallel` puts a module wrapper in the
place of DistributedDataParallel; `rows/embedding` keeps learnable features. Imports dgl.
"""
