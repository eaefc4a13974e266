"""The tests: a folder per package of dgl_heta; what several of them need is in support/."""
