"""`dgl-heta launch`: the servers and trainers of a DistDGL job on every host, started and watched.

`cluster` says what runs where with which environment, `emulated` and `remote` open a connection
to the `agent` of a host, which starts the processes there, and `supervise` watches them all.
Nothing here imports torch or dgl.
"""
