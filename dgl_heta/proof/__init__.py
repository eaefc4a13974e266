"""The proof that a script computes under RAF what plain DGL does: what differs, and the verdict.

Twice. Before a run, the same program runs two times, and what both computed is compared by node id
(`records`, `comparison`). Inside a run, at the steps that `schedule` says, modules are replayed on
copies both ways: `alignment` finds out what the rows of a call's arguments are rows of, `gather`
brings edges and rows of a group together by node id, `inputs` makes the same arguments of fewer
nodes, `copies` and `replay` run a module in fp64, apart from the run, `proving` takes all these
steps, and `difference` says what differs.

Nothing here knows of DGL: :mod:`dgl_heta.distdgl` makes the two runs, and says what a block is.
"""
