"""Rows of nodes in a script: features, DistEmbedding, and its sparse optimizers."""
