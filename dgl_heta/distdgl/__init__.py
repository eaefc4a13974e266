"""The drop-in: DistDGL scripts train with meta-partitioning and RAF, unchanged.

The main path: `activate` patches the names of `patches` into DGL, where `versions` knows them;
`partitions` makes and loads partitions; a `DistGraph` of a meta-partitioned graph (`graphs`) opens
a `session`; its `loader` samples `blocks`; `hetero` reduces over the group what HeteroGraphConv and
multi_update_all aggregate; `parallel` puts a module wrapper in the place of
DistributedDataParallel, which `backward` and `epochs` tell when; `embedding` keeps learnable
features. An adapter: imports dgl.
"""
