"""Graphs, scripts and comparisons that tests share."""
