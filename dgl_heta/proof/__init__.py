"""The proof that a script computes under RAF what plain DGL does: what differs, and the verdict.

Twice. Before a run, the same program runs two times, and what both computed is compared by node id
(`runs`, `recorded_run`, `comparison`). Inside a run, at the steps that `schedule` says, modules are
replayed on copies both ways: `alignment` finds out what the rows of a call's arguments are rows of,
`gather` brings edges and rows of a group together by node id, `module_call` says what of a call is
compared, `copies` and `replay` run a module in fp64, apart from the run, `proving` takes all these
steps, `difference` says what differs, and `setting` what a run must offer.

Nothing here knows of DGL: :mod:`dgl_heta.distdgl` makes the two runs, and says what a block is.
"""
