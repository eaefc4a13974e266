"""Training: engine (one step), loop (epochs), checkpoint, worker (a process), launch (all)."""
