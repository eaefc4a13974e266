"""The proof that a script computes under RAF what plain DGL does: what differs, and the verdict.

The same program runs twice, and what both runs computed is compared by node id. Nothing here knows
of DGL: :mod:`dgl_heta.distdgl` makes the two runs, this package compares them.
"""
