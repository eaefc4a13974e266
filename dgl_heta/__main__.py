"""`python -m dgl_heta` is `dgl-heta`."""

from dgl_heta.cli import main

main()
