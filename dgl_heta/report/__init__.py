"""The report of a run, pictures and tables of plans, the console's style.

A run directory holds `metrics.jsonl` (a line per epoch) and, once the run has finished,
`summary.json`. Whatever is missing is left out of the report, so that a run that was
interrupted has one too.
"""
