"""The proof that a script computes what plain DGL does, inside a run and between two."""
