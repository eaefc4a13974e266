"""Modules that run on blocks: HeteroGraphConv, convolutions, the merge over the group."""
