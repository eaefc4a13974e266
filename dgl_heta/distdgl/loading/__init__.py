"""Data loaders of a script: which nodes, which relations, and the batches that come out."""
