"""The relation store as a script's samplers and queries see it: ends and ids of edges, masks."""
