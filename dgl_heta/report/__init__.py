"""The training report: one HTML file that opens offline, and a table for the terminal.

A run directory holds `metrics.jsonl` (a line per epoch) and, once the run has finished,
`summary.json`. Whatever is missing is left out of the report, so that a run that was
interrupted has one too.
"""

from dgl_heta.report.page import write_report
from dgl_heta.report.reading import Run, read_run
from dgl_heta.report.run_table import summary_table

__all__ = ["Run", "read_run", "summary_table", "write_report"]
