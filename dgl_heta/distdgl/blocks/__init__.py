"""Blocks in a script's hands: their nodes, their edges, and what they refuse."""
