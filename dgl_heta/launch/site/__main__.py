"""Print the directory that is for PYTHONPATH."""

from pathlib import Path

print(Path(__file__).resolve().parent)
