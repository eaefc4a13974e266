"""Repairs switched off, one at a time, to show that the proof finds what they repair.

Each function changes dgl_heta in the process that calls it, and says which wrong it lets in.
"""

from __future__ import annotations
